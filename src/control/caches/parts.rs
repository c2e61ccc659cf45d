//! Whose part of the index is how large, where it is too small for all of them.
//!
//! What is due to each follows from what all want, and is never more than there is, all together. So the order in which
//! engines come, move or ask decides nothing (but who gets a chunk that is left over): who has more than is due to it
//! gives it back, at the latest when one that has less asks. What nobody has and is due to somebody stays in the
//! index's pool: an engine that is not heard for a while is noted in fewer, larger units, and the rest is there when it
//! is heard again.

use super::{Caches, Unit, size, sum};
use crate::fleet::EndpointId;
use crate::index::Missed;

/// For so long room is kept for the steps of an engine that is not heard: its connection is lost, or it starts again.
const KEPT_SECONDS: u32 = 600;
/// No other ledger is looked at in one turn once those changed had room for so many blocks: milliseconds, twenty where
/// half of them go.
const BLOCKS_AT_ONCE: u32 = 1 << 17;
/// No other ledger is looked at for one engine that lacks room, and is cold in all that it lacks, once those that were
/// had room for so many blocks: all of an index of the usual size.
const BLOCKS_FOR_ONE: u32 = 8 * BLOCKS_AT_ONCE;

/// What one endpoint has of the index.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub(super) id: EndpointId,
    /// Tokens that its cache has room for, by its own word.
    pub(super) tokens: Option<u64>,
    /// Bytes of text that its cache has room for; not known: it is taken for one of [`crate::index::Index::share`].
    pub(super) bytes: Option<u64>,
    unit: Unit,
    /// The second until which it claims room for steps, noted or not.
    steps_until: u32,
    /// The index has the slot as this endpoint's.
    is_seated: bool,
}

impl Part {
    /// One of which nothing is known.
    pub fn new(id: EndpointId) -> Part {
        Part { id, tokens: None, bytes: None, unit: Unit::default(), steps_until: 0, is_seated: false }
    }

    /// What the same engine has in another slot.
    pub fn moved(self, id: EndpointId, second: u32) -> Part {
        let mut moved = Part { id, ..self };
        moved.notes(Unit::default(), second);
        moved
    }

    /// It is noted in this unit from now on.
    pub fn notes(&mut self, unit: Unit, second: u32) {
        if self.unit == Unit::Steps {
            self.steps_until = second + KEPT_SECONDS;
        }
        self.unit = unit;
    }

    fn blocks(&self, unit: Unit, share: u32) -> u32 {
        self.bytes.map_or(share, |bytes| unit.of(bytes))
    }

    /// Blocks that it can use now.
    fn wants(&self, share: u32) -> u32 {
        self.blocks(self.unit, share)
    }

    /// Blocks that it can use now or soon.
    fn claims(&self, share: u32, second: u32) -> u32 {
        let unit = if second < self.steps_until { Unit::Steps } else { self.unit };
        self.blocks(unit, share)
    }
}

impl Caches {
    /// Gives a slot to an endpoint, empty.
    pub(super) fn seat(&mut self, part: Part) {
        let slot = usize::from(part.id.slot);
        if self.parts.len() <= slot {
            self.parts.resize(slot + 1, None);
        }
        self.parts[slot] = Some(Part { is_seated: false, ..part });
        self.deal();
        self.fit(part.id.slot);
        if self.index.is_some() && self.part(part.id).is_some_and(|part| !part.is_seated) {
            let engine = self.name(part.id.slot);
            tracing::warn!(engine, "the prefix index is busy; the engine is taken for cold until it is not");
        }
    }

    /// Who has a slot.
    fn name(&self, slot: u16) -> &str {
        self.names.get(usize::from(slot)).map_or("", |name| name)
    }

    /// Sees what is due to whom, if anybody wants something else than before.
    pub(super) fn deal(&mut self) {
        let Some(index) = &self.index else { return };
        let claims = self.claims_in(index.share());
        if self.claims != claims {
            self.due = index.shares(&claims);
            self.claims = claims;
        }
    }

    /// What each slot claims of an index of such a share.
    fn claims_in(&self, share: u32) -> Vec<u32> {
        self.parts.iter().map(|part| part.map_or(0, |part| part.claims(share, self.second))).collect()
    }

    /// Memory of an index that would have room for all.
    pub(super) fn bytes_for_all(&self) -> Option<usize> {
        let least = size::smallest(self.index.as_ref()?.seats(), self.in_steps);
        size::enough(least, |share| self.claims_in(share))
    }

    /// Parts that are not as large as they should be become so: those that are too large first. For control, several
    /// times a second; what is not done in one turn is in the next.
    pub fn settle(&mut self) {
        self.deal();
        self.say_small();
        let wrong = |slot: u16| self.excess(slot).filter(|excess| *excess != 0).map(|excess| (-excess, slot));
        let mut wrong: Vec<(i64, u16)> = (0..self.parts.len() as u16).filter_map(wrong).collect();
        wrong.sort_unstable();
        let mut changed = 0;
        for (_, slot) in wrong {
            if changed >= BLOCKS_AT_ONCE {
                return;
            }
            changed = changed.saturating_add(self.figures(slot).capacity.max(self.goal(slot)));
            changed = changed.saturating_add(self.fit(slot));
        }
    }

