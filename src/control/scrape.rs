//! What an engine's `/metrics` says of its load: vLLM's and SGLang's names, all label sets summed that are not parts or
//! copies of others.

mod page;

use std::collections::{BTreeMap, BTreeSet};

use super::sample::Sample;
use super::saved::Process;
pub use crate::fleet::EngineKind;
use crate::fleet::EngineLoad;
pub use page::Page;

/// One reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// What shards and policies use.
    pub load: EngineLoad,
    /// Tokens in one block of the KV cache.
    pub block_size: Option<u32>,
    /// Tokens of the unit in which prompts are found in it: of a hybrid model thousands, since a block is as large as
    /// the state of a layer that keeps no tokens.
    pub match_unit: Option<u32>,
    /// Blocks of all ranks behind the port. With hybrid models, groups of layers share them, and the tokens that it is
    /// said to have room for are not so many times a block's.
    pub blocks: Option<u64>,
    /// Whether prefixes are cached, where the engine says so.
    pub prefix_caching: Option<bool>,
    /// Which engine the names belong to.
    pub engine: Option<EngineKind>,
    /// When its process began, in seconds since 1970, where it says so.
    pub started: Option<f64>,
    /// Whether all its ranks are awake, where it says so.
    pub awake: Option<bool>,
    /// Data-parallel ranks that it names, each with a cache of its own; of SGLang those that come before them as well.
    pub ranks: usize,
    /// The least of vLLM's numbers of them: those behind one port may count on from those behind another.
    pub ranks_from: u64,
    /// Of one rank: tokens of prompts that the page counts for none by its number.
    pub unnamed_prompt_tokens: Option<u64>,
}

impl Reading {
    /// Tokens of prompts by whose number its process is known: this rank's, else those of all together.
    pub fn computed(&self) -> Option<u64> {
        self.load.prompt_tokens_total.or(self.unnamed_prompt_tokens)
    }

    /// Tokens that the engine may tell of at once: one group of a hybrid model's layers may have most of the blocks.
    pub fn told_tokens(&self) -> Option<u64> {
        let all = self.block_size.zip(self.blocks).and_then(|(size, blocks)| u64::from(size).checked_mul(blocks));
        self.load.kv_capacity_tokens.max(all.filter(can_be))
    }

    /// Tokens of a block of which it tells: of ranks that share a context, of all of them together.
    pub fn told_block_size(&self) -> Option<u32> {
        self.block_size.map(|size| size.max(self.match_unit.unwrap_or(0)).max(1))
    }

    /// Blocks that it may tell of at once. Ranks that share a context have tokens for more blocks of
    /// [`Reading::block_size`] than there are.
    pub fn told_blocks(&self) -> Option<u64> {
        let (tokens, size) = (self.told_tokens()?, u64::from(self.block_size?.max(1)));
        let can_be = |blocks: &u64| *blocks > 0 && blocks.saturating_mul(size) <= tokens;
        Some(self.blocks.filter(can_be).unwrap_or(tokens / size))
    }

    /// Which process the engine is, if it says so.
    pub fn process(&self) -> Option<Process> {
        let (block_size, tokens) = (self.block_size, self.load.kv_capacity_tokens);
        self.started.map(|started| Process { started, block_size, tokens })
    }

    /// Reads Prometheus text.
    pub fn of(text: &[u8]) -> Reading {
        let mut page = Page::default();
        text.split(|byte| *byte == b'\n').for_each(|line| page.line(line));
        page.reading()
    }
}

/// A cache of more tokens than this is a figure gone wrong, and counts as not told: 20 TB, the memory of a rack of 72
/// GPUs of 288 GB, at less than 5 KB for a token in all its layers. What is counted with fewer does not overflow.
const KV_TOKENS_MAX: u64 = 1 << 32;
/// A prefix-cache unit of more tokens than this is such a figure, too: nothing would be held anywhere.
const MATCH_UNIT_MAX: u64 = 1 << 16;
/// Most ranks that are told apart.
pub const RANKS_MAX: usize = 256;
/// What Prometheus clients say of their process, if they are asked for it in their own process.
const STARTED: &str = "process_start_time_seconds";

fn can_be(tokens: &u64) -> bool {
    *tokens <= KV_TOKENS_MAX
}

