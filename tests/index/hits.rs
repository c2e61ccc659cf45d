//! What the index finds of generated chats, beside an exact LRU of the same room: its order is exact, and what its rows
//! have no place for is little.

use std::collections::{BTreeMap, HashMap};

use warmfront::replay::traffic::chat::Chat;
use warmfront::replay::traffic::{Request, Source};

use crate::{depth, insert, made};

const ENDPOINTS: usize = 8;
const BLOCKS: usize = 2_000;
const REQUESTS: usize = 6_000;

/// One cache: the oldest block goes, and of a prompt the first is younger than the last.
#[derive(Default)]
struct Lru {
    ages: HashMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
    now: u64,
}

impl Lru {
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
        while self.ages.len() > BLOCKS
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

#[test]
fn as_much_is_found_as_by_an_exact_lru() {
    let chat = Chat { threads: 400, ..Chat::default() };
    let (index, ids) = made(ENDPOINTS, BLOCKS);
    let mut exact: Vec<Lru> = (0..ENDPOINTS).map(|_| Lru::default()).collect();
    let (mut asked, mut found, mut by_lru) = (0, 0, 0);
    for request in requests(&chat) {
        let chain = request.prompt_blocks(chat.block_tokens());
        let at = request.session.unwrap_or(0) as usize % ENDPOINTS;
        asked += chain.len();
        found += depth(&index, chain, ids[at]) as usize;
        by_lru += exact[at].depth(chain);
        insert(&index, chain, ids[at]);
        exact[at].insert(chain);
    }
    let [found, by_lru] = [found, by_lru].map(|blocks| 100.0 * blocks as f64 / asked as f64);
    println!("of {asked} blocks of {REQUESTS} requests {found:.2} % found, by an exact LRU {by_lru:.2} %");
    assert!((10.0..90.0).contains(&by_lru), "neither all nor nothing: {by_lru} %");
    assert!((found - by_lru).abs() <= 1.0, "{found} % found, by an exact LRU {by_lru} %");
}
