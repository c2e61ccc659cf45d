//! What was predicted of the engines' caches, and what replies told of them, by slot. Shards write; control reads, and
//! compares with its last reading. No count is ever lowered.

use crate::atomics::{AtomicU64, Ordering};
use crate::fleet::{METHODS, Method};
use crate::limits::ENDPOINTS_MAX;

/// What was predicted of a request when it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// How it was predicted.
    pub method: Method,
    /// Estimated tokens of its prompt.
    pub tokens: u32,
    /// Of these, tokens thought to be in its endpoint's cache.
    pub held: u32,
    /// Bytes of text that `tokens` was estimated from; 0: not from text alone.
    pub text_bytes: u64,
    /// `tokens` are those of several prompts, and `held` is the first one's alone.
    pub batch: bool,
    /// Replies of its API may tell what was cached, depending on the engine's flags, and some engines leave a zero out.
    pub omits_zero: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Predictions {
    slots: Box<[Slot; ENDPOINTS_MAX]>,
}

#[derive(Debug, Default)]
struct Slot {
    methods: [Cells; METHODS],
    text_bytes: AtomicU64,
    text_tokens: AtomicU64,
    /// How many more replies without a count of cached tokens are taken for zeros; see [`ZEROS_MAX`].
    zeros: AtomicU64,
}

/// How many replies in a row without a count of cached tokens, after one with it, are taken for zeros: enough for three
/// windows of doubt. An engine that was restarted without the flag may be doubted once for it. After that its own
/// counters are compared, as for any engine whose replies do not tell.
const ZEROS_MAX: u64 = 64;

/// Least and most bytes that a token is believed to stand for, in the mean and in any one reply.
pub const BELIEVED_TOKEN_BYTES: (u64, u64) = (1, 8);

#[derive(Debug, Default)]
struct Cells {
    asked: AtomicU64,
    asked_tokens: AtomicU64,
    asked_held: AtomicU64,
    told: AtomicU64,
    predicted: AtomicU64,
    cached: AtomicU64,
    over: AtomicU64,
    under: AtomicU64,
}

impl Default for Predictions {
    fn default() -> Self {
        Predictions { slots: Box::new(std::array::from_fn(|_| Slot::default())) }
    }
}

/// Predictions beside what came of them, in the engines' tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// Requests.
    pub requests: u64,
    /// Tokens thought to be in the cache.
    pub predicted: u64,
    /// Tokens that were in it.
    pub cached: u64,
    /// Sum, over requests, of the tokens predicted too many.
    pub over: u64,
    /// Sum, over requests, of the tokens predicted too few.
    pub under: u64,
}

impl Compared {
    /// One comparison, of these requests together.
    pub fn of(requests: u64, predicted: u64, cached: u64) -> Compared {
        let (over, under) = (predicted.saturating_sub(cached), cached.saturating_sub(predicted));
        Compared { requests, predicted, cached, over, under }
    }

    /// The counts that came since `before`.
    #[must_use]
    pub fn since(self, before: Compared) -> Compared {
        Compared {
            requests: self.requests.wrapping_sub(before.requests),
            predicted: self.predicted.wrapping_sub(before.predicted),
            cached: self.cached.wrapping_sub(before.cached),
            over: self.over.wrapping_sub(before.over),
            under: self.under.wrapping_sub(before.under),
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, more: Compared) {
        self.requests += more.requests;
        self.predicted += more.predicted;
        self.cached += more.cached;
        self.over += more.over;
        self.under += more.under;
    }
}

/// What was sent to one endpoint with a prediction, whether its replies told of the cache or not; tokens are estimated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub tokens: u64,
    /// Of these tokens, those thought to be in its cache.
    pub held: u64,
    /// Of these requests, those whose reply told what was in its cache.
    pub told: u64,
}

impl Asked {
    /// The counts that came since `before`.
    #[must_use]
    pub fn since(self, before: Asked) -> Asked {
        Asked {
            requests: self.requests.wrapping_sub(before.requests),
            tokens: self.tokens.wrapping_sub(before.tokens),
            held: self.held.wrapping_sub(before.held),
            told: self.told.wrapping_sub(before.told),
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, more: Asked) {
        self.requests = self.requests.wrapping_add(more.requests);
        self.tokens = self.tokens.wrapping_add(more.tokens);
        self.held = self.held.wrapping_add(more.held);
        self.told = self.told.wrapping_add(more.told);
    }
}

/// Text that was sent to one endpoint, and the tokens that its replies counted for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Text {
    /// Bytes of prompts.
    pub bytes: u64,
    /// Their tokens.
    pub tokens: u64,
}

impl Predictions {
    /// Counts a request that was sent.
    pub fn asked(&self, slot: u16, prediction: &Prediction) {
        let Some(cells) = self.cells(slot, prediction.method) else { return };
        raise(&cells.asked, 1);
        raise(&cells.asked_tokens, prediction.tokens.into());
        raise(&cells.asked_held, prediction.held.into());
    }

