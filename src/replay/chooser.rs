//! What a policy is to a replay, and the policies by their names.

use super::events::{Batch, Delivery};
use super::fleet::Fleet;
use super::fronts::Fronts;
use super::oracle::Oracle;
use super::own;
use super::peers::jumps::Jumps;
use super::peers::overlap::Overlap;
use super::peers::prompt_tree::{PromptTree, SGLANG, SMG};
use super::peers::scorers::Scorers;
use super::peers::sticky::Sticky;
use super::queued::Queued;
use super::traffic::Request;
use crate::engine::core::Figures;
use crate::policy::{Bound, Policy, Queueing, Settings};
use crate::scan::PrefixMode;

/// A request at its arrival.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Number of the request, by order of announcement, not of arrival.
    pub number: u64,
    /// Now, in nanoseconds since the start of the run.
    pub now_ns: u64,
    /// What is asked.
    pub request: &'a Request,
    /// Tokens in each of its blocks.
    pub block_tokens: u32,
    /// Tenant that asks; 0: the first.
    pub tenant: u16,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Number of the engine.
    pub engine: usize,
    /// Tokens of its prompt that the engine was thought to hold, if the policy predicts that.
    pub predicted: Option<u32>,
}

impl From<usize> for Placed {
    fn from(engine: usize) -> Placed {
        Placed { engine, predicted: None }
    }
}

/// What becomes of a request that waits in the front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// This request (by number) is chosen for again.
    Ask(u64),
    /// This request is refused, and comes back after so many seconds.
    Refuse(u64, u32),
}

/// Chooses engines. Beside its own requests a policy may know metrics, as of its last scrape, and what an engine's
/// cache holds, if it reads KV events.
pub trait Chooser {
    /// Returns the engine for a request, whose load counts from here on. `None`: the request waits in the front until
    /// [`Chooser::turn`].
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed>;
    /// Returns which of the waiting requests has its turn. Asked whenever a step has ended anywhere, and again after
    /// each request that was placed or refused. `first` came before the others.
    fn turn(&mut self, _now_ns: u64, first: u64) -> Option<Turn> {
        Some(Turn::Ask(first))
    }
    /// How often a turn is asked for although nothing has ended, if at all.
    fn retry_every_ns(&self) -> Option<u64> {
        None
    }
    /// A request has its first token.
    fn first_token(&mut self, _number: u64) {}
    /// A request has had its last token from its engine; `tokens` is the length of its reply.
    fn ended(&mut self, number: u64, engine: usize, tokens: u32);
    /// How often the policy reads the engines' metrics, if at all.
    fn scrape_every_ns(&self) -> Option<u64> {
        None
    }
    /// The metrics of all engines, by engine.
    fn scraped(&mut self, _now_ns: u64, _figures: &[Figures]) {}
    /// Whether the policy hears the engines' KV events.
    fn hears_events(&self) -> bool {
        false
    }
    /// An engine sends a batch of KV events; the policy decides when it comes.
    fn published(&mut self, _now_ns: u64, _engine: usize, _batch: &Batch) {}
    /// Whether all engines have one cache together: for the oracle alone.
    fn pools_caches(&self) -> bool {
        false
    }
}

/// Salts of random draws, so that no two draws of a run are alike. Those with 6 never meet: sticky sessions have one
/// front, and a tenant is drawn from the thread that asks, not from the seed. Other numbers would make other figures.
pub(super) mod draws {
    /// Choices of the product's policies.
    pub const CHOICE: u64 = 3;
    /// A prompt's key.
    pub const KEY: u64 = 4;
    /// A session's key.
    pub const SESSION: u64 = 5;
    /// The front to which a request goes.
    pub const FRONT: u64 = 6;
    /// Sticky sessions.
    pub const STICKY: u64 = 6;
    /// The tenant for which a session asks.
    pub const TENANT: u64 = 6;
    /// The scorers.
    pub const SCORERS: u64 = 7;
    /// The overlap cost.
    pub const OVERLAP: u64 = 8;
    /// Lost events.
    pub const LOSS: u64 = 9;
    /// The prompt trees.
    pub const PROMPT_TREE: u64 = 10;
    /// Jumps of a prompt without a prefix.
    pub const JUMPS: u64 = 11;
}

/// A policy's name and what it stands for.
pub struct Named {
    /// The name that `--policies` takes.
    pub name: &'static str,
    /// Half a line for people.
    pub what: &'static str,
    make: Make,
}

