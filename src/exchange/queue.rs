//! Waiting for room: a request whose endpoint has none stands in the queue of all shards, and goes when it is its turn.
//!
//! It is chosen for anew each time, with what is known then. Its place is given back by whatever ends it.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::event::Context;
use super::refusals::{self, Refused};
use super::warm::{self, LookedUp};
use super::{Exchange, Phase, Waiting};
use crate::config::{Cidr, Config};
use crate::counters::queue::{Newcomer, Place, Seen, Tenant};
use crate::counters::stats::{Event as Count, Timing};
use crate::http::{Known, RequestHead};
use crate::policy::{self, Choice, Queueing};
use crate::snapshot::Pool;

/// How requests wait: `[queue]`.
#[derive(Clone, Debug, Default)]
pub struct QueueRules {
    waiting_max: u32,
    timeout_ms: u64,
    tenant_header: Box<str>,
    priority_from: Vec<Cidr>,
    /// By the hash of what names a tenant.
    weights: HashMap<u64, u32>,
}

impl From<&Config> for QueueRules {
    fn from(config: &Config) -> QueueRules {
        let weights = config.queue.weights.iter();
        QueueRules {
            waiting_max: config.queue.waiting_max,
            timeout_ms: config.queue.timeout_ms,
            tenant_header: config.queue.tenant_header.as_str().into(),
            priority_from: config.queue.priority_from.clone(),
            weights: weights.map(|(tenant, weight)| (xxh3_64(tenant.as_bytes()), *weight)).collect(),
        }
    }
}

/// Who asks, and how urgently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    tenant: Tenant,
    /// `None`: what the peer says of it is not believed.
    priority: Option<i8>,
}

impl Asker {
    /// As far as the head tells.
    pub(super) fn of(head: &RequestHead<'_>, peer: std::net::IpAddr, rules: &QueueRules) -> Asker {
        let named = (!rules.tenant_header.is_empty()).then(|| head.get(&rules.tenant_header)).flatten();
        let tenant = named.map(xxh3_64).map(|hash| Tenant::of(hash, rules.weights.get(&hash).copied().unwrap_or(1)));
        let believed = rules.priority_from.iter().any(|network| network.contains(peer));
        let mut said = head.list.known(Known::XWarmfrontPriority);
        let said = said.next().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        Asker { tenant: tenant.unwrap_or(Tenant::ONLY), priority: believed.then(|| said.map_or(0, clamped)) }
    }

    /// The body says it too; the header wins.
    pub(super) fn says(&mut self, priority: Option<i64>) {
        if let (Some(usual @ 0), Some(said)) = (&mut self.priority, priority) {
            *usual = clamped(said);
        }
    }
}

