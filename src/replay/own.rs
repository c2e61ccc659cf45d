//! The product's own policies, by the code that serves: [`policy::choose`] over a sealed snapshot with a real
//! ring, counted at the choice in the shared counters and released at the last token.
//!
//! `warm` has a real index as well, as large as the engines' caches. A prompt is noted there at the choice, with room
//! for its answer; its tokens are settled at the first token, and the engines' KV use is read as often as control
//! scrapes. Prompt lengths are known exactly, while a front estimates them. Blocks are the traffic's, while a front
//! that hears no events has blocks of 256 bytes (what that is worth: `README.md`). If the policy hears the engines' KV
//! events, [`Ears`] writes them into the index, and blocks that are noted at the choice are promised.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::chooser::{Asked, Chooser, Placed, Stage, draws};
use super::events::Batch;
use super::fleet::Fleet;
use super::precise::Ears;
use super::traffic::chain::mix;
use crate::config::Control;
use crate::counters::queue::Queue;
use crate::counters::{Admission, Counters};
use crate::demo::conversation::Dice;
use crate::engine::core::Figures;
use crate::engine::tokens::TOKEN_BYTES;
use crate::fleet::{Endpoint, EndpointId, Turnover};
use crate::index::{Capacity, Index, Matches};
use crate::policy::{self, Choice, Policy, PoolId, Prompt, Settings, Tokens};
use crate::scan::PrefixMode;
use crate::snapshot::Snapshot;

/// One of the product's policies on a fleet of healthy endpoints.
pub struct Own {
    snapshot: Snapshot,
    counters: &'static Counters,
    admissions: HashMap<u64, Admission>,
    matches: Box<Matches>,
    /// Tokens in the cache of an endpoint of weight 1.
    cache_tokens: u64,
    /// Whether there are other fronts, whose load it reads off the engines.
    among_others: bool,
    dice: Dice,
    turn: u64,
    ears: Option<Ears>,
    /// Turnover of each endpoint's cache, by slot.
    turnovers: Vec<Turnover>,
}

impl Own {
    /// Makes endpoints called engine-0:8000 and so on, since the ring is made from names. The counters live as long as
    /// the process, as a front's do: some hundred kilobytes a run.
    pub fn new(stage: &Stage<'_>, settings: Settings) -> Own {
        let endpoints: Vec<Endpoint> = (0..)
            .zip(stage.weights)
            .map(|(slot, &weight)| {
                let name = format!("engine-{slot}:8000").into();
                let id = EndpointId { slot, generation: 1 };
                Endpoint { weight, ..Endpoint::new(id, name, ([127, 0, 0, 1], 8000).into()) }
            })
            .collect();
        let index = settings.policy.counts_tokens().then(|| index(&endpoints, stage.blocks)).flatten();
        let with_blocks = endpoints.iter().map(|endpoint| (endpoint.id, stage.blocks * endpoint.weight));
        let heard = index.as_deref().filter(|_| hears(&settings));
        let ears = heard.map(|index| Ears::new(with_blocks, index, stage.events, stage.seed));
        let snapshot = Snapshot { index, ..Snapshot::of_one_pool(endpoints, settings) };
        Own {
            snapshot,
            counters: Counters::leak(),
            admissions: HashMap::new(),
            matches: Box::default(),
            among_others: stage.fronts > 1,
            cache_tokens: u64::from(stage.blocks) * u64::from(stage.block_tokens),
            dice: Dice::new(mix(stage.seed, draws::CHOICE)),
            turn: 0,
            ears,
            turnovers: vec![Turnover::default(); stage.engines()],
        }
    }

    /// Takes in all events that have come by now.
    fn hear(&mut self, now_ns: u64) {
        if let (Some(ears), Some(index)) = (&mut self.ears, &self.snapshot.index) {
            ears.catch_up(now_ns, index);
        }
    }

    /// Counts requests without their last token.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.admissions.len()
    }
}

/// Whether the engines' KV events write its index.
pub(super) fn hears(settings: &Settings) -> bool {
    settings.policy == Policy::Precise
}

/// Makes an index in which every endpoint has as many blocks as its cache: `blocks` times its weight.
fn index(endpoints: &[Endpoint], blocks: u32) -> Option<Arc<Index>> {
    let of = |endpoint: &Endpoint| blocks * endpoint.weight;
    let all = endpoints.iter().map(|one| (of(one) as usize).max(Capacity::BLOCKS_MIN)).sum();
    let index = Index::new(Capacity { endpoints: endpoints.len(), blocks: all, lengths: false }).ok()?;
    for endpoint in endpoints {
        index.assign(endpoint.id, Some(of(endpoint))).ok()?;
    }
    Some(Arc::new(index))
}

/// Hash of the first `bytes` of a prompt, in whole blocks, at least one; of a shorter prompt all of its blocks.
fn start(asked: &Asked, bytes: u32) -> Option<u64> {
    let wanted = bytes / TOKEN_BYTES as u32 / asked.block_tokens.max(1);
    let blocks = asked.request.prompt_blocks(asked.block_tokens);
    let last = blocks.len().min(wanted.max(1) as usize).checked_sub(1);
    last.and_then(|last| blocks.get(last).copied()).or(asked.request.opening)
}

