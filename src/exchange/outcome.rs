//! What a reply, or the want of one, says of its endpoint.
//!
//! Three classes. A *fault* is the endpoint's own: some in a row bar it. *Back-pressure* is an engine that has enough
//! to do. Everything else is neutral: a 4xx is the client's doing, however often it comes. Behind a fault or
//! back-pressure the request stays charged to its endpoint for a while ([`super::charges`]): what fails at once
//! looks idle, and would draw every request that goes by load. So does one that is turned away there alone, as
//! by an engine that was started with another key than the others.

use super::event::{Action, Context, Micros};
use super::judged::{Judged, Told, Verdict, hides_words, judge, keeps_out};
use super::noted::Noted;
use super::shown::Shown;
use super::{Exchange, Leg, Phase};
use crate::counters::stats::{Count, Ended};
use crate::http::{self, BodyLength, Known, ReplyFraming, ResponseHead};
use crate::policy::Eligible;
use crate::scan::Api;
use crate::snapshot::{Pool, Snapshot};

/// A client that had nothing of an answer for so long may have found an engine that hangs;
const LEFT_WAITING: Micros = 30_000_000;
/// and certainly has, after so many times as long as the tokens pending there may take.
const PREFILLS: Micros = 3;
/// How the paths end of what no engine is asked about, under whatever prefix.
const TOLD_ALONE: [&[u8]; 7] =
    [b"/tokenize", b"/detokenize", b"/count_tokens", b"/render", b"/derender", b"/cancel", b"/ping"];

/// Whether an answer tells that the engine computes. What is only read, or put away, a preflight, and what tells of a
/// prompt the HTTP server before it answers by itself, whatever has become of the engine.
pub(super) fn proves(method: &[u8], path: &[u8], api: Api) -> bool {
    let path = http::without_query(path);
    let reads = matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"DELETE");
    !reads && api != Api::Tokenize && !TOLD_ALONE.iter().any(|end| path.ends_with(end))
}

impl Exchange {
    /// The endpoint failed this request, in the way that `kind` names: counted once a leg.
    pub(super) fn blame(&mut self, kind: Count, cx: &mut Context<'_>) {
        let Some(leg) = self.leg.as_mut().filter(|leg| !leg.charged) else { return };
        leg.charged = true;
        let (slot, outcomes) = (leg.slot(), cx.counters.outcomes());
        outcomes.fails_by(slot, kind);
        if outcomes.fault(slot) {
            cx.stats.count(Count::Barred);
        }
    }

    /// The request failed there, by no fault of the endpoint's.
    pub(super) fn charge(&mut self) {
        if let Some(leg) = &mut self.leg {
            leg.charged = true;
        }
    }

    /// Whether an answer says nothing of the engine, whatever it is; a silence does.
    pub(super) fn asks_the_server_alone(&self) -> bool {
        !self.asked.proves && self.asked.offers.is_none()
    }

    /// Takes a verdict to account.
    pub(super) fn note(&mut self, verdict: Verdict, cx: &mut Context<'_>) {
        match verdict {
            Verdict::Neutral | Verdict::NotHere => {}
            Verdict::BackPressure | Verdict::Busy | Verdict::Scales => {
                cx.stats.count(Count::BackPressure);
                self.charge();
            }
            Verdict::NotFetched | Verdict::MayBeTheClients => {
                cx.stats.count(Count::UpstreamFaultErrorReply);
                self.charge();
            }
            // No good answer to such a request ends a row of faults: an engine that is asked nothing else would be out
            // for good.
            Verdict::Fault | Verdict::NotReached if self.asks_the_server_alone() => {
                cx.stats.count(Count::UpstreamFaultErrorReply);
                self.charge();
            }
            Verdict::Fault | Verdict::NotReached | Verdict::Drains => {
                cx.stats.count(Count::UpstreamFaultErrorReply);
                self.blame(Count::UpstreamFaultErrorReply, cx);
            }
        }
        let Some(leg) = &self.leg else { return };
        if verdict == Verdict::Drains && cx.counters.outcomes().bar(leg.slot()) {
            cx.stats.count(Count::Barred);
        }
    }

