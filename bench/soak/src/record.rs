//! What was seen over time: a row a minute, the memory in between, and whether it grows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use peers::process::tree;

use crate::exchange::Kind;
use crate::faults::Faults;
use crate::front::Front;
use crate::load::Tally;
use crate::proc::{self, Seen};

/// Most failures whose details are kept.
const DETAILS_MAX: usize = 30;
/// The part of the longest process's life that is left out at its beginning: the memory that the most connections at
/// once took is kept for later ones, so what grows without end is seen only after that.
const WARMING: f64 = 0.5;

/// A steady part shorter than this says nothing about growth: the allocator takes and gives back a MiB at a time, which
/// in eight minutes was the median.
const JUDGED_FROM: Duration = Duration::from_secs(720);
/// KiB for a million requests: more than a few bytes for each are a leak.
const KIB_PER_MILLION_MAX: f64 = 4096.0;
/// KiB that crowds of a thousand may leave in all: some KiB for each connection.
const GROWN_KIB_MAX: u64 = 16 << 10;

/// One look at the front.
#[derive(Clone, Copy, Default)]
pub struct Look {
    pub minutes: f64,
    pub pid: u32,
    pub seen: Seen,
    pub predecessors: usize,
    pub predecessors_kib: u64,
    pub in_flight: f64,
    pub clients: f64,
    pub upstreams: f64,
    /// Requests so far.
    pub requests: u64,
}

/// One minute.
#[derive(Clone, Default)]
pub struct Row {
    pub minutes: f64,
    pub requests: u64,
    pub explained: u64,
    pub unexplained: u64,
    /// Milliseconds at 50, 99 and 99.9 percent.
    pub short_ms: [f64; 3],
    pub first_token_ms: [f64; 3],
    pub look: Look,
    /// Cores in use: by the front's processes, and by all of this run.
    pub front_cores: f64,
    pub all_cores: f64,
}

pub struct Record {
    pub began: Instant,
    pub rows: Vec<Row>,
    pub looks: Vec<Look>,
    pub total: Tally,
    pub explained: BTreeMap<String, u64>,
    pub errors: Vec<String>,
    pub unexplained: u64,
    now: Tally,
    now_explained: u64,
    now_unexplained: u64,
    cpu: BTreeMap<u32, u64>,
    /// CPU since the last row.
    front_ns: u64,
    all_ns: u64,
    row_began: Instant,
}

impl Record {
    pub fn new() -> Record {
        let now = Instant::now();
        Record {
            began: now,
            rows: Vec::new(),
            looks: Vec::new(),
            total: Tally::default(),
            explained: BTreeMap::new(),
            errors: Vec::new(),
            unexplained: 0,
            now: Tally::default(),
            now_explained: 0,
            now_unexplained: 0,
            cpu: BTreeMap::new(),
            front_ns: 0,
            all_ns: 0,
            row_began: now,
        }
    }

    pub fn error(&mut self, words: String) {
        eprintln!("ERROR {words}");
        self.errors.push(words);
    }

    /// Takes what clients saw; failures that no fault explains are errors.
    pub fn add(&mut self, mut tally: Tally, faults: &mut Faults) {
        for failure in std::mem::take(&mut tally.failures) {
            let name = failure.cause.name();
            if let Some(why) = faults.explain(&failure) {
                *self.explained.entry(format!("{name} {why}")).or_insert(0) += 1;
                self.now_explained += 1;
                continue;
            }
            self.unexplained += 1;
            self.now_unexplained += 1;
            if self.errors.len() < DETAILS_MAX {
                let at = (failure.at - self.began).as_secs_f64();
                let words = failure.cause.words();
                let took = (failure.at - failure.started).as_secs_f64();
                self.error(format!(
                    "unexplained at {at:.3} s after {took:.3} s: {} at engine {:?}, {} served before on its connection: {name}: {words}",
                    failure.kind.name(),
                    failure.engine,
                    failure.served
                ));
            }
        }
        self.now.add(tally);
    }

