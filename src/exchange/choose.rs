//! The choice: pool, then endpoint, counted before anything else happens.

use super::draft::RunnerUp;
use super::event::{Action, Context};
use super::refusals::{self, Refused};
use super::warm::{self, LookedUp};
use super::{Exchange, Hashed, Leg, Phase, Waiting};
use crate::counters::stats::{Count, Work};
use crate::counters::{Admission, Outcomes, Own, StoredId};
use crate::fleet::{EndpointId, Loads};
use crate::http;
use crate::policy::{self, CHOICES_MAX, Choice, Cost, Nobody, Policy, Reason, Tokens};
use crate::prefix;
use crate::scan::{Api, Facts, MODEL_BYTES_MAX};
use crate::snapshot::{Pool, Selected, Snapshot};

/// Most barred endpoints that one choice skips; within milliseconds a new snapshot leaves them out.
const BARRED_PASSED_MAX: u32 = 4;
/// How often beyond [`CHOICES_MAX`] a choice is repeated because another shard took the last place below a cap. After
/// that all endpoints are taken to be at their caps.
const LOST_CAPS_MAX: u32 = 8;

impl Exchange {
    /// First choice for this request, with what the scan knows.
    pub(super) fn choose(&mut self, cx: &mut Context<'_>) {
        let begun = (cx.stopwatch)();
        let selected = self.select_pool(cx);
        let looked_up = selected.as_ref().ok().and_then(|pool| self.look_up(pool, cx));
        if let Some(scan) = &self.upload.scan {
            cx.stats.worked(Work::Scan, self.upload.scan_nanos.into());
            let facts = scan.facts();
            self.asked.media = facts.images();
            // An answer to `background` only proves that it was queued: the engine's HTTP server writes it at once.
            self.asked.proves &= !facts.background || facts.stream == Some(true);
            self.upload.give_back_scan(cx.lender);
        }
        match selected {
            Ok(_) => self.choose_endpoint(looked_up, cx),
            Err(refusal) => self.refuse(refusal, cx),
        }
        cx.stats.worked(Work::Choose, (cx.stopwatch)().saturating_sub(begun));
    }

