//! What a choice costs, by policy and size of the fleet: `cargo bench --bench choose`.
//!
//! Before the clock runs, each case is checked: it allocates nothing and never answers an endpoint that
//! takes no requests. Beside criterion's figures each case prints its quickest batch, which says most
//! on a machine that does other work as well.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use warmfront::counters::Counters;
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::policy::{Bound, Policy, Pool, PoolId, Request, Settings, choose};
use warmfront::ring::Ring;
use warmfront::snapshot::Snapshot;

/// Every eighth endpoint fails its probes, so that runs of neighbours are short and homes are walked past.
fn snapshot(count: u16, settings: Settings) -> Snapshot {
    let endpoints: Vec<Endpoint> = (0..count)
        .map(|slot| {
            let id = EndpointId { slot, generation: 1 };
            let name = format!("10.0.{}.{}:8000", slot / 256, slot % 256).into();
            Endpoint {
                health: if slot % 8 == 7 { Health::Down } else { Health::Up },
                foreign: u32::from(slot % 3 == 0),
                ..Endpoint::new(id, name, ([10, 0, 0, 1], 8000).into())
            }
        })
        .collect();
    let members: Vec<_> = endpoints.iter().map(|one| (one.id.slot, &*one.name, one.weight)).collect();
    let ring = Arc::new(Ring::build(&members, settings.replication));
    let pool = Pool::new(PoolId(0), "m".into(), (0..count).collect(), ring, Arc::new(settings));
    let mut snapshot =
        Snapshot { endpoints: endpoints.into_iter().map(Some).collect(), pools: vec![pool], ..Snapshot::default() };
    snapshot.seal();
    snapshot
}

/// A fleet at work: some 10 requests on each endpoint, placed by the policy itself.
fn load(snapshot: &Snapshot, counters: &'static Counters) {
    for i in 0..10 * snapshot.endpoints.len() as u64 {
        let choice = choose(&snapshot.pools[0], counters.loads(), &request(i)).expect("most are up");
        std::mem::forget(counters.try_admit(choice.endpoint, None));
    }
}

fn request(i: u64) -> Request<'static> {
    let key = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    Request { key: Some(key), session: Some(key), random: key.rotate_left(31), turn: i, ..Request::default() }
}

fn check(name: &str, snapshot: &Snapshot, counters: &'static Counters) {
    let allocations = allocation_counter::measure(|| {
        for i in 0..10_000 {
            let choice = choose(&snapshot.pools[0], counters.loads(), &request(i)).expect("most are up");
            assert!(choice.endpoint.slot % 8 != 7, "{name}: chose an endpoint that takes no requests");
        }
    });
    assert_eq!(allocations.count_total, 0, "{name} allocates");
}

/// Nanoseconds per choice in the quickest of many batches.
fn quickest(snapshot: &Snapshot, counters: &'static Counters) -> f64 {
    const CHOICES: u64 = 1_000;
    let batch = |from: u64| {
        let start = Instant::now();
        for i in from..from + CHOICES {
            let _ = black_box(choose(black_box(&snapshot.pools[0]), counters.loads(), black_box(&request(i))));
        }
        start.elapsed().as_nanos() as f64 / CHOICES as f64
    };
    (0..300).map(|i| batch(i * CHOICES)).fold(f64::INFINITY, f64::min)
}

fn choices(criterion: &mut Criterion) {
    let cases = [
        ("random", Policy::Random, Bound::Slots),
        ("round-robin", Policy::RoundRobin, Bound::Slots),
        ("least-load", Policy::LeastLoad, Bound::Slots),
        ("session", Policy::Session, Bound::Slots),
        ("prefix-hash", Policy::PrefixHash, Bound::Slots),
        ("prefix-hash, kubeai", Policy::PrefixHash, Bound::Kubeai),
    ];
    let mut group = criterion.benchmark_group("choose");
    for (name, policy, bound) in cases {
        for count in [8u16, 64, 512] {
            let snapshot = snapshot(count, Settings { policy, bound, ..Settings::default() });
            let counters = Counters::leak();
            load(&snapshot, counters);
            check(name, &snapshot, counters);
            println!("{name}, {count} endpoints: {:.0} ns, no allocation", quickest(&snapshot, counters));
            group.bench_function(BenchmarkId::new(name, count), |bench| {
                let mut i = 0;
                bench.iter(|| {
                    i += 1;
                    choose(black_box(&snapshot.pools[0]), counters.loads(), black_box(&request(i)))
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
