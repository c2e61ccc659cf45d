//! No request is lost or served twice: most wait, some clients leave in every phase, some push others out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use peers::content;
use peers::warmfront::Metrics;

use crate::closed::Next;
use crate::crowd::{Crowd, End, Leave, Outcome};
use crate::engines::{Cache, Engines};
use crate::front::{Front, Setting};
use crate::request::{Asker, Request};
use crate::{Bench, DRIVERS, closed};

const ENGINES: usize = 24;
const CLIENTS: usize = 1_000;
/// Fewer than would wait: some requests are refused, some pushed out.
const WAITING_MAX: usize = 960;
const REST: Duration = Duration::from_millis(200);
const TENANTS: [Option<&str>; 3] = [None, Some("heavy"), Some("light")];
/// Share of all requests that has to wait, or the run says little about the queue.
const WAITED_MIN: f64 = 0.5;

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!("No request is lost or served twice");
    println!(
        "  {:<6} {:>6} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>6} | {:>6} {:>7} {:>6} {:>6} | {:>7} {:>5}",
        "driver",
        "shards",
        "requests",
        "served",
        "refused",
        "full",
        "pushed",
        "timeout",
        "left",
        "queue",
        "connect",
        "await",
        "relay",
        "waited",
        "req/s"
    );
    for (driver, shards) in DRIVERS.into_iter().flat_map(|driver| [(driver, 1), (driver, 4)]) {
        one(bench, driver, shards)?;
    }
    Ok(())
}

fn one(bench: &mut Bench, driver: &'static str, shards: usize) -> Result<(), String> {
    let requests = bench.requests / 4;
    let engines = Engines::start(ENGINES, Cache::ONE_REQUEST)?;
    let queue = format!(
        "waiting_max = {WAITING_MAX}\ntimeout_ms = 3000\ntenant_header = \"x-tenant\"\nweights = {{ heavy = 3 }}\n"
    );
    let front = Front::start(&Setting::waiting(driver, shards, &queue), &engines, &bench.dir)?;
    let descriptors = front.descriptors();
    let mut crowd = Crowd::new(vec![front.address])?;
    let mut drawn = 0;
    let mut draw = |below: u64| {
        drawn += 1;
        content::mix(drawn ^ (shards as u64) << 40) % below
    };
    let (mut id, mut outcomes) = (0, Vec::new());
    let begun = Instant::now();
    let next = |_| {
        id += 1;
        if id > requests {
            return Next::Ends;
        }
        let (request, leave) = ask(id, &mut draw);
        Next::Asks(request, leave)
    };
    closed::run(&mut crowd, CLIENTS, REST, next, |_, outcome| outcomes.push(outcome))?;
    let seconds = begun.elapsed().as_secs_f64();
    let strays = crowd.strays;
    drop(crowd);
    let metrics = front.until("nothing waits, runs or is open", at_rest)?;
    let left_open = front.descriptors_above(descriptors);
    let name = format!("{driver}, {shards} shards");
    let tally = Tally::of(&outcomes, &engines, requests);
    let phase = |phase| metrics.sum("client_aborts_total", &format!("\"{phase}\""));
    let end = |end| metrics.sum("queue_ends_total", &format!("\"{end}\""));
    let waited = metrics.sum("queued_total", "") / requests as f64;
    println!(
        "  {driver:<6} {shards:>6} {requests:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>6} | {:>6} {:>7} {:>6} {:>6} | {:>5.1} % {:>5.0}",
        tally.served,
        tally.refused,
        end("full"),
        end("pushed_out"),
        end("timed_out"),
        tally.left,
        phase("queue"),
        phase("connect"),
        phase("await"),
        phase("relay"),
        100.0 * waited,
        requests as f64 / seconds
    );
    bench.holds(tally.faults.is_empty(), || format!("{name}: {}", list(&tally.faults)));
    bench.holds(strays == 0, || format!("{name}: {strays} connections brought bytes nobody had asked for"));
    bench.holds(left_open == 0, || format!("{name}: {left_open} descriptors are left open"));
    bench.holds(waited >= WAITED_MIN, || format!("{name}: only {:.0} % waited", 100.0 * waited));
    let faults = metrics.faults();
    bench.holds(faults.is_empty(), || format!("{name}: {faults:?}"));
    let complaints = front.complaints();
    bench.holds(complaints.is_empty(), || format!("{name}: {}", list(&complaints)));
    Ok(())
}

/// The next request, and whether its client leaves: one of seven does.
fn ask(id: u64, draw: &mut impl FnMut(u64) -> u64) -> (Request, Option<Leave>) {
    let mut request = Request::new(id, Duration::from_micros(500 + draw(2_000)), 400 + draw(100) as usize);
    request.events = if draw(2) == 0 { 4 } else { 0 };
    let priority = match draw(20) {
        0 => Some(-5),
        1 => Some(5),
        _ => None,
    };
    request.asker = Asker { tenant: TENANTS[draw(3) as usize], priority };
    let leave = match draw(28) {
        0 => Some(Leave::Sent(1 + draw(600) as usize)),
        1 => Some(Leave::Sent(usize::MAX)),
        2 => Some(Leave::After(Duration::from_micros(draw(600_000)))),
        3 => {
            request.events = 4;
            // Somewhere within its stream of some 300 bytes.
            Some(Leave::Read(1 + draw(250) as usize))
        }
        _ => None,
    };
    (request, leave)
}

fn at_rest(metrics: &Metrics) -> bool {
    ["queue_waiting", "endpoint_in_flight", "counted_in_flight", "client_connections", "upstream_connections"]
        .into_iter()
        .all(|name| metrics.count(name) > 0 && metrics.sum(name, "") == 0.0)
}

#[derive(Default)]
struct Tally {
    served: u64,
    refused: u64,
    left: u64,
    faults: Vec<String>,
}

impl Tally {
    fn of(outcomes: &[Outcome], engines: &Engines, requests: u64) -> Tally {
        let mut tally = Tally::default();
        let log = engines.log();
        let mut ends: HashMap<u64, u32> = HashMap::new();
        for Outcome { request, end, .. } in outcomes {
            *ends.entry(request.id).or_default() += 1;
            let executed = log.executions.get(&request.id).map_or(0, |execution| execution.times);
            let (right, count) = match end {
                End::Whole { status: 200, .. } => (executed == 1, &mut tally.served),
                End::Whole { .. } => (executed == 0, &mut tally.refused),
                End::Left => (executed <= 1, &mut tally.left),
                End::Broken(_) => (false, &mut tally.left),
            };
            *count += 1;
            if !right {
                tally.faults.push(format!("request {}: {end:?}, executed {executed} times", request.id));
            }
        }
        let once = ends.len() as u64 == requests && ends.values().all(|times| *times == 1);
        if !once {
            tally.faults.push(format!("{} of {requests} requests ended, not each once", ends.len()));
        }
        if log.executions.keys().any(|id| !ends.contains_key(id)) {
            tally.faults.push("engines executed what nobody had asked".into());
        }
        tally
    }
}

/// The first of them, and how many there are.
fn list(words: &[String]) -> String {
    format!("{} in all: {}", words.len(), words.iter().take(3).cloned().collect::<Vec<_>>().join("; "))
}
