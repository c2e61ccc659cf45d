//! Replays: exact where hand or another count can say what must come out, the same twice, no request lost, and
//! traces that are not what they should be refused with their line.

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use warmfront::engine::profile::Profile;
use warmfront::replay::Comparison;
use warmfront::replay::chooser::{Asked, Chooser, Named, ORACLE, POLICIES, POOLED, Placed, Stage, Turn, named};
use warmfront::replay::events::Delivery;
use warmfront::replay::fleet::Fleet;
use warmfront::replay::outcome::{Objective, Outcome};
use warmfront::replay::profiles;
use warmfront::replay::simulate::{Run, Setting, run};
use warmfront::replay::traffic::agents::Agents;
use warmfront::replay::traffic::chain::Chain;
use warmfront::replay::traffic::chat::Chat;
use warmfront::replay::traffic::lines;
use warmfront::replay::traffic::mooncake;
use warmfront::replay::traffic::prefixes::Prefixes;
use warmfront::replay::traffic::trace::Trace;
use warmfront::replay::traffic::{Open, Request, Source, Traffic, Window};

const MS: u64 = 1_000_000;

fn fixture() -> String {
    format!("{}/tests/fixtures/mooncake/first-160.jsonl.zst", env!("CARGO_MANIFEST_DIR"))
}

fn trace() -> Trace {
    mooncake::open(fixture().as_ref(), 512).unwrap()
}

fn machine(name: &str) -> Profile {
    profiles::named(profiles::BUILT_IN, name).unwrap()
}

/// Small traffic of each kind, below overload, and the engines for it.
fn sources() -> Vec<(&'static str, Box<dyn Source>, Profile)> {
    let chat = Chat { threads: 100, seconds: 40.0, warmup_seconds: 10.0, ramp_seconds: 5.0, ..Chat::default() };
    let agents = Agents { seconds: 50.0, warmup_seconds: 10.0, rate: 0.4, ..Agents::default() };
    let prefixes = Prefixes { seconds: 60.0, warmup_seconds: 10.0, rate: 3.0, groups: 30, ..Prefixes::default() };
    vec![
        ("chat", Box::new(chat), machine("l4-8b")),
        ("agents", Box::new(agents), machine("h100x2-70b")),
        ("prefixes", Box::new(prefixes.draw()), machine("h100x2-70b")),
        ("trace", Box::new(trace()), machine("h100x2-70b")),
    ]
}

fn replay(source: &dyn Source, load: f64, profile: &Profile, engines: usize, policy: &str) -> Run {
    let block_tokens = source.block_tokens();
    let (blocks, events) = (profile.kv_tokens / block_tokens, Delivery::default());
    let weights = vec![1; engines];
    let stage = Stage { weights: &weights, blocks, block_tokens, fronts: 1, events, seed: 1 };
    let chooser = named(policy).unwrap().make(&stage);
    run(&Setting { source, load, profile, weights: &weights, tenants: 1 }, chooser, &AtomicU64::new(0))
}

/// Requests as written down.
struct Fixed {
    requests: Vec<Request>,
    /// What the end of the first is followed by.
    follows: Option<Request>,
    window: Window,
}

impl Fixed {
    fn of(requests: Vec<Request>) -> Fixed {
        Fixed { requests, follows: None, window: Window { from_ns: 0, until_ns: None } }
    }
}

struct Followed<'a>(Open<'a>, &'a Fixed);

impl Traffic for Followed<'_> {
    fn next(&mut self) -> Option<Request> {
        self.0.next()
    }
    fn after(&mut self, ended: &Request, _now_ns: u64) -> Option<Request> {
        self.1.follows.clone().filter(|_| *ended == self.1.requests[0])
    }
}

