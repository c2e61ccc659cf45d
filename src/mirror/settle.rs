//! How blocks are placed after others, come to be held, and go.

use super::text::{TEXT_BYTES_MAX, Text, Unread, keys, root};
use super::walk::Walk;
use super::{Block, Mirror, Reading, Sink, parts};
use crate::limits::{BLOCK_BYTES, MIRROR_LINKS_PER_BLOCK};

/// Most blocks that are cast off at once from the block that they follow.
const CAST_OFF_MAX: u32 = 1 << 16;
/// How many steps of a text are read and hashed in the time in which the sink is told of one link.
const STEPS_FOR_ONE: u32 = 16;

impl Mirror {
    /// Reads a block that has no parent node, and puts it where it belongs. Blocks that followed it before still do if
    /// its text is the same.
    pub(super) fn settle(&mut self, at: u32, block: Block<'_>, reading: &Reading<'_>, sink: &mut impl Sink) {
        let old = std::mem::take(&mut self.tree.get_mut(at).links);
        self.links_kept -= old.len();
        let above = block.parent.and_then(|parent| self.names.get(&parent).copied());
        // If a block is said to follow itself, what is known is of another block of the same name.
        let above = above.filter(|above| *above != at);
        let (tokens_before, block_before) = above.map_or((0, 0), |above| self.tree.get(above).end());
        let mut block_last = block_before;
        let text = self.read(block, above, reading, &mut block_last);
        // An engine may say that a block follows one which follows it, and linked there the block would be its own
        // ancestor. But blocks that follow it have more tokens than it had, so that after one of them its text is
        // longer than before, thus another, and all that followed it is cast off first.
        if text.is_err() || text != self.tree.get(at).text {
            self.cast_off(at);
        }
        let node = self.tree.get_mut(at);
        node.text = text;
        if let Err(why) = text {
            why.count(&mut self.counts);
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
            self.walk = Some(Walk::hold(at));
        }
    }

    /// Unlinks all blocks that follow this one. No real engine has so many that they cannot be unlinked at once.
    fn cast_off(&mut self, at: u32) {
        for _ in 0..CAST_OFF_MAX {
            let Some(below) = self.tree.first_below(at) else { return };
            self.tree.unlink(below);
            self.toil += 1;
        }
        self.gives_up = true;
    }

    /// Returns the text up to the end of a block, and leaves the block's links in `found`.
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
        // Half of the room is kept for blocks of usual size, lest a few with very long tokens leave none for others.
        let spare = (self.links_max / 2).saturating_sub(self.links_kept);
        let due = (parts(stored.block_size) as usize).saturating_mul(MIRROR_LINKS_PER_BLOCK as usize);
        let room = (self.links_max - self.links_kept).min(self.found.capacity()).min(spare.max(due));
        let (mut full, mut read) = (false, 0);
        self.found.clear();
        let text = before.read((stored, place), reading.vocabulary, &mut self.stage, |step| {
            read += 1;
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
        });
        self.toil += read / STEPS_FOR_ONE;
        let text = text?;
        if full { Err(Unread::Beyond) } else { Ok(text) }
    }

    /// Begins to take a block away: it and all held blocks after it are released first.
    pub(super) fn take_away(&mut self, at: u32) {
        if self.tree.get(at).held {
            self.walk = Some(Walk::release(at));
        } else {
            self.went(at);
        }
    }

    /// Notes that a block is gone. If others follow it, its node stays for them.
    pub(super) fn went(&mut self, at: u32) {
        self.blocks -= 1;
        let node = self.tree.get_mut(at);
        (node.copies, node.ambiguous) = (0, false);
        self.links_kept -= std::mem::take(&mut node.links).len();
        if let Some(above) = self.tree.unlink(at) {
            self.forget(above);
        }
        self.forget(at);
    }

    /// Frees a node if its block is gone and nothing follows it.
    fn forget(&mut self, at: u32) {
        let node = self.tree.get(at);
        if node.copies == 0 && self.tree.first_below(at).is_none() {
            self.names.remove(&node.name);
            self.tree.remove(at);
        }
    }
}
