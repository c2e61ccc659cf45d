//! What the kernel knows of the process, under the names that all Prometheus clients use. Without `/proc` little of it
//! is known; what is not known has no series.

use std::fmt::Error;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::Family;

/// The figures at one moment.
#[derive(Debug)]
pub(super) struct Kernel;

impl Collector for Kernel {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), Error> {
        let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|line| Stat::of(&line));
        if let Some(seconds) = stat.map(|stat| seconds(stat.ticks)) {
            let help = "CPU time of all threads, in user and kernel";
            Family::new(&mut out, "cpu_seconds", help, MetricType::Counter)?.counter(vec![], seconds)?;
        }
        let gauges = [
            ("open_fds", "Descriptors that are open", open_descriptors().map(|open| open as f64)),
            ("max_fds", "Most descriptors", getrlimit(Resource::Nofile).current.map(|most| most as f64)),
            ("virtual_memory_bytes", "Address space", stat.map(|stat| stat.virtual_bytes as f64)),
            (
                "resident_memory_bytes",
                "Memory that is there",
                stat.map(|stat| (stat.resident_pages * page_size() as u64) as f64),
            ),
            ("start_time_seconds", "When it began, since 1970", stat.map(|stat| began(stat.began))),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                Family::new(&mut out, name, help, MetricType::Gauge)?.gauge(vec![], value)?;
            }
        }
        Ok(())
    }
}

/// What a line of `/proc/self/stat` tells; see proc_pid_stat(5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    /// CPU time, in ticks.
    ticks: u64,
    /// When it began, in ticks after the machine's boot.
    began: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn of(line: &str) -> Option<Stat> {
        // The second field is a name, in which anything may stand.
        let (_, fields) = line.rsplit_once(')')?;
        let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            ticks: field(14)? + field(15)?,
            began: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// When the process began, in seconds since 1970. `/proc/stat`, which says when the machine began, is not there under
/// the unit (`ProcSubset=`).
fn began(ticks: u64) -> f64 {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let clock = |id| {
        let time = clock_gettime(id);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    // This thread may have to wait for its CPU between the readings.
    let [before, now, behind] = [ClockId::Boottime, ClockId::Realtime, ClockId::Boottime].map(clock);
    let [least, most] = [behind, before].map(|up| now - up + seconds(ticks));
    let said = steady(f64::from_bits(SAID.load(Ordering::Relaxed)), least, most);
    SAID.store(said.to_bits(), Ordering::Relaxed);
    said
}

/// The value that was `said` before, as long as it may be right: two clocks are never read at once, and a reader would
/// take another value for a restart. It changes only if the clock was set, as on many machines after boot: otherwise
/// the process would seem older by that for ever.
fn steady(said: f64, least: f64, most: f64) -> f64 {
    if (least - 1.0..most + 1.0).contains(&said) { said } else { least }
}

fn open_descriptors() -> Option<u64> {
    const FOLDER: &str = "/proc/self/fd";
    match fs::metadata(FOLDER).ok()?.len() {
        // Before Linux 6.2 descriptors have to be counted, without that of the folder itself.
        0 => Some(fs::read_dir(FOLDER).ok()?.count().saturating_sub(1) as u64),
        open => Some(open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_is_read_whatever_the_program_is_called() {
        let rest = "S 1 7 7 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 5 0 12345 104857600 2048 18446744073709551615 1 1 0";
        let expected = Stat { ticks: 300, began: 12_345, virtual_bytes: 104_857_600, resident_pages: 2_048 };
        for name in ["(warmfront)", "(a) b (c 9)", "()"] {
            assert_eq!(Stat::of(&format!("7 {name} {rest}")), Some(expected), "{name}");
        }
        for wrong in ["", "7 warmfront S 1", "7 (warmfront) S 1 7", &format!("7 (a) {}", rest.replace("12345", "x"))] {
            assert_eq!(Stat::of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_process_began_at_another_time_only_where_the_clock_was_set() {
        assert_eq!(steady(0.0, 5.5, 5.6), 5.5, "nothing was said yet");
        for (least, most) in [(5.6, 5.7), (4.6, 4.6), (6.4, 6.4), (-20.0, 5.5)] {
            assert_eq!(steady(5.5, least, most), 5.5, "{least} {most}");
        }
        assert_eq!([3_605.5, 1.5].map(|now| steady(5.5, now, now)), [3_605.5, 1.5]);
    }

    #[test]
    fn what_this_process_has_is_told() {
        let stat = Stat::of(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert!(stat.virtual_bytes > 1 << 20 && stat.resident_pages > 64, "{stat:?}");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((now - 86_400.0..now + 1.0).contains(&began(stat.began)), "{stat:?}");
        assert!((0..1_000).all(|_| began(stat.began).to_bits() == began(stat.began).to_bits()));
        assert!(open_descriptors().is_some_and(|open| (3..1 << 20).contains(&open)));
    }
}
