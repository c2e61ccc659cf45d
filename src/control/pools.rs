//! Which engines serve which id: pools with ids that do not change as long as anybody serves them, rings that are built
//! only when membership does.

mod shape;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forms::Forms;
use super::member::Member;
use crate::config::Config;
use crate::fleet::Health;
use crate::limits::{LABELLED_POOLS_MAX, POOLS_MAX};
use crate::policy::Settings;
use crate::ring::Ring;
use crate::snapshot::{Pool, PoolId};
use shape::{Part, Shape, Told};

/// The pool of engines whose models are not known yet, so that traffic flows before the first probe.
pub const UNLEARNT: &str = "default";

/// Most pools that one of several engines may bring, counting those served within [`IDLE`]: others need room as well.
const SHARE_MAX: usize = POOLS_MAX / 2;
/// An id that no engine has served for so long may lose its place to another id, unless statistics know it by name:
/// longer than any request waits that was meant for it.
const IDLE: Duration = Duration::from_secs(3_600);

type Rings = HashMap<(Arc<[u16]>, u32), Arc<Ring>>;

/// All pools there have been, by their places; a place is kept while its id is served, and for long after.
#[derive(Debug)]
pub struct Pools {
    config: Arc<Config>,
    forms: Arc<Forms>,
    known: Vec<Known>,
    places: HashMap<Arc<str>, PoolId>,
    /// By members and replication. A slot in a key means what it did when the ring was built, since a
    /// change of tenants empties the table, and each view keeps only what it uses.
    rings: Rings,
    /// What the last view was made of.
    shape: Option<Shape>,
    /// Places of idle ids, which new ids may take. The first [`LABELLED_POOLS_MAX`], which statistics know by name, are
    /// never among them.
    spare: Vec<usize>,
    /// An id got no pool, since there were too many; said once.
    is_full: bool,
    /// By an engine's place, how many ids it brought that are not idle.
    brought: HashMap<usize, usize>,
    /// Places of engines that brought more ids than [`SHARE_MAX`]; said once of each.
    greedy: HashSet<usize>,
}

/// One of them.
#[derive(Debug)]
struct Known {
    name: Arc<str>,
    settings: Arc<Settings>,
    /// The engine that served it first, by its place.
    of: usize,
    /// An engine serves it, by the last view.
    served: bool,
    /// Since when no engine serves it, as ticks have seen it.
    idle_since: Option<Instant>,
    /// No engine has served it for [`IDLE`].
    idle: bool,
}

/// The pools as they are now.
#[derive(Debug)]
pub struct View {
    /// By id; empty where no engine serves it any more, or only engines without an address yet.
    pub pools: Vec<Pool>,
    /// Served id to pool, of those that somebody serves.
    pub models: Arc<HashMap<Box<[u8]>, PoolId>>,
    /// See [`crate::snapshot::Snapshot::default_pool`].
    pub default_pool: Option<PoolId>,
    /// See [`crate::snapshot::Snapshot::unlearnt`].
    pub unlearnt: Option<PoolId>,
    /// See [`crate::snapshot::Snapshot::only`].
    pub only: Option<PoolId>,
    /// The models of every engine are known.
    pub complete: bool,
}

impl Pools {
    /// None yet.
    pub fn new(config: Arc<Config>, forms: Arc<Forms>) -> Pools {
        Pools {
            config,
            forms,
            known: Vec::new(),
            places: HashMap::new(),
            rings: HashMap::new(),
            shape: None,
            spare: Vec::new(),
            is_full: false,
            brought: HashMap::new(),
            greedy: HashSet::new(),
        }
    }

    /// Takes the settings of `config` from now on; ids stay.
    pub fn reconfigure(&mut self, config: Arc<Config>, forms: Arc<Forms>) {
        for known in &mut self.known {
            known.settings = Arc::new(config.settings_for(&known.name));
        }
        (self.config, self.forms) = (config, forms);
        self.membership_changed();
    }

    /// Takes other forms in which prompts of the models are written.
    pub fn write_as(&mut self, forms: Arc<Forms>) {
        (self.forms, self.shape) = (forms, None);
    }

