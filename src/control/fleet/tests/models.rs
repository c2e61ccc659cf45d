//! What is not known of the engines' models, and what that changes for requests and for `/v1/models`.

use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::control::models::{Cards, looks};
use crate::limits::TOKENS_MAX;

/// An engine may have a key that the front lacks, or be dead from the start: it is never learnt.
#[test]
fn a_model_that_is_named_is_never_the_default_ones() {
    let mut config = Config::clone(&fleet(3).config);
    config.serve.default_model = "a".into();
    let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
    (0..3).for_each(|place| assert!(fleet.resolved(place.into(), vec![at(place)], Instant::now())));
    let members = |fleet: &mut Fleet, model: Option<&[u8]>| match fleet.snapshot().select(model) {
        Selected::Pool(pool) => Some(pool.members.to_vec()),
        _ => None,
    };
    serves(&mut fleet, 0, &["a"]);
    serves(&mut fleet, 1, &["b"]);
    for model in [None, Some(&b""[..]), Some(b"a")] {
        assert_eq!(members(&mut fleet, model), Some(vec![0]), "{model:?}");
    }
    assert_eq!(members(&mut fleet, Some(b"b")), Some(vec![1]));
    assert_eq!(members(&mut fleet, Some(b"c")), Some(vec![2]), "it may be the third one's");
    let (id, _) = fleet.target(2).unwrap();
    for _ in 0..2 {
        fleet.probed(2, id, failed(), Instant::now());
    }
    assert_eq!(members(&mut fleet, Some(b"c")), Some(vec![2]), "or have been");
    serves(&mut fleet, 2, &["c"]);
    let snapshot = fleet.snapshot();
    assert!(matches!(snapshot.select(Some(b"d")), Selected::UnknownModel));
    assert_eq!(members(&mut fleet, None), Some(vec![0]));
}

/// It may be served by those who have not said so yet.
#[test]
fn without_a_default_in_service_what_names_no_model_is_for_those_who_are_not_known() {
    let mut fleet = fleet(3);
    serves(&mut fleet, 0, &["a"]);
    serves(&mut fleet, 1, &["b"]);
    assert!(matches!(fleet.snapshot().select(None), Selected::Pool(pool) if *pool.members == [2]));
    serves(&mut fleet, 2, &["a"]);
    assert!(matches!(fleet.snapshot().select(None), Selected::NoModel));
}

/// It lists these ids, each with the weights that it stands for, and whether it is an adapter.
fn lists(fleet: &mut Fleet, place: usize, cards: &[(&str, Option<&str>, bool)]) {
    let card = |(id, root, is_adapter): &(&str, Option<&str>, bool)| Card {
        root: root.map(Box::from),
        is_adapter: *is_adapter,
        ..Card::made(id)
    };
    let (id, _) = fleet.target(place).unwrap();
    let cards = cards.iter().map(card).collect();
    fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
}

fn roots(fleet: &mut Fleet) -> Vec<String> {
    let snapshot = fleet.snapshot();
    let served = snapshot.pools.iter().filter(|pool| !pool.members.is_empty());
    let mut roots: Vec<String> = served.map(|pool| format!("{}: {}", pool.name, pool.root)).collect();
    roots.sort();
    roots
}

/// As vLLM has it with `--served-model-name a b`: its caches know no names, but of adapters the id.
#[test]
fn names_of_the_same_weights_have_one_root() {
    let mut fleet = fleet(3);
    let (weights, other) = (Some("/models/m"), Some("/models/n"));
    lists(&mut fleet, 0, &[("a", weights, false), ("b", weights, false), ("lora", weights, true), ("x", other, false)]);
    lists(&mut fleet, 1, &[("a", weights, false), ("b", weights, false), ("c", None, false), ("d", None, false)]);
    let expected = ["a: a", "b: a", "c: c", "d: d", "lora: lora", "x: x"];
    lists(&mut fleet, 2, &[("a", weights, false)]);
    assert_eq!(roots(&mut fleet), expected);
    // In another order, and with weights of their own, which are alike all the same.
    lists(&mut fleet, 2, &[("b", other, false), ("a", other, false), ("e", other, false)]);
    assert_eq!(roots(&mut fleet), ["a: a", "b: a", "c: c", "d: d", "e: a", "lora: lora", "x: x"]);
    // One of them stands for other weights there.
    lists(&mut fleet, 2, &[("b", other, false), ("a", weights, false)]);
    assert_eq!(roots(&mut fleet), ["a: a", "b: b", "c: c", "d: d", "lora: lora", "x: x"]);
    // What says nothing of its weights stands for itself.
    lists(&mut fleet, 2, &[("e", Some(""), false), ("f", Some(""), false)]);
    assert_eq!(roots(&mut fleet), ["a: a", "b: a", "c: c", "d: d", "e: e", "f: f", "lora: lora", "x: x"]);
}

/// What served English at four bytes a token may be followed by what serves Chinese at two: a million tokens of the
/// former would outweigh what is told of the latter.
#[test]
fn what_tokens_of_another_model_stood_for_is_forgotten() {
    let mut fleet = fleet(1);
    let adapted = [("a", Some("/a"), false), ("lora", Some("/x"), true)];
    for (next, token_bytes) in [
        (&[("a", Some("/a"), false)][..], 4.0),
        (&[("a", Some("/a"), false), ("other", Some("/x"), true)], 4.0),
        (&[("alias", Some("/a"), false), ("a", Some("/a"), false)], 4.0),
        (&[("a", Some("/b"), false), ("lora", Some("/x"), true)], Pool::TOKEN_BYTES),
        (&[("b", Some("/a"), false), ("lora", Some("/x"), true)], Pool::TOKEN_BYTES),
    ] {
        lists(&mut fleet, 0, &adapted);
        fleet.members[0].now.as_mut().unwrap().truth.calibration.told(400_000, 100_000);
        lists(&mut fleet, 0, next);
        let snapshot = fleet.snapshot();
        let pool = &snapshot.pools[usize::from(snapshot.models[next[0].0.as_bytes()].0)];
        assert_eq!(pool.token_bytes, token_bytes, "{next:?}");
        fleet.members[0].now.as_mut().unwrap().truth.serves_another_model();
    }
    // A process that has no list was here between the two.
    let (id, _) = fleet.target(0).unwrap();
    fleet.members[0].now.as_mut().unwrap().truth.calibration.told(400_000, 100_000);
    fleet.begin_anew(0, id, None, Instant::now());
    assert!(fleet.learnt(0, id, Err(ModelsError::Status(404))));
    lists(&mut fleet, 0, &[("c", Some("/c"), false)]);
    assert_eq!(fleet.members[0].now.as_ref().unwrap().truth.calibration.token_bytes(), None);
}

