//! The shard's part of the queue: its requests that wait for room, looked at in their order when there may be some.

use super::Shard;
use super::drive::Input;
use crate::counters::queue::Place;
use crate::driver::Driver;
use crate::exchange::{Event, Micros};
use crate::slots::Key;

/// Those that wait are looked at this often in any case: room also comes by what engines report.
const LOOK: Micros = 20_000;
/// And at most this often, and later by so much for each that waits: looking at them takes some 0.1 µs each.
const PAUSE: Micros = 1_000;
const PAUSE_EACH: Micros = 4;
/// Requests that are chosen for anew in one turn: some microseconds each.
const TRIES_MAX: usize = 16;
/// Endpoints noted between two looks; beyond that the regular look finds them.
const FREED_MAX: usize = 64;

/// What a shard knows of those of its requests that wait.
#[derive(Default)]
pub(super) struct Waiting {
    keys: Vec<Key>,
    looked_at: Micros,
    /// Endpoints where something ended since: somebody may wait for them, here or on another shard.
    freed: Vec<u16>,
    /// There is more to look for than what ended here.
    again: bool,
    /// In their order; empty between two looks.
    order: Vec<(Order, Key)>,
    /// Endpoints that nothing more goes to in this look.
    closed: Vec<u16>,
}

/// See [`Place::order`].
type Order = (u8, u64, u64, usize);

impl Waiting {
    /// This client's request waits from now on.
    pub fn add(&mut self, key: Key) {
        self.keys.push(key);
        // It may come before those that others wait behind.
        self.again = true;
    }

    /// Whether this client's request is looked at.
    pub fn sees(&self, key: Key) -> bool {
        self.keys.contains(&key)
    }

    /// A request ended, or left, at an endpoint that others may wait for.
    pub fn freed(&mut self, slot: u16) {
        if self.freed.len() < FREED_MAX && !self.freed.contains(&slot) {
            self.freed.push(slot);
        }
    }

    /// How long the shard may sleep.
    pub fn sleep(&self, now: Micros, most: Micros) -> Micros {
        if self.keys.is_empty() {
            return most;
        }
        let pause = if self.again || !self.freed.is_empty() { self.pause() } else { LOOK };
        (self.looked_at + pause).saturating_sub(now).min(most)
    }

    fn pause(&self) -> Micros {
        PAUSE + PAUSE_EACH * self.keys.len() as Micros
    }

    fn is_due(&self, now: Micros) -> bool {
        let since = now.saturating_sub(self.looked_at);
        since >= LOOK || since >= self.pause() && (self.again || !self.freed.is_empty())
    }
}

impl<D: Driver> Shard<D> {
    /// Whatever waits and may have room now goes, those first that come first of all shards'.
    pub(super) fn serve_queue(&mut self) {
        if self.waiting.keys.is_empty() && self.waiting.freed.is_empty() {
            return;
        }
        self.waiting.again |= self.handover.as_ref().is_some_and(|handover| handover.hears());
        if !self.waiting.is_due(self.desk.now) {
            return;
        }
        self.waiting.looked_at = self.desk.now;
        self.waiting.again = false;
        self.wake_others();
        let mut order = std::mem::take(&mut self.waiting.order);
        self.in_order(&mut order);
        self.waiting.closed.clear();
        let mut tries = 0;
        for &(_, key) in &order {
            if tries == TRIES_MAX {
                self.waiting.again = true;
                break;
            }
            tries += usize::from(self.try_waiting(key));
        }
        order.clear();
        self.waiting.order = order;
    }

    /// All that wait here, into `order`; forgets those that do no more.
    fn in_order(&mut self, order: &mut Vec<(Order, Key)>) {
        let mut keys = std::mem::take(&mut self.waiting.keys);
        keys.retain(|&key| {
            let place = self.place(key).map(Place::order);
            order.extend(place.map(|place| (place, key)));
            place.is_some()
        });
        self.waiting.keys = keys;
        order.sort_unstable_by_key(|(order, _)| *order);
    }

    /// Has a request look for room if it is its turn; answers whether it looked.
    fn try_waiting(&mut self, key: Key) -> bool {
        let Some(place) = self.place(key) else { return false };
        let endpoint = place.endpoint();
        if place.stands() {
            if self.waiting.closed.contains(&endpoint) {
                return false;
            }
            if !place.is_next() {
                // Another shard's goes first.
                self.waiting.closed.push(endpoint);
                return false;
            }
        }
        self.advance(key, Input::None, |_| Event::Room);
        if let Some(place) = self.place(key) {
            let now = place.endpoint();
            self.waiting.closed.extend([endpoint, now]);
        }
        true
    }

    /// Rings for those shards whose requests are next where something ended here.
    fn wake_others(&mut self) {
        let freed = &mut self.waiting.freed;
        if let Some(handover) = &self.handover {
            let next = freed.iter().filter_map(|slot| self.desk.counters.queue().next_for(*slot));
            next.for_each(|shard| handover.ring(shard.into()));
        }
        freed.clear();
    }

    fn place(&self, key: Key) -> Option<&Place> {
        self.clients.get(key)?.exchange.as_deref()?.place()
    }
}
