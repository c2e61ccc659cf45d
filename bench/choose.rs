//! What a choice costs, by policy and size of the fleet: `cargo bench --bench choose`.
//!
//! Before the clock runs, each case is checked: it allocates nothing and never answers an endpoint that takes no
//! requests. Beside criterion's figures each case prints its quickest batch, which says most on a machine that does
//! other work as well, and, for `warm`, the time of a batch while another core writes the counters.

use std::hint::black_box;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warmfront::counters::Counters;
use warmfront::fleet::{Endpoint, EndpointId, EngineLoad, Health};
use warmfront::index::{Capacity, Index, Matches, Origin};
use warmfront::policy::{Bound, Policy, Prompt, Request, Settings, choose};
use warmfront::snapshot::Snapshot;

/// A fleet in which every eighth endpoint fails its probes, so that runs of neighbours are short and homes are walked
/// past.
fn snapshot(count: u16, settings: Settings) -> Snapshot {
    let endpoints: Vec<Endpoint> = (0..count)
        .map(|slot| {
            let id = EndpointId { slot, generation: 1 };
            let name = format!("10.0.{}.{}:8000", slot / 256, slot % 256).into();
            Endpoint {
                health: if slot % 8 == 7 { Health::Down } else { Health::Up },
                foreign: u32::from(slot % 3 == 0),
                engine: EngineLoad { kv_use: Some(0.3), kv_capacity_tokens: Some(500_000), ..EngineLoad::default() },
                turnover: 0.2,
                // Every fifth cache has room, so that the cost asks each endpoint for it.
                vacant: if slot % 5 == 0 { 0.1 } else { 0.0 },
                ..Endpoint::new(id, name, ([10, 0, 0, 1], 8000).into())
            }
        })
        .collect();
    Snapshot::of_one_pool(endpoints, settings)
}

