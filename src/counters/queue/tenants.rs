//! Whose turn it is among tenants: who was served least for its weight (start-time fair queueing, Goyal, Vin and Cheng
//! 1997).
//!
//! What a tenant was served is counted in tokens over its weight, in a book for each island of engines and each
//! urgency: these go at paces of their own, and who came anew to a slow one would otherwise stand behind all that was
//! served at a quick one. One who comes back to a queue begins where the last served of those who stayed is, so that
//! nobody saves up turns and nobody who comes has to wait until others have caught up.

use std::num::NonZeroU16;

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::counters::queue::rank::{LANES, STRANGERS};
use crate::limits::TENANT_WEIGHT_MAX;

/// A tenant of weight 1 pays so much for a token, a heavier one that much less.
const TOKEN: u64 = 1 << 10;
/// Islands and urgencies share so many books, half a KiB each; two on one are served as one queue would be.
const BOOKS: usize = if cfg!(feature = "modelled") { 1 } else { 256 };

/// On whose account a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// One of [`LANES`].
    pub lane: u8,
    /// 1..=[`TENANT_WEIGHT_MAX`].
    pub weight: u32,
}

impl Tenant {
    /// Where tenants are not told apart.
    pub const ONLY: Tenant = Tenant { lane: 0, weight: 1 };
    /// Of whom it is not known whether an engine lets them in, all together.
    pub const STRANGERS: Tenant = Tenant { lane: STRANGERS, weight: 1 };

    /// By the hash of what names it. Tenants whose hashes fall on one lane share it: one in 63 of any two.
    pub fn of(hash: u64, weight: u32) -> Tenant {
        Tenant { lane: (hash >> 32) as u8 % STRANGERS, weight: weight.clamp(1, TENANT_WEIGHT_MAX) }
    }
}

/// Where it is written what the tenants of one island and urgency were served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BookId(usize);

impl BookId {
    pub fn of(island: u16, urgency: u8) -> BookId {
        // By the golden ratio what stands at equal steps falls apart, and urgencies are mostly few and neighbours.
        let spread = u32::from(island).wrapping_mul(0x9e37_79b9) >> 24;
        BookId((spread as usize + usize::from(urgency)) % BOOKS)
    }
}

/// What was written into a book for one request. Each request in flight has room for one.
#[derive(Clone, Copy, Debug)]
pub struct Paid {
    book: u8,
    lane: u8,
    weight: NonZeroU16,
    tokens: u32,
}

const _: () = assert!(BOOKS <= 1 << 8 && TENANT_WEIGHT_MAX <= u16::MAX as u32 && size_of::<Option<Paid>>() == 8);

#[derive(Debug)]
struct Book {
    served: [AtomicU64; LANES],
    /// What the one who was released last had been served before.
    now: AtomicU64,
}

#[derive(Debug)]
pub struct Tenants {
    books: Box<[Book]>,
    weights: [AtomicU32; LANES],
}

impl Default for Tenants {
    fn default() -> Self {
        let book = || Book { served: std::array::from_fn(|_| AtomicU64::new(0)), now: AtomicU64::new(0) };
        Tenants { books: (0..BOOKS).map(|_| book()).collect(), weights: std::array::from_fn(|_| AtomicU32::new(1)) }
    }
}

impl Tenants {
    /// Nobody was served anything.
    pub fn begin_anew(&self) {
        for book in &self.books {
            book.served.iter().chain([&book.now]).for_each(|served| served.store(0, Ordering::Relaxed));
        }
    }

    /// A request of it waits, and it begins where it `begins`.
    pub fn joins(&self, book: BookId, tenant: Tenant, begins: u64) {
        self.weights[usize::from(tenant.lane)].store(tenant.weight, Ordering::Relaxed);
        self.lane(book, tenant.lane).fetch_max(begins, Ordering::Relaxed);
    }

    /// A request of it goes, with so many tokens of work.
    pub fn serves(&self, book: BookId, tenant: Tenant, tokens: u32) -> Paid {
        let before = self.lane(book, tenant.lane).fetch_add(price(tenant.weight, tokens), Ordering::Relaxed);
        self.books[book.0].now.fetch_max(before, Ordering::Relaxed);
        Paid::new(book, tenant, tokens)
    }

    /// A request of it goes that did not wait, while others do; they do not go on by it.
    pub fn passes(&self, book: BookId, tenant: Tenant, tokens: u32, begins: u64) -> Paid {
        let lane = self.lane(book, tenant.lane);
        lane.fetch_max(begins, Ordering::Relaxed);
        lane.fetch_add(price(tenant.weight, tokens), Ordering::Relaxed);
        Paid::new(book, tenant, tokens)
    }

    /// Nothing was computed for what was paid. Who is at the `level` of those who wait saves up no turns by that.
    pub fn repays(&self, paid: Paid, level: u64) {
        let less = |served: u64| Some(served.saturating_sub(paid.price()).max(served.min(level)));
        let _ = self.lane(paid.book(), paid.lane).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What it was served, over its weight.
    pub fn served(&self, book: BookId, lane: u8) -> u64 {
        self.lane(book, lane).load(Ordering::Relaxed)
    }

    /// So many requests that wait, over the weight that the tenant was last seen with.
    pub fn by_weight(&self, lane: u8, places: u32) -> u64 {
        by_weight(places, self.weights[usize::from(lane)].load(Ordering::Relaxed))
    }

    fn lane(&self, book: BookId, lane: u8) -> &AtomicU64 {
        &self.books[book.0].served[usize::from(lane)]
    }

    /// What the one who was released last had been served before.
    pub fn now(&self, book: BookId) -> u64 {
        self.books[book.0].now.load(Ordering::Relaxed)
    }
}

impl Paid {
    fn new(book: BookId, tenant: Tenant, tokens: u32) -> Paid {
        let weight = u16::try_from(tenant.weight).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN);
        Paid { book: book.0 as u8, lane: tenant.lane, weight, tokens }
    }

    /// Where it was written.
    pub fn book(&self) -> BookId {
        BookId(self.book.into())
    }

    /// Whose it is.
    pub fn lane(&self) -> u8 {
        self.lane
    }

    /// Whether it was on the account that all strangers have in common.
    pub fn is_a_strangers(&self) -> bool {
        self.lane == STRANGERS
    }

    fn price(&self) -> u64 {
        price(self.weight.get().into(), self.tokens)
    }
}

fn price(weight: u32, tokens: u32) -> u64 {
    (u64::from(tokens) + 1) * TOKEN / u64::from(weight)
}

/// See [`Tenants::by_weight`].
pub fn by_weight(places: u32, weight: u32) -> u64 {
    u64::from(places) * TOKEN / u64::from(weight.max(1))
}
