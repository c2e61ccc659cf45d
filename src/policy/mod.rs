//! The choice of an endpoint: a pure function of a pool, the loads and the request.
//!
//! It allocates nothing and takes no lock. What it answers is counted by
//! [`crate::counters::Counters::try_admit_below`] before anything is awaited. If another shard was faster, it is made
//! again; attempt [`CHOICES_MAX`] ignores the bound on load, but never a cap.
//!
//! When what a policy needs is missing, it falls down a ladder to the least load and says so in
//! [`Reason`]; never "all tie, so the first".

mod avoid;
mod balance;
mod best;
mod cache;
mod chwbl;
mod cost;
mod eligible;
mod glance;
mod holding;
mod lengths;
mod pool;
mod settings;
mod warm;

use serde::{Deserialize, Serialize};

use crate::fleet::{Caps, EndpointId, Loads};
use crate::scan::Needs;

pub use crate::fleet::PoolId;
pub use avoid::Avoid;
pub(crate) use chwbl::weighted_bound;
pub use cost::{Cost, Costs};
pub use eligible::Eligible;
pub use pool::Pool;
pub use settings::{Bound, Queueing, Settings, ShadowPolicy};
pub use warm::Prompt;

/// The policies, by the name operators write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Uniformly.
    Random,
    /// One after the other, per shard.
    RoundRobin,
    /// Fewest in flight, random among ties.
    LeastLoad,
    /// Session key on the bounded ring.
    Session,
    /// Prompt prefix on the bounded ring (CHWBL).
    PrefixHash,
    /// Least work in tokens; what each endpoint holds of the prompt is judged by what was sent there.
    Warm,
    /// The same, judged by what engines themselves say that they hold.
    Precise,
}

impl Policy {
    /// What of a body a choice waits for.
    pub fn needs(self) -> Needs {
        match self {
            Policy::Random | Policy::RoundRobin | Policy::LeastLoad => Needs::NONE,
            Policy::Session => Needs::SESSION,
            Policy::PrefixHash | Policy::Warm | Policy::Precise => Needs::PREFIX,
        }
    }

    /// The name operators write.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Random => "random",
            Policy::RoundRobin => "round-robin",
            Policy::LeastLoad => "least-load",
            Policy::Session => "session",
            Policy::PrefixHash => "prefix-hash",
            Policy::Warm => "warm",
            Policy::Precise => "precise",
        }
    }

    /// Whether it chooses by the tokens of a prompt that an endpoint does not hold.
    #[inline]
    pub fn counts_tokens(self) -> bool {
        matches!(self, Policy::Warm | Policy::Precise)
    }
}

/// How often an endpoint is chosen for one request, because other shards were faster each time, before it is taken
/// whatever its load.
pub const CHOICES_MAX: u32 = 3;

/// What is known of a request when its endpoint is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The prompt, where its tokens are what counts.
    pub prompt: Option<Prompt<'a>>,
    /// Tokens of it and of its answer that an endpoint has to take; 0: they are not known, or those of several prompts.
    pub context: u32,
    /// Key of the prompt's prefix.
    pub key: Option<u64>,
    /// Whether the key is missing because the body could not be read, not because it has no prefix.
    pub unscannable: bool,
    /// Hash of the session key.
    pub session: Option<u64>,
    /// Where the stored response lies that it is about: no other endpoint can answer it.
    pub lies_at: Option<u16>,
    /// Endpoints this request has already tried.
    pub avoid: Avoid,
    /// Random bits, for `random` and ties.
    pub random: u64,
    /// Counts the choices of this shard, for `round-robin`.
    pub turn: u64,
}

