//! The request side: body bytes come in, are looked at, held, and passed on unchanged.

use std::ops::Range;

use super::event::{Action, Context, Side, Source};
use super::{Exchange, Phase, Waiting};
use crate::counters::stats::Event as Count;
use crate::http::{BodyLength, Kind, Refusal};
use crate::scan::{Api, Needs, Progress};

impl Exchange {
    /// The head stands. Scan the body if the choice needs it, else choose at once.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        let mut needs = cx.snapshot.needs;
        if self.asked.session.is_some() {
            needs = needs.without(Needs::SESSION);
        }
        if self.asked.encoded {
            cx.stats.count(Count::EncodedBody);
        }
        if self.body.done() || self.asked.encoded || self.asked.api == Api::Other || needs.is_empty() {
            return self.choose(cx);
        }
        let mut scan = cx.lender.scan();
        scan.begin(self.asked.api, &cx.snapshot.plan, needs);
        self.scan = Some(scan);
    }

    /// More of the request body, followed perhaps by the next request.
    pub(super) fn take_request(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        let mut passed = 0..0;
        while !self.body.done() && passed.end < bytes.len() {
            let rest = &bytes[passed.end..];
            let part = match self.body.next(rest) {
                Ok(part) => part,
                Err(fault) => return self.refuse(Refusal::bad_body(fault), cx),
            };
            let next = passed.end + part.len;
            match part.kind {
                Kind::Framing => passed.end = next,
                Kind::Data => {
                    passed.end = next;
                    self.body_bytes += part.len as u64;
                    self.look_at(&rest[..part.len], cx);
                }
                kind => {
                    self.pass_request(bytes, passed, cx);
                    self.reframe(kind, cx);
                    passed = next..next;
                }
            }
        }
        cx.actions.consumed = passed.end;
        self.pass_request(bytes, passed, cx);
        self.after_request_bytes(cx);
    }

    /// Framing that cannot be passed as it stands is written anew.
    fn reframe(&mut self, kind: Kind, cx: &mut Context<'_>) {
        let mut frame = Vec::new();
        self.body.write_frame(kind, &mut frame);
        if frame.is_empty() {
            return;
        }
        if self.streams_directly() {
            cx.actions.compose(Side::Upstream, |out| out.extend_from_slice(&frame));
        } else {
            self.hold(&frame, cx);
        }
    }

    /// Feeds the scanner until the choice knows enough.
    fn look_at(&mut self, data: &[u8], cx: &mut Context<'_>) {
        let Some(scan) = self.scan.as_mut().filter(|_| self.phase == Phase::ReadBody) else { return };
        let begun = (cx.stopwatch)();
        let progress = scan.push(data);
        self.scan_nanos += (cx.stopwatch)().saturating_sub(begun);
        match progress {
            Progress::More => {}
            Progress::Enough { .. } | Progress::Done | Progress::Failed(_) => self.choose(cx),
        }
    }

    /// Whether body bytes go to the upstream without being held.
    fn streams_directly(&self) -> bool {
        !self.held_whole
    }

    fn pass_request(&mut self, bytes: &[u8], range: Range<usize>, cx: &mut Context<'_>) {
        if range.is_empty() || self.phase == Phase::Done {
        } else if self.streams_directly() {
            cx.actions.push(Action::Send(Side::Upstream, Source::Input(range)));
        } else {
            self.hold(&bytes[range], cx);
        }
    }

    fn hold(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        if self.held.capacity() == 0 {
            let announced = match self.asked.framing.body {
                BodyLength::Length(len) => len as usize,
                _ => bytes.len(),
            };
            self.held = cx.lender.buffer(announced.min(cx.rules.limits.hold_bytes).max(bytes.len()));
        }
        self.held.extend_from_slice(bytes);
        cx.lender.held_bytes += bytes.len();
    }

    /// What is held was sent, or will not be: its memory goes back.
    pub(super) fn forget_held(&mut self, cx: &mut Context<'_>) {
        cx.lender.held_bytes -= self.held.len();
        cx.lender.give_back(std::mem::take(&mut self.held));
        self.head = Vec::new();
        self.pushed = 0;
        self.held_whole = false;
    }

    /// After body bytes were taken: limits, the choice at the body's end, and how long to wait for more.
    fn after_request_bytes(&mut self, cx: &mut Context<'_>) {
        if self.phase == Phase::Done {
            return;
        }
        let limits = &cx.rules.limits;
        if self.body_bytes > limits.body_bytes_max {
            return self.refuse(Refusal::body_too_large(), cx);
        }
        if cx.lender.held_bytes > limits.budget_bytes && !self.held.is_empty() {
            return self.refuse(Refusal::over_budget(), cx);
        }
        if self.too_slow(cx) {
            return self.refuse(Refusal::slow_upload(), cx);
        }
        let full = self.held.len() >= limits.hold_bytes;
        if self.phase == Phase::ReadBody && (self.body.done() || full) {
            if let Some(scan) = self.scan.as_mut().filter(|_| self.body.done()) {
                scan.finish();
            }
            self.choose(cx);
        } else if self.phase == Phase::Send && self.body.done() && self.streams_directly() {
            self.request_sent(cx);
        } else if !self.body.done() && matches!(self.phase, Phase::ReadBody | Phase::Send) {
            self.wait(cx.now, limits.body_stall_timeout_ms, Waiting::Body);
        }
        let unconnected = matches!(self.phase, Phase::Connect | Phase::Send) && !self.streams_directly();
        if unconnected && full && !self.body.done() {
            self.hold_back_client(cx);
        }
    }

    fn too_slow(&mut self, cx: &Context<'_>) -> bool {
        let limits = &cx.rules.limits;
        let elapsed = cx.now - self.upload_since;
        let bytes = self.body_bytes - self.upload_bytes;
        !self.body.done()
            && elapsed > limits.upload_grace_ms * 1_000
            && bytes.saturating_mul(1_000_000) / elapsed < limits.upload_bytes_per_second_min
    }

    pub(super) fn hold_back_client(&mut self, cx: &mut Context<'_>) {
        if !std::mem::replace(&mut self.client_paused, true) {
            cx.actions.push(Action::Pause(Side::Client));
        }
    }

    pub(super) fn let_client_go_on(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.client_paused) {
            self.upload_since = cx.now;
            self.upload_bytes = self.body_bytes;
            self.wait(cx.now, cx.rules.limits.body_stall_timeout_ms, Waiting::Body);
            cx.actions.push(Action::Resume(Side::Client));
        }
    }
}
