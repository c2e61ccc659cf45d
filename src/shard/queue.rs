//! The shard's part of the queue: its requests that wait for room, looked at in their order when there may be some.

use std::ops::Range;

use super::drive::Input;
use super::{Shard, panics};
use crate::counters::queue::{Line, Look, Place, Turn};
use crate::driver::Driver;
use crate::exchange::{Event, Micros};
use crate::slots::Key;

/// Waiting requests are looked at this often in any case: engines' reports may tell of room, too.
const LOOK: Micros = 20_000;
/// They are looked at this often at most, and more seldom the more they are: a look takes some 0.1 µs for each.
const PAUSE: Micros = 1_000;
const PAUSE_EACH: Micros = 4;
/// How long a request here lets another shard's go first.
const PATIENCE: Micros = 5_000;
/// Requests that are chosen for anew in one turn: some microseconds each.
const TRIES_MAX: usize = 64;
/// Endpoints noted between two looks; beyond that the regular look finds them.
const FREED_MAX: usize = 64;

/// A request of another shard that is let go first.
#[derive(Clone, Copy)]
struct Behind {
    island: u16,
    /// Its place in the queue.
    place: usize,
    /// When that began.
    since: Micros,
}

/// What a shard knows of those of its requests that wait.
#[derive(Default)]
pub(super) struct Waiters {
    keys: Vec<Key>,
    looked_at: Micros,
    /// Endpoints where a request ended since the last look: others may wait for them, here or on another shard.
    freed: Vec<u16>,
    /// By island, the request of another shard that is let go first now, and those of the look before.
    behind: Vec<Behind>,
    behind_before: Vec<Behind>,
    /// Islands in which a request of this shard found no room in this look.
    in_vain: Vec<u16>,
    /// There is more to look for than what ended here.
    again: bool,
    /// Not all who may have room were asked in the last look: the next one goes on.
    unfinished: bool,
    /// In line, by urgency, tenant and island; empty between two looks.
    lines: Vec<(Line, Key)>,
    /// Who of each line is looked at next, and where it ends.
    heads: Vec<Range<usize>>,
    /// What this look has found so far.
    look: Look,
}

impl Waiters {
    /// This client's request waits from now on.
    pub fn add(&mut self, key: Key) {
        self.keys.push(key);
        // It may come before those that others wait behind.
        self.again = true;
    }

    /// Clients whose requests are looked at, ascending. A client is there twice if its request left and its next one
    /// came between two looks.
    pub fn seen(&self) -> Vec<Key> {
        let mut keys = self.keys.clone();
        keys.sort_unstable();
        keys
    }

    /// A request ended, or left, at an endpoint that others may wait for.
    pub fn freed(&mut self, slot: u16) {
        if self.freed.len() < FREED_MAX && !self.freed.contains(&slot) {
            self.freed.push(slot);
        }
    }

