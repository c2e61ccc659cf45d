//! All connections of a schedule, its clock, and the kernel's queues before each shard.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use warmfront::driver::{Completion, Lease, SocketId, Tag};
use warmfront::publish::Process;

use crate::control::Control;
use crate::pipe::{End, Pipe, Stage};
use crate::random::Random;
use crate::shadow::Shadow;

/// So long a client may take to begin to ask.
const FIRST_WITHIN: u64 = 1_000_000;

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
    /// How often there is no descriptor for the next one as a drain begins, in percent.
    pub scarce: usize,
    /// Endpoint slots to which every connect fails.
    pub dead: Vec<bool>,
    /// The one to which no port of ours leads.
    pub portless: Option<usize>,
    /// Microseconds at most that a connect takes to be answered, and a turn that something came in.
    pub connect: usize,
    pub turn: usize,
}

/// What the kernel has for one shard, and what it knows of the shard's sleep.
pub struct Port {
    /// Connections of clients in the kernel's queue.
    pub arrivals: VecDeque<usize>,
    pub accepting: bool,
    pub listening: bool,
    /// When the shard closed its listener, which it does as its drain begins.
    pub closed_at: Option<u64>,
    /// The shard was told that nobody is left in the queue, or that nobody of it can be had.
    pub is_exhausted: bool,
    /// How often nobody could be had.
    pub stalls: u64,
    /// In this turn somebody in the queue was reset for want of a place.
    pub turned_away: bool,
    /// Sleeps until then if nothing comes; 0: not known yet.
    pub wakes_at: u64,
    /// Waits in a row that did not sleep and brought nothing.
    pub idle_waits: u32,
    pub bell: Option<OwnedFd>,
}

impl Port {
    /// Whether another shard rang for it, and it has not heard.
    pub fn is_rung(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.bell.as_ref().is_some_and(|bell| poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)) == Ok(1))
    }
}

pub struct Network {
    pub now: u64,
    pub random: Random,
    pub pipes: Vec<Pipe>,
    pub knobs: Knobs,
    pub ports: Vec<Port>,
    /// When a peer does something next; `None`: no peer will by itself.
    pub peers_next: Option<u64>,
    /// Print what happens.
    pub traced: bool,
    /// Connections to engines that stand since the peers acted last.
    pub stood: Vec<usize>,
    /// Accepted ones on their way from one shard to another, each with a line that tells of its fate.
    pub in_transit: Vec<(usize, UnixStream)>,
    pub handed_over: usize,
    /// Those of them that were taken in once all drain; and how many were accepted as a listener was closed.
    pub handed_over_late: usize,
    pub accepted_last: usize,
    /// How long a drain takes at most, by the shards' rules.
    pub drain_micros: u64,
    /// From when on which process may be told to end.
    pub drains: Option<(u64, &'static Process)>,
    /// What must come of what happens; none in written schedules.
    pub shadow: Option<Shadow>,
    pub control: Option<Control>,
    /// What a peer sends at that time, in a turn that does not look there any more.
    pub late: Option<(u64, usize, Vec<u8>)>,
    /// Those that the front has open, and some that it had.
    live: Vec<usize>,
}

impl Network {
    pub fn new(seed: u64, shards: usize, knobs: Knobs) -> Network {
        let port = |_| Port {
            arrivals: VecDeque::new(),
            accepting: true,
            listening: true,
            closed_at: None,
            is_exhausted: false,
            stalls: 0,
            turned_away: false,
            wakes_at: 0,
            idle_waits: 0,
            bell: None,
        };
        Network {
            now: 1_000_000,
            random: Random::new(seed),
            pipes: Vec::new(),
            knobs,
            ports: (0..shards).map(port).collect(),
            peers_next: None,
            traced: std::env::var_os("WARMFRONT_SIM_TRACE").is_some(),
            stood: Vec::new(),
            in_transit: Vec::new(),
            handed_over: 0,
            handed_over_late: 0,
            accepted_last: 0,
            drain_micros: 0,
            drains: None,
            shadow: None,
            control: None,
            late: None,
            live: Vec::new(),
        }
    }

    pub fn add(&mut self, address: Option<SocketAddr>, shard: usize, stage: Stage, tag: Tag) -> usize {
        let room = self.knobs.room_min + self.random.small(self.knobs.room_max);
        self.pipes.push(Pipe::new(address, shard, stage, tag, room, self.knobs.short));
        self.live.push(self.pipes.len() - 1);
        self.pipes.len() - 1
    }

    pub fn pipe(&mut self, id: SocketId) -> Option<&mut Pipe> {
        self.pipes.get_mut(id.to_u64() as usize).filter(|pipe| pipe.open)
    }

