//! Engines that sleep.

use super::*;
use crate::control::saved::Heard;

/// What it says: whether it is awake, where it says so.
fn says(awake: Option<bool>) -> Result<(Reading, Ours), String> {
    let awake = awake.map(|awake| format!("vllm:engine_sleep_state{{sleep_state=\"awake\"}} {}\n", u8::from(awake)));
    let text = "process_start_time_seconds 5\nvllm:num_requests_running 0\n\
                vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n";
    Ok((Reading::of((awake.unwrap_or_default() + text).as_bytes()), Ours::default()))
}

/// Two engines that serve the same, up.
struct Two {
    fleet: Fleet,
    ids: [EndpointId; 2],
    now: Instant,
}

impl Two {
    fn new() -> Two {
        let (mut fleet, now) = (fleet(2), Instant::now());
        let ids = [0, 1].map(|place| fleet.target(place).unwrap().0);
        for (place, id) in ids.into_iter().enumerate() {
            serves(&mut fleet, place, &["m"]);
            fleet.probed(place, id, Ok(()), now);
            fleet.scraped(place, id, says(Some(true)), now);
        }
        Two { fleet, ids, now }
    }

    /// Whether shards must know.
    fn scraped(&mut self, place: usize, read: Result<(Reading, Ours), String>) -> bool {
        self.now += Duration::from_secs(1);
        self.fleet.scraped(place, self.ids[place], read, self.now)
    }

    fn health(&self, place: usize) -> Health {
        self.fleet.members()[place].health().unwrap()
    }

    /// Who may be chosen for their model.
    fn eligible(&mut self) -> Vec<u16> {
        let mut snapshot = self.fleet.snapshot();
        snapshot.seal();
        let Selected::Pool(pool) = snapshot.select(Some(b"m")) else { panic!("no pool") };
        pool.eligible().slots().to_vec()
    }
}

#[test]
fn who_sleeps_gets_nothing_and_holds_nothing_until_it_is_awake() {
    let mut two = Two::new();
    let index = two.fleet.snapshot().index.unwrap();
    let sends = |two: &Two| {
        let chain: Vec<u64> = (1..=40u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        index.insert(&chain, two.ids[0], Origin::Choice).unwrap();
    };
    let held = |two: &Two| two.fleet.caches.figures(two.ids[0].slot).blocks;
    sends(&two);
    two.scraped(0, says(Some(true)));
    assert_eq!((two.eligible(), held(&two)), (vec![0, 1], 40));
    assert!(two.scraped(0, says(Some(false))), "shards must know");
    assert_eq!((two.eligible(), held(&two), two.health(0)), (vec![1], 0, Health::Asleep));
    assert!(two.fleet.members()[0].why().unwrap().contains("sleeps"));
    // Its metrics may be slow, and old: it sleeps on.
    two.scraped(0, Err("x".into()));
    two.now += Duration::from_secs(60);
    two.fleet.tick(two.now, |_| 0, nothing);
    assert_eq!(two.eligible(), [1]);
    assert!(two.scraped(0, says(Some(true))), "shards must know");
    assert_eq!((two.eligible(), two.health(0)), (vec![0, 1], Health::Up));
    sends(&two);
    two.scraped(0, says(None));
    assert_eq!((two.eligible(), held(&two)), (vec![0, 1], 40), "most say nothing of it");
}

/// A request there would hang until somebody wakes it: no last resort.
#[test]
fn where_all_sleep_nobody_is_chosen() {
    let mut two = Two::new();
    for place in 0..2 {
        assert!(two.fleet.usable());
        two.scraped(place, says(Some(false)));
    }
    assert_eq!(two.eligible(), [0; 0]);
    assert!(!two.fleet.usable());
    (0..2).for_each(|_| _ = two.fleet.probed(1, two.ids[1], failed(), two.now));
    assert_eq!(two.health(1), Health::Down, "whatever it said last");
}

/// They would be no help to those that are left.
#[test]
fn who_sleeps_does_not_count_where_half_are_to_stay() {
    let (mut fleet, counters, now) = (fleet(4), Counters::leak(), Instant::now());
    for place in 0..4 {
        let (id, _) = fleet.target(place).unwrap();
        serves(&mut fleet, place, &["m"]);
        fleet.probed(place, id, Ok(()), now);
        fleet.scraped(place, id, says(Some(place >= 2)), now);
    }
    fleet.look(counters, now);
    for slot in 2..4 {
        (0..3).for_each(|_| _ = counters.outcomes().fault(slot));
        fleet.look(counters, now);
    }
    let health: Vec<Health> = fleet.members().iter().filter_map(Member::health).collect();
    assert_eq!(health, [Health::Asleep, Health::Asleep, Health::Ejected, Health::Up]);
}

/// A front that begins beside engines that sleep, with what an earlier one knew of them.
#[test]
fn what_was_known_of_an_engine_that_sleeps_is_not_known_again() {
    let mut old = Two::new();
    let chain: Vec<u64> = (1..=40u64).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    old.fleet.snapshot().index.unwrap().insert(&chain, old.ids[0], Origin::Choice).unwrap();
    for (awake, known) in [(true, 40), (false, 0)] {
        let mut saved = Saved::default();
        let (name, engine) = old.fleet.saved(0).unwrap();
        saved.add(&name, engine);
        let mut new = fleet(2);
        new.remember(saved);
        let (id, _) = new.target(0).unwrap();
        for _ in 0..2 {
            new.scraped(0, id, says(Some(awake)), old.now);
            assert_eq!(new.caches.figures(id.slot).blocks, known, "awake: {awake}");
        }
    }
}

/// Nobody listens to it yet.
#[test]
fn what_who_sleeps_told_an_earlier_front_is_not_kept() {
    let mut two = Two::new();
    let heard = Heard { form: 1, sockets: vec![Vec::new()], mirrors: vec![(0, vec![1])] };
    *two.fleet.tenancy(0, two.ids[0]).unwrap().remembered.lock().unwrap() = Some(heard);
    for (awake, is_kept) in [(true, true), (false, false), (true, false)] {
        two.scraped(0, says(Some(awake)));
        assert_eq!(two.fleet.saved(0).unwrap().1.remembered.is_some(), is_kept, "awake: {awake}");
    }
}

/// Nobody says any more whether it sleeps.
#[test]
fn another_process_is_awake() {
    let mut two = Two::new();
    two.scraped(0, says(Some(false)));
    (0..9).for_each(|_| _ = two.fleet.probed(0, two.ids[0], failed(), two.now));
    two.fleet.probed(0, two.ids[0], Ok(()), two.now);
    two.now += Duration::from_secs(60);
    two.scraped(0, Err("x".into()));
    assert_eq!(two.health(0), Health::Up);
}
