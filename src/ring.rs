//! The hash ring: immutable, built by control, the same on every shard, restart and machine.
//!
//! # Points
//!
//! Two fronts agree on every home without talking, and another implementation can agree with them,
//! because a point is defined by bytes alone. Point `i` of an endpoint, `0 <= i < replication * weight`, is
//!
//! ```text
//! XXH64( seed 0,  name as UTF-8  |  0xFF  |  i as 4 bytes, little endian )
//! ```
//!
//! If these would be more than 2^20, `replication` is 2^20 over the sum of all weights, rounded down.
//!
//! 0xFF occurs in no UTF-8 text and `i` has a fixed width, so that no two (name, i) make the same
//! bytes: "x-1" with 12 and "x-11" with 2 are different points.
//!
//! The place of a point, and of a key, is the upper 48 bits of its hash. Points are in ascending order of their places;
//! points of one place are in the order of their names' bytes. The home of a key is the endpoint of the first point
//! whose place is not below the key's; after the last point the ring goes on with the first.

use xxhash_rust::xxh64::Xxh64;

use crate::limits::{REPLICATION_MAX, RING_POINTS_MAX, WEIGHT_MAX};

/// Seed of every point. Changing it moves every key of every fleet.
const SEED: u64 = 0;
/// The byte between name and index, which cannot appear in UTF-8.
const SEPARATOR: u8 = 0xFF;
/// Mask of the bits of a hash that are its place.
const PLACE: u64 = !0xFFFF;
/// Most points per bucket, on average: half a cache line.
const POINTS_PER_BUCKET: usize = 4;

/// One member of a ring: its slot (no part of its points), the name that its points are made from, and the weight that
/// multiplies them.
pub type Member<'a> = (u16, &'a str, u32);

/// The points of a set of endpoints.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// In ascending order: the place in the upper 48 bits, the slot in the lower 16. One load gives both, and a cache
    /// line holds the next seven points of a walk.
    points: Box<[u64]>,
    /// By the top bits of a place: the first point that is not below the bucket. Points are uniform, so that a search
    /// reads one entry and walks a few points, while bisection would miss the cache 17 times.
    buckets: Box<[u32]>,
    /// How far a hash is shifted right to give its bucket.
    shift: u32,
    /// Number of endpoints that have points.
    members: usize,
}

impl Ring {
    /// Places `replication` points per unit of weight for each member. Weights are clamped to 1..=[`WEIGHT_MAX`],
    /// replication to 1..=[`REPLICATION_MAX`] and so that there are at most [`RING_POINTS_MAX`] points.
    pub fn build(members: &[Member<'_>], replication: u32) -> Ring {
        let weights: u32 = members.iter().map(|(.., weight)| (*weight).clamp(1, WEIGHT_MAX)).sum();
        let most = (RING_POINTS_MAX / weights.max(1)).max(1);
        let replication = replication.clamp(1, REPLICATION_MAX).min(most);
        let mut points = Vec::new();
        for &(slot, name, weight) in members {
            let count = replication * weight.clamp(1, WEIGHT_MAX);
            points.extend((0..count).map(|i| (point(name, i) & PLACE, name, slot)));
        }
        points.sort_unstable();

        let bucket_bits = (points.len() / POINTS_PER_BUCKET).max(2).next_power_of_two().trailing_zeros();
        let shift = u64::BITS - bucket_bits;
        let first_of = |bucket: u64| points.partition_point(|&(place, ..)| place >> shift < bucket) as u32;
        Ring {
            buckets: (0..1u64 << bucket_bits).map(first_of).collect(),
            points: points.iter().map(|&(place, _, slot)| place | u64::from(slot)).collect(),
            shift,
            members: members.len(),
        }
    }

    /// Number of endpoints that have points.
    #[inline]
    pub fn members(&self) -> usize {
        self.members
    }

    /// Number of points.
    #[inline]
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Returns the slots of all points, clockwise from the key, once round. Most slots come many times.
    #[inline]
    pub fn walk(&self, key: u64) -> impl Iterator<Item = u16> + Clone + '_ {
        let (before, after) = self.points.split_at(self.first_at(key));
        after.iter().chain(before).map(|&point| point as u16)
    }

    /// Returns the index of the first point not below the key; the number of points if there is none.
    #[inline]
    fn first_at(&self, key: u64) -> usize {
        let bucket = (key >> (self.shift & 63)) as usize;
        let from = self.buckets.get(bucket).map_or(0, |&start| start as usize);
        let place = key & PLACE;
        from + self.points[from..].iter().take_while(|&&point| point & PLACE < place).count()
    }
}

