//! Traces in Mooncake's format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length`
//! (tokens) and `hash_ids`, which name the blocks of the prompt together with all that stands before them.
//!
//! * A partial last block is no block: engines cache full ones. Of what lies within a block the trace does not
//!   tell, so the engines' blocks are the trace's.
//! * Replies have no ids: the next prompt of a conversation finds its own past prompt and not the reply.
//! * Requests of one timestamp are spread evenly until the next: the public traces are stamped in batches of 3 s.
//! * There are no sessions. A request continues the one whose whole prompt (two blocks at least) it begins with.
//! * There is no text. The block behind the first, which all requests may share, stands for the first user message.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::chain::mix;
use super::{Open, Request, Source, Traffic, Window};

/// Tokens in a block of the public traces.
pub const BLOCK_TOKENS: u32 = 512;

/// Longest prompt or reply that is believed.
const TOKENS_MAX: u64 = 16 << 20;
/// Latest timestamp that is believed: a month.
const TIMESTAMP_MAX: u64 = 31 * 86_400_000;
/// Longest line: 16 M tokens in blocks of 16 have a million ids.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most lines, and most blocks of all of them: half a gigabyte.
const LINES_MAX: usize = 4_000_000;
const BLOCKS_MAX: usize = 64 << 20;

/// Why a trace cannot be replayed, and where.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file.
    #[error("cannot read {path}: {error}")]
    File {
        /// Which.
        path: String,
        /// The system's or the decoder's words.
        error: std::io::Error,
    },
    /// A line.
    #[error("{path}, line {line}: {what}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to do.
        what: String,
    },
    /// No line.
    #[error("{path} holds no request: expected one JSON object a line")]
    Empty {
        /// The file.
        path: String,
    },
}

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    name: String,
    block_tokens: u32,
    requests: Vec<Request>,
}

impl Trace {
    /// Reads a file; a name ending in `.zst` is decompressed.
    pub fn open(path: &Path, block_tokens: u32) -> Result<Trace, Unusable> {
        let name = path.display().to_string();
        let file = |error| Unusable::File { path: name.clone(), error };
        let plain = std::fs::File::open(path).map_err(file)?;
        if path.extension().is_some_and(|end| end == "zst") {
            let decoder = ruzstd::decoding::StreamingDecoder::new(BufReader::new(plain))
                .map_err(|error| file(std::io::Error::other(error.to_string())))?;
            return Trace::read(BufReader::new(decoder), &name, block_tokens);
        }
        Trace::read(BufReader::new(plain), &name, block_tokens)
    }

    /// Reads lines; `name` is what errors call them.
    pub fn read(mut from: impl BufRead, name: &str, block_tokens: u32) -> Result<Trace, Unusable> {
        let (mut lines, mut blocks) = (Vec::new(), 0);
        let mut text = Vec::new();
        for number in 1.. {
            let refuse = |what: String| Unusable::Line { path: name.to_owned(), line: number, what };
            text.clear();
            let read = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
            match read.map_err(|error| Unusable::File { path: name.to_owned(), error })? {
                0 => break,
                _ if number > LINES_MAX => return Err(refuse(format!("more than {LINES_MAX} lines: cut the trace"))),
                bytes if bytes as u64 == LINE_BYTES_MAX => {
                    return Err(refuse(format!("longer than {LINE_BYTES_MAX} bytes: one request a line")));
                }
                _ if text.trim_ascii().is_empty() => continue,
                _ => {}
            }
            let line = parse(&text, block_tokens).map_err(refuse)?;
            if lines.last().is_some_and(|before: &Line| before.timestamp > line.timestamp) {
                return Err(refuse("an earlier timestamp than the line before: sort the trace by timestamp".into()));
            }
            blocks += line.hash_ids.len();
            if blocks > BLOCKS_MAX {
                return Err(refuse(format!("more than {BLOCKS_MAX} blocks until here: cut the trace")));
            }
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(Unusable::Empty { path: name.to_owned() });
        }
        Ok(Trace { name: name.to_owned(), block_tokens, requests: requests(&lines, block_tokens) })
    }

