//! A front's own access log, in JSON: what came, when and how long, and, where the log has `chain`, which prompts
//! begin alike.
//!
//! * The blocks are the chain's stretches of `chain_bytes` (the longest of them, if fronts of several releases wrote
//!   the log). How many tokens a stretch has is one number for the whole log, which comes from lines that have both; a
//!   front's own count is an estimate already.
//! * A prompt without `chain` is nobody else's. Without `prompt_tokens` it is as long as its chain, or its body.
//! * What follows the last link, all of a shorter prompt, is not seen to be shared. The replay says so, and beside it
//!   what part of their prompts the engines themselves found cached.
//! * A reply is found with the next turn that brings it back, as far as links reach into it: see [`answered`].
//! * Without `completion_tokens` a reply is as long as its bytes make it; a reply that was cut, as far as it came.
//! * Requests that no engine saw (refused, no endpoint), and those that generate nothing, are left out and counted.
//! * Lines that are none of ours are left out and counted as well, since a log ends anywhere. If they are more than one
//!   in ten, the first of them is refused.
//! * Requests of several pools go as if every engine served every model, which the replay says; or one pool's alone.
//! * There are no sessions: they are found as in [`super::mooncake`]. But a prompt at whose end many others go on, or
//!   end as well (its own message is shorter than a link, and what stands before is everybody's), has no next turn.
//!   The prefix key stands for the first user message if that made it; if another policy chose, the key is another, and
//!   each conversation counts as one that begins differently.

mod account;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;

use serde::Deserialize;

pub use self::account::Account;
use super::Request;
use super::chain::{mix, twice};
use super::lines::{BLOCKS_MAX, Lines, Unusable};
use super::trace::{Continued, TOKENS_MAX, Trace, everybodys};
use crate::calendar::of_rfc3339;

/// Bytes of text in a token, if nothing says more.
const TOKEN_BYTES: u64 = 4;
/// Bytes of an event, which brings a token: vLLM's have 230 to 270 with a short model name.
const EVENT_BYTES: u64 = 240;
/// Bytes of an unstreamed reply that are not its text.
const REPLY_BYTES: u64 = 500;
/// Bytes that the links of a chain stand for, unless a line says so.
const CHAIN_BYTES: u64 = 2_048;
/// Reasons by which a log says that the prefix's key chose.
const BY_KEY: [&str; 3] = ["home", "spill", "all_full"];
/// The reason of whatever policy, if it chose again.
const AGAIN: &str = "retry";
/// One line in this many may be none of ours.
const BROKEN: usize = 10;
/// Longest log, in microseconds: a month.
const SPAN_MICROS: u64 = 31 * 86_400_000_000;
/// Most tokens of a block.
const BLOCK_TOKENS_MAX: u64 = 65_536;

#[derive(Deserialize)]
struct Line {
    time: String,
    method: Option<String>,
    api: String,
    pool: Option<String>,
    endpoint: Option<String>,
    reason: Option<String>,
    status: u16,
    stream: bool,
    request_bytes: u64,
    reply_bytes: u64,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    key: Option<String>,
    total_us: Option<u64>,
    chain: Option<Vec<String>>,
    chain_bytes: Option<u64>,
}

/// The fields of a line that are used.
struct Seen {
    micros: u64,
    prompt: Option<u64>,
    cached: Option<u64>,
    output: u64,
    /// Its reply was counted in bytes.
    guessed: bool,
    body_bytes: u64,
    pool: u64,
    /// Key of its first user message; until [`keep_first_messages`] of whatever it was routed by.
    key: Option<u64>,
    chosen: Chosen,
    /// Microseconds from its beginning to its end.
    took_micros: u64,
    chain: Option<Vec<u64>>,
    /// Bytes of one of its links, if its line says so.
    link_bytes: Option<u64>,
}

/// What chose for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chosen {
    ByKey,
    /// What chose for the others of its pool.
    Again,
    Otherwise,
}

impl Chosen {
    fn of(reason: Option<&str>) -> Chosen {
        match reason {
            None => Chosen::ByKey,
            Some(reason) if BY_KEY.contains(&reason) => Chosen::ByKey,
            Some(AGAIN) => Chosen::Again,
            Some(_) => Chosen::Otherwise,
        }
    }
}

