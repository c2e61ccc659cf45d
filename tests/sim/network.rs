//! Connections in memory: what the kernel and the wire between front and peers do to bytes.

use std::collections::VecDeque;
use std::net::SocketAddr;

use warmfront::driver::{Completion, Lease, SocketId, Tag};

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
    pub stage: Stage,
    /// The front was told that it stands.
    pub stands: bool,
    tag: Tag,
    /// The front has not closed it.
    pub open: bool,
    paused: bool,
    told_fin: bool,
    told_reset: bool,
    told_all: bool,
    starved: bool,
    /// The front took a send for complete that was not; it is told in the next turn.
    full_owed: bool,
    finish: bool,
    /// What the front's kernel did not take.
    pub backlog: Vec<u8>,
    to_peer: Vec<u8>,
    /// How much `to_peer` may hold.
    pub room: usize,
    short: usize,
    taken: u64,
    read_by_peer: u64,
    acknowledged: u64,
    front_end: Option<End>,
    pub to_front: Vec<u8>,
    pub peer_end: Option<End>,
}

/// What the wire may do.
#[derive(Clone, Debug)]
pub struct Knobs {
    pub lease_max: usize,
    pub room_min: usize,
    pub room_max: usize,
    /// How often something ready is announced late, in percent.
    pub late: usize,
    /// How often the kernel takes less than there is room for, in percent.
    pub short: usize,
    /// How often a connect fails, in percent; and how often it is never answered.
    pub refused: usize,
    pub swallowed: usize,
}

pub struct Network {
    pub now: u64,
    pub random: Random,
    pub pipes: Vec<Pipe>,
    pub knobs: Knobs,
    /// Connections of clients in the kernel's queue.
    pub arrivals: VecDeque<usize>,
    pub accepting: bool,
    pub listening: bool,
    /// When a peer does something next; `None`: no peer will by itself.
    pub peers_next: Option<u64>,
    /// Print what happens.
    pub traced: bool,
    /// Waits in a row that did not sleep and brought nothing.
    pub idle_waits: u32,
}

impl Network {
    pub fn new(seed: u64, knobs: Knobs) -> Network {
        Network {
            now: 1_000_000,
            random: Random::new(seed),
            pipes: Vec::new(),
            knobs,
            arrivals: VecDeque::new(),
            accepting: true,
            listening: true,
            peers_next: None,
            traced: std::env::var_os("WARMFRONT_SIM_TRACE").is_some(),
            idle_waits: 0,
        }
    }

    pub fn add(&mut self, address: Option<SocketAddr>, stage: Stage, tag: Tag) -> usize {
        let room = self.knobs.room_min + self.random.small(self.knobs.room_max);
        self.pipes.push(Pipe {
            address,
            stage,
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
            short: self.knobs.short,
            taken: 0,
            read_by_peer: 0,
            acknowledged: 0,
            front_end: None,
            to_front: Vec::new(),
            peer_end: None,
        });
        self.pipes.len() - 1
    }

    pub fn pipe(&mut self, id: SocketId) -> Option<&mut Pipe> {
        self.pipes.get_mut(id.to_u64() as usize).filter(|pipe| pipe.open)
    }

    /// What is ready now, in the order in which it is visited.
    pub fn ready(&mut self) -> Vec<usize> {
        let now = self.now;
        let mut ready: Vec<usize> = (0..self.pipes.len()).filter(|&at| self.pipes[at].is_ready(now)).collect();
        let random = &mut self.random;
        let late = self.knobs.late;
        ready.retain(|_| !random.chance(late));
        random.shuffle(&mut ready);
        ready
    }

