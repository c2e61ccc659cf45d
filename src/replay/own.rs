//! The product's own policies, by the code that serves: [`policy::choose`] over a sealed snapshot with a real
//! ring, counted at the choice in the shared counters and released at the last token.

use std::collections::HashMap;
use std::sync::Arc;

use super::chooser::{Asked, Chooser};
use super::fleet::Fleet;
use super::traffic::chain::mix;
use crate::counters::{Admission, Counters};
use crate::demo::conversation::Dice;
use crate::engine::tokens::TOKEN_BYTES;
use crate::fleet::{Endpoint, EndpointId};
use crate::policy::{self, Pool, PoolId, Settings};
use crate::ring::Ring;
use crate::scan::PrefixMode;
use crate::snapshot::Snapshot;

/// One of the product's policies on a fleet of healthy endpoints of equal weight.
pub struct Own {
    snapshot: Snapshot,
    counters: &'static Counters,
    admissions: HashMap<u64, Admission>,
    dice: Dice,
    turn: u64,
}

impl Own {
    /// `engines` endpoints, called engine-0:8000 and so on, since the ring is made from names. Its counters live
    /// as long as the process, as a front's do: some hundred kilobytes a run.
    pub fn new(engines: usize, seed: u64, settings: Settings) -> Own {
        let endpoints: Vec<Endpoint> = (0..engines as u16)
            .map(|slot| {
                let name = format!("engine-{slot}:8000").into();
                Endpoint::new(EndpointId { slot, generation: 1 }, name, ([127, 0, 0, 1], 8000).into())
            })
            .collect();
        let members: Vec<_> = endpoints.iter().map(|one| (one.id.slot, &*one.name, one.weight)).collect();
        let ring = Arc::new(Ring::build(&members, settings.replication));
        let pool = Pool::new(PoolId(0), "model".into(), (0..engines as u16).collect(), ring, Arc::new(settings));
        let mut snapshot =
            Snapshot { endpoints: endpoints.into_iter().map(Some).collect(), pools: vec![pool], ..Snapshot::default() };
        snapshot.seal();
        let counters = Counters::leak();
        Own { snapshot, counters, admissions: HashMap::new(), dice: Dice::new(mix(seed, 3)), turn: 0 }
    }

    /// What the front would know of a request when it chooses. The place where a policy that reads the whole
    /// prompt finds its chain (`asked.request.prompt_blocks(asked.block_tokens)`) and its length.
    fn request(&mut self, asked: &Asked, settings: &Settings) -> policy::Request {
        self.turn += 1;
        let key = match settings.prefix {
            PrefixMode::FirstUser => asked.request.opening,
            PrefixMode::Conversation => start(asked, settings.prefix_bytes),
        };
        policy::Request {
            key: key.map(|key| mix(key, 4)),
            session: asked.request.session.map(|session| mix(session, 5)),
            random: self.dice.number(),
            turn: self.turn,
            ..policy::Request::default()
        }
    }
}

/// Hash of the first bytes of a prompt, in whole blocks, at least one: what a shorter prompt has is all of it.
fn start(asked: &Asked, bytes: u32) -> Option<u64> {
    let wanted = bytes / TOKEN_BYTES as u32 / asked.block_tokens.max(1);
    let blocks = asked.request.prompt_blocks(asked.block_tokens);
    let last = blocks.len().min(wanted.max(1) as usize).checked_sub(1);
    last.and_then(|last| blocks.get(last).copied()).or(asked.request.opening)
}

impl Chooser for Own {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<usize> {
        let settings = Arc::clone(&self.snapshot.pools.first()?.settings);
        let request = self.request(asked, &settings);
        // Nobody is ejected or capped here, and no other shard is faster: the first choice stands.
        let choice = policy::choose(self.snapshot.pools.first()?, self.counters.loads(), &request).ok()?;
        self.admissions.insert(asked.number, self.counters.try_admit(choice.endpoint, choice.slots)?);
        Some(choice.endpoint.slot.into())
    }

    fn ended(&mut self, number: u64) {
        self.admissions.remove(&number);
    }
}
