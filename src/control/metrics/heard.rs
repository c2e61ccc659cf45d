//! What engines say of their KV caches, as series of those that are listened to.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family};
use crate::control::hearing::Figures;
use crate::mirror;

type Count = fn(&Figures) -> u64;
type Figure = fn(&Figures) -> Option<f64>;

/// What a block was that an engine told of: all that is counted.
const BLOCKS: [(&str, fn(&mirror::Counts) -> u64); 12] = [
    ("stored", |blocks| blocks.stored),
    ("copy", |blocks| blocks.copies),
    ("ambiguous", |blocks| blocks.ambiguous),
    ("orphan", |blocks| blocks.orphans),
    ("opaque", |blocks| blocks.opaque),
    ("malformed", |blocks| blocks.malformed),
    ("deep", |blocks| blocks.deep),
    ("beyond", |blocks| blocks.beyond),
    ("other_group", |blocks| blocks.groups),
    ("other_tier", |blocks| blocks.tiers),
    ("removed", |blocks| blocks.removed),
    ("removed_unknown", |blocks| blocks.unknown),
];

impl Collected {
    pub(super) fn heard(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let heard = self.0.keeper.heard();
        let counts: [(&str, &str, Count); 10] = [
            ("kv_events_connections", "Connections to what an engine publishes, handshake done", |f| {
                f.counts.connected
            }),
            (
                "kv_events_strangers",
                "Others than the engine that came to where it is waited for, or were met there, and were turned away; and tries to connect where it names a host that is not its own",
                |f| f.counts.strangers,
            ),
            ("kv_events_batches", "Batches of events applied, replayed ones among them", |f| f.counts.batches),
            ("kv_events_replayed", "Batches that came by a replay", |f| f.counts.replayed),
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
            for (endpoint, figures) in &heard {
                family.counter(vec![("endpoint", endpoint)], count(figures))?;
            }
        }
        let help = "KV blocks that engines told of, by what they were";
        let mut family = Family::new(out, "kv_events_blocks", help, MetricType::Counter)?;
        for (endpoint, figures) in &heard {
            for (what, count) in BLOCKS {
                family.counter(vec![("endpoint", endpoint), ("what", what)], count(&figures.mirrored))?;
            }
        }
        let gauges: [(&str, &str, Figure); 4] = [
            ("kv_blocks", "KV blocks of the engine that are known by name", |f| Some(f.blocks as f64)),
            ("kv_bytes_max", "Most memory for what is kept of the engine beside the index", |f| {
                Some(f.bytes_max as f64)
            }),
            ("kv_events_lag_seconds", "From the engine's clock to ours at its last batch", |f| Some(f.lag_seconds)),
            ("kv_events_last_timestamp_seconds", "When the last batch came, since 1970 by our clock", |f| {
                Some(f.came).filter(|came| *came > 0.0)
            }),
        ];
        for (name, help, figure) in gauges {
            let mut family = Family::new(out, name, help, MetricType::Gauge)?;
            for (endpoint, figures) in &heard {
                if let Some(value) = figure(figures) {
                    family.gauge(vec![("endpoint", endpoint)], value)?;
                }
            }
        }
        Ok(())
    }

    /// What of chats with tools is written as engines do.
    pub(super) fn toolsets(&self, out: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (known, followed) = self.0.keeper.fleet().forms().toolsets();
        let help = "Sets of tools that were met again, by whether chats with them are written as their engine does";
        let mut family = Family::new(out, "toolsets", help, MetricType::Gauge)?;
        family.gauge(vec![("chats", "followed")], followed as f64)?;
        family.gauge(vec![("chats", "unfollowed")], (known - followed) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_of_blocks_is_shown() {
        // Written out whole, so that a count more is not forgotten here.
        let counts = mirror::Counts {
            stored: 1,
            copies: 2,
            ambiguous: 3,
            orphans: 4,
            opaque: 5,
            malformed: 6,
            deep: 7,
            beyond: 8,
            groups: 9,
            tiers: 10,
            removed: 11,
            unknown: 12,
        };
        let mut shown = BLOCKS.map(|(_, count)| count(&counts));
        shown.sort_unstable();
        assert!(shown.into_iter().eq(1..=12), "{shown:?}");
    }
}
