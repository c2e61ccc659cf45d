//! Which traffic is replayed: the trace or what is generated, and the flags that shape it.

use std::path::Path;

use clap::ValueEnum;

use crate::cli::note;
use crate::demo::conversation::REPLY_TOKENS;
use crate::engine::profile::{Profile, Work};
use crate::replay::profiles;
use crate::replay::traffic::Source;
use crate::replay::traffic::access;
use crate::replay::traffic::agents::Agents;
use crate::replay::traffic::chat::Chat;
use crate::replay::traffic::lines::{self, Format, Unusable};
use crate::replay::traffic::mooncake::{self, BLOCK_TOKENS};
use crate::replay::traffic::prefixes::Prefixes;
use crate::replay::traffic::trace::Trace;

/// Traffic that needs no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Generated {
    /// Multi-turn chats in a closed loop, as KubeAI's benchmark.
    Chat,
    /// Agents with a shared prefix, growing contexts and bursts.
    Agents,
    /// llm-d's benchmark: groups of prompts with a long prefix in common.
    SharedPrefix,
}

/// Flags that shape traffic. Each applies to some kinds of it and is refused with others.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Traffic")]
pub(super) struct Shape {
    /// Trace: only the first so many requests.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    requests: Option<usize>,
    /// Trace: tokens in a block [default: 512; of an access log: what its lines say].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_tokens: Option<u32>,
    /// Access log: only requests of this pool; without it all are replayed as if every engine served all pools.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
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
    /// Chat: mean pause between a reply and the next turn, the way to the front and back included [default: 20].
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    pause_ms: Option<f64>,
    /// Chat: tokens of the system prompt that all share [default: 32].
    #[arg(long, value_name = "N", value_parser = tokens())]
    system_tokens: Option<u32>,
    /// Agents: applications, each with a prefix of its own [default: 6].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    apps: Option<u32>,
    /// Agents: tokens of system prompt and tools [default: 6000].
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
    /// Shared-prefix: tokens of a prefix [default: 6000].
    #[arg(long, value_name = "N", value_parser = tokens())]
    shared_tokens: Option<u32>,
    /// Shared-prefix: tokens of the rest of a prompt [default: 1200].
    #[arg(long, value_name = "N", value_parser = tokens())]
    own_tokens: Option<u32>,
    /// Shared-prefix: tokens of a reply [default: 1000].
    #[arg(long, value_name = "N", value_parser = tokens())]
    output_tokens: Option<u32>,
}

fn tokens() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=1_000_000)
}

