//! What one look at those who wait has found: who need not look any more.

use super::place::{Kind, Place};
use crate::limits::ENDPOINTS_MAX;

/// For each endpoint what was too much for it. Behind one who found no room only those look that are as urgent, of the
/// same tenant, and need less than all that did: who needs more would find none either, and of n who wait in no order
/// some ln n look. Strangers, for whom no room is kept, let all pass that need less.
#[derive(Debug)]
pub struct Look {
    doors: Box<[Door]>,
}

// One for each endpoint, all of which are opened in each look.
const _: () = assert!(size_of::<Door>() == 8);

#[derive(Clone, Copy, Debug)]
enum Door {
    Open,
    /// For those as urgent and of the same lane that need less; or for all of those.
    Below(Option<Kind>, u32),
    Closed,
}

impl Default for Look {
    fn default() -> Look {
        Look { doors: [Door::Open; ENDPOINTS_MAX].into() }
    }
}

impl Look {
    /// All is to be looked at.
    pub fn begins(&mut self) {
        self.doors.fill(Door::Open);
    }

    /// There may be room again at one endpoint.
    pub fn opens(&mut self, endpoint: u16) {
        self.set(endpoint, Door::Open);
    }

    /// Nobody goes there any more in this look.
    pub fn closes(&mut self, endpoint: u16) {
        self.set(endpoint, Door::Closed);
    }

    /// This one looked, and found no room for what it needs.
    pub fn in_vain(&mut self, endpoint: u16, needs: u32, place: &Place) {
        let kind = Some(place.line().kind()).filter(|_| !place.is_a_strangers());
        let below = match self.at(endpoint) {
            Door::Open => Door::Below(kind, needs),
            Door::Below(first, least) => Door::Below(first.or(kind), least.min(needs)),
            Door::Closed => Door::Closed,
        };
        self.set(endpoint, below);
    }

    /// Whether this one may find room where it waits.
    #[inline]
    pub fn lets(&self, place: &Place) -> bool {
        match self.at(place.endpoint()) {
            Door::Open => true,
            Door::Below(kind, least) => place.needs() < least && kind.is_none_or(|kind| place.line().kind() == kind),
            Door::Closed => false,
        }
    }

    fn at(&self, endpoint: u16) -> Door {
        self.doors.get(usize::from(endpoint)).copied().unwrap_or(Door::Closed)
    }

    fn set(&mut self, endpoint: u16, door: Door) {
        if let Some(at) = self.doors.get_mut(usize::from(endpoint)) {
            *at = door;
        }
    }
}
