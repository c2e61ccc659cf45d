//! What is held, told such that another ledger can be made of it.

use super::{Ledger, NONE};
use crate::index::rows::{Holder, Row, Saved};

impl Ledger {
    /// Calls `out` with each row and its parent's, every parent before its children, such that [`Ledger::restore`] of
    /// each in this order makes the same order of age: from the oldest end on, of each its path as far as it was not
    /// told. An end that was told as part of a path is told again. Promises are left out.
    pub(in crate::index) fn save(&self, mut out: impl FnMut(Option<Row>, Row)) {
        let mut told = vec![false; self.unused as usize];
        let mut path = Vec::new();
        let mut end = self.oldest;
        while end != NONE {
            let mut at = end;
            while at != NONE && self.cell(at).is_promised() {
                at = self.cell(at).parent();
            }
            while at != NONE && (path.is_empty() || !told[at as usize]) {
                path.push(at);
                told[at as usize] = true;
                at = self.cell(at).parent();
            }
            for at in path.drain(..).rev() {
                let parent = self.cell(at).parent();
                out((parent != NONE).then(|| self.cell(parent).row), self.cell(at).row);
            }
            end = self.cell(end).newer;
        }
    }

    /// Holds a row that was saved as the youngest, below the one in row `end`, and as long as there is room; false:
    /// there is none.
    pub(in crate::index) fn restore(&mut self, holder: Holder<'_>, end: Option<Row>, saved: Saved) -> bool {
        let mut end = end.map_or(NONE, |row| self.find(holder.rows, row));
        if let Some(row) = holder.held_saved(saved) {
            end = self.find(holder.rows, row);
            self.unlist(end);
            self.confirm(end);
            self.list_newest(end);
            return true;
        }
        if end != NONE {
            self.unlist(end);
            self.confirm(end);
        }
        let has_room = self.held < self.capacity || self.evict(holder, end, 1);
        let at = self.next_cell();
        let row = if has_room { holder.hold_saved(saved, at) } else { None };
        if let Some((row, kept)) = row {
            self.grow(at, end, false, row, kept);
            end = at;
        }
        if end != NONE {
            self.list_newest(end);
        }
        row.is_some()
    }
}