    /// A stream told of an error, perhaps in place of an answer, none of which had come.
    pub(super) fn stream_failed(&mut self, told: Told, cx: &mut Context<'_>) {
        match told {
            Told::Failed => {
                cx.stats.count(Count::UpstreamFaultErrorEvent);
                self.blame(Count::UpstreamFaultErrorEvent, cx);
            }
            Told::MayBeTheClients => {
                cx.stats.count(Count::UpstreamFaultErrorEvent);
                self.charge();
            }
            Told::Busy => self.note(Verdict::BackPressure, cx),
            Told::TheClients => self.reply.ended = Some(Ended::Refused),
        }
        if self.reply.tap.spoke() {
            return;
        }
        self.reply.tap.was_refused();
        if told != Told::Failed {
            self.was_not_computed(cx);
            self.pay_back(cx);
        }
    }

    /// The reply has come to its last byte. Where that is the end of an error, it was judged before. An engine that
    /// ends answers at once, looks idle and would draw all that asks.
    pub(super) fn praise_or_blame(&mut self, cx: &mut Context<'_>) {
        let no_answer = self.showed_no_answer();
        if let Some(leg) = &mut self.leg {
            leg.aborted |= no_answer;
        }
        if self.was_broken_off() {
            cx.stats.count(Count::UpstreamFaultErrorEvent);
            self.blame(Count::UpstreamFaultErrorEvent, cx);
            self.was_not_computed(cx);
            return self.pay_back(cx);
        }
        if (200..300).contains(&self.reply.status) && self.asked.proves && self.answers_well(cx) {
            self.gives(cx);
        }
    }

    /// Whether a stream came to its end without anything of an answer: what was computed shows at least how it ended.
    fn showed_no_answer(&self) -> bool {
        let well = (200..300).contains(&self.reply.status) && self.asked.proves;
        well && self.reply.shown == Shown::Frame && self.reply.completion_tokens.is_none_or(|tokens| tokens == 0)
    }

    /// Whether of a streamed response only the events that open it came: behind them vLLM 0.32 ends what it refuses (a
    /// schema, a token id) without a word, so that its client alone may be to blame. That stands between two events.
    pub(super) fn was_only_opened(&self) -> bool {
        let opened = self.asked.api == Api::Responses && self.reply.event_stream && self.reply.bytes > 0;
        opened && self.reply.tap.waits() && self.reply.tap.between_events()
    }

    /// Whether its engine broke it off before the first token, as that says itself or as its stream ended.
    pub(super) fn was_broken_off(&self) -> bool {
        self.leg.as_ref().is_some_and(|leg| leg.aborted)
    }

    /// Whether its engine answered, without a fault in the answer.
    pub(super) fn answers_well(&self, cx: &Context<'_>) -> bool {
        let Some(leg) = self.leg.as_ref().filter(|leg| !leg.charged) else { return false };
        cx.counters.outcomes().good(leg.slot());
        true
    }

    /// The first token of a stream is there. One on trial has stood it: else it would be as long as an answer, and
    /// nobody else be served there meanwhile.
    pub(super) fn begins_to_give(&self, took: Micros, cx: &Context<'_>) {
        let Some(leg) = &self.leg else { return };
        let slot = leg.slot();
        cx.stats.first_token_of(slot, took);
        if !self.asked.proves {
            return;
        }
        if leg.admission.is_of_trial() && !leg.charged {
            cx.counters.outcomes().good(slot);
        }
        self.gives(cx);
    }

    /// A stream shows only what stands around an answer, and `begins` with that. vLLM opens a chat when it has the
    /// first token: it computes, however late its client sees something of that. What is over as well is judged in a
    /// moment.
    pub(super) fn is_opened(&mut self, begins: bool, cx: &Context<'_>) {
        self.prompt_may_be_computed();
        if begins && self.asked.proves && !self.reply.body.done() {
            self.gives(cx);
        }
    }

    /// Notes that its engine has computed something of it, even if its client sees nothing of that yet.
    pub(super) fn gives(&self, cx: &Context<'_>) {
        if let Some(leg) = &self.leg {
            cx.counters.outcomes().gives(leg.slot(), cx.now);
        }
    }

