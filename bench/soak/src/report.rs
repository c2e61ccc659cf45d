//! Tables for people, JSON for programs, and a picture of memory and latency over time.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::exchange::Kind;
use crate::faults::Faults;
use crate::record::{Growth, Look, Record, Row, percentiles};
use crate::run::Mode;

/// A steady part shorter than this says nothing about growth: the allocator takes and gives back a MiB at a time, which in
/// eight minutes was the median.
const JUDGED_FROM_S: u64 = 720;
/// KiB for a million requests: more than a few bytes each are a leak.
const KIB_PER_MILLION_MAX: f64 = 4096.0;
/// What crowds of a thousand may leave in all: some KiB for each connection.
const GROWN_KIB_MAX: u64 = 16 << 10;

pub fn head(mode: &Mode, driver: &str) {
    let rates: Vec<String> =
        mode.rates.per_second.iter().map(|(kind, rate)| format!("{} {rate}/s", kind.name())).collect();
    let (least, most) = mode.rates.tokens;
    println!(
        "{} on {driver}, {} s: {}; streams of {least} to {most} tokens",
        mode.name,
        mode.lasts.as_secs(),
        rates.join(", ")
    );
}

pub fn columns() {
    println!(
        "{:>6} {:>8} {:>6} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>10} {:>5} {:>4} {:>7} {:>7} {:>6} {:>5}",
        "minute",
        "requests",
        "expl.",
        "unexpl",
        "p50 ms",
        "p99",
        "p99.9",
        "TTFT50",
        "TTFT99",
        "TTFT999",
        "RSS KiB",
        "before KiB",
        "fds",
        "thr.",
        "flight",
        "clients",
        "front",
        "all"
    );
}

pub fn row(row: &Row) {
    let Row { look, short_ms, first_token_ms, .. } = row;
    println!(
        "{:>6.1} {:>8} {:>6} {:>6} {:>7.2} {:>7.1} {:>7.0} {:>7.1} {:>7.1} {:>7.0} {:>8} {:>10} {:>5} {:>4} {:>7} {:>7} {:>6.3} {:>5.2}",
        row.minutes,
        row.requests,
        row.explained,
        row.unexplained,
        short_ms[0],
        short_ms[1],
        short_ms[2],
        first_token_ms[0],
        first_token_ms[1],
        first_token_ms[2],
        look.seen.rss_kib,
        format!("{}:{}", look.predecessors, look.predecessors_kib),
        look.seen.descriptors,
        look.seen.threads,
        look.in_flight,
        look.clients,
        row.front_cores,
        row.all_cores
    );
}

/// Totals, growth, and whether the memory grows more than it may.
pub fn end(record: &mut Record, faults: &Faults, growth_counts: bool) {
    let by_kind: Vec<String> =
        Kind::ALL.iter().filter_map(|kind| Some(format!("{} {}", record.total.done.get(kind)?, kind.name()))).collect();
    println!("\nwhole and verified: {} requests ({})", record.total.requests(), by_kind.join(", "));
    println!(
        "events of streams: {}; connections opened: {}; clients that left in the middle: {}",
        record.total.events, record.total.opened, record.total.left
    );
    let faults: Vec<String> = faults.done.iter().map(|(name, count)| format!("{count} {name}")).collect();
    println!("changes and faults: {}", faults.join(", "));
    for (name, count) in &record.explained {
        println!("failed, explained: {count} {name}");
    }
    println!("failed, unexplained: {}", record.unexplained);
    if !growth_counts {
        let streams = record.total.done.get(&Kind::Stream).copied().unwrap_or(0);
        let failed = record.unexplained + record.explained.values().sum::<u64>();
        println!(
            "{failed} failed of {} requests, {streams} of them streams, spread over all of it",
            record.total.requests() + failed
        );
    }
    let (short, first) = (percentiles(&mut record.total.short), percentiles(&mut record.total.first_token));
    println!(
        "short requests p50 {:.2} ms, p99 {:.1} ms, p99.9 {:.0} ms; first token p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.0} ms",
        short[0], short[1], short[2], first[0], first[1], first[2]
    );
    if growth_counts {
        grown(record);
    }
    plot("RSS MiB", record.rows.iter().map(|row| row.look.seen.rss_kib as f64 / 1024.0).collect());
    plot("p99 ms", record.rows.iter().map(|row| row.short_ms[1]).collect());
}

/// Prints how the memory of the process that served longest grew; too much is an error.
fn grown(record: &mut Record) {
    let Some(growth) = Growth::of(&record.steady()) else {
        return println!("memory: not judged, no process was looked at often enough");
    };
    println!(
        "memory of the process that served longest, its later {:.1} min and {} requests: {} KiB to {} KiB; in the median of \
         the minutes {:+.1} KiB, {:+.0} KiB per million requests",
        growth.lasted.as_secs_f64() / 60.0,
        growth.requests,
        growth.first_kib,
        growth.last_kib,
        growth.kib_per_minute,
        growth.kib_per_million
    );
    if growth.lasted.as_secs() < JUDGED_FROM_S {
        println!("memory: not judged, these are less than the {} min that tell growth", JUDGED_FROM_S / 60);
    } else if growth.kib_per_million > KIB_PER_MILLION_MAX {
        record.error(format!("memory grows by {:.0} KiB per million requests", growth.kib_per_million));
    } else if growth.last_kib > growth.first_kib + GROWN_KIB_MAX {
        record.error(format!("memory grew from {} to {} KiB", growth.first_kib, growth.last_kib));
    }
}

/// One sign a minute, from nothing to the most.
fn plot(name: &str, values: Vec<f64>) {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bars: String = values.iter().map(|value| BARS[((value / most * 7.99) as usize).min(7)]).collect();
    println!("{name:>8} {bars} (most {most:.1})");
}

pub fn write(record: &Record, faults: &Faults, driver: &str, path: &Path) -> Result<(), String> {
    let look = |look: &Look| {
        json!({
            "minutes": look.minutes, "pid": look.pid, "rss_kib": look.seen.rss_kib, "descriptors": look.seen.descriptors,
            "threads": look.seen.threads, "predecessors": look.predecessors, "predecessors_kib": look.predecessors_kib,
            "in_flight": look.in_flight, "clients": look.clients, "upstreams": look.upstreams, "requests": look.requests,
        })
    };
    let row = |row: &Row| {
        json!({
            "minutes": row.minutes, "requests": row.requests, "explained": row.explained, "unexplained": row.unexplained,
            "short_ms": row.short_ms, "first_token_ms": row.first_token_ms, "front_cores": row.front_cores,
            "all_cores": row.all_cores,
        })
    };
    let growth = Growth::of(&record.steady());
    let text = json!({
        "driver": driver,
        "requests": record.total.requests(),
        "explained": record.explained,
        "unexplained": record.unexplained,
        "errors": record.errors,
        "faults": faults.done,
        "kib_per_minute": growth.as_ref().map(|growth| growth.kib_per_minute),
        "kib_per_million_requests": growth.as_ref().map(|growth| growth.kib_per_million),
        "rows": record.rows.iter().map(row).collect::<Vec<_>>(),
        "looks": record.looks.iter().map(look).collect::<Vec<_>>(),
    });
    fs::write(path, format!("{text:#}\n")).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("every row: {}", path.display());
    Ok(())
}
