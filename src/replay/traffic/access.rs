//! A front's own access log, in JSON: what came, when and how long, and, where the log has `chain`, which prompts
//! begin alike.
//!
//! * The blocks are the chain's stretches of `chain_bytes`. How many tokens those are, one number for the whole log,
//!   comes from the lines that have both; what a front counted itself is an estimate already.
//! * Without `chain` a prompt is one that nobody shares. Without `prompt_tokens` it is as
//!   long as its chain, or its body.
//! * A prompt that is shorter than a stretch has no link, so nobody is seen to share it either, as chats' first turns
//!   often are. That is said, and beside it what part of their prompts the engines themselves found cached.
//! * Without `completion_tokens` a reply is as long as its bytes make it;
//!   one that was cut is replayed as far as it came.
//! * What an engine never saw (refused, no endpoint), and what generates nothing, is left out and counted.
//! * A line that is none of ours is left out and counted as well, since a log ends anywhere; more than one in ten, and
//!   the first of them is refused.
//! * Requests of several pools are replayed as if every engine served every model, and that is said; or one pool's are.
//! * There are no sessions: as in [`super::mooncake`]. The prefix key stands for the first user message.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::BufRead;
use std::sync::Arc;

use serde::Deserialize;

use super::Request;
use super::chain::{mix, twice};
use super::lines::{BLOCKS_MAX, Lines, Unusable};
use super::trace::{Continued, TOKENS_MAX, Trace};
use crate::calendar::of_rfc3339;

/// Bytes of text in a token, where nothing says more.
const TOKEN_BYTES: u64 = 4;
/// Bytes of an event, which brings a token: vLLM's have 230 to 270 with a short model name.
const EVENT_BYTES: u64 = 240;
/// Bytes of a reply in one piece that are not its text.
const REPLY_BYTES: u64 = 500;
/// Bytes that the links of a chain stand for, unless a line says so.
const CHAIN_BYTES: u64 = 2_048;
/// One in so many lines may be none of ours.
const BROKEN: usize = 10;
/// Longest log, in microseconds: a month.
const SPAN_MICROS: u64 = 31 * 86_400_000_000;
/// Tokens of a block are a multiple of this, as engines have them, up to the most.
const BLOCK_TOKENS: u64 = 16;
const BLOCK_TOKENS_MAX: u64 = 65_536;
/// Most pools that are named.
const NAMED_MAX: usize = 8;

#[derive(Deserialize)]
struct Line {
    time: String,
    api: String,
    pool: Option<String>,
    endpoint: Option<String>,
    status: u16,
    stream: bool,
    request_bytes: u64,
    reply_bytes: u64,
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    key: Option<String>,
    chain: Option<Vec<String>>,
    chain_bytes: Option<u64>,
}

/// What is not as the log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Requests that are replayed.
    pub requests: usize,
    /// Those of each pool, whether they are replayed or not.
    pub pools: BTreeMap<String, usize>,
    /// Whether one pool's alone are.
    pub chosen: bool,
    /// Those without a chain.
    pub alone: usize,
    /// Those whose chain has no link, since they are shorter.
    pub short: usize,
    /// Bytes of a link.
    pub link_bytes: u64,
    /// Those whose engine told what it found cached: how many, their prompt tokens, and of those the cached ones.
    pub told: (usize, u64, u64),
    /// Those whose reply was counted in bytes.
    pub guessed: usize,
    /// Lines of requests that no engine computed, or that generate nothing.
    pub elsewhere: usize,
    /// Lines that are none of ours, and the first of them in words.
    pub broken: usize,
    first_broken: Option<String>,
}

