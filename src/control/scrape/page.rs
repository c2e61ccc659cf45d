//! A page of Prometheus text as it comes, line by line: of all ranks that it tells of together, or of each by itself.

use memchr::memchr2;

use super::{EngineKind, Reading, STARTED, Sums, number};
use crate::control::sample::Sample;
use crate::fleet::EngineLoad;

/// See the module.
#[derive(Default)]
pub struct Page {
    /// Of all.
    sums: Sums,
    /// Of those that are told apart, by their numbers.
    ranks: Vec<(u64, Sums)>,
    /// What names none, where some are told apart.
    unnamed: Sums,
    bytes: usize,
}

impl Page {
    /// One of which each of these ranks is read by itself; without any, all together.
    pub fn of(ranks: impl Iterator<Item = u16>) -> Page {
        Page { ranks: ranks.map(|rank| (rank.into(), Sums::default())).collect(), ..Page::default() }
    }

    /// One line, without its end. What is not understood is skipped: engines add metrics freely.
    pub fn line(&mut self, line: &[u8]) {
        self.bytes += line.len();
        // Most lines are of other metrics: looked at before they are checked as text.
        let names: [&[u8]; 4] = [b"vllm:", b"sglang:", b"sglang_", STARTED.as_bytes()];
        if names.iter().any(|name| line.starts_with(name))
            && !is_of_histogram(line)
            && let Some(sample) = Sample::of(line)
        {
            self.take(&sample);
        }
    }

    /// A line that names no rank may be of all of them together.
    fn take(&mut self, sample: &Sample<'_>) {
        self.sums.take(sample);
        if self.ranks.is_empty() {
            return;
        }
        let label = if sample.name.starts_with("vllm:") { "engine" } else { "dp_rank" };
        let Some(named) = number(sample, label) else { return self.unnamed.take(sample) };
        if let Some((_, sums)) = self.ranks.iter_mut().find(|(rank, _)| *rank == named) {
            sums.take(sample);
        }
    }

    /// How long it is, as far as it has come.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it says of all ranks together.
    pub fn reading(self) -> Reading {
        self.sums.reading()
    }

    /// What it says of each, in their order; else of all, once.
    pub fn readings(self) -> Vec<Reading> {
        let Page { sums, ranks, unnamed, .. } = self;
        let named = sums.ranks.len().max(1) as u64;
        let whole = sums.reading();
        let read = |(_, mut sums): (u64, Sums)| {
            if sums.engine == Some(EngineKind::Vllm) {
                // There it writes the sum of all for each of them.
                sums.blocks = sums.blocks.map(|blocks| blocks / named);
            }
            let (ranks, ranks_from) = (whole.ranks, whole.ranks_from);
            Reading { engine: whole.engine, started: whole.started, ranks, ranks_from, ..sums.reading() }
        };
        if ranks.is_empty() {
            return vec![whole];
        }
        let mut readings: Vec<Reading> = ranks.into_iter().map(read).collect();
        share_unnamed(&mut readings, &unnamed.reading().load);
        readings
    }
}

/// Whether a line is part of a histogram, as most are and none that is looked at.
fn is_of_histogram(line: &[u8]) -> bool {
    let end = memchr2(b'{', b' ', line).unwrap_or(line.len());
    line[..end].ends_with(b"_bucket")
}

