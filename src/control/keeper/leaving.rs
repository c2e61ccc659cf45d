//! Endpoints that were taken out and have requests of ours.

use std::net::SocketAddr;
use std::time::Instant;

use super::Keeper;
use crate::control::health::Failure;
use crate::fleet::EndpointId;

impl Keeper {
    /// Those that are to be probed, and as whom.
    pub fn leaving(&self) -> Vec<(EndpointId, SocketAddr, String)> {
        let fleet = self.fleet();
        let with_requests = fleet.leaving().filter(|leaving| self.counters.in_flight(leaving.endpoint.id.slot) > 0);
        with_requests
            .map(|leaving| (leaving.endpoint.id, leaving.endpoint.address, leaving.authority.clone()))
            .collect()
    }

    /// See [`super::Fleet::left_probed`].
    pub fn left_probed(&self, id: EndpointId, outcome: Result<(), Failure>) {
        let changed = self.fleet().left_probed(id, outcome, Instant::now());
        self.changed_if(changed);
    }
}
