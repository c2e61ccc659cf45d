//! What shards have counted at one endpoint, read beside what its engine says.

use super::{Keeper, Server};
use crate::control::truth::Ours;

impl Keeper {
    /// What this front has sent to an endpoint.
    pub fn ours(&self, slot: u16) -> Ours {
        let loads = self.counters.loads();
        Ours {
            in_flight: loads.running(slot),
            several: loads.several(slot),
            dispatched: loads.dispatched(slot),
            resident: loads.resident(slot),
            prompted: loads.prompted(slot),
            pending: loads.pending(slot),
            asked: self.counters.predictions().sent_in_all(slot),
        }
    }

    /// Failed connects and faults that shards have counted so far (wraps); compare with what was read before.
    pub fn trouble(&self, slot: u16) -> u32 {
        let outcomes = self.counters.outcomes();
        outcomes.connect_failures(slot).wrapping_add(outcomes.read(slot).faults)
    }

    /// The same for all ranks of a server.
    pub fn trouble_at(&self, server: &Server) -> u32 {
        server.ranks.iter().fold(0, |sum, rank| sum.wrapping_add(self.trouble(rank.id.slot)))
    }

    /// First tokens of streams that came from any of its ranks.
    pub fn first_tokens_at(&self, server: &Server) -> u64 {
        server.ranks.iter().map(|rank| self.first_tokens(rank.id.slot)).sum()
    }

    /// First tokens of streams that came from an endpoint so far; compare with what was read before.
    pub fn first_tokens(&self, slot: u16) -> u64 {
        self.stats.first_tokens(slot).count()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::control::keeper::tests::keeper;
    use crate::fleet::EndpointId;

    /// Were those counted that have ended, as many of others' requests would be taken for ours.
    #[test]
    fn an_engine_has_nothing_of_what_stays_charged() {
        let keeper = keeper(Config::default());
        let id = EndpointId { slot: 3, generation: 1 };
        let [mut ended, runs] = [(); 2].map(|()| keeper.counters.try_admit(id, None).unwrap());
        ended.counts_several();
        ended.occupies(700);
        ended.stays_charged();
        let ours = keeper.ours(3);
        assert_eq!((ours.in_flight, ours.several, ours.resident), (1, 0, 0));
        drop((ended, runs));
        assert_eq!((keeper.ours(3), keeper.counters.underflow()), (Default::default(), 0));
    }
}
