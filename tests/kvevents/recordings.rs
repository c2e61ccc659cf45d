//! What a vLLM 0.32.0 sent: hashes as numbers, and as 32 bytes with an adapter. `messages.json` has each message as the
//! recorder's own decoder read it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use warmfront::kvevents::{Batch, Event, ExtraKey};

pub const RECORDINGS: [&str; 2] = ["sha256-int", "sha256_cbor-bytes-lora"];

pub fn file(recording: &str, name: &str) -> Vec<u8> {
    let path = room(recording).join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Payloads in the order of their numbers.
pub fn payloads(recording: &str) -> Vec<Vec<u8>> {
    let count = messages(recording).len();
    (0..count).map(|number| file(recording, &format!("{number:04}.f2"))).collect()
}

pub fn messages(recording: &str) -> Vec<Value> {
    serde_json::from_slice(&file(recording, "messages.json")).unwrap()
}

fn room(recording: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv-events").join(recording)
}

/// A batch as the recorder wrote it, without the fields that are of no use.
pub fn shown(batch: &Batch) -> Value {
    let text = |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let event = |event: Event<'_>| match event {
        Event::Stored(stored) => json!({
            "type": "BlockStored",
            "block_hashes": stored.hashes,
            "parent_block_hash": stored.parent,
            "token_ids": stored.tokens,
            "block_size": stored.block_size,
            "medium": text(stored.medium),
            "lora_name": text(stored.lora_name),
            "extra_keys": (0..stored.hashes.len()).map(|block| {
                let key = |key| match key {
                    ExtraKey::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    ExtraKey::Other(bytes) => panic!("not recorded: {bytes:?}"),
                };
                let keys: Vec<String> = stored.extras.keys(block).map(key).collect();
                if keys.is_empty() { Value::Null } else { json!(keys) }
            }).collect::<Vec<_>>(),
            "group_idx": stored.group,
            "kv_cache_spec_kind": text(stored.attention),
        }),
        Event::Removed(removed) => json!({
            "type": "BlockRemoved",
            "block_hashes": removed.hashes,
            "medium": text(removed.medium),
            "group_idx": removed.group,
        }),
        Event::Cleared => json!({"type": "AllBlocksCleared"}),
    };
    json!([batch.time(), batch.events().map(event).collect::<Vec<_>>(), batch.rank()])
}

/// What was recorded, with hashes as 64 bits: of a digest, its last 16 digits.
pub fn expected(message: &Value) -> Value {
    let mut payload = message["payload"].clone();
    // In quotes there: serde_json would read the last digit of a number as it comes.
    payload[0] = json!(payload[0].as_str().unwrap().parse::<f64>().unwrap());
    let short = |hash: &mut Value| {
        if let Some(digits) = hash["hex"].as_str() {
            let (_, end) = digits.split_at(digits.len() - 16);
            *hash = json!(u64::from_str_radix(end, 16).unwrap());
        }
    };
    for event in payload[1].as_array_mut().unwrap() {
        let fields = event.as_object_mut().unwrap();
        fields.remove("lora_id");
        fields.remove("session_id");
        if let Some(hashes) = fields.get_mut("block_hashes") {
            hashes.as_array_mut().unwrap().iter_mut().for_each(short);
        }
        fields.get_mut("parent_block_hash").map(short);
    }
    payload
}
