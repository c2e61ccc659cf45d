//! What holds between any two turns, and at the end.

use warmfront::counters::stats::Count;
use warmfront::exchange::{End, Record};
use warmfront::shard::Audit;

use crate::control::Control;
use crate::plan::Kind;
use crate::schedule::{Schedule, faults};
use crate::shadow::ENDPOINTS;
use crate::tally::Tally;

/// Requests that a shard may send again whatever came before.
const SAVED_MAX: usize = 10;

impl Schedule {
    pub fn check(&self) {
        let audits: Vec<(usize, Audit)> =
            self.shards.iter().enumerate().filter_map(|(at, shard)| Some((at, shard.as_ref()?.audit()))).collect();
        // Of a shard that has ended its charges go with it.
        for slot in 0..ENDPOINTS {
            let of = |by_slot: &[u32]| by_slot.get(slot).copied().unwrap_or(0);
            let counted: u32 = audits.iter().map(|(_, audit)| of(&audit.legs) + of(&audit.charged)).sum();
            assert_eq!(self.statics.counters.in_flight(slot as u16), counted, "in flight at {slot}: {audits:?}");
        }
        assert_eq!(self.statics.counters.underflow(), 0);
        let waiting: u32 = audits.iter().map(|(_, audit)| audit.waiting).sum();
        assert_eq!(self.statics.counters.queue().waiting(), waiting, "{audits:?}");
        assert!(audits.iter().all(|(_, audit)| audit.waiting_unseen == 0), "forgotten in the queue: {audits:?}");
        self.check_stats();
        audits.iter().for_each(|(_, audit)| self.check_bounds(audit));
        let network = self.network.borrow();
        let (lease, limits) = (network.knobs.lease_max, &self.rules.limits);
        let backlog = network.pipes.iter().map(|pipe| pipe.backlog.len()).max().unwrap_or(0);
        assert!(backlog <= 3 * lease + 2 * limits.head_bytes_max + 40_000, "{backlog} bytes wait for one socket");
        network.control.iter().for_each(Control::check_index);
        self.check_executions();
        for place in 0..self.shards.len() {
            self.check_retries(place);
        }
    }

    fn check_stats(&self) {
        let now = Tally::of_stats(self.statics.stats);
        assert_eq!(now.panicked - self.before.panicked, faults() - self.before.faults, "an exchange panicked");
        assert_eq!(now.accounts_differ, self.before.accounts_differ, "accounts differ");
    }

    fn check_bounds(&self, audit: &Audit) {
        let (lease, limits) = (self.network.borrow().knobs.lease_max, &self.rules.limits);
        assert_eq!(audit.held_bytes, audit.held_account, "{audit:?}");
        assert_eq!(audit.waiting_bytes, audit.waiting_account, "{audit:?}");
        assert!(limits.budget_bytes == 0 || audit.waiting_account <= limits.budget_bytes / 2, "{audit:?}");
        assert_eq!(audit.unwatched, 0, "clients without a timer: {audit:?}");
        assert!(audit.ahead_bytes_most <= limits.head_bytes_max.max(limits.read_ahead_bytes) + lease, "{audit:?}");
        // What was read ahead is held at once.
        let held_most = limits.head_bytes_max + limits.hold_bytes + limits.read_ahead_bytes + 2 * lease + 1_024;
        assert!(audit.held_bytes_most <= held_most, "{audit:?}");
    }

    /// Once, or once more behind a refusal that says it was not executed.
    fn check_executions(&self) {
        let play = &self.play;
        for (at, plan) in play.plans.iter().enumerate() {
            let (executed, seen, refused) = (play.executed[at], play.seen[at], play.refused[at]);
            let once = executed <= 1 && seen <= 2 && seen <= 1 + refused;
            assert!(once, "{}: executed {executed} times, read {seen} times, refused {refused} times", plan.id);
        }
    }

