//! One line for each record, as JSON or as text. Whatever bytes a record holds, it stays one line.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::calendar::rfc3339;
use crate::config::LogFormat;
use crate::exchange::Record;
use crate::fleet::EndpointId;
use crate::limits::LOGGED_CHAIN_BYTES;
use crate::snapshot::{PoolId, Snapshot};

/// Counts changes of what the keys mean. New keys may come without one.
const VERSION: u32 = 2;

/// A record with its names. Keys that have no value are `null`; those that end in `_us` are microseconds since the
/// first byte of the request, or a time by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line<'a> {
    pub(in crate::control) version: u32,
    /// Of the first byte, RFC 3339 in UTC.
    pub time: Cow<'a, str>,
    /// Who asked.
    pub client: SocketAddr,
    /// Without a value: no line of a request could be read. These two.
    pub method: Option<Cow<'a, str>>,
    /// See `method`.
    pub path: Option<Cow<'a, str>>,
    /// What kind of request the path is for.
    pub api: Cow<'a, str>,
    /// The pool that was selected.
    pub pool: Option<Cow<'a, str>>,
    /// The endpoint chosen last.
    pub endpoint: Option<Cow<'a, str>>,
    /// Why that one.
    pub reason: Option<Cow<'a, str>>,
    /// Who would have been next.
    pub runner_up: Option<Cow<'a, str>>,
    /// How many endpoints were chosen.
    pub tries: u8,
    /// Sent to the client; 0: it left, or the front ended, before.
    pub status: u16,
    /// How it ended.
    pub end: Cow<'a, str>,
    /// The phase or cause of that.
    pub why: Option<Cow<'a, str>>,
    /// The reply was a stream of events.
    pub stream: bool,
    /// Of the request's body.
    pub request_bytes: u64,
    /// Of the engine's reply body.
    pub reply_bytes: u64,
    /// Tokens of the prompt as the choice counted them, else as the engine did,
    pub prompt_tokens: Option<u32>,
    /// how many of them the endpoint was taken to hold,
    pub held_tokens: Option<u32>,
    /// and how many it held, as the engine counted.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer, as the engine counted.
    pub completion_tokens: Option<u32>,
    /// Hash of the prompt's prefix.
    pub key: Option<Cow<'a, str>>,
    /// In a queue in front of the choice.
    pub wait_us: Option<u64>,
    /// The first endpoint was chosen.
    pub chosen_us: Option<u64>,
    /// The connection that served stood.
    pub connected_us: Option<u64>,
    /// The reply's head had come.
    pub head_us: Option<u64>,
    /// Its first data had.
    pub first_data_us: Option<u64>,
    /// The end.
    pub total_us: u64,
    /// The client's own, or the one made for it.
    pub request_id: Option<Cow<'a, str>>,
    /// The trace that its client says it belongs to.
    pub trace_id: Option<Cow<'a, str>>,
    /// In JSON, and only where the log is to have it.
    #[serde(serialize_with = "links", skip_serializing_if = "Option::is_none", skip_deserializing)]
    chain: Option<&'a [u64]>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    chain_bytes: Option<usize>,
}

/// The fleet as it was when records were last read, and as it is. A request that ended in between had its endpoint in
/// either: a slot is given away only when nothing runs there.
pub(super) struct Names<'a>(pub [&'a Snapshot; 2]);

impl Names<'_> {
    fn pool(&self, id: PoolId) -> Option<Arc<str>> {
        self.0.iter().find_map(|fleet| fleet.pools.get(usize::from(id.0))).map(|pool| Arc::clone(&pool.name))
    }

    fn endpoint(&self, id: EndpointId) -> Option<Arc<str>> {
        self.0.iter().find_map(|fleet| fleet.endpoint(id)).map(|endpoint| Arc::clone(&endpoint.name))
    }
}

/// A record, and what its numbers stood for when it ended.
#[derive(Clone, Debug)]
pub struct Named {
    pub(in crate::control) record: Box<Record>,
    pool: Option<Arc<str>>,
    endpoint: Option<Arc<str>>,
    runner_up: Option<Arc<str>>,
}

