//! What control publishes and shards read once a turn: the fleet, its pools, and ready-made answers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::fleet::{Endpoint, EndpointId};
use crate::index::Index;
use crate::policy::Settings;
use crate::ring::Ring;
use crate::scan::{Needs, Plan};

pub use crate::policy::{Pool, PoolId};

/// One immutable view of the fleet.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Number of this publication.
    pub epoch: u64,
    /// By slot; `None` if the slot is free.
    pub endpoints: Vec<Option<Endpoint>>,
    /// By [`PoolId`].
    pub pools: Vec<Pool>,
    /// The pool of each served id.
    pub models: Arc<HashMap<Box<[u8]>, PoolId>>,
    /// The pool of requests that name no model or cannot be scanned, if there are several pools: that of the model
    /// configured for these, else of the base model if all engines serve the same.
    pub default_pool: Option<PoolId>,
    /// The pool of engines that have not said what they serve: it gets requests for models that no other pool serves.
    pub unlearnt: Option<PoolId>,
    /// The only pool that has members or is to have some, if there is just one: a request's `model` then need not be
    /// known.
    pub only: Option<PoolId>,
    /// Whether control has learnt the models of every endpoint.
    pub models_complete: bool,
    /// Which endpoints hold which prefixes, as far as is known. It changes in place, and is the same in every snapshot
    /// of a process. `None`: no pool's policy uses it.
    pub index: Option<Arc<Index>>,
    /// What bodies are scanned for. It is the same for all pools, as the body itself tells which pool it is for.
    pub plan: Arc<Plan>,
    /// Whether any endpoint's kernel refuses its probes ([`Endpoint::refuses_probes`]); computed by [`Snapshot::seal`].
    pub any_refuses: bool,
    /// Whether any endpoint is one of several ranks ([`Endpoint::rank`]); computed by [`Snapshot::seal`].
    pub any_ranked: bool,
    /// What the pools' policies need to know before they choose; computed by [`Snapshot::seal`].
    pub needs: Needs,
    /// Names of header fields that may carry a session key, best first, in lower case.
    pub session_headers: Arc<[Box<str>]>,
    /// The answers to `GET /v1/models` and `/v1/models/{id}`.
    pub models_answer: Arc<ModelsAnswer>,
}

/// How `GET /v1/models` and requests for single models are answered.
#[derive(Clone, Debug, Default)]
pub struct ModelsAnswer {
    /// The merged list as JSON. `None`: nothing is known yet, or it is not known who may see it; the request is then
    /// relayed to an engine.
    pub list: Option<Bytes>,
    /// Whether there are models that the list does not tell: an unknown id may be one of them.
    pub hides_some: bool,
    /// One model's card by id.
    pub cards: HashMap<Box<[u8]>, Bytes>,
    /// XXH3-64 of each `Authorization` value that the engines accept; empty: they ask for none, or none is known.
    pub authorizations: Vec<u64>,
    /// Whether an engine asks for keys, known or not.
    pub asks_keys: bool,
}

/// The pool selected for a request.
#[derive(Clone, Copy, Debug)]
pub enum Selected<'a> {
    /// One of this pool's members is to be chosen.
    Pool(&'a Pool),
    /// No endpoint serves this id: answered 404, as vLLM does.
    UnknownModel,
    /// There are several pools, the request names no model, and there is no default pool: answered 400.
    NoModel,
    /// There are no pools, as nothing is configured or learnt: answered 503.
    Empty,
}

impl Snapshot {
    /// Makes a sealed snapshot with one pool of these endpoints, which serve whatever is asked for.
    pub fn of_one_pool(endpoints: Vec<Endpoint>, settings: Settings) -> Snapshot {
        let points: Vec<_> = endpoints.iter().map(|one| (one.id.slot, &*one.name, one.weight)).collect();
        let ring = Arc::new(Ring::build(&points, settings.replication));
        let members = endpoints.iter().map(|one| one.id.slot).collect();
        let mut snapshot = Snapshot { plan: Arc::new(settings.plan()), models_complete: true, ..Snapshot::default() };
        snapshot.pools.push(Pool::new(PoolId(0), "m".into(), members, ring, Arc::new(settings)));
        for endpoint in endpoints {
            let slot = usize::from(endpoint.id.slot);
            snapshot.endpoints.resize(snapshot.endpoints.len().max(slot + 1), None);
            snapshot.endpoints[slot] = Some(endpoint);
        }
        snapshot.seal();
        snapshot
    }

