//! What is known of each model: what came of its requests, and who serves it.

use std::fmt::Error;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Collected, Family, labelled};
use crate::counters::stats::{Ended, TokenCount};
use crate::limits::LABELLED_POOLS_MAX;
use crate::snapshot::{Pool, Snapshot};

impl Collected {
    /// By model alone, each from 0 on.
    pub(super) fn endings(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let help = "Finished requests by what came of them: served whole, refused for what their clients asked for (4xx, also in a stream, 501, 505), busy (429), failed (other 5xx, or the front ended), broken in the midst of a reply or by another error that it told of, or left by their clients";
        let mut family = Family::new(out, "request_outcomes", help, MetricType::Counter)?;
        for (model, pools) in labelled(snapshot) {
            for ended in Ended::ALL {
                let count: u64 = pools.iter().map(|pool| self.0.stats.ended(*pool, ended)).sum();
                family.counter(vec![("model", model), ("outcome", ended.as_str())], count)?;
            }
        }
        Ok(())
    }

    /// Likewise.
    pub(super) fn tokens(&self, out: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> Result<(), Error> {
        let models = labelled(snapshot);
        for (name, help, counts) in TOKENS {
            let mut family = Family::new(out, name, help, MetricType::Counter)?;
            for (model, pools) in &models {
                for (kind, which) in counts {
                    let tokens: u64 = pools.iter().map(|pool| self.0.stats.tokens(*pool, *which)).sum();
                    let kind = kind.map(|kind| ("kind", kind));
                    family.counter(kind.into_iter().chain([("model", *model)]).collect(), tokens)?;
                }
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

/// A family's name, its help, and what of it is told apart by kind.
type Tokens = (&'static str, &'static str, &'static [(Option<&'static str>, TokenCount)]);

const TOKENS: [Tokens; 3] = [
    (
        "prompt_tokens_held",
        "Prompt tokens that the chosen engine was thought to hold, with each try again",
        &[(None, TokenCount::Held)],
    ),
    (
        "prompt_tokens_new",
        "Prompt tokens that the chosen engine was thought to have to compute, with each try again",
        &[(None, TokenCount::New)],
    ),
    (
        "told_tokens",
        "Tokens as replies tell them in their usage, where they do; cached are those of the prompt that were in the engine's cache",
        &[
            (Some("prompt"), TokenCount::ToldPrompt),
            (Some("cached"), TokenCount::ToldCached),
            (Some("completion"), TokenCount::ToldCompletion),
        ],
    ),
];

fn taking(pool: &Pool, snapshot: &Snapshot) -> usize {
    let members = pool.members.iter().filter_map(|slot| snapshot.at(*slot));
    members.filter(|endpoint| endpoint.health.takes_requests()).count()
}
