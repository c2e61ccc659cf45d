//! The way back: the reply's head, re-framed from what was parsed, then its body as it comes.

use std::ops::Range;

use super::event::{Action, Context, Side, Source};
use super::judged::{Judged, Words, tells_of_error};
use super::shown::Shown;
use super::{End, Ending, Exchange, Phase, Waiting, refusals};
use crate::counters::stats::{Count, Timing};
use crate::http::rewrite::{self, Form};
use crate::http::{
    self, Body, BodyLength, Cause, Fault, Kind, ReplyFraming, ResponseHead, SizeLine, Status, ToClient, chunk,
};

/// What a reply head came to. Offsets are into the event's bytes.
enum Headed {
    /// Its end has not come.
    Partial,
    /// It ends here; another head follows (1xx).
    Interim(usize),
    /// It ends here; the body follows.
    Final(usize),
    /// It ends here; a tunnel follows.
    Tunnel(usize),
    /// There is no reply to pass on: the exchange is over, or goes elsewhere.
    Nothing,
}

impl Exchange {
    /// Bytes of the reply.
    pub(super) fn take_reply(&mut self, bytes: &[u8], cx: &mut Context<'_>) {
        if let Some(leg) = &mut self.leg {
            leg.answered = true;
        }
        let mut at = 0;
        while self.phase != Phase::Relay {
            match self.take_head(&bytes[at..], cx) {
                Headed::Partial | Headed::Nothing => return,
                Headed::Interim(end) if at + end == bytes.len() => return,
                Headed::Interim(end) | Headed::Final(end) => at += end,
                Headed::Tunnel(end) => return self.begin_tunnel(at + end..bytes.len(), cx),
            }
        }
        self.relay(bytes, at, cx);
    }

