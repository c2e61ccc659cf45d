//! What goes into an exchange and what comes out of it.

use std::net::IpAddr;
use std::ops::Range;

use super::retries::Retries;
use super::{Charges, Recorder, Rules, Shadows, Toolsets};
use crate::calendar;
use crate::counters::Counters;
use crate::counters::stats::{Event as Count, ShardStats};
use crate::fleet::EndpointId;
use crate::http::FieldTable;
use crate::index::Matches;
use crate::scan::{Renderer, Scan};
use crate::snapshot::{PoolId, Snapshot};

/// Instants and lengths of the data plane, in microseconds of a monotone clock.
pub type Micros = u64;

/// The two sides of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Who asks.
    Client,
    /// The endpoint that answers.
    Upstream,
}

/// What happened. Bytes are borrowed: what must outlive the event is copied or sent.
#[derive(Debug)]
pub enum Event<'a> {
    /// The head was read; its body may follow.
    Begin,
    /// Bytes of the request body. [`Actions::consumed`] tells how many belonged to it.
    Request(&'a [u8]),
    /// There may be room for a request in the queue, and it is its turn; or it was pushed out.
    Room,
    /// The client sends no more (FIN).
    ClientEnded,
    /// The client's connection is broken.
    ClientReset,
    /// The upstream connection asked for stands.
    Connected {
        /// It served requests before.
        reused: bool,
        /// Bytes acknowledged on it so far.
        acknowledged: Option<u64>,
    },
    /// The upstream connection asked for could not be made.
    ConnectFailed,
    /// It could not even be begun, for want of something of ours: a descriptor, a port.
    ConnectWanting,
    /// The upstream's kernel took so many bytes of [`crate::exchange::Exchange::unsent`].
    Pushed(usize),
    /// Bytes of the reply.
    Reply(&'a [u8]),
    /// So many bytes of the reply's body went to the client, unseen.
    Spliced(u64),
    /// The upstream sends no more, or its connection is broken.
    UpstreamGone {
        /// By FIN, not by a reset.
        ended: bool,
        /// Bytes acknowledged on it at its end.
        acknowledged: Option<u64>,
    },
    /// The kernel did not take all that was sent to this side.
    Full(Side),
    /// The kernel takes bytes for this side again.
    Drained(Side),
    /// The instant in [`crate::exchange::Exchange::deadline`] has passed.
    Deadline {
        /// Bytes acknowledged on the upstream connection.
        acknowledged: Option<u64>,
    },
    /// The endpoint's kernel refuses connections: what it still owes may never come.
    Deserted,
    /// The front is being shut down: end now, visibly.
    Cut,
}

/// Where bytes to send lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the event's bytes.
    Input(Range<usize>),
    /// In [`Actions::scratch`].
    Scratch(Range<usize>),
}

/// How an exchange leaves its client's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The next request may follow.
    KeepAlive,
    /// Everything sent, then FIN; what the client still sends is read and dropped for a while, lest a
    /// reset destroys the reply on its way.
    Linger,
    /// A reset: the client must not take this end for a proper one.
    Abort,
    /// The client is gone already.
    Gone,
}

/// What the shard is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send bytes.
    Send(Side, Source),
    /// Offer what [`crate::exchange::Exchange::unsent`] holds to the upstream.
    PushRequest,
    /// Get a connection; answered by `Connected`, `ConnectFailed` or `ConnectWanting`.
    Connect {
        /// To where.
        endpoint: EndpointId,
        /// None that idled: they may have gone stale together.
        fresh: bool,
    },
    /// The upstream connection leaves this exchange: kept for another, or closed.
    Dismiss {
        /// It stands at the end of a reply.
        reuse: bool,
    },
    /// Have so many bytes of the reply go to the client inside the kernel, answered by `Spliced`; where that cannot
    /// be had they come as before.
    Splice(u64),
    /// Stop reading from a side.
    Pause(Side),
    /// Read from it again.
    Resume(Side),
    /// FIN to a side, behind what was sent to it.
    Finish(Side),
    /// The exchange is over.
    End(Ending),
}