fn number(sample: &Sample<'_>, label: &str) -> Option<u64> {
    sample.label(label)?.parse().ok()
}

/// With priorities SGLang has the total under an empty one, and beside it what part of it each has.
fn is_total(sample: &Sample<'_>) -> bool {
    sample.label("priority").is_none_or(str::is_empty)
}

/// Sums over label sets: data-parallel ranks, adapters.
#[derive(Default)]
struct Sums {
    running: Option<f64>,
    waiting: Option<f64>,
    running_reqs: Ranks,
    queue_reqs: Ranks,
    kv_use: Mean,
    kv_capacity: Option<f64>,
    total_tokens: Ranks,
    pages: Ranks,
    prompt_tokens: Option<f64>,
    queries: Renamed,
    hits: Renamed,
    /// Beside those, what a connector brought from another tier or another engine.
    brought: f64,
    /// SGLang found something of its last prompts: one that counts no hits all the same never does.
    hits_somewhere: bool,
    generation_tokens: Option<f64>,
    requests: Option<f64>,
    block_size: Option<u64>,
    /// Beside that, where they are told: what several ranks for one context have together in a block,
    attention_block: Option<u64>,
    /// and a unit of its own.
    match_unit: Option<u64>,
    blocks: Option<u64>,
    prefix_caching: Option<bool>,
    engine: Option<EngineKind>,
    started: Option<f64>,
    awake: Option<bool>,
    ranks: BTreeSet<u64>,
}

/// Most requests that one engine is believed to have.
const REQUESTS_MAX: u32 = 1 << 16;
/// Most ranks, each of so many stages, whose figures are added up.
const RANKS_SAID_MAX: usize = RANKS_MAX * 16;

/// What SGLang says of each data-parallel and each pipeline rank;
/// all ranks of tensor parallelism may say the same of it.
#[derive(Default)]
struct Ranks(BTreeMap<[u64; 2], f64>);

impl Ranks {
    /// Stages of a pipeline have requests of their own.
    fn of_stages(&mut self, sample: &Sample<'_>) {
        if is_total(sample) {
            self.take(["dp_rank", "pp_rank"].map(|rank| number(sample, rank).unwrap_or(0)), sample.value);
        }
    }

    /// In each stage's queue stand the same requests.
    fn of_queues(&mut self, sample: &Sample<'_>) {
        if is_total(sample) {
            self.of_replicas(sample);
        }
    }

    /// All stages have the same room.
    fn of_replicas(&mut self, sample: &Sample<'_>) {
        self.take([number(sample, "dp_rank").unwrap_or(0), 0], sample.value);
    }

    fn take(&mut self, rank: [u64; 2], value: f64) {
        if self.0.len() >= RANKS_SAID_MAX && !self.0.contains_key(&rank) {
            return;
        }
        let said = self.0.entry(rank).or_default();
        *said = said.max(value);
    }

    fn sum(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.values().sum())
    }
}

