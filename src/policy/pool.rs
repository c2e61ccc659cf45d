//! A pool and the dense table of what choices read of its endpoints.

use std::ops::Range;
use std::sync::Arc;

use crate::fleet::{Endpoint, EndpointId, Health, Loads};
use crate::limits::{ENDPOINTS_MAX, WEIGHT_MAX};
use crate::policy::Settings;
use crate::ring::Ring;

/// Index of a pool in [`crate::snapshot::Snapshot::pools`]; stable for the life of the process, so that
/// it may label statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// The endpoints that serve one model id (base model or adapter).
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its place in [`crate::snapshot::Snapshot::pools`].
    pub id: PoolId,
    /// The served id. Part of every prefix key.
    pub name: Arc<str>,
    /// Slots of its endpoints, ascending, whatever their health.
    pub members: Arc<[u16]>,
    /// Points of the members; pools of equal members share it. Rebuilt only when membership changes.
    pub ring: Arc<Ring>,
    /// How this pool chooses.
    pub settings: Arc<Settings>,
    /// Who may be chosen; computed when the snapshot is sealed.
    eligible: Arc<Eligible>,
}

impl Pool {
    /// A pool whose choices answer nothing until its snapshot is sealed (as publication does).
    pub fn new(id: PoolId, name: Arc<str>, members: Arc<[u16]>, ring: Arc<Ring>, settings: Arc<Settings>) -> Pool {
        Pool { id, name, members, ring, settings, eligible: Arc::default() }
    }

    /// Who may be chosen.
    #[inline]
    pub fn eligible(&self) -> &Eligible {
        &self.eligible
    }

    /// Computes who may be chosen from the endpoints as they are now.
    pub(crate) fn refresh(&mut self, endpoints: &[Option<Endpoint>]) {
        self.eligible = Arc::new(Eligible::of(&self.members, endpoints));
    }

    /// Takes the table of a pool of equal members.
    pub(crate) fn share_eligible(&mut self, twin: &Pool) {
        self.eligible = Arc::clone(&twin.eligible);
    }
}

/// What a choice needs of one endpoint, in a quarter of a cache line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// 0: not eligible.
    pub(super) weight: u32,
    /// Load others put there.
    pub(super) foreign: u32,
    /// 2^20 / weight: a load times this compares across weights without a division.
    pub(super) inverse: u32,
    /// With the slot, the endpoint's id.
    generation: u32,
}

/// The members of a pool that take requests, as dense arrays: 512 endpoint records would cost a choice
/// microseconds of cache misses.
#[derive(Debug, Default)]
pub struct Eligible {
    /// By slot.
    rows: Box<[Row]>,
    /// Ascending.
    slots: Box<[u16]>,
    /// From the first of `slots` to the last, and what lies between and is not eligible. A dense sum less
    /// its holes is three times as fast as the sum of scattered cells.
    span: Range<u16>,
    /// `None`: so many that summing `slots` one by one is faster.
    holes: Option<Box<[u16]>>,
    /// Sum of the weights up to and with each of `slots`.
    shares: Box<[u64]>,
    foreign: u64,
    last_resort: bool,
}

impl Eligible {
    /// The members that take requests. When every one fails its probes, those that are not draining are
    /// taken all the same: a wrong probe must not empty a fleet that works, and a connect tells soon enough.
    fn of(members: &[u16], endpoints: &[Option<Endpoint>]) -> Eligible {
        // Beyond the last slot there are no counters.
        let endpoints = &endpoints[..endpoints.len().min(ENDPOINTS_MAX)];
        let known = || members.iter().filter_map(|&slot| endpoints.get(slot as usize)?.as_ref());
        let up: Vec<&Endpoint> = known().filter(|endpoint| endpoint.health.takes_requests()).collect();
        if up.is_empty() {
            let down: Vec<&Endpoint> = known().filter(|endpoint| endpoint.health == Health::Down).collect();
            Eligible { last_resort: !down.is_empty(), ..Eligible::table(&down) }
        } else {
            Eligible::table(&up)
        }
    }

    fn table(endpoints: &[&Endpoint]) -> Eligible {
        let mut slots: Vec<u16> = endpoints.iter().map(|endpoint| endpoint.id.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let mut rows = vec![Row::default(); slots.last().map_or(0, |&last| last as usize + 1)];
        for endpoint in endpoints {
            let weight = endpoint.weight.clamp(1, WEIGHT_MAX);
            rows[endpoint.id.slot as usize] = Row {
                weight,
                foreign: endpoint.foreign,
                inverse: (1 << 20) / weight,
                generation: endpoint.id.generation,
            };
        }
        let span = slots.first().map_or(0..0, |&first| first..rows.len() as u16);
        let holes: Vec<u16> = span.clone().filter(|&slot| rows[slot as usize].weight == 0).collect();
        let weights = slots.iter().map(|&slot| u64::from(rows[slot as usize].weight));
        let shares = weights.scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Eligible {
            shares: shares.collect(),
            foreign: slots.iter().map(|&slot| u64::from(rows[slot as usize].foreign)).sum(),
            holes: (2 * holes.len() <= slots.len()).then(|| holes.into()),
            span,
            rows: rows.into(),
            slots: slots.into(),
            last_resort: false,
        }
    }

    /// The eligible endpoints, ascending.
    #[inline]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Whether all members fail their probes and are tried all the same.
    pub fn last_resort(&self) -> bool {
        self.last_resort
    }

    /// Sum of the weights.
    #[inline]
    pub fn weight(&self) -> u64 {
        self.shares.last().copied().unwrap_or(0)
    }

    /// Load over all eligible endpoints: ours in flight and foreign.
    #[inline]
    pub fn total(&self, loads: &Loads) -> u64 {
        let each = |slots: &[u16]| slots.iter().map(|&slot| u64::from(loads.in_flight(slot))).sum::<u64>();
        let ours = match &self.holes {
            // A hole may rise between the two sums, where other pools use it.
            Some(holes) => loads.sum(self.span.clone()).saturating_sub(each(holes)),
            None => each(&self.slots),
        };
        self.foreign + ours
    }

    /// What is known of an endpoint, if it is eligible.
    #[inline]
    pub(super) fn row(&self, slot: u16) -> Option<&Row> {
        self.rows.get(slot as usize).filter(|row| row.weight != 0)
    }

    /// Load of one endpoint: ours in flight and foreign.
    #[inline]
    pub(super) fn load(&self, row: &Row, slot: u16, loads: &Loads) -> u32 {
        loads.in_flight(slot).saturating_add(row.foreign)
    }

    /// Index into [`Self::slots`] of the endpoint that owns `share`, each owning as many as its weight.
    #[inline]
    pub(super) fn owner(&self, share: u64) -> usize {
        self.shares.partition_point(|&sum| sum <= share)
    }

    /// The id of an endpoint that has a row.
    #[inline]
    pub(super) fn id(&self, slot: u16) -> EndpointId {
        EndpointId { slot, generation: self.rows.get(slot as usize).map_or(0, |row| row.generation) }
    }
}
