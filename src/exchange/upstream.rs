//! The way to the engine: connection, sending, and what to do when either fails.

use super::event::{Action, Context, Side};
use super::{Exchange, Leg, Phase, Waiting, refusals};
use crate::counters::stats::Count;

/// How often a sent request is checked for acknowledgement, to let go of its held copy. As long as that, too, an engine
/// may say that its queue is full: SGLang looks between two steps, and each may be another prompt's.
const ACKNOWLEDGEMENT_CHECK_MS: u64 = 1_000;

impl Exchange {
    pub(super) fn connected(&mut self, reused: bool, acknowledged: Option<u64>, cx: &mut Context<'_>) {
        let Some(leg) = &mut self.leg else { return };
        cx.stats.count(if reused { Count::UpstreamReused } else { Count::UpstreamOpened });
        leg.reused = reused;
        leg.acknowledged = acknowledged;
        self.draft.connected(cx.now);
        self.phase = Phase::Send;
        self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload);
        cx.actions.push(Action::PushRequest);
    }

    /// Not a retry: nothing of the request was written. One that did not answer in time is tried again where there is
    /// no other: a kernel repeats a SYN that was lost after a second, which is longer than we wait.
    pub(super) fn connect_failed(&mut self, in_silence: bool, cx: &mut Context<'_>) {
        cx.stats.count(Count::ConnectFailed);
        self.connects += 1;
        if let Some(leg) = &self.leg {
            cx.counters.outcomes().connect_failed(leg.slot());
        }
        self.was_not_computed(cx);
        let (has_no_other, tries_max) = (self.has_no_other(cx.snapshot), cx.rules.limits.connect_tries_max);
        let is_last = u32::from(self.connects) >= tries_max || has_no_other && !in_silence;
        if is_last {
            // It ends there: behind its release the slot may be another endpoint's.
            self.blame(Count::ConnectFailed, cx);
            return self.refuse(refusals::NO_ENDPOINT.into(), cx);
        }
        if has_no_other {
            // The only endpoint may be tried again: it is not blamed, nor marked as tried.
            self.drop_leg(cx);
        } else {
            self.blame(Count::ConnectFailed, cx);
            self.leave_server(cx);
        }
        self.choose_again(Count::RetriedConnect, cx);
    }

    /// The front had no descriptor or memory to connect with: no fault of the endpoint's, and another try would fare no
    /// better.
    pub(super) fn connect_wanting(&mut self, cx: &mut Context<'_>) {
        cx.stats.count(Count::ConnectWanting);
        self.was_not_computed(cx);
        self.drop_leg(cx);
        self.refuse(refusals::WANT.into(), cx);
    }

    /// All our ports towards this endpoint are taken by requests that it serves; to another endpoint there may be some
    /// left.
    pub(super) fn connect_portless(&mut self, cx: &mut Context<'_>) {
        self.connects += 1;
        if u32::from(self.connects) >= cx.rules.limits.connect_tries_max || self.has_no_other(cx.snapshot) {
            return self.connect_wanting(cx);
        }
        cx.stats.count(Count::ConnectWanting);
        self.was_not_computed(cx);
        self.leave_server(cx);
        self.choose_again(Count::RetriedConnect, cx);
    }

    /// The kernel took some of what was held.
    pub(super) fn after_push(&mut self, len: usize, cx: &mut Context<'_>) {
        self.upload.pushed += len;
        if !self.sends() || self.has_unsent() {
            return;
        }
        if self.upload.body.done() && self.phase == Phase::Send {
            return self.request_sent(cx);
        }
        // The rest of the body goes through without being held; from here on there is no second try.
        self.upload.forget_held(cx);
        self.wait_for_body(cx);
        self.let_client_go_on(cx);
    }

    /// Whether the request may still be on its way: an engine may answer before it has read all of it.
    pub(super) fn sends(&self) -> bool {
        matches!(self.phase, Phase::Send | Phase::Relay)
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent().is_empty()
    }

    /// Everything is with the kernel.
    pub(super) fn request_sent(&mut self, cx: &mut Context<'_>) {
        self.sent = cx.now;
        if self.phase == Phase::Send {
            self.count_sent(cx);
            self.phase = Phase::Await;
            let check = ACKNOWLEDGEMENT_CHECK_MS * 1_000;
            let check = self.prefill_micros().map_or(check, |prefill| prefill.min(check));
            self.deadline = Some((cx.now + check, Waiting::Acknowledgement));
        }
    }

    /// Lets go of the held request once the engine's kernel has any of it; else looks again later. Before that time its
    /// prompt alone was waited for: that it may be refused yet is worth no memory that others lack.
    pub(super) fn check_acknowledgement(&mut self, acknowledged: Option<u64>, cx: &mut Context<'_>) {
        let timeout = cx.rules.limits.reply_head_timeout_ms * 1_000;
        // An engine that computes may be slow to say that it lacks a response; without a body that is a head to hold.
        let is_to_be_found = self.sought.is_some() && self.upload.bytes == 0;
        let held_until = self.sent + if is_to_be_found { timeout } else { ACKNOWLEDGEMENT_CHECK_MS * 1_000 };
        if !self.unacknowledged(acknowledged) && cx.now < held_until && !cx.lender.holds_much() {
            self.prompt_computed();
            self.deadline = Some((held_until, Waiting::Acknowledgement));
        } else if !self.unacknowledged(acknowledged) {
            self.upload.forget_held(cx);
            self.wait_for_head(cx);
        } else if cx.now >= self.sent + timeout {
            self.give_up(refusals::REPLY_TIMEOUT.into(), cx);
        } else {
            self.wait(cx.now, ACKNOWLEDGEMENT_CHECK_MS, Waiting::Acknowledgement);
        }
    }

    /// For the reply's head; of a request for no stream, first for as long as its prompt may take to be computed.
    pub(super) fn wait_for_head(&mut self, cx: &Context<'_>) {
        let latest = self.sent + cx.rules.limits.reply_head_timeout_ms * 1_000;
        let computed = self.prefill_micros().map(|prefill| (self.sent + prefill).max(cx.now + 1));
        self.deadline = match computed.filter(|computed| *computed < latest) {
            Some(computed) => Some((computed, Waiting::Prefill)),
            None => Some((latest, Waiting::ReplyHead)),
        };
    }

    /// How long its prompt may take to be computed, where no first token will tell.
    fn prefill_micros(&self) -> Option<u64> {
        let leg = self.leg.as_ref().filter(|_| !self.asked.stream)?;
        Some(leg.admission.prefill_micros()).filter(|prefill| *prefill > 0)
    }

    /// Whether the engine certainly saw nothing of this request.
    fn unacknowledged(&self, acknowledged: Option<u64>) -> bool {
        let Some(leg) = &self.leg else { return false };
        !leg.answered && acknowledged.is_some() && acknowledged == leg.acknowledged
    }

    /// The upstream connection ended. Before a reply, what was certainly not executed is sent again: behind a FIN,
    /// where all of the request is held here and the engine's kernel acknowledged none of it. Else the client is told.
    /// The end of a new connection, or of one that acknowledged something, counts against the engine.
    pub(super) fn upstream_gone(&mut self, by_fin: bool, acknowledged: Option<u64>, cx: &mut Context<'_>) {
        match self.phase {
            Phase::Relay => return self.reply_ended(by_fin, cx),
            Phase::Send | Phase::Await => {}
            _ => return,
        }
        cx.actions.push(Action::Dismiss { reuse: false });
        let unacknowledged = self.unacknowledged(acknowledged);
        let reused = self.leg.as_ref().filter(|leg| leg.reused).map(Leg::slot);
        // A FIN acknowledges what came before it. A reset does not, and kernels acknowledge late: behind one, a
        // request may have been read although nothing says so.
        let untouched = by_fin && self.upload.held_whole && unacknowledged;
        let stale = untouched && reused.is_some();
        // The connection had died unnoticed: this machine was paused, which stops the clock by which idle ones are
        // closed, or something on the way forgot it. One that acknowledged something was alive, and tells nothing of
        // others.
        if let Some(slot) = reused.filter(|_| !by_fin && unacknowledged) {
            cx.counters.outcomes().kept_died(slot, cx.now);
        }
        let kind = if by_fin { Count::UpstreamFaultEarlyEnd } else { Count::UpstreamFaultReset };
        // A dead idle connection says nothing against its engine.
        if reused.is_none() || !unacknowledged {
            self.blame(kind, cx);
        }
        // With nobody else to ask, one that is there and closed would be told of as one that could not be reached.
        let may_ask = stale || !self.has_no_other(cx.snapshot);
        if untouched && !self.retried && may_ask && cx.take_retry() {
            self.was_not_computed(cx);
            if stale {
                self.drop_leg(cx);
            } else {
                self.leave_server(cx);
            }
            return self.try_again(if stale { Count::RetriedStale } else { Count::RetriedFault }, cx);
        }
        self.engine_broke(kind, refusals::UPSTREAM_LOST.into(), cx);
    }

    /// This side's kernel is full: hold the other side back.
    pub(super) fn full(&mut self, side: Side, cx: &mut Context<'_>) {
        match side {
            Side::Upstream => {
                if self.phase == Phase::Send {
                    self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload);
                }
                // A whole request is not held back by anything: its client's leaving must be seen.
                if !self.upload.body.done() {
                    self.hold_back_client(cx);
                }
            }
            Side::Client => {
                self.client_full = true;
                // Before the reply's head it is something short of ours that is in the way, or the reply to a request
                // before, which is not the engine's fault: it is read, and the first of its bytes find the client full
                // anew.
                if self.phase == Phase::Relay {
                    self.wait_for_client(cx);
                    cx.actions.push(Action::Pause(Side::Upstream));
                }
            }
        }
    }

    /// Sets the deadline for the next look at a client that is full. It is ended only if it takes nothing for as long
    /// as it may: the kernel tells of room only after some 64 KB, for which a client that reads a few bytes at a time
    /// may need long.
    pub(super) fn wait_for_client(&mut self, cx: &Context<'_>) {
        self.wait(cx.now, cx.rules.limits.client_look_ms(), Waiting::ClientReads);
    }

    /// There is room again.
    pub(super) fn drained(&mut self, side: Side, cx: &mut Context<'_>) {
        match side {
            Side::Upstream if self.sends() && self.has_unsent() => cx.actions.push(Action::PushRequest),
            Side::Upstream => self.let_client_go_on(cx),
            Side::Client if std::mem::take(&mut self.client_full) => {
                if self.phase == Phase::Relay {
                    // What comes now was waiting for the client: the engine did not take so long.
                    self.reply.last = cx.now;
                    self.wait_for_reply(cx);
                }
                cx.actions.push(Action::Resume(Side::Upstream));
            }
            _ => {}
        }
    }
}
