//! Which engines serve which id: pools with ids that never change, rings that are built only when
//! membership does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::calibration;
use super::forms::Forms;
use super::member::Member;
use crate::config::Config;
use crate::fleet::Health;
use crate::limits::TOKENS_MAX;
use crate::policy::Settings;
use crate::ring::Ring;
use crate::snapshot::{Pool, PoolId};

/// The pool of engines whose models are not known yet, so that traffic flows before the first probe.
pub const UNLEARNT: &str = "default";

/// Most pools of one process; engines that make up ids without end get no further ones.
const POOLS_MAX: usize = 4_096;

type Rings = HashMap<(Arc<[u16]>, u32), Arc<Ring>>;

/// Every pool there has been.
#[derive(Debug)]
pub struct Pools {
    config: Arc<Config>,
    forms: Arc<Forms>,
    known: Vec<(Arc<str>, Arc<Settings>)>,
    places: HashMap<Arc<str>, PoolId>,
    /// By members and replication. A slot in a key means what it did when the ring was built, since a
    /// change of tenants empties the table, and each view keeps only what it uses.
    rings: Rings,
    /// There were so many ids that one got no pool.
    is_full: bool,
}

/// The pools as they are now.
#[derive(Debug)]
pub struct View {
    /// By id; those that nobody serves any more are empty.
    pub pools: Vec<Pool>,
    /// Served id to pool, of those that somebody serves.
    pub models: HashMap<Box<[u8]>, PoolId>,
    /// See [`crate::snapshot::Snapshot::default_pool`].
    pub default_pool: Option<PoolId>,
    /// See [`crate::snapshot::Snapshot::unlearnt`].
    pub unlearnt: Option<PoolId>,
    /// See [`crate::snapshot::Snapshot::only`].
    pub only: Option<PoolId>,
    /// Whether the models of every engine are known.
    pub complete: bool,
}

impl Pools {
    /// None yet.
    pub fn new(config: Arc<Config>, forms: Arc<Forms>) -> Pools {
        Pools { config, forms, known: Vec::new(), places: HashMap::new(), rings: HashMap::new(), is_full: false }
    }

    /// Settings are those of `config` from now on; ids stay.
    pub fn reconfigure(&mut self, config: Arc<Config>, forms: Arc<Forms>) {
        for (name, settings) in &mut self.known {
            *settings = Arc::new(config.settings_for(name));
        }
        (self.config, self.forms) = (config, forms);
        self.rings.clear();
    }

    /// How prompts of their models are written.
    pub fn write_as(&mut self, forms: Arc<Forms>) {
        self.forms = forms;
    }

    /// Slots have other tenants than before.
    pub fn membership_changed(&mut self) {
        self.rings.clear();
    }

    /// The pools that `members` make.
    pub fn view(&mut self, members: &[Member]) -> View {
        let mut slots: Vec<Vec<u16>> = vec![Vec::new(); self.known.len()];
        let mut models = HashMap::new();
        let mut complete = true;
        // Whether an engine of unknown models may take requests; a dead one must not keep the others waiting
        // for a `model` that all of them would serve.
        let (mut unlearnt, mut unlearnt_usable) = (None, false);
        let any_known = members.iter().any(|member| member.ids().is_some());
        for member in members {
            let ids = member.ids();
            complete &= ids.is_some();
            // Beside engines that list theirs it may be no engine at all: it is not to get what names no model either.
            if any_known && member.is_stranger() {
                continue;
            }
            let Some(tenancy) = &member.now else { continue };
            let is_out = matches!(member.health(), Some(Health::Down | Health::Draining | Health::Asleep));
            unlearnt_usable |= ids.is_none() && !is_out;
            for id in ids.clone().unwrap_or_else(|| vec![UNLEARNT]) {
                let Some(pool) = self.place(id) else { continue };
                let place = usize::from(pool.0);
                slots.resize_with(slots.len().max(place + 1), Vec::new);
                slots[place].push(tenancy.id.slot);
                match &ids {
                    Some(_) => drop(models.insert(Box::from(id.as_bytes()), pool)),
                    None => unlearnt = Some(pool),
                }
            }
        }
        let pools = self.pools(slots, members);
        let live = || pools.iter().filter(|pool| !pool.members.is_empty());
        let is_known = |pool: &&Pool| Some(pool.id) != unlearnt || models.contains_key(pool.name.as_bytes());
        let counted = |pool: &&Pool| unlearnt_usable || is_known(pool);
        let first = live().find(counted).map(|pool| pool.id);
        let default_pool = match self.config.serve.default_model.as_str() {
            "" => {
                let living = living(members);
                let slots: HashSet<u16> = living.iter().filter_map(|one| Some(one.now.as_ref()?.id.slot)).collect();
                let of_living =
                    |pool: &Pool| pool.members.iter().copied().filter(|slot| slots.contains(slot)).collect();
                base(&living).and_then(|id| models.get(id.as_bytes())).copied().filter(|base| {
                    // Who has not said yet what it serves changes nothing before it has.
                    let all: Vec<u16> = of_living(&pools[usize::from(base.0)]);
                    live().filter(is_known).map(of_living).all(|some| some.is_empty() || some == all)
                })
            }
            id => models.get(id.as_bytes()).copied(),
        };
        View {
            default_pool,
            unlearnt,
            only: first.filter(|_| live().filter(counted).count() == 1),
            models,
            complete,
            pools,
        }
    }