/// What adapters compute is nobody else's, and they are asked for under their base's name as well.
#[test]
fn an_adapter_is_known_by_what_its_engine_lists() {
    let mut fleet = fleet(2);
    lists(&mut fleet, 0, &[("m", None, false), ("lora", None, true)]);
    lists(&mut fleet, 1, &[("m", None, false)]);
    let snapshot = fleet.snapshot();
    let pool = |model: &[u8]| match snapshot.select(Some(model)) {
        Selected::Pool(pool) => (pool.name.to_string(), pool.is_adapter),
        other => panic!("{other:?}"),
    };
    assert_eq!([&b"m"[..], b"lora"].map(pool), [("m".into(), false), ("lora".into(), true)]);
    assert_eq!([&b"m:lora"[..], b"m:other"].map(pool), [("lora".into(), true), ("m".into(), false)]);
}

/// One that still loads its weights, of which the operator says what it will serve.
#[test]
fn who_has_not_listed_its_ids_changes_no_root() {
    let mut config = numbered(2);
    config.upstream.iter_mut().for_each(|upstream| upstream.models = vec!["a".into(), "b".into()]);
    let mut fleet = fleet_by(2, config);
    lists(&mut fleet, 0, &[("a", Some("/models/m"), false), ("b", Some("/models/m"), false)]);
    assert!(fleet.snapshot().pools.iter().all(|pool| pool.members.is_empty() || *pool.members == [0, 1]));
    assert_eq!(roots(&mut fleet), ["a: a", "b: a"]);
}

/// As to one engine, which answers with its base model: there are no others to choose among.
#[test]
fn what_names_no_model_is_for_the_base_model_that_all_engines_serve() {
    let mut fleet = fleet(3);
    let serves = |fleet: &mut Fleet, place: usize, base: &[&str], adapters: &[&str]| {
        let card = |is_adapter| move |id: &&str| Card { is_adapter, ..Card::made(id) };
        let cards = base.iter().map(card(false)).chain(adapters.iter().map(card(true))).collect();
        let (id, _) = fleet.target(place).unwrap();
        fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
    };
    let chosen = |fleet: &mut Fleet, model: Option<&[u8]>| match fleet.snapshot().select(model) {
        Selected::Pool(pool) => format!("{} {:?}", pool.name, pool.members),
        other => format!("{other:?}"),
    };
    // Whatever came first.
    serves(&mut fleet, 0, &["old"], &[]);
    serves(&mut fleet, 0, &["base", "alias"], &["lora"]);
    serves(&mut fleet, 1, &["base", "alias"], &["lora"]);
    assert_eq!(chosen(&mut fleet, None), "base [0, 1]", "until the third has said what it serves");
    serves(&mut fleet, 2, &["base", "alias"], &["lora"]);
    for model in [None, Some(&b""[..]), Some(b"base")] {
        assert_eq!(chosen(&mut fleet, model), "base [0, 1, 2]");
    }
    assert_eq!(chosen(&mut fleet, Some(b"lora")), "lora [0, 1, 2]");
    assert_eq!(chosen(&mut fleet, Some(b"old")), "UnknownModel");
    let list = fleet.snapshot().models_answer.list.clone().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
    assert_eq!(list["data"][0]["id"], "base", "who asks for the models is told the same");
    // What cannot be read may name the adapter, which is served by one engine alone.
    serves(&mut fleet, 1, &["base", "alias"], &["lora", "new"]);
    assert_eq!((chosen(&mut fleet, None), chosen(&mut fleet, Some(b"new"))), ("NoModel".into(), "new [1]".into()));
    serves(&mut fleet, 1, &["alias", "base"], &["lora"]);
    assert_eq!(chosen(&mut fleet, None), "NoModel", "that engine would answer with the other");
    // Who serves nothing has no part in it.
    serves(&mut fleet, 0, &[], &[]);
    serves(&mut fleet, 1, &["base", "alias"], &["lora"]);
    assert_eq!(chosen(&mut fleet, None), "base [1, 2]");
    serves(&mut fleet, 0, &["base", "alias"], &["lora"]);
    // Another model is none that it could be taken for.
    serves(&mut fleet, 2, &["other"], &[]);
    assert_eq!(chosen(&mut fleet, None), "NoModel");
    assert_eq!(chosen(&mut fleet, Some(b"base")), "base [0, 1]");
    serves(&mut fleet, 2, &["base"], &[]);
    assert_eq!(chosen(&mut fleet, None), "NoModel", "nor one of which an engine lacks the other name");
    serves(&mut fleet, 2, &["base", "alias"], &["lora"]);
    assert_eq!(chosen(&mut fleet, None), "base [0, 1, 2]");
    // A model that is configured for such requests and not served is not replaced.
    let mut config = Config::clone(&fleet.config);
    config.serve.default_model = "gone".into();
    fleet.reconfigure(Arc::new(config), Vec::new(), Arc::default(), Instant::now());
    assert_eq!(chosen(&mut fleet, None), "NoModel");
}