/// Why an endpoint was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// Policy `random`.
    Random,
    /// Policy `round-robin`.
    RoundRobin,
    /// Policy `least-load`.
    LeastLoad,
    /// First endpoint for the prefix.
    Home,
    /// The prefix's home was at its bound; a later endpoint of the ring.
    Spill,
    /// First endpoint for the session.
    SessionHome,
    /// The session's home was at its bound; a later endpoint of the ring.
    SessionSpill,
    /// Every endpoint was at its bound: the least loaded (KubeAI's rule: the home).
    AllFull,
    /// No prompt prefix to hash: least load.
    NoPrefix,
    /// No session key in the request: least load.
    NoSession,
    /// The body could not be read: least load.
    Unscannable,
    /// Chosen again, past endpoints already tried.
    Retry,
    /// Least work in tokens, some of the prompt being in its cache.
    Warm,
    /// Least work in tokens, none of the prompt being in its cache.
    Cold,
    /// It has the stored response that is asked for.
    Stored,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Reason; 15] = [
        Reason::Random,
        Reason::RoundRobin,
        Reason::LeastLoad,
        Reason::Home,
        Reason::Spill,
        Reason::SessionHome,
        Reason::SessionSpill,
        Reason::AllFull,
        Reason::NoPrefix,
        Reason::NoSession,
        Reason::Unscannable,
        Reason::Retry,
        Reason::Warm,
        Reason::Cold,
        Reason::Stored,
    ];

    /// Its label in metrics and receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Random => "random",
            Reason::RoundRobin => "round_robin",
            Reason::LeastLoad => "least_load",
            Reason::Home => "home",
            Reason::Spill => "spill",
            Reason::SessionHome => "session_home",
            Reason::SessionSpill => "session_spill",
            Reason::AllFull => "all_full",
            Reason::NoPrefix => "no_prefix",
            Reason::NoSession => "no_session",
            Reason::Unscannable => "unscannable",
            Reason::Retry => "retry",
            Reason::Warm => "warm",
            Reason::Cold => "cold",
            Reason::Stored => "stored",
        }
    }

    /// Whether the request went past a home that was at its bound.
    pub fn spilled(self) -> bool {
        matches!(self, Reason::Spill | Reason::SessionSpill | Reason::AllFull)
    }
}

/// An endpoint and the figures that led to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Why.
    pub reason: Reason,
    /// For a spill the home that was full; for a home the next endpoint of the ring, if that is near; for least work
    /// the next cheapest.
    pub runner_up: Option<u16>,
    /// Most requests of ours this endpoint may have, this one included: the bound less foreign load. `None`: no bound.
    pub bound: Option<u32>,
    /// Most requests of ours it may have whatever the load elsewhere, this one included: unlike `bound` never to be
    /// passed, also not when the choice was made for the last time.
    pub caps: Caps,
    /// Load of the endpoint before this request: ours in flight and foreign.
    pub in_flight: u32,
    /// Load of all eligible endpoints before this request, where the policy looked at it.
    pub total: Option<u64>,
    /// What the endpoint holds of the prompt, where the policy looked at that.
    pub tokens: Option<Tokens>,
    /// What it was chosen by, where the policy counts work.
    pub costs: Option<Costs>,
    /// Its cache has room for this request. Where nothing is known of that, it has.
    pub room: bool,
    /// Tokens of the endpoint's cache that must be free for this prompt and its answer. Where there is room for one
    /// request, there is for each that needs less.
    pub needs: u32,
}

impl Choice {
    /// An endpoint that has this load, where no other figure was looked at.
    #[inline]
    pub(super) fn at(eligible: &Eligible, loads: &Loads, slot: u16, load: u32, reason: Reason) -> Choice {
        Choice {
            endpoint: eligible.id(slot),
            reason,
            runner_up: None,
            bound: None,
            caps: eligible.caps(slot, loads),
            in_flight: load,
            total: None,
            tokens: None,
            costs: None,
            room: true,
            needs: 0,
        }
    }