    pub fn any_ready(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.is_ready(self.now))
    }

    /// When a connect is answered, or a peer does something.
    pub fn next_event(&self) -> Option<u64> {
        let connects = self.pipes.iter().filter(|pipe| pipe.open).filter_map(|pipe| match pipe.stage {
            Stage::Connecting(at, _) if at < u64::MAX => Some(at),
            _ => None,
        });
        connects.chain(self.peers_next).min()
    }

    /// The next thing of one connection, if it is still ready.
    pub fn visit(&mut self, at: usize, buffer: &mut Vec<u8>) -> Option<Completion> {
        let lease_max = self.random.small(self.knobs.lease_max);
        let (now, random) = (self.now, &mut self.random);
        let pipe = self.pipes.get_mut(at).filter(|pipe| pipe.is_ready(now))?;
        if let Stage::Connecting(_, stands) = pipe.stage {
            pipe.stage = Stage::Open;
            pipe.told_all = !stands;
            pipe.stands = stands;
            return Some(if stands { Completion::Connected(pipe.tag) } else { Completion::Failed(pipe.tag) });
        }
        if std::mem::take(&mut pipe.full_owed) {
            return Some(Completion::Full(pipe.tag));
        }
        if pipe.can_flush() && (pipe.short == 0 || random.chance(70)) {
            let backlog = std::mem::take(&mut pipe.backlog);
            let taken = pipe.transmit(&backlog, random);
            pipe.backlog = backlog[taken..].to_vec();
            if !pipe.backlog.is_empty() {
                return None;
            }
            pipe.starved = false;
            if pipe.finish {
                pipe.front_end = Some(End::Fin);
            }
            return Some(Completion::Drained(pipe.tag));
        }
        if pipe.told_all {
            return None;
        }
        if pipe.paused && !pipe.told_fin {
            let told = pipe.peer_end == Some(End::Reset) && !std::mem::replace(&mut pipe.told_reset, true);
            return told.then_some(Completion::Reset(pipe.tag));
        }
        if !pipe.told_fin && !pipe.to_front.is_empty() {
            let len = pipe.to_front.len().min(lease_max);
            let rest = pipe.to_front.split_off(len);
            *buffer = std::mem::replace(&mut pipe.to_front, rest);
            return Some(Completion::Received(pipe.tag, Lease { buffer: 0, len: len as u32 }));
        }
        match pipe.peer_end? {
            End::Fin if pipe.told_fin => None,
            End::Fin => {
                pipe.told_fin = true;
                Some(Completion::Ended(pipe.tag))
            }
            End::Reset => {
                pipe.told_all = true;
                Some(Completion::Failed(pipe.tag))
            }
        }
    }

    /// Bytes from the peer; as many as there is room for.
    pub fn peer_send(&mut self, at: usize, bytes: &[u8], window: usize) -> usize {
        let pipe = &mut self.pipes[at];
        if pipe.peer_end.is_some() {
            return bytes.len();
        }
        if !pipe.open {
            // The front's kernel answers with a reset, which may overtake what was on its way.
            pipe.reset_by_front(&mut self.random);
            return bytes.len();
        }
        let taken = bytes.len().min(window.saturating_sub(pipe.to_front.len()));
        pipe.to_front.extend_from_slice(&bytes[..taken]);
        taken
    }

    pub fn peer_may_send(&self, at: usize, window: usize) -> bool {
        let pipe = &self.pipes[at];
        pipe.to_front.len() < window || !pipe.open || pipe.peer_end.is_some()
    }

    pub fn peer_receive(&mut self, at: usize, most: usize) -> Vec<u8> {
        let pipe = &mut self.pipes[at];
        let len = pipe.to_peer.len().min(most);
        let rest = pipe.to_peer.split_off(len);
        let bytes = std::mem::replace(&mut pipe.to_peer, rest);
        pipe.read_by_peer += len as u64;
        pipe.acknowledged = pipe.acknowledged.max(pipe.read_by_peer);
        bytes
    }

    /// How the front ended, once all it sent was read.
    pub fn front_end(&self, at: usize) -> Option<End> {
        let pipe = &self.pipes[at];
        pipe.front_end.filter(|_| pipe.to_peer.is_empty())
    }

    pub fn unread_by_peer(&self, at: usize) -> usize {
        self.pipes[at].to_peer.len()
    }

    pub fn peer_ends(&mut self, at: usize, end: End) {
        let pipe = &mut self.pipes[at];
        if pipe.peer_end != Some(End::Reset) {
            pipe.peer_end = Some(end);
            if end == End::Reset {
                pipe.to_peer.clear();
            }
        }
    }

    /// The peer's kernel acknowledges what its process may not have read yet.
    pub fn acknowledge(&mut self, at: usize) {
        let pipe = &mut self.pipes[at];
        pipe.acknowledged = pipe.taken;
    }
}

impl Pipe {
    fn can_flush(&self) -> bool {
        self.starved && self.to_peer.len() < self.room && self.peer_end != Some(End::Reset)
    }

    fn is_ready(&self, now: u64) -> bool {
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
            Stage::Open => !self.to_front.is_empty() || self.peer_end.is_some(),
        }
    }

    /// What the kernel takes: a broken connection nothing, a full one what there is room for, any less at times.
    fn transmit(&mut self, bytes: &[u8], random: &mut Random) -> usize {
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

    pub fn adopt(&mut self, tag: Tag) {
        self.tag = tag;
        self.stage = Stage::Open;
    }

    /// Some sends turn out short only with the end of the turn.
    pub fn send(&mut self, bytes: &[u8], random: &mut Random) -> usize {
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
        let unsent = !std::mem::take(&mut self.backlog).is_empty() || self.starved;
        if !unsent && self.to_front.is_empty() && self.peer_end != Some(End::Reset) {
            self.front_end = Some(End::Fin);
        } else {
            self.reset_by_front(random);
        }
    }

    pub fn reset_by_front(&mut self, random: &mut Random) {
        self.open = false;
        self.backlog.clear();
        if self.front_end != Some(End::Reset) {
            let kept = random.below(self.to_peer.len() + 1);
            self.to_peer.truncate(kept);
        }
        self.front_end = Some(End::Reset);
    }

    pub fn acknowledged(&self) -> u64 {
        // The SYN counts one.
        1 + self.acknowledged
    }
}
