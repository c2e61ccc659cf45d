//! Saves a mirror for a front that starts again while its engines run on, since engines do not tell again what they
//! hold.
//!
//! Roots and links are saved as they were made. So the caller keeps the ids of form and model beside it, and drops the
//! mirror if these differ. Whether links are still made the same way is checked by `sample`.

use thiserror::Error;
use xxhash_rust::xxh64::xxh64;

use super::Mirror;
use super::said::{Extent, Group};
use super::text::{TEXT_BYTES_MAX, Text, Unread};
use super::tree::Node;
use crate::limits::{BLOCK_BYTES, STEP_BYTES};
use crate::scan::Cut;
use crate::vocabulary::Run;

/// Why bytes are not taken for a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// It is something else, or cut short.
    #[error("this is no saved mirror, or not all of one")]
    Foreign,
    /// Another version saved it, or links are made in another way now.
    #[error("it was saved by another version")]
    Version,
    /// Its checksum is wrong.
    #[error("its checksum is wrong: it is damaged")]
    Checksum,
    /// What it says is impossible.
    #[error("what it says cannot be")]
    Nonsense,
    /// There is no room for its blocks.
    #[error("it has more blocks than there is room for")]
    Beyond,
}

const MAGIC: &[u8; 8] = b"wfmirror";
/// Raised whenever roots, which `sample` does not cover, are made in another way: since 3 from an adapter's hash.
const VERSION: u32 = 3;
/// In place of another node's place: no node.
const NOWHERE: u32 = u32::MAX;
// Flags of a node, in one byte.
const FOLLOWS: u8 = 1;
const READ: u8 = 2;
const LEAD: u8 = 4;
const AMBIGUOUS: u8 = 8;