impl Own {
    /// Chooses for a request; nothing counts yet.
    pub(super) fn decide(&mut self, asked: &Asked) -> Option<Choice> {
        self.turn += 1;
        self.hear(asked.now_ns);
        let pool = self.snapshot.pools.first()?;
        let key = match pool.settings.prefix {
            PrefixMode::FirstUser => asked.request.opening,
            PrefixMode::Conversation => start(asked, pool.settings.prefix_bytes),
        };
        let key = key.map(|key| mix(key, draws::KEY));
        let chain = asked.request.prompt_blocks(asked.block_tokens);
        let index = self.snapshot.index.as_deref();
        let prompt = index.map(|index| {
            index.longest(chain, pool.eligible().ids(), &mut self.matches);
            let tie = chain.get(self.matches.deepest() as usize).or(chain.last()).copied();
            let (tokens, block_tokens) = (asked.request.prompt, asked.block_tokens as f32);
            Prompt { tokens, block_tokens, matches: &self.matches, tie: tie.or(key).unwrap_or(0) }
        });
        let request = policy::Request {
            prompt,
            key,
            session: asked.request.session.map(|session| mix(session, draws::SESSION)),
            random: self.dice.number(),
            turn: self.turn,
            ..policy::Request::default()
        };
        // No endpoint is ejected or capped here, and no other shard is faster: the first choice stands.
        policy::choose(pool, self.counters.loads(), &request).ok()
    }

    /// Whether a request waits for room.
    pub(super) fn holds(&self, choice: &Choice) -> bool {
        self.snapshot.pools.first().is_some_and(|pool| policy::waiting_pays(pool, self.counters.loads(), choice))
    }

    /// The queue of requests that wait for room.
    pub(super) fn queue(&self) -> &'static Queue {
        self.counters.queue()
    }

    /// Places a request where it was chosen for; it counts from here on.
    pub(super) fn place(&mut self, asked: &Asked, choice: &Choice) -> Option<Placed> {
        let chain = asked.request.prompt_blocks(asked.block_tokens);
        let (pool, index) = (self.snapshot.pools.first()?, self.snapshot.index.as_deref());
        let mut admission = self.counters.try_admit(choice.endpoint, choice.bound)?;
        if let Some(Tokens { held, new, .. }) = choice.tokens {
            admission.computes(new);
            let mean_answer = self.counters.loads().mean_answer(pool.id);
            admission.occupies((held + new).saturating_add(mean_answer));
            self.counters.prompt(pool.id, held + new, held);
            if let Some(index) = index {
                let is_exact = |ears: &Ears| ears.is_exact(choice.endpoint.slot.into());
                let in_blocks = chain.len() as u32 * asked.block_tokens;
                let beyond = match self.ears.as_ref().is_some_and(is_exact) {
                    // An engine that tells what it holds tells of answers too.
                    true => 0,
                    false => asked.request.prompt.saturating_sub(in_blocks) + mean_answer,
                };
                let (mut chain, answer_blocks) = (chain.to_vec(), (beyond / asked.block_tokens) as usize);
                // No other thread writes here, and no endpoint goes: the insertion is never refused.
                let _ = index.ask(&mut chain, answer_blocks, choice.endpoint, self.ears.is_some());
            }
        }
        self.admissions.insert(asked.number, admission);
        let predicted = choice.tokens.map(|tokens| tokens.predicted);
        Some(Placed { engine: choice.endpoint.slot.into(), predicted })
    }
}

