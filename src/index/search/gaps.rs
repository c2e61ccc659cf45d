//! Where holders of a prompt end: between which depths, closer from round to round.
//!
//! A gap lies between a depth and a deeper one with other holders; in between, the former may hold as much or as little
//! as they like. Asking [`FAN`] depths of it leaves one gap for each pair of neighbours with different holders. All
//! gaps that are searched are asked in the same round, each of which waits for the memory once: one after the other
//! they took three times as many.

use super::{DEPTHS_SEARCHED, FAN};

/// Gaps that are remembered in one look-up. Endpoints whose depth lies in none of them count with what most others of
/// those that hold little have in common, or with nothing.
pub(super) const GAPS_MAX: usize = DEPTHS_SEARCHED + 12;

/// Some endpoints end between these depths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap<const W: usize> {
    /// The deepest block that they were seen to hold; 0: none.
    pub from: u32,
    /// Not all of them hold this one.
    pub end: u32,
    /// Who was seen to hold `from`.
    pub holders: [u64; W],
}

impl<const W: usize> Gap<W> {
    const NONE: Gap<W> = Gap { from: 0, end: 0, holders: [0; W] };

    /// Whether there are depths in it.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.end - self.from > 1
    }

    /// Depths that divide it evenly, ascending: none if it is not open.
    #[inline]
    pub(super) fn depths(&self) -> impl Iterator<Item = usize> + use<W> {
        depths(self.from as usize, self.end as usize)
    }
}

/// Depths that divide what lies between these evenly: at most [`FAN`], ascending.
#[inline]
pub(super) fn depths(from: usize, end: usize) -> impl Iterator<Item = usize> + Clone {
    let gap = end - from;
    (1..=FAN.min(gap - 1)).map(move |part| from + if gap > FAN { gap * part / (FAN + 1) } else { part })
}

/// All gaps of a prompt, the deepest first: at the end of each, those hold the block that begin the one before.
#[derive(Debug)]
pub(super) struct Gaps<const W: usize> {
    gaps: [Gap<W>; GAPS_MAX],
    len: usize,
}

impl<const W: usize> Gaps<W> {
    pub(super) fn none() -> Gaps<W> {
        Gaps { gaps: [Gap::NONE; GAPS_MAX], len: 0 }
    }

    /// Of so many blocks, before any was asked.
    pub(super) fn whole(blocks: usize, among: [u64; W]) -> Gaps<W> {
        let mut gaps = Gaps::none();
        if among != [0; W] {
            gaps.push(0, blocks as u32 + 1, &among);
        }
        gaps
    }

    pub(super) fn all(&self) -> &[Gap<W>] {
        &self.gaps[..self.len]
    }

    /// Those that are searched to the block: in each of them another depth will be found, so that they are enough for
    /// [`DEPTHS_SEARCHED`].
    #[inline]
    pub(super) fn searched(&self) -> &[Gap<W>] {
        &self.gaps[..self.len.min(DEPTHS_SEARCHED)]
    }

    #[inline]
    fn push(&mut self, from: u32, end: u32, holders: &[u64; W]) {
        if let Some(gap) = self.gaps.get_mut(self.len) {
            (gap.from, gap.end, gap.holders) = (from, end, *holders);
            self.len += 1;
        }
    }

    /// What `ask` leaves of them: it is told a depth and who may hold that, and answers who does.
    #[inline]
    pub(super) fn split(&self, split: &mut Gaps<W>, mut ask: impl FnMut(usize, &[u64; W]) -> [u64; W]) {
        split.len = 0;
        let mut above = [0; W];
        for gap in self.searched() {
            // Ascending: each run of equal holders begins and ends somewhere, and the next one begins behind it.
            let (mut begins, mut ends, mut holders) = ([0; FAN + 1], [gap.from; FAN + 1], [gap.holders; FAN + 1]);
            let (mut last, mut end) = (0, gap.end);
            for depth in gap.depths() {
                let here = ask(depth, &gap.holders);
                if here == above {
                    end = depth as u32;
                    break;
                }
                if here != holders[last] {
                    last += 1;
                    (begins[last], holders[last]) = (depth as u32, here);
                }
                ends[last] = depth as u32;
            }
            for at in (0..=last).rev() {
                split.push(ends[at], end, &holders[at]);
                end = begins[at];
            }
            above = gap.holders;
        }
        self.all()[self.searched().len()..].iter().for_each(|gap| split.push(gap.from, gap.end, &gap.holders));
    }
}
