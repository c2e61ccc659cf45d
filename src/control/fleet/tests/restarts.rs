//! What is known of an engine when another process answers in its place.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::control::saved::{Engine, Heard, Rows};

/// One whose process began then, where it says so.
fn began(time: Option<u32>) -> Result<(Reading, Ours), String> {
    let time = time.map(|time| format!("process_start_time_seconds {time}\n")).unwrap_or_default();
    let text = format!(
        "{time}vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1\nvllm:num_requests_running 0\n"
    );
    Ok((Reading::of(text.as_bytes()), Ours::default()))
}

/// One that does not say so, and has computed so many tokens of prompts.
fn computed(tokens: u64) -> Result<(Reading, Ours), String> {
    let text = format!(
        "vllm:prompt_tokens_total {tokens}\nvllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1\nvllm:num_requests_running 0\n"
    );
    Ok((Reading::of(text.as_bytes()), Ours::default()))
}

/// An engine and what was sent there.
struct Sent {
    fleet: Fleet,
    id: EndpointId,
    now: Instant,
}

impl Sent {
    const BLOCKS: u32 = 40;

    fn new() -> Sent {
        let fleet = fleet(1);
        Sent { id: fleet.target(0).unwrap().0, fleet, now: Instant::now() }
    }

    fn sends(&mut self) {
        let chain: Vec<u64> = (1..=u64::from(Sent::BLOCKS)).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        self.fleet.snapshot().index.unwrap().insert(&chain, self.id, Origin::Choice).unwrap();
    }

    fn probed(&mut self, outcome: Result<(), Failure>, times: u32) {
        for _ in 0..times {
            self.fleet.probed(0, self.id, outcome.clone(), self.now);
        }
    }

    /// What is known behind that scrape.
    fn scraped(&mut self, read: Result<(Reading, Ours), String>) -> u32 {
        self.now += Duration::from_secs(1);
        self.fleet.scraped(0, self.id, read, self.now);
        self.known()
    }

    fn known(&self) -> u32 {
        self.fleet.caches.figures(self.id.slot).blocks
    }
}

#[test]
fn an_engine_that_was_silent_has_what_it_had_if_it_is_the_same_process() {
    for (before, behind, known) in [
        (Some(5), began(Some(5)), 40),
        (Some(5), began(Some(6)), 0),
        (Some(5), began(None), 0),
        (Some(5), Err("x".into()), 40),
        (None, began(None), 0),
    ] {
        let mut sent = Sent::new();
        sent.sends();
        sent.probed(Ok(()), 1);
        assert_eq!(sent.known(), 40, "what went there before its first probe");
        assert_eq!(sent.scraped(began(before)), 40);
        sent.probed(failed(), 9);
        assert_eq!(sent.scraped(Err("x".into())), 40);
        sent.now += Duration::from_secs(60);
        sent.fleet.tick(sent.now, |_| 0, nothing);
        sent.probed(Ok(()), 9);
        assert_eq!(sent.known(), if before.is_some() { 40 } else { 0 }, "{before:?}: who cannot say so is another");
        let said = behind.as_ref().map(|(reading, _)| reading.started);
        assert_eq!(sent.scraped(behind.clone()), known, "{before:?}, then {said:?}");
        sent.sends();
        assert_eq!(sent.scraped(Err("x".into())), 40, "once is enough");
    }
}