    /// Takes to account what the reply says of its engine. False: its client does not get it, since the request goes
    /// elsewhere, or was answered by us.
    pub(super) fn is_for_its_client(
        &mut self,
        head: &ResponseHead<'_>,
        framing: &ReplyFraming,
        judged: Judged<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Judged { words, body_bytes } = judged;
        let is_for_now = head.fields.has(Known::RetryAfter) || hides_words(head, framing);
        let verdict = judge(head.status, is_for_now, words, self.asked.media);
        self.reply.ended = verdict.ended(head.status);
        self.note_reply(verdict, head.status, cx);
        let was_refused = verdict.was_refused(head.status);
        if was_refused {
            self.was_not_computed(cx);
        }
        if verdict.goes_elsewhere() && self.may_spill(verdict, cx) {
            cx.actions.push(Action::Dismiss { reuse: false });
            if verdict.is_of_the_server() {
                self.leave_server(cx);
            }
            let not_reached = verdict == Verdict::NotReached;
            self.try_again(if not_reached { Count::RetriedConnect } else { Count::RetriedBusy }, cx);
            return false;
        }
        let is_whole = framing.body == BodyLength::Length(body_bytes as u64);
        let reuse = is_whole && framing.keep_alive && self.ends_for_certain(framing);
        if verdict == Verdict::NotHere && self.asks_on(words, reuse, cx) {
            return false;
        }
        if was_refused {
            self.pay_back(cx);
        }
        // A preflight is answered by any engine, and has no body to answer with.
        if (200..300).contains(&head.status) && framing.body != BodyLength::None {
            self.note_found(cx);
        }
        self.is_let_in(head.status, keeps_out(head.status, words), cx)
    }

    /// Takes the verdict on a reply to account. Who answers 404 may have unloaded the
    /// model since it said what it serves.
    fn note_reply(&mut self, verdict: Verdict, status: u16, cx: &mut Context<'_>) {
        let not_found = status == 404 && verdict != Verdict::NotHere && self.asked.api != Api::Other;
        if let Some(leg) = self.leg.as_ref().filter(|_| not_found) {
            cx.counters.outcomes().was_not_found(leg.slot());
        }
        self.note(verdict, cx);
        // Of whom no engine lets in that is what each of them says: anybody could have them all look busy. A key that
        // this engine refused a moment ago counts, as long as another one took it.
        if (not_found || matches!(status, 401 | 403)) && !self.is_strange_to(None, cx) {
            self.charge();
        }
    }

    /// It was silent for too long. An engine that gave others something meanwhile has not failed: it may write nothing
    /// while it computes the call of a tool, or a thought that is not asked for, or have put this request off for more
    /// urgent ones.
    pub(super) fn was_silent(&mut self, cx: &Context<'_>) {
        let since = self.sent.max(self.reply.last);
        let slot = self.leg.as_ref().map(Leg::slot);
        if slot.is_some_and(|slot| cx.counters.outcomes().gave_since(slot, since)) {
            self.charge();
        }
    }

    /// Tells now and then that its engine goes on giving tokens; between two tellings nothing shared is read.
    #[inline]
    pub(super) fn gives_on(&self, cx: &Context<'_>) {
        if cx.rules.telling.is_due(self.reply.last, cx.now) && self.asked.proves {
            self.gives(cx);
        }
    }

    /// Its client leaves. Most have less patience than the front: where nobody has had anything from the engine since
    /// it has all of the request, the next try is to find it busy, and where the first token of a stream was due long
    /// ago the engine hangs. What is no stream may take minutes of silence.
    pub(super) fn was_left_waiting(&mut self, cx: &mut Context<'_>) {
        let waits = match self.phase {
            Phase::Await => true,
            Phase::Relay => {
                self.reply.event_stream && self.reply.tap.waits() && self.upload.body.done() && !self.has_unsent()
            }
            _ => false,
        };
        let Some(leg) = self.leg.as_ref().filter(|leg| waits && !leg.charged) else { return };
        let (slot, since) = (leg.slot(), self.sent.max(self.whole));
        let waited = cx.now.saturating_sub(since);
        if waited < LEFT_WAITING || cx.counters.outcomes().gave_since(slot, since) {
            return;
        }
        // What images cost is in no estimate, and before its head an engine fetches them, in silence, from servers that
        // the client names.
        let asked_for_stream = self.asked.proves && !self.asked.media && (self.reply.event_stream || self.asked.stream);
        if asked_for_stream && waited >= PREFILLS * self.longest_prefill(slot, cx) {
            cx.stats.count(Count::UpstreamFaultLeftWaiting);
            self.blame(Count::UpstreamFaultLeftWaiting, cx);
            self.was_not_computed(cx);
        }
        self.charge();
    }