impl Source for Fixed {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        Box::new(Followed(Open::new(&self.requests, load), self))
    }
    fn block_tokens(&self) -> u32 {
        16
    }
    fn window(&self, _load: f64) -> Window {
        self.window
    }
    fn describe(&self) -> String {
        "fixed".into()
    }
    fn tokens_max(&self) -> u32 {
        10_000
    }
    fn check(&self, _load: f64) -> Result<(), String> {
        Ok(())
    }
}

/// Sends each request where a list says.
struct Scripted(Vec<usize>);

impl Chooser for Scripted {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        self.0.get(asked.number as usize).copied().map(Placed::from)
    }
    fn ended(&mut self, _number: u64, _engine: usize, _tokens: u32) {}
}

fn request(arrival_ms: u64, pieces: &[(u64, u32)], output: u32) -> Request {
    let mut chain = Chain::new(16);
    pieces.iter().for_each(|(piece, tokens)| chain.push(*piece, *tokens));
    Request {
        arrival_ns: arrival_ms * MS,
        prompt: chain.tokens(),
        output,
        blocks: chain.blocks().into(),
        session: None,
        opening: None,
        thread: 0,
    }
}

/// 1 ms a prompt token, 10 ms a step.
fn plain() -> Profile {
    Profile {
        prefill_tokens_per_second: 1_000.0,
        decode_step_ms: 10.0,
        attention_pair_ns: 0.0,
        decode_sequence_us: 0.0,
        decode_kv_ns: 0.0,
        ..Profile::default()
    }
}

/// A: 100 tokens from 0; B: 80 tokens from 50 ms on, 64 of them A's first; C: as B from 60 ms on.
fn three_requests() -> Vec<Request> {
    vec![request(0, &[(1, 64), (2, 36)], 3), request(50, &[(1, 64), (3, 16)], 1), request(60, &[(1, 64), (3, 16)], 1)]
}

#[test]
fn three_requests_on_two_engines_take_what_the_hand_computes() {
    let source = Fixed::of(three_requests());
    let setting = Setting { source: &source, load: 1.0, profile: &plain(), weights: &[1; 2], tenants: 1 };
    let run = run(&setting, Box::new(Scripted(vec![0, 0, 1])), &AtomicU64::new(0));
    let seen: Vec<_> = run
        .records
        .iter()
        .map(|one| (one.prompt, one.engine, one.ttft_ns / MS, one.rest_ns / MS, one.cached))
        .collect();
    // A's prompt: 10 + 100 = 110 ms. Then one step of 10 + 16 ms: A's second token and B, at 136, whose 64 cached
    // tokens cost nothing. C is cold: 10 + 80 from 60. A's third token at 146.
    assert_eq!(seen, [(80, 0, 86, 0, 64), (100, 0, 110, 36, 0), (80, 1, 90, 0, 0)]);
    assert_eq!((run.end_ns / MS, run.tokens, run.preemptions), (150, 5, 0));
}

#[test]
fn an_engine_of_weight_4_takes_a_quarter_of_the_time() {
    let sooner = |one: Request| Request { arrival_ns: one.arrival_ns / 4, ..one };
    let source = Fixed::of(three_requests().into_iter().map(sooner).collect());
    let setting = Setting { source: &source, load: 1.0, profile: &plain(), weights: &[4, 1], tenants: 1 };
    let run = run(&setting, Box::new(Scripted(vec![0, 0, 1])), &AtomicU64::new(0));
    let quarters = |ns: u64| 4 * ns / MS;
    let seen: Vec<_> =
        run.records.iter().map(|one| (one.engine, quarters(one.ttft_ns), quarters(one.rest_ns), one.cached)).collect();
    // A and B as above; C has an engine of weight 1.
    assert_eq!(seen, [(0, 86, 0, 64), (0, 110, 36, 0), (1, 4 * 90, 0, 0)]);
}

/// Has the first request come again after two seconds.
struct Refusing(bool);