    /// A client connects: the kernel hashes it to a shard that listens, or refuses it.
    pub fn arrive(&mut self) -> usize {
        let listening: Vec<usize> = (0..self.ports.len()).filter(|at| self.ports[*at].listening).collect();
        let shard = if listening.is_empty() { 0 } else { self.random.pick(&listening) };
        let pipe = self.add(None, shard, Stage::Fresh, Tag(0));
        match listening.is_empty() {
            true => self.pipes[pipe].reset_by_front(&mut self.random),
            false => self.ports[shard].arrivals.push_back(pipe),
        }
        pipe
    }

    /// The next in the queue.
    pub fn accept(&mut self, shard: usize) -> Option<(SocketId, SocketAddr)> {
        let at = self.ports[shard].arrivals.pop_front()?;
        let peer = SocketAddr::from(([10, 9, 0, 1], 1024 + (at % 60_000) as u16));
        Some((SocketId::from_u64(at as u64), peer))
    }

    /// Who is in the queue yet is reset.
    pub fn stop_listening(&mut self, shard: usize) {
        let port = &mut self.ports[shard];
        (port.listening, port.closed_at) = (false, Some(self.now));
        let left = std::mem::take(&mut port.arrivals);
        assert!(left.is_empty() || port.is_exhausted || !port.accepting, "{left:?} could have been accepted");
        port.turned_away = !left.is_empty() && !port.accepting;
        left.into_iter().for_each(|at| self.pipes[at].reset_by_front(&mut self.random));
    }

    /// Who has asked is heard before his connection is closed, and for who has just come it is not closed yet; but for
    /// the end of a drain.
    pub fn check_close(&self, shard: usize, socket: SocketId) {
        let at = socket.to_u64() as usize;
        let Some(pipe) = self.pipes.get(at).filter(|pipe| pipe.open && pipe.is_client()) else { return };
        assert!(!self.ports[shard].turned_away, "the place of {at} came free too late");
        let is_cut = self.ports[shard].closed_at.is_some_and(|closed| self.now >= closed + self.drain_micros);
        if is_cut || pipe.peer_end.is_some() {
            return;
        }
        assert!(!pipe.is_unheard(), "{at} was closed with {} bytes of its first request unread", pipe.said);
        let is_new = pipe.said == 0 && self.now < pipe.adopted_at + FIRST_WITHIN;
        assert!(!is_new, "{at} was closed although it has just come");
    }

    /// What is ready for a shard now, in the order in which it is visited.
    pub fn ready(&mut self, shard: usize) -> Vec<usize> {
        let (now, pipes) = (self.now, &self.pipes);
        self.live.retain(|&at| pipes[at].open);
        let here = self.live.iter().copied().filter(|&at| pipes[at].shard == shard && pipes[at].is_ready(now));
        let mut ready: Vec<usize> = here.collect();
        let random = &mut self.random;
        let late = self.knobs.late;
        ready.retain(|_| !random.chance(late));
        random.shuffle(&mut ready);
        ready
    }

    /// Whether a shard has something to do now; `None`: any.
    pub fn any_ready(&self, shard: Option<usize>) -> bool {
        let here = |at: usize| shard.is_none_or(|shard| shard == at);
        let arrived =
            |(at, port): (usize, &Port)| here(at) && port.accepting && port.listening && !port.arrivals.is_empty();
        !self.in_transit.is_empty()
            || self.ports.iter().enumerate().any(arrived)
            || self.live.iter().any(|&at| here(self.pipes[at].shard) && self.pipes[at].is_ready(self.now))
    }

    /// When a connect is answered, or a peer does something.
    pub fn next_event(&self) -> Option<u64> {
        let connects = self.live.iter().map(|&at| &self.pipes[at]).filter(|pipe| pipe.open);
        let answers = connects.filter_map(|pipe| match pipe.stage {
            Stage::Connecting(at, _) if at < u64::MAX => Some(at),
            _ => None,
        });
        answers.chain(self.peers_next).min()
    }

    /// When another shard than this one wakes by itself.
    pub fn others_wake(&self, shard: usize) -> u64 {
        let others = self.ports.iter().enumerate().filter(|(at, _)| *at != shard);
        others.map(|(_, port)| port.wakes_at).min().unwrap_or(u64::MAX)
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
            if stands {
                self.stood.push(at);
            }
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
        if pipe.splice.is_some() {
            return self.visit_splice(at, lease_max, buffer);
        }
        if !pipe.told_fin && !pipe.to_front.is_empty() {
            let len = pipe.to_front.len().min(lease_max);
            *buffer = pipe.hand_out(len);
            return Some(Completion::Received(pipe.tag, Lease { buffer: 0, len: len as u32 }));
        }
        pipe.tell_end()
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
        pipe.said += taken as u64;
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
