//! Flags, the fleet and the front, one of two modes, and how it all ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use peers::args::Args;
use peers::net;
use rustix::process::{Signal, getpid, set_child_subreaper};

use crate::faults::{Faults, Setup};
use crate::fleet::Fleet;
use crate::front::Front;
use crate::load::{Load, Rates};
use crate::record::{Growth, Look, Record};
use crate::{proc, report, soak, upgrades};

const HELP: &str = "\
bench/soak/run.sh [--minutes 30] [--driver auto|epoll|uring]   load and faults
bench/soak/run.sh --upgrades [--seconds 120]                   20 reloads and 5 upgrades under load, no other faults
  --json FILE     rows, memory and totals for programs (default target/soak/soak-DRIVER.json)
  --rate X        the load, times X (1)
Every reply is compared byte by byte with the one its request calls for. Exit status 1 if a request failed that no
injected fault explains, if the front's memory grows, or if anything is left behind at the end. Memory is judged if one
process served for 24 minutes, of which the later half counts; the run says whether it was. Not in --upgrades.";

const ENGINES: usize = 5;
/// Longest wait until everything is as it was at the start.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// Descriptors that may be open beyond the start's: a probe or a scrape may be under way.
const DESCRIPTORS_MORE: usize = 4;
/// Ends of pipes that may be open beyond the start's: each of two shards keeps eight pipes that it has spliced through.
const PIPE_ENDS_MORE: usize = 2 * 8 * 2;
const GLANCE: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_secs(5);
const ROW_EVERY: Duration = Duration::from_secs(60);

pub struct Mode {
    pub name: &'static str,
    pub rates: Rates,
    pub plan: Vec<(Duration, crate::faults::Fault)>,
    pub setup: Setup,
    /// Shortest run.
    pub lasts: Duration,
    /// Fewest short requests and streams.
    pub at_least: (u64, u64),
    /// Whether growing memory is an error.
    pub judges_growth: bool,
}

pub fn main(words: &[String]) -> Result<(), String> {
    let args = Args::parse(words, &["minutes", "seconds", "driver", "json", "rate"], &["upgrades"], HELP)?;
    net::note_interrupts();
    net::raise_descriptors(65_536);
    // Heirs become children of this process when the process that started them ends.
    set_child_subreaper(Some(getpid())).map_err(|error| error.to_string())?;
    let driver = args.text("driver").unwrap_or("auto");
    let rate = args.get("rate", 1.0)?;
    let mut mode = match args.has("upgrades") {
        true => upgrades::mode(Duration::from_secs_f64(args.get("seconds", 120.0)?)),
        false => soak::mode(Duration::from_secs_f64(args.get("minutes", 30.0)? * 60.0)),
    };
    mode.rates.per_second.iter_mut().for_each(|(_, per_second)| *per_second *= rate);
    let json = args.text("json").map(PathBuf::from);
    let json = json.unwrap_or_else(|| format!("target/soak/{}-{driver}.json", mode.name).into());
    let dir = json.with_extension("");
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;

    report::head(&mode, driver);
    let mut record = Record::new();
    let judges_growth = mode.judges_growth;
    let faults = run(mode, driver, &dir, &mut record)?;
    record.errors.extend(faults.errors.iter().cloned());
    if let Some(why) = Growth::of(&record.steady()).and_then(|growth| growth.fault()).filter(|_| judges_growth) {
        record.error(why);
    }
    report::end(&record, &faults, judges_growth);
    report::write(&record, &faults, driver, &json)?;
    if net::interrupted() {
        return Err("interrupted".into());
    }
    if record.errors.is_empty() {
        println!("passed");
        return Ok(());
    }
    Err(format!("{} errors:\n  {}", record.errors.len(), record.errors.join("\n  ")))
}

