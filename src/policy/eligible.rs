//! The endpoints of a pool that may be chosen, and the dense table of what choices read of them.

use std::collections::HashMap;
use std::ops::Range;

use crate::fleet::{Caps, Endpoint, EndpointId, Health, Loads};
use crate::index::{Found, Matches};
use crate::limits::{ENDPOINTS_MAX, WEIGHT_MAX};
use crate::policy::Avoid;
use crate::policy::cache::{self, Cache};

/// What bounds our requests at one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Cap {
    #[default]
    None,
    Configured,
    /// One at a time, beside those open there from before, and below the configured cap.
    Trial,
}

/// What a choice needs of one endpoint, in a quarter of a cache line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Its weight times the share that counts, in percent; 0: not eligible.
    pub(super) weight: u16,
    /// That share, less than 100 while it starts slowly.
    pub(super) share_percent: u8,
    /// What bounds our requests there.
    cap: Cap,
    /// Load others put there.
    pub(super) foreign: u32,
    /// 100 * 2^20 / weight: a load times this compares across weights without a division.
    pub(super) inverse: u32,
    /// With the slot, the endpoint's id.
    generation: u32,
}

/// See [`Row::inverse`]: that of an endpoint of weight 1 is two to this.
const INVERSE_BITS: u32 = 20;

impl Row {
    /// Its part of an even load, in hundredths of weight: of one on trial as large as of any other, or what is open
    /// there from before would keep away the request that frees it.
    #[inline]
    pub(super) fn part(&self) -> u32 {
        if self.cap == Cap::Trial { u32::from(self.weight) * (WHOLE / TRIAL_SHARE) } else { self.weight.into() }
    }

    /// So many tokens in those of an endpoint of weight 1 that has started long ago; others are as much slower as they
    /// weigh less.
    #[inline]
    pub(super) fn weighed(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(u64::from(self.inverse)) >> INVERSE_BITS
    }
}

/// Hundredths of a weight.
pub(super) const WHOLE: u32 = Endpoint::WHOLE as u32;
const _: () = assert!(WEIGHT_MAX * WHOLE <= u16::MAX as u32, "a row's weight is a u16");

/// Share of an endpoint that gets one request at a time, in percent: the bounds of the others must hold its load.
const TRIAL_SHARE: u32 = 10;

/// The members of a pool that take requests, as dense arrays: 512 endpoint records would cost a choice
/// microseconds of cache misses.
#[derive(Debug, Default)]
pub struct Eligible {
    /// By slot.
    rows: Box<[Row]>,
    /// Ascending.
    slots: Box<[u16]>,
    /// Whose they are.
    ids: Box<[EndpointId]>,
    /// What is known of their caches, in the same order.
    caches: Box<[Cache]>,
    /// The least that one of them has in use.
    least_used: u32,
    /// One of them was not full when it was looked at last.
    vacant: bool,
    /// Those of whose caches the index is not believed; mostly none.
    doubted: Box<[u16]>,
    /// From the first of `slots` to the last, and what lies between and is not eligible. A dense sum less
    /// its holes is twice as fast as the sum of scattered cells.
    span: Range<u16>,
    /// `None`: so many that summing `slots` one by one is faster.
    holes: Option<Box<[u16]>>,
    /// Sum of the rows' weights up to and with each of `slots`.
    shares: Box<[u64]>,
    /// By slot; read only where the row says that there is one.
    caps: Box<[u32]>,
    foreign: u64,
    ramping: bool,
    last_resort: bool,
    /// By slot: the lowest of those that are ranks of the same server. Empty where each has a port of its own.
    servers: Box<[u16]>,
}

impl Eligible {
    /// The members that take requests; if there is none, those that only failed requests; if there is none
    /// either, those that fail their probes. A wrong verdict must not empty a fleet that works, and a connect
    /// tells soon enough. Who is draining never comes back.
    pub(super) fn of(members: &[u16], endpoints: &[Option<Endpoint>]) -> Eligible {
        // Beyond the last slot there are no counters.
        let endpoints = &endpoints[..endpoints.len().min(ENDPOINTS_MAX)];
        Eligible { servers: Eligible::servers(members, endpoints), ..Eligible::serving(members, endpoints) }
    }

