//! Blocks by the block that they follow: a slab of nodes that refer to each other by place.

use super::text::{TEXT_BYTES_MAX, Text, Unread};
use crate::limits::{BLOCK_BYTES, STEP_BYTES};

/// No node.
pub(super) const NONE: u32 = u32::MAX;

/// A block that the engine has named. Only nodes whose text is known are linked: nothing below one that cannot be read
/// can be read.
pub(super) struct Node {
    /// The engine's name for it.
    pub name: u64,
    /// The engine's name for the block before it; none if a prompt begins with it.
    pub parent: Option<u64>,
    /// The prompt up to its end.
    pub text: Result<Text, Unread>,
    /// Number of tokens before it.
    pub tokens_before: u32,
    /// How often it is stored. 0: it is gone, and the node is kept for blocks that follow it.
    pub copies: u32,
    /// The link of the last whole block of text before it; 0 if there is none.
    pub block_before: u64,
    /// The link of the last whole block of text that ends in it or before.
    pub block_last: u64,
    /// Links of the steps that end in it.
    pub links: Box<[u64]>,
    above: u32,
    first_below: u32,
    next: u32,
    previous: u32,
    /// Whether the name stands for other blocks as well.
    pub ambiguous: bool,
    /// Whether the sink has been told of it: it is there, can be read, and so is all before it.
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

    /// Returns its links as a sink is told of them: the link of the last whole block of text before it, the link
    /// itself, and the number of tokens that a prompt matching so far finds cached.
    ///
    /// Engines reuse whole blocks, so that a step within a block counts only the tokens before that block. But a prompt
    /// that matches up to the block's last step most likely has the rest of the block as well. If nothing follows the
    /// block, this is assumed, as the next turn of a conversation has all of it; if something does, the prompt may part
    /// from that within the step, and it is assumed only if less than half of a step is left.
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

    /// Returns the last link of a held block and the tokens that it stands for now: fewer, once something follows the
    /// block.
    pub fn last_told(&self) -> Option<(u64, u32)> {
        self.told().last().map(|(_, link, tokens)| (link, tokens)).filter(|_| self.held)
    }

    /// Returns where the next block begins: its tokens before, and the link of the last whole block of text before, 0
    /// if there is none.
    pub fn end(&self) -> (u32, u64) {
        (self.text.map_or(0, |text| text.tokens), self.block_last)
    }
}

/// All nodes.
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: u32,
}

impl Tree {
    /// Makes a tree with room for so many nodes.
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

    /// Frees a node that is linked with no other.
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

    /// Returns the node of the block before, if it is linked.
    pub fn above(&self, at: u32) -> Option<u32> {
        Some(self.get(at).above).filter(|above| *above != NONE)
    }

    /// Returns the next node that follows the same block.
    pub fn next(&self, at: u32) -> Option<u32> {
        Some(self.get(at).next).filter(|next| *next != NONE)
    }

    pub fn first_below(&self, at: u32) -> Option<u32> {
        Some(self.get(at).first_below).filter(|below| *below != NONE)
    }

    /// Links a node that has no parent node below another.
    pub fn link(&mut self, at: u32, above: u32) {
        let next = std::mem::replace(&mut self.get_mut(above).first_below, at);
        if next != NONE {
            self.get_mut(next).previous = at;
        }
        let node = self.get_mut(at);
        (node.above, node.next, node.previous) = (above, next, NONE);
    }

    /// Unlinks a node from its parent node, and returns that.
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

    /// Returns the places of nodes, in use or not.
    pub fn places(&self) -> std::ops::Range<u32> {
        0..self.nodes.len() as u32
    }

    /// Returns all nodes in use, each after its parent node.
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
