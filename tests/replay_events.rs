//! `precise` in replays: what events tell, when they come, and when they do not.

use std::process::Command;
use std::sync::atomic::AtomicU64;

use warmfront::engine::core::Figures;
use warmfront::engine::profile::Profile;
use warmfront::replay::chooser::{Asked, Chooser, Placed, Stage, named};
use warmfront::replay::events::Delivery;
use warmfront::replay::fleet::Fleet;
use warmfront::replay::profiles;
use warmfront::replay::simulate::{Record, Run, Setting, run};
use warmfront::replay::traffic::Source;
use warmfront::replay::traffic::agents::Agents;
use warmfront::replay::traffic::chat::Chat;
use warmfront::replay::traffic::prefixes::Prefixes;

const MS: u64 = 1_000_000;
const AT_ONCE: Delivery = Delivery { delay_ns: 0, loss_percent: 0.0, replay: true };

fn late(ms: u64) -> Delivery {
    Delivery { delay_ns: ms * MS, ..AT_ONCE }
}

fn chat() -> Chat {
    Chat { threads: 100, seconds: 60.0, warmup_seconds: 10.0, ramp_seconds: 5.0, ..Chat::default() }
}

/// Engines whose caches hold so many tokens.
fn with_cache(name: &str, kv_tokens: u32) -> Profile {
    Profile { kv_tokens, ..profiles::named(profiles::BUILT_IN, name).unwrap() }
}

/// Traffic of each kind that generators make, and engines that never have to let anything go.
fn with_room() -> Vec<(&'static str, Box<dyn Source>, Profile)> {
    let agents = Agents { seconds: 80.0, warmup_seconds: 10.0, rate: 0.5, ..Agents::default() };
    let prefixes = Prefixes { seconds: 60.0, warmup_seconds: 10.0, rate: 3.0, groups: 30, ..Prefixes::default() };
    vec![
        ("chat", Box::new(chat()), with_cache("l4-8b", 1 << 22)),
        ("agents", Box::new(agents), with_cache("h100x2-70b", 1 << 22)),
        ("prefixes", Box::new(prefixes.draw()), with_cache("h100x2-70b", 1 << 22)),
    ]
}

fn chooser(source: &dyn Source, profile: &Profile, policy: &str, fronts: usize, events: Delivery) -> Box<dyn Chooser> {
    let block_tokens = source.block_tokens();
    let blocks = profile.kv_tokens / block_tokens;
    named(policy).unwrap().make(&Stage { weights: &[1; 4], blocks, block_tokens, fronts, events, seed: 1 })
}

fn setting<'a>(source: &'a dyn Source, profile: &'a Profile) -> Setting<'a> {
    Setting { source, load: 1.0, profile, weights: &[1; 4], tenants: 1 }
}

fn replay(source: &dyn Source, profile: &Profile, policy: &str, fronts: usize, events: Delivery) -> Run {
    let chooser = chooser(source, profile, policy, fronts, events);
    run(&setting(source, profile), chooser, &AtomicU64::new(0))
}