    /// Slots have other tenants than before.
    pub fn membership_changed(&mut self) {
        self.rings.clear();
        self.shape = None;
    }

    /// Time passes: notes which ids nobody serves.
    pub fn tick(&mut self, now: Instant) {
        for known in &mut self.known {
            known.idle_since = if known.served { None } else { known.idle_since.or(Some(now)) };
            known.idle = known.idle_since.is_some_and(|since| now.saturating_duration_since(since) > IDLE);
        }
        let idle = self.known.iter().enumerate().skip(LABELLED_POOLS_MAX).filter(|(_, known)| known.idle);
        self.spare = idle.map(|(at, _)| at).collect();
        self.brought.clear();
        let counted = self.known.iter().filter(|known| !known.idle);
        counted.for_each(|known| *self.brought.entry(known.of).or_default() += 1);
        self.greedy.retain(|engine| self.brought.get(engine).is_some_and(|brought| *brought >= SHARE_MAX));
        // There may be room by now for ids that got no pool.
        let has_room = self.known.len() < POOLS_MAX || !self.spare.is_empty();
        self.shape.take_if(|shape| shape.refused && has_room);
    }

    /// Whether time passes for any id that nobody serves.
    #[cfg(test)]
    pub fn any_idle(&self) -> bool {
        self.known.iter().any(|known| known.idle_since.is_some())
    }

    /// The pools that `members` make.
    pub fn view(&mut self, members: &[Member]) -> View {
        let (parts, any_known): (Vec<Part>, bool) = (members.iter().map(Part::of).collect(), any_known(members));
        let shape = match self.shape.take().filter(|shape| shape.of == parts) {
            Some(shape) => shape,
            None => self.shape(parts, members, any_known),
        };
        let Shape { models, unlearnt, .. } = &shape;
        let pools = shape.pools(members);
        let live = || pools.iter().filter(|pool| !pool.members.is_empty());
        let is_known = |pool: &&Pool| Some(pool.id) != *unlearnt || models.contains_key(pool.name.as_bytes());
        // Whether an engine of unknown models may take requests; a dead one must not keep the others waiting
        // for a `model` that all of them would serve.
        let is_out =
            |member: &Member| matches!(member.health(), None | Some(Health::Down | Health::Draining | Health::Asleep));
        let may_be_asked = |(part, member): (&Part, &Member)| {
            part.is_unlearnt() && !(any_known && part.has_lost_its_models) && !is_out(member)
        };
        let unlearnt_usable = shape.of.iter().zip(members).any(may_be_asked);
        let counted = |pool: &&Pool| unlearnt_usable || is_known(pool);
        let is_there = |pool: &&Pool| !pool.members.is_empty() || models.contains_key(pool.name.as_bytes());
        let there: Vec<PoolId> = pools.iter().filter(is_there).filter(counted).map(|pool| pool.id).collect();
        let default_pool = match self.config.serve.default_model.as_str() {
            "" => default_pool(&shape, &pools, members),
            id => models.get(id.as_bytes()).copied(),
        };
        let view = View {
            default_pool,
            unlearnt: *unlearnt,
            // One that nobody serves now is none where somebody may be asked all the same.
            only: there.first().copied().filter(|id| {
                there.len() == 1 && (live().next().is_none() || !pools[usize::from(id.0)].members.is_empty())
            }),
            models: Arc::clone(models),
            complete: members.iter().all(Member::has_ids),
            pools,
        };
        self.shape = Some(shape);
        view
    }