impl Chooser for Refusing {
    fn choose(&mut self, _asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        self.0.then_some(Placed::from(0))
    }
    fn turn(&mut self, _now_ns: u64, first: u64) -> Option<Turn> {
        self.0 = true;
        Some(Turn::Refuse(first, 2))
    }
    fn ended(&mut self, _number: u64, _engine: usize, _tokens: u32) {}
}

#[test]
fn who_is_refused_comes_again_when_it_was_told_to_and_is_counted_within_the_window() {
    for (from_ns, refusals) in [(0, 1), (MS, 0)] {
        let window = Window { from_ns, until_ns: None };
        let source = Fixed { window, ..Fixed::of(vec![request(0, &[(1, 100)], 1)]) };
        let setting = Setting { source: &source, load: 1.0, profile: &plain(), weights: &[1], tenants: 1 };
        let run = run(&setting, Box::new(Refusing(false)), &AtomicU64::new(0));
        let ttfts: Vec<u64> = run.records.iter().map(|one| one.ttft_ns / MS).collect();
        // Its time counts from when it first came.
        assert_eq!((ttfts, run.refusals), (vec![2_000 + 110], refusals));
    }
}

#[test]
fn an_oracle_finds_what_another_engine_has_computed_and_waits_for_none() {
    let source = Fixed::of(vec![request(0, &[(1, 96)], 1), request(10, &[(1, 96)], 1), request(200, &[(1, 96)], 1)]);
    let run = replay(&source, 1.0, &plain(), 2, ORACLE);
    let seen: Vec<_> = run.records.iter().map(|one| (one.engine, one.ttft_ns / MS, one.cached)).collect();
    // The second goes to the idle engine, where it finds five blocks that the first is still computing; the last
    // token of a prompt is always computed, with its block.
    assert_eq!(seen, [(1, 26, 80), (0, 106, 0), (0, 26, 80)]);
}

#[test]
fn only_the_oracle_sees_which_step_ends_soonest() {
    // At 30 ms the first engine computes until 110, the second until 40.
    let source = Fixed::of(vec![request(0, &[(1, 100)], 1), request(10, &[(2, 20)], 1), request(30, &[(3, 16)], 1)]);
    let third = |policy| {
        let run = replay(&source, 1.0, &plain(), 2, policy);
        run.records.iter().find(|one| one.prompt == 16).map(|one| (one.engine, one.ttft_ns / MS))
    };
    assert_eq!([ORACLE, POOLED].map(third), [Some((1, 10 + 26)), Some((0, 80 + 26))]);
}

#[test]
fn an_oracle_holds_what_has_no_room_and_nobody_is_computed_twice() {
    // Eight blocks for both engines together: of two requests with five blocks and a reply of ten tokens one waits
    // until the other has ended, though an engine is idle.
    let source = Fixed::of(vec![request(0, &[(1, 80)], 10), request(5, &[(2, 80)], 1), request(6, &[(3, 16)], 1)]);
    let run = replay(&source, 1.0, &Profile { kv_tokens: 64, ..plain() }, 2, ORACLE);
    let seen: Vec<_> = run.records.iter().map(|one| (one.prompt, one.ttft_ns / MS, one.rest_ns / MS)).collect();
    // The first ends at 90 + 9 x 10 = 180. Behind the second the third waits too: first come, first served; 10 + 16
    // on the other engine.
    assert_eq!(seen, [(80, 90, 90), (16, 200, 0), (80, 265, 0)]);
    assert_eq!(run.preemptions, 0);
}

#[test]
fn who_is_held_goes_in_order_of_arrival() {
    // Beside the second there is no room for another of its length. That one will come at 100 ms is known before the
    // first ends, whose next one comes at 50.
    let source = Fixed {
        follows: Some(request(50, &[(4, 80)], 1)),
        ..Fixed::of(vec![request(0, &[(1, 16)], 1), request(1, &[(2, 80)], 10), request(100, &[(3, 80)], 1)])
    };
    for policy in [ORACLE, POOLED] {
        let run = replay(&source, 1.0, &Profile { kv_tokens: 64, ..plain() }, 2, policy);
        let seen: Vec<_> = run.records.iter().map(|one| (one.arrival_ns / MS, one.ttft_ns / MS)).collect();
        // The second ends at 1 + 90 + 90 = 181.
        assert_eq!(seen, [(0, 26), (1, 90), (50, 131 + 90), (100, 171 + 90)], "{policy}");
    }
}

