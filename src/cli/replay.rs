//! `warmfront replay`: policies beside one another, on a trace or generated traffic, in simulated time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;

use super::refuse;
use crate::demo::report::Progress as Line;
use crate::engine::profile::Profile;
use crate::replay::chooser::{Named, POLICIES, named};
use crate::replay::outcome::{Objective, Outcome};
use crate::replay::traffic::Source;
use crate::replay::traffic::agents::Agents;
use crate::replay::traffic::chat::Chat;
use crate::replay::traffic::mooncake::{BLOCK_TOKENS, Trace};
use crate::replay::traffic::prefixes::Prefixes;
use crate::replay::{Comparison, Progress, plot, profiles, report};

/// Most KV tokens of all engines: their simulation takes two bytes for each.
const KV_TOKENS_MAX: u64 = 1 << 30;

/// Traffic that needs no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Generated {
    /// Multi-turn chats in a closed loop, as KubeAI's benchmark.
    Chat,
    /// Agents with a shared prefix, growing contexts and bursts.
    Agents,
    /// llm-d's benchmark: groups of prompts with a long prefix in common.
    SharedPrefix,
}

/// Compare policies on a trace or on generated traffic, against simulated engines in simulated time.
///
/// The front's own policies run by the code that serves; those of other routers by their published rules and defaults;
/// `oracle` has one cache for all engines and perfect knowledge. Nothing is sent anywhere. The same
/// command prints the same figures.
///
/// A trace is in Mooncake's format, one JSON object a line, plain or .zst:
/// {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [ids of 512-token blocks]}
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  How do the policies compare on a trace, and when load grows by half?
    warmfront replay trace.jsonl.zst --loads 1,1.5 --svg ttft.svg
  KubeAI's benchmark at 600 and 2,400 threads (1,200 is the default), three policies:
    warmfront replay --generate chat --loads 0.5,2 --policies random,least-load,prefix-hash
  llm-d's shared prefixes at 6 requests a second, figures for a program:
    warmfront replay --generate shared-prefix --rate 6 --json figures.json
  Agents on sixteen smaller engines:
    warmfront replay --generate agents --profile l4-8b --replicas 16 --prefix-tokens 2000 --rate 0.5
  Your own engines: copy src/replay/profiles.toml, measure, and
    warmfront replay trace.jsonl --profiles mine.toml --profile mine

Reading the table: `hit rate` is cached by prompt tokens; `<=8k` are prompts of up to 8,192 tokens; `SLO kept` is the
share of requests within --slo-ttft-ms and --slo-token-ms; `imbalance` is tokens computed at the busiest
engine over the mean; the last columns divide by `random` and `oracle` at the same load.")]
pub struct Args {
    /// Trace in Mooncake's format; .zst is decompressed.
    #[arg(value_name = "TRACE", conflicts_with = "generate")]
    trace: Option<PathBuf>,
    /// Generate traffic instead of reading a trace.
    #[arg(long, value_name = "WHAT", value_enum)]
    generate: Option<Generated>,
    /// Policies to compare, in order; `all`, or of random, round-robin, least-load, session, prefix-hash,
    /// prefix-hash-conversation, kubeai, sticky, sglang, smg, llm-d, dynamo, oracle.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    policies: Vec<String>,
    /// Times the traffic's own rate (chat: its threads); several make one table each.
    #[arg(long, visible_aliases = ["load", "rate-scale"], value_name = "FACTORS", value_delimiter = ',', default_value = "1", value_parser = factor)]
    loads: Vec<f64>,
    /// Engines.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    replicas: u16,
    /// What an engine is: l4-8b (the default of chat), h100x2-70b (of all else), h100-8b, or one of --profiles.
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// File with other profiles, written as src/replay/profiles.toml.
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Varies generated traffic, and what policies draw.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A request is served well if its first token comes within this...
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = positive)]
    slo_ttft_ms: f64,
    /// ... and its others in the mean within this.
    #[arg(long, value_name = "MS", default_value = "200", value_parser = positive)]
    slo_token_ms: f64,
    /// Write all figures to a file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw mean times to first token by load.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Runs at a time; without it one for each CPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    #[command(flatten)]
    shape: Shape,
}