    /// Computes for every pool what choices read of the endpoints (which are eligible, weights, foreign load), and what
    /// must be known before a choice. Publication calls it, so that no choice sees health or load of an earlier
    /// snapshot.
    pub fn seal(&mut self) {
        self.any_refuses = self.endpoints.iter().flatten().any(|endpoint| endpoint.refuses_probes);
        self.any_ranked = self.endpoints.iter().flatten().any(|endpoint| endpoint.rank.is_some());
        self.needs = if self.single_pool() { Needs::NONE } else { Needs::MODEL };
        for pool in &self.pools {
            self.needs = self.needs | pool.settings.needs();
            if pool.form.is_some() {
                // A field at a body's end may change how its prompt is written.
                self.needs = self.needs | Needs::WHOLE;
            }
        }
        // Base model and adapters usually have equal members: they share one table.
        let mut sealed: HashMap<*const u16, usize> = HashMap::new();
        for at in 0..self.pools.len() {
            let (before, rest) = self.pools.split_at_mut(at);
            let pool = &mut rest[0];
            match sealed.entry(pool.members.as_ptr()) {
                Entry::Occupied(twin) => pool.share_eligible(&before[*twin.get()], &self.endpoints),
                Entry::Vacant(none) => {
                    none.insert(at);
                    pool.refresh(&self.endpoints);
                }
            }
        }
    }

    /// Whether an endpoint that refuses its probes has requests in flight.
    pub fn any_deserted(&self, in_flight: impl Fn(u16) -> u32) -> bool {
        let mut refusing = self.endpoints.iter().flatten().filter(|endpoint| endpoint.refuses_probes);
        self.any_refuses && refusing.any(|endpoint| in_flight(endpoint.id.slot) > 0)
    }

    /// Groups endpoints that share pools, directly or by further pools: gives for each slot the lowest slot of its
    /// group. Slots beyond the highest that a pool has are left out.
    pub fn islands(&self) -> Vec<u16> {
        let last = self.pools.iter().filter_map(|pool| pool.members.last()).max();
        let mut islands: Vec<u16> = last.map_or_else(Vec::new, |last| (0..=*last).collect());
        fn lowest(islands: &[u16], mut slot: u16) -> u16 {
            while islands[usize::from(slot)] != slot {
                slot = islands[usize::from(slot)];
            }
            slot
        }
        let mut seen = HashSet::new();
        for pool in self.pools.iter().filter(|pool| seen.insert(pool.members.as_ptr())) {
            for pair in pool.members.windows(2) {
                let (one, other) = (lowest(&islands, pair[0]), lowest(&islands, pair[1]));
                islands[usize::from(one.max(other))] = one.min(other);
            }
        }
        // Each entry refers to a lower one, which is final by then.
        for slot in 0..islands.len() {
            islands[slot] = islands[usize::from(islands[slot])];
        }
        islands
    }

