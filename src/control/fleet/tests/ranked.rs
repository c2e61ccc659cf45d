//! Several ranks behind one port.

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
    for place in 0..3 {
        let (id, _) = fleet.target(place).unwrap();
        fleet.probed(place, id, Ok(()), now);
    }
    fleet.look(counters, now);
    counters.outcomes().bar(fleet.target(1).unwrap().0.slot);
    fleet.look(counters, now);
    assert_eq!(health(&fleet), [Health::Ejected, Health::Ejected, Health::Up]);
    // Then each is tried again by itself, until one of them says so once more.
    let later = now + Duration::from_millis(fleet.config.health.eject_ms + 1);
    (0..2).for_each(|_| _ = fleet.look(counters, later));
    assert_eq!(health(&fleet), [Health::Trial, Health::Trial, Health::Up]);
    counters.outcomes().bar(fleet.target(1).unwrap().0.slot);
    fleet.look(counters, later);
    assert_eq!(health(&fleet), [Health::Ejected, Health::Ejected, Health::Up]);
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
        for (place, reading) in page.readings().into_iter().enumerate() {
            let (id, _) = fleet.target(place).unwrap();
            fleet.scraped(place, id, Ok((reading, Ours::default())), now);
        }
        [0, 1, 2].map(|place| fleet.member(place).unwrap().now.as_ref().unwrap().emptied)
    };
    assert_eq!(scrape(&mut fleet, [50, 700]), [0, 0, 0]);
    assert_eq!(scrape(&mut fleet, [60, 800]), [0, 0, 0]);
    assert_eq!(scrape(&mut fleet, [90, 10]), [1, 1, 0]);
}

fn health(fleet: &Fleet) -> Vec<Health> {
    fleet.members().iter().filter_map(Member::health).collect()
}
