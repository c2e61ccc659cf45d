//! What a simulated engine is: its capacity and how long a step takes.
//!
//! The defaults describe Llama 3.1 8B with FP8 weights on one NVIDIA L4 (24 GB, 300 GB/s, 242
//! TFLOPS FP8 dense), the machine of KubeAI's eight-replica run:
//!
//! | figure | from |
//! | --- | --- |
//! | `decode_step` 30 ms | 8 GB of weights at 90 % of 300 GB/s |
//! | `decode_kv` 0.49 us a token | 131,072 B of BF16 keys and values a token (32 layers, 8 heads of 128) at 90 % of 300 GB/s |
//! | `decode_sequence` 0.3 ms | 16 GFLOP a token and the engine's own work; fitted to the 150 ms between tokens that KubeAI measured |
//! | `prefill` 5,500 tokens/s | 16 GFLOP a token at 36 % of the peak |
//! | `attention_pair` 8 ns | 4 x 4,096 x 32 FLOP for each query and key, at 60 TFLOPS |
//! | `kv_tokens` 88,000 | 24 GB x 0.9 less 8.5 GB of weights and 1.6 GB of activations, at 131,072 B |
//!
//! `prefill` and `decode_sequence` were fitted to KubeAI's run, so agreement with it is no independent
//! proof. A discrete-event replay of that load (1,200 threads, conversations as the demo makes them) over eight
//! such cores gives, in output tokens a second, 3,500 under random and 7,350 under CHWBL; KubeAI
//! published 2,892 to 3,371 and 6,455 to 6,568. Mean times to first token are 1.6 and 0.40 s against
//! 4.5 to 8.5 and 0.39 to 0.51 s: random's long queues are underestimated. Other machines need their
//! own figures: measure one request alone, one long prompt, and a full batch.
//!
//! A step costs the sum of its parts. On a GPU part of the prefill hides behind the reading of
//! weights, so mixed steps come out a little slow here (by at most `decode_step`).

use std::time::Duration;

/// The figures that make one engine.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Tokens in a KV block.
    pub block_size: u32,
    /// Tokens that the KV cache holds.
    pub kv_tokens: u32,
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// Most sequences in a step.
    pub max_num_seqs: usize,
    /// Most tokens in a step, prompts and outputs together: longer prompts are cut into chunks.
    pub max_num_batched_tokens: u32,
    /// Most requests that may wait; 0 is no limit.
    pub max_num_queued_reqs: usize,
    /// Prompt tokens a second, beside the base cost of their step.
    pub prefill_tokens_per_second: f64,
    /// For each pair of a prompt token and a token before it.
    pub attention_pair_ns: f64,
    /// Base cost of a step.
    pub decode_step_ms: f64,
    /// For each sequence that decodes in a step.
    pub decode_sequence_us: f64,
    /// For each KV token that a decoding sequence reads.
    pub decode_kv_ns: f64,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            block_size: 16,
            kv_tokens: 88_000,
            max_model_len: 16_384,
            max_num_seqs: 256,
            max_num_batched_tokens: 2_048,
            max_num_queued_reqs: 0,
            prefill_tokens_per_second: 5_500.0,
            attention_pair_ns: 8.0,
            decode_step_ms: 30.0,
            decode_sequence_us: 300.0,
            decode_kv_ns: 490.0,
        }
    }
}

/// What one step does; [`Profile::step_time`] prices it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Pairs of a prompt token and one that it attends to.
    pub prefill_pairs: u64,
    /// Sequences that decode.
    pub decodes: u64,
    /// KV tokens that they read.
    pub decode_kv_tokens: u64,
}

impl Profile {
    /// KV blocks there are.
    pub fn blocks(&self) -> u32 {
        self.kv_tokens / self.block_size.max(1)
    }

    /// Simulated time of a step.
    pub fn step_time(&self, work: &Work) -> Duration {
        let seconds = self.decode_step_ms / 1e3
            + work.prefill_tokens as f64 / self.prefill_tokens_per_second
            + work.prefill_pairs as f64 * self.attention_pair_ns / 1e9
            + work.decodes as f64 * self.decode_sequence_us / 1e6
            + work.decode_kv_tokens as f64 * self.decode_kv_ns / 1e9;
        Duration::from_secs_f64(seconds)
    }

    /// What makes this profile impossible, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.block_size == 0 || self.max_num_seqs == 0 || self.max_num_batched_tokens == 0 {
            return Err("block size, max-num-seqs and max-num-batched-tokens must be at least 1".into());
        }
        if self.blocks() == 0 {
            return Err(format!(
                "a KV cache of {} tokens holds no block of {}: raise kv-tokens or lower the block size",
                self.kv_tokens, self.block_size
            ));
        }
        if self.blocks().saturating_mul(self.block_size) < self.max_model_len {
            return Err(format!(
                "max-model-len {} does not fit into the KV cache of {} tokens: raise kv-tokens or lower max-model-len",
                self.max_model_len, self.kv_tokens
            ));
        }
        let costs = [self.attention_pair_ns, self.decode_step_ms, self.decode_sequence_us, self.decode_kv_ns];
        if costs.iter().any(|cost| !(0.0..1e9).contains(cost)) {
            return Err("the costs of a step must be finite and not negative".into());
        }
        if !(1e-3..1e12).contains(&self.prefill_tokens_per_second) {
            return Err("prefill-tokens-per-second must be above 0".into());
        }
        if self.step_time(&Work::default()).is_zero() {
            return Err("decode-step-ms must be above 0: a step that takes no time never ends".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_possible_and_an_l4_decodes_a_full_cache_at_ten_steps_a_second() {
        let profile = Profile::default();
        profile.check().unwrap();
        let work = Work { decodes: 70, decode_kv_tokens: 88_000, ..Work::default() };
        let ms = profile.step_time(&work).as_secs_f64() * 1e3;
        assert!((93.0..95.0).contains(&ms), "{ms}");
    }

    #[test]
    fn a_context_beyond_the_cache_is_refused_in_words() {
        let profile = Profile { kv_tokens: 1_000, ..Profile::default() };
        assert!(profile.check().unwrap_err().contains("raise kv-tokens"));
    }
}
