//! Prompts that a vLLM engine was asked for, and the tokens that it made of them: what a form writes of the first has
//! to be the text of the second.

use std::sync::Arc;

use serde_json::Value;
use warmfront::scan::Cut;
use warmfront::template::{self, Message};
use warmfront::vocabulary::{Run, Vocabulary};

use super::templates::message;

pub const TOKENIZER: &[u8] = include_bytes!("../fixtures/tiny-llama/tokenizer.json");
pub const CONFIG: &[u8] = include_bytes!("../fixtures/tiny-llama/tokenizer_config.json");
const PROMPTS: &[u8] = include_bytes!("../fixtures/tiny-llama/prompts.json");
/// Tokens of one of the engine's blocks.
const BLOCK: usize = 32;

#[test]
fn prompts_are_the_text_of_the_tokens_that_engines_made_of_them() {
    let vocabulary = Arc::new(Vocabulary::read(TOKENIZER).expect("a tokenizer"));
    let source = template::read(Some(CONFIG), None).expect("a template");
    let form = template::form(&source, Arc::clone(&vocabulary)).form;
    let chat = form.chat.expect("chats");
    let prompts: Vec<Value> = serde_json::from_slice(PROMPTS).expect("JSON");
    let (mut chats, mut blocks) = (0, 0);
    for prompt in &prompts {
        let name = &prompt["name"];
        let bytes = match prompt["messages"].as_array() {
            Some(messages) => {
                let role = |message: &Value| message["role"].as_str().expect("a role").to_owned();
                let messages: Vec<Message> =
                    messages.iter().map(|said| message(&role(said), &said["content"])).collect();
                let written = template::write(&chat, &messages, true).expect("a form");
                assert!(written.whole, "{name}");
                chats += 1;
                written.bytes
            }
            None => prompt["prompt"].as_str().expect("text").into(),
        };
        let tokens: Vec<u32> =
            prompt["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id") as u32).collect();
        let (mut text, mut run, mut at) = (Vec::new(), Run::begin(&vocabulary), Vec::new());
        for block in tokens.chunks(BLOCK) {
            for id in block {
                text.extend_from_slice(run.text(&vocabulary, *id).expect("a known token"));
            }
            assert_eq!(
                String::from_utf8_lossy(&text),
                String::from_utf8_lossy(&bytes[..text.len().min(bytes.len())]),
                "{name}"
            );
            blocks += usize::from(block.len() == BLOCK);
            at.push(text.len());
        }
        assert_eq!(text, bytes, "{name}");
        assert_eq!(steps(&text, &at), steps(&bytes, &[]), "{name}");
    }
    println!("{} prompts, {chats} of them chats, {blocks} whole blocks of {BLOCK} tokens", prompts.len());
    assert_eq!((prompts.len(), chats, blocks), (10, 4, 51));
}

/// The links of a prompt that grows as it is cut here.
fn steps(bytes: &[u8], at: &[usize]) -> Vec<(u64, u64)> {
    let (mut cut, mut steps, mut from) = (Cut::default(), Vec::new(), 0);
    for to in at.iter().copied().chain([bytes.len()]) {
        cut.push(1, &bytes[from..to], |step| steps.push((step.at, step.link)));
        from = to;
    }
    steps
}
