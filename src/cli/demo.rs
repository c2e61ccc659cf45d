//! `warmfront demo`: the front before eight simulated engines, policy by policy.

mod lineup;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::builder::RangedU64ValueParser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::status_line::StatusLine;
use super::{note, runtime, say};
use crate::config::address;
use crate::demo::fleet::{ENGINES, Fleet};
use crate::demo::front::Front;
use crate::demo::load::{Load, Running, Tally, Target};
use crate::demo::report::{Outcome, table};
use crate::engine::pump::Settings;
use lineup::Lineup;

/// Real time that starting a front may add to each policy's share.
const START: Duration = Duration::from_secs(2);

/// A reply has failed of which nothing comes for so many simulated seconds...
const PATIENCE: f64 = 60.0;

/// ... or, if that is longer, for as long as all threads take at so many turns a simulated second, a third of what the
/// slowest policy serves...
const TURNS: f64 = 25.0;

/// ... and for so many real seconds at least, since the machine may stand still.
const PATIENCE_REAL: f64 = 10.0;

/// KV tokens of each engine: one context at least, and beyond the most their simulation takes too much memory.
const KV_TOKENS: std::ops::RangeInclusive<i64> = 16_384..=1 << 27;

/// Part of a policy's time that warms caches up and is not measured.
const WARMING: f64 = 0.35;

/// Show what routing does: eight simulated engines (an 8B model on an L4 each), the front, and
/// multi-turn conversations through it over real sockets, under one policy after the other.
#[derive(clap::Args, Debug)]
pub struct DemoArgs {
    /// Conversations at a time. With 1,200, KubeAI's number, each engine's cache holds an eighth of them, and hashing
    /// is enough; with more it matters which engine has room.
    #[arg(long, value_name = "N", default_value_t = 1400, value_parser = RangedU64ValueParser::<usize>::new().range(1..=20_000))]
    threads: usize,
    /// Policies of the front to compare, in order; ratios are to the first. `bare-random` and
    /// `bare-sticky` go to the engines without a front. `warm@2x1` is two fronts of one shard each, among
    /// which the conversations are dealt.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "random,least-load,prefix-hash,warm")]
    policies: Vec<String>,
    /// Real seconds in all.
    #[arg(long, value_name = "S", default_value_t = 112, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// Simulated seconds to a real one.
    #[arg(long, value_name = "K", default_value_t = 3.0)]
    time_scale: f64,
    /// KV tokens of each engine, at least the 16,384 of a context.
    #[arg(long, value_name = "N", default_value_t = Settings::default().profile.kv_tokens, value_parser = clap::value_parser!(u32).range(KV_TOKENS))]
    kv_tokens: u32,
    /// Simulated milliseconds between a reply and the next turn, in the mean.
    #[arg(long, value_name = "MS", default_value_t = 20.0)]
    pause_ms: f64,
    /// Varies the conversations.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep engines and front up, in real time, and print requests to try, until Ctrl-C.
    #[arg(long)]
    serve: bool,
    /// With --serve: address of the front.
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
}

impl DemoArgs {
    fn settings(&self) -> Result<Settings, String> {
        let mut settings = Settings::default();
        settings.profile.kv_tokens = self.kv_tokens;
        settings.profile.check()?;
        if !(0.01..=100.0).contains(&self.time_scale) {
            return Err("--time-scale must be between 0.01 and 100".into());
        }
        if !(0.0..=1e7).contains(&self.pause_ms) {
            return Err("--pause-ms must be between 0 and 10,000,000".into());
        }
        let lineups = self.lineups()?;
        if self.serve {
            lineup::served(&lineups)?;
        }
        // With --serve a person talks to the engines, and waits as long as with real ones.
        settings.time_scale = if self.serve { 1.0 } else { self.time_scale };
        Ok(settings)
    }

    /// Parses all of them first: a misspelt one is refused before the others have run for a minute.
    fn lineups(&self) -> Result<Vec<Lineup>, String> {
        self.policies.iter().map(|text| text.parse()).collect()
    }

