//! Every way an exchange ends, and the one place where it is accounted for.

use super::event::{Action, Context, Ending, Micros, Side};
use super::refusals::{self, Refused};
use super::{End, Exchange, Leg, Phase, Waiting};
use crate::counters::stats::{Count, RequestKey, Timing};
use crate::http::Refusal;
use crate::http::reply::{self, ErrorReply};
use crate::http::rewrite::Form;

impl Exchange {
    /// Answers with an error of our own, or cuts what was already begun.
    pub(super) fn refuse(&mut self, refused: Refused, cx: &mut Context<'_>) {
        let end = End::Refused(refused.refusal.cause);
        self.answer(refused, end, cx);
    }

    /// The same where the engine is to blame: `kind` is what that is counted as.
    pub(super) fn engine_broke(&mut self, kind: Count, refused: Refused, cx: &mut Context<'_>) {
        cx.stats.count(kind);
        self.answer(refused, End::EngineBroke(kind), cx);
    }

    /// Cuts a reply that was begun, by the engine's fault.
    pub(super) fn engine_cut(&mut self, kind: Count, cx: &mut Context<'_>) {
        cx.stats.count(kind);
        self.cut(End::EngineBroke(kind), cx);
    }

    fn answer(&mut self, refused: Refused, end: End, cx: &mut Context<'_>) {
        if self.reply.started {
            return self.cut(end, cx);
        }
        if refused.refusal.cause.is_for_now() {
            self.pay_back(cx);
        }
        self.reply.status = refused.refusal.status;
        self.keep_upstream = false;
        let to = self.to_client(cx);
        let ending = if to.keep_alive { Ending::KeepAlive } else { Ending::Linger };
        refusals::answer(&refused, &to, (self.asked.shape, &self.asked.cors), cx);
        self.end(ending, end, cx);
    }

    /// Nobody listens at the endpoint any more. A vLLM that was told to end closes its listener and may keep its
    /// streams open and silent: they are not waited for as long as those of an engine that lives. What is no stream is
    /// silent while it is computed, and is given more time. One that lives is refused to new connections all the same
    /// where a Service stands before it and finds it not ready: others have tokens from it.
    pub(super) fn deserted(&mut self, cx: &mut Context<'_>) {
        let silent_since = self.sent.max(self.reply.last);
        let limits = &cx.rules.limits;
        let may_be =
            if self.phase == Phase::Await { limits.deserted_head_timeout_ms } else { limits.deserted_timeout_ms };
        let silent = cx.now.saturating_sub(silent_since) >= may_be * 1_000;
        // A reply that its client does not take is not read from the engine either, once there is one.
        let held_back = self.client_full && self.phase != Phase::Await;
        if !silent || held_back || self.gives_others(silent_since, cx) {
            return;
        }
        match self.phase {
            Phase::Await => {
                self.blame(Count::UpstreamFaultSilent, cx);
                self.engine_broke(Count::UpstreamFaultSilent, refusals::DESERTED.into(), cx);
            }
            Phase::Relay => self.break_off(Count::UpstreamFaultSilent, refusals::DESERTED, cx),
            Phase::Tunnel => self.engine_cut(Count::UpstreamFaultSilent, cx),
            _ => {}
        }
    }

    /// Whether its engine gave others something, in this silence and of late: in twice the time that a stream may be
    /// silent, since streams tell of it now and then alone.
    fn gives_others(&self, silent_since: Micros, cx: &Context<'_>) -> bool {
        let lately = cx.now.saturating_sub(2_000 * cx.rules.limits.deserted_timeout_ms);
        let slot = self.leg.as_ref().map(Leg::slot);
        slot.is_some_and(|slot| cx.counters.outcomes().gave_since(slot, silent_since.max(lately)))
    }

    /// A deadline of the engine's passed.
    pub(super) fn give_up(&mut self, refused: Refused, cx: &mut Context<'_>) {
        self.blame(Count::UpstreamFaultHeadTimeout, cx);
        self.engine_broke(Count::UpstreamFaultHeadTimeout, refused, cx);
    }

