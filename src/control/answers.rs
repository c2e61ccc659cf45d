//! How long an engine's answers are, by its own counters: most clients stream and do not ask for `usage`, so that their
//! replies do not tell.
//!
//! Engines count tokens when they are generated and requests when they end, so only over many requests is the quotient
//! the length of an answer. Other fronts' requests among them do no harm: their answers lie in the same cache.

use crate::fleet::EngineLoad;

/// How many requests have to end before the mean is told.
const WINDOW_REQUESTS: u64 = 8;

/// The answers of one endpoint.
#[derive(Debug, Default)]
pub struct Answers {
    /// The counters when the mean was last taken.
    before: Option<Counted>,
    /// Answers that ended since, and are not taken yet.
    ended: Option<Answered>,
}

/// An engine's counters since its start.
#[derive(Clone, Copy, Debug)]
struct Counted {
    requests: u64,
    tokens: u64,
}

/// Answers that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answered {
    /// How many answers.
    pub requests: u64,
    /// Mean tokens of one.
    pub tokens: u32,
}

impl Answers {
    /// Takes in a reading of the engine's `/metrics`.
    pub fn read(&mut self, load: &EngineLoad) {
        let (Some(requests), Some(tokens)) = (load.requests_total, load.generation_tokens_total) else { return };
        let now = Counted { requests, tokens };
        let before = *self.before.get_or_insert(now);
        let (Some(requests), Some(tokens)) =
            (now.requests.checked_sub(before.requests), now.tokens.checked_sub(before.tokens))
        else {
            // The engine has restarted.
            self.before = Some(now);
            return;
        };
        if requests >= WINDOW_REQUESTS {
            self.before = Some(now);
            let tokens = tokens / requests;
            // No answer is longer than its engine's cache: a greater figure is wrong.
            let is_possible = load.kv_capacity_tokens.is_none_or(|capacity| tokens <= capacity);
            self.ended = u32::try_from(tokens).ok().filter(|_| is_possible).map(|tokens| Answered { requests, tokens });
        }
    }

    /// Takes what was not taken yet.
    pub fn take(&mut self) -> Option<Answered> {
        self.ended.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(requests: u64, tokens: u64) -> EngineLoad {
        EngineLoad { requests_total: Some(requests), generation_tokens_total: Some(tokens), ..EngineLoad::default() }
    }

    #[test]
    fn what_ended_is_said_once_and_over_many() {
        let mut answers = Answers::default();
        let mut after = |requests, tokens| {
            answers.read(&load(requests, tokens));
            answers.take()
        };
        assert_eq!(after(500, 100_000), None, "where counting begins");
        assert_eq!(after(507, 101_000), None, "seven say little");
        assert_eq!(after(510, 103_000), Some(Answered { requests: 10, tokens: 300 }));
        assert_eq!(after(510, 103_500), None);
        assert_eq!(after(540, 115_000), Some(Answered { requests: 30, tokens: 400 }));
        assert_eq!(after(2, 50), None, "it has started anew");
        assert_eq!(after(10, 4_050), Some(Answered { requests: 8, tokens: 500 }));
        assert_eq!(after(20, u64::MAX), None, "absurd");
        assert_eq!(after(30, u64::MAX), Some(Answered { requests: 10, tokens: 0 }));
        let mut of_cache = |requests, tokens| {
            answers.read(&EngineLoad { kv_capacity_tokens: Some(4_096), ..load(requests, tokens) });
            answers.take()
        };
        assert_eq!((of_cache(0, 0), of_cache(10, 40_970)), (None, None), "longer than its cache holds");
        assert_eq!(of_cache(20, 40_970 + 40_960), Some(Answered { requests: 10, tokens: 4_096 }));
        answers.read(&EngineLoad::default());
        assert_eq!(answers.take(), None, "it counts nothing");
    }
}
