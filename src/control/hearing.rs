//! What one engine tells of its cache (KV events): kept in mirrors beside the index, and noted in the index as long as
//! it is trusted.
//!
//! What it told is not believed while it is not heard: an engine that restarts says so only with its next message. So
//! its entries leave the index when a connection ends, and come back, all at once, when its next message continues what
//! it told before. If another process of the front hears it from now on they stay, and are believed as far as what was
//! sent there: few requests are still chosen for here, by what was true a moment ago.

mod batch;
mod figures;
mod notes;
mod said;
mod settle;
mod silence;
mod socket;
mod tick;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::caches::Unit;
use super::keeper::Keeper;
use super::ladder::Tells;
use super::listen::ToHear;
use super::saved::Heard;
use crate::bout::Bout;
use crate::fleet::EndpointId;
use crate::index::Index;
use crate::kvevents::{Reached, Settings, Source, Told};
use crate::limits::{KV_RANKS_MAX, MIRROR_BLOCKS_MAX};
use crate::mirror::{self, Mirror};
use crate::scan::Form;
pub use figures::Figures;
use notes::Owed;
pub use silence::Computed;
use silence::Silence;
use socket::{Course, Socket};

/// What one engine has told of itself.
#[derive(Debug)]
pub struct Hearing {
    keeper: Arc<Keeper>,
    place: usize,
    id: EndpointId,
    form: Arc<Form>,
    /// Held by the task that changes what is known, for as long as that is between two states.
    turn: tokio::sync::Mutex<()>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    index: Arc<Index>,
    /// KV blocks of its cache; 0: not known.
    blocks: u32,
    /// Most blocks that a rank may tell of at once.
    blocks_max: u32,
    /// For how many blocks of usual size a mirror has room.
    room: u32,
    /// When its process began, if it says so.
    began: Option<f64>,
    sockets: Vec<Socket>,
    ranks: BTreeMap<u32, Rank>,
    /// The rank that is between two states.
    midst: Option<u32>,
    /// Counts of ranks that have begun anew since.
    earlier: mirror::Counts,
    /// Whether the index has what the mirrors have.
    is_noted: bool,
    /// How often the endpoint's cache had been emptied when `is_noted` became true.
    emptied: u64,
    /// How often the engine had been found asleep when that was looked at last.
    slept: u64,
    tells: Tells,
    /// Notes that the index did not take.
    owed: Owed,
    lag: f64,
    /// When its last batch came, in seconds since 1970; 0: none did.
    came: f64,
    silence: Silence,
    /// What the log was told of sockets that cannot be connected to: one line for each of these strangers, and one
    /// (`None`) for all other reasons.
    said_unheard: Vec<Option<IpAddr>>,
    /// The bout in which it tells of no layers that see all of a prompt.
    partial: Bout,
    /// The bout in which some of what it tells cannot be read.
    unread: Bout,
    /// The bout in which it tells nothing.
    silent: Bout,
}

/// What is known of one of its ranks.
#[derive(Debug)]
struct Rank {
    mirror: Mirror,
    /// Time of the first batch in the mirror, by the engine's clock.
    since: f64,
}

impl Hearing {
    /// A new one for an engine with these sockets, none of which was heard yet.
    pub fn new(keeper: Arc<Keeper>, place: usize, wanted: &ToHear, sources: &[Settings]) -> Hearing {
        let mut inner = Inner {
            index: Arc::clone(&wanted.index),
            blocks: wanted.blocks,
            blocks_max: wanted.blocks_max,
            room: wanted.room,
            began: wanted.began,
            sockets: sources.iter().map(Socket::new).collect(),
            ranks: BTreeMap::new(),
            midst: None,
            earlier: mirror::Counts::default(),
            is_noted: false,
            emptied: 0,
            slept: slept(&keeper, place),
            tells: Tells::Nothing,
            owed: Owed::default(),
            lag: 0.0,
            came: 0.0,
            silence: Silence::default(),
            said_unheard: Vec::new(),
            partial: Bout::seldom(),
            unread: Bout::seldom(),
            silent: Bout::seldom(),
        };
        inner.recall(wanted);
        let form = Arc::clone(&wanted.form);
        Hearing { keeper, place, id: wanted.id, form, turn: tokio::sync::Mutex::default(), inner: Mutex::new(inner) }
    }

    /// How far a socket was read, by an earlier connection or process.
    pub fn reached(&self, socket: usize) -> Vec<Reached> {
        self.inner().sockets.get(socket).map(|socket| socket.reached.clone()).unwrap_or_default()
    }

