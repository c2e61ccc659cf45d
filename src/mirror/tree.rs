//! Blocks by what they follow: a slab of nodes that name each other by place.

use super::text::{TEXT_BYTES_MAX, Text, Unread};
use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// A block that the engine has named. Only those whose text is known are linked with each other: below one that cannot
/// be read nothing can be.
pub(super) struct Node {
    /// The engine's name for it.
    pub name: u64,
    /// And for the block before it; none where a prompt begins.
    pub parent: Option<u64>,
    /// The prompt down to its end.
    pub text: Result<Text, Unread>,
    /// Tokens before it.
    pub tokens_before: u32,
    /// How often it is stored. 0: it is gone, and kept for those that follow it.
    pub copies: u32,
    /// The link of the last whole block of text before it, where there is one.
    pub block_before: u64,
    /// And of the last one that ends in it or before.
    pub block_last: u64,
    /// Of the steps that end in it.
    pub links: Box<[u64]>,
    above: u32,
    first_below: u32,
    next: u32,
    previous: u32,
    /// The name stands for other blocks as well.
    pub ambiguous: bool,
    /// The sink has been told of it: it is there, can be read, and so is all before it.
    pub held: bool,
}

impl Node {
    pub fn new(name: u64) -> Node {
        Node {
            name,
            parent: None,
            text: Err(Unread::Orphan),
            tokens_before: 0,
            copies: 0,
            block_before: 0,
            block_last: 0,
            links: Box::default(),
            above: NONE,
            first_below: NONE,
            next: NONE,
            previous: NONE,
            ambiguous: false,
            held: false,
        }
    }

    /// Its links as a sink is told of them: the block's before, the link, and the tokens that are cached for who
    /// matches so far.
    ///
    /// Engines reuse whole blocks, so that the steps within one are worth what is before it; but whoever matches up to
    /// its last step has the rest of it as well, most likely: where nothing follows the block, as the next turn of a
    /// conversation has all of it; where something does, and the prompt parts from that somewhere in the step, if less
    /// than half of the step is left.
    pub fn told(&self) -> impl Iterator<Item = (Option<u64>, u64, u32)> {
        let (end, tokens) = self.text.as_ref().map_or((0, 0), |text| (text.cut.bytes(), text.tokens));
        let steps = end.min(TEXT_BYTES_MAX) / STEP_BYTES as u64;
        let first = (steps + 1).saturating_sub(self.links.len() as u64);
        let mut before = self.block_before;
        (first..).zip(&self.links).map(move |(step, &link)| {
            let at = step * STEP_BYTES as u64;
            let after = (at > BLOCK_BYTES as u64).then_some(before);
            if at.is_multiple_of(BLOCK_BYTES as u64) {
                before = link;
            }
            let likely = if self.first_below == NONE { STEP_BYTES } else { STEP_BYTES / 2 };
            (after, link, if end - at < likely as u64 { tokens } else { self.tokens_before })
        })
    }

    /// Its last link, and what that is worth by now: less, once something follows the block.
    pub fn last_told(&self) -> Option<(u64, u32)> {
        self.told().last().map(|(_, link, tokens)| (link, tokens)).filter(|_| self.held)
    }

    /// Where what follows it begins: tokens, and the link of the last whole block of text, where there is one.
    pub fn end(&self) -> (u32, u64) {
        (self.text.map_or(0, |text| text.tokens), self.block_last)
    }
}

/// All of them.
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: u32,
}

impl Tree {
    /// With room for so many.
    pub fn new(nodes_max: usize) -> Tree {
        Tree { nodes: Vec::with_capacity(nodes_max), free: NONE }
    }

    pub fn clear(&mut self) {
        self.nodes.clear();
        self.free = NONE;
    }

    pub fn insert(&mut self, node: Node) -> u32 {
        if let Some(slot) = self.nodes.get_mut(self.free as usize) {
            let at = std::mem::replace(&mut self.free, slot.next);
            *slot = node;
            return at;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Gives back a node that nothing is linked with.
    pub fn remove(&mut self, at: u32) {
        let freed = Node { next: self.free, ..Node::new(0) };
        self.nodes[at as usize] = freed;
        self.free = at;
    }

    pub fn get(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    pub fn get_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// The block before, if that is linked.
    pub fn above(&self, at: u32) -> Option<u32> {
        Some(self.get(at).above).filter(|above| *above != NONE)
    }

    /// What follows the same block.
    pub fn next(&self, at: u32) -> Option<u32> {
        Some(self.get(at).next).filter(|next| *next != NONE)
    }

    pub fn first_below(&self, at: u32) -> Option<u32> {
        Some(self.get(at).first_below).filter(|below| *below != NONE)
    }

    /// Puts a node that is under none under another.
    pub fn link(&mut self, at: u32, above: u32) {
        let next = std::mem::replace(&mut self.get_mut(above).first_below, at);
        if next != NONE {
            self.get_mut(next).previous = at;
        }
        let node = self.get_mut(at);
        (node.above, node.next, node.previous) = (above, next, NONE);
    }

    /// Takes a node from the one that it is under; returns that.
    pub fn unlink(&mut self, at: u32) -> Option<u32> {
        let node = self.get_mut(at);
        let (above, next, previous) = (node.above, node.next, node.previous);
        (node.above, node.next, node.previous) = (NONE, NONE, NONE);
        if above == NONE {
            return None;
        }
        if next != NONE {
            self.get_mut(next).previous = previous;
        }
        if previous == NONE {
            self.get_mut(above).first_below = next;
        } else {
            self.get_mut(previous).next = next;
        }
        Some(above)
    }

    /// Where nodes are, in use or not.
    pub fn places(&self) -> std::ops::Range<u32> {
        0..self.nodes.len() as u32
    }

    /// All nodes in use, each behind the one that it is under.
    pub fn all(&self) -> Vec<u32> {
        let used = |node: &Node| node.above == NONE && (node.copies > 0 || node.first_below != NONE);
        let mut walk: Vec<u32> = (0..).zip(&self.nodes).filter(|(_, node)| used(node)).map(|(at, _)| at).collect();
        let mut place = 0;
        while let Some(&at) = walk.get(place) {
            walk.extend(std::iter::successors(self.first_below(at), |below| self.next(*below)));
            place += 1;
        }
        walk
    }
}
