//! How an endpoint begins: new in its slot, or as the same process as before in another.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::{Processes, Tenancy};
use crate::control::caches::Unit;
use crate::control::health::Course;
use crate::control::truth::Truth;
use crate::fleet::{Endpoint, EndpointId, Turnover};

impl Tenancy {
    /// A tenancy of which nothing is known but the health that it begins with.
    pub fn new(id: EndpointId, address: SocketAddr, course: Course, now: Instant) -> Tenancy {
        Tenancy {
            id,
            address,
            course,
            reading: None,
            scrape_error: None,
            foreign: 0,
            several: 0,
            dispatched_at: 0,
            resident_at: 0,
            room: None,
            turnover: Turnover::default(),
            truth: Truth::new(now),
            emptied: 0,
            remembered: Arc::default(),
            unit: Unit::default(),
            is_known: false,
            began: None,
            processes: Processes::default(),
            computed: None,
            kind: None,
            match_unit: None,
            process: None,
            asleep: false,
            was_silent: None,
        }
    }

    /// The same process in another slot, where shards count from 0, or on from what they sent to another engine. What
    /// it said of itself holds until it says more; it is listened to anew. Its requests of ours run on under the old
    /// slot, and are like others' load in the new one.
    pub fn renumbered(&self, id: EndpointId, now: Instant) -> Tenancy {
        let load = self.load();
        let there = load.running.zip(load.waiting).map(|(running, waiting)| running.saturating_add(waiting));
        Tenancy {
            reading: self.reading.clone(),
            scrape_error: self.scrape_error.clone(),
            foreign: there.unwrap_or(self.foreign),
            dispatched_at: Endpoint::NOTHING_SINCE,
            room: self.room.map(|(room, at)| (room.beside(self.resident_at), at)),
            truth: self.truth.renumbered(now),
            emptied: self.emptied,
            remembered: Arc::clone(&self.remembered),
            is_known: self.is_known,
            began: self.began,
            processes: self.processes.clone(),
            computed: self.computed,
            kind: self.kind,
            match_unit: self.match_unit,
            process: self.process,
            asleep: self.asleep,
            was_silent: self.was_silent,
            ..Tenancy::new(id, self.address, self.course.renumbered(), now)
        }
    }
}
