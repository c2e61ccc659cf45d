//! A prompt goes to the engine that says it holds it, for as long as it says so.

use serde_json::json;

use crate::engine::BLOCK_SIZE;
use crate::on_both;
use crate::scene::{Scene, body};
use crate::tokens::{Blocks, Dialect, chat_prompt, cleared, text, tokens};

const BYTES: usize = 3_000;

#[test]
fn a_prompt_goes_to_the_engine_that_told_of_it() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        for (seed, dialect) in [(1, Dialect::Maps), (2, Dialect::Arrays)] {
            let content = text(seed, BYTES);
            let blocks = Blocks::of(&chat_prompt(&content));
            scene.tells(1, &[blocks.stored(dialect)]);
            // Half of it, followed by other text.
            let half = content.get(..BYTES / 2).unwrap().to_owned() + &text(100 + seed, BYTES);
            let shared = blocks.shared(&Blocks::of(&chat_prompt(&half)));
            let chosen = scene.chat(&half);
            assert!(shared > 300 && chosen.place == 1, "{driver}: {chosen:?}");
            assert!(chosen.held.abs_diff(shared) <= BLOCK_SIZE, "{driver}: {chosen:?} of {shared}");
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held, &*chosen.reason), (1, blocks.held(), "warm"), "{driver}");
            assert_eq!(scene.engines[1].body(), body(&content).to_string().into_bytes());
        }
        assert_eq!(scene.front.metric("warmfront_prompts_not_rendered_total"), 0.0);
        assert_eq!(scene.front.metric("warmfront_prompts_rendered_total"), 4.0);
        assert_eq!(scene.front.stop(), Some(0));
    });
}

/// Each engine tells for itself, and the one that holds more of a prompt gets it.
#[test]
fn who_told_of_more_of_a_prompt_gets_it() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let content = text(3, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        scene.tells(1, &[blocks.stored_of(0..10, Dialect::Maps)]);
        scene.tells(0, &[blocks.stored_of(0..10, Dialect::Arrays), blocks.stored_of(10..20, Dialect::Arrays)]);
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (0, 20 * BLOCK_SIZE), "{driver}");
    });
}

#[test]
fn what_is_removed_is_held_no_more_until_it_is_stored_again() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let content = text(4, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        let all = blocks.stored(Dialect::Maps);
        scene.tells(1, std::slice::from_ref(&all));
        assert_eq!(scene.chat(&content).held, blocks.held(), "{driver}");
        let middle = 20;
        scene.tells(1, &[blocks.removed(middle..middle + 1, Dialect::Maps)]);
        let (chosen, before) = (scene.chat(&content), middle * BLOCK_SIZE);
        assert_eq!(chosen.place, 1, "{driver}");
        assert!((before - BLOCK_SIZE..=before).contains(&chosen.held), "{driver}: {chosen:?} of {before}");
        scene.tells(1, &[blocks.stored_of(middle..middle + 1, Dialect::Maps)]);
        assert_eq!(scene.chat(&content).held, blocks.held(), "{driver}");
        scene.tells(1, &[cleared(Dialect::Maps)]);
        assert_eq!(scene.chat(&content).held, 0, "{driver}");
        let other = text(5, BYTES);
        let others = Blocks::of(&chat_prompt(&other));
        scene.tells(0, &[others.stored(Dialect::Arrays)]);
        scene.tells(0, &[others.removed(0..others.names.len(), Dialect::Arrays), all, cleared(Dialect::Arrays)]);
        assert_eq!(scene.chat(&other).held, 0, "{driver}");
    });
}

/// Blocks of layers with windows or states do not say what a prompt finds. They are ignored beside blocks of layers
/// that see all of it.
#[test]
fn who_tells_of_windows_alone_is_known_from_what_was_sent_there() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let (content, other) = (text(7, BYTES), text(8, BYTES));
        let (blocks, others) = (Blocks::of(&chat_prompt(&content)), Blocks::of(&chat_prompt(&other)));
        let of = |blocks: &Blocks, group: u32, kind: &str| {
            let mut event = blocks.stored(Dialect::Maps);
            (event["group_idx"], event["kv_cache_spec_kind"]) = (json!(group), json!(kind));
            event
        };
        scene.tells(0, &[of(&others, 0, "sliding_window"), of(&others, 1, "full_attention")]);
        scene.tells(1, &[of(&blocks, 0, "mamba")]);
        scene.until_rung(1, "approximate");
        assert_eq!(scene.front.endpoint(0)["cache"]["rung"], "exact", "{driver}");
        assert_eq!(scene.chat(&other).place, 0, "{driver}");
        let first = scene.chat(&content);
        assert_eq!(first.held, 0, "{driver}");
        let again = scene.chat(&content);
        assert!(again.place == first.place && again.held > 300, "{driver}: {first:?}, {again:?}");
        scene.tells(1, &[of(&blocks, 0, "mamba"), of(&blocks, 1, "full_attention")]);
        scene.until_rung(1, "exact");
        let chosen = scene.chat(&content);
        assert!(chosen.held.abs_diff(blocks.held()) <= BLOCK_SIZE, "{driver}: {chosen:?}");
    });
}

