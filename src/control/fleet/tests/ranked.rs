//! Several ranks behind one port.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;

fn server(ranks: u32) -> Config {
    let server = Upstream { ranks, ..Upstream::new("http://engine-0:8000".parse().unwrap()) };
    config_of([server, Upstream::new("http://engine-1:8000".parse().unwrap())])
}

fn resolved(ranks: u32, addresses: &[SocketAddr]) -> Fleet {
    let mut fleet = Fleet::new(Arc::new(server(ranks)), Vec::new(), Arc::default());
    for place in 0..ranks as usize {
        assert!(fleet.resolved(place, addresses.to_vec(), Instant::now()));
    }
    fleet.resolved(ranks as usize, vec![at(90)], Instant::now());
    fleet
}

fn ranks(fleet: &Fleet, place: usize) -> Vec<Option<u16>> {
    fleet.server(place).unwrap().ranks.iter().map(|seated| seated.rank).collect()
}

#[test]
fn the_ranks_of_a_server_are_one_address_and_many_endpoints() {
    let mut fleet = resolved(3, &[at(0)]);
    let names: Vec<&str> = fleet.members().iter().map(|member| &*member.name).collect();
    assert_eq!(names, ["engine-0:8000@0", "engine-0:8000@1", "engine-0:8000@2", "engine-1:8000"]);
    for place in 0..3 {
        assert_eq!(ranks(&fleet, place), [Some(0), Some(1), Some(2)]);
        assert_eq!((fleet.server(place).unwrap().address, fleet.ranks(place)), (at(0), vec![0, 1, 2]));
    }
    assert_eq!((ranks(&fleet, 3), fleet.ranks(3)), (vec![None], vec![3]));
    let endpoints = fleet.snapshot().endpoints;
    let of = |slot: usize| endpoints[slot].as_ref().map(|endpoint| (endpoint.rank, endpoint.address));
    assert_eq!([0, 2, 3].map(of), [Some((Some(0), at(0))), Some((Some(2), at(0))), Some((None, at(90)))]);
    // One bell for all.
    let members = fleet.members();
    assert!(Arc::ptr_eq(&members[0].troubled, &members[2].troubled));
    assert!(!Arc::ptr_eq(&members[0].troubled, &members[3].troubled));
}

/// SGLang counts prompts for all ranks together, and where it has several processes says nowhere when it began: one
/// that was too busy for its probes has not lost its caches.
#[test]
fn what_a_server_counts_for_all_its_ranks_tells_whether_it_is_the_same() {
    let is_emptied = |behind: u32| {
        let mut now = Instant::now();
        let mut fleet = resolved(2, &[at(0)]);
        let scrape = |fleet: &mut Fleet, tokens: u32, now: Instant| {
            let mut page = scrape::Page::of(0..2);
            (0..2).for_each(|rank| page.line(format!("sglang:num_running_reqs{{dp_rank=\"{rank}\"}} 0").as_bytes()));
            page.line(format!("sglang:prompt_tokens_total{{model_name=\"m\"}} {tokens}").as_bytes());
            for (place, reading) in page.readings().into_iter().enumerate() {
                let (id, _) = fleet.target(place).unwrap();
                fleet.scraped(place, id, Ok((reading, Ours::default())), now);
            }
        };
        let probe = |fleet: &mut Fleet, outcome: &dyn Fn() -> Result<(), Failure>, now: Instant| {
            for _ in 0..9 {
                let ranks = fleet.server(0).unwrap().ranks;
                ranks.iter().for_each(|rank| _ = fleet.probed(rank.place, rank.id, outcome(), now));
            }
        };
        let emptied =
            |fleet: &Fleet| [0, 1].map(|place| fleet.member(place).unwrap().now.as_ref().unwrap().emptied > 0);
        probe(&mut fleet, &|| Ok(()), now);
        scrape(&mut fleet, 500, now);
        probe(&mut fleet, &failed, now);
        now += Duration::from_secs(60);
        fleet.tick(now, |_| 0, nothing);
        probe(&mut fleet, &|| Ok(()), now);
        assert_eq!(emptied(&fleet), [false; 2], "its scrape tells");
        scrape(&mut fleet, behind, now);
        emptied(&fleet)
    };
    assert_eq!([500, 900, 499].map(is_emptied), [[false; 2], [false; 2], [true; 2]]);
}

