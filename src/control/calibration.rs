//! How many bytes of text a token stands for: the bytes of prompts counted here over the tokens that engines count, in
//! each reply for its own prompt, or in `/metrics` for all of them if replies do not tell.

use crate::counters::BELIEVED_TOKEN_BYTES;
use crate::policy::Pool;

/// Least tokens between scrapes: fewer tell mostly of what was under way while they were read.
const SCRAPED_MIN: f64 = 5_000.0;
/// Least tokens in replies: fewer tell mostly of what templates write around a message. One long prompt is enough: a
/// new front's first few decide what lies where.
const REPLIED_MIN: f64 = 500.0;
/// Beyond so many tokens, older ones count half.
const TOKENS_KEPT: f64 = 1_000_000.0;

/// The calibration of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// Bytes of prompts that this front sent and it did not refuse, and tokens that the engine counted,
    /// at the last reading.
    last: Option<(u64, u64)>,
    /// Whether at the last reading it may have had prompts of ours to compute: bytes had come since the reading before,
    /// or some prompts had no first token yet.
    fed: bool,
    /// From replies, prompt by prompt: better, since only our own prompts of text alone are in it.
    replies: Seen,
    scrapes: Seen,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    bytes: f64,
    tokens: f64,
}

impl Seen {
    fn add(&mut self, bytes: f64, tokens: u64) {
        self.bytes += bytes;
        self.tokens += tokens as f64;
        if self.tokens > TOKENS_KEPT {
            (self.bytes, self.tokens) = (self.bytes / 2.0, self.tokens / 2.0);
        }
    }

    fn token_bytes(&self, tokens_min: f64) -> Option<f32> {
        let (least, most) = BELIEVED_TOKEN_BYTES;
        let mean = || ((self.bytes / self.tokens) as f32).clamp(least as f32, most as f32);
        (self.tokens >= tokens_min && self.bytes > 0.0).then(mean)
    }
}

impl Calibration {
    /// The same for an endpoint whose bytes are counted from 0.
    pub fn renumbered(&self) -> Calibration {
        Calibration { last: None, fed: false, ..self.clone() }
    }

    /// Takes in a reading of both. `pending`: prompts of ours had no first token when the bytes were read. `alone`:
    /// only this front asks the engine; else its tokens tell nothing.
    pub fn read(&mut self, bytes: u64, pending: bool, tokens: Option<u64>, alone: bool) {
        let now = tokens.map(|tokens| (bytes, tokens));
        if let (Some((bytes, tokens)), Some((bytes_before, tokens_before))) = (now, self.last)
            && alone
            && tokens >= tokens_before
        {
            // Negative if a prompt was refused that was counted before.
            let more = bytes.wrapping_sub(bytes_before) as i64;
            // Engines count tokens when a prompt was computed: one reading after its bytes, or, in a burst, many.
            // Tokens that come while no prompt of ours waits are of prompts that are not counted here: others', between
            // two readings that do not show them, or ours under a policy that looks at no prompts.
            let was_fed = std::mem::replace(&mut self.fed, more != 0 || pending);
            if was_fed || self.fed {
                self.scrapes.add(more as f64, tokens - tokens_before);
            }
        }
        self.last = now;
    }

    /// Takes in replies: how many tokens their prompts' bytes were.
    pub fn told(&mut self, bytes: u64, tokens: u64) {
        self.replies.add(bytes as f64, tokens);
    }

    /// Bytes that one token stands for; `None`: too few were seen.
    pub fn token_bytes(&self) -> Option<f32> {
        self.replies.token_bytes(REPLIED_MIN).or_else(|| self.scrapes.token_bytes(SCRAPED_MIN))
    }
}

/// The mean over endpoints for which it is known.
pub fn mean(known: impl Iterator<Item = f32>) -> f32 {
    let (sum, count) = known.fold((0.0, 0u32), |(sum, count), each| (sum + each, count + 1));
    if count == 0 { Pool::TOKEN_BYTES } else { sum / count as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_token_are_learnt_from_what_both_count() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.token_bytes(), None);
        // The first reading is where counting begins.
        calibration.read(1_000, false, Some(77_000), true);
        calibration.read(13_000, false, Some(81_000), true);
        assert_eq!(calibration.token_bytes(), None, "4,000 tokens are too few");
        calibration.read(31_000, false, Some(87_000), true);
        assert_eq!(calibration.token_bytes(), Some(3.0));
        // With others beside us, without figures, and behind a restart nothing is learnt.
        calibration.read(31_000, false, Some(187_000), false);
        calibration.read(91_000, false, None, true);
        calibration.read(92_000, false, Some(190_000), true);
        calibration.read(93_000, false, Some(10), true);
        assert_eq!(calibration.token_bytes(), Some(3.0));
        // What was refused behind a scrape that counted it leaves nothing behind.
        calibration.read(150_000, false, Some(10), true);
        calibration.read(93_000, false, Some(10), true);
        assert_eq!(calibration.token_bytes(), Some(3.0));
        // Nor from prompts that were not counted.
        calibration.read(96_000, false, Some(1_010), true);
        (2..60).for_each(|turn| calibration.read(96_000, false, Some(1_010 + turn * 100_000 - 200_000), true));
        assert_eq!(calibration.token_bytes(), Some(3.0));
        calibration.read(93_000, false, Some(10), true);
        // Older prompts count less and less.
        for turn in 0..40u64 {
            calibration.read(93_000 + turn * 500_000, false, Some(10 + turn * 100_000), true);
        }
        let learnt = calibration.token_bytes().unwrap();
        assert!((4.9..=5.0).contains(&learnt), "{learnt}");
        for (bytes, tokens, believed) in [(10_000, 100_000, 1.0), (1_000_000, 6_000, 8.0)] {
            let mut calibration = Calibration::default();
            calibration.read(0, false, Some(0), true);
            calibration.read(bytes, false, Some(tokens), true);
            assert_eq!(calibration.token_bytes(), Some(believed));
        }
    }

    #[test]
    fn tokens_of_a_burst_count_as_long_as_prompts_of_it_wait() {
        let mut calibration = Calibration::default();
        calibration.read(0, false, Some(0), true);
        // Six prompts of 4,000 tokens come at once, and are computed one in each reading.
        for computed in 0..=6u64 {
            calibration.read(96_000, computed < 6, Some(4_000 * computed), true);
        }
        assert_eq!(calibration.token_bytes(), Some(4.0));
        calibration.read(96_000, false, Some(100_000), true);
        calibration.read(96_000, false, Some(900_000), true);
        assert_eq!(calibration.token_bytes(), Some(4.0), "others' prompts");
    }

    #[test]
    fn what_replies_tell_is_preferred() {
        let mut calibration = Calibration::default();
        calibration.read(0, false, Some(0), true);
        calibration.read(30_000, false, Some(10_000), true);
        calibration.told(1_800, 400);
        assert_eq!(calibration.token_bytes(), Some(3.0), "400 tokens are too few");
        calibration.told(450, 100);
        assert_eq!(calibration.token_bytes(), Some(4.5));
        calibration.read(90_000, false, Some(40_000), true);
        assert_eq!(calibration.token_bytes(), Some(4.5));
    }

    #[test]
    fn those_who_know_speak_for_the_others() {
        assert_eq!(mean([].into_iter()), Pool::TOKEN_BYTES);
        assert_eq!(mean([3.0, 5.0].into_iter()), 4.0);
    }
}