    /// Returns the endpoint with this id, unless its slot is another endpoint's by now.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.at(id.slot).filter(|endpoint| endpoint.id == id)
    }

    /// Returns the endpoint that has this slot now.
    pub fn at(&self, slot: u16) -> Option<&Endpoint> {
        self.endpoints.get(usize::from(slot))?.as_ref()
    }

    /// Whether the pool of a request can be known without its `model`.
    pub fn single_pool(&self) -> bool {
        self.only_pool().is_some()
    }

    /// Returns the pool of all requests, if it is known without their `model`.
    pub fn only_pool(&self) -> Option<&Pool> {
        match (self.pools.as_slice(), self.only) {
            ([only], _) => Some(only),
            (_, Some(id)) => self.pool(id),
            _ => None,
        }
    }

    /// Selects the pool for a request's `model`. With only one pool the `model` does not matter: the engine judges it.
    pub fn select(&self, model: Option<&[u8]>) -> Selected<'_> {
        if let Some(only) = self.only_pool() {
            return Selected::Pool(only);
        }
        // An empty `model` counts as none, as in vLLM, where the base model then answers.
        match (self.pools.as_slice(), model.filter(|model| !model.is_empty())) {
            ([], _) => Selected::Empty,
            (_, Some(model)) => match self.models.get(model) {
                Some(id) => Selected::Pool(&self.pools[id.0 as usize]),
                None => match self.adapter_on_base(model) {
                    Some(pool) => Selected::Pool(pool),
                    // A request that names a model does not get the default pool, whose engines would answer with
                    // another model, or with 404.
                    None => self.pool_or(self.unlearnt, Selected::UnknownModel),
                },
            },
            (_, None) => {
                // A pool of engines without addresses yet does not count.
                let unlearnt = self.unlearnt.filter(|id| self.live_pool(*id).is_some());
                self.pool_or(self.default_pool.or(unlearnt), Selected::NoModel)
            }
        }
    }

    /// Returns the pool of an adapter that is named as in SGLang, `base:adapter`. If no engine lists it, the base's
    /// engines judge, and what they compute counts as the base's. Names of bases have no colon there.
    fn adapter_on_base(&self, model: &[u8]) -> Option<&Pool> {
        let colon = model.iter().position(|byte| *byte == b':')?;
        let pool = |name: &[u8]| self.models.get(name).map(|id| &self.pools[id.0 as usize]);
        let base = pool(&model[..colon])?;
        let on_base = |pool: &&Pool| pool.is_adapter && pool.members.iter().any(|slot| base.members.contains(slot));
        Some(pool(&model[colon + 1..]).filter(on_base).unwrap_or(base))
    }

    /// Selects the pool for a `model` whose name is too long to be kept: no engine is known to serve it.
    pub fn select_overlong(&self) -> Selected<'_> {
        match self.only_pool() {
            Some(only) => Selected::Pool(only),
            None if self.pools.is_empty() => Selected::Empty,
            None => self.pool_or(self.unlearnt, Selected::UnknownModel),
        }
    }

    /// Returns the pool of that id, even if no endpoint serves it any more.
    pub fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.pools.get(usize::from(id.0))
    }

    /// Returns the pool of that id if an endpoint serves it.
    pub fn live_pool(&self, id: PoolId) -> Option<&Pool> {
        self.pool(id).filter(|pool| !pool.members.is_empty())
    }

    /// Returns a pool whose engines may answer requests that are not about a particular model.
    pub fn any_pool(&self) -> Option<&Pool> {
        let takes_requests = |pool: &&Pool| !pool.eligible().slots().is_empty();
        let in_service = |pool: &&Pool| takes_requests(pool) && !pool.eligible().last_resort();
        self.pools.iter().find(in_service).or_else(|| self.pools.iter().find(takes_requests))
    }

    fn pool_or<'a>(&'a self, id: Option<PoolId>, otherwise: Selected<'a>) -> Selected<'a> {
        id.map_or(otherwise, |id| Selected::Pool(&self.pools[id.0 as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For a dead engine without requests the clients need not be searched.
    #[test]
    fn only_an_engine_with_requests_is_deserted() {
        let endpoint = |slot, refuses_probes| {
            let id = crate::fleet::EndpointId { slot, generation: 1 };
            Some(Endpoint { refuses_probes, ..Endpoint::new(id, "gpu".into(), ([10, 0, 0, 1], 80).into()) })
        };
        let mut snapshot = Snapshot { endpoints: vec![endpoint(0, false), endpoint(1, true)], ..Snapshot::default() };
        snapshot.seal();
        for (in_flight, any) in [([0, 0], false), ([5, 0], false), ([0, 1], true)] {
            assert_eq!(snapshot.any_deserted(|slot| in_flight[usize::from(slot)]), any, "{in_flight:?}");
        }
    }

    #[test]
    fn an_adapter_after_its_bases_name_is_asked_of_engines_that_have_it() {
        let ring = Arc::new(Ring::build(&[], 1));
        let served = [
            ("base", false, [0, 1, 2].as_slice()),
            ("sql", true, &[1, 2]),
            ("other", false, &[3]),
            ("tag:7", false, &[4]),
        ];
        let mut snapshot = Snapshot::default();
        for (at, (name, is_adapter, members)) in served.into_iter().enumerate() {
            let id = PoolId(at as u16);
            let mut pool = Pool::new(id, name.into(), members.into(), Arc::clone(&ring), Arc::default());
            pool.is_adapter = is_adapter;
            snapshot.pools.push(pool);
            Arc::make_mut(&mut snapshot.models).insert(name.as_bytes().into(), id);
        }
        let pool = |model: &str| match snapshot.select(Some(model.as_bytes())) {
            Selected::Pool(pool) => &*pool.name,
            _ => "",
        };
        assert_eq!(["base", "sql", "base:sql", "base:new", "base:"].map(pool), ["base", "sql", "sql", "base", "base"]);
        assert_eq!(
            ["other:sql", "base:other"].map(pool),
            ["other", "base"],
            "an adapter on another base, a base on it"
        );
        assert_eq!(["tag:7", "tag:8", "new:sql", ":sql"].map(pool), ["tag:7", "", "", ""]);
    }

    #[test]
    fn pools_with_endpoints_in_common_are_one_island() {
        let islands = |pools: &[&[u16]]| -> Vec<u16> {
            let ring = Arc::new(Ring::build(&[], 1));
            let pool = |(at, members): (usize, &&[u16])| {
                Pool::new(PoolId(at as u16), "m".into(), (*members).into(), Arc::clone(&ring), Arc::default())
            };
            let pools = pools.iter().enumerate().map(pool).collect();
            Snapshot { pools, ..Snapshot::default() }.islands()
        };
        assert!(islands(&[]).is_empty());
        assert_eq!(islands(&[&[0, 1], &[2, 3, 4], &[], &[6]]), [0, 0, 2, 2, 2, 5, 6]);
        assert_eq!(islands(&[&[3, 6], &[1, 2], &[2, 6], &[4, 7]]), [0, 1, 1, 1, 4, 5, 1, 4]);
        assert_eq!(islands(&[&[6, 7], &[4, 5], &[2, 3], &[0, 1], &[1, 2], &[5, 6], &[3, 4]]), [0; 8]);
    }
}