#[test]
fn sequences_that_give_their_blocks_up_are_counted_within_the_window() {
    // Two of up to four blocks on an engine of four: both have two until 16 tokens have come, at 42 + 160 ms.
    let requests = vec![request(0, &[(1, 16)], 40), request(0, &[(2, 16)], 40)];
    let counted = |from_ms: u64, until_ms: u64| {
        let window = Window { from_ns: from_ms * MS, until_ns: Some(until_ms * MS) };
        let source = Fixed { window, ..Fixed::of(requests.clone()) };
        replay(&source, 1.0, &Profile { kv_tokens: 64, ..plain() }, 1, "random").preemptions
    };
    assert_eq!([counted(0, 2_000), counted(150, 300), counted(0, 150), counted(300, 2_000)], [1, 1, 0, 0]);
}

#[test]
fn the_same_seed_gives_the_same_figures_however_many_run_at_a_time() {
    // Half of the sources: what is drawn of the others is drawn in the same way.
    for (name, source, profile) in sources().iter().step_by(2) {
        let compare = |policies: &'static [Named], seed, threads| {
            let policies: Vec<_> = policies.iter().collect();
            let objective = Objective { ttft_seconds: 1.0, token_seconds: 0.1 };
            let (source, loads) = (&**source, &[0.4]);
            let comparison = Comparison {
                source,
                profile,
                weights: &[1; 4],
                fronts: 1,
                events: Delivery::default(),
                policies: &policies,
                loads,
                objective,
                seed,
                tenants: 1,
                threads,
            };
            comparison.run(|_| {})
        };
        let once = compare(POLICIES, 1, 1);
        assert_eq!(once.len(), POLICIES.len());
        assert_eq!(once, compare(POLICIES, 1, 3), "{name}");
        let random = |outcomes: &[Outcome]| outcomes[0].ttft;
        assert_ne!(random(&once), random(&compare(&POLICIES[..1], 2, 2)), "{name}: policies draw from the seed");
    }
}

#[test]
fn generated_traffic_depends_on_its_seed_alone() {
    let draw = |seed| {
        let chat = Chat { seed, threads: 5, ..Chat::default() };
        let agents = Agents { seed, ..Agents::default() };
        let prefixes = Prefixes { seed, ..Prefixes::default() }.draw();
        let first = |source: &dyn Source| {
            let mut traffic = source.traffic(1.0);
            (0..5).map_while(|_| traffic.next()).collect::<Vec<_>>()
        };
        [first(&chat), first(&agents), first(&prefixes)]
    };
    let (one, other) = (draw(1), draw(2));
    assert!(one.iter().all(|requests| requests.len() == 5));
    assert_eq!(one, draw(1));
    one.iter().zip(&other).for_each(|(one, other)| assert_ne!(one, other));
}

/// Writes down what its traffic asks.
struct Watched<'a> {
    source: &'a dyn Source,
    asked: Mutex<Vec<(u32, u32)>>,
}

struct WatchedTraffic<'a>(Box<dyn Traffic + 'a>, &'a Mutex<Vec<(u32, u32)>>);

impl WatchedTraffic<'_> {
    fn note(&self, request: Option<Request>) -> Option<Request> {
        self.1.lock().unwrap().extend(request.iter().map(|request| (request.prompt, request.output)));
        request
    }
}