    /// The id of the pool of that name, for ever.
    fn place(&mut self, name: &str) -> Option<PoolId> {
        if let Some(id) = self.places.get(name) {
            return Some(*id);
        }
        if self.known.len() >= POOLS_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(
                    model = name,
                    "more than {POOLS_MAX} served ids since this process began, those that nobody serves any more among them: this and further ones get no pool; \
                     send SIGUSR2, and a new process begins anew"
                );
            }
            return None;
        }
        let id = PoolId(self.known.len() as u16);
        let name: Arc<str> = name.into();
        let settings = Arc::new(self.config.settings_for(&name));
        self.known.push((Arc::clone(&name), settings));
        self.places.insert(name, id);
        Some(id)
    }

    fn pools(&mut self, slots: Vec<Vec<u16>>, members: &[Member]) -> Vec<Pool> {
        let mut shared: HashMap<Vec<u16>, Arc<[u16]>> = HashMap::new();
        let mut pools = Vec::with_capacity(slots.len());
        let before = std::mem::take(&mut self.rings);
        for (index, mut slots) in slots.into_iter().enumerate() {
            slots.sort_unstable();
            slots.dedup();
            let slots = Arc::clone(shared.entry(slots.clone()).or_insert_with(|| slots.into()));
            let (name, settings) = self.known[index].clone();
            let ring = self.ring(&slots, settings.replication, members, &before);
            let of_pool = members.iter().filter_map(|member| member.now.as_ref());
            let of_pool = of_pool.filter(|tenancy| slots.contains(&tenancy.id.slot));
            let token_bytes = calibration::mean(of_pool.filter_map(|tenancy| tenancy.truth.calibration.token_bytes()));
            let mut pool = Pool::new(PoolId(index as u16), name, slots, ring, settings);
            pool.token_bytes = token_bytes;
            pool.context = context(&pool, members);
            pool.contexts = contexts(&pool, members);
            pool.form = self.forms.of(&pool.settings).cloned();
            pool.is_adapter = members.iter().any(|member| member.is_adapter(&pool.name));
            pools.push(pool);
        }
        pools
    }

    fn ring(&mut self, slots: &Arc<[u16]>, replication: u32, members: &[Member], before: &Rings) -> Arc<Ring> {
        let key = (Arc::clone(slots), replication);
        let build = || {
            let tenant = |slot: &u16| {
                let holds = |member: &&Member| member.now.as_ref().is_some_and(|tenancy| tenancy.id.slot == *slot);
                members.iter().find(holds).map(|member| (*slot, &*member.name, member.upstream.weight))
            };
            let points: Vec<(u16, &str, u32)> = slots.iter().filter_map(tenant).collect();
            Arc::new(Ring::build(&points, replication))
        };
        let kept = before.get(&key).cloned();
        Arc::clone(self.rings.entry(key).or_insert_with(|| kept.unwrap_or_else(build)))
    }
}

/// See [`Pool::context`]: one that does not say may take any.
fn context(pool: &Pool, members: &[Member]) -> u32 {
    let serves = |member: &&Member| {
        member.now.as_ref().is_some_and(|tenancy| pool.members.binary_search(&tenancy.id.slot).is_ok())
    };
    let contexts: Option<Vec<u32>> = members.iter().filter(serves).map(|member| member.context(&pool.name)).collect();
    contexts.and_then(|contexts| contexts.into_iter().max()).unwrap_or(TOKENS_MAX).min(TOKENS_MAX)
}

/// See [`Pool::contexts`]: likewise. How large its cache is does not count, in which engines of one kind differ by a little.
fn contexts(pool: &Pool, members: &[Member]) -> Arc<[u32]> {
    let context = |member: &Member| {
        let slot = member.now.as_ref()?.id.slot;
        pool.members.binary_search(&slot).ok()?;
        Some((slot, member.described_context(&pool.name).unwrap_or(TOKENS_MAX).min(TOKENS_MAX)))
    };
    let mut contexts: Vec<(u16, u32)> = members.iter().filter_map(context).collect();
    if contexts.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return Arc::default();
    }
    contexts.sort_unstable();
    contexts.into_iter().map(|(_, context)| context).collect()
}

/// Those that are not down, unless all are: what a dead one served, which may be replaced by now, is not to keep what names no model from the others.
fn living(members: &[Member]) -> Vec<&Member> {
    let there: Vec<&Member> = members.iter().filter(|member| member.now.is_some()).collect();
    let up: Vec<&Member> = there.iter().copied().filter(|member| member.health() != Some(Health::Down)).collect();
    if up.is_empty() { there } else { up }
}

/// The model with which engines answer what names none, as vLLM does: the first that each lists and that is no adapter, where that is the same.
fn base<'a>(members: &[&'a Member]) -> Option<&'a str> {
    let mut bases = members.iter().filter_map(|member| member.ids()?.into_iter().find(|id| !member.is_adapter(id)));
    let first = bases.next()?;
    bases.all(|other| other == first).then_some(first)
}