    /// The engine failed a reply that was begun: says so where a client can read it, and cuts.
    pub(super) fn break_off(&mut self, kind: Count, why: Refusal, cx: &mut Context<'_>) {
        self.blame(kind, cx);
        self.tell_in_stream(why, cx);
        self.engine_cut(kind, cx);
    }

    /// The engine closed in the midst of the reply's body.
    pub(super) fn ended_early(&mut self, by_fin: bool, cx: &mut Context<'_>) {
        if by_fin && self.was_only_opened() {
            self.was_not_computed(cx);
            // One that gives nobody anything is taken for one that fails.
            if self.gives_others(0, cx) {
                self.charge();
            }
        }
        let kind = if by_fin { Count::UpstreamFaultEarlyEnd } else { Count::UpstreamFaultReset };
        self.break_off(kind, refusals::BROKEN_OFF, cx);
    }

    /// A last event of a stream, as its API has them: only between two events, and between two chunks.
    fn tell_in_stream(&mut self, why: Refusal, cx: &mut Context<'_>) {
        if self.phase == Phase::Relay && self.reply.takes_an_event() && cx.rules.stream_error_event {
            cx.stats.count(Count::ToldInStream);
            let message = why.message.as_bytes();
            let error =
                ErrorReply { status: why.status, kind: why.kind, message, param: None, shape: self.asked.shape };
            cx.actions.compose(Side::Client, |out| reply::write_error_event(out, &error));
        }
    }

    /// The same by what is wrong with a body's framing, behind which nothing can be told.
    pub(super) fn broke_its_body(&mut self, kind: Count, cx: &mut Context<'_>) {
        self.blame(kind, cx);
        self.engine_cut(kind, cx);
    }

    /// Ends so that the client cannot take it for a proper end: no terminating chunk, too few bytes, or,
    /// where closing would be the proper end or nothing was sent, a reset.
    pub(super) fn cut(&mut self, end: End, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        // A reply whose head was not sent has shown the client nothing.
        if self.reply.started {
            cx.stats.count(Count::StreamCut);
        }
        let fin_is_visible = self.phase == Phase::Relay && self.reply.form != Form::Bare;
        self.end(if fin_is_visible { Ending::Linger } else { Ending::Abort }, end, cx);
    }

    /// The client left: the engine is told by closing its connection.
    pub(super) fn client_gone(&mut self, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        self.was_left_waiting(cx);
        self.was_left_uncomputed(cx);
        cx.stats.count(match self.phase {
            Phase::ReadBody => Count::AbortedReadBody,
            Phase::Queue => Count::AbortedQueue,
            Phase::Connect => Count::AbortedConnect,
            Phase::Send => Count::AbortedSend,
            Phase::Await => Count::AbortedAwait,
            Phase::Relay | Phase::Done => Count::AbortedRelay,
            Phase::Tunnel => Count::AbortedTunnel,
        });
        // A client that has only sent its FIN may still read, and would take the end of a body without a length for a
        // proper one.
        let bare = self.phase == Phase::Relay && self.reply.form == Form::Bare;
        self.end(if bare { Ending::Abort } else { Ending::Gone }, End::ClientLeft(self.phase), cx);
    }

    /// FIN: in a body it breaks the request; behind a complete one it means leaving, unless configured otherwise.
    pub(super) fn client_ended(&mut self, cx: &mut Context<'_>) {
        if !self.upload.body.done() || cx.rules.half_close_leaves {
            return self.client_gone(cx);
        }
        self.client_ended = true;
        self.asked.framing.keep_alive = false;
    }