/// Beyond an i8 all are as urgent, or as little.
fn clamped(priority: i64) -> i8 {
    priority.clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

/// A request in the queue, and what a further choice needs of its prompt.
#[derive(Debug)]
pub(super) struct Queued {
    place: Place,
    looked_up: LookedUp,
    chain: Box<[u64]>,
    steps: Box<[u64]>,
    prompt_bytes: u64,
}

impl Exchange {
    /// Whether this choice has to wait: for room, or for others that wait for the same endpoint.
    pub(super) fn has_to_wait(&self, choice: &Choice, pool: &Pool, cx: &Context<'_>) -> bool {
        if pool.settings.queue == Queueing::Off || choice.tokens.is_none() || !self.body.done() {
            return false;
        }
        // Who waited already was let look because it is its turn.
        let may_go =
            choice.room && (self.queued.is_some() || cx.counters.queue().lets_pass(&self.newcomer(choice, cx)));
        !may_go && policy::waiting_pays(pool, cx.counters.loads(), choice)
    }

    fn newcomer(&self, choice: &Choice, cx: &Context<'_>) -> Newcomer {
        Newcomer {
            priority: self.asked.asker.priority.unwrap_or(0),
            tenant: self.asked.asker.tenant,
            held: choice.tokens.map_or(0.0, |tokens| tokens.held as f32 / (tokens.held + tokens.new).max(1) as f32),
            new: choice.tokens.map_or(0, |tokens| tokens.new),
            endpoint: choice.endpoint.slot,
            shard: cx.lender.shard,
        }
    }

    /// Waits for the endpoint of this choice, which knows of what had been `seen`.
    pub(super) fn wait_for_room(&mut self, choice: &Choice, seen: Seen, looked_up: LookedUp, cx: &mut Context<'_>) {
        let newcomer = self.newcomer(choice, cx);
        if let Some(queued) = &self.queued {
            return queued.place.aims_at(newcomer.endpoint, newcomer.new, seen);
        }
        let rules = &cx.rules.queue;
        let Some(place) = cx.counters.queue().join(&newcomer, rules.waiting_max, cx.now) else {
            cx.stats.count(Count::QueueFull);
            return self.refuse_for_load(refusals::QUEUE_FULL, cx);
        };
        if !choice.room {
            // It has looked.
            place.aims_at(newcomer.endpoint, newcomer.new, seen);
        }
        cx.stats.count(Count::Queued);
        let (chain, steps) = (cx.lender.chain.as_slice().into(), cx.lender.steps.as_slice().into());
        self.queued = Some(Box::new(Queued { place, looked_up, chain, steps, prompt_bytes: cx.lender.prompt_bytes }));
        self.phase = Phase::Queue;
        self.wait(cx.now, rules.timeout_ms, Waiting::Room);
    }

    /// It may be its turn: chooses anew, and stays where it is if there is still no room.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        let Some(queued) = &self.queued else { return };
        if !queued.place.stands() {
            cx.stats.count(Count::QueuePushedOut);
            return self.refuse_for_load(refusals::PUSHED_OUT, cx);
        }
        let snapshot = cx.snapshot;
        let pool = self.pool.and_then(|id| snapshot.pools.get(id.0 as usize));
        cx.lender.chain.clear();
        cx.lender.chain.extend_from_slice(&queued.chain);
        cx.lender.steps.clear();
        cx.lender.steps.extend_from_slice(&queued.steps);
        cx.lender.prompt_bytes = queued.prompt_bytes;
        let looked_up = pool.and_then(|pool| warm::look_up_again(queued.looked_up, pool, snapshot, cx.lender));
        self.choose_endpoint(looked_up, cx);
    }

    /// An endpoint was chosen, which computes so many tokens: its wait is over, if it waited at all.
    pub(super) fn leave_queue(&mut self, new: u32, cx: &Context<'_>) {
        let Some(queued) = self.queued.take() else {
            return cx.counters.queue().passed(self.asked.asker.tenant, new);
        };
        let waited = queued.place.waited(cx.now);
        self.waited = Some(waited);
        if let Some(pool) = self.pool {
            cx.stats.observe(pool.0, Timing::Queue, waited);
        }
        cx.stats.count(Count::QueueReleased);
        queued.place.released(new, cx.now);
    }

    /// How it stands in the queue, if it does.
    pub fn place(&self) -> Option<&Place> {
        self.queued.as_ref().map(|queued| &queued.place)
    }

    /// There was no room within the time for it.
    pub(super) fn waited_in_vain(&mut self, cx: &mut Context<'_>) {
        cx.stats.count(Count::QueueTimedOut);
        self.refuse_for_load(refusals::NO_ROOM_IN_TIME, cx);
    }

    /// Says when to come back: when the queue as it is will have drained.
    fn refuse_for_load(&mut self, refusal: crate::http::Refusal, cx: &mut Context<'_>) {
        self.waited = self.place().map(|place| place.waited(cx.now));
        // It does not stand in its own way.
        self.queued = None;
        let retry_after = Some(cx.counters.queue().wait_seconds(cx.now));
        self.refuse(Refused { retry_after, ..refusal.into() }, cx);
    }
}
