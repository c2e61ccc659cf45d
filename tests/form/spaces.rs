//! Where a tokenizer puts a space before the text unless there is one, its tokens do not tell whose it was: requests
//! and events are read alike.

use std::sync::Arc;

use serde_json::{Value, json};
use warmfront::kvevents::{Extras, Stored};
use warmfront::mirror::{Mirror, Reading, Sink};
use warmfront::scan::{Api, Renderer};
use warmfront::template;
use warmfront::vocabulary::Vocabulary;

const ROOT: u64 = 77;
const BLOCK: usize = 16;
const PIECES: [&str; 13] = ["<unk>", "<s>", "</s>", "▁", "[", "I", "N", "S", "T", "]", "a", "▁[", "▁a"];
/// Tokens of `[INST]`, without and with a space before it, and of ` a`.
const INSTRUCTION: [u32; 6] = [4, 5, 6, 7, 8, 9];
const SPACED: [u32; 6] = [11, 5, 6, 7, 8, 9];
const WORD: u32 = 12;

/// As Mistral's first models have it.
fn vocabulary() -> Vocabulary {
    let pieces: serde_json::Map<String, Value> =
        PIECES.iter().zip(0..).map(|(piece, id)| ((*piece).to_owned(), json!(id))).collect();
    let added: Vec<Value> = (0..3).map(|id| json!({"id": id, "content": PIECES[id], "special": true})).collect();
    let file = json!({
        "added_tokens": added,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": pieces, "merges": [["▁", "["], ["▁", "a"]]},
    });
    Vocabulary::read(file.to_string().as_bytes()).expect("a tokenizer")
}

struct Nobody;

impl Sink for Nobody {
    fn hold(&mut self, _: Option<u64>, _: u64, _: u32) {}
    fn worth(&mut self, _: u64, _: u32) {}
    fn release(&mut self, _: u64) {}
}

/// How many links a request's prompt has, and how many of them an engine holds that has computed these tokens.
fn found(jinja: &str, api: Api, body: &Value, tokens: &[u32]) -> (usize, usize) {
    let vocabulary = Arc::new(vocabulary());
    let source = template::read(Some(br#"{"bos_token": "<s>"}"#), Some(jinja.as_bytes())).expect("a template");
    let form = template::form(&source, Arc::clone(&vocabulary)).form;
    let mut renderer = Renderer::new();
    let rendering = renderer.render(api, &form, body.to_string().as_bytes(), false);
    assert_eq!(rendering.ends, None, "{body}");
    let (mut blocks, mut steps) = (Vec::new(), Vec::new());
    renderer.links(ROOT, &mut blocks, &mut steps);
    let names: Vec<u64> = (1..=(tokens.len() / BLOCK) as u64).collect();
    let tokens = &tokens[..names.len() * BLOCK];
    let stored = Stored {
        hashes: &names,
        parent: None,
        tokens,
        block_size: BLOCK as u32,
        medium: None,
        lora_name: None,
        salt: None,
        nameless: false,
        group: None,
        attention: None,
        window: None,
        extras: Extras::default(),
    };
    let mut mirror = Mirror::new(100);
    mirror.stored(&stored, &Reading { vocabulary: &vocabulary, root: &|_, _| ROOT }, &mut Nobody);
    let links = || blocks.iter().chain(&steps);
    (links().count(), links().filter(|link| mirror.owns(**link)).count())
}

/// Tokens as tokenizers 0.23 makes them, each alone.
#[test]
fn a_space_that_may_be_the_tokenizers_is_left_out_by_both_sides() {
    let turn = |before: &str| {
        format!(
            "{{{{ bos_token }}}}{{% for message in messages %}}{{{{ '{before}' + message['content'] }}}}{{% endfor %}}"
        )
    };
    let words = [WORD; 120];
    let (spaced, bare) = (turn(" [INST] "), turn("[INST] "));
    let content = ["a"; 120].join(" ");
    let chat = json!({"messages": [{"role": "user", "content": content}], "add_generation_prompt": false});
    let prompt = |text: String, begins: bool| json!({"prompt": text, "add_special_tokens": begins});
    for (name, jinja, api, body, tokens) in [
        ("a space behind what begins", &spaced, Api::Chat, &chat, [&[1][..], &SPACED, &words].concat()),
        ("none", &bare, Api::Chat, &chat, [&[1][..], &INSTRUCTION, &words].concat()),
        ("a text", &bare, Api::Completions, &prompt(content.clone(), true), [&[1][..], &words].concat()),
        (
            "one behind a space",
            &bare,
            Api::Completions,
            &prompt(format!(" {content}"), true),
            [&[1][..], &words].concat(),
        ),
        ("one with nothing before it", &bare, Api::Completions, &prompt(format!(" {content}"), false), words.to_vec()),
        ("two spaces", &bare, Api::Completions, &prompt(format!("  {content}"), true), [&[1, 3][..], &words].concat()),
    ] {
        let (all, held) = found(jinja, api, body, &tokens);
        assert_eq!((all, held), (3, 3), "{name}");
    }
}
