//! The request side: body bytes come in, are looked at, held, and passed on unchanged.

use std::ops::Range;

use super::event::{Action, Context, Side, Source};
use super::{Exchange, Phase, Waiting, refusals};
use crate::counters::stats::Count;
use crate::http::{Kind, Refusal, SizeLine};
use crate::policy::Queueing;
use crate::scan::{Api, Facts, Needs, Progress};
use crate::snapshot::{Selected, Snapshot};

impl Exchange {
    /// The head was read: begins a scan if the choice needs something of the body. `form`: the boundary, if the body
    /// may be a form.
    pub(super) fn prepare(&mut self, form: Option<&[u8]>, cx: &mut Context<'_>) {
        let needs = self.needs(cx.snapshot);
        self.only = cx.snapshot.only_pool().map(|pool| pool.id);
        if self.asked.encoded {
            cx.stats.count(Count::ScanFailedCompressed);
        }
        if self.upload.body.done() || self.asked.encoded || needs.is_empty() {
            return;
        }
        let scan = self.upload.take_scan(cx.lender);
        match form.filter(|_| needs.contains(Needs::MODEL)) {
            Some(boundary) => scan.begin_form(&cx.snapshot.plan, boundary),
            None => scan.begin(self.asked.api, &cx.snapshot.plan, needs),
        }
    }

    fn needs(&self, snapshot: &Snapshot) -> Needs {
        let mut needs = snapshot.needs;
        if self.session.get().is_some() {
            needs = needs.without(Needs::SESSION);
        }
        if self.asked.api == Api::Other {
            // What it says beside these is not known.
            needs = needs.only(Needs::MODEL | Needs::SESSION);
        }
        needs
    }

    /// The fleet may have changed since the head came, and the choice may need more than the body is scanned for, or
    /// other blocks and keys than it is cut into: then the body is scanned again from its beginning.
    fn follow_fleet(&mut self, cx: &Context<'_>) {
        let needs = self.needs(cx.snapshot);
        // A form says nothing but its model.
        let Some(scan) = self.upload.scan.as_mut().filter(|scan| !scan.is_form()) else { return };
        if scan.needs().contains(needs) && scan.is_by(&cx.snapshot.plan) {
            return;
        }
        // To its end it was read perhaps for a chain alone: where there still is one, the scan adds that itself.
        let needs = needs | scan.needs().without(Needs::WHOLE);
        scan.begin(self.asked.api, &cx.snapshot.plan, needs);
        if self.upload.seeks_model {
            scan.seal_by_model();
        }
        self.read_anew(self.upload.holds_at_most(cx.rules));
    }