    /// What a later process of the front is to know of it. A rank that is between two states is left out,
    /// and has to be told anew then.
    pub fn saved(&self) -> Heard {
        let inner = self.inner();
        let bytes = |mirror: &Mirror| {
            let mut bytes = Vec::new();
            mirror.save(&mut bytes);
            bytes
        };
        Heard {
            form: self.form.id,
            sockets: inner.sockets.iter().map(|socket| socket.reached.clone()).collect(),
            mirrors: inner
                .ranks
                .iter()
                .filter(|(number, _)| inner.midst != Some(**number))
                .map(|(number, rank)| (*number, bytes(&rank.mirror)))
                .collect(),
        }
    }

    /// The same; or what an earlier process knew and is not used yet, if the engine has not told all: the next second
    /// will use it.
    pub fn saved_or(&self, unused: Option<Heard>) -> Heard {
        let tells = self.inner().tells;
        unused.filter(|_| tells != Tells::All).unwrap_or_else(|| self.saved())
    }

    /// Waits for the turn. While it is held no other task changes what is known of the engine.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Takes in what one of its sockets told. To be followed by [`Hearing::stands`] in the same turn.
    pub async fn take(&self, socket: usize, told: Told<'_>) {
        if let Told::Batch(batch) = &told {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
            self.inner().came(batch.time(), now);
            // Before it, lest what it tells after it woke is taken for what was there before it slept.
            self.look_for_sleep().await;
            self.apply(batch).await;
        }
        let mut inner = self.inner();
        let course = match told {
            Told::Connected => Some(Course::Asking),
            Told::Batch(_) => inner.sockets.get(socket).map(|socket| socket.course.max(Course::Answering)),
            Told::Abreast => Some(Course::Answering),
            Told::Incomplete { rank, .. } => {
                // Which of its blocks are still there is not known; nor, after a lost connection, whether the process
                // is the same, since numbers go up with both. What was noted ages like what was sent there.
                inner.forget(|number| number == rank);
                Some(Course::Answering)
            }
            Told::Restarted { rank } => {
                inner.forget(|number| number == rank);
                self.distrust(&mut inner);
                None
            }
            Told::Malformed(_) => None,
            Told::Offline(why) => {
                self.distrust(&mut inner);
                // Also if only an earlier process has heard it:
                // what it told has no room of its own until it is heard.
                self.keeper.fleet().notes(self.place, self.id, Unit::Blocks);
                self.say_unheard(socket, why, &mut inner);
                Some(Course::Silent)
            }
        };
        if let (Some(course), Some(socket)) = (course, inner.sockets.get_mut(socket)) {
            socket.course = course;
        }
    }

    /// Sets where connections are counted that the socket turns away without a word.
    pub fn counts_strangers(&self, socket: usize, turned_away: &Arc<AtomicU64>) {
        if let Some(socket) = self.inner().sockets.get_mut(socket) {
            socket.counts_strangers(Arc::clone(turned_away));
        }
    }

    /// Takes in how far the socket is after [`Hearing::take`].
    pub async fn stands(&self, socket: usize, source: &Source) {
        self.stand(socket, source);
        self.settle(false).await;
    }

    fn stand(&self, socket: usize, source: &Source) {
        let is_behind = source.is_behind();
        let mut inner = self.inner();
        if let Some(socket) = inner.sockets.get_mut(socket) {
            socket.counts = source.counts();
            source.reached(&mut socket.reached);
            if socket.course == Course::Answering && !is_behind {
                socket.course = Course::Heard;
            }
        }
        self.say_unread(&mut inner);
    }