    fn serving(members: &[u16], endpoints: &[Option<Endpoint>]) -> Eligible {
        let known = || members.iter().filter_map(|&slot| endpoints.get(slot as usize)?.as_ref());
        let serving: Vec<&Endpoint> = known().filter(|endpoint| endpoint.health.takes_requests()).collect();
        if !serving.is_empty() {
            // One request at a time is for exceptions: where most of a pool is on trial, such as after a power
            // cut, it would be an outage of our own making, and one bad answer still bars each of them.
            let on_trial = serving.iter().filter(|endpoint| endpoint.health == Health::Trial).count();
            return Eligible::table(&serving, 2 * on_trial <= serving.len());
        }
        let walked_past = [Health::Ejected, Health::Down];
        let mut resorts =
            walked_past.map(|health| known().filter(|one| one.health == health).collect::<Vec<_>>()).into_iter();
        let resort = resorts.find(|resort| !resort.is_empty()).unwrap_or_default();
        Eligible { last_resort: !resort.is_empty(), ..Eligible::table(&resort, false) }
    }

    /// `one_at_a_time`: whether those on trial are held to that.
    fn table(endpoints: &[&Endpoint], one_at_a_time: bool) -> Eligible {
        let mut slots: Vec<u16> = endpoints.iter().map(|endpoint| endpoint.id.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        let by_slot = |slot: &u16| endpoints.iter().find(|endpoint| endpoint.id.slot == *slot);
        let of_each: Vec<&&Endpoint> = slots.iter().filter_map(by_slot).collect();
        let mut rows = vec![Row::default(); slots.last().map_or(0, |&last| last as usize + 1)];
        let mut caps = vec![Endpoint::NO_CAP; rows.len()];
        for endpoint in endpoints {
            let alone = one_at_a_time && endpoint.health == Health::Trial;
            let weight = endpoint.weight.clamp(1, WEIGHT_MAX);
            let starting = u32::from(endpoint.share_percent).clamp(1, WHOLE);
            let share = if alone { TRIAL_SHARE } else { starting };
            // By load an endpoint on trial is compared like the others, or it would never get the request that frees
            // it.
            let compared = weight * if alone { WHOLE } else { starting };
            rows[endpoint.id.slot as usize] = Row {
                weight: (weight * share) as u16,
                share_percent: share as u8,
                cap: match endpoint.cap {
                    _ if alone => Cap::Trial,
                    Endpoint::NO_CAP => Cap::None,
                    _ => Cap::Configured,
                },
                foreign: endpoint.foreign,
                inverse: (WHOLE << INVERSE_BITS) / compared,
                generation: endpoint.id.generation,
            };
            caps[endpoint.id.slot as usize] = endpoint.cap;
        }
        let span = slots.first().map_or(0..0, |&first| first..rows.len() as u16);
        let caches = cache::of_each(&of_each);
        let holes: Vec<u16> = span.clone().filter(|&slot| rows[slot as usize].weight == 0).collect();
        let row = |&slot: &u16| &rows[slot as usize];
        let shares = slots.iter().map(row).scan(0, |sum, row| {
            *sum += u64::from(row.weight);
            Some(*sum)
        });
        Eligible {
            shares: shares.collect(),
            foreign: slots.iter().map(row).map(|row| u64::from(row.foreign)).sum(),
            ramping: slots.iter().map(row).any(|row| u32::from(row.share_percent) < WHOLE),
            holes: (3 * holes.len() <= slots.len()).then(|| holes.into()),
            span,
            caps: caps.into(),
            ids: of_each.iter().map(|endpoint| endpoint.id).collect(),
            least_used: caches.iter().map(|cache| cache.used).min().unwrap_or(0),
            vacant: caches.iter().any(|cache| cache.vacant > 0),
            caches,
            doubted: of_each.iter().filter(|one| !one.rung.believes_index()).map(|one| one.id.slot).collect(),
            rows: rows.into(),
            slots: slots.into(),
            last_resort: false,
            servers: Box::default(),
        }
    }

    /// Which slots are ranks of one server, be they eligible or not.
    fn servers(members: &[u16], endpoints: &[Option<Endpoint>]) -> Box<[u16]> {
        let known = members.iter().filter_map(|&slot| endpoints.get(slot as usize)?.as_ref());
        let ranks: Vec<&Endpoint> = known.filter(|endpoint| endpoint.rank.is_some()).collect();
        let Some(last) = ranks.iter().map(|rank| rank.id.slot).max() else { return Box::default() };
        let mut first = HashMap::new();
        let mut servers: Box<[u16]> = (0..=last).collect();
        for rank in ranks {
            servers[rank.id.slot as usize] = *first.entry(rank.address).or_insert(rank.id.slot);
        }
        servers
    }

    /// Whether both are ranks of one server.
    #[inline]
    pub fn is_one_server(&self, one: u16, other: u16) -> bool {
        let server = |slot: u16| self.servers.get(slot as usize).copied().unwrap_or(slot);
        server(one) == server(other)
    }

    /// Whether an endpoint was tried, or another rank of its server by which that was found out of reach.
    #[inline]
    pub fn was_tried(&self, avoid: &Avoid, slot: u16) -> bool {
        !avoid.is_empty() && (avoid.contains(slot) || avoid.servers().any(|tried| self.is_one_server(tried, slot)))
    }

    /// The eligible endpoints, ascending.
    #[inline]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Their ids, in the same order.
    #[inline]
    pub fn ids(&self) -> &[EndpointId] {
        &self.ids
    }

    /// Their caches, in the same order.
    #[inline]
    pub(super) fn caches(&self) -> &[Cache] {
        &self.caches
    }

    #[inline]
    pub(super) fn least_used(&self) -> u32 {
        self.least_used
    }

    /// Whether one of them was not full when it was looked at last.
    #[inline]
    pub(super) fn vacant(&self) -> bool {
        self.vacant
    }

    /// The endpoints that count as holding nothing, whatever the index says; ascending.
    #[inline]
    pub(super) fn doubted(&self) -> &[u16] {
        &self.doubted
    }

    /// The longest match of an endpoint that is believed to hold it.
    pub fn most(&self, matches: &Matches) -> Found {
        let believed = |slot| self.doubted.binary_search(&slot).is_err();
        let mut held =
            matches.levels_in_steps().filter(|(_, holders)| self.doubted.is_empty() || holders.slots().any(believed));
        held.next().map_or_else(Found::default, |(found, _)| found)
    }

    /// Whether no member is in service and others are tried all the same, in spite of what probes or requests said.
    pub fn last_resort(&self) -> bool {
        self.last_resort
    }

    /// Sum of the rows' weights, in hundredths of what is configured.
    #[inline]
    pub(super) fn weight(&self) -> u64 {
        self.shares.last().copied().unwrap_or(0)
    }

    /// Load of all eligible endpoints that is not ours.
    #[inline]
    pub(super) fn foreign(&self) -> u64 {
        self.foreign
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

    /// The same with what is known of its cache.
    pub(super) fn known(&self, slot: u16) -> Option<(&Row, &Cache)> {
        let place = self.slots.binary_search(&slot).ok()?;
        self.row(slot).zip(self.caches.get(place))
    }

    /// Load of one endpoint: ours in flight and foreign.
    #[inline]
    pub(super) fn load(&self, row: &Row, slot: u16, loads: &Loads) -> u32 {
        loads.in_flight(slot).saturating_add(row.foreign)
    }

    /// Whether some of them do not count whole.
    #[inline]
    pub(super) fn ramping(&self) -> bool {
        self.ramping
    }

    /// Most requests of ours that an endpoint may have; of those that failed and stay charged what is configured says
    /// nothing, since they run no more.
    ///
    /// On trial, one more than are open there from before. Were those counted as the one, a single tunnel would keep
    /// its engine out for as long as it is open. As they end the cap falls with them, so that the trial has one request
    /// of its own; two only where one from before ends between the choice and the admission of two shards that choose
    /// at once, or one of its own comes and goes while this looks.
    #[inline]
    pub(super) fn caps(&self, slot: u16, loads: &Loads) -> Caps {
        let running = self.caps.get(slot as usize).copied().unwrap_or(Endpoint::NO_CAP);
        let on_trial = self.row(slot).filter(|row| row.cap == Cap::Trial);
        let counted = on_trial.map_or(u32::MAX, |row| self.open_before(row, slot, loads).saturating_add(1));
        Caps { counted, running }
    }

    /// Of the requests of ours at an endpoint that gets one at a time, those that are open there from before that.
    #[inline]
    pub(super) fn open_before(&self, row: &Row, slot: u16, loads: &Loads) -> u32 {
        if row.cap == Cap::Trial { loads.open_before(slot) } else { 0 }
    }

    /// Whether an endpoint has as many requests of ours as it may.
    #[inline]
    pub(super) fn at_cap(&self, row: &Row, slot: u16, loads: &Loads) -> bool {
        row.cap != Cap::None && !loads.is_below(slot, self.caps(slot, loads))
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