impl Traffic for WatchedTraffic<'_> {
    fn next(&mut self) -> Option<Request> {
        let request = self.0.next();
        self.note(request)
    }
    fn after(&mut self, ended: &Request, now_ns: u64) -> Option<Request> {
        let request = self.0.after(ended, now_ns);
        self.note(request)
    }
}

impl Source for Watched<'_> {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        Box::new(WatchedTraffic(self.source.traffic(load), &self.asked))
    }
    fn block_tokens(&self) -> u32 {
        self.source.block_tokens()
    }
    fn window(&self, load: f64) -> Window {
        self.source.window(load)
    }
    fn describe(&self) -> String {
        self.source.describe()
    }
    fn tokens_max(&self) -> u32 {
        self.source.tokens_max()
    }
    fn check(&self, load: f64) -> Result<(), String> {
        self.source.check(load)
    }
}

#[test]
fn every_request_ends_with_the_tokens_it_asked_for() {
    // Three engines are too few: queues, preemptions and held requests are part of it.
    for (name, source, profile) in &sources() {
        for policy in POLICIES {
            let watched = Watched { source: &**source, asked: Mutex::default() };
            let run = replay(&watched, 2.0, profile, 3, policy.name);
            let mut asked = watched.asked.into_inner().unwrap();
            let mut got: Vec<_> = run.records.iter().map(|record| (record.prompt, record.output)).collect();
            asked.sort_unstable();
            got.sort_unstable();
            assert!(asked.len() > 100, "{name}: {} requests show little", asked.len());
            assert_eq!(asked, got, "{name} under {}", policy.name);
        }
    }
}

#[test]
fn no_policy_does_better_than_the_oracle_below_overload_and_warm_comes_near() {
    for (name, source, profile) in &sources() {
        let mean = |policy: &str| {
            let objective = Objective { ttft_seconds: 1.0, token_seconds: 0.1 };
            Outcome::of(policy, 1.0, &replay(&**source, 1.0, profile, 8, policy), &objective)
        };
        let means: HashMap<&str, f64> =
            POLICIES.iter().map(|policy| (policy.name, mean(policy.name).ttft.mean)).collect();
        let bound = means[ORACLE];
        for (policy, seen) in &means {
            // It does not know the future: a few percent are luck.
            assert!(bound <= seen * 1.05, "{name}: {policy} has {seen} s, the oracle {bound} s");
        }
        let warm = means["warm"];
        let best = ["random", "least-load", "prefix-hash"]
            .map(|policy| means[policy])
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        assert!(warm <= 1.05 * best, "{name}: warm has {warm} s, a simpler policy {best} s");
        let pooled = means[POOLED];
        assert!(warm <= 1.2 * pooled, "{name}: warm has {warm} s, {pooled} s where caches are one");
    }
}

#[test]
fn the_cache_finds_what_a_count_of_the_trace_says() {
    let trace = trace();
    let (mut known, mut expected) = (HashSet::new(), 0);
    for request in trace.requests() {
        let held = request.findable(512).iter().take_while(|block| known.contains(*block)).count();
        expected += held as u64 * 512;
        known.extend(request.prompt_blocks(512).iter().copied());
    }
    // One engine that forgets nothing, and requests so far apart that none overlaps.
    let profile = Profile { kv_tokens: 1 << 24, ..machine("h100x2-70b") };
    let run = replay(&trace, 0.001, &profile, 1, "random");
    let cached: u64 = run.records.iter().map(|record| u64::from(record.cached)).sum();
    assert_eq!(cached, expected);
    assert!(expected > 50_000, "{expected}");
}

#[test]
fn sessions_of_a_trace_are_prompts_that_begin_with_a_whole_earlier_one() {
    let lines = r#"{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[0,1,2]}
{"timestamp":0,"input_length":1030,"output_length":5,"hash_ids":[0,3,4]}
{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,9]}

