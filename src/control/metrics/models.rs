//! What is known of each model: what came of its requests, and who serves it.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family, labelled};
use crate::counters::stats::Ended;
use crate::limits::LABELLED_POOLS_MAX;
use crate::snapshot::{Pool, Snapshot};

impl Collected {
    /// By model alone, each from 0 on.
    pub(super) fn endings(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let help = "Finished requests by what came of them: served whole, refused for what their clients asked for (4xx, 501, 505), busy (429), failed (other 5xx, or the front ended), broken in the midst of a reply or by an error that it told of, or left by their clients";
        let mut family = Family::new(out, "request_outcomes", help, MetricType::Counter)?;
        for (model, pools) in labelled(snapshot) {
            for ended in Ended::ALL {
                let count: u64 = pools.iter().map(|pool| self.0.stats.ended(*pool, ended)).sum();
                family.counter(vec![("model", model), ("outcome", ended.as_str())], count)?;
            }
        }
        Ok(())
    }

    /// Of models that have a label.
    pub(super) fn models(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let pools = || snapshot.pools.iter().take(LABELLED_POOLS_MAX);
        let help = "Mean length of answers, as choices count on it: the last hundred that ended count most";
        let mut family = Family::new(out, "answer_tokens", help, MetricType::Gauge)?;
        for pool in pools() {
            let tokens = self.0.counters.loads().mean_answer(pool.id);
            family.gauge(vec![("model", &pool.name)], tokens.into())?;
        }
        let mut family = Family::new(
            out,
            "model_endpoints",
            "Endpoints with an address that serve the model, in whatever state",
            MetricType::Gauge,
        )?;
        for pool in pools() {
            family.gauge(vec![("model", &pool.name)], pool.members.len() as f64)?;
        }
        let help = "Those of model_endpoints that take requests; at 0 the ones that fail are tried, if there are any";
        let mut family = Family::new(out, "model_endpoints_up", help, MetricType::Gauge)?;
        for pool in pools() {
            family.gauge(vec![("model", &pool.name)], taking(pool, snapshot) as f64)?;
        }
        Ok(())
    }
}

fn taking(pool: &Pool, snapshot: &Snapshot) -> usize {
    let members = pool.members.iter().filter_map(|slot| snapshot.at(*slot));
    members.filter(|endpoint| endpoint.health.takes_requests()).count()
}
