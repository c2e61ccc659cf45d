//! What one engine tells of its cache: kept beside the index as long as it is trusted, and noted there.
//!
//! Nothing that it told is believed while it is not heard: an engine that restarts says so only with its next message. So its
//! entries go when a connection ends, and come back, all at once, when what it says next continues what it said.

mod notes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh64::xxh64;

use super::keeper::Keeper;
use super::ladder::Tells;
use super::listen::Wanted;
use super::saved::Heard;
use crate::fleet::EndpointId;
use crate::index::Index;
use crate::kvevents::{Batch, Counts, Event, Reached, Source, Told};
use crate::mirror::{self, Mirror, Reading};
use crate::prefix;
use crate::scan::Form;
use notes::Notes;

/// A choice is expected to show in an engine's events after so many seconds: those that wait there longest are computed by then.
const PROMISE_SECONDS: u32 = 30;
/// An engine of which something was missed is known again when so many of a hundred of its blocks are.
const KNOWN_PERCENT: u64 = 95;

/// How far one of an engine's sockets is heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Course {
    /// Not at all.
    #[default]
    Silent,
    /// It has not said yet how that continues what it said before.
    Asking,
    /// It does, and may not have said all of it.
    Answering,
    /// All that it says.
    Heard,
}

/// What is known of one engine, by its own word.
#[derive(Debug)]
pub struct Hearing {
    keeper: Arc<Keeper>,
    place: usize,
    id: EndpointId,
    index: Arc<Index>,
    form: Arc<Form>,
    /// Its own; 0: not known.
    blocks: u32,
    /// Most that a mirror has.
    blocks_max: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    sockets: Vec<Socket>,
    /// By rank.
    mirrors: BTreeMap<u32, Mirror>,
    /// Whether the index has what the mirrors have.
    is_noted: bool,
    /// How often the endpoint's cache had been emptied when that began.
    emptied: u64,
    tells: Tells,
    /// Links that the index did not take.
    missed: u64,
    lag: f64,
}

#[derive(Clone, Debug, Default)]
struct Socket {
    course: Course,
    counts: Counts,
    /// Those of its connections before it was asked anew.
    earlier: Counts,
    reached: Vec<Reached>,
    /// Ranks that have said nothing since the connection was lost.
    unsure: Vec<u32>,
}

impl Socket {
    /// Another process may be there.
    fn doubt(&mut self) {
        self.unsure = self.reached.iter().map(|reached| reached.rank).collect();
    }

    fn is_whole(&self) -> bool {
        self.reached.iter().all(|rank| rank.is_whole)
    }
}

/// For metrics.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Of all its sockets.
    pub counts: Counts,
    /// Of all its ranks.
    pub mirrored: mirror::Counts,
    /// KV blocks known by name.
    pub blocks: u64,
    /// Links that the index did not take.
    pub missed: u64,
    /// The most memory that its mirrors take.
    pub bytes_max: usize,
    /// Seconds from the engine's clock to ours at the last batch.
    pub lag_seconds: f64,
}

impl Hearing {
    /// Of an engine that has so many sockets, none of which was heard.
    pub fn new(keeper: Arc<Keeper>, place: usize, wanted: &Wanted, sockets: usize) -> Hearing {
        let mut inner = Inner {
            sockets: vec![Socket::default(); sockets],
            mirrors: BTreeMap::new(),
            is_noted: false,
            emptied: 0,
            tells: Tells::Nothing,
            missed: 0,
            lag: 0.0,
        };
        let told = wanted.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(told) = told.filter(|told| told.form == wanted.form.id && told.sockets.len() == sockets) {
            inner.resume(&told, wanted.blocks_max);
        }
        Hearing {
            keeper,
            place,
            id: wanted.id,
            index: Arc::clone(&wanted.index),
            form: Arc::clone(&wanted.form),
            blocks: wanted.blocks,
            blocks_max: wanted.blocks_max,
            inner: Mutex::new(inner),
        }
    }

    /// How far a socket was read by an earlier process.
    pub fn reached(&self, socket: usize) -> Vec<Reached> {
        self.inner().sockets.get(socket).map(|socket| socket.reached.clone()).unwrap_or_default()
    }

