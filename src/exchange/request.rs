//! The request side: body bytes come in, are looked at, held, and passed on unchanged.

use std::ops::Range;

use super::event::{Action, Context, Side, Source};
use super::{Exchange, Phase, Rules, Waiting, refusals};
use crate::counters::stats::Count;
use crate::http::{BodyLength, Kind, SizeLine};
use crate::policy::Queueing;
use crate::scan::{Api, Facts, Needs, Progress};
use crate::snapshot::{Selected, Snapshot};

impl Exchange {
    /// The head stands: begins a scan if the choice needs something of the body.
    pub(super) fn prepare(&mut self, cx: &mut Context<'_>) {
        let needs = self.needs(cx.snapshot);
        self.only = cx.snapshot.only_pool().map(|pool| pool.id);
        if self.asked.encoded {
            cx.stats.count(Count::ScanFailedCompressed);
        }
        if self.body.done() || self.asked.encoded || needs.is_empty() {
            self.knows_enough = true;
            return;
        }
        let mut scan = cx.lender.scan();
        scan.begin(self.asked.api, &cx.snapshot.plan, needs);
        self.scan = Some(scan);
    }

    fn needs(&self, snapshot: &Snapshot) -> Needs {
        let mut needs = snapshot.needs;
        if self.asked.session.is_some() {
            needs = needs.without(Needs::SESSION);
        }
        if self.asked.api == Api::Other {
            // What it says beside these is not known.
            needs = needs.only(Needs::MODEL | Needs::SESSION);
        }
        needs
    }

    /// The fleet may have changed since the head, and its choice need more than the body is scanned for: what came of it is read once more.
    fn follow_fleet(&mut self, cx: &Context<'_>) {
        let needs = self.needs(cx.snapshot);
        let Some(mut scan) = self.scan.take_if(|scan| !scan.needs().contains(needs)) else { return };
        let needs = needs | scan.needs();
        scan.begin(self.asked.api, &cx.snapshot.plan, needs);
        self.read_anew(&mut scan, self.holds_at_most(cx.rules));
        self.scan = Some(scan);
    }

