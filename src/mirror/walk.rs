//! Work in pieces, if it takes as long as a cache is large: a task that has to do more than listen to one engine asks
//! for one piece at a time.

use super::links::Links;
use super::tree::Tree;
use super::{Mirror, Sink};
use crate::limits::MIRROR_BLOCKS_MAX;

/// Units of work in one piece: a few milliseconds, at a microsecond for each link that an index is told of.
const STINT: u32 = 4_096;
/// How many blocks the sink may be told of, in the mean, for each block that an event names.
const PATIENCE_FOR_ONE: u32 = 4;
/// Most blocks that it may be told of at once, however many the engine says that it has: a few times the longest prompt
/// in blocks of one token of some bytes.
const PATIENCE_MAX: u32 = 1 << 20;

/// One piece of work, and how much of it is left.
#[derive(Debug)]
pub struct Stint(u32);

impl Default for Stint {
    fn default() -> Stint {
        Stint(STINT)
    }
}

impl Stint {
    /// Whether the rest has to wait for the next piece.
    pub fn is_over(&self) -> bool {
        self.0 == 0
    }

    /// Counts work done: links told of, nodes visited, or as much.
    pub fn spend(&mut self, toil: u32) {
        self.0 = self.0.saturating_sub(toil);
    }
}

/// How far something is after a [`Stint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Halt {
    /// It is done.
    Through,
    /// It goes on with the next stint.
    Midway,
    /// It will not be done: the caller has to call [`Mirror::give_up`].
    GivesUp,
}

/// Returns how many blocks beyond the named ones the sink may be told of, for a cache of so many blocks.
pub(super) fn patience_max(blocks_max: u32) -> u32 {
    (PATIENCE_FOR_ONE * blocks_max.clamp(1 << 10, MIRROR_BLOCKS_MAX)).min(PATIENCE_MAX)
}

/// A walk through a node and all below it.
struct Way {
    top: u32,
    at: u32,
    /// All nodes below this one have been visited.
    up: bool,
}

impl Way {
    fn new(top: u32) -> Way {
        Way { top, at: top, up: false }
    }

    /// Goes to the next node; false: there is none.
    fn step(&mut self, tree: &Tree) -> bool {
        if let Some(below) = tree.first_below(self.at).filter(|_| !self.up) {
            self.at = below;
        } else if !std::mem::replace(&mut self.up, true) {
            // A leaf: the next step leaves it.
        } else if self.at == self.top {
            return false;
        } else if let Some(next) = tree.next(self.at) {
            (self.at, self.up) = (next, false);
        } else {
            self.at = tree.above(self.at).unwrap_or(self.top);
        }
        true
    }
}

/// The blocks that come to be held, or are released, with one that they follow.
pub(super) struct Walk {
    way: Way,
    holds: bool,
    /// Number of the node's links that were told of.
    links: usize,
}

impl Walk {
    /// Makes a walk that holds a block and all that follow it.
    pub fn hold(at: u32) -> Walk {
        Walk { way: Way::new(at), holds: true, links: 0 }
    }

    /// Makes a walk that releases them; at its end the block is gone.
    pub fn release(at: u32) -> Walk {
        Walk { way: Way::new(at), holds: false, links: 0 }
    }
}

/// How far a [`Mirror::retell_on`] is.
#[derive(Default)]
pub struct Telling {
    root: u32,
    way: Option<(Way, usize)>,
    /// Links of several blocks that were told of already.
    told: Option<Links>,
}

impl Mirror {
    /// Returns the next name of an event, of which `done` were read, or how far the event is. The walk that the name
    /// before began comes first.
    pub(super) fn next(
        &mut self,
        names: &[u64],
        done: &mut usize,
        sink: &mut impl Sink,
        stint: &mut Stint,
    ) -> Result<u64, Halt> {
        match self.walk_on(sink, stint) {
            Halt::Through => {}
            halt => return Err(halt),
        }
        let Some(name) = names.get(*done) else { return Err(Halt::Through) };
        if stint.is_over() {
            return Err(Halt::Midway);
        }
        *done += 1;
        self.named();
        Ok(*name)
    }

