//! `GET /metrics` under vLLM's names: what a front scrapes and what a person looks at.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::core::{Figures, TTFT_BOUNDS};
use super::profile::Profile;

/// How far the simulation fell behind its own clock, for want of CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lag {
    /// Simulated seconds by which steps began late.
    pub seconds: f64,
    /// Simulated seconds to a real one.
    pub time_scale: f64,
}

/// What prometheus_client tells of the process, once for all of its ranks: a front knows a process by its start time.
pub fn process(began: SystemTime) -> String {
    let seconds = began.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let name = "process_start_time_seconds";
    format!(
        "# HELP {name} Start time of the process since unix epoch in seconds.\n# TYPE {name} gauge\n{name} {seconds:?}\n"
    )
}

/// Writes the exposition of one engine: rank `rank` of `ranks` behind one port.
pub fn exposition(
    model: &str,
    profile: &Profile,
    (rank, ranks): (usize, usize),
    figures: &Figures,
    lag: Lag,
) -> String {
    let mut out = String::with_capacity(8 * 1024);
    let mut page = Page { out: &mut out, labels: format!("engine=\"{rank}\",model_name=\"{}\"", escaped(model)) };
    let counts = &figures.counts;
    page.gauge("num_requests_running", "Number of requests in model execution batches.", figures.running as f64);
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", figures.waiting as f64);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", figures.kv_usage);
    page.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        counts.prefix_queries,
    );
    page.counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", counts.prefix_hits);
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", counts.preemptions);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", counts.prompt);
    page.counter("prompt_tokens_cached", "Number of cached prompt tokens.", counts.prefix_hits);
    page.counter("generation_tokens", "Number of generation tokens processed.", counts.generated);
    page.successes(figures);
    page.ttft(figures);
    page.cache_config(profile, rank, ranks);
    let _ = writeln!(page.out, "# HELP vllm:admission_rejections_total Requests refused because the queue was full.");
    let _ = writeln!(page.out, "# TYPE vllm:admission_rejections_total counter");
    let _ = writeln!(
        page.out,
        "vllm:admission_rejections_total{{model_name=\"{}\",reason=\"max_num_queued_reqs\"}} {:?}",
        escaped(model),
        figures.refused as f64
    );
    page.own(figures, lag);
    out
}

struct Page<'a> {
    out: &'a mut String,
    labels: String,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.out, "vllm:{name}{{{}}} {value:?}", self.labels);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        let _ = writeln!(self.out, "vllm:{name}{{{}}} {:?}", self.labels, value as f64);
    }

    fn successes(&mut self, figures: &Figures) {
        self.head("request_success_total", "counter", "Count of successfully processed requests.");
        let (engine, model) = self.labels.split_once(',').unwrap_or_default();
        // Aborts move no label in vLLM either.
        let ends = [("stop", figures.ends.stop), ("length", figures.ends.length), ("abort", 0)];
        for (reason, count) in ends {
            let _ = writeln!(
                self.out,
                "vllm:request_success_total{{{engine},finished_reason=\"{reason}\",{model}}} {:?}",
                count as f64
            );
        }
    }

    fn ttft(&mut self, figures: &Figures) {
        let name = "time_to_first_token_seconds";
        self.head(name, "histogram", "Histogram of time to first token in seconds.");
        let (engine, model) = self.labels.split_once(',').unwrap_or_default();
        let mut sum = 0;
        for (at, count) in figures.ttft.iter().enumerate() {
            sum += count;
            let le = TTFT_BOUNDS.get(at).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let _ = writeln!(self.out, "vllm:{name}_bucket{{{engine},le=\"{le}\",{model}}} {:?}", sum as f64);
        }
        let _ = writeln!(self.out, "vllm:{name}_count{{{}}} {:?}", self.labels, sum as f64);
        let seconds = figures.ttft_sum_ns as f64 / 1e9;
        let _ = writeln!(self.out, "vllm:{name}_sum{{{}}} {seconds:?}", self.labels);
    }

    /// As vLLM writes it: the blocks of all ranks with each rank, and that rank's tokens.
    fn cache_config(&mut self, profile: &Profile, rank: usize, ranks: usize) {
        self.head("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        let size = profile.block_size;
        let blocks = profile.blocks();
        let _ = writeln!(
            self.out,
            "vllm:cache_config_info{{block_size=\"{size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
             engine=\"{rank}\",kv_cache_size_tokens=\"{}\",num_cpu_blocks=\"None\",num_gpu_blocks=\"{}\"}} 1.0",
            blocks * size,
            blocks as usize * ranks
        );
    }

    /// Metrics that no engine has, under our own prefix.
    fn own(&mut self, figures: &Figures, lag: Lag) {
        let own = [
            ("time_scale", "gauge", "Simulated seconds to a real one.", lag.time_scale),
            (
                "lag_seconds_total",
                "counter",
                "Simulated seconds by which steps began late for want of CPU.",
                lag.seconds,
            ),
            ("busy_seconds_total", "counter", "Simulated seconds spent in steps.", figures.busy_ns as f64 / 1e9),
            ("steps_total", "counter", "Steps.", figures.steps as f64),
            ("aborts_total", "counter", "Sequences whose client left.", figures.ends.abort as f64),
        ];
        for (name, kind, help, value) in own {
            let _ = writeln!(
                self.out,
                "# HELP warmfront_engine_{name} {help}\n# TYPE warmfront_engine_{name} {kind}\nwarmfront_engine_{name}{{{}}} {value:?}",
                self.labels
            );
        }
    }
}