/// Who cannot take a prompt refuses it at once, looks idle, and would draw the next one too.
#[test]
fn a_prompt_goes_to_who_takes_one_so_long() {
    use crate::index::Matches;
    use crate::policy::{self, Avoid, Nobody, Policy, Prompt, Request};

    let mut fleet = fleet(3);
    let learns = |fleet: &mut Fleet, contexts: [Option<u32>; 3]| {
        for (place, context) in contexts.into_iter().enumerate() {
            let (id, _) = fleet.target(place).unwrap();
            let cards =
                vec![Card { context, ..Card::made("m") }, Card { is_adapter: true, ..Card::made("lora") }].into();
            fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
        }
    };
    let (counters, matches) = (Counters::leak(), Matches::default());
    let sent = |fleet: &mut Fleet, model: &[u8], tokens: u32, tried: &[u16]| {
        let mut snapshot = fleet.snapshot();
        snapshot.seal();
        let pool = &snapshot.pools[usize::from(snapshot.models[model].0)];
        let prompt = |turn: u64| Prompt { tokens, block_tokens: 64.0, matches: &matches, tie: turn << 56 };
        let mut avoid = Avoid::default();
        tried.iter().for_each(|slot| avoid.push(*slot));
        let mut slots = Vec::new();
        for turn in 0..200 {
            let random = turn << 56;
            let request =
                Request { prompt: Some(prompt(turn)), context: tokens, avoid, random, turn, ..Request::default() };
            for policy in [Policy::Warm, Policy::LeastLoad, Policy::RoundRobin] {
                match policy::choose_by(policy, pool, counters.loads(), &request) {
                    Ok(choice) => slots.push(choice.endpoint.slot),
                    Err(nobody) => assert_eq!(nobody, Nobody::NoneTakesRequests),
                }
            }
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    };
    learns(&mut fleet, [Some(8_192), Some(32_768), Some(8_192)]);
    for model in [&b"m"[..], b"lora"] {
        assert_eq!(sent(&mut fleet, model, 9_000, &[]), [0, 1, 2], "how long it is is a guess");
        assert_eq!(sent(&mut fleet, model, 20_000, &[]), [1]);
        assert_eq!(sent(&mut fleet, model, 200_000, &[]), [1], "too long for all, as far as we guess");
        assert_eq!(sent(&mut fleet, model, 0, &[]), [0, 1, 2], "nothing is known of it");
        assert_eq!(sent(&mut fleet, model, 20_000, &[1]), [0; 0], "it was tried");
        assert_eq!(sent(&mut fleet, model, 20_000, &[0, 1, 2]), [0; 0]);
    }
    let (id, _) = fleet.target(1).unwrap();
    (0..2).for_each(|_| _ = fleet.probed(1, id, failed(), Instant::now()));
    assert_eq!(sent(&mut fleet, b"m", 20_000, &[]), [0, 2], "it is down");
    fleet.probed(1, id, Ok(()), Instant::now());
    // Of several lengths the shortest that do; who does not say takes any.
    learns(&mut fleet, [Some(8_192), Some(32_768), None]);
    let by_length = [8_000, 20_000, 100_000].map(|tokens| sent(&mut fleet, b"m", tokens, &[]));
    assert_eq!(by_length, [vec![0, 1, 2], vec![1, 2], vec![2]]);
    learns(&mut fleet, [Some(8_192); 3]);
    assert_eq!(sent(&mut fleet, b"m", 20_000, &[]), [0, 1, 2], "all are alike");
    learns(&mut fleet, [Some(8_192), Some(32_768), Some(8_192)]);
    (0..3).for_each(|place| _ = fleet.probed(place, fleet.target(place).unwrap().0, Ok(()), Instant::now()));
    fleet.look(counters, Instant::now());
    counters.outcomes().bar(1);
    fleet.look(counters, Instant::now());
    assert_eq!(fleet.members()[1].health(), Some(Health::Ejected));
    assert_eq!(sent(&mut fleet, b"m", 20_000, &[]), [1], "nobody else takes it");
    assert_eq!(sent(&mut fleet, b"m", 9_000, &[]), [0, 2]);
}

/// Longer ones are noted nowhere, for they are refused. Who does not say takes as much as its cache holds, if it says
/// that, else any.
#[test]
fn a_pool_takes_prompts_as_long_as_any_of_its_engines_does() {
    let mut fleet = fleet(3);
    let mut context = |third: Option<u32>, blocks: Option<u32>| {
        for (place, context) in [Some(8_192), Some(32_768), third].into_iter().enumerate() {
            let (id, _) = fleet.target(place).unwrap();
            let cards = vec![Card { context, ..Card::made("m") }].into();
            fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
        }
        let (id, _) = fleet.target(2).unwrap();
        let said = |blocks| format!("vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1\n");
        let reading = Reading::of(blocks.map(said).unwrap_or_default().as_bytes());
        fleet.scraped(2, id, Ok((reading, Ours::default())), Instant::now());
        let snapshot = fleet.snapshot();
        snapshot.pools[usize::from(snapshot.models[&b"m"[..]].0)].context
    };
    assert_eq!(context(Some(8_192), None), 32_768);
    assert_eq!(context(None, None), TOKENS_MAX);
    assert_eq!([1_000, 4_000].map(|blocks| context(None, Some(blocks))), [32_768, 64_000]);
}

/// A pod went, and its address is another server's by now, which is healthy and answers all else with 404: whoever
/// believed the list of before would send it most of what comes, as the idlest of all.
#[test]
fn who_has_no_list_at_an_engines_address_serves_nothing_of_its() {
    let members = |fleet: &mut Fleet, model: &[u8]| match fleet.snapshot().select(Some(model)) {
        Selected::Pool(pool) => pool.members.to_vec(),
        _ => Vec::new(),
    };
    let (now, refused) = (Instant::now(), || Err(Failure { why: "x".into(), how: How::Refused }));
    let returns = |fleet: &mut Fleet| {
        let (id, _) = fleet.target(1).unwrap();
        (0..2).for_each(|_| _ = fleet.probed(1, id, refused(), now));
        assert_eq!(fleet.probed(1, id, Ok(()), now).0, Some(Turn::Up));
        id
    };
    let mut fleet = fleet(2);
    (0..2).for_each(|place| serves(&mut fleet, place, &["a", "b"]));
    let (id, _) = fleet.target(1).unwrap();
    assert_eq!(fleet.probed(1, id, Ok(()), now).0, Some(Turn::Up));
    assert!(!fleet.learnt(1, id, Err(ModelsError::Status(404))), "the process that told them is there");
    let id = returns(&mut fleet);
    for kept in [ModelsError::Status(503), ModelsError::Status(429)] {
        fleet.learnt(1, id, Err(kept));
        assert_eq!(members(&mut fleet, b"a"), [0, 1], "it says nothing of models");
    }
    assert!(fleet.learnt(1, id, Err(ModelsError::Status(404))));
    assert_eq!((members(&mut fleet, b"a"), members(&mut fleet, b"b")), (vec![0], vec![0]));
    assert!(
        fleet.snapshot().pools.iter().all(|pool| !pool.members.contains(&1)),
        "nor does it get what names no model"
    );
    // It is an engine again.
    serves(&mut fleet, 1, &["a"]);
    assert_eq!(members(&mut fleet, b"a"), [0, 1]);
    assert!(!fleet.learnt(1, id, Err(ModelsError::Shape)));
    // The next one wants another key: what it serves is not known. Where it served what others do they are there for
    // all that is named; where it alone served something, it is asked for what nobody else serves.
    serves(&mut fleet, 0, &["a"]);
    for (served, unlisted) in [(&["a"][..], [0]), (&["a", "b"], [1])] {
        serves(&mut fleet, 1, served);
        assert!(fleet.learnt(1, id, Err(ModelsError::KeyRefused)));
        assert_eq!(members(&mut fleet, b"a"), [0, 1], "the process that told them is there");
        assert_eq!(returns(&mut fleet), id);
        assert!(fleet.learnt(1, id, Err(ModelsError::KeyRefused)));
        assert_eq!([&b"a"[..], b"c"].map(|model| members(&mut fleet, model)), [[0], unlisted], "{served:?}");
        assert!(!fleet.learnt(1, id, Err(ModelsError::KeyRefused)));
        assert_eq!([&b"a"[..], b"c"].map(|model| members(&mut fleet, model)), [[0], unlisted], "{served:?}");
    }
    serves(&mut fleet, 1, &["a"]);
    assert_eq!(members(&mut fleet, b"a"), [0, 1]);
    // At another address, and in another process that no probe missed.
    fleet.resolved(1, vec![at(7)], now);
    let (id, _) = fleet.target(1).unwrap();
    assert!(fleet.learnt(1, id, Err(ModelsError::Shape)));
    assert_eq!(members(&mut fleet, b"a"), [0]);
    serves(&mut fleet, 1, &["a"]);
    fleet.begin_anew(1, id, None, now);
    assert!(fleet.learnt(1, id, Err(ModelsError::Status(404))));
    assert_eq!(members(&mut fleet, b"a"), [0]);
    // Where nobody lists any, all are asked for all, as by a front that has just begun.
    let (id, _) = fleet.target(0).unwrap();
    fleet.begin_anew(0, id, None, now);
    assert!(fleet.learnt(0, id, Err(ModelsError::Status(404))));
    assert!(matches!(fleet.snapshot().select(None), Selected::Pool(pool) if pool.members.len() == 2));
}

/// All engines of a model begin anew with another key, one after the other: the last one alone would get what all got,
/// and nobody once it is gone.
#[test]
fn who_wants_another_key_is_asked_again_once_no_other_serves_what_it_did() {
    let mut fleet = fleet(3);
    let members = |fleet: &mut Fleet, model: &[u8]| match fleet.snapshot().select(Some(model)) {
        Selected::Pool(pool) => pool.members.to_vec(),
        _ => Vec::new(),
    };
    let locks = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        fleet.learnt(place, id, Err(ModelsError::KeyRefused))
    };
    for (place, model) in [(0, "a"), (1, "a"), (2, "b")] {
        serves(&mut fleet, place, &[model]);
    }
    for (place, left) in [(0, &[1][..]), (1, &[1])] {
        let (id, _) = fleet.target(place).unwrap();
        fleet.begin_anew(place, id, None, Instant::now());
        assert!(locks(&mut fleet, place));
        assert_eq!(members(&mut fleet, b"a"), left);
    }
    assert!(locks(&mut fleet, 0) && !locks(&mut fleet, 0) && !locks(&mut fleet, 1));
    assert_eq!(members(&mut fleet, b"a"), [0, 1]);
    // One of them is known again.
    serves(&mut fleet, 1, &["a"]);
    assert!(locks(&mut fleet, 0));
    assert_eq!((members(&mut fleet, b"a"), members(&mut fleet, b"b")), (vec![1], vec![2]));
    assert_eq!(members(&mut fleet, b"c"), [0; 0]);
}

