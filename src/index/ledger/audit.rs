//! Compares what a ledger says in several places. For tests.

use super::super::rows::{Holder, Kept};
use super::{FREE, Ledger, NONE, UNLISTED};

impl Ledger {
    /// Whether cells, tree, list, buckets and rows say the same.
    pub(in crate::index) fn audit(&self, holder: Holder<'_>) -> Result<(), String> {
        let is = |right: bool, at: u32, what: &str| if right { Ok(()) } else { Err(format!("cell {at}: {what}")) };
        let (mut held, mut listed, mut children, mut named, mut found) = (0, 0, 0, 0, 0);
        for at in 0..self.unused {
            let cell = self.cell(at);
            if cell.row == FREE.row {
                continue;
            }
            held += 1;
            listed += u32::from(cell.newer != UNLISTED);
            named += u32::from(cell.parent() != NONE);
            is(holder.tag(cell.row).is_some(), at, "its row lacks its bit")?;
            if let Kept::Sole(said) = holder.rows.kept(cell.row) {
                is(said == at, at, "its row names another cell")?;
                found += 1;
            }
            is(cell.first_child != NONE || cell.newer != UNLISTED, at, "a leaf that never goes")?;
            let (mut child, mut before) = (cell.first_child, NONE);
            while child != NONE {
                let here = self.cell(child);
                is(here.parent() == at && here.sibling_before == before, child, "another parent or sibling")?;
                is(here.is_promised() || !cell.is_promised(), child, "held below what is only promised")?;
                (before, child) = (child, here.sibling_after);
                children += 1;
            }
        }
        let (mut at, mut before, mut seen) = (self.newest, NONE, 0);
        while at != NONE {
            is(self.cell(at).newer == before, at, "another neighbour in the list")?;
            (before, at) = (at, self.cell(at).older);
            seen += 1;
        }
        is(before == self.oldest && seen == listed, before, "the list loses cells")?;
        is(children == named, 0, "children without parent")?;
        for bucket in self.chunks.iter().flat_map(|chunk| &chunk.buckets) {
            let mut at = *bucket;
            while at != NONE {
                (found, at) = (found + 1, self.cell(at).next);
            }
        }
        is(found == held && held == self.held && held <= self.capacity, 0, "the count is wrong")
    }
}