/// The actions of one `advance`, and the bytes composed for them. Reused: nothing is allocated once warm.
#[derive(Debug, Default)]
pub struct Actions {
    /// In order.
    pub list: Vec<Action>,
    /// Heads, chunk frames, own replies.
    pub scratch: Vec<u8>,
    /// How many bytes of [`Event::Request`] belonged to this request.
    pub consumed: usize,
}

impl Actions {
    /// Forgets the last turn's.
    pub fn clear(&mut self) {
        self.list.clear();
        self.scratch.clear();
        self.consumed = 0;
    }

    /// Adds one.
    pub fn push(&mut self, action: Action) {
        self.list.push(action);
    }

    /// Sends what `write` composes.
    pub fn compose(&mut self, side: Side, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.scratch.len();
        write(&mut self.scratch);
        self.list.push(Action::Send(side, Source::Scratch(start..self.scratch.len())));
    }
}

/// What an exchange may use while it advances. It reads no clock and opens no socket of its own.
pub struct Context<'a> {
    /// The turn's instant.
    pub now: Micros,
    /// Nanoseconds, to time the scan and the choice with.
    pub stopwatch: fn() -> u64,
    /// The fleet as of this turn.
    pub snapshot: &'a Snapshot,
    /// In-flight counts shared by all shards.
    pub counters: &'static Counters,
    /// This shard's statistics.
    pub stats: &'static ShardStats,
    /// Configuration that does not change while the process lives.
    pub rules: &'a Rules,
    /// No new request may follow on a connection.
    pub draining: bool,
    /// What an exchange borrows from its shard.
    pub lender: &'a mut Lender,
    /// Out.
    pub actions: &'a mut Actions,
}

impl Context<'_> {
    /// The time of day as answers of our own tell it. Replies of engines have theirs.
    pub(super) fn date(&self) -> Option<String> {
        self.lender.wall_ahead.map(|ahead| calendar::imf_fixdate(self.now.wrapping_add(ahead)))
    }

    /// Whether a request may be sent a second time.
    pub(super) fn retry(&mut self) -> bool {
        // Switched off, what is saved counts for nothing.
        let may = self.rules.limits.retry_percent > 0 && self.lender.retries.take();
        if !may {
            self.stats.count(Count::RetryWithheld);
        }
        may
    }
}

/// Things of a shard that its exchanges borrow and give back.
pub struct Lender {
    /// Parsed fields of the head at hand.
    pub fields: FieldTable,
    /// Scanners not in use.
    pub scans: Vec<Box<Scan>>,
    /// Buffers of held bodies not in use; kept so that a long prompt costs no page faults.
    pub buffers: Vec<Vec<u8>>,
    /// Of heads and short bodies, not in use.
    pub short: Vec<Vec<u8>>,
    /// Memory of the bodies held now.
    pub held_bytes: usize,
    /// Most of it.
    pub budget_bytes: usize,
    /// What is counted in flight.
    pub charges: Charges,
    /// How many requests may be sent a second time.
    pub retries: Retries,
    /// State of the shard's random numbers.
    pub random: Random,
    /// Counts choices by pool, for round-robin: were they counted together, two pools asked in turn would each see every other number.
    pub turns: Vec<u64>,
    /// Which shard it is, for the queue.
    pub shard: u16,
    /// The prompt that is chosen for.
    pub chain: Vec<u64>,
    /// And what lies between its links, where it was cut as its engine writes it.
    pub steps: Vec<u64>,
    /// Writes it so; made when it is first wanted.
    pub renderer: Option<Box<Renderer>>,
    /// Tools that it met without knowing how they are written.
    pub toolsets: Toolsets,
    /// Its bytes.
    pub prompt_bytes: u64,
    /// Who holds how much of it. Gone while a choice looks at it.
    pub matches: Option<Box<Matches>>,
    /// Choices that a second policy is to be asked about.
    pub shadows: Shadows,
    /// How far the time, in microseconds since 1970, is ahead of the shard's clock, where that is known.
    pub wall_ahead: Option<Micros>,
    /// Who takes what access log and receipts are told, while they are wanted.
    pub recorder: Option<Recorder>,
}

