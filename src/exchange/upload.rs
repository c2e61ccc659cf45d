//! What has come of a request's body, what is held of it, and what it is read for.

use super::event::{Context, Micros};
use super::lender::SCAN_BYTES;
use super::ranked::Naming;
use super::{Exchange, Lender, Phase, Rules};
use crate::http::{Body, BodyLength};
use crate::scan::{Progress, Scan};

/// The body of one request on its way to an engine, behind its rewritten head.
pub(super) struct Upload {
    /// Its framing, as it comes in.
    pub body: Body,
    /// Without its framing.
    pub bytes: u64,
    /// Since when, and behind how many bytes, its rate is measured: anew after we held it back.
    pub rate_since: Micros,
    pub rate_from: u64,
    /// When all of it must have come: later by as long as we held it back.
    pub until: Micros,
    pub held_back_since: Micros,
    /// The request as it goes out, rewritten head first: all of it while `held_whole`. What lies before it is
    /// `naming`'s.
    pub held: Vec<u8>,
    pub head_end: u32,
    /// Where the request begins, and which rank it names.
    pub naming: Naming,
    /// How many bytes of `held` the kernel took.
    pub pushed: usize,
    pub held_whole: bool,
    /// Never taken out of here while it is used: after a fault of ours its memory would stay on the account.
    pub scan: Option<Box<Scan>>,
    pub scan_nanos: u32,
    /// The body's model was not within `hold_bytes`: as much is held as it may have in all.
    pub seeks_model: bool,
    pub unscannable: bool,
}

impl Upload {
    /// Behind `head`, as it goes out, and as `naming` says what is before it.
    pub fn behind(head: Vec<u8>, naming: Naming, framing: BodyLength, cx: &mut Context<'_>) -> Upload {
        cx.lender.held_bytes += head.capacity();
        Upload {
            body: Body::new(framing),
            bytes: 0,
            rate_since: cx.now,
            rate_from: 0,
            until: cx.now + cx.rules.limits.upload_timeout_ms * 1_000,
            held_back_since: 0,
            head_end: head.len() as u32,
            held: head,
            pushed: naming.begins(),
            naming,
            held_whole: true,
            scan: None,
            scan_nanos: 0,
            seeks_model: false,
            unscannable: false,
        }
    }

    /// Where the body begins in what is held.
    pub fn head_len(&self) -> usize {
        self.head_end as usize
    }

    /// What is held and not yet taken by the upstream's kernel.
    pub fn unsent(&self) -> &[u8] {
        self.held.get(self.pushed..).unwrap_or_default()
    }

    /// Has the lender's scanner read it from here on.
    pub fn take_scan(&mut self, lender: &mut Lender) -> &mut Scan {
        self.scan.insert(lender.scan())
    }

    /// Whether the choice needs no more of the body, which still comes.
    pub fn knows_enough(&self) -> bool {
        self.scan.is_none()
    }

    pub fn give_back_scan(&mut self, lender: &mut Lender) {
        if let Some(scan) = self.scan.take() {
            lender.give_back_scan(scan);
        }
    }

    /// What its scanner takes.
    pub fn scan_bytes(&self) -> usize {
        if self.scan.is_some() { SCAN_BYTES } else { 0 }
    }

    /// Holds, and reads, as much as it takes for the model. What comes in one piece with it is no part of the prompt:
    /// else what is known of that would depend on how the body was cut.
    pub fn seek_model(&mut self) {
        self.seeks_model = true;
        if let Some(scan) = &mut self.scan {
            scan.seal_by_model();
        }
    }

    /// Feeds the scanner.
    pub fn scan(&mut self, bytes: &[u8], cx: &Context<'_>) -> Progress {
        let begun = (cx.stopwatch)();
        let progress = self.scan.as_mut().map_or(Progress::Done, |scan| scan.push(bytes));
        let took = (cx.stopwatch)().saturating_sub(begun);
        self.scan_nanos = self.scan_nanos.saturating_add(u32::try_from(took).unwrap_or(u32::MAX));
        progress
    }

