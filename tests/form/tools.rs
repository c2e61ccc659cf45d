//! Chats with tools: which sets have one, and whether it writes what vLLM itself has written, with calls and what tools
//! answered.

use std::time::Duration;

use serde_json::Value;
use warmfront::template::{self, Call, Content, Message, Source, Why};

use super::templates::{TOKENS, check, message};

/// Templates, and of each set of `tools.json` how many prompts are written whole, of how many that vLLM accepts; `-`:
/// it has no chat.
const WHOLE: &[(&str, &str)] = &[
    ("chatml", "6/18 6/18 6/18 6/18 0/0"),
    ("deepseek-v3", "5/6 5/6 5/6 5/6 0/0"),
    ("deepseek-v3.1", "3/18 3/18 3/18 - 0/0"),
    ("gemma-3", "4/6 4/6 4/6 4/6 0/0"),
    ("gemma-tools", "4/18 4/18 - - 0/0"),
    ("hermes", "0/0 6/18 6/18 - 0/0"),
    ("llama-3", "6/18 6/18 6/18 6/18 0/0"),
    ("llama-3.1", "6/16 - - - -"),
    ("llama-4", "6/16 6/16 6/16 6/16 0/0"),
    ("mistral-v0.3", "4/11 2/11 2/11 2/11 0/0"),
    ("phi-4-mini", "6/18 6/18 6/18 6/18 0/0"),
    ("qwen2.5", "17/18 16/18 16/18 16/18 0/0"),
    ("qwen3", "14/18 13/18 13/18 13/18 0/0"),
];