/// A label value: the exposition format escapes backslash, quote and newline.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::Counts;
    use crate::engine::core::Ends;

    #[test]
    fn names_and_labels_are_those_recorded_from_vllm() {
        let recorded = include_str!("../../tests/fixtures/engine/metrics.names");
        let page = exposition("tiny-llama", &Profile::default(), (0, 1), &Figures::default(), Lag::default());
        let ours: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("vllm:") && !line.starts_with("vllm:cache_config_info"))
            .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
            .collect();
        assert!(ours.len() > 30);
        for series in ours {
            assert!(recorded.lines().any(|line| line == series), "vLLM has no {series}");
        }
    }

    #[test]
    fn each_figure_stands_under_its_name() {
        let counts = Counts { prefix_queries: 11, prefix_hits: 12, preemptions: 13, prompt: 14, generated: 15 };
        let ends = Ends { stop: 16, length: 17, abort: 18 };
        let figures =
            Figures { running: 19, waiting: 20, kv_usage: 0.25, counts, ends, refused: 21, ..Figures::default() };
        let page = exposition("m", &Profile::default(), (0, 1), &figures, Lag::default());
        let of = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
            line.rsplit_once(' ')?.1.parse::<f64>().ok()
        };
        for (name, value) in [
            ("vllm:num_requests_running", 19.0),
            ("vllm:num_requests_waiting", 20.0),
            ("vllm:kv_cache_usage_perc", 0.25),
            ("vllm:prefix_cache_queries_total", 11.0),
            ("vllm:prefix_cache_hits_total", 12.0),
            ("vllm:num_preemptions_total", 13.0),
            ("vllm:prompt_tokens_total", 14.0),
            ("vllm:prompt_tokens_cached_total", 12.0),
            ("vllm:generation_tokens_total", 15.0),
            ("vllm:admission_rejections_total", 21.0),
            ("warmfront_engine_aborts_total", 18.0),
        ] {
            assert_eq!(of(name), Some(value), "{name}");
        }
        for (reason, count) in [("stop", "16.0"), ("length", "17.0"), ("abort", "0.0")] {
            let line = format!("finished_reason=\"{reason}\",model_name=\"m\"}} {count}\n");
            assert!(page.contains(&line), "{line}");
        }
    }

    #[test]
    fn each_rank_has_its_own_series() {
        let page = exposition("m", &Profile::default(), (1, 2), &Figures::default(), Lag::default());
        assert!(page.contains("vllm:num_requests_running{engine=\"1\",model_name=\"m\"}") && !page.contains("\"0\","));
        let all = format!("num_gpu_blocks=\"{}\"", 2 * Profile::default().blocks());
        assert!(page.contains(&all), "{page}");
    }

    #[test]
    fn buckets_rise() {
        let mut figures = Figures::default();
        figures.ttft[3] = 2;
        figures.ttft[22] = 1;
        let page = exposition("m", &Profile::default(), (0, 1), &figures, Lag::default());
        assert!(page.contains("le=\"0.01\",model_name=\"m\"} 0.0"));
        assert!(page.contains("le=\"0.02\",model_name=\"m\"} 2.0"));
        assert!(page.contains("le=\"+Inf\",model_name=\"m\"} 3.0"));
    }
}
