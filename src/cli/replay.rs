//! `warmfront replay`: policies beside one another, on a trace or generated traffic, in simulated time.

mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use self::traffic::{Generated, Shape, factor, positive};
use super::status_line::StatusLine;
use super::{note, refuse, say};
use crate::control::writable;
use crate::engine::profile::Profile;
use crate::replay::chooser::{Named, POLICIES, named};
use crate::replay::events::Delivery;
use crate::replay::outcome::{Objective, Outcome};
use crate::replay::traffic::Source;
use crate::replay::{Comparison, Progress, plot, profiles, report};

/// Most engines of a replay.
const ENGINES_MAX: usize = 512;
/// Most KV tokens of all engines: their simulation takes two bytes for each.
const KV_TOKENS_MAX: u64 = 1 << 30;

/// Compare policies on a trace or on generated traffic, against simulated engines in simulated time.
///
/// The front's own policies run by the code that serves; those of other routers by their published rules and defaults;
/// `oracle` has one cache for all engines and knows their state (attention is not counted); `pooled` knows the same,
/// but not when engines' steps end, which no router sees. Nothing is sent anywhere. The same command prints the same
/// figures.
///
/// A trace is in Mooncake's format, one JSON object a line in order of time, plain or Zstandard: {"timestamp": ms,
/// "input_length": tokens, "output_length": tokens, "hash_ids": [ids of 512-token blocks]} or a front's own access log
/// in JSON, best with `[log] access_chain = true`: what its traffic would have gained elsewhere.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  How do the policies compare on a trace, and when load grows by half?
    warmfront replay trace.jsonl.zst --loads 1,1.5 --svg ttft.svg
  KubeAI's benchmark at 600 and 2,400 threads (default: 1,200), three policies:
    warmfront replay --generate chat --loads 0.5,2 \\
      --policies random,least-load,prefix-hash
  llm-d's shared prefixes at 6 requests a second, figures for a program:
    warmfront replay --generate shared-prefix --rate 6 --json figures.json
  Agents on sixteen smaller engines:
    warmfront replay --generate agents --profile l4-8b --replicas 16 \\
      --prefix-tokens 2000 --rate 0.5
  What would your own traffic gain? From a log in JSON with access_chain = true:
    warmfront replay /var/log/warmfront/access.json \\
      --policies random,least-load,prefix-hash,warm-auto,oracle
  And yesterday's, for one of its pools, as logrotate has compressed it?
    zcat /var/log/warmfront/access.json.1.gz |
      warmfront replay /dev/stdin --pool llama-3.1-8b
  One engine of four times the others' speed and cache:
    warmfront replay --generate agents --weights 4,1,1,1 --policies warm,llm-d
  Three fronts before the engines that share nothing:
    warmfront replay trace.jsonl.zst --fronts 3
  What do the engines' KV events gain, a second late, one batch of 100 lost?
    warmfront replay trace.jsonl.zst --policies warm,precise \\
      --event-delay-ms 1000 --event-loss 1
  Your own engines: copy profiles.toml of /usr/share/doc/warmfront/examples
  (src/replay/profiles.toml of the sources), measure, and
    warmfront replay trace.jsonl --profiles mine.toml --profile mine

Reading the table: `hit rate` is the cached part of the prompt tokens; `off by` the mean absolute difference \
between the tokens that a choice thought cached and those that its engine found; `<=8k` are prompts of up to \
8,192 tokens; `between tokens` is a mean; `SLO kept` is the share of requests within --slo-ttft-ms and \
--slo-token-ms; `imbalance` is tokens computed at the busiest engine over the mean; the last columns divide by `random` and `oracle` at the same load.")]
pub struct Args {
    /// Trace in Mooncake's format, or an access log in JSON; Zstandard is decompressed;
    /// for a pipe write /dev/stdin.
    #[arg(value_name = "TRACE", conflicts_with = "generate")]
    trace: Option<PathBuf>,
    /// Generate traffic instead of reading a trace.
    #[arg(long, value_name = "WHAT", value_enum)]
    generate: Option<Generated>,
    /// Policies to compare, in order; `all`, or of random, round-robin, least-load, session, prefix-hash,
    /// prefix-hash-conversation, warm, precise, warm-held, warm-auto, kubeai, prefix-hash-jumps, sticky, sglang,
    /// smg, llm-d, dynamo, clairvoyant, pooled, oracle. By warm nobody waits (queue = "off"), nor by precise;
    /// warm-held is warm with queue = "on", warm-auto with "auto", as a front does by default.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    policies: Vec<String>,
    /// Factors of the traffic's own rate (chat: of its threads); each of several makes a table.
    #[arg(long, visible_aliases = ["load", "rate-scale"], value_name = "FACTORS", value_delimiter = ',', default_value = "1", value_parser = factor)]
    loads: Vec<f64>,
    /// Engines.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    replicas: u16,
    /// Engines of these weights instead: one of weight 4 is four times as fast as the profile says, and its cache four
    /// times as large. The front's own policies, kubeai and prefix-hash-jumps know the weights, and oracle, pooled and
    /// clairvoyant how fast each engine is; of the others llm-d alone knows how large the caches are.
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "replicas", value_parser = clap::value_parser!(u32).range(1..=64))]
    weights: Vec<u32>,
    /// Fronts among which requests are dealt, and which share nothing; `all` then leaves out policies that are
    /// simulated as one router alone.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    fronts: u16,
    /// What an engine is: l4-8b (the default of chat), h100x2-70b (of all else), h100-8b, or one of --profiles.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// File with other profiles, written as examples/profiles.toml in /usr/share/doc/warmfront, or
    /// src/replay/profiles.toml.
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// KV tokens of an engine, instead of the profile's; contexts are no longer than that.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    kv_tokens: Option<u32>,
    /// Varies generated traffic, and the random choices of policies.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Tenants: the first sends nine of ten requests, the others share the rest.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    tenants: u16,
    /// A request is served well if its first token comes within this...
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = positive)]
    slo_ttft_ms: f64,
    /// ... and its other tokens in the mean within this.
    #[arg(long, value_name = "MS", default_value = "200", value_parser = positive)]
    slo_token_ms: f64,
    /// Write all figures to a file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw mean times to first token by load, to a file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Runs at a time; without it one for each CPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    #[command(flatten)]
    hearing: Hearing,
    #[command(flatten)]
    shape: Shape,
}

