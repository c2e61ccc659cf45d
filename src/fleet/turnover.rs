//! How fast a cache turns over: whether what a prompt pushes out of it was used just now, and will probably be asked
//! for again, or was unused for long, or whether there is still room.

use std::time::Duration;

/// What left one cache of late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turnover {
    /// Blocks that had left in all at the last look.
    gone: Option<u64>,
    /// Blocks of prompts that had come in all at the last look.
    came: u64,
    /// Blocks that left of late: one that left [`Turnover::WINDOW`] ago counts about a third.
    late: f32,
    /// `late` as a part of the cache.
    part: f32,
    vacant: f32,
}

impl Turnover {
    /// How long a conversation pauses before its cache is asked for again, by order of magnitude: a tool runs, a reader
    /// answers.
    pub const WINDOW: Duration = Duration::from_secs(30);
    /// A smaller change is not reported.
    const NOTICED: f32 = 0.01;

    /// Notes that so many blocks have left a cache by now and so many blocks of prompts have come; it holds `held` of
    /// at most `capacity` blocks, and the last look was so long `ago`. Returns whether much has changed.
    pub fn saw(&mut self, (gone, came): (u64, u64), held: u32, capacity: u32, ago: Duration) -> bool {
        let Turnover { part, vacant, .. } = *self;
        // Answers push out answers, which nobody asks for: from a full cache as many blocks of prompts leave as come.
        let went = gone.saturating_sub(self.gone.unwrap_or(gone)).min(came.saturating_sub(self.came));
        (self.gone, self.came) = (Some(gone), came);
        self.late = self.late * (-ago.as_secs_f32() / Turnover::WINDOW.as_secs_f32()).exp() + went as f32;
        let of_all = |blocks: f32| if capacity == 0 { 0.0 } else { (blocks / capacity as f32).min(1.0) };
        self.part = of_all(self.late);
        self.vacant = of_all(capacity.saturating_sub(held) as f32);
        (self.part - part).abs().max((self.vacant - vacant).abs()) >= Turnover::NOTICED
    }

    /// Part of the cache that was replaced within the last half minute, 0..=1.
    pub fn part(&self) -> f32 {
        self.part
    }

    /// Part of the cache that holds nothing yet, 0..=1; 0 if its size is not known.
    pub fn vacant(&self) -> f32 {
        self.vacant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Here all blocks that leave make room for prompts.
    fn saw(turnover: &mut Turnover, gone: u64, held: u32, capacity: u32, ago: Duration) -> bool {
        turnover.saw((gone, gone), held, capacity, ago)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_went_before_the_first_look_and_long_ago_does_not_count() {
        let mut turnover = Turnover::default();
        assert!(!saw(&mut turnover, 700, 100, 100, SECOND) && turnover.part() == 0.0, "nobody knows when they went");
        assert!(saw(&mut turnover, 740, 100, 100, SECOND));
        assert_eq!(turnover.part(), 0.4);
        saw(&mut turnover, 740, 100, 100, Turnover::WINDOW);
        assert!((0.14..0.15).contains(&turnover.part()), "{}", turnover.part());
        saw(&mut turnover, 740, 100, 100, 10 * Turnover::WINDOW);
        assert!(!saw(&mut turnover, 740, 100, 100, SECOND) && turnover.part() < 1e-4);
    }

    #[test]
    fn it_is_never_more_than_the_cache_and_settles_at_the_rate() {
        let mut turnover = Turnover::default();
        // One of a hundred blocks a second, and then twice as many blocks as there are.
        (0..600).for_each(|second| assert!(!saw(&mut turnover, second, 100, 100, SECOND) || second < 60));
        assert!((0.29..0.32).contains(&turnover.part()), "{}", turnover.part());
        saw(&mut turnover, 800, 100, 100, SECOND);
        assert_eq!(turnover.part(), 1.0);
        saw(&mut turnover, 900, 0, 0, SECOND);
        assert_eq!(turnover.part(), 0.0, "nothing is known of a cache without a size");
    }

    #[test]
    fn what_holds_nothing_yet_is_told() {
        let mut turnover = Turnover::default();
        assert!(saw(&mut turnover, 0, 0, 100, SECOND) && turnover.vacant() == 1.0);
        assert!(saw(&mut turnover, 0, 75, 100, SECOND) && turnover.vacant() == 0.25);
        assert!(!saw(&mut turnover, 0, 75, 100, SECOND));
        assert!(saw(&mut turnover, 0, 100, 100, SECOND) && turnover.vacant() == 0.0);
        assert_eq!(
            (saw(&mut turnover, 0, 0, 0, SECOND), turnover.vacant()),
            (false, 0.0),
            "nothing is known of one without a size"
        );
    }

    #[test]
    fn what_answers_push_out_does_not_count() {
        let mut turnover = Turnover::default();
        turnover.saw((0, 100), 100, 100, SECOND);
        turnover.saw((60, 120), 100, 100, SECOND);
        assert_eq!(turnover.part(), 0.2, "of 60 that came 20 were of prompts");
        turnover.saw((60, 150), 100, 100, SECOND);
        assert!(turnover.part() < 0.2, "there was room");
    }
}