/// What requests said of the process before says nothing of this one; and it has nothing in its cache.
#[test]
fn a_bar_goes_with_the_process_that_earned_it() {
    use Health::{Ejected, Trial, Up};
    for (before, behind, expected) in [
        (began(Some(5)), began(Some(6)), Up),
        (began(Some(5)), began(Some(5)), Trial),
        (computed(500), computed(0), Up),
        (computed(500), computed(501), Trial),
        (began(None), began(None), Trial),
    ] {
        let mut sent = Sent::new();
        let counters = Counters::leak();
        let health = |sent: &mut Sent| {
            let (turns, _) = sent.fleet.look(counters, sent.now);
            let endpoint = sent.fleet.snapshot().endpoints[0].clone().unwrap();
            (endpoint.health, endpoint.share_percent < 20, turns.into_iter().any(|(_, turn)| turn == Turn::Anew))
        };
        sent.probed(Ok(()), 1);
        health(&mut sent);
        sent.scraped(before);
        // As its requests did when it ended.
        (0..2).for_each(|_| _ = counters.outcomes().fault(0));
        counters.outcomes().bar(0);
        assert_eq!(health(&mut sent), (Ejected, false, false));
        sent.probed(failed(), 9);
        sent.now += Duration::from_secs(60);
        assert_eq!(health(&mut sent).0, Health::Down);
        sent.probed(Ok(()), 1);
        sent.scraped(behind);
        let is_new = expected == Up;
        assert_eq!(health(&mut sent), (expected, is_new, is_new));
        assert_eq!(counters.outcomes().read(0).in_a_row, if is_new { 0 } else { 2 });
        assert!(!counters.outcomes().is_barred(0));
    }
}

/// As behind a gateway that asks one of two engines by turns: each scrape is another's than the one before.
#[test]
fn several_that_answer_by_turns_are_not_new_each_time() {
    for processes in [2, 20] {
        let (mut sent, counters) = (Sent::new(), Counters::leak());
        sent.probed(Ok(()), 1);
        for second in 0..90 {
            sent.scraped(began(Some(5 + second % processes)));
            sent.fleet.look(counters, sent.now);
            if second == 30 {
                (0..2).for_each(|_| _ = counters.outcomes().fault(0));
            }
        }
        assert_eq!(sent.fleet.snapshot().endpoints[0].as_ref().unwrap().share_percent, Endpoint::WHOLE);
        assert_eq!(counters.outcomes().read(0).in_a_row, 2, "faults are not forgotten");
        assert!(sent.fleet.members()[0].said_by_turns);
        // One that comes much later is new.
        sent.now += Duration::from_secs(60);
        sent.scraped(began(Some(70)));
        sent.fleet.look(counters, sent.now);
        assert!(sent.fleet.snapshot().endpoints[0].as_ref().unwrap().share_percent < 20);
        assert_eq!(counters.outcomes().read(0).in_a_row, 0);
    }
}

/// Behind a gateway that mostly asks the same one.
#[test]
fn one_that_is_back_at_its_address_is_not_new() {
    let (mut sent, counters) = (Sent::new(), Counters::leak());
    let starts_slowly = |sent: &mut Sent, time: u32| {
        sent.scraped(began(Some(time)));
        sent.fleet.look(counters, sent.now);
        sent.fleet.snapshot().endpoints[0].as_ref().unwrap().share_percent < 20
    };
    sent.probed(Ok(()), 1);
    let mut new = Vec::new();
    for round in 0..4 {
        (0..70).for_each(|_| assert!(!starts_slowly(&mut sent, 5)));
        new.extend(starts_slowly(&mut sent, 6).then_some(round));
        sent.now += Duration::from_secs(60);
    }
    assert_eq!(new, [0]);
}

/// However long slow starts are, and however soon they come one after the other.
#[test]
fn each_process_that_never_answered_before_is_new() {
    let (mut sent, counters) = (Sent::new(), Counters::leak());
    let mut config = Config::clone(&sent.fleet.config);
    config.health.slow_start_ms = 600_000;
    sent.fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), sent.now);
    sent.probed(Ok(()), 1);
    for time in 5..20 {
        sent.scraped(began(Some(time)));
        sent.fleet.look(counters, sent.now);
        assert_eq!(counters.outcomes().read(0).in_a_row, 0, "{time}");
        (0..2).for_each(|_| _ = counters.outcomes().fault(0));
        sent.now += Duration::from_secs(20);
    }
    assert!(!sent.fleet.members()[0].said_by_turns);
}