    /// Counts a reply that told how many tokens its prompt had, and perhaps how many of them were cached.
    ///
    /// `warm` estimates tokens from bytes: its prediction is scaled by the real over the estimated length, so that a
    /// wrong estimate of the length is no error about the cache. `precise` predicts in the engine's own tokens. A batch
    /// is not compared: the reply tells of all prompts together, and only the first one's cache was predicted. SGLang
    /// leaves the count out if nothing of the prompt was cached, as vLLM once did: after replies with a count, none
    /// means zero.
    pub fn told(&self, slot: u16, prediction: &Prediction, prompt: u32, cached: Option<u32>) {
        if let Some(text) = self.slots.get(slot as usize).filter(|_| prediction.text_bytes > 0) {
            // Within what is believed by each reply: a long field that the engine's template leaves out would teach for
            // millions of tokens else.
            let (least, most) = BELIEVED_TOKEN_BYTES;
            let prompt = u64::from(prompt);
            raise(&text.text_bytes, prediction.text_bytes.clamp(least * prompt, most * prompt));
            raise(&text.text_tokens, prompt);
        }
        let cached = self.told_of_cache(slot, prediction, cached).filter(|_| !prediction.batch);
        let Some((cached, cells)) = cached.zip(self.cells(slot, prediction.method)) else { return };
        let predicted = match prediction.method {
            Method::Warm => u64::from(prediction.held) * u64::from(prompt) / u64::from(prediction.tokens.max(1)),
            Method::Precise => prediction.held.into(),
        };
        let compared = Compared::of(1, predicted.min(prompt.into()), cached.into());
        raise(&cells.predicted, compared.predicted);
        raise(&cells.cached, compared.cached);
        raise(&cells.over, compared.over);
        raise(&cells.under, compared.under);
        raise(&cells.told, 1);
    }

    /// Takes no more replies without a count for zeros: another engine gets the slot, and may never tell of its cache.
    pub fn forget(&self, slot: u16) {
        if let Some(slot) = self.slots.get(usize::from(slot)) {
            slot.zeros.store(0, Ordering::Relaxed);
        }
    }

    fn told_of_cache(&self, slot: u16, prediction: &Prediction, cached: Option<u32>) -> Option<u32> {
        let zeros = self.slots.get(slot as usize).filter(|_| prediction.omits_zero).map(|slot| &slot.zeros);
        match (cached, zeros) {
            (Some(_), Some(zeros)) => zeros.store(ZEROS_MAX, Ordering::Relaxed),
            // If nothing was predicted a zero says nothing.
            (None, Some(zeros)) if prediction.held > 0 => {
                let one = |zeros: u64| zeros.checked_sub(1);
                return zeros.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_ok().then_some(0);
            }
            _ => {}
        }
        cached
    }

    /// Predictions by one method for one endpoint, compared with its replies.
    pub fn compared(&self, slot: u16, method: Method) -> Compared {
        self.cells(slot, method).map_or_else(Compared::default, |cells| Compared {
            requests: read(&cells.told),
            predicted: read(&cells.predicted),
            cached: read(&cells.cached),
            over: read(&cells.over),
            under: read(&cells.under),
        })
    }

    /// What one endpoint was sent with predictions by one method.
    pub fn sent(&self, slot: u16, method: Method) -> Asked {
        self.cells(slot, method).map_or_else(Asked::default, |cells| Asked {
            requests: read(&cells.asked),
            tokens: read(&cells.asked_tokens),
            held: read(&cells.asked_held),
            told: read(&cells.told),
        })
    }

    /// What one endpoint was sent with predictions by all methods.
    pub fn sent_in_all(&self, slot: u16) -> Asked {
        let mut all = Asked::default();
        Method::ALL.into_iter().for_each(|method| all.add(self.sent(slot, method)));
        all
    }

    /// The text that one endpoint was sent, and its tokens.
    pub fn text(&self, slot: u16) -> Text {
        let text = |slot: &Slot| Text { bytes: read(&slot.text_bytes), tokens: read(&slot.text_tokens) };
        self.slots.get(slot as usize).map_or_else(Text::default, text)
    }

    fn cells(&self, slot: u16, method: Method) -> Option<&Cells> {
        self.slots.get(slot as usize)?.methods.get(method as usize)
    }
}

fn raise(cell: &AtomicU64, by: u64) {
    cell.fetch_add(by, Ordering::Relaxed);
}

