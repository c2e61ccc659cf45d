//! What a waiting request is compared by, in one word: status, urgency, tenant's lane, endpoint, and when it began to
//! wait.
//!
//! Its score is `held part of its prompt + waited / 10 s`. All requests wait at the same pace, so that the order of two
//! never changes: the instant `since - 10 s * held` stands for the score, lowest first.

use crate::limits::ENDPOINTS_MAX;

/// Milliseconds of waiting that a prompt counts as if the endpoint holds it whole.
const WARMTH_MS: u64 = 10_000;

const WHEN_BITS: u32 = 38;
const ENDPOINT_BITS: u32 = 10;
const LANE_BITS: u32 = 6;
const ENDPOINT_AT: u32 = WHEN_BITS;
const LANE_AT: u32 = ENDPOINT_AT + ENDPOINT_BITS;
const URGENCY_AT: u32 = LANE_AT + LANE_BITS;
const STATUS_AT: u32 = URGENCY_AT + 8;

const _: () = assert!(STATUS_AT + 2 == 64 && ENDPOINTS_MAX <= 1 << ENDPOINT_BITS);

/// How many lanes there are for tenants; tenants that fall on one share it.
pub const LANES: usize = 1 << LANE_BITS;
/// The last lane, of strangers. Unlike for a tenant whose turn it is, no room is kept for them: most of their requests
/// are refused.
pub const STRANGERS: u8 = LANES as u8 - 1;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank(u64);

impl Rank {
    /// The word of a free place.
    pub const NOBODY: u64 = 0;
    /// The word of a place that is being filled in.
    pub const TAKEN: u64 = 1 << STATUS_AT;
    const WAITS: u64 = 2 << STATUS_AT;
    const PUSHED_OUT: u64 = 3 << STATUS_AT;

    /// The rank of a request that waits from `now` on, in microseconds.
    pub fn new(priority: i8, lane: u8, endpoint: u16, held: f32, now: u64) -> Rank {
        let warmth = (held.clamp(0.0, 1.0) * WARMTH_MS as f32) as u64;
        // Never below zero, and 8 years until it wraps.
        let when = (now / 1_000 + WARMTH_MS - warmth) & ((1 << WHEN_BITS) - 1);
        let endpoint = u64::from(endpoint) & ((1 << ENDPOINT_BITS) - 1);
        let lane = u64::from(lane) & ((1 << LANE_BITS) - 1);
        let urgency = u64::from(Rank::urgency_of(priority));
        Rank(Rank::WAITS | urgency << URGENCY_AT | lane << LANE_AT | endpoint << ENDPOINT_AT | when)
    }

    pub fn of(word: u64) -> Rank {
        Rank(word)
    }

    pub fn word(self) -> u64 {
        self.0
    }

    /// Whether a request waits in the place. If not, the place is free or being filled in, or its request was pushed
    /// out.
    pub fn waits(self) -> bool {
        self.0 >> STATUS_AT == Rank::WAITS >> STATUS_AT
    }

    /// Lower is more urgent.
    pub fn urgency(self) -> u8 {
        (self.0 >> URGENCY_AT) as u8
    }

    /// The urgency of a priority: the lowest priority is 0, which comes first.
    pub fn urgency_of(priority: i8) -> u8 {
        (i16::from(priority) + 128) as u8
    }

    pub fn lane(self) -> u8 {
        (self.0 >> LANE_AT) as u8 & ((1 << LANE_BITS) - 1)
    }

    pub fn is_a_strangers(self) -> bool {
        self.lane() == STRANGERS
    }

    pub fn endpoint(self) -> u16 {
        (self.0 >> ENDPOINT_AT) as u16 & ((1 << ENDPOINT_BITS) - 1)
    }

    /// When it began to wait, less its warmth, in milliseconds; lower is first.
    pub fn when(self) -> u64 {
        self.0 & ((1 << WHEN_BITS) - 1)
    }

    /// The same rank, waiting for another endpoint.
    pub fn aimed_at(self, endpoint: u16) -> Rank {
        let mask = ((1 << ENDPOINT_BITS) - 1) << ENDPOINT_AT;
        Rank(self.0 & !mask | (u64::from(endpoint) << ENDPOINT_AT) & mask)
    }

    /// The same rank, with another tenant's lane and this priority.
    pub fn of_tenant(self, priority: i8, lane: u8) -> Rank {
        let mask = ((1 << LANE_BITS) - 1) << LANE_AT | u64::from(u8::MAX) << URGENCY_AT;
        let urgency = u64::from(Rank::urgency_of(priority));
        Rank(self.0 & !mask | (urgency << URGENCY_AT | u64::from(lane) << LANE_AT) & mask)
    }

    pub fn pushed_out(self) -> Rank {
        Rank(self.0 | Rank::PUSHED_OUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_in() {
        for (priority, lane, endpoint, held, now) in
            [(0, 0, 0, 0.0, 0), (-128, 63, 1_023, 1.0, 5_000_000), (127, 5, 77, 0.25, 1 << 50)]
        {
            let rank = Rank::new(priority, lane, endpoint, held, now);
            assert!(rank.waits());
            assert_eq!((rank.urgency(), rank.lane(), rank.endpoint()), (Rank::urgency_of(priority), lane, endpoint));
            let when = now / 1_000 + 10_000 - (held * 10_000.0) as u64;
            assert_eq!(rank.when(), when & ((1 << WHEN_BITS) - 1));
            let aimed = rank.aimed_at(3);
            assert_eq!((aimed.endpoint(), aimed.aimed_at(endpoint)), (3, rank));
            assert_eq!((rank.pushed_out().waits(), rank.pushed_out().lane()), (false, lane));
            assert_eq!(rank.of_tenant(9, 41).of_tenant(priority, lane), rank);
            assert_eq!(rank.of_tenant(-9, 41), Rank::new(-9, 41, endpoint, held, now));
        }
        assert!(!Rank::of(Rank::NOBODY).waits() && !Rank::of(Rank::TAKEN).waits());
    }

    #[test]
    fn warmth_counts_as_ten_seconds_of_waiting() {
        let when = |held, now| Rank::new(0, 0, 0, held, now).when();
        assert!(when(1.0, 9_000_000) < when(0.0, 0));
        assert!(when(1.0, 11_000_000) > when(0.0, 0));
        assert!(when(0.5, 0) < when(0.4, 0));
        assert_eq!(when(f32::NAN, 0), when(0.0, 0), "a share that is none is none");
    }
}
