//! The machines that a replay can simulate: `profiles.toml`, which gives a reason for every figure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::engine::profile::Profile;

/// The file in the tree.
pub const BUILT_IN: &str = include_str!("profiles.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    kv_tokens: u32,
    max_model_len: u32,
    max_num_seqs: usize,
    max_num_batched_tokens: u32,
    prefill_tokens_per_second: f64,
    attention_pair_ns: f64,
    decode_step_ms: f64,
    decode_sequence_us: f64,
    decode_kv_ns: f64,
}

/// Returns the profile of that name in a text like `profiles.toml`, or says why there is none.
pub fn named(text: &str, name: &str) -> Result<Profile, String> {
    let mut machines: BTreeMap<String, Machine> = toml::from_str(text).map_err(|error| error.to_string())?;
    let Some(machine) = machines.remove(name) else {
        let names: Vec<String> = machines.into_keys().collect();
        return Err(format!("no profile is called {name:?}; there are {}", names.join(", ")));
    };
    // Beyond these a step would take longer than the clock of a simulation runs.
    let sane = machine.prefill_tokens_per_second >= 1.0
        && machine.attention_pair_ns <= 1e4
        && machine.decode_kv_ns <= 1e6
        && machine.max_model_len <= 16 << 20;
    if !sane {
        return Err(format!(
            "profile {name}: prefill_tokens_per_second must be at least 1, attention_pair_ns at most 10,000, \
             decode_kv_ns at most 1,000,000 and max_model_len at most 16,777,216"
        ));
    }
    Ok(Profile {
        kv_tokens: machine.kv_tokens,
        max_model_len: machine.max_model_len,
        max_num_seqs: machine.max_num_seqs,
        max_num_batched_tokens: machine.max_num_batched_tokens,
        prefill_tokens_per_second: machine.prefill_tokens_per_second,
        attention_pair_ns: machine.attention_pair_ns,
        decode_step_ms: machine.decode_step_ms,
        decode_sequence_us: machine.decode_sequence_us,
        decode_kv_ns: machine.decode_kv_ns,
        ..Profile::default()
    })
}

/// Makes an engine that is `weight` times as fast as a profile says, with as many times its cache.
pub fn of_weight(profile: &Profile, weight: u32) -> Profile {
    let times = f64::from(weight);
    Profile {
        kv_tokens: profile.kv_tokens.saturating_mul(weight),
        max_num_seqs: profile.max_num_seqs.saturating_mul(weight as usize),
        max_num_batched_tokens: profile.max_num_batched_tokens.saturating_mul(weight),
        prefill_tokens_per_second: profile.prefill_tokens_per_second * times,
        attention_pair_ns: profile.attention_pair_ns / times,
        decode_step_ms: profile.decode_step_ms / times,
        decode_sequence_us: profile.decode_sequence_us / times,
        decode_kv_ns: profile.decode_kv_ns / times,
        ..profile.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::profile::Work;

    #[test]
    fn built_in_profiles_are_possible_and_the_l4_is_the_engines_own() {
        let l4 = named(BUILT_IN, "l4-8b").unwrap();
        assert_eq!(format!("{l4:?}"), format!("{:?}", Profile::default()));
        let h100 = named(BUILT_IN, "h100x2-70b").unwrap();
        let small = named(BUILT_IN, "h100-8b").unwrap();
        for block_size in [16, 512] {
            Profile { block_size, ..small.clone() }.check().unwrap();
            Profile { block_size, ..h100.clone() }.check().unwrap();
            Profile { block_size, ..l4.clone() }.check().unwrap();
        }
    }

    #[test]
    fn an_engine_of_weight_4_takes_a_quarter_of_the_time_and_holds_four_times_as_much() {
        let one = Profile::default();
        let four = of_weight(&one, 4);
        for work in [
            Work::default(),
            Work { prefill_tokens: 2_000, ..Work::default() },
            Work { prefill_pairs: 2_000_000, ..Work::default() },
            Work { decodes: 70, ..Work::default() },
            Work { decode_kv_tokens: 88_000, ..Work::default() },
        ] {
            let nanos = |profile: &Profile| profile.step_time(&work).as_nanos();
            assert!((4 * nanos(&four)).abs_diff(nanos(&one)) <= 4, "{work:?}");
        }
        let sizes = |of: &Profile| [of.blocks() as usize, of.max_num_seqs, of.max_num_batched_tokens as usize];
        assert_eq!(sizes(&four), sizes(&one).map(|size| 4 * size));
    }

    #[test]
    fn wrong_names_and_keys_are_said_in_words() {
        assert!(named(BUILT_IN, "tpu").unwrap_err().contains("h100-8b, h100x2-70b, l4-8b"));
        let slow = BUILT_IN.replace("prefill_tokens_per_second = 5_500", "prefill_tokens_per_second = 0.5");
        assert!(named(&slow, "l4-8b").unwrap_err().contains("at least 1"));
        assert!(named("[a]\nkv_tokens = -1", "a").unwrap_err().contains("kv_tokens = -1"));
    }
}
