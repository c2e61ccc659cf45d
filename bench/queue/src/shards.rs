//! Four shards are one queue: the same waits as with one, and the same shares.

use std::time::{Duration, Instant};

use crate::closed::Next;
use crate::crowd::{Crowd, End};
use crate::engines::{Cache, Engines};
use crate::figures::{jain, median, ms, quantile};
use crate::front::{Front, Setting};
use crate::request::{Asker, Request};
use crate::{Bench, DRIVERS, closed};

const ENGINES: usize = 32;
const SERVICE: Duration = Duration::from_millis(40);
/// Clients of each tenant.
const CLIENTS: usize = 200;
const TENANTS: [(&str, f64); 2] = [("heavy", 3.0), ("light", 1.0)];
const WARM_UP: Duration = Duration::from_millis(1_200);
/// How far four shards' figures may be from one shard's.
const MOST: f64 = 0.10;

/// Compared figures, in this order.
const FIGURES: [&str; 7] = ["heavy p50", "heavy p99", "light p50", "light p99", "heavy's share", "Jain", "req/s"];
type Row = [f64; FIGURES.len()];

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!(
        "Four shards against one: waits in ms of two tenants of weights 3 and 1, shares, Jain's index of share by weight"
    );
    for driver in DRIVERS {
        let (mut one, mut four) = (Vec::new(), Vec::new());
        for round in 0..bench.rounds {
            for turn in 0..2 {
                match (turn + round) % 2 {
                    0 => one.push(measure(bench, driver, 1, Cache::ONE_REQUEST)?),
                    _ => four.push(measure(bench, driver, 4, Cache::ONE_REQUEST)?),
                }
            }
        }
        compare(bench, driver, &one, &four);
    }
    // This figure is held to nothing: how far a choice goes by a reading is not the queue's doing.
    let [.., told] = measure(bench, "uring", 1, Cache::ONE_REQUEST_TOLD)?;
    println!("  of {:.0} req/s that the engines could; where they tell how full they are, one shard {told:.0}", most());
    Ok(())
}

/// Requests a second of engines that are never idle.
fn most() -> f64 {
    ENGINES as f64 / SERVICE.as_secs_f64()
}

fn compare(bench: &mut Bench, driver: &str, one: &[Row], four: &[Row]) {
    for (at, name) in FIGURES.into_iter().enumerate() {
        let column = |rows: &[Row]| rows.iter().map(|row| row[at]).collect::<Vec<f64>>();
        let mut ratios: Vec<f64> = one.iter().zip(four).map(|(one, four)| four[at] / one[at]).collect();
        let ratio = median(&mut ratios);
        let (lowest, highest) = (ratios.first().copied().unwrap_or(0.0), ratios.last().copied().unwrap_or(0.0));
        let (one, four) = (median(&mut column(one)), median(&mut column(four)));
        println!("  {driver:<6} {name:<14} {one:>8.3} {four:>8.3}  x {ratio:.3} ({lowest:.3}-{highest:.3})");
        bench.holds((ratio - 1.0).abs() <= MOST, || format!("{driver}, {name}: four shards have x {ratio:.3}"));
    }
}

fn measure(bench: &Bench, driver: &'static str, shards: usize, cache: Cache) -> Result<Row, String> {
    let engines = Engines::start(ENGINES, cache)?;
    let queue = "tenant_header = \"x-tenant\"\nweights = { heavy = 3 }\n";
    let front = Front::start(&Setting::waiting(driver, shards, queue), &engines, &bench.dir)?;
    let mut crowd = Crowd::new(vec![front.address])?;
    // Opened before the load, so that shards have even shares of them.
    crowd.connect(2 * CLIENTS)?;
    std::thread::sleep(Duration::from_millis(100));
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_millis(if bench.quick { 1_000 } else { 2_000 });
    let (mut id, mut outcomes) = (0, Vec::new());
    let next = |client: usize| {
        id += 1;
        let mut request = Request::new(id, SERVICE, 400).varied();
        request.asker = Asker { tenant: Some(TENANTS[client % 2].0), priority: None };
        Next::asks_while(Instant::now() < until, request)
    };
    closed::run(&mut crowd, 2 * CLIENTS, SERVICE, next, |client, outcome| outcomes.push((client % 2, outcome)))?;
    let (mut waits, mut served) = ([Vec::new(), Vec::new()], [0.0; 2]);
    for (tenant, outcome) in &outcomes {
        if !matches!(outcome.end, End::Whole { status: 200, .. }) {
            return Err(format!("{driver}, {shards} shards: {:?}", outcome.end));
        }
        let Some(began) = engines.began(outcome.request.id).filter(|began| (from..until).contains(began)) else {
            continue;
        };
        waits[*tenant].push(ms(began - outcome.sent_at));
        served[*tenant] += 1.0;
    }
    let [heavy, light] = &mut waits;
    let all = served[0] + served[1];
    Ok([
        quantile(heavy, 0.5),
        quantile(heavy, 0.99),
        quantile(light, 0.5),
        quantile(light, 0.99),
        served[0] / all,
        jain(&[served[0] / TENANTS[0].1, served[1] / TENANTS[1].1]),
        all / (until - from).as_secs_f64(),
    ])
}