    fn select_pool<'a>(&mut self, cx: &mut Context<'a>) -> Result<&'a Pool, Refused> {
        let facts = self.upload.scan.as_ref().map(|scan| scan.facts());
        // Counted even if nobody serves what is named: a client that sends two names may be trying which of them is
        // read.
        if facts.is_some_and(|facts| facts.duplicates > 0) {
            cx.stats.count(Count::DuplicateField);
        }
        let in_query = self.model_asked_for(facts, cx.snapshot);
        let selected = match &in_query {
            Some(model) => self.selected_by(Some(model), cx.snapshot),
            None => self.pool_it_lies_in(cx).map_or_else(|| self.selected(cx.snapshot, facts), Selected::Pool),
        };
        let pool = match selected {
            Selected::Pool(pool) => pool,
            // A stranger is not told here which models there are: an engine decides that.
            Selected::UnknownModel if self.is_strange_to(None, cx) => {
                self.names_nobody = true;
                cx.snapshot.any_pool().ok_or(refusals::NO_ENDPOINT)?
            }
            Selected::UnknownModel => {
                let in_query = in_query.as_deref().filter(|model| model.len() <= MODEL_BYTES_MAX);
                let model = in_query.or(facts.and_then(Facts::model));
                return Err(refusals::unknown_model(model.unwrap_or(b"(a name of more than 256 bytes)")));
            }
            // Without a body no model can be named, and in an API unknown here it is not known where one would stand.
            Selected::NoModel if self.names_no_model() => cx.snapshot.any_pool().ok_or(refusals::NO_ENDPOINT)?,
            Selected::NoModel => return Err(refusals::NO_MODEL.into()),
            Selected::Empty => return Err(refusals::NO_ENDPOINT.into()),
        };
        self.pool = Some(pool.id);
        self.stranger = self.names_nobody || self.is_strange_to(self.pool, cx);
        // If a header names the session, the body may not have been scanned for one.
        let session = self.session.get().or(facts.and_then(|facts| facts.session()));
        self.session = Hashed::of(session.map(|session| prefix::session_key(pool.name.as_bytes(), session)));
        let Some(facts) = facts else { return Ok(pool) };
        self.sought = self.sought.or(facts.previous.map(StoredId::of));
        // If the prompt is cut into blocks, the look-up makes the key from them.
        if !cx.snapshot.plan.chain && !self.upload.unscannable {
            self.key = facts.prefix().map(|prefix| prefix::key(pool.root.as_bytes(), facts.salt(), &prefix));
            self.shadow_key = Hashed::of(self.key);
        }
        Ok(pool)
    }

    /// The pool for the `model` that was read. A request without one, whose head came when there was a single pool,
    /// stays with that pool whatever was added since; unless that is the pool of engines that have not said what they
    /// serve, and there is a default pool for such requests.
    pub(super) fn selected<'a>(&self, snapshot: &'a Snapshot, facts: Option<&Facts>) -> Selected<'a> {
        if facts.is_some_and(Facts::model_over) {
            return snapshot.select_overlong();
        }
        self.selected_by(facts.and_then(Facts::model), snapshot)
    }

    fn selected_by<'a>(&self, model: Option<&[u8]>, snapshot: &'a Snapshot) -> Selected<'a> {
        let only = self.only.filter(|_| !snapshot.single_pool() && model.is_none_or(<[u8]>::is_empty));
        let only = only.filter(|id| snapshot.unlearnt != Some(*id) || snapshot.default_pool.is_none());
        only.and_then(|id| snapshot.live_pool(id)).map_or_else(|| snapshot.select(model), Selected::Pool)
    }

    /// The model that the query names. In a request for another protocol (`Upgrade`) it counts only if it is served:
    /// there `model` may mean something else.
    fn model_asked_for(&self, facts: Option<&Facts>, snapshot: &Snapshot) -> Option<Vec<u8>> {
        let target = || http::method_and_target(self.upload.request()).1;
        let model = model_in_query(target, facts, snapshot)?;
        let is_known = || matches!(snapshot.select(Some(&model)), Selected::Pool(_));
        (self.asked.offers.is_none() || is_known()).then_some(model)
    }

    /// The pool that was selected for it, as that stands now.
    pub(super) fn pool_in<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Pool> {
        self.pool.and_then(|id| snapshot.pool(id))
    }

    fn names_no_model(&self) -> bool {
        self.asked.api == Api::Other || (self.upload.scan.is_none() && !self.asked.encoded)
    }

    /// Chooses among the endpoints not tried yet, and asks for a connection.
    /// `looked_up`: what is known of the prompt, where tokens count.
    pub(super) fn choose_endpoint(&mut self, looked_up: Option<LookedUp>, cx: &mut Context<'_>) {
        let snapshot = cx.snapshot;
        let Some(pool) = self.pool_in(snapshot) else {
            return self.refuse(refusals::NO_ENDPOINT.into(), cx);
        };
        let matches = looked_up.and_then(|_| cx.lender.matches.take());
        let seen = cx.counters.queue().seen();
        let prompt = looked_up.zip(matches.as_deref()).map(|(looked_up, matches)| looked_up.prompt(matches));
        self.context = looked_up.map_or(0, LookedUp::context);
        let mut request = self.request(prompt, cx);
        let counted = self.count_in(pool, &mut request, cx);
        let elsewhere = |choice: &Choice| prompt.map(|prompt| prompt.tokens_at(pool, choice.endpoint.slot));
        let tokens = counted.choice().and_then(|choice| choice.tokens.or_else(|| elsewhere(choice)));
        let lots = (request.random, request.turn);
        cx.lender.matches = matches.or(cx.lender.matches.take());
        match (counted, looked_up) {
            (Counted::There(choice, admission), _) => {
                let made = Made { choice, admission, tokens, lots };
                self.settle(made, looked_up, pool, cx);
            }
            (Counted::HasToWait(choice), Some(looked_up)) => self.wait_for_room(&choice, seen, looked_up, cx),
            // It keeps its place in the queue: an endpoint at its cap has room soon.
            (Counted::Nobody(Nobody::AllAtTheirCap), _) if self.queued.is_some() => self.looked_in_vain(seen),
            (Counted::Nobody(Nobody::AllAtTheirCap), _) => self.refuse(refusals::ALL_AT_THEIR_CAP.into(), cx),
            _ => self.refuse(refusals::NO_ENDPOINT.into(), cx),
        }
    }

    /// The request counts at its endpoint now: tells the queue, the index, the record and the shadow policy of that,
    /// and asks for a connection.
    fn settle(&mut self, made: Made, looked_up: Option<LookedUp>, pool: &Pool, cx: &mut Context<'_>) {
        let snapshot = cx.snapshot;
        let Made { mut choice, mut admission, tokens, lots } = made;
        // If an earlier try noted the prompt at this endpoint, what was held there before that try counts.
        let tokens = tokens.map(|tokens| self.as_thought_before(choice.endpoint, tokens));
        choice.tokens = choice.tokens.and(tokens);
        // An answer of its HTTP server alone proves nothing: it must not use up the endpoint's one trial.
        if self.asks_the_server_alone() {
            admission.give_up_trial();
        }
        // Its tenant has paid at the first choice; a retry is free.
        let new = choice.tokens.filter(|_| self.is_first_choice()).map_or(0, |tokens| tokens.new);
        self.leave_queue(new, &choice, cx);
        let charged = tokens.filter(|_| self.upload.body.done());
        let by_policy = self.is_first_choice() && choice.reason != Reason::Stored;
        let own = shadowed(pool, choice.endpoint, charged, cx).filter(|_| by_policy);
        let noted = self.charge_tokens(tokens, looked_up, &mut admission, cx);
        self.thought = tokens.map(|tokens| (choice.endpoint, tokens));
        if let Some((policy, own)) = own {
            self.leave_to_shadow(policy, choice.endpoint, own, lots, looked_up, cx);
        }
        let runner_up = choice.runner_up.and_then(|slot| runner_up(slot, snapshot, cx));
        self.draft.chose(&choice, runner_up, cx.now);
        if choice.reason.spilled() {
            cx.stats.count(Count::Spilled);
        }
        if self.asked.explain {
            self.explain = Some(self.explanation(&choice, runner_up, snapshot));
        }
        // Counted next to where the leg is made, with nothing between that may panic: each leg has its count.
        cx.lender.charges.count();
        self.leg = Some(Leg {
            admission,
            reused: false,
            acknowledged: None,
            answered: false,
            charged: false,
            aborted: false,
            noted,
        });
        cx.lender.held_bytes += self.kept_bytes();
        self.name_rank(choice.endpoint, cx);
        self.phase = Phase::Connect;
        self.wait(cx.now, cx.rules.limits.connect_timeout_ms, Waiting::Connect);
        cx.actions.push(Action::Connect { endpoint: choice.endpoint, fresh: self.retried });
    }

    /// What the policy is told of this request.
    fn request<'a>(&self, prompt: Option<policy::Prompt<'a>>, cx: &mut Context<'_>) -> policy::Request<'a> {
        policy::Request {
            prompt,
            context: self.context,
            key: self.key,
            unscannable: self.upload.unscannable,
            session: self.session.get(),
            lies_at: self.lies_at(cx),
            avoid: self.tried,
            random: cx.lender.random.number(),
            turn: self.pool.map_or(0, |pool| cx.lender.turn(pool)),
        }
    }

    fn count_in(&mut self, pool: &Pool, request: &mut policy::Request<'_>, cx: &mut Context<'_>) -> Counted {
        for attempt in 1..=CHOICES_MAX + LOST_CAPS_MAX {
            let (loads, outcomes) = (cx.counters.loads(), cx.counters.outcomes());
            let choice = match choose_past_barred(pool.settings.policy, pool, loads, outcomes, request) {
                Ok(choice) => choice,
                Err(nobody) => return Counted::Nobody(nobody),
            };
            // A request that had room once does not wait again.
            if self.is_first_choice() && self.has_to_wait(&choice, pool, cx) {
                return Counted::HasToWait(choice);
            }
            let bound = choice.bound.filter(|_| attempt < CHOICES_MAX);
            if let Some(admission) = cx.counters.try_admit_below(choice.endpoint, choice.caps.and(bound)) {
                if choice.bound.is_some_and(|bound| cx.counters.in_flight(choice.endpoint.slot) > bound) {
                    cx.stats.count(Count::AdmittedOverBound);
                }
                return Counted::There(choice, admission);
            }
            cx.stats.count(Count::ChoiceRepeated);
            request.random = cx.lender.random.number();
        }
        Counted::Nobody(Nobody::AllAtTheirCap)
    }
}

