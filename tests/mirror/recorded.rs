//! What a vLLM 0.32.0 told, and what it held by that.

use std::collections::BTreeMap;

use serde_json::Value;
use warmfront::kvevents::Batch;

use crate::{Engine, after, links, plain, roots, text};

const RECORDINGS: [&str; 2] = ["sha256-int", "sha256_cbor-bytes-lora"];

fn file(recording: &str, name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/kv-events/{recording}/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A block as the recorder's decoder read it: its tokens, what it follows, the root of its prompt.
struct Block {
    parent: Option<u64>,
    tokens: Vec<u32>,
    root: u64,
    copies: u32,
}

fn name(value: &Value) -> Option<u64> {
    let digits = |value: &str| u64::from_str_radix(value.split_at(value.len() - 16).1, 16).unwrap();
    value["hex"].as_str().map(digits).or(value.as_u64())
}

/// What is there after an event, by its JSON.
fn apply(blocks: &mut BTreeMap<u64, Block>, event: &Value) {
    let hashes = || event["block_hashes"].as_array().unwrap().iter().filter_map(name);
    match event["type"].as_str().unwrap() {
        "BlockStored" => {
            let size = event["block_size"].as_u64().unwrap() as usize;
            let tokens: Vec<u32> =
                event["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let adapter = event["lora_name"].as_str();
            let salt = event["extra_keys"][0].as_array().and_then(|keys| keys.last()).and_then(Value::as_str);
            let salt = salt.filter(|salt| Some(*salt) != adapter);
            let root = roots(adapter.map(str::as_bytes), salt.map(str::as_bytes));
            let mut parent = name(&event["parent_block_hash"]);
            for (hash, tokens) in hashes().zip(tokens.chunks(size)) {
                let root = parent.map_or(root, |parent| blocks[&parent].root);
                let fresh = Block { parent, tokens: tokens.to_vec(), root, copies: 0 };
                blocks.entry(hash).or_insert(fresh).copies += 1;
                parent = Some(hash);
            }
        }
        "BlockRemoved" => hashes().for_each(|hash| {
            blocks.get_mut(&hash).unwrap().copies -= 1;
            blocks.retain(|_, block| block.copies > 0);
        }),
        _ => blocks.clear(),
    }
}

/// What an index has to hold then: every step of every block whose predecessors are all there, and what it may be
/// worth: a last step with half of it left is worth less once something follows its block.
fn expected(blocks: &BTreeMap<u64, Block>, engine: &Engine) -> BTreeMap<u64, (Option<u64>, [u32; 2])> {
    let mut expected = BTreeMap::new();
    for block in blocks.values() {
        let mut chain = vec![block];
        while let Some(before) = chain[0].parent {
            let Some(before) = blocks.get(&before) else { break };
            chain.insert(0, before);
        }
        if chain[0].parent.is_some() {
            continue;
        }
        let tokens: Vec<u32> = chain.iter().flat_map(|block| &block.tokens).copied().collect();
        let whole = text(&engine.vocabulary, &tokens);
        let begin = whole.len() - text(&engine.vocabulary, &block.tokens).len();
        let all = links(block.root, &whole);
        for (at, link) in all.iter().filter(|(at, _)| *at > begin) {
            let before = tokens.len() - block.tokens.len();
            let held = |rest: usize| [tokens.len(), before][usize::from(whole.len() - at >= rest)] as u32;
            expected.insert(*link, (after(&all, *at), [64, 32].map(held)));
        }
    }
    expected
}

#[test]
fn recorded_engines_are_held_as_they_say_after_every_message() {
    for recording in RECORDINGS {
        let messages: Vec<Value> = serde_json::from_slice(&file(recording, "messages.json")).unwrap();
        let mut engine = Engine::new(plain(8_192));
        let (mut blocks, mut batch) = (BTreeMap::new(), Batch::default());
        let mut most = 0;
        for (number, message) in messages.iter().enumerate() {
            batch.read(&file(recording, &format!("{number:04}.f2"))).unwrap();
            batch.events().for_each(|event| engine.tell(event));
            message["payload"][1].as_array().unwrap().iter().for_each(|event| apply(&mut blocks, event));
            assert_eq!(engine.mirror.blocks() as usize, blocks.len(), "{recording} after message {number}");
            let expected = expected(&blocks, &engine);
            assert!(engine.held.0.keys().eq(expected.keys()), "{recording} after message {number}");
            for (link, (after, tokens)) in &engine.held.0 {
                let (may_follow, worth) = &expected[link];
                assert!(after == may_follow && worth.contains(tokens), "{recording} after message {number}");
            }
            most = most.max(engine.held.0.len());
        }
        let counts = engine.mirror.counts();
        assert!(most > 300, "{most} links at most in {recording}");
        let unread = [counts.orphans, counts.opaque, counts.malformed, counts.deep, counts.beyond];
        assert_eq!((unread, counts.ambiguous, counts.groups, counts.tiers, counts.unknown), ([0; 5], 0, 0, 0, 0));
        // The second engine was asked once to tell of reused blocks again. These are no further copies, but look like
        // it: they are still believed to be there when they have gone and are computed once more.
        assert_eq!(counts.copies, if recording == RECORDINGS[1] { 14 } else { 0 }, "{recording}");
    }
}

/// Who hears only the end of a recording knows what was stored there, and holds what begins there.
#[test]
fn who_comes_late_holds_what_begins_later() {
    for recording in RECORDINGS {
        for from in 2..15 {
            let mut engine = Engine::new(plain(8_192));
            let (mut whole, mut batch) = (Engine::new(plain(8_192)), Batch::default());
            for number in 0..16 {
                batch.read(&file(recording, &format!("{number:04}.f2"))).unwrap();
                batch.events().for_each(|event| whole.tell(event));
                if number >= from {
                    batch.events().for_each(|event| engine.tell(event));
                }
            }
            let follows = |engine: &Engine, link: &u64| engine.held.0.get(link).map(|(after, _)| *after);
            assert!(engine.held.0.keys().all(|link| follows(&engine, link) == follows(&whole, link)));
            assert!(!engine.held.0.is_empty() && engine.held.0.len() < whole.held.0.len(), "{recording} from {from}");
        }
    }
}