    /// Real time for each policy, its front's start not counted.
    fn share(&self) -> Duration {
        let all = Duration::from_secs(self.seconds);
        (all / self.policies.len() as u32).saturating_sub(START).max(Duration::from_secs(1))
    }
}

/// Runs the comparison, or serves.
pub fn run(args: DemoArgs) -> ExitCode {
    let outcome = args.settings().and_then(|settings| {
        let runtime = runtime().map_err(|error| format!("cannot start its runtime: {error}"))?;
        enough_descriptors(&args)?;
        let fleet = Fleet::start(&settings)?;
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            tokio::select! {
                // Dropping the other branch kills the front.
                signal = stopped() => signal.map(|()| if args.serve { ExitCode::SUCCESS } else { ExitCode::from(130) }),
                done = async {
                    if args.serve { serve(&args, &fleet, &settings).await } else { compare(&args, &fleet, &settings).await }
                } => done,
            }
        })
    });
    match outcome {
        Ok(code) => code,
        Err(what) => {
            note(&format!("\nwarmfront demo: {what}\n"));
            ExitCode::FAILURE
        }
    }
}

/// SIGINT, SIGTERM or SIGHUP.
async fn stopped() -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let watch = |kind| signal(kind).map_err(|error| format!("cannot watch for signals: {error}"));
    let mut interrupt = watch(SignalKind::interrupt())?;
    let mut terminate = watch(SignalKind::terminate())?;
    let mut hangup = watch(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    note("\nstopped\n");
    Ok(())
}

async fn compare(args: &DemoArgs, fleet: &Fleet, settings: &Settings) -> Result<ExitCode, String> {
    say(&format!(
        "{ENGINES} simulated engines of {} KV tokens; {} conversations at a time; {}.\n",
        args.kv_tokens,
        args.threads,
        args.policies.join(", ")
    ));
    say(&format!(
        "This takes {} s. One second here is {} simulated seconds; all figures are simulated.\n\
         Every token is an event of its own. Streams in flight when a policy's time ends are cut: what came of them\n\
         by then counts, but they are no replies.\n\n",
        args.seconds, args.time_scale
    ));
    let load = load(args, settings);
    let mut line = StatusLine::new();
    let mut outcomes = Vec::new();
    for (policy, lineup) in args.policies.iter().zip(args.lineups()?) {
        line.show(&format!("{policy}: starting"));
        fleet.restart();
        let (fronts, target) = lineup.start(fleet.addresses()).await?;
        let trial = Trial { policy, scale: args.time_scale, fronts, tally: Rc::default(), line: &mut line };
        let outcome = trial.measure(fleet, &load, &target, args.share()).await?;
        line.keep(&format!(
            "{policy}: {:.0} tokens/s, mean TTFT {:.2} s, hit rate {:.1} %",
            outcome.tokens_per_second,
            outcome.ttft_mean(),
            outcome.hit_rate * 100.0
        ));
        outcomes.push(outcome);
    }
    say(&format!("\n{}\n", table(&outcomes)));
    Ok(verdict(&outcomes))
}

