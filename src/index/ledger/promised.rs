//! What is held only because a shard has promised it.

use super::super::promises::Promise;
use super::{Ledger, NONE, PROMISED};
use crate::index::rows::Holder;

impl Ledger {
    /// This block is held in truth, and so are those before it.
    pub(super) fn confirm(&mut self, mut at: u32) {
        while at != NONE && self.cell(at).is_promised() {
            let cell = self.cell_mut(at);
            cell.stem &= !PROMISED;
            at = cell.parent();
        }
    }

    /// Drops what of a promise nobody has confirmed, with all below it, which is no more than promised either; answers
    /// how many blocks. Of a promise whose last block has gone, nothing: the rest is the oldest and goes next.
    pub(in crate::index) fn expire(
        &mut self,
        holder: Holder<'_>,
        promise: Promise,
        is_confirmed: impl FnOnce(u64) -> bool,
    ) -> u32 {
        let Some(row) = holder.held(promise.last) else { return 0 };
        let mut at = self.find(holder.rows, row);
        if !self.cell(at).is_promised() {
            return 0;
        }
        if is_confirmed(promise.last) {
            self.confirm(at);
            return 0;
        }
        for _ in 1..promise.blocks {
            let parent = self.cell(at).parent();
            if parent == NONE || !self.cell(parent).is_promised() {
                break;
            }
            at = parent;
        }
        self.fell(holder, at)
    }
}
