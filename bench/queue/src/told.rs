//! Retry-After against the wait of requests that were let in at that moment, at known rates.

use std::time::{Duration, Instant};

use crate::closed::Next;
use crate::crowd::{Crowd, End, Outcome};
use crate::engines::{Cache, Engines};
use crate::figures::quantile;
use crate::front::{Front, Setting};
use crate::request::Request;
use crate::{Bench, closed};

/// Factor by which Retry-After may be off.
const FACTOR: f64 = 2.0;
/// Share of the refused that must be told within that factor.
const WITHIN_MIN: f64 = 0.95;
/// A newcomer may find room before waiting requests are looked at; if many did, the queue would be one in name only.
const PASSED_MOST: f64 = 0.10;
/// Clients that find no place, beside those that fill the queue.
const TOO_MANY: usize = 10;
const REST: Duration = Duration::from_millis(150);
/// Until then the front cannot know how fast the queue moves: told apart.
const COLD: Duration = Duration::from_secs(3);

/// Seconds within which a request that reaches an engine has not waited.
const AT_ONCE: f64 = 0.01;

#[derive(Clone, Copy)]
struct Case {
    driver: &'static str,
    shards: usize,
    engines: usize,
    service: Duration,
    waiting: usize,
}

struct Samples {
    rate: f64,
    /// Share of the requests let in that went past all waiting ones at once.
    passed: f64,
    /// Seconds told by Retry-After and seconds that requests waited which joined then; at first, and later.
    cold: Vec<(f64, f64)>,
    steady: Vec<(f64, f64)>,
}

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!("Retry-After over the real wait of requests that joined at the same moment (cold: the first 3 s)");
    println!(
        "  {:<6} {:>6} {:>8} {:>8} {:>8} | {:>6} {:>6} {:>7} | {:>5} {:>5} {:>5} {:>5} {:>5} {:>8}",
        "driver",
        "shards",
        "waiting",
        "of req/s",
        "really",
        "wait s",
        "told s",
        "refused",
        "x min",
        "p5",
        "p50",
        "p95",
        "max",
        "within 2"
    );
    let case = |driver, shards, engines, service, waiting| {
        let service = Duration::from_millis(service);
        Case { driver, shards, engines, service, waiting }
    };
    let cases = [
        case("uring", 1, 4, 80, 200),
        case("epoll", 4, 8, 50, 800),
        case("uring", 4, 16, 100, 480),
        case("epoll", 1, 4, 400, 100),
    ];
    let cases = if bench.quick { &cases[..1] } else { &cases[..] };
    // Rates are the engines': all cases at once take little CPU.
    let seconds = Duration::from_secs(if bench.quick { 6 } else { 16 });
    let dir = &bench.dir;
    let measured: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = cases.iter().map(|case| scope.spawn(move || measure(*case, seconds, dir))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread fell".to_owned())?).collect()
    });
    for (case, samples) in cases.iter().zip(measured) {
        let Samples { rate, passed, cold, steady } = samples?;
        tell(case, rate, &cold, "cold");
        let within = tell(case, rate, &steady, "");
        let name = format!("{}, {} shards, {} waiting", case.driver, case.shards, case.waiting);
        bench.holds(passed <= PASSED_MOST, || {
            format!(
                "{name}: {:.0} % of requests let in passed all that waited, with prompts no shorter",
                100.0 * passed
            )
        });
        bench.holds(within >= WITHIN_MIN, || {
            format!("{name}: only {:.0} % of refused requests were told within a factor of two", 100.0 * within)
        });
    }
    Ok(())
}

/// Returns the part within the factor.
fn tell(case: &Case, rate: f64, samples: &[(f64, f64)], when: &str) -> f64 {
    let Case { driver, shards, engines, service, waiting } = *case;
    let mut ratios: Vec<f64> = samples.iter().map(|(told, real)| told / real).collect();
    let within = ratios.iter().filter(|ratio| (1.0 / FACTOR..=FACTOR).contains(*ratio)).count() as f64;
    let within = within / ratios.len() as f64;
    let mut of = |part| quantile(&mut ratios, part);
    let mut told: Vec<f64> = samples.iter().map(|(told, _)| *told).collect();
    let mut real: Vec<f64> = samples.iter().map(|(_, real)| *real).collect();
    println!(
        "  {driver:<6} {shards:>6} {waiting:>8} {:>8.0} {rate:>8.1} | {:>6.2} {:>6.0} {:>7} | {:>5.2} {:>5.2} {:>5.2} {:>5.2} {:>5.2} {:>6.1} % {when}",
        engines as f64 / service.as_secs_f64(),
        quantile(&mut real, 0.5),
        quantile(&mut told, 0.5),
        samples.len(),
        of(0.0),
        of(0.05),
        of(0.5),
        of(0.95),
        of(1.0),
        100.0 * within
    );
    within
}

fn measure(case: Case, seconds: Duration, dir: &std::path::Path) -> Result<Samples, String> {
    let engines = Engines::start(case.engines, Cache::ONE_REQUEST)?;
    let queue = format!("waiting_max = {}\ntimeout_ms = 60000\n", case.waiting);
    let front = Front::start(&Setting::waiting(case.driver, case.shards, &queue), &engines, dir)?;
    let mut crowd = Crowd::new(vec![front.address])?;
    let clients = case.waiting + case.engines + TOO_MANY;
    crowd.connect(clients)?;
    let from = Instant::now();
    let (mut id, mut outcomes) = (0, Vec::new());
    let next = |_| {
        id += 1;
        Next::asks_while(from.elapsed() < seconds, Request::new(id, case.service, 400))
    };
    closed::run(&mut crowd, clients, REST, next, |_, outcome| outcomes.push(outcome))?;
    let (mut real, mut refused, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for Outcome { request, sent_at, ended_at, end } in outcomes {
        match end {
            End::Whole { status: 200, .. } => {
                let began = engines.began(request.id).ok_or("a reply without an execution")?;
                real.push((sent_at, (began - sent_at).as_secs_f64()));
                ends.push(ended_at);
            }
            End::Whole { retry_after: Some(told), .. } => refused.push((sent_at, told as f64)),
            end => return Err(format!("{end:?}")),
        }
    }
    real.sort_unstable_by_key(|(at, _)| *at);
    let counted = ends.iter().filter(|at| (from + COLD..from + seconds).contains(at)).count();
    let all = real.iter().filter(|(at, _)| *at >= from + COLD && *at < from + seconds).count();
    // A newcomer may find room before waiting requests are looked at; it says nothing about their wait.
    real.retain(|(at, wait)| *at < from + COLD || *wait >= AT_ONCE);
    let waited = real.iter().filter(|(at, _)| *at >= from + COLD && *at < from + seconds).count();
    let passed = 1.0 - waited as f64 / all as f64;
    let mut samples =
        Samples { rate: counted as f64 / (seconds - COLD).as_secs_f64(), passed, cold: Vec::new(), steady: Vec::new() };
    for (at, told) in refused {
        let place = real.partition_point(|(joined, _)| *joined < at);
        let beside = [place.checked_sub(1), Some(place)].into_iter().flatten().filter_map(|place| real.get(place));
        let distance =
            |joined: &Instant| joined.saturating_duration_since(at).max(at.saturating_duration_since(*joined));
        let Some((_, wait)) = beside.min_by_key(|(joined, _)| distance(joined)) else { continue };
        let list = if at - from < COLD { &mut samples.cold } else { &mut samples.steady };
        list.push((told, *wait));
    }
    Ok(samples)
}