impl Account {
    /// For people; nothing where nothing is to be said.
    pub fn words(&self) -> String {
        let Account { requests, alone, short, link_bytes, guessed, elsewhere, broken, .. } = self;
        let mut out = String::new();
        if self.pools.len() > 1 && !self.chosen {
            let (count, names) = (self.pools.len(), self.names());
            let _ = writeln!(
                out,
                "requests of {count} pools, {names}, are replayed as if every engine served all of them: --pool NAME takes one"
            );
        }
        let mut say = |count: usize, what: &str| {
            if count > 0 {
                let _ = writeln!(out, "{count} {what}");
            }
        };
        let all = format!("of {requests} requests have no chain and count as prompts that nobody shares");
        say(*alone, &format!("{all}: `[log] access_chain = true` writes chains"));
        say(
            *short,
            &format!(
                "of {requests} prompts are shorter than a link of their chain, {link_bytes} bytes: what they share is not \
                 seen, and hit rates come out lower than they are"
            ),
        );
        let (count, prompt, cached) = self.told;
        let percent = 100.0 * cached as f64 / prompt.max(1) as f64;
        say(count, &format!("of {requests} replies tell what was cached: {percent:.1} % of their prompts' tokens"));
        say(
            *guessed,
            &format!("of {requests} replies have no completion_tokens and are as long as their bytes make them"),
        );
        say(*elsewhere, "lines left out: no engine computed them, or they generate nothing");
        let first = self.first_broken.as_deref().unwrap_or_default();
        say(*broken, &format!("lines left out that are none of an access log's; the first: {first}"));
        out
    }

    /// The pools, each with its requests; those that have most.
    fn names(&self) -> String {
        let mut pools: Vec<_> = self.pools.iter().collect();
        // Stable: equal ones stay by name.
        pools.sort_by_key(|(_, requests)| std::cmp::Reverse(**requests));
        let named: Vec<String> =
            pools.iter().take(NAMED_MAX).map(|(pool, requests)| format!("{pool:?} ({requests})")).collect();
        named.join(", ") + if pools.len() > NAMED_MAX { " and others" } else { "" }
    }
}

/// One line as far as it matters.
struct Seen {
    micros: u64,
    prompt: Option<u64>,
    cached: Option<u64>,
    output: u64,
    body_bytes: u64,
    pool: u64,
    key: Option<u64>,
    chain: Option<Vec<u64>>,
}

/// Reads a log; `block_tokens` is how many tokens a link of a chain stands for, unless the log is to say; `pool` whose
/// requests are taken, if not all.
pub fn read(
    from: impl BufRead,
    name: &str,
    block_tokens: Option<u32>,
    pool: Option<&str>,
) -> Result<(Trace, Account), Unusable> {
    let (mut seen, mut account) = (Vec::new(), Account { chosen: pool.is_some(), ..Account::default() });
    let (mut lines, mut links, mut count, mut bytes) = (Lines::new(from, name), 0, 0, None);
    let mut refused = None;
    while let Some((number, text)) = lines.next_line()? {
        count += 1;
        let refuse = |what: String| Unusable::Line { path: name.to_owned(), line: number, what };
        match parse(text, &mut bytes) {
            Ok(Some((one, of, guessed))) => {
                let wanted = pool.is_none_or(|pool| pool == of);
                *account.pools.entry(of).or_default() += 1;
                if !wanted {
                    continue;
                }
                account.guessed += usize::from(guessed);
                account.alone += usize::from(one.chain.is_none());
                account.short += usize::from(one.chain.as_ref().is_some_and(Vec::is_empty));
                if let (Some(prompt), Some(cached)) = (one.prompt.map(|tokens| tokens.min(TOKENS_MAX)), one.cached) {
                    let (count, prompts, all) = account.told;
                    account.told = (count + 1, prompts + prompt, all + cached.min(prompt));
                }
                links += one.chain.as_ref().map_or(0, Vec::len);
                seen.push(one);
            }
            Ok(None) => account.elsewhere += 1,
            Err(what) => {
                account.broken += 1;
                refused.get_or_insert_with(|| refuse(what));
            }
        }
        if links > BLOCKS_MAX {
            return Err(refuse(format!("more than {BLOCKS_MAX} links until here: cut the log")));
        }
    }
    account.requests = seen.len();
    account.link_bytes = bytes.unwrap_or(CHAIN_BYTES);
    account.first_broken = refused.as_ref().map(Unusable::to_string);
    match refused {
        Some(refused) if account.broken * BROKEN > count => return Err(refused),
        _ if seen.is_empty() && !account.pools.is_empty() => {
            return Err(Unusable::Pool { path: name.to_owned(), pools: account.names() });
        }
        _ if seen.is_empty() => return Err(Unusable::Empty { path: name.to_owned() }),
        _ => {}
    }
    // Lines are written when requests end.
    seen.sort_by_key(|one| one.micros);
    let begins = seen.first().map_or(0, |first| first.micros);
    if seen.last().is_some_and(|last| last.micros - begins > SPAN_MICROS) {
        let what = "the log is of more than a month: cut it".into();
        return Err(Unusable::Line { path: name.to_owned(), line: 1, what });
    }
    let block_tokens = block_tokens.unwrap_or_else(|| tokens_of_a_link(&seen, account.link_bytes));
    Ok((Trace::of(name, block_tokens, requests(seen, block_tokens)), account))
}

