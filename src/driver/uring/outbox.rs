//! Bytes to send: gathered during a turn, handed to the kernel at its end, all at once.
//!
//! Bytes of the caller are copied side by side, received bytes are sent from the buffer that they are in. Both stay
//! until the enter that takes them has returned; then the sends are over and everything is free again.

#![allow(unsafe_code, reason = "the kernel is told of bytes by address")]

use std::io::{self, IoSlice};
use std::num::NonZeroU16;
use std::os::fd::RawFd;

use super::buffers::Buffers;
use super::ring::Ring;
use crate::slots::Key;

/// Most of the callers' bytes that one turn may queue; what does not fit is sent at once.
const COPIED_BYTES_MAX: usize = 512 << 10;
/// Most pieces that one socket may queue in one turn (the kernel takes 1024 at once).
pub(super) const PIECES_MAX: u16 = 64;
/// Most bytes that one socket may queue in one turn: beyond that it must be known whether the kernel takes them.
pub(super) const QUEUED_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy)]
enum Source {
    /// Among the copied bytes.
    Copied,
    /// In this receive buffer.
    Buffer(u16),
}

#[derive(Clone, Copy)]
struct Piece {
    source: Source,
    start: u32,
    len: u32,
    /// Place of the socket's next piece.
    next: Option<u32>,
}

/// Pieces of one socket, in order.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    /// Never 0, so that an `Option<Chain>` takes no more room.
    pub count: NonZeroU16,
    pub bytes: u32,
}

/// Everything that one turn has to send.
pub(super) struct Outbox {
    pieces: Vec<Piece>,
    copied: Box<[u8]>,
    used: usize,
    /// Sockets with something to send, in the order in which it was queued.
    queued: Vec<Key>,
    /// The sockets and pieces that the kernel was given.
    batch: Vec<(Key, Chain)>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::msghdr>,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox {
            pieces: Vec::new(),
            copied: vec![0; COPIED_BYTES_MAX].into_boxed_slice(),
            used: 0,
            queued: Vec::new(),
            batch: Vec::new(),
            vectors: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// Whether so many bytes more can be copied.
    pub(super) fn has_room(&self, len: usize) -> bool {
        len <= self.copied.len() - self.used
    }

    /// Adds a copy of `bytes`, for which there is room.
    pub(super) fn copy(&mut self, id: Key, chain: &mut Option<Chain>, bytes: &[u8]) {
        let start = self.used;
        self.copied[start..start + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        let last = chain.and_then(|chain| self.pieces.get_mut(chain.last as usize));
        match last {
            Some(last) if matches!(last.source, Source::Copied) && (last.start + last.len) as usize == start => {
                last.len += bytes.len() as u32;
                if let Some(chain) = chain {
                    chain.bytes += bytes.len() as u32;
                }
            }
            _ => self.add(id, chain, Source::Copied, start, bytes.len()),
        }
    }

    /// Adds part of a receive buffer, of which the caller has taken a use for it.
    pub(super) fn refer(&mut self, id: Key, chain: &mut Option<Chain>, buffer: u16, start: usize, len: usize) {
        self.add(id, chain, Source::Buffer(buffer), start, len);
    }

    fn add(&mut self, id: Key, chain: &mut Option<Chain>, source: Source, start: usize, len: usize) {
        let place = self.pieces.len() as u32;
        self.pieces.push(Piece { source, start: start as u32, len: len as u32, next: None });
        match chain {
            Some(chain) => {
                self.pieces[chain.last as usize].next = Some(place);
                (chain.last, chain.count, chain.bytes) =
                    (place, chain.count.saturating_add(1), chain.bytes + len as u32);
            }
            None => {
                *chain = Some(Chain { first: place, last: place, count: NonZeroU16::MIN, bytes: len as u32 });
                self.queued.push(id);
            }
        }
    }

    fn walk(&self, chain: Chain) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.get(chain.first as usize);
        std::iter::successors(first, |piece| self.pieces.get(piece.next? as usize))
    }

    /// Returns the bytes of a socket's pieces, in order.
    pub(super) fn slices<'a>(&'a self, chain: Chain, buffers: &'a Buffers) -> impl Iterator<Item = IoSlice<'a>> {
        self.walk(chain).map(move |piece| {
            let (start, end) = (piece.start as usize, (piece.start + piece.len) as usize);
            IoSlice::new(match piece.source {
                Source::Copied => &self.copied[start..end],
                Source::Buffer(name) => &buffers.bytes(name, end)[start..],
            })
        })
    }

    /// Releases the buffers of a socket's pieces.
    pub(super) fn release(&self, chain: Chain, buffers: &mut Buffers) {
        for piece in self.walk(chain) {
            if let Source::Buffer(name) = piece.source {
                buffers.release(name);
            }
        }
    }

    /// Queues one send for each socket that has something to send. `take` returns the socket's descriptor and its
    /// pieces.
    pub(super) fn submit(
        &mut self,
        ring: &mut Ring,
        buffers: &Buffers,
        mut take: impl FnMut(Key) -> Option<(RawFd, Chain)>,
    ) -> io::Result<()> {
        self.vectors.clear();
        self.messages.clear();
        // Nothing moves from here on: the kernel reads these lists when it takes the sends.
        self.vectors.reserve(self.pieces.len());
        self.messages.reserve(self.queued.len());
        let mut queued = std::mem::take(&mut self.queued);
        for id in queued.drain(..) {
            let Some((socket, chain)) = take(id) else { continue };
            let first = self.vectors.len();
            let mut vectors = std::mem::take(&mut self.vectors);
            vectors.extend(
                self.slices(chain, buffers)
                    .map(|slice| libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() }),
            );
            self.vectors = vectors;
            self.batch.push((id, chain));
            let pieces = &mut self.vectors[first..];
            // SAFETY: copied bytes, held buffers, vectors and messages stay where they are until the enter has
            // returned: the driver calls `clear` and releases buffers only then.
            unsafe {
                if let [one] = pieces {
                    ring.send(id, socket, one.iov_base.cast(), one.iov_len as u32)?;
                } else {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
                    self.messages.push(message);
                    ring.send_pieces(id, socket, &raw const self.messages[self.messages.len() - 1])?;
                }
            }
        }
        self.queued = queued;
        Ok(())
    }

    /// Returns what the last enter was given.
    pub(super) fn sent(&mut self) -> Vec<(Key, Chain)> {
        std::mem::take(&mut self.batch)
    }

    /// Makes room for the next turn, once everything is sent or kept elsewhere.
    pub(super) fn clear(&mut self, mut batch: Vec<(Key, Chain)>) {
        batch.clear();
        self.batch = batch;
        self.pieces.clear();
        self.used = 0;
    }
}
