//! Everything on one screen, as text.

use super::change::Change;
use super::figures::{duration, number, percent, rate, time};
use super::page::{Line, Paint, flow};
use super::reading::{Reading, Shard};
use super::table::table;

/// More shards than this are told of together.
const SHARDS_SHOWN: usize = 8;

/// What there is to draw on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Surface {
    /// Characters in a line.
    pub width: usize,
    /// Lines; what does not fit is left out.
    pub height: usize,
    pub colours: bool,
}

/// The lines of a screen. `trouble`: why there is no newer reading.
pub(super) fn lines(address: &str, change: Option<&Change<'_>>, trouble: Option<&str>, surface: &Surface) -> Vec<Line> {
    let width = surface.width;
    let mut lines = vec![title(address, change, width)];
    // It may take more than a line.
    lines.extend(trouble.iter().flat_map(|why| wrapped(why, width)));
    let Some(change) = change else { return lines };
    lines.push(Line::default());
    lines.extend(flow("requests", requests(change), width));
    lines.extend(flow("statuses", statuses(change), width));
    lines.extend(flow("queue", queue(change), width));
    lines.extend(flow("refused", refused(change), width));
    lines.extend(flow("choices", choices(change), width));
    lines.extend(flow("shards", shards(change), width));
    lines.push(Line::default());
    let left = surface.height.saturating_sub(lines.len());
    lines.extend(table(change, width, left));
    lines
}

/// One screen as it is printed or drawn, without the last line's end. `end` ends the others.
pub(super) fn text(lines: &[Line], surface: &Surface, end: &str) -> String {
    let mut out = String::new();
    for (number, line) in lines.iter().take(surface.height).enumerate() {
        out.push_str(if number > 0 { end } else { "" });
        line.write(&mut out, surface.width, surface.colours);
    }
    out
}

fn title(address: &str, change: Option<&Change<'_>>, width: usize) -> Line {
    let Some(change) = change else { return Line::of(Paint::Strong, format!("warmfront on {address}")) };
    let version = change.now.version.as_deref().unwrap_or("-");
    let mut line = Line::of(Paint::Strong, format!("warmfront {version} on {address}"));
    line.push(Paint::Plain, format!(", up {}", duration(change.now.uptime)));
    if change.now.draining.is_some_and(|draining| draining > 0.0) {
        line.push(Paint::Warning, ", draining");
    }
    let span = match change.seconds() {
        Some(seconds) => format!("rates over {} s", seconds.round()),
        None => "no rates yet".into(),
    };
    let gap = width.saturating_sub(line.length() + span.len()).max(3);
    line.push(Paint::Faint, " ".repeat(gap) + &span);
    line
}

fn wrapped(words: &str, width: usize) -> Vec<Line> {
    let mut rows = vec![String::new()];
    for word in words.split(' ') {
        let row = rows.last_mut().filter(|row| row.chars().count() + 1 + word.chars().count() <= width);
        match row {
            Some(row) if row.is_empty() => row.push_str(word),
            Some(row) => *row = format!("{row} {word}"),
            None => rows.push(word.into()),
        }
    }
    rows.into_iter().map(|row| Line::of(Paint::Bad, row)).collect()
}

type Items = Vec<(Paint, String)>;

fn requests(change: &Change<'_>) -> Items {
    let first_token = change.first_token();
    let quantile = |part| time(first_token.as_ref().and_then(|histogram| histogram.quantile(part)));
    // Histograms without a value are not there yet.
    let zero = |reading: &Reading| reading.in_flight.map(|_| 0.0);
    let streams = change.rate(|reading| reading.first_token.count().or(zero(reading)));
    let events = change.rate(|reading| reading.events.or(zero(reading)));
    [
        format!("{} ended", rate(change.statuses(|_| true))),
        format!("{} in flight", number(change.now.in_flight)),
        format!("{} streams", rate(streams)),
        format!("{} events", rate(events)),
        format!("TTFT p50 {}", quantile(0.5)),
        format!("p99 {}", quantile(0.99)),
    ]
    .map(|words| (Paint::Plain, words))
    .into()
}

