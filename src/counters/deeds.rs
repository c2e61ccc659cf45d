//! The counts of one endpoint, from what shards count by slot.
//!
//! Several endpoints may have a slot one after the other, and its counts are never reset: an endpoint's own counts are
//! what came since it got the slot. Nothing is counted between two endpoints: a slot is given away only when no shard
//! chooses by a snapshot with the former endpoint and nothing is in flight there, and a request is counted before it is
//! released.

use std::collections::BTreeMap;

use super::histogram::{FIRST_TOKEN, Reading};
use super::stats::{RequestKey, Stats};
use super::{Asked, Compared, Counters};
use crate::fleet::{METHODS, Method};

/// The counts of one endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deeds {
    /// Finished requests, with keys that leave the slot out.
    pub requests: BTreeMap<RequestKey, u64>,
    /// The requests that it was sent with a prediction.
    pub sent: Asked,
    /// Predictions of its cache beside what its replies told, by method.
    pub compared: [Compared; METHODS],
    /// Requests that failed by its fault.
    pub faults: u64,
    /// Connects to it that failed.
    pub connect_failures: u64,
    /// Its times to first token.
    pub first_tokens: Reading,
}

impl Default for Deeds {
    fn default() -> Self {
        Deeds {
            requests: BTreeMap::new(),
            sent: Asked::default(),
            compared: Default::default(),
            faults: 0,
            connect_failures: 0,
            first_tokens: Reading::new(&FIRST_TOKEN),
        }
    }
}

impl Deeds {
    /// The counts that came since `before`.
    #[must_use]
    pub fn since(mut self, before: &Deeds) -> Deeds {
        for (key, count) in &mut self.requests {
            *count = count.saturating_sub(before.requests.get(key).copied().unwrap_or(0));
        }
        // Rows of the slot's former endpoint have counted nothing since.
        self.requests.retain(|_, count| *count > 0);
        self.sent = self.sent.since(before.sent);
        self.compared.iter_mut().zip(before.compared).for_each(|(all, before)| *all = all.since(before));
        // At a slot these are counted in 32 bits.
        let since = |count: u64, before: u64| u64::from((count as u32).wrapping_sub(before as u32));
        self.faults = since(self.faults, before.faults);
        self.connect_failures = since(self.connect_failures, before.connect_failures);
        self.first_tokens.take_off(&before.first_tokens);
        self
    }

    /// Adds other counts.
    pub fn add(&mut self, more: &Deeds) {
        for (key, count) in &more.requests {
            *self.requests.entry(*key).or_default() += count;
        }
        self.sent.add(more.sent);
        self.compared.iter_mut().zip(more.compared).for_each(|(all, more)| all.add(more));
        self.faults += more.faults;
        self.connect_failures += more.connect_failures;
        self.first_tokens.add(&more.first_tokens);
    }

    /// Predictions of its cache by all methods together, beside what its replies told.
    pub fn compared_in_all(&self) -> Compared {
        let mut all = Compared::default();
        self.compared.iter().for_each(|compared| all.add(*compared));
        all
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Deeds::default()
    }
}

/// The counts at slots at one moment, of all endpoints that have had them.
#[derive(Debug)]
pub struct Counted {
    requests: Vec<(RequestKey, u64)>,
    counters: &'static Counters,
    stats: &'static Stats,
}

impl Counted {
    /// Reads the tables of finished requests, once for all slots.
    pub fn read(counters: &'static Counters, stats: &'static Stats) -> Counted {
        Counted { requests: stats.requests(|_| true), counters, stats }
    }

    /// Reads them for a few slots.
    pub fn read_at(slots: &[u16], counters: &'static Counters, stats: &'static Stats) -> Counted {
        Counted { requests: stats.requests(|slot| slots.contains(&slot)), counters, stats }
    }

    /// The counts at one slot; at [`RequestKey::NONE`] those of requests for which no endpoint was chosen.
    pub fn at(&self, slot: u16) -> Deeds {
        let begin = self.requests.partition_point(|(key, _)| key.slot < slot);
        let here = self.requests.iter().skip(begin).take_while(|(key, _)| key.slot == slot);
        Deeds {
            requests: here.map(|(key, count)| (RequestKey { slot: RequestKey::NONE, ..*key }, *count)).collect(),
            sent: self.counters.predictions().sent_in_all(slot),
            compared: Method::ALL.map(|method| self.counters.predictions().compared(slot, method)),
            faults: self.counters.outcomes().read(slot).faults.into(),
            connect_failures: self.counters.outcomes.connect_failures(slot).into(),
            first_tokens: self.stats.first_tokens(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Prediction;

    #[test]
    fn what_a_tenant_did_is_what_came_since() {
        let (counters, stats) = (Counters::leak(), Stats::leak(2));
        let does = |slot: u16, status: u16| {
            stats.shard(0).request(RequestKey { pool: 1, slot, status, reason: 3 });
            stats.shard(1).first_token_of(slot, 1_500);
            let prediction = Prediction {
                method: Method::Warm,
                tokens: 100,
                held: 60,
                text_bytes: 0,
                batch: false,
                omits_zero: false,
            };
            counters.predictions().asked(slot, &prediction);
            counters.predictions().told(slot, &prediction, 100, Some(50));
            counters.outcomes().fault(slot);
            counters.outcomes.connect_failed(slot);
        };
        does(5, 200);
        does(5, 500);
        does(6, 200);
        let before = Counted::read(counters, stats).at(5);
        assert!(before.clone().since(&before).is_empty() && !before.is_empty());
        does(5, 200);
        let nothing_chosen = RequestKey { pool: 1, slot: RequestKey::NONE, status: 503, reason: RequestKey::NO_REASON };
        stats.shard(0).request(nothing_chosen);
        let counted = Counted::read(counters, stats);
        let since = counted.at(5).since(&before);
        let key = RequestKey { pool: 1, slot: RequestKey::NONE, status: 200, reason: 3 };
        assert_eq!(since.requests, BTreeMap::from([(key, 1)]));
        assert_eq!((since.sent.requests, since.sent.tokens, since.sent.held), (1, 100, 60));
        assert_eq!((since.faults, since.connect_failures), (1, 1));
        assert_eq!(since.compared_in_all(), Compared::of(1, 60, 50));
        assert_eq!((since.first_tokens.count(), since.first_tokens.sum), (1, 1_500));
        let mut both = before;
        both.add(&since);
        assert_eq!(both, counted.at(5));
        assert_eq!(counted.at(RequestKey::NONE).requests.values().sum::<u64>(), 1);
        assert!(counted.at(7).is_empty());
    }
}