/// Says what the table does not: failures, and whether the machine was too slow.
fn verdict(outcomes: &[Outcome]) -> ExitCode {
    let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
    let replies: u64 = outcomes.iter().map(|outcome| outcome.replies).sum();
    say(&verified(replies, failed));
    say("KubeAI measured on eight real L4s, 1,200 threads: random 2,892, least-load 5,420, CHWBL 6,568 tokens/s;\n\
         mean TTFT 8.48, 1.20, 0.39 s.\n");
    say(&too_busy(outcomes));
    let empty = outcomes.iter().any(|outcome| outcome.replies == 0);
    if empty {
        say("A policy had no reply within its time: give more --seconds or fewer --threads.\n");
    }
    if failed > 0 || empty { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Warns if engines ran late, which makes prompts wait, or clients, which then read late what has long come.
fn too_busy(outcomes: &[Outcome]) -> String {
    let most = |lag: fn(&Outcome) -> f64| outcomes.iter().map(lag).fold(0.0, f64::max);
    let late = [("an engine", most(|outcome| outcome.lag)), ("the clients", most(|outcome| outcome.clients_lag))];
    let late = late.iter().filter(|(_, lag)| *lag > 0.03);
    late.map(|(who, lag)| {
        format!(
            "This machine was too busy: {who} ran {:.0} % late. Lower --time-scale or --threads for true figures.\n",
            lag * 100.0
        )
    })
    .collect()
}

fn verified(replies: u64, failed: u64) -> String {
    match failed {
        0 => format!("Every one of {replies} replies was read to its end and verified; 0 failed.\n"),
        _ => format!("{replies} replies were read to their ends and verified; {failed} failed, warming up included.\n"),
    }
}

fn load(args: &DemoArgs, settings: &Settings) -> Load {
    let scale = args.time_scale;
    Load {
        threads: args.threads,
        model: settings.serving.models.first().cloned().unwrap_or_default(),
        ramp: args.share().mul_f64(WARMING / 2.0),
        pause: Duration::from_secs_f64(args.pause_ms / 1e3 / scale),
        patience: Duration::from_secs_f64((PATIENCE.max(args.threads as f64 / TURNS) / scale).max(PATIENCE_REAL)),
        block_size: settings.profile.block_size,
        seed: args.seed,
    }
}

/// One policy, under load.
struct Trial<'a> {
    policy: &'a str,
    /// Simulated seconds to a real one.
    scale: f64,
    fronts: Vec<Front>,
    tally: Rc<Tally>,
    line: &'a mut StatusLine,
}

impl Trial<'_> {
    /// Measures for `share` of real time.
    async fn measure(
        mut self,
        fleet: &Fleet,
        load: &Load,
        target: &Target,
        share: Duration,
    ) -> Result<Outcome, String> {
        let running = Running::start(load, target, &self.tally);
        self.watch("warming up", Instant::now() + share.mul_f64(WARMING)).await?;
        self.tally.reset();
        let (from, before) = (Instant::now(), fleet.totals());
        let cpu_before = self.cpu_seconds();
        self.watch("measuring", from + share.mul_f64(1.0 - WARMING)).await?;
        let (real, after) = (from.elapsed().as_secs_f64(), fleet.totals());
        let cpu = self.cpu_seconds() - cpu_before;
        let Trial { policy, scale, fronts, tally, line } = self;
        let mut ttft: Vec<f64> = tally.ttft.borrow().iter().map(|real| real * scale).collect();
        ttft.sort_by(f64::total_cmp);
        let mut outcome = Outcome {
            policy: policy.to_owned(),
            ttft,
            tokens_per_second: tally.tokens.get() as f64 / (real * scale),
            replies: tally.replies.get(),
            failed: tally.failed.get(),
            clients_lag: tally.late.get().as_secs_f64() / real,
            front_cores: (!fronts.is_empty()).then(|| cpu / real),
            ..Outcome::default()
        };
        outcome.count(&before, &after, real * scale);
        running.stop().await;
        for front in fronts {
            front.stop().await;
        }
        if let Some(why) = tally.reason.borrow().as_ref() {
            line.keep(&format!("{policy}: {} replies failed, the first: {why}", outcome.failed));
        }
        Ok(outcome)
    }

    /// Waits until `end`, showing how far it is; ends early if a front does.
    async fn watch(&mut self, phase: &str, end: Instant) -> Result<(), String> {
        let from = Instant::now();
        while Instant::now() < end {
            let left = end - Instant::now();
            tokio::time::sleep(left.min(Duration::from_millis(500))).await;
            if let Some(ended) = self.fronts.iter_mut().find_map(Front::ended) {
                return Err(ended);
            }
            let ttft = self.tally.ttft.borrow();
            let mean = ttft.iter().sum::<f64>() / ttft.len().max(1) as f64 * self.scale;
            let rate = self.tally.tokens.get() as f64 / (from.elapsed().as_secs_f64() * self.scale);
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            let policy = self.policy;
            self.line.show(&format!("{policy}: {phase}, {left} s left; {rate:.0} tokens/s, mean TTFT {mean:.2} s"));
        }
        Ok(())
    }

    fn cpu_seconds(&self) -> f64 {
        self.fronts.iter().map(Front::cpu_seconds).sum()
    }
}