fn run(mode: Mode, driver: &str, dir: &Path, record: &mut Record) -> Result<Faults, String> {
    let mut fleet = Fleet::start(ENGINES)?;
    let front = Front::start(driver, &mode.setup.text(&fleet), dir)?;
    let start = calm(&front, mode.setup.places.len())?;
    println!(
        "before the load: {} KiB, {} descriptors, {} threads",
        start.seen.rss_kib, start.seen.descriptors, start.seen.threads
    );

    let mut load = Load::start(front.address, mode.rates.clone());
    let mut faults = Faults::new(mode.plan, mode.setup);
    record.began = Instant::now();
    let end = record.began + mode.lasts;
    let (mut look_at, mut row_at) = (record.began + LOOK_EVERY, record.began + ROW_EVERY);
    report::columns();
    while !net::interrupted() && !load.ended() {
        let now = Instant::now();
        faults.tick(&front, &mut fleet, &load);
        record.add(load.take(), &mut faults);
        if now >= look_at {
            record.look(&front);
            look_at = now + LOOK_EVERY;
        }
        if now >= row_at {
            report::row(&record.row());
            row_at += ROW_EVERY;
        }
        if now >= end && faults.over() && record.has(mode.at_least) {
            break;
        }
        std::thread::sleep(GLANCE);
    }
    load.stop()?;
    record.add(load.take(), &mut faults);
    record.look(&front);
    report::row(&record.row());
    leave_nothing(&front, &start, record);
    stop(&front, record);
    record.errors.extend(front.complaints());
    Ok(faults)
}

/// Waits until every engine is up, and a little longer; returns what the front holds without load.
fn calm(front: &Front, engines: usize) -> Result<Look, String> {
    let deadline = Instant::now() + QUIET_MAX;
    loop {
        if front.metrics()?.sum("endpoint_health", "state=\"up\"") as usize == engines {
            std::thread::sleep(Duration::from_secs(2));
            return Ok(Look { pid: front.serving(), seen: proc::look(front.serving()), ..Look::default() });
        }
        if Instant::now() > deadline {
            return Err("the engines did not come up".into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Without load everything must be as it was before: connections, descriptors, requests in flight; one process.
fn leave_nothing(front: &Front, start: &Look, record: &mut Record) {
    let began = Instant::now();
    loop {
        record.look(front);
        let look = record.looks.pop().unwrap_or_default();
        let same = look.in_flight == 0.0
            && look.clients == 0.0
            && look.seen.descriptors <= start.seen.descriptors + DESCRIPTORS_MORE
            && look.seen.pipe_ends <= start.seen.pipe_ends + PIPE_ENDS_MORE;
        if same && look.predecessors == 0 {
            println!(
                "without load again after {:.1} s: {} descriptors ({} at the start) and {} ends of pipes ({}), {} threads ({}), 0 in flight, 0 clients, \
                 {} connections to engines, no other process of the front, {} KiB ({})",
                began.elapsed().as_secs_f64(),
                look.seen.descriptors,
                start.seen.descriptors,
                look.seen.pipe_ends,
                start.seen.pipe_ends,
                look.seen.threads,
                start.seen.threads,
                look.upstreams,
                look.seen.rss_kib,
                start.seen.rss_kib
            );
            return;
        }
        if began.elapsed() > QUIET_MAX {
            return record.error(format!(
                "left behind: {} descriptors ({} at the start) and {} ends of pipes, {} in flight, {} clients, {} connections to engines, {} other processes",
                look.seen.descriptors,
                start.seen.descriptors,
                look.seen.pipe_ends,
                look.in_flight,
                look.clients,
                look.upstreams,
                look.predecessors
            ));
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

/// Ends the front by SIGTERM, and checks how it ended.
fn stop(front: &Front, record: &mut Record) {
    let pid = front.serving();
    front.signal(Signal::TERM);
    let deadline = Instant::now() + QUIET_MAX;
    while Instant::now() < deadline {
        if let Some(status) = proc::ended(pid) {
            if status != Some(0) {
                record.error(format!("the front ended with status {status:?}"));
            }
            return;
        }
        std::thread::sleep(GLANCE);
    }
    record.error("the front did not end on SIGTERM".into());
}
