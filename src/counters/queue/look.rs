//! What one pass over the waiting requests has found: which of them need not look for room any more.

use super::place::{Kind, Place};
use crate::limits::ENDPOINTS_MAX;

/// For each endpoint, the need that it had no room for. After a request that found no room only those look that are as
/// urgent, of the same tenant, and need less than all that looked before: one that needs more would find none either.
/// Of n requests in random order about ln n look. After a stranger's, for which no room is kept, any request looks that
/// needs less.
#[derive(Debug)]
pub struct Look {
    doors: Box<[Door]>,
}

// There is one for each endpoint, and each look opens all of them.
const _: () = assert!(size_of::<Door>() == 8);

#[derive(Clone, Copy, Debug)]
enum Door {
    Open,
    /// Open for requests of this kind (`None`: of any) that need less than so many tokens.
    Below(Option<Kind>, u32),
    Closed,
}

impl Default for Look {
    fn default() -> Look {
        Look { doors: [Door::Open; ENDPOINTS_MAX].into() }
    }
}

impl Look {
    /// Begins a new look: all doors are open.
    pub fn begins(&mut self) {
        self.doors.fill(Door::Open);
    }

    /// Opens an endpoint: there may be room again.
    pub fn opens(&mut self, endpoint: u16) {
        self.set(endpoint, Door::Open);
    }

    /// Closes an endpoint for the rest of this look.
    pub fn closes(&mut self, endpoint: u16) {
        self.set(endpoint, Door::Closed);
    }

    /// Notes that the request of `place` looked, and found no room for what it needs.
    pub fn in_vain(&mut self, endpoint: u16, needs: u32, place: &Place) {
        let kind = Some(place.line().kind()).filter(|_| !place.is_a_strangers());
        let below = match self.at(endpoint) {
            Door::Open => Door::Below(kind, needs),
            Door::Below(first, least) => Door::Below(first.or(kind), least.min(needs)),
            Door::Closed => Door::Closed,
        };
        self.set(endpoint, below);
    }

    /// Whether the request of `place` may find room where it waits.
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
