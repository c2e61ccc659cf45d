//! Which endpoints a choice may fall on.

use warmfront::fleet::Health;

use super::{Part, Shadow};

impl Shadow {
    /// What a client asks first goes where the fleet, as the shard has it, takes requests, and to no barred endpoint
    /// while there is another.
    pub(super) fn check_choice(&self, slot: usize, generation: u32) {
        let fleet = &self.seen[self.shard];
        let there = |health: &dyn Fn(Health) -> bool| -> Vec<usize> {
            let endpoints = fleet.iter().flatten().filter(|endpoint| health(endpoint.health));
            endpoints.map(|endpoint| endpoint.id.slot as usize).collect()
        };
        let tenant = fleet.get(slot).and_then(Option::as_ref).map(|endpoint| endpoint.id.generation);
        assert_eq!(tenant, Some(generation), "slot {slot} has another tenant in the shard's fleet");
        let mut open = there(&|health| matches!(health, Health::Up | Health::Unknown | Health::Trial));
        // Where none does, bars say no more than the rest.
        let last_resort = open.is_empty();
        for health in [Health::Ejected, Health::Down] {
            if open.is_empty() {
                open = there(&|found| found == health);
            }
        }
        assert!(open.contains(&slot), "chosen although it takes no requests: {slot} of {open:?}");
        let cap = |slot: usize| fleet[slot].as_ref().map_or(0, |endpoint| endpoint.cap);
        let in_flight = |slot: usize| self.counters.in_flight(slot as u16);
        let running = |slot: usize| self.counters.loads().running(slot as u16);
        assert!(running(slot) <= cap(slot), "{} run at {slot}, which may have {}", running(slot), cap(slot));
        let on_trial = there(&|health| health == Health::Trial);
        if on_trial.contains(&slot) && 2 * on_trial.len() <= open.len() {
            // None where the request's own next bytes have ended it before its connect was carried out.
            let before = self.counters.loads().open_before(slot as u16);
            assert!(in_flight(slot) <= 1 + before, "one at a time at {slot}");
        }
        let barred = |slot: &usize| self.counters.outcomes().is_barred(*slot as u16);
        if self.part == Part::Client && self.begun_in_step == 0 && !last_resort && barred(&slot) {
            let full = |other: &usize| running(*other) >= cap(*other) || on_trial.contains(other);
            assert!(
                open.iter().all(|other| barred(other) || full(other)),
                "chosen although barred: {slot} of {open:?}"
            );
        }
    }
}
