//! What a mirror tells, noted in the index.

use std::collections::BTreeMap;

use super::Hearing;
use crate::index::Origin;
use crate::mirror::{self, Mirror};

/// The index, as a mirror tells it.
pub(super) struct Notes<'a> {
    pub hearing: &'a Hearing,
    /// Of the engine's other ranks, which are one cache for whoever asks.
    pub others: &'a BTreeMap<u32, Mirror>,
    pub is_noted: bool,
    pub missed: u64,
}

impl mirror::Sink for Notes<'_> {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        let Hearing { index, id, .. } = self.hearing;
        index.note_tokens(link, tokens);
        if self.is_noted {
            let noted = index.append(after, &[link], *id, Origin::Engine);
            self.missed += u64::from(noted.is_err());
        }
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        self.hearing.index.note_tokens(link, tokens);
    }

    fn release(&mut self, link: u64) {
        let Hearing { index, id, .. } = self.hearing;
        if self.is_noted && !self.others.values().any(|mirror| mirror.owns(link)) {
            let removed = index.remove(link, *id);
            self.missed += u64::from(removed.is_err());
        }
    }
}