    /// Goes on with the walk that the last name began.
    fn walk_on(&mut self, sink: &mut impl Sink, stint: &mut Stint) -> Halt {
        if self.gives_up {
            return Halt::GivesUp;
        }
        let Some(mut walk) = self.walk.take() else { return Halt::Through };
        loop {
            if stint.is_over() {
                self.walk = Some(walk);
                return Halt::Midway;
            }
            stint.spend(1);
            // A block is held before those that follow it, and released after them.
            if walk.holds != walk.way.up {
                if walk.links == 0 && !self.bear() {
                    return Halt::GivesUp;
                }
                let all =
                    if walk.holds { self.hold(&mut walk, sink, stint) } else { self.release(&mut walk, sink, stint) };
                if !all {
                    continue;
                }
                walk.links = 0;
            }
            if !walk.way.step(&self.tree) {
                break;
            }
        }
        if !walk.holds {
            self.went(walk.way.top);
        }
        Halt::Through
    }

    /// Notes that an event names a block, so that the sink may be told of some more.
    fn named(&mut self) {
        self.patience = (self.patience + PATIENCE_FOR_ONE).min(patience_max(self.room));
    }

    /// Notes that the sink is told of a block that no event names. False: these are too many.
    fn bear(&mut self) -> bool {
        self.gives_up = self.patience == 0;
        self.patience = self.patience.saturating_sub(1);
        !self.gives_up
    }

    /// Holds a block, all before which is held. False: its links are not all told of yet.
    fn hold(&mut self, walk: &mut Walk, sink: &mut impl Sink, stint: &mut Stint) -> bool {
        let node = self.tree.get_mut(walk.way.at);
        node.held = true;
        for (after, link, tokens) in node.told().skip(walk.links) {
            if stint.is_over() {
                return false;
            }
            stint.spend(1);
            walk.links += 1;
            if self.links.own(link) {
                sink.hold(after, link, tokens);
            }
        }
        true
    }

    /// Releases a block. False: as above.
    fn release(&mut self, walk: &mut Walk, sink: &mut impl Sink, stint: &mut Stint) -> bool {
        let node = self.tree.get_mut(walk.way.at);
        for link in node.links.iter().rev().skip(walk.links).filter(|_| node.held) {
            if stint.is_over() {
                return false;
            }
            stint.spend(1);
            walk.links += 1;
            if self.links.disown(*link) {
                sink.release(*link);
            }
        }
        node.held = false;
        true
    }

    /// Runs [`Mirror::retell_on`] to its end. For tests.
    pub fn retell(&self, sink: &mut impl Sink) {
        let mut telling = Telling::default();
        while !self.retell_on(&mut telling, sink, &mut Stint::default()) {}
    }

    /// Tells the sink of all that is held, as if it had come just now, in pieces between which nothing may change; true
    /// once it is done.
    pub fn retell_on(&self, telling: &mut Telling, sink: &mut impl Sink, stint: &mut Stint) -> bool {
        let told = telling.told.get_or_insert_with(|| Links::new(self.links.shared()));
        loop {
            if stint.is_over() {
                return false;
            }
            stint.spend(1);
            let Some((way, links)) = &mut telling.way else {
                let Some(at) = self.tree.places().nth(telling.root as usize) else { return true };
                let is_root = self.tree.above(at).is_none() && self.tree.get(at).held;
                telling.way = is_root.then(|| (Way::new(at), 0));
                telling.root += 1;
                continue;
            };
            if !way.up {
                for (after, link, tokens) in self.tree.get(way.at).told().skip(*links) {
                    if stint.is_over() {
                        return false;
                    }
                    stint.spend(1);
                    *links += 1;
                    if !self.links.is_shared(link) || told.own(link) {
                        sink.hold(after, link, tokens);
                    }
                }
            }
            *links = 0;
            if !way.step(&self.tree) {
                telling.way = None;
            }
        }
    }
}