    /// The requests, in order of arrival.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Keeps the first `count` requests.
    pub fn keep_first(&mut self, count: usize) {
        self.requests.truncate(count);
    }

    /// Takes out what no engine could compute; how many those were.
    pub fn drop_longer_than(&mut self, tokens: u32) -> usize {
        let before = self.requests.len();
        self.requests.retain(|request| request.prompt.saturating_add(request.output) <= tokens);
        before - self.requests.len()
    }
}

fn parse(text: &[u8], block_tokens: u32) -> Result<Line, String> {
    let line: Line = serde_json::from_slice(text).map_err(|error| {
        format!(
            "{error}; expected {{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [..]}}"
        )
    })?;
    if line.timestamp > TIMESTAMP_MAX {
        return Err(format!(
            "timestamp {} is more than a month: milliseconds from the start are expected",
            line.timestamp
        ));
    }
    for (field, tokens) in [("input_length", line.input_length), ("output_length", line.output_length)] {
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(format!("{field} {tokens} is not between 1 and {TOKENS_MAX} tokens"));
        }
    }
    let expected = line.input_length.div_ceil(block_tokens.into());
    if line.hash_ids.len() as u64 != expected {
        return Err(format!(
            "{} hash_ids, but {} tokens in blocks of {block_tokens} make {expected}: is --block-tokens right?",
            line.hash_ids.len(),
            line.input_length
        ));
    }
    Ok(line)
}

fn requests(lines: &[Line], block_tokens: u32) -> Vec<Request> {
    let mut sessions: HashMap<u64, u64> = HashMap::new();
    let mut out = Vec::with_capacity(lines.len());
    let mut gap_ms = 0;
    for batch in lines.chunk_by(|one, other| one.timestamp == other.timestamp) {
        let Some(first) = batch.first() else { continue };
        let next = lines.get(out.len() + batch.len());
        gap_ms = next.map_or(gap_ms, |next| next.timestamp - first.timestamp);
        for (place, line) in batch.iter().enumerate() {
            let spread_ns = gap_ms * 1_000_000 * place as u64 / batch.len() as u64;
            let full = (line.input_length / u64::from(block_tokens)) as usize;
            let blocks: Arc<[u64]> = line.hash_ids.iter().take(full).map(|id| mix(0, *id)).collect();
            let number = out.len() as u64;
            let continued = blocks.iter().skip(1).rev().find_map(|block| sessions.get(block).copied());
            let session = continued.unwrap_or(number);
            if let Some(last) = blocks.last().filter(|_| blocks.len() > 1) {
                sessions.insert(*last, session);
            }
            out.push(Request {
                arrival_ns: first.timestamp * 1_000_000 + spread_ns,
                prompt: line.input_length as u32,
                output: line.output_length as u32,
                blocks,
                session: Some(mix(1, session)),
                opening: line.hash_ids.get(1).or(line.hash_ids.first()).map(|id| mix(2, *id)),
                thread: 0,
            });
        }
    }
    out
}

impl Source for Trace {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        Box::new(Open::new(&self.requests, load))
    }

    fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    fn window(&self, _load: f64) -> Window {
        Window { from_ns: 0, until_ns: None }
    }

    fn describe(&self) -> String {
        let prompt: u64 = self.requests.iter().map(|request| u64::from(request.prompt)).sum();
        let output: u64 = self.requests.iter().map(|request| u64::from(request.output)).sum();
        let (count, name) = (self.requests.len().max(1) as u64, &self.name);
        let seconds = self.requests.last().map_or(0, |last| last.arrival_ns / 1_000_000_000);
        format!(
            "{name}: {count} requests in {seconds} s, {} prompt and {} output tokens in the mean",
            prompt / count,
            output / count
        )
    }

    fn tokens_max(&self) -> u32 {
        self.requests.iter().map(|request| request.prompt.saturating_add(request.output)).max().unwrap_or(0)
    }

    fn check(&self, _load: f64) -> Result<(), String> {
        Ok(())
    }
}
