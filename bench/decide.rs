//! What a decision costs, from a body's bytes to the endpoint that is counted for it:
//! `cargo bench --bench decide`.
//!
//! First every decision is timed alone and the distribution printed, then criterion times a selection.
//! Bodies are chats as the openai SDK writes them, `messages` first and `model` last. Before the clock
//! runs, each case is checked: a decision allocates nothing, and a body has one home, however it is cut.
//! What the scan alone costs beside memcpy and JSON parsers is in `bench/scan.rs`.

#[path = "words.rs"]
mod words;

use std::collections::HashSet;
use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warmfront::counters::Counters;
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::policy::{Policy, Pool, PoolId, Reason, Request, Settings, choose};
use warmfront::prefix;
use warmfront::ring::Ring;
use warmfront::scan::{Api, PrefixMode, Progress, Scan};
use warmfront::snapshot::{Selected, Snapshot};

use words::{CODE, PROSE};

/// The model every body asks for.
const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";
/// As one read of a socket brings them.
const PIECE_BYTES: usize = 16 << 10;
const BODY_BYTES: [usize; 4] = [2 << 10, 16 << 10, 128 << 10, 1 << 20];
const FLEETS: [u16; 3] = [8, 64, 512];
/// Different bodies of one size take about so much memory, at least four of them: none is in a core's first
/// cache when its turn comes, and keys lie all over the ring.
const BODIES_BYTES: usize = 2 << 20;

/// What the key is made of, and whether the choice has to wait for `model`.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    prefix: PrefixMode,
    models: &'static [&'static str],
    words: &'static [&'static str],
}

const MODES: [Mode; 3] = [
    Mode { name: "first-user", prefix: PrefixMode::FirstUser, models: &[MODEL], words: PROSE },
    Mode { name: "first-user, 2 models", prefix: PrefixMode::FirstUser, models: &["other", MODEL], words: PROSE },
    Mode { name: "conversation", prefix: PrefixMode::Conversation, models: &[MODEL], words: PROSE },
];
/// What costs the scanner most per byte.
const OF_CODE: Mode =
    Mode { name: "conversation, code", prefix: PrefixMode::Conversation, models: &[MODEL], words: CODE };

/// What decides, idle but for the decision.
struct Front {
    snapshot: Snapshot,
    counters: &'static Counters,
    scan: Box<Scan>,
}

/// An endpoint, and how far the body was read for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Decision {
    endpoint: EndpointId,
    read: u64,
}

impl Front {
    fn new(mode: Mode, count: u16) -> Front {
        let endpoint = |slot: u16| {
            let id = EndpointId { slot, generation: 1 };
            let name = format!("10.0.{}.{}:8000", slot / 256, slot % 256).into();
            Endpoint { health: Health::Up, ..Endpoint::new(id, name, ([10, 0, 0, 1], 8000).into()) }
        };
        let endpoints: Vec<Endpoint> = (0..count).map(endpoint).collect();
        let settings = Arc::new(Settings {
            policy: Policy::PrefixHash,
            prefix: mode.prefix,
            prefix_bytes: u32::MAX,
            ..Settings::default()
        });
        let points: Vec<_> = endpoints.iter().map(|one| (one.id.slot, &*one.name, one.weight)).collect();
        let ring = Arc::new(Ring::build(&points, settings.replication));
        let members: Arc<[u16]> = (0..count).collect();
        let mut snapshot = Snapshot { plan: Arc::new(settings.plan()), models_complete: true, ..Snapshot::default() };
        for (place, &model) in mode.models.iter().enumerate() {
            let (id, ring) = (PoolId(place as u16), Arc::clone(&ring));
            snapshot.models.insert(model.as_bytes().into(), id);
            snapshot.pools.push(Pool::new(id, model.into(), Arc::clone(&members), ring, Arc::clone(&settings)));
        }
        snapshot.endpoints = endpoints.into_iter().map(Some).collect();
        snapshot.seal();
        Front { snapshot, counters: Counters::leak(), scan: Box::new(Scan::new()) }
    }