impl Default for Lender {
    fn default() -> Self {
        Lender {
            fields: FieldTable::default(),
            scans: Vec::new(),
            buffers: Vec::new(),
            short: Vec::new(),
            held_bytes: 0,
            budget_bytes: usize::MAX,
            charges: Charges::default(),
            retries: Retries::default(),
            random: Random::default(),
            turns: Vec::new(),
            shard: 0,
            chain: Vec::new(),
            steps: Vec::new(),
            renderer: None,
            toolsets: Toolsets::default(),
            prompt_bytes: 0,
            matches: None,
            shadows: Shadows::default(),
            wall_ahead: None,
            recorder: None,
        }
    }
}

/// A buffer is at most so many times as long as what is in it, or at least this long.
const AHEAD_FACTOR: usize = 16;
const AHEAD_BYTES: usize = 64 << 10;
/// Most spare capacity kept in [`Lender::buffers`].
const SPARE_BUFFERS_MAX: usize = 8;
/// Most scanners kept in [`Lender::scans`]: a crowd of unfinished bodies leaves no more behind.
const SPARE_SCANS_MAX: usize = 64;
/// Smaller buffers are short.
const SPARE_BYTES_MIN: usize = 16 << 10;
/// Most spare short buffers.
const SPARE_SHORT_MAX: usize = 64;
/// What a short buffer has at least, so that the next request finds room in it.
const SHORT_BYTES_MIN: usize = 2 << 10;

impl Lender {
    /// The number of this choice in its pool.
    pub fn turn(&mut self, pool: PoolId) -> u64 {
        let place = usize::from(pool.0);
        if self.turns.len() <= place {
            self.turns.resize(place + 1, 0);
        }
        let now = self.turns[place];
        self.turns[place] = now.wrapping_add(1);
        now
    }

    /// A buffer for `wanted` bytes, and for what is `announced` as far as that is not far beyond: announcing costs
    /// nothing, and a buffer that was full once takes its memory whatever is in it now.
    pub fn buffer(&mut self, wanted: usize, announced: usize) -> Vec<u8> {
        let most = (wanted * AHEAD_FACTOR).max(AHEAD_BYTES);
        let len = announced.min(most).max(wanted);
        let fits = |spare: &Vec<u8>| (len..=most).contains(&spare.capacity());
        // The last one back is the likeliest to be in the core's cache.
        match self.buffers.iter().rposition(fits) {
            Some(place) => self.buffers.remove(place),
            None => Vec::with_capacity(len),
        }
    }

    /// A buffer for a head of `wanted` bytes, with its body if that is short.
    pub fn short_buffer(&mut self, wanted: usize) -> Vec<u8> {
        let spare = self.short.pop().filter(|spare| spare.capacity() >= wanted);
        spare.unwrap_or_else(|| Vec::with_capacity(wanted.max(SHORT_BYTES_MIN)))
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, mut buffer: Vec<u8>) {
        let (spare, most) = match buffer.capacity() {
            0..SHORT_BYTES_MIN => return,
            SHORT_BYTES_MIN..SPARE_BYTES_MIN => (&mut self.short, SPARE_SHORT_MAX),
            _ => (&mut self.buffers, SPARE_BUFFERS_MAX),
        };
        if spare.len() < most {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Takes a scanner back.
    pub fn give_back_scan(&mut self, scan: Box<Scan>) {
        if self.scans.len() < SPARE_SCANS_MAX {
            self.scans.push(scan);
        }
    }

    /// A scanner.
    pub fn scan(&mut self) -> Box<Scan> {
        self.scans.pop().unwrap_or_else(|| Box::new(Scan::new()))
    }
}

/// xorshift64*: for choices and request ids, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Any seed will do.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

impl Default for Random {
    fn default() -> Self {
        Random::new(0x9E37_79B9_7F4A_7C15)
    }
}

/// Who is at the other end of a client connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
}