impl Mirror {
    /// Appends all that is known, except the counts.
    pub fn save(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let all = self.tree.all();
        out.extend_from_slice(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(sample().to_le_bytes());
        let extent: u8 = match self.extent {
            Extent::Within => 0,
            Extent::Beyond => 1,
            Extent::GivenUp => 2,
        };
        let (group, number): (u8, u32) = match self.group {
            Group::Unknown => (0, 0),
            Group::Read(None) => (1, 0),
            Group::Read(Some(number)) => (2, number),
            Group::OthersAlone => (3, 0),
        };
        out.extend([extent, group]);
        out.extend(number.to_le_bytes());
        out.extend((all.len() as u32).to_le_bytes());
        let mut places = vec![NOWHERE; all.iter().max().map_or(0, |most| *most as usize + 1)];
        for (place, &at) in (0..).zip(&all) {
            places[at as usize] = place;
            let above = self.tree.above(at).map_or(NOWHERE, |above| places[above as usize]);
            write(self.tree.get(at), above, out);
        }
        out.extend(xxh64(&out[begin..], 0).to_le_bytes());
    }

    /// Returns what was saved, with room for so many blocks; no sink is told of it before [`Mirror::retell_on`].
    pub fn restore(bytes: &[u8], blocks_max: u32) -> Result<Mirror, Refused> {
        let (bytes, sum) = bytes.split_last_chunk().ok_or(Refused::Foreign)?;
        let mut reader = Reader(bytes);
        if reader.take::<8>()? != *MAGIC {
            return Err(Refused::Foreign);
        }
        if reader.u32()? != VERSION || reader.u64()? != sample() {
            return Err(Refused::Version);
        }
        if xxh64(bytes, 0) != u64::from_le_bytes(*sum) {
            return Err(Refused::Checksum);
        }
        let mut mirror = Mirror::new(blocks_max);
        mirror.fill(&mut reader)?;
        if reader.0.is_empty() { Ok(mirror) } else { Err(Refused::Nonsense) }
    }

    /// Returns this mirror with room for so many blocks.
    pub fn grown(&self, blocks_max: u32) -> Result<Mirror, Refused> {
        let mut bytes = Vec::new();
        self.save(&mut bytes);
        Ok(Mirror { counts: self.counts, blocks_max: self.blocks_max, ..Mirror::restore(&bytes, blocks_max)? })
    }

    /// Reads what was saved. Whatever the bytes are, the tree is one that events could have made: a node has more
    /// tokens than its parent, nodes without a block have followers.
    fn fill(&mut self, reader: &mut Reader<'_>) -> Result<(), Refused> {
        let [extent, group] = reader.take()?;
        let number = reader.u32()?;
        self.extent = match extent {
            0 => Extent::Within,
            1 => Extent::Beyond,
            _ => Extent::GivenUp,
        };
        self.group = match group {
            0 => Group::Unknown,
            1 => Group::Read(None),
            2 => Group::Read(Some(number)),
            3 => Group::OthersAlone,
            _ => return Err(Refused::Nonsense),
        };
        let count = reader.u32()?;
        if count as usize > super::Room::of(self.blocks_max).nodes {
            return Err(Refused::Beyond);
        }
        for at in 0..count {
            let (node, above) = read(reader)?;
            self.links_kept += node.links.len();
            self.blocks += u32::from(node.copies > 0);
            if self.links_kept > self.links_max || self.blocks > self.blocks_max {
                return Err(Refused::Beyond);
            }
            if self.names.insert(node.name, at).is_some() || self.tree.insert(node) != at {
                return Err(Refused::Nonsense);
            }
            if above != NOWHERE {
                self.attach(at, above)?;
            }
            let node = self.tree.get_mut(at);
            if above == NOWHERE && node.parent.is_none() && node.copies > 0 && node.text.is_ok() {
                node.held = true;
            }
            if node.held {
                for link in &node.links {
                    self.links.own(*link);
                }
            }
        }
        let idle = |at: u32| self.tree.get(at).copies == 0 && self.tree.first_below(at).is_none();
        if (0..count).any(idle) { Err(Refused::Nonsense) } else { Ok(()) }
    }

    fn attach(&mut self, at: u32, above: u32) -> Result<(), Refused> {
        if above >= at {
            return Err(Refused::Nonsense);
        }
        let (over, node) = (self.tree.get(above), self.tree.get(at));
        let (Ok(begin), Ok(end)) = (over.text, node.text) else { return Err(Refused::Nonsense) };
        let follows = node.parent == Some(over.name) && node.copies > 0 && node.tokens_before == begin.tokens;
        if !follows || begin.tokens >= end.tokens || begin.cut.bytes() > end.cut.bytes() {
            return Err(Refused::Nonsense);
        }
        let held = over.held;
        self.tree.link(at, above);
        self.tree.get_mut(at).held = held;
        Ok(())
    }
}

fn write(node: &Node, above: u32, out: &mut Vec<u8>) {
    let text = node.text.ok();
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    out.push(
        flag(node.parent.is_some(), FOLLOWS)
            | flag(text.is_some(), READ)
            | flag(text.is_some_and(|text| text.run.leads()), LEAD)
            | flag(node.ambiguous, AMBIGUOUS),
    );
    out.extend(node.name.to_le_bytes());
    out.extend(node.parent.unwrap_or_default().to_le_bytes());
    out.extend(node.copies.to_le_bytes());
    match node.text {
        Err(why) => out.push(why as u8),
        Ok(text) => {
            out.extend(above.to_le_bytes());
            out.extend(text.root.to_le_bytes());
            out.extend(text.cut.to_bytes());
            out.extend(node.tokens_before.to_le_bytes());
            out.extend(text.tokens.to_le_bytes());
            out.extend(node.block_before.to_le_bytes());
            out.extend(node.block_last.to_le_bytes());
            out.extend((node.links.len() as u32).to_le_bytes());
            node.links.iter().for_each(|link| out.extend(link.to_le_bytes()));
        }
    }
}

/// Reads a node, and the place of its parent node.
fn read(reader: &mut Reader<'_>) -> Result<(Node, u32), Refused> {
    let [flags] = reader.take()?;
    let mut node = Node::new(reader.u64()?);
    let parent = reader.u64()?;
    node.parent = (flags & FOLLOWS != 0).then_some(parent);
    node.copies = reader.u32()?;
    node.ambiguous = flags & AMBIGUOUS != 0 && node.copies > 0;
    if flags & READ == 0 {
        let [why] = reader.take()?;
        let known = Unread::ALL.into_iter().find(|known| *known as u8 == why);
        node.text = Err(known.ok_or(Refused::Nonsense)?);
        return Ok((node, NOWHERE));
    }
    let above = reader.u32()?;
    let root = reader.u64()?;
    let cut = Cut::from_bytes(&reader.take()?).ok_or(Refused::Nonsense)?;
    node.tokens_before = reader.u32()?;
    let tokens = reader.u32()?;
    node.text = Ok(Text { root, cut, tokens, run: Run::at(flags & LEAD != 0) });
    (node.block_before, node.block_last) = (reader.u64()?, reader.u64()?);
    let links = reader.u32()?;
    let steps = cut.bytes().min(TEXT_BYTES_MAX) / STEP_BYTES as u64;
    if u64::from(links) > steps || (links > 0 && node.copies == 0) {
        return Err(Refused::Nonsense);
    }
    // The links are taken from the input before memory is allocated for them: a number alone costs none.
    let (links, rest) = reader.0.split_at_checked(8 * links as usize).ok_or(Refused::Foreign)?;
    reader.0 = rest;
    node.links = links.as_chunks().0.iter().map(|link| u64::from_le_bytes(*link)).collect();
    Ok((node, above))
}

/// Returns a hash that changes when links are made in another way.
fn sample() -> u64 {
    // All bytes of a step differ, so that their order counts.
    let bytes: [u8; BLOCK_BYTES + STEP_BYTES] = std::array::from_fn(|at| at as u8);
    let mut link = 0;
    Cut::default().push(MAGIC.len() as u64, &bytes, |step| link ^= step.link.rotate_left(step.at as u32));
    link
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Refused::Foreign)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, Refused> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refused> {
        self.take().map(u64::from_le_bytes)
    }
}
