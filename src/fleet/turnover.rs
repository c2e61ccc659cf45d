//! How fast a cache turns over: whether what a prompt pushes out of it was just used, and will probably be asked for again, or lay
//! there for long, or whether there is room still.

use std::time::Duration;

/// What went out of one cache of late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turnover {
    /// Blocks that had gone in all when it was looked at last.
    gone: Option<u64>,
    /// Those of late: what went [`Turnover::WINDOW`] ago counts a third.
    late: f32,
    /// Of the cache.
    part: f32,
    vacant: f32,
}

impl Turnover {
    /// How long what is asked for again stays away, by order of magnitude: a tool that runs, a reader who answers.
    pub const WINDOW: Duration = Duration::from_secs(30);
    /// Less than this is no change.
    const NOTICED: f32 = 0.01;

    /// So many blocks have gone by now from a cache that holds `held` of at most `capacity`; it was looked at so long ago. Answers whether
    /// much has changed.
    pub fn saw(&mut self, gone: u64, held: u32, capacity: u32, ago: Duration) -> bool {
        let Turnover { part, vacant, .. } = *self;
        let went = gone.saturating_sub(self.gone.unwrap_or(gone));
        self.gone = Some(gone);
        self.late = self.late * (-ago.as_secs_f32() / Turnover::WINDOW.as_secs_f32()).exp() + went as f32;
        let of_all = |blocks: f32| if capacity == 0 { 0.0 } else { (blocks / capacity as f32).min(1.0) };
        self.part = of_all(self.late);
        self.vacant = of_all(capacity.saturating_sub(held) as f32);
        (self.part - part).abs().max((self.vacant - vacant).abs()) >= Turnover::NOTICED
    }

    /// How much of the cache was replaced within the last half minute, 0..=1.
    pub fn part(&self) -> f32 {
        self.part
    }

    /// How much of it holds nothing yet, 0..=1; 0 where its size is not known.
    pub fn vacant(&self) -> f32 {
        self.vacant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_went_before_the_first_look_and_long_ago_does_not_count() {
        let mut turnover = Turnover::default();
        assert!(!turnover.saw(700, 100, 100, SECOND) && turnover.part() == 0.0, "nobody knows when they went");
        assert!(turnover.saw(740, 100, 100, SECOND));
        assert_eq!(turnover.part(), 0.4);
        turnover.saw(740, 100, 100, Turnover::WINDOW);
        assert!((0.14..0.15).contains(&turnover.part()), "{}", turnover.part());
        turnover.saw(740, 100, 100, 10 * Turnover::WINDOW);
        assert!(!turnover.saw(740, 100, 100, SECOND) && turnover.part() < 1e-4);
    }

    #[test]
    fn it_is_never_more_than_the_cache_and_settles_at_the_rate() {
        let mut turnover = Turnover::default();
        // One of a hundred blocks a second, and then twice as many as there are.
        (0..600).for_each(|second| assert!(!turnover.saw(second, 100, 100, SECOND) || second < 60));
        assert!((0.29..0.32).contains(&turnover.part()), "{}", turnover.part());
        turnover.saw(800, 100, 100, SECOND);
        assert_eq!(turnover.part(), 1.0);
        turnover.saw(900, 0, 0, SECOND);
        assert_eq!(turnover.part(), 0.0, "nothing is known of a cache without a size");
    }

    #[test]
    fn what_holds_nothing_yet_is_told() {
        let mut turnover = Turnover::default();
        assert!(turnover.saw(0, 0, 100, SECOND) && turnover.vacant() == 1.0);
        assert!(turnover.saw(0, 75, 100, SECOND) && turnover.vacant() == 0.25);
        assert!(!turnover.saw(0, 75, 100, SECOND));
        assert!(turnover.saw(0, 100, 100, SECOND) && turnover.vacant() == 0.0);
        assert_eq!(
            (turnover.saw(0, 0, 0, SECOND), turnover.vacant()),
            (false, 0.0),
            "nothing is known of one without a size"
        );
    }
}