{"timestamp":3000,"input_length":2000,"output_length":5,"hash_ids":[0,1,5,6],"more":"is ignored"}
"#;
    let trace = mooncake::read(Cursor::new(lines), "t", 512).unwrap();
    let [a, b, c, d] = trace.requests() else { panic!("four requests") };
    assert_eq!([a, b, c, d].map(|request| request.arrival_ns / MS), [0, 1_000, 2_000, 3_000], "a batch is spread");
    assert_eq!([a, b, c, d].map(|request| request.blocks.len()), [2, 2, 1, 3], "partial blocks are none");
    assert_eq!(a.session, d.session);
    assert!(a.session != b.session && a.session != c.session && c.session != d.session);
    assert_eq!((a.opening, a.opening != b.opening), (d.opening, true));
}

#[test]
fn a_trace_may_begin_at_any_time() {
    let mut text = String::new();
    lines::open(fixture().as_ref()).unwrap().read_to_string(&mut text).unwrap();
    let later = |by: u64| {
        let mut lines = String::new();
        for line in text.lines() {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["timestamp"] = (line["timestamp"].as_u64().unwrap() + by).into();
            lines += &format!("{line}\n");
        }
        lines
    };
    // Milliseconds since 1970 are as good: the same requests are the same in all that is told of them.
    let shifted = mooncake::read(Cursor::new(later(1_795_289_660_397)), "t", 512).unwrap();
    assert_eq!(shifted.requests(), trace().requests());
    assert_eq!(shifted.describe(), trace().describe().replace(&fixture(), "t"));
    // Nor does the time before the first that is replayed count.
    let long = r#"{"timestamp":0,"input_length":512000,"output_length":1,"hash_ids":[]}"#;
    let ids: Vec<u64> = (1 << 40..).take(1_000).collect();
    let long = long.replace("[]", &format!("{ids:?}"));
    let mut cut = mooncake::read(Cursor::new(format!("{long}\n{}", later(9_000_000))), "t", 512).unwrap();
    assert_eq!(cut.drop_longer_than(400_000), 1);
    assert!(cut.requests().iter().map(|one| one.arrival_ns).eq(trace().requests().iter().map(|one| one.arrival_ns)));
}

#[test]
fn a_trace_has_many_tenants_and_a_session_one() {
    let trace = trace();
    let mut tenants = HashMap::new();
    for request in trace.requests() {
        let tenant = request.tenant(8);
        assert_eq!(*tenants.entry(request.session).or_insert(tenant), tenant);
    }
    let of = |tenant| tenants.values().filter(|other| **other == tenant).count();
    assert!(tenants.len() < trace.requests().len() && of(0) * 10 > tenants.len() * 8, "nine of ten are the first's");
    assert!((1..8).filter(|tenant| of(*tenant) > 0).count() > 3, "{tenants:?}");
}

#[test]
fn thousands_that_come_at_once_are_spread_over_a_month() {
    let line = |timestamp: u64| {
        format!("{{\"timestamp\":{timestamp},\"input_length\":512,\"output_length\":1,\"hash_ids\":[7]}}\n")
    };
    let lines = line(0).repeat(20_000) + &line(31 * 86_400_000);
    let trace = mooncake::read(Cursor::new(lines), "t", 512).unwrap();
    let arrivals: Vec<u64> = trace.requests().iter().map(|request| request.arrival_ns).collect();
    assert!(arrivals.is_sorted() && arrivals[10_000] == 31 * 43_200_000 * MS);
}

