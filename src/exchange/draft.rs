//! The record of a request while it runs, and how it is told at the end.

use std::net::SocketAddr;

use super::event::{Context, Peer};
use super::record::{Compared, End, Record, Short};
use super::{Exchange, Micros};
use crate::counters::stats::{Count, RequestKey};
use crate::fleet::EndpointId;
use crate::http::{self, RequestHead, TraceId};
use crate::limits::{BLOCK_BYTES, LOGGED_CHAIN_BYTES};
use crate::policy::{Choice, Reason, Tokens};
use crate::scan::Api;

/// Whose a request is, and when its first byte came.
#[derive(Clone, Copy)]
pub(super) struct Came {
    pub(super) peer: Peer,
    pub(super) since: Micros,
}

/// The runner-up of a choice, and how many requests it has.
pub(super) type RunnerUp = Option<(EndpointId, u32)>;

/// The part of a running request's record that is kept nowhere else. A whole record would be mostly blank, thousands of
/// times for as many streams.
pub(super) struct Draft {
    pub(super) since: Micros,
    /// Somebody wants a record of it, and has none yet.
    wanted: bool,
    /// Choices so far.
    pub(super) tries: u8,
    peer: Peer,
    method: Short<16>,
    path: Short<64>,
    trace: TraceId,
    reason: Option<Reason>,
    endpoint: Option<EndpointId>,
    runner_up: Option<EndpointId>,
    compared: Option<Compared>,
    prompt_tokens: Tally,
    held_tokens: Tally,
    /// How long it waited in the queue.
    pub(super) waited: Lap,
    chosen: Lap,
    connected: Lap,
    head: Lap,
    first_data: Lap,
    chain: Option<Box<[u64]>>,
}

/// A count of tokens, if it is known. Half the size of an `Option<u32>`: each idle stream keeps two.
#[derive(Clone, Copy)]
struct Tally(u32);

impl Tally {
    /// No prompt has so many.
    const NONE: Tally = Tally(u32::MAX);

    fn count(self) -> Option<u32> {
        Some(self.0).filter(|count| *count != Tally::NONE.0)
    }
}

/// How long something took, or how long after the request's beginning it happened, if it did. Half the size of an
/// `Option<Micros>`: each idle stream keeps five.
#[derive(Clone, Copy)]
pub(super) struct Lap(Micros);

impl Lap {
    /// Half a million years.
    const NONE: Lap = Lap(Micros::MAX);

    pub(super) fn lasting(time: Micros) -> Lap {
        Lap(time)
    }

    fn of(since: Micros, now: Micros) -> Lap {
        Lap(now.saturating_sub(since))
    }

    /// Sets it, unless it was set before.
    #[inline]
    fn first(&mut self, since: Micros, now: Micros) {
        if self.0 == Lap::NONE.0 {
            *self = Lap::of(since, now);
        }
    }

    pub(super) fn time(self) -> Option<Micros> {
        Some(self.0).filter(|time| *time != Lap::NONE.0)
    }
}

impl Draft {
    /// Begins that of a request.
    pub(super) fn of(head: &RequestHead<'_>, Came { peer, since }: Came, cx: &Context<'_>) -> Draft {
        Draft {
            since,
            wanted: cx.lender.recorder.is_some(),
            tries: 0,
            peer,
            method: Short::new(head.method),
            path: Short::new(http::without_query(head.path)),
            trace: TraceId::of(&head.fields),
            reason: None,
            endpoint: None,
            runner_up: None,
            compared: None,
            prompt_tokens: Tally::NONE,
            held_tokens: Tally::NONE,
            waited: Lap::NONE,
            chosen: Lap::NONE,
            connected: Lap::NONE,
            head: Lap::NONE,
            first_data: Lap::NONE,
            chain: None,
        }
    }

    /// The prompt was cut into this chain.
    pub(super) fn cut(&mut self, chain: &[u64], wanted: bool) {
        if self.wanted && wanted {
            const LINKS: usize = LOGGED_CHAIN_BYTES / BLOCK_BYTES;
            self.chain = Some(chain.iter().skip(LINKS - 1).step_by(LINKS).copied().collect());
        }
    }

    /// The tokens that a choice took the prompt for; it may still have to wait for room.
    pub(super) fn took_for(&mut self, tokens: Option<Tokens>) {
        if let Some(Tokens { held, new, .. }) = tokens {
            self.prompt_tokens = Tally(held.saturating_add(new));
        }
    }

