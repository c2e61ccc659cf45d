//! Waiting for room: a request whose endpoint has none stands in the queue of all shards, and goes when it is its turn.
//!
//! It is chosen for anew each time, with what is known then. Its place is given back by whatever ends it.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::draft::Lap;
use super::event::Context;
use super::kept::Kept;
use super::refusals::{self, Refused};
use super::warm::{self, LookedUp};
use super::{Exchange, Phase, Waiting};
use crate::config::{Cidr, Config, PriorityFirst};
use crate::counters::queue::{Newcomer, Place, Seen, Tenant};
use crate::counters::stats::{Count, Timing};
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
    priority_first: PriorityFirst,
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
            priority_first: config.queue.priority_first,
            weights: weights
                .map(|(tenant, weight)| (named_by(&config.queue.tenant_header, tenant.as_bytes()), *weight))
                .collect(),
        }
    }
}

impl QueueRules {
    /// Whether this peer's word on priority is believed.
    pub(super) fn believes(&self, peer: std::net::IpAddr) -> bool {
        self.priority_from.iter().any(|network| network.contains(peer))
    }
}

/// Who asks, and how urgently.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    tenant: Tenant,
    priority: i8,
    /// The head named no priority, and the peer is believed: the body may name one.
    is_open: bool,
}

impl Asker {
    /// As far as the head tells.
    pub(super) fn of(head: &RequestHead<'_>, peer: std::net::IpAddr, rules: &QueueRules) -> Asker {
        let header = &*rules.tenant_header;
        let named = match header {
            "" => None,
            // The one that engines judge.
            AUTHORIZATION => head.fields.get(header),
            // Proxies on the way add their field behind the client's: the last one counts.
            _ => head.fields.all(header).last(),
        };
        let hash = named.map(|value| named_by(header, value));
        let tenant = hash.map(|hash| Tenant::of(hash, rules.weights.get(&hash).copied().unwrap_or(1)));
        let believed = rules.believes(peer);
        let said = head.fields.known(Known::XWarmfrontPriority).last().filter(|_| believed);
        Asker {
            tenant: tenant.unwrap_or(Tenant::ONLY),
            priority: said.map_or(0, urgency),
            is_open: believed && said.is_none(),
        }
    }

    /// Its priority as the queue has it, the lowest first.
    fn in_order(self, rules: &QueueRules) -> Asker {
        let priority = match rules.priority_first {
            PriorityFirst::Lowest => self.priority,
            PriorityFirst::Highest => self.priority.saturating_neg(),
        };
        Asker { priority, ..self }
    }

    /// For a client that no engine is known to let in: its priority is not believed, and it counts as the tenant of all
    /// strangers, not as the one it claims to be.
    fn as_a_stranger(self, rules: &QueueRules) -> Asker {
        let tenant = if rules.tenant_header.is_empty() { self.tenant } else { Tenant::STRANGERS };
        Asker { tenant, priority: self.priority.max(0), ..self }
    }

    /// The body says it too; the header wins.
    pub(super) fn says(&mut self, priority: Option<i64>) {
        if let Some(said) = priority.filter(|_| self.is_open) {
            self.priority = clamped(said);
        }
    }
}

const AUTHORIZATION: &str = "authorization";

/// The hash of what names a tenant in a field of this name. Of a credential the scheme's case says nothing (RFC 9110,
/// 11.1): one key is one tenant, however it is written.
fn named_by(header: &str, value: &[u8]) -> u64 {
    let scheme = if header == AUTHORIZATION { memchr::memchr(b' ', value).unwrap_or(0) } else { 0 };
    let (scheme, rest) = value.split_at(scheme);
    let of_scheme = scheme.iter().fold(0, |hash: u64, byte| hash.rotate_left(8) ^ u64::from(byte.to_ascii_lowercase()));
    xxh3_64_with_seed(rest, of_scheme)
}