pub fn source(name: &str) -> Source {
    let path = format!("{}/tests/form/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
    read(&std::fs::read_to_string(path).expect("a template"))
}

fn read(jinja: &str) -> Source {
    template::read(Some(TOKENS), Some(jinja.as_bytes())).expect("readable")
}

/// A message as a body has it.
fn said(value: &Value) -> Message {
    let role = value["role"].as_str().expect("a role");
    let said = match &value["content"] {
        Value::Null => Message { role: role.into(), content: Content::Parts(Vec::new()), calls: Vec::new() },
        content => message(role, content),
    };
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let call =
        |call: &Value| Call { name: text(&call["function"]["name"]), arguments: text(&call["function"]["arguments"]) };
    let calls = value["tool_calls"].as_array().into_iter().flatten().map(call).collect();
    Message { calls, ..said }
}

/// `tools.json`, which `tools.py` has written: requests with what vLLM 0.32 makes of them; null where it refuses.
#[test]
fn forms_write_what_vllm_writes() {
    let recorded: Value = serde_json::from_slice(include_bytes!("tools.json")).expect("JSON");
    let chats: Vec<Vec<Message>> = recorded["chats"]
        .as_array()
        .expect("chats")
        .iter()
        .map(|chat| chat.as_array().expect("messages").iter().map(said).collect())
        .collect();
    let mut found = Vec::new();
    for (name, prompts) in recorded["templates"].as_object().expect("templates") {
        let source = source(name);
        let (mut prompts, mut last) = (prompts.as_array().expect("prompts").iter(), String::new());
        let mut counts = Vec::new();
        for (number, tools) in recorded["sets"].as_array().expect("sets").iter().enumerate() {
            let form = match tools.as_str() {
                Some(tools) => template::with_tools(&source, tools.as_bytes()),
                None => template::form(&source, Default::default()).form.chat.ok_or(Why::None),
            };
            let (mut compared, mut whole) = (0, 0);
            for (place, messages) in chats.iter().enumerate() {
                for generation in if matches!(place, 0 | 5) { [true, false].as_slice() } else { &[true] } {
                    let prompt = prompts.next().expect("a prompt");
                    let Some(same) = prompt[0].as_u64() else { continue };
                    last = last.chars().take(same as usize).chain(prompt[1].as_str().expect("text").chars()).collect();
                    let Ok(chat) = &form else { continue };
                    let written = template::write(chat, messages, *generation);
                    compared += 1;
                    whole += u32::from(check(written, last.as_bytes(), &format!("{name}, set {number}, chat {place}")));
                }
            }
            counts.push(if form.is_ok() { format!("{whole}/{compared}") } else { "-".to_owned() });
        }
        assert_eq!(prompts.next(), None);
        found.push((name.as_str(), counts.join(" ")));
    }
    let found: Vec<(&str, &str)> = found.iter().map(|(name, counts)| (*name, counts.as_str())).collect();
    assert_eq!(found, WHOLE);
}

/// Sets of which it is not certain what an engine makes of them.
#[test]
fn sets_that_engines_may_read_otherwise_have_no_chat() {
    let source = source("qwen2.5");
    let why = |tools: &[u8]| template::with_tools(&source, tools).map(|_| ()).map_err(|why| why.to_string());
    let function = |fields: &str| format!(r#"[{{"type":"function","function":{{"name":"a",{fields}}}}}]"#).into_bytes();
    let deep =
        |levels: usize| function(&format!(r#""parameters":{{"a":{}1{}}}"#, "[".repeat(levels), "]".repeat(levels)));
    let long = |letters: usize| function(&format!(r#""description":"{}""#, "a".repeat(letters)));
    let refused: &[(&[u8], &str)] = &[
        (b"", "the tools are no JSON"),
        (b"null", "the tools are no list"),
        (b"{}", "the tools are no list"),
        (b"[1]", "the tools are not all functions"),
        (b"[[]] x", "the tools are no JSON"),
        (b"[,]", "the tools are no JSON"),
        (br#"[{"type":"function"}]"#, "the tools are not all functions"),
        (br#"[{"type":"web_search"}]"#, "the tools are not all functions"),
        (br#"[{"type":null,"function":{"name":"a"}}]"#, "the tools are not all functions"),
        (br#"[{"type":"function","function":{}}]"#, "the tools have one without a name"),
        (br#"[{"type":"function","function":{"name":1}}]"#, "the tools have one without a name"),
        (
            br#"[{"type":"function","cache":1,"function":{"name":"a"}}]"#,
            "the tools have a key that not all engines know",
        ),
        (&function(r#""defer_loading":true"#), "the tools have a key that not all engines know"),
        (&function(r#""name":"b""#), "the tools name a key twice"),
        (&function(r#""parameters":{"a":1,"\u0061":2}"#), "the tools name a key twice"),
        (&function(r#""parameters":[]"#), "the tools have a field of another kind than engines take"),
        (&function(r#""description":1"#), "the tools have a field of another kind than engines take"),
        (&function(r#""strict":"true""#), "the tools have a field of another kind than engines take"),
        (&function(r#""description":"\ud83d""#), "the tools have a string that is no text"),
        (&function("\"description\":\"a\nb\""), "the tools have a string that is no text"),
        (b"[{\"function\":{\"name\":\"\xff\"}}]", "the tools have a string that is no text"),
        (&deep(61), "the tools are nested too deep"),
        (&long(64 << 10), "the tools are too long"),
    ];
    for (tools, words) in refused {
        assert_eq!(why(tools), Err(words.to_string()), "{}", String::from_utf8_lossy(&tools[..tools.len().min(90)]));
    }
    for number in [
        "01",
        "-0",
        "+1",
        "1e5",
        "1E-2",
        "1.50",
        "1.",
        ".5",
        "NaN",
        "-",
        "0.00001",
        "1.2345678901234567",
        "1234567890123456.5",
        "1e400",
    ] {
        let tools = function(&format!(r#""parameters":{{"a":{number}}}"#));
        assert!(matches!(template::with_tools(&source, &tools), Err(Why::Tools(_))), "{number}");
    }
    for number in ["0", "-1", "1.5", "-0.0", "0.0001", "123456789012345678901234567890", "1234567890123.5"] {
        let tools = function(&format!(r#""parameters":{{"a":{number}}}"#));
        let written = template::with_tools(&source, &tools).expect("a chat").without_system;
        assert!(String::from_utf8_lossy(&written).contains(&format!(r#""parameters": {{"a": {number}}}"#)), "{number}");
    }
    assert_eq!(why(&deep(60)), Ok(()));
    assert_eq!(why(&long(63 << 10)), Ok(()));
}

/// What a template does with tools that Python does otherwise, or that is not known to be the same.
#[test]
fn templates_that_write_tools_as_only_python_does_have_no_chat() {
    let tools = br#"[{"function":{"name":"f","parameters":{"items":{"b":"\u00e9","a":[1]}}}}]"#;
    let with = |code: &str| {
        let jinja = "{% for t in tools or [] %}CODE{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}";
        template::with_tools(&read(&jinja.replace("CODE", code)), tools)
            .map(|chat| String::from_utf8_lossy(&chat.start).into_owned())
            .ok()
    };
    let compact = "{\"items\": {\"b\": \"\u{e9}\", \"a\": [1]}}".to_owned();
    assert_eq!(with("{{ t.function.parameters | tojson }}"), Some(compact));
    let lines = "{\n  \"b\": \"\u{e9}\",\n  \"a\": [\n    1\n  ]\n}".to_owned();
    assert_eq!(with("{{ t.function.parameters['items'] | tojson(indent=2) }}"), Some(lines));
    let dense = "{\"b\":\"\u{e9}\",\"a\":[1]}".to_owned();
    assert_eq!(with("{{ t.function.parameters['items'] | tojson(separators=(',', ':')) }}"), Some(dense));
    assert_eq!(
        with("{{ t.function.description }} {{ t.function.parameters.items() | list | length }}"),
        Some("None 1".into())
    );
    for code in [
        "{{ t }}",
        "{{ 'a' ~ t.function.parameters }}",
        "{{ t.function.parameters | string }}",
        "{{ t | tojson(sort_keys=true) }}",
        "{{ t | tojson(ensure_ascii=true) }}",
        "{{ t | tojson(indent=9) }}",
        "{{ t.function.parameters.items.b }}",
        "{{ t | unknown_filter }}",
    ] {
        assert_eq!(with(code), None, "{code}");
    }
}

/// A template that looks into contents where there are tools alone, and into arguments and names.
#[test]
fn what_a_template_looks_for_ends_a_form_or_leaves_calls_out() {
    let tools = br#"[{"function":{"name":"f"}}]"#;
    let made = |content: &str, call: &str| {
        let calls =
            "{% for c in m.tool_calls %}<{{ c.function.name }}|{{ c.function.arguments | tojson }}>{% endfor %}";
        let code = format!("{{% for m in messages %}}[{{{{ m.role }}}}]{content}{call}{calls};{{% endfor %}}");
        let source = read(&code);
        let plain = template::form(&source, Default::default()).form.chat.expect("a chat");
        let with = template::with_tools(&source, tools).expect("a chat");
        [plain, with].map(|chat| {
            let turn = |role: &[u8]| chat.turns.iter().find(|turn| *turn.role == *role).cloned().expect("a turn");
            (turn(b"user").stops.iter().any(|stop| **stop == *b"look;"), turn(b"assistant").calls.is_some())
        })
    };
    let content = "{{ m.content }}";
    assert_eq!(made(content, ""), [(false, true); 2]);
    let looks = "{% if tools and 'look;' in m.content %}!{% else %}{{ m.content }}{% endif %}";
    assert_eq!(made(looks, ""), [(false, true), (true, true)]);
    let argument = "{% if m.tool_calls and m.tool_calls[0].function.arguments['look;'] is defined %}!{% endif %}";
    assert_eq!(made(content, argument), [(false, false); 2]);
    let tool =
        "{% if m.tool_calls and tools and m.tool_calls[0].function.name == tools[0].function.name %}!{% endif %}";
    assert_eq!(made(content, tool), [(false, true), (false, false)]);
}

/// A template that writes arguments as XML has a form without them: whoever runs agents on its model is to know.
#[test]
fn a_form_without_words_for_calls_says_so() {
    let of = |call: &str| {
        let message = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}CALLS<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
        let calls = format!("{{% for c in m.tool_calls or [] %}}{call}{{% endfor %}}");
        let reading = template::form(&read(&message.replace("CALLS", &calls)), Default::default());
        let chat = reading.form.chat.expect("a chat");
        let assistant = chat.turns.iter().find(|turn| *turn.role == *b"assistant").expect("a turn");
        let roles: Vec<&str> = reading.left_out.iter().map(|left| left.role).collect();
        (assistant.calls.is_some(), roles.contains(&"an assistant that calls"))
    };
    let xml = "<function={{ c.function.name }}>{% for name, value in c.function.arguments | items %}<parameter={{ name }}>{{ value if value is string else value | tojson }}</parameter>{% endfor %}</function>";
    assert_eq!(of(xml), (false, true));
    assert_eq!(of(""), (false, true), "it takes them, and writes nothing of them");
    assert_eq!(of("<{{ c.function.name }}|{{ c.function.arguments | tojson }}>"), (true, false));
    assert_eq!(of("{{ raise_exception('no calls') }}"), (false, false), "its engine refuses them");
}

/// What it takes to make chats with a set of ten KB, the first of the template and after that: in processor time, of
/// which there is plenty.
#[test]
fn what_a_set_costs() {
    let field = |number| {
        format!(
            r#""field_{number}":{{"type":"string","description":"The \"{number}\"th of what it takes; which part is looked at,\nand how far it may go."}}"#
        )
    };
    let fields: Vec<String> = (0..4).map(field).collect();
    let tool = |number| {
        format!(
            r#"{{"type":"function","function":{{"name":"tool_{number}","description":"{}","parameters":{{"type":"object","properties":{{{}}},"required":["field_0"],"additionalProperties":false}}}}}}"#,
            "Does one of the many things that agents do. ".repeat(12),
            fields.join(",")
        )
    };
    let tools: Vec<String> = (0..9).map(tool).collect();
    let tools = format!("[{}]", tools.join(","));
    for name in ["qwen2.5", "hermes"] {
        let source = source(name);
        let mut took = Vec::new();
        let mut timed = |run: &dyn Fn() -> bool| {
            let from = on_processor();
            let is_chat = run();
            took.push((on_processor() - from, is_chat));
        };
        timed(&|| template::form(&source, Default::default()).form.chat.is_some());
        (0..3).for_each(|_| timed(&|| template::with_tools(&source, tools.as_bytes()).is_ok()));
        println!("{name}: {} bytes: {took:?}", tools.len());
        assert!(took.iter().all(|(took, is_chat)| *is_chat && *took < Duration::from_secs(8)), "{name}: {took:?}");
    }
}

/// How long this thread had a processor; what it waited for one does not count.
pub fn on_processor() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says it");
    Duration::from_nanos(told.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number"))
}

/// What the template of Qwen2.5 writes, in other words; of texts that have calls of `f` with `{"a":"zq0mark"}` alone.
pub fn qwen(tools: &str, messages: &[Message]) -> String {
    let mut prompt = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>".to_owned();
    let tools: Value = serde_json::from_str(tools).expect("JSON");
    for tool in tools.as_array().expect("a list") {
        let function = &tool["function"];
        let written = |value: &Value| spaced(value);
        prompt += &format!(
            "\n{{\"type\": \"function\", \"function\": {{\"name\": {}, \"description\": {}, \"parameters\": {}}}}}",
            written(&function["name"]),
            written(&function["description"]),
            written(&function["parameters"]),
        );
    }
    prompt += "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";
    for (place, message) in messages.iter().enumerate() {
        let Content::Text(text) = &message.content else { unreachable!("texts alone") };
        let is_tool = |place: Option<usize>| {
            place.and_then(|place| messages.get(place)).is_some_and(|other| other.role == "tool")
        };
        match message.role.as_str() {
            "tool" => {
                if !is_tool(place.checked_sub(1)) {
                    prompt += "<|im_start|>user";
                }
                prompt += &format!("\n<tool_response>\n{text}\n</tool_response>");
                if !is_tool(Some(place + 1)) {
                    prompt += "<|im_end|>\n";
                }
            }
            role => {
                let call = "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"zq0mark\"}}\n</tool_call>";
                let calls = call.repeat(message.calls.len());
                let line = if calls.is_empty() { "\n" } else { "" };
                prompt += &format!("<|im_start|>{role}{line}{text}{calls}<|im_end|>\n");
            }
        }
    }
    prompt + "<|im_start|>assistant\n"
}

/// JSON with a blank behind each colon and comma; keys of one at most.
fn spaced(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(pairs) => {
            // serde_json sorts keys: sets that are written so have theirs in order.
            let pairs: Vec<String> = pairs
                .iter()
                .rev()
                .map(|(key, value)| format!("{}: {}", spaced(&Value::from(key.as_str())), spaced(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}