    /// How long its endpoint may be about what it has to compute, all of this prompt with it: what it is thought to
    /// hold may be gone.
    fn longest_prefill(&self, slot: u16, cx: &Context<'_>) -> Micros {
        let noted = self.leg.as_ref().and_then(|leg| leg.noted.as_ref());
        let unread = self.upload.bytes as f64 / f64::from(Pool::TOKEN_BYTES);
        let tokens = noted.map_or(unread as u64, |Noted { prediction, .. }| prediction.tokens.into());
        let loads = cx.counters.loads();
        tokens.max(loads.pending(slot)).saturating_mul(1_000_000) / u64::from(loads.prefill_rate(slot))
    }

    /// Whether a request that its engine is too busy for, or that a hop did not reach it with, goes to another one:
    /// once, if all of it is still here, there is another that was not tried and for which it is not too long, and the
    /// budget for retries allows it.
    fn may_spill(&self, verdict: Verdict, cx: &mut Context<'_>) -> bool {
        let has_no_other = || match verdict.is_of_the_server() {
            true => self.has_no_other(cx.snapshot),
            // Another rank of the same server may have room.
            false => self.has_no_other_beside(|_, here, slot| here == slot, cx.snapshot),
        };
        !self.retried && self.upload.held_whole && !has_no_other() && cx.take_retry()
    }

    /// Whether nobody is left to choose, of those for whom it is not too long,
    /// beside the server that this request is at.
    pub(super) fn has_no_other(&self, snapshot: &Snapshot) -> bool {
        self.has_no_other_beside(Eligible::is_one_server, snapshot)
    }

    fn has_no_other_beside(&self, same: impl Fn(&Eligible, u16, u16) -> bool, snapshot: &Snapshot) -> bool {
        self.pool_in(snapshot).is_none_or(|pool| self.has_no_other_in(pool, same))
    }

    /// The same of any pool.
    pub(super) fn has_no_other_in(&self, pool: &Pool, same: impl Fn(&Eligible, u16, u16) -> bool) -> bool {
        let (eligible, here) = (pool.taking(self.context).eligible(), self.leg.as_ref().map(Leg::slot));
        let is_here = |slot: u16| here.is_some_and(|here| same(eligible, here, slot));
        eligible.slots().iter().all(|slot| is_here(*slot) || eligible.was_tried(&self.tried, *slot))
    }

    /// Gives the endpoint up for this request; it is not tried again.
    pub(super) fn leave_endpoint(&mut self, cx: &mut Context<'_>) {
        if let Some(leg) = &self.leg {
            self.tried.push(leg.slot());
        }
        self.drop_leg(cx);
    }

    /// Gives its server up, with all ranks behind that port: nobody is reached there.
    pub(super) fn leave_server(&mut self, cx: &mut Context<'_>) {
        if let Some(leg) = &self.leg {
            self.tried.push_server(leg.slot());
        }
        self.drop_leg(cx);
    }

    /// The one place, but for a fault of ours, where a request stops being counted in flight: at once, or where it
    /// failed a while later.
    pub(super) fn drop_leg(&mut self, cx: &mut Context<'_>) -> bool {
        self.take_kept(cx);
        let Some(leg) = self.leg.take() else { return false };
        if leg.charged {
            cx.lender.charges.keep(leg.admission, cx.now + cx.rules.limits.failed_charge_ms * 1_000);
        } else {
            cx.lender.charges.release(leg.admission);
        }
        true
    }
}