    /// Bytes of the body that are held, and looked at, before the choice.
    pub fn holds_at_most(&self, rules: &Rules) -> usize {
        let limits = &rules.limits;
        if self.seeks_model { usize::try_from(limits.body_bytes_max).unwrap_or(usize::MAX) } else { limits.hold_bytes }
    }

    /// Whether no more of the body may be held. Chunks' framing counts only where there is as much of it as of the
    /// body: else the choice would depend on how that was cut.
    pub fn is_full(&self, rules: &Rules) -> bool {
        let most = self.holds_at_most(rules);
        self.bytes >= most as u64 || self.held.len() >= most.saturating_mul(2).saturating_add(self.head_len())
    }

    /// Holds more of a body of this framing.
    pub fn hold(&mut self, bytes: &[u8], framing: BodyLength, cx: &mut Context<'_>) {
        let wanted = self.held.len() + bytes.len();
        if self.held.capacity() < wanted {
            let announced = match framing {
                BodyLength::Length(len) if !self.seeks_model => usize::try_from(len).unwrap_or(usize::MAX),
                _ => 2 * self.held.len(),
            };
            let announced = self.head_len() + announced.min(self.holds_at_most(cx.rules));
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
    pub fn forget_held(&mut self, cx: &mut Context<'_>) {
        cx.lender.held_bytes -= self.held.capacity();
        cx.lender.give_back(std::mem::take(&mut self.held));
        (self.naming, self.pushed) = (Naming::default(), 0);
        self.held_whole = false;
    }

    /// Behind a fault of ours, which may have torn what is here: nobody gets it again.
    pub fn drop_all(&mut self, lender: &mut Lender) {
        lender.held_bytes -= self.held.capacity() + self.scan_bytes();
        (self.held, self.scan) = (Vec::new(), None);
    }

    /// Whether there is less memory than bodies take together, and this one takes any. Its own scanner is not held
    /// against it: one request at a time is served however small the budget is, and who has all its body here is rid of
    /// it in a moment.
    pub fn is_over_budget(&self, lender: &Lender) -> bool {
        let holds = self.held.len() > self.head_len() || self.scan.is_some();
        holds && lender.held_bytes - self.scan_bytes() > lender.budget_bytes
    }

    /// Whether it comes more slowly than any upload may.
    pub fn crawls(&self, cx: &Context<'_>) -> bool {
        let limits = &cx.rules.limits;
        let elapsed = cx.now - self.rate_since;
        let bytes = self.bytes - self.rate_from;
        elapsed > limits.upload_grace_ms * 1_000
            && bytes.saturating_mul(1_000_000) / elapsed < limits.upload_bytes_per_second_min
    }

    /// We held it back, and do so no more: its time goes on from here.
    pub fn goes_on(&mut self, now: Micros) {
        self.rate_since = now;
        self.rate_from = self.bytes;
        self.until += now - self.held_back_since;
    }
}

impl Exchange {
    /// Whether request body bytes are still expected from the client.
    pub fn reads_request(&self) -> bool {
        self.phase == Phase::Tunnel || !self.upload.body.done()
    }

    /// What is held and not yet taken by the upstream's kernel.
    pub fn unsent(&self) -> &[u8] {
        self.upload.unsent()
    }

    /// How many bytes of the request are held.
    pub fn held_bytes(&self) -> usize {
        self.upload.held.len()
    }

    /// The memory of those bytes and of the scanner, of what has come of the reply's head, and of a prompt that is kept
    /// (a stranger's, or one that waits).
    pub fn held_memory(&self) -> usize {
        let Upload { held, .. } = &self.upload;
        let kept = self.kept_bytes() + self.queued_bytes();
        held.capacity() + self.upload.scan_bytes() + self.reply.head.capacity() + kept
    }

    /// Its part of the memory that requests in the queue hold; 0 for one that does not wait.
    pub fn waiting_memory(&self) -> usize {
        if self.place().is_some() { self.upload.held.capacity() + self.queued_bytes() } else { 0 }
    }
}