/// With a name for two families, of which the server listens on one.
#[test]
fn a_rank_that_comes_later_is_where_the_others_are() {
    let mut fleet = resolved(2, &[at(0), at(3)]);
    let now = Instant::now();
    for rank in fleet.server(0).unwrap().ranks {
        fleet.probed(rank.place, rank.id, Err(Failure { why: "x".into(), how: How::Refused }), now);
    }
    assert_eq!((fleet.server(0).unwrap().address, ranks(&fleet, 0).len()), (at(3), 2), "together");
    fleet.reconfigure(Arc::new(server(3)), Vec::new(), Arc::default(), now);
    let newcomer = fleet.members()[2].place;
    fleet.resolved(newcomer, vec![at(0), at(3)], now);
    assert_eq!((fleet.target(newcomer).unwrap().1, ranks(&fleet, 0).len()), (at(3), 3));
}

/// vLLM says by a request that it takes no more, whichever of its ranks that was for.
#[test]
fn a_server_that_ends_says_so_for_all_its_ranks() {
    let (counters, now) = (Counters::leak(), Instant::now());
    let mut fleet = resolved(2, &[at(0)]);
    all_up(&mut fleet, now);
    fleet.look(counters, now);
    counters.outcomes().bar(fleet.target(1).unwrap().0.slot);
    fleet.look(counters, now);
    assert_eq!(health(&fleet), [Health::Ejected, Health::Ejected, Health::Up]);
}

/// As many requests as it has ranks would fail there, were it not back.
#[test]
fn a_server_that_was_out_is_tried_by_one_of_its_ranks_where_others_serve() {
    let (ejected, trial, up) = (Health::Ejected, Health::Trial, Health::Up);
    let (counters, mut now) = (Counters::leak(), Instant::now());
    let mut fleet = resolved(3, &[at(0)]);
    all_up(&mut fleet, now);
    fleet.look(counters, now);
    let look = |fleet: &mut Fleet, now: Instant| {
        fleet.look(counters, now);
        health(fleet)
    };
    counters.outcomes().bar(1);
    assert_eq!(look(&mut fleet, now), [ejected, ejected, ejected, up]);
    let first = Duration::from_millis(fleet.config.health.eject_ms);
    now += first;
    (0..2).for_each(|_| assert_eq!(look(&mut fleet, now), [trial, ejected, ejected, up]));
    // It still ends: nobody else of it is tried before that one is again.
    counters.outcomes().bar(0);
    assert_eq!(look(&mut fleet, now), [ejected, ejected, ejected, up]);
    now += 2 * first - Duration::from_millis(1);
    assert_eq!(look(&mut fleet, now), [ejected, ejected, ejected, up]);
    now += Duration::from_millis(1);
    assert_eq!(look(&mut fleet, now), [trial, ejected, ejected, up]);
    // It fails otherwise, which may be this rank's own fault: the next is tried.
    counters.outcomes().fault(0);
    assert_eq!(look(&mut fleet, now), [ejected, trial, ejected, up]);
    // No request comes by that one.
    assert_eq!(look(&mut fleet, now + first - Duration::from_millis(1)), [ejected, trial, ejected, up]);
    now += first;
    assert_eq!(look(&mut fleet, now), [ejected, trial, trial, up]);
    counters.outcomes().good(2);
    assert_eq!(look(&mut fleet, now), [ejected, trial, up, up]);
    // Once it is back, all whose time is over are tried.
    counters.outcomes().fault(1);
    assert_eq!(look(&mut fleet, now), [ejected, ejected, up, up]);
    assert_eq!(look(&mut fleet, now + 20 * first), [trial, trial, up, up]);
}

/// The first would get the work of all.
#[test]
fn a_server_that_was_out_is_tried_by_all_its_ranks_where_nobody_else_serves() {
    for beside in [Health::Draining, Health::Ejected, Health::Up] {
        let (counters, now) = (Counters::leak(), Instant::now());
        let mut config = server(3);
        config.upstream[1].drain = beside == Health::Draining;
        // Who serves other models is nobody else.
        config.upstream[0].models = vec!["a".into()];
        config.upstream[1].models = vec![if beside == Health::Up { "b".into() } else { "a".into() }];
        let mut fleet = resolved(3, &[at(0)]);
        fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), now);
        all_up(&mut fleet, now);
        fleet.look(counters, now);
        counters.outcomes().bar(1);
        if beside == Health::Ejected {
            counters.outcomes().bar(3);
        }
        fleet.look(counters, now);
        assert_eq!(health(&fleet), [Health::Ejected, Health::Ejected, Health::Ejected, beside]);
        fleet.look(counters, now + Duration::from_millis(fleet.config.health.eject_ms));
        assert_eq!(health(&fleet)[..3], [Health::Trial; 3], "{beside:?}");
    }
}

