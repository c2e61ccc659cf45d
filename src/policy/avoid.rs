//! Whom a request has tried.

/// The endpoints a request has already tried; the oldest is forgotten for a ninth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Avoid {
    slots: [u16; Avoid::MAX],
    count: u8,
    /// A bit for each place in `slots`: the whole server of that endpoint was tried, and no other rank of it will do.
    servers: u8,
}

impl Avoid {
    const MAX: usize = 8;

    /// Adds an endpoint.
    pub fn push(&mut self, slot: u16) {
        if !self.contains(slot) {
            let at = self.count as usize % Avoid::MAX;
            self.slots[at] = slot;
            self.servers &= !(1 << at);
            // Stays in MAX..2*MAX once full, so that the place of the oldest is known.
            self.count = if self.count as usize + 1 < 2 * Avoid::MAX { self.count + 1 } else { Avoid::MAX as u8 };
        }
    }

    /// Adds an endpoint with all ranks that its server has.
    pub fn push_server(&mut self, slot: u16) {
        self.push(slot);
        let at = self.as_slice().iter().position(|tried| *tried == slot);
        self.servers |= at.map_or(0, |at| 1 << at);
    }

    /// Whether the endpoint was tried.
    #[inline]
    pub fn contains(&self, slot: u16) -> bool {
        self.as_slice().contains(&slot)
    }

    /// The endpoints of which the whole server was tried.
    pub(super) fn servers(&self) -> impl Iterator<Item = u16> {
        let slots = self.as_slice().iter().enumerate();
        slots.filter(|(at, _)| self.servers & (1 << at) != 0).map(|(_, slot)| *slot)
    }

    /// Whether this is a first try.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one more would have the oldest forgotten.
    pub fn is_full(&self) -> bool {
        self.count as usize >= Avoid::MAX
    }

    /// The endpoints tried.
    #[inline]
    pub fn as_slice(&self) -> &[u16] {
        &self.slots[..Avoid::MAX.min(self.count as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avoid_keeps_the_last_eight() {
        let mut avoid = Avoid::default();
        assert!(avoid.is_empty() && !avoid.contains(0));
        for slot in 0..21 {
            avoid.push(slot);
            avoid.push(slot);
            let oldest = slot.saturating_sub(7);
            assert!((oldest..=slot).all(|slot| avoid.contains(slot)), "after {slot}");
            assert!(!avoid.contains(slot + 1) && oldest.checked_sub(1).is_none_or(|slot| !avoid.contains(slot)));
        }
    }

    #[test]
    fn servers_are_forgotten_with_their_endpoints() {
        let mut avoid = Avoid::default();
        avoid.push(3);
        avoid.push_server(4);
        avoid.push(5);
        assert_eq!(avoid.servers().collect::<Vec<_>>(), [4]);
        avoid.push_server(3);
        assert_eq!(avoid.servers().collect::<Vec<_>>(), [3, 4]);
        (10..18).for_each(|slot| avoid.push(slot));
        assert_eq!(avoid.servers().count(), 0);
    }
}
