//! What the access log is told of a request: plain data of a fixed size, written while the request runs and handed on
//! once, at its end. Nothing of a body, nothing of a query, and no field's value but the request id gets in here.

use std::net::SocketAddr;

use crossbeam::queue::ArrayQueue;

use super::event::{Context, Peer};
use super::{Exchange, Micros, Phase};
use crate::counters::stats::Event as Count;
use crate::fleet::EndpointId;
use crate::http::{Cause, Refusal, RequestHead};
use crate::policy::{Choice, Reason};
use crate::scan::Api;
use crate::snapshot::PoolId;

/// One request, from its first byte to its end. Instants are microseconds since that first byte.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Wall time of the first byte, in microseconds since 1970.
    pub at: u64,
    /// Who asked.
    pub client: SocketAddr,
    /// Empty where no head could be read.
    pub method: Short<16>,
    /// Without its query, which may hold secrets.
    pub path: Short<64>,
    /// What kind of request the path is for.
    pub api: Api,
    /// The client's own, or the one that was made for it; empty where no head could be read.
    pub request_id: Short<64>,
    /// The pool that was selected.
    pub pool: Option<PoolId>,
    /// The endpoint chosen last, and why.
    pub endpoint: Option<EndpointId>,
    /// Why that one.
    pub reason: Option<Reason>,
    /// How many endpoints were chosen, one after the other.
    pub tries: u8,
    /// Hash of the prompt's prefix by which it was routed.
    pub key: Option<u64>,
    /// Sent to the client; 0: it left before.
    pub status: u16,
    /// How it ended.
    pub end: End,
    /// The reply was a stream of events.
    pub streamed: bool,
    /// Bytes of the request's body, without its framing.
    pub request_bytes: u64,
    /// Bytes of the engine's reply body, without its framing.
    pub reply_bytes: u64,
    /// The first endpoint was chosen: what had to be read of the body was read.
    pub chosen: Option<Micros>,
    /// The connection that was used stood.
    pub connected: Option<Micros>,
    /// The reply's head had come.
    pub head: Option<Micros>,
    /// The first data event of a stream, the first byte of another reply's body.
    pub first_data: Option<Micros>,
    /// The end.
    pub total: Micros,
}

const _: () = assert!(size_of::<Record>() <= 384, "limits.rs says what a queue of these takes");

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With the last byte of its reply.
    Whole,
    /// The client left, in this phase.
    ClientLeft(Phase),
    /// The client took none of its reply for too long.
    ClientStalled,
    /// By its engine: before a reply, which is 502 or 504 then, or in the middle of one.
    EngineBroke(Cause),
    /// Answered with an error of ours, or cut for a fault in the rest of its body.
    Refused(Cause),
    /// Cut at the end of a drain.
    Drained,
    /// By a fault of ours.
    Fault,
}

impl End {
    /// As the log names it.
    pub fn as_str(self) -> &'static str {
        match self {
            End::Whole => "whole",
            End::ClientLeft(_) | End::ClientStalled => "client_left",
            End::EngineBroke(_) => "engine_broke",
            End::Refused(_) => "refused",
            End::Drained => "drained",
            End::Fault => "fault",
        }
    }

    /// The phase or cause, with the labels that metrics have.
    pub fn why(self) -> Option<&'static str> {
        match self {
            End::ClientLeft(phase) => Some(phase.as_str()),
            End::ClientStalled => Some("stalled"),
            End::EngineBroke(cause) | End::Refused(cause) => Some(cause.as_str()),
            End::Whole | End::Drained | End::Fault => None,
        }
    }
}

impl From<&Refusal> for End {
    fn from(refusal: &Refusal) -> End {
        match refusal.status {
            502 | 504 => End::EngineBroke(refusal.cause),
            _ => End::Refused(refusal.cause),
        }
    }
}

/// The first bytes of something, `N` at most.
#[derive(Clone, Copy)]
pub struct Short<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

impl<const N: usize> Short<N> {
    /// As many of them as there is room for.
    pub fn new(all: &[u8]) -> Short<N> {
        const { assert!(N <= u8::MAX as usize) };
        let len = all.len().min(N);
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&all[..len]);
        Short { len: len as u8, bytes }
    }

    /// Those that were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> std::fmt::Debug for Short<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// Takes the records of one shard; there is none while the log is off.
#[derive(Clone, Copy)]
pub struct Recorder {
    /// To control. Where it is full the record is dropped and counted: a request never waits for its log.
    pub queue: &'static ArrayQueue<Record>,
    /// Wall time, in microseconds since 1970.
    pub wall: fn() -> u64,
}