/// What it alone serves would all go to the first: an adapter that is loaded nowhere else, or a model where the other
/// comes to list something else than what it is configured for, and gets no requests.
#[test]
fn a_server_that_was_out_is_tried_by_one_of_its_ranks_where_others_serve_all_that_it_does() {
    let tried = |ids: &[&str], others: [&[&str]; 2], has_lost_its_models: bool| {
        let (counters, now) = (Counters::leak(), Instant::now());
        let server = Upstream { ranks: 2, ..Upstream::new("http://engine-0:8000".parse().unwrap()) };
        let models = |of: usize| others[of].iter().map(|id| (*id).to_owned()).collect();
        let other = |of: usize| Upstream {
            models: models(of),
            ..Upstream::new(format!("http://engine-{}:8000", of + 1).parse().unwrap())
        };
        let config = config_of([server, other(0), other(1)]);
        let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
        [0, 0, 90, 91].into_iter().enumerate().for_each(|(place, n)| _ = fleet.resolved(place, vec![at(n)], now));
        (0..2).for_each(|place| serves(&mut fleet, place, ids));
        (0..2).for_each(|of| serves(&mut fleet, of + 2, others[of]));
        all_up(&mut fleet, now);
        if has_lost_its_models {
            (0..2).for_each(|_| _ = probed(&mut fleet, &[2, 3], fails(How::Refused), now));
            probed(&mut fleet, &[2, 3], Ok(()), now);
            (2..4).for_each(|place| serves(&mut fleet, place, &["x"]));
        }
        fleet.look(counters, now);
        counters.outcomes().bar(fleet.target(0).unwrap().0.slot);
        fleet.look(counters, now);
        assert_eq!(health(&fleet), [Health::Ejected, Health::Ejected, Health::Up, Health::Up]);
        fleet.look(counters, now + Duration::from_millis(fleet.config.health.eject_ms));
        health(&fleet).iter().filter(|health| **health == Health::Trial).count()
    };
    assert_eq!(tried(&["m"], [&["m"], &["m", "y"]], false), 1);
    assert_eq!(tried(&["m", "y"], [&["m"], &["y"]], false), 1, "both together");
    assert_eq!(tried(&["m", "y"], [&["m"], &["m", "z"]], false), 2);
    assert_eq!(tried(&["m"], [&["m"], &["m"]], true), 2);
}

/// A page came that tells of all ranks of the first server.
fn takes(fleet: &mut Fleet, page: scrape::Page, now: Instant) {
    let (ranks, readings) = (fleet.server(0).unwrap().ranks, page.readings());
    fleet.paged(&ranks, &readings, now);
    for (rank, reading) in ranks.into_iter().zip(readings) {
        fleet.scraped(rank.place, rank.id, Ok((reading, Ours::default())), now);
    }
}

/// With several API servers no page tells when the process began.
#[test]
fn a_restart_that_one_rank_shows_is_that_of_all() {
    let now = Instant::now();
    let mut fleet = resolved(2, &[at(0)]);
    let scrape = |fleet: &mut Fleet, tokens: [u32; 2]| {
        let line = |(rank, tokens)| format!("vllm:prompt_tokens_total{{engine=\"{rank}\"}} {tokens}\n");
        let mut page = scrape::Page::of(0..2);
        (0..).zip(tokens).for_each(|rank| page.line(line(rank).trim_end().as_bytes()));
        takes(fleet, page, now);
        [0, 1, 2].map(|place| fleet.member(place).unwrap().now.as_ref().unwrap().emptied)
    };
    assert_eq!(scrape(&mut fleet, [50, 700]), [0, 0, 0]);
    assert_eq!(scrape(&mut fleet, [60, 800]), [0, 0, 0]);
    assert_eq!(scrape(&mut fleet, [90, 10]), [1, 1, 0]);
}

fn all_up(fleet: &mut Fleet, now: Instant) {
    probed(fleet, &[0, 1, 2, 3, 4], Ok(()), now);
}

/// What these places that are in a slot answered to a probe, and where it led.
fn probed(fleet: &mut Fleet, places: &[usize], outcome: Result<(), Failure>, now: Instant) -> Vec<Option<Turn>> {
    let targets: Vec<_> = places.iter().filter_map(|place| Some((*place, fleet.target(*place)?.0))).collect();
    targets.into_iter().map(|(place, id)| fleet.probed(place, id, outcome.clone(), now).0).collect()
}

fn health(fleet: &Fleet) -> Vec<Health> {
    fleet.members().iter().filter_map(Member::health).collect()
}