    /// How long the shard may sleep.
    pub fn sleep(&self, now: Micros, most: Micros) -> Micros {
        if self.keys.is_empty() && self.freed.is_empty() {
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

/// What came of having a request look.
enum Tried {
    Looked,
    /// It is another's turn, here or elsewhere, for the endpoint that it waits for.
    NotIts,
    /// It is the turn of another shard's who waits for the same island.
    LetsGoFirst(u16),
}

impl<D: Driver> Shard<D> {
    /// Has the waiting requests that may have room now look for it, in the order of all shards' requests.
    pub(super) fn serve_queue(&mut self) {
        if self.waiting.keys.is_empty() && self.waiting.freed.is_empty() {
            return;
        }
        if self.desk.lender.waits_too_much() {
            self.shed_waiting();
        }
        self.waiting.again |= self.neighbours.as_ref().is_some_and(|neighbours| neighbours.hears());
        if !self.waiting.is_due(self.desk.now) {
            return;
        }
        self.waiting.looked_at = self.desk.now;
        self.waiting.again = false;
        std::mem::swap(&mut self.waiting.behind, &mut self.waiting.behind_before);
        self.waiting.behind.clear();
        match std::mem::take(&mut self.waiting.unfinished) {
            true => self.waiting.freed.iter().for_each(|slot| self.waiting.look.opens(*slot)),
            false => {
                self.waiting.look.begins();
                self.waiting.in_vain.clear();
            }
        }
        let mut lines = std::mem::take(&mut self.waiting.lines);
        let mut heads = std::mem::take(&mut self.waiting.heads);
        self.line_up(&mut lines, &mut heads);
        let mut tries = 0;
        while let Some(key) = self.first_in_line(&lines, &mut heads) {
            if tries == TRIES_MAX {
                (self.waiting.again, self.waiting.unfinished) = (true, true);
                break;
            }
            match self.try_waiting(key) {
                Tried::Looked => tries += 1,
                Tried::NotIts => {}
                Tried::LetsGoFirst(island) => {
                    self.waiting.again = true;
                    // Nobody of this island; others are in nobody's way.
                    heads.retain(|head| lines.get(head.start).is_some_and(|(line, _)| line.island() != island));
                }
            }
        }
        self.wake_next();
        lines.clear();
        heads.clear();
        (self.waiting.lines, self.waiting.heads) = (lines, heads);
    }

    /// Puts all that wait here into `lines`, in the queue's order, and forgets those that wait no more.
    pub(super) fn line_up(&mut self, lines: &mut Vec<(Line, Key)>, heads: &mut Vec<Range<usize>>) {
        let mut keys = std::mem::take(&mut self.waiting.keys);
        let mut torn = Vec::new();
        let cx = self.desk.context();
        lines.extend(keys.drain(..).filter_map(|key| {
            let exchange = self.clients.get_mut(key)?.exchange.as_deref_mut()?;
            // One that has left the queue may have a leg by now, and is none of this.
            exchange.place()?;
            if panics::contained(|| exchange.may_be_known_by_now(&cx)).is_err() {
                torn.push(key);
                return None;
            }
            Some((exchange.place()?.line(), key))
        }));
        lines.sort_unstable();
        // A client whose request was answered at once, and the next queued, was added twice.
        lines.dedup_by_key(|(_, key)| *key);
        keys.extend(lines.iter().map(|(_, key)| *key));
        self.waiting.keys = keys;
        let mut from = 0;
        for line in lines.chunk_by(|(one, _), (next, _)| one.is_in_line_with(next)) {
            heads.push(from..from + line.len());
            from += line.len();
        }
        torn.into_iter().for_each(|key| self.end_torn(key));
    }

    /// A fault of ours has torn a request that waits.
    fn end_torn(&mut self, key: Key) {
        let exchange = self.clients.get_mut(key).and_then(|client| client.exchange.as_deref_mut());
        if let Some(exchange) = exchange {
            exchange.give_all_back(&mut self.desk.context());
            self.desk.end_torn();
            self.drive(key, Input::None);
        }
    }

    /// Whose turn it is now, of those that have not been looked at: which tenant's it is changes with each release.
    fn first_in_line(&self, lines: &[(Line, Key)], heads: &mut [Range<usize>]) -> Option<Key> {
        let mut first: Option<(_, &mut Range<usize>)> = None;
        for head in heads {
            while head.start < head.end && !self.may_go(lines[head.start].1) {
                head.start += 1;
            }
            let Some((line, key)) = lines.get(head.clone()).and_then(<[_]>::first) else { continue };
            if first.as_ref().is_some_and(|(_, first)| !line.is_as_urgent_as(&lines[first.start].0)) {
                break;
            }
            let Some(order) = self.place(*key).map(Place::order) else { continue };
            if first.as_ref().is_none_or(|(before, _)| order < *before) {
                first = Some((order, head));
            }
        }
        let (_, head) = first?;
        head.start += 1;
        lines.get(head.start - 1).map(|(_, key)| *key)
    }

    /// Whether it waits for an endpoint that something may go to, or was pushed out and is to be told.
    fn may_go(&self, key: Key) -> bool {
        self.place(key).is_some_and(|place| !place.stands() || self.waiting.look.lets(place))
    }

    /// Has a request look for room if it is its turn.
    fn try_waiting(&mut self, key: Key) -> Tried {
        let Some(place) = self.clients.get(key).and_then(|client| client.exchange.as_deref()?.place()) else {
            return Tried::NotIts;
        };
        let (endpoint, needed, island) = (place.endpoint(), place.needs(), place.line().island());
        let turn = if place.stands() { place.turn() } else { Turn::Now };
        // Room that does not suit the first may suit those behind it.
        let goes = match turn {
            Turn::Now => true,
            Turn::Later => false,
            Turn::InVain => {
                self.waiting.look.in_vain(endpoint, needed, place);
                return Tried::NotIts;
            }
            Turn::Behind(other) if self.is_patient(island, other) => {
                if !self.waiting.in_vain.contains(&island) {
                    return Tried::LetsGoFirst(island);
                }
                self.place(key).is_some_and(Place::is_next)
            }
            Turn::Behind(_) => true,
        };
        if !goes {
            self.waiting.look.closes(endpoint);
            return Tried::NotIts;
        }
        self.advance_by(key, Event::Room);
        if let Some(place) = self.clients.get(key).and_then(|client| client.exchange.as_deref()?.place()) {
            if place.endpoint() != endpoint {
                self.waiting.look.in_vain(endpoint, needed, place);
            }
            self.waiting.look.in_vain(place.endpoint(), place.needs(), place);
            if !self.waiting.in_vain.contains(&island) {
                self.waiting.in_vain.push(island);
            }
        }
        Tried::Looked
    }

    /// Whether another shard's request is let go first: not for ever, should its shard stand still.
    fn is_patient(&mut self, island: u16, other: usize) -> bool {
        let (now, waiting) = (self.desk.now, &mut self.waiting);
        let is_same = |before: &&Behind| (before.island, before.place) == (island, other);
        let since = waiting.behind_before.iter().find(is_same).map_or(now, |before| before.since);
        waiting.behind.retain(|behind| behind.island != island);
        waiting.behind.push(Behind { island, place: other, since });
        now < since + PATIENCE
    }

    /// Rings for the shard whose request is to look next.
    fn wake_next(&mut self) {
        self.waiting.freed.clear();
        if let Some(neighbours) = &self.neighbours
            && let Some(shard) = self.desk.counters.queue().next_elsewhere(self.desk.lender.shard)
        {
            neighbours.ring(shard.into());
        }
    }

    pub(super) fn place(&self, key: Key) -> Option<&Place> {
        self.clients.get(key)?.exchange.as_deref()?.place()
    }
}
