//! A plain renderer of whole values, which what is written of bodies is compared with.

use super::super::{ALTERING, Api, Form, Renderer, Why};
use super::random::Json;
use crate::limits::BLOCK_BYTES;
use crate::scan::{Chat, Cut, Place, Tokens, Turn};

/// What chains begin with here.
pub const ROOT: u64 = 0x0123_4567_89ab_cdef;

/// The links of the last prompt are those of these bytes.
pub fn check_links(renderer: &Renderer, text: &[u8]) {
    let (mut blocks, mut steps) = (vec![1], vec![2]);
    renderer.links(ROOT, &mut blocks, &mut steps);
    let (mut expected_blocks, mut expected_steps) = (Vec::new(), Vec::new());
    Cut::default().push(ROOT, text, |step| {
        let whole = step.at.is_multiple_of(BLOCK_BYTES as u64);
        if whole { &mut expected_blocks } else { &mut expected_steps }.push(step.link);
    });
    assert_eq!((blocks, steps), (expected_blocks, expected_steps), "{}", text.escape_ascii());
}

/// The bytes that are known, and, if more follow, all that may be said of why.
pub fn expected(api: Api, form: &Form, body: &[(&'static str, Json)]) -> (Vec<u8>, Vec<Why>) {
    let last = |name: &str| body.iter().rev().find(|(other, _)| *other == name).map(|(_, value)| value);
    let says = |name: &str| last(name).filter(|value| **value != Json::Raw("null"));
    let mut whys = Vec::new();
    if ALTERING.iter().any(|name| says(std::str::from_utf8(name).unwrap()).is_some()) {
        whys.push(Why::Field);
    }
    let flags = ["add_generation_prompt", "continue_final_message", "add_special_tokens"].map(last);
    if flags.iter().flatten().any(|flag| ![Json::Raw("true"), Json::Raw("false")].contains(flag)) {
        whys.push(Why::Field);
    }
    let [generation, continues, special] = flags.map(|flag| flag.map(|flag| *flag == Json::Raw("true")));
    if says("tools").is_some() {
        whys.push(Why::Tools);
    }
    let messages = says("messages").filter(|_| api != Api::Completions);
    let prompt = says("prompt").filter(|_| api != Api::Chat);
    if messages.is_some() == prompt.is_some() {
        whys.push(Why::Prompt);
    }
    if messages.is_some() && special == Some(true) {
        whys.push(Why::Field);
    }
    if !whys.is_empty() {
        return (Vec::new(), whys);
    }
    if let Some(prompt) = prompt {
        return bare(form, special != Some(false), prompt);
    }
    let Some(chat) = &form.chat else { return (Vec::new(), vec![Why::Template]) };
    let Some(Json::Array(messages)) = messages else { return (Vec::new(), vec![Why::Prompt]) };
    conversation(chat, messages, continues == Some(true), generation != Some(false))
}

fn conversation(chat: &Chat, messages: &[Json], continues: bool, generation: bool) -> (Vec<u8>, Vec<Why>) {
    if messages.is_empty() {
        return (Vec::new(), vec![Why::Prompt]);
    }
    let places = |place: Place| chat.turns.iter().any(|turn| turn.place == place);
    let looks_back = places(Place::First) || places(Place::Nowhere);
    let mut text = chat.start.to_vec();
    for (place, one) in messages.iter().enumerate() {
        let (turn, content) = match message(chat, one) {
            Ok(said) => said,
            Err(mut whys) => {
                // Its role comes first, if it is known.
                whys.extend((looks_back || places(Place::NotLast)).then_some(Why::Place));
                return (if looks_back { Vec::new() } else { text }, whys);
            }
        };
        let elsewhere = match turn.place {
            Place::Anywhere => false,
            Place::NotLast => place + 1 == messages.len(),
            Place::First => place > 0,
            Place::Nowhere => true,
        };
        if elsewhere {
            return (if looks_back { Vec::new() } else { text }, vec![Why::Place]);
        }
        if place == 0 && *turn.role != *b"system" {
            text.extend_from_slice(&chat.without_system);
        }
        text.extend_from_slice(&turn.before);
        text.extend_from_slice(content.as_bytes());
        if place + 1 < messages.len() || !continues {
            text.extend_from_slice(&turn.after);
        }
    }
    if generation && !continues {
        text.extend_from_slice(&chat.generation);
    }
    (text, Vec::new())
}

fn message<'c>(chat: &'c Chat, message: &Json) -> Result<(&'c Turn, String), Vec<Why>> {
    let Json::Object(fields) = message else { return Err(vec![Why::Prompt]) };
    let mut whys = Vec::new();
    let all =
        |name: &str| fields.iter().filter(|(other, _)| *other == name).map(|(_, value)| value).collect::<Vec<_>>();
    let (roles, contents) = (all("role"), all("content"));
    if roles.len() > 1 || contents.len() > 1 {
        whys.push(Why::Twice);
    }
    for (name, value) in fields.iter().filter(|(_, value)| *value != Json::Raw("null")) {
        match *name {
            "tool_calls" | "name" | "reasoning" | "thinking" | "tools" => whys.push(Why::Message),
            "image_url" => whys.push(Why::Media),
            "role" | "content" | "refusal" => {}
            name => panic!("{name}: {value:?}"),
        }
    }
    let known = |role: &&Json| {
        chat.turns.iter().find(|turn| Json::Text(String::from_utf8(turn.role.to_vec()).unwrap()) == **role)
    };
    let turns: Vec<_> = roles.iter().map(known).collect();
    if turns.is_empty() || turns.contains(&None) {
        whys.push(Why::Role);
    }
    let mut texts = Vec::new();
    match contents.first() {
        None | Some(Json::Raw("null")) => {}
        Some(Json::Text(text)) => texts.push(text.as_str()),
        Some(Json::Array(parts)) => parts.iter().for_each(|part| texts.push(part_text(part, &mut whys))),
        Some(_) => whys.push(Why::Prompt),
    }
    let text = texts.join(std::str::from_utf8(&chat.joint).unwrap());
    let Some(turn) = turns.into_iter().flatten().next() else { return Err(whys) };
    if turn.stops.iter().any(|stop| text.contains(std::str::from_utf8(stop).unwrap())) {
        whys.push(Why::Stop);
    }
    let text = if turn.trims { trimmed(&text, &mut whys) } else { text };
    if text.is_empty() {
        whys.push(Why::Empty);
    }
    if chat.lone && texts.len() > 1 {
        whys.push(Why::Parts);
    }
    if whys.is_empty() { Ok((turn, text)) } else { Err(whys) }
}

fn part_text<'j>(part: &'j Json, whys: &mut Vec<Why>) -> &'j str {
    match part {
        Json::Text(text) => text,
        Json::Object(fields) => {
            let all = |name: &str| {
                fields.iter().filter(|(other, _)| *other == name).map(|(_, value)| value).collect::<Vec<_>>()
            };
            let (kinds, texts) = (all("type"), all("text"));
            if kinds.len() > 1 || texts.len() > 1 {
                whys.push(Why::Twice);
            }
            if fields.iter().any(|(name, value)| *name == "image_url" && *value != Json::Raw("null")) {
                whys.push(Why::Media);
            }
            let texts_only = ["text", "input_text", "output_text"].map(|kind| Json::Text(kind.into()));
            if kinds.iter().any(|kind| matches!(kind, Json::Text(_)) && !texts_only.contains(kind)) {
                whys.push(Why::Media);
            }
            if kinds.is_empty() || kinds.iter().any(|kind| !matches!(kind, Json::Text(_))) {
                whys.push(Why::Prompt);
            }
            match texts.first() {
                Some(Json::Text(text)) => return text,
                _ => whys.push(Why::Prompt),
            }
            ""
        }
        _ => {
            whys.push(Why::Prompt);
            ""
        }
    }
}