fn fails(how: How) -> Result<(), Failure> {
    Err(Failure { why: "x".into(), how })
}

/// Half of the ranks would do the work of all, of a process that answers nobody.
#[test]
fn a_silent_server_goes_with_all_its_ranks_or_stays() {
    let now = Instant::now();
    let (up, down) = (Health::Up, Health::Down);
    let mut alone = resolved(4, &[at(0)]);
    let server = alone.config.upstream[0].clone();
    alone.reconfigure(Arc::new(config_of([server])), Vec::new(), Arc::default(), now);
    all_up(&mut alone, now);
    for turn in [None, Some(Turn::Slow), None] {
        assert_eq!(probed(&mut alone, &[0, 1, 2, 3], fails(How::Silent), now), [turn; 4]);
    }
    assert_eq!(health(&alone), [up; 4]);

    let mut two = resolved(4, &[at(0)]);
    all_up(&mut two, now);
    (0..2).for_each(|_| _ = probed(&mut two, &[0, 1, 2, 3], fails(How::Silent), now));
    assert_eq!(health(&two), [down, down, down, down, up], "as one engine would beside the other");
    (0..2).for_each(|_| _ = probed(&mut two, &[4], fails(How::Silent), now));
    assert_eq!(two.members()[4].health(), Some(up), "and it is half of both");

    // Ranks that are out by themselves do not make the other's silence pass, as long as most of them are in.
    for (faulty, expected) in [(1, down), (2, up)] {
        let (mut two, counters) = (resolved(4, &[at(0)]), Counters::leak());
        all_up(&mut two, now);
        two.look(counters, now);
        (0..faulty).for_each(|slot| (0..3).for_each(|_| _ = counters.outcomes().fault(slot)));
        two.look(counters, now);
        let out = health(&two).iter().filter(|health| **health == Health::Ejected).count();
        assert_eq!(out, usize::from(faulty));
        (0..2).for_each(|_| _ = probed(&mut two, &[4], fails(How::Silent), now));
        assert_eq!(two.members()[4].health(), Some(expected), "{faulty}");
    }
}

/// A rank may fail by itself, and half of a server at most where there is no other; beside others it goes whole.
#[test]
fn a_server_goes_for_the_faults_of_all_its_ranks_where_another_stays() {
    let now = Instant::now();
    let fails_at = |fleet: &mut Fleet, slots: &[u16]| {
        let counters = Counters::leak();
        all_up(fleet, now);
        fleet.look(counters, now);
        for slot in slots {
            (0..3).for_each(|_| _ = counters.outcomes().fault(*slot));
            fleet.look(counters, now);
        }
        let is_out = |health: &Health| *health == Health::Ejected;
        health(fleet).iter().map(is_out).collect::<Vec<_>>()
    };
    let mut alone = resolved(4, &[at(0)]);
    let server = alone.config.upstream[0].clone();
    alone.reconfigure(Arc::new(config_of([server])), Vec::new(), Arc::default(), now);
    assert_eq!(fails_at(&mut alone, &[2, 0, 1, 3]), [true, false, true, false]);
    assert_eq!(fails_at(&mut resolved(4, &[at(0)]), &[0, 1, 2, 3, 4]), [true, true, true, true, false]);
    // What fails at both of them by turns is not theirs.
    assert_eq!(fails_at(&mut resolved(4, &[at(0)]), &[4, 0, 1, 2, 3]), [true, false, false, false, true]);
}

/// At its first address nobody listens any more, and the name has another.
#[test]
fn a_rank_that_was_never_probed_goes_nowhere_by_itself() {
    let mut fleet = resolved(2, &[at(0), at(3)]);
    let now = Instant::now();
    all_up(&mut fleet, now);
    (0..2).for_each(|_| _ = probed(&mut fleet, &[0, 1], fails(How::Refused), now));
    assert_eq!((fleet.server(0).unwrap().address, health(&fleet)[..2].to_vec()), (at(3), vec![Health::Down; 2]));
    fleet.reconfigure(Arc::new(server(3)), Vec::new(), Arc::default(), now);
    let newcomer = fleet.members()[2].place;
    fleet.resolved(newcomer, vec![at(0), at(3)], now);
    let all = [0, 1, newcomer];
    for there in [at(3), at(0), at(0), at(3)] {
        probed(&mut fleet, &all, fails(How::Refused), now);
        assert_eq!((fleet.server(0).unwrap().address, ranks(&fleet, 0).len()), (there, 3));
    }
    assert_eq!(health(&fleet)[..3], [Health::Down; 3]);
}

