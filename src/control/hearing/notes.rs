//! What a mirror tells, noted in the index.

use std::collections::BTreeMap;

use super::Rank;
use crate::fleet::EndpointId;
use crate::index::{Index, Origin};
use crate::mirror;

/// The index, as a mirror tells it.
pub(super) struct Notes<'a> {
    pub index: &'a Index,
    pub id: EndpointId,
    /// Of the engine's other ranks, which are one cache for whoever asks.
    pub others: &'a BTreeMap<u32, Rank>,
    pub is_noted: bool,
    pub missed: u64,
}

impl mirror::Sink for Notes<'_> {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        self.index.note_tokens(link, tokens);
        if self.is_noted {
            let noted = self.index.append(after, &[link], self.id, Origin::Engine);
            self.missed += u64::from(noted.is_err());
        }
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        self.index.note_tokens(link, tokens);
    }

    fn release(&mut self, link: u64) {
        if self.is_noted && !self.others.values().any(|rank| rank.mirror.owns(link)) {
            let removed = self.index.remove(link, self.id);
            self.missed += u64::from(removed.is_err());
        }
    }

    /// Control empties the endpoint's part of the index itself, and has other ranks tell again.
    fn nothing(&mut self) {}
}
