//! Which request goes first: an urgent one before a full queue of others; and no tenant gets as much as it asks for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::closed::Next;
use crate::crowd::{Crowd, End, Outcome};
use crate::engines::{Cache, Engines};
use crate::figures::{jain, ms, quantile};
use crate::front::{Front, Setting};
use crate::request::{Asker, Request};
use crate::{Bench, closed};

const ENGINES: usize = 16;
/// 200 requests a second in all.
const SERVICE: Duration = Duration::from_millis(80);
const WAITING: usize = 1_000;
const REST: Duration = Duration::from_millis(100);
/// Time between two urgent requests.
const PAUSE: Duration = Duration::from_millis(137);
/// Name, weight, clients: a tenth of the weight has nine tenths of the clients.
const TENANTS: [(&str, f64, usize); 4] =
    [("flood", 1.0, 459), ("first", 3.0, 17), ("second", 3.0, 17), ("third", 3.0, 17)];
/// How far a tenant's share may be from that of its weight.
const SHARE_MOST: f64 = 0.10;

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!(
        "Urgent requests while {WAITING} others wait, 200 a second going (every 5 ms one; one takes 80 ms): ms until at an engine"
    );
    for (driver, shards) in [("epoll", 4), ("uring", 1)] {
        urgent(bench, driver, shards)?;
    }
    println!("A tenant with 10 % of the weight and 90 % of the clients: shares served, ms waited");
    for (driver, shards) in [("epoll", 1), ("uring", 4)] {
        tenants(bench, driver, shards)?;
    }
    Ok(())
}

fn urgent(bench: &mut Bench, driver: &'static str, shards: usize) -> Result<(), String> {
    let engines = Engines::start(ENGINES, Cache::ONE_REQUEST)?;
    let queue = format!("waiting_max = {WAITING}\ntimeout_ms = 60000\n");
    let front = Front::start(&Setting::waiting(driver, shards, &queue), &engines, &bench.dir)?;
    let mut crowd = Crowd::new(vec![front.address])?;
    let most = if bench.quick { 8 } else { 24 };
    let full_at = Instant::now() + Duration::from_secs(1);
    let (mut id, mut asked, mut waited) = (0, 0, Vec::new());
    let (mut low, mut broken) = (Vec::new(), Vec::new());
    // The last client is the urgent one: its requests are answered one by one, at moments of its own.
    let others = WAITING + ENGINES;
    let mut due = full_at;
    let next = |client: usize| {
        id += 1;
        let is_urgent = client == others;
        if asked == most {
            return Next::Ends;
        }
        let mut request = Request::new(id, SERVICE, 400).varied();
        request.asker.priority = Some(if is_urgent { -5 } else { 5 });
        if is_urgent {
            if let Some(early) = due.checked_duration_since(Instant::now()) {
                return Next::Rests(early);
            }
            due = Instant::now() + PAUSE;
            asked += 1;
        }
        Next::Asks(request, None)
    };
    let done = |client: usize, outcome: Outcome| match outcome.end {
        End::Whole { status: 200, .. } => {
            let wait = engines.began(outcome.request.id).map(|began| ms(began - outcome.sent_at));
            let list = if client == others { &mut waited } else { &mut low };
            list.extend(wait);
        }
        End::Whole { .. } if client != others => {}
        end => broken.push(format!("{end:?}")),
    };
    closed::run(&mut crowd, others + 1, REST, next, done)?;
    let metrics = front.metrics()?;
    println!(
        "  {driver:<6} {shards} shards: {} urgent, p50 {:.1}, p95 {:.1}, max {:.1}; the others p50 {:.0}; {} pushed out",
        waited.len(),
        quantile(&mut waited, 0.5),
        quantile(&mut waited, 0.95),
        quantile(&mut waited, 1.0),
        quantile(&mut low, 0.5),
        metrics.sum("queue_ends_total", "\"pushed_out\"")
    );
    let name = format!("{driver}, {shards} shards");
    bench.holds(broken.is_empty(), || format!("{name}: {:?}", broken.first()));
    bench.holds(waited.len() == most, || format!("{name}: {} of {most} urgent requests were served", waited.len()));
    let slowest = quantile(&mut waited, 0.95);
    bench.holds(slowest <= ms(SERVICE), || format!("{name}: an urgent request waits {slowest:.0} ms (p95)"));
    Ok(())
}

fn tenants(bench: &mut Bench, driver: &'static str, shards: usize) -> Result<(), String> {
    let engines = Engines::start(ENGINES, Cache::ONE_REQUEST)?;
    let queue = "tenant_header = \"x-tenant\"\ntimeout_ms = 60000\nweights = { first = 3, second = 3, third = 3 }\n";
    let front = Front::start(&Setting::waiting(driver, shards, queue), &engines, &bench.dir)?;
    let mut crowd = Crowd::new(vec![front.address])?;
    let from = Instant::now() + Duration::from_secs(1);
    let until = from + Duration::from_secs(if bench.quick { 2 } else { 6 });
    let owners: Vec<usize> =
        TENANTS.iter().enumerate().flat_map(|(tenant, (.., clients))| std::iter::repeat_n(tenant, *clients)).collect();
    let (mut id, mut asked, mut sent) = (0, HashMap::new(), [0usize; TENANTS.len()]);
    let mut ends = Vec::new();
    let next = |client: usize| {
        id += 1;
        let mut request = Request::new(id, SERVICE, 400).varied();
        request.asker = Asker { tenant: Some(TENANTS[owners[client]].0), priority: None };
        let goes = Instant::now() < until;
        if goes {
            sent[owners[client]] += 1;
            asked.insert(id, owners[client]);
        }
        Next::asks_while(goes, request)
    };
    closed::run(&mut crowd, owners.len(), REST, next, |_, outcome| ends.push(outcome))?;
    let mut waits: [Vec<f64>; TENANTS.len()] = Default::default();
    for outcome in &ends {
        let began = engines.began(outcome.request.id).filter(|began| (from..until).contains(began));
        if let (Some(tenant), Some(began)) = (asked.get(&outcome.request.id), began) {
            waits[*tenant].push(ms(began - outcome.sent_at));
        }
    }
    let all: f64 = waits.iter().map(|waits| waits.len() as f64).sum();
    let weights: f64 = TENANTS.iter().map(|(_, weight, _)| weight).sum();
    let mut by_weight = Vec::new();
    print!("  {driver:<6} {shards} shards:");
    for ((name, weight, clients), waits) in TENANTS.iter().zip(&mut waits) {
        let share = waits.len() as f64 / all;
        by_weight.push(share / (weight / weights));
        let (p50, p99) = (quantile(waits, 0.5), quantile(waits, 0.99));
        print!(" {name} ({clients} clients) {:.1} %, p50 {p50:.0}, p99 {p99:.0};", 100.0 * share);
    }
    println!(" Jain's index by weight {:.4}; {all} in the window", jain(&by_weight));
    for ((name, ..), part) in TENANTS.iter().zip(by_weight) {
        bench.holds((part - 1.0).abs() <= SHARE_MOST, || {
            format!("{driver}, {shards} shards: {name} has x {part:.2} of what its weight says")
        });
    }
    let other = ends.iter().find(|outcome| !matches!(outcome.end, End::Whole { status: 200, .. }));
    bench.holds(other.is_none(), || format!("{driver}, {shards} shards: {:?}", other.map(|outcome| &outcome.end)));
    Ok(())
}
