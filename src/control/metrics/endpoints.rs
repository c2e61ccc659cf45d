//! What is known of each engine: its health, its load, and how right predictions of its cache turned out.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::slots::ByName;
use super::{Collected, Family, Labels};
use crate::control::endpoints;
use crate::control::member::Member;
use crate::counters::{Compared, Deeds};
use crate::fleet::{Endpoint, EndpointId, Health, Method, Rung};
use crate::snapshot::Snapshot;

/// What control knows of an engine, as far as it is written.
pub(super) struct Shown {
    name: Arc<str>,
    /// The endpoint that it has now.
    now: Option<EndpointId>,
    health: Option<Health>,
    concurrency_max: u32,
    counts: [u64; COUNTS.len()],
    are_models_unread: bool,
    is_kept: bool,
}

impl Collected {
    /// Copies what is written of all engines: control waits for any thread that holds the fleet's lock.
    pub(super) fn members(&self, snapshot: &Snapshot) -> Vec<Shown> {
        let shown = |member: &Member| Shown {
            name: Arc::clone(&member.name),
            now: member.now.as_ref().map(|now| now.id),
            health: health(member, snapshot),
            concurrency_max: member.upstream.concurrency_max,
            counts: COUNTS.map(|(_, _, count)| count(member)),
            are_models_unread: member.models_error.is_some(),
            is_kept: member.is_kept(),
        };
        self.0.keeper.fleet().members().iter().map(shown).collect()
    }

    pub(super) fn endpoints(
        &self,
        out: &mut DescriptorEncoder<'_>,
        (members, snapshot): (&[Shown], &Snapshot),
        deeds: &ByName,
    ) -> Result<(), Error> {
        // One that was taken out finishes beside its successor of the same name: they are one series.
        let mut in_flight = BTreeMap::new();
        for endpoint in snapshot.endpoints.iter().flatten() {
            *in_flight.entry(&*endpoint.name).or_insert(0.0) += f64::from(self.0.counters.in_flight(endpoint.id.slot));
        }
        let help =
            "Requests of ours, from the choice to the last byte; those that failed count for failed_charge_ms longer";
        let mut family = Family::new(out, "endpoint_in_flight", help, MetricType::Gauge)?;
        for (endpoint, requests) in in_flight {
            family.gauge(vec![("endpoint", endpoint)], requests)?;
        }
        let help = "Most requests of ours there at once (concurrency_max), where that is bounded";
        let mut family = Family::new(out, "endpoint_in_flight_max", help, MetricType::Gauge)?;
        for member in members.iter().filter(|member| member.concurrency_max > 0) {
            family.gauge(vec![("endpoint", &member.name)], member.concurrency_max.into())?;
        }
        let mut family = Family::new(out, "endpoint_health", "1 for the state an endpoint is in", MetricType::Gauge)?;
        for member in members {
            for state in STATES.map(Some).into_iter().chain([None]) {
                let labels = vec![("endpoint", &*member.name), ("state", endpoints::health(state))];
                family.gauge(labels, f64::from(u8::from(member.health == state)))?;
            }
        }
        for (at, (name, help, _)) in COUNTS.into_iter().enumerate() {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for member in members {
                family.counter(vec![("endpoint", &member.name)], member.counts[at])?;
            }
        }
        let done: [(&str, &str, Done); 2] = [
            ("endpoint_faults", "Requests that failed by their endpoint's fault", |deeds| deeds.faults),
            ("endpoint_connect_failures", "Connects of requests to an endpoint that failed", |deeds| {
                deeds.connect_failures
            }),
        ];
        for (name, help, count) in done {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for member in members {
                family.counter(vec![("endpoint", &member.name)], count(deeds.of(&member.name)))?;
            }
        }
        let help = "1 where what the engine serves could not be read when it was asked last";
        let mut family = Family::new(out, "endpoint_models_unread", help, MetricType::Gauge)?;
        for member in members {
            family.gauge(vec![("endpoint", &member.name)], f64::from(u8::from(member.are_models_unread)))?;
        }
        let help = "1 while the endpoint fails and is kept in service, as too few others are";
        let mut family = Family::new(out, "endpoint_kept", help, MetricType::Gauge)?;
        for member in members {
            family.gauge(vec![("endpoint", &member.name)], f64::from(u8::from(member.is_kept)))?;
        }
        Ok(())
    }

    /// How full the index is, if there is one.
    pub(super) fn index(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(fill) = self.0.keeper.fleet().caches.fill() else { return Ok(()) };
        for (name, help, blocks) in [
            ("index_blocks", "Blocks of prompts that are noted in the index, of all engines together", fill.held),
            ("index_blocks_wanted", "Blocks that engines' caches have room for", fill.wanted),
            (
                "index_blocks_due",
                "Blocks that engines have in the index of those wanted: where they are fewer, index_bytes is too little",
                fill.due,
            ),
        ] {
            Family::new(out, name, help, MetricType::Gauge)?.gauge(vec![], blocks as f64)?;
        }
        Ok(())
    }

