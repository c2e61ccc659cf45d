//! Notes what a mirror tells in the index, and keeps the notes that the index did not take until it does.

use std::collections::BTreeMap;
use std::mem;

use super::Rank;
use crate::fleet::EndpointId;
use crate::index::{Index, Missed, Origin};
use crate::mirror;

/// Most notes that are kept to be noted later one by one. If more were missed, all that the engine holds is noted
/// again.
const OWED_MAX: usize = 4_096;

/// What the index is told of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    /// Whether it is held now, or no longer.
    pub holds: bool,
    /// The link that it follows, if it is held.
    pub after: Option<u64>,
    pub link: u64,
}

/// What the index did not take: a shard may stand still for a long time while it writes there.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The notes, in the order in which they were told.
    notes: Vec<Note>,
    /// More than these were missed: next to nothing of the endpoint is in the index.
    is_lost: bool,
    /// The index has yet to be told whether choices of the endpoint are promises.
    pub promises: bool,
    /// The index was waited for in vain, and has not been free since.
    is_stuck: bool,
    missed: u64,
}

impl Owed {
    /// Links that were not taken, or not at once.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Whether all that the engine holds is to be noted again; until then nothing is.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Takes the notes that are to be noted one by one.
    pub fn take(&mut self) -> Vec<Note> {
        mem::take(&mut self.notes)
    }

    /// Forgets all notes, since all that was noted is gone.
    pub fn forget(&mut self) {
        (self.notes, self.is_lost) = (Vec::new(), false);
    }

    fn missed_by(&mut self, note: Note, why: Missed, has_seat: bool) {
        self.missed += 1;
        self.is_stuck = why == Missed::Busy;
        match why {
            // The link that it follows may be one of the missed ones.
            Missed::Orphan if self.notes.is_empty() => {}
            Missed::Busy | Missed::Orphan if self.notes.len() < OWED_MAX => self.notes.push(note),
            // The slot could not be emptied, and is no endpoint's until it is. An endpoint without a seat in the index
            // is noted nowhere.
            Missed::NotTheirs if !has_seat => {}
            Missed::Busy | Missed::Orphan | Missed::NotTheirs => {
                self.forget();
                self.is_lost = true;
            }
        }
    }
}

/// The index as a mirror writes to it.
pub(super) struct Notes<'a> {
    pub index: &'a Index,
    pub id: EndpointId,
    /// The engine's other ranks, which are one cache together with this one for choices.
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

    /// Notes one link. A busy index is waited for once: a thread that stands still there would otherwise be waited for
    /// with each link.
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