/// With elastic expert parallelism: a process that tells when it began is known by that, whatever it counts.
#[test]
fn one_that_counts_anew_with_more_ranks_is_the_same() {
    let mut sent = Sent::new();
    let reading = |started: &str, tokens: u32, ranks: usize| {
        let rank = |rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0\n");
        let text = format!("{started}vllm:prompt_tokens_total {tokens}\n") + &(0..ranks).map(rank).collect::<String>();
        Ok((Reading::of(text.as_bytes()), Ours::default()))
    };
    sent.sends();
    sent.probed(Ok(()), 1);
    let began = "process_start_time_seconds 5\n";
    assert_eq!(sent.scraped(reading(began, 5_000, 1)), 40);
    assert!(!sent.fleet.members()[0].said_ranks);
    assert_eq!(sent.scraped(reading(began, 10, 2)), 40);
    assert!(sent.fleet.members()[0].said_ranks);
    assert_eq!(sent.scraped(reading(began, 500, 2)), 40);
    // Who does not tell is known by what it counts alone.
    assert_eq!(sent.scraped(reading("", 10, 2)), 0);
}

/// Its memory was given back, and it is the same one.
#[test]
fn a_bar_outlasts_sleep() {
    let mut sent = Sent::new();
    let counters = Counters::leak();
    let asleep = |sleeps: u32| {
        let text = format!("vllm:engine_sleep_state{{sleep_state=\"awake\"}} {}\n", 1 - sleeps);
        Ok((Reading::of(text.as_bytes()), Ours::default()))
    };
    sent.probed(Ok(()), 1);
    sent.fleet.look(counters, sent.now);
    counters.outcomes().bar(0);
    sent.fleet.look(counters, sent.now);
    for (sleeps, expected) in [(1, Health::Asleep), (0, Health::Ejected)] {
        sent.scraped(asleep(sleeps));
        sent.fleet.look(counters, sent.now);
        assert_eq!(sent.fleet.members()[0].health(), Some(expected));
    }
}

/// It may be busy yet with what made it silent: the first scrapes behind that fail, and the next tells.
#[test]
fn an_engine_that_was_silent_has_time_to_say_which_process_it_is() {
    let failed_scrapes = |times: u32| {
        let mut sent = Sent::new();
        sent.sends();
        sent.probed(Ok(()), 1);
        sent.scraped(began(Some(5)));
        sent.probed(failed(), 9);
        sent.probed(Ok(()), 1);
        (0..times).for_each(|_| _ = sent.scraped(Err("x".into())));
        sent
    };
    for times in 1..=5 {
        assert_eq!(failed_scrapes(times).scraped(began(Some(5))), 40, "{times} failed");
        assert_eq!(failed_scrapes(times).scraped(began(Some(6))), 0, "{times} failed");
    }
    // As long as its figures are believed without a scrape, and no longer.
    assert_eq!(failed_scrapes(5).known(), 40);
    assert_eq!(failed_scrapes(6).known(), 0);
}

/// Whichever is heard first.
#[test]
fn what_an_earlier_process_knew_outlasts_the_first_good_probe() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    old.sends();
    let (name, engine) = old.fleet.saved(0).unwrap();
    let saved = || {
        let mut saved = Saved::default();
        saved.add(&name, engine.clone());
        saved
    };
    for probes in [Vec::new(), vec![Ok(())], vec![failed(); 9]] {
        let mut new = Sent::new();
        new.fleet.remember(saved());
        probes.into_iter().for_each(|outcome| new.probed(outcome, 1));
        assert_eq!(new.scraped(began(Some(5))), 40);
        new.probed(Ok(()), 9);
        assert_eq!(new.scraped(began(Some(5))), 40);
    }
}

