//! One line for each record, as JSON or as text. Whatever bytes a record holds, it stays one line.

use std::net::SocketAddr;

use serde::Serialize;

use crate::config::LogFormat;
use crate::exchange::Record;
use crate::fleet::EndpointId;
use crate::scan::Api;
use crate::snapshot::{PoolId, Snapshot};

/// Counts changes of what the keys mean. New keys may come without one.
const VERSION: u32 = 1;
const MICROS: u64 = 1_000_000;
const DAY_SECONDS: u64 = 86_400;

/// A record with its names. Keys that have no value are `null`; those that end in `_us` are microseconds since the first
/// byte of the request.
#[derive(Serialize)]
struct Line<'a> {
    version: u32,
    time: &'a str,
    client: SocketAddr,
    method: Option<&'a str>,
    path: Option<&'a str>,
    api: &'a str,
    pool: Option<&'a str>,
    endpoint: Option<&'a str>,
    reason: Option<&'a str>,
    tries: u8,
    status: u16,
    end: &'a str,
    why: Option<&'a str>,
    stream: bool,
    request_bytes: u64,
    reply_bytes: u64,
    key: Option<&'a str>,
    chosen_us: Option<u64>,
    connected_us: Option<u64>,
    head_us: Option<u64>,
    first_data_us: Option<u64>,
    total_us: u64,
    request_id: Option<&'a str>,
}

/// The fleet as it was when lines were last written, and as it is. A request that ended in between had its endpoint in
/// either: a slot is given away only when nothing runs there.
pub(super) struct Names<'a>(pub [&'a Snapshot; 2]);

impl<'a> Names<'a> {
    fn pool(&self, id: PoolId) -> Option<&'a str> {
        self.0.iter().find_map(|fleet| fleet.pools.get(usize::from(id.0))).map(|pool| &*pool.name)
    }

    fn endpoint(&self, id: EndpointId) -> Option<&'a str> {
        self.0.iter().find_map(|fleet| fleet.endpoint(id)).map(|endpoint| &*endpoint.name)
    }
}

/// Writes a record behind what `out` holds.
pub(super) fn write(record: &Record, format: LogFormat, names: &Names<'_>, out: &mut Vec<u8>) {
    let [method, path, request_id] =
        [record.method.as_bytes(), record.path.as_bytes(), record.request_id.as_bytes()].map(String::from_utf8_lossy);
    let key = record.key.map(|key| format!("{key:016x}"));
    let line = Line {
        version: VERSION,
        time: &time(record.at),
        client: record.client,
        method: some(&method),
        path: some(&path),
        api: api(record.api),
        pool: record.pool.and_then(|id| names.pool(id)),
        endpoint: record.endpoint.and_then(|id| names.endpoint(id)),
        reason: record.reason.map(|reason| reason.as_str()),
        tries: record.tries,
        status: record.status,
        end: record.end.as_str(),
        why: record.end.why(),
        stream: record.streamed,
        request_bytes: record.request_bytes,
        reply_bytes: record.reply_bytes,
        key: key.as_deref(),
        chosen_us: record.chosen,
        connected_us: record.connected,
        head_us: record.head,
        first_data_us: record.first_data,
        total_us: record.total,
        request_id: some(&request_id),
    };
    match format {
        // It fails only where the writer does, and a vector takes all.
        LogFormat::Json => drop(serde_json::to_writer(&mut *out, &line)),
        LogFormat::Text => text(&line, out),
    }
    out.push(b'\n');
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// `TIME CLIENT METHOD PATH STATUS END`, then the rest by name.
fn text(line: &Line<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(line.time.as_bytes());
    let client = line.client.to_string();
    for word in [Some(&*client), line.method, line.path, Some(&*line.status.to_string()), Some(line.end)] {
        out.push(b' ');
        plain(word, out);
    }
    for (name, word) in [
        ("why", line.why),
        ("api", Some(line.api)),
        ("pool", line.pool),
        ("endpoint", line.endpoint),
        ("reason", line.reason),
        ("key", line.key),
        ("request_id", line.request_id),
    ] {
        named(name, out);
        plain(word, out);
    }
    for (name, number) in [
        ("tries", Some(u64::from(line.tries))),
        ("stream", Some(u64::from(line.stream))),
        ("request_bytes", Some(line.request_bytes)),
        ("reply_bytes", Some(line.reply_bytes)),
        ("chosen_us", line.chosen_us),
        ("connected_us", line.connected_us),
        ("head_us", line.head_us),
        ("first_data_us", line.first_data_us),
        ("total_us", Some(line.total_us)),
    ] {
        named(name, out);
        plain(number.map(|number| number.to_string()).as_deref(), out);
    }
}

fn named(name: &str, out: &mut Vec<u8>) {
    out.push(b' ');
    out.extend_from_slice(name.as_bytes());
    out.push(b'=');
}

/// A word that no blank, quote, line end or byte beyond ASCII is in; `-` for none.
fn plain(word: Option<&str>, out: &mut Vec<u8>) {
    for &byte in word.unwrap_or("-").as_bytes() {
        match byte {
            b' ' => out.extend_from_slice(b"\\x20"),
            _ => out.extend(byte.escape_ascii()),
        }
    }
}

/// As RFC 3339 has it, in UTC, with microseconds.
fn time(micros: u64) -> String {
    let (seconds, micros) = (micros / MICROS, micros % MICROS);
    let (year, month, day) = date(seconds / DAY_SECONDS);
    let second = seconds % DAY_SECONDS;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of so many days since 1970: Howard Hinnant's `civil_from_days`, of years that begin in March.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

fn api(api: Api) -> &'static str {
    match api {
        Api::Chat => "chat",
        Api::Completions => "completions",
        Api::Embeddings => "embeddings",
        Api::Responses => "responses",
        Api::Messages => "messages",
        Api::Rerank => "rerank",
        Api::Score => "score",
        Api::Tokenize => "tokenize",
        Api::Generate => "generate",
        Api::Other => "other",
    }
}

#[cfg(test)]
mod tests;