/// What vLLM wrote under an older name as well for some versions, about 0.10.
#[derive(Default)]
struct Renamed {
    now: Option<f64>,
    once: Option<f64>,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Renamed {
    fn told(&self) -> Option<f64> {
        self.now.or(self.once)
    }
}

impl Sums {
    fn take(&mut self, sample: &Sample<'_>) {
        if sample.name == STARTED {
            self.started = Some(sample.value);
            return;
        }
        let add = |sum: &mut Option<f64>| *sum = Some(sum.unwrap_or(0.0) + sample.value);
        let (engine, name) = match sample.name.strip_prefix("vllm:") {
            Some(name) => (EngineKind::Vllm, name),
            None => match sample.name.strip_prefix("sglang").and_then(|rest| rest.strip_prefix([':', '_'])) {
                Some(name) => (EngineKind::Sglang, name),
                None => return,
            },
        };
        self.engine = Some(engine);
        match name {
            "num_requests_running" => {
                add(&mut self.running);
                self.rank(sample, "engine");
            }
            "num_requests_waiting" => add(&mut self.waiting),
            "num_running_reqs" => {
                self.running_reqs.of_stages(sample);
                self.rank(sample, "dp_rank");
            }
            "num_queue_reqs" => self.queue_reqs.of_queues(sample),
            "kv_cache_usage_perc" | "gpu_cache_usage_perc" | "token_usage" => {
                self.kv_use.sum += sample.value;
                self.kv_use.count += 1;
            }
            "prompt_tokens_total" => add(&mut self.prompt_tokens),
            "prefix_cache_queries_total" => add(&mut self.queries.now),
            "gpu_prefix_cache_queries_total" | "gpu_prefix_cache_queries" => add(&mut self.queries.once),
            "prefix_cache_hits_total" | "cached_tokens_total" => add(&mut self.hits.now),
            "gpu_prefix_cache_hits_total" | "gpu_prefix_cache_hits" => add(&mut self.hits.once),
            "external_prefix_cache_hits_total" => self.brought += sample.value,
            "cache_hit_rate" => self.hits_somewhere |= sample.value > 0.0,
            "generation_tokens_total" => add(&mut self.generation_tokens),
            // By the reason they ended for, aborted ones among them; SGLang counts them together.
            "request_success_total" | "num_requests_total" => add(&mut self.requests),
            // SGLang reports tokens here, and pages beside it: before 0.5.11 in `cache_config_info`.
            "max_total_num_tokens" => self.total_tokens.of_replicas(sample),
            "num_pages" => self.pages.of_replicas(sample),
            "page_size" => self.block_size = self.block_size.or(Some(sample.value as u64)),
            "cache_config_info" => self.cache_config(engine, sample),
            // Beside how deeply it sleeps.
            "engine_sleep_state" if sample.label("sleep_state") == Some("awake") => {
                self.awake = Some(self.awake.unwrap_or(true) && sample.value > 0.0);
            }
            _ => {}
        }
    }

    fn rank(&mut self, sample: &Sample<'_>, label: &str) {
        self.ranks.extend(number(sample, label).filter(|_| self.ranks.len() < RANKS_MAX));
    }

    fn cache_config(&mut self, engine: EngineKind, sample: &Sample<'_>) {
        let (size, blocks) = match engine {
            EngineKind::Vllm => (number(sample, "block_size"), number(sample, "num_gpu_blocks")),
            EngineKind::Sglang => (number(sample, "page_size"), number(sample, "num_pages")),
        };
        // vLLM writes the sum of its ranks' blocks once for each rank, and their tokens rank by rank.
        self.blocks = self.blocks.max(blocks);
        if let Some(tokens) = number(sample, "kv_cache_size_tokens") {
            self.kv_capacity = Some(self.kv_capacity.unwrap_or(0.0) + tokens as f64);
        }
        self.block_size = self.block_size.or(size);
        self.attention_block = self.attention_block.max(number(sample, "effective_attention_block_size"));
        self.match_unit = self.match_unit.max(number(sample, "prefix_match_unit"));
        self.prefix_caching = match sample.label("enable_prefix_caching") {
            Some("True" | "true") => Some(self.prefix_caching.unwrap_or(true)),
            Some("False" | "false") => Some(false),
            _ => self.prefix_caching,
        };
    }

