//! What lasts of the pools while every engine lists what it did, where it did. Hundreds of engines may list a thousand
//! adapters each, and something of theirs is published many times a second: what each says of each id is looked at
//! where lists change, and between that what changes with each word of an engine.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::living;
use crate::control::calibration;
use crate::control::member::Member;
use crate::control::models::{Cards, Learnt};
use crate::limits::TOKENS_MAX;
use crate::snapshot::{Pool, PoolId};

/// See the module.
#[derive(Debug)]
pub(super) struct Shape {
    /// What it is made of, engine by engine.
    pub(super) of: Vec<Part>,
    pub(super) told: Vec<Told>,
    pub(super) models: Arc<HashMap<Box<[u8]>, PoolId>>,
    pub(super) unlearnt: Option<PoolId>,
    /// An id got no pool.
    pub(super) refused: bool,
}

/// What one engine gives to it.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    place: usize,
    pub(super) slot: Option<u16>,
    pub(super) has_lost_its_models: bool,
    configured: Vec<String>,
    listed: Option<Listed>,
}

/// A list that is the same where it is the same in memory, or says so.
#[derive(Debug)]
struct Listed(Cards);

impl PartialEq for Listed {
    fn eq(&self, other: &Listed) -> bool {
        self.0.say_as(&other.0)
    }
}

impl Part {
    pub(super) fn of(member: &Member) -> Part {
        Part {
            place: member.place,
            slot: member.now.as_ref().map(|tenancy| tenancy.id.slot),
            has_lost_its_models: member.has_lost_its_models(),
            configured: member.upstream.models.clone(),
            listed: member.models.as_ref().map(|learnt| Listed(learnt.cards.clone())),
        }
    }

    /// Whether it is not known what it serves.
    pub(super) fn is_unlearnt(&self) -> bool {
        self.configured.is_empty() && self.listed.is_none()
    }

    /// Where the list is that says what it serves.
    pub(super) fn list(&self) -> Option<usize> {
        self.listed.as_ref().filter(|_| self.configured.is_empty()).map(|listed| listed.0.address())
    }
}

/// A pool with what its engines' lists say of it.
#[derive(Debug)]
pub(super) struct Told {
    pool: Pool,
    /// Tokens of the longest prompt that one of them takes, as far as they say,
    context: u32,
    /// and those that do not.
    undescribed: Box<[u16]>,
}

impl Told {
    pub(super) fn of(mut pool: Pool, seated: &HashMap<u16, &Member>, members: &[Member]) -> Told {
        let of_pool: Vec<&Member> = pool.members.iter().filter_map(|slot| seated.get(slot).copied()).collect();
        if of_pool.is_empty() {
            return Told { context: pool.context, pool, undescribed: Box::default() };
        }
        let described: Vec<Option<u32>> = of_pool.iter().map(|member| member.described_context(&pool.name)).collect();
        let all = || pool.members.iter().copied().zip(described.iter().copied());
        pool.contexts = contexts(all());
        let undescribed = all().filter(|(_, context)| context.is_none()).map(|(slot, _)| slot).collect();
        let context = described.iter().copied().flatten().max().unwrap_or(0);
        pool.is_adapter = of_pool.iter().copied().chain(members).any(|member| member.is_adapter(&pool.name));
        pool.root = root(&pool.name, &of_pool).map_or_else(|| Arc::clone(&pool.name), Arc::from);
        Told { pool, context, undescribed }
    }

    /// See [`Pool::context`]: one that does not say may take any that its cache holds, if it says how much that is.
    fn context(&self, cached: &HashMap<u16, u32>) -> u32 {
        let cached = self.undescribed.iter().map(|slot| cached.get(slot).copied().unwrap_or(TOKENS_MAX));
        cached.fold(self.context, u32::max).min(TOKENS_MAX)
    }
}

/// What the engines of a pool say of themselves, whatever its model: pools of the same engines share it.
#[derive(Clone, Copy)]
struct Said {
    match_unit: u32,
    token_bytes: f32,
    asks_keys: bool,
}

impl Said {
    fn by(slots: &[u16], seated: &HashMap<u16, &Member>) -> Said {
        let of_pool: Vec<&Member> = slots.iter().filter_map(|slot| seated.get(slot).copied()).collect();
        let tenancies = of_pool.iter().filter_map(|member| member.now.as_ref());
        let units = living(of_pool.iter().copied()).into_iter().filter_map(|member| member.now.as_ref()?.match_unit);
        Said {
            match_unit: units.max().unwrap_or(0),
            token_bytes: calibration::mean(tenancies.filter_map(|one| one.truth.calibration.token_bytes())),
            asks_keys: of_pool.iter().any(|member| member.lock.asks()),
        }
    }
}

impl Shape {
    /// The pools as they are now.
    pub(super) fn pools(&self, members: &[Member]) -> Vec<Pool> {
        let seated = members.iter().filter_map(|member| Some((member.now.as_ref()?.id.slot, member)));
        let seated: HashMap<u16, &Member> = seated.collect();
        let cached = seated.iter().filter_map(|(slot, member)| Some((*slot, member.cached_context()?))).collect();
        let mut said: HashMap<*const u16, Said> = HashMap::new();
        let pool = |told: &Told| {
            let mut pool = told.pool.clone();
            if !pool.members.is_empty() {
                let Said { match_unit, token_bytes, asks_keys } =
                    *said.entry(pool.members.as_ptr()).or_insert_with(|| Said::by(&pool.members, &seated));
                (pool.match_unit, pool.token_bytes, pool.asks_keys) = (match_unit, token_bytes, asks_keys);
                pool.context = told.context(&cached);
            }
            pool
        };
        self.told.iter().map(pool).collect()
    }
}

/// See [`Pool::root`]: the least, in whatever order engines name them. Who has not listed its ids yet has no say, else
/// all would be cold while one more engine starts.
fn root<'a>(name: &str, of_pool: &[&'a Member]) -> Option<&'a str> {
    let mut lists: Vec<&Learnt> = of_pool.iter().filter_map(|member| member.models.as_ref()).collect();
    lists.dedup_by(|one, other| one.cards.are(&other.cards));
    let mut lists = lists.into_iter();
    let mut all: BTreeSet<&str> = lists.next()?.alike(name).collect();
    // Of an adapter there is none from the first on.
    while let Some(list) = lists.next().filter(|_| !all.is_empty()) {
        let theirs: BTreeSet<&str> = list.alike(name).collect();
        all.retain(|id| theirs.contains(id));
    }
    all.pop_first()
}

/// See [`Pool::contexts`]: one that does not say may take any. How large its cache is does not count, in which engines
/// of one kind differ by a little.
fn contexts(described: impl Iterator<Item = (u16, Option<u32>)>) -> Arc<[u32]> {
    let contexts: Vec<u32> = described.map(|(_, context)| context.unwrap_or(TOKENS_MAX).min(TOKENS_MAX)).collect();
    if contexts.windows(2).all(|pair| pair[0] == pair[1]) { Arc::default() } else { contexts.into() }
}
