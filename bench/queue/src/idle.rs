//! What a queue costs if no request waits: CPU of a request with it and without, in turn.

use std::time::{Duration, Instant};

use peers::change::interval;
use peers::process;

use crate::closed::Next;
use crate::crowd::{Crowd, End, Outcome};
use crate::engines::{Cache, Engines};
use crate::figures::median;
use crate::front::{Front, Setting};
use crate::request::Request;
use crate::{Bench, DRIVERS, closed};

const CLIENTS: usize = 16;
const PROMPT_BYTES: usize = 1_024;
/// Most that the lower end of the interval may be.
const MOST: f64 = 1.02;

struct Side {
    front: Front,
    crowd: Crowd,
    _engines: Engines,
}

pub fn run(bench: &mut Bench) -> Result<(), String> {
    println!(
        "An idle queue: CPU of the front for each request of 1 KB in µs, with queue = \"on\" over \"off\" of the same round"
    );
    for driver in DRIVERS {
        let mut on = Side::start(bench, driver, "on")?;
        let mut off = Side::start(bench, driver, "off")?;
        let time = Duration::from_millis(if bench.quick { 200 } else { 400 });
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let mut id = 0;
        // The first round is for warming up.
        for round in 0..=4 * bench.rounds {
            let (first, second) = if round % 2 == 0 { (&mut on, &mut off) } else { (&mut off, &mut on) };
            let (first, second) = (first.measure(time, &mut id)?, second.measure(time, &mut id)?);
            if round > 0 {
                let (on, off) = if round % 2 == 0 { (first, second) } else { (second, first) };
                with.push(on);
                without.push(off);
            }
        }
        let mut ratios: Vec<f64> = with.iter().zip(&without).map(|(on, off)| on / off).collect();
        let interval = interval(&mut ratios);
        let (ratio, rounds) = (median(&mut ratios), ratios.len());
        let words = match interval {
            Some((low, high)) => format!("95 % interval {low:.3}-{high:.3} of {rounds} rounds"),
            None => format!("{rounds} rounds, too few to judge"),
        };
        println!("  {driver:<6} off {:.2}, on {:.2}: x {ratio:.3}, {words}", median(&mut without), median(&mut with));
        let dearer = interval.is_some_and(|(low, _)| low > MOST);
        bench.holds(!dearer, || format!("{driver}: an idle queue costs x {ratio:.3}, {words}"));
        let waited = on.front.metrics()?.sum("queued_total", "");
        bench.holds(waited == 0.0, || format!("{driver}: {waited} requests waited in what was to be idle"));
    }
    Ok(())
}

impl Side {
    fn start(bench: &Bench, driver: &'static str, queue: &str) -> Result<Side, String> {
        let engines = Engines::start(4, Cache::ROOMY)?;
        let routing = format!("policy = \"warm\"\nqueue = \"{queue}\"\n");
        let setting = Setting { routing, ..Setting::waiting(driver, 1, "") };
        let front = Front::start(&setting, &engines, &bench.dir)?;
        let crowd = Crowd::new(vec![front.address])?;
        Ok(Side { front, crowd, _engines: engines })
    }

    /// Microseconds of CPU for each request.
    fn measure(&mut self, time: Duration, id: &mut u64) -> Result<f64, String> {
        let until = Instant::now() + time;
        let before = process::cpu_ns(self.front.pid());
        let (mut served, mut other) = (0, None);
        let next = |_| {
            *id += 1;
            Next::asks_while(Instant::now() < until, Request::new(*id, Duration::ZERO, PROMPT_BYTES))
        };
        let done = |_, outcome: Outcome| match outcome.end {
            End::Whole { status: 200, .. } => served += 1,
            end => other = Some(format!("{end:?}")),
        };
        closed::run(&mut self.crowd, CLIENTS, Duration::ZERO, next, done)?;
        let spent = process::cpu_ns(self.front.pid()) - before;
        other.map_or(Ok(spent as f64 / 1e3 / f64::from(served)), Err)
    }
}