/// The front's key may be the wrong one, and its clients' right: engines that are slow now and then would lose their
/// part one by one, though it is known that they are the same.
#[test]
fn who_was_silent_and_is_the_same_serves_what_it_did_whatever_key_it_wants() {
    let now = Instant::now();
    let mut fleet = fleet(2);
    (0..2).for_each(|place| serves(&mut fleet, place, &["a"]));
    let (id, _) = fleet.target(1).unwrap();
    let reads = |fleet: &mut Fleet, began: u32| {
        let text = format!("process_start_time_seconds {began}\nvllm:num_requests_running 0\n");
        fleet.scraped(1, id, Ok((Reading::of(text.as_bytes()), Ours::default())), now);
    };
    let locks = |fleet: &mut Fleet| {
        fleet.learnt(1, id, Err(ModelsError::KeyRefused));
        match fleet.snapshot().select(Some(b"a")) {
            Selected::Pool(pool) => pool.members.to_vec(),
            _ => Vec::new(),
        }
    };
    fleet.probed(1, id, Ok(()), now);
    reads(&mut fleet, 5);
    for (began, part) in [(5, &[0, 1][..]), (6, &[0])] {
        (0..2).for_each(|_| _ = fleet.probed(1, id, failed(), now));
        assert_eq!(fleet.probed(1, id, Ok(()), now).0, Some(Turn::Up));
        assert_eq!(locks(&mut fleet), [0, 1], "which process it is will show");
        reads(&mut fleet, began);
        assert_eq!(locks(&mut fleet), part, "{began}");
    }
}