#[test]
fn hostile_lines_are_refused_with_their_number() {
    let good = r#"{"timestamp":5,"input_length":512,"output_length":1,"hash_ids":[7]}"#;
    let long = format!("{{\"timestamp\":9,\"hash_ids\":[{}1]}}", "1,".repeat(9 << 20));
    let cases: &[(&str, &str)] = &[
        ("{", "EOF while parsing"),
        ("[]", "invalid length 0"),
        ("\u{0}\u{1}", "expected value"),
        (r#"{"timestamp":5,"input_length":512,"hash_ids":[7]}"#, "missing field `output_length`"),
        (r#"{"timestamp":5,"input_length":-512,"output_length":1,"hash_ids":[7]}"#, "invalid value: integer `-512`"),
        (r#"{"timestamp":5,"input_length":5e2,"output_length":1,"hash_ids":[7]}"#, "invalid type: floating point"),
        (r#"{"timestamp":5,"input_length":1000000000,"output_length":1,"hash_ids":[7]}"#, "input_length 1000000000"),
        (r#"{"timestamp":5,"input_length":512,"output_length":1000000000,"hash_ids":[7]}"#, "output_length 1000000000"),
        (r#"{"timestamp":5,"input_length":0,"output_length":1,"hash_ids":[]}"#, "input_length 0"),
        (r#"{"timestamp":5,"input_length":512,"output_length":0,"hash_ids":[7]}"#, "output_length 0"),
        (r#"{"timestamp":5,"input_length":99999999999999999999,"output_length":1,"hash_ids":[7]}"#, "invalid type"),
        (r#"{"timestamp":5,"input_length":513,"output_length":1,"hash_ids":[7]}"#, "1 hash_ids, but 513 tokens"),
        (r#"{"timestamp":4,"input_length":512,"output_length":1,"hash_ids":[7]}"#, "an earlier timestamp"),
        (r#"{"timestamp":5,"input_length":1300,"output_length":1,"hash_ids":[7,8,7]}"#, "hash_ids has 7 twice"),
        (r#"{"timestamp":99999999999999,"input_length":512,"output_length":1,"hash_ids":[7]}"#, "more than a month"),
        (&long, "longer than"),
    ];
    for (line, what) in cases {
        let text = format!("{good}\n{line}\n{good}\n");
        let error = mooncake::read(Cursor::new(&text), "t.jsonl", 512).unwrap_err().to_string();
        assert!(error.starts_with("t.jsonl, line 2: ") && error.contains(what), "{what}: {error}");
    }
    assert!(mooncake::read(Cursor::new("\n\n"), "t", 512).unwrap_err().to_string().contains("holds no request"));
    let binary = mooncake::open(env!("CARGO_BIN_EXE_warmfront").as_ref(), 512).unwrap_err().to_string();
    assert!(binary.contains("line 1: "), "{binary}");
}

fn command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmfront")).arg("replay").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_command_prints_a_table_and_writes_figures_and_a_plot() {
    let directory = std::env::temp_dir().join(format!("warmfront-replay-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name).display().to_string();
    let (json, svg, trace) = (path("figures.json"), path("ttft.svg"), fixture());
    let args = ["--policies", "random,prefix-hash,oracle", "--loads", "0.5,1", "--json", &json, "--svg", &svg];
    let output = command(&[&[trace.as_str()], &args[..]].concat());
    let table = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(table.matches("\nprefix-hash ").count(), 2, "{table}");
    assert_eq!(table, text(&command(&[&[trace.as_str()], &args[..]].concat()).stdout), "the same again");
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(figures["outcomes"].as_array().unwrap().len(), 6);
    assert_eq!(
        (&figures["outcomes"][5]["policy"], &figures["outcomes"][5]["requests"]),
        (&"oracle".into(), &160.into())
    );
    assert_eq!(figures["outcomes"][5]["to_oracle"]["ttft"], 1.0);
    let figure = |at: usize, path: &str| figures["outcomes"][at].pointer(path).unwrap().as_f64().unwrap();
    assert!(figure(3, "/to_oracle/ttft") > 1.0, "{table}");
    for (ratio, of, to) in [("to_oracle", 3, 5), ("to_oracle", 0, 2), ("to_random", 4, 3), ("to_random", 1, 0)] {
        for (name, what) in [("ttft", "/ttft/mean"), ("tokens", "/tokens_per_second")] {
            let told = figure(of, &format!("/{ratio}/{name}"));
            assert!((told - figure(of, what) / figure(to, what)).abs() < 1e-9, "{ratio} {name}: {told}");
        }
    }
    assert!(std::fs::read_to_string(&svg).unwrap().ends_with("</svg>\n"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn flags_reach_what_they_are_for_in_its_units() {
    let json = std::env::temp_dir().join(format!("warmfront-replay-flags-{}.json", std::process::id()));
    let flags = ["--requests", "20", "--event-delay-ms", "5", "--slo-ttft-ms", "1234", "--slo-token-ms", "56"];
    let to = ["--policies", "precise", "--json", json.to_str().unwrap()];
    let output = command(&[&[fixture().as_str()], &flags[..], &to[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    assert_eq!(figures["objective"], serde_json::json!({"ttft_seconds": 1.234, "token_seconds": 0.056}));
    assert_eq!(figures["events"]["delay_ns"], 5_000_000);
    assert_eq!(figures["outcomes"][0]["requests"], 20);
}

#[test]
fn wrong_flags_are_said_in_words() {
    let trace = fixture();
    let cases: &[(&[&str], &str)] = &[
        (&[], "nothing to replay: name a trace, or --generate"),
        (&["/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (&[&trace, "--policies", "prefixhash"], "no policy is called \"prefixhash\""),
        (&[&trace, "--policies", "random,random"], "--policies names \"random\" twice"),
        (&[&trace, "--policies", "all,random,all"], "--policies names \"all\" twice"),
        (&[&trace, "--loads", "0.5,1,0.50"], "--loads names 0.5 twice"),
        (&[&trace, "--pool", "llama"], "--pool is for access logs"),
        (&["--generate", "chat", "--seconds", "1e6"], "lower --seconds"),
        (&[&trace, "--threads", "7"], "--threads does not apply to this traffic"),
        (&[&trace, "--profile", "tpu"], "there are h100-8b, h100x2-70b, l4-8b"),
        (&[&trace, "--profile", "l4-8b", "--block-tokens", "16"], "is --block-tokens right?"),
        (&[&trace, "--requests", "0"], "--requests"),
        (&[&trace, "--kv-tokens", "700"], "fits into the 512 tokens of this profile's contexts, the shortest has "),
        (&[&trace, "--kv-tokens", "100"], "fits into the 0 tokens of this profile's contexts"),
        (&["--generate", "chat", "--kv-tokens", "10"], "a KV cache of 10 tokens holds no block of 16"),
        (&[&trace, "--json", "/nowhere/figures.json"], "cannot write /nowhere/figures.json"),
        (&[&trace, "--svg", "/"], "cannot write /"),
        (&[&trace, "--loads", "0"], "must be between 0.001 and 1,000"),
        (&[&trace, "--loads", "NaN"], "must be between 0.001 and 1,000"),
        (&["--generate", "chat", "--warmup", "400"], "--warmup 400 leaves nothing of 360 s"),
        (&["--generate", "agents", "--rate", "100000"], "lower --rate"),
        (&["--generate", "agents", "--burst", "1e6"], "--burst 1000000 is not between 1 and 1000 sessions"),
        (&["--generate", "agents", "--profile", "l4-8b", "--prefix-tokens", "17000"], "lower --prefix-tokens"),
        (&["--generate", "chat", "--system-tokens", "16350"], "lower --system-tokens"),
        (&["--generate", "shared-prefix", "--rate", "1e6"], "lower --rate"),
        (&["--generate", "chat", "--threads", "90000", "--loads", "1,9"], "lower --threads"),
        (
            &["--generate", "shared-prefix", "--profile", "l4-8b", "--own-tokens", "20000"],
            "do not fit into max_model_len",
        ),
    ];
    for (args, what) in cases {
        let output = command(args);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(what), "{args:?}: {error}");
    }
}