impl Chooser for Own {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        let choice = self.decide(asked)?;
        self.place(asked, &choice)
    }

    fn first_token(&mut self, number: u64) {
        if let Some(admission) = self.admissions.get_mut(&number) {
            admission.computed();
        }
    }

    fn ended(&mut self, number: u64, _engine: usize, tokens: u32) {
        self.counters.answer(PoolId(0), tokens);
        self.admissions.remove(&number);
    }

    fn scrape_every_ns(&self) -> Option<u64> {
        let reads = self.among_others || self.snapshot.index.is_some();
        reads.then(|| Control::default().scrape_interval_ms * 1_000_000)
    }

    fn scraped(&mut self, now_ns: u64, figures: &[Figures]) {
        self.hear(now_ns);
        let since = Duration::from_millis(Control::default().scrape_interval_ms);
        let engines = self.snapshot.endpoints.iter_mut().flatten().zip(&mut self.turnovers);
        for ((endpoint, turnover), figures) in engines.zip(figures) {
            if let Some(index) = self.snapshot.index.as_deref() {
                let known = index.figures(endpoint.id.slot);
                turnover.saw((known.gone(), known.came()), known.blocks, known.capacity, since);
                (endpoint.turnover, endpoint.vacant) = (turnover.part(), turnover.vacant());
            }
            endpoint.engine.kv_use = Some(figures.kv_usage as f32);
            endpoint.engine.kv_capacity_tokens = Some(self.cache_tokens * u64::from(endpoint.weight));
            endpoint.engine.running = Some(figures.running as u32);
            endpoint.engine.waiting = Some(figures.waiting as u32);
            endpoint.resident_at = self.counters.loads().resident(endpoint.id.slot);
            endpoint.dispatched_at = self.counters.loads().dispatched(endpoint.id.slot);
            let theirs = (figures.running + figures.waiting) as u32;
            endpoint.foreign = theirs.saturating_sub(self.counters.loads().in_flight(endpoint.id.slot));
        }
        self.snapshot.seal();
    }

    fn hears_events(&self) -> bool {
        self.ears.is_some()
    }

    fn published(&mut self, now_ns: u64, engine: usize, batch: &Batch) {
        if let Some(ears) = &mut self.ears {
            ears.published(now_ns, engine, batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::events::Delivery;
    use crate::replay::peers::trial::{Trial, prompt};
    use crate::replay::traffic::Request;

    fn trial(policy: Policy) -> Trial<Own> {
        let events = Delivery::default();
        let stage = Stage { weights: &[1; 4], blocks: 5_500, block_tokens: 16, fronts: 1, events, seed: 1 };
        Trial::new(Own::new(&stage, Settings { policy, ..Settings::default() }), 4)
    }

    #[test]
    fn requests_count_from_their_choice_and_tokens_until_the_first_of_the_answer() {
        let mut trial = trial(Policy::Warm);
        let loads = trial.chooser.counters.loads();
        let (first, home) = trial.ask(&[(1, 4_000)]);
        assert_eq!((loads.in_flight(home as u16), loads.pending(home as u16)), (1, 4_000));
        trial.chooser.first_token(first);
        assert_eq!((loads.in_flight(home as u16), loads.pending(home as u16)), (1, 0));
        let (second, again) = trial.ask(&[(1, 4_000), (2, 320)]);
        assert_eq!((again, loads.pending(home as u16)), (home, 320), "the index holds what was sent");
        let (third, other) = trial.ask(&[(3, 4_000)]);
        assert_ne!(other, home, "what is new goes where less is to do");
        [first, second].iter().for_each(|number| trial.chooser.ended(*number, home, 1));
        assert_eq!((loads.in_flight(home as u16), loads.pending(home as u16)), (0, 0));
        trial.chooser.ended(third, other, 1);
        assert_eq!(trial.chooser.counters.in_flight_in_all() + trial.chooser.counters.underflow(), 0);
    }

    #[test]
    fn a_heavy_engine_gets_as_many_more() {
        let (events, weights) = (Delivery::default(), [4, 1]);
        let stage = Stage { weights: &weights, blocks: 5_500, block_tokens: 16, fronts: 1, events, seed: 1 };
        let settings = Settings { policy: Policy::LeastLoad, ..Settings::default() };
        let mut trial = Trial::new(Own::new(&stage, settings), 2);
        for session in 0..50 {
            trial.ask(&[(session, 50)]);
        }
        let loads = trial.chooser.counters.loads();
        assert_eq!([loads.in_flight(0), loads.in_flight(1)], [40, 10]);
    }

    #[test]
    fn scraped_caches_reach_the_choice() {
        let mut trial = trial(Policy::Warm);
        assert_eq!(trial.chooser.scrape_every_ns(), Some(1_000_000_000));
        let (number, home) = trial.ask(&[(1, 4_000)]);
        trial.chooser.first_token(number);
        let full = |engine| Figures { kv_usage: if engine == home { 1.0 } else { 0.0 }, ..Figures::default() };
        trial.chooser.scraped(0, &(0..4).map(full).collect::<Vec<_>>());
        assert_ne!(trial.ask(&[(1, 320)]).1, home, "320 held tokens are not worth a full cache");
        assert_eq!(self::trial(Policy::PrefixHash).chooser.scrape_every_ns(), None);
    }

    #[test]
    fn prompts_shorter_than_a_block_are_spread() {
        let mut trial = trial(Policy::Warm);
        let mut home = |opening| {
            let request = Request { opening: Some(opening), ..prompt(&[(opening, 8)]) };
            let asked = Asked { number: opening, now_ns: 0, request: &request, block_tokens: 16, tenant: 0 };
            trial.chooser.decide(&asked).unwrap().endpoint.slot
        };
        let homes: Vec<u16> = (0..32).map(&mut home).collect();
        assert!((0..4).all(|slot| homes.contains(&slot)), "{homes:?}");
        assert_eq!(homes, (0..32).map(home).collect::<Vec<_>>());
    }

    #[test]
    fn a_key_has_one_home() {
        let mut trial = trial(Policy::Session);
        let homes = [1, 2, 3, 4, 5, 6].map(|session| trial.ask(&[(session, 50)]).1);
        assert_eq!(homes, [1, 2, 3, 4, 5, 6].map(|session| trial.ask(&[(session, 50)]).1));
        assert!(homes.iter().any(|home| *home != homes[0]));
    }
}