/// The same where `models` names what is served: as long as the name servers fail, whoever has the address answers the
/// probes.
#[test]
fn who_lists_no_configured_model_at_an_engines_address_serves_nothing_of_its() {
    let refused = || Err(Failure { why: "x".into(), how: How::Refused });
    let with = |models: &[&str]| {
        let mut config = Config::clone(&fleet(2).config);
        config.upstream.iter_mut().for_each(|one| one.models = models.iter().map(|id| (*id).to_owned()).collect());
        let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
        (0..2u16).for_each(|place| _ = fleet.resolved(place.into(), vec![at(place)], Instant::now()));
        fleet
    };
    let members = |fleet: &mut Fleet, model: &[u8]| match fleet.snapshot().select(Some(model)) {
        Selected::Pool(pool) => pool.members.to_vec(),
        other => panic!("{other:?}"),
    };
    let returns = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        (0..2).for_each(|_| _ = fleet.probed(place, id, refused(), Instant::now()));
        fleet.probed(place, id, Ok(()), Instant::now());
        id
    };
    for list in [None, Some("other")] {
        let mut fleet = with(&["a"]);
        let looks = |fleet: &mut Fleet, place: usize| {
            let (id, _) = fleet.target(place).unwrap();
            let learnt = |id| Learnt { cards: vec![Card::made(id)].into(), asks_key: false, left_out: 0 };
            fleet.learnt(place, id, list.map(learnt).ok_or(ModelsError::Status(404)))
        };
        // Who has never listed them is believed.
        (0..2).for_each(|place| _ = (looks(&mut fleet, place), returns(&mut fleet, place), looks(&mut fleet, place)));
        assert_eq!(members(&mut fleet, b"a"), [0, 1], "{list:?}");
        (0..2).for_each(|place| serves(&mut fleet, place, &["a", "b"]));
        assert!(
            looks(&mut fleet, 1) == list.is_some() && members(&mut fleet, b"a") == [0, 1],
            "{list:?}: it was there"
        );
        serves(&mut fleet, 1, &["a", "b"]);
        returns(&mut fleet, 1);
        assert!(looks(&mut fleet, 1), "{list:?}: shards must know");
        assert!(!looks(&mut fleet, 1));
        assert_eq!(members(&mut fleet, b"a"), [0], "{list:?}");
        serves(&mut fleet, 1, &["a"]);
        assert_eq!(members(&mut fleet, b"a"), [0, 1], "{list:?}: it is an engine again");
        // Where nobody lists any, all are asked.
        (0..2).for_each(|place| _ = (returns(&mut fleet, place), looks(&mut fleet, place)));
        assert_eq!(members(&mut fleet, b"a"), [0, 1], "{list:?}");
    }
}