fn read(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Prediction = Prediction {
        method: Method::Warm,
        tokens: 1_000,
        held: 500,
        text_bytes: 4_000,
        batch: false,
        omits_zero: true,
    };

    #[test]
    fn what_replies_tell_is_compared_in_their_own_tokens() {
        let predictions = Predictions::default();
        predictions.asked(3, &HALF);
        predictions.told(3, &HALF, 800, Some(100));
        predictions.told(3, &HALF, 800, Some(450));
        let expected = Compared { requests: 2, predicted: 800, cached: 550, over: 300, under: 50 };
        assert_eq!(predictions.compared(3, Method::Warm), expected);
        assert_eq!(predictions.sent(3, Method::Warm), Asked { requests: 1, tokens: 1_000, held: 500, told: 2 });
        assert_eq!(predictions.text(3), Text { bytes: 8_000, tokens: 1_600 });
        assert_eq!(predictions.compared(4, Method::Warm), Compared::default());
    }

    /// What the engine itself said that it holds, it said in its own tokens.
    #[test]
    fn what_was_predicted_precisely_is_compared_as_it_is() {
        let predictions = Predictions::default();
        predictions.told(3, &Prediction { method: Method::Precise, ..HALF }, 800, Some(500));
        assert_eq!(predictions.compared(3, Method::Precise), Compared::of(1, 500, 500));
        assert_eq!(predictions.compared(3, Method::Warm), Compared::default());
    }

    #[test]
    fn what_is_not_told_is_not_compared() {
        let predictions = Predictions::default();
        predictions.told(3, &HALF, 800, None);
        assert_eq!(predictions.compared(3, Method::Warm), Compared::default());
        assert_eq!(predictions.text(3), Text { bytes: 4_000, tokens: 800 });
        // Of images nothing is learnt of text.
        predictions.told(3, &Prediction { text_bytes: 0, ..HALF }, 800, Some(400));
        assert_eq!(predictions.text(3), Text { bytes: 4_000, tokens: 800 });
        assert_eq!(predictions.compared(3, Method::Warm), Compared::of(1, 400, 400));
    }

    /// As SGLang tells it. One that was started anew and does not tell any more is not taken for one that holds nothing
    /// for long.
    #[test]
    fn a_zero_that_is_left_out_counts_where_others_were_told() {
        let predictions = Predictions::default();
        predictions.told(3, &HALF, 1_000, Some(400));
        predictions.told(3, &HALF, 1_000, None);
        let expected = Compared { requests: 2, predicted: 1_000, cached: 400, over: 600, under: 0 };
        assert_eq!(predictions.compared(3, Method::Warm), expected);
        predictions.told(3, &Prediction { omits_zero: false, ..HALF }, 1_000, None);
        predictions.told(3, &Prediction { held: 0, ..HALF }, 1_000, None);
        assert_eq!(predictions.compared(3, Method::Warm), expected, "they say nothing");
        (0..2 * ZEROS_MAX).for_each(|_| predictions.told(3, &HALF, 1_000, None));
        assert_eq!(predictions.compared(3, Method::Warm).requests, 1 + ZEROS_MAX);
        predictions.told(4, &Prediction { omits_zero: false, ..HALF }, 1_000, Some(400));
        predictions.told(4, &HALF, 1_000, None);
        assert_eq!(
            predictions.compared(4, Method::Warm).requests,
            1,
            "what always tells does not say that others will"
        );
        predictions.told(3, &HALF, 1_000, Some(400));
        predictions.forget(3);
        let before = predictions.compared(3, Method::Warm).requests;
        predictions.told(3, &HALF, 1_000, None);
        assert_eq!(predictions.compared(3, Method::Warm).requests, before, "nor the engine that was there before");
    }

    /// What such a reply says of the length of text is as true as any.
    #[test]
    fn replies_of_batches_judge_no_prediction() {
        let predictions = Predictions::default();
        let batch = Prediction { batch: true, ..HALF };
        predictions.asked(3, &batch);
        predictions.told(3, &batch, 800, Some(0));
        assert_eq!(predictions.compared(3, Method::Warm), Compared::default());
        assert_eq!(predictions.sent(3, Method::Warm), Asked { requests: 1, tokens: 1_000, held: 500, told: 0 });
        assert_eq!(predictions.text(3), Text { bytes: 4_000, tokens: 800 });
    }

    #[test]
    fn absurd_figures_and_slots_do_no_harm() {
        let predictions = Predictions::default();
        let nothing = Prediction { tokens: 0, held: 0, ..HALF };
        predictions.told(0, &nothing, u32::MAX, Some(u32::MAX));
        assert_eq!(predictions.compared(0, Method::Warm).under, u64::from(u32::MAX));
        let most = Prediction { tokens: 1, held: u32::MAX, ..HALF };
        predictions.told(1, &most, 10, Some(0));
        assert_eq!(predictions.compared(1, Method::Warm), Compared::of(1, 10, 0));
        predictions.asked(u16::MAX, &HALF);
        predictions.told(u16::MAX, &HALF, 1, Some(1));
        assert_eq!(predictions.sent(u16::MAX, Method::Warm), Asked::default());
        assert_eq!(predictions.text(u16::MAX), Text::default());
    }

    #[test]
    fn totals_are_what_came_since_and_before() {
        let (before, more) = (Compared::of(3, 100, 40), Compared::of(2, 10, 50));
        let mut both = before;
        both.add(more);
        assert_eq!((both.since(before), both.over, both.under), (more, 60, 40));
    }
}