/// How the engines' KV events come to policies that hear them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "KV events")]
struct Hearing {
    /// Precise: delay from a change in a cache until the front hears of it [default: 0].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    event_delay_ms: Option<u64>,
    /// Precise: batches that are lost; a batch is what one step changes [default: 0].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    event_loss: Option<f64>,
    /// Precise: whether engines are asked for lost batches, whose answers take the same delay again:
    /// on, off [default: on].
    #[arg(long, value_name = "on|off", value_parser = on_or_off)]
    event_replay: Option<bool>,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=100.0).contains(&number) { Ok(number) } else { Err("must be between 0 and 100".into()) }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

impl Hearing {
    /// How events are delivered; an error if flags say it and no policy hears events.
    fn delivery(&self, policies: &[&Named]) -> Result<Delivery, String> {
        let given = self.event_delay_ms.is_some() || self.event_loss.is_some() || self.event_replay.is_some();
        if given && !policies.iter().any(|policy| policy.hears_events()) {
            return Err("--event-delay-ms, --event-loss and --event-replay are for the policy `precise`".into());
        }
        let usual = Delivery::default();
        Ok(Delivery {
            delay_ns: self.event_delay_ms.map_or(usual.delay_ns, |ms| ms * 1_000_000),
            loss_percent: self.event_loss.unwrap_or(usual.loss_percent),
            replay: self.event_replay.unwrap_or(usual.replay),
        })
    }
}

pub(super) fn main(args: &Args) -> ExitCode {
    match compare(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => refuse(&why),
    }
}

fn compare(args: &Args) -> Result<(), String> {
    args.shape.belongs_to(args.generate)?;
    let policies = policies(&args.policies, args.fronts > 1)?;
    if let Some(load) =
        args.loads.iter().enumerate().find_map(|(at, load)| args.loads[..at].contains(load).then_some(load))
    {
        return Err(format!("--loads names {load} twice"));
    }
    let events = args.hearing.delivery(&policies)?;
    // Checked before minutes are spent on results that could not be written.
    [&args.json, &args.svg].into_iter().flatten().try_for_each(|path| writable(path).map_err(unwritten(path)))?;
    let mut profile = profile(args)?;
    let weights = weights(args)?;
    let source = traffic::source(args.trace.as_deref(), args.generate, &args.shape, args.seed, &profile, &weights)?;
    let block_size = source.block_tokens();
    if args.kv_tokens.is_some() {
        profile.max_model_len = traffic::longest(&profile, block_size);
    }
    Profile { block_size, ..profile.clone() }
        .check()
        .map_err(|what| format!("this profile cannot be simulated: {what}"))?;
    if source.tokens_max() > profile.max_model_len {
        let (needed, most) = (source.tokens_max(), profile.max_model_len);
        return Err(format!(
            "requests of {needed} tokens do not fit into max_model_len {most}: shorten them or change the profile"
        ));
    }
    args.loads.iter().try_for_each(|load| source.check(*load))?;
    let engines: u64 = weights.iter().copied().map(u64::from).sum();
    if u64::from(profile.kv_tokens) * engines > KV_TOKENS_MAX {
        return Err(format!(
            "caches of more than {KV_TOKENS_MAX} tokens in all cannot be simulated: give fewer --replicas or a smaller --kv-tokens"
        ));
    }
    let fronts = if args.fronts > 1 { format!(", behind {} fronts", args.fronts) } else { String::new() };
    let of = if args.weights.is_empty() { String::new() } else { format!(", of weights {weights:?}") };
    note(&format!("{}\n{} engines: {}{of}{fronts}\n", source.describe(), weights.len(), profile_name(args)));
    let objective = Objective { ttft_seconds: args.slo_ttft_ms / 1e3, token_seconds: args.slo_token_ms / 1e3 };
    let threads = args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let comparison = Comparison {
        source: &*source,
        profile: &profile,
        weights: &weights,
        fronts: args.fronts.into(),
        events,
        policies: &policies,
        loads: &args.loads,
        objective,
        seed: args.seed,
        tenants: args.tenants,
        threads,
    };
    let begun = Instant::now();
    let mut line = StatusLine::new();
    let outcomes = comparison.run(|progress| match progress {
        Progress::At(requests, done, all) => line.show(&format!("{done} of {all} runs, {requests} requests")),
        Progress::Done(outcome) => line.keep(&format!(
            "{} at load x {}: mean TTFT {}",
            outcome.policy,
            outcome.load,
            report::seconds(outcome.ttft.mean)
        )),
    });
    note(&format!("{} runs in {:.1} s\n\n", outcomes.len(), begun.elapsed().as_secs_f64()));
    say(&report::table(&outcomes));
    if outcomes.iter().any(|outcome| outcome.requests == 0) {
        note("a run counted no request: give more --seconds, less --warmup or a higher --rate\n");
    }
    write(args, &*source, &comparison, &outcomes)
}

