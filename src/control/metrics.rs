//! The front's own `/metrics`. Label values come from configuration, engines' model lists and fixed
//! tables, never from requests.

mod endpoints;
mod heard;
mod kernel;
mod models;
mod plain;
mod process;
mod slots;

use std::collections::BTreeMap;
use std::fmt::Error;

use clap::ValueEnum;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::admin::State;
use super::log;
use crate::counters::stats::{Count, Reading, Shadowed, Timing, Work};
use crate::limits::LABELLED_POOLS_MAX;
use crate::policy::{Policy, Reason};
use crate::snapshot::Snapshot;
use kernel::Kernel;

/// Before every name,
const PREFIX: &str = "warmfront";
/// but of what the kernel tells.
const KERNEL_PREFIX: &str = "process";

/// The formats of text that there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// OpenMetrics 1.0, as a Prometheus asks for it.
    Open,
    /// What came before it, version 0.0.4: for who asks for nothing in particular, such as `promtool check metrics` and
    /// agents that would not know a counter whose type is told without `_total`.
    Plain,
}

impl Format {
    /// By what who asks says that it takes, and how much it likes that (RFC 9110, 12.5.1).
    pub(super) fn taken_by<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
        let (mut open, mut plain) = (0.0_f32, 0.0_f32);
        for range in accept.flat_map(|accept| accept.split(',')) {
            let (kind, parameters) = range.split_once(';').unwrap_or((range, ""));
            let liked = match kind.trim() {
                kind if kind.eq_ignore_ascii_case("application/openmetrics-text") => &mut open,
                kind if kind.eq_ignore_ascii_case("text/plain") => &mut plain,
                _ => continue,
            };
            let parameters = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
            let mut weight = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
            *liked = liked.max(weight.next().and_then(|(_, q)| q.trim().parse().ok()).unwrap_or(1.0));
        }
        if open > 0.0 && open >= plain { Format::Open } else { Format::Plain }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Everything as text.
pub(super) fn text(state: &State, format: Format) -> String {
    let [mut registry, mut kernel] = [PREFIX, KERNEL_PREFIX].map(Registry::with_prefix);
    registry.register_collector(Box::new(Collected(state.clone())));
    kernel.register_collector(Box::new(Kernel));
    let mut text = String::new();
    let written = [kernel, registry].iter().try_for_each(|registry| encode_registry(&mut text, registry));
    // Writing to a string fails only where a value cannot be written, which is ours to see in tests.
    if let Err(error) = written.and_then(|()| encode_eof(&mut text)) {
        tracing::error!(%error, "cannot write /metrics");
    }
    if format == Format::Plain { plain::of(&text) } else { text }
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

    fn counter(&mut self, labels: Labels<'_>, value: impl EncodeCounterValue) -> Result<(), Error> {
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
        self.configuration(&mut out)?;
        let (deeds, members) = (self.deeds(), self.members(&snapshot));
        self.requests(&mut out, &snapshot, &deeds)?;
        self.endings(&mut out, &snapshot)?;
        self.tokens(&mut out, &snapshot)?;
        self.counts(&mut out)?;
        self.logs(&mut out)?;
        self.times(&mut out, &snapshot)?;
        self.models(&mut out, &snapshot)?;
        self.shadows(&mut out, &snapshot)?;
        self.endpoints(&mut out, (&members, &snapshot), &deeds)?;
        self.index(&mut out)?;
        self.figures(&mut out, (&members, &snapshot))?;
        self.slots(&mut out, &snapshot, &deeds)?;
        self.predictions(&mut out, (&members, &snapshot), &deeds)?;
        self.heard(&mut out)?;
        self.toolsets(&mut out)
    }
}

impl Collected {
    fn counts(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for counts in Count::ALL.chunk_by(|a, b| a.family() == b.family()) {
            let Some(first) = counts.first() else { continue };
            let mut family = Family::new(out, first.family(), first.help(), MetricType::Counter)?;
            for count in counts {
                family.counter(count.label().into_iter().collect(), self.0.stats.total(*count))?;
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
        let help =
            "Times that the access log's file could not be opened anew, as behind a rotation: lines go where they went";
        Family::new(out, "access_reopen_failures", help, MetricType::Counter)?.counter(vec![], counts.unopened())?;
        let help = "Times that what is known of caches could not be written into caches_file";
        Family::new(out, "caches_file_failures", help, MetricType::Counter)?
            .counter(vec![], self.0.keeper.save_failures())?;
        let help = "Bytes written for caches_file, of whatever came of it";
        Family::new(out, "caches_file_written_bytes", help, MetricType::Counter)?
            .counter(vec![], self.0.keeper.saved_bytes())?;
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
            (
                Timing::InterToken,
                "inter_token_seconds",
                "Between two reads of a stream behind its first token: mostly a token each, several where they came together",
            ),
            (
                Timing::Total,
                "request_seconds",
                "From the request's first byte to its end, whichever way: of a tunnel that is its whole life",
            ),
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
}

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

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::config::{Config, Upstream};
    use crate::control::endpoints;
    use crate::control::keeper::Keeper;
    use crate::control::keeper::tests::{is_free, keeper};
    use crate::control::reload::Source;
    use crate::control::tests::config_of;
    use crate::counters::Counters;
    use crate::counters::stats::Stats;
    use crate::publish::{Process, Published};

    #[derive(Debug)]
    struct Nowhere;

    impl Source for Nowhere {
        fn load(&self) -> Result<Config, String> {
            Err(String::new())
        }

        fn in_use(&self, _: &Config) {}

        fn say_wanting(&self, _: &Config) {}
    }

    /// Fails where somebody else would wait for the fleet; counts what it is given.
    struct Watcher(Arc<Keeper>, usize);

    impl Write for Watcher {
        fn write_str(&mut self, text: &str) -> Result<(), Error> {
            self.1 += text.len();
            if is_free(&self.0) { Ok(()) } else { Err(Error) }
        }
    }

    impl std::io::Write for Watcher {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.1 += text.len();
            if is_free(&self.0) { Ok(text.len()) } else { Err(std::io::ErrorKind::WouldBlock.into()) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Control has a thread of its own, which needs the fleet for each probe that ends.
    #[test]
    fn nobody_waits_for_the_fleet_while_a_page_is_written() {
        let upstream = |port| Upstream {
            concurrency_max: 9,
            ..Upstream::new(format!("http://127.0.0.1:{port}").parse().unwrap())
        };
        let keeper = keeper(config_of([1, 2].map(upstream)));
        let published = Published::leak(keeper.fleet().snapshot());
        let state = State {
            keeper: Arc::clone(&keeper),
            published,
            counters: Counters::leak(),
            stats: Stats::leak(1),
            process: Process::leak(1),
            began: Instant::now(),
            source: Arc::new(Nowhere),
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Collected(state.clone())));
        let mut watcher = Watcher(keeper, 0);
        encode_registry(&mut watcher, &registry).unwrap();
        assert!(watcher.1 > 10_000, "{}", watcher.1);
        watcher.1 = 0;
        endpoints::write(&state, &mut watcher).unwrap();
        assert!(watcher.1 > 500, "{}", watcher.1);
    }
}
