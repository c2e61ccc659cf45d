//! Which request a full queue gives up for one that comes.

use super::rank::{LANES, Rank};
use super::tenants::by_weight;
use super::{Newcomer, Queue};
use crate::atomics::Ordering;
use crate::limits::ENDPOINTS_MAX;

/// The waiting requests: how many of each island, and those of one island by lane.
struct Crowd {
    islands: [u16; ENDPOINTS_MAX],
    lanes: [Lane; LANES],
}

#[derive(Clone, Copy, Default)]
struct Lane {
    places: u32,
    /// The one that would go first, with its place: the least urgent, of these the one that came last.
    last: Option<(usize, Rank)>,
}

impl Queue {
    /// Makes room in a full queue, if a request ranks below the newcomer; false if none does.
    ///
    /// If clients keep coming to a full queue most are refused, so each looks at the waiting requests only once, or
    /// twice if it takes the place of another island's.
    pub(super) fn push_out_for(&self, newcomer: &Newcomer) -> bool {
        let own = self.islands.of(newcomer.endpoint);
        let mut crowd = self.crowd(own);
        let crowded = crowd.island_beside(own);
        if let Some(other) = crowded {
            crowd = self.crowd(other);
        }
        let places = |lane: u8| crowd.lanes[usize::from(lane)].places;
        let excess = |lane: u8| self.tenants.by_weight(lane, places(lane));
        let lasts = crowd.lanes.iter().filter_map(|lane| lane.last);
        let worst = lasts.max_by_key(|(_, rank)| (rank.urgency(), excess(rank.lane()), rank.when()));
        let Some((place, rank)) = worst else { return true };
        let urgency = Rank::urgency_of(newcomer.priority);
        let with_it = places(newcomer.tenant.lane) + 1;
        let fairer = || by_weight(with_it, newcomer.tenant.weight) < excess(rank.lane());
        if crowded.is_none() && (rank.urgency() < urgency || rank.urgency() == urgency && !fairer()) {
            return false;
        }
        let pushed = rank.pushed_out().word();
        let out = self.words[place].compare_exchange(rank.word(), pushed, Ordering::AcqRel, Ordering::Relaxed);
        if out.is_ok() {
            self.leaves();
        }
        true
    }

    /// Counts the requests that wait now; by lane those of this island.
    fn crowd(&self, island: u16) -> Crowd {
        let mut crowd = Crowd { islands: [0; ENDPOINTS_MAX], lanes: [Lane::default(); LANES] };
        for (place, rank) in self.ranks() {
            let of = self.islands.of(rank.endpoint());
            crowd.islands[usize::from(of) % ENDPOINTS_MAX] += 1;
            if of == island {
                crowd.lanes[usize::from(rank.lane())].add(place, rank);
            }
        }
        crowd
    }
}

impl Crowd {
    /// The island with most places, if it has at least two more than this one.
    fn island_beside(&self, own: u16) -> Option<u16> {
        let (island, most) = self.islands.iter().enumerate().max_by_key(|(_, places)| **places)?;
        (*most > self.islands[usize::from(own) % ENDPOINTS_MAX] + 1).then_some(island as u16)
    }
}

impl Lane {
    fn add(&mut self, place: usize, rank: Rank) {
        self.places += 1;
        let goes_first = |(_, last): (usize, Rank)| (rank.urgency(), rank.when()) >= (last.urgency(), last.when());
        if self.last.is_none_or(goes_first) {
            self.last = Some((place, rank));
        }
    }
}
