//! What exchanges have of their shard: memory that goes from one to the next, and what they share.

use std::hash::{BuildHasher, RandomState};

use super::retries::Retries;
use super::{Charges, Exchange, Micros, Phase, Recorder, Shadows, Toolsets};
use crate::http::FieldTable;
use crate::index::Matches;
use crate::scan::{Renderer, Scan};
use crate::snapshot::PoolId;

/// Things of a shard that its exchanges borrow and give back.
pub struct Lender {
    /// The memory of exchanges that are over: a turn ends more of them than an allocator keeps at hand.
    pub over: Vec<Box<Exchange>>,
    /// Parsed fields of the head at hand.
    pub fields: FieldTable,
    /// Scanners not in use.
    pub scans: Vec<Box<Scan>>,
    /// Buffers of held bodies not in use; kept so that a long prompt costs no page faults.
    pub buffers: Vec<Vec<u8>>,
    /// Of heads and short bodies, not in use.
    pub short: Vec<Vec<u8>>,
    /// Memory of the bodies held now and of the scanners that read them, of heads that have not come whole, of what is
    /// read ahead of clients, and of what is kept of prompts: of strangers', and of those that wait in the queue.
    pub held_bytes: usize,
    /// Most that this may be.
    pub budget_bytes: usize,
    /// What of it is of those that wait in the queue; see [`Lender::waits_too_much`].
    pub waiting_bytes: usize,
    /// The requests that this shard has counted in flight.
    pub charges: Charges,
    /// How many requests may be sent a second time.
    pub retries: Retries,
    /// State of the shard's random numbers.
    pub random: Random,
    /// Ids for requests whose clients named none.
    pub ids: Ids,
    /// Counts choices by pool, for round-robin: were they counted together, two pools asked in turn would each see
    /// every other number.
    pub turns: Vec<u64>,
    /// Which shard it is, for the queue.
    pub shard: u16,
    /// The prompt that is chosen for.
    pub chain: Vec<u64>,
    /// And what lies between its links, where it was cut as its engine writes it.
    pub steps: Vec<u64>,
    /// All of it as its client wrote it, where its engine's text is known of its beginning alone and that is in
    /// `chain`; else empty.
    pub whole: Vec<u64>,
    /// Writes prompts as engines do; made when it is first wanted.
    pub renderer: Option<Box<Renderer>>,
    /// Tools that it met without knowing how they are written.
    pub toolsets: Toolsets,
    /// Bytes of the prompt that is chosen for.
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
            over: Vec::new(),
            fields: FieldTable::default(),
            scans: Vec::new(),
            buffers: Vec::new(),
            short: Vec::new(),
            held_bytes: 0,
            budget_bytes: usize::MAX,
            waiting_bytes: 0,
            charges: Charges::default(),
            retries: Retries::default(),
            random: Random::default(),
            ids: Ids::default(),
            turns: Vec::new(),
            shard: 0,
            chain: Vec::new(),
            steps: Vec::new(),
            whole: Vec::new(),
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

/// A buffer is at most so many times as long as what is wanted at once, or [`AHEAD_BYTES`] if that is more.
const AHEAD_FACTOR: usize = 16;
const AHEAD_BYTES: usize = 64 << 10;
/// Most buffers kept in [`Lender::buffers`], and the largest that is: what a body took of which all had to be held
/// until its model came is nobody's afterwards.
const SPARE_BUFFERS_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 2 << 20;
/// Most scanners kept in [`Lender::scans`]: a crowd of unfinished bodies leaves no more behind.
const SPARE_SCANS_MAX: usize = 64;
/// What a scanner takes, on the account for as long as it is lent: who waits for a body has one before any of it came,
/// and is let have it for a head of some dozens of bytes. Beside it one that was used keeps 8 bytes for each block that
/// it read.
pub const SCAN_BYTES: usize = size_of::<Scan>();
/// Most exchanges kept in [`Lender::over`].
const SPARE_EXCHANGES_MAX: usize = 64;
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

    /// Whether what waits in the queue holds more than half of what there is for bodies.
    pub fn waits_too_much(&self) -> bool {
        self.waiting_bytes > self.budget_bytes / 2
    }

    /// Whether more than half of what there is for bodies is held.
    pub fn holds_much(&self) -> bool {
        self.held_bytes > self.budget_bytes / 2
    }

    /// How many blocks the prompt is known to have, by the longer of its chains.
    pub fn blocks(&self) -> usize {
        self.chain.len().max(self.whole.len())
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
            SPARE_BYTES_MIN..=SPARE_BYTES_MAX => (&mut self.buffers, SPARE_BUFFERS_MAX),
            _ => return,
        };
        if spare.len() < most {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// An exchange in memory of its own.
    pub fn boxed(&mut self, exchange: Exchange) -> Box<Exchange> {
        match self.over.pop() {
            Some(mut spare) => {
                *spare = exchange;
                spare
            }
            None => Box::new(exchange),
        }
    }

    /// Takes back the memory of one that is over. What little of its own is left in there goes when the next one takes
    /// its place.
    pub fn give_back_exchange(&mut self, exchange: Box<Exchange>) {
        if exchange.phase() == Phase::Done && self.over.len() < SPARE_EXCHANGES_MAX {
            self.over.push(exchange);
        }
    }

    /// Takes a scanner back.
    pub fn give_back_scan(&mut self, scan: Box<Scan>) {
        self.held_bytes -= SCAN_BYTES;
        if self.scans.len() < SPARE_SCANS_MAX {
            self.scans.push(scan);
        }
    }

    /// A scanner, held by whom it is lent to.
    pub fn scan(&mut self) -> Box<Scan> {
        let scan = self.scans.pop().unwrap_or_else(|| Box::new(Scan::new()));
        self.held_bytes += SCAN_BYTES;
        scan
    }
}

/// xorshift64*: for choices, not for what others must not foretell. Who sees one of its numbers knows the next.
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

/// Ids of which none tells of another: hashes of a count, by a key of the shard's own.
#[derive(Debug, Default)]
pub struct Ids {
    /// SipHash under a key from the system's randomness. XXH3's seed can be computed from what it makes.
    key: RandomState,
    made: u64,
}

impl Ids {
    /// The next id.
    pub fn halves(&mut self) -> [u64; 2] {
        self.made += 2;
        [self.made, self.made + 1].map(|count| self.key.hash_one(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_alike_in_nothing() {
        let [mut one, mut other] = [(); 2].map(|()| Ids::default());
        let made: Vec<u64> = (0..1_000).flat_map(|_| [one.halves(), other.halves()]).flatten().collect();
        let each: std::collections::HashSet<_> = made.iter().collect();
        assert_eq!(each.len(), 4_000);
    }

    /// One body that was held whole until its model came took buffers up to its length, each twice the one before.
    #[test]
    fn what_one_long_body_took_is_not_kept() {
        let mut lender = Lender::default();
        (14..27).for_each(|power| lender.give_back(Vec::with_capacity(1 << power)));
        assert_eq!(lender.buffers.iter().map(Vec::capacity).max(), Some(SPARE_BYTES_MAX));
        let kept: usize = lender.buffers.iter().map(Vec::capacity).sum();
        assert!(kept <= SPARE_BUFFERS_MAX * SPARE_BYTES_MAX, "{kept}");
        let again = lender.buffer(1 << 20, 1 << 20);
        assert!((1 << 20..=16 << 20).contains(&again.capacity()) && lender.buffers.len() == 7, "{}", again.capacity());
    }
}
