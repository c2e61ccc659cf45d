//! Applies a batch piece by piece: control has more to do than to listen to one engine, however much that says. The
//! task that does so holds the turn: meanwhile only the end of listening changes what is known of the engine.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::mem;

use tokio::task::{spawn_blocking, yield_now};

use super::notes::Notes;
use super::{Hearing, Inner, Rank};
use crate::control::listen::ToHear;
use crate::kvevents::{Batch, Event};
use crate::limits::MIRROR_BLOCKS_MAX;
use crate::mirror::{Halt, Mirror, Reading, Stint, Telling};
use crate::prefix;

/// What is to be done after a piece.
enum Next {
    Nothing,
    Another,
    /// Empty the rank: its cache is empty, or (`given_up`) is not known any more.
    Empty {
        given_up: bool,
    },
}

impl Hearing {
    pub(super) async fn apply(&self, batch: &Batch) {
        let number = batch.rank();
        if !self.meet(number, batch.time()).await {
            return;
        }
        self.inner().midst = Some(number);
        // Events before the last clear have no effect.
        let begin = batch.events().rposition(|event| event == Event::Cleared).unwrap_or(0);
        let (mut events, mut done) = (batch.events().skip(begin).peekable(), 0);
        loop {
            match self.piece(number, &mut events, &mut done) {
                Next::Nothing => break,
                Next::Another => {}
                Next::Empty { given_up } => self.empty_rank(number, given_up).await,
            }
            yield_now().await;
        }
        self.inner().midst = None;
        self.say_partial();
    }

    /// Makes the rank known if it is new; false if there are too many ranks.
    async fn meet(&self, number: u32, since: f64) -> bool {
        let room = {
            let inner = self.inner();
            if inner.ranks.contains_key(&number) {
                return true;
            }
            let Some(room) = inner.newcomer() else { return false };
            room
        };
        // On another thread: making its tables writes all of them.
        let Ok(mut mirror) = spawn_blocking(move || Mirror::new(room)).await else { return false };
        let mut inner = self.inner();
        mirror.bound(inner.blocks_max);
        inner.ranks.insert(number, Rank { mirror, since });
        true
    }