    /// The way of a request: scan, pool, key, choice, count; and the release at its end.
    fn decide(&mut self, body: &[u8], piece_bytes: usize) -> Decision {
        let read = self.look(body, piece_bytes);
        let facts = self.scan.facts();
        let Selected::Pool(pool) = self.snapshot.select(facts.model()) else { panic!("the model is served") };
        let prefix = facts.prefix().expect("a prompt");
        let key = Some(prefix::key(pool.name.as_bytes(), facts.salt(), &prefix));
        let request = Request { key, ..Request::default() };
        let choice = choose(pool, self.counters.loads(), &request).expect("all are up");
        assert_eq!(choice.reason, Reason::Home, "nothing is in flight");
        let admission = self.counters.try_admit(choice.endpoint, choice.slots).expect("nobody else counts here");
        Decision { endpoint: admission.endpoint(), read }
    }

    fn look(&mut self, body: &[u8], piece_bytes: usize) -> u64 {
        self.scan.begin(Api::Chat, &self.snapshot.plan, self.snapshot.needs);
        for piece in body.chunks(piece_bytes) {
            match self.scan.push(piece) {
                Progress::More => {}
                Progress::Enough { at } => return at,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.scan.finish(), Progress::Done);
        body.len() as u64
    }

    /// The decision on each body, whole, in pieces and again, without an allocation.
    fn check(&mut self, bodies: &[Vec<u8>]) -> Vec<Decision> {
        let decisions: Vec<Decision> = bodies.iter().map(|body| self.decide(body, usize::MAX)).collect();
        let allocations = allocation_counter::measure(|| {
            for (body, decision) in bodies.iter().zip(&decisions) {
                for piece_bytes in [usize::MAX, PIECE_BYTES, 1_448] {
                    assert_eq!(self.decide(body, piece_bytes), *decision);
                }
            }
        });
        assert_eq!(allocations.count_total, 0, "a decision allocates");
        let homes: HashSet<EndpointId> = decisions.iter().map(|decision| decision.endpoint).collect();
        assert!(homes.len() > 1 && self.counters.underflow() == 0);
        decisions
    }
}

/// A chat of about that size: a system prompt shared by all, then turns of some hundred bytes to some KiB.
fn body(words: &[&str], bytes: usize, number: u64) -> Vec<u8> {
    let mut state = number + 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut text = String::with_capacity(bytes + 4_096);
    text.push_str(r#"{"messages":[{"role":"system","content":"You answer questions on serving language models."}"#);
    let turn_bytes = (bytes / 16).clamp(300, 8_192);
    for role in ["user", "assistant"].iter().cycle() {
        let _ = write!(text, r#",{{"role":"{role}","content":"{number}:"#);
        let end = (text.len() + turn_bytes).min(bytes.saturating_sub(128));
        while text.len() < end {
            text.push(' ');
            text.push_str(words[next() % words.len()]);
        }
        text.push_str("\"}");
        if text.len() + 256 > bytes {
            break;
        }
    }
    let _ = write!(text, r#"],"model":"{MODEL}","max_tokens":256,"stream":true,"temperature":0.7}}"#);
    text.into_bytes()
}

fn bodies(words: &[&str], bytes: usize) -> Vec<Vec<u8>> {
    (0..(BODIES_BYTES / bytes).max(4) as u64).map(|number| body(words, bytes, number)).collect()
}

/// Of calls timed alone, in µs.
struct Percentiles {
    p50: f64,
    p99: f64,
    p999: f64,
    /// p99.9 of the quietest fifth: on a machine that does other work as well, the tail of the rest is its
    /// scheduler's.
    quiet: f64,
}

impl Percentiles {
    fn of(rounds: usize, mut call: impl FnMut(usize)) -> Percentiles {
        let mut nanos: Vec<u64> = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let begun = Instant::now();
            call(round);
            nanos.push(begun.elapsed().as_nanos() as u64);
        }
        let at = |sorted: &[u64], share: f64| sorted[(sorted.len() as f64 * share) as usize] as f64 / 1_000.0;
        let tail = |fifth: &mut [u64]| {
            fifth.sort_unstable();
            at(fifth, 0.999)
        };
        let quiet = nanos.chunks_exact_mut(rounds / 5).map(tail).fold(f64::INFINITY, f64::min);
        nanos.sort_unstable();
        Percentiles { p50: at(&nanos, 0.5), p99: at(&nanos, 0.99), p999: at(&nanos, 0.999), quiet }
    }
}

/// Every decision timed alone. The clock's own time is in each figure and printed first.
fn latencies(_: &mut Criterion) {
    let clock = Percentiles::of(20_000, |_| {});
    println!(
        "\nFrom body to endpoint in µs, each decision timed alone, none allocates. The clock takes {:.2}.",
        clock.p50
    );
    println!("`read`: bytes the choice needed, on average; `copy`: memcpy of those.");
    println!("`quiet`: p99.9 of the quietest fifth of the decisions.\n");
    let columns = ["p50", "p99", "p99.9", "quiet"].map(|name| format!("{name:>8}")).join(" ");
    println!("{:71} | {:^35} | {:^35}", "", "whole", "in pieces of 16 KiB");
    let [body, read, copy, fleet, count] = ["body", "read", "copy", "fleet", "decisions"];
    println!("{:23} {body:>9} {read:>9} {copy:>9} {fleet:>6} {count:>9} | {columns} | {columns}", "prefix");
    let cases = MODES.iter().map(|mode| (mode, &FLEETS[..])).chain([(&OF_CODE, &[64][..])]);
    for (mode, fleets) in cases {
        for bytes in BODY_BYTES {
            let bodies = bodies(mode.words, bytes);
            fleets.iter().for_each(|&fleet| latency(*mode, fleet, bytes, &bodies));
        }
    }
    println!();
}

/// One line of the table.
fn latency(mode: Mode, fleet: u16, bytes: usize, bodies: &[Vec<u8>]) {
    let quick = std::env::args().any(|argument| argument == "--test");
    let rounds = match bytes {
        _ if quick => 50,
        1_048_576.. => 2_000,
        _ => 20_000,
    };
    let mut front = Front::new(mode, fleet);
    let decisions = front.check(bodies);
    let early = mode.prefix == PrefixMode::FirstUser && mode.models.len() == 1;
    assert!(!early || decisions.iter().all(|made| made.read < 1_024), "its first message and model say enough");
    let needed: Vec<&[u8]> = bodies.iter().zip(&decisions).map(|(body, made)| &body[..made.read as usize]).collect();
    let mut room = vec![0; bytes + 4_096];
    let copy = Percentiles::of(rounds.min(2_000), |round| {
        let from = needed[round % needed.len()];
        room[..from.len()].copy_from_slice(black_box(from));
        black_box(&mut room);
    });
    let mut timed = |piece_bytes| {
        let all = Percentiles::of(rounds, |round| {
            let place = round % bodies.len();
            assert_eq!(front.decide(black_box(&bodies[place]), piece_bytes), decisions[place]);
        });
        format!("{:8.2} {:8.2} {:8.2} {:8.2}", all.p50, all.p99, all.p999, all.quiet)
    };
    let (whole, pieces) = (timed(usize::MAX), timed(PIECE_BYTES));
    let read = needed.iter().map(|bytes| bytes.len()).sum::<usize>() / needed.len();
    let (name, body) = (mode.name, bodies[0].len());
    println!("{name:23} {body:9} {read:9} {:9.2} {fleet:6} {rounds:9} | {whole} | {pieces}", copy.p50);
}

/// Criterion's view of the sizes at one fleet, and of the fleets at one size.
fn selection(criterion: &mut Criterion) {
    for mode in MODES {
        let mut group = criterion.benchmark_group(format!("decide/{}", mode.name));
        let sizes = BODY_BYTES.map(|bytes| (bytes, 64));
        for (bytes, fleet) in sizes.into_iter().chain([(16 << 10, 8), (16 << 10, 512)]) {
            let (bodies, mut front) = (bodies(mode.words, bytes), Front::new(mode, fleet));
            let read = front.check(&bodies)[0].read;
            group.throughput(Throughput::Bytes(read));
            group.bench_function(BenchmarkId::new(format!("{} KiB", bytes >> 10), fleet), |bench| {
                let mut bodies = bodies.iter().cycle();
                bench.iter(|| front.decide(black_box(bodies.next().expect("a cycle")), PIECE_BYTES));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .without_plots()
        .measurement_time(Duration::from_millis(400))
        .warm_up_time(Duration::from_millis(100));
    targets = latencies, selection
}
criterion_main!(benches);