/// What of a log is replayed.
#[derive(Clone, Copy)]
pub struct Taken<'a> {
    /// The pool whose requests are taken; `None`: all.
    pub pool: Option<&'a str>,
    /// Of these the first so many.
    pub requests: usize,
    /// Most tokens of a prompt and its reply, by the tokens of a block. Longer ones are left to the caller, who drops
    /// them: of these the account says nothing.
    pub longest: &'a dyn Fn(u32) -> u32,
    /// Tokens that a link of a chain stands for; `None`: the log says it.
    pub block_tokens: Option<u32>,
}

impl Default for Taken<'_> {
    fn default() -> Self {
        Taken { pool: None, requests: usize::MAX, longest: &|_| u32::MAX, block_tokens: None }
    }
}

/// Reads a log.
pub fn read(from: impl BufRead, name: &str, taken: &Taken<'_>) -> Result<(Trace, Account), Unusable> {
    let (mut seen, mut pools, mut elsewhere, mut broken) = (Vec::new(), BTreeMap::new(), 0, 0);
    let (mut lines, mut links, mut count, mut bytes) = (Lines::new(from, name), 0, 0, None);
    let mut refused = None;
    while let Some((number, text)) = lines.next_line()? {
        count += 1;
        let refuse = |what: String| Unusable::Line { path: name.to_owned(), line: number, what };
        match parse(text, &mut bytes) {
            Ok(Some((one, of))) => {
                if taken.pool.is_none_or(|pool| pool == of) {
                    links += one.chain.as_ref().map_or(0, Vec::len);
                    seen.push(one);
                }
                *pools.entry(of).or_default() += 1;
            }
            Ok(None) => elsewhere += 1,
            Err(what) => {
                broken += 1;
                refused.get_or_insert_with(|| refuse(what));
            }
        }
        if links > BLOCKS_MAX {
            return Err(refuse(format!("more than {BLOCKS_MAX} links until here: cut the log")));
        }
    }
    let first_broken = refused.as_ref().map(Unusable::to_string);
    match refused {
        Some(refused) if broken * BROKEN > count => return Err(refused),
        _ if seen.is_empty() && !pools.is_empty() => {
            return Err(Unusable::Pool { path: name.to_owned(), pools: account::names(&pools) });
        }
        _ if seen.is_empty() => return Err(Unusable::Empty { path: name.to_owned() }),
        _ => {}
    }
    keep_first_messages(&mut seen);
    let link_bytes = bytes.unwrap_or(CHAIN_BYTES);
    seen.iter_mut().for_each(|one| one.coarsen(link_bytes));
    // Lines are written when requests end: they are put in order of arrival.
    seen.sort_by_key(|one| one.micros);
    let begins = seen.first().map_or(0, |first| first.micros);
    if seen.last().is_some_and(|last| last.micros - begins > SPAN_MICROS) {
        let what = "the log is of more than a month: cut it".into();
        return Err(Unusable::Line { path: name.to_owned(), line: 1, what });
    }
    let block_tokens = taken.block_tokens.unwrap_or_else(|| tokens_of_a_link(&seen, link_bytes));
    let longest = (taken.longest)(block_tokens);
    let fits = |one: &&Seen| one.prompt_tokens(block_tokens).saturating_add(one.output as u32) <= longest;
    let replayed: Vec<&Seen> = seen.iter().take(taken.requests).filter(fits).collect();
    let account = Account::of(&replayed, pools.into_keys(), link_bytes, block_tokens);
    let mut trace = Trace::of(name, block_tokens, requests(seen, block_tokens));
    trace.keep_first(taken.requests);
    Ok((trace, Account { elsewhere, broken, first_broken, ..account }))
}

/// The number of a pool, which keeps its prompts apart from others'.
fn pool_number(name: &str) -> u64 {
    if name.is_empty() { 0 } else { xxhash_rust::xxh3::xxh3_64(name.as_bytes()) }
}

