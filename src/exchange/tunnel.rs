//! Behind a 101: another protocol, of which nothing is read.

use std::ops::Range;

use super::event::{Action, Context, Event, Side, Source};
use super::{End, Ending, Exchange, Phase, Waiting};
use crate::counters::stats::Count;
use crate::http::{Known, ResponseHead};

impl Exchange {
    /// Whether a 101 names the protocol that was offered, and nothing else: client and engine would speak different
    /// ones, or one that is never offered here. Names may be written in either case (RFC 9110, 7.8).
    pub(super) fn is_offered(&self, head: &ResponseHead<'_>) -> bool {
        let mut named = head.fields.known(Known::Upgrade);
        match (named.next(), named.next(), &self.asked.offers) {
            (Some(protocol), None, Some(offered)) => protocol.eq_ignore_ascii_case(offered),
            _ => false,
        }
    }

    /// The 101 is on its way to the client; `rest` came behind it. It is the answer: what comes of the tunnel may be
    /// hours away, and its client's doing. An engine that hangs may grant it, too: its client has nothing yet that was
    /// computed.
    pub(super) fn begin_tunnel(&mut self, rest: Range<usize>, cx: &mut Context<'_>) {
        cx.stats.count(Count::Tunnel);
        self.reply.status = 101;
        self.answers_well(cx);
        self.phase = Phase::Tunnel;
        self.upload.forget_held(cx);
        self.wait_in_tunnel(cx);
        self.reply.bytes += rest.len() as u64;
        self.pass_reply(rest, cx);
        if self.client_ended {
            cx.actions.push(Action::Finish(Side::Upstream));
        }
    }

    /// After a 101: bytes both ways; a FIN is a real half-close.
    pub(super) fn tunnel(&mut self, event: Event<'_>, cx: &mut Context<'_>) {
        match event {
            Event::Deserted => return self.deserted(cx),
            Event::Deadline { acknowledged, client_stalls } => return self.overdue(acknowledged, client_stalls, cx),
            _ => self.reply.last = cx.now,
        }
        match event {
            Event::Request(bytes) => {
                self.upload.bytes += bytes.len() as u64;
                cx.actions.consumed = bytes.len();
                cx.actions.push(Action::Send(Side::Upstream, Source::Input(0..bytes.len())));
            }
            Event::Reply(bytes) => {
                self.reply.bytes += bytes.len() as u64;
                cx.actions.push(Action::Send(Side::Client, Source::Input(0..bytes.len())));
            }
            Event::Full(Side::Client) => {
                self.client_full = true;
                cx.actions.push(Action::Pause(Side::Upstream));
            }
            Event::Full(Side::Upstream) => cx.actions.push(Action::Pause(Side::Client)),
            Event::Drained(Side::Client) => {
                self.client_full = false;
                cx.actions.push(Action::Resume(Side::Upstream));
            }
            Event::Drained(Side::Upstream) => cx.actions.push(Action::Resume(Side::Client)),
            Event::ClientEnded => {
                self.client_ended = true;
                cx.actions.push(Action::Finish(Side::Upstream));
            }
            Event::UpstreamGone { by_fin: true, .. } => {
                self.upstream_ended = true;
                cx.actions.push(Action::Finish(Side::Client));
            }
            // By a reset: nothing else comes in a tunnel. What it did may be its client's doing,
            // as what comes of it is.
            _ => return self.engine_cut(Count::UpstreamFaultReset, cx),
        }
        // Nothing waits for the engine then: a client is not read from, nor its end seen, while that is full.
        if self.client_ended && self.upstream_ended {
            return self.end(Ending::Linger, End::Whole, cx);
        }
        self.wait_in_tunnel(cx);
    }

    /// For any byte; where the client takes none of those that wait for it, for that.
    fn wait_in_tunnel(&mut self, cx: &Context<'_>) {
        match (self.client_full, self.deadline) {
            // What it sends meanwhile puts off no look at what it takes.
            (true, Some((_, Waiting::ClientReads))) => {}
            (true, _) => self.wait_for_client(cx),
            (false, _) => self.wait(cx.now, cx.rules.limits.tunnel_idle_timeout_ms, Waiting::Tunnel),
        }
    }
}
