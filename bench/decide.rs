//! What a decision costs, from a body's first bytes to the endpoint that is counted for it:
//! `cargo bench --bench decide`.
//!
//! First every decision is timed alone and the distribution printed, then the same with each kernel of the scanner
//! that this CPU has, by what bodies hold; then criterion times a selection.
//! Bodies are chats as the openai SDK writes them, `messages` first and `model` last. Before the clock
//! runs, each case is checked: a decision allocates nothing, and a body has one home, however it is cut.
//! What the scan alone costs beside memcpy and JSON parsers is in `bench/scan.rs`.

#[path = "bodies.rs"]
mod bodies;
#[path = "words.rs"]
mod words;

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warmfront::counters::Counters;
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::policy::{Policy, Pool, PoolId, Reason, Request, Settings, choose};
use warmfront::prefix;
use warmfront::ring::Ring;
use warmfront::scan::{Api, Kernel, PrefixMode, Progress, Scan};
use warmfront::snapshot::{Selected, Snapshot};

use bodies::{KINDS, Kind, MODEL};

/// Bytes of a piece, as one read of a socket brings them.
const PIECE_BYTES: usize = 16 << 10;
const BODY_BYTES: [usize; 4] = [2 << 10, 16 << 10, 128 << 10, 1 << 20];
const FLEETS: [u16; 3] = [8, 64, 512];
/// Different bodies of one size take about this much memory in all, at least four of them: none is in a core's first
/// cache when its turn comes, and keys lie all over the ring.
const BODIES_BYTES: usize = 2 << 20;

/// What the key is made of, and whether the choice has to wait for `model`.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    prefix: PrefixMode,
    models: &'static [&'static str],
}

const MODES: [Mode; 3] = [
    Mode { name: "first-user", prefix: PrefixMode::FirstUser, models: &[MODEL] },
    Mode { name: "first-user, 2 models", prefix: PrefixMode::FirstUser, models: &["other", MODEL] },
    Mode { name: "conversation", prefix: PrefixMode::Conversation, models: &[MODEL] },
];
const CONVERSATION: Mode = MODES[2];

/// What decides, with nothing else to do.
struct Front {
    snapshot: Snapshot,
    counters: &'static Counters,
    api: Api,
    scan: Box<Scan>,
}

