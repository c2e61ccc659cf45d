//! What a replay of a log does not know of it, in figures and in words.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::{Seen, TOKENS_MAX, pool_number};

/// Percent of the prompts' tokens that come after the last links from which on the replay says so.
const BEHIND_PERCENT: u64 = 5;
/// Most pools that are named.
const NAMED_MAX: usize = 8;

/// How the replay differs from the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Requests that are replayed.
    pub requests: usize,
    /// Those of each pool.
    pub pools: BTreeMap<String, usize>,
    /// Requests without a chain.
    pub alone: usize,
    /// Requests whose chain has no link, since they are shorter than one.
    pub short: usize,
    /// Bytes of a link.
    pub link_bytes: u64,
    /// Tokens of the prompts with a chain, and of those the ones after the last link.
    pub behind: (u64, u64),
    /// Requests that were not routed by their first user message.
    pub keyless: usize,
    /// Requests whose engine told what it found cached: how many, their prompt tokens, and the cached ones of these.
    pub told: (usize, u64, u64),
    /// Requests whose reply was counted in bytes.
    pub guessed: usize,
    /// Lines of the whole log of requests that no engine computed, or that generate nothing.
    pub elsewhere: usize,
    /// Lines of the whole log that are none of ours; below, the first of them in words.
    pub broken: usize,
    pub(super) first_broken: Option<String>,
}

impl Account {
    /// Counts what is not known of these requests, with links of so many bytes and tokens. `pools`: all names of pools.
    pub(super) fn of(
        seen: &[&Seen],
        pools: impl Iterator<Item = String>,
        link_bytes: u64,
        link_tokens: u32,
    ) -> Account {
        let mut account = Account { requests: seen.len(), link_bytes, ..Account::default() };
        let mut of_pools: HashMap<u64, usize> = HashMap::new();
        for one in seen {
            *of_pools.entry(one.pool).or_default() += 1;
            account.count(one, link_tokens);
        }
        let named = pools.filter_map(|name| of_pools.get(&pool_number(&name)).map(|requests| (name, *requests)));
        account.pools = named.collect();
        account
    }

    fn count(&mut self, one: &Seen, link_tokens: u32) {
        self.guessed += usize::from(one.guessed);
        self.alone += usize::from(one.chain.is_none());
        self.keyless += usize::from(one.key.is_none());
        if let (Some(prompt), Some(cached)) = (one.prompt.map(|tokens| tokens.min(TOKENS_MAX)), one.cached) {
            let (count, prompts, all) = self.told;
            self.told = (count + 1, prompts + prompt, all + cached.min(prompt));
        }
        if let Some(chain) = &one.chain {
            self.short += usize::from(chain.is_empty());
            let (prompt, (tokens, behind)) = (u64::from(one.prompt_tokens(link_tokens)), self.behind);
            let linked = one.links() * u64::from(link_tokens);
            self.behind = (tokens + prompt, behind + prompt.saturating_sub(linked));
        }
    }

    /// Text for people; empty if there is nothing to say.
    pub fn words(&self) -> String {
        let Account { requests, alone, short, link_bytes, keyless, guessed, elsewhere, broken, .. } = self;
        let mut out = String::new();
        if self.pools.len() > 1 {
            let (count, names) = (self.pools.len(), names(&self.pools));
            let _ = writeln!(
                out,
                "requests of {count} pools, {names}, are replayed as if every engine served all of them: --pool NAME takes one"
            );
        }
        let say = |out: &mut String, count: usize, what: &str| {
            if count > 0 {
                let _ = writeln!(out, "{count} {what}");
            }
        };
        let all = format!("of {requests} requests have no chain and count as prompts that nobody shares");
        let how = "`[log] access_chain = true` writes chains, under other policies than `warm` and `precise` where \
                   `shadow_policy = \"warm\"` stands beside them";
        say(&mut out, *alone, &format!("{all}: {how}"));
        say(
            &mut out,
            *short,
            &format!(
                "of {requests} prompts are shorter than a link of their chain, {link_bytes} bytes: what they share is not \
                 seen, and hit rates come out lower than they are"
            ),
        );
        let (tokens, behind) = self.behind;
        if behind > 0 && behind * 100 >= tokens * BEHIND_PERCENT {
            let percent = 100.0 * behind as f64 / tokens as f64;
            let _ = writeln!(
                out,
                "{percent:.1} % of prompts' tokens lie behind the last link, of {link_bytes} bytes: what they share is not \
                 seen, and hit rates come out lower by up to as much"
            );
        }
        let what = format!(
            "of {requests} requests went by no key of their first message: to `prefix-hash` each conversation begins differently"
        );
        say(&mut out, *keyless, &what);
        let (count, prompt, cached) = self.told;
        let percent = 100.0 * cached as f64 / prompt.max(1) as f64;
        let what = format!("of {requests} replies tell what was cached: {percent:.1} % of their prompts' tokens");
        say(&mut out, count, &what);
        let what = format!("of {requests} replies have no completion_tokens and are as long as their bytes make them");
        say(&mut out, *guessed, &what);
        say(&mut out, *elsewhere, "lines left out: no engine computed them, or they generate nothing");
        let first = self.first_broken.as_deref().unwrap_or_default();
        say(&mut out, *broken, &format!("lines left out that are none of an access log's; the first: {first}"));
        out
    }
}

/// Names the pools that have most requests, each with their number.
pub(super) fn names(pools: &BTreeMap<String, usize>) -> String {
    let mut by_requests: Vec<_> = pools.iter().collect();
    // The sort is stable: equal ones stay by name.
    by_requests.sort_by_key(|(_, requests)| std::cmp::Reverse(**requests));
    let named: Vec<String> =
        by_requests.iter().take(NAMED_MAX).map(|(pool, requests)| format!("{pool:?} ({requests})")).collect();
    named.join(", ") + if pools.len() > NAMED_MAX { " and others" } else { "" }
}