    /// What an earlier process is to know of it.
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
            mirrors: inner.mirrors.iter().map(|(rank, mirror)| (*rank, bytes(mirror))).collect(),
        }
    }

    /// One of its sockets told something; [`Hearing::stands`] comes behind it.
    pub fn take(&self, socket: usize, told: Told<'_>) {
        let mut inner = self.inner();
        inner.doubt(socket, &told);
        let course = match told {
            Told::Connected => Some(Course::Asking),
            Told::Batch(batch) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
                inner.lag = now - batch.time();
                self.apply(batch, &mut inner);
                inner.sockets.get(socket).map(|socket| socket.course.max(Course::Answering))
            }
            Told::Abreast | Told::Incomplete { .. } => Some(Course::Answering),
            Told::Restarted { rank } => {
                inner.mirrors.remove(&rank);
                self.distrust(&mut inner);
                None
            }
            Told::Malformed(_) => None,
            Told::Offline(_) => {
                self.distrust(&mut inner);
                Some(Course::Silent)
            }
        };
        if let (Some(course), Some(socket)) = (course, inner.sockets.get_mut(socket)) {
            socket.course = course;
        }
    }

    /// How the socket stands behind that.
    pub fn stands(&self, socket: usize, source: &Source) {
        let is_behind = source.is_behind();
        let mut inner = self.inner();
        if let Some(socket) = inner.sockets.get_mut(socket) {
            socket.counts = source.counts();
            source.reached(&mut socket.reached);
            if socket.course == Course::Answering && !is_behind {
                socket.course = Course::Heard;
            }
        }
        self.settle(&mut inner);
    }

    /// What has changed beside the events: a cache that others found empty, promises that were not kept. True: another process may
    /// be there, and has to be asked.
    pub fn tick(&self) -> bool {
        let mut inner = self.inner();
        let doubted = inner.is_noted && self.keeper.emptied(self.place, self.id) != Some(inner.emptied);
        if doubted {
            inner.is_noted = false;
            for socket in &mut inner.sockets {
                socket.course = Course::Silent;
                socket.doubt();
                socket.earlier.add(&std::mem::take(&mut socket.counts));
            }
        }
        self.settle(&mut inner);
        if inner.tells == Tells::All {
            let Inner { mirrors, .. } = &*inner;
            let kept = |link: u64| mirrors.values().any(|mirror| mirror.owns(link));
            // The rest, if there is more than fits into one turn, is the next second's.
            let _ = self.index.expire(self.id, self.index.second().saturating_sub(PROMISE_SECONDS), kept);
        }
        doubted
    }

    /// It is listened to no more: nobody will say what of it goes.
    pub fn end(&self) {
        let mut inner = self.inner();
        self.say(Tells::Nothing, &mut inner);
        self.distrust(&mut inner);
    }

    /// For metrics.
    pub fn figures(&self) -> Figures {
        let inner = self.inner();
        let mut figures = Figures { missed: inner.missed, lag_seconds: inner.lag, ..Figures::default() };
        let counts = inner.sockets.iter().flat_map(|socket| [&socket.earlier, &socket.counts]);
        counts.for_each(|counts| figures.counts.add(counts));
        for mirror in inner.mirrors.values() {
            figures.blocks += u64::from(mirror.blocks());
            figures.bytes_max += Mirror::bytes(self.blocks_max);
            figures.mirrored.add(&mirror.counts());
        }
        figures
    }

    fn apply(&self, batch: &Batch, inner: &mut Inner) {
        let rank = batch.rank();
        let mut mirror = inner.mirrors.remove(&rank).unwrap_or_else(|| Mirror::new(self.blocks_max));
        for event in batch.events() {
            let mut notes = Notes { hearing: self, others: &inner.mirrors, is_noted: inner.is_noted, missed: 0 };
            let root = |adapter: Option<&[u8]>, salt: Option<&[u8]>| {
                Some(prefix::form_root(adapter, salt.map(|salt| xxh64(salt, 0)), self.form.id))
            };
            let reading = Reading { vocabulary: &self.form.vocabulary, root: &root };
            match event {
                Event::Stored(stored) => mirror.stored(&stored, &reading, &mut notes),
                Event::Removed(removed) => mirror.removed(&removed, &mut notes),
                Event::Cleared => mirror.cleared(),
            }
            inner.missed += notes.missed;
            if event == Event::Cleared {
                // What was sent there is gone as well; what other ranks hold is not.
                self.empty(inner);
                if inner.is_noted {
                    self.note(inner);
                }
            }
        }
        inner.mirrors.insert(rank, mirror);
    }

    /// Says how far the engine is known, and has the index hold what it is known by.
    fn settle(&self, inner: &mut Inner) {
        let heard = inner.sockets.iter().all(|socket| socket.course == Course::Heard);
        let silent = inner.sockets.iter().any(|socket| socket.course == Course::Silent);
        let tells = match (heard, silent) {
            (true, _) if self.is_whole(inner) => Tells::All,
            (false, false) => Tells::Replaying,
            _ => Tells::Nothing,
        };
        // What was sent there counts beside what it tells until that is all there is.
        let begins = tells == Tells::All && inner.tells != Tells::All;
        if heard && (begins || !inner.is_noted) {
            if begins {
                self.empty(inner);
            }
            self.note(inner);
        }
        self.say(tells, inner);
    }

    fn is_whole(&self, inner: &Inner) -> bool {
        let known: u64 = inner.mirrors.values().map(|mirror| u64::from(mirror.blocks())).sum();
        let all_known = self.blocks > 0 && known * 100 >= u64::from(self.blocks) * KNOWN_PERCENT;
        let whole = inner.sockets.iter().all(|socket| socket.is_whole());
        (whole || all_known) && !inner.mirrors.values().any(Mirror::overflowed)
    }

    fn say(&self, tells: Tells, inner: &mut Inner) {
        if inner.tells != tells {
            inner.tells = tells;
            self.keep_promises(tells == Tells::All);
            self.keeper.tells(self.place, self.id, tells);
        }
    }

    /// Has the index hold what the engine said that it holds.
    fn note(&self, inner: &mut Inner) {
        let mut missed = 0;
        for mirror in inner.mirrors.values() {
            let mut notes = Notes { hearing: self, others: &BTreeMap::new(), is_noted: true, missed: 0 };
            mirror.retell(&mut notes);
            missed += notes.missed;
        }
        inner.missed += missed;
        // What was emptied before this says nothing against it.
        inner.emptied = self.keeper.emptied(self.place, self.id).unwrap_or(inner.emptied);
        inner.is_noted = true;
    }

    /// Nothing that it said is believed until it says something that continues it.
    fn distrust(&self, inner: &mut Inner) {
        if inner.is_noted {
            self.empty(inner);
            inner.is_noted = false;
        }
    }

    fn empty(&self, inner: &mut Inner) {
        inner.emptied = self.keeper.empty(self.place, self.id);
        if inner.tells == Tells::All {
            // That was forgotten with the rest.
            self.keep_promises(true);
        }
    }

    /// Of an endpoint that is gone meanwhile nothing is kept.
    fn keep_promises(&self, keeps: bool) {
        let _ = self.index.keeps_promises(self.id, keeps);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A rank whose next word behind a lost connection leaves a hole may be another process: numbers go up with both.
    fn doubt(&mut self, socket: usize, told: &Told<'_>) {
        let Some(socket) = self.sockets.get_mut(socket) else { return };
        match told {
            Told::Offline(_) => socket.doubt(),
            Told::Batch(batch) => socket.unsure.retain(|rank| *rank != batch.rank()),
            Told::Incomplete { rank, .. } if socket.unsure.contains(rank) => drop(self.mirrors.remove(rank)),
            _ => {}
        }
    }

    /// What an earlier process knew; of a rank that cannot be read nothing is known, and it is not gone on with.
    fn resume(&mut self, told: &Heard, blocks_max: u32) {
        for (rank, bytes) in &told.mirrors {
            match Mirror::restore(bytes, blocks_max) {
                Ok(mirror) => drop(self.mirrors.insert(*rank, mirror)),
                Err(why) => tracing::warn!(rank, %why, "what was saved of an engine's cache is not used"),
            }
        }
        for (socket, reached) in self.sockets.iter_mut().zip(&told.sockets) {
            socket.reached =
                reached.iter().filter(|reached| self.mirrors.contains_key(&reached.rank)).copied().collect();
        }
    }
}
