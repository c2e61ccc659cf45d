//! What goes into an exchange and what comes out of it.

use std::net::IpAddr;
use std::ops::Range;

use super::{Lender, Rules};
use crate::calendar;
use crate::counters::Counters;
use crate::counters::stats::{Count, ShardStats};
use crate::fleet::EndpointId;
use crate::snapshot::Snapshot;

/// Instants and lengths of the data plane, in microseconds of a monotone clock.
pub type Micros = u64;

/// The two sides of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The client.
    Client,
    /// The endpoint that answers.
    Upstream,
}

/// What happened. Bytes are borrowed: what must outlive the event is copied or sent.
#[derive(Debug)]
pub enum Event<'a> {
    /// The head was read; its body may follow.
    Begin,
    /// Bytes of the request body. [`Actions::consumed`] tells how many belonged to it.
    Request(&'a [u8]),
    /// There may be room for a request in the queue, and it is its turn; or it was pushed out.
    Room,
    /// The client sends no more (FIN).
    ClientEnded,
    /// The client's connection is broken.
    ClientReset,
    /// The upstream connection asked for stands.
    Connected {
        /// It served requests before.
        reused: bool,
        /// Bytes acknowledged on it so far.
        acknowledged: Option<u64>,
    },
    /// The upstream connection asked for could not be made.
    ConnectFailed,
    /// It could not even be begun, for want of something of ours: a descriptor, memory.
    ConnectWanting,
    /// The same, since all ports of ours are taken that lead there.
    ConnectPortless,
    /// The upstream's kernel took so many bytes of [`crate::exchange::Exchange::unsent`].
    Pushed(usize),
    /// Bytes of the reply.
    Reply(&'a [u8]),
    /// So many bytes of the reply's body went to the client, unseen.
    Spliced(u64),
    /// The upstream sends no more, or its connection is broken.
    UpstreamGone {
        /// By a FIN, not a reset.
        by_fin: bool,
        /// Bytes acknowledged on it at its end.
        acknowledged: Option<u64>,
    },
    /// The kernel did not take all that was sent to this side.
    Full(Side),
    /// The kernel takes bytes for this side again.
    Drained(Side),
    /// The instant in [`crate::exchange::Exchange::deadline`] has passed.
    Deadline {
        /// Bytes acknowledged on the upstream connection.
        acknowledged: Option<u64>,
        /// The client took none of what waits for it for as long as it may.
        client_stalls: bool,
    },
    /// The endpoint's kernel refuses connections: what it still owes may never come.
    Deserted,
    /// The front is being shut down: end now, visibly.
    Cut,
}

/// Where bytes to send lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the event's bytes.
    Input(Range<usize>),
    /// In [`Actions::scratch`].
    Scratch(Range<usize>),
}

/// How an exchange leaves its client's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The next request may follow.
    KeepAlive,
    /// Everything sent, then FIN; what the client still sends is read and dropped for a while, lest a
    /// reset destroys the reply on its way.
    Linger,
    /// A reset: the client must not take this end for a proper one.
    Abort,
    /// The client is gone already.
    Gone,
}

/// What the shard is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send bytes.
    Send(Side, Source),
    /// Offer what [`crate::exchange::Exchange::unsent`] holds to the upstream.
    PushRequest,
    /// Get a connection; answered by `Connected`, or by what was in the way.
    Connect {
        /// To where.
        endpoint: EndpointId,
        /// Not one of the idle connections: they may all be stale.
        fresh: bool,
    },
    /// The upstream connection leaves this exchange: kept for another, or closed.
    Dismiss {
        /// It stands at the end of a reply.
        reuse: bool,
    },
    /// Have so many bytes of the reply go to the client inside the kernel, answered by `Spliced`; where that cannot
    /// be had they come as before.
    Splice(u64),
    /// Stop reading from a side.
    Pause(Side),
    /// Read from it again.
    Resume(Side),
    /// FIN to a side, behind what was sent to it.
    Finish(Side),
    /// The exchange is over.
    End(Ending),
}

/// The actions of one `advance`, and the bytes composed for them. Reused: nothing is allocated once warm.
#[derive(Debug, Default)]
pub struct Actions {
    /// In order.
    pub list: Vec<Action>,
    /// Heads, chunk frames, own replies.
    pub scratch: Vec<u8>,
    /// How many bytes of [`Event::Request`] belonged to this request.
    pub consumed: usize,
}

impl Actions {
    /// Forgets the last turn's.
    pub fn clear(&mut self) {
        self.list.clear();
        self.scratch.clear();
        self.consumed = 0;
    }

    /// Adds one.
    pub fn push(&mut self, action: Action) {
        self.list.push(action);
    }

    /// Sends what `write` composes, if that is anything, and answers what it answers.
    pub fn compose<T>(&mut self, side: Side, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.scratch.len();
        let answer = write(&mut self.scratch);
        let written = start..self.scratch.len();
        if !written.is_empty() {
            self.push(Action::Send(side, Source::Scratch(written)));
        }
        answer
    }

    /// Sends a copy of these bytes.
    pub fn bytes(&mut self, side: Side, bytes: &[u8]) {
        self.compose(side, |out| out.extend_from_slice(bytes));
    }
}

/// What an exchange may use while it advances. It reads no clock and opens no socket of its own.
pub struct Context<'a> {
    /// The turn's instant.
    pub now: Micros,
    /// Nanoseconds, to time the scan and the choice with.
    pub stopwatch: fn() -> u64,
    /// The fleet as of this turn.
    pub snapshot: &'a Snapshot,
    /// In-flight counts shared by all shards.
    pub counters: &'static Counters,
    /// This shard's statistics.
    pub stats: &'static ShardStats,
    /// The data plane's configuration as of this turn.
    pub rules: &'a Rules,
    /// The process drains soon: a balancer is to send its connections elsewhere.
    pub leaving: bool,
    /// No new request may follow on a connection.
    pub draining: bool,
    /// New connections find another process in this one's place.
    pub has_successor: bool,
    /// What an exchange borrows from its shard.
    pub lender: &'a mut Lender,
    /// Out.
    pub actions: &'a mut Actions,
}

impl Context<'_> {
    /// The time of day as answers of our own tell it. Replies of engines have theirs.
    pub(super) fn date(&self) -> Option<String> {
        self.lender.wall_ahead.map(|ahead| calendar::imf_fixdate(self.now.wrapping_add(ahead)))
    }

    /// A point at which tests have a fault of ours happen: their stopwatch panics.
    #[inline]
    pub(super) fn may_break(&self) {
        if cfg!(debug_assertions) {
            (self.stopwatch)();
        }
    }

    /// Whether a request may be sent a second time, which then counts against how many may be.
    pub(super) fn take_retry(&mut self) -> bool {
        // With retries switched off the budget saved before does not count.
        let may = self.rules.limits.retry_percent > 0 && self.lender.retries.take();
        if !may {
            self.stats.count(Count::RetryWithheld);
        }
        may
    }
}

/// Who is at the other end of a client connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
}
