//! What the io_uring backend keeps for each socket.

use std::os::fd::OwnedFd;

use rustix::net::Shutdown;

use super::buffers::BUFFER_BYTES;
use super::outbox::Chain;
use super::ring::{PURPOSES, Purpose};
use crate::driver::Tag;
use crate::driver::backlog::Backlog;
use crate::driver::fault::Breakage;
use crate::driver::splice::Splice;

/// Number of pieces in a row that suit the other way of receiving, after which a connection changes to it.
const UNSUITED_MAX: u8 = 6;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    /// The eventfd that other shards ring.
    Bell,
    /// Accepted, not adopted yet.
    Fresh,
    Connecting,
    Stream,
    /// Closed by the shard: the descriptor goes once no operation names it any more.
    Closing,
}

/// How a paused connection ended after the bytes that came for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Fin,
    Fault,
}

/// Bytes and end that came for a paused connection. Bytes are copied, so that no buffer is kept from the others.
#[derive(Default)]
pub(super) struct Parked {
    pub(super) bytes: Vec<u8>,
    pub(super) end: Option<End>,
}

/// The purposes of a socket's operations whose last completion is still to come: at most one operation for each.
#[derive(Clone, Copy, Default)]
pub(super) struct UnderWay(u8);

impl UnderWay {
    pub(super) fn begin(&mut self, purpose: Purpose) {
        debug_assert!(!self.has(purpose), "{purpose:?} is asked for twice");
        self.0 |= 1 << purpose as u8;
    }

    pub(super) fn end(&mut self, purpose: Purpose) {
        self.0 &= !(1 << purpose as u8);
    }

    pub(super) fn has(self, purpose: Purpose) -> bool {
        self.0 & 1 << purpose as u8 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Purpose> {
        PURPOSES.into_iter().filter(move |purpose| self.has(*purpose))
    }
}

/// What is kept of one socket.
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) tag: Tag,
    pub(super) kind: Kind,
    /// Whether it is read in large pieces, once no receive is under way, and not received into small buffers. Only for
    /// a connection that we opened this may change.
    pub(super) bulk: bool,
    pub(super) ours: bool,
    /// Pieces in a row that the other way of receiving would have suited better.
    pub(super) unsuited: u8,
    pub(super) under_way: UnderWay,
    /// The receive (or accept) under way was cancelled.
    pub(super) cancelled: bool,
    /// The turn in which the receive (or accept) was begun; the kernel takes it at the turn's end.
    pub(super) armed_in: u32,
    pub(super) paused: bool,
    /// The connection's end was told to the shard, or waits until parked bytes are handed out: nothing more is
    /// received.
    pub(super) over: bool,
    pub(super) breakage: Breakage,
    /// The kernel took fewer bytes than it was given; `Drained` is owed.
    pub(super) starved: bool,
    pub(super) finish: bool,
    /// Number of completions of its receive that were not handed out yet.
    pub(super) undelivered: u32,
    /// What the kernel said to the send of this turn, if it said anything.
    pub(super) send_result: Option<i32>,
    pub(super) outgoing: Option<Chain>,
    pub(super) backlog: Option<Box<Backlog>>,
    pub(super) parked: Option<Box<Parked>>,
    /// Where its bytes go inside the kernel, once the receive has ended.
    pub(super) splice: Option<Box<Splice>>,
    /// There may be bytes to read or to splice.
    pub(super) readable: bool,
    /// A visit to look for them is noted.
    pub(super) due: bool,
}

impl Socket {
    pub(super) fn new(fd: OwnedFd, tag: Tag, kind: Kind) -> Socket {
        Socket {
            fd,
            tag,
            kind,
            bulk: kind != Kind::Connecting,
            ours: kind == Kind::Connecting,
            unsuited: 0,
            under_way: UnderWay::default(),
            cancelled: false,
            armed_in: 0,
            paused: false,
            over: false,
            breakage: Breakage::default(),
            starved: false,
            finish: false,
            undelivered: 0,
            send_result: None,
            outgoing: None,
            backlog: None,
            parked: None,
            splice: None,
            readable: false,
            due: false,
        }
    }

    /// Whether a receive is under way, or a listener's accept.
    pub(super) fn is_receiving(&self) -> bool {
        self.under_way.has(Purpose::Receive) || self.under_way.has(Purpose::Accept)
    }

    /// Notes that so many bytes came at once; true if the connection changes to the other way of receiving.
    pub(super) fn outgrows(&mut self, len: usize) -> bool {
        let unsuited = self.ours && self.bulk != (len >= BUFFER_BYTES);
        self.unsuited = if unsuited { self.unsuited + 1 } else { 0 };
        if self.unsuited < UNSUITED_MAX {
            return false;
        }
        (self.bulk, self.unsuited) = (!self.bulk, 0);
        true
    }

    /// Sends the backlog; true if nothing is left of it.
    pub(super) fn flush(&mut self) -> bool {
        let flushed = Backlog::flush(&mut self.backlog, &self.fd).inspect_err(|error| self.breakage.note(*error));
        if flushed != Ok(true) {
            return false;
        }
        self.starved = false;
        if self.finish {
            let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        }
        true
    }

    /// Returns the number of bytes that the kernel did not take yet.
    pub(super) fn waiting(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.len())
    }

    pub(super) fn park(&mut self, bytes: &[u8]) {
        self.parked.get_or_insert_default().bytes.extend_from_slice(bytes);
    }

    pub(super) fn park_end(&mut self, end: End) {
        self.over = true;
        self.parked.get_or_insert_default().end = Some(end);
    }
}
