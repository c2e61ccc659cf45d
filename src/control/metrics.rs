//! The front's own `/metrics`. Label values come from configuration, engines' model lists and fixed
//! tables, never from requests.

mod heard;
mod slots;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Error;

use clap::ValueEnum;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::admin::State;
use super::member::Member;
use super::{endpoints, log};
use crate::counters::Compared;
use crate::counters::stats::{Event, Gauge, Reading, Shadowed, Timing, Work};
use crate::fleet::{Endpoint, EndpointId, Health, Method, Rung};
use crate::limits::LABELLED_POOLS_MAX;
use crate::policy::{Policy, Reason};
use crate::scan;
use crate::snapshot::Snapshot;
use slots::ByName;

/// Before every name.
const PREFIX: &str = "warmfront";

/// Everything as OpenMetrics text.
pub(super) fn text(state: &State) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Collected(state.clone())));
    let mut text = String::new();
    // Writing to a string fails only where a value cannot be written, which is ours to see in tests.
    if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &registry) {
        tracing::error!(%error, "cannot write /metrics");
    }
    text
}

#[derive(Debug)]
struct Collected(State);

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// One family, its samples to follow.
struct Family<'a>(MetricEncoder<'a>);

impl<'a> Family<'a> {
    fn new(out: &'a mut DescriptorEncoder<'_>, name: &'a str, help: &str, kind: MetricType) -> Result<Self, Error> {
        // The encoder ends the help with a full stop of its own.
        Ok(Family(out.encode_descriptor(name, help.trim_end_matches('.'), None, kind)?))
    }

    fn counter(&mut self, labels: Labels<'_>, value: u64) -> Result<(), Error> {
        match labels.is_empty() {
            true => self.0.encode_counter::<NoLabelSet, _, f64>(&value, None),
            false => self.0.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None),
        }
    }

    fn gauge(&mut self, labels: Labels<'_>, value: f64) -> Result<(), Error> {
        match labels.is_empty() {
            true => self.0.encode_gauge(&value),
            false => self.0.encode_family(&labels)?.encode_gauge(&value),
        }
    }

    /// `unit`: how many of the reading's unit make a second.
    fn histogram(&mut self, labels: Labels<'_>, reading: &Reading, unit: f64) -> Result<(), Error> {
        let bounds = reading.bounds.iter().map(|bound| *bound as f64 / unit).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(reading.cells).collect();
        let (sum, count) = (reading.sum as f64 / unit, reading.count());
        match labels.is_empty() {
            true => self.0.encode_histogram::<NoLabelSet>(sum, count, &buckets, None),
            false => self.0.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None),
        }
    }
}

impl Collector for Collected {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), Error> {
        let snapshot = self.0.published.current();
        self.process(&mut out, &snapshot)?;
        let deeds = self.deeds();
        self.requests(&mut out, &snapshot, &deeds)?;
        self.events(&mut out)?;
        self.logs(&mut out)?;
        self.times(&mut out, &snapshot)?;
        self.answers(&mut out, &snapshot)?;
        self.shadows(&mut out, &snapshot)?;
        self.endpoints(&mut out, &snapshot, &deeds)?;
        self.slots(&mut out, &snapshot, &deeds)?;
        self.predictions(&mut out, &snapshot, &deeds)?;
        self.heard(&mut out)
    }
}