/// What varies traffic. Each flag belongs to some of it and is refused elsewhere.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Traffic")]
struct Shape {
    /// Trace: only the first so many requests.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Trace: tokens in a block [default: 512].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_tokens: Option<u32>,
    /// Generated: seconds of traffic [default: chat 360, else 600].
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Generated: seconds of it that warm caches up and are not counted [default: 120].
    #[arg(long, value_name = "S", value_parser = not_negative)]
    warmup: Option<f64>,
    /// Agents, shared-prefix: sessions or requests a second [default: 0.5, 5].
    #[arg(long, value_name = "R", value_parser = positive)]
    rate: Option<f64>,
    /// Chat: conversations at a time [default: 1200].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    threads: Option<u32>,
    /// Chat: between a reply and the next turn in the mean, the way to the front and back [default: 20].
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pause_ms: Option<f64>,
    /// Chat: of the system prompt that all share [default: 32].
    #[arg(long, value_name = "N", value_parser = tokens())]
    system_tokens: Option<u32>,
    /// Agents: applications, each with a prefix of its own [default: 6].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    apps: Option<u32>,
    /// Agents: of system prompt and tools [default: 6000].
    #[arg(long, value_name = "N", value_parser = tokens())]
    prefix_tokens: Option<u32>,
    /// Agents: sessions that begin together in the mean [default: 4].
    #[arg(long, value_name = "N", value_parser = positive)]
    burst: Option<f64>,
    /// Agents: steps of a session in the mean [default: 20].
    #[arg(long, value_name = "N", value_parser = positive)]
    steps: Option<f64>,
    /// Agents: how long a tool runs in the mean [default: 2].
    #[arg(long, value_name = "S", value_parser = not_negative)]
    tool_seconds: Option<f64>,
    /// Shared-prefix: prefixes [default: 150].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    groups: Option<u32>,
    /// Shared-prefix: prompts with the same prefix [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompts: Option<u32>,
    /// Shared-prefix: of a prefix [default: 6000].
    #[arg(long, value_name = "N", value_parser = tokens())]
    shared_tokens: Option<u32>,
    /// Shared-prefix: of the rest of a prompt [default: 1200].
    #[arg(long, value_name = "N", value_parser = tokens())]
    own_tokens: Option<u32>,
    /// Shared-prefix: of replies [default: 1000].
    #[arg(long, value_name = "N", value_parser = tokens())]
    output_tokens: Option<u32>,
}

fn tokens() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

fn factor(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e3).contains(&number) { Ok(number) } else { Err("must be between 0.001 and 1,000".into()) }
}

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("must be above 0".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e6).contains(&number) { Ok(number) } else { Err("must be between 0 and 1,000,000".into()) }
}

pub(super) fn main(args: &Args) -> ExitCode {
    match compare(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => refuse(&why),
    }
}

fn compare(args: &Args) -> Result<(), String> {
    args.shape.belongs_to(args.generate)?;
    let policies = policies(&args.policies)?;
    let profile = profile(args)?;
    let source = source(args, &profile)?;
    let block_size = source.block_tokens();
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
    if u64::from(profile.kv_tokens) * u64::from(args.replicas) > KV_TOKENS_MAX {
        return Err(format!(
            "caches of more than {KV_TOKENS_MAX} tokens in all: fewer --replicas or a smaller kv_tokens"
        ));
    }
    eprintln!("{}\n{} engines: {}", source.describe(), args.replicas, profile_name(args));
    let objective = Objective { ttft_seconds: args.slo_ttft_ms / 1e3, token_seconds: args.slo_token_ms / 1e3 };
    let threads = args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let comparison = Comparison {
        source: &*source,
        profile: &profile,
        engines: args.replicas.into(),
        policies: &policies,
        loads: &args.loads,
        objective,
        seed: args.seed,
        threads,
    };
    let begun = Instant::now();
    let mut line = Line::new();
    let outcomes = comparison.run(|progress| match progress {
        Progress::At(requests, done, all) => line.show(&format!("{done} of {all} runs, {requests} requests")),
        Progress::Done(outcome) => line.keep(&format!(
            "{} at load x {}: mean TTFT {}",
            outcome.policy,
            outcome.load,
            report::seconds(outcome.ttft.mean)
        )),
    });
    eprintln!("{} runs in {:.1} s\n", outcomes.len(), begun.elapsed().as_secs_f64());
    print!("{}", report::table(&outcomes));
    if outcomes.iter().any(|outcome| outcome.requests == 0) {
        eprintln!("a run counted no request: give more --seconds, less --warmup or a higher --rate");
    }
    write(args, &*source, &objective, &outcomes)
}