/// The model that a request names in its query (`/v1/realtime?model=ID`, as OpenAI has it), if there are several and
/// its body names none.
pub fn model_in_query<'t>(
    target: impl FnOnce() -> &'t [u8],
    facts: Option<&Facts>,
    snapshot: &Snapshot,
) -> Option<Vec<u8>> {
    let in_body = |facts: &Facts| facts.model_over() || facts.model().is_some_and(|name| !name.is_empty());
    if snapshot.single_pool() || facts.is_some_and(in_body) {
        return None;
    }
    let model = http::percent_decoded(http::query_value(target(), b"model")?);
    (!model.is_empty()).then_some(model)
}

/// The pool's shadow policy, if there is one, and which part of the loads is this request's own. To be called before
/// its tokens are counted.
#[inline]
fn shadowed(pool: &Pool, endpoint: EndpointId, tokens: Option<Tokens>, cx: &Context<'_>) -> Option<(Policy, Own)> {
    let policy = pool.settings.shadow_policy.0?;
    let loads = cx.counters.loads();
    let tokens = tokens.map(|tokens| (tokens.new, warm::occupied(&tokens, pool.id, loads)));
    Some((policy, Own { pool: pool.id, means: loads.means(pool.id), slot: endpoint.slot, tokens }))
}

/// A choice that was counted, with what it was made from.
struct Made {
    choice: Choice,
    admission: Admission,
    /// What the prompt is at the endpoint, if its tokens are known; whatever the policy.
    tokens: Option<Tokens>,
    /// The random number and the turn that it was made with.
    lots: (u64, u64),
}

