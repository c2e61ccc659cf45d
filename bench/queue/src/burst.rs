//! A burst of one new prefix, which no engine holds: how it spreads, and how far it passes bounds.

use std::time::{Duration, Instant};

use crate::Bench;
use crate::crowd::{Crowd, End, Outcome};
use crate::engines::{Cache, Engines};
use crate::figures::median;
use crate::front::{Front, Setting};
use crate::request::Request;

const ENGINES: usize = 4;
const REQUESTS: usize = 200;
const PREFIX_BYTES: usize = 8 << 10;
const SERVICE: Duration = Duration::from_millis(250);
const CAP: usize = 8;
/// Most requests on one engine over the mean, if one front chooses. A prefix stays at its home (`src/policy/README.md`)
/// for 1 + 5 x 8,192 / (200 + 4 x 1,000 / 50) requests, in bytes, while a mean prompt is taken to have 1,000 tokens,
/// and for fewer once it is known to have 2,000. Two fronts may have all of them there, each by its own count.
const SPREAD: f64 = 3.0;
/// Defaults of `load_percent` and `load_slack`.
const BOUND: usize = (REQUESTS * 125).div_ceil(ENGINES * 100) + 4;

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!(
        "{REQUESTS} requests at once with the same new {PREFIX_BYTES} bytes on {ENGINES} engines, policy warm: most on one engine over the mean, by burst"
    );
    for (driver, shards, fronts) in [
        ("epoll", 1, 1),
        ("epoll", 2, 1),
        ("epoll", 1, 2),
        ("uring", 1, 1),
        ("uring", 2, 1),
        ("uring", 1, 2),
        ("uring", 2, 2),
    ] {
        spread(bench, driver, shards, fronts)?;
    }
    println!("Most requests at once on one engine in such a burst, as engines saw it");
    for (driver, shards) in [("epoll", 1), ("epoll", 4), ("uring", 2), ("uring", 4)] {
        bounds(bench, driver, shards)?;
    }
    Ok(())
}

fn setting(driver: &'static str, shards: usize, policy: &str, upstream: &str) -> Setting {
    let routing = format!("policy = \"{policy}\"\n");
    Setting { driver, shards, routing, queue: String::new(), upstream: upstream.to_owned() }
}

/// All requests at once, on connections that are open already.
fn burst(crowd: &mut Crowd, family: u64) -> Result<Vec<Outcome>, String> {
    let first = 1 + family * REQUESTS as u64;
    for id in first..first + REQUESTS as u64 {
        let mut request = Request::new(id, SERVICE, PREFIX_BYTES + 200);
        request.alike = (family + 1, PREFIX_BYTES);
        crowd.begin(request, None);
    }
    while crowd.in_flight > 0 {
        crowd.turn(Instant::now() + Duration::from_millis(20))?;
    }
    Ok(std::mem::take(&mut crowd.ended))
}

fn spread(bench: &mut Bench, driver: &'static str, shards: usize, fronts: usize) -> Result<(), String> {
    let engines = Engines::start(ENGINES, Cache::ROOMY)?;
    let started = (0..fronts).map(|_| Front::start(&setting(driver, shards, "warm", ""), &engines, &bench.dir));
    let started = started.collect::<Result<Vec<Front>, String>>()?;
    let mut crowd = Crowd::new(started.iter().map(|front| front.address).collect())?;
    crowd.connect(REQUESTS)?;
    let (mut ratios, mut got) = (Vec::new(), vec![0; ENGINES]);
    for family in 0..if bench.quick { 2 } else { 3 } {
        std::thread::sleep(Duration::from_millis(300));
        let outcomes = burst(&mut crowd, family)?;
        let other = outcomes.iter().find(|outcome| !matches!(outcome.end, End::Whole { status: 200, .. }));
        bench.holds(other.is_none(), || format!("{driver}, {shards} shards: {:?}", other.map(|outcome| &outcome.end)));
        let now = engines.log().got.clone();
        let counts: Vec<usize> = now.iter().zip(&got).map(|(now, before)| now - before).collect();
        got = now;
        let most = counts.iter().copied().max().unwrap_or(0);
        ratios.push(most as f64 * ENGINES as f64 / REQUESTS as f64);
    }
    bench.holds(fronts > 1 || ratios.iter().all(|ratio| *ratio <= SPREAD), || {
        format!(
            "{driver}, {shards} shards: a burst of one prefix by {ratios:?} of the mean on one of {ENGINES} engines"
        )
    });
    let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    println!("  {driver:<6} {shards} shards, {fronts} fronts: {} (median {:.2})", shown.join(" "), median(&mut ratios));
    Ok(())
}

fn bounds(bench: &mut Bench, driver: &'static str, shards: usize) -> Result<(), String> {
    let cap = format!("concurrency_max = {CAP}\n");
    let mut told = Vec::new();
    for (policy, upstream, bound) in
        [("warm", cap.as_str(), CAP), ("least-load", cap.as_str(), CAP), ("prefix-hash", "", BOUND)]
    {
        let engines = Engines::start(ENGINES, Cache::ROOMY)?;
        let front = Front::start(&setting(driver, shards, policy, upstream), &engines, &bench.dir)?;
        let mut crowd = Crowd::new(vec![front.address])?;
        crowd.connect(REQUESTS)?;
        let mut served = 0;
        for family in 0..if bench.quick { 1 } else { 2 } {
            std::thread::sleep(Duration::from_millis(300));
            for Outcome { end, .. } in burst(&mut crowd, family)? {
                match end {
                    End::Whole { status: 200, .. } => served += 1,
                    End::Whole { status: 503, .. } if bound == CAP => {}
                    end => bench.holds(false, || format!("{driver}, {shards} shards, {policy}: {end:?}")),
                }
            }
        }
        let most = engines.log().most.iter().copied().max().unwrap_or(0);
        told.push(format!("{policy} {most} of {bound} ({served} served)"));
        bench.holds(most < bound + shards, || {
            format!("{driver}, {shards} shards, {policy}: {most} at once where {bound} may be")
        });
    }
    println!("  {driver:<6} {shards} shards: {}", told.join(", "));
    Ok(())
}