/// The chosen endpoint, and how far the body was read for it.
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
            Arc::make_mut(&mut snapshot.models).insert(model.as_bytes().into(), id);
            snapshot.pools.push(Pool::new(id, model.into(), Arc::clone(&members), ring, Arc::clone(&settings)));
        }
        snapshot.endpoints = endpoints.into_iter().map(Some).collect();
        snapshot.seal();
        Front { snapshot, counters: Counters::leak(), api: Api::Chat, scan: Box::new(Scan::new()) }
    }

    /// The same front for bodies of that API, with that kernel's instructions.
    fn reading(self, api: Api, kernel: &'static Kernel) -> Front {
        Front { api, scan: Box::new(Scan::with(kernel)), ..self }
    }

    /// Decides as for a request: scan, pool, key, choice, count; then the release.
    fn decide(&mut self, body: &[u8], piece_bytes: usize) -> Decision {
        let read = self.look(body, piece_bytes);
        let facts = self.scan.facts();
        let Selected::Pool(pool) = self.snapshot.select(facts.model()) else { panic!("the model is served") };
        let prefix = facts.prefix().expect("a prompt");
        let key = Some(prefix::key(pool.name.as_bytes(), facts.salt(), &prefix));
        let request = Request { key, ..Request::default() };
        let choice = choose(pool, self.counters.loads(), &request).expect("all are up");
        assert_eq!(choice.reason, Reason::Home, "nothing is in flight");
        let admission = self.counters.try_admit(choice.endpoint, choice.bound).expect("nobody else counts here");
        Decision { endpoint: admission.endpoint(), read }
    }

    fn look(&mut self, body: &[u8], piece_bytes: usize) -> u64 {
        self.scan.begin(self.api, &self.snapshot.plan, self.snapshot.needs);
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

    /// Decides on each body, whole, in pieces and again; checks that this allocates nothing.
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

fn bodies(kind: &Kind) -> Vec<Vec<u8>> {
    kind.bodies((BODIES_BYTES / kind.bytes).max(4))
}

/// Percentiles of calls timed alone, in µs.
struct Percentiles {
    p50: f64,
    p99: f64,
    p999: f64,
    /// p99.9 of the quietest fifth: on a machine that does other work as well, the tail of the others is its
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
    for mode in MODES {
        for bytes in BODY_BYTES {
            let bodies = bodies(&Kind::prose(bytes));
            FLEETS.iter().for_each(|&fleet| latency(mode, fleet, bytes, &bodies));
        }
    }
    println!();
}

/// One line of the table.
fn latency(mode: Mode, fleet: u16, bytes: usize, bodies: &[Vec<u8>]) {
    let rounds = match bytes {
        _ if quick() => 50,
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

/// What the scanner's kernels gain in a decision by a whole conversation.
fn kernels(_: &mut Criterion) {
    let kernels: Vec<&'static Kernel> = Kernel::available().collect();
    let names = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect::<Vec<_>>().join(" |");
    println!("A decision by the whole conversation, 64 endpoints, in µs (p50, each timed alone), by kernel.\n");
    println!("| {:18} | {:>9} |{names} |", "body", "bytes");
    println!("|:-------------------|----------:|{}", "----------:|".repeat(kernels.len()));
    for kind in KINDS {
        let figures: String = by_kernel(&kind, &kernels).iter().map(|p50| format!("{p50:10.2} |")).collect();
        println!("| {:18} | {:9} |{figures}", kind.name, kind.bytes);
    }
    println!();
}

/// Medians of a row, in µs.
fn by_kernel(kind: &Kind, kernels: &[&'static Kernel]) -> Vec<f64> {
    // One more than a multiple of the number of kernels: body by body in turn, every kernel gets to all of them.
    let bodies = kind.bodies((BODIES_BYTES / kind.bytes).max(4).next_multiple_of(kernels.len()) + 1);
    let front = |kernel: &&'static Kernel| Front::new(CONVERSATION, 64).reading(kind.api, kernel);
    let mut fronts: Vec<Front> = kernels.iter().map(front).collect();
    let decisions = fronts[0].check(&bodies);
    assert!(fronts.iter_mut().all(|front| front.check(&bodies) == decisions), "one home, whatever reads");
    let rounds = if quick() { 20 } else { (2_000 * (128 << 10) / kind.bytes).clamp(250, 8_000) };
    let mut nanos = vec![Vec::with_capacity(rounds); kernels.len()];
    for round in 0..rounds {
        // One kernel after the other, so that other work on the machine meets all of them alike.
        for (place, (front, nanos)) in fronts.iter_mut().zip(&mut nanos).enumerate() {
            let place = (round * kernels.len() + place) % bodies.len();
            let begun = Instant::now();
            let decision = front.decide(black_box(&bodies[place]), usize::MAX);
            nanos.push(begun.elapsed().as_nanos() as u64);
            assert_eq!(decision, decisions[place]);
        }
    }
    let median = |nanos: &mut Vec<u64>| *nanos.select_nth_unstable(rounds / 2).1 as f64 / 1_000.0;
    nanos.iter_mut().map(median).collect()
}

/// Once through everything, as `cargo test --benches` runs it.
fn quick() -> bool {
    std::env::args().any(|argument| argument == "--test")
}

/// Criterion's view of the sizes at one fleet, and of the fleets at one size.
fn selection(criterion: &mut Criterion) {
    for mode in MODES {
        let mut group = criterion.benchmark_group(format!("decide/{}", mode.name));
        let sizes = BODY_BYTES.map(|bytes| (bytes, 64));
        for (bytes, fleet) in sizes.into_iter().chain([(16 << 10, 8), (16 << 10, 512)]) {
            let (bodies, mut front) = (bodies(&Kind::prose(bytes)), Front::new(mode, fleet));
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
    targets = latencies, kernels, selection
}
criterion_main!(benches);
