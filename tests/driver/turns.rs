//! A driver under test, turn by turn, with notes of all that it tells.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use warmfront::driver::{Completion, Driver, SocketId, Tag, socket};
use warmfront::limits::RECEIVE_BYTES;

use crate::peer::{End, Peer};

/// Longest wait of a test for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long one turn sleeps at most.
const TURN: Duration = Duration::from_millis(10);

/// What was told of a connection besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    Connected,
    Received(usize),
    Ended,
    Failed,
    Reset,
    Full,
    Spliced(u64),
    Drained,
}

/// One connection of the driver's.
#[derive(Default)]
pub struct Line {
    pub received: Vec<u8>,
    pub told: Vec<Told>,
}

pub struct Turns<D> {
    pub driver: D,
    /// Where it listens.
    pub address: SocketAddr,
    /// Accepted and not adopted yet.
    pub fresh: VecDeque<SocketId>,
    lines: HashMap<u64, Line>,
    tags: u64,
}

impl<D: Driver> Turns<D> {
    pub fn new(driver: D) -> Turns<D> {
        Turns::at(driver, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// A driver that listens at `address`.
    pub fn at(mut driver: D, address: SocketAddr) -> Turns<D> {
        let listener = socket::listener(address).unwrap();
        let address = socket::bound_address(&listener).unwrap();
        driver.listen(listener).unwrap();
        Turns { driver, address, fresh: VecDeque::new(), lines: HashMap::new(), tags: 0 }
    }

    pub fn tag(&mut self) -> Tag {
        self.tags += 1;
        Tag(self.tags << 8)
    }

    /// One turn; returns how many completions it had.
    pub fn turn(&mut self) -> usize {
        self.turn_of(TURN, |_, _| {})
    }

    /// One turn in which the test reacts to each completion, as a shard does.
    pub fn turn_of(&mut self, sleep: Duration, mut react: impl FnMut(&mut D, Completion)) -> usize {
        self.driver.wait(sleep).unwrap();
        let mut count = 0;
        while let Some(completion) = self.driver.next() {
            count += 1;
            assert!(count < 1_000_000, "a turn without an end: {completion:?}");
            self.note(completion);
            react(&mut self.driver, completion);
        }
        count
    }

    fn note(&mut self, completion: Completion) {
        let (tag, told) = match completion {
            Completion::Accepted { socket, .. } => return self.fresh.push_back(socket),
            Completion::Received(tag, lease) => {
                let bytes = self.driver.bytes(lease);
                assert!(!bytes.is_empty() && bytes.len() == lease.len as usize && bytes.len() <= RECEIVE_BYTES);
                self.lines.entry(tag.0).or_default().received.extend_from_slice(bytes);
                (tag, Told::Received(lease.len as usize))
            }
            Completion::Connected(tag) => (tag, Told::Connected),
            Completion::Ended(tag) => (tag, Told::Ended),
            Completion::Failed(tag) => (tag, Told::Failed),
            Completion::Reset(tag) => (tag, Told::Reset),
            Completion::Full(tag) => (tag, Told::Full),
            Completion::Spliced(tag, len) => (tag, Told::Spliced(len)),
            Completion::Drained(tag) => (tag, Told::Drained),
        };
        self.lines.entry(tag.0).or_default().told.push(told);
    }

    /// Turns until `met` holds.
    pub fn until(&mut self, what: &str, met: impl FnMut(&mut Turns<D>) -> bool) {
        self.until_with(what, |_, _| {}, met);
    }

    /// Turns, in which the test reacts to each completion, until `met` holds.
    pub fn until_with(
        &mut self,
        what: &str,
        mut react: impl FnMut(&mut D, Completion),
        mut met: impl FnMut(&mut Turns<D>) -> bool,
    ) {
        let deadline = Instant::now() + PATIENCE;
        while !met(self) {
            if Instant::now() >= deadline {
                let last = |line: &Line| line.told[line.told.len().saturating_sub(6)..].to_vec();
                let told: Vec<_> = self.lines.iter().map(|(tag, line)| (tag >> 8, last(line))).collect();
                panic!("{what} did not come about on {}; told: {told:?}", D::NAME);
            }
            self.turn_of(TURN, &mut react);
        }
    }

    /// Turns until nothing happens any more.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..10_000 {
            quiet = if self.turn_of(Duration::from_millis(4), |_, _| {}) == 0 { quiet + 1 } else { 0 };
            if quiet == 3 {
                return;
            }
        }
        panic!("{} finds no rest", D::NAME);
    }

    /// Turns until this was told.
    pub fn until_told(&mut self, tag: Tag, told: Told) {
        self.until(&format!("{told:?}"), |turns| turns.told(tag).contains(&told));
    }

    /// Turns until so many bytes have come.
    pub fn until_received(&mut self, tag: Tag, len: usize) {
        self.until(&format!("{len} bytes"), |turns| turns.received(tag).len() >= len);
    }

    /// Turns until the far end has so many bytes.
    pub fn until_got(&mut self, peer: &mut Peer, len: usize) {
        self.until(&format!("{len} bytes at the far end"), |_| {
            peer.read();
            peer.got.len() >= len
        });
    }

    /// How the far end sees the connection end, once it has read everything.
    pub fn end_of(&mut self, peer: &mut Peer) -> End {
        self.until("an end at the far end", |_| {
            peer.read();
            peer.end.is_some()
        });
        peer.end.unwrap()
    }

    /// Forgets what was told, so that only the driver's memory grows.
    pub fn forget(&mut self) {
        self.lines.clear();
    }

    /// Forgets the bytes of connections that sent more than `most`.
    pub fn forget_bytes(&mut self, most: usize) {
        self.lines.values_mut().filter(|line| line.received.len() > most).for_each(|line| *line = Line::default());
    }

    pub fn received(&self, tag: Tag) -> &[u8] {
        self.lines.get(&tag.0).map_or(&[], |line| &line.received)
    }

    pub fn told(&self, tag: Tag) -> &[Told] {
        self.lines.get(&tag.0).map_or(&[], |line| &line.told)
    }

    /// What was told besides bytes.
    pub fn ends(&self, tag: Tag) -> Vec<Told> {
        let bytes = |told: &&Told| !matches!(told, Told::Received(_));
        self.told(tag).iter().filter(bytes).copied().collect()
    }

    /// A connection that a far end has made.
    pub fn accept(&mut self) -> (SocketId, Tag, Peer) {
        let peer = Peer::connect(self.address);
        self.until("an accept", |turns| !turns.fresh.is_empty());
        let (id, tag) = (self.fresh.pop_front().unwrap(), self.tag());
        self.driver.adopt(id, tag);
        (id, tag, peer)
    }

    /// A connection that the driver has made.
    pub fn connect(&mut self) -> (SocketId, Tag, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tag = self.tag();
        let id = self.driver.connect(listener.local_addr().unwrap(), tag).unwrap();
        self.until_told(tag, Told::Connected);
        (id, tag, Peer::accept(&listener))
    }

    /// One connection of each kind.
    pub fn two(&mut self) -> [(SocketId, Tag, Peer); 2] {
        [self.accept(), self.connect()]
    }
}