    /// Keeps what it told in `later` for when it is listened to again, if it has told all and has not slept since.
    pub fn keep_in(&self, later: &Mutex<Option<Heard>>) {
        let (tells, slept) = {
            let inner = self.inner();
            (inner.tells, inner.slept)
        };
        if tells == Tells::All && slept == self.slept() {
            *later.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.saved());
        }
    }

    /// Ends listening: what leaves its cache is no longer told, so nothing is believed.
    pub fn end(&self) {
        let mut inner = self.inner();
        self.say(Tells::Nothing, &mut inner);
        self.distrust(&mut inner);
    }

    /// Leaves listening to another process of the front.
    pub fn leave(&self) {
        self.say(Tells::Nothing, &mut self.inner());
    }

    /// Whether one of its sockets is not heard at all.
    pub fn is_silent(&self) -> bool {
        self.inner().sockets.iter().any(|socket| socket.course == Course::Silent)
    }

    fn say(&self, tells: Tells, inner: &mut Inner) {
        if inner.tells != tells {
            inner.tells = tells;
            self.keep_promises(inner);
            self.keeper.tells(self.place, self.id, tells);
        }
    }

    /// Notes what the engine says that it holds in the index from now on.
    fn note(&self, inner: &mut Inner) {
        self.keeper.fleet().notes(self.place, self.id, Unit::Steps);
        // Emptyings before this do not matter.
        inner.emptied = self.emptied().unwrap_or(inner.emptied);
        inner.is_noted = true;
    }

    /// Believes nothing that it told until it says something that continues it.
    fn distrust(&self, inner: &mut Inner) {
        if inner.is_noted {
            self.empty(inner);
            inner.is_noted = false;
            self.keeper.fleet().notes(self.place, self.id, Unit::Blocks);
        }
    }

    /// How often what is noted of its cache was emptied, for whatever reason; `None`: the endpoint is not there.
    fn emptied(&self) -> Option<u64> {
        self.keeper.fleet().tenancy(self.place, self.id).map(|tenancy| tenancy.emptied)
    }

    fn slept(&self) -> u64 {
        slept(&self.keeper, self.place)
    }

    fn empty(&self, inner: &mut Inner) {
        let emptied = self.keeper.fleet().empty(self.place, self.id);
        // If it was emptied for another reason as well, `tick` still has to look into that.
        if !inner.is_noted || emptied == inner.emptied + 1 {
            inner.emptied = emptied;
        }
        inner.owed.forget();
        if inner.tells == Tells::All {
            // The index forgot that with the rest.
            self.keep_promises(inner);
        }
    }

    /// Tells the index whether choices of the endpoint are promises. If the index is busy the next second asks again.
    fn keep_promises(&self, inner: &mut Inner) {
        inner.owed.promises = inner.index.keeps_promises(self.id, inner.tells == Tells::All).is_err();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How often the engine at this place was found asleep.
fn slept(keeper: &Keeper, place: usize) -> u64 {
    keeper.fleet().member(place).map_or(0, |member| member.slept)
}

impl Inner {
    fn any(&self, is: fn(&Mirror) -> bool) -> bool {
        self.ranks.values().any(|rank| is(&rank.mirror))
    }

    /// Notes when a batch was sent (`time`, by the engine's clock) and came (`now`, by ours), in seconds since 1970.
    fn came(&mut self, time: f64, now: f64) {
        (self.lag, self.came) = (now - time, now);
    }

    /// Forgets these ranks.
    fn forget(&mut self, is_gone: impl Fn(u32) -> bool) {
        let Inner { ranks, earlier, .. } = self;
        ranks.retain(|number, rank| {
            let is_gone = is_gone(*number);
            if is_gone {
                earlier.add(&rank.mirror.counts());
            }
            !is_gone
        });
    }

    /// Room of a mirror for a rank that tells for the first time; `None` if there are too many ranks.
    fn newcomer(&self) -> Option<u32> {
        let taken: u32 = self.ranks.values().map(|rank| rank.mirror.room()).sum();
        let room = self.room.min(MIRROR_BLOCKS_MAX.saturating_sub(taken));
        (self.ranks.len() < KV_RANKS_MAX).then_some(room)
    }

    /// Restores what an earlier process knew, or this one before; a rank that cannot be restored begins anew.
    fn recall(&mut self, wanted: &ToHear) -> bool {
        let remembered = wanted.remembered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fits = |heard: &Heard| heard.form == wanted.form.id && heard.sockets.len() == self.sockets.len();
        let Some(heard) = remembered.filter(fits) else { return false };
        self.forget(|_| true);
        for (rank, bytes) in &heard.mirrors {
            // What no socket had read cannot be continued.
            let Some(reached) = heard.sockets.iter().flatten().find(|reached| reached.rank == *rank) else { continue };
            match Mirror::restore(bytes, self.room) {
                Ok(mut mirror) => {
                    mirror.bound(self.blocks_max);
                    self.ranks.insert(*rank, Rank { mirror, since: reached.time });
                }
                Err(why) => tracing::warn!(rank, %why, "what was saved of an engine's cache is not used"),
            }
        }
        for (socket, reached) in self.sockets.iter_mut().zip(&heard.sockets) {
            socket.reached = reached.iter().filter(|reached| self.ranks.contains_key(&reached.rank)).copied().collect();
        }
        // Another process may run there since.
        if let Some(began) = wanted.began {
            self.forget_before(began);
        }
        true
    }
}

#[cfg(test)]
mod tests;