    /// This choice as it is told of: with reason [`Reason::Retry`] if endpoints were tried before, else its own.
    #[must_use]
    #[inline]
    pub fn told(self, request: &Request<'_>) -> Choice {
        let reason = if request.avoid.is_empty() { self.reason } else { Reason::Retry };
        Choice { reason, ..self }
    }
}

/// A prompt at one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tokens {
    /// In its cache, as far as is believed.
    pub held: u32,
    /// To be computed.
    pub new: u32,
    /// In its cache by the index, believed or not: without what is taken to follow since it was sent there, where an
    /// engine's own text is not known to its end.
    pub predicted: u32,
}

/// Why nobody was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Nobody {
    /// None that has not been tried takes requests.
    NoneTakesRequests,
    /// Those that take requests have as many of ours as they may: one is free when a request ends.
    AllAtTheirCap,
}

impl Nobody {
    /// As `explain` calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Nobody::NoneTakesRequests => "none_takes_requests",
            Nobody::AllAtTheirCap => "all_at_their_cap",
        }
    }

    /// Why nobody was found: if an eligible endpoint was not tried, it must be at its cap.
    #[cold]
    fn of(eligible: &Eligible, request: &Request<'_>) -> Nobody {
        match eligible.slots().iter().any(|slot| !eligible.was_tried(&request.avoid, *slot)) {
            true => Nobody::AllAtTheirCap,
            false => Nobody::NoneTakesRequests,
        }
    }
}

/// Chooses an endpoint of the pool for a request, by the pool's policy.
#[inline]
pub fn choose(pool: &Pool, loads: &Loads, request: &Request<'_>) -> Result<Choice, Nobody> {
    choose_by(pool.settings.policy, pool, loads, request).map(|choice| choice.told(request))
}

/// The same by any policy. The reason is never `Retry`; [`Choice::told`] sees to that.
#[inline]
pub fn choose_by(policy: Policy, pool: &Pool, loads: &Loads, request: &Request<'_>) -> Result<Choice, Nobody> {
    // Even if all of these were tried or are at their caps: others would refuse this prompt for its length.
    let pool = pool.taking(request.context);
    let eligible = pool.eligible();
    if let Some(slot) = request.lies_at.filter(|slot| !eligible.was_tried(&request.avoid, *slot))
        && let Some(row) = eligible.row(slot)
    {
        let choice = balance::alone(eligible, loads, row, slot)?;
        return Ok(match &request.prompt {
            Some(prompt) if policy.counts_tokens() => warm::there(pool, loads, prompt, choice),
            _ => choice,
        });
    }
    let choice = match policy {
        Policy::Random => balance::random(eligible, loads, request),
        Policy::RoundRobin => balance::round_robin(eligible, loads, request),
        Policy::LeastLoad => balance::least_load(eligible, loads, request, Reason::LeastLoad),
        Policy::Session => match request.session {
            Some(key) => chwbl::bounded(pool, loads, request, key, &chwbl::SESSION),
            None => balance::least_load(eligible, loads, request, Reason::NoSession),
        },
        Policy::Warm | Policy::Precise if let Some(prompt) = &request.prompt => {
            warm::least_work(policy, pool, loads, request, prompt)
        }
        Policy::PrefixHash | Policy::Warm | Policy::Precise => match request.key {
            Some(key) => chwbl::bounded(pool, loads, request, key, &chwbl::PREFIX),
            None if request.unscannable => balance::least_load(eligible, loads, request, Reason::Unscannable),
            None => balance::least_load(eligible, loads, request, Reason::NoPrefix),
        },
    };
    choice.ok_or_else(|| Nobody::of(eligible, request))
}

/// Whether a request should wait for room where the chosen endpoint has none.
#[inline]
pub fn waiting_pays(pool: &Pool, loads: &Loads, choice: &Choice) -> bool {
    match pool.settings.queue {
        Queueing::On => true,
        Queueing::Off => false,
        Queueing::Auto => holding::in_force(pool, loads, choice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_at_their_numbers() {
        for (number, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