    pub(super) fn chose(&mut self, choice: &Choice, runner_up: RunnerUp, now: Micros) {
        self.endpoint = Some(choice.endpoint);
        self.reason = Some(choice.reason);
        self.runner_up = runner_up.map(|(id, _)| id);
        self.compared = Some(Compared {
            in_flight: choice.in_flight,
            slots: choice.bound,
            runner_up_in_flight: runner_up.map(|(_, load)| load),
            costs: choice.costs,
        });
        self.took_for(choice.tokens);
        self.held_tokens = choice.tokens.map_or(Tally::NONE, |tokens| Tally(tokens.held));
        self.tries = self.tries.saturating_add(1);
        self.chosen.first(self.since, now);
        self.connected = Lap::NONE;
    }

    /// Of the last choice, if there was one.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    pub(super) fn connected(&mut self, now: Micros) {
        self.connected = Lap::of(self.since, now);
    }

    pub(super) fn head_came(&mut self, now: Micros) {
        self.head = Lap::of(self.since, now);
    }

    /// Some of the reply's body came.
    #[inline]
    pub(super) fn data_came(&mut self, now: Micros) {
        self.first_data.first(self.since, now);
    }
}

/// What was asked by a request that got no exchange; empty where that could not be read.
#[derive(Clone, Copy)]
pub(super) struct Heard<'a> {
    method: &'a [u8],
    path: &'a [u8],
    api: Api,
    id: &'a [u8],
    trace: TraceId,
}

impl<'a> Heard<'a> {
    pub(super) fn of(head: &RequestHead<'a>, api: Api, id: &'a [u8]) -> Heard<'a> {
        let (path, trace) = (http::without_query(head.path), TraceId::of(&head.fields));
        Heard { method: head.method, path, api, id, trace }
    }

    /// Of a head that is refused for how it is written.
    pub(super) fn of_flawed(bytes: &'a [u8]) -> Heard<'a> {
        let (method, path) = http::method_and_path(bytes).unwrap_or_default();
        Heard { method, path, api: Api::of_path(path), id: b"", trace: TraceId::NONE }
    }
}

/// A request was answered without an engine.
pub(super) fn answered(heard: Heard<'_>, came: Came, status: u16, end: End, cx: &mut Context<'_>) {
    // Pages of the front's own that were answered are no finished requests: probes ask for them several times a second.
    if end != End::Whole {
        let (slot, pool, reason) = (RequestKey::NONE, RequestKey::NONE, RequestKey::NO_REASON);
        cx.stats.request(RequestKey { slot, pool, status, reason });
        cx.stats.ends(pool, end.ended(status, false));
    }
    let client = SocketAddr::new(came.peer.ip, came.peer.port);
    let blank = Record { client, status, ..Record::BLANK };
    let Heard { method, path, api, id, trace } = heard;
    let (method, path, request_id) = (Short::new(method), Short::new(path), Short::new(id));
    hand_over(Record { method, path, api, request_id, trace, ..blank }, came.since, end, cx);
}

impl Exchange {
    /// Hands the record on with how the request ended; once, later calls do nothing.
    pub(super) fn tell(&mut self, end: End, cx: &mut Context<'_>) {
        if !std::mem::take(&mut self.draft.wanted) {
            return;
        }
        let waited = self.draft.waited.time().or_else(|| self.place().map(|place| place.waited(cx.now)));
        let draft = &mut self.draft;
        let record = Record {
            client: SocketAddr::new(draft.peer.ip, draft.peer.port),
            method: draft.method,
            path: draft.path,
            api: self.asked.api,
            request_id: Short::new(&self.asked.request_id),
            trace: draft.trace,
            pool: self.pool,
            endpoint: draft.endpoint,
            reason: draft.reason,
            runner_up: draft.runner_up,
            compared: draft.compared,
            tries: draft.tries,
            prompt_tokens: draft.prompt_tokens.count().or(self.reply.prompt_tokens),
            held_tokens: draft.held_tokens.count(),
            cached_tokens: self.reply.cached_tokens,
            completion_tokens: self.reply.completion_tokens,
            key: self.key,
            status: self.reply.status,
            streamed: self.reply.event_stream,
            request_bytes: self.upload.bytes,
            reply_bytes: self.reply.bytes,
            waited,
            chosen: draft.chosen.time(),
            connected: draft.connected.time(),
            head: draft.head.time(),
            first_data: draft.first_data.time(),
            chain: draft.chain.take(),
            ..Record::BLANK
        };
        hand_over(record, self.draft.since, end, cx);
    }
}

fn hand_over(record: Record, since: Micros, end: End, cx: &mut Context<'_>) {
    // Access log and receipts are off, perhaps since this request began.
    let Some(recorder) = cx.lender.recorder else { return };
    let mut blank = recorder.blank(cx.rules, cx.stats);
    *blank = Record {
        end,
        total: cx.now.saturating_sub(since),
        at: since.wrapping_add(cx.lender.wall_ahead.unwrap_or_default()),
        logged: cx.rules.access_log,
        ..record
    };
    if recorder.queue.push(blank).is_err() {
        cx.stats.count(Count::RecordDropped);
    }
}
