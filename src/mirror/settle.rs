//! Blocks come to stand behind others, are held by that, and go.

use super::text::{TEXT_BYTES_MAX, Text, Unread, keys, root};
use super::{Block, Mirror, Reading, Sink};
use crate::limits::BLOCK_BYTES;

impl Mirror {
    /// Reads a block that is under none, and puts it where it belongs. What followed it before follows it still if its text is the same.
    pub(super) fn settle(&mut self, at: u32, block: Block<'_>, reading: &Reading<'_>, sink: &mut impl Sink) {
        let old = std::mem::take(&mut self.tree.get_mut(at).links);
        self.links_kept -= old.len();
        let above = block.parent.and_then(|parent| self.names.get(&parent).copied());
        let (tokens_before, block_before) = above.map_or((0, 0), |above| self.tree.get(above).end());
        let mut block_last = block_before;
        let text = self.read(block, above, reading, &mut block_last);
        // Linked below itself it would close a ring, were it not for its tokens: all that follow it have more, and keep them.
        if text.is_err() || text != self.tree.get(at).text {
            while let Some(below) = self.tree.first_below(at) {
                self.tree.unlink(below);
            }
        }
        let node = self.tree.get_mut(at);
        node.text = text;
        if let Err(why) = text {
            why.count(&mut self.counts);
            self.overflowed |= why == Unread::Beyond;
            return;
        }
        (node.tokens_before, node.block_before, node.block_last) = (tokens_before, block_before, block_last);
        node.links = self.found.as_slice().into();
        self.links_kept += self.found.len();
        if let Some(above) = above {
            let is_first = self.tree.first_below(above).is_none();
            self.tree.link(at, above);
            if let Some((link, tokens)) = self.tree.get(above).last_told().filter(|_| is_first) {
                sink.worth(link, tokens);
            }
        }
        if above.is_none_or(|above| self.tree.get(above).held) {
            self.hold(at, sink);
        }
    }

    /// The text down to the end of a block; its links are then in `found`.
    fn read(
        &mut self,
        block: Block<'_>,
        above: Option<u32>,
        reading: &Reading<'_>,
        block_last: &mut u64,
    ) -> Result<Text, Unread> {
        let (stored, place) = (block.stored, block.place);
        let before = match block.parent {
            None => Text::begin(root(stored, place, reading)?, reading.vocabulary),
            Some(_) => {
                let above = above.map(|above| self.tree.get(above)).filter(|above| !above.ambiguous);
                let text = above.ok_or(Unread::Orphan)?.text?;
                keys(stored, place, false)?;
                text
            }
        };
        let room = (self.links_max - self.links_kept).min(self.found.capacity());
        let mut full = false;
        self.found.clear();
        let text = before.read((stored, place), reading.vocabulary, &mut self.stage, |step| {
            if step.at > TEXT_BYTES_MAX {
                return;
            }
            full |= self.found.len() == room;
            if !full {
                self.found.push(step.link);
            }
            if step.at.is_multiple_of(BLOCK_BYTES as u64) {
                *block_last = step.link;
            }
        })?;
        if full { Err(Unread::Beyond) } else { Ok(text) }
    }

    /// A block that can be read, behind what is held: it and all that follow it are held now.
    fn hold(&mut self, at: u32, sink: &mut impl Sink) {
        self.walk_from(at);
        for &at in &self.walk {
            let node = self.tree.get_mut(at);
            node.held = true;
            node.told()
                .filter(|(_, link, _)| self.links.own(*link))
                .for_each(|(after, link, tokens)| sink.hold(after, link, tokens));
        }
    }

    /// It and all that follow it are held no more.
    fn release(&mut self, at: u32, sink: &mut impl Sink) {
        self.walk_from(at);
        for place in (0..self.walk.len()).rev() {
            self.disown(self.walk[place], sink);
        }
    }

    /// A block is held no more.
    pub(super) fn disown(&mut self, at: u32, sink: &mut impl Sink) {
        let node = self.tree.get_mut(at);
        if std::mem::take(&mut node.held) {
            node.links.iter().rev().filter(|link| self.links.disown(**link)).for_each(|link| sink.release(*link));
        }
    }

    fn walk_from(&mut self, at: u32) {
        self.walk.clear();
        self.walk.push(at);
        self.tree.spread(&mut self.walk);
        self.patience = self.patience.saturating_sub(self.walk.len() as u64);
    }

    /// A block goes. Where others follow it, its node stays for them.
    pub(super) fn take_away(&mut self, at: u32, sink: &mut impl Sink) {
        if self.tree.get(at).held {
            self.release(at, sink);
        }
        self.blocks -= 1;
        let node = self.tree.get_mut(at);
        (node.copies, node.ambiguous) = (0, false);
        self.links_kept -= std::mem::take(&mut node.links).len();
        if let Some(above) = self.tree.unlink(at) {
            self.forget(above);
        }
        self.forget(at);
    }

    /// Frees a node whose block is gone, and that nothing follows.
    fn forget(&mut self, at: u32) {
        let node = self.tree.get(at);
        if node.copies == 0 && self.tree.first_below(at).is_none() {
            self.names.remove(&node.name);
            self.tree.remove(at);
        }
    }
}
