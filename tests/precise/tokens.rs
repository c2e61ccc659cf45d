//! A model for tests: its tokenizer and chat template as files, prompts as its engine would write them, and their
//! blocks as that would tell them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::engine::BLOCK_SIZE;

/// Ids: 256 bytes, then these, then words.
const SPECIAL: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
const FIRST_SPECIAL: u32 = 256;
const FIRST_WORD: u32 = 300;
const WORDS: u32 = 256;
/// Bytes of a word: a space and three digits.
const WORD_BYTES: usize = 4;

/// The folder that `tokenizer` names.
pub static FOLDER: LazyLock<PathBuf> =
    LazyLock::new(|| folder("precise-model", include_str!("../form/templates/chatml.jinja")));
/// The folder of a model whose template writes tools.
pub static FOLDER_OF_TOOLS: LazyLock<PathBuf> =
    LazyLock::new(|| folder("precise-model-of-tools", include_str!("../form/templates/qwen2.5.jinja")));

/// A folder of this name, for a model with this template.
pub fn folder(name: &str, template: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut vocabulary = Map::new();
    (0..=255).for_each(|byte| drop(vocabulary.insert(letter(byte).to_string(), u32::from(byte).into())));
    (0..WORDS).for_each(|word| {
        let letters: String = word_text(word).bytes().map(letter).collect();
        vocabulary.insert(letters, (FIRST_WORD + word).into());
    });
    let added: Vec<Value> = (FIRST_SPECIAL..)
        .zip(SPECIAL)
        .map(|(id, content)| json!({"id": id, "content": content, "special": true, "normalized": false}))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "decoder": {"type": "ByteLevel"}, "post_processor": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// A byte as byte-level tokenizers write it.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let place = (0..byte).filter(|before| !plain(*before)).count() as u32;
    char::from_u32(if plain(byte) { byte.into() } else { 256 + place }).unwrap()
}

fn word_text(word: u32) -> String {
    format!(" {word:03}")
}

/// So many bytes of words, different ones for each `seed`.
pub fn text(seed: u64, bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word_text((state >> 33) as u32 % WORDS)
    };
    (0..bytes / WORD_BYTES).map(|_| next()).collect()
}

/// The prompt that the engine makes of one user message.
pub fn chat_prompt(content: &str) -> String {
    format!("<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n")
}

/// The tokens of a prompt.
pub fn tokens(prompt: &str) -> Vec<u32> {
    let (mut rest, mut tokens) = (prompt.as_bytes(), Vec::new());
    while let Some(&first) = rest.first() {
        let special = (FIRST_SPECIAL..).zip(SPECIAL).find(|(_, special)| rest.starts_with(special.as_bytes()));
        let digits = rest.get(1..WORD_BYTES).filter(|digits| first == b' ' && digits.iter().all(u8::is_ascii_digit));
        let word: Option<u32> = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let (id, bytes) = match (special, word) {
            (Some((id, special)), _) => (id, special.len()),
            (None, Some(word)) if word < WORDS => (FIRST_WORD + word, WORD_BYTES),
            _ => (first.into(), 1),
        };
        tokens.push(id);
        rest = &rest[bytes..];
    }
    tokens
}

/// How an engine writes its events.
#[derive(Clone, Copy, PartialEq)]
pub enum Dialect {
    Maps,
    Arrays,
}

/// The whole blocks of a prompt, as an engine names them.
#[derive(Clone)]
pub struct Blocks {
    pub tokens: Vec<u32>,
    pub names: Vec<u64>,
    salt: Option<String>,
    /// Tokens of each block.
    size: usize,
}

impl Blocks {
    pub fn of(prompt: &str) -> Blocks {
        Blocks::salted(prompt, None)
    }

    pub fn salted(prompt: &str, salt: Option<&str>) -> Blocks {
        Blocks::sized(prompt, salt, BLOCK_SIZE)
    }

    pub fn sized(prompt: &str, salt: Option<&str>, size: usize) -> Blocks {
        let tokens = tokens(prompt);
        let name = |place: usize| {
            let mut hasher = DefaultHasher::new();
            (salt, &tokens[..(place + 1) * size]).hash(&mut hasher);
            hasher.finish()
        };
        let names = (0..tokens.len() / size).map(name).collect();
        Blocks { tokens, names, salt: salt.map(str::to_owned), size }
    }

    /// Tokens in whole blocks.
    pub fn held(&self) -> usize {
        self.names.len() * self.size
    }

    /// Tokens in the whole blocks that both begin with.
    pub fn shared(&self, other: &Blocks) -> usize {
        self.names.iter().zip(&other.names).take_while(|(one, other)| one == other).count() * self.size
    }

    /// The event that all are stored.
    pub fn stored(&self, dialect: Dialect) -> Value {
        self.stored_of(0..self.names.len(), dialect)
    }

    /// The event that some are stored.
    pub fn stored_of(&self, which: std::ops::Range<usize>, dialect: Dialect) -> Value {
        let tokens = &self.tokens[which.start * self.size..which.end * self.size];
        let parent = which.start.checked_sub(1).map(|before| self.names[before]);
        let names = &self.names[which.clone()];
        let extra = |place: usize| self.salt.as_ref().filter(|_| place == 0).map(|salt| vec![salt.clone()]);
        let extras = self.salt.as_ref().map(|_| which.map(extra).collect::<Vec<_>>());
        match dialect {
            Dialect::Maps => json!({
                "type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
                "block_size": self.size, "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": extras,
            }),
            Dialect::Arrays => {
                json!(["BlockStored", names, parent, tokens, self.size, null, "GPU", null, extras])
            }
        }
    }

    /// The event that some are gone.
    pub fn removed(&self, which: std::ops::Range<usize>, dialect: Dialect) -> Value {
        let names = &self.names[which];
        match dialect {
            Dialect::Maps => json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}),
            Dialect::Arrays => json!(["BlockRemoved", names, "GPU"]),
        }
    }
}

/// The event that all are gone.
pub fn cleared(dialect: Dialect) -> Value {
    match dialect {
        Dialect::Maps => json!({"type": "AllBlocksCleared"}),
        Dialect::Arrays => json!(["AllBlocksCleared"]),
    }
}
