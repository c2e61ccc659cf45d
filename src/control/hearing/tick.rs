//! Changes that come by other ways than an engine's events, looked at each second.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::notes::Notes;
use super::{Course, Hearing, Inner, Socket};
use crate::control::caches::Unit;
use crate::control::ladder::Tells;
use crate::control::listen::ToHear;
use crate::index::PROMISE_SECONDS;
use crate::mirror::Mirror;

/// How many times in one turn promises are looked for that have expired. The rest is left to the next second.
const EXPIRIES_MAX: usize = 64;

impl Hearing {
    /// Looks for sleep, a cache that was emptied for another reason, another index, another size, more blocks than it
    /// can hold, notes that the index was too busy for, silence, and promises that were not kept. Returns sockets where
    /// another process may be, which is to be asked on new connections.
    pub async fn tick(&self, wanted: &ToHear) -> Vec<usize> {
        let _turn = self.turn().await;
        self.look_for_sleep().await;
        self.grow(wanted).await;
        let anew = self.look(wanted);
        self.shed().await;
        self.make_up();
        self.look_for_silence(wanted);
        self.settle(true).await;
        let inner = self.inner();
        if inner.tells == Tells::All {
            self.expire(&inner);
        }
        anew
    }

    fn look(&self, wanted: &ToHear) -> Vec<usize> {
        let mut inner = self.inner();
        // A reload may have made a new, empty index; `look_for_another` sees that by `emptied`.
        inner.index = Arc::clone(&wanted.index);
        let mut anew = inner.recall_late(wanted);
        anew.extend(self.look_for_another(wanted, &mut inner));
        anew.extend(inner.resize(wanted));
        anew.sort_unstable();
        anew.dedup();
        for &number in &anew {
            if let Some(socket) = inner.sockets.get_mut(number) {
                socket.begin_anew();
            }
        }
        if !anew.is_empty() {
            self.distrust(&mut inner);
        }
        anew
    }

    fn look_for_another(&self, wanted: &ToHear, inner: &mut Inner) -> Vec<usize> {
        let emptied = self.emptied();
        let doubted = inner.is_noted && emptied != Some(inner.emptied);
        let another = wanted.began.filter(|began| inner.began.is_some_and(|known| known != *began));
        inner.began = wanted.began.or(inner.began);
        let anew = match another {
            Some(began) => inner.forget_before(began),
            None if doubted => inner.doubt(),
            None => return Vec::new(),
        };
        if doubted {
            // Prompts sent there since are not noted as promises, and would stay.
            inner.is_noted = false;
            self.empty(inner);
            self.keeper.fleet().notes(self.place, self.id, Unit::Blocks);
        }
        anew
    }

    /// Notes now what the index was too busy for, as far as it is still true.
    fn make_up(&self) {
        let inner = &mut *self.inner();
        let (notes, ranks, is_noted) = (inner.owed.take(), &inner.ranks, inner.is_noted);
        let others = &BTreeMap::new();
        let mut index = Notes { index: &inner.index, id: self.id, others, is_noted, owed: &mut inner.owed };
        let is_held = |link: u64| ranks.values().any(|rank| rank.mirror.owns(link));
        notes.into_iter().filter(|note| note.holds == is_held(note.link)).for_each(|note| index.note(note));
        if inner.owed.promises {
            self.keep_promises(inner);
        }
    }

    fn look_for_silence(&self, wanted: &ToHear) {
        let mut inner = self.inner();
        let messages = inner.sockets.iter().map(Socket::messages).sum();
        let is_heard = inner.sockets.iter().all(|socket| socket.course == Course::Heard);
        inner.silence.look(messages, is_heard, wanted.computed, Instant::now());
        self.say_silent(&mut inner);
    }

    fn expire(&self, inner: &Inner) {
        let kept = |link: u64| inner.ranks.values().any(|rank| rank.mirror.owns(link));
        let before = inner.index.second().saturating_sub(PROMISE_SECONDS);
        for _ in 0..EXPIRIES_MAX {
            if !inner.index.expire(self.id, before, kept).is_ok_and(|expired| expired.more) {
                return;
            }
        }
    }
}

impl Inner {
    /// Restores what an earlier process of ours knew, if that comes after the engine's first events,
    /// since its metrics did not answer at once.
    fn recall_late(&mut self, wanted: &ToHear) -> Vec<usize> {
        if self.tells == Tells::All {
            wanted.remembered.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        if self.recall(wanted) { (0..self.sockets.len()).collect() } else { Vec::new() }
    }

    /// Forgets what was told before `began`, when the process that is there now began. What this one told stays.
    pub(super) fn forget_before(&mut self, began: f64) -> Vec<usize> {
        let (mut anew, mut gone) = (Vec::new(), Vec::new());
        for (number, socket) in self.sockets.iter_mut().enumerate() {
            let older = socket.forget_before(began, |rank| self.ranks.get(&rank).map(|rank| rank.since));
            if !older.is_empty() {
                anew.push(number);
            }
            gone.extend(older);
        }
        self.forget(|rank| gone.contains(&rank));
        anew
    }

    /// Notes that another process may be there; returns the sockets to be asked on new connections.
    fn doubt(&mut self) -> Vec<usize> {
        let sockets = self.sockets.iter_mut().enumerate();
        sockets.filter_map(|(number, socket)| socket.doubt().then_some(number)).collect()
    }

    /// Takes in that the engine has more blocks than was thought. A mirror that had too little room has to be told
    /// anew.
    fn resize(&mut self, wanted: &ToHear) -> Vec<usize> {
        let most = self.most(wanted);
        let more = wanted.blocks > 0 && wanted.blocks_max > self.blocks_max;
        if wanted.blocks > 0 && wanted.blocks != self.blocks {
            (self.blocks, self.blocks_max, self.room) = (wanted.blocks, wanted.blocks_max, wanted.room);
            self.ranks.values_mut().for_each(|rank| rank.mirror.bound(wanted.blocks_max));
        }
        let is_small = |mirror: &Mirror| mirror.room() < most || (more || most > 0) && mirror.overflowed();
        let ranks = self.ranks.iter();
        let small: Vec<u32> = ranks.filter(|(_, rank)| is_small(&rank.mirror)).map(|(number, _)| *number).collect();
        self.forget(|rank| small.contains(&rank));
        let mut anew = Vec::new();
        for (number, socket) in self.sockets.iter_mut().enumerate() {
            let before = socket.reached.len();
            socket.reached.retain(|reached| !small.contains(&reached.rank));
            if socket.reached.len() < before {
                socket.course = Course::Silent;
                anew.push(number);
            }
        }
        anew
    }
}
