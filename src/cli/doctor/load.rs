//! What `/metrics` says: the cache's size, the load, what is missing of it, and how many ranks stand behind the port.

use super::finding::{Change, Finding};
use super::server::Info;
use crate::control::client::CallError;
use crate::control::scrape::{self, EngineKind, Reading};
use crate::limits::RANKS_MAX;

/// The page, read.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) reading: Reading,
    /// Why the page could not be read.
    unread: Option<String>,
}

impl Page {
    pub(super) fn of(status: &Result<u16, CallError>, lines: scrape::Page) -> Page {
        match status {
            Ok(200) => Page { reading: lines.reading(), unread: None },
            Ok(status) => Page { unread: Some(format!("/metrics answers {status}")), ..Page::default() },
            Err(error) => Page {
                unread: Some(format!("/metrics: {}", super::finding::shown(&error.to_string()))),
                ..Page::default()
            },
        }
    }

    /// Findings on whether prefixes are cached, in how many blocks of which size. `generates`: the engine does not only
    /// embed or the like. `is_heard`: a policy goes by its events.
    pub(super) fn cache(&self, kind: Option<EngineKind>, info: &Info, generates: bool, is_heard: bool) -> Vec<Finding> {
        const SUBJECT: &str = "cache";
        let size = self.reading.block_size.map(u64::from).or(info.page_size).filter(|size| *size > 0);
        let blocks = |tokens: u64, size: u64| self.reading.blocks.unwrap_or(tokens / size);
        let held = match (size, self.reading.load.kv_capacity_tokens.or(info.tokens)) {
            (Some(size), Some(tokens)) => format!("{} blocks of {size} tokens: {tokens} tokens", blocks(tokens, size)),
            (Some(size), None) => format!("blocks of {size} tokens; how many is not told"),
            (None, Some(tokens)) => format!("{tokens} tokens, in blocks of a size that is not told"),
            (None, None) => "its blocks are not told".to_owned(),
        };
        let mut found = vec![match (self.reading.prefix_caching.or(info.caches), kind) {
            (Some(true), _) => Finding::good(SUBJECT, format!("prefixes are cached; {held}")),
            (Some(false), Some(EngineKind::Sglang)) => {
                Finding::advice(SUBJECT, "prefixes are not cached: no request can find a warm cache")
                    .to(Change::TakeAway("--disable-radix-cache"))
            }
            // vLLM caches them if its model can; forced on another model, it may end.
            (Some(false), _) => {
                let words = "prefixes are not cached: no request can find a warm cache;\n\
                             take away --no-enable-prefix-caching if it is there; else its model cannot";
                // Most models that do not generate cannot.
                if generates { Finding::advice(SUBJECT, words) } else { Finding::unknown(SUBJECT, words) }
            }
            (None, _) => Finding::unknown(SUBJECT, format!("whether prefixes are cached is not told; {held}")),
        }];
        if is_heard && kind == Some(EngineKind::Sglang) && size == Some(1) {
            let words = "pages of one token: events tell each cached token as a block of its own";
            found.push(Finding::advice(SUBJECT, words).to(Change::Add("--page-size 16")));
        }
        found
    }