impl Collected {
    fn process(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let State { stats, process, began, counters, .. } = &self.0;
        let version = vec![("version", env!("CARGO_PKG_VERSION")), ("scan", scan::kernel_name())];
        Family::new(out, "build_info", "The version that runs, and what it scans bodies with", MetricType::Gauge)?
            .gauge(version, 1.0)?;
        let uptime = began.elapsed().as_secs_f64();
        Family::new(out, "uptime_seconds", "Since the start", MetricType::Gauge)?.gauge(vec![], uptime)?;
        let draining = f64::from(u8::from(process.draining()));
        Family::new(out, "draining", "1 while no new connections are taken", MetricType::Gauge)?
            .gauge(vec![], draining)?;
        let epoch = snapshot.epoch as f64;
        Family::new(out, "snapshot_epoch", "Publications of the fleet so far", MetricType::Gauge)?
            .gauge(vec![], epoch)?;
        let mut family = Family::new(out, "shard_driver", "How each shard moves bytes", MetricType::Gauge)?;
        for (index, shard) in process.shards().iter().enumerate() {
            let (index, driver) = (index.to_string(), shard.driver().as_str());
            family.gauge(vec![("shard", &index), ("driver", driver), ("why", shard.why())], 1.0)?;
        }
        let mut family = Family::new(out, "shard_turns", "Turns of each shard's loop", MetricType::Counter)?;
        for shard in 0..stats.shards() {
            family.counter(vec![("shard", &shard.to_string())], stats.shard(shard).turns())?;
        }
        let help = "Times a shard stood still: in the middle of a turn for 50 ms, or asleep for 3 s where it wakes each second";
        let mut family = Family::new(out, "shard_stalls", help, MetricType::Counter)?;
        for (shard, state) in self.0.process.shards().iter().enumerate() {
            family.counter(vec![("shard", &shard.to_string())], state.stalls())?;
        }
        let help = "Client connections of each shard: how evenly they are spread";
        let mut family = Family::new(out, "shard_client_connections", help, MetricType::Gauge)?;
        for shard in 0..stats.shards() {
            let open = stats.shard(shard).gauge(Gauge::Connections);
            family.gauge(vec![("shard", &shard.to_string())], open as f64)?;
        }
        for (gauge, name, help) in [
            (Gauge::Connections, "client_connections", "Client connections"),
            (Gauge::Upstreams, "upstream_connections", "Connections to engines, busy or idle"),
            (Gauge::HeldBytes, "held_bytes", "Memory of bodies held while a choice waits"),
            (
                Gauge::InFlight,
                "counted_in_flight",
                "Requests that shards hold as in flight: the sum of endpoint_in_flight",
            ),
        ] {
            Family::new(out, name, help, MetricType::Gauge)?.gauge(vec![], stats.gauge(gauge) as f64)?;
        }
        let waiting = f64::from(counters.queue().waiting());
        Family::new(out, "queue_waiting", "Requests that wait for room in an engine's cache", MetricType::Gauge)?
            .gauge(vec![], waiting)?;
        Family::new(out, "release_underflows", "Releases without a request, always 0", MetricType::Counter)?
            .counter(vec![], counters.underflow())
    }

    fn events(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for events in Event::ALL.chunk_by(|a, b| a.family() == b.family()) {
            let Some(first) = events.first() else { continue };
            let mut family = Family::new(out, first.family(), first.help(), MetricType::Counter)?;
            for event in events {
                family.counter(event.label().into_iter().collect(), self.0.stats.total(*event))?;
            }
        }
        Ok(())
    }

    fn logs(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let counts = self.0.keeper.access().counts();
        Family::new(out, "access_lines", "Lines of the access log written", MetricType::Counter)?
            .counter(vec![], counts.written())?;
        let help = "Lines of the access log that its disk or its reader did not take";
        Family::new(out, "access_lines_lost", help, MetricType::Counter)?.counter(vec![], counts.lost())?;
        let help = "Lines of the log on standard error that whoever reads it did not take";
        Family::new(out, "log_lines_lost", help, MetricType::Counter)?.counter(vec![], log::lost())
    }

    fn times(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        for (timing, name, help) in [
            (
                Timing::FirstToken,
                "time_to_first_token_seconds",
                "From the request's last byte to the first token, the wait in the queue included",
            ),
            (Timing::InterToken, "inter_token_seconds", "Between two tokens of a stream"),
            (Timing::Total, "request_seconds", "From the request's first byte to the reply's last"),
            (
                Timing::Queue,
                "queue_seconds",
                "From the choice that found no room to the one that did, of those that waited",
            ),
        ] {
            let mut family = Family::new(out, name, help, MetricType::Histogram)?;
            for (model, pools) in labelled(snapshot) {
                let readings = pools.iter().map(|pool| self.0.stats.timing(*pool, timing));
                let reading = readings.reduce(|mut sum, reading| {
                    sum.add(&reading);
                    sum
                });
                if let Some(reading) = reading.filter(|reading| reading.count() > 0) {
                    family.histogram(vec![("model", model)], &reading, 1e6)?;
                }
            }
        }
        for (work, name, help) in [
            (Work::Scan, "scan_seconds", "Looking into one body"),
            (Work::Choose, "choose_seconds", "Choosing an endpoint"),
        ] {
            Family::new(out, name, help, MetricType::Histogram)?.histogram(vec![], &self.0.stats.work(work), 1e9)?;
        }
        Ok(())
    }