/// As Python's `strip` does it.
fn trimmed(text: &str, whys: &mut Vec<Why>) -> String {
    let is_ascii_space = |sign: char| matches!(sign, '\t'..='\r' | '\x1c'..=' ');
    let ours = text.trim_matches(is_ascii_space);
    if ours != text.trim_matches(|sign: char| sign.is_whitespace() || is_ascii_space(sign)) {
        whys.push(Why::Space);
    }
    ours.into()
}

fn bare(form: &Form, begins: bool, prompt: &Json) -> (Vec<u8>, Vec<Why>) {
    let text_of = |id: u32| form.vocabulary.text(id).unwrap();
    let bare_text = |text: &str| {
        let begin: Vec<u8> =
            form.vocabulary.begins().iter().filter(|_| begins).flat_map(|&id| text_of(id)).copied().collect();
        ([&begin, text.as_bytes()].concat(), Vec::new())
    };
    let nothing = (Vec::new(), vec![Why::Prompt]);
    match prompt {
        Json::Text(text) => bare_text(text),
        Json::Array(all) => match all.first() {
            Some(Json::Text(text)) if all.iter().all(|one| matches!(one, Json::Text(_))) => bare_text(text),
            Some(Json::Array(ids)) if !ids.is_empty() => match tokens(form, ids) {
                (_, whys) if whys.is_empty() && !all.iter().all(|one| matches!(one, Json::Array(_))) => nothing,
                whole => whole,
            },
            Some(Json::Raw(_)) => tokens(form, all),
            _ => nothing,
        },
        _ => nothing,
    }
}

fn tokens(form: &Form, ids: &[Json]) -> (Vec<u8>, Vec<Why>) {
    let (mut text, mut run) = (Vec::new(), Tokens::default());
    for id in ids {
        let Json::Raw(id) = id else { return (Vec::new(), vec![Why::Prompt]) };
        let Some(bytes) = id.parse().ok().and_then(|id| run.text(&form.vocabulary, id)) else {
            return (text, vec![Why::Token]);
        };
        text.extend_from_slice(bytes);
    }
    (text, Vec::new())
}