    /// Applies the next piece. `done`: blocks of the first event that were applied before.
    fn piece<'b>(&self, number: u32, events: &mut Peekable<impl Iterator<Item = Event<'b>>>, done: &mut usize) -> Next {
        let inner = &mut *self.inner();
        let Some(mut rank) = inner.ranks.remove(&number) else { return Next::Nothing };
        let root = |adapter: Option<&[u8]>, salt: Option<&[u8]>| {
            let adapter = adapter.map(prefix::adapter_hash);
            prefix::form_root(adapter, salt.map(prefix::text_hash), self.form.id)
        };
        let reading = Reading { vocabulary: &self.form.vocabulary, root: &root };
        let (others, is_noted) = (&inner.ranks, inner.is_noted);
        let mut notes = Notes { index: &inner.index, id: self.id, others, is_noted, owed: &mut inner.owed };
        let mut stint = Stint::default();
        let next = loop {
            let halt = match events.peek() {
                None => break Next::Nothing,
                Some(Event::Stored(stored)) => rank.mirror.stored_on(stored, done, &reading, &mut notes, &mut stint),
                Some(Event::Removed(removed)) => rank.mirror.removed_on(removed, done, &mut notes, &mut stint),
                Some(Event::Cleared) => {
                    events.next();
                    break Next::Empty { given_up: false };
                }
            };
            match halt {
                Halt::Through => (*done, _) = (0, events.next()),
                Halt::Midway => break Next::Another,
                Halt::GivesUp => break Next::Empty { given_up: true },
            }
        };
        inner.ranks.insert(number, rank);
        next
    }

    /// Empties a rank that holds nothing, or of which it is not known what it holds. Millions of blocks are freed on
    /// another thread than control's.
    async fn empty_rank(&self, number: u32, given_up: bool) {
        let mut mirror = {
            let inner = &mut *self.inner();
            let Some(rank) = inner.ranks.get_mut(&number) else { return };
            let mirror = rank.aside();
            // What was noted for prompts sent there is gone as well; `retell` brings back what other ranks hold.
            if !given_up || inner.is_noted {
                self.empty(inner);
            }
            mirror
        };
        let emptied = spawn_blocking(move || {
            if given_up {
                mirror.give_up();
            } else {
                mirror.cleared();
            }
            mirror
        });
        let Ok(mirror) = emptied.await else { return };
        self.inner().back(number, mirror);
        self.retell().await;
    }

    /// Empties all ranks of an engine that was found asleep: its cache is gone with its memory, and it tells so only
    /// with its first step after it wakes. How far it was heard stays, so that this message continues the last one.
    pub(super) async fn look_for_sleep(&self) {
        let slept = self.slept();
        let mut full: Vec<(u32, Mirror)> = {
            let inner = &mut *self.inner();
            if mem::replace(&mut inner.slept, slept) == slept {
                return;
            }
            let full = inner.ranks.iter_mut().filter(|(_, rank)| rank.mirror.blocks() > 0);
            full.map(|(number, rank)| (*number, rank.aside())).collect()
        };
        if full.is_empty() {
            return;
        }
        self.empty(&mut self.inner());
        let emptied = spawn_blocking(move || {
            full.iter_mut().for_each(|(_, mirror)| mirror.cleared());
            full
        });
        let Ok(emptied) = emptied.await else { return };
        let mut inner = self.inner();
        emptied.into_iter().for_each(|(number, mirror)| inner.back(number, mirror));
    }

    /// Notes in the index all that the engine said that it holds, if it is to be noted.
    pub(super) async fn retell(&self) {
        let numbers: Vec<u32> = self.inner().ranks.keys().copied().collect();
        for number in numbers {
            let mut telling = Telling::default();
            while !self.retell_piece(number, &mut telling) {
                yield_now().await;
            }
            yield_now().await;
        }
    }

    fn retell_piece(&self, number: u32, telling: &mut Telling) -> bool {
        let inner = &mut *self.inner();
        let is_noted = inner.is_noted && !inner.owed.is_lost();
        let Some(rank) = inner.ranks.get(&number).filter(|_| is_noted) else { return true };
        let others = &BTreeMap::new();
        let mut notes = Notes { index: &inner.index, id: self.id, others, is_noted, owed: &mut inner.owed };
        rank.mirror.retell_on(telling, &mut notes, &mut Stint::default())
    }

    /// Gives mirrors more room if the engine has more blocks than was thought, as far as there is any.
    pub(super) async fn grow(&self, wanted: &ToHear) {
        let numbers: Vec<u32> = self.inner().ranks.keys().copied().collect();
        for number in numbers {
            let (mirror, most) = {
                let inner = &mut *self.inner();
                let most = inner.most(wanted);
                let small = |rank: &&mut Rank| !rank.mirror.overflowed() && rank.mirror.room() < most;
                let Some(rank) = inner.ranks.get_mut(&number).filter(small) else { continue };
                inner.midst = Some(number);
                (rank.aside(), most)
            };
            // It cannot fail: there is more room than before.
            let grown = spawn_blocking(move || mirror.grown(most).unwrap_or(mirror)).await;
            let mut inner = self.inner();
            inner.midst = None;
            if let Ok(mirror) = grown {
                inner.back(number, mirror);
            }
        }
    }

    /// Forgets ranks of which more is known than the engine can hold, since it is not known which part is gone. As
    /// after missed events, what was noted ages like what was sent there, and the engine is known again when nearly all
    /// of its blocks are.
    pub(super) async fn shed(&self) {
        let numbers: Vec<u32> = self.inner().ranks.keys().copied().collect();
        for number in numbers {
            let mut mirror = {
                let inner = &mut *self.inner();
                let overfull = |rank: &&mut Rank| rank.mirror.is_overfull();
                let Some(rank) = inner.ranks.get_mut(&number).filter(overfull) else { continue };
                inner.midst = Some(number);
                rank.aside()
            };
            let shed = spawn_blocking(move || {
                mirror.give_up();
                mirror
            });
            let shed = shed.await;
            let mut inner = self.inner();
            inner.midst = None;
            if let Ok(mirror) = shed {
                inner.back(number, mirror);
            }
        }
    }
}

impl Rank {
    /// Takes its mirror out, to be changed on another thread.
    fn aside(&mut self) -> Mirror {
        let counts = self.mirror.counts();
        mem::replace(&mut self.mirror, Mirror::counted(counts))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let mirror = self.aside();
        // Freeing many blocks takes a while, and this may be control's thread.
        if let Some(runtime) = tokio::runtime::Handle::try_current().ok().filter(|_| mirror.blocks() > 0) {
            drop(runtime.spawn_blocking(|| drop(mirror)));
        }
    }
}

impl Inner {
    fn back(&mut self, number: u32, mirror: Mirror) {
        if let Some(rank) = self.ranks.get_mut(&number) {
            rank.mirror = mirror;
        }
    }

    /// The room that each mirror is to have; 0: as much as it has.
    pub(super) fn most(&self, wanted: &ToHear) -> u32 {
        let grows = wanted.blocks > 0 && wanted.blocks != self.blocks && wanted.room > self.room;
        let each = MIRROR_BLOCKS_MAX / self.ranks.len().max(1) as u32;
        if grows { wanted.room.min(each) } else { 0 }
    }
}