/// Returns the hash of point `i` of an endpoint; the byte layout is at the top of this file.
fn point(name: &str, i: u32) -> u64 {
    let mut hash = Xxh64::new(SEED);
    hash.update(name.as_bytes());
    hash.update(&[SEPARATOR]);
    hash.update(&i.to_le_bytes());
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(slot: u16, name: &str) -> Member<'_> {
        (slot, name, 1)
    }

    #[test]
    fn points_are_the_documented_bytes() {
        let ours = point("10.0.0.7:8000", 258);
        assert_eq!(ours, xxhash_rust::xxh64::xxh64(b"10.0.0.7:8000\xFF\x02\x01\x00\x00", 0));
    }

    /// Values of another implementation (the C library, through Python's `xxhash`). A change here moves
    /// every key of every running fleet.
    #[test]
    fn points_never_change() {
        assert_eq!(point("a", 0), 0x729c_cf9c_adf1_d476);
        assert_eq!(point("engine-0:8000", 255), 0x0dad_c1c0_10f4_80ae);
    }

    #[test]
    fn names_do_not_run_into_indexes() {
        assert_ne!(point("x-1", 12), point("x-11", 2));
        let ring = Ring::build(&[member(0, "x-1"), member(1, "x-11")], 256);
        let distinct: std::collections::HashSet<u64> = ring.points.iter().map(|point| point & PLACE).collect();
        assert_eq!(distinct.len(), 512);
    }

    #[test]
    fn search_agrees_with_bisection() {
        let names: Vec<String> = (0..37).map(|i| format!("engine-{i}")).collect();
        let members: Vec<Member> = names.iter().enumerate().map(|(i, name)| member(i as u16, name)).collect();
        for replication in [1, 3, 256] {
            let ring = Ring::build(&members, replication);
            let places = ring.points.iter().map(|point| point & PLACE);
            let edges = places.flat_map(|place| [place.wrapping_sub(1), place, place | 0xFFFF, place + (1 << 16)]);
            for key in edges.chain([0, 1, u64::MAX, u64::MAX - 1, 1 << 63]) {
                let expected = ring.points.partition_point(|&point| point & PLACE < key & PLACE);
                assert_eq!(ring.first_at(key), expected, "key {key:#x}, replication {replication}");
            }
        }
    }

    #[test]
    fn a_walk_goes_once_round() {
        let ring = Ring::build(&[member(3, "a"), member(9, "b")], 8);
        assert_eq!(ring.walk(u64::MAX / 3).count(), 16);
        assert_eq!(ring.walk(7).filter(|&slot| slot == 3).count(), 8);
    }

    #[test]
    fn an_empty_ring_has_no_walk() {
        assert_eq!(Ring::default().walk(5).count(), 0);
        assert_eq!(Ring::build(&[], 256).walk(u64::MAX).count(), 0);
    }

    #[test]
    fn order_of_members_does_not_matter() {
        let one = Ring::build(&[member(0, "a"), member(1, "b")], 64);
        let other = Ring::build(&[member(1, "b"), member(0, "a")], 64);
        assert_eq!(one.points, other.points);
    }

    #[test]
    fn sizes_are_held() {
        assert_eq!(Ring::build(&[(0, "a", u32::MAX)], 0).points(), WEIGHT_MAX as usize);
        assert_eq!(Ring::build(&[member(0, "a")], u32::MAX).points(), REPLICATION_MAX as usize);
    }

    /// If every engine has a weight of 100, the ring is still built in no time.
    #[test]
    fn heavy_weights_make_no_larger_ring_than_is_of_use() {
        let names: Vec<String> = (0..400).map(|i| format!("engine-{i}")).collect();
        let weighing =
            |weight: u32| names.iter().enumerate().map(|(i, name)| (i as u16, &**name, weight)).collect::<Vec<_>>();
        assert_eq!(Ring::build(&weighing(1), 256).points(), 400 * 256, "all fit");
        let ring = Ring::build(&weighing(100), 256);
        let mut shares = vec![0; 400];
        ring.walk(0).for_each(|slot| shares[usize::from(slot)] += 1);
        assert!(shares.iter().all(|share| *share == 100 * 26), "{shares:?}");
    }
}
