//! A plain renderer of whole values, with which the real one is compared.

use super::super::{Api, Form, Renderer, Why};
use super::calls::arguments;
use super::random::Json;
use crate::limits::BLOCK_BYTES;
use crate::scan::{Chat, Cut, Place, Turn};
use crate::vocabulary::{Lead, Run};

/// The root of chains here.
pub const ROOT: u64 = 0x0123_4567_89ab_cdef;

/// Fields that change the prompt or cut it off; listed here independently of the real renderer.
pub const ALTERING: [&str; 12] = [
    "chat_template",
    "chat_template_kwargs",
    "content_parts",
    "documents",
    "features",
    "input_ids",
    "mm_processor_kwargs",
    "prompt_embeds",
    "reasoning_effort",
    "suffix",
    "truncate_prompt_tokens",
    "truncation_side",
];

/// Checks that the links of the last prompt are those of these bytes.
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

/// Returns the bytes that are known, and, if more follow, all acceptable reasons.
pub fn expected(api: Api, form: &Form, body: &[(&'static str, Json)]) -> (Vec<u8>, Vec<Why>) {
    let last = |name: &str| body.iter().rev().find(|(other, _)| *other == name).map(|(_, value)| value);
    let says = |name: &str| last(name).filter(|value| **value != Json::Raw("null"));
    let mut whys = Vec::new();
    if ALTERING.iter().any(|name| says(name).is_some()) {
        whys.push(Why::Field);
    }
    let flags = ["add_generation_prompt", "continue_final_message", "add_special_tokens"].map(last);
    if flags.iter().flatten().any(|flag| ![Json::Raw("true"), Json::Raw("false")].contains(flag)) {
        whys.push(Why::Field);
    }
    let [generation, continues, special] = flags.map(|flag| flag.map(|flag| *flag == Json::Raw("true")));
    let tools = says("tools").map(raw);
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
        if tools.is_some() {
            return (Vec::new(), vec![Why::Tools]);
        }
        return bare(form, special != Some(false), prompt);
    }
    let chat = match tools {
        None => form.chat.as_ref().ok_or(Why::Template),
        Some(tools) => match form.toolsets.iter().find(|set| *set.tools == *tools.as_bytes()) {
            None => Err(Why::Tools),
            Some(set) => set.chat.as_ref().ok_or(Why::Toolset),
        },
    };
    let chat = match chat {
        Ok(chat) => chat,
        Err(why) => return (Vec::new(), vec![why]),
    };
    let Some(Json::Array(messages)) = messages else { return (Vec::new(), vec![Why::Prompt]) };
    conversation(chat, messages, continues == Some(true), generation != Some(false))
}

fn raw(value: &Json) -> &'static str {
    match value {
        Json::Raw(raw) => raw,
        other => panic!("{other:?}"),
    }
}