/// Told by the scrape alone, where no probe was missed: it may serve another model, and is not asked as if it served
/// the one before.
#[test]
fn models_are_read_anew_where_another_process_answers() {
    let is_rung = |sent: &Sent| {
        let bell = Arc::clone(&sent.fleet.members()[0].models_wanted);
        pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut sent = Sent::new();
    for (start, wanted) in [(5, false), (5, false), (6, true), (6, false), (7, true)] {
        sent.probed(Ok(()), 1);
        sent.scraped(began(Some(start)));
        assert_eq!(is_rung(&sent), wanted, "of the process of {start}");
    }
}

/// The address was given to another server, of which no more is known than that it is another.
#[test]
fn another_process_is_of_no_kind_and_caches_until_it_says_otherwise() {
    let says = |start: u32, more: &str| {
        let text = format!("process_start_time_seconds {start}\n{more}");
        Ok((Reading::of(text.as_bytes()), Ours::default()))
    };
    let off = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",enable_prefix_caching=\"False\"} 1\n";
    let mut sent = Sent::new();
    let mut seen = |read| {
        sent.scraped(read);
        let endpoint = sent.fleet.snapshot().endpoints[0].clone().unwrap();
        (endpoint.kind, endpoint.rung.believes_index())
    };
    let vllm = Some(crate::fleet::EngineKind::Vllm);
    assert_eq!(seen(says(5, off)), (vllm, false));
    assert_eq!(seen(says(5, "")), (vllm, false), "the same one");
    assert_eq!(seen(says(6, off)), (vllm, false));
    assert_eq!(seen(says(7, "")), (None, true));
}

/// As SGLang, whose metrics are several processes': one that was too busy for its probes has not lost its cache.
#[test]
fn who_does_not_say_when_it_began_is_known_by_what_it_has_computed() {
    for (behind, known) in [
        (computed(500), 40),
        (computed(900), 40),
        (computed(499), 0),
        (computed(0), 0),
        (began(None), 0),
        (began(Some(5)), 0),
        (Err("x".into()), 40),
    ] {
        let mut sent = Sent::new();
        sent.sends();
        sent.probed(Ok(()), 1);
        assert_eq!(sent.scraped(computed(500)), 40);
        sent.probed(failed(), 9);
        sent.now += Duration::from_secs(60);
        sent.fleet.tick(sent.now, |_| 0, nothing);
        sent.probed(Ok(()), 9);
        assert_eq!(sent.known(), 40, "its scrape tells");
        let said = behind.as_ref().map(|(reading, _)| reading.load.prompt_tokens_total);
        assert_eq!(sent.scraped(behind.clone()), known, "{said:?}");
    }
}

/// What an earlier process of ours wrote of the first engine of these.
fn written(old: &Sent, remembered: Option<Heard>) -> Saved {
    let (name, engine) = old.fleet.saved(0).unwrap();
    let mut saved = Saved::default();
    saved.add(&name, Engine { remembered, ..engine });
    saved
}

/// Its metrics were slow, or it has not answered yet: it is the same process, and knows what it knew.
#[test]
fn what_is_known_of_a_slow_engine_is_written_on() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    old.sends();
    old.now += Duration::from_secs(60);
    old.fleet.tick(old.now, |_| 0, nothing);
    assert!(old.fleet.members()[0].now.as_ref().unwrap().reading.is_none(), "its figures are not believed");
    let mut new = Sent::new();
    new.fleet.remember(written(&old, None));
    assert!(new.fleet.saved(0).is_none(), "it has not said yet which process it is");
    let mut saved = new.fleet.remembered();
    let process = old.fleet.members()[0].now.as_ref().unwrap().process;
    assert!(saved.take("engine-0:8000", process.as_ref()).is_some());
    assert_eq!(new.scraped(began(Some(5))), 40);
    assert!(new.fleet.remembered().is_empty() && new.fleet.saved(0).is_some(), "it is known again");
    old.scraped(began(Some(6)));
    assert_ne!(old.fleet.members()[0].now.as_ref().unwrap().process, process);
    old.probed(failed(), 9);
    old.probed(Ok(()), 9);
    (0..6).for_each(|_| _ = old.scraped(Err("x".into())));
    assert!(old.fleet.saved(0).is_none(), "it may be another by now");
}

#[test]
fn what_was_written_of_engines_that_are_gone_is_not_kept() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    let mut saved = written(&old, None);
    let (_, engine) = old.fleet.saved(0).unwrap();
    saved.add("elsewhere:1", engine);
    let mut new = Sent::new();
    new.fleet.remember(saved);
    let mut kept = new.fleet.remembered();
    assert!(kept.take("elsewhere:1", None).is_none() && !kept.is_empty());
    new.fleet.reconfigure(Arc::new(Config::default()), Vec::new(), Arc::default(), new.now);
    assert!(new.fleet.remembered().is_empty());
}