    /// The finding on whether the metrics that routing uses are there.
    pub(super) fn metrics(&self, kind: Option<EngineKind>) -> Finding {
        const SUBJECT: &str = "metrics";
        let load = &self.reading.load;
        let gauges = [load.running.is_some(), load.waiting.is_some(), load.kv_use.is_some()];
        let counters = [load.prompt_tokens_total.is_some(), load.prefix_hits_total.is_some()];
        let (gauge_names, counter_names) = match kind {
            Some(EngineKind::Sglang) => (
                ["sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"],
                ["sglang:prompt_tokens_total", "sglang:cached_tokens_total"],
            ),
            _ => (
                ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"],
                ["vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total"],
            ),
        };
        let missing = |names: &[&'static str], has: &[bool]| -> Vec<&'static str> {
            names.iter().zip(has).filter(|(_, has)| !**has).map(|(name, _)| *name).collect()
        };
        let (no_gauges, no_counters) = (missing(&gauge_names, &gauges), missing(&counter_names, &counters));
        if self.unread.is_some() || no_gauges.len() == gauges.len() {
            let why = self.unread.clone().unwrap_or_else(|| format!("/metrics has no {}", no_gauges.join(", ")));
            let found = Finding::advice(
                SUBJECT,
                format!("{why}: its load is not seen, and it is taken to be as full as the others"),
            );
            return match kind {
                Some(EngineKind::Sglang) => found.to(Change::Add("--enable-metrics")),
                // vLLM always has the page; with this flag it is empty.
                Some(EngineKind::Vllm) if self.unread.is_none() => found.to(Change::TakeAway("--disable-log-stats")),
                _ => found,
            };
        }
        match (no_gauges.as_slice(), no_counters.as_slice()) {
            ([], []) => Finding::good(SUBJECT, "running, waiting, KV use and prefix hits are told"),
            ([], counters) => {
                let words = format!("there is no {}; counters may begin with the first request", counters.join(", "));
                Finding::unknown(SUBJECT, words)
            }
            (gauges, _) => Finding::advice(
                SUBJECT,
                format!("there is no {}; the front routes by the rest, and by its own requests", gauges.join(", ")),
            ),
        }
    }
}

/// The finding on ranks behind one port, among which the front chooses if `ranks` of the `[[upstream]]` says so.
/// `from`: the number that the engine gives the first.
pub(super) fn several(ranks: usize, from: u64, configured: u32) -> Finding {
    const SUBJECT: &str = "ranks";
    let most = RANKS_MAX as usize;
    match (ranks, configured as usize) {
        (0 | 1, 1) => Finding::good(SUBJECT, "one behind this port"),
        (_, 1) if from > 0 => Finding::advice(
            SUBJECT,
            format!(
                "{ranks} data-parallel ranks behind this port, each with a cache of its own and numbered from {from}: the engine\n\
                 spreads requests itself, mostly not to the rank that has the prompt. `ranks` counts from 0: leave it out"
            ),
        ),
        (_, configured) if from > 0 => Finding::advice(
            SUBJECT,
            format!(
                "numbered from {from} behind this port, but `ranks = {configured}` counts from 0: the engine refuses requests for a\n\
                 rank that it does not have. Leave `ranks` out"
            ),
        ),
        (_, 1) if ranks > most => Finding::advice(
            SUBJECT,
            format!(
                "{ranks} data-parallel ranks behind this port, each with a cache of its own: the engine spreads requests itself,\n\
                 and this front chooses among {most} at most. Start several servers with a part of them each"
            ),
        ),
        (_, 1) => Finding::advice(
            SUBJECT,
            format!(
                "{ranks} data-parallel ranks behind this port, each with a cache of its own: the engine spreads requests itself,\n\
                 mostly not to the rank that has the prompt. Write ranks = {ranks} below its `url`: then the front chooses the rank"
            ),
        ),
        (0, configured) => Finding::unknown(SUBJECT, format!("not told; `ranks` says {configured}")),
        (_, configured) if ranks == configured => {
            Finding::good(SUBJECT, format!("{ranks} behind this port, each of them chosen by itself"))
        }
        (_, configured) => Finding::advice(
            SUBJECT,
            format!(
                "{ranks} behind this port, but `ranks` says {configured}: the engine refuses requests for a rank that it does not\n\
                 have, and ranks beyond that number get none. Write ranks = {ranks} below its `url`"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Mark;

    fn page(text: &str) -> Page {
        let mut lines = scrape::Page::default();
        text.split('\n').for_each(|line| lines.line(line.as_bytes()));
        Page::of(&Ok(200), lines)
    }

    const VLLM: Option<EngineKind> = Some(EngineKind::Vllm);
    const SGLANG: Option<EngineKind> = Some(EngineKind::Sglang);

    #[test]
    fn a_recorded_vllm_has_all() {
        let page = page(include_str!("../../../tests/fixtures/engine-metrics/vllm-0.32.0.txt"));
        let cache = page.cache(VLLM, &Info::default(), true, true);
        assert_eq!(cache, [Finding::good("cache", "prefixes are cached; 2048 blocks of 32 tokens: 65536 tokens")]);
        assert_eq!((page.metrics(VLLM).mark, page.reading.ranks), (Mark::Good, 1));
    }

    #[test]
    fn blocks_are_counted_as_the_engine_counts_them() {
        let rank = |rank| {
            format!(
                "vllm:cache_config_info{{block_size=\"16\",engine=\"{rank}\",kv_cache_size_tokens=\"100\",num_gpu_blocks=\"40\",\
                 enable_prefix_caching=\"True\"}} 1.0\n"
            )
        };
        let cache = page(&(rank(0) + &rank(1))).cache(VLLM, &Info::default(), true, true);
        assert_eq!(cache, [Finding::good("cache", "prefixes are cached; 40 blocks of 16 tokens: 200 tokens")]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let some = page("vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"0\"} 1\n")
            .metrics(VLLM);
        assert!(some.mark == Mark::Advice && some.words.contains("no vllm:kv_cache_usage_perc;"), "{some:?}");
        let none = page("process_cpu_seconds_total 3\n");
        let without = |kind| none.metrics(kind).change;
        assert_eq!(without(VLLM), Some(Change::TakeAway("--disable-log-stats")));
        assert_eq!(without(SGLANG), Some(Change::Add("--enable-metrics")));
        assert_eq!(without(None), None);
        let idle = page("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage 0\n").metrics(SGLANG);
        assert!(idle.mark == Mark::Unknown && idle.words.contains("sglang:cached_tokens_total"), "{idle:?}");
        let refused = Page::of(&Ok(404), scrape::Page::default());
        assert_eq!(refused.metrics(SGLANG).change, Some(Change::Add("--enable-metrics")));
        assert_eq!(refused.metrics(VLLM).change, None);
    }

    #[test]
    fn a_cache_that_is_off_is_turned_on() {
        let off = |kind, info| page("").cache(kind, &info, true, true)[0].change.clone();
        let info = Info { caches: Some(false), ..Info::default() };
        assert_eq!(off(SGLANG, info), Some(Change::TakeAway("--disable-radix-cache")));
        let text =
            "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",num_gpu_blocks=\"10\"} 1.0\n";
        for (generates, mark) in [(true, Mark::Advice), (false, Mark::Unknown)] {
            let found = &page(text).cache(VLLM, &Info::default(), generates, true)[0];
            assert!(found.mark == mark && found.change.is_none(), "{found:?}");
            assert!(found.words.contains("take away --no-enable-prefix-caching if it is there"), "{found:?}");
        }
        let info = Info { page_size: Some(1), tokens: Some(50), caches: Some(true), ..Info::default() };
        let pages = |is_heard| page("").cache(SGLANG, &info, true, is_heard);
        assert_eq!(pages(true)[1].change, Some(Change::Add("--page-size 16")));
        assert_eq!(pages(false).len(), 1, "events that nobody hears cost nothing");
        assert_eq!(page("").cache(VLLM, &Info::default(), true, true)[0].mark, Mark::Unknown);
    }

    #[test]
    fn several_ranks_are_told_of() {
        let two = several(2, 0, 1);
        assert!(two.mark == Mark::Advice && two.words.starts_with("2 data-parallel ranks"), "{two:?}");
        assert!(two.words.contains("ranks = 2 "), "{two:?}");
        let many = several(usize::MAX, 0, 1);
        assert!(many.mark == Mark::Advice && !many.words.contains("ranks = "), "{many:?}");
        let other = several(1, 0, 2);
        assert!(other.mark == Mark::Advice && other.words.ends_with("Write ranks = 1 below its `url`"), "{other:?}");
        assert_eq!(
            [several(0, 0, 1), several(1, 0, 1), several(2, 0, 2), several(1, 4, 1)].map(|found| found.mark),
            [Mark::Good; 4]
        );
        assert_eq!(several(0, 0, 2).mark, Mark::Unknown);
        for configured in [1, 2, 4] {
            let on = several(2, 4, configured);
            assert!(on.mark == Mark::Advice && on.words.contains("numbered from 4"), "{on:?}");
            assert!(on.words.to_lowercase().contains("leave ") && !on.words.contains("Write"), "{on:?}");
        }
    }
}