/// They tell what they are in the same page.
#[test]
fn a_restart_that_all_ranks_show_empties_each_once() {
    let now = Instant::now();
    let mut fleet = resolved(3, &[at(0)]);
    let scrape = |fleet: &mut Fleet, tokens: u32| {
        let mut page = scrape::Page::of(0..3);
        for rank in 0..3 {
            page.line(format!("vllm:prompt_tokens_total{{engine=\"{rank}\"}} {}", tokens + rank).as_bytes());
        }
        takes(fleet, page, now);
        let of = |member: &Member| member.now.as_ref().map(|tenancy| (tenancy.emptied, tenancy.kind.is_some()));
        fleet.members()[..3].iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(scrape(&mut fleet, 500), [(0, true); 3]);
    assert_eq!(scrape(&mut fleet, 10), [(1, true); 3]);
    assert_eq!(scrape(&mut fleet, 11), [(1, true); 3]);
}

/// One call asks for all of them.
#[test]
fn a_server_is_asked_for_its_models_no_more_often_for_its_ranks() {
    let mut fleet = resolved(3, &[at(0)]);
    let began = Instant::now();
    let bell = Arc::clone(&fleet.members()[0].models_wanted);
    let mut rung = |not_found: [u32; 3], after_ms: u64| {
        let not_found = |slot: u16| not_found.get(usize::from(slot)).copied().unwrap_or_default();
        fleet.ring_for_models(not_found, 0, began + Duration::from_millis(after_ms));
        pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    assert!(!rung([0; 3], 0));
    assert!(rung([1, 0, 0], 20));
    assert!(!rung([1, 1, 0], 40) && !rung([1, 1, 1], 900), "once a second");
    assert!(rung([1, 1, 1], 1_020), "it is not forgotten meanwhile");
    assert!(!rung([1, 1, 1], 5_000));
}

/// Where every slot is taken, the first of them may be nowhere.
#[test]
fn the_first_rank_that_is_anywhere_speaks_for_its_server() {
    let now = Instant::now();
    let mut fleet = Fleet::new(Arc::new(server(4)), Vec::new(), Arc::default());
    (1..4).for_each(|place| _ = fleet.resolved(place, vec![at(0)], now));
    let mut page = scrape::Page::of(0..4);
    (0..2).for_each(|rank| page.line(format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0").as_bytes()));
    let readings = page.readings();
    for place in [3, 1, 2] {
        let (id, _) = fleet.target(place).unwrap();
        fleet.scraped(place, id, Ok((readings[place].clone(), Ours::default())), now);
    }
    let said: Vec<bool> = fleet.members().iter().map(|member| member.said_ranks).collect();
    assert_eq!(said, [false, true, false, false, false]);
    fleet.resolved(0, vec![at(0)], now);
    let speaks = |fleet: &Fleet| (0..5).map(|at| fleet.speaks_for_server(at)).collect::<Vec<_>>();
    assert_eq!(speaks(&fleet), [true, false, false, false, true]);
}

/// With hybrid load balancing: as many as are configured, and others.
#[test]
fn ranks_that_are_numbered_from_elsewhere_are_said() {
    let is_said = |ranks: u32, first: u32, of: u32| {
        let mut fleet = resolved(ranks, &[at(0)]);
        let mut page = scrape::Page::of(0..if ranks > 1 { ranks as u16 } else { 0 });
        let line = |rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 0");
        (first..first + of).for_each(|rank| page.line(line(rank).as_bytes()));
        takes(&mut fleet, page, Instant::now());
        fleet.members()[0].said_ranks
    };
    assert!(is_said(2, 4, 2) && is_said(2, 4, 1) && is_said(1, 4, 2));
    assert!(!is_said(2, 0, 2) && !is_said(1, 4, 1), "one that says which of many it is");
}

/// Each of SGLang's writes its own once it had something to do.
#[test]
fn a_rank_that_tells_of_itself_before_the_first_is_not_numbered_from_elsewhere() {
    let is_said = |ranks: u32| {
        let mut fleet = resolved(ranks, &[at(0)]);
        let mut page = scrape::Page::of(0..if ranks > 1 { ranks as u16 } else { 0 });
        page.line(b"sglang:num_running_reqs{dp_rank=\"1\"} 0");
        takes(&mut fleet, page, Instant::now());
        fleet.members()[0].said_ranks
    };
    assert!(!is_said(2), "it has as many as are configured");
    assert!(is_said(1), "and more than one, which is known by the second");
}
