//! What an endpoint holds, to be written down and read into another process's index.
//!
//! A row keeps neither all of a hash nor which of the hash's two buckets it lies in, so that no hash can be had from it
//! that would find it everywhere. But a look-up of the true hash comes by the same bucket in every index of as many
//! buckets, and there it compares the tag. So what is saved is a row's bucket and tag, and it is read into an index of
//! equal [`Index::layout`] alone.

pub use super::rows::Saved;
use super::seat::add;
use super::{CONTROL_CLAIMS_MAX, Index, Missed, Origin};
use crate::fleet::EndpointId;

impl Index {
    /// What saved rows mean something to: indexes of equal layout.
    pub fn layout(&self) -> u64 {
        self.rows.layout()
    }

    /// Calls `out` with each block that the endpoint holds, behind the block before it, such that [`Index::restore`] of
    /// each in this order makes the same content of the same age. A block may come twice. Promises are left out.
    ///
    /// Nobody can write for the endpoint meanwhile: `out` shall copy, and do no more.
    pub fn save(&self, id: EndpointId, out: &mut impl FnMut(Option<Saved>, Saved)) -> Result<(), Missed> {
        let (_, ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
        ledger.save(|parent, row| out(parent.map(|parent| self.rows.saved(parent)), self.rows.saved(row)));
        Ok(())
    }

    /// Notes a block that was saved, of [`Origin::Saved`], as the youngest; false: no room could be made. `Orphan`: the
    /// endpoint does not hold the block before, or this index has no such bucket.
    pub fn restore(&self, parent: Option<Saved>, block: Saved, id: EndpointId) -> Result<bool, Missed> {
        if !self.rows.has_bucket(block) {
            return Err(Missed::Orphan);
        }
        let (seat, mut ledger) = self.claim(id, CONTROL_CLAIMS_MAX)?;
        let holder = self.rows.of(id.slot);
        let parent = parent.map(|parent| holder.held_saved(parent).ok_or(Missed::Orphan)).transpose()?;
        let held = ledger.held();
        let is_held = ledger.restore(holder, parent, block);
        let now = ledger.held();
        // As many went as are not more; and where room was made for a block that then found none, one more.
        add(&seat.inserted[Origin::Saved as usize], now.saturating_sub(held).into());
        add(&seat.evicted, held.saturating_sub(now).into());
        add(&seat.refused, (!is_held).into());
        seat.publish(&ledger);
        Ok(is_held)
    }
}
