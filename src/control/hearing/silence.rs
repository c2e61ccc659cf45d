//! Finds an engine that is connected and tells nothing while it serves: the address that is listened to may be another
//! engine's.
//!
//! Its metrics count what it computes. Of each prompt less than a block is left over, which events do not tell. All
//! tokens computed beyond that are blocks that were not there before; prompts that were found in the cache, or are
//! shorter than a block, add nothing to them.

use std::time::{Duration, Instant};

use crate::control::scrape::Reading;

/// Longest that metrics or events may lag: they come by ways of their own.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Blocks that it may compute before it should have told one.
const BLOCKS: u64 = 20;
/// Least tokens that a block is taken to have: events may tell of larger blocks than metrics do, since groups of layers
/// have blocks of their own.
const BLOCK_TOKENS_LEAST: u64 = 256;

/// What an engine has counted since its start.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// When it was read.
    pub read: Instant,
    /// Prompt tokens that it looked up in its cache; older vLLM counts those of a waiting prompt anew at each step.
    pub looked_up: u64,
    /// Prompt tokens that it found there.
    pub found: u64,
    /// Tokens of the prompts that were computed.
    pub prompts: u64,
    /// Requests that have ended.
    pub ended: u64,
    /// Requests that have not ended.
    pub present: u64,
    /// Tokens in a block.
    pub block_size: u32,
}

impl Computed {
    /// By its metrics, if they have all of it.
    pub fn of(reading: &Reading, read: Instant) -> Option<Computed> {
        let load = &reading.load;
        Some(Computed {
            read,
            looked_up: load.prefix_queries_total?,
            found: load.prefix_hits_total?,
            prompts: load.prompt_tokens_total?,
            ended: load.requests_total?,
            present: u64::from(load.running?) + u64::from(load.waiting?),
            block_size: reading.told_block_size()?,
        })
    }

    /// The least number of blocks that it has computed since; `None`: it has begun to count anew.
    fn blocks_since(&self, before: &Computed) -> Option<u64> {
        let looked_up = self.looked_up.checked_sub(before.looked_up)?.min(self.prompts.checked_sub(before.prompts)?);
        let (found, ended) = (self.found.checked_sub(before.found)?, self.ended.checked_sub(before.ended)?);
        let blocks = looked_up.saturating_sub(found) / u64::from(self.block_size).max(BLOCK_TOKENS_LEAST);
        Some(blocks.saturating_sub(ended.saturating_add(self.present)))
    }
}

#[derive(Debug, Default)]
pub(super) struct Silence {
    /// How many messages have come.
    messages: u64,
    /// Since when none has come while it was heard.
    since: Option<Instant>,
    /// Its first counts that certainly include all that it told before.
    before: Option<Computed>,
    /// Since when it has counted blocks that it did not tell.
    owes: Option<Instant>,
    lasts: bool,
}

impl Silence {
    /// Whether it has told nothing of what it computed, until its next message.
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// Looks at its counts. `messages`: how many have come in all. `is_heard`: nothing that it tells is missed now.
    pub fn look(&mut self, messages: u64, is_heard: bool, computed: Option<Computed>, now: Instant) {
        if messages != self.messages {
            *self = Silence { messages, ..Silence::default() };
        }
        if !is_heard {
            (self.since, self.before, self.owes) = (None, None, None);
            return;
        }
        let since = *self.since.get_or_insert(now);
        let Some(computed) = computed.filter(|computed| computed.read >= since + LATE_MAX) else { return };
        let before = *self.before.get_or_insert(computed);
        match computed.blocks_since(&before) {
            None => (self.before, self.owes) = (None, None),
            Some(blocks) if blocks >= BLOCKS => {
                self.lasts |= now >= *self.owes.get_or_insert(now) + LATE_MAX;
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is silent at the end of a minute, each second of which it ends so many requests that compute so many
    /// tokens each, and with a message in one of them.
    fn is_silent(requests: u64, tokens: u64, message: Option<u64>) -> bool {
        let (begin, mut silence) = (Instant::now(), Silence::default());
        for second in 0..60 {
            let now = begin + Duration::from_secs(second);
            let ended = 500 + second * requests;
            let prompts = ended * tokens;
            let computed =
                Computed { read: now, looked_up: prompts, found: 0, prompts, ended, present: 2, block_size: 16 };
            let messages = 7 + u64::from(message.is_some_and(|at| second >= at));
            silence.look(messages, true, Some(computed), now);
        }
        silence.lasts()
    }

    /// By one that serves one request.
    fn counted(read: Instant, looked_up: u64, prompts: u64) -> Computed {
        Computed { read, looked_up, found: 0, prompts, ended: 0, present: 1, block_size: 16 }
    }

    /// As vLLM did at each step for one that waits for room.
    #[test]
    fn who_looks_up_one_prompt_again_and_again_computes_nothing() {
        let (begin, mut silence) = (Instant::now(), Silence::default());
        for second in 0..60 {
            let now = begin + Duration::from_secs(second);
            silence.look(3, true, Some(counted(now, second << 20, 30_000)), now);
        }
        assert!(!silence.lasts());
    }

    #[test]
    fn who_computes_blocks_and_tells_of_none_is_silent() {
        assert!(is_silent(1, 1_000, None) && is_silent(1, 1_000, Some(30)));
        assert!(!is_silent(1, 1_000, Some(50)), "it told of something a moment before");
        assert!(!is_silent(0, 1_000, None), "it is idle");
        assert!(!is_silent(100, 250, None), "each may be shorter than a block");
        assert!(!is_silent(100, 0, None), "all is found in its cache");
    }

    #[test]
    fn a_silence_ends_with_a_message_and_counts_from_where_it_is_heard() {
        let (begin, mut silence) = (Instant::now(), Silence::default());
        let mut look = |second: u64, messages, is_heard, tokens| {
            let now = begin + Duration::from_secs(second);
            silence.look(messages, is_heard, Some(counted(now, tokens, tokens)), now);
            silence.lasts()
        };
        let much = 1 << 20;
        assert!(!look(0, 0, true, 0));
        assert!(!look(4, 0, true, much), "what it told last may be counted by then only");
        assert!(!look(6, 0, true, much) && !look(20, 0, true, much));
        assert!(!look(21, 0, true, 2 * much), "it may tell of that yet");
        assert!(look(26, 0, true, 2 * much));
        assert!(look(27, 0, false, 2 * much) && look(28, 0, true, 3 * much), "another connection alone proves nothing");
        assert!(!look(29, 1, true, 4 * much));
        assert!(!look(35, 1, true, 4 * much) && !look(36, 1, true, 0) && !look(42, 1, true, much), "another process");
    }
}
