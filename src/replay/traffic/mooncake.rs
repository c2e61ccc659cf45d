//! Traces in Mooncake's format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length`
//! (tokens) and `hash_ids`, which name the blocks of the prompt together with all that stands before them.
//!
//! * A partial last block is no block: engines cache full ones. The trace does not tell what lies within a block, so
//!   the engines' blocks are the trace's.
//! * Replies have no ids: a conversation's next prompt finds its past prompt and not the reply.
//! * Requests of one timestamp are spread evenly until the next: the public traces are stamped in batches of 3 s.
//! * Times count from the first request that is replayed: a trace may be a part of another, or stamped since 1970.
//! * There are no sessions. A request continues the one whose whole prompt (two blocks at least) it begins with.
//! * There is no text. The second block, since all requests may share the first, stands for the first user message.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::Request;
use super::chain::{mix, twice};
use super::lines::{self, BLOCKS_MAX, Lines, Unusable};
use super::trace::{Continued, TOKENS_MAX, Trace};

/// Tokens in a block of the public traces.
pub const BLOCK_TOKENS: u32 = 512;

/// Longest trace, in milliseconds: a month.
const SPAN_MS: u64 = 31 * 86_400_000;

#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a file; a name ending in `.zst` is decompressed.
pub fn open(path: &Path, block_tokens: u32) -> Result<Trace, Unusable> {
    read(lines::open(path)?, &path.display().to_string(), block_tokens)
}

/// Reads lines; `name` is what errors call them.
pub fn read(from: impl BufRead, name: &str, block_tokens: u32) -> Result<Trace, Unusable> {
    let (mut lines, mut blocks) = (Vec::new(), 0);
    let mut from = Lines::new(from, name);
    while let Some((number, text)) = from.next_line()? {
        let refuse = |what: String| Unusable::Line { path: name.to_owned(), line: number, what };
        let line = parse(text, block_tokens).map_err(refuse)?;
        if lines.last().is_some_and(|before: &Line| before.timestamp > line.timestamp) {
            return Err(refuse("an earlier timestamp than the line before: sort the trace by timestamp".into()));
        }
        if lines.first().is_some_and(|first: &Line| line.timestamp - first.timestamp > SPAN_MS) {
            let what = "more than a month behind the first: milliseconds are expected; or cut the trace";
            return Err(refuse(format!("timestamp {} is {what}", line.timestamp)));
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
    Ok(Trace::of(name, block_tokens, requests(&lines, block_tokens)))
}

fn parse(text: &[u8], block_tokens: u32) -> Result<Line, String> {
    let line: Line = serde_json::from_slice(text).map_err(|error| {
        format!(
            "{error}; expected {{\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \"hash_ids\": [..]}}, \
             or lines of a front's access log, `access_format = \"json\"`"
        )
    })?;
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
    if let Some(id) = twice(&line.hash_ids) {
        return Err(format!("hash_ids has {id} twice, but an id names a block with all that stands before it"));
    }
    Ok(line)
}

fn requests(lines: &[Line], block_tokens: u32) -> Vec<Request> {
    let mut sessions = Continued::default();
    let mut out = Vec::with_capacity(lines.len());
    let (mut gap_ms, begins_ms) = (0, lines.first().map_or(0, |first| first.timestamp));
    for batch in lines.chunk_by(|one, other| one.timestamp == other.timestamp) {
        let Some(first) = batch.first() else { continue };
        let next = lines.get(out.len() + batch.len());
        gap_ms = next.map_or(gap_ms, |next| next.timestamp - first.timestamp);
        for (place, line) in batch.iter().enumerate() {
            // A month for each of thousands that come at once takes more than 64 bits.
            let spread_ns = (u128::from(gap_ms) * 1_000_000 * place as u128 / batch.len() as u128) as u64;
            let full = (line.input_length / u64::from(block_tokens)) as usize;
            let blocks: Arc<[u64]> = line.hash_ids.iter().take(full).map(|id| mix(0, *id)).collect();
            let number = out.len() as u64;
            let session = sessions.of(&blocks, number);
            out.push(Request {
                arrival_ns: (first.timestamp - begins_ms) * 1_000_000 + spread_ns,
                prompt: line.input_length as u32,
                output: line.output_length as u32,
                blocks,
                session: Some(mix(1, session)),
                opening: line.hash_ids.get(1).or(line.hash_ids.first()).map(|id| mix(2, *id)),
                thread: session as u32,
            });
        }
    }
    out
}