/// Reads a line; `None`: nothing to replay. Beside the request: its pool.
fn parse(text: &[u8], bytes: &mut Option<u64>) -> Result<Option<(Seen, String)>, String> {
    let line: Line = serde_json::from_slice(text.trim_ascii_end())
        .map_err(|error| format!("{error}; expected a line of warmfront's access log, `access_format = \"json\"`"))?;
    let micros = of_rfc3339(&line.time).ok_or_else(|| format!("time {:?} is not RFC 3339", line.time))?;
    let generates = ["chat", "completions", "responses", "messages", "generate"].contains(&&*line.api);
    // A browser's preflight goes to the same path, is an engine's to answer and has no prompt.
    let posted = line.method.is_none_or(|method| method == "POST");
    // A request whose client left before the reply's head was most likely computed all the same.
    if !generates || !posted || line.endpoint.is_none() || !(line.status == 0 || line.status == 200) {
        return Ok(None);
    }
    if let Some(now) = line.chain_bytes {
        let before = bytes.unwrap_or(now);
        // Each longer link is also a link of the shorter kind.
        if now == 0 || !before.max(now).is_multiple_of(before.min(now)) {
            return Err("another chain_bytes than before: such chains cannot be compared".into());
        }
        *bytes = Some(before.max(now));
    }
    let link = |text: &String| u64::from_str_radix(text, 16).map_err(|_| format!("{text:?} is no link of a chain"));
    let chain = line.chain.map(|chain| chain.iter().map(link).collect::<Result<Vec<u64>, String>>()).transpose()?;
    if let Some(link) = chain.as_deref().and_then(twice) {
        return Err(format!("its chain has {link:016x} twice, but a link stands for all before it as well"));
    }
    let counted = line.completion_tokens.filter(|tokens| *tokens > 0);
    let by_bytes = match line.stream {
        true => line.reply_bytes / EVENT_BYTES,
        false => line.reply_bytes.saturating_sub(REPLY_BYTES) / TOKEN_BYTES,
    };
    let seen = Seen {
        micros,
        prompt: line.prompt_tokens.filter(|tokens| *tokens > 0),
        cached: line.cached_tokens,
        output: counted.unwrap_or(by_bytes).clamp(1, TOKENS_MAX),
        guessed: counted.is_none(),
        body_bytes: line.request_bytes,
        pool: pool_number(line.pool.as_deref().unwrap_or_default()),
        key: line.key.and_then(|key| u64::from_str_radix(&key, 16).ok()),
        chosen: Chosen::of(line.reason.as_deref()),
        took_micros: line.total_us.unwrap_or(0),
        chain,
        link_bytes: line.chain_bytes,
    };
    Ok(Some((seen, line.pool.unwrap_or_default())))
}

/// Takes off all keys but those of first user messages. A request that was chosen for again has such a one if all
/// others of its pool that have a key do.
fn keep_first_messages(seen: &mut [Seen]) {
    let pools = |chosen| {
        let with_key = seen.iter().filter(|one| one.key.is_some() && one.chosen == chosen);
        with_key.map(|one| one.pool).collect::<HashSet<u64>>()
    };
    let (by_key, otherwise) = (pools(Chosen::ByKey), pools(Chosen::Otherwise));
    for one in seen {
        let kept = match one.chosen {
            Chosen::ByKey => true,
            Chosen::Again => by_key.contains(&one.pool) && !otherwise.contains(&one.pool),
            Chosen::Otherwise => false,
        };
        one.key = one.key.filter(|_| kept);
    }
}

/// Tokens of a link: the median over the links of lines that have both, counting half a stretch beyond the last link.
/// Images, and what an engine kept of earlier turns, are tokens without a link, which a mean would spread over all.
fn tokens_of_a_link(seen: &[Seen], bytes: u64) -> u32 {
    let both = seen.iter().filter_map(|one| Some((one.prompt?.min(TOKENS_MAX), 2 * one.links() + 1)));
    let rounded = |(tokens, halves): (u64, u64)| ((2 * tokens + halves / 2) / halves, halves);
    let mut each: Vec<(u64, u64)> = both.filter(|(_, halves)| *halves > 1).map(rounded).collect();
    each.sort_unstable();
    let all: u64 = each.iter().map(|(_, halves)| halves).sum();
    let mut passed = 0;
    let half = each.iter().find(|(_, halves)| {
        passed += halves;
        2 * passed > all
    });
    half.map_or(bytes / TOKEN_BYTES, |(tokens, _)| *tokens).clamp(1, BLOCK_TOKENS_MAX) as u32
}

