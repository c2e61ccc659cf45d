//! One connection in memory, as the front's kernel has it.

use std::net::SocketAddr;

use warmfront::driver::{Completion, Tag};

use crate::random::Random;

/// How a direction of a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Fin,
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The outcome comes at this instant: it stands, or not.
    Connecting(u64, bool),
    /// Accepted, not adopted.
    Fresh,
    Open,
}

/// One connection of the front with a client or an engine. "The front" is its driver, "the peer" who is behind the wire.
pub struct Pipe {
    /// Where the front connected to; `None`: a client's.
    pub address: Option<SocketAddr>,
    /// Which shard's driver has it.
    pub shard: usize,
    pub stage: Stage,
    /// When the shard that serves it got it.
    pub adopted_at: u64,
    /// The front was told that it stands.
    pub stands: bool,
    pub tag: Tag,
    /// The front has not closed it.
    pub open: bool,
    pub paused: bool,
    pub told_fin: bool,
    pub told_reset: bool,
    pub told_all: bool,
    pub starved: bool,
    /// The front took a send for complete that was not; it is told in the next turn.
    pub full_owed: bool,
    pub finish: bool,
    /// What the front's kernel did not take.
    pub backlog: Vec<u8>,
    pub to_peer: Vec<u8>,
    /// How much `to_peer` may hold.
    pub room: usize,
    pub short: usize,
    pub taken: u64,
    pub read_by_peer: u64,
    pub acknowledged: u64,
    pub front_end: Option<End>,
    pub to_front: Vec<u8>,
    pub peer_end: Option<End>,
    /// Bytes that the peer's kernel took to send.
    pub said: u64,
    /// What comes goes there.
    pub splice: Option<Splice>,
}

/// Bytes of one connection on their way to another, unseen.
#[derive(Debug)]
pub struct Splice {
    pub to: usize,
    /// Bytes that have not left the connection yet.
    pub left: u64,
    /// Bytes that were received before it began: they come as any.
    pub before: usize,
    /// Bytes between the two.
    pub piped: Vec<u8>,
}

impl Pipe {
    pub fn new(address: Option<SocketAddr>, shard: usize, stage: Stage, tag: Tag, room: usize, short: usize) -> Pipe {
        Pipe {
            address,
            shard,
            stage,
            adopted_at: 0,
            stands: false,
            tag,
            open: true,
            paused: false,
            told_fin: false,
            told_reset: false,
            told_all: false,
            starved: false,
            full_owed: false,
            finish: false,
            backlog: Vec::new(),
            to_peer: Vec::new(),
            room,
            short,
            taken: 0,
            read_by_peer: 0,
            acknowledged: 0,
            front_end: None,
            to_front: Vec::new(),
            peer_end: None,
            said: 0,
            splice: None,
        }
    }

    pub fn can_flush(&self) -> bool {
        self.starved && self.to_peer.len() < self.room && self.peer_end != Some(End::Reset)
    }

    pub fn is_ready(&self, now: u64) -> bool {
        if !self.open {
            return false;
        }
        match self.stage {
            Stage::Fresh => false,
            Stage::Connecting(at, _) => at <= now,
            Stage::Open if self.full_owed || self.can_flush() => true,
            Stage::Open if self.told_all => false,
            Stage::Open if self.told_fin => self.peer_end == Some(End::Reset),
            Stage::Open if self.paused => self.peer_end == Some(End::Reset) && !self.told_reset,
            Stage::Open => !self.to_front.is_empty() || self.peer_end.is_some() || self.has_piped(),
        }
    }

    /// Its end, if it has come and was not told.
    pub fn tell_end(&mut self) -> Option<Completion> {
        match self.peer_end? {
            End::Fin if self.told_fin => None,
            End::Fin => {
                self.told_fin = true;
                Some(Completion::Ended(self.tag))
            }
            End::Reset => {
                self.told_all = true;
                Some(Completion::Failed(self.tag))
            }
        }
    }

    fn has_piped(&self) -> bool {
        self.splice.as_ref().is_some_and(|splice| !splice.piped.is_empty())
    }

    /// The first bytes that came and were not handed out.
    pub fn hand_out(&mut self, len: usize) -> Vec<u8> {
        let rest = self.to_front.split_off(len);
        std::mem::replace(&mut self.to_front, rest)
    }

    /// What the kernel takes: a broken connection nothing, a full one what there is room for, any less at times.
    pub fn transmit(&mut self, bytes: &[u8], random: &mut Random) -> usize {
        if self.peer_end == Some(End::Reset) {
            return 0;
        }
        let room = self.room.saturating_sub(self.to_peer.len());
        let short = if random.chance(self.short) { random.below(room + 1) } else { room };
        let taken = bytes.len().min(short);
        self.to_peer.extend_from_slice(&bytes[..taken]);
        self.taken += taken as u64;
        taken
    }

    pub fn adopt(&mut self, tag: Tag, now: u64) {
        (self.tag, self.adopted_at) = (tag, now);
        self.stage = Stage::Open;
    }

    /// One that a client has made.
    pub fn is_client(&self) -> bool {
        self.address.is_none()
    }

    /// Bytes have come, and the front has read none of them.
    pub fn is_unheard(&self) -> bool {
        self.said > 0 && self.to_front.len() as u64 == self.said
    }

    /// Some sends turn out short only with the end of the turn.
    pub fn send(&mut self, bytes: &[u8], random: &mut Random) -> usize {
        assert!(!self.finish || bytes.is_empty(), "bytes behind the FIN");
        let taken = if self.starved { 0 } else { self.transmit(bytes, random) };
        if taken < bytes.len() {
            self.full_owed |= !self.starved && random.below(2) == 0;
            self.starved = true;
            self.backlog.extend_from_slice(&bytes[taken..]);
        }
        if self.full_owed { 0 } else { self.backlog.len() }
    }

    pub fn offer(&mut self, bytes: &[u8], random: &mut Random) -> usize {
        if self.starved {
            return 0;
        }
        let taken = self.transmit(bytes, random);
        self.starved = taken < bytes.len();
        taken
    }

    pub fn pause(&mut self, pause: bool) {
        self.paused = pause;
    }

    pub fn finish(&mut self) {
        self.finish = true;
        if !self.starved {
            self.front_end = Some(End::Fin);
        }
    }

    /// Closing with bytes unread makes the kernel send a reset, and with bytes unsent the driver.
    pub fn close(&mut self, random: &mut Random) {
        self.open = false;
        self.splice = None;
        let unsent = !std::mem::take(&mut self.backlog).is_empty() || self.starved;
        if !unsent && self.to_front.is_empty() && self.peer_end != Some(End::Reset) {
            self.front_end = Some(End::Fin);
        } else {
            self.reset_by_front(random);
        }
    }

    pub fn reset_by_front(&mut self, random: &mut Random) {
        self.open = false;
        self.splice = None;
        self.backlog.clear();
        if self.front_end != Some(End::Reset) {
            let kept = random.below(self.to_peer.len() + 1);
            self.to_peer.truncate(kept);
        }
        self.front_end = Some(End::Reset);
    }

    pub fn acknowledged(&self, now: u64) -> u64 {
        // The SYN counts one.
        let syn = if let Stage::Connecting(at, stands) = self.stage { stands && at <= now } else { true };
        u64::from(syn) + self.acknowledged
    }
}
