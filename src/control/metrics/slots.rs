//! What shards count by slot, as series of the endpoints that have those slots now.

use std::collections::BTreeMap;
use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family};
use crate::counters::Asked;
use crate::snapshot::Snapshot;

type Count = fn(&Asked) -> u64;

impl Collected {
    pub(super) fn slots(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let (counters, stats) = (self.0.counters, self.0.stats);
        // One that was taken out finishes beside its successor of the same name: they are one series.
        let mut slots = BTreeMap::<&str, Vec<u16>>::new();
        for endpoint in snapshot.endpoints.iter().flatten() {
            slots.entry(&*endpoint.name).or_default().push(endpoint.id.slot);
        }
        let help = "Prompt tokens sent there that have no first token yet, beside those thought to be in its cache";
        let mut family = Family::new(out, "endpoint_pending_tokens", help, MetricType::Gauge)?;
        for (endpoint, slots) in &slots {
            let tokens: u64 = slots.iter().map(|slot| counters.loads().pending(*slot)).sum();
            family.gauge(vec![("endpoint", endpoint)], tokens as f64)?;
        }
        let sent: [(&str, &str, Count); 2] = [
            ("endpoint_prompt_tokens", "Prompt tokens sent with a prediction, estimated", |sent| sent.tokens),
            ("endpoint_prompt_tokens_held", "Of these, thought to be in its cache when it was chosen", |sent| {
                sent.held
            }),
        ];
        for (name, help, count) in sent {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for (endpoint, slots) in &slots {
                let sent = slots.iter().map(|slot| count(&counters.predictions().sent_in_all(*slot)));
                family.counter(vec![("endpoint", endpoint)], sent.sum())?;
            }
        }
        let help = "From the request's last byte to the first token, by the endpoint that answered";
        let name = "endpoint_time_to_first_token_seconds";
        let mut family = Family::new(out, name, help, MetricType::Histogram)?;
        for (endpoint, slots) in &slots {
            let reading = stats.first_tokens(slots);
            if reading.count() > 0 {
                family.histogram(vec![("endpoint", endpoint)], &reading, 1e6)?;
            }
        }
        Ok(())
    }
}