/// Most of what names no rank counts for none: it would count for each. But by any of it a process is known, and how
/// long answers are is a figure of their pool, whoever tells it: the first does, for all.
fn share_unnamed(readings: &mut [Reading], unnamed: &EngineLoad) {
    let counts = |load: &EngineLoad| load.requests_total.or(load.generation_tokens_total).is_some();
    let by_rank = readings.iter().any(|reading| counts(&reading.load));
    if let Some(Reading { load, .. }) = readings.first_mut().filter(|_| !by_rank) {
        (load.requests_total, load.generation_tokens_total) = (unnamed.requests_total, unnamed.generation_tokens_total);
    }
    readings.iter_mut().for_each(|reading| reading.unnamed_prompt_tokens = unnamed.prompt_tokens_total);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ranks: u16, text: &str) -> Vec<Reading> {
        let mut page = Page::of(0..ranks);
        text.lines().for_each(|line| page.line(line.as_bytes()));
        page.readings()
    }

    /// As vLLM 0.32 writes it: the sum of all blocks with each rank, and tokens by rank.
    #[test]
    fn each_rank_has_what_is_told_of_it() {
        let rank = |rank: u32| {
            let of = format!("{{engine=\"{rank}\",model_name=\"m\"}}");
            format!(
                "vllm:num_requests_running{of} {}\nvllm:num_requests_waiting{of} {}\nvllm:kv_cache_usage_perc{of} 0.{}\n\
                 vllm:prefix_cache_queries_total{of} {}\nvllm:prefix_cache_hits_total{of} {}\nvllm:prompt_tokens_total{of} {}\n\
                 vllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"{rank}\",\
                 kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"300\"}} 1.0\n",
                rank + 1,
                rank + 10,
                rank + 2,
                100 * (rank + 1),
                10 * (rank + 1),
                1_000 * (rank + 1),
                1_600 + rank,
            )
        };
        let text = format!("process_start_time_seconds 5.5\n{}{}", rank(0), rank(1));
        let [first, second] = <[Reading; 2]>::try_from(read(2, &text)).unwrap();
        let told = |reading: &Reading| {
            let load = reading.load;
            (load.running, load.waiting, load.kv_use, load.prefix_queries_total, load.prefix_hits_total)
        };
        assert_eq!(told(&first), (Some(1), Some(10), Some(0.2), Some(100), Some(10)));
        assert_eq!(told(&second), (Some(2), Some(11), Some(0.3), Some(200), Some(20)));
        for (reading, tokens, prompts) in [(&first, 1_600, 1_000), (&second, 1_601, 2_000)] {
            let load = reading.load;
            assert_eq!((load.kv_capacity_tokens, load.prompt_tokens_total), (Some(tokens), Some(prompts)));
            assert_eq!((reading.blocks, reading.block_size, reading.match_unit), (Some(150), Some(16), Some(16)));
            assert_eq!((reading.ranks, reading.started, reading.prefix_caching), (2, Some(5.5), Some(true)));
        }
        let whole = read(0, &text);
        assert_eq!((whole.len(), whole[0].load.running, whole[0].blocks), (1, Some(3), Some(300)));
        // One that the page does not name is not as full as the others together.
        let third = read(3, &text).pop().unwrap();
        assert_eq!((third.load, third.ranks, third.engine), (Default::default(), 2, Some(EngineKind::Vllm)));
    }

    /// What is not told by rank is of all of them: the process is known by it, and the first says how long answers are.
    #[test]
    fn sglang_names_its_ranks_otherwise() {
        let rank = |rank: u32, tp: u32| {
            let of = format!("{{dp_rank=\"{rank}\",engine_type=\"unified\",tp_rank=\"{tp}\"}}");
            format!(
                "sglang:num_running_reqs{of} {}\nsglang:num_queue_reqs{of} {rank}\nsglang:token_usage{of} 0.5\n\
                 sglang:max_total_num_tokens{of} {}\n",
                rank + 3,
                9_000 + rank
            )
        };
        let text: String = [rank(0, 0), rank(0, 1), rank(1, 2), rank(1, 3)].concat()
            + "sglang:prompt_tokens_total{model_name=\"m\"} 77\nsglang:cached_tokens_total{model_name=\"m\"} 7\n\
               sglang:generation_tokens_total{model_name=\"m\"} 90\nsglang:num_requests_total{model_name=\"m\"} 3\n";
        for (rank, reading) in (0..).zip(read(2, &text)) {
            let load = reading.load;
            assert_eq!((load.running, load.waiting), (Some(rank + 3), Some(rank)));
            assert_eq!((load.kv_capacity_tokens, load.prompt_tokens_total), (Some(9_000 + u64::from(rank)), None));
            assert_eq!((load.prefix_hits_total, reading.ranks, reading.engine), (None, 2, Some(EngineKind::Sglang)));
            let answers = (load.requests_total, load.generation_tokens_total);
            assert_eq!(answers, if rank == 0 { (Some(3), Some(90)) } else { (None, None) });
            assert_eq!(reading.computed(), Some(77));
        }
    }
}