/// Returns the tools to be learnt about, if a rendering ended for these.
pub fn unknown_tools(api: Api, form: &Form, body: &[(&'static str, Json)], ends: Option<Why>) -> Option<&'static str> {
    let last = |name: &str| body.iter().rev().find(|(other, _)| *other == name).map(|(_, value)| value);
    let says = |name: &str| last(name).filter(|value| **value != Json::Raw("null"));
    let is_chat = api == Api::Chat || api == Api::Tokenize && says("messages").is_some();
    let tools = says("tools").map(raw).filter(|_| is_chat && ends == Some(Why::Tools));
    tools.filter(|tools| !form.toolsets.iter().any(|set| *set.tools == *tools.as_bytes()))
}

fn conversation(chat: &Chat, messages: &[Json], continues: bool, generation: bool) -> (Vec<u8>, Vec<Why>) {
    if messages.is_empty() {
        return (Vec::new(), vec![Why::Prompt]);
    }
    let places = |place: Place| chat.turns.iter().any(|turn| turn.place == place);
    let looks_back = places(Place::First) || places(Place::Nowhere);
    let is_changed = looks_back && (0..messages.len()).any(|place| changes(chat, messages, place));
    let mut text = chat.start.to_vec();
    // The text after the last message, its turn, whether it calls tools.
    let mut last: Option<(&[u8], &Turn, bool)> = None;
    for (place, one) in messages.iter().enumerate() {
        let believed = match last {
            Some((after, Turn { joined: None, .. }, _)) => [&text, after].concat(),
            _ => text.clone(),
        };
        let given_up = |whys| (if is_changed { Vec::new() } else { believed.clone() }, whys);
        let said = message(chat, one);
        let turn = said.as_ref().map_or_else(|(turn, _)| *turn, |said| Some(said.turn));
        let joins =
            last.filter(|(_, last, _)| turn.is_some_and(|turn| turn.joined.is_some() && turn.role == last.role));
        let joins_calls = joins.is_some_and(|(_, _, called)| called);
        let said = match said {
            Ok(said) if !joins_calls => said,
            Ok(_) => return given_up(vec![Why::Message, Why::Place]),
            Err((_, mut whys)) => {
                // Its role comes first, if it is known.
                whys.extend((looks_back || places(Place::NotLast)).then_some(Why::Place));
                whys.extend(joins_calls.then_some(Why::Message));
                return given_up(whys);
            }
        };
        let is_last = place + 1 == messages.len();
        let elsewhere = match said.turn.place {
            Place::Anywhere => false,
            Place::NotLast => is_last,
            Place::First => place > 0 || is_last,
            Place::Nowhere => true,
        };
        if elsewhere {
            return given_up(vec![Why::Place]);
        }
        if is_last && continues && said.calls.is_some() {
            return (believed, vec![Why::Message]);
        }
        match (joins, last) {
            (Some(_), _) => text.extend_from_slice(said.turn.joined.as_deref().unwrap()),
            (None, Some((after, ..))) => text.extend([after, &said.turn.before].concat()),
            (None, None) => {
                text.extend_from_slice(if *said.turn.role == *b"system" { b"" } else { &chat.without_system });
                text.extend_from_slice(&said.turn.before);
            }
        }
        text.extend_from_slice(said.text.as_bytes());
        text.extend_from_slice(said.calls.as_deref().unwrap_or_default().as_bytes());
        let after = match &said.calls {
            Some(_) => &said.turn.calls.as_ref().unwrap().after,
            None => &said.turn.after,
        };
        last = Some((after, said.turn, said.calls.is_some()));
    }
    let after = last.map_or(&b""[..], |(after, ..)| after);
    text.extend_from_slice(if continues { b"" } else { after });
    if generation && !continues {
        text.extend_from_slice(&chat.generation);
    }
    (text, Vec::new())
}

/// Whether text before a message depends on it, or nobody can tell.
fn changes(chat: &Chat, messages: &[Json], place: usize) -> bool {
    let Json::Object(fields) = &messages[place] else { return true };
    let roles: Vec<_> = fields.iter().filter(|(name, _)| *name == "role").map(|(_, role)| role).collect();
    let [Json::Text(role)] = roles.as_slice() else { return true };
    let of_this = chat.turns.iter().filter(|turn| *turn.role == *role.as_bytes());
    of_this.map(|turn| turn.place).any(|at| at == Place::Nowhere || at == Place::First && place > 0)
}

/// Returns how a message is written, between the texts around it.
struct Message<'c> {
    turn: &'c Turn,
    text: String,
    calls: Option<String>,
}

/// A message that is not written: its turn if it is known, and all that is wrong.
type Refused<'c> = (Option<&'c Turn>, Vec<Why>);

fn message<'c>(chat: &'c Chat, message: &Json) -> Result<Message<'c>, Refused<'c>> {
    let Json::Object(fields) = message else { return Err((None, vec![Why::Prompt])) };
    let mut whys = Vec::new();
    let all =
        |name: &str| fields.iter().filter(|(other, _)| *other == name).map(|(_, value)| value).collect::<Vec<_>>();
    let (roles, contents, calls) = (all("role"), all("content"), all("tool_calls"));
    let is_null = |value: &&Json| **value == Json::Raw("null");
    if roles.len() > 1 || contents.len() > 1 || calls.iter().rev().skip(1).any(|calls| !is_null(calls)) {
        whys.push(Why::Twice);
    }
    for (name, value) in fields.iter().filter(|(_, value)| *value != Json::Raw("null")) {
        match *name {
            "name" | "reasoning" | "thinking" | "tools" => whys.push(Why::Message),
            "image_url" => whys.push(Why::Media),
            "role" | "content" | "refusal" | "tool_calls" | "tool_call_id" => {}
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
    let Some(turn) = turns.into_iter().flatten().next() else { return Err((None, whys)) };
    if turn.stops.iter().any(|stop| text.contains(std::str::from_utf8(stop).unwrap())) {
        whys.push(Why::Stop);
    }
    let written = if turn.trims { trimmed(&text, &mut whys) } else { text.clone() };
    if turn.lone && texts.len() > 1 {
        whys.push(Why::Parts);
    }
    let calls = match calls.last().filter(|calls| !is_null(calls)) {
        None => None,
        Some(Json::Array(calls)) if calls.is_empty() => None,
        Some(Json::Array(calls)) => called(turn, !written.is_empty(), calls, &mut whys),
        Some(_) => {
            whys.push(Why::Call);
            None
        }
    };
    // A content of white space alone is never certain if it is trimmed.
    let is_empty = written.is_empty() && (!text.is_empty() || calls.is_none() && (!turn.empty || texts.is_empty()));
    if is_empty {
        whys.push(Why::Empty);
    }
    if whys.is_empty() { Ok(Message { turn, text: written, calls }) } else { Err((Some(turn), whys)) }
}

/// The calls of a message with a content or without, and what is before them.
fn called(turn: &Turn, content: bool, all: &[Json], whys: &mut Vec<Why>) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let Some(calls) = &turn.calls else {
        whys.push(Why::Message);
        return None;
    };
    let begin = if content { &calls.behind } else { &calls.bare };
    whys.extend(begin.is_none().then_some(Why::Message));
    let parts: Vec<String> = all
        .iter()
        .map(|one| match call(one, &text(&calls.arguments)) {
            Ok(call) => call,
            Err(why) => {
                whys.extend(why);
                String::new()
            }
        })
        .collect();
    Some(text(begin.as_deref().unwrap_or_default()) + &parts.join(&text(&calls.next)))
}

fn call(call: &Json, between: &str) -> Result<String, Vec<Why>> {
    let Json::Object(call) = call else { return Err(vec![Why::Call]) };
    let get = |fields: &[(&'static str, Json)], name| {
        fields.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone())
    };
    if get(call, "type").is_some_and(|kind| kind != Json::Text("function".into())) {
        return Err(vec![Why::Call, Why::Twice]);
    }
    let Some(Json::Object(function)) = get(call, "function") else { return Err(vec![Why::Call]) };
    if function.iter().filter(|(name, _)| *name == "name").count() > 1 {
        return Err(vec![Why::Twice, Why::Call]);
    }
    let name = match get(&function, "name") {
        Some(Json::Text(name)) if !name.is_empty() => name,
        _ => return Err(vec![Why::Call]),
    };
    if !name.chars().all(|sign| sign.is_ascii_alphanumeric() || "_.-".contains(sign)) {
        return Err(vec![Why::Call]);
    }
    let arguments = arguments(get(&function, "arguments").as_ref()).ok_or_else(|| vec![Why::Call])?;
    Ok(format!("{name}{between}{arguments}"))
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

/// Trims as Python's `strip` does.
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
        let led = text.strip_prefix(' ').filter(|_| form.vocabulary.lead() == Lead::First);
        ([&begin, led.unwrap_or(text).as_bytes()].concat(), Vec::new())
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
    let (mut text, mut run) = (Vec::new(), Run::begin(&form.vocabulary));
    for id in ids {
        let Json::Raw(id) = id else { return (Vec::new(), vec![Why::Prompt]) };
        let Some(bytes) = id.parse().ok().and_then(|id| run.text(&form.vocabulary, id)) else {
            return (text, vec![Why::Token]);
        };
        text.extend_from_slice(bytes);
    }
    (text, Vec::new())
}