    /// A share of the requests, and some.
    fn check_retries(&self, place: usize) {
        let network = self.network.borrow();
        let Some(shadow) = &network.shadow else { return };
        let again = shadow.again[place];
        let here = |client: &&crate::client::Client| client.pipe.is_some_and(|pipe| network.pipes[pipe].shard == place);
        let begun: usize = self.clients.iter().filter(here).map(|client| client.begun(&self.play)).sum();
        let most = SAVED_MAX + begun * self.rules.limits.retry_percent as usize / 100;
        assert!(again as usize <= most, "shard {place} sent {again} of {begun} again");
    }

    /// The shard's last turn is over.
    pub fn check_ended(&mut self, place: usize) {
        let Some(shard) = self.shards[place].take() else { return };
        let audit = shard.audit();
        assert_eq!((audit.clients, audit.held_account, audit.waiting_account), (0, 0, 0), "{audit:?}");
        drop(shard);
        let network = &mut *self.network.borrow_mut();
        if let Some(shadow) = &mut network.shadow {
            shadow.shard_ends(place);
        }
        // With the process the kernel closes what it had.
        let (pipes, random) = (&mut network.pipes, &mut network.random);
        for pipe in pipes.iter_mut().filter(|pipe| pipe.shard == place && pipe.open && pipe.address.is_some()) {
            pipe.close(random);
        }
    }

    /// Failed requests are let go of once their time is over.
    pub fn let_charges_expire(&mut self) {
        self.network.borrow_mut().now += self.rules.limits.failed_charge_ms * 1_000;
        for shard in self.shards.iter_mut().flatten() {
            shard.turn().expect("a kernel that does not fail");
            if let Some(shadow) = &mut self.network.borrow_mut().shadow {
                shadow.turn_ends();
            }
        }
    }

    pub fn check_end(self) -> Tally {
        for shard in self.shards.iter().flatten() {
            let audit = shard.audit();
            let left = (audit.clients, audit.held_account, audit.upstreams, audit.charged.iter().sum::<u32>());
            assert_eq!((left, audit.waiting_account), ((0, 0, 0, 0), 0), "{audit:?}");
        }
        for slot in 0..ENDPOINTS as u16 {
            assert_eq!(self.statics.counters.in_flight(slot), 0, "still in flight at {slot}");
            assert_eq!(self.statics.counters.loads().pending(slot), 0, "tokens are still pending at {slot}");
        }
        assert_eq!(self.statics.counters.queue().waiting(), 0, "still in the queue");
        self.check_stats();
        let network = &mut *self.network.borrow_mut();
        if let (Some(control), Some(shadow)) = (&mut network.control, &mut network.shadow) {
            control.check_ways_out(network.now, shadow);
        }
        let clients = network.pipes.iter().filter(|pipe| pipe.is_client() && pipe.open).count();
        assert_eq!((clients, network.in_transit.len()), (0, 0), "sockets of clients nobody owns");
        let upstreams = network.pipes.iter().filter(|pipe| pipe.address.is_some() && pipe.open).count();
        assert_eq!(upstreams, 0, "sockets of engines nobody owns");
        if self.style.calm {
            self.clients.iter().for_each(|client| client.assert_served(&self.play));
        }
        let stats = self.statics.stats;
        assert_eq!(stats.total(Count::Accepted), stats.total(Count::Closed), "clients accepted and closed");
        let ends = [Count::QueueReleased, Count::QueuePushedOut, Count::QueueTimedOut, Count::QueueUnserved];
        let ended = ends.map(|end| stats.total(end)).iter().sum::<u64>() + stats.total(Count::AbortedQueue);
        let (begun, torn) = (stats.total(Count::Queued), stats.total(Count::Panicked));
        assert!((ended..=ended + torn).contains(&begun), "{begun} began to wait, {ended} ended that, {torn} were torn");
        let mut tally = Tally::of_stats(stats) - self.before;
        tally.requests = self.play.plans.len();
        tally.executed = self.play.executed.iter().sum::<u32>() as usize;
        tally.tunnelled = self.play.tunnelled;
        for client in &self.clients {
            tally.replies += client.replies;
            tally.by_engines += client.by_engines;
            tally.told += client.told;
        }
        (tally.handed_over, tally.handed_over_late) = (network.handed_over, network.handed_over_late);
        tally.accepted_last = network.accepted_last;
        let offered = network.shadow.as_ref().map_or(0, |shadow| shadow.offered());
        self.check_finished(&tally, offered);
        tally.told_whole = self.check_records(&tally);
        tally.slots_given = network.control.as_ref().map_or(0, |control| control.slots_given);
        self.check_held(network, &mut tally);
        tally
    }