    /// The deadline has passed without what was waited for.
    pub(super) fn overdue(&mut self, acknowledged: Option<u64>, client_stalls: bool, cx: &mut Context<'_>) {
        let Some((_, waiting)) = self.deadline.take() else { return };
        match waiting {
            Waiting::Body => self.refuse(refusals::SLOW_UPLOAD.into(), cx),
            Waiting::Room => self.waited_in_vain(cx),
            // The connection stands, and word of it is on its way: in one turn there may be thousands of things to
            // tell.
            Waiting::Connect if acknowledged.is_some_and(|bytes| bytes > 0) => {
                self.wait(cx.now, cx.rules.limits.connect_timeout_ms, Waiting::Connect);
            }
            Waiting::Connect => {
                cx.actions.push(Action::Dismiss { reuse: false });
                self.connect_failed(true, cx);
            }
            Waiting::Acknowledgement => self.check_acknowledgement(acknowledged, cx),
            Waiting::Prefill => {
                self.prompt_computed();
                self.wait_for_head(cx);
            }
            Waiting::Upload => self.give_up(refusals::REPLY_TIMEOUT.into(), cx),
            Waiting::ReplyHead => {
                self.was_silent(cx);
                self.give_up(refusals::REPLY_TIMEOUT.into(), cx);
            }
            Waiting::FirstToken => {
                self.was_silent(cx);
                self.break_off(Count::UpstreamFaultFirstTokenTimeout, refusals::REPLY_TIMEOUT, cx);
            }
            Waiting::Chunk => {
                self.was_silent(cx);
                self.break_off(Count::UpstreamFaultChunkTimeout, refusals::REPLY_TIMEOUT, cx);
            }
            Waiting::Tunnel => self.engine_cut(Count::UpstreamFaultChunkTimeout, cx),
            Waiting::ClientReads if !client_stalls => self.wait_for_client(cx),
            Waiting::ClientReads => {
                cx.stats.count(Count::ClientStalled);
                self.keep_upstream = false;
                self.end(Ending::Abort, End::ClientStalled, cx);
            }
        }
    }

    /// A fault of ours has torn this exchange: what it was counted for is given back, nothing else is touched.
    pub fn give_all_back(&mut self, cx: &mut Context<'_>) {
        if self.phase != Phase::Done {
            self.count_end(End::Fault, cx);
        }
        self.tell(End::Fault, cx);
        self.take_kept(cx);
        if let Some(leg) = self.leg.take() {
            cx.lender.charges.release(leg.admission);
        }
        drop(self.give_up_place(cx));
        self.upload.drop_all(cx.lender);
        self.take_held_head(cx);
        self.phase = Phase::Done;
    }

    /// The one exit but for a fault of ours: accounts first, then gives everything back.
    pub(super) fn end(&mut self, ending: Ending, end: End, cx: &mut Context<'_>) {
        self.deadline = None;
        self.count_end(end, cx);
        self.tell(end, cx);
        if self.give_up_place(cx).is_some() && !matches!(end, End::ClientLeft(_)) {
            cx.stats.count(Count::QueueUnserved);
        }
        self.count_told(cx);
        self.was_not_sent(cx);
        if self.drop_leg(cx) {
            cx.actions.push(Action::Dismiss { reuse: self.keep_upstream });
        }
        if let Some(scan) = self.upload.scan.take() {
            cx.lender.give_back_scan(scan);
        }
        self.upload.forget_held(cx);
        self.take_held_head(cx);
        self.phase = Phase::Done;
        if self.client_paused && ending != Ending::Gone {
            cx.actions.push(Action::Resume(Side::Client));
        }
        cx.actions.push(Action::End(ending));
    }

    /// Of which pool, endpoint and status it was, what it was chosen by, and what came of it.
    fn count_end(&self, end: End, cx: &mut Context<'_>) {
        let pool = self.pool.map_or(RequestKey::NONE, |pool| pool.0);
        let slot = self.leg.as_ref().map_or(RequestKey::NONE, Leg::slot);
        let reason = self.draft.reason().map_or(RequestKey::NO_REASON, |reason| reason as u8);
        cx.stats.request(RequestKey { slot, pool, status: self.reply.status, reason });
        // An error that a reply told of behind a good status.
        let told = self.leg.as_ref().is_some_and(|leg| leg.charged);
        let by_words = self.reply.ended.filter(|_| end == End::Whole);
        cx.stats.ends(pool, by_words.unwrap_or_else(|| end.ended(self.reply.status, told)));
        if pool != RequestKey::NONE {
            cx.stats.observe(pool, Timing::Total, cx.now.saturating_sub(self.draft.since));
        }
    }
}
