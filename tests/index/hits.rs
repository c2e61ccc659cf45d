//! What the index finds of generated chats and of a recorded trace, beside an exact LRU of the same room: its order is
//! exact, and what its rows have no place for is little.

use std::collections::{BTreeMap, HashMap};

use warmfront::replay::traffic::chat::Chat;
use warmfront::replay::traffic::mooncake::{self, BLOCK_TOKENS};
use warmfront::replay::traffic::{Request, Source};

use crate::{chain, depth, insert, made};

const ENDPOINTS: usize = 8;
const REQUESTS: usize = 6_000;

/// One cache of so many blocks: the oldest goes, and of a prompt the first is younger than the last.
#[derive(Clone)]
struct Lru {
    room: usize,
    ages: HashMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
    now: u64,
}

impl Lru {
    fn of(room: usize) -> Lru {
        Lru { room, ages: HashMap::new(), by_age: BTreeMap::new(), now: 0 }
    }

    fn depth(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|block| self.ages.contains_key(*block)).count()
    }

    fn insert(&mut self, chain: &[u64]) {
        for block in chain.iter().rev() {
            self.now += 1;
            if let Some(before) = self.ages.insert(*block, self.now) {
                self.by_age.remove(&before);
            }
            self.by_age.insert(self.now, *block);
        }
        while self.ages.len() > self.room
            && let Some((_, block)) = self.by_age.pop_first()
        {
            self.ages.remove(&block);
        }
    }
}

/// Each turn a second behind the one before it, in order of arrival.
fn requests(chat: &Chat) -> Vec<Request> {
    let mut traffic = chat.traffic(1.0);
    let mut coming = BTreeMap::new();
    let mut number = 0;
    while let Some(request) = traffic.next() {
        coming.insert((request.arrival_ns, number), request);
        number += 1;
    }
    let mut requests = Vec::new();
    while let Some(((now, _), request)) = coming.pop_first()
        && requests.len() < REQUESTS
    {
        if let Some(next) = traffic.after(&request, now + 1_000_000_000) {
            coming.insert((next.arrival_ns, number), next);
            number += 1;
        }
        requests.push(request);
    }
    requests
}

/// Asks the index and an exact LRU of so many blocks for each endpoint, and has both note it: each session has an
/// endpoint. Answers what share of the blocks an exact LRU finds, and how many went meanwhile for each that was asked.
fn as_much_is_found<'a>(
    what: &str,
    requests: impl Iterator<Item = &'a Request>,
    block_tokens: u32,
    room: usize,
) -> [f64; 2] {
    let (index, ids) = made(ENDPOINTS, room);
    let mut exact = vec![Lru::of(room); ENDPOINTS];
    let (mut asked, mut found, mut by_lru) = (0, 0, 0);
    for request in requests {
        let chain = request.prompt_blocks(block_tokens);
        let at = request.session.unwrap_or(0) as usize % ENDPOINTS;
        asked += chain.len();
        found += depth(&index, chain, ids[at]) as usize;
        by_lru += exact[at].depth(chain);
        insert(&index, chain, ids[at]);
        exact[at].insert(chain);
    }
    let evicted: u64 = (0..ENDPOINTS as u16).map(|slot| index.figures(slot).evicted).sum();
    let [found, by_lru, evicted] = [found, by_lru, evicted as usize].map(|blocks| blocks as f64 / asked as f64);
    let [percent, lru_percent] = [found, by_lru].map(|share| 100.0 * share);
    println!(
        "{what}, {ENDPOINTS} x {room}: of {asked} blocks {percent:.2} % found, by an exact LRU {lru_percent:.2} %"
    );
    assert!((found - by_lru).abs() <= by_lru / 100.0, "{what}: {percent} % found, by an exact LRU {lru_percent} %");
    [by_lru, evicted]
}

#[test]
fn as_much_is_found_as_by_an_exact_lru() {
    let chat = Chat { threads: 400, ..Chat::default() };
    let [found, _] = as_much_is_found("chats", requests(&chat).iter(), chat.block_tokens(), 2_000);
    assert!((0.1..0.9).contains(&found), "neither all nor nothing: {found}");
}

/// As it came, and then its requests in a drawn order: of a short one little comes again by itself.
/// `WARMFRONT_INDEX_TRACE` names another one, such as the whole of it.
#[test]
fn of_a_recorded_trace_as_much_is_found_as_by_an_exact_lru() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mooncake/first-160.jsonl.zst");
    let path = std::env::var_os("WARMFRONT_INDEX_TRACE").unwrap_or_else(|| fixture.into());
    let trace = mooncake::open(path.as_ref(), BLOCK_TOKENS).unwrap();
    let requests = trace.requests();
    let drawn = chain(0..2_000).into_iter().map(|drawn| &requests[drawn as usize % requests.len()]);
    for room in [300, 500, 2_000] {
        as_much_is_found("as it came", requests.iter(), BLOCK_TOKENS, room);
        let both = requests.iter().chain(drawn.clone());
        let [found, evicted] = as_much_is_found("as it came and again", both, BLOCK_TOKENS, room);
        assert!(room > 500 || found > 0.05 && evicted > 0.1, "too little to compare: {found} found, {evicted} went");
    }
}
