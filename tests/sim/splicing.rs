//! Bytes that go from one connection to another inside the simulated kernel.

use warmfront::driver::{Completion, Lease};

use crate::network::Network;
use crate::pipe::{Splice, Stage};

/// Most bytes that one look moves into the pipe between the two.
const PIECE: usize = 9_000;

impl Network {
    /// As a ring does it: what was received before the splice began may still be handed out, and counts.
    pub fn begin_splice(&mut self, from: usize, to: usize, len: u64) -> bool {
        let both =
            [from, to].iter().all(|&at| self.pipes.get(at).is_some_and(|pipe| pipe.open && pipe.stage == Stage::Open));
        if !both || self.random.chance(10) {
            return false;
        }
        let came = self.pipes[from].to_front.len();
        let before = if self.random.chance(50) { 0 } else { self.random.below(came + 1) };
        self.pipes[from].splice.get_or_insert(Splice { to, left: len, before, piped: Vec::new() });
        true
    }

    pub fn visit_splice(&mut self, at: usize, lease_max: usize, buffer: &mut Vec<u8>) -> Option<Completion> {
        let mut splice = self.pipes[at].splice.take()?;
        let pipe = &mut self.pipes[at];
        if splice.before > 0 {
            let len = splice.before.min(lease_max).min(pipe.to_front.len());
            *buffer = pipe.hand_out(len);
            splice.before -= len;
            splice.left = splice.left.saturating_sub(len as u64);
            let tag = pipe.tag;
            pipe.splice = (splice.left > 0).then_some(splice);
            return Some(Completion::Received(tag, Lease { buffer: 0, len: len as u32 }));
        }
        if !self.pipes[splice.to].open {
            return None;
        }
        self.move_on(at, splice)
    }

    fn move_on(&mut self, at: usize, mut splice: Splice) -> Option<Completion> {
        let piece = self.random.small(PIECE);
        let pipe = &mut self.pipes[at];
        let tag = pipe.tag;
        if splice.piped.is_empty() {
            let len = (pipe.to_front.len() as u64).min(splice.left).min(piece as u64);
            if len == 0 {
                // It ended early; the splice is over with the connection.
                return pipe.tell_end();
            }
            splice.piped = pipe.hand_out(len as usize);
            splice.left -= len;
        }
        let reader = &mut self.pipes[splice.to];
        let taken = if reader.starved { 0 } else { reader.transmit(&splice.piped, &mut self.random) };
        splice.piped.drain(..taken);
        if !splice.piped.is_empty() {
            reader.full_owed |= !reader.starved;
            reader.starved = true;
        }
        if splice.left > 0 || !splice.piped.is_empty() {
            self.pipes[at].splice = Some(splice);
        }
        (taken > 0).then_some(Completion::Spliced(tag, taken as u64))
    }
}
