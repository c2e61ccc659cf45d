//! The end of a socket: its descriptor stays open for as long as the kernel has an operation that names it.

use std::time::Duration;

use super::Uring;
use super::state::Kind;
use crate::driver::SocketId;

/// How often the kernel is asked for a descriptor: each time it sees to some twenty of the things it has put off.
const LET_GO_TRIES: u32 = 64;

impl Uring {
    fn is_closing(&self, id: SocketId) -> bool {
        self.sockets.get(id).is_some_and(|socket| socket.kind == Kind::Closing)
    }

    /// The descriptor goes once no operation names it.
    pub(super) fn drop_if_over(&mut self, id: SocketId) {
        if self.is_closing(id) && self.sockets.get(id).is_some_and(|socket| socket.operations == 0) {
            self.sockets.remove(id);
            self.closing -= 1;
        }
    }

    /// Has the kernel end operations of closed sockets now, where the next enter would be too late. Answers whether a
    /// descriptor came free.
    pub(super) fn let_go(&mut self) -> bool {
        let closing = self.closing;
        for _ in 0..LET_GO_TRIES {
            if self.closing < closing || closing == 0 {
                break;
            }
            let before = self.completed.len();
            let outcome = self.ring.enter(Duration::ZERO, &mut self.completed);
            if outcome.is_err() {
                self.note(outcome);
                break;
            }
            self.note_completed(before);
            self.complete_closing();
            if !self.ring.puts_off() {
                break;
            }
        }
        self.closing < closing
    }

    /// What completed of closed sockets need not wait for its turn: nobody is told of it.
    fn complete_closing(&mut self) {
        let mut place = self.handed_out;
        while let Some(&completed) = self.completed.get(place) {
            if self.is_closing(completed.id) {
                self.completed.remove(place);
                self.complete(completed);
            } else {
                place += 1;
            }
        }
    }
}
