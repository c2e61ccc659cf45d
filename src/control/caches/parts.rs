//! How large each endpoint's part of the index is, if that is too small for all of them.
//!
//! What is due to each follows from what all want, and is never more than there is in sum. So the order in which
//! engines come, move or ask decides nothing, except which one gets a chunk that is left over: an endpoint that has
//! more than is due to it gives it back, at the latest when one that has less asks. Blocks that are due to an endpoint
//! and not used stay in the index's pool: an engine that is not heard for a while is noted in fewer, larger units, and
//! the rest is there when it is heard again.

use super::{Caches, Unit, size, sum};
use crate::fleet::EndpointId;
use crate::index::Missed;

/// How long room is kept for the steps of an engine that is not heard: its connection is lost, or it restarts.
const KEPT_SECONDS: u32 = 600;
/// A turn ends once the ledgers that it changed had room for so many blocks: that takes milliseconds, or twenty if half
/// of the blocks go.
const BLOCKS_AT_ONCE: u32 = 1 << 17;
/// For one engine that lacks room, and is cold in all that it lacks, more may be changed in a turn: ledgers with room
/// for so many blocks, all of an index of the usual size.
const BLOCKS_FOR_ONE: u32 = 8 * BLOCKS_AT_ONCE;

/// One endpoint's part of the index.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub(super) id: EndpointId,
    /// Tokens that its cache has room for, as its engine says.
    pub(super) tokens: Option<u64>,
    /// Bytes of text that its cache has room for; if unknown it gets [`crate::index::Index::share`].
    pub(super) bytes: Option<u64>,
    unit: Unit,
    /// The second until which it claims room for steps, whether it is noted in them or not.
    steps_until: u32,
    /// Whether the index knows the slot as this endpoint's.
    is_seated: bool,
}

impl Part {
    /// The part of an endpoint of which nothing is known.
    pub fn new(id: EndpointId) -> Part {
        Part { id, tokens: None, bytes: None, unit: Unit::default(), steps_until: 0, is_seated: false }
    }

    /// The part of the same engine in another slot.
    pub fn moved(self, id: EndpointId, second: u32) -> Part {
        let mut moved = Part { id, ..self };
        moved.notes(Unit::default(), second);
        moved
    }

    /// Sets the unit in which it is noted from now on.
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

    /// The name of a slot's engine.
    fn name(&self, slot: u16) -> &str {
        self.names.get(usize::from(slot)).map_or("", |name| name)
    }

    /// Computes what is due to each slot, if any claims another amount than before.
    pub(super) fn deal(&mut self) {
        let Some(index) = &self.index else { return };
        let claims = self.claims_in(index.share());
        if self.claims != claims {
            self.due = index.shares(&claims);
            self.claims = claims;
        }
    }

    /// What each slot claims of an index with this share.
    fn claims_in(&self, share: u32) -> Vec<u32> {
        self.parts.iter().map(|part| part.map_or(0, |part| part.claims(share, self.second))).collect()
    }

    /// Memory of an index that would have room for all.
    pub(super) fn bytes_for_all(&self) -> Option<usize> {
        let least = size::smallest(self.index.as_ref()?.seats(), self.in_steps);
        size::enough(least, |share| self.claims_in(share))
    }

    /// Makes parts as large as they should be, those that are too large first. Control calls it several times a second;
    /// what is not done in one turn is done in the next.
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

    /// How many more blocks a slot has than it should. A slot that the index does not know as its endpoint's yet
    /// lacks all, and one without an endpoint should have none.
    fn excess(&self, slot: u16) -> Option<i64> {
        let part = self.parts.get(usize::from(slot))?;
        let has = if part.is_some_and(|part| !part.is_seated) { 0 } else { self.figures(slot).capacity };
        Some(i64::from(has) - i64::from(self.goal(slot)))
    }

    /// Makes a slot's part as large as it should be. What the pool lacks is taken from slots that have more than is due
    /// to them, from the greatest excess on: their oldest blocks go. Returns for how many blocks the slots looked at
    /// have room; if that is much, the next turns go on.
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

    /// Asks the index for `goal` blocks; returns how many the slot has then. If the index is busy the next turn asks
    /// again.
    fn grant(&mut self, slot: u16, goal: u32) -> u32 {
        let Some(index) = &self.index else { return goal };
        let Some(part) = self.parts.get_mut(usize::from(slot)) else { return goal };
        let Some(part) = part else {
            // Its blocks were forgotten when it left, unless the index was busy.
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

    /// Logs that the index is too small, again each time that a quarter more is wanted than at the last line.
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
                    "no prefix index has room for all that these engines say they hold; this engine says it has the largest cache: check whether that can be true"
                ),
            }
        }
    }

    /// The engine with the largest cache, and how many tokens that is, as the engine says.
    pub(super) fn largest(&self) -> Option<(&str, u64)> {
        let told = self.parts.iter().flatten().filter_map(|part| Some((part.tokens?, part.id.slot)));
        told.max().map(|(tokens, slot)| (self.name(slot), tokens))
    }
}
