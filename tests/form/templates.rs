//! Chat templates of real models, without their parts for tools: which have a form, what is left out of it, and whether
//! it writes what Transformers itself has written.

use std::sync::Arc;

use serde_json::Value;
use warmfront::scan::Place;
use warmfront::template::{self, Content, Message, Reading, Written};
use warmfront::vocabulary::Vocabulary;

use super::recordings::CONFIG;

/// Templates and their forms: roles (`|`: white space at the ends is left out), where they are so, and what their
/// contents may not have.
const FORMS: &[(&str, &str)] = &[
    ("chatml", "system, user, assistant, tool"),
    ("qwen2.5", "system, user, assistant, tool"),
    ("qwen3", "system, user, assistant not last until </think>, tool"),
    ("llama-3", "system|, user|, assistant|, tool|"),
    ("llama-3.1", "system| first, user|, assistant|"),
    ("llama-3.2", "none: the chat template writes today's date into the prompt"),
    ("llama-2", "user|, assistant|"),
    ("mistral-v0.1", "user, assistant"),
    ("mistral-v0.3", "user, assistant|"),
    ("gemma-2", "system|, user|, assistant|, tool|"),
    ("gemma-3", "user| of one part, assistant| of one part, tool| of one part"),
    ("deepseek-v3.1", "system first, user, tool not last"),
    ("deepseek-v3", "system first, user, assistant until </think>"),
    ("phi-3", "system, user, assistant"),
    ("zephyr", "system, user, assistant"),
    ("tiny-llama", "system, user, assistant, tool of one part"),
];

pub const TOKENS: &[u8] = br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#;

/// What is read of a template.
pub fn of(jinja: &str) -> Reading {
    let source = template::read(Some(TOKENS), Some(jinja.as_bytes())).expect("readable");
    template::form(&source, Arc::new(Vocabulary::default()))
}

fn named(name: &str) -> Reading {
    if name == "tiny-llama" {
        let source = template::read(Some(CONFIG), None).expect("readable");
        return template::form(&source, Arc::new(Vocabulary::default()));
    }
    of(&jinja(name))
}

