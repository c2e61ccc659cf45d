//! How large the prefix index is, and how large it should be.

use crate::config::Config;
use crate::index::{Capacity, Index};
use crate::limits::ENDPOINTS_MAX;

/// Fewest slots of an index: engines may come while the process lives.
const SLOTS_MIN: usize = 64;

/// Makes an index as large as `index_bytes` allows.
pub(super) fn made(config: &Config) -> Option<Index> {
    let largest = largest(config.limits.index_bytes, least(config));
    let made = largest.ok().and_then(|capacity| Index::new(capacity).ok());
    let Capacity { endpoints, .. } = least(config);
    match &made {
        Some(_) => tracing::info!(endpoints, blocks = largest.map_or(0, |capacity| capacity.blocks), "prefix index"),
        None => tracing::warn!(
            index_bytes = config.limits.index_bytes,
            endpoints,
            "index_bytes is too little for a prefix index; pools of policy warm go by a hash of the conversation's first 4 KiB"
        ),
    }
    made
}

/// Blocks of the largest index that `index_bytes` allows.
///
/// # Errors
/// How many bytes the smallest index takes, if that is more.
pub fn index_blocks(config: &Config) -> Result<usize, usize> {
    largest(config.limits.index_bytes, least(config)).map(|capacity| capacity.blocks)
}

/// Memory of an index with room for all that these engines want; `None` if no index is so large. `wanted` returns what
/// each wants in an index with this share, and `least` is the smallest index for as many engines.
pub(super) fn enough(least: Capacity, wanted: impl Fn(u32) -> Vec<u32>) -> Option<usize> {
    let sum = wanted(0).iter().map(|&blocks| blocks as usize).sum::<usize>();
    let mut capacity = Capacity { blocks: sum.max(least.blocks), ..least };
    loop {
        let bytes = Index::bytes(capacity).ok()?;
        let largest = largest(bytes, least).ok()?;
        if Index::is_enough(largest, &wanted(largest.share())) {
            return Some(bytes);
        }
        // For the rest of chunks, and for engines of unknown size, which take a share.
        capacity.blocks += capacity.blocks / 64 + 1;
    }
}

/// The smallest index for a configuration.
pub(super) fn least(config: &Config) -> Capacity {
    let endpoints = (2 * config.endpoint_count()).next_power_of_two().clamp(SLOTS_MIN, ENDPOINTS_MAX);
    smallest(endpoints, config.listens())
}

/// The smallest index for so many slots.
pub(super) fn smallest(endpoints: usize, lengths: bool) -> Capacity {
    Capacity { endpoints, blocks: endpoints * Capacity::BLOCKS_MIN, lengths }
}

