//! A trouble that may come and go many times a second: that it begins, and that it is over, is said once a minute at
//! most, or more seldom.

use std::time::{Duration, Instant};

/// A trouble is said again if it was not said for so long,
const QUIET: Duration = Duration::from_secs(60);
/// or, where each of many engines may have it, for so long.
const LONG_QUIET: Duration = Duration::from_secs(600);

/// See the module.
#[derive(Debug)]
pub struct Bout {
    quiet: Duration,
    /// When its beginning was said last.
    said: Option<Instant>,
    /// The trouble that was said last is not over.
    lasts: bool,
}

impl Default for Bout {
    fn default() -> Bout {
        Bout { quiet: QUIET, said: None, lasts: false }
    }
}

impl Bout {
    /// A trouble that is said once in ten minutes at most.
    pub fn seldom() -> Bout {
        Bout { quiet: LONG_QUIET, ..Bout::default() }
    }

    /// There is trouble. Answers whether that is to be said.
    pub fn troubled(&mut self, now: Instant) -> bool {
        let lately = self.said.is_some_and(|said| now.saturating_duration_since(said) < self.quiet);
        if self.lasts || lately {
            return false;
        }
        (self.said, self.lasts) = (Some(now), true);
        true
    }

    /// There is none. Answers whether that is to be said.
    pub fn over(&mut self) -> bool {
        std::mem::take(&mut self.lasts)
    }

    /// Whether it was said, and is not over.
    pub fn lasts(&self) -> bool {
        self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_said_once_a_minute() {
        let (mut bout, begin) = (Bout::default(), Instant::now());
        assert!(!bout.over());
        let mut pairs = 0;
        for tenths in 0..1_200 {
            let troubled = bout.troubled(begin + Duration::from_millis(100 * tenths));
            pairs += u64::from(troubled);
            assert_eq!(bout.over(), troubled);
        }
        assert_eq!(pairs, 2);
        // What lasts is told of in time, and its end at once.
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!([at(130), at(179), at(180), at(181)].map(|now| bout.troubled(now)), [true, false, false, false]);
        assert!(bout.over() && !bout.over());
        let mut seldom = Bout::seldom();
        assert!(seldom.troubled(at(0)) && seldom.over());
        assert_eq!([at(599), at(600)].map(|now| seldom.troubled(now)), [false, true]);
    }
}