    /// Blocks that a slot should have room for.
    fn goal(&self, slot: u16) -> u32 {
        let part = self.parts.get(usize::from(slot)).copied().flatten();
        let wants = part.zip(self.index.as_ref()).map_or(0, |(part, index)| part.wants(index.share()));
        wants.min(self.due.get(usize::from(slot)).copied().unwrap_or(0))
    }

    /// So many more it has. One that is not this endpoint's yet lacks all,
    /// and one that is nobody's should have nothing.
    fn excess(&self, slot: u16) -> Option<i64> {
        let part = self.parts.get(usize::from(slot))?;
        let has = if part.is_some_and(|part| !part.is_seated) { 0 } else { self.figures(slot).capacity };
        Some(i64::from(has) - i64::from(self.goal(slot)))
    }

    /// Makes a slot's part as large as it should be. What the pool lacks is taken from those that have more than is due
    /// to them, from who has most first: their oldest blocks go. Answers how many blocks those have room for that were
    /// looked at; where that is much, the next turns go on.
    pub(super) fn fit(&mut self, slot: u16) -> u32 {
        let (goal, mut looked_at) = (self.goal(slot), 0);
        if self.grant(slot, goal) >= goal {
            return looked_at;
        }
        let mut above: Vec<(i64, u16)> =
            (0..self.parts.len() as u16).filter_map(|slot| Some((self.excess(slot)?, slot))).collect();
        above.retain(|(excess, other)| *excess > 0 && *other != slot);
        above.sort_unstable();
        while let Some((_, other)) = above.pop().filter(|_| looked_at < BLOCKS_FOR_ONE) {
            for slot in [other, slot] {
                looked_at = looked_at.saturating_add(self.figures(slot).capacity);
            }
            self.grant(other, self.goal(other));
            if self.grant(slot, goal) >= goal {
                break;
            }
        }
        looked_at
    }

    /// Asks the index for so many; answers how many it has then. Where the index is busy, the next turn asks again.
    fn grant(&mut self, slot: u16, goal: u32) -> u32 {
        let Some(index) = &self.index else { return goal };
        let Some(part) = self.parts.get_mut(usize::from(slot)) else { return goal };
        let Some(part) = part else {
            // It was written when it left.
            let _ = index.forget(slot);
            return goal;
        };
        if part.is_seated {
            let has = index.figures(slot).capacity;
            return if has == goal { goal } else { index.resize(part.id, goal).unwrap_or(has) };
        }
        match index.assign(part.id, Some(goal)) {
            Ok(got) => {
                part.is_seated = true;
                got
            }
            Err(Missed::NotTheirs | Missed::Orphan) => {
                let engine = self.name(slot);
                let (engines, seats) = (self.parts.iter().flatten().count(), index.seats());
                if engines > seats {
                    tracing::warn!(
                        engine,
                        seats,
                        "the prefix index has no place for so many engines: this one counts as cold until others leave, or until a restart"
                    );
                } else {
                    tracing::warn!(
                        engine,
                        seats,
                        "the prefix index has no place for an engine that came while others were leaving: it counts as cold until one of theirs is free"
                    );
                }
                self.parts[usize::from(slot)] = None;
                goal
            }
            Err(Missed::Busy) => goal,
        }
    }

    /// One line each time that a quarter more is wanted than when it was said last.
    fn say_small(&mut self) {
        let (wanted, due) = (sum(&self.claims), sum(&self.due));
        if wanted == due {
            self.said_wanted = 0;
        } else if wanted > self.said_wanted + self.said_wanted / 4 {
            self.said_wanted = wanted;
            let engines = self.claims.iter().zip(&self.due).filter(|(wanted, due)| wanted > due).count();
            match (self.bytes_for_all(), self.largest()) {
                (Some(index_bytes), _) => tracing::warn!(
                    engines,
                    wanted,
                    blocks = due,
                    index_bytes,
                    "the prefix index has not room for all that these engines hold: [limits] index_bytes should be about this"
                ),
                (None, largest) => tracing::warn!(
                    engines,
                    wanted,
                    blocks = due,
                    engine = largest.map(|(engine, _)| engine),
                    tokens = largest.map(|(_, tokens)| tokens),
                    "no prefix index has room for all that these engines say they hold; this one tells of the largest cache: see whether that can be true"
                ),
            }
        }
    }

    /// Whose cache is the largest, and how many tokens that is, by its own word.
    pub(super) fn largest(&self) -> Option<(&str, u64)> {
        let told = self.parts.iter().flatten().filter_map(|part| Some((part.tokens?, part.id.slot)));
        told.max().map(|(tokens, slot)| (self.name(slot), tokens))
    }
}
