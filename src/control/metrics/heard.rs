//! What engines tell of their KV caches: series of the engines that are listened to.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family};
use crate::control::hearing::Figures;

type Count = fn(&Figures) -> u64;
type Figure = fn(&Figures) -> Option<f64>;

/// Why a connection failed or ended.
const ENDINGS: [(&str, Count); 6] = [
    ("unreachable", |f| f.counts.unreachable),
    ("wanting", |f| f.counts.wanting),
    ("closed", |f| f.counts.closed),
    ("slow", |f| f.counts.slow),
    ("silent", |f| f.counts.silent),
    ("broken", |f| f.counts.broken),
];

/// What became of each block that an engine told.
const BLOCKS: [(&str, Count); 12] = [
    ("stored", |f| f.mirrored.stored),
    ("copy", |f| f.mirrored.copies),
    ("ambiguous", |f| f.mirrored.ambiguous),
    ("orphan", |f| f.mirrored.orphans),
    ("opaque", |f| f.mirrored.opaque),
    ("malformed", |f| f.mirrored.malformed),
    ("deep", |f| f.mirrored.deep),
    ("beyond", |f| f.mirrored.beyond),
    ("other_group", |f| f.mirrored.groups),
    ("other_tier", |f| f.mirrored.tiers),
    ("removed", |f| f.mirrored.removed),
    ("removed_unknown", |f| f.mirrored.unknown),
];

impl Collected {
    pub(super) fn heard(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        write(out, &self.0.keeper.heard())
    }

    /// How many sets of tools are known, and for how many chats are written as engines do.
    pub(super) fn toolsets(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (known, followed) = self.0.keeper.fleet().forms().toolsets();
        let help = "Sets of tools that were met again, by whether chats with them are written as their engine does";
        let mut family = Family::new(out, "toolsets", help, MetricType::Gauge)?;
        family.gauge(vec![("chats", "followed")], followed as f64)?;
        family.gauge(vec![("chats", "unfollowed")], (known - followed) as f64)
    }
}

fn write(out: &mut DescriptorEncoder<'_>, heard: &BTreeMap<Arc<str>, Figures>) -> Result<(), Error> {
    let counts: [(&str, &str, Count); 12] = [
        ("kv_events_connections", "Connections to what an engine publishes, handshake done", |f| f.counts.connected),
        (
            "kv_events_strangers",
            "Connections turned away because another than the engine came to, or was met at, the place of its KV events; and tries to connect where it names a host that is not its own",
            |f| f.counts.strangers,
        ),
        ("kv_events_batches", "Batches of events applied, replayed ones among them", |f| f.counts.batches),
        ("kv_events_replayed", "Batches that came by a replay", |f| f.counts.replayed),
        ("kv_events_replays", "Replays asked for", |f| f.counts.replays),
        ("kv_events_replays_failed", "Replays that were not answered to their end", |f| f.counts.replays_failed),
        ("kv_events_holes", "Messages found missing before another", |f| f.counts.holes),
        ("kv_events_incomplete", "Holes that were given up", |f| f.counts.incomplete),
        ("kv_events_restarts", "Engines whose numbers began anew", |f| f.counts.restarts),
        ("kv_events_malformed", "Messages that make no sense", |f| f.counts.malformed + f.counts.refused),
        ("kv_events_unknown", "Events and fields of unknown names, passed over", |f| {
            f.counts.unknown_events + f.counts.unknown_fields
        }),
        (
            "kv_links_missed",
            "Parts of prompts that the index did not take, or not at once: what it is too busy for is noted a second later",
            |f| f.missed,
        ),
    ];
    for (name, help, count) in counts {
        let mut family = Family::new(out, name, help, MetricType::Counter)?;
        for (endpoint, figures) in heard {
            family.counter(vec![("endpoint", endpoint)], count(figures))?;
        }
    }
    let help = "Connections to what an engine publishes that ended or never came about, by why: it was unreachable, nothing was left here to connect with (wanting), it closed it, its handshake was too slow, it gave no sign of life (silent), what it sent made no sense (broken)";
    counted(Family::new(out, "kv_events_endings", help, MetricType::Counter)?, "why", &ENDINGS, heard)?;
    let help = "KV blocks that engines told of, by what they were";
    counted(Family::new(out, "kv_events_blocks", help, MetricType::Counter)?, "what", &BLOCKS, heard)?;
    let gauges: [(&str, &str, Figure); 4] = [
        ("kv_blocks", "KV blocks of the engine that are known by name", |f| Some(f.blocks as f64)),
        ("kv_bytes_max", "Most memory for what is kept of the engine beside the index", |f| Some(f.bytes_max as f64)),
        ("kv_events_lag_seconds", "From the engine's clock to ours at its last batch", |f| Some(f.lag_seconds)),
        ("kv_events_last_timestamp_seconds", "When the last batch came, since 1970 by our clock", |f| {
            Some(f.came).filter(|came| *came > 0.0)
        }),
    ];
    for (name, help, figure) in gauges {
        let mut family = Family::new(out, name, help, MetricType::Gauge)?;
        for (endpoint, figures) in heard {
            if let Some(value) = figure(figures) {
                family.gauge(vec![("endpoint", endpoint)], value)?;
            }
        }
    }
    Ok(())
}