    /// Looks at the front's processes and, if they can be had, at its metrics.
    pub fn look(&mut self, front: &Front) {
        let pid = front.serving();
        let seen = proc::look(pid);
        let before: Vec<Seen> = front.predecessors().into_iter().map(proc::look).collect();
        self.spend(front);
        let mut look = Look {
            minutes: self.began.elapsed().as_secs_f64() / 60.0,
            pid,
            seen,
            predecessors: before.len(),
            predecessors_kib: before.iter().map(|seen| seen.rss_kib).sum(),
            requests: self.total.requests() + self.now.requests(),
            ..Look::default()
        };
        // A process that is asked while it hands its admin listener on may not answer to the end.
        let metrics = (0..3).map(|_| front.metrics()).find(Result::is_ok).unwrap_or_else(|| front.metrics());
        match metrics {
            Ok(metrics) => {
                look.in_flight = metrics.sum("counted_in_flight", "");
                look.clients = metrics.sum("client_connections", "");
                look.upstreams = metrics.sum("upstream_connections", "");
                for (name, count) in metrics.faults() {
                    self.error(format!("{name} is {count}"));
                }
            }
            Err(words) => self.error(words),
        }
        for (pid, status) in front.ended() {
            if status != Some(0) {
                self.error(format!("process {pid} of the front ended with status {status:?}"));
            }
        }
        self.looks.push(look);
    }

    /// Adds the CPU that processes have used since the last time: the front's, and those of this whole run.
    fn spend(&mut self, front: &Front) {
        let fronts: Vec<u32> = front.predecessors().into_iter().chain([front.serving()]).collect();
        for pid in tree(std::process::id()) {
            let cpu_ns = proc::run_ns(pid);
            let known = self.cpu.entry(pid).or_insert(0);
            let spent = cpu_ns.saturating_sub(*known);
            *known = cpu_ns.max(*known);
            self.all_ns += spent;
            self.front_ns += if fronts.contains(&pid) { spent } else { 0 };
        }
    }

    /// Whether at least so many short requests and streams came back whole.
    pub fn has(&self, (short, streams): (u64, u64)) -> bool {
        let whole = |kinds: &[Kind]| {
            let of = |tally: &Tally| kinds.iter().filter_map(|kind| tally.done.get(kind)).sum::<u64>();
            of(&self.total) + of(&self.now)
        };
        whole(&[Kind::Short, Kind::Fresh]) >= short && whole(&[Kind::Stream]) >= streams
    }

    /// Ends a minute.
    pub fn row(&mut self) -> Row {
        let seconds = self.row_began.elapsed().as_secs_f64();
        self.row_began = Instant::now();
        let cores = |ns: u64| ns as f64 / 1e9 / seconds;
        let mut now = std::mem::take(&mut self.now);
        let row = Row {
            minutes: self.began.elapsed().as_secs_f64() / 60.0,
            requests: now.requests(),
            explained: std::mem::take(&mut self.now_explained),
            unexplained: std::mem::take(&mut self.now_unexplained),
            short_ms: percentiles(&mut now.short),
            first_token_ms: percentiles(&mut now.first_token),
            look: self.looks.last().copied().unwrap_or_default(),
            front_cores: cores(std::mem::take(&mut self.front_ns)),
            all_cores: cores(std::mem::take(&mut self.all_ns)),
        };
        self.total.add(now);
        self.rows.push(row.clone());
        row
    }

    /// The steady part: the later half of the process that served longest.
    pub fn steady(&self) -> Vec<Look> {
        let lives = self.looks.iter().fold(BTreeMap::<u32, Vec<Look>>::new(), |mut lives, look| {
            lives.entry(look.pid).or_default().push(*look);
            lives
        });
        let longest = lives.into_values().max_by_key(Vec::len).unwrap_or_default();
        let skip = (longest.len() as f64 * WARMING).ceil() as usize;
        longest.into_iter().skip(skip).collect()
    }
}

/// How long the steady part was, and how memory grew in the median of its minutes. A leak for each request or with time
/// grows in every minute; a crowd leaves in the allocator, once, what it had at the most.
pub struct Growth {
    pub lasted: Duration,
    pub requests: u64,
    pub first_kib: u64,
    pub last_kib: u64,
    pub kib_per_minute: f64,
    pub kib_per_million: f64,
}