/// What became of a choice.
enum Counted {
    /// The request counts at its endpoint.
    There(Choice, Admission),
    /// There is a choice, and it has no room yet.
    HasToWait(Choice),
    Nobody(Nobody),
}

impl Counted {
    /// Where it counts.
    fn choice(&self) -> Option<&Choice> {
        match self {
            Counted::There(choice, _) => Some(choice),
            _ => None,
        }
    }
}

/// A choice that skips endpoints barred since the snapshot was made; if all are barred, they are taken as they come.
pub(super) fn choose_past_barred(
    policy: Policy,
    pool: &Pool,
    loads: &Loads,
    outcomes: &Outcomes,
    request: &policy::Request<'_>,
) -> Result<Choice, Nobody> {
    let first = policy::choose_by(policy, pool, loads, request)?;
    let choice = match pool.eligible().last_resort() || !outcomes.is_barred(first.endpoint.slot) {
        true => first,
        // Only among engines whose context fits: others would refuse this prompt.
        false => next_unbarred(policy, pool.taking(request.context), loads, outcomes, request, &first).unwrap_or(first),
    };
    // Told by the original request: endpoints skipped here were not tried, so the reason is not `Retry`.
    Ok(choice.told(request))
}

/// The next choice that is not barred.
#[cold]
fn next_unbarred(
    policy: Policy,
    pool: &Pool,
    loads: &Loads,
    outcomes: &Outcomes,
    request: &policy::Request<'_>,
    barred: &Choice,
) -> Option<Choice> {
    let mut others = *request;
    others.avoid.push(barred.endpoint.slot);
    for _ in 1..BARRED_PASSED_MAX {
        let choice = policy::choose_by(policy, pool, loads, &others).ok()?;
        if !outcomes.is_barred(choice.endpoint.slot) {
            // Of so many tried the oldest was forgotten here.
            return (!request.avoid.contains(choice.endpoint.slot)).then_some(choice);
        }
        others.avoid.push(choice.endpoint.slot);
    }
    None
}

/// The endpoint there, and its load as a choice counts it.
fn runner_up(slot: u16, snapshot: &Snapshot, cx: &Context<'_>) -> RunnerUp {
    let endpoint = snapshot.at(slot)?;
    Some((endpoint.id, cx.counters.in_flight(slot).saturating_add(endpoint.foreign)))
}

impl Exchange {
    /// `endpoint=NAME reason=home tries=1 in_flight=3 slots=8 key=0123456789abcdef runner_up=NAME
    /// runner_up_in_flight=5`, and where tokens count
    /// `held=960 new=320 cost=1940 cost_pending=0 cost_new=1920 cost_decoding=20 ... runner_up_cost=7680 ...`
    fn explanation(&self, choice: &Choice, runner_up: RunnerUp, snapshot: &Snapshot) -> Box<[u8]> {
        use std::fmt::Write;
        let name = |id| snapshot.endpoint(id).map_or("-", |endpoint| &endpoint.name);
        let (endpoint, reason) = (name(choice.endpoint), choice.reason.as_str());
        let tries = self.draft.tries;
        let mut text = format!("endpoint={endpoint} reason={reason} tries={tries} in_flight={}", choice.in_flight);
        if let Some(waited) = self.draft.waited.time() {
            let _ = write!(text, " wait_us={waited}");
        }
        if let Some(bound) = choice.bound {
            let _ = write!(text, " slots={bound}");
        }
        if let Some(key) = self.key {
            let _ = write!(text, " key={key:016x}");
        }
        if let Some((id, load)) = runner_up {
            let _ = write!(text, " runner_up={} runner_up_in_flight={load}", name(id));
        }
        if let Some(Tokens { held, new, .. }) = choice.tokens {
            let _ = write!(text, " held={held} new={new}");
        }
        let costs = choice.costs.map(|costs| [("cost", Some(costs.chosen)), ("runner_up_cost", costs.runner_up)]);
        for (name, cost) in costs.into_iter().flatten() {
            let Some(Cost { pending, new, decoding, full, no_room, others, total }) = cost else { continue };
            let _ = write!(text, " {name}={total} {name}_pending={pending} {name}_new={new}");
            let _ = write!(text, " {name}_decoding={decoding} {name}_full={full} {name}_no_room={no_room}");
            let _ = write!(text, " {name}_others={others}");
        }
        text.into_bytes().into()
    }
}