/// Series of each engine, told apart by one more label.
fn counted(
    mut family: Family<'_>,
    label: &'static str,
    counts: &[(&'static str, Count)],
    heard: &BTreeMap<Arc<str>, Figures>,
) -> Result<(), Error> {
    for (endpoint, figures) in heard {
        for (value, count) in counts {
            family.counter(vec![("endpoint", endpoint), (label, value)], count(figures))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode_registry;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{kvevents, mirror};

    #[derive(Debug)]
    struct Heard(Figures);

    impl Collector for Heard {
        fn encode(&self, mut out: DescriptorEncoder<'_>) -> Result<(), Error> {
            write(&mut out, &BTreeMap::from([("gpu-1".into(), self.0)]))
        }
    }

    fn text(figures: Figures) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register_collector(Box::new(Heard(figures)));
        encode_registry(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn each_series_has_its_own_figure() {
        let counts = kvevents::Counts {
            connected: 1,
            strangers: 2,
            batches: 3,
            replayed: 4,
            holes: 5,
            incomplete: 6,
            restarts: 7,
            malformed: 8,
            refused: 10,
            unknown_events: 20,
            unknown_fields: 9,
            unreachable: 51,
            wanting: 52,
            closed: 53,
            slow: 54,
            silent: 55,
            broken: 56,
            replays: 57,
            replays_failed: 58,
            // What control looks at alone.
            messages: 0,
            unread: None,
        };
        // Written out whole, so that a count more is not forgotten here.
        let mirrored = mirror::Counts {
            stored: 31,
            copies: 32,
            ambiguous: 33,
            orphans: 34,
            opaque: 35,
            malformed: 36,
            deep: 37,
            beyond: 38,
            groups: 39,
            tiers: 40,
            removed: 41,
            unknown: 42,
        };
        let figures = Figures {
            counts,
            mirrored,
            blocks: 40,
            missed: 41,
            bytes_max: 42,
            lag_seconds: 0.5,
            came: 1_700_000_000.0,
        };
        let shown = text(figures);
        for (series, value) in [
            ("kv_events_connections_total", "1"),
            ("kv_events_strangers_total", "2"),
            ("kv_events_batches_total", "3"),
            ("kv_events_replayed_total", "4"),
            ("kv_events_replays_total", "57"),
            ("kv_events_replays_failed_total", "58"),
            ("kv_events_holes_total", "5"),
            ("kv_events_incomplete_total", "6"),
            ("kv_events_restarts_total", "7"),
            ("kv_events_malformed_total", "18"),
            ("kv_events_unknown_total", "29"),
            ("kv_links_missed_total", "41"),
            ("kv_blocks", "40.0"),
            ("kv_bytes_max", "42.0"),
            ("kv_events_lag_seconds", "0.5"),
            ("kv_events_last_timestamp_seconds", "1700000000.0"),
        ] {
            let line = format!("{series}{{endpoint=\"gpu-1\"}} {value}");
            assert!(shown.lines().any(|shown| shown == line), "{line}\nis not in\n{shown}");
        }
        for (why, value) in
            [("unreachable", 51), ("wanting", 52), ("closed", 53), ("slow", 54), ("silent", 55), ("broken", 56)]
        {
            let line = format!("kv_events_endings_total{{endpoint=\"gpu-1\",why=\"{why}\"}} {value}");
            assert!(shown.lines().any(|shown| shown == line), "{line}\nis not in\n{shown}");
        }
        for (what, value) in [
            ("stored", 31),
            ("copy", 32),
            ("ambiguous", 33),
            ("orphan", 34),
            ("opaque", 35),
            ("malformed", 36),
            ("deep", 37),
            ("beyond", 38),
            ("other_group", 39),
            ("other_tier", 40),
            ("removed", 41),
            ("removed_unknown", 42),
        ] {
            let line = format!("kv_events_blocks_total{{endpoint=\"gpu-1\",what=\"{what}\"}} {value}");
            assert!(shown.lines().any(|shown| shown == line), "{line}\nis not in\n{shown}");
        }
        assert!(!text(Figures::default()).contains("last_timestamp_seconds{"), "none came");
    }
}