impl Growth {
    pub fn of(steady: &[Look]) -> Option<Growth> {
        let (first, last) = (steady.first()?, steady.last()?);
        let mut minutes = vec![first];
        for look in steady {
            if look.minutes - minutes.last()?.minutes >= 1.0 {
                minutes.push(look);
            }
        }
        let rates = |by: fn(&Look) -> f64| {
            let rate = |pair: &[&Look]| {
                (pair[1].seen.rss_kib as f64 - pair[0].seen.rss_kib as f64) / (by(pair[1]) - by(pair[0]))
            };
            minutes.windows(2).map(rate).collect::<Vec<f64>>()
        };
        Some(Growth {
            lasted: Duration::from_secs_f64((last.minutes - first.minutes) * 60.0),
            requests: last.requests - first.requests,
            first_kib: first.seen.rss_kib,
            last_kib: last.seen.rss_kib,
            kib_per_minute: median(rates(|look| look.minutes))?,
            kib_per_million: median(rates(|look| look.requests as f64 / 1e6))?,
        })
    }
}

impl Growth {
    /// How long a steady part must last to tell growth, if this one is shorter.
    pub fn too_short_for(&self) -> Option<Duration> {
        (self.lasted < JUDGED_FROM).then_some(JUDGED_FROM)
    }

    /// Says in words if the memory grew more than it may.
    pub fn fault(&self) -> Option<String> {
        if self.too_short_for().is_some() {
            None
        } else if self.kib_per_million > KIB_PER_MILLION_MAX {
            Some(format!("memory grows by {:.0} KiB per million requests", self.kib_per_million))
        } else if self.last_kib > self.first_kib + GROWN_KIB_MAX {
            Some(format!("memory grew from {} to {} KiB", self.first_kib, self.last_kib))
        } else {
            None
        }
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().filter(|value| value.is_finite())
}

/// Milliseconds at 50, 99 and 99.9 percent, from microseconds.
pub fn percentiles(us: &mut [u32]) -> [f64; 3] {
    us.sort_unstable();
    [0.5, 0.99, 0.999].map(|share| us.get((us.len() as f64 * share) as usize).map_or(0.0, |us| f64::from(*us) / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look every five seconds, 50,000 requests a minute.
    fn looks(rss_kib: impl Fn(u64) -> u64) -> Vec<Look> {
        let look = |at: u64| {
            let seen = Seen { rss_kib: rss_kib(at), ..Seen::default() };
            Look { minutes: at as f64 / 12.0, requests: at * 50_000 / 12, seen, ..Look::default() }
        };
        (0..=240).map(look).collect()
    }

    #[test]
    fn what_grows_in_every_minute_is_growth_and_what_a_crowd_leaves_is_none() {
        let of = |rss_kib: fn(u64) -> u64| Growth::of(&looks(rss_kib)).unwrap();
        let leak = of(|at| 100_000 + at * 20);
        assert_eq!((leak.kib_per_minute.round(), leak.kib_per_million.round()), (240.0, 4_800.0));
        let crowd = of(|at| if at < 100 { 100_000 } else { 107_000 });
        assert_eq!((crowd.kib_per_minute, crowd.kib_per_million, crowd.last_kib), (0.0, 0.0, 107_000));
        assert!(Growth::of(&looks(|_| 1)[..3]).is_none(), "no minute");
    }

    #[test]
    fn growth_is_a_fault_where_it_was_seen_for_long_enough() {
        let fault = |rss_kib: fn(u64) -> u64, looked: usize| Growth::of(&looks(rss_kib)[..looked]).unwrap().fault();
        assert_eq!(fault(|at| 100_000 + at * 20, 241), Some("memory grows by 4800 KiB per million requests".into()));
        assert_eq!(fault(|at| 100_000 + at * 20, 144), None, "not twelve minutes");
        assert_eq!(fault(|at| 100_000 + at / 200 * 20_000, 241), Some("memory grew from 100000 to 120000 KiB".into()));
        assert_eq!(fault(|at| 100_000 + at / 200 * 7_000, 241), None, "what a crowd leaves");
    }

    #[test]
    fn percentiles_are_of_all() {
        let mut us: Vec<u32> = (0..1000).rev().map(|ms| ms * 1000).collect();
        assert_eq!(percentiles(&mut us), [500.0, 990.0, 999.0]);
    }
}
