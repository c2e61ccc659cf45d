//! The endpoint that costs least of those looked at so far, its equals, and the next cheapest.

use crate::limits::ENDPOINTS_MAX;
use crate::policy::Pool;

/// The least cost so far, the endpoints that have it, and the next cheapest.
pub(super) struct Best {
    cost: u64,
    equals: [u64; ENDPOINTS_MAX / 64],
    first: Option<u16>,
    alone: bool,
    second: Option<u16>,
    second_cost: u64,
}

impl Default for Best {
    fn default() -> Self {
        let equals = [0; ENDPOINTS_MAX / 64];
        Best { cost: u64::MAX, equals, first: None, alone: true, second: None, second_cost: u64::MAX }
    }
}

impl Best {
    /// An endpoint that costs more than this is neither the cheapest nor the next.
    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.second_cost
    }

    pub(super) fn offer(&mut self, slot: u16, cost: u64) {
        if slot as usize >= ENDPOINTS_MAX {
            return;
        }
        if cost > self.cost {
            if cost < self.second_cost || self.second.is_none() {
                (self.second, self.second_cost) = (Some(slot), cost);
            }
            return;
        }
        if cost < self.cost || self.first.is_none() {
            (self.second, self.second_cost) = (self.first, self.cost);
            (self.first, self.cost, self.alone) = (Some(slot), cost, true);
            self.equals = [0; ENDPOINTS_MAX / 64];
        } else {
            (self.second, self.second_cost, self.alone) = (Some(slot), cost, false);
        }
        self.equals[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// The cheapest beside `chosen`.
    pub(super) fn runner_up(&self, chosen: u16) -> Option<u16> {
        if self.second == Some(chosen) { self.first } else { self.second }
    }

    /// Of the cheapest, the first on the ring behind `tie`.
    pub(super) fn first_of_ring(&self, pool: &Pool, tie: u64) -> Option<u16> {
        let is_equal =
            |slot: &u16| self.equals.get(*slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1);
        match self.alone {
            true => self.first,
            // One without points on the ring cannot be: every member has some. The first is as good.
            false => pool.ring.walk(tie).find(is_equal).or(self.first),
        }
    }
}