/// The largest index in so much memory.
fn largest(index_bytes: usize, least: Capacity) -> Result<Capacity, usize> {
    let of = |blocks: usize| Capacity { blocks, ..least };
    let bytes = |blocks: usize| Index::bytes(of(blocks)).unwrap_or(usize::MAX);
    let (mut fits, mut most) = (least.blocks, index_bytes);
    while fits + 1 < most {
        let middle = fits.midpoint(most);
        if bytes(middle) <= index_bytes { fits = middle } else { most = middle }
    }
    if bytes(fits) <= index_bytes { Ok(of(fits)) } else { Err(bytes(least.blocks)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::caches::{Caches, Unit};
    use crate::fleet::EndpointId;
    use crate::policy::Policy;

    fn config(policy: Policy, index_bytes: usize) -> Config {
        let mut config = Config::default();
        config.routing.policy = policy;
        config.limits.index_bytes = index_bytes;
        config
    }

    /// What knows engines whose caches hold so many tokens, by slot, of four bytes each; `None`: they do not say.
    fn caches(config: &Config, engines: &[Option<u64>], unit: Unit) -> Caches {
        let mut caches = Caches::default();
        caches.follow(config);
        for (slot, &tokens) in (0..).zip(engines) {
            caches.empty(EndpointId { slot, generation: 1 }, tokens, 4.0, unit);
        }
        caches.settle();
        caches
    }

    fn capacities(caches: &Caches, engines: &[Option<u64>]) -> Vec<u32> {
        (0..engines.len() as u16).map(|slot| caches.figures(slot).capacity).collect()
    }

    #[test]
    fn an_index_is_as_large_as_it_may_be() {
        let mut config = config(Policy::Warm, 0);
        for bytes in [1 << 20, 64 << 20] {
            config.limits.index_bytes = bytes;
            let index = made(&config).unwrap();
            let id = EndpointId { slot: 0, generation: 1 };
            let capacity = index.assign(id, None).unwrap() as usize * SLOTS_MIN;
            assert!((bytes / 100..bytes / 20).contains(&capacity), "{capacity} blocks in {bytes} bytes");
        }
        config.limits.index_bytes = 1_000;
        assert!(made(&config).is_none());
        config.limits.index_bytes = index_blocks(&config).unwrap_err();
        assert!(made(&config).is_some());
        config.limits.index_bytes -= 1;
        assert!(made(&config).is_none());
    }

    /// What is said to be needed is what is needed, to the byte, of the sizes that need most.
    #[test]
    fn a_block_takes_as_many_bytes_as_is_said() {
        let engine = crate::config::Upstream::new("http://engine:8000".parse().unwrap());
        let each = |policy, engines| {
            let mut config = config(policy, 0);
            config.upstream = vec![engine.clone(); engines];
            let slots = least(&config).endpoints;
            // From a quarter of a MiB for each slot to four.
            let bytes = (64..=1_024).map(|pages| (pages * slots) << 12);
            let most = bytes.map(|bytes| {
                config.limits.index_bytes = bytes;
                bytes.div_ceil(index_blocks(&config).unwrap())
            });
            most.max().unwrap()
        };
        let [first, more @ ..] = [1, 33, 65, 129, 257].map(|engines| each(Policy::Warm, engines));
        let more: Vec<String> =
            more.iter().zip([32, 64, 128, 256]).map(|(bytes, engines)| format!("{bytes} beyond {engines}")).collect();
        let steps = [1, 33, 65, 129, 257].map(|engines| each(Policy::Precise, engines).to_string());
        let said = format!(
            "{first} bytes for each 64 tokens of the engines' caches, {} (\"precise\": four times {})",
            more.join(", ").replacen(" beyond 32", " beyond 32 engines", 1),
            steps.join(", ")
        );
        for text in [include_str!("../../../systemd/warmfront.toml"), include_str!("../../limits.rs")] {
            let words: Vec<&str> = text.split_whitespace().filter(|word| !matches!(*word, "#" | "///")).collect();
            assert!(words.join(" ").contains(&said), "{said}");
        }
        for (before, after) in [(32, 1), (64, 33), (128, 65), (256, 129), (512, 257)] {
            assert_eq!(each(Policy::Warm, before), each(Policy::Warm, after), "{before}");
        }
    }

    /// By the bytes that are said to be needed, whether few or many share them.
    #[test]
    fn few_engines_have_all_that_they_pay_for() {
        const TOKENS: u64 = 5_000_000;
        for count in [1, 2, 4, 8] {
            let engines = vec![Some(TOKENS); count];
            let config = config(Policy::Warm, 73 * count * TOKENS as usize / 64);
            let caches = caches(&config, &engines, Unit::Blocks);
            assert_eq!(capacities(&caches, &engines), vec![TOKENS as u32 / 64; count]);
        }
    }

    #[test]
    fn large_engines_have_what_small_ones_leave() {
        let engines: Vec<_> = [[Some(88_000); 15].as_slice(), &[Some(5_000_000)]].concat().repeat(2);
        let caches = caches(&config(Policy::Precise, 64 << 20), &engines, Unit::Steps);
        let wanted: Vec<u32> = engines.iter().flatten().map(|tokens| *tokens as u32 / 16).collect();
        assert_eq!(capacities(&caches, &engines), wanted);
    }

    /// Whoever comes is cold, and control has more to do.
    #[test]
    fn what_a_newcomer_lacks_is_taken_in_several_turns_where_that_is_much() {
        let (config, engines) = (config(Policy::Warm, 96 << 20), [Some(9_000_000); 32]);
        let mut caches = caches(&config, &engines[1..], Unit::Blocks);
        let settle = |caches: &mut Caches| (0..64).for_each(|_| caches.settle());
        settle(&mut caches);
        caches.empty(EndpointId { slot: 31, generation: 1 }, engines[31], 4.0, Unit::Blocks);
        let (came, due) = (capacities(&caches, &engines)[31], caches.due[31]);
        assert!((1..due).contains(&came), "{came} of {due} at once");
        settle(&mut caches);
        assert_eq!(capacities(&caches, &engines), caches.due);
    }

    #[test]
    fn what_is_said_to_do_does() {
        for engines in [
            vec![Some(3_000_000); 3],
            vec![Some(400_000), Some(90_000), None, Some(2_000_000), Some(7), None],
            vec![Some(65_000); 40],
        ] {
            let of = |index_bytes| caches(&config(Policy::Precise, index_bytes), &engines, Unit::Steps);
            let small = of(1 << 20);
            assert_ne!(small.claims, small.due);
            let capacity: u64 = capacities(&small, &engines).into_iter().map(u64::from).sum();
            assert!(small.fill().is_some_and(|fill| fill.wanted > fill.due && fill.due == capacity));
            let bytes = small.bytes_for_all().unwrap();
            let (enough, less) = (of(bytes), of(bytes / 8 * 7));
            assert_eq!((&enough.claims, enough.bytes_for_all()), (&enough.due, Some(bytes)));
            assert_ne!(less.claims, less.due, "{bytes} are not much too many");
        }
        let most = caches(&config(Policy::Warm, 1 << 20), &[Some(7), Some(u64::MAX), None], Unit::Blocks);
        assert_eq!((most.bytes_for_all(), most.largest().map(|(_, tokens)| tokens)), (None, Some(u64::MAX)));
    }
}