    fn reading(self) -> Reading {
        // `as` saturates, so that an absurd figure is a large one and no more. Of requests it would lift the bounds of
        // all other engines, which go by the mean.
        let count = |sum: f64| (sum as u32).min(REQUESTS_MAX);
        let total = |sum: f64| sum as u64;
        let sglang = self.engine == Some(EngineKind::Sglang);
        let blocks = self.pages.sum().map(total).or(self.blocks);
        // The first block of a vLLM is nobody's: an encoder (BERT and the like), which keeps no tokens, has that alone.
        let holds = |blocks: &u64| sglang || *blocks > self.ranks.len().max(1) as u64;
        // Newer vLLM says the capacity itself; with hybrid models it is not the product.
        let product = self.block_size.zip(blocks.filter(holds)).and_then(|(size, blocks)| size.checked_mul(blocks));
        let match_unit = self.match_unit.or(self.block_size.max(self.attention_block));
        let kv_capacity = self.kv_capacity.or(self.total_tokens.sum()).map(total).or(product);
        let (first, last) = (self.ranks.first().copied(), self.ranks.last().copied());
        let ranks = match last.filter(|_| sglang) {
            // It counts from 0, and writes of a rank only once that had something to do.
            Some(last) => last.saturating_add(1).min(RANKS_MAX as u64) as usize,
            None => self.ranks.len(),
        };
        Reading {
            load: EngineLoad {
                running: self.running.or(self.running_reqs.sum()).map(count),
                waiting: self.waiting.or(self.queue_reqs.sum()).map(count),
                kv_use: (self.kv_use.count > 0)
                    .then(|| (self.kv_use.sum / f64::from(self.kv_use.count)).min(1.0) as f32),
                kv_capacity_tokens: kv_capacity.filter(can_be),
                prompt_tokens_total: self.prompt_tokens.map(total),
                // SGLang looks every prompt token up and counts only the hits apart.
                prefix_queries_total: self.queries.told().or(self.prompt_tokens.filter(|_| sglang)).map(total),
                // Their counter comes with the first of them: with its cache off, never.
                prefix_hits_total: self
                    .hits
                    .told()
                    // As vLLM adds them up: none of these tokens is computed.
                    .map(|hits| hits + self.brought)
                    .or(self.prompt_tokens.filter(|_| sglang && !self.hits_somewhere).map(|_| 0.0))
                    .map(total),
                generation_tokens_total: self.generation_tokens.map(total),
                requests_total: self.requests.map(total),
            },
            block_size: self.block_size.and_then(|size| u32::try_from(size).ok()),
            match_unit: match_unit.filter(|unit| *unit <= MATCH_UNIT_MAX).and_then(|unit| u32::try_from(unit).ok()),
            blocks,
            prefix_caching: self.prefix_caching,
            engine: self.engine,
            started: self.started,
            awake: self.awake,
            ranks,
            ranks_from: first.filter(|_| !sglang).unwrap_or(0),
            unnamed_prompt_tokens: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &[u8] = include_bytes!("../../tests/fixtures/engine-metrics/vllm-0.32.0.txt");
    const SGLANG: &[u8] = include_bytes!("../../tests/fixtures/engine-metrics/sglang-0.5.23-ranks.txt");
    const VLLM_FLAGS: &[u8] = include_bytes!("../../tests/fixtures/engine-metrics/vllm-0.32.0-lora.txt");

    #[test]
    fn a_recorded_vllm_is_understood() {
        let reading = Reading::of(VLLM);
        assert_eq!(
            reading,
            Reading {
                load: EngineLoad {
                    running: Some(0),
                    waiting: Some(0),
                    kv_use: Some(0.0),
                    kv_capacity_tokens: Some(65_536),
                    prompt_tokens_total: Some(1_037),
                    prefix_queries_total: Some(1_033),
                    prefix_hits_total: Some(256),
                    generation_tokens_total: Some(773),
                    requests_total: Some(35),
                },
                block_size: Some(32),
                match_unit: Some(32),
                blocks: Some(2_048),
                prefix_caching: Some(true),
                engine: Some(EngineKind::Vllm),
                started: Some(1.79518746168e9),
                awake: Some(true),
                ranks: 1,
                ranks_from: 0,
                unnamed_prompt_tokens: None,
            }
        );
        assert_eq!(Reading::of(VLLM_FLAGS).load.kv_capacity_tokens, Some(4_096));
    }

    /// Were its one block taken for its cache, all but one request would wait for room in that.
    #[test]
    fn an_encoder_has_no_cache() {
        let text = include_str!("../../tests/fixtures/engine-metrics/vllm-0.32.0-cross-encoder.txt");
        let reading = Reading::of(text.as_bytes());
        let known = EngineLoad {
            running: Some(0),
            waiting: Some(0),
            kv_use: Some(0.0),
            prompt_tokens_total: Some(54_704),
            prefix_queries_total: Some(0),
            prefix_hits_total: Some(0),
            generation_tokens_total: Some(0),
            requests_total: Some(240),
            ..EngineLoad::default()
        };
        assert_eq!((reading.load, reading.told_tokens(), reading.prefix_caching), (known, Some(128), Some(false)));
        let ranks = text.replace("num_gpu_blocks=\"1\"", "num_gpu_blocks=\"2\"");
        let second = ranks.replace("engine=\"0\"", "engine=\"1\"");
        let mut page = Page::of(0..2);
        ranks.lines().chain(second.lines()).for_each(|line| page.line(line.as_bytes()));
        let capacities = page.readings().into_iter().map(|reading| reading.load.kv_capacity_tokens);
        assert_eq!(capacities.collect::<Vec<_>>(), [None, None]);
        assert_eq!(Reading::of((ranks + &second).as_bytes()).load.kv_capacity_tokens, None);
    }

    /// As vLLM writes it, whichever its level.
    #[test]
    fn who_sleeps_says_so() {
        let text = String::from_utf8(VLLM.to_vec()).unwrap();
        let asleep = text.replace("sleep_state=\"awake\"} 1.0", "sleep_state=\"awake\"} 0.0");
        assert_eq!(Reading::of(asleep.as_bytes()).awake, Some(false));
        let deeply = asleep.replace("sleep_state=\"discard_all\"} 0.0", "sleep_state=\"discard_all\"} 1.0");
        assert_eq!(Reading::of(deeply.as_bytes()).awake, Some(false));
        let rank =
            |rank, awake| format!("vllm:engine_sleep_state{{engine=\"{rank}\",sleep_state=\"awake\"}} {awake}\n");
        assert_eq!(Reading::of((rank(0, 0) + &rank(1, 1)).as_bytes()).awake, Some(false), "one of two ranks");
        assert_eq!(Reading::of(b"vllm:num_requests_running 1").awake, None);
    }

    #[test]
    fn ranks_are_summed() {
        let reading = Reading::of(
            b"vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 3.0\n\
              vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 4.0\n\
              vllm:num_requests_waiting{engine=\"0\",model_name=\"a}\\\"\"} 1\n\
              vllm:gpu_cache_usage_perc{engine=\"0\"} 0.5\n\
              vllm:gpu_cache_usage_perc{engine=\"1\"} 0.25\n\
              vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\",enable_prefix_caching=\"False\"} 1.0\n\
              vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"100\",enable_prefix_caching=\"True\"} 1.0\n",
        );
        assert_eq!(reading.load.running, Some(7));
        assert_eq!(reading.load.waiting, Some(1));
        assert_eq!(reading.load.kv_use, Some(0.375));
        assert_eq!((reading.prefix_caching, reading.ranks), (Some(false), 2));
        let line = |rank: usize| format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"m\"}} 0\n");
        let ranks = |text: String| Reading::of(text.as_bytes()).ranks;
        assert_eq!(ranks((0..3).map(line).collect::<String>() + &line(1)), 3);
        assert_eq!(ranks((0..10_000).map(line).collect()), RANKS_MAX);
        let line =
            |rank: usize, pp: usize| format!("sglang:num_running_reqs{{dp_rank=\"{rank}\",pp_rank=\"{pp}\"}} 0\n");
        assert_eq!([ranks(line(0, 0) + &line(0, 1)), ranks(line(0, 0) + &line(1, 0)), ranks(String::new())], [1, 2, 0]);
    }

    /// Those of a vLLM may be those of a node, numbered on from another's; of SGLang's the first may have no line yet.
    #[test]
    fn the_least_number_of_a_rank_tells_something_of_vllm_alone() {
        let read = |label: &str, numbers: &[u64]| {
            let line = |number| format!("{label}=\"{number}\"}} 0\n");
            let reading = Reading::of(numbers.iter().map(line).collect::<String>().as_bytes());
            (reading.ranks, reading.ranks_from)
        };
        let (vllm, sglang) = ("vllm:num_requests_running{engine", "sglang:num_running_reqs{dp_rank");
        assert_eq!([read(vllm, &[4, 5]), read(vllm, &[0, 1])], [(2, 4), (2, 0)]);
        assert_eq!([read(sglang, &[1]), read(sglang, &[3, 1]), read(sglang, &[0])], [(2, 0), (4, 0), (1, 0)]);
        assert_eq!(read(sglang, &[u64::MAX]), (RANKS_MAX, 0));
    }

    /// With `--kv-offloading-size`, LMCache or the like: what the GPU does not hold may be read all the same.
    #[test]
    fn what_a_connector_brings_is_found_too() {
        let counted = "vllm:prefix_cache_queries_total{engine=\"0\"} 1000\nvllm:prefix_cache_hits_total{engine=\"0\"} 300\n\
                       vllm:external_prefix_cache_queries_total{engine=\"0\"} 700\n";
        let brought = "vllm:external_prefix_cache_hits_total{engine=\"0\"} 250\n\
                       vllm:external_prefix_cache_hits_total{engine=\"1\"} 50\n";
        let found = |text: String| {
            let load = Reading::of(text.as_bytes()).load;
            (load.prefix_queries_total, load.prefix_hits_total)
        };
        assert_eq!(found(counted.into()), (Some(1_000), Some(300)));
        assert_eq!(found(counted.to_owned() + brought), (Some(1_000), Some(600)));
        assert_eq!(found(brought.into()), (None, None));
    }

    /// As newer vLLM writes it of a hybrid model: `None` where nobody set a unit, and blocks are it.
    #[test]
    fn prompts_are_found_in_units_or_blocks() {
        let unit = |labels: &str| Reading::of(format!("vllm:cache_config_info{{{labels}}} 1.0").as_bytes()).match_unit;
        assert_eq!(unit("block_size=\"3584\",prefix_match_unit=\"None\""), Some(3_584));
        assert_eq!(unit("block_size=\"3584\",prefix_match_unit=\"16\""), Some(16));
        assert_eq!(unit("block_size=\"1552\",mamba_block_size=\"16\""), Some(1_552));
        // Ranks that share a context have as many times a block.
        assert_eq!(unit("block_size=\"64\",effective_attention_block_size=\"512\""), Some(512));
        assert_eq!(unit("num_gpu_blocks=\"9\""), None);
        assert_eq!(unit("block_size=\"4294967295\""), None, "a figure gone wrong");
        let page = "sglang:cache_config_info{page_size=\"128\"} 1.0";
        assert_eq!(Reading::of(page.as_bytes()).match_unit, Some(128));
        assert_eq!(Reading::of(b"sglang:page_size 64.0").match_unit, Some(64));
    }

    /// A page may have a line for each of millions, which would be kept until its end.
    #[test]
    fn ranks_without_end_are_not_kept() {
        let page: String =
            (0..5_000).map(|rank| format!("sglang:num_running_reqs{{dp_rank=\"{rank}\"}} 1\n")).collect();
        assert_eq!(Reading::of(page.as_bytes()).load.running, Some(RANKS_SAID_MAX as u32));
    }

    /// With `--decode-context-parallel-size 8` tokens are those of eight times as many blocks as there are, and as are
    /// named.
    #[test]
    fn blocks_that_are_told_are_those_that_there_are() {
        let told = |labels: &str| {
            let reading = Reading::of(format!("vllm:cache_config_info{{{labels}}} 1.0").as_bytes());
            reading.told_blocks().zip(reading.told_block_size())
        };
        let blocks = "block_size=\"64\",num_gpu_blocks=\"1000\"";
        assert_eq!(told(blocks), Some((1_000, 64)));
        let shared = ",effective_attention_block_size=\"512\",kv_cache_size_tokens=\"512000\"";
        assert_eq!(told(&format!("{blocks}{shared}")), Some((1_000, 512)));
        // Groups of layers share them.
        assert_eq!(told(&format!("{blocks},kv_cache_size_tokens=\"16000\"")), Some((1_000, 64)));
        assert_eq!(told("block_size=\"64\",kv_cache_size_tokens=\"64000\""), Some((1_000, 64)));
        let wrong = "block_size=\"64\",num_gpu_blocks=\"4000000000\"";
        assert_eq!(told(wrong), None, "a figure gone wrong");
        assert_eq!(told(&format!("{wrong},kv_cache_size_tokens=\"64000\"")), Some((1_000, 64)));
        assert_eq!(told("num_gpu_blocks=\"9\""), None);
    }

    /// vLLM's front sums the blocks of its ranks, and writes that for each of them.
    #[test]
    fn blocks_of_ranks_are_told_as_a_sum() {
        let read = |more: &str| {
            let rank = |rank| {
                format!(
                    "vllm:cache_config_info{{block_size=\"16\",engine=\"{rank}\",num_gpu_blocks=\"200\"{more}}} 1.0\n"
                )
            };
            let reading = Reading::of((rank(0) + &rank(1)).as_bytes());
            (reading.blocks, reading.load.kv_capacity_tokens)
        };
        assert_eq!(read(""), (Some(200), Some(3_200)));
        assert_eq!(read(",kv_cache_size_tokens=\"1500\""), (Some(200), Some(3_000)));
    }

    #[test]
    fn sglang_is_understood() {
        let reading = Reading::of(
            b"sglang:num_running_reqs{model_name=\"q\"} 5.0\n\
              sglang:num_queue_reqs{model_name=\"q\"} 2.0\n\
              sglang:token_usage{model_name=\"q\"} 0.28\n\
              sglang:prompt_tokens_total{model_name=\"q\"} 1000.0\n\
              sglang:cached_tokens_total{model_name=\"q\"} 400.0\n\
              sglang:generation_tokens_total{model_name=\"q\"} 90.0\n\
              sglang:num_requests_total{model_name=\"q\"} 3.0\n\
              sglang:max_total_num_tokens{model_name=\"q\"} 50000.0\n\
              sglang:cache_config_info{page_size=\"16\",num_pages=\"3125\"} 1.0\n",
        );
        assert_eq!((reading.load.running, reading.load.waiting), (Some(5), Some(2)));
        assert_eq!(reading.load.kv_capacity_tokens, Some(50_000));
        assert_eq!((reading.load.prefix_queries_total, reading.load.prefix_hits_total), (Some(1_000), Some(400)));
        assert_eq!((reading.load.generation_tokens_total, reading.load.requests_total), (Some(90), Some(3)));
        assert_eq!(
            (reading.engine, reading.block_size, reading.blocks),
            (Some(EngineKind::Sglang), Some(16), Some(3_125))
        );
    }

    /// Two ranks of one that has `--enable-priority-scheduling`: prompts are counted by priority, of all ranks.
    #[test]
    fn a_recorded_sglang_is_understood() {
        let reading = Reading::of(SGLANG);
        assert_eq!(
            reading.load,
            EngineLoad {
                running: Some(0),
                waiting: Some(0),
                kv_use: Some(0.0),
                kv_capacity_tokens: Some(2 * 32_768),
                prompt_tokens_total: Some(2_659 + 510 + 498 + 516 + 558),
                prefix_queries_total: Some(4_741),
                prefix_hits_total: Some(1_248 + 3 * 320 + 352),
                generation_tokens_total: Some(41 + 4 * 6),
                requests_total: Some(19 + 4 * 3),
            }
        );
        assert_eq!((reading.block_size, reading.blocks, reading.match_unit), (Some(16), Some(2 * 2_048), Some(16)));
        assert_eq!((reading.engine, reading.ranks, reading.started), (Some(EngineKind::Sglang), 2, None));
    }

    /// Its counter of hits begins with the first: where its cache is off, never.
    #[test]
    fn without_a_hit_sglang_counts_none() {
        let hits = |more: &str| {
            let page = format!("sglang:prompt_tokens_total 1000.0\nsglang:token_usage 0.2\n{more}");
            Reading::of(page.as_bytes()).load.prefix_hits_total
        };
        assert_eq!(hits(""), Some(0));
        assert_eq!(hits("sglang:cache_hit_rate 0.0\n"), Some(0));
        assert_eq!(hits("sglang:cache_hit_rate 0.0\nsglang:cached_tokens_total 400.0\n"), Some(400));
        assert_eq!(hits("sglang:cache_hit_rate 0.4\n"), None, "it does not count them");
        assert_eq!(Reading::of(b"sglang:token_usage 0.2\n").load.prefix_hits_total, None, "nor did it see a prompt");
    }

    /// SGLang from 0.5.11 on, with two data-parallel ranks of two tensor-parallel ones each, all of which write.
    #[test]
    fn ranks_of_sglang_are_summed_and_their_copies_are_not() {
        let mut text = String::new();
        for (rank, dp, pages) in [(0, 0, 3_000), (1, 0, 2_999), (2, 1, 2_000), (3, 1, 2_000)] {
            let labels = format!("{{model_name=\"q\",tp_rank=\"{rank}\",pp_rank=\"0\",dp_rank=\"{dp}\"}}");
            for (name, value) in [
                ("num_running_reqs", 3 + dp),
                ("num_queue_reqs", 1),
                ("max_total_num_tokens", pages * 16),
                ("page_size", 16),
                ("num_pages", pages),
            ] {
                text += &format!("sglang:{name}{labels} {value}.0\n");
            }
        }
        let reading = Reading::of(text.as_bytes());
        assert_eq!((reading.load.running, reading.load.waiting), (Some(7), Some(2)));
        assert_eq!((reading.block_size, reading.blocks), (Some(16), Some(5_000)));
        assert_eq!(reading.load.kv_capacity_tokens, Some(80_000));
        assert_eq!(reading.told_tokens(), Some(80_000));
    }

    /// Of a pipeline each stage has the whole queue.
    #[test]
    fn a_queue_that_all_stages_tell_of_counts_once() {
        let mut text = String::new();
        for (dp, pp, waiting) in [(0, 0, 6), (0, 1, 5), (1, 0, 3), (1, 1, 3)] {
            text += &format!("sglang:num_queue_reqs{{pp_rank=\"{pp}\",dp_rank=\"{dp}\"}} {waiting}.0\n");
            text += &format!("sglang:num_running_reqs{{pp_rank=\"{pp}\",dp_rank=\"{dp}\"}} 2.0\n");
        }
        let load = Reading::of(text.as_bytes()).load;
        assert_eq!((load.waiting, load.running), (Some(9), Some(8)));
    }

    /// With `--enable-priority-scheduling`.
    #[test]
    fn requests_of_each_priority_are_part_of_the_total() {
        let reading = Reading::of(
            b"sglang:num_running_reqs{model_name=\"q\",priority=\"\"} 5.0\n\
              sglang:num_running_reqs{model_name=\"q\",priority=\"0\"} 2.0\n\
              sglang:num_running_reqs{model_name=\"q\",priority=\"7\"} 3.0\n\
              sglang:num_queue_reqs{model_name=\"q\",priority=\"0\"} 4.0\n\
              sglang:num_queue_reqs{model_name=\"q\",priority=\"\"} 4.0\n",
        );
        assert_eq!((reading.load.running, reading.load.waiting), (Some(5), Some(4)));
        // A priority that had requests once is written on.
        let idle = b"sglang:num_running_reqs{priority=\"\"} 1.0\nsglang:num_running_reqs{priority=\"3\"} 9.0\n";
        assert_eq!(Reading::of(idle).load.running, Some(1));
    }

    #[test]
    fn what_is_told_under_two_names_counts_once() {
        let rank = |name: &str, rank: u32| {
            format!(
                "vllm:{name}_queries_total{{engine=\"{rank}\"}} 100\nvllm:{name}_hits_total{{engine=\"{rank}\"}} 60\n"
            )
        };
        let older = rank("gpu_prefix_cache", 0) + &rank("gpu_prefix_cache", 1);
        let newer = rank("prefix_cache", 0) + &rank("prefix_cache", 1);
        for text in [older.clone(), newer.clone(), older + &newer] {
            let load = Reading::of(text.as_bytes()).load;
            assert_eq!((load.prefix_queries_total, load.prefix_hits_total), (Some(200), Some(120)), "{text}");
        }
    }

    #[test]
    fn nonsense_of_an_engine_is_skipped() {
        for text in [
            "",
            "\n\n",
            "vllm:",
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running{a=\"",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running -1",
            "vllm:num_requests_running +Inf",
            "vllm:x{a=\"b} 1",
        ] {
            assert_eq!(Reading::of(text.as_bytes()).load, EngineLoad::default(), "{text}");
        }
        for (said, told) in [("65535", 65_535), ("65537", 65_536), ("1e300", 65_536)] {
            let load = Reading::of(format!("vllm:num_requests_running {said}").as_bytes()).load;
            assert_eq!(load.running, Some(told), "{said}");
        }
        let absurd = br#"vllm:cache_config_info{block_size="16",kv_cache_size_tokens="18446744073709551615"} 1.0"#;
        assert_eq!((Reading::of(absurd).load.kv_capacity_tokens, Reading::of(absurd).told_tokens()), (None, None));
        for (blocks, told) in [(1 << 28, Some(1 << 32)), ((1 << 28) + 1, None)] {
            let text = format!("vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1.0");
            let reading = Reading::of(text.as_bytes());
            assert_eq!((reading.load.kv_capacity_tokens, reading.told_tokens()), (told, told));
        }
        assert_eq!(Reading::of(b"vllm:num_requests_running 1\xff"), Reading::default());
        assert_eq!(Reading::of(b"vllm:num_requests_running 2\r\n").load.running, Some(2));
    }
}