/// The priority that a header names: 0 if it is no number, clamped if it is beyond an i8.
fn urgency(said: &[u8]) -> i8 {
    let (digits, sign) = match said {
        [b'-', digits @ ..] => (digits, -1),
        [b'+', digits @ ..] => (digits, 1),
        digits => (digits, 1),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let number =
        digits.iter().fold(0i64, |number, digit| number.saturating_mul(10).saturating_add((digit - b'0').into()));
    clamped(sign * number)
}

/// Clamps to an i8: beyond it all are equally urgent.
fn clamped(priority: i64) -> i8 {
    priority.clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

/// A request in the queue, and what a further choice needs of its prompt.
#[derive(Debug)]
pub(super) struct Queued {
    place: Place,
    prompt: Kept,
    /// What is held of its body, all of which is there.
    body_bytes: usize,
    /// Too much is held since it came: it has yet to turn out who goes, and it counts as one who waits once others did.
    may_go_at_once: bool,
}

impl Exchange {
    /// Whether this choice has to wait: for room, or behind others that wait for the same endpoint. Bodies that are not
    /// complete, or longer than `hold_bytes` (held whole only because the model came late), do not wait: held as long
    /// as a queue lasts, they would take all memory for bodies.
    pub(super) fn has_to_wait(&self, choice: &Choice, pool: &Pool, cx: &Context<'_>) -> bool {
        let is_short = self.upload.body.done() && self.upload.bytes <= cx.rules.limits.hold_bytes as u64;
        if pool.settings.queue == Queueing::Off || choice.tokens.is_none() || !is_short {
            return false;
        }
        // Who waited already was let look because it is its turn.
        let may_go =
            choice.room && (self.queued.is_some() || cx.counters.queue().lets_pass(&self.newcomer(choice, cx)));
        !may_go && policy::waiting_pays(pool, cx.counters.loads(), choice)
    }

    /// Who asks, as far as that is believed.
    fn asker(&self, cx: &Context<'_>) -> Asker {
        let rules = &cx.rules.queue;
        let asker = self.asked.asker.in_order(rules);
        if self.stranger { asker.as_a_stranger(rules) } else { asker }
    }

    fn newcomer(&self, choice: &Choice, cx: &Context<'_>) -> Newcomer {
        let Asker { priority, tenant, .. } = self.asker(cx);
        Newcomer {
            priority,
            tenant,
            held: choice.tokens.map_or(0.0, |tokens| tokens.held as f32 / (tokens.held + tokens.new).max(1) as f32),
            new: choice.tokens.map_or(0, |tokens| tokens.new),
            needs: choice.needs,
            endpoint: choice.endpoint.slot,
            shard: cx.lender.shard,
        }
    }

    /// No endpoint has room yet for this request, which stays in the queue.
    pub(super) fn looked_in_vain(&self, seen: Seen) {
        if let Some(place) = self.place() {
            place.aims_at(place.endpoint(), place.needs(), seen);
        }
    }

    /// Waits for the endpoint of this choice, which knows of what had been `seen`.
    pub(super) fn wait_for_room(&mut self, choice: &Choice, seen: Seen, looked_up: LookedUp, cx: &mut Context<'_>) {
        self.draft.took_for(choice.tokens);
        let newcomer = self.newcomer(choice, cx);
        if let Some(queued) = &self.queued {
            return queued.place.aims_at(newcomer.endpoint, newcomer.needs, seen);
        }
        let rules = &cx.rules.queue;
        let Some(place) = cx.counters.queue().join(&newcomer, rules.waiting_max, cx.now) else {
            cx.stats.count(Count::QueueFull);
            return self.refuse_for_load(refusals::QUEUE_FULL, newcomer.endpoint, cx);
        };
        if !choice.room {
            // It has looked.
            place.aims_at(newcomer.endpoint, newcomer.needs, seen);
        }
        let (prompt, body_bytes) = (Kept::to_choose(looked_up, cx.lender), self.upload.held.capacity());
        cx.lender.held_bytes += prompt.bytes();
        cx.lender.waiting_bytes += prompt.bytes() + body_bytes;
        self.queued = Some(Box::new(Queued { place, prompt, body_bytes, may_go_at_once: true }));
        if !cx.lender.waits_too_much() {
            self.stays_in_queue(cx);
        }
        self.phase = Phase::Queue;
        self.wait(cx.now, rules.timeout_ms, Waiting::Room);
    }

    /// It was not shed for the memory that it holds: counts it as queued, once.
    pub fn stays_in_queue(&mut self, cx: &Context<'_>) {
        if self.queued.as_deref_mut().is_some_and(|queued| std::mem::take(&mut queued.may_go_at_once)) {
            cx.stats.count(Count::Queued);
        }
    }

    /// It may be its turn: chooses anew, and stays where it is if there is still no room.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        let Some(queued) = &mut self.queued else { return };
        if !queued.place.stands() {
            let endpoint = queued.place.endpoint();
            // It came in this turn, and never waited.
            if queued.place.waited(cx.now) == 0 && std::mem::take(&mut queued.may_go_at_once) {
                drop(self.give_up_place(cx));
                cx.stats.count(Count::QueueFull);
                return self.refuse_for_load(refusals::QUEUE_FULL, endpoint, cx);
            }
            self.stays_in_queue(cx);
            cx.stats.count(Count::QueuePushedOut);
            return self.refuse_for_load(refusals::PUSHED_OUT, endpoint, cx);
        }
        self.stays_in_queue(cx);
        let Some(queued) = &self.queued else { return };
        let snapshot = cx.snapshot;
        let pool = self.pool_in(snapshot);
        let looked_up = queued.prompt.lend(cx.lender);
        let looked_up = pool.and_then(|pool| warm::look_up_again(looked_up, pool, snapshot, cx.lender));
        self.choose_endpoint(looked_up, cx);
    }

    /// What one who waits as a stranger shows may have been let in meanwhile: it waits on as its own tenant, for whom
    /// room is kept. Asked of all before any of them looks: one behind a tenant that finds no room has no look itself.
    pub fn may_be_known_by_now(&mut self, cx: &Context<'_>) {
        cx.may_break();
        if self.queued.is_none() || !self.stranger || self.names_nobody || self.is_strange_to(self.pool, cx) {
            return;
        }
        self.stranger = false;
        let Asker { priority, tenant, .. } = self.asker(cx);
        if let Some(queued) = &mut self.queued {
            queued.place.turns_out_to_be_of(tenant, priority);
        }
    }

    /// An endpoint was chosen, which computes so many tokens: its wait is over, if it waited at all.
    pub(super) fn leave_queue(&mut self, new: u32, choice: &Choice, cx: &mut Context<'_>) {
        let Some(place) = self.give_up_place(cx) else {
            let goes = Newcomer { new, ..self.newcomer(choice, cx) };
            match self.paid {
                None => self.paid = cx.counters.queue().passed(&goes),
                Some(_) => cx.counters.queue().takes_place(goes.endpoint),
            }
            return;
        };
        let waited = place.waited(cx.now);
        self.draft.waited = Lap::lasting(waited);
        if let Some(pool) = self.pool {
            cx.stats.observe(pool.0, Timing::Queue, waited);
        }
        cx.stats.count(Count::QueueReleased);
        self.paid.get_or_insert(place.released(new, cx.now));
    }

    /// Its engine refused it, or none got it: its tenant gets the turn back, so that a caller without a key cannot use
    /// up the turns of a tenant that it only claims to be. Strangers get none back: they would always come first.
    pub(super) fn pay_back(&mut self, cx: &Context<'_>) {
        if let Some(paid) = self.paid.take().filter(|paid| !paid.is_a_strangers()) {
            cx.counters.queue().repaid(paid);
        }
    }

    /// Whatever comes of it, it waits no more: its place, if it had one, and its prompt is kept no longer.
    pub(super) fn give_up_place(&mut self, cx: &mut Context<'_>) -> Option<Place> {
        self.stays_in_queue(cx);
        let Queued { place, prompt, body_bytes, .. } = *self.queued.take()?;
        cx.lender.held_bytes -= prompt.bytes();
        cx.lender.waiting_bytes -= prompt.bytes() + body_bytes;
        Some(place)
    }

    /// The memory that is kept of its prompt while it waits.
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued.as_ref().map_or(0, |queued| queued.prompt.bytes())
    }

    /// How it stands in the queue, if it does.
    pub fn place(&self) -> Option<&Place> {
        self.queued.as_ref().map(|queued| &queued.place)
    }

    /// It has waited for as long as a request may: 429.
    pub(super) fn waited_in_vain(&mut self, cx: &mut Context<'_>) {
        cx.stats.count(Count::QueueTimedOut);
        let endpoint = self.place().map_or(0, Place::endpoint);
        self.refuse_for_load(refusals::NO_ROOM_IN_TIME, endpoint, cx);
    }

    /// Says when to come back: when the queue for this endpoint and those beside it will have drained as it is.
    fn refuse_for_load(&mut self, refusal: crate::http::Refusal, endpoint: u16, cx: &mut Context<'_>) {
        if let Some(place) = self.place() {
            self.draft.waited = Lap::lasting(place.waited(cx.now));
        }
        // Its own place is given up first: it must not count among those before it.
        drop(self.give_up_place(cx));
        let retry_after = Some(cx.counters.queue().wait_seconds(endpoint, cx.now));
        self.refuse(Refused { retry_after, ..refusal.into() }, cx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{FieldTable, HeadLimits, Status, parse_request};

    fn rules(tenant_header: &str) -> QueueRules {
        let mut config = Config::default();
        config.queue.tenant_header = tenant_header.into();
        config.queue.weights = [("Bearer heavy".to_owned(), 7)].into();
        QueueRules::from(&config)
    }

    fn asker(rules: &QueueRules, fields: &str, body: Option<i64>) -> (Tenant, i8) {
        let text = format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
        let (mut table, limits) = (FieldTable::new(), HeadLimits { head_bytes_max: 1_024, head_fields_max: 16 });
        let Ok(Status::Complete(head)) = parse_request(text.as_bytes(), &mut table, &limits) else {
            panic!("a request")
        };
        let mut asker = Asker::of(&head, [127, 0, 0, 1].into(), rules);
        asker.says(body);
        (asker.tenant, asker.priority)
    }

    #[test]
    fn a_key_is_one_tenant_however_its_scheme_is_written() {
        let rules = rules("authorization");
        let tenant = |value: &str| asker(&rules, &format!("Authorization: {value}\r\n"), None).0;
        let heavy = tenant("Bearer heavy");
        for written in ["bearer heavy", "BEARER heavy", "bEaReR heavy"] {
            assert_eq!(tenant(written), heavy, "{written}");
        }
        assert_eq!(heavy, Tenant::of(named_by("authorization", b"bearer heavy"), 7));
        let twice = "Authorization: bearer heavy\r\nAuthorization: Bearer other\r\n";
        assert_eq!(asker(&rules, twice, None).0, heavy, "the one that engines judge");
        let others = ["Bearer Heavy", "Bearer  heavy", "Basic heavy", "heavy", "Bearer"].map(tenant);
        assert!(others.iter().all(|other| *other != heavy), "{others:?}");
    }

    /// And a stranger's is as usual at most, whichever end that is.
    #[test]
    fn the_end_that_goes_first_is_a_rule() {
        let of = |first, said: i64| {
            let rules = QueueRules { priority_first: first, priority_from: Cidr::everywhere(), ..rules("") };
            let mut asker = Asker { tenant: Tenant::ONLY, priority: 0, is_open: true };
            asker.says(Some(said));
            let asker = asker.in_order(&rules);
            (asker.priority, asker.as_a_stranger(&rules).priority)
        };
        for (said, lowest, highest) in [
            (0, (0, 0), (0, 0)),
            (-5, (-5, 0), (5, 5)),
            (5, (5, 5), (-5, 0)),
            (i64::MIN, (-128, 0), (127, 127)),
            (i64::MAX, (127, 127), (-127, 0)),
        ] {
            assert_eq!(
                (of(PriorityFirst::Lowest, said), of(PriorityFirst::Highest, said)),
                (lowest, highest),
                "{said}"
            );
        }
    }

    /// Who stands between the client and here writes its line last.
    #[test]
    fn of_several_lines_the_last_names_the_tenant() {
        let rules = rules("x-tenant");
        let tenant = |fields: &str| asker(&rules, fields, None).0;
        assert_eq!(tenant("x-tenant: made-up\r\nx-tenant: known\r\n"), tenant("x-tenant: known\r\n"));
        assert_ne!(tenant("x-tenant: made-up\r\n"), tenant("x-tenant: known\r\n"));
    }

    #[test]
    fn the_header_wins_whatever_it_says() {
        let rules = rules("");
        let of = |fields: &str, body| asker(&rules, fields, body).1;
        assert_eq!((of("", None), of("", Some(-100)), of("", Some(i64::MAX))), (0, -100, 127));
        for (said, meant) in [
            ("0", 0),
            ("-2", -2),
            ("127", 127),
            ("+5", 5),
            ("99999999999999999999", 127),
            ("-99999999999999999999", -128),
            ("", 0),
            ("-", 0),
            ("soon", 0),
        ] {
            assert_eq!(of(&format!("x-warmfront-priority: {said}\r\n"), Some(-100)), meant, "{said:?}");
        }
        assert_eq!(of("x-warmfront-priority: -9\r\nx-warmfront-priority: 3\r\n", None), 3);
    }
}