/// What an index of the fleet says of 16 prompts of 128 KB: each is held at four depths by endpoints of its own, or by
/// none.
fn looked_up(snapshot: &Snapshot, held: bool) -> Vec<Matches> {
    let ids: Vec<EndpointId> = snapshot.endpoints.iter().flatten().map(|endpoint| endpoint.id).collect();
    let index = Index::new(Capacity { endpoints: ids.len(), blocks: ids.len() << 14, lengths: false })
        .expect("a possible size");
    ids.iter().for_each(|&id| assert!(index.assign(id, None).is_ok()));
    let look = |prompt: usize| {
        let own = |block: usize| if block < 8 { block as u64 } else { (prompt as u64 + 1) << 32 | block as u64 };
        let chain: Vec<u64> = (0..512).map(|block| own(block + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let mut found = Matches::default();
        if held {
            for (hop, held) in [480, 256, 128, 64].into_iter().enumerate() {
                index.insert(&chain[..held], ids[(4 * prompt + hop) % ids.len()], Origin::Choice).expect("alone");
            }
            ids.iter().for_each(|&id| assert!(index.insert(&chain[..8], id, Origin::Choice).is_ok()));
        }
        index.longest(&chain, snapshot.pools[0].eligible().ids(), &mut found);
        assert_eq!(found.deepest() > 8, held);
        found
    };
    (0..16).map(look).collect()
}

/// One policy before one fleet.
struct Case {
    name: String,
    snapshot: Snapshot,
    counters: &'static Counters,
    matches: Vec<Matches>,
}

impl Case {
    /// A fleet at work: some 10 requests on each endpoint, placed by the policy itself.
    fn new(name: &str, count: u16, held: bool, settings: Settings) -> Case {
        let name = format!("{name}, {count} endpoints");
        let looks = settings.policy == Policy::Warm;
        let snapshot = snapshot(count, settings);
        let matches = if looks { looked_up(&snapshot, held) } else { Vec::new() };
        let case = Case { name, snapshot, counters: Counters::leak(), matches };
        for i in 0..10 * u64::from(count) {
            let mut admission = case.counters.try_admit(case.choose(i), None).expect("no bound");
            admission.computes(1_000);
            std::mem::forget(admission);
        }
        case
    }

    #[inline]
    fn request(&self, i: u64) -> Request<'_> {
        let key = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let matches = self.matches.get(i as usize % 16);
        let prompt = matches.map(|matches| Prompt { tokens: 32_768, block_tokens: 64.0, matches, tie: key });
        Request {
            prompt,
            key: Some(key),
            session: Some(key),
            random: key.rotate_left(31),
            turn: i,
            ..Request::default()
        }
    }

    #[inline]
    fn choose(&self, i: u64) -> EndpointId {
        let request = self.request(i);
        choose(black_box(&self.snapshot.pools[0]), self.counters.loads(), black_box(&request))
            .expect("most are up")
            .endpoint
    }

    fn check(&self) {
        let allocations = allocation_counter::measure(|| {
            for i in 0..10_000 {
                assert!(self.choose(i).slot % 8 != 7, "{}: chose an endpoint that takes no requests", self.name);
            }
        });
        assert_eq!(allocations.count_total, 0, "{} allocates", self.name);
    }

    /// Nanoseconds per choice in one batch.
    fn batch(&self, from: u64, choices: u64) -> f64 {
        let start = Instant::now();
        for i in from..from + choices {
            black_box(self.choose(i));
        }
        start.elapsed().as_nanos() as f64 / choices as f64
    }

    /// The quickest of many batches.
    fn quickest(&self) -> f64 {
        (0..300).map(|i| self.batch(i * CHOICES, CHOICES)).fold(f64::INFINITY, f64::min)
    }

    /// The quickest and the median batch while another core admits and releases requests, with `pause` idle loops
    /// between two. Batches in which that core did not get to run do not count.
    fn contended(&self, pause: u32) -> Option<(f64, f64)> {
        let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let mut times: Vec<f64> = Vec::new();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                pin(0);
                while !over.load(Ordering::Relaxed) {
                    let i = written.fetch_add(1, Ordering::Relaxed);
                    let slot = self.request(i).random as usize % self.snapshot.endpoints.len();
                    let id = EndpointId { slot: slot as u16, generation: 1 };
                    let mut admission = self.counters.try_admit(id, None).expect("no bound");
                    admission.computes(1_000);
                    (0..pause).for_each(|_| std::hint::spin_loop());
                }
            });
            pin(1);
            let end = Instant::now() + Duration::from_secs(2);
            for from in 0.. {
                if Instant::now() > end {
                    break;
                }
                let before = written.load(Ordering::Relaxed);
                let time = self.batch(from * CONTENDED, CONTENDED);
                if written.load(Ordering::Relaxed) - before > CONTENDED / 4 {
                    times.push(time);
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        times.sort_by(f64::total_cmp);
        Some((*times.first()?, times[times.len() / 2]))
    }
}

/// Choices in a batch.
const CHOICES: u64 = 1_000;
/// Choices in a contended batch: few, so that most batches lie within one turn of both threads if other work runs
/// beside.
const CONTENDED: u64 = 50;

/// Keeps this thread on one of the cores that the process began with. A pinned thread, and those that it starts, are
/// told of its own core alone.
fn pin(core: usize) {
    static CORES: LazyLock<Vec<CoreId>> = LazyLock::new(|| core_affinity::get_core_ids().unwrap_or_default());
    if let Some(core) = CORES.get(core) {
        core_affinity::set_for_current(*core);
    }
}

fn choices(criterion: &mut Criterion) {
    let cases = [
        ("random", Policy::Random, Bound::Slots, true),
        ("round-robin", Policy::RoundRobin, Bound::Slots, true),
        ("least-load", Policy::LeastLoad, Bound::Slots, true),
        ("session", Policy::Session, Bound::Slots, true),
        ("prefix-hash", Policy::PrefixHash, Bound::Slots, true),
        ("prefix-hash, kubeai", Policy::PrefixHash, Bound::Kubeai, true),
        ("warm", Policy::Warm, Bound::Slots, true),
        ("warm, held by nobody", Policy::Warm, Bound::Slots, false),
    ];
    let mut group = criterion.benchmark_group("choose");
    for (name, policy, bound, held) in cases {
        for count in [8u16, 64, 512] {
            let case = Case::new(name, count, held, Settings { policy, bound, ..Settings::default() });
            case.check();
            println!("{}: {:.0} ns, no allocation", case.name, case.quickest());
            if policy == Policy::Warm || policy == Policy::PrefixHash && bound == Bound::Slots {
                for pause in [100, 0] {
                    let Some((quickest, median)) = case.contended(pause) else { continue };
                    println!(
                        "{}, written by another core (pause {pause}): {quickest:.0} ns, median {median:.0}",
                        case.name
                    );
                }
            }
            group.bench_function(BenchmarkId::new(name, count), |bench| {
                let mut i = 0;
                bench.iter(|| {
                    i += 1;
                    case.choose(i)
                });
            });
        }
    }
    group.finish();

    criterion.bench_function("admit and release", |bench| {
        let counters = Counters::leak();
        bench.iter(|| counters.try_admit(black_box(EndpointId { slot: 1, generation: 1 }), Some(4)));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = choices
}
criterion_main!(benches);