/// A choice counts before the engine can have told of it, and not once it says that it holds nothing.
#[test]
fn a_choice_is_a_promise() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        for seed in 6..10 {
            let content = text(seed, BYTES);
            let first = scene.chat(&content);
            assert_eq!(first.held, 0, "{driver}");
            let again = scene.chat(&content);
            assert!(again.place == first.place && again.held > 700, "{driver}: {first:?}, {again:?}");
            scene.tells(first.place, &[cleared(Dialect::Arrays)]);
            assert_eq!(scene.chat(&content).held, 0, "{driver}");
            (0..2).for_each(|place| assert_eq!(scene.front.endpoint(place)["cache"]["rung"], "exact"));
        }
    });
}

#[test]
fn prompts_with_a_salt_meet_only_their_own() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let (content, salt) = (text(11, BYTES), "per tenant");
        let prompt = chat_prompt(&content);
        let salted = Blocks::salted(&prompt, Some(salt));
        scene.tells(1, &[salted.stored(Dialect::Maps)]);
        let with = |salt: &str| {
            let mut body = body(&content);
            body["cache_salt"] = salt.into();
            scene.ask("/v1/chat/completions", &body)
        };
        assert_eq!(with("another").held, 0, "{driver}");
        assert_eq!(scene.chat(&content).held, 0, "{driver}");
        let chosen = with(salt);
        assert_eq!((chosen.place, chosen.held), (1, salted.held()), "{driver}");
        // The same text without an adapter, told by the other engine.
        let more = text(12, BYTES);
        let plain = Blocks::of(&chat_prompt(&more));
        scene.tells(0, &[plain.stored(Dialect::Arrays)]);
        let mut body = body(&more);
        body["cache_salt"] = salt.into();
        assert_eq!(scene.ask("/v1/chat/completions", &body).held, 0, "{driver}");
        let chosen = scene.chat(&more);
        assert_eq!((chosen.place, chosen.held), (0, plain.held()), "{driver}");
    });
}

/// SGLang's way: the request's model is the base's.
#[test]
fn prompts_with_an_adapter_meet_only_their_own() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let content = text(15, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        let mut event = blocks.stored(Dialect::Maps);
        event["lora_name"] = "sums".into();
        scene.tells(1, &[event]);
        let with = |adapter: &str, salt: serde_json::Value| {
            let mut body = body(&content);
            (body["lora_path"], body["cache_salt"]) = (adapter.into(), salt);
            scene.ask("/v1/chat/completions", &body)
        };
        assert_eq!(with("others", json!(null)).held, 0, "{driver}");
        assert_eq!(with("sums", json!("salt")).held, 0, "{driver}");
        assert_eq!(scene.chat(&content).held, 0, "{driver}");
        let chosen = with("sums", json!(null));
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// vLLM's way: a request names its adapter as the model.
#[test]
fn prompts_of_an_adapters_own_name_meet_only_their_own() {
    on_both(|driver| {
        let scene = Scene::with_adapter(driver, "sums", "");
        let named = |name: &str, content: &str| {
            let mut body = body(content);
            body["model"] = name.into();
            scene.ask("/v1/chat/completions", &body)
        };
        for (seed, place, adapter, other) in [(16, 1, json!("sums"), "tiny"), (17, 0, json!(null), "sums")] {
            let content = text(seed, BYTES);
            let blocks = Blocks::of(&chat_prompt(&content));
            let mut event = blocks.stored(Dialect::Maps);
            event["lora_name"] = adapter.clone();
            scene.tells(place, &[event]);
            assert_eq!(named(other, &content).held, 0, "{driver}: {other}");
            let chosen = named(adapter.as_str().unwrap_or("tiny"), &content);
            assert_eq!((chosen.place, chosen.held), (place, blocks.held()), "{driver}: {adapter}");
        }
    });
}

/// Completions of plain text, and of token ids.
#[test]
fn completions_meet_what_was_told() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        for (seed, place) in [(13, 0), (14, 1)] {
            let prompt = text(seed, BYTES);
            let blocks = Blocks::of(&prompt);
            scene.tells(place, &[blocks.stored(Dialect::Maps)]);
            for prompt in [json!(prompt), json!(tokens(&prompt))] {
                let chosen = scene.ask("/v1/completions", &json!({"model": "tiny", "prompt": prompt, "max_tokens": 1}));
                assert_eq!((chosen.place, chosen.held), (place, blocks.held()), "{driver}: {seed}");
            }
            // A chat of the same text is another prompt.
            assert_eq!(scene.chat(&prompt).held, 0, "{driver}");
        }
    });
}
