//! The loads without one request that is counted in them: as a shadow policy would have found them for it.

use crate::atomics::Ordering;
use crate::fleet::{ANSWER_TOKENS, Loads, Means, PoolId};

/// A request's part of the loads.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Its pool.
    pub pool: PoolId,
    /// The pool's means before it was counted.
    pub means: Means,
    /// The slot where it was counted. If it no longer is, since no connection could be made, the copy has one too few.
    pub slot: u16,
    /// Its tokens, if they were counted: how many it has computed there, and how many it occupies.
    pub tokens: Option<(u32, u32)>,
}

/// A copy of the loads that one thread has for itself, made once and used again.
#[derive(Debug, Default)]
pub struct Without(Option<Box<Loads>>);

impl Without {
    /// The loads of these slots without this request.
    pub fn of(&mut self, loads: &Loads, slots: &[u16], own: &Own) -> &Loads {
        let copy = self.0.get_or_insert_default();
        copy.copy(loads, slots, own.pool, own.means);
        let slot = own.slot;
        copy.take_one_off(slot);
        if let (Some((new, occupied)), Some(cells)) = (own.tokens, copy.cells(slot)) {
            let sent = u64::from(new) + ANSWER_TOKENS;
            cells.pending.store(copy.pending(slot).saturating_sub(new.into()), Ordering::Relaxed);
            cells.dispatched.store(copy.dispatched(slot).saturating_sub(sent), Ordering::Relaxed);
            cells.resident.store(copy.resident(slot).saturating_sub(occupied.into()), Ordering::Relaxed);
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::fleet::EndpointId;

    #[test]
    fn what_is_left_is_what_there_was() {
        let counters = Counters::leak();
        let id = |slot| EndpointId { slot, generation: 0 };
        let figures = |loads: &Loads| {
            let each =
                |slot| (loads.in_flight(slot), loads.pending(slot), loads.dispatched(slot), loads.resident(slot));
            let means = (loads.mean_prompt(PoolId(1)), loads.held_share(PoolId(1)), loads.mean_answer(PoolId(1)));
            ([0, 1, 2].map(each), loads.sum(0..3), means)
        };
        let mut others = [counters.try_admit(id(0), None).unwrap(), counters.try_admit(id(1), None).unwrap()];
        others[1].computes(300);
        others[1].occupies(700);
        counters.prompt(PoolId(1), 2_000, 1_000);
        let (before, means) = (figures(counters.loads()), counters.loads().means(PoolId(1)));
        let mut own = counters.try_admit(id(1), None).unwrap();
        own.computes(5_000);
        own.occupies(6_000);
        counters.prompt(PoolId(1), 9_000, 4_000);
        counters.answer(PoolId(1), 9_000);
        assert_ne!(figures(counters.loads()), before);
        let mut without = Without::default();
        let request = Own { pool: PoolId(1), means, slot: 1, tokens: Some((5_000, 6_000)) };
        assert_eq!(figures(without.of(counters.loads(), &[0, 1, 2], &request)), before);
        // One that is counted no more takes nothing below zero, and the shared counts are as they were.
        drop((own, others));
        let none = [(0, 0, 0, 0); 3];
        assert_eq!(figures(without.of(counters.loads(), &[0, 1, 2], &request)).0, {
            let mut each = none;
            each[1].2 = 300 + ANSWER_TOKENS;
            each
        });
        assert_eq!(counters.loads().dispatched(1), 5_300 + 2 * ANSWER_TOKENS);
    }
}