    fn answers(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let help = "Mean length of answers, as choices count on it: the last hundred that ended count most";
        let mut family = Family::new(out, "answer_tokens", help, MetricType::Gauge)?;
        for pool in snapshot.pools.iter().take(LABELLED_POOLS_MAX) {
            let tokens = self.0.counters.loads().mean_answer(pool.id.0);
            family.gauge(vec![("model", &pool.name)], tokens.into())?;
        }
        Ok(())
    }

    /// What second policies would have done, of those that were ever asked in a pool.
    fn shadows(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let stats = self.0.stats;
        let models = labelled(snapshot);
        let policies = || Policy::value_variants().iter().copied();
        let each = || models.iter().flat_map(|model| policies().map(move |policy| (model, policy)));
        let count = |pools: &[u16], policy: Policy, what| -> u64 {
            pools.iter().map(|pool| stats.shadowed(*pool, policy as u8, what)).sum()
        };
        let asked = |pools: &[u16], policy| SHADOW_CHOICES.iter().any(|(_, what)| count(pools, policy, *what) > 0);
        for (name, help, label, values) in [
            ("shadow_choices", "What a policy that only looks on would have chosen", "outcome", SHADOW_CHOICES),
            (
                "shadow_held_tokens",
                "Prompt tokens held where they were sent, and where they would be",
                "at",
                SHADOW_HELD,
            ),
            ("shadow_new_tokens", "Prompt tokens to be computed, likewise", "at", SHADOW_NEW),
            ("shadow_cost_tokens", "These and those that others waited for, likewise", "at", SHADOW_COST),
        ] {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for ((model, pools), policy) in each().filter(|((_, pools), policy)| asked(pools, *policy)) {
                for (value, what) in values {
                    let labels = vec![("model", *model), ("policy", policy.as_str()), (label, *value)];
                    family.counter(labels, count(pools, policy, *what))?;
                }
            }
        }
        Ok(())
    }

    fn predictions(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot, deeds: &ByName) -> Result<(), Error> {
        let fleet = self.0.keeper.fleet();
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
            for member in fleet.members() {
                for (method, compared) in Method::ALL.iter().zip(&deeds.of(&member.name).compared) {
                    let labels = vec![("endpoint", &*member.name), ("method", method.as_str())];
                    family.counter(labels, count(compared))?;
                }
            }
        }
        let help = "1 for how far is believed what is known of an endpoint's cache";
        let mut family = Family::new(out, "endpoint_rung", help, MetricType::Gauge)?;
        let current = fleet.members().iter().filter_map(|member| member.now.as_ref());
        for endpoint in current.filter_map(|now| snapshot.endpoints.get(usize::from(now.id.slot))?.as_ref()) {
            for rung in Rung::ALL {
                let labels = vec![("endpoint", &*endpoint.name), ("rung", rung.as_str())];
                family.gauge(labels, f64::from(u8::from(endpoint.rung == rung)))?;
            }
        }
        Ok(())
    }

    fn endpoints(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot, deeds: &ByName) -> Result<(), Error> {
        type Figure = fn(&Endpoint) -> Option<f64>;
        let fleet = self.0.keeper.fleet();
        // One that was taken out finishes beside its successor of the same name.
        let current: HashSet<EndpointId> =
            fleet.members().iter().filter_map(|member| Some(member.now.as_ref()?.id)).collect();
        let all = || snapshot.endpoints.iter().flatten().filter(|endpoint| current.contains(&endpoint.id));
        let mut in_flight = BTreeMap::new();
        for endpoint in snapshot.endpoints.iter().flatten() {
            *in_flight.entry(&*endpoint.name).or_insert(0.0) += f64::from(self.0.counters.in_flight(endpoint.id.slot));
        }
        let mut family = Family::new(out, "endpoint_in_flight", "Requests of ours in flight", MetricType::Gauge)?;
        for (endpoint, requests) in in_flight {
            family.gauge(vec![("endpoint", endpoint)], requests)?;
        }
        let mut family = Family::new(out, "endpoint_health", "1 for the state an endpoint is in", MetricType::Gauge)?;
        for member in fleet.members() {
            let health = health(member, snapshot);
            for state in STATES.map(Some).into_iter().chain([None]) {
                let labels = vec![("endpoint", &*member.name), ("state", endpoints::health(state))];
                family.gauge(labels, f64::from(u8::from(health == state)))?;
            }
        }
        let help = "How often an endpoint got nothing new for a while, for how its requests ended";
        let mut family = Family::new(out, "endpoint_ejections", help, MetricType::Counter)?;
        for member in fleet.members() {
            family.counter(vec![("endpoint", &member.name)], member.ejections)?;
        }
        let help = "Requests that failed by their endpoint's fault";
        let mut family = Family::new(out, "endpoint_faults", help, MetricType::Counter)?;
        for member in fleet.members() {
            family.counter(vec![("endpoint", &member.name)], deeds.of(&member.name).faults)?;
        }
        drop(fleet);
        let figures: [(&str, &str, Figure); 8] = [
            ("endpoint_foreign", "Load that is not ours: running and waiting beyond ours", |e| Some(e.foreign.into())),
            ("endpoint_share_ratio", "Part of its weight that counts: less than 1 in a slow start", |e| {
                Some(f64::from(e.share_percent) / 100.0)
            }),
            ("engine_running", "Requests running, as the engine reports", |e| e.engine.running.map(f64::from)),
            ("engine_waiting", "Requests waiting, as the engine reports", |e| e.engine.waiting.map(f64::from)),
            ("engine_kv_use_ratio", "KV cache in use, 0 to 1", |e| e.engine.kv_use.map(f64::from)),
            ("engine_kv_capacity_tokens", "KV cache capacity", |e| e.engine.kv_capacity_tokens.map(|n| n as f64)),
            ("engine_prefix_queries_tokens", "Prompt tokens looked up in the engine's prefix cache", |e| {
                e.engine.prefix_queries_total.map(|n| n as f64)
            }),
            ("engine_prefix_hits_tokens", "Prompt tokens found in the engine's prefix cache", |e| {
                e.engine.prefix_hits_total.map(|n| n as f64)
            }),
        ];
        for (name, help, figure) in figures {
            let mut family = Family::new(out, name, help, MetricType::Gauge)?;
            for endpoint in all() {
                if let Some(value) = figure(endpoint) {
                    family.gauge(of(endpoint), value)?;
                }
            }
        }
        Ok(())
    }
}

