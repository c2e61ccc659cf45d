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
    /// Which it is; not the order of arrival.
    pub number: u64,
    /// Now.
    pub now_ns: u64,
    /// What is asked.
    pub request: &'a Request,
    /// Tokens in each of its blocks.
    pub block_tokens: u32,
    /// On whose account.
    pub tenant: u16,
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// To which engine.
    pub engine: usize,
    /// Tokens of its prompt that this was thought to hold, where that was asked.
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
    /// It is asked for again.
    Ask(u64),
    /// It is sent away, and comes back after so many seconds.
    Refuse(u64, u32),
}

/// Chooses engines. What it may know beside its own requests: metrics at its last scrape, and, where it reads KV
/// events, what an engine's cache holds.
pub trait Chooser {
    /// The engine for a request; its load counts from here on.
    /// `None`: it waits in the front until [`Chooser::turn`].
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed>;
    /// Whose turn it is of those that wait, asked whenever a step has ended anywhere, and again after each that
    /// went. `first` came before the others.
    fn turn(&mut self, _now_ns: u64, first: u64) -> Option<Turn> {
        Some(Turn::Ask(first))
    }
    /// How often it is asked for a turn although nothing has ended, if it is.
    fn retry_every_ns(&self) -> Option<u64> {
        None
    }
    /// A request has its first token.
    fn first_token(&mut self, _number: u64) {}
    /// A request has the last of so many tokens of its engine.
    fn ended(&mut self, number: u64, engine: usize, tokens: u32);
    /// How often it reads the engines' metrics, if it does.
    fn scrape_every_ns(&self) -> Option<u64> {
        None
    }
    /// What they say, by engine.
    fn scraped(&mut self, _now_ns: u64, _figures: &[Figures]) {}
    /// Whether it hears the engines' KV events.
    fn hears_events(&self) -> bool {
        false
    }
    /// An engine sends a batch of them; when it comes is the chooser's to say.
    fn published(&mut self, _now_ns: u64, _engine: usize, _batch: &Batch) {}
    /// Whether the engines have one cache together: for the oracle alone.
    fn pools_caches(&self) -> bool {
        false
    }
}

/// What each draw mixes into what it is drawn from, so that no two of a run draw alike. Those of 6 meet nowhere: sticky
/// sessions stand before one front, and a tenant is drawn from who asks, not from the seed. Other numbers would be
/// other figures.
pub(super) mod draws {
    /// Of the product's policies, at a choice.
    pub const CHOICE: u64 = 3;
    /// Which bits a prompt's key has.
    pub const KEY: u64 = 4;
    /// Which a session's has.
    pub const SESSION: u64 = 5;
    /// To which front a request goes.
    pub const FRONT: u64 = 6;
    /// Of sticky sessions.
    pub const STICKY: u64 = 6;
    /// On whose account a session asks.
    pub const TENANT: u64 = 6;
    /// Of the scorers.
    pub const SCORERS: u64 = 7;
    /// By overlap cost.
    pub const OVERLAP: u64 = 8;
    /// Which events are lost.
    pub const LOSS: u64 = 9;
    /// Of the prompt trees.
    pub const PROMPT_TREE: u64 = 10;
    /// Of jumps, where a prompt has no prefix.
    pub const JUMPS: u64 = 11;
}

/// A policy's name and what it stands for.
pub struct Named {
    /// As `--policies` takes it.
    pub name: &'static str,
    /// In half a line.
    pub what: &'static str,
    make: Make,
}

/// How a policy is made.
enum Make {
    /// One of the product's, on so many fronts as the stage has.
    Own(fn() -> Settings),
    /// What knows all of so many engines, and the same behind any number of fronts.
    Knowing(fn(usize) -> Oracle),
    /// Another, that is simulated alone before its fleet.
    Alone(fn(&Stage<'_>) -> Box<dyn Chooser>),
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// Weights of the engines, one each; only the product's policies know of them, others of what a heavy engine tells
    /// of itself.
    pub weights: &'a [u32],
    /// Blocks in the cache of one of weight 1.
    pub blocks: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Fronts that share nothing, among which requests are dealt.
    pub fronts: usize,
    /// How KV events come to those fronts that hear them.
    pub events: Delivery,
    /// Varies what is drawn.
    pub seed: u64,
}

impl Stage<'_> {
    /// How many engines there are.
    pub fn engines(&self) -> usize {
        self.weights.len()
    }
}

impl Named {
    /// A new one, before any request.
    pub fn make(&self, stage: &Stage<'_>) -> Box<dyn Chooser> {
        match self.make {
            Make::Own(settings) => Box::new(Fronts::new(stage, &settings())),
            Make::Knowing(make) => Box::new(make(stage.engines())),
            Make::Alone(make) => make(stage),
        }
    }

    /// Whether how events come changes anything for it.
    pub fn hears_events(&self) -> bool {
        matches!(self.make, Make::Own(settings) if own::hears(&settings()))
    }

    /// Whether it says something of several fronts.
    pub fn on_several_fronts(&self) -> bool {
        !matches!(self.make, Make::Alone(_))
    }
}

/// The name of the baseline that others are compared with.
pub const RANDOM: &str = "random";
/// The name of the bound that others are compared with.
pub const ORACLE: &str = "oracle";
/// The name of the same without sight of steps.
pub const POOLED: &str = "pooled";
/// The name of the same with caches apart.
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
        what: "the same, keyed by the first 4,096 bytes of the whole prompt",
        make: Make::Own(|| Settings { prefix: PrefixMode::Conversation, ..by(Policy::PrefixHash) }),
    },
    Named {
        name: "warm",
        what: "least work in tokens, by what each engine holds of the prompt",
        make: Make::Own(|| by(Policy::Warm)),
    },
    Named {
        name: "precise",
        what: "the same, by what the engines' KV events tell",
        make: Make::Own(|| by(Policy::Precise)),
    },
    Named {
        name: "warm-held",
        what: "warm; where the engine has no room, requests wait in the front",
        make: Make::Alone(|stage| Box::new(Queued::new(stage, Queueing::On))),
    },
    Named {
        name: "warm-auto",
        what: "the same, while that pays",
        make: Make::Alone(|stage| Box::new(Queued::new(stage, Queueing::Auto))),
    },
    Named {
        name: "kubeai",
        what: "the same as prefix-hash with KubeAI's published bound",
        make: Make::Own(|| Settings { bound: Bound::Kubeai, ..by(Policy::PrefixHash) }),
    },
    Named {
        name: "prefix-hash-jumps",
        what: "the same as prefix-hash; past a full home not to the next but by random jumps, as Envoy does",
        make: Make::Alone(|stage| Box::new(Jumps::new(stage))),
    },
    Named {
        name: "sticky",
        what: "a session stays where it first went",
        make: Make::Alone(|stage| Box::new(Sticky::new(stage.engines(), stage.seed))),
    },
    Named {
        name: "sglang",
        what: "prompt tree of the SGLang router: 0.5, 32, 1.0001; a miss to the smallest tree",
        make: Make::Alone(|stage| Box::new(PromptTree::new(stage.engines(), SGLANG, stage.seed))),
    },
    Named {
        name: "smg",
        what: "prompt tree of its successor: 0.3; 64 and 1.5 of the mean by request; a miss to the least load",
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
        what: "soonest first token by the engines' state and uncached tokens, caches apart",
        make: Make::Knowing(Oracle::with_caches_apart),
    },
    Named {
        name: POOLED,
        what: "one pooled cache, the same state but for when steps end",
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