async fn serve(args: &DemoArgs, fleet: &Fleet, settings: &Settings) -> Result<ExitCode, String> {
    if let Err(error) = std::net::TcpListener::bind(args.listen) {
        return Err(format!("cannot listen on {}: {error}. Choose another with --listen.", args.listen));
    }
    let Lineup { policy, shards, .. } = lineup::served(&args.lineups()?)?;
    let mut front = Front::start(&policy, shards, fleet.addresses(), Some(args.listen)).await?;
    let model = settings.serving.models.first().map_or("", String::as_str);
    let engines: Vec<String> = fleet.addresses().iter().map(SocketAddr::to_string).collect();
    say(&format!("{ENGINES} simulated engines on {}\n", engines.join(" ")));
    say(&format!("warmfront on http://{} under {policy}, admin on http://{}\n\n", front.listen, front.admin));
    say("Try:\n");
    say(&format!("  curl -s http://{}/v1/models\n", front.listen));
    say(&format!(
        "  curl -sN http://{}/v1/chat/completions -H 'content-type: application/json' -d '{{\"model\":\"{model}\",\
         \"stream\":true,\"max_tokens\":20,\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n",
        front.listen
    ));
    say(&format!(
        "  curl -s -D- -o /dev/null http://{}/v1/completions -H 'content-type: application/json' \
         -H 'x-warmfront-explain: 1' -d '{{\"model\":\"{model}\",\"prompt\":\"Once upon a time\"}}'\n",
        front.listen
    ));
    say(&format!("  curl -s http://{}/endpoints\n", front.admin));
    say(&format!("  curl -s http://{}/metrics\n", front.admin));
    say("\nCtrl-C ends everything.\n");
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if let Some(ended) = front.ended() {
            return Err(ended);
        }
    }
}

/// Each conversation takes a socket here at its client and one at an engine; the front, which
/// inherits the limit, takes two as well.
fn enough_descriptors(args: &DemoArgs) -> Result<(), String> {
    let needed = 2 * args.threads as u64 + 200;
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    if soft >= needed {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        format!(
            "{} conversations need {needed} file descriptors and this shell allows {}: \
             run `ulimit -n {needed}` first, or give --threads {}",
            args.threads,
            limit.maximum.unwrap_or(soft),
            (limit.maximum.unwrap_or(soft).saturating_sub(200) / 2).max(1)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_replies_is_true_where_some_failed() {
        assert_eq!(verified(7, 0), "Every one of 7 replies was read to its end and verified; 0 failed.\n");
        assert!(!verified(7, 3).contains("Every one") && verified(7, 3).contains("3 failed"));
    }

    #[test]
    fn who_was_late_is_said() {
        let of = |lag, clients_lag| too_busy(&[Outcome::default(), Outcome { lag, clients_lag, ..Outcome::default() }]);
        assert_eq!(of(0.02, 0.03), "");
        let (engines, clients) = (of(0.05, 0.0), of(0.0, 0.2));
        assert!(engines.contains("an engine ran 5 % late") && !engines.contains("clients"), "{engines}");
        assert!(clients.contains("the clients ran 20 % late") && !clients.contains("engine"), "{clients}");
    }

    #[test]
    fn the_least_cache_holds_a_context() {
        let least = i64::from(Settings::default().profile.max_model_len);
        assert_eq!(*KV_TOKENS.start(), least);
    }
}