/// Another name is no other engine, and what it serves goes on while it is asked again.
#[test]
fn an_engine_of_another_name_serves_what_it_did() {
    let named = |prefix: &str| {
        let mut config = Config::clone(&fleet(2).config);
        for (n, upstream) in config.upstream.iter_mut().enumerate() {
            upstream.name = format!("{prefix}-{n}");
        }
        Arc::new(config)
    };
    let now = Instant::now();
    let mut fleet = Fleet::new(named("before"), Vec::new(), Arc::default());
    (0..2u16).for_each(|place| _ = fleet.resolved(place.into(), vec![at(place)], now));
    (0..2).for_each(|place| serves(&mut fleet, place, &[["a"], ["b"]][place]));
    fleet.reconfigure(named("after"), Vec::new(), Arc::default(), now);
    for n in 0..2 {
        let place = fleet.members()[n].place;
        fleet.resolved(place, vec![at(n as u16)], now);
    }
    let snapshot = fleet.snapshot();
    let members = |model: &[u8]| match snapshot.select(Some(model)) {
        Selected::Pool(pool) => pool.members.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!((members(b"a"), members(b"b")), (vec![2], vec![3]));
    assert!(snapshot.models_complete && snapshot.models_answer.list.is_some());
    // It is another engine after all.
    let (place, (id, _)) = (fleet.members()[0].place, fleet.target(fleet.members()[0].place).unwrap());
    assert!(fleet.learnt(place, id, Err(ModelsError::Status(404))));
    assert!(!fleet.snapshot().models.contains_key(&b"a"[..]));
}

/// A fleet that goes over to another model, and one engine that died before: its list is the old one for ever.
#[test]
fn what_a_dead_engine_served_keeps_nobody_from_the_default() {
    let mut fleet = fleet(3);
    serves(&mut fleet, 0, &["old"]);
    (1..3).for_each(|place| serves(&mut fleet, place, &["new", "alias"]));
    let chosen = |fleet: &mut Fleet| {
        fleet.snapshot().default_pool.map(|id| fleet.snapshot().pools[usize::from(id.0)].members.to_vec())
    };
    assert_eq!(chosen(&mut fleet), None);
    let down = |fleet: &mut Fleet, place: usize| {
        let (id, _) = fleet.target(place).unwrap();
        (0..2).for_each(|_| _ = fleet.probed(place, id, failed(), Instant::now()));
    };
    down(&mut fleet, 0);
    assert_eq!(chosen(&mut fleet), Some(vec![1, 2]));
    down(&mut fleet, 1);
    assert_eq!(chosen(&mut fleet), Some(vec![1, 2]), "one of them lives");
    serves(&mut fleet, 2, &["new"]);
    assert_eq!(chosen(&mut fleet), Some(vec![1, 2]));
    down(&mut fleet, 2);
    assert_eq!(chosen(&mut fleet), None, "all are dead");
}

/// Adapters come and go, each under a name of its own: one that comes late is served too, once those that nobody has
/// served for an hour are many.
#[test]
fn ids_that_come_and_go_leave_room_for_others() {
    let (mut fleet, mut now) = (fleet(1), Instant::now());
    let mut names: Vec<String> = Vec::new();
    let mut lists = |fleet: &mut Fleet, batch: usize| {
        names = (0..1_000).map(|n| format!("{batch}-{n}")).collect();
        let ids: Vec<&str> = ["base"].into_iter().chain(names.iter().map(String::as_str)).collect();
        serves(fleet, 0, &ids);
        let snapshot = fleet.snapshot();
        let known = ids.iter().filter(|id| snapshot.models.contains_key(id.as_bytes())).count();
        (known, snapshot.models[b"base".as_slice()], snapshot.pools.len())
    };
    let (_, base, _) = lists(&mut fleet, 0);
    for batch in 1..4 {
        assert_eq!(lists(&mut fleet, batch), (1_001, base, 1 + 1_000 * (batch + 1) + usize::from(base.0)));
    }
    let (known, _, pools) = lists(&mut fleet, 4);
    assert!(known < 200 && pools == 4_096, "{known} {pools}");
    fleet.pools.tick(now);
    now += Duration::from_secs(3_599);
    fleet.pools.tick(now);
    assert_eq!(lists(&mut fleet, 5).0, 1, "it may be back, or asked for yet");
    now += Duration::from_secs(2);
    fleet.pools.tick(now);
    for batch in 6..8 {
        assert_eq!(lists(&mut fleet, batch), (1_001, base, 4_096), "{batch}");
    }
    let snapshot = fleet.snapshot();
    assert!(
        snapshot.pools.iter().all(|pool| pool.members.is_empty() || snapshot.models[pool.name.as_bytes()] == pool.id)
    );
    assert!(snapshot.pools.iter().take(64).skip(2).all(|pool| pool.name.starts_with("0-")), "statistics know them");
}

/// One that makes up ids: what others serve, and come to serve, has room.
#[test]
fn one_engine_does_not_take_the_room_of_all_ids() {
    let (mut fleet, mut now) = (fleet(2), Instant::now());
    serves(&mut fleet, 1, &["base"]);
    let lists = |fleet: &mut Fleet, batch: usize| {
        let names: Vec<String> = (0..1_000).map(|n| format!("{batch}-{n}")).collect();
        let ids: Vec<&str> = ["base"].into_iter().chain(names.iter().map(String::as_str)).collect();
        serves(fleet, 0, &ids);
        let snapshot = fleet.snapshot();
        ids.iter().filter(|id| snapshot.models.contains_key(id.as_bytes())).count()
    };
    assert_eq!([0, 1].map(|batch| lists(&mut fleet, batch)), [1_001, 1_001]);
    assert!((1..100).contains(&lists(&mut fleet, 2)));
    (3..6).for_each(|batch| assert_eq!(lists(&mut fleet, batch), 1, "what both serve"));
    let adapters: Vec<String> = (0..1_000).map(|n| format!("adapter-{n}")).collect();
    serves(&mut fleet, 1, &["base"].into_iter().chain(adapters.iter().map(String::as_str)).collect::<Vec<_>>());
    let snapshot = fleet.snapshot();
    assert!(adapters.iter().all(|id| snapshot.models.contains_key(id.as_bytes())));
    // What nobody has served for an hour counts no more.
    for after in [0, 3_601] {
        now += Duration::from_secs(after);
        fleet.pools.tick(now);
    }
    assert_eq!(lists(&mut fleet, 6), 1_001);
}

/// Adapters are loaded and unloaded by hand, and requests tell sooner than the next look.
#[test]
fn models_are_read_anew_where_requests_were_in_vain() {
    let mut fleet = fleet(2);
    let began = Instant::now();
    let mut rung = |not_found: [u32; 2], unknown: u64, after_ms: u64| {
        fleet.ring_for_models(|slot| not_found[usize::from(slot)], unknown, began + Duration::from_millis(after_ms));
        let is_rung = |member: &Member| {
            let bell = Arc::clone(&member.models_wanted);
            pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        fleet.members().iter().map(is_rung).collect::<Vec<_>>()
    };
    assert_eq!(rung([0, 0], 0, 0), [false, false]);
    assert_eq!(rung([1, 0], 0, 20), [true, false]);
    assert_eq!(rung([2, 0], 0, 40), [false, false], "once a second");
    assert_eq!(rung([2, 0], 1, 60), [false, true], "nobody is known to serve it");
    assert_eq!(rung([2, 0], 1, 1_020), [true, false], "it is not forgotten meanwhile");
    assert_eq!(rung([2, 0], 1, 5_000), [false, false]);
}

/// Hundreds of adapters are served by the same engines as their base model.
#[test]
fn adapters_share_the_tables_of_their_base_model_whatever_engines_take() {
    let mut fleet = fleet(2);
    let mut sealed = |lora: [u32; 2]| {
        for (place, context) in [8_192, 32_768].into_iter().enumerate() {
            let (id, _) = fleet.target(place).unwrap();
            let card = |id: &str, context| Card { context: Some(context), ..Card::made(id) };
            let cards = vec![card("m", context), card("lora", lora[place])].into();
            fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
        }
        let mut snapshot = fleet.snapshot();
        snapshot.seal();
        let [base, lora] =
            [&b"m"[..], b"lora"].map(|id| snapshot.pools[usize::from(snapshot.models[id].0)].taking(20_000).clone());
        assert_eq!((&*base.name, &*lora.name, &*base.members), ("m", "lora", &[1][..]));
        (std::ptr::eq(base.eligible(), lora.eligible()), lora.members.to_vec())
    };
    assert_eq!(sealed([8_192, 32_768]), (true, vec![1]));
    assert_eq!(sealed([32_768, 8_192]), (false, vec![0]), "not what they would refuse");
}

/// Anybody may name what nobody serves, and all are asked for that: in a large fleet less often, and not all at once.
#[test]
fn a_large_fleet_is_asked_less_often_what_it_serves() {
    let (mut fleet, began) = (fleet(500), Instant::now());
    let mut rung = |unknown: u64, after: Duration| {
        fleet.ring_for_models(|_| 0, unknown, began + after);
        let is_rung = |member: &&Member| {
            let bell = Arc::clone(&member.models_wanted);
            pin!(bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        fleet.members().iter().filter(is_rung).count()
    };
    let mut rung_in_a_second = |unknown, second: u64| {
        let looks = (0..50u64).map(|look| rung(unknown, Duration::from_millis(second * 1_000 + 20 * look)));
        looks.fold((0_usize, 0_usize), |(all, most), now| (all + now, most.max(now)))
    };
    assert_eq!(rung_in_a_second(1, 0), (500, 16));
    assert_eq!(rung_in_a_second(2, 2), (0, 0));
    assert_eq!(rung_in_a_second(2, 6), (500, 16));
}

/// As vLLM tells them: with times and permission ids that are new in each answer.
#[test]
fn models_told_anew_are_no_change() {
    let mut fleet = fleet(1);
    let (id, _) = fleet.target(0).unwrap();
    let mut told = |created: u32, root: &str, context: u32| {
        let json = format!("{{\"id\":\"m\",\"created\":{created},\"root\":\"{root}\",\"max_model_len\":{context}}}");
        let card = Card { json: json.into(), root: Some(root.into()), context: Some(context), ..Card::made("m") };
        fleet.members[0].models_doubted = true;
        let changed = fleet.learnt(0, id, Ok(Learnt { cards: vec![card].into(), asks_key: false, left_out: 0 }));
        assert!(!fleet.members()[0].models_doubted, "it serves what it did");
        changed
    };
    assert!(told(1, "/models/m", 2_048) && !told(2, "/models/m", 2_048));
    assert!(told(3, "/models/n", 2_048), "it is loaded from elsewhere");
    assert!(told(4, "/models/n", 4_096) && !told(5, "/models/n", 4_096));
}

/// An engine that is added serves nobody before it is known, and one that is dead from the start never does.
#[test]
fn an_engine_that_is_not_known_leaves_the_others_what_names_no_model() {
    let mut fleet = fleet(2);
    serves(&mut fleet, 0, &["base"]);
    let chosen = |fleet: &mut Fleet, model: Option<&[u8]>| match fleet.snapshot().select(model) {
        Selected::Pool(pool) => pool.members.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!((chosen(&mut fleet, None), chosen(&mut fleet, Some(b"other"))), (vec![0], vec![1]));
    let (id, _) = fleet.target(1).unwrap();
    for _ in 0..2 {
        fleet.probed(1, id, failed(), Instant::now());
    }
    assert_eq!(chosen(&mut fleet, None), [0]);
}

/// Its name has no address yet, as that of a pod that is about to be scheduled: what it is to serve is out of service,
/// and neither another model's engine nor nobody is to answer that there is no such model.
#[test]
fn what_an_engine_without_an_address_is_to_serve_is_out_of_service() {
    let with = |third: &[&str]| {
        let mut config = Config::clone(&fleet(3).config);
        config.upstream[2].models = third.iter().map(|id| (*id).to_owned()).collect();
        let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
        (0..2u16).for_each(|place| _ = fleet.resolved(place.into(), vec![at(place)], Instant::now()));
        fleet
    };
    let chosen = |fleet: &mut Fleet, model: Option<&[u8]>| match fleet.snapshot().select(model) {
        Selected::Pool(pool) => format!("{:?}", pool.members),
        other => format!("{other:?}"),
    };
    let mut configured = with(&["y"]);
    assert_eq!(chosen(&mut configured, Some(b"y")), "[]", "the others have not said what they serve");
    assert_eq!([None, Some(&b"x"[..])].map(|model| chosen(&mut configured, model)), ["[0, 1]", "[0, 1]"]);
    (0..2).for_each(|place| serves(&mut configured, place, &["x"]));
    let models = [None, Some(&b"x"[..]), Some(b"y"), Some(b"z")];
    assert_eq!(models.map(|model| chosen(&mut configured, model)), ["[0, 1]", "[0, 1]", "[]", "UnknownModel"]);
    configured.resolved(2, vec![at(2)], Instant::now());
    assert_eq!(chosen(&mut configured, Some(b"y")), "[2]");

    // It may be any that the others do not serve; beside a fleet of one model nothing is different, as of an engine
    // that is down from the start.
    let mut learning = with(&[]);
    assert_eq!(chosen(&mut learning, Some(b"y")), "[0, 1]");
    (0..2).for_each(|place| serves(&mut learning, place, &["x"]));
    assert_eq!(models.map(|model| chosen(&mut learning, model)), ["[0, 1]"; 4]);
    serves(&mut learning, 1, &["z"]);
    assert_eq!(models.map(|model| chosen(&mut learning, model)), ["NoModel", "[0]", "[]", "[1]"]);
    learning.resolved(2, vec![at(2)], Instant::now());
    assert_eq!(models.map(|model| chosen(&mut learning, model)), ["[2]", "[0]", "[2]", "[1]"]);
    serves(&mut learning, 2, &["y"]);
    assert_eq!(chosen(&mut learning, Some(b"other")), "UnknownModel");
    // None of them has an address.
    let mut config = Config::clone(&fleet(2).config);
    let nowhere = |config: &Config| Fleet::new(Arc::new(config.clone()), Vec::new(), Arc::default());
    assert_eq!(chosen(&mut nowhere(&config), Some(b"y")), "Empty");
    config.upstream[1].models = vec!["y".into()];
    assert_eq!([None, Some(&b"y"[..])].map(|model| chosen(&mut nowhere(&config), model)), ["[]", "[]"]);
    // One is down, and is asked as a last resort.
    let mut down = nowhere(&config);
    down.resolved(0, vec![at(0)], Instant::now());
    let (id, _) = down.target(0).unwrap();
    let refused = || Err(Failure { why: "x".into(), how: How::Refused });
    (0..3).for_each(|_| _ = down.probed(0, id, refused(), Instant::now()));
    assert_eq!([None, Some(&b"x"[..])].map(|model| chosen(&mut down, model)), ["[0]", "[0]"]);
}

/// Who may be told of an engine's models is an engine's to say where it asks for a key that nobody here knows.
#[test]
fn models_behind_a_key_that_is_not_known_are_not_told() {
    let learnt = |asks_key| Ok(Learnt { cards: vec![Card::made("a")].into(), asks_key, left_out: 0 });
    let looked = |fleet: &mut Fleet, place: usize, look| {
        let (id, _) = fleet.target(place).unwrap();
        let changed = fleet.learnt(place, id, look);
        let answer = fleet.snapshot().models_answer;
        (changed, answer.list.is_some(), answer.authorizations.len())
    };
    let asks_keys = |fleet: &mut Fleet| fleet.snapshot().models_answer.asks_keys;
    let mut open = fleet(2);
    assert!(!asks_keys(&mut open), "none has said so");
    assert_eq!(looked(&mut open, 1, Err(ModelsError::KeyWanted)), (true, false, 0));
    assert_eq!(looked(&mut open, 0, learnt(false)), (true, true, 0), "nothing in it is of the one with the key");
    assert!(asks_keys(&mut open));
    let of_pools: Vec<_> = open.snapshot().pools.iter().map(|pool| (pool.name.to_string(), pool.asks_keys)).collect();
    assert_eq!(of_pools, [("default".to_owned(), true), ("a".to_owned(), false)], "each by its own engines");
    assert_eq!(looked(&mut open, 0, Err(ModelsError::Status(503))), (false, true, 0), "it says nothing of keys");
    // It was started again with --api-key.
    assert_eq!(looked(&mut open, 0, Err(ModelsError::KeyWanted)), (true, false, 0));
    assert_eq!(looked(&mut open, 0, Err(ModelsError::KeyWanted)), (false, false, 0));
    assert_eq!(looked(&mut open, 0, learnt(false)), (true, true, 0));

    // What is behind a key that is not known is left out, and nothing else; nor is a login page a list.
    let mut config = Config::clone(&fleet(2).config);
    config.upstream[0].models = vec!["hidden".into()];
    let mut mixed = Fleet::new(Arc::new(config), vec![None, None], Arc::default());
    (0..2u16).for_each(|place| _ = mixed.resolved(place.into(), vec![at(place)], Instant::now()));
    for look in [Err(ModelsError::KeyWanted), Err(ModelsError::Status(429)), Err(ModelsError::Shape)] {
        looked(&mut mixed, 0, look);
        assert!(looked(&mut mixed, 1, learnt(false)).1);
        let answer = mixed.snapshot().models_answer;
        assert!(
            answer.hides_some && answer.cards.contains_key(&b"a"[..]) && !answer.cards.contains_key(&b"hidden"[..])
        );
    }

    let mut config = Config::clone(&fleet(1).config);
    config.upstream[0].models = vec!["a".into()];
    let config = Arc::new(config);
    let configured = |key: Option<&str>| {
        let mut fleet = Fleet::new(Arc::clone(&config), vec![key.map(Arc::from)], Arc::default());
        fleet.resolved(0, vec![at(0)], Instant::now());
        assert!(fleet.snapshot().models_answer.list.is_none(), "it has not said whether it asks for a key");
        fleet
    };
    let mut fleet = configured(None);
    assert_eq!(looked(&mut fleet, 0, Err(ModelsError::KeyWanted)), (true, false, 0));
    for (look, key, expected) in [
        (learnt(false), None, (true, true, 0)),
        (learnt(true), Some("x"), (true, true, 1)),
        (Err(ModelsError::KeyRefused), Some("x"), (true, false, 0)),
        // It has no `/v1/models`, which is why its models are configured.
        (Err(ModelsError::Status(404)), None, (true, true, 0)),
        (Err(ModelsError::Status(404)), Some("x"), (true, true, 1)),
        (Err(ModelsError::Status(503)), Some("x"), (false, false, 0)),
    ] {
        assert_eq!(looked(&mut configured(key), 0, look.clone()), expected, "{look:?} {key:?}");
    }
    // Its `api_key_file` is taken out of the configuration.
    let mut fleet = configured(Some("x"));
    assert_eq!(looked(&mut fleet, 0, learnt(true)), (true, true, 1));
    fleet.reconfigure(config, Vec::new(), Arc::default(), Instant::now());
    let answer = fleet.snapshot().models_answer;
    assert_eq!((&answer.list, answer.authorizations.len()), (&None, 0));
}

/// Each of hundreds of engines may list a thousand adapters, and what is published anew says something of each of them.
#[test]
fn what_a_publication_looks_at_grows_with_what_is_listed_and_no_faster() {
    let looks = |engines: u16, adapters: usize| {
        let mut fleet = fleet(engines);
        for place in 0..engines.into() {
            let ids = (0..adapters).map(|n| format!("adapter-{n}"));
            let adapters = ids.map(|id| Card { is_adapter: true, ..Card::made(&id) });
            let cards = std::iter::once(Card::made("base")).chain(adapters).collect();
            let (id, _) = fleet.target(place).unwrap();
            fleet.learnt(place, id, Ok(Learnt { cards, asks_key: false, left_out: 0 }));
        }
        looks::since();
        assert_eq!(fleet.snapshot().pools.iter().filter(|pool| pool.is_adapter).count(), adapters);
        looks::since()
    };
    let (few, many) = (looks(4, 50), looks(8, 400));
    assert!(many < 2 * 16 * few, "{few} looks, and {many} for sixteen times as much");
    let half = looks(4, 400);
    assert!(many < half + half / 4, "{half} looks, and {many} for as many ids of twice as many engines");
}

/// Each second each of hundreds of engines says something else of its load, and lists what it did.
#[test]
fn between_two_lists_no_id_is_looked_at() {
    let mut fleet = fleet(3);
    for place in 0..3 {
        lists(&mut fleet, place, &[("base", Some("/m"), false), ("alias", Some("/m"), false), ("lora", None, true)]);
    }
    let told = |fleet: &mut Fleet| {
        looks::since();
        let snapshot = fleet.snapshot();
        let pools = snapshot.pools.iter().filter(|pool| !pool.members.is_empty());
        let all = pools.map(|pool| format!("{} {} {:?} {}", pool.name, pool.root, pool.members, pool.token_bytes));
        (all.collect::<Vec<_>>(), looks::since())
    };
    let (first, looks) = told(&mut fleet);
    assert!(first.len() == 3 && looks > 0, "{first:?}, {looks} looks");
    // As vLLM has it, with another time in each answer.
    lists(&mut fleet, 1, &[("base", Some("/m"), false), ("alias", Some("/m"), false), ("lora", None, true)]);
    fleet.members[0].now.as_mut().unwrap().truth.calibration.told(400_000, 80_000);
    let (second, looks) = told(&mut fleet);
    assert_eq!(looks, 0);
    assert_eq!(second, first.iter().map(|pool| pool.replace(" 4", " 5")).collect::<Vec<_>>());
    let (id, _) = fleet.target(2).unwrap();
    lists(&mut fleet, 2, &[("base", Some("/n"), false), ("more", None, true)]);
    let (third, _) = told(&mut fleet);
    assert_eq!(third, ["base base [0, 1, 2] 5", "alias alias [0, 1] 5", "lora lora [0, 1] 5", "more more [2] 4"]);
    fleet.members[2].upstream.models = vec!["base".into()];
    assert_eq!(told(&mut fleet).0, third[..3], "what is configured goes before what is listed");
    assert!(fleet.learnt(2, id, Err(ModelsError::KeyWanted)));
    let asks_keys = |pool: &Pool| &*pool.name == "base" && pool.asks_keys;
    assert!(fleet.snapshot().pools.iter().any(asks_keys), "what is not of a list is as it is now");
}

/// Hundreds of engines have the same thousand adapters: half a megabyte each, in as many copies.
#[test]
fn engines_that_list_the_same_share_one_list() {
    let mut fleet = fleet(3);
    let listed = [("base", Some("/m"), false), ("lora", None, true)];
    (0..3).for_each(|place| lists(&mut fleet, place, &listed[..2 - place / 2]));
    let is_shared = |fleet: &Fleet, one: usize, other: usize| {
        let cards = |place: usize| fleet.members()[place].models.as_ref().unwrap().cards.clone();
        cards(one).are(&cards(other))
    };
    assert!(is_shared(&fleet, 0, 1) && !is_shared(&fleet, 0, 2));
    lists(&mut fleet, 2, &listed);
    assert!(is_shared(&fleet, 0, 2));
    // Nobody is told what stands in the list of one that asks for a key because an open one lists the same.
    let (id, _) = fleet.target(1).unwrap();
    let cards: Cards = fleet.members()[0].models.as_ref().unwrap().cards.iter().cloned().collect();
    fleet.learnt(1, id, Ok(Learnt { cards, asks_key: true, left_out: 0 }));
    assert!(!is_shared(&fleet, 0, 1));
}