    /// None of the body came with the head.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        if self.knows_enough {
            self.choose(cx);
        }
    }

    /// More of the request body, followed perhaps by the next request.
    pub(super) fn take_request(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        self.follow_fleet(cx);
        let mut pass = 0..0;
        // The choice may end it in the middle: what comes behind is nobody's, and a fault there no second answer.
        while self.phase != Phase::Done && !self.body.done() && pass.end < bytes.len() {
            let rest = &bytes[pass.end..];
            let part = match self.body.next(rest) {
                Ok(part) => part,
                Err(fault) => return self.refuse(fault.refusal().into(), cx),
            };
            let end = pass.end + part.len;
            if let Kind::Pass { .. } = part.kind {
                let data = part.data(rest);
                // Before it is passed on: the last chunk may be among these bytes, and the engine would have it all.
                if self.body_bytes + data.len() as u64 > cx.rules.limits.body_bytes_max {
                    return self.refuse(refusals::BODY_TOO_LARGE.into(), cx);
                }
                // Who is refused for what stands in there sent it.
                let before = self.body_bytes;
                self.body_bytes += data.len() as u64;
                self.look_at(data, before, cx);
                pass.end = end;
            } else {
                self.pass_request(bytes, pass, cx);
                self.reframe(part.kind, cx);
                pass = end..end;
            }
        }
        cx.actions.consumed = pass.end;
        self.pass_request(bytes, pass, cx);
        self.after_request_bytes(cx);
    }

    /// Framing that cannot be passed as it stands is written anew.
    fn reframe(&mut self, kind: Kind, cx: &mut Context<'_>) {
        let mut frame = Vec::new();
        match kind {
            Kind::Size(size) => frame.extend_from_slice(SizeLine::new(size).as_bytes()),
            Kind::End => self.body.write_end(&mut frame),
            Kind::Pass { .. } | Kind::Drop => return,
        }
        if !self.held_whole {
            cx.actions.compose(Side::Upstream, |out| out.extend_from_slice(&frame));
        } else {
            self.hold(&frame, cx);
        }
    }

    /// Feeds the scanner, which has seen `before` bytes, until the choice knows enough.
    fn look_at(&mut self, data: &[u8], before: u64, cx: &mut Context<'_>) {
        if self.phase != Phase::ReadBody || self.scan.is_none() {
            return;
        }
        // Not a byte beyond what may be held: else the key would depend on how the body was cut.
        let left = (self.holds_at_most(cx.rules) as u64).saturating_sub(before);
        let (seen, beyond) = data.split_at(data.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let mut progress = self.scan(seen, cx);
        if progress == Progress::More && !beyond.is_empty() && self.misses_model(cx.snapshot) {
            self.seeks_model = true;
            progress = self.scan(beyond, cx);
        }
        match progress {
            Progress::More if !beyond.is_empty() && !self.seeks_model => self.choose(cx),
            Progress::More => {}
            Progress::Failed(fault) => self.give_up_scan(fault, cx),
            // Who may have to wait is to be here in one piece, as those are who wait already.
            Progress::Enough { .. } if !self.body.done() && self.may_have_to_wait(cx.snapshot) => {}
            Progress::Enough { .. } | Progress::Done => self.choose(cx),
        }
    }

    fn scan(&mut self, bytes: &[u8], cx: &Context<'_>) -> Progress {
        let begun = (cx.stopwatch)();
        let progress = self.scan.as_mut().map_or(Progress::Done, |scan| scan.push(bytes));
        self.scan_nanos += (cx.stopwatch)().saturating_sub(begun);
        progress
    }

    /// Bytes of the body that are held, and looked at, before the choice.
    pub(super) fn holds_at_most(&self, rules: &Rules) -> usize {
        let limits = &rules.limits;
        if self.seeks_model { usize::try_from(limits.body_bytes_max).unwrap_or(usize::MAX) } else { limits.hold_bytes }
    }

    /// Whether nobody can be chosen without the model, and it has not been seen: clients may write it behind their messages.
    fn misses_model(&self, snapshot: &Snapshot) -> bool {
        let is_unseen = |facts: &Facts| facts.model().is_none() && !facts.model_over();
        let unseen = self.scan.as_ref().is_some_and(|scan| is_unseen(scan.facts()));
        unseen && snapshot.needs.contains(Needs::MODEL)
    }

    fn may_have_to_wait(&self, snapshot: &Snapshot) -> bool {
        let facts = self.scan.as_ref().map(|scan| scan.facts());
        let Selected::Pool(pool) = self.selected(snapshot, facts) else { return false };
        pool.settings.queue != Queueing::Off && pool.settings.policy.counts_tokens()
    }

    /// A body that cannot be scanned is routed by load and forwarded unchanged: the engine judges it.
    fn give_up_scan(&mut self, fault: crate::scan::Fault, cx: &mut Context<'_>) {
        cx.stats.count(Count::scan_failed(fault.as_str()));
        self.unscannable = true;
        self.choose(cx);
    }

    fn pass_request(&mut self, bytes: &[u8], range: Range<usize>, cx: &mut Context<'_>) {
        if range.is_empty() || self.phase == Phase::Done {
        } else if !self.held_whole {
            cx.actions.push(Action::Send(Side::Upstream, Source::Input(range)));
        } else {
            self.hold(&bytes[range], cx);
        }
    }

    fn hold(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        let wanted = self.held.len() + bytes.len();
        if self.held.capacity() < wanted {
            let announced = match self.asked.framing.body {
                BodyLength::Length(len) if !self.seeks_model => usize::try_from(len).unwrap_or(usize::MAX),
                _ => 2 * self.held.len(),
            };
            let announced = self.head_len + announced.min(self.holds_at_most(cx.rules));
            let announced = announced.min(cx.lender.budget_bytes);
            let larger = cx.lender.buffer(wanted, announced);
            cx.lender.held_bytes += larger.capacity();
            cx.lender.held_bytes -= self.held.capacity();
            let smaller = std::mem::replace(&mut self.held, larger);
            self.held.extend_from_slice(&smaller);
            cx.lender.give_back(smaller);
        }
        self.held.extend_from_slice(bytes);
    }

    /// What is held was sent, or will not be: its memory goes back.
    pub(super) fn forget_held(&mut self, cx: &mut Context<'_>) {
        cx.lender.held_bytes -= self.held.capacity();
        cx.lender.give_back(std::mem::take(&mut self.held));
        self.pushed = 0;
        self.held_whole = false;
    }

    /// After body bytes were taken: limits, the choice at the body's end, and how long to wait for more.
    fn after_request_bytes(&mut self, cx: &mut Context<'_>) {
        if self.phase == Phase::Done {
            return;
        }
        if self.body.done() {
            self.whole = cx.now;
        }
        if cx.lender.held_bytes > cx.lender.budget_bytes && self.held.len() > self.head_len {
            let never_fits = self.seeks_model && self.held.len() > cx.lender.budget_bytes;
            return self.refuse(if never_fits { refusals::MODEL_TOO_FAR } else { refusals::OVER_BUDGET }.into(), cx);
        }
        if self.too_slow(cx) {
            return self.refuse(refusals::SLOW_UPLOAD.into(), cx);
        }
        // Once it came, no more is held than of others.
        self.seeks_model = (self.seeks_model || self.is_full(cx.rules)) && self.misses_model(cx.snapshot);
        let full = self.is_full(cx.rules);
        if self.phase == Phase::ReadBody && (self.knows_enough || self.body.done() || full) {
            let end = self.scan.as_mut().filter(|_| self.body.done()).map(|scan| scan.finish());
            match end {
                Some(Progress::Failed(fault)) => self.give_up_scan(fault, cx),
                _ => self.choose(cx),
            }
        } else if self.phase == Phase::Send && self.body.done() {
            if !self.held_whole {
                self.request_sent(cx);
            } else {
                // All came; the engine is to take what is held.
                self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload);
            }
        } else {
            self.wait_for_body(cx);
        }
        let held = self.phase != Phase::ReadBody && self.held_whole;
        if held && full && !self.body.done() {
            // It is the engine's turn now.
            if self.phase == Phase::Send {
                self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload);
            }
            self.hold_back_client(cx);
        }
    }

    /// Whether no more of the body may be held. Chunks' framing counts only where there is as much of it as of the body: else the choice would
    /// depend on how that was cut.
    fn is_full(&self, rules: &Rules) -> bool {
        let most = self.holds_at_most(rules);
        self.body_bytes >= most as u64 || self.held.len() >= most.saturating_mul(2).saturating_add(self.head_len)
    }

    fn too_slow(&mut self, cx: &Context<'_>) -> bool {
        let limits = &cx.rules.limits;
        let elapsed = cx.now - self.upload_since;
        let bytes = self.body_bytes - self.upload_bytes;
        let crawls = elapsed > limits.upload_grace_ms * 1_000
            && bytes.saturating_mul(1_000_000) / elapsed < limits.upload_bytes_per_second_min;
        // Once the engine answers, its reply's deadlines bound both.
        let late = cx.now >= self.upload_until && !self.client_paused && self.phase != Phase::Relay;
        !self.body.done() && (crawls || late)
    }

    pub(super) fn hold_back_client(&mut self, cx: &mut Context<'_>) {
        if !std::mem::replace(&mut self.client_paused, true) {
            self.held_back_since = cx.now;
            cx.actions.push(Action::Pause(Side::Client));
        }
    }

    pub(super) fn let_client_go_on(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.client_paused) {
            self.upload_since = cx.now;
            self.upload_bytes = self.body_bytes;
            self.upload_until += cx.now - self.held_back_since;
            self.wait_for_body(cx);
            cx.actions.push(Action::Resume(Side::Client));
        }
    }

    /// The client owes the rest of its body, if there is any and nothing else is waited for.
    pub(super) fn wait_for_body(&mut self, cx: &Context<'_>) {
        if !self.body.done() && matches!(self.phase, Phase::ReadBody | Phase::Send) {
            let stalls = cx.now + cx.rules.limits.body_stall_timeout_ms * 1_000;
            self.deadline = Some((stalls.min(self.upload_until), Waiting::Body));
        }
    }
}