impl Seen {
    fn links(&self) -> u64 {
        self.chain.as_ref().map_or(0, Vec::len) as u64
    }

    /// Leaves of its chain what a chain with links of so many bytes would have.
    fn coarsen(&mut self, bytes: u64) {
        let step = (bytes / self.link_bytes.unwrap_or(bytes).max(1)) as usize;
        if let Some(chain) = self.chain.as_mut().filter(|_| step > 1) {
            *chain = chain.iter().skip(step - 1).step_by(step).copied().collect();
        }
    }

    fn prompt_tokens(&self, block_tokens: u32) -> u32 {
        let by_chain = self.links() * u64::from(block_tokens) + u64::from(block_tokens / 2);
        let by_bytes = if self.chain.is_some() { by_chain } else { self.body_bytes / TOKEN_BYTES };
        self.prompt.unwrap_or(by_bytes).clamp(1, TOKENS_MAX) as u32
    }
}

/// Makes requests of the lines.
fn requests(mut seen: Vec<Seen>, block_tokens: u32) -> Vec<Request> {
    let begins = seen.first().map_or(0, |first| first.micros);
    let alone = |one: &mut Seen| {
        let prompt = one.prompt_tokens(block_tokens);
        let full = (prompt / block_tokens) as usize;
        let links = one.chain.take().unwrap_or_default();
        Request {
            arrival_ns: (one.micros - begins) * 1_000,
            prompt,
            output: one.output as u32,
            blocks: links.into_iter().take(full).map(|link| mix(one.pool, link)).collect(),
            session: None,
            opening: None,
            thread: 0,
        }
    };
    let mut requests: Vec<Request> = seen.iter_mut().map(alone).collect();
    joined(&mut requests, &seen, block_tokens);
    requests
}

/// Finds which requests belong to one session.
fn joined(requests: &mut [Request], seen: &[Seen], block_tokens: u32) {
    let everybodys = everybodys(requests);
    let (mut sessions, mut unanswered) = (Continued::default(), HashMap::new());
    for (number, one) in seen.iter().enumerate() {
        let (before, from) = requests.split_at_mut(number);
        let Some(request) = from.first_mut() else { return };
        let session = sessions.found(&request.blocks).unwrap_or(number as u64);
        request.session = Some(mix(1, session));
        request.opening = Some(one.key.map_or_else(|| mix(2, session), |key| mix(one.pool, key)));
        request.thread = session as u32;
        answered(before, &mut unanswered, request, block_tokens);
        if let Some(last) = request.blocks.last().filter(|last| !everybodys.contains(last)) {
            sessions.is(&request.blocks, session);
            unanswered.insert(*last, (number, one.took_micros.saturating_mul(1_000)));
        }
    }
}

/// Writes a reply's blocks after those of its prompt if `next` brings the reply back: `next` begins with all links of
/// that prompt, came when its reply had ended, and is no shorter than both. Its first links after them then stand for
/// the rest of that prompt and the reply. `unanswered`: requests that no other has brought back yet and how long they
/// took in nanoseconds, by their last links, unless these are everybody's.
fn answered(out: &mut [Request], unanswered: &mut HashMap<u64, (usize, u64)>, next: &Request, block_tokens: u32) {
    let found = next.blocks.iter().rev().find_map(|last| Some((last, *unanswered.get(last)?)));
    let Some((last, (number, took_ns))) = found else { return };
    let Some(before) = out.get_mut(number).filter(|before| next.blocks.starts_with(&before.blocks)) else { return };
    let both = before.prompt.saturating_add(before.output);
    if next.prompt < both || next.arrival_ns < before.arrival_ns.saturating_add(took_ns) {
        return;
    }
    let until = next.blocks.len().min((both / block_tokens) as usize);
    if before.blocks.len() < until {
        before.blocks = next.blocks[..until].into();
    }
    unanswered.remove(last);
}