    /// What each engine says of itself, and what follows from that.
    pub(super) fn figures(
        &self,
        out: &mut DescriptorEncoder<'_>,
        (members, snapshot): (&[Shown], &Snapshot),
    ) -> Result<(), Error> {
        type Figure = fn(&Endpoint) -> Option<f64>;
        // One that was taken out finishes beside its successor of the same name.
        let current: HashSet<EndpointId> = members.iter().filter_map(|member| member.now).collect();
        let all = || snapshot.endpoints.iter().flatten().filter(|endpoint| current.contains(&endpoint.id));
        let figures: [(&str, &str, Figure); 6] = [
            (
                "endpoint_foreign",
                "Load that is not ours, where the engine tells its own: running and waiting beyond ours",
                |e| e.engine.running.and(e.engine.waiting).map(|_| e.foreign.into()),
            ),
            ("endpoint_share_ratio", "Part of its weight that counts: less than 1 in a slow start", |e| {
                Some(f64::from(e.share_percent) / 100.0)
            }),
            ("engine_running", "Requests running, as the engine reports", |e| e.engine.running.map(f64::from)),
            ("engine_waiting", "Requests waiting, as the engine reports", |e| e.engine.waiting.map(f64::from)),
            ("engine_kv_use_ratio", "KV cache in use, 0 to 1", |e| e.engine.kv_use.map(f64::from)),
            ("engine_kv_capacity_tokens", "KV cache capacity", |e| e.engine.kv_capacity_tokens.map(|n| n as f64)),
        ];
        for (name, help, figure) in figures {
            let mut family = Family::new(out, name, help, MetricType::Gauge)?;
            for endpoint in all() {
                if let Some(value) = figure(endpoint) {
                    family.gauge(of(endpoint), value)?;
                }
            }
        }
        // They begin anew with the engine, as counters may.
        type Total = fn(&Endpoint) -> Option<u64>;
        let totals: [(&str, &str, Total); 2] = [
            ("engine_prefix_queries_tokens", "Prompt tokens looked up in the engine's prefix cache", |e| {
                e.engine.prefix_queries_total
            }),
            ("engine_prefix_hits_tokens", "Prompt tokens found in the engine's prefix cache", |e| {
                e.engine.prefix_hits_total
            }),
        ];
        for (name, help, total) in totals {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for endpoint in all() {
                if let Some(value) = total(endpoint) {
                    family.counter(of(endpoint), value)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn predictions(
        &self,
        out: &mut DescriptorEncoder<'_>,
        (members, snapshot): (&[Shown], &Snapshot),
        deeds: &ByName,
    ) -> Result<(), Error> {
        type Part = fn(&Compared) -> u64;
        let tokens: [(&str, &str, Part); 5] = [
            ("compared_requests", "Requests for which it is known what came of the prediction", |c| c.requests),
            (
                "predicted_tokens",
                "Prompt tokens thought to be in the engine's cache, of requests whose truth is known by now",
                |c| c.predicted,
            ),
            ("cached_tokens", "Prompt tokens of the same requests that were in it", |c| c.cached),
            ("overpredicted_tokens", "Tokens predicted too many, of each request", |c| c.over),
            ("underpredicted_tokens", "Tokens predicted too few, of each request", |c| c.under),
        ];
        for (name, help, count) in tokens {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for member in members {
                for (method, compared) in Method::ALL.iter().zip(&deeds.of(&member.name).compared) {
                    let labels = vec![("endpoint", &*member.name), ("method", method.as_str())];
                    family.counter(labels, count(compared))?;
                }
            }
        }
        let help = "1 for how far is believed what is known of an endpoint's cache";
        let mut family = Family::new(out, "endpoint_rung", help, MetricType::Gauge)?;
        let current = members.iter().filter_map(|member| member.now);
        for endpoint in current.filter_map(|id| snapshot.endpoint(id)) {
            for rung in Rung::ALL {
                let labels = vec![("endpoint", &*endpoint.name), ("rung", rung.as_str())];
                family.gauge(labels, f64::from(u8::from(endpoint.rung == rung)))?;
            }
        }
        Ok(())
    }
}

type Count = fn(&Member) -> u64;

/// A count of an engine.
type Done = fn(&Deeds) -> u64;

/// What control counts of each engine.
const COUNTS: [(&str, &str, Count); 3] = [
    ("endpoint_ejections", "How often an endpoint got nothing new for a while, for how its requests ended", |member| {
        member.ejections
    }),
    (
        "endpoint_probe_failures",
        "Probes that the engine failed, or did not answer in time, unless it gave first tokens meanwhile",
        |member| member.probe_failures,
    ),
    ("endpoint_scrape_failures", "Times that the engine's /metrics could not be read", |member| member.scrape_failures),
];

const STATES: [Health; 7] =
    [Health::Unknown, Health::Up, Health::Down, Health::Draining, Health::Asleep, Health::Ejected, Health::Trial];

/// As shards see it, as soon as they do.
fn health(member: &Member, snapshot: &Snapshot) -> Option<Health> {
    let id = member.now.as_ref()?.id;
    snapshot.endpoint(id).map(|endpoint| endpoint.health).or_else(|| member.health())
}

fn of(endpoint: &Endpoint) -> Labels<'_> {
    vec![("endpoint", &endpoint.name)]
}