    /// What lasts of a view for as long as its parts do.
    fn shape(&mut self, of: Vec<Part>, members: &[Member], any_known: bool) -> Shape {
        self.known.iter_mut().for_each(|known| known.served = false);
        let mut slots: Vec<Vec<u16>> = vec![Vec::new(); self.known.len()];
        let (mut models, mut unlearnt, mut refused) = (HashMap::new(), None, false);
        // Of engines that list the same, by where their list is.
        let mut alike: HashMap<usize, Vec<PoolId>> = HashMap::new();
        for (part, member) in of.iter().zip(members) {
            // Such an engine is not to get requests that name no model either.
            let is_lost = any_known && part.has_lost_its_models;
            // An engine whose name has no address yet is out of service: what it is to serve is known, and served by
            // nobody.
            let slot = part.slot.filter(|_| !is_lost);
            if slot.is_none() && !member.has_ids() && (is_lost || !any_known) {
                continue;
            }
            let list = part.list();
            if let Some(pools) = list.and_then(|list| alike.get(&list)) {
                pools.iter().for_each(|pool| slots[usize::from(pool.0)].extend(slot));
                continue;
            }
            let (mut pools, mut all) = (Vec::new(), true);
            for id in member.ids().unwrap_or_else(|| vec![UNLEARNT]) {
                let Some(pool) = self.place_for(id, member, members.len()) else {
                    all = false;
                    continue;
                };
                let place = usize::from(pool.0);
                slots.resize_with(slots.len().max(place + 1), Vec::new);
                slots[place].extend(slot);
                pools.push(pool);
                match member.has_ids() {
                    true if models.contains_key(id.as_bytes()) => {}
                    true => drop(models.insert(Box::<[u8]>::from(id.as_bytes()), pool)),
                    false => unlearnt = Some(pool),
                }
            }
            refused |= !all;
            alike.extend(list.filter(|_| all).map(|list| (list, pools)));
        }
        let told = self.pools(slots, members);
        Shape { of, told, models: Arc::new(models), unlearnt, refused }
    }

    /// The id of the pool `name`, which `engine`, one of `engines`, serves; `None` if that engine has brought too many
    /// ids: one that makes ids up without end must leave others room.
    fn place_for(&mut self, name: &str, engine: &Member, engines: usize) -> Option<PoolId> {
        let brought = self.brought.get(&engine.place).copied().unwrap_or_default();
        if engines > 1 && brought >= SHARE_MAX && !self.places.contains_key(name) {
            if self.greedy.insert(engine.place) {
                tracing::warn!(
                    engine = &*engine.name,
                    model = name,
                    "this engine has listed more than {SHARE_MAX} ids within an hour, and others are to have room as well: this and further ones of its \
                     get no pool; `models` of its [[upstream]] says what it is to serve"
                );
            }
            return None;
        }
        self.place(name, engine.place)
    }

    /// The id of the pool `name`, which is served now. If it is new, the engine at the place `of` has brought it.
    fn place(&mut self, name: &str, of: usize) -> Option<PoolId> {
        if let Some(id) = self.places.get(name) {
            if let Some(known) = self.known.get_mut(usize::from(id.0)) {
                (known.served, known.idle) = (true, false);
            }
            return Some(*id);
        }
        let given_up = if self.known.len() < POOLS_MAX { None } else { self.given_up() };
        self.is_full &= given_up.is_none();
        if self.known.len() >= POOLS_MAX && given_up.is_none() {
            if !std::mem::replace(&mut self.is_full, true) {
                tracing::warn!(
                    model = name,
                    "more than {POOLS_MAX} served ids, those that nobody has served for less than an hour among them: this and further ones get no pool \
                     before others are given up; send SIGUSR2, and a new process begins anew"
                );
            }
            return None;
        }
        let name: Arc<str> = name.into();
        let settings = Arc::new(self.config.settings_for(&name));
        let known = Known { name: Arc::clone(&name), settings, of, served: true, idle_since: None, idle: false };
        *self.brought.entry(of).or_default() += 1;
        let place = given_up.unwrap_or(self.known.len());
        match self.known.get_mut(place) {
            Some(before) => drop(self.places.remove(&std::mem::replace(before, known).name)),
            None => self.known.push(known),
        }
        let id = PoolId(place as u16);
        self.places.insert(name, id);
        Some(id)
    }

    /// A spare place, if its id is still idle.
    fn given_up(&mut self) -> Option<usize> {
        let is_idle = |at: &usize| self.known.get(*at).is_some_and(|known| known.idle);
        std::iter::from_fn(|| self.spare.pop()).find(is_idle)
    }

