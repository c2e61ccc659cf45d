//! Shadow policies: what a second policy would have chosen is counted as that policy would choose, and changes nothing.

use warmfront::counters::stats::{Count, Shadowed, TokenCount};
use warmfront::policy::{Policy, ShadowPolicy};

use crate::engine::{Engine, ok};
use crate::front::Front;

const ALL: [Policy; 6] =
    [Policy::Random, Policy::RoundRobin, Policy::LeastLoad, Policy::Session, Policy::PrefixHash, Policy::Warm];
const ENGINES: usize = 4;
/// One more than engines, or by turns each would come back to where it was.
const NAMES: usize = 5;

/// A turn of a conversation: who it is shows in its session and in its first user message, behind a system prompt that
/// all share.
fn turn(name: usize, turns: usize) -> Vec<u8> {
    let words = |turn: usize| format!("{name} said {turn} ").repeat(200);
    let said: Vec<String> = (0..turns)
        .map(|turn| {
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            format!(r#",{{"role":"{role}","content":"{}"}}"#, words(turn))
        })
        .collect();
    let body = format!(
        r#"{{"messages":[{{"role":"system","content":"{}"}}{}],"model":"tiny-llama"}}"#,
        "Be brief. ".repeat(40),
        said.concat()
    );
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-session-id: s{name}\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Where the requests of one script went, and what was counted of the policy that looked on.
struct Played {
    homes: Vec<usize>,
    front: Front,
    shadow: Option<Policy>,
}

impl Played {
    fn count(&self, what: Shadowed) -> u64 {
        self.shadow.map_or(0, |shadow| self.front.stats.shadowed(0, shadow as u8, what))
    }

    fn agreed(&self) -> u64 {
        self.count(Shadowed::Agreed)
    }
}

/// One request after the other: each conversation in turns of one, two and three messages, and the last once more.
fn play(policy: Policy, shadow: Option<Policy>) -> Played {
    let engines: Vec<Engine> = (0..ENGINES).map(|_| Engine::answering(ok("{}"))).collect();
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    let front = Front::with(&addresses, |options| {
        (options.settings.policy, options.settings.shadow_policy) = (policy, ShadowPolicy(shadow));
    });
    let mut played = Played { homes: Vec::new(), front, shadow };
    let mut client = played.front.connect();
    let mut before = vec![0; ENGINES];
    for (turns, name) in [1, 2, 3, 3].into_iter().flat_map(|turns| (0..NAMES).map(move |name| (turns, name))) {
        assert_eq!(client.ask(turn(name, turns)).status, 200);
        let now: Vec<usize> = engines.iter().map(Engine::executions).collect();
        played.homes.push((0..ENGINES).find(|place| now[*place] > before[*place]).unwrap());
        before = now;
        // In a turn of its own, so that nothing else is in flight when it is looked at.
        played.front.until("the look", |_| shadow.is_none() || looks(&played) == played.homes.len() as u64);
    }
    played.front.settles();
    assert_eq!(played.count(Shadowed::Skipped) + played.count(Shadowed::Nobody), 0);
    played
}

fn looks(played: &Played) -> u64 {
    played.agreed() + played.count(Shadowed::Differed)
}

#[test]
fn a_policy_agrees_with_itself() {
    for policy in ALL {
        let played = play(policy, Some(policy));
        assert_eq!(played.agreed(), played.homes.len() as u64, "{policy:?}");
        for (one, other) in [
            (Shadowed::HeldThere, Shadowed::HeldInstead),
            (Shadowed::NewThere, Shadowed::NewInstead),
            (Shadowed::CostThere, Shadowed::CostInstead),
        ] {
            assert_eq!(played.count(one), played.count(other), "{policy:?}");
            assert_eq!(played.count(one) > 0, policy == Policy::Warm, "{policy:?}: only it looks prompts up");
        }
    }
}

/// Whichever looks on, requests go where they would go. And what is said of the one that looks on is what it does where
/// it chooses.
#[test]
fn who_looks_on_changes_nothing_and_is_told_of_rightly() {
    // What these choose does not depend on what was chosen before, in a fleet without load.
    let stateless = [Policy::RoundRobin, Policy::Session, Policy::PrefixHash];
    let alone: Vec<Played> = ALL.into_iter().map(|policy| play(policy, None)).collect();
    for (policy, without) in ALL.into_iter().zip(&alone) {
        for (shadow, itself) in ALL.into_iter().zip(&alone).filter(|(shadow, _)| *shadow != policy) {
            let played = play(policy, Some(shadow));
            assert_eq!(played.homes, without.homes, "{policy:?} with {shadow:?} beside it");
            if stateless.contains(&shadow) {
                let same = played.homes.iter().zip(&itself.homes).filter(|(one, other)| one == other).count();
                assert_eq!(played.agreed(), same as u64, "{shadow:?} beside {policy:?}");
            }
        }
    }
    let hashed = play(Policy::PrefixHash, Some(Policy::Random));
    assert!((1..hashed.homes.len() as u64).contains(&hashed.agreed()), "{} agreed", hashed.agreed());
}

/// Before it is switched on, `warm` shows what it would find: all that was sent to anybody.
#[test]
fn warm_predicts_what_it_would_have_held() {
    let played = play(Policy::RoundRobin, Some(Policy::Warm));
    assert!(played.homes.iter().enumerate().all(|(at, home)| *home == at % ENGINES), "by turns: {:?}", played.homes);
    let count = |what| played.count(what);
    let (held, new) = (count(Shadowed::HeldInstead), count(Shadowed::NewInstead));
    let (held_there, new_there) = (count(Shadowed::HeldThere), count(Shadowed::NewThere));
    assert_eq!(held + new, held_there + new_there, "the same prompts");
    // Of nine messages of a conversation three were never sent before; by turns nothing but the system prompt is met again.
    assert!(held as f64 / (held + new) as f64 > 0.55, "{held} held, {new} new");
    assert!((held_there as f64) < 0.2 * held as f64, "{held_there} held by turns, {held} by content");
    // Nothing waits for a first token but the request itself, which is not counted against itself.
    assert_eq!((count(Shadowed::CostInstead), count(Shadowed::CostThere)), (new, new_there));
    // What the policy that chooses was thought to meet is known as well.
    let told = [TokenCount::Held, TokenCount::New].map(|which| played.front.tokens(which));
    assert_eq!(told, [held_there, new_there]);
}

/// What is chosen behind a failure says nothing of policies.
#[test]
fn a_second_try_is_not_looked_at() {
    let engine = Engine::answering(ok("{}"));
    let addresses = [crate::engine::refusing(), engine.address];
    let shadow = Policy::LeastLoad;
    let front = Front::with(&addresses, |options| {
        options.settings.shadow_policy = ShadowPolicy(Some(shadow));
    });
    let looks = || {
        let all = [Shadowed::Agreed, Shadowed::Differed, Shadowed::Nobody, Shadowed::Skipped];
        all.map(|what| front.stats.shadowed(0, shadow as u8, what)).iter().sum::<u64>()
    };
    let mut client = front.connect();
    for asked in 1..=4 {
        assert_eq!(client.ask(turn(0, 1)).status, 200);
        front.until("the look", |_| looks() >= asked);
        assert_eq!(looks(), asked);
    }
    assert!(front.count(Count::RetriedConnect) > 0);
    front.settles();
}