/// The policies of these names, each once.
fn policies(names: &[String]) -> Result<Vec<&'static Named>, String> {
    let mut chosen: Vec<&'static Named> = Vec::new();
    for name in names {
        if name == "all" {
            chosen.extend(POLICIES.iter().filter(|policy| !names.iter().any(|name| name == policy.name)));
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
        if chosen.iter().any(|other| other.name == policy.name) {
            return Err(format!("--policies names {name:?} twice"));
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
    profiles::named(&text, profile_name(args)).map_err(|what| format!("{name}: {what}"))
}

fn source(args: &Args, profile: &Profile) -> Result<Box<dyn Source>, String> {
    let (shape, seed) = (&args.shape, args.seed);
    Ok(match (&args.trace, args.generate) {
        (Some(path), _) => Box::new(trace(path, shape, profile)?),
        (None, Some(Generated::Chat)) => {
            let usual = Chat::default();
            Box::new(Chat {
                threads: shape.threads.unwrap_or(usual.threads),
                seconds: shape.seconds.unwrap_or(usual.seconds),
                warmup_seconds: shape.warmup.unwrap_or(usual.warmup_seconds),
                pause_ms: shape.pause_ms.unwrap_or(usual.pause_ms),
                system_tokens: shape.system_tokens.unwrap_or(usual.system_tokens),
                context_max: profile.max_model_len,
                seed,
                ..usual
            })
        }
        (None, Some(Generated::Agents)) => {
            let usual = Agents::default();
            Box::new(Agents {
                apps: shape.apps.unwrap_or(usual.apps),
                prefix_tokens: shape.prefix_tokens.unwrap_or(usual.prefix_tokens),
                rate: shape.rate.unwrap_or(usual.rate),
                burst: shape.burst.unwrap_or(usual.burst),
                steps: shape.steps.unwrap_or(usual.steps),
                tool_seconds: shape.tool_seconds.unwrap_or(usual.tool_seconds),
                seconds: shape.seconds.unwrap_or(usual.seconds),
                warmup_seconds: shape.warmup.unwrap_or(usual.warmup_seconds),
                context_max: usual.context_max.min(profile.max_model_len),
                seed,
                ..usual
            })
        }
        (None, None) => {
            return Err("nothing to replay: name a trace, or --generate chat, agents or shared-prefix".into());
        }
        (None, Some(Generated::SharedPrefix)) => {
            let usual = Prefixes::default();
            let prefixes = Prefixes {
                groups: shape.groups.unwrap_or(usual.groups),
                prompts: shape.prompts.unwrap_or(usual.prompts),
                shared_tokens: shape.shared_tokens.unwrap_or(usual.shared_tokens),
                own_tokens: shape.own_tokens.unwrap_or(usual.own_tokens),
                output_tokens: shape.output_tokens.unwrap_or(usual.output_tokens),
                rate: shape.rate.unwrap_or(usual.rate),
                seconds: shape.seconds.unwrap_or(usual.seconds),
                warmup_seconds: shape.warmup.unwrap_or(usual.warmup_seconds),
                seed,
            };
            prefixes.check()?;
            Box::new(prefixes.draw())
        }
    })
}

fn trace(path: &Path, shape: &Shape, profile: &Profile) -> Result<Trace, String> {
    let mut trace = Trace::open(path, shape.block_tokens.unwrap_or(BLOCK_TOKENS)).map_err(|error| error.to_string())?;
    trace.keep_first(shape.requests.unwrap_or(usize::MAX));
    let dropped = trace.drop_longer_than(profile.max_model_len);
    if dropped > 0 {
        eprintln!("left out {dropped} requests beyond max_model_len {}", profile.max_model_len);
    }
    match trace.requests().is_empty() {
        true => Err(format!("{}: no request is left; is --profile the right one?", path.display())),
        false => Ok(trace),
    }
}

impl Shape {
    /// Refuses flags that would change nothing.
    fn belongs_to(&self, generate: Option<Generated>) -> Result<(), String> {
        use Generated::{Agents, Chat, SharedPrefix};
        let generated = &[Some(Chat), Some(Agents), Some(SharedPrefix)][..];
        let flags: [(&str, bool, &[Option<Generated>]); 18] = [
            ("requests", self.requests.is_some(), &[None]),
            ("block-tokens", self.block_tokens.is_some(), &[None]),
            ("seconds", self.seconds.is_some(), generated),
            ("warmup", self.warmup.is_some(), generated),
            ("rate", self.rate.is_some(), &[Some(Agents), Some(SharedPrefix)]),
            ("threads", self.threads.is_some(), &[Some(Chat)]),
            ("pause-ms", self.pause_ms.is_some(), &[Some(Chat)]),
            ("system-tokens", self.system_tokens.is_some(), &[Some(Chat)]),
            ("apps", self.apps.is_some(), &[Some(Agents)]),
            ("prefix-tokens", self.prefix_tokens.is_some(), &[Some(Agents)]),
            ("burst", self.burst.is_some(), &[Some(Agents)]),
            ("steps", self.steps.is_some(), &[Some(Agents)]),
            ("tool-seconds", self.tool_seconds.is_some(), &[Some(Agents)]),
            ("groups", self.groups.is_some(), &[Some(SharedPrefix)]),
            ("prompts", self.prompts.is_some(), &[Some(SharedPrefix)]),
            ("shared-tokens", self.shared_tokens.is_some(), &[Some(SharedPrefix)]),
            ("own-tokens", self.own_tokens.is_some(), &[Some(SharedPrefix)]),
            ("output-tokens", self.output_tokens.is_some(), &[Some(SharedPrefix)]),
        ];
        match flags.iter().find(|(_, given, of)| *given && !of.contains(&generate)) {
            Some((flag, ..)) => {
                Err(format!("--{flag} says nothing of this traffic: `warmfront replay --help` says of which"))
            }
            None => Ok(()),
        }
    }
}

fn write(args: &Args, source: &dyn Source, objective: &Objective, outcomes: &[Outcome]) -> Result<(), String> {
    let put = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    if let Some(path) = &args.json {
        let figures = serde_json::json!({
            "traffic": source.describe(),
            "profile": profile_name(args),
            "replicas": args.replicas,
            "seed": args.seed,
            "objective": objective,
            "outcomes": outcomes,
        });
        put(path, serde_json::to_string_pretty(&figures).unwrap_or_default())?;
    }
    if let Some(path) = &args.svg {
        put(path, plot::svg(&format!("{}; {} x {}", source.describe(), args.replicas, profile_name(args)), outcomes))?;
    }
    Ok(())
}
