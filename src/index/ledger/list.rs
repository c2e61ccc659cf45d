//! The list of ends, from the newest to the oldest.

use super::{Cell, Ledger, NONE, UNLISTED};

impl Ledger {
    pub(super) fn list_newest(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        let cell = self.cell_mut(at);
        (cell.newer, cell.older) = (NONE, older);
        match older {
            NONE => self.oldest = at,
            older => self.cell_mut(older).newer = at,
        }
    }

    pub(super) fn list_instead(&mut self, at: u32, before: u32) {
        let Cell { newer, older, .. } = *self.cell(before);
        self.list_between(at, newer, older);
    }

    pub(super) fn list_between(&mut self, at: u32, newer: u32, older: u32) {
        let cell = self.cell_mut(at);
        (cell.newer, cell.older) = (newer, older);
        self.link(newer, older, at, at);
    }

    pub(super) fn unlist(&mut self, at: u32) {
        let Cell { newer, older, .. } = *self.cell(at);
        if newer != UNLISTED {
            self.link(newer, older, older, newer);
            self.cell_mut(at).newer = UNLISTED;
        }
    }

    /// What lies older than `newer`, and newer than `older`.
    pub(super) fn link(&mut self, newer: u32, older: u32, behind_newer: u32, before_older: u32) {
        match newer {
            NONE => self.newest = behind_newer,
            newer => self.cell_mut(newer).older = behind_newer,
        }
        match older {
            NONE => self.oldest = before_older,
            older => self.cell_mut(older).newer = before_older,
        }
    }
}