/// The engines' weights, one each.
fn weights(args: &Args) -> Result<Vec<u32>, String> {
    match args.weights.len() {
        0 => Ok(vec![1; args.replicas.into()]),
        1..=ENGINES_MAX => Ok(args.weights.clone()),
        more => Err(format!("--weights names {more} engines, and {ENGINES_MAX} is the most")),
    }
}

/// The policies with these names, each once; with several fronts only those that can run on several.
fn policies(names: &[String], several: bool) -> Result<Vec<&'static Named>, String> {
    let mut chosen: Vec<&'static Named> = Vec::new();
    for name in names {
        if names.iter().filter(|other| *other == name).count() > 1 {
            return Err(format!("--policies names {name:?} twice"));
        }
        if name == "all" {
            let wanted = |policy: &&Named| {
                !names.iter().any(|name| name == policy.name) && (!several || policy.on_several_fronts())
            };
            chosen.extend(POLICIES.iter().filter(wanted));
            continue;
        }
        let Some(policy) = named(name) else {
            let all: Vec<String> =
                POLICIES.iter().map(|policy| format!("  {:<25} {}", policy.name, policy.what)).collect();
            return Err(format!(
                "no policy is called {name:?}; --policies takes `all` or, separated by commas,\n{}",
                all.join("\n")
            ));
        };
        if several && !policy.on_several_fronts() {
            return Err(format!("{name:?} is simulated as one router alone: leave it or --fronts out"));
        }
        chosen.push(policy);
    }
    Ok(chosen)
}

fn profile_name(args: &Args) -> &str {
    let usual = if args.generate == Some(Generated::Chat) { "l4-8b" } else { "h100x2-70b" };
    args.profile.as_deref().unwrap_or(usual)
}

fn profile(args: &Args) -> Result<Profile, String> {
    let (text, name) = match &args.profiles {
        Some(path) => (
            std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?,
            path.display().to_string(),
        ),
        None => (profiles::BUILT_IN.to_owned(), "the built-in profiles".to_owned()),
    };
    let profile = profiles::named(&text, profile_name(args)).map_err(|what| format!("{name}: {what}"))?;
    let kv_tokens = args.kv_tokens.unwrap_or(profile.kv_tokens);
    let max_model_len = profile.max_model_len.min(args.kv_tokens.unwrap_or(u32::MAX));
    Ok(Profile { kv_tokens, max_model_len, ..profile })
}

fn unwritten(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("cannot write {}: {error}", path.display())
}

fn write(args: &Args, source: &dyn Source, compared: &Comparison, outcomes: &[Outcome]) -> Result<(), String> {
    let put = |path: &Path, text: String| std::fs::write(path, text).map_err(unwritten(path));
    if let Some(path) = &args.json {
        let figures = serde_json::json!({
            "traffic": source.describe(),
            "profile": profile_name(args),
            "weights": compared.weights,
            "fronts": args.fronts,
            "kv_tokens": compared.profile.kv_tokens,
            "events": compared.events,
            "seed": args.seed,
            "tenants": args.tenants,
            "objective": compared.objective,
            "outcomes": outcomes,
        });
        put(path, serde_json::to_string_pretty(&figures).unwrap_or_default())?;
    }
    if let Some(path) = &args.svg {
        put(
            path,
            plot::svg(&format!("{}; {} x {}", source.describe(), compared.weights.len(), profile_name(args)), outcomes),
        )?;
    }
    Ok(())
}