fn statuses(change: &Change<'_>) -> Items {
    let class = |class: u16| change.statuses(move |status| status / 100 == class);
    let failed = class(5);
    vec![
        (Paint::Plain, format!("2xx {}", rate(class(2)))),
        (Paint::Plain, format!("4xx {}", rate(class(4)))),
        (Paint::Bad.when(failed > Some(0.0)), format!("5xx {}", rate(failed))),
        (Paint::Plain, format!("left before one {}", rate(class(0)))),
    ]
}

fn queue(change: &Change<'_>) -> Items {
    let waiting = change.now.waiting;
    let mut items = vec![(Paint::Warning.when(waiting > Some(0.0)), format!("{} waiting", number(waiting)))];
    for (end, words, bad) in [
        ("released", "released", false),
        ("full", "full", true),
        ("pushed_out", "pushed out", true),
        ("timed_out", "timed out", true),
    ] {
        let ends = change.rate(|reading: &Reading| reading.queue_ends.get(end).copied());
        items.push((Paint::Bad.when(bad && ends > Some(0.0)), format!("{} {words}", rate(ends))));
    }
    items
}

fn refused(change: &Change<'_>) -> Items {
    let Some(rising) = change.rising(|reading| &reading.refused) else { return vec![(Paint::Plain, "-".into())] };
    if rising.is_empty() {
        return vec![(Paint::Plain, "none".into())];
    }
    rising.into_iter().map(|(cause, speed)| (Paint::Bad, format!("{cause} {}", rate(Some(speed))))).collect()
}

/// Choices by their reason, for all requests that ended.
fn choices(change: &Change<'_>) -> Items {
    let Some(rising) = change.rising(|reading| &reading.reasons) else { return vec![(Paint::Plain, "-".into())] };
    let all: f64 = rising.iter().map(|(_, speed)| speed).sum();
    if rising.is_empty() {
        return vec![(Paint::Plain, "none".into())];
    }
    let words = |(reason, speed): (&str, f64)| {
        // Requests that were refused before a choice.
        let reason = if reason == "none" { "not chosen" } else { reason };
        format!("{reason} {} {}", percent(Some(speed / all)), rate(Some(speed)))
    };
    rising.into_iter().map(|choice| (Paint::Plain, words(choice))).collect()
}

/// Shards one by one if they are few, else the range of their figures, and those that stood still.
fn shards(change: &Change<'_>) -> Items {
    let all: Vec<(&u16, &Shard)> = change.now.shards.iter().collect();
    let turns = |number: u16| change.rate(move |reading| reading.shards.get(&number)?.turns);
    let of_one = |(number_of, shard): &(&u16, &Shard)| {
        let (driver, clients) = (shard.driver.as_deref().unwrap_or("-"), number(shard.clients));
        let mut words = format!("{number_of} {driver} {clients} clients {} turns", rate(turns(**number_of)));
        let stalled = stalls(shard);
        if stalled {
            words += &format!(" {} stalls", number(shard.stalls));
        }
        (Paint::Warning.when(stalled), words)
    };
    if all.is_empty() {
        return vec![(Paint::Plain, "-".into())];
    }
    if all.len() <= SHARDS_SHOWN {
        return all.iter().map(of_one).collect();
    }
    let range = |of: &dyn Fn(&(&u16, &Shard)) -> Option<f64>, words: fn(Option<f64>) -> String| {
        let known = || all.iter().filter_map(of);
        format!("{} to {}", words(known().reduce(f64::min)), words(known().reduce(f64::max)))
    };
    let mut items = vec![
        (Paint::Plain, format!("{} of them", all.len())),
        (Paint::Plain, format!("{} clients each", range(&|(_, shard)| shard.clients, number))),
        (Paint::Plain, format!("{} turns", range(&|(number, _)| turns(**number), rate))),
    ];
    items.extend(all.iter().filter(|(_, shard)| stalls(shard)).take(SHARDS_SHOWN).map(of_one));
    items
}

fn stalls(shard: &Shard) -> bool {
    shard.stalls.is_some_and(|stalls| stalls > 0.0)
}
