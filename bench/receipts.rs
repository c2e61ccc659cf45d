//! What it costs a request to be told of in access log and receipts: `cargo bench --bench receipts`, best under
//! `nice -n -15`. Whole requests without sockets, from head to end, by turns with and without a recorder; another
//! thread empties its queue, as control's does. Printed are the quickest tenth of short runs, since other work runs
//! beside, and the medians. Without chains no allocation is made for it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use warmfront::counters::Counters;
use warmfront::counters::stats::{ShardStats, Stats};
use warmfront::exchange::{Actions, Context, End, Event, Lender, Opened, Peer, Record, Recorder, Rules, open};
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::index::{Capacity, Index};
use warmfront::limits::RECORDS_MAX;
use warmfront::policy::{Policy, Settings};
use warmfront::publish::Records;
use warmfront::snapshot::Snapshot;

const ENDPOINTS: u16 = 8;
/// Requests of one run: few enough for the queue.
const RUN: usize = 256;
/// Receipts that are kept: as many as by default, so that this side's caches are as full as control's.
const KEPT: usize = 1_024;
const RUNS: usize = 4_001;
/// Number of different prompts.
const PROMPTS: usize = 64;
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

const _: () = assert!(RUN <= RECORDS_MAX);

struct Front {
    snapshot: Snapshot,
    counters: &'static Counters,
    stats: &'static ShardStats,
    rules: Rules,
    lender: Lender,
    actions: Actions,
    now: u64,
}

impl Front {
    fn new(policy: Policy) -> Front {
        let endpoint = |slot: u16| {
            let id = EndpointId { slot, generation: 1 };
            Endpoint {
                health: Health::Up,
                ..Endpoint::new(id, format!("gpu-{slot}:8000").into(), ([10, 0, 0, 1], 80).into())
            }
        };
        let endpoints: Vec<Endpoint> = (0..ENDPOINTS).map(endpoint).collect();
        let index = Index::new(Capacity { endpoints: 64, blocks: 1 << 16, lengths: false }).expect("a possible size");
        endpoints.iter().for_each(|endpoint| assert!(index.assign(endpoint.id, Some(1 << 12)).is_ok()));
        let settings = Settings { policy, ..Settings::default() };
        let snapshot = Snapshot { index: Some(Arc::new(index)), ..Snapshot::of_one_pool(endpoints, settings) };
        let (counters, stats) = (Counters::leak(), Stats::leak(1).shard(0));
        let rules = Rules { receipts: RECORDS_MAX, ..Rules::default() };
        Front {
            snapshot,
            counters,
            stats,
            rules,
            lender: Lender::default(),
            actions: Actions::default(),
            now: 1_000_000,
        }
    }

    /// One request from its head to the end of its reply.
    fn serve(&mut self, request: &[u8]) {
        let Front { snapshot, counters, stats, rules, lender, actions, now } = self;
        let mut advance = |step: &mut dyn FnMut(&mut Context<'_>)| {
            actions.clear();
            *now += 20;
            let stopwatch = || 0;
            let (snapshot, rules) = (&*snapshot, &*rules);
            step(&mut Context {
                now: *now,
                stopwatch,
                snapshot,
                counters,
                stats,
                rules,
                leaving: false,
                draining: false,
                has_successor: false,
                lender,
                actions,
            });
        };
        let peer = Peer { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1 };
        let mut exchange = None;
        let mut rest = request;
        advance(&mut |cx| match open(request, peer, cx.now, cx) {
            Opened::Exchange(taken, opened) => (exchange, rest) = (Some(opened), &request[taken..]),
            _ => panic!("a whole head for an engine"),
        });
        let mut exchange = exchange.expect("opened");
        advance(&mut |cx| exchange.advance(Event::Request(rest), cx));
        advance(&mut |cx| exchange.advance(Event::Connected { reused: true, acknowledged: Some(0) }, cx));
        let unsent = exchange.unsent().len();
        advance(&mut |cx| exchange.advance(Event::Pushed(unsent), cx));
        advance(&mut |cx| exchange.advance(Event::Reply(REPLY), cx));
        assert_eq!(exchange.phase(), warmfront::exchange::Phase::Done);
    }
}

fn request(number: usize) -> Vec<u8> {
    let text = format!("conversation {number} says so. ").repeat(60);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":16}}"#);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: front:8000\r\nuser-agent: bench/1\r\naccept: */*\r\n";
    format!("{head}x-request-id: request-{number}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn wall() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// The first tenth, and the median.
fn quantiles(mut figures: Vec<f64>) -> [f64; 2] {
    figures.sort_unstable_by(f64::total_cmp);
    [figures[figures.len() / 10], figures[figures.len() / 2]]
}

fn main() {
    let requests: Vec<Vec<u8>> = (0..PROMPTS).map(request).collect();
    let records: &'static Records = Box::leak(Box::default());
    records.open(RECORDS_MAX);
    (0..KEPT + RUN).for_each(|_| records.give_back(Box::new(Record::BLANK)));
    let told: &'static AtomicUsize = Box::leak(Box::default());
    std::thread::spawn(|| {
        let mut kept: std::collections::VecDeque<Box<Record>> = std::collections::VecDeque::new();
        loop {
            while let Some(record) = records.queue().and_then(|queue| queue.pop()) {
                assert_eq!((record.end, record.status, record.tries), (End::Whole, 200, 1));
                if kept.len() == KEPT
                    && let Some(oldest) = kept.pop_front()
                {
                    records.give_back(oldest);
                }
                kept.push_back(record);
                told.fetch_add(1, Ordering::Release);
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    });
    println!("ns a request, of the quickest tenth of the runs and of the median one");
    println!("{:12} {:>16} {:>16} {:>16}", "policy", "untold", "told", "more");
    for policy in [Policy::PrefixHash, Policy::Warm] {
        let mut front = Front::new(policy);
        front.lender.wall_ahead = Some(wall());
        let recorder: Option<Recorder> = records.recorder(&front.rules);
        let mut run = |recorder: Option<Recorder>| {
            front.lender.recorder = recorder;
            let before = told.load(Ordering::Acquire);
            let begun = Instant::now();
            let allocations = allocation_counter::measure(|| {
                (0..RUN).for_each(|number| front.serve(&requests[number % PROMPTS]));
            });
            let nanos = begun.elapsed().as_nanos() as f64 / RUN as f64;
            while recorder.is_some() && told.load(Ordering::Acquire) < before + RUN {
                std::thread::yield_now();
            }
            (nanos, allocations.count_total)
        };
        run(None);
        run(recorder);
        let pairs: Vec<_> = (0..RUNS).map(|_| (run(None), run(recorder))).collect();
        assert!(pairs.iter().all(|(untold, told)| untold.1 == told.1), "being told of allocates");
        let [low, untold] = quantiles(pairs.iter().map(|(untold, _)| untold.0).collect());
        let [told_low, told] = quantiles(pairs.iter().map(|(_, told)| told.0).collect());
        let more = [told_low - low, told - untold].map(|more| format!("{more:7.0}")).join(" ");
        println!("{:12} {low:8.0} {untold:7.0} {told_low:8.0} {told:7.0} {more:>16}", policy.as_str());
    }
}
