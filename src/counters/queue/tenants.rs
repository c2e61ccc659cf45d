//! Which tenant's turn it is: that of the one served least for its weight (start-time fair queueing, Goyal, Vin and
//! Cheng 1997).
//!
//! What a tenant was served is counted in tokens over its weight, in a book for each island of engines and each
//! urgency. These go at paces of their own: with one book, a tenant that came to a slow island would have to wait for
//! all that was served on a quick one. A tenant that comes back to a queue begins where the least served of the waiting
//! tenants is: it has neither saved up turns nor to wait until others catch up.

use std::num::NonZeroU16;

use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use crate::counters::queue::rank::{LANES, STRANGERS};
use crate::limits::TENANT_WEIGHT_MAX;

/// Price of a token for a tenant of weight 1; for a heavier one it is divided by the weight.
const TOKEN: u64 = 1 << 10;
/// How many books islands and urgencies share, half a KiB each. Two that share a book are served like one queue.
const BOOKS: usize = if cfg!(feature = "modelled") { 1 } else { 256 };

/// The tenant on whose account a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenant {
    /// One of [`LANES`].
    pub lane: u8,
    /// 1..=[`TENANT_WEIGHT_MAX`].
    pub weight: u32,
}

impl Tenant {
    /// The one tenant if they are not told apart.
    pub const ONLY: Tenant = Tenant { lane: 0, weight: 1 };
    /// All clients together of which it is not known whether an engine lets them in.
    pub const STRANGERS: Tenant = Tenant { lane: STRANGERS, weight: 1 };

    /// The tenant with this hash of its name. Two tenants share a lane with a chance of 1 in 63.
    pub fn of(hash: u64, weight: u32) -> Tenant {
        Tenant { lane: (hash >> 32) as u8 % STRANGERS, weight: weight.clamp(1, TENANT_WEIGHT_MAX) }
    }
}

/// The book with what the tenants of one island and urgency were served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BookId(usize);

impl BookId {
    pub fn of(island: u16, urgency: u8) -> BookId {
        // The golden ratio spreads islands at equal steps; urgencies are mostly few and next to each other.
        let spread = u32::from(island).wrapping_mul(0x9e37_79b9) >> 24;
        BookId((spread as usize + usize::from(urgency)) % BOOKS)
    }
}

/// What one request was charged in a book. Each request in flight has one, so it is small.
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
    /// What the tenant of the last released request had been served before; the greatest so far.
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
    /// Sets all accounts to 0.
    pub fn begin_anew(&self) {
        for book in &self.books {
            book.served.iter().chain([&book.now]).for_each(|served| served.store(0, Ordering::Relaxed));
        }
    }

    /// Notes the weight of a tenant whose request joins, and raises its account to `begins`.
    pub fn joins(&self, book: BookId, tenant: Tenant, begins: u64) {
        self.weights[usize::from(tenant.lane)].store(tenant.weight, Ordering::Relaxed);
        self.lane(book, tenant.lane).fetch_max(begins, Ordering::Relaxed);
    }

    /// Charges a released request of so many tokens of work.
    pub fn serves(&self, book: BookId, tenant: Tenant, tokens: u32) -> Paid {
        let before = self.lane(book, tenant.lane).fetch_add(price(tenant.weight, tokens), Ordering::Relaxed);
        self.books[book.0].now.fetch_max(before, Ordering::Relaxed);
        Paid::new(book, tenant, tokens)
    }

    /// Charges a request that did not wait while others do. [`Tenants::now`] does not move by it.
    pub fn passes(&self, book: BookId, tenant: Tenant, tokens: u32, begins: u64) -> Paid {
        let lane = self.lane(book, tenant.lane);
        lane.fetch_max(begins, Ordering::Relaxed);
        lane.fetch_add(price(tenant.weight, tokens), Ordering::Relaxed);
        Paid::new(book, tenant, tokens)
    }

    /// Takes a charge back, since nothing was computed for it; but not below the `level` of the tenants that wait, so
    /// that no turns are saved up.
    pub fn repays(&self, paid: Paid, level: u64) {
        let less = |served: u64| Some(served.saturating_sub(paid.price()).max(served.min(level)));
        let _ = self.lane(paid.book(), paid.lane).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What a lane was served, over its weight.
    pub fn served(&self, book: BookId, lane: u8) -> u64 {
        self.lane(book, lane).load(Ordering::Relaxed)
    }

    /// A number of waiting requests over the weight that the lane's tenant was last seen with.
    pub fn by_weight(&self, lane: u8, places: u32) -> u64 {
        by_weight(places, self.weights[usize::from(lane)].load(Ordering::Relaxed))
    }

    fn lane(&self, book: BookId, lane: u8) -> &AtomicU64 {
        &self.books[book.0].served[usize::from(lane)]
    }

    /// Where turns of a book are: see [`Book::now`].
    pub fn now(&self, book: BookId) -> u64 {
        self.books[book.0].now.load(Ordering::Relaxed)
    }
}

impl Paid {
    fn new(book: BookId, tenant: Tenant, tokens: u32) -> Paid {
        let weight = u16::try_from(tenant.weight).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN);
        Paid { book: book.0 as u8, lane: tenant.lane, weight, tokens }
    }

    /// The book that it was charged in.
    pub fn book(&self) -> BookId {
        BookId(self.book.into())
    }

    /// The lane that was charged.
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
