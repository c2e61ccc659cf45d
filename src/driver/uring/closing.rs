//! The end of a socket: its descriptor stays open for as long as the kernel has an operation that names it.

use std::time::Duration;

use super::Uring;
use super::ring::{Completed, Purpose};
use super::state::Kind;
use crate::driver::{Completion, Driver, SocketId, socket};

/// How often the kernel is entered to get a descriptor back: each enter ends some twenty of the operations that it has
/// put off.
const LET_GO_TRIES: u32 = 64;
/// When the driver is dropped: how often the kernel is waited for in vain. It ends some twenty operations in one enter.
const END_TRIES: u32 = 100;
const END_WAIT: Duration = Duration::from_millis(10);

impl Uring {
    /// Cancels all operations that are under way; bytes that the kernel has not taken are dropped.
    pub(super) fn begin_close(&mut self, id: SocketId) {
        self.send_now(id);
        let Some(socket) = self.live(id) else { return };
        if socket.starved {
            socket::reset_on_close(&socket.fd);
        }
        socket.kind = Kind::Closing;
        let (under_way, splice) = (socket.under_way, socket.splice.take());
        if let Some(splice) = splice {
            self.pipes.end(*splice);
        }
        if under_way.is_empty() {
            self.sockets.remove(id);
            return;
        }
        self.closing += 1;
        for purpose in under_way.iter() {
            let outcome = self.ring.cancel(purpose, id);
            self.note(outcome);
        }
    }

    fn is_closing(&self, id: SocketId) -> bool {
        self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Closing)
    }

    /// Closes the descriptor of a closed socket once no operation names it.
    pub(super) fn drop_if_over(&mut self, id: SocketId) {
        if self.is_closing(id) && self.sockets.get(id).is_some_and(|socket| socket.under_way.is_empty()) {
            self.sockets.remove(id);
            self.closing -= 1;
        }
    }

    /// Has the kernel end operations of closed sockets now, when the next enter would be too late. Returns whether a
    /// descriptor came free.
    pub(super) fn let_go(&mut self) -> bool {
        let closing = self.closing;
        closing > 0 && self.end_now(LET_GO_TRIES, |uring| uring.closing < closing)
    }

    /// Enters until enough cancelled operations have ended for `met` to hold; returns whether it does.
    pub(super) fn end_now(&mut self, tries: u32, met: impl Fn(&Uring) -> bool) -> bool {
        for _ in 0..tries {
            if met(self) {
                break;
            }
            let before = self.completed.len();
            let outcome = self.ring.enter(Duration::ZERO, &mut self.completed);
            if outcome.is_err() {
                self.note(outcome);
                break;
            }
            self.note_completed(before);
            self.complete_untold();
            if !self.ring.puts_off() {
                break;
            }
        }
        met(self)
    }

    /// Closes every socket and waits until the kernel is done with them; returns whether it is.
    pub(super) fn end_all(&mut self) -> bool {
        self.release_lease();
        self.sockets.keys().into_iter().for_each(|id| self.close(id));
        let (mut tries, mut closing) = (0, self.closing);
        while tries < END_TRIES {
            while let Some(completion) = self.next() {
                // It was accepted before the kernel knew of the close.
                if let Completion::Accepted { socket, .. } = completion {
                    self.close(socket);
                }
            }
            if self.sockets.is_empty() || self.wait(END_WAIT).is_err() {
                break;
            }
            tries = if self.closing < closing { 0 } else { tries + 1 };
            closing = self.closing;
        }
        self.sockets.is_empty()
    }

    /// Whether the shard is not told of this completion.
    fn is_untold(&self, completed: Completed) -> bool {
        self.is_closing(completed.id) || completed.purpose == Purpose::Accept && !self.accepting
    }

    /// Handles completions that the shard is not told of, ahead of their turn.
    fn complete_untold(&mut self) {
        let mut place = self.handed_out;
        while let Some(&completed) = self.completed.get(place) {
            if self.is_untold(completed) {
                self.completed.remove(place);
                self.complete(completed);
            } else {
                place += 1;
            }
        }
    }
}
