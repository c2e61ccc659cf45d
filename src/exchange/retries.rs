//! How many requests a shard may send a second time: a share of all, lest failing engines get twice the load.

/// Most retries saved up: what a shard may do at its start, or after a quiet time.
const SAVED_MAX: u32 = 10;
const PERCENT: u32 = 100;

/// Requests pay in, retries take out.
#[derive(Clone, Debug)]
pub struct Retries {
    /// In hundredths of a retry.
    saved: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Retries { saved: SAVED_MAX * PERCENT }
    }
}

impl Retries {
    /// A request came.
    pub(super) fn earn(&mut self, percent: u32) {
        self.saved = (self.saved + percent).min(SAVED_MAX * PERCENT);
    }

    /// One is to be sent again: whether it may be.
    pub(super) fn take(&mut self) -> bool {
        let left = self.saved.checked_sub(PERCENT);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_all_requests_is_sent_again_at_most() {
        let mut retries = Retries::default();
        let mut taken = 0;
        for _ in 0..10_000 {
            retries.earn(10);
            taken += u32::from(retries.take());
        }
        // What the first request pays in finds the savings full.
        assert_eq!(taken, 10_000 / 10 + SAVED_MAX - 1);
        let mut none = Retries { saved: 0 };
        none.earn(0);
        assert!(!none.take());
    }
}