    /// None of the body came with the head. A request that waits for its body takes memory already.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) {
        if self.upload.knows_enough() {
            self.choose(cx);
        } else if self.upload.is_over_budget(cx.lender) {
            self.refuse(refusals::OVER_BUDGET.into(), cx);
        }
    }

    /// More of the request body, followed perhaps by the next request.
    pub(super) fn take_request(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        self.follow_fleet(cx);
        let mut pass = 0..0;
        // The choice may end the exchange in the middle: the rest is dropped, and a fault in it gets no second answer.
        while self.phase != Phase::Done && !self.upload.body.done() && pass.end < bytes.len() {
            let rest = &bytes[pass.end..];
            let part = match self.upload.body.next(rest) {
                Ok(part) => part,
                Err(fault) => return self.refuse(fault.refusal().into(), cx),
            };
            let end = pass.end + part.len;
            if let Kind::Pass { .. } = part.kind {
                let data = part.data(rest);
                // Before it is passed on: the last chunk may be among these bytes, and the engine would have it all.
                if self.upload.bytes + data.len() as u64 > cx.rules.limits.body_bytes_max {
                    return self.refuse(refusals::BODY_TOO_LARGE.into(), cx);
                }
                // Counted before the scan, so that the record of a request that is refused for these bytes has them.
                let before = self.upload.bytes;
                self.upload.bytes += data.len() as u64;
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
            Kind::End => self.upload.body.write_end(&mut frame),
            Kind::Pass { .. } | Kind::Drop => return,
        }
        if !self.upload.held_whole {
            cx.actions.bytes(Side::Upstream, &frame);
        } else {
            self.hold(&frame, cx);
        }
    }

    /// Feeds the scanner, which has seen `before` bytes, until the choice knows enough.
    fn look_at(&mut self, data: &[u8], before: u64, cx: &mut Context<'_>) {
        if self.phase != Phase::ReadBody || self.upload.knows_enough() {
            return;
        }
        // Not a byte beyond what may be held: else the key would depend on how the body was cut.
        let left = (self.upload.holds_at_most(cx.rules) as u64).saturating_sub(before);
        let (seen, beyond) = data.split_at(data.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let mut progress = self.upload.scan(seen, cx);
        if progress == Progress::More && !beyond.is_empty() && self.misses_model(cx.snapshot) {
            self.upload.seek_model();
            progress = self.upload.scan(beyond, cx);
        }
        match progress {
            Progress::More if !beyond.is_empty() && !self.upload.seeks_model => self.choose(cx),
            Progress::More => {}
            Progress::Failed(fault) => self.give_up_scan(fault, cx),
            // A request that may have to wait must be here whole, as those that wait already are.
            Progress::Enough { .. } if !self.upload.body.done() && self.may_have_to_wait(cx.snapshot) => {}
            Progress::Enough { .. } | Progress::Done => self.choose(cx),
        }
    }

    /// Whether nobody can be chosen without the model, and it has not been seen: clients may write it behind their
    /// messages, and in a form behind the file.
    fn misses_model(&self, snapshot: &Snapshot) -> bool {
        let is_unseen = |facts: &Facts| facts.model().is_none() && !facts.model_over();
        let unseen = self.upload.scan.as_ref().is_some_and(|scan| is_unseen(scan.facts()));
        unseen && snapshot.needs.contains(Needs::MODEL)
    }

    /// Whether it may have to wait for room: only requests whose prompt is read do.
    fn may_have_to_wait(&self, snapshot: &Snapshot) -> bool {
        if self.asked.api == Api::Other {
            return false;
        }
        let facts = self.upload.scan.as_ref().map(|scan| scan.facts());
        let Selected::Pool(pool) = self.selected(snapshot, facts) else { return false };
        pool.settings.queue != Queueing::Off && pool.settings.policy.counts_tokens()
    }

    /// A body that cannot be scanned is routed by load and forwarded unchanged: the engine judges it.
    fn give_up_scan(&mut self, fault: crate::scan::Fault, cx: &mut Context<'_>) {
        cx.stats.count(Count::scan_failed(fault.as_str()));
        self.upload.unscannable = true;
        self.choose(cx);
    }

    fn pass_request(&mut self, bytes: &[u8], range: Range<usize>, cx: &mut Context<'_>) {
        if range.is_empty() || self.phase == Phase::Done {
        } else if !self.upload.held_whole {
            cx.actions.push(Action::Send(Side::Upstream, Source::Input(range)));
        } else {
            self.hold(&bytes[range], cx);
        }
    }

    fn hold(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        self.upload.hold(bytes, self.asked.framing.body, cx);
    }

    /// After body bytes were taken: limits, the choice at the body's end, and how long to wait for more.
    fn after_request_bytes(&mut self, cx: &mut Context<'_>) {
        if self.phase == Phase::Done {
            return;
        }
        if self.upload.body.done() {
            self.whole = cx.now;
        }
        if let Some(refusal) = self.breaks_a_limit(cx) {
            return self.refuse(refusal.into(), cx);
        }
        // Once the model came, no more is held than of others.
        match (self.upload.seeks_model || self.upload.is_full(cx.rules)) && self.misses_model(cx.snapshot) {
            true => self.upload.seek_model(),
            false => self.upload.seeks_model = false,
        }
        let (full, done) = (self.upload.is_full(cx.rules), self.upload.body.done());
        match self.phase {
            Phase::ReadBody if self.upload.knows_enough() || done || full => self.choose_by_what_came(cx),
            Phase::Send if done && !self.upload.held_whole => self.request_sent(cx),
            // The engine is to take what is held.
            Phase::Send if done => self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload),
            _ => self.wait_for_body(cx),
        }
        if full && !done && self.phase != Phase::ReadBody && self.upload.held_whole {
            // It is the engine's turn now.
            if self.phase == Phase::Send {
                self.wait(cx.now, cx.rules.limits.reply_head_timeout_ms, Waiting::Upload);
            }
            self.hold_back_client(cx);
        }
    }

    /// The limit that the body has exceeded, if any, as a refusal.
    fn breaks_a_limit(&self, cx: &Context<'_>) -> Option<Refusal> {
        if self.upload.is_over_budget(cx.lender) {
            let never_fits = self.upload.seeks_model && self.upload.held.len() > cx.lender.budget_bytes;
            return Some(if never_fits { refusals::MODEL_TOO_FAR } else { refusals::OVER_BUDGET });
        }
        self.too_slow(cx).then_some(refusals::SLOW_UPLOAD)
    }

    fn choose_by_what_came(&mut self, cx: &mut Context<'_>) {
        let end = self.upload.scan.as_mut().filter(|_| self.upload.body.done()).map(|scan| scan.finish());
        match end {
            Some(Progress::Failed(fault)) => self.give_up_scan(fault, cx),
            _ => self.choose(cx),
        }
    }

    fn too_slow(&self, cx: &Context<'_>) -> bool {
        // Once the engine answers, its reply's deadlines bound both.
        if self.upload.body.done() || self.phase == Phase::Relay {
            return false;
        }
        let late = cx.now >= self.upload.until && !self.client_paused;
        late || self.upload.crawls(cx)
    }

    pub(super) fn hold_back_client(&mut self, cx: &mut Context<'_>) {
        if !std::mem::replace(&mut self.client_paused, true) {
            self.upload.held_back_since = cx.now;
            cx.actions.push(Action::Pause(Side::Client));
        }
    }

    pub(super) fn let_client_go_on(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.client_paused) {
            self.upload.goes_on(cx.now);
            self.wait_for_body(cx);
            cx.actions.push(Action::Resume(Side::Client));
        }
    }

    /// The client owes the rest of its body, if there is any and nothing else is waited for.
    pub(super) fn wait_for_body(&mut self, cx: &Context<'_>) {
        if !self.upload.body.done() && matches!(self.phase, Phase::ReadBody | Phase::Send) {
            let stalls = cx.now + cx.rules.limits.body_stall_timeout_ms * 1_000;
            self.deadline = Some((stalls.min(self.upload.until), Waiting::Body));
        }
    }
}
