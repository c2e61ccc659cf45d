//! What access log and receipts are told of a request: plain data of a fixed size, written ([`super::draft`]) and
//! handed on once, at its end. Nothing of a body but hashes, nothing of a query, and no field's value but the ids of
//! request and trace gets in here.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crossbeam::queue::ArrayQueue;

use super::{Micros, Phase, Rules};
use crate::counters::stats::{Count, Ended, ShardStats};
use crate::fleet::EndpointId;
use crate::http::{Cause, TraceId};
use crate::policy::{Costs, Reason};
use crate::scan::Api;
use crate::snapshot::PoolId;

/// One request, from its first byte to its end. Instants are microseconds since that first byte.
#[derive(Clone, Debug)]
pub struct Record {
    /// Wall time of the first byte, in microseconds since 1970.
    pub at: u64,
    /// Who asked.
    pub client: SocketAddr,
    /// Empty where no line of a request could be read.
    pub method: Short<16>,
    /// Without its query, which may hold secrets.
    pub path: Short<64>,
    /// What kind of request the path is for.
    pub api: Api,
    /// The client's own, or the one that was made for it; empty where no head could be read.
    pub request_id: Short<{ Record::ID_BYTES }>,
    /// The trace that its client says it belongs to.
    pub trace: TraceId,
    /// The pool that was selected.
    pub pool: Option<PoolId>,
    /// The endpoint chosen last, and why.
    pub endpoint: Option<EndpointId>,
    /// Why that one.
    pub reason: Option<Reason>,
    /// Who would have been next, as far as that choice knew.
    pub runner_up: Option<EndpointId>,
    /// What that choice compared.
    pub compared: Option<Compared>,
    /// How many endpoints were chosen, one after the other.
    pub tries: u8,
    /// Tokens of the prompt as a choice counted them, else as the engine did; `None`: none did.
    pub prompt_tokens: Option<u32>,
    /// How many of them the endpoint chosen last was taken to hold.
    pub held_tokens: Option<u32>,
    /// How many of them its cache held, as the engine counted.
    pub cached_tokens: Option<u32>,
    /// Tokens of the answer, as the engine counted.
    pub completion_tokens: Option<u32>,
    /// Hash of the prompt's prefix by which it was routed.
    pub key: Option<u64>,
    /// Sent to the client; 0: it left, or the front ended, before.
    pub status: u16,
    /// How it ended.
    pub end: End,
    /// The reply was a stream of events.
    pub streamed: bool,
    /// Bytes of the request's body, without its framing.
    pub request_bytes: u64,
    /// Bytes of the engine's reply body, without its framing.
    pub reply_bytes: u64,
    /// How long it stood in a queue before the choice.
    pub waited: Option<Micros>,
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
    /// The access log was on at its end: it gets a line.
    pub logged: bool,
    /// Where the log is to have it: the hash of each stretch of [`crate::limits::LOGGED_CHAIN_BYTES`] of the prompt
    /// with all before it.
    pub chain: Option<Box<[u64]>>,
}

const _: () = assert!(size_of::<Record>() <= 488, "limits.rs says what those take that wait");

/// What a choice looked at, beside what is the same for all endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// Requests at the endpoint before this one.
    pub in_flight: u32,
    /// Most it might have had, this one included.
    pub slots: Option<u32>,
    /// Requests at the runner-up.
    pub runner_up_in_flight: Option<u32>,
    /// Of both, where work was counted.
    pub costs: Option<Costs>,
}

impl Record {
    /// What is kept of a request id.
    pub const ID_BYTES: usize = 64;

    /// Whether a request's id is this, as far as it is kept.
    pub fn is_called(&self, id: &[u8]) -> bool {
        self.request_id.as_bytes() == Short::<{ Record::ID_BYTES }>::new(id).as_bytes()
    }

    /// What is told of nothing.
    pub const BLANK: Record = Record {
        at: 0,
        client: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        method: Short::EMPTY,
        path: Short::EMPTY,
        api: Api::Other,
        request_id: Short::EMPTY,
        trace: TraceId::NONE,
        pool: None,
        endpoint: None,
        reason: None,
        runner_up: None,
        compared: None,
        tries: 0,
        prompt_tokens: None,
        held_tokens: None,
        cached_tokens: None,
        completion_tokens: None,
        key: None,
        status: 0,
        end: End::Whole,
        streamed: false,
        request_bytes: 0,
        reply_bytes: 0,
        waited: None,
        chosen: None,
        connected: None,
        head: None,
        first_data: None,
        total: 0,
        logged: false,
        chain: None,
    };
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// With the last byte of its reply.
    Whole,
    /// The client left, in this phase.
    ClientLeft(Phase),
    /// The client took none of its reply for too long.
    ClientStalled,
    /// By its engine, as it is counted: before a reply, which is 502 or 504 then, or in the middle of one.
    EngineBroke(Count),
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

    /// What that is for who counts on an answer, by the status that was sent and whether its reply told of an error.
    pub(super) fn ended(self, status: u16, told: bool) -> Ended {
        match self {
            End::ClientLeft(_) | End::ClientStalled => Ended::Left,
            // In the rest of a request whose reply had begun.
            End::Refused(_) if status < 400 => Ended::Refused,
            End::Whole => Ended::by_status(status, !told),
            End::Refused(_) => Ended::by_status(status, true),
            End::EngineBroke(_) | End::Drained | End::Fault => Ended::by_status(status, false),
        }
    }

    /// The phase, kind or cause, with the labels that metrics have, which have none for a client that stalled.
    pub fn why(self) -> Option<&'static str> {
        match self {
            End::ClientLeft(phase) => Some(phase.as_str()),
            End::ClientStalled => Some("stalled"),
            End::EngineBroke(kind) => kind.label().map(|(_, kind)| kind),
            End::Refused(cause) => Some(cause.as_str()),
            End::Whole | End::Drained | End::Fault => None,
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
    const EMPTY: Short<N> = Short { len: 0, bytes: [0; N] };

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

/// Takes the records of one shard; there is none while neither log nor receipts want any.
#[derive(Clone, Copy)]
pub struct Recorder {
    /// To control. Where it is full the record is dropped and counted: a request never waits for its log.
    pub queue: &'static ArrayQueue<Box<Record>>,
    /// From control: boxes to be written anew.
    pub spare: &'static ArrayQueue<Box<Record>>,
}

impl Recorder {
    /// Where the next record is to be written. While no log wants every record, the oldest that is one too many for
    /// receipts is written over, still warm, before anyone has read it.
    pub(super) fn blank(&self, rules: &Rules, stats: &ShardStats) -> Box<Record> {
        let surplus = !rules.access_log && self.queue.len() >= rules.receipts;
        let place = if surplus { self.queue.pop() } else { self.spare.pop() };
        match place {
            Some(place) => {
                // A log that was on until a moment ago had it coming.
                if surplus && place.logged {
                    stats.count(Count::RecordDropped);
                }
                place
            }
            None => Box::new(Record::BLANK),
        }
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
    fn why_it_ended_is_said_as_it_is_counted() {
        for (end, why) in [
            (End::EngineBroke(Count::UpstreamFaultReset), Some("reset")),
            (End::EngineBroke(Count::upstream_fault(Cause::BadChunk.as_str())), Some("bad_chunk")),
            (End::Refused(Cause::Unreachable), Some("unreachable")),
            (End::ClientLeft(Phase::Await), Some("await")),
            (End::Whole, None),
        ] {
            assert_eq!(end.why(), why);
        }
    }
}