fn jinja(name: &str) -> String {
    let path = format!("{}/tests/form/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("a template")
}

/// A form in one line.
fn told(reading: &Reading) -> String {
    let Some(chat) = &reading.form.chat else {
        return format!("none: {}", reading.no_chat.as_ref().expect("a reason"));
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let turn = |role: &[u8]| {
        let turn = chat.turns.iter().find(|turn| *turn.role == *role)?;
        let place = match turn.place {
            Place::Anywhere => "",
            Place::NotLast => " not last",
            Place::First => " first",
            Place::Nowhere => " nowhere",
        };
        // vLLM's own, of every template.
        let stops = turn.stops.iter().filter(|stop| !stop.starts_with(b"x-anthropic"));
        let stops: String = stops.map(|stop| format!(" until {}", text(stop))).collect();
        let lone = if turn.lone { " of one part" } else { "" };
        Some(format!("{}{}{place}{lone}{stops}", text(role), if turn.trims { "|" } else { "" }))
    };
    let roles: [&[u8]; 4] = [b"system", b"user", b"assistant", b"tool"];
    let turns: Vec<String> = roles.iter().filter_map(|role| turn(role)).collect();
    turns.join(", ")
}

/// Whether a form is right about a prompt as far as it goes, and whether that is all of it.
pub fn check(written: Option<Written>, prompt: &[u8], what: &str) -> bool {
    let Some(written) = written else { return false };
    let bytes = &prompt[..written.bytes.len().min(prompt.len())];
    assert_eq!(String::from_utf8_lossy(&written.bytes), String::from_utf8_lossy(bytes), "{what}");
    written.whole && written.bytes.len() == prompt.len()
}

pub fn message(role: &str, content: &Value) -> Message {
    let text = |part: &Value| part.as_str().or_else(|| part["text"].as_str()).expect("text").to_owned();
    let content = match content.as_array() {
        Some(parts) => Content::Parts(parts.iter().map(text).collect()),
        None => Content::Text(text(content)),
    };
    Message { role: role.into(), content, calls: Vec::new() }
}

#[test]
fn these_have_forms() {
    let found: Vec<(&str, String)> = FORMS.iter().map(|(name, _)| (*name, told(&named(name)))).collect();
    let found: Vec<(&str, &str)> = found.iter().map(|(name, told)| (*name, told.as_str())).collect();
    assert_eq!(found, FORMS);
}

/// `rendered.json`: chats with what Transformers 5.19 makes of them, contents given as vLLM 0.32 gives them; null where
/// it refuses.
#[test]
fn forms_write_what_transformers_writes() {
    let recorded: Value = serde_json::from_slice(include_bytes!("rendered.json")).expect("JSON");
    let (mut compared, mut whole) = (0, 0);
    for (name, prompts) in recorded["templates"].as_object().expect("templates") {
        let Some(chat) = named(name).form.chat else { continue };
        let mut prompts = prompts["prompts"].as_array().expect("prompts").iter();
        for (place, messages) in recorded["chats"].as_array().expect("chats").iter().enumerate() {
            let pairs = messages.as_array().expect("messages").iter();
            let messages: Vec<Message> =
                pairs.map(|pair| message(pair[0].as_str().expect("a role"), &pair[1])).collect();
            for generation in if place < 2 { [true, false].as_slice() } else { &[true] } {
                let Some(prompt) = prompts.next().expect("a prompt").as_str() else { continue };
                let written = template::write(&chat, &messages, *generation);
                compared += 1;
                whole += u32::from(check(written, prompt.as_bytes(), &format!("{name}, chat {place}")));
            }
        }
        assert_eq!(prompts.next(), None);
    }
    println!("{compared} prompts compared, {whole} of them written whole");
    assert_eq!((compared, whole), (260, 225));
}

#[test]
fn a_form_has_the_same_id_everywhere_and_no_other_form_has() {
    let ids: Vec<u64> =
        FORMS.iter().filter(|(_, told)| !told.starts_with("none")).map(|(name, _)| named(name).form.id).collect();
    assert_eq!(named("chatml").form.id, ids[0]);
    assert_eq!(ids[0], 8_336_177_132_650_530_077, "computed once; any other front has to come to the same");
    let mut others = ids.clone();
    others.sort_unstable();
    others.dedup();
    assert_eq!(others.len(), ids.len());
    let tokens: [Option<&[u8]>; 2] = [Some(b"ab"), None];
    let moved: [Option<&[u8]>; 2] = [Some(b"a"), Some(b"b")];
    let id = |tokens: &[Option<&[u8]>]| {
        let vocabulary = Vocabulary::new(tokens, &[], Default::default(), &[]);
        template::form(&template::Source::default(), Arc::new(vocabulary)).form.id
    };
    assert_ne!(id(&tokens), id(&moved));
}

#[test]
fn what_a_template_does_otherwise_is_said() {
    let why = |jinja: &str| told(&of(jinja));
    assert_eq!(
        why("{{ 1 +"),
        "none: the chat template cannot be read: syntax error: unexpected end of input, expected expression (in chat:1)"
    );
    assert_eq!(
        why("{{ raise_exception('not this') }}"),
        "none: the chat template refuses a single user message: not this"
    );
    assert_eq!(why("nothing"), "none: the chat template does not write a user's content once, as it is");
    assert_eq!(
        why("{% for m in messages %}{{ m.content | upper }}{% endfor %}"),
        "none: the chat template does not write a user's content once, as it is"
    );
    let counted = "{% for m in messages %}{{ loop.index }}{{ m.content }};{% endfor %}";
    assert!(why(counted).starts_with("none: the chat template writes "), "{}", why(counted));
    let one_side = "{% for m in messages %}[{{ m.role }}]{{ m.content.rstrip() }};{% endfor %}";
    assert!(why(one_side).contains("white space at one end"), "{}", why(one_side));
    let quoted = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('|')[0] }};{% endfor %}";
    assert_eq!(why(quoted), "system until |, user until |, assistant until |, tool until |");
    let both = "{% for m in messages %}[{{ m.role }}]{% if m.content.startswith('(:') and m.content.endswith(':)') %}!{% else %}{{ m.content }}{% endif %};{% endfor %}";
    assert_eq!(why(both), "system until (:, user until (:, assistant until (:, tool until (:");
    let begins =
        "{% for m in messages %}{% if '|' in m.content %}!{% endif %}[{{ m.role }}]{{ m.content }};{% endfor %}";
    assert_eq!(why(begins), "system until |, user until |, assistant until |, tool until |");
}