/// The record of a request that runs; empty while the log is off.
pub(super) struct Draft(Option<Box<Open>>);

struct Open {
    since: Micros,
    record: Record,
}

impl Draft {
    /// Begins one for a request whose first byte came at `since`.
    pub(super) fn begin(peer: Peer, since: Micros, cx: &Context<'_>) -> Draft {
        Draft(cx.lender.recorder.map(|_| {
            let record = Record {
                at: 0,
                client: SocketAddr::new(peer.ip, peer.port),
                method: Short::new(b""),
                path: Short::new(b""),
                api: Api::Other,
                request_id: Short::new(b""),
                pool: None,
                endpoint: None,
                reason: None,
                tries: 0,
                key: None,
                status: 0,
                end: End::Whole,
                streamed: false,
                request_bytes: 0,
                reply_bytes: 0,
                chosen: None,
                connected: None,
                head: None,
                first_data: None,
                total: 0,
            };
            Box::new(Open { since, record })
        }))
    }

    /// Its head was read.
    pub(super) fn asked(&mut self, head: &RequestHead<'_>, request_id: &[u8]) {
        let Some(open) = &mut self.0 else { return };
        let path = head.path().split(|&byte| byte == b'?').next().unwrap_or_default();
        open.record.method = Short::new(head.method);
        open.record.path = Short::new(path);
        open.record.api = Api::of_path(path);
        open.record.request_id = Short::new(request_id);
    }

    pub(super) fn chose(&mut self, choice: &Choice, now: Micros) {
        let Some(open) = &mut self.0 else { return };
        open.record.endpoint = Some(choice.endpoint);
        open.record.reason = Some(choice.reason);
        open.record.tries = open.record.tries.saturating_add(1);
        open.record.chosen.get_or_insert(now.saturating_sub(open.since));
        open.record.connected = None;
    }

    pub(super) fn connected(&mut self, now: Micros) {
        if let Some(open) = &mut self.0 {
            open.record.connected = Some(now.saturating_sub(open.since));
        }
    }

    pub(super) fn head_came(&mut self, now: Micros) {
        if let Some(open) = &mut self.0 {
            open.record.head = Some(now.saturating_sub(open.since));
        }
    }

    /// Some of the reply's body came.
    #[inline]
    pub(super) fn data_came(&mut self, now: Micros) {
        if let Some(open) = &mut self.0 {
            open.record.first_data.get_or_insert(now.saturating_sub(open.since));
        }
    }

    /// It is over, and was answered here, without an engine.
    pub(super) fn answered(self, status: u16, end: End, cx: &Context<'_>) {
        if let Some(mut open) = self.0 {
            open.record.status = status;
            hand_over(&mut open, end, cx);
        }
    }
}

impl Exchange {
    /// Tells how it ended. Told once: the draft is gone then.
    pub(super) fn tell(&mut self, end: End, cx: &Context<'_>) {
        let Some(mut open) = self.draft.0.take() else { return };
        let record = &mut open.record;
        record.pool = self.pool;
        record.key = self.key;
        record.status = self.status;
        record.streamed = self.event_stream;
        record.request_bytes = self.body_bytes;
        record.reply_bytes = self.reply_bytes;
        hand_over(&mut open, end, cx);
    }
}

fn hand_over(open: &mut Open, end: End, cx: &Context<'_>) {
    // Switched off meanwhile.
    let Some(recorder) = &cx.lender.recorder else { return };
    let record = &mut open.record;
    record.end = end;
    record.total = cx.now.saturating_sub(open.since);
    record.at = (recorder.wall)().saturating_sub(record.total);
    if recorder.queue.push(*record).is_err() {
        cx.stats.count(Count::RecordDropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(Short::<4>::new(b"").as_bytes(), b"");
        assert_eq!(Short::<4>::new(b"abcd").as_bytes(), b"abcd");
        assert_eq!(Short::<4>::new(b"abcde").as_bytes(), b"abcd");
        assert_eq!(format!("{:?}", Short::<4>::new(b"\"\n")), r#""\"\n""#);
    }

    #[test]
    fn a_bad_gateway_is_the_engines_doing() {
        let end = |status| End::from(&Refusal::new(status, Cause::EarlyEnd, ""));
        assert_eq!(end(502), End::EngineBroke(Cause::EarlyEnd));
        assert_eq!(end(504), End::EngineBroke(Cause::EarlyEnd));
        for status in [400, 408, 413, 503] {
            assert_eq!(end(status), End::Refused(Cause::EarlyEnd), "{status}");
        }
    }
}
