//! The endpoints, one a line.

use super::change::{Change, EndpointChange};
use super::figures::{number, percent, rate, time};
use super::page::{Line, Paint};

/// One column beside the name.
struct Column {
    head: &'static str,
    width: usize,
    /// Words begin at its left, figures end at its right.
    words: bool,
    cell: fn(&EndpointChange<'_>) -> (Paint, String),
}

const fn words(head: &'static str, width: usize, cell: fn(&EndpointChange<'_>) -> (Paint, String)) -> Column {
    Column { head, width, words: true, cell }
}

const fn figure(head: &'static str, width: usize, cell: fn(&EndpointChange<'_>) -> (Paint, String)) -> Column {
    Column { head, width, words: false, cell }
}

/// With the gaps between them they leave 15 of 80 characters to the name: an IPv4 address with its port.
const COLUMNS: [Column; 9] = [
    words("state", 8, state),
    words("rung", 11, |endpoint| {
        let rung = endpoint.now.rung.as_deref();
        (Paint::Warning.when(rung == Some("hash")), rung.unwrap_or("-").into())
    }),
    figure("flight", 6, |endpoint| (Paint::Plain, number(endpoint.now.in_flight))),
    figure("pending", 7, |endpoint| (Paint::Plain, number(endpoint.now.pending))),
    figure("KV", 4, |endpoint| {
        let full = endpoint.now.kv_use.is_some_and(|part| part >= KV_FULL);
        (Paint::Warning.when(full), percent(endpoint.now.kv_use))
    }),
    figure("held", 4, |endpoint| (Paint::Plain, percent(endpoint.held()))),
    figure("hit", 4, |endpoint| (Paint::Plain, percent(endpoint.hit()))),
    figure("TTFT50", 6, |endpoint| (Paint::Plain, time(endpoint.first_token(0.5)))),
    figure("TTFT99", 6, |endpoint| (Paint::Plain, time(endpoint.first_token(0.99)))),
];

/// Further columns on wide screens.
const MORE: [Column; 4] = [
    figure("ends", 7, |endpoint| (Paint::Plain, rate(endpoint.requests()))),
    figure("run", 5, |endpoint| (Paint::Plain, number(endpoint.now.running))),
    figure("wait", 5, |endpoint| (Paint::Plain, number(endpoint.now.waiting))),
    figure("faults", 6, |endpoint| (Paint::Plain, number(endpoint.now.faults))),
];

/// From this part of the KV cache on an engine begins to put requests off.
const KV_FULL: f64 = 0.9;
/// A name is not cut shorter to make room for [`MORE`].
const NAME_MIN: usize = 15;

fn state(endpoint: &EndpointChange<'_>) -> (Paint, String) {
    let starts_slowly = endpoint.now.share.filter(|share| *share < 1.0);
    match (endpoint.now.health.as_deref(), starts_slowly) {
        (None, _) => (Paint::Plain, "-".into()),
        (Some("up" | "unknown"), _) if is_kept(endpoint) => (Paint::Bad, "kept".into()),
        (Some("up"), Some(_)) => (Paint::Warning, format!("up {}", percent(starts_slowly))),
        (Some("up"), None) => (Paint::Good, "up".into()),
        (Some(state @ ("down" | "ejected")), _) => (Paint::Bad, state.into()),
        (Some("unresolved"), _) => (Paint::Bad, "no addr".into()),
        (Some(state), _) => (Paint::Warning, state.into()),
    }
}

fn is_kept(endpoint: &EndpointChange<'_>) -> bool {
    endpoint.now.kept.is_some_and(|kept| kept > 0.0)
}

/// The table, `width` characters wide and of at most `lines_max` lines, its head among them.
pub(super) fn table(change: &Change<'_>, width: usize, lines_max: usize) -> Vec<Line> {
    // Series of finished requests may name one that is not there any more.
    let there = change.now.endpoints.iter().filter(|(_, endpoint)| {
        // An endpoint without an address has a state alone.
        endpoint.in_flight.or(endpoint.share).is_some() || endpoint.health.is_some()
    });
    let mut rows: Vec<(&str, EndpointChange<'_>)> =
        there.filter_map(|(name, _)| Some((name.as_str(), change.endpoint(name)?))).collect();
    let room = lines_max.saturating_sub(1);
    let hidden = if rows.len() > room { rows.len() + 1 - room.max(1) } else { 0 };
    if hidden > 0 {
        rows.sort_by(|(_, a), (_, b)| urgency(b).total_cmp(&urgency(a)));
        rows.truncate(rows.len() - hidden);
    }
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("endpoint".len());
    let taken = |columns: &[Column]| columns.iter().map(|column| column.width + 1).sum::<usize>();
    let (few, all) = (taken(&COLUMNS), taken(&COLUMNS) + taken(&MORE));
    let more = if width >= all + longest.min(NAME_MIN) { &MORE[..] } else { &[] };
    let columns: Vec<&Column> = COLUMNS.iter().chain(more).collect();
    let name_width = width.saturating_sub(if more.is_empty() { few } else { all }).min(longest);
    let mut lines = vec![head(&columns, name_width)];
    lines.extend(rows.iter().map(|(name, endpoint)| row(name, endpoint, &columns, name_width)));
    if hidden > 0 {
        let words = format!("... and {hidden} more; those in trouble and the busiest are shown");
        lines.push(Line::of(Paint::Faint, words));
    }
    lines
}

/// What endpoints are sorted by if there is no room for all; the greatest are shown.
fn urgency(endpoint: &EndpointChange<'_>) -> f64 {
    let trouble = endpoint.now.health.as_deref() != Some("up") || is_kept(endpoint);
    endpoint.now.in_flight.unwrap_or(0.0) + if trouble { 1e9 } else { 0.0 }
}

fn head(columns: &[&Column], name_width: usize) -> Line {
    let mut line = Line::of(Paint::Strong, format!("{:<name_width$}", "endpoint"));
    columns.iter().for_each(|column| line.push(Paint::Strong, aligned(column, column.head)));
    line
}

fn row(name: &str, endpoint: &EndpointChange<'_>, columns: &[&Column], name_width: usize) -> Line {
    let mut line = Line::of(Paint::Plain, format!("{:<name_width$}", shortened(name, name_width)));
    for column in columns {
        let (paint, words) = (column.cell)(endpoint);
        line.push(paint, aligned(column, &words));
    }
    line
}

fn aligned(column: &Column, words: &str) -> String {
    let width = column.width;
    if column.words { format!(" {words:<width$.width$}") } else { format!(" {words:>width$}") }
}

/// Names of one fleet differ at their beginning or at their end.
fn shortened(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width || width < 3 {
        return name.chars().take(width).collect();
    }
    let (begin, end) = ((width - 1) / 2, width / 2);
    name.chars().take(begin).chain(['~']).chain(name.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("gpu-rack-7-node-12:8000", 11), "gpu-r~:8000");
        assert_eq!([shortened("gpu-1", 5), shortened("gpu-1", 2), shortened("gpu-1", 0)], ["gpu-1", "gp", ""]);
    }

    #[test]
    fn figures_fit_their_columns_at_80() {
        let taken: usize = COLUMNS.iter().map(|column| column.width + 1).sum();
        assert_eq!(taken + NAME_MIN, 80);
        assert!(COLUMNS.iter().chain(&MORE).all(|column| column.head.len() <= column.width));
    }
}
