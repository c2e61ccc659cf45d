//! The limits and the fleet that an exchange is played with: small ones, so that short scripts reach every bound.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use warmfront::counters::Counters;
use warmfront::counters::stats::Stats;
use warmfront::exchange::Rules;
use warmfront::fleet::{Endpoint, EndpointId, Health};
use warmfront::policy::{Policy, Settings};
use warmfront::ring::Ring;
use warmfront::snapshot::{Pool, PoolId, Snapshot};

thread_local! {
    // Leaked once a thread: counts must not be those of another test.
    static COUNTED: (&'static Counters, &'static Stats) = (Counters::leak(), Stats::leak(1));
    /// By what differs, since building one takes longer than running a script before it.
    static FLEETS: RefCell<HashMap<u8, Rc<Snapshot>>> = RefCell::default();
}

/// This thread's counters.
pub fn counted() -> (&'static Counters, &'static Stats) {
    COUNTED.with(|counted| *counted)
}

/// Small bounds.
pub fn rules(flags: u8) -> Rules {
    let mut rules = Rules { half_close_leaves: flags & 1 != 0, ..Rules::default() };
    let limits = &mut rules.limits;
    (limits.hold_bytes, limits.body_bytes_max, limits.splice_bytes_min) = (64, 600, 100);
    (limits.head_bytes_max, limits.head_fields_max, limits.interim_replies_max) = (1_024, 16, 2);
    limits.budget_bytes = if flags & 32 != 0 { 300 } else { 4_096 };
    rules
}

/// One or two endpoints, one or two pools, by turns or by prefix.
pub fn fleet(flags: u8) -> Rc<Snapshot> {
    FLEETS.with_borrow_mut(|fleets| {
        let differs = flags & (2 | 4 | 64);
        Rc::clone(fleets.entry(differs).or_insert_with(|| Rc::new(snapshot(differs))))
    })
}

fn snapshot(flags: u8) -> Snapshot {
    let policy = if flags & 2 != 0 { Policy::PrefixHash } else { Policy::RoundRobin };
    let settings = Arc::new(Settings { policy, replication: 4, ..Settings::default() });
    let count = if flags & 4 != 0 { 2 } else { 1 };
    let endpoint = |slot: u16| {
        let id = EndpointId { slot, generation: 0 };
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        Endpoint { health: Health::Up, ..Endpoint::new(id, format!("e{slot}").into(), address) }
    };
    let mut snapshot = Snapshot { plan: Arc::new(settings.plan()), models_complete: true, ..Snapshot::default() };
    snapshot.endpoints = (0..count).map(|slot| Some(endpoint(slot))).collect();
    let members: Vec<u16> = (0..count).collect();
    // Two pools make the choice wait for the model.
    let names: &[&str] = if flags & 64 != 0 { &["a", "b"] } else { &["a"] };
    for (place, name) in names.iter().enumerate() {
        let id = PoolId(place as u16);
        let entries: Vec<_> = snapshot.endpoints.iter().flatten().map(|e| (e.id.slot, &*e.name, 1)).collect();
        let ring = Arc::new(Ring::build(&entries, settings.replication));
        Arc::make_mut(&mut snapshot.models).insert(name.as_bytes().into(), id);
        snapshot.pools.push(Pool::new(id, (*name).into(), members.clone().into(), ring, Arc::clone(&settings)));
    }
    snapshot.seal();
    snapshot
}