const STATES: [Health; 7] =
    [Health::Unknown, Health::Up, Health::Down, Health::Draining, Health::Asleep, Health::Ejected, Health::Trial];

type ShadowValues = &'static [(&'static str, Shadowed)];

const SHADOW_CHOICES: ShadowValues = &[
    ("agreed", Shadowed::Agreed),
    ("differed", Shadowed::Differed),
    ("nobody", Shadowed::Nobody),
    ("skipped", Shadowed::Skipped),
];
const SHADOW_HELD: ShadowValues = &[("chosen", Shadowed::HeldThere), ("shadow", Shadowed::HeldInstead)];
const SHADOW_NEW: ShadowValues = &[("chosen", Shadowed::NewThere), ("shadow", Shadowed::NewInstead)];
const SHADOW_COST: ShadowValues = &[("chosen", Shadowed::CostThere), ("shadow", Shadowed::CostInstead)];

/// The label of what has no name of its own.
const UNKNOWN: &str = "unknown";

/// As shards see it, as soon as they do.
fn health(member: &Member, snapshot: &Snapshot) -> Option<Health> {
    let id = member.now.as_ref()?.id;
    let seen = snapshot.endpoints.get(usize::from(id.slot)).and_then(Option::as_ref);
    seen.filter(|endpoint| endpoint.id == id).map(|endpoint| endpoint.health).or_else(|| member.health())
}

fn of(endpoint: &Endpoint) -> Labels<'_> {
    vec![("endpoint", &endpoint.name)]
}

/// The rows that count for each label: a model may be called as those are that have no label.
fn labelled(snapshot: &Snapshot) -> BTreeMap<&str, Vec<u16>> {
    let mut rows = BTreeMap::<&str, Vec<u16>>::new();
    let pools = snapshot.pools.iter().take(LABELLED_POOLS_MAX).map(|pool| (&*pool.name, pool.id.0));
    for (model, row) in pools.chain([(UNKNOWN, LABELLED_POOLS_MAX as u16)]) {
        rows.entry(model).or_default().push(row);
    }
    rows
}

fn model(snapshot: &Snapshot, pool: u16) -> &str {
    let labelled = snapshot.pools.iter().take(LABELLED_POOLS_MAX).find(|known| known.id.0 == pool);
    labelled.map_or(UNKNOWN, |pool| &pool.name)
}

fn reason(reason: u8) -> &'static str {
    Reason::ALL.get(usize::from(reason)).map_or("none", |reason| reason.as_str())
}