    /// Reads a head from the beginning of `bytes`, or from what came before and `bytes`.
    fn take_head(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Headed {
        let limits = http::HeadLimits::of_replies(&cx.rules.limits);
        let before = self.reply.head.len();
        let joined;
        let all = if before == 0 {
            bytes
        } else {
            let mut held = self.take_held_head(cx);
            held.extend_from_slice(bytes);
            // Read again only when a line may have become complete, lest single bytes cost a pass each.
            let so_far = held.len();
            let judged = self.reply.head_needs > 0;
            let too_long = !judged && so_far > limits.head_bytes_max;
            let worth_reading =
                if judged { so_far >= self.reply.head_needs as usize } else { memchr::memchr(b'\n', bytes).is_some() };
            if !too_long && !worth_reading {
                self.hold_head(held, cx);
                return Headed::Partial;
            }
            // What the head before needed, an interim one or another engine's, is not what this one needs.
            self.reply.head_needs = 0;
            joined = held;
            &joined[..]
        };
        let mut fields = std::mem::take(&mut cx.lender.fields);
        let headed = match http::parse_response(all, &mut fields, &limits) {
            Ok(Status::Partial) => {
                self.hold_head(all.to_vec(), cx);
                Headed::Partial
            }
            Ok(Status::Complete(head)) => match http::framing::reply(&head, &self.asked.framing) {
                Ok(framing) if framing.switching && !self.is_offered(&head) => {
                    self.bad_reply(Fault::new(Cause::BadSwitch, "101 to a protocol that was not offered"), cx)
                }
                // What was not sent would be taken for the other protocol's, or lost.
                Ok(framing) if framing.switching && self.has_unsent() => {
                    self.bad_reply(Fault::new(Cause::BadSwitch, "101 to half a request"), cx)
                }
                Ok(framing) => match Words::of(&head, &framing, &all[head.len..], &self.asked) {
                    Words::Wanting(more) => {
                        self.reply.head_needs = (all.len() + more) as u32;
                        self.hold_head(all.to_vec(), cx);
                        Headed::Partial
                    }
                    Words::Here(words) => {
                        let judged = Judged { words: &words, body_bytes: all.len() - head.len };
                        self.begin_reply(&head, &framing, judged, &all[..before], cx)
                    }
                },
                Err(fault) => self.bad_reply(fault, cx),
            },
            Err(fault) => self.bad_reply(fault, cx),
        };
        cx.lender.fields = fields;
        headed
    }

    fn bad_reply(&mut self, fault: Fault, cx: &mut Context<'_>) -> Headed {
        let kind = Count::upstream_fault(fault.cause.as_str());
        match fault.cause {
            // A head's length may be the client's doing: no fault of the engine.
            Cause::HeadTooLarge => self.charge(),
            _ => self.blame(kind, cx),
        }
        self.engine_broke(kind, refusals::bad_reply(fault), cx);
        Headed::Nothing
    }

    /// A head is complete, and the words by which its reply is judged are at hand. `before`: what came earlier of both.
    fn begin_reply(
        &mut self,
        head: &ResponseHead<'_>,
        framing: &ReplyFraming,
        judged: Judged<'_>,
        before: &[u8],
        cx: &mut Context<'_>,
    ) -> Headed {
        // `head` may have come in earlier reads, and part of the body with it: where it ends in these bytes.
        let end = head.len.saturating_sub(before.len());
        if framing.interim {
            return self.pass_interim(head, framing, end, cx);
        }
        if !self.is_for_its_client(head, framing, judged, cx) {
            return Headed::Nothing;
        }
        let delivery = self.write_reply_head(head, framing, cx);
        self.reply.started = true;
        self.draft.head_came(cx.now);
        if framing.switching {
            return Headed::Tunnel(end);
        }
        self.reply.status = head.status;
        self.begin_body(framing, &delivery, cx);
        self.pass_held(before.get(head.len..).unwrap_or_default(), cx);
        Headed::Final(end)
    }

    fn pass_interim(
        &mut self,
        head: &ResponseHead<'_>,
        framing: &ReplyFraming,
        end: usize,
        cx: &mut Context<'_>,
    ) -> Headed {
        self.reply.interim += 1;
        if self.reply.interim > cx.rules.limits.interim_replies_max {
            return self.bad_reply(Fault::new(Cause::BadFraming, "too many interim replies"), cx);
        }
        // 100 was answered by us before the body was read.
        if head.status != 100 {
            self.write_reply_head(head, framing, cx);
        }
        Headed::Interim(end)
    }

    /// The head was passed on: prepares for the body.
    fn begin_body(&mut self, framing: &ReplyFraming, delivery: &rewrite::Delivery, cx: &mut Context<'_>) {
        self.keep_upstream = framing.keep_alive && self.ends_for_certain(framing);
        self.reply.event_stream = framing.event_stream;
        self.reply.shown = if framing.event_stream { Shown::Nothing } else { Shown::Answer };
        self.reply.opaque = !framing.json && !framing.event_stream;
        self.reply.json = framing.json && self.reply.status == 200;
        self.reply.body = Body::new(framing.body);
        self.reply.form = delivery.body;
        self.keep_client = delivery.keep_alive;
        self.phase = Phase::Relay;
        self.reply.last = cx.now;
        if self.upload.body.done() && !self.has_unsent() {
            self.upload.forget_held(cx);
        }
        self.wait_for_reply(cx);
    }

    /// Whether the engine's connection will stand between two messages after this reply's last byte. That none follows
    /// a head (HEAD, 204, 304) is a rule, and an engine that breaks it would write the next client's reply. One that
    /// answers before it has all of a request may leave the rest unread, or read it as the next.
    pub(super) fn ends_for_certain(&self, framing: &ReplyFraming) -> bool {
        framing.body != BodyLength::None && self.upload.body.done() && !self.has_unsent()
    }

    /// For the first token of a stream that has not spoken, else for more of the reply.
    pub(super) fn wait_for_reply(&mut self, cx: &Context<'_>) {
        let limits = &cx.rules.limits;
        if self.reply.event_stream && !self.reply.tap.spoke() {
            self.wait(cx.now, limits.first_token_timeout_ms, Waiting::FirstToken);
        } else {
            self.wait(cx.now, limits.inter_chunk_timeout_ms, Waiting::Chunk);
        }
    }

    fn write_reply_head(
        &self,
        head: &ResponseHead<'_>,
        framing: &ReplyFraming,
        cx: &mut Context<'_>,
    ) -> rewrite::Delivery {
        let to = self.to_client(cx);
        cx.actions.compose(Side::Client, |out| rewrite::reply(head, framing, &to, out))
    }

    /// How its client is answered, whoever answers.
    pub(super) fn to_client(&self, cx: &Context<'_>) -> ToClient<'_> {
        ToClient {
            version: self.asked.version,
            // A client that still uploads gets its answer, and no further request on this connection.
            keep_alive: self.asked.framing.keep_alive && self.upload.body.done() && !cx.draining,
            head_request: self.asked.framing.head_method,
            request_id: Some(&self.asked.request_id),
            explain: self.explain.as_deref(),
        }
    }

    /// Passes the body on from `bytes[at..]`; what can go as it stands goes in one piece.
    fn relay(&mut self, bytes: &[u8], mut at: usize, cx: &mut Context<'_>) {
        let mut pass = at..at;
        while !self.reply.body.done() && at < bytes.len() {
            let rest = &bytes[at..];
            let part = match self.reply.body.next(rest) {
                Ok(part) => part,
                Err(fault) => {
                    self.pass_reply(pass, cx);
                    return self.broke_its_body(Count::upstream_fault(fault.cause.as_str()), cx);
                }
            };
            self.listen(part.data(rest), cx);
            self.count_data(part.data(rest).len() as u64, cx);
            let end = at + part.len;
            match (part.kind, self.reply.form) {
                (Kind::Pass { .. }, Form::AsItComes) => pass.end = end,
                (Kind::Pass { start, end: data_end }, _) => {
                    self.pass_data(at + start..at + data_end, cx);
                    pass = end..end;
                }
                (kind, _) => {
                    self.pass_reply(pass, cx);
                    self.reframe_reply(kind, cx);
                    pass = end..end;
                }
            }
            at = end;
        }
        self.pass_reply(pass, cx);
        self.note_progress(self.reply.tap.spoke(), cx);
        if self.reply.body.done() {
            self.keep_upstream &= at == bytes.len();
            return self.complete(cx);
        }
        self.let_pass_unseen(cx);
    }

    /// Counts bytes of the reply's body. In a stream they are data only from its first data event on.
    pub(super) fn count_data(&mut self, len: u64, cx: &Context<'_>) {
        if self.reply.bytes == 0 && len > 0 && !self.reply.event_stream {
            self.draft.data_came(cx.now);
        }
        self.reply.bytes += len;
    }

    /// Looks at a piece of the body.
    pub(super) fn listen(&mut self, data: &[u8], cx: &mut Context<'_>) {
        self.note_made(data, cx);
        if self.reply.event_stream {
            let silent = !self.reply.tap.spoke();
            let lines = self.reply.usage.join(data);
            let error = tells_of_error(self.reply.usage.joined(), lines, self.asked.api);
            let behind = error.map_or(0, |(begins, _)| lines.len() - begins);
            let (before, event) = data.split_at(data.len() - behind);
            self.reply.tap.watch(before);
            if let Some((_, told)) = error {
                self.stream_failed(told, cx);
            }
            self.reply.tap.watch(event);
            if silent && self.reply.tap.spoke() {
                self.draft.data_came(cx.now);
            }
            if self.reply.shown.is_open() && self.reply.tap.spoke() {
                match error {
                    // What began may be the error's own line, which was cut: it teaches nothing.
                    Some(_) if self.reply.shown == Shown::Nothing => self.reply.shown = Shown::Answer,
                    Some(_) => self.reply.shown = Shown::First,
                    None => self.reply.shown.look(self.reply.usage.joined(), lines),
                }
            }
            let told = self.reply.usage.stream(lines, self.asked.api);
            self.tokens_told(told, cx);
        } else if self.reply.json {
            let told = self.reply.usage.body(data, self.reply.body.left());
            self.tokens_told(told, cx);
        }
    }

    /// A long reply of known length that nobody has to look into may pass inside the kernel, once.
    fn let_pass_unseen(&mut self, cx: &mut Context<'_>) {
        if let Some(left) = self.reply.may_pass_unseen(cx.rules.limits.splice_bytes_min) {
            cx.actions.push(Action::Splice(left));
        }
    }

    /// So many bytes of the body have passed unseen.
    pub(super) fn spliced(&mut self, len: u64, cx: &mut Context<'_>) {
        self.reply.body.passed(len);
        self.count_data(len, cx);
        self.note_progress(false, cx);
        if self.reply.body.done() {
            self.complete(cx);
        }
    }

    pub(super) fn pass_reply(&mut self, range: Range<usize>, cx: &mut Context<'_>) {
        if !range.is_empty() {
            cx.actions.push(Action::Send(Side::Client, Source::Input(range)));
        }
    }

    /// Body bytes whose framing is not the engine's: in chunks of ours, or bare.
    fn pass_data(&mut self, range: Range<usize>, cx: &mut Context<'_>) {
        if range.is_empty() || self.reply.form == Form::Nothing {
            return;
        }
        let chunked = self.reply.form == Form::Chunks;
        if chunked {
            cx.actions.bytes(Side::Client, SizeLine::new(range.len() as u64).as_bytes());
        }
        self.pass_reply(range, cx);
        if chunked {
            cx.actions.bytes(Side::Client, b"\r\n");
        }
    }

    /// What stands for framing that cannot be passed as it stands.
    pub(super) fn reframe_reply(&mut self, kind: Kind, cx: &mut Context<'_>) {
        if self.reply.form != Form::AsItComes {
            return;
        }
        let reply = &self.reply.body;
        match kind {
            Kind::Size(size) => cx.actions.bytes(Side::Client, SizeLine::new(size).as_bytes()),
            Kind::End => cx.actions.compose(Side::Client, |out| reply.write_end(out)),
            Kind::Pass { .. } | Kind::Drop => {}
        }
    }

    /// Times tokens and moves the deadline. A stream that has not spoken keeps its first-token deadline.
    fn note_progress(&mut self, spoke: bool, cx: &mut Context<'_>) {
        let begins = matches!(self.deadline, Some((_, Waiting::FirstToken)));
        if begins && !spoke {
            // It was not silent, though it gave no token.
            self.reply.last = cx.now;
            return;
        }
        match self.reply.shown {
            Shown::Nothing => self.prompt_may_be_computed(),
            Shown::Frame => self.is_opened(begins, cx),
            // vLLM opens a chat when it has the first token, of which a thought that is not asked for may show nothing.
            Shown::First => self.first_token_came(if begins { cx.now } else { self.reply.last }, cx),
            Shown::Answer => {
                self.prompt_computed();
                if let Some(pool) = self.pool.filter(|_| self.reply.event_stream) {
                    cx.stats.observe(pool.0, Timing::InterToken, cx.now - self.reply.last);
                    self.gives_on(cx);
                }
            }
        }
        self.reply.last = cx.now;
        if !self.client_full {
            self.wait(cx.now, cx.rules.limits.inter_chunk_timeout_ms, Waiting::Chunk);
        }
    }

    /// The engine closed in the reply's body: a proper end only where closing delimits it.
    pub(super) fn reply_ended(&mut self, by_fin: bool, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        match self.reply.body.on_close() {
            Ok(()) if by_fin => {
                if self.reply.form == Form::Chunks {
                    cx.actions.bytes(Side::Client, chunk::LAST_CHUNK);
                }
                self.complete(cx);
            }
            _ => self.ended_early(by_fin, cx),
        }
    }

    /// The last byte of the reply is on its way.
    fn complete(&mut self, cx: &mut Context<'_>) {
        if self.reply.json {
            let told = self.reply.usage.end();
            self.tokens_told(told, cx);
        }
        self.praise_or_blame(cx);
        self.end(if self.keep_client { Ending::KeepAlive } else { Ending::Linger }, End::Whole, cx);
    }
}