/// `None`: nothing to replay. Beside a request its pool's name, and whether its reply was counted in bytes.
fn parse(text: &[u8], bytes: &mut Option<u64>) -> Result<Option<(Seen, String, bool)>, String> {
    let line: Line = serde_json::from_slice(text.trim_ascii_end())
        .map_err(|error| format!("{error}; expected a line of warmfront's access log, `access_format = \"json\"`"))?;
    let micros = of_rfc3339(&line.time).ok_or_else(|| format!("time {:?} is not RFC 3339", line.time))?;
    let generates = ["chat", "completions", "responses", "messages", "generate"].contains(&&*line.api);
    // What left before its reply's head was computed all the same, most likely.
    if !generates || line.endpoint.is_none() || !(line.status == 0 || line.status == 200) {
        return Ok(None);
    }
    if line.chain_bytes.is_some_and(|now| now == 0 || *bytes.get_or_insert(now) != now) {
        return Err("another chain_bytes than before: such chains cannot be compared".into());
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
        body_bytes: line.request_bytes,
        pool: line.pool.as_ref().map_or(0, |pool| xxhash_rust::xxh3::xxh3_64(pool.as_bytes())),
        key: line.key.and_then(|key| u64::from_str_radix(&key, 16).ok()),
        chain,
    };
    Ok(Some((seen, line.pool.unwrap_or_default(), counted.is_none())))
}

/// In the mean over the lines that have both: a chain leaves out half a stretch of its prompt.
fn tokens_of_a_link(seen: &[Seen], bytes: u64) -> u32 {
    let both = seen.iter().filter_map(|one| Some((one.prompt?.min(TOKENS_MAX), one.chain.as_ref()?.len() as u64)));
    let (tokens, halves) = both
        .filter(|(_, links)| *links > 0)
        .fold((0, 0), |(tokens, halves), one| (tokens + one.0, halves + 2 * one.1 + 1));
    let each = (2 * tokens).checked_div(halves).unwrap_or(bytes / TOKEN_BYTES);
    ((each / BLOCK_TOKENS).clamp(1, BLOCK_TOKENS_MAX / BLOCK_TOKENS) * BLOCK_TOKENS) as u32
}

fn requests(seen: Vec<Seen>, block_tokens: u32) -> Vec<Request> {
    let begins = seen.first().map_or(0, |first| first.micros);
    let mut sessions = Continued::default();
    let request = |(number, one): (usize, Seen)| {
        let links = one.chain.as_ref().map_or(0, Vec::len) as u64;
        let by_chain = links * u64::from(block_tokens) + u64::from(block_tokens / 2);
        let by_bytes = if one.chain.is_some() { by_chain } else { one.body_bytes / TOKEN_BYTES };
        let prompt = one.prompt.unwrap_or(by_bytes).clamp(1, TOKENS_MAX) as u32;
        let full = (prompt / block_tokens) as usize;
        let blocks: Arc<[u64]> = one.chain.iter().flatten().take(full).map(|link| mix(one.pool, *link)).collect();
        let session = sessions.of(&blocks, number as u64);
        let opening = one.key.map(|key| mix(one.pool, key)).or(blocks.first().copied());
        Request {
            arrival_ns: (one.micros - begins) * 1_000,
            prompt,
            output: one.output as u32,
            session: Some(mix(1, session)),
            opening: Some(opening.unwrap_or_else(|| mix(2, number as u64))),
            blocks,
            thread: session as u32,
        }
    };
    seen.into_iter().enumerate().map(request).collect()
}