    /// The access log is told of each request once: of all that were offered to an engine, answered, finished or torn,
    /// and of none that was not. Answers how many were whole.
    fn check_records(&self, tally: &Tally) -> usize {
        let times = |id: &str| self.told.iter().filter(|told| told.request_id.as_bytes() == id.as_bytes()).count();
        if !self.rules.access_log && self.rules.receipts == 0 {
            assert!(self.told.is_empty(), "told while it was off");
            return 0;
        }
        assert_eq!(tally.records_dropped, 0);
        for client in &self.clients {
            for (number, &plan) in client.plans().iter().enumerate() {
                let id = &self.play.plans[plan].id;
                let told = times(id);
                let answered = number < client.replies && self.play.plans[plan].kind != Kind::Garbage;
                assert!(told <= usize::from(self.play.begun[plan]), "{id} told {told} times");
                // Of a head that came in time for no answer but a refusal nothing is known.
                let nameless = answered && self.play.seen[plan] == 0 && told == 0;
                assert!(told == 1 || nameless || (!answered && self.play.seen[plan] == 0), "{id} told {told} times");
            }
        }
        let nameless = || self.told.iter().filter(|record| record.request_id.as_bytes().is_empty());
        let is_known = |record: &Record| matches!(record.status, 400 | 408 | 431) || record.end == End::Fault;
        nameless().for_each(|record| assert!(is_known(record), "{record:?}"));
        // Each is the last of its connection.
        assert!(nameless().count() <= self.clients.len());
        let replies: usize = self.clients.iter().map(|client| client.replies).sum();
        assert!(replies <= self.told.len(), "{} told, {replies} answered", self.told.len());
        for record in &self.told {
            assert_eq!((record.logged, record.compared.is_some()), (self.rules.access_log, record.endpoint.is_some()));
            assert!(record.runner_up.is_none() || record.runner_up != record.endpoint, "{record:?}");
            assert!(record.held_tokens <= record.prompt_tokens.or(Some(0)), "{record:?}");
            assert!(record.chain.is_none() || self.rules.access_chain, "{record:?}");
        }
        // What a fault tears behind its end was told of before.
        let torn = self.told.iter().filter(|record| record.end == End::Fault).count();
        assert!(torn <= tally.panicked as usize, "{torn} torn");
        assert_eq!(self.told.iter().filter(|record| record.pool.is_some()).count(), tally.finished as usize);
        self.told.iter().filter(|record| record.end == End::Whole).count()
    }

    /// Every request that reached an engine is accounted for, each once; those that a fault of ours ended where their
    /// pool was known.
    fn check_finished(&self, tally: &Tally, offered: usize) {
        let begun: usize = self.clients.iter().map(|client| client.begun(&self.play)).sum();
        // What was meant for a tunnel that was refused is read as a head, which a fault may end as well.
        let tunnels = self.play.plans.iter().filter(|plan| plan.kind == Kind::Upgrade).count();
        let (finished, faults) = (tally.finished as usize, tally.panicked as usize);
        let once = offered <= finished + faults && finished <= begun && faults <= begun + tunnels;
        assert!(once, "{finished} finished and {faults} torn of {begun}, {offered} of them offered");
    }
}
