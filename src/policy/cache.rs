//! What a choice knows of an endpoint's KV cache, computed beforehand as far as can be: a choice looks at hundreds of
//! them.

use crate::fleet::{ANSWER_TOKENS, Endpoint, Room};

/// Parts of a whole are counted in two to this: to make integers of fractions would take a choice longer than all else.
pub(super) const PARTS_BITS: u32 = 20;
/// How full a cache may be made, in percent: by a prompt that it holds most of, and by others.
const FILL_WARM: u64 = 97;
const FILL_COLD: u64 = 90;

/// What is known of an endpoint's KV cache, in one line of memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Cache {
    /// In use, in [`PARTS_BITS`]; 0 where it is not known.
    pub(super) used: u32,
    /// Replaced of late, in [`PARTS_BITS`]: see [`crate::fleet::Turnover`].
    pub(super) turnover: u32,
    /// Tokens; 0: not known.
    pub(super) capacity: u64,
    /// See [`Endpoint::dispatched_at`].
    dispatched_at: i64,
    /// Value of `dispatched` up to which a further prompt still fits: one that is mostly held here, and any other.
    until_warm: i64,
    until_cold: i64,
    /// See [`Room`].
    base: i64,
    own: f32,
    /// The square of what is not, in [`PARTS_BITS`]: next to nothing where each has a conversation of its own, nearly
    /// all where one prompt stands before all of theirs; nothing where it is not known.
    pub(super) shared: u32,
    /// Tokens that it could take at the last scrape without another going.
    pub(super) vacant: u32,
}

const _: () = assert!(size_of::<Cache>() == 64, "one line");

/// What is known of the caches of eligible endpoints. An endpoint that does not tell how full it is, beside others that
/// do, counts as full as these are in the mean: taken for empty it would be preferred to all of them, and no request
/// would ever wait for room there.
pub(super) fn of_each(endpoints: &[&&Endpoint]) -> Box<[Cache]> {
    let mut caches: Box<[Cache]> = endpoints.iter().map(|endpoint| Cache::of(endpoint)).collect();
    let tells = |endpoint: &Endpoint| endpoint.engine.kv_use.is_some();
    let told = || endpoints.iter().zip(&caches).filter(|(endpoint, _)| tells(endpoint)).map(|(_, cache)| cache);
    if let Some(mean) = Mean::of(told) {
        for (cache, endpoint) in caches.iter_mut().zip(endpoints).filter(|(_, endpoint)| !tells(endpoint)) {
            *cache = mean.cache(endpoint);
        }
    }
    caches
}

/// Of caches that are told of.
struct Mean {
    used: f64,
    turnover: u32,
    capacity: u64,
    vacant: f64,
    own: f32,
}

impl Mean {
    fn of<'a, C: Iterator<Item = &'a Cache>>(caches: impl Fn() -> C) -> Option<Mean> {
        let (count, sized) = (caches().count() as u64, caches().filter(|cache| cache.capacity > 0).count() as u64);
        let (capacity, vacant) =
            caches().fold((0, 0), |(all, vacant), cache| (all + cache.capacity, vacant + u64::from(cache.vacant)));
        let mean =
            |of: fn(&Cache) -> u32| (caches().map(|cache| u64::from(of(cache))).sum::<u64>() / count.max(1)) as u32;
        (count > 0).then(|| Mean {
            used: f64::from(mean(|cache| cache.used)) / f64::from(1 << PARTS_BITS),
            turnover: mean(|cache| cache.turnover),
            capacity: capacity / sized.max(1),
            vacant: vacant as f64 / capacity.max(1) as f64,
            own: match sized {
                0 => 1.0,
                _ => caches().filter(|cache| cache.capacity > 0).map(|cache| cache.own).sum::<f32>() / sized as f32,
            },
        })
    }

    /// As it would tell of itself now, so that nothing was sent there since.
    fn cache(&self, endpoint: &Endpoint) -> Cache {
        let room = endpoint.room;
        let told = room.map(|room| room.capacity).or(endpoint.engine.kv_capacity_tokens);
        let capacity = told.unwrap_or(self.capacity);
        let tokens = (self.used * capacity as f64) as i64;
        Cache {
            used: parts(self.used as f32),
            turnover: self.turnover,
            // No request waits for room in a cache of unknown size.
            capacity: told.unwrap_or(0),
            dispatched_at: NOW,
            until_warm: until(NOW, FILL_WARM, capacity, tokens),
            until_cold: until(NOW, FILL_COLD, capacity, tokens),
            base: room.map_or(0, |room| room.base),
            own: room.map_or(self.own, |room| room.own),
            shared: shared(self.own),
            vacant: (self.vacant * capacity as f64) as u32,
        }
    }
}

