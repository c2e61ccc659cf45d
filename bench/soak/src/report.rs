//! Tables for people, JSON for programs, and a picture of memory and latency over time.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::exchange::Kind;
use crate::faults::Faults;
use crate::record::{Growth, Look, Record, Row, percentiles};
use crate::run::Mode;

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

/// Totals, and how the memory grew if that is judged.
pub fn end(record: &Record, faults: &Faults, judges_growth: bool) {
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
    if !judges_growth {
        let streams = record.total.done.get(&Kind::Stream).copied().unwrap_or(0);
        let failed = record.unexplained + record.explained.values().sum::<u64>();
        println!(
            "{failed} failed of {} requests, {streams} of them streams, spread over all of it",
            record.total.requests() + failed
        );
    }
    let (mut short, mut first) = (record.total.short.clone(), record.total.first_token.clone());
    let (short, first) = (percentiles(&mut short), percentiles(&mut first));
    println!(
        "short requests p50 {:.2} ms, p99 {:.1} ms, p99.9 {:.0} ms; first token p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.0} ms",
        short[0], short[1], short[2], first[0], first[1], first[2]
    );
    if judges_growth {
        grown(Growth::of(&record.steady()));
    }
    plot("RSS MiB", record.rows.iter().map(|row| row.look.seen.rss_kib as f64 / 1024.0).collect());
    plot("p99 ms", record.rows.iter().map(|row| row.short_ms[1]).collect());
}

/// Growth of the process that served longest.
fn grown(growth: Option<Growth>) {
    let Some(growth) = growth else {
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
    if let Some(least) = growth.too_short_for() {
        println!("memory: not judged, these are less than the {} min that tell growth", least.as_secs() / 60);
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