    fn pools(&mut self, slots: Vec<Vec<u16>>, members: &[Member]) -> Vec<Told> {
        let mut shared: HashMap<Vec<u16>, Arc<[u16]>> = HashMap::new();
        let mut pools = Vec::with_capacity(slots.len());
        let seated = members.iter().filter_map(|member| Some((member.now.as_ref()?.id.slot, member)));
        let seated: HashMap<u16, &Member> = seated.collect();
        let before = std::mem::take(&mut self.rings);
        for (index, mut slots) in slots.into_iter().enumerate() {
            slots.sort_unstable();
            slots.dedup();
            let slots = Arc::clone(shared.entry(slots.clone()).or_insert_with(|| slots.into()));
            let Known { name, settings, .. } = &self.known[index];
            let (name, settings) = (Arc::clone(name), Arc::clone(settings));
            let ring = self.ring(&slots, settings.replication, members, &before);
            let mut pool = Pool::new(PoolId(index as u16), name, slots, ring, settings);
            pool.form = self.forms.of(&pool.settings).cloned();
            pools.push(Told::of(pool, &seated, members));
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

/// Whether any of them is known to serve something. Beside such a one a member that [`Member::has_lost_its_models`] is
/// in no pool: it may be no engine at all.
pub fn any_known(members: &[Member]) -> bool {
    members.iter().any(|member| member.has_ids() && !member.has_lost_its_models())
}

/// Those that are not down, unless all are: what a dead one served, which may be replaced by now, is not to keep what
/// names no model from the others, nor is the unit in which it found prompts to keep them from what they hold.
fn living<'a>(there: impl IntoIterator<Item = &'a Member>) -> Vec<&'a Member> {
    let there: Vec<&Member> = there.into_iter().collect();
    let up: Vec<&Member> = there.iter().copied().filter(|member| member.health() != Some(Health::Down)).collect();
    if up.is_empty() { there } else { up }
}

/// The model with which engines answer what names none, as vLLM does: the first that each lists and that is no adapter,
/// where that is the same.
fn base<'a>(members: &[&'a Member]) -> Option<&'a str> {
    let mut bases = members.iter().filter_map(|member| member.base());
    let first = bases.next()?;
    bases.all(|other| other == first).then_some(first)
}

/// The pool of what names no model: of their base model, where all engines that live serve the same.
fn default_pool(shape: &Shape, pools: &[Pool], members: &[Member]) -> Option<PoolId> {
    let living = living(members.iter().filter(|member| member.now.is_some()));
    let base = base(&living).and_then(|id| shape.models.get(id.as_bytes())).copied()?;
    let slots: HashSet<u16> = living.iter().filter_map(|one| Some(one.now.as_ref()?.id.slot)).collect();
    let of_living = |slots_of: &[u16]| slots_of.iter().copied().filter(|slot| slots.contains(slot)).collect();
    // Who has not said yet what it serves changes nothing before it has.
    let is_known = |pool: &&Pool| Some(pool.id) != shape.unlearnt || shape.models.contains_key(pool.name.as_bytes());
    let of_base = &pools.get(usize::from(base.0))?.members;
    let all: Vec<u16> = of_living(of_base);
    let others = pools.iter().filter(|pool| !Arc::ptr_eq(&pool.members, of_base)).filter(is_known);
    let mut some = others.map(|pool| -> Vec<u16> { of_living(&pool.members) });
    some.all(|some| some.is_empty() || some == all).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was said once that there is no room; when there was room since, it is said again.
    #[test]
    fn pools_are_no_longer_full_once_a_place_is_given_on() {
        let mut pools = Pools::new(Arc::default(), Arc::default());
        (0..=POOLS_MAX).for_each(|n| _ = pools.place(&n.to_string(), 0));
        assert!(pools.is_full && pools.place("another", 0).is_none());
        pools.known.iter_mut().for_each(|known| known.served = false);
        let now = Instant::now();
        [now, now + 2 * IDLE].into_iter().for_each(|now| pools.tick(now));
        assert!(pools.place("another", 0).is_some() && !pools.is_full);
    }
}