/// How a policy is made.
enum Make {
    /// A policy of the product, on as many fronts as the stage has.
    Own(fn() -> Settings),
    /// A policy that knows the state of all engines, and is the same behind any number of fronts.
    Knowing(fn(usize) -> Oracle),
    /// A policy of another router, simulated with one front only.
    Alone(fn(&Stage<'_>) -> Box<dyn Chooser>),
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// Weights of the engines, one each. The product's policies know them, and the random jumps, which have its ring
    /// and bound; others know what a heavy engine tells of itself, and those that know all engines' state its speed.
    pub weights: &'a [u32],
    /// Blocks in the cache of an engine of weight 1.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Fronts that share nothing, among which requests are dealt.
    pub fronts: usize,
    /// How KV events come to those fronts that hear them.
    pub events: Delivery,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl Stage<'_> {
    /// How many engines there are.
    pub fn engines(&self) -> usize {
        self.weights.len()
    }
}

impl Named {
    /// Makes the policy as it is before any request.
    pub fn make(&self, stage: &Stage<'_>) -> Box<dyn Chooser> {
        match self.make {
            Make::Own(settings) => Box::new(Fronts::new(stage, &settings())),
            Make::Knowing(make) => Box::new(make(stage.engines())),
            Make::Alone(make) => make(stage),
        }
    }

    /// Whether the delivery of events changes anything for this policy.
    pub fn hears_events(&self) -> bool {
        matches!(self.make, Make::Own(settings) if own::hears(&settings()))
    }

    /// Whether this policy can be simulated behind several fronts.
    pub fn on_several_fronts(&self) -> bool {
        !matches!(self.make, Make::Alone(_))
    }
}

/// The name of the baseline that others are compared with.
pub const RANDOM: &str = "random";
/// The name of the bound that others are compared with.
pub const ORACLE: &str = "oracle";
/// The name of the bound without sight of steps.
pub const POOLED: &str = "pooled";
/// The name of the bound with separate caches.
pub const CLAIRVOYANT: &str = "clairvoyant";

/// The policies there are, in the order of a full comparison.
pub const POLICIES: &[Named] = &[
    Named { name: RANDOM, what: "uniformly", make: Make::Own(|| by(Policy::Random)) },
    Named { name: "round-robin", what: "one after the other", make: Make::Own(|| by(Policy::RoundRobin)) },
    Named { name: "least-load", what: "fewest in flight", make: Make::Own(|| by(Policy::LeastLoad)) },
    Named { name: "session", what: "session key on the bounded ring", make: Make::Own(|| by(Policy::Session)) },
    Named {
        name: "prefix-hash",
        what: "start of the first user message on the bounded ring",
        make: Make::Own(|| by(Policy::PrefixHash)),
    },
    Named {
        name: "prefix-hash-conversation",
        what: "prefix-hash, keyed by the first 4,096 bytes of the whole prompt",
        make: Make::Own(|| Settings { prefix: PrefixMode::Conversation, ..by(Policy::PrefixHash) }),
    },
    Named {
        name: "warm",
        what: "least work in tokens, by what each engine holds of the prompt; nobody waits",
        make: Make::Own(|| by(Policy::Warm)),
    },
    Named {
        name: "precise",
        what: "warm, by what the engines' KV events tell",
        make: Make::Own(|| by(Policy::Precise)),
    },
    Named {
        name: "warm-held",
        what: "warm with queue = \"on\": if the engine has no room, requests wait in the front",
        make: Make::Alone(|stage| Box::new(Queued::new(stage, Queueing::On))),
    },
    Named {
        name: "warm-auto",
        what: "warm with queue = \"auto\", as a front does by default: requests wait where that pays",
        make: Make::Alone(|stage| Box::new(Queued::new(stage, Queueing::Auto))),
    },
    Named {
        name: "kubeai",
        what: "prefix-hash with KubeAI's published bound",
        make: Make::Own(|| Settings { bound: Bound::Kubeai, ..by(Policy::PrefixHash) }),
    },
    Named {
        name: "prefix-hash-jumps",
        what: "prefix-hash; from a full home on by random jumps, as Envoy does, not to the next",
        make: Make::Alone(|stage| Box::new(Jumps::new(stage))),
    },
    Named {
        name: "sticky",
        what: "a session stays where it first went",
        make: Make::Alone(|stage| Box::new(Sticky::new(stage.engines(), stage.seed))),
    },
    Named {
        name: "sglang",
        what: "prompt tree of the SGLang router: 0.5, 32, 1.0001; a miss goes to the smallest tree",
        make: Make::Alone(|stage| Box::new(PromptTree::new(stage.engines(), SGLANG, stage.seed))),
    },
    Named {
        name: "smg",
        what: "prompt tree of SGLang's successor: 0.3; by request 64 and 1.5 of the mean; a miss goes to the least load",
        make: Make::Alone(|stage| Box::new(PromptTree::new(stage.engines(), SMG, stage.seed))),
    },
    Named {
        name: "llm-d",
        what: "scorers: prefix 3, queue 2, KV use 2; metrics every 50 ms",
        make: Make::Alone(|stage| Box::new(Scorers::new(stage.weights, stage.blocks, stage.seed))),
    },
    Named {
        name: "dynamo",
        what: "prefill left after overlap, and active blocks; KV events without delay",
        make: Make::Alone(|stage| Box::new(Overlap::new(stage.engines(), stage.seed))),
    },
    Named {
        name: CLAIRVOYANT,
        what: "soonest first token by the engines' state and uncached tokens, separate caches",
        make: Make::Knowing(Oracle::with_caches_apart),
    },
    Named {
        name: POOLED,
        what: "the oracle, if it did not see when steps end",
        make: Make::Knowing(Oracle::without_steps),
    },
    Named {
        name: ORACLE,
        what: "one pooled cache, the soonest first token by state and uncached tokens",
        make: Make::Knowing(Oracle::new),
    },
];

/// The policy of that name.
pub fn named(name: &str) -> Option<&'static Named> {
    POLICIES.iter().find(|policy| policy.name == name)
}

fn by(policy: Policy) -> Settings {
    Settings { policy, ..Settings::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a policy of the product is by default is no part of what another's name says.
    #[test]
    fn a_row_is_of_the_policy_that_it_names() {
        let rows: Vec<(&str, Policy)> = POLICIES
            .iter()
            .filter_map(|named| match named.make {
                Make::Own(settings) => Some((named.name, settings().policy)),
                Make::Knowing(_) | Make::Alone(_) => None,
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("random", Policy::Random),
                ("round-robin", Policy::RoundRobin),
                ("least-load", Policy::LeastLoad),
                ("session", Policy::Session),
                ("prefix-hash", Policy::PrefixHash),
                ("prefix-hash-conversation", Policy::PrefixHash),
                ("warm", Policy::Warm),
                ("precise", Policy::Precise),
                ("kubeai", Policy::PrefixHash),
            ]
        );
    }
}
