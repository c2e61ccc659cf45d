//! The way back: the reply's head, re-framed from what was parsed, then its body as it comes.

use super::event::{Action, Context, Side, Source};
use super::{Ending, Exchange, Passing, Phase, Waiting};
use crate::counters::stats::{Event as Count, Timing};
use crate::http::{
    self, Body, BodyLength, HeadLimits, Kind, Refusal, ReplyFraming, ResponseHead, Status, ToClient, rewrite,
};

/// What a reply head came to.
enum Headed {
    /// Its end has not come.
    Partial,
    /// It ends at this offset of the event's bytes; another head may follow (1xx).
    Interim(usize),
    /// It ends at this offset; the body follows.
    Final(usize),
    /// The exchange is over, or tunnels from this offset.
    Tunnel(usize),
    Failed,
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
                Headed::Partial | Headed::Failed => return,
                Headed::Interim(end) if at + end == bytes.len() => return,
                Headed::Interim(end) | Headed::Final(end) => at += end,
                Headed::Tunnel(end) => return self.begin_tunnel(at + end, bytes.len(), cx),
            }
        }
        self.relay(bytes, at, cx);
    }

    /// Reads a head from the beginning of `bytes`, or from what came before and `bytes`.
    fn take_head(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Headed {
        let before = self.reply_head.len();
        let joined;
        let all = if before == 0 {
            bytes
        } else {
            self.reply_head.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.reply_head);
            &joined[..]
        };
        let limits = &cx.rules.limits;
        let limits = HeadLimits { head_bytes_max: limits.head_bytes_max, head_fields_max: limits.head_fields_max };
        let mut fields = std::mem::take(&mut cx.lender.fields);
        let headed = match http::parse_response(all, &mut fields, &limits) {
            Ok(Status::Partial) => {
                self.reply_head = all.to_vec();
                Headed::Partial
            }
            Ok(Status::Complete(head)) => match http::framing::reply(&head, &self.asked.framing) {
                Ok(framing) => self.begin_reply(&head, &framing, head.len - before, cx),
                Err(fault) => self.bad_reply(fault, cx),
            },
            Err(fault) => self.bad_reply(fault, cx),
        };
        cx.lender.fields = fields;
        headed
    }

    fn bad_reply(&mut self, fault: http::Fault, cx: &mut Context<'_>) -> Headed {
        cx.stats.reply_fault(fault);
        self.refuse(Refusal::bad_reply(fault), cx);
        Headed::Failed
    }

    fn begin_reply(&mut self, head: &ResponseHead<'_>, framing: &ReplyFraming, end: usize, cx: &mut Context<'_>) -> Headed {
        if framing.switching {
            self.write_reply_head(head, framing, true, cx);
            return Headed::Tunnel(end);
        }
        if framing.interim {
            self.interim += 1;
            if self.interim > cx.rules.limits.interim_replies_max {
                return self.bad_reply(http::Fault::TooManyInterim, cx);
            }
            // 100 was answered by us before the body was read.
            if head.status != 100 && !self.is_http10() {
                self.write_reply_head(head, framing, true, cx);
            }
            return Headed::Interim(end);
        }
        self.status = head.status;
        self.keep_upstream = framing.keep_alive;
        self.event_stream = framing.event_stream;
        self.reply = Body::of(framing.body);
        self.passing = match framing.body {
            BodyLength::Chunked if self.is_http10() => Passing::Dechunk,
            BodyLength::UntilClose if !self.is_http10() => Passing::Enchunk,
            _ => Passing::Same,
        };
        let keep_alive = self.client_stays(framing.body, cx);
        self.write_reply_head(head, framing, keep_alive, cx);
        self.reply_started = true;
        self.phase = Phase::Relay;
        self.last_reply = cx.now;
        self.forget_held(cx);
        let limits = &cx.rules.limits;
        if self.event_stream {
            self.wait(cx.now, limits.first_token_timeout_ms, Waiting::FirstToken);
        } else {
            self.wait(cx.now, limits.inter_chunk_timeout_ms, Waiting::Chunk);
        }
        Headed::Final(end)
    }

    fn write_reply_head(&mut self, head: &ResponseHead<'_>, framing: &ReplyFraming, keep_alive: bool, cx: &mut Context<'_>) {
        let to = ToClient {
            version: self.asked.version,
            keep_alive,
            head_request: self.asked.framing.head_method,
            request_id: Some(&self.asked.request_id),
            explain: self.explain.as_deref(),
        };
        cx.actions.compose(Side::Client, |out| rewrite::reply(head, framing, &to, out));
    }

    /// Whether the client's connection can serve another request after this reply.
    fn client_stays(&self, length: BodyLength, cx: &Context<'_>) -> bool {
        let delimited = !self.is_http10() || matches!(length, BodyLength::None | BodyLength::Length(_));
        self.asked.framing.keep_alive && delimited && self.body.done() && !cx.draining
    }

    /// Passes the body on from `bytes[at..]`; what can go as it stands goes in one piece.
    fn relay(&mut self, bytes: &[u8], mut at: usize, cx: &mut Context<'_>) {
        let mut pass = at..at;
        let mut spoke = false;
        while !self.reply.done() && at < bytes.len() {
            let part = match self.reply.next(&bytes[at..]) {
                Ok(part) => part,
                Err(fault) => {
                    cx.stats.reply_fault(fault);
                    self.pass_reply(pass, cx);
                    return self.cut(cx);
                }
            };
            let end = at + part.len;
            let data = part.kind == Kind::Data;
            spoke |= data && self.event_stream && self.tap.watch(&bytes[at..end]);
            match (part.kind, self.passing) {
                (Kind::Data | Kind::Framing, Passing::Same) | (Kind::Data, Passing::Dechunk | Passing::Enchunk) => {
                    pass.end = end;
                }
                (kind, _) => {
                    self.pass_reply(pass, cx);
                    if self.passing == Passing::Same {
                        let body = &self.reply;
                        cx.actions.compose(Side::Client, |out| body.write_frame(kind, out));
                    }
                    pass = end..end;
                }
            }
            if self.passing == Passing::Dechunk && !data {
                pass = end..end;
            }
            at = end;
        }
        self.pass_reply(pass, cx);
        self.note_progress(spoke, cx);
        if self.reply.done() {
            self.keep_upstream &= at == bytes.len();
            self.complete(cx);
        }
    }

    fn pass_reply(&mut self, range: std::ops::Range<usize>, cx: &mut Context<'_>) {
        if range.is_empty() {
            return;
        }
        let len = range.len();
        let enchunk = self.passing == Passing::Enchunk;
        if enchunk {
            cx.actions.compose(Side::Client, |out| http::chunk::write_size(len as u64, out));
        }
        cx.actions.push(Action::Send(Side::Client, Source::Input(range)));
        if enchunk {
            cx.actions.compose(Side::Client, |out| out.extend_from_slice(b"\r\n"));
        }
    }

    /// Times tokens and moves the deadline. A stream that has not spoken keeps its first-token deadline.
    fn note_progress(&mut self, spoke: bool, cx: &mut Context<'_>) {
        let first = matches!(self.deadline, Some((_, Waiting::FirstToken)));
        if first && !spoke {
            return;
        }
        if let Some(pool) = self.pool.filter(|_| self.event_stream) {
            if first {
                cx.stats.observe(pool, Timing::FirstToken, cx.now - self.started);
            } else {
                cx.stats.observe(pool, Timing::InterToken, cx.now - self.last_reply);
            }
        }
        self.last_reply = cx.now;
        if !self.client_full {
            self.wait(cx.now, cx.rules.limits.inter_chunk_timeout_ms, Waiting::Chunk);
        }
    }

    /// The engine closed in the reply's body: a proper end only where closing delimits it.
    pub(super) fn reply_ended(&mut self, cx: &mut Context<'_>) {
        self.keep_upstream = false;
        match self.reply.on_close() {
            Ok(()) => {
                if self.passing == Passing::Enchunk {
                    cx.actions.compose(Side::Client, |out| out.extend_from_slice(b"0\r\n\r\n"));
                }
                self.complete(cx);
            }
            Err(fault) => {
                cx.stats.reply_fault(fault);
                cx.stats.count(Count::UpstreamLost);
                self.cut(cx);
            }
        }
    }

    /// The last byte of the reply is on its way.
    fn complete(&mut self, cx: &mut Context<'_>) {
        // A client that still uploads gets its answer, and no further request on this connection.
        let whole = self.body.done();
        self.keep_upstream &= whole;
        let delimited = !(self.is_http10() && self.passing == Passing::Dechunk) && !self.close_delimited();
        let stays = self.asked.framing.keep_alive && whole && delimited && !cx.draining;
        self.end(if stays { Ending::KeepAlive } else { Ending::Linger }, cx);
    }

    fn close_delimited(&self) -> bool {
        self.is_http10() && self.reply.until_close()
    }

    fn begin_tunnel(&mut self, at: usize, len: usize, cx: &mut Context<'_>) {
        cx.stats.count(Count::Tunnelled);
        self.status = 101;
        self.reply_started = true;
        self.phase = Phase::Tunnel;
        self.forget_held(cx);
        self.wait(cx.now, cx.rules.limits.tunnel_idle_timeout_ms, Waiting::Tunnel);
        if at < len {
            cx.actions.push(Action::Send(Side::Client, Source::Input(at..len)));
        }
    }
}