/// See [`Cache::shared`].
fn shared(own: f32) -> u32 {
    parts((1.0 - own).powi(2))
}

/// Later than all that was ever dispatched.
const NOW: i64 = Endpoint::NOTHING_SINCE as i64;

/// What may be dispatched in all until a cache that had so many tokens in use then is so full, in percent.
fn until(dispatched_at: i64, fill: u64, capacity: u64, tokens: i64) -> i64 {
    match capacity {
        0 => i64::MAX,
        _ => dispatched_at + (fill * capacity / 100) as i64 - tokens - ANSWER_TOKENS as i64,
    }
}

impl Cache {
    fn of(endpoint: &Endpoint) -> Cache {
        let used = endpoint.engine.kv_use.map_or(0.0, |used| used.clamp(0.0, 1.0));
        let turnover = parts(endpoint.turnover.clamp(0.0, 1.0));
        let Some(Room { capacity, base, own }) = Room::of(&endpoint.engine, endpoint.resident_at) else {
            return Cache { used: parts(used), turnover, ..Cache::untold(endpoint.room) };
        };
        let tokens = (f64::from(used) * capacity as f64) as i64;
        let dispatched_at = endpoint.dispatched_at as i64;
        Cache {
            used: parts(used),
            turnover,
            capacity,
            dispatched_at,
            until_warm: until(dispatched_at, FILL_WARM, capacity, tokens),
            until_cold: until(dispatched_at, FILL_COLD, capacity, tokens),
            base,
            own,
            shared: shared(own),
            vacant: (f64::from(endpoint.vacant.clamp(0.0, 1.0)) * capacity as f64) as u32,
        }
    }

    /// A cache of which nothing is told now: it adds no cost. Requests that wait for room go by what was told last,
    /// lest all go at once where engines are too busy to tell.
    fn untold(room: Option<Room>) -> Cache {
        let vacant = room.map_or(0, |_| u32::MAX);
        let Room { capacity, base, own } = room.unwrap_or(Room { capacity: 0, base: 0, own: 1.0 });
        let (until_warm, until_cold) = (i64::MAX, i64::MAX);
        Cache { capacity, dispatched_at: NOW, until_warm, until_cold, base, own, vacant, ..Cache::default() }
    }

    /// How many of so many new tokens would push out what lies there, where so many were sent there in all by now;
    /// none, as far as is known, of a cache that nobody tells of.
    pub(super) fn pushed_out(&self, new: u64, dispatched: u64) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        let since = dispatched.saturating_sub(self.dispatched_at as u64);
        new.saturating_sub(u64::from(self.vacant).saturating_sub(since))
    }

    /// Whether so many new tokens of a prompt go in beside what is in use, and what was dispatched since that was read:
    /// for the cost alone, whose weights were found with it. What was dispatched stays until the next scrape, so that
    /// it says "no" sooner than `Work::room`.
    pub(super) fn has_room(&self, new: u64, is_warm: bool, dispatched: u64) -> bool {
        let until = if is_warm { self.until_warm } else { self.until_cold };
        self.dispatched_at.max(dispatched as i64) + new as i64 <= until
    }

    /// Tokens in use now, those of our requests that will be soon among them, given what ours have resident there.
    pub(super) fn occupied(&self, resident: u64) -> u64 {
        self.base.saturating_add((f64::from(self.own) * resident as f64) as i64).max(0) as u64
    }

    /// How much of our requests' tokens no two of them share, 0..=1.
    pub(super) fn own_part(&self) -> f32 {
        self.own
    }

    /// How much of so many tokens that the cache holds already nobody in flight uses: they would be in use as well.
    pub(super) fn idle_part(&self, held: u32) -> u64 {
        (self.own * held as f32) as u64
    }
}

/// What is 0..=1, in [`PARTS_BITS`].
pub(super) fn parts(part: f32) -> u32 {
    (part * (1 << PARTS_BITS) as f32).round() as u32
}
