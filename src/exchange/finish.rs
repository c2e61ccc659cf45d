//! Every way an exchange ends, and the one place where it is accounted for.

use super::event::{Action, Context, Ending, Side};
use super::{Exchange, Phase, Waiting};
use crate::counters::stats::{Event as Count, Timing};
use crate::http::{Refusal, reply};

impl Exchange {
    /// Answers with an error of our own, or cuts what was already begun.
    pub(super) fn refuse(&mut self, refusal: Refusal, cx: &mut Context<'_>) {
        if self.reply_started {
            return self.cut(cx);
        }
        cx.stats.refused(refusal.cause);
        self.status = refusal.status;
        self.keep_upstream = false;
        let close = !self.body.done() || !self.asked.framing.keep_alive || cx.draining;
        let (id, head_only) = (&self.asked.request_id, self.asked.framing.head_method);
        cx.actions.compose(Side::Client, |out| reply::write_refusal(out, &refusal, Some(id), close, head_only));
        self.end(if close { Ending::Linger } else { Ending::KeepAlive }, cx);
    }

    /// A deadline of the engine's passed.
    pub(super) fn give_up(&mut self, refusal: Refusal, cx: &mut Context<'_>) {
        cx.stats.count(Count::UpstreamTimedOut);
        self.refuse(refusal, cx);
    }

    /// Ends so that the client cannot take it for a proper end: no terminating chunk, too few bytes, or,
    /// where closing would be the proper end or nothing was sent, a reset.
    pub(super) fn cut(&mut self, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        cx.stats.count(Count::Cut);
        let fin_is_visible = self.reply_started && !self.is_http10() && self.phase == Phase::Relay;
        self.end(if fin_is_visible { Ending::Linger } else { Ending::Abort }, cx);
    }

    /// The client left: the engine is told by closing its connection.
    pub(super) fn client_gone(&mut self, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        cx.stats.count(match self.phase {
            Phase::ReadBody => Count::ClientLeftReading,
            Phase::Connect | Phase::Send => Count::ClientLeftSending,
            Phase::Await => Count::ClientLeftWaiting,
            Phase::Relay | Phase::Tunnel | Phase::Done => Count::ClientLeftStreaming,
        });
        self.end(Ending::Gone, cx);
    }

    /// FIN: in a body it breaks the request; behind a complete one it means leaving, unless configured otherwise.
    pub(super) fn client_ended(&mut self, cx: &mut Context<'_>) {
        if !self.body.done() || cx.rules.half_close_leaves {
            return self.client_gone(cx);
        }
        self.client_ended = true;
        self.asked.framing.keep_alive = false;
    }

    /// What was waited for did not come.
    pub(super) fn overdue(&mut self, acknowledged: Option<u64>, cx: &mut Context<'_>) {
        let Some((_, waiting)) = self.deadline.take() else { return };
        match waiting {
            Waiting::Body => self.refuse(Refusal::slow_upload(), cx),
            Waiting::Connect => {
                cx.actions.push(Action::Dismiss { reuse: false });
                self.connect_failed(cx);
            }
            Waiting::Acknowledgement => self.check_acknowledgement(acknowledged, cx),
            Waiting::Upload | Waiting::ReplyHead => self.give_up(Refusal::reply_timeout(), cx),
            Waiting::FirstToken | Waiting::Chunk | Waiting::Tunnel => {
                cx.stats.count(Count::UpstreamTimedOut);
                self.cut(cx);
            }
            Waiting::ClientReads => {
                cx.stats.count(Count::ClientStalled);
                self.keep_upstream = false;
                self.end(Ending::Abort, cx);
            }
        }
    }

    /// The one exit: accounts first, then gives everything back.
    pub(super) fn end(&mut self, ending: Ending, cx: &mut Context<'_>) {
        self.deadline = None;
        if let Some(pool) = self.pool {
            let slot = self.leg.as_ref().map(|leg| leg.endpoint.slot);
            cx.stats.request(pool, slot, self.status, self.reason);
            cx.stats.observe(pool, Timing::Total, cx.now - self.started);
        }
        if self.leg.take().is_some() {
            cx.actions.push(Action::Dismiss { reuse: self.keep_upstream });
        }
        if let Some(scan) = self.scan.take() {
            cx.lender.scans.push(scan);
        }
        self.forget_held(cx);
        self.phase = Phase::Done;
        if self.client_paused && ending != Ending::Gone {
            cx.actions.push(Action::Resume(Side::Client));
        }
        cx.actions.push(Action::End(ending));
    }
}