/// Jinja and Python have more than is there to read a template with: where it asks for that nobody knows what an engine
/// writes, which is not as if it refused.
#[test]
fn what_only_jinja_has_ends_a_form_where_it_is_asked_for() {
    for asked in ["m.content | wordwrap", "m.content is callable", "m.content.partition('|')[2]", "joiner('|')()"] {
        let reading = |when: &str| {
            let said = format!("{{% if {when} %}}{{{{ {asked} }}}}{{% else %}}{{{{ m.content }}}}{{% endif %}}");
            told(&of(&format!("{{% for m in messages %}}[{{{{ m.role }}}}]{said};{{% endfor %}}")))
        };
        assert_eq!(
            reading("'|' in m.content"),
            "system until |, user until |, assistant until |, tool until |",
            "{asked}"
        );
        assert_eq!(reading("loop.index0 > 0 and m.role == 'system'"), "system first, user, assistant, tool", "{asked}");
    }
}

/// Jinja itself takes a template's lines so.
#[test]
fn whatever_ends_a_templates_lines_is_one_sign() {
    for name in ["qwen2.5", "llama-3", "zephyr"] {
        let text = jinja(name);
        for end in ["\r\n", "\r"] {
            assert_eq!(of(&text.replace('\n', end)).form.chat, of(&text).form.chat, "{name}, {end:?}");
        }
    }
}

#[test]
fn what_marks_answers_for_training_writes_nothing() {
    let marked = |begin: &str, end: &str| {
        let said = |what: &str| format!("{begin} {what} {end}");
        let content = format!("{}{{{{ m.content }}}}{}", said("generation"), said("endgeneration"));
        of(&format!("{{% for m in messages %}}[{{{{ m.role }}}}]{content};{{% endfor %}}")).form.chat
    };
    let plain = of("{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}").form.chat;
    assert!(plain.is_some());
    for (begin, end) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        assert_eq!(marked(begin, end), plain, "{begin} {end}");
    }
}

/// Clients and versions of engines order a call's fields as they like.
#[test]
fn calls_that_are_written_as_they_stand_are_in_no_form() {
    let has_calls = |call: &str| {
        let calls = format!("{{% for c in m.tool_calls %}}<call>{{{{ {call} }}}}</call>{{% endfor %}}");
        let jinja = format!(
            "{{% for m in messages %}}[{{{{ m.role }}}}]{{{{ m.content or '' }}}}{{% if m.tool_calls %}}{calls}{{% endif %}};{{% endfor %}}"
        );
        let chat = of(&jinja).form.chat.expect("a form");
        let mut calls = chat.turns.iter().filter_map(|turn| turn.calls.as_ref());
        calls.any(|calls| calls.bare.is_some() || calls.behind.is_some())
    };
    assert!(has_calls(
        r#"'{"name": "' ~ c.function.name ~ '", "arguments": ' ~ (c.function.arguments | tojson) ~ '}'"#
    ));
    assert!(!has_calls("c.function | tojson"));
}

/// vLLM gives parts to templates that go through what they call content; to others, whatever they would do with parts,
/// one text.
#[test]
fn parts_are_joined_as_vllm_gives_them() {
    let joint = |name: &str| {
        let each = format!("{{% for part in {name} %}}{{{{ part['text'] }}}}{{% endfor %}}");
        let content = format!("{{% if {name} is string %}}{{{{ {name} }}}}{{% else %}}{each}{{% endif %}}");
        let jinja = format!(
            "{{% macro say({name}) %}}{content}{{% endmacro %}}{{% for m in messages %}}[{{{{ m.role }}}}]{{{{ say(m.content) }}}};{{% endfor %}}"
        );
        String::from_utf8_lossy(&of(&jinja).form.chat.expect("a form").joint).into_owned()
    };
    assert_eq!((joint("content"), joint("c")), (String::new(), "\n".to_owned()));
}
