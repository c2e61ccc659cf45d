//! The loads without one request that is counted in them: what it would find if it were chosen for again.

use super::ANSWER_TOKENS;
use crate::atomics::Ordering;
use crate::fleet::Loads;

/// A request's part of the loads.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Its pool.
    pub pool: u16,
    /// The pool's mean prompt before this one.
    pub mean_prompt: u32,
    /// Where it was counted. Where it is no more, since no connection could be made, one too few is found there.
    pub slot: u16,
    /// Tokens to be computed that it was counted with, where tokens were.
    pub new: Option<u32>,
}

/// A copy of the loads that one thread has for itself, made once and used again.
#[derive(Debug, Default)]
pub struct Without(Option<Box<Loads>>);

impl Without {
    /// The loads of these slots without this request.
    pub fn of(&mut self, loads: &Loads, slots: &[u16], own: &Own) -> &Loads {
        let copy = self.0.get_or_insert_default();
        copy.copy(loads, slots, own.pool);
        copy.set_mean_prompt(own.pool, own.mean_prompt);
        if let Some(in_flight) = copy.cell(own.slot) {
            in_flight.store(copy.in_flight(own.slot).saturating_sub(1), Ordering::Relaxed);
        }
        if let (Some(new), Some((pending, dispatched))) = (own.new, copy.token_cells(own.slot)) {
            let sent = u64::from(new) + ANSWER_TOKENS;
            pending.store(copy.pending(own.slot).saturating_sub(new.into()), Ordering::Relaxed);
            dispatched.store(copy.dispatched(own.slot).saturating_sub(sent), Ordering::Relaxed);
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
            let each = |slot| (loads.in_flight(slot), loads.pending(slot), loads.dispatched(slot));
            ([0, 1, 2].map(each), loads.sum(0..3), loads.mean_prompt(0), loads.mean_prompt(1))
        };
        let mut others = [counters.try_admit(id(0), None).unwrap(), counters.try_admit(id(1), None).unwrap()];
        others[1].computes(300);
        let (before, mean_prompt) = (figures(counters.loads()), counters.loads().mean_prompt(1));
        let mut own = counters.try_admit(id(1), None).unwrap();
        own.computes(5_000);
        counters.prompt(1, 9_000, 0);
        assert_ne!(figures(counters.loads()), before);
        let mut without = Without::default();
        let request = Own { pool: 1, mean_prompt, slot: 1, new: Some(5_000) };
        assert_eq!(figures(without.of(counters.loads(), &[0, 1, 2], &request)), before);
        // One that is counted no more takes nothing below zero, and the shared counts are as they were.
        drop((own, others));
        let none = [(0, 0, 0), (0, 0, 0), (0, 0, 0)];
        assert_eq!(figures(without.of(counters.loads(), &[0, 1, 2], &request)).0, {
            let mut each = none;
            each[1].2 = 300 + ANSWER_TOKENS;
            each
        });
        assert_eq!(counters.loads().dispatched(1), 5_300 + 2 * ANSWER_TOKENS);
    }
}