/// Tokens predicted but not found in a cache, and found but not predicted.
fn misjudged(run: &Run) -> (u64, u64) {
    let each = run.records.iter().map(|record| {
        let predicted = record.predicted.expect("it thinks of caches");
        (u64::from(predicted.saturating_sub(record.cached)), u64::from(record.cached.saturating_sub(predicted)))
    });
    each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn off_by(run: &Run) -> u64 {
    let (too_many, too_few) = misjudged(run);
    too_many + too_few
}

#[test]
fn at_once_and_with_room_engines_find_what_was_thought_and_by_warm_they_do_not() {
    for (name, source, profile) in &with_room() {
        let precise = replay(&**source, profile, "precise", 1, AT_ONCE);
        assert!(precise.records.len() > 100, "{name}: {} requests show little", precise.records.len());
        assert!(precise.records.iter().any(|record| record.cached > 1_000), "{name}: nothing was cached");
        assert_eq!(misjudged(&precise), (0, 0), "{name}");
        // `warm` does not know what replies leave in caches, which counts in all traffic but this.
        if *name != "prefixes" {
            assert!(misjudged(&replay(&**source, profile, "warm", 1, AT_ONCE)).1 > 0, "{name}");
        }
    }
}

#[test]
fn a_front_hears_what_another_caused_but_not_what_it_promised() {
    for (name, source, profile) in &with_room() {
        let of = |policy| misjudged(&replay(&**source, profile, policy, 2, AT_ONCE));
        let (precise, warm) = (of("precise"), of("warm"));
        assert_eq!(precise.0, 0, "{name}");
        assert!(precise.1 * 2 < warm.1, "{name}: {precise:?}, warm {warm:?}");
    }
}

#[test]
fn the_same_run_twice_is_the_same_and_another_front_loses_other_batches() {
    let (source, profile) = (chat(), with_cache("l4-8b", 20_000));
    for replayed in [true, false] {
        let events = Delivery { delay_ns: 300 * MS, loss_percent: 5.0, replay: replayed };
        let once = replay(&source, &profile, "precise", 2, events);
        assert_eq!(once, replay(&source, &profile, "precise", 2, events));
        assert_ne!(once, replay(&source, &profile, "precise", 2, Delivery { loss_percent: 0.0, ..events }));
    }
}

#[test]
fn what_comes_later_is_known_no_better() {
    let source = chat();
    for kv_tokens in [20_000, 88_000] {
        let profile = with_cache("l4-8b", kv_tokens);
        let errors = [0, 50, 1_000, 5_000].map(|ms| off_by(&replay(&source, &profile, "precise", 1, late(ms))));
        assert!(errors.windows(2).all(|two| two[0] * 95 <= two[1] * 100), "{kv_tokens}: {errors:?}");
        assert!(errors[0] * 2 < errors[3], "{kv_tokens}: {errors:?}");
    }
}

#[test]
fn what_is_lost_is_missed_most_where_nobody_asks_again() {
    let (source, profile) = (chat(), with_cache("l4-8b", 20_000));
    let of = |loss_percent, replay: bool| {
        off_by(&self::replay(&source, &profile, "precise", 1, Delivery { loss_percent, replay, ..late(50) }))
    };
    let (none, asked, never) = (of(0.0, true), of(2.0, true), of(2.0, false));
    assert!(none <= asked && asked < never, "{none}, {asked}, {never}");
    // All events are lost, and nothing shows it: promises end, and no event confirms them.
    assert!(of(100.0, true) > never);
}

#[test]
fn where_caches_are_too_small_more_is_found_by_events_than_without() {
    let profile = with_cache("h100x2-70b", 50_000);
    // Hit rate, and mean time to first token.
    let all = |policy: &'static str| {
        let each = (1..=6).map(|seed| {
            let (seconds, warmup_seconds, context_max) = (200.0, 20.0, profile.kv_tokens);
            let agents = Agents { rate: 0.12, seconds, warmup_seconds, context_max, seed, ..Agents::default() };
            let run = replay(&agents, &profile, policy, 1, AT_ONCE);
            let counted: Vec<_> =
                run.records.iter().filter(|one| run.window.holds(one.arrival_ns + one.ttft_ns)).collect();
            let sum = |of: &dyn Fn(&Record) -> u64| counted.iter().map(|one| of(one)).sum::<u64>() as f64;
            let found = sum(&|one| one.cached.into()) / sum(&|one| one.prompt.into());
            (found, sum(&|one| one.ttft_ns) / counted.len() as f64)
        });
        let (found, waited): (Vec<f64>, Vec<f64>) = each.unzip();
        (found.iter().sum::<f64>() / 6.0, waited.iter().sum::<f64>() / 6.0)
    };
    let (precise, warm) = std::thread::scope(|scope| {
        let precise = scope.spawn(|| all("precise"));
        let warm = all("warm");
        (precise.join().expect("no panic"), warm)
    });
    assert!(warm.0 < 0.9, "they are not too small: {warm:?}");
    assert!(precise.0 > warm.0 + 0.005 && precise.1 < warm.1, "{precise:?}, warm {warm:?}");
}

/// A policy that is told of events but ignores them.
struct Listens(Box<dyn Chooser>);

impl Chooser for Listens {
    fn choose(&mut self, asked: &Asked, fleet: &Fleet) -> Option<Placed> {
        self.0.choose(asked, fleet)
    }
    fn first_token(&mut self, number: u64) {
        self.0.first_token(number);
    }
    fn ended(&mut self, number: u64, engine: usize, tokens: u32) {
        self.0.ended(number, engine, tokens);
    }
    fn scrape_every_ns(&self) -> Option<u64> {
        self.0.scrape_every_ns()
    }
    fn scraped(&mut self, now_ns: u64, figures: &[Figures]) {
        self.0.scraped(now_ns, figures);
    }
    fn hears_events(&self) -> bool {
        true
    }
}

#[test]
fn engines_do_the_same_whether_anybody_listens() {
    let (source, profile) = (chat(), with_cache("l4-8b", 20_000));
    let deaf = chooser(&source, &profile, "warm", 1, AT_ONCE);
    let listening = Listens(chooser(&source, &profile, "warm", 1, AT_ONCE));
    let go = |chooser| run(&setting(&source, &profile), chooser, &AtomicU64::new(0));
    assert!(go(deaf) == go(Box::new(listening)), "they differ");
}

#[test]
fn flags_say_how_events_come_and_are_refused_where_nobody_hears() {
    let trace = format!("{}/tests/fixtures/mooncake/first-160.jsonl.zst", env!("CARGO_MANIFEST_DIR"));
    let command = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_warmfront")).args(["replay", &trace]).args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let refused: &[(&[&str], &str)] = &[
        (&["--policies", "warm", "--event-delay-ms", "5"], "are for the policy `precise`"),
        (&["--policies", "warm", "--event-replay", "off"], "are for the policy `precise`"),
        (&["--event-loss", "101"], "must be between 0 and 100"),
        (&["--event-loss", "NaN"], "must be between 0 and 100"),
        (&["--event-replay", "perhaps"], "write on or off"),
        (&["--kv-tokens", "100"], "fits into the 0 tokens"),
    ];
    for (args, what) in refused {
        let (fine, _, said) = command(args);
        assert!(!fine && said.contains(what), "{args:?}: {said}");
    }
    let off_by = |args: &[&str]| {
        let (fine, table, said) = command(&[&["--policies", "random,precise"], args].concat());
        assert!(fine, "{said}");
        let of = |policy: &str| {
            let line = table.lines().find(|line| line.starts_with(policy)).unwrap();
            line.split_whitespace().nth(3).unwrap().to_owned()
        };
        assert_eq!(of("random "), "-", "{table}");
        of("precise ").parse::<f64>().unwrap()
    };
    let lost = ["--event-delay-ms", "2000", "--event-loss", "100", "--event-replay", "off"];
    assert!(off_by(&[]) < off_by(&lost));
}
