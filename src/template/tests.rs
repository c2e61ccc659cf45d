//! For any chat, whatever a form writes, the template writes, too.

use proptest::prelude::*;

use super::derive::{self, agrees};
use super::reference::Reference;
use super::{Call, Content, Message, Source, read, tools};
use crate::scan::Chat;

const TEMPLATES: [&str; 6] = [
    include_str!("../../tests/form/templates/qwen2.5.jinja"),
    include_str!("../../tests/form/templates/qwen3.jinja"),
    include_str!("../../tests/form/templates/hermes.jinja"),
    include_str!("../../tests/form/templates/llama-4.jinja"),
    include_str!("../../tests/form/templates/deepseek-v3.1.jinja"),
    include_str!("../../tests/form/templates/gemma-tools.jinja"),
];
const TOOLS: &[u8] = br#"[{"type":"function","function":{"name":"f","description":"It's \"a\"","parameters":{"type":"object","properties":{"a":{"type":"string","enum":[1,null,true,0.5]}}}}}]"#;

/// A template with its forms, without tools and with.
struct Made {
    with: bool,
    reference: Reference,
    chat: Chat,
}

fn made() -> Vec<Made> {
    let tools = tools::read(TOOLS).expect("tools");
    let of = |(jinja, with): (&str, bool)| {
        let source: Source = read(None, Some(jinja.as_bytes())).expect("a template");
        let tools = Some(&tools).filter(|_| with);
        let (chat, _) = derive::chat(&source, tools).0.expect("a chat");
        Made { with, reference: Reference::new(&source, tools).expect("a template"), chat }
    };
    TEMPLATES.into_iter().flat_map(|jinja| [(jinja, false), (jinja, true)]).map(of).collect()
}

fn text() -> impl Strategy<Value = String> {
    let pieces = [
        "a",
        "",
        " ",
        "\n",
        "</think>",
        "<think>",
        "<tool_response>",
        "</tool_response>",
        "<|im_end|>",
        "é",
        "\"",
        "{{ a }}",
        "\u{1c}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..4).prop_map(|pieces| pieces.concat())
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![text().prop_map(Content::Text), prop::collection::vec(text(), 0..3).prop_map(Content::Parts)]
}

fn call() -> impl Strategy<Value = Call> {
    let arguments = [
        "",
        "{}",
        "{\"a\":[1, {\"b\" : null}]}",
        "{\"a\":\"\\u00e9\\n<b>\"}",
        "[]",
        "{",
        "{\"a\":1e3}",
        "{\"a\":1,\"a\":2}",
    ];
    (prop::sample::select(vec!["f", "g-1", "a b", "\""]), text(), prop::sample::select(arguments.to_vec())).prop_map(
        |(name, text, arguments)| {
            let own = format!("{{{0}: [{0}]}}", serde_json::Value::from(text.as_str()));
            let arguments = if arguments.is_empty() && !text.is_empty() { &own } else { arguments };
            Call { name: name.into(), arguments: arguments.to_owned() }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let role = prop::sample::select(vec!["user", "assistant", "tool", "tool", "system"]);
    let calls = prop::collection::vec(call(), 0..3);
    (role, content(), calls, any::<bool>()).prop_map(|(role, content, calls, any)| {
        let calls = if role == "assistant" && any { calls } else { Vec::new() };
        Message { role: role.to_owned(), content, calls }
    })
}

/// Most chats are like those of agents: answers after calls, users and assistants in turn.
fn chat() -> impl Strategy<Value = Vec<Message>> {
    let free = prop::collection::vec(message(), 1..8);
    let user = (content(), any::<bool>());
    let agent =
        (user, prop::collection::vec((content(), prop::collection::vec((call(), text()), 0..3)), 1..5), any::<bool>());
    let agent = agent.prop_map(|((first, system), turns, last)| {
        let said = |role: &str, content| Message { role: role.into(), content, calls: Vec::new() };
        let mut chat = vec![said("user", first)];
        if system {
            chat.insert(0, said("system", Content::Text("a".into())));
        }
        for (content, calls) in turns {
            let (calls, answers): (Vec<Call>, Vec<String>) = calls.into_iter().unzip();
            chat.push(Message { calls, ..said("assistant", content) });
            if answers.is_empty() {
                chat.push(said("user", Content::Text("b".into())));
            }
            chat.extend(answers.into_iter().map(|answer| said("tool", Content::Text(answer))));
        }
        if last {
            chat.pop();
        }
        chat
    });
    prop_oneof![1 => free, 3 => agent]
}

#[test]
fn forms_say_nothing_that_the_template_does_not_write() {
    let made = made();
    let config = ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let of = (0..made.len(), chat(), any::<bool>());
    let outcome = runner.run(&of, |(number, messages, generation)| {
        let Made { with, reference, chat } = &made[number];
        let agrees = agrees(reference, chat, &messages, generation);
        prop_assert_eq!(agrees, Ok(true), "template {}, tools {}", number / 2, with);
        Ok(())
    });
    outcome.expect("each is right");
}

/// Random templates.
fn pieces() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ m.content }}",
        "{{ m['role'] }}",
        "{{",
        "}}",
        "{%",
        "%}",
        "'",
        "\"",
        "{% if m.role == 'user' %}",
        "{% else %}",
        "{% endif %}",
        "{{ m.content[0] }}",
        "{{ m.content | trim }}",
        "{{ messages | tojson }}",
        "{{ raise_exception('x') }}",
        "{% set x = m %}",
        "{{ x }}",
        "{{ loop.last }}",
        "{{ m.content.split('a')[-1] }}",
        "{% macro f(a) %}",
        "{% endmacro %}",
        "{{ f(m) }}",
        "<|",
        "\n",
        "é",
        "{{ bos_token }}",
        "{#",
        "#}",
        "{% generation %}",
        "{% endgeneration %}",
        "{{ -1 // 0 }}",
        "{{ messages[99] }}",
        "{% break %}",
    ]);
    let pieces = move |most: usize| prop::collection::vec(pieces.clone(), 0..most).prop_map(|pieces| pieces.concat());
    // Random pieces alone seldom make templates that write contents.
    let around = (pieces(2), pieces(3), pieces(2)).prop_map(|(before, between, behind)| {
        format!(
            "{before}{{% for m in messages %}}[{{{{ m.role }}}}]{between}{{{{ m.content }}}}{behind};{{% endfor %}}"
        )
    });
    prop_oneof![1 => pieces(24), 4 => around]
}

#[test]
fn forms_of_templates_of_any_pieces_say_what_those_write() {
    let config = ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() };
    let forms = std::cell::Cell::new(0);
    let chats = prop::collection::vec((chat(), any::<bool>()), 20);
    let outcome = proptest::test_runner::TestRunner::new(config).run(&(pieces(), chats), |(jinja, chats)| {
        let source: Source = read(None, Some(jinja.as_bytes())).expect("a template");
        let Ok((made, _)) = derive::chat(&source, None).0 else { return Ok(()) };
        forms.set(forms.get() + 1);
        let reference = Reference::new(&source, None).expect("a template");
        for (messages, generation) in chats {
            prop_assert_eq!(agrees(&reference, &made, &messages, generation), Ok(true), "{} {:?}", jinja, messages);
        }
        Ok(())
    });
    outcome.expect("each is right");
    println!("{} forms", forms.get());
    assert!(forms.get() > 0);
}
