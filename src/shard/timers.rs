//! Deadlines by a wheel that is only roughly right and therefore cheap: an entry says "look at this
//! client not later than then". Moving a deadline back costs nothing; the look finds it is not due.

use std::collections::VecDeque;

use crate::exchange::Micros;
use crate::slots::Key;

/// Width of one bucket.
pub const TICK: Micros = 1 << 14; // 16.4 ms
const BUCKETS: usize = 2048; // 33.5 s; later deadlines are looked at on the way
/// Looks that an emptied bucket keeps room for. Clients that were due together once stay so, and pass from bucket to
/// bucket.
const SPARE_MAX: usize = 64;

/// The wheel.
pub struct Timers {
    buckets: Vec<Vec<Key>>,
    occupied: [u64; BUCKETS / 64],
    /// All ticks before this one are done.
    tick: u64,
    /// Keys whose looks are due, in order of arrival.
    due: VecDeque<Key>,
    /// How many looks are due or to come.
    looks: usize,
}

impl Timers {
    /// An empty wheel that begins at `now`.
    pub fn new(now: Micros) -> Timers {
        let buckets = (0..BUCKETS).map(|_| Vec::new()).collect();
        Timers { buckets, occupied: [0; BUCKETS / 64], tick: now / TICK, due: VecDeque::new(), looks: 0 }
    }

    /// Has `key` looked at once `at` has passed, or before. Answers the instant of that look.
    pub fn arm(&mut self, key: Key, at: Micros) -> Micros {
        let tick = (at / TICK + 1).clamp(self.tick + 1, self.tick + BUCKETS as u64 - 1);
        let bucket = tick as usize % BUCKETS;
        self.buckets[bucket].push(key);
        self.looks += 1;
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        tick * TICK
    }

    /// Makes all looks up to `now` due; [`Timers::next_due`] gives them out.
    pub fn expire(&mut self, now: Micros) {
        let now = (now / TICK).max(self.tick);
        // Once round is all there is, however long ago the look before was.
        for tick in self.tick + 1..=now.min(self.tick + BUCKETS as u64) {
            let bucket = tick as usize % BUCKETS;
            self.due.extend(self.buckets[bucket].drain(..));
            if self.buckets[bucket].capacity() > SPARE_MAX {
                self.buckets[bucket] = Vec::new();
            }
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        }
        self.tick = now;
    }

    /// The next that is to be looked at now.
    pub fn next_due(&mut self) -> Option<Key> {
        let key = self.due.pop_front()?;
        self.looks -= 1;
        Some(key)
    }

    /// How many looks are due or to come.
    pub fn looks(&self) -> usize {
        self.looks
    }

    /// How long until the next look, at most `most`.
    pub fn sleep(&self, now: Micros, most: Micros) -> Micros {
        if !self.due.is_empty() {
            return 0;
        }
        self.next_look(self.tick + 1).map_or(most, |tick| (tick * TICK).saturating_sub(now).min(most))
    }

    /// The first tick from this one on that has a look, once round the wheel: by whole words, most of which are empty.
    fn next_look(&self, first: u64) -> Option<u64> {
        let words = self.occupied.len();
        let start = first as usize % BUCKETS;
        let behind = self.occupied[start / 64] >> (start % 64);
        if behind != 0 {
            return Some(first + u64::from(behind.trailing_zeros()));
        }
        // The first word comes again, for what lies before the start.
        let mut others = (1..=words).map(|ahead| (ahead, self.occupied[(start / 64 + ahead) % words]));
        let (ahead, word) = others.find(|(_, word)| *word != 0)?;
        Some(first - (start % 64) as u64 + (64 * ahead) as u64 + u64::from(word.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &mut Timers, now: Micros) -> Vec<Key> {
        timers.expire(now);
        std::iter::from_fn(|| timers.next_due()).collect()
    }

    #[test]
    fn looks_come_after_the_deadline_and_within_two_ticks() {
        let mut timers = Timers::new(1_000_000);
        let key = Key::from_u64(7);
        for deadline in [1_000_000, 1_000_001, 1_050_000, 1_500_000, 20_000_000] {
            let mut now = timers.tick * TICK;
            timers.arm(key, deadline);
            let found = loop {
                now += timers.sleep(now, 1_000_000).max(1);
                if due(&mut timers, now).contains(&key) {
                    break now;
                }
            };
            assert!(found >= deadline && found <= deadline.max(1_016_384) + 2 * TICK, "{deadline} {found}");
        }
    }

    #[test]
    fn clients_that_are_due_together_leave_no_room_behind_everywhere() {
        let mut timers = Timers::new(0);
        for key in 0..1_000 {
            timers.arm(Key::from_u64(key), u64::MAX / 2);
        }
        for round in 0..200 {
            let now = timers.sleep(timers.tick * TICK, u64::MAX) + timers.tick * TICK;
            let due = due(&mut timers, now);
            assert_eq!(due.len(), 1_000, "{round}");
            for key in due {
                timers.arm(key, u64::MAX / 2);
            }
        }
        let kept: usize = timers.buckets.iter().map(Vec::capacity).sum();
        assert!(kept < 2 * 1_024 + 200 * SPARE_MAX, "room for {kept} looks");
    }

    #[test]
    fn the_next_look_is_the_first_of_all() {
        let mut random = crate::exchange::Random::new(7);
        for _ in 0..2_000 {
            let mut timers = Timers::new(random.number() % (BUCKETS as u64 * TICK * 3));
            let now = timers.tick * TICK;
            let looks =
                (0..random.number() % 4).map(|_| timers.arm(Key::from_u64(1), now + random.number() % 40_000_000));
            let first = looks.collect::<Vec<_>>().into_iter().min();
            let most = [1_000, 1_000_000, 60_000_000][random.number() as usize % 3];
            let within = first.filter(|look| look - now <= most.min((BUCKETS as u64 - 1) * TICK) / TICK * TICK);
            assert_eq!(timers.sleep(now, most), within.map_or(most, |look| look - now), "{now} {first:?}");
        }
    }

    /// Looks that wait, as behind a standstill, are due at once, however long ago they were.
    #[test]
    fn who_has_looks_to_catch_up_with_does_not_sleep() {
        let mut timers = Timers::new(0);
        timers.arm(Key::from_u64(1), 3_000_000);
        for now in [3_100_000, 30_000_000, 3_600_000_000] {
            assert_eq!(timers.sleep(now, 1_000_000), 0, "{now}");
        }
    }

    #[test]
    fn far_deadlines_are_looked_at_early_and_long_sleeps_lose_nothing() {
        let mut timers = Timers::new(0);
        let key = Key::from_u64(1);
        let look = timers.arm(key, 600_000_000);
        assert!(look < 40_000_000);
        assert_eq!(due(&mut timers, 3_600_000_000), [key]);
        timers.arm(key, 3_601_000_000);
        assert!(timers.sleep(3_600_000_000, 60_000_000) > 900_000, "none of that hour is left to be gone through");
    }
}