impl Named {
    pub(super) fn new(record: Box<Record>, names: &Names<'_>) -> Named {
        Named {
            pool: record.pool.and_then(|id| names.pool(id)),
            endpoint: record.endpoint.and_then(|id| names.endpoint(id)),
            runner_up: record.runner_up.and_then(|id| names.endpoint(id)),
            record,
        }
    }

    /// All that is told of it.
    pub fn line(&self) -> Line<'_> {
        let Named { record, pool, endpoint, runner_up } = self;
        Line {
            version: VERSION,
            time: rfc3339(record.at).into(),
            client: record.client,
            method: some(record.method.as_bytes()),
            path: some(record.path.as_bytes()),
            api: record.api.as_str().into(),
            pool: pool.as_deref().map(Cow::from),
            endpoint: endpoint.as_deref().map(Cow::from),
            reason: record.reason.map(|reason| reason.as_str().into()),
            runner_up: runner_up.as_deref().map(Cow::from),
            tries: record.tries,
            status: record.status,
            end: record.end.as_str().into(),
            why: record.end.why().map(Cow::from),
            stream: record.streamed,
            request_bytes: record.request_bytes,
            reply_bytes: record.reply_bytes,
            prompt_tokens: record.prompt_tokens,
            held_tokens: record.held_tokens,
            cached_tokens: record.cached_tokens,
            completion_tokens: record.completion_tokens,
            key: record.key.map(|key| format!("{key:016x}").into()),
            wait_us: record.waited,
            chosen_us: record.chosen,
            connected_us: record.connected,
            head_us: record.head,
            first_data_us: record.first_data,
            total_us: record.total,
            request_id: some(record.request_id.as_bytes()),
            trace_id: record.trace.digits().map(Cow::from),
            chain: record.chain.as_deref(),
            chain_bytes: record.chain.as_ref().map(|_| LOGGED_CHAIN_BYTES),
        }
    }
}

/// Writes a line behind what `out` holds.
pub(super) fn write(line: &Line<'_>, format: LogFormat, out: &mut Vec<u8>) {
    match format {
        // It fails only where the writer does, and a vector takes all.
        LogFormat::Json => drop(serde_json::to_writer(&mut *out, line)),
        LogFormat::Text => text(line, out),
    }
    out.push(b'\n');
}

fn some(bytes: &[u8]) -> Option<Cow<'_, str>> {
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes))
}

fn links<S: Serializer>(chain: &Option<&[u64]>, serializer: S) -> Result<S::Ok, S::Error> {
    struct Hex(u64);
    impl Serialize for Hex {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(&format_args!("{:016x}", self.0))
        }
    }
    serializer.collect_seq(chain.unwrap_or_default().iter().map(|link| Hex(*link)))
}

/// `TIME CLIENT METHOD PATH STATUS END`, then the rest by name, but the chain.
fn text(line: &Line<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(line.time.as_bytes());
    let client = line.client.to_string();
    let status = line.status.to_string();
    let (method, path) = (line.method.as_deref(), line.path.as_deref());
    for word in [Some(&*client), method, path, Some(&*status), Some(&*line.end)] {
        out.push(b' ');
        plain(word, out);
    }
    for (name, word) in [
        ("why", line.why.as_deref()),
        ("api", Some(&*line.api)),
        ("pool", line.pool.as_deref()),
        ("endpoint", line.endpoint.as_deref()),
        ("reason", line.reason.as_deref()),
        ("runner_up", line.runner_up.as_deref()),
        ("key", line.key.as_deref()),
        ("request_id", line.request_id.as_deref()),
        ("trace_id", line.trace_id.as_deref()),
    ] {
        named(name, out);
        plain(word, out);
    }
    for (name, number) in [
        ("tries", Some(u64::from(line.tries))),
        ("stream", Some(u64::from(line.stream))),
        ("request_bytes", Some(line.request_bytes)),
        ("reply_bytes", Some(line.reply_bytes)),
        ("prompt_tokens", line.prompt_tokens.map(u64::from)),
        ("held_tokens", line.held_tokens.map(u64::from)),
        ("cached_tokens", line.cached_tokens.map(u64::from)),
        ("completion_tokens", line.completion_tokens.map(u64::from)),
        ("wait_us", line.wait_us),
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

#[cfg(test)]
mod tests;
