//! What shards count by slot, as series of the engines that have those slots now and had others before.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family, model, reason};
use crate::counters::stats::RequestKey;
use crate::counters::{Asked, Counted, Deeds};
use crate::snapshot::Snapshot;

type Count = fn(&Asked) -> u64;

/// The counts of each engine, by name.
#[derive(Debug)]
pub(super) struct ByName {
    endpoints: BTreeMap<Arc<str>, Deeds>,
    /// Counts of requests for which no endpoint was chosen, or that a lack of ours kept from it.
    none: Deeds,
    /// Counts of an engine that has none.
    nothing: Deeds,
}

impl ByName {
    pub(super) fn of(&self, name: &str) -> &Deeds {
        self.endpoints.get(name).unwrap_or(&self.nothing)
    }
}

impl Collected {
    pub(super) fn deeds(&self) -> ByName {
        let fleet = self.0.keeper.fleet();
        // Read while the fleet is locked and gives no slot away: else a new endpoint's counts would begin after this.
        let counted = Counted::read(self.0.counters, self.0.stats);
        ByName { endpoints: fleet.deeds(&counted), none: counted.at(RequestKey::NONE), nothing: Deeds::default() }
    }

    pub(super) fn requests(
        &self,
        out: &mut DescriptorEncoder<'_>,
        snapshot: &Snapshot,
        deeds: &ByName,
    ) -> Result<(), Error> {
        let help = "Finished requests, without those for the front's own pages; status 0: the client left, or the front ended, before one was sent; of engines that left, the last 64 are shown";
        let mut family = Family::new(out, "requests", help, MetricType::Counter)?;
        // Rows that get the same labels, such as those of pools without one, are one series.
        let mut sums = BTreeMap::new();
        let endpoints = deeds.endpoints.iter().map(|(name, deeds)| (&**name, deeds)).chain([("none", &deeds.none)]);
        for (endpoint, deeds) in endpoints {
            for (key, count) in &deeds.requests {
                let labels = (model(snapshot, key.pool), endpoint, key.status, reason(key.reason));
                *sums.entry(labels).or_insert(0) += count;
            }
        }
        for ((model, endpoint, status, reason), count) in sums {
            let status = status.to_string();
            let labels = vec![("model", model), ("endpoint", endpoint), ("status", &status), ("reason", reason)];
            family.counter(labels, count)?;
        }
        let help = "Finished requests that found no row of their own: in requests they are of an unknown model, no endpoint and no reason";
        Family::new(out, "requests_uncounted", help, MetricType::Counter)?
            .counter(vec![], self.0.stats.requests_overflow())
    }

    pub(super) fn slots(
        &self,
        out: &mut DescriptorEncoder<'_>,
        snapshot: &Snapshot,
        deeds: &ByName,
    ) -> Result<(), Error> {
        // An endpoint that was taken out finishes beside its successor of the same name: they are one series.
        let mut pending = BTreeMap::<&str, u64>::new();
        for endpoint in snapshot.endpoints.iter().flatten() {
            *pending.entry(&endpoint.name).or_default() += self.0.counters.loads().pending(endpoint.id.slot);
        }
        let help = "Prompt tokens sent there that have no first token yet, without those thought to be in its cache";
        let mut family = Family::new(out, "endpoint_pending_tokens", help, MetricType::Gauge)?;
        for (endpoint, tokens) in pending {
            family.gauge(vec![("endpoint", endpoint)], tokens as f64)?;
        }
        let sent: [(&str, &str, Count); 2] = [
            (
                "endpoint_prompt_tokens",
                "Estimated prompt tokens of requests that it was chosen for with a prediction, even if no connection came of it; a stranger's once it is let in",
                |sent| sent.tokens,
            ),
            ("endpoint_prompt_tokens_held", "Of these, thought to be in its cache when it was chosen", |sent| {
                sent.held
            }),
        ];
        for (name, help, count) in sent {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for (endpoint, deeds) in &deeds.endpoints {
                family.counter(vec![("endpoint", endpoint)], count(&deeds.sent))?;
            }
        }
        let help = "From the last byte of a request that was sent to the endpoint to the first token";
        let name = "endpoint_time_to_first_token_seconds";
        let mut family = Family::new(out, name, help, MetricType::Histogram)?;
        for (endpoint, deeds) in &deeds.endpoints {
            if deeds.first_tokens.count() > 0 {
                family.histogram(vec![("endpoint", endpoint)], &deeds.first_tokens, 1e6)?;
            }
        }
        Ok(())
    }
}
