//! What a mirror tells, noted in the index; and what the index did not take, for as long as it is owed.

use std::collections::BTreeMap;
use std::mem;

use super::Rank;
use crate::fleet::EndpointId;
use crate::index::{Index, Missed, Origin};
use crate::mirror;

/// So many are noted later one by one. Where more were missed, all that the engine holds is told of again.
const OWED_MAX: usize = 4_096;

/// What the index is told of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    /// That it is held, or that it is no more.
    pub holds: bool,
    /// Behind this one, where it is held.
    pub after: Option<u64>,
    pub link: u64,
}

/// What the index did not take: a shard may stand still for long while it writes there.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// In the order in which they were told.
    notes: Vec<Note>,
    /// More than these: next to nothing of the endpoint is there.
    is_lost: bool,
    /// It has yet to hear whether what shards choose the endpoint for is a promise.
    pub promises: bool,
    /// It was waited for in vain, and has not been free since.
    is_stuck: bool,
    missed: u64,
}

impl Owed {
    /// Links that were not taken, or not at once.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Whether all that the engine holds is to be told of again; until then nothing is noted.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// What is to be noted one by one.
    pub fn take(&mut self) -> Vec<Note> {
        mem::take(&mut self.notes)
    }

    /// All that was noted is gone: it is told of anew, if at all.
    pub fn forget(&mut self) {
        (self.notes, self.is_lost) = (Vec::new(), false);
    }

    fn missed_by(&mut self, note: Note, why: Missed, has_seat: bool) {
        self.missed += 1;
        self.is_stuck = why == Missed::Busy;
        match why {
            // It may stand on one of these.
            Missed::Orphan if self.notes.is_empty() => {}
            Missed::Busy | Missed::Orphan if self.notes.len() < OWED_MAX => self.notes.push(note),
            // It could not be emptied, and is nobody's until it is. One beyond the index is told of nowhere.
            Missed::NotTheirs if !has_seat => {}
            Missed::Busy | Missed::Orphan | Missed::NotTheirs => {
                self.forget();
                self.is_lost = true;
            }
        }
    }
}

/// The index, as a mirror tells it.
pub(super) struct Notes<'a> {
    pub index: &'a Index,
    pub id: EndpointId,
    /// Of the engine's other ranks, which are one cache for whoever asks.
    pub others: &'a BTreeMap<u32, Rank>,
    pub is_noted: bool,
    pub owed: &'a mut Owed,
}

impl Notes<'_> {
    pub fn note(&mut self, note: Note) {
        if !self.is_noted || self.owed.is_lost {
            return;
        }
        match self.tell(note) {
            Ok(()) => self.owed.is_stuck = false,
            Err(why) => self.owed.missed_by(note, why, usize::from(self.id.slot) < self.index.seats()),
        }
    }

    /// Waits for who writes, once: whoever stands still there would be waited for with each link.
    fn tell(&self, note: Note) -> Result<(), Missed> {
        if self.owed.is_stuck {
            self.index.unclaimed(self.id)?;
        }
        match note.holds {
            true => self.index.append(note.after, &[note.link], self.id, Origin::Engine).map(drop),
            false => self.index.remove(note.link, self.id).map(drop),
        }
    }
}

impl mirror::Sink for Notes<'_> {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        self.index.note_tokens(link, tokens);
        self.note(Note { holds: true, after, link });
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        self.index.note_tokens(link, tokens);
    }

    fn release(&mut self, link: u64) {
        if self.is_noted && !self.others.values().any(|rank| rank.mirror.owns(link)) {
            self.note(Note { holds: false, after: None, link });
        }
    }
}