/// Name servers were slow as the process began: who is behind a name comes later.
#[test]
fn what_was_written_of_engines_of_a_name_waits_until_it_is_known_who_they_are() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    let (_, engine) = old.fleet.saved(0).unwrap();
    let mut saved = Saved::default();
    let written =
        ["10.0.0.7:8000", "10.0.0.8:8000", "b-[fd00::7]:8000@1", "10.0.0.7:8001", "b-x:8000", "engine-0:8000"];
    written.iter().for_each(|name| saved.add(name, engine.clone()));
    let each = |url: &str, name: &str, ranks| {
        let upstream = Upstream::new(url.parse().unwrap());
        Upstream { each_address: true, name: name.into(), ranks, ..upstream }
    };
    let mut new = Sent::new();
    let mut takes = |upstream: Vec<Upstream>, saved: Option<Saved>| {
        let config = Config { upstream, ..Config::default() };
        new.fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), new.now);
        saved.into_iter().for_each(|saved| new.fleet.remember(saved));
        let mut kept: Vec<String> = new.fleet.remembered().engines().map(|(name, _)| name.to_owned()).collect();
        kept.sort();
        kept
    };
    let unknown = vec![each("http://a:8000", "", 1), each("http://b:8000", "b", 2)];
    assert_eq!(takes(unknown, Some(saved)), ["10.0.0.7:8000", "10.0.0.8:8000", "b-[fd00::7]:8000@1"]);
    let known = vec![Upstream::new("http://10.0.0.7:8000".parse().unwrap()), each("http://b:8000", "b", 2)];
    assert_eq!(takes(known, None), ["10.0.0.7:8000", "b-[fd00::7]:8000@1"]);
}

/// There is room for what it tells where it will tell it, and nowhere else.
#[test]
fn what_was_told_has_no_room_where_nobody_listens() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    let told = || Some(Heard { form: 1, sockets: Vec::new(), mirrors: Vec::new() });
    let capacity = |fleet: &Fleet| fleet.caches.figures(0).capacity;
    assert_eq!(capacity(&old.fleet), 250);
    for is_learnt in [true, false] {
        let mut new = Sent::new();
        if is_learnt {
            serves(&mut new.fleet, 0, &["m"]);
        }
        new.fleet.remember(written(&old, told()));
        new.scraped(began(Some(5)));
        assert_eq!(capacity(&new.fleet), 250);
    }
    old.fleet.notes(0, old.id, Unit::Steps);
    old.fleet.unheard(0);
    assert_eq!(capacity(&old.fleet), 1_000, "what it serves is not known yet");
    serves(&mut old.fleet, 0, &["m"]);
    old.fleet.unheard(0);
    assert_eq!(capacity(&old.fleet), 250);
}

/// Nobody listens to it yet, or nobody can: whatever process comes next is to know it all the same.
#[test]
fn what_an_engine_told_is_written_on_until_somebody_uses_it() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    let told = Some(Heard { form: 1, sockets: Vec::new(), mirrors: Vec::new() });
    let mut new = Sent::new();
    new.fleet.remember(written(&old, told.clone()));
    new.scraped(began(Some(5)));
    let is_written = |fleet: &Fleet| fleet.saved(0).unwrap().1.remembered;
    assert_eq!(is_written(&new.fleet), told);
    // Who listens by now is asked for what he knows.
    let remembered = &new.fleet.members()[0].now.as_ref().unwrap().remembered;
    assert_eq!(remembered.lock().unwrap().take(), told);
    assert_eq!(is_written(&new.fleet), None);
}

/// Rows lie in buckets of the index that they were read from.
#[test]
fn what_was_noted_in_an_index_of_another_size_is_not_known_again() {
    let mut old = Sent::new();
    old.scraped(began(Some(5)));
    old.sends();
    let (name, engine) = old.fleet.saved(0).unwrap();
    for (other, known) in [(0, Sent::BLOCKS), (1, 0)] {
        let rows = engine.rows.clone().map(|rows| Rows { layout: rows.layout ^ other, ..rows });
        let mut saved = Saved::default();
        saved.add(&name, Engine { rows, ..engine.clone() });
        let mut new = Sent::new();
        new.fleet.remember(saved);
        assert_eq!(new.scraped(began(Some(5))), known);
    }
}