/// The traffic itself.
pub(super) fn source(
    trace: Option<&Path>,
    generate: Option<Generated>,
    shape: &Shape,
    seed: u64,
    profile: &Profile,
    weights: &[u32],
) -> Result<Box<dyn Source>, String> {
    Ok(match (trace, generate) {
        (Some(path), _) => Box::new(read(path, shape, profile)?),
        (None, Some(Generated::Chat)) => {
            let usual = Chat::default();
            let (turn_seconds, turns_per_second) = turns(profile, weights);
            Box::new(Chat {
                threads: shape.threads.unwrap_or(usual.threads),
                seconds: shape.seconds.unwrap_or(usual.seconds),
                warmup_seconds: shape.warmup.unwrap_or(usual.warmup_seconds),
                pause_ms: shape.pause_ms.unwrap_or(usual.pause_ms),
                turn_seconds,
                turns_per_second,
                system_tokens: shape.system_tokens.unwrap_or(usual.system_tokens),
                context_max: longest(profile, usual.block_tokens()),
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
                context_max: usual.context_max.min(longest(profile, usual.block_tokens())),
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

/// The least time of a chat's turn, and the most turns that all engines together end in a second; for replies alone, as
/// if prompts took no time.
fn turns(profile: &Profile, weights: &[u32]) -> (f64, f64) {
    let seconds = |profile: &Profile, decodes: usize| {
        let work = Work { decodes: decodes as u64, ..Work::default() };
        profile.step_time(&work).as_secs_f64() * f64::from(REPLY_TOKENS)
    };
    let engines = || weights.iter().map(|weight| profiles::of_weight(profile, *weight));
    let least = engines().map(|engine| seconds(&engine, 1)).fold(f64::INFINITY, f64::min);
    let a_second = |engine: Profile| engine.max_num_seqs as f64 / seconds(&engine, engine.max_num_seqs);
    (least, engines().map(a_second).sum())
}

fn read(path: &Path, shape: &Shape, profile: &Profile) -> Result<Trace, String> {
    let mut trace = open(path, shape, profile)?;
    let most = longest(profile, trace.block_tokens());
    let shortest = trace.requests().iter().map(|request| request.prompt.saturating_add(request.output)).min();
    let dropped = trace.drop_longer_than(most);
    if trace.requests().is_empty() {
        return Err(format!(
            "{}: none of {dropped} requests fits into the {most} tokens of this profile's contexts, the shortest has {}: \
             choose another --profile, or more --kv-tokens",
            path.display(),
            shortest.unwrap_or(0)
        ));
    }
    if dropped > 0 {
        note(&format!("left out {dropped} requests beyond max_model_len {most}\n"));
    }
    Ok(trace)
}

/// Longest request of these engines: a context fits into the blocks of their cache.
pub(super) fn longest(profile: &Profile, block_tokens: u32) -> u32 {
    profile.max_model_len.min(profile.kv_tokens / block_tokens.max(1) * block_tokens)
}

/// The first requests of a trace or an access log, whichever the file is.
fn open(path: &Path, shape: &Shape, profile: &Profile) -> Result<Trace, String> {
    let (name, unusable) = (path.display().to_string(), |error: Unusable| error.to_string());
    let requests = shape.requests.unwrap_or(usize::MAX);
    let (format, lines) = lines::open(path).and_then(|all| lines::recognise(all, &name)).map_err(unusable)?;
    match format {
        Format::Mooncake if shape.pool.is_some() => Err(format!("--pool is for access logs: {name} is none")),
        Format::Mooncake => {
            let block_tokens = shape.block_tokens.unwrap_or(BLOCK_TOKENS);
            let mut trace = mooncake::read(lines, &name, block_tokens).map_err(unusable)?;
            trace.keep_first(requests);
            Ok(trace)
        }
        Format::Access => {
            let longest = |block_tokens| longest(profile, block_tokens);
            let (pool, block_tokens) = (shape.pool.as_deref(), shape.block_tokens);
            let taken = access::Taken { pool, requests, longest: &longest, block_tokens };
            let (trace, account) = access::read(lines, &name, &taken).map_err(unusable)?;
            note(&account.words());
            Ok(trace)
        }
    }
}

impl Shape {
    /// Refuses flags that would change nothing.
    pub(super) fn belongs_to(&self, generate: Option<Generated>) -> Result<(), String> {
        use Generated::{Agents, Chat, SharedPrefix};
        let generated = &[Some(Chat), Some(Agents), Some(SharedPrefix)][..];
        let flags: [(&str, bool, &[Option<Generated>]); 19] = [
            ("requests", self.requests.is_some(), &[None]),
            ("block-tokens", self.block_tokens.is_some(), &[None]),
            ("pool", self.pool.is_some(), &[None]),
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
                Err(format!("--{flag} does not apply to this traffic; `warmfront replay --help` says to which it does"))
            }
            None => Ok(()),
        }
    }
}

/// Times the traffic's own rate.
pub(super) fn factor(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.001..=1e3).contains(&number) { Ok(number) } else { Err("must be between 0.001 and 1,000".into()) }
}

/// Above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    not_negative(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("must be above 0".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e6).contains(&number) { Ok(number) } else { Err("must be between 0 and 1,000,000".into()) }
}
