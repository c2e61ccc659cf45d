//! Sets of tools, calls of them and their results, row by row.

use super::super::{Api, Form, Kernel, Renderer, Rendering, Why};
use super::{ASKS, FIRST, USER, form, oracle, turn};
use crate::limits::{ARGUMENTS_BYTES_MAX, ARGUMENTS_DEPTH_MAX, ARGUMENTS_KEYS_MAX};
use crate::scan::lanes::hash;
use crate::scan::{Calls, Toolset, Turn};
use crate::vocabulary::Lead;

/// A form with results side by side in one turn, calls after a content or in its place.
pub fn hermes() -> Form {
    let mut form = form(true, Lead::Nowhere);
    let chat = form.chat.as_mut().unwrap();
    chat.turns[2].calls = Some(Calls {
        behind: Some(b"\n<call>"[..].into()),
        bare: Some(b"<call>"[..].into()),
        arguments: b" "[..].into(),
        next: b"</call>\n<call>"[..].into(),
        after: b"</call><|im_end|>\n"[..].into(),
    });
    let results = Turn {
        before: b"<|im_start|>user\n<result>"[..].into(),
        after: b"</result><|im_end|>\n"[..].into(),
        joined: Some(b"</result>\n<result>"[..].into()),
        empty: true,
        ..turn("tool", false, &["<stop>"])
    };
    chat.turns = chat.turns.iter().cloned().chain([results]).collect();
    let mut with_tools = chat.clone();
    with_tools.start = b"<s>[T]"[..].into();
    with_tools.generation = b"<|im_start|>assistant\n[T]"[..].into();
    let set = |tools: &[u8], chat| Toolset { tools: tools.into(), chat }.into();
    form.toolsets = [set(b"[]", None), set(b"[1]", Some(with_tools)), set(b"[2]", None)].into();
    form
}

/// Returns what becomes of a body, and which of its bytes are unknown tools; the same whether tools are expected or
/// not.
fn rendered(form: &Form, body: &str) -> (Rendering, Option<String>, Box<Renderer>) {
    let mut renderer = Box::new(Renderer::new());
    let mut render = |tools| {
        let rendering = renderer.render(Api::Chat, form, body.as_bytes(), tools);
        (rendering, renderer.unknown_tools())
    };
    let unexpected = render(false);
    let (rendering, unknown) = render(true);
    assert_eq!((rendering, unknown.clone()), unexpected, "{body}");
    (rendering, unknown.map(|unknown| body.get(unknown).unwrap().into()), renderer)
}

/// Checks that this is known of a chat, and that it is all of it if the form does not end.
fn check(messages: &str, text: &str, ends: Option<Why>) {
    let body = format!(r#"{{"messages":[{messages}]}}"#);
    let (rendering, unknown, renderer) = rendered(&hermes(), &body);
    assert_eq!(rendering, Rendering { bytes: text.len() as u64, ends }, "{body}");
    assert_eq!(unknown, None);
    oracle::check_links(&renderer, text.as_bytes());
    if ends.is_none() {
        assert_eq!(renderer.page.value(), hash(text.as_bytes()), "{body}");
    }
}

#[test]
fn a_chat_is_that_of_its_tools() {
    let messages = r#""messages":[{"role":"user","content":"Hi"}]"#;
    let plain = format!("{FIRST}{USER}Hi{ASKS}");
    let with_tools = format!("{}[T]", plain.replace("<s>", "<s>[T]"));
    let cases = [
        (format!(r#"{{{messages},"tools": [1] ,"n":1}}"#), Ok(&with_tools), None),
        (format!(r#"{{"tools":[1],{messages}}}"#), Ok(&with_tools), None),
        (format!(r#"{{"tools":[1],{messages},"tools":null}}"#), Ok(&plain), None),
        (format!(r#"{{"tools":[3],{messages},"tools":[1]}}"#), Ok(&with_tools), None),
        (format!(r#"{{"tools":null,{messages},"tools":[1]}}"#), Ok(&with_tools), None),
        (format!(r#"{{"tools":[1],"messages":[],{messages}}}"#), Ok(&with_tools), None),
        (format!(r#"{{{messages},"tools":[1],{messages}}}"#), Ok(&with_tools), None),
        (format!(r#"{{{messages},"tools":[]}}"#), Err(Why::Toolset), None),
        (format!(r#"{{"tools":[2],{messages}}}"#), Err(Why::Toolset), None),
        (format!(r#"{{{messages},"tools": [1 ] }}"#), Err(Why::Tools), Some("[1 ]")),
        (format!(r#"{{"tools":[1],{messages},"tools":[{{"a":"]"}}]}}"#), Err(Why::Tools), Some(r#"[{"a":"]"}]"#)),
        (format!(r#"{{"tools":"x",{messages}}}"#), Err(Why::Tools), Some(r#""x""#)),
        (format!(r#"{{"tools":[3],{messages},"suffix":"x"}}"#), Err(Why::Field), None),
        (format!(r#"{{"tools":[3],{messages},"messages":null}}"#), Err(Why::Prompt), None),
        (format!(r#"{{"tools":[3],{messages}"#), Err(Why::Body(crate::scan::Fault::Truncated)), None),
    ];
    for (body, text, unknown) in cases {
        let (rendering, tools, renderer) = rendered(&hermes(), &body);
        let bytes = text.map_or(0, |text| text.len() as u64);
        assert_eq!(rendering, Rendering { bytes, ends: text.err() }, "{body}");
        assert_eq!(tools.as_deref(), unknown, "{body}");
        oracle::check_links(&renderer, text.map_or(b"", |text| text.as_bytes()));
        if let Ok(text) = text {
            assert_eq!(renderer.page.value(), hash(text.as_bytes()), "{body}");
        }
    }
    let mut renderer = Box::new(Renderer::new());
    renderer.render(Api::Tokenize, &hermes(), br#"{"prompt":"x","tools":[3]}"#, false);
    assert_eq!(renderer.unknown_tools(), None, "a prompt that is no chat has none");
    let bare = Form { chat: None, ..hermes() };
    let (rendering, _, _) = rendered(&bare, &format!(r#"{{{messages},"tools":[1]}}"#));
    assert_eq!(rendering, Rendering { bytes: with_tools.len() as u64, ends: None });
}

#[test]
fn results_side_by_side_are_joined() {
    let (ask, result) = (r#"{"role":"user","content":"U"}"#, r#"{"role":"tool","tool_call_id":"c","content":"R"}"#);
    let asked = format!("{FIRST}{USER}U<|im_end|>\n");
    let one = format!("{asked}<|im_start|>user\n<result>R");
    let end = "</result><|im_end|>\n";
    let asks = "<|im_start|>assistant\n";
    let say = |all: &[&str]| all.join(",");
    check(&say(&[ask, result]), &format!("{one}{end}{asks}"), None);
    let two = format!("{one}</result>\n<result>R");
    check(&say(&[ask, result, result]), &format!("{two}{end}{asks}"), None);
    check(&say(&[ask, result, result, ask]), &format!("{two}{end}{USER}U{ASKS}"), None);
    let empty = r#"{"role":"tool","content":""}"#;
    let three = format!("{two}</result>\n<result>");
    check(&say(&[ask, result, result, empty]), &format!("{three}{end}{asks}"), None);
    check(&say(&[ask, result, result, r#"{"content":[""],"role":"tool"}"#]), &format!("{three}{end}{asks}"), None);
    // The text after a result is known only with the next message.
    check(&say(&[ask, result, r#"{"role":"tool","content":"<stop>"}"#]), &one, Some(Why::Stop));
    check(&say(&[ask, result, result, r#"{"role":"tool","content":null}"#]), &two, Some(Why::Empty));
    check(&say(&[ask, result, r#"{"role":"tool","content":[]}"#]), &one, Some(Why::Empty));
    check(&say(&[ask, result, r#"{"role":"odd","content":"x"}"#]), &one, Some(Why::Role));
    check(&say(&[ask, result, r#"{"role":"user","content":""}"#]), &one, Some(Why::Empty));
    let named = r#"{"role":"tool","name":"f","content":"x"}"#;
    check(&say(&[ask, result, named]), &one, Some(Why::Message));
}

#[test]
fn calls_stand_behind_their_content() {
    let said = |content: &str, more: &str| {
        format!(
            r#"{{"role":"assistant"{content},"tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{{\"a\":1}}"}}}}{more}]}}"#
        )
    };
    let begin = format!("{FIRST}<|im_start|>assistant\n");
    let bare = format!("{begin}<call>f {{\"a\": 1}}</call><|im_end|>\n<|im_start|>assistant\n");
    for content in ["", r#","content":null"#, r#","content":"""#, r#","content":[]"#, r#","content":[""]"#] {
        check(&said(content, ""), &bare, None);
    }
    let behind = bare.replace("<call>", "A\n<call>");
    check(&said(r#","content":"A""#, ""), &behind, None);
    let first =
        r#"{"tool_calls":[{"function":{"arguments":"{\"a\":1}","x":{},"name":"f"}}],"content":"A","role":"assistant"}"#;
    check(first, &behind, None);
    let next = r#",{"type":"function","function":{"name":"g-2.x_"}}"#;
    let two = behind.replace("</call>", "</call>\n<call>g-2.x_ {}</call>");
    check(&said(r#","content":"A""#, next), &two, None);
    // Nothing is said.
    for none in ["[]", "null"] {
        let plain = format!(r#"{{"role":"assistant","content":"A","tool_calls":{none}}}"#);
        check(&plain, &format!("{begin}A{ASKS}"), None);
        check(&format!(r#"{{"role":"assistant","tool_calls":{none}}}"#), "<s>", Some(Why::Empty));
    }
    let user = r#"{"role":"user","content":"U"}"#;
    let asked = format!("{FIRST}{USER}U<|im_end|>\n");
    let by_user = r#"{"role":"user","content":"U","tool_calls":[{"function":{"name":"f"}}]}"#;
    check(&format!("{user},{by_user}"), &asked, Some(Why::Message));
    let twice = r#"{"role":"assistant","tool_calls":[{"function":{"name":"f"}}],"tool_calls":[]}"#;
    check(&format!("{user},{twice}"), &asked, Some(Why::Twice));
    for (call, why) in [
        (r#"1"#, Why::Call),
        (r#"{}"#, Why::Call),
        (r#"{"function":null}"#, Why::Call),
        (r#"{"function":{}}"#, Why::Call),
        (r#"{"function":{"arguments":"{}"}}"#, Why::Call),
        (r#"{"function":{"name":null}}"#, Why::Call),
        (r#"{"function":{"name":""}}"#, Why::Call),
        (r#"{"function":{"name":"a b"}}"#, Why::Call),
        (r#"{"function":{"name":"é"}}"#, Why::Call),
        (r#"{"function":{"name":"f"},"type":"custom"}"#, Why::Call),
        (r#"{"function":{"name":"f"},"type":null}"#, Why::Call),
        (r#"{"function":{"name":"f"},"function":{"name":"f"}}"#, Why::Twice),
        (r#"{"function":{"name":"f","name":"f"}}"#, Why::Twice),
        (r#"{"function":{"name":"f","arguments":"","arguments":""}}"#, Why::Twice),
    ] {
        let message = format!(r#"{user},{{"role":"assistant","tool_calls":[{call}]}}"#);
        check(&message, &asked, Some(why));
    }
    // Half a character, in the text or in the JSON inside the text.
    for half in [r#"{\"a\":\"\ud83d\"}"#, r#"{\"a\":\"\\ud83d\"}"#, r#"{\"a\":\"\ud83d\\ude00\"}"#] {
        let call = format!(r#"{{"function":{{"name":"f","arguments":"{half}"}}}}"#);
        check(&format!(r#"{user},{{"role":"assistant","tool_calls":[{call}]}}"#), &asked, Some(Why::Call));
    }
    check(&format!(r#"{user},{{"role":"assistant","tool_calls":{{}}}}"#), &asked, Some(Why::Call));
    check(&format!(r#"{user},{{"role":"assistant","tool_calls":"x"}}"#), &asked, Some(Why::Call));
}

#[test]
fn calls_that_a_template_writes_otherwise_end_the_form() {
    let message = |content: &str| {
        format!(r#"{{"messages":[{{"role":"assistant",{content}"tool_calls":[{{"function":{{"name":"f"}}}}]}}]}}"#)
    };
    let ends = |form: &Form, body: &str| rendered(form, body).0;
    let nothing = |why| Rendering { bytes: 3, ends: Some(why) };
    let with = |change: &dyn Fn(&mut Turn)| {
        let mut form = hermes();
        change(&mut form.chat.as_mut().unwrap().turns[2]);
        form
    };
    let no_bare = with(&|turn| turn.calls.as_mut().unwrap().bare = None);
    assert_eq!(ends(&no_bare, &message("")), nothing(Why::Message));
    assert_eq!(ends(&no_bare, &message(r#""content":"A","#)).ends, None);
    let no_behind = with(&|turn| turn.calls.as_mut().unwrap().behind = None);
    assert_eq!(ends(&no_behind, &message(r#""content":"A","#)), nothing(Why::Message));
    assert_eq!(ends(&no_behind, &message("")).ends, None);
    assert_eq!(ends(&with(&|turn| turn.calls = None), &message("")), nothing(Why::Message));
    // White space is a content, unless it is trimmed: then it counts as neither.
    assert_eq!(ends(&hermes(), &message(r#""content":" ","#)).ends, None);
    assert_eq!(ends(&with(&|turn| turn.trims = true), &message(r#""content":" ","#)), nothing(Why::Empty));
    let empty = with(&|turn| (turn.trims, turn.empty) = (true, true));
    let said = |content: &str| format!(r#"{{"messages":[{{"role":"assistant","content":{content}}}]}}"#);
    assert_eq!(ends(&empty, &said(r#"" ""#)), nothing(Why::Empty));
    assert_eq!(ends(&empty, &said("null")), nothing(Why::Empty));
    assert_eq!(ends(&empty, &said(r#""""#)).ends, None);
    assert_eq!(ends(&hermes(), &said(r#""""#)), nothing(Why::Empty));
    // A content is continued, and not the text after it.
    let continued = message(r#""content":"A","#).replace("]}", r#"],"continue_final_message":true}"#);
    assert_eq!(ends(&hermes(), &continued), nothing(Why::Message));
    let joins = with(&|turn| turn.joined = Some(b"+"[..].into()));
    let again = message("").replace("]}]}", r#"]},{"role":"assistant","content":"A"}]}"#);
    let called = FIRST.len() + "<|im_start|>assistant\n<call>f {}".len();
    assert_eq!(ends(&joins, &again), Rendering { bytes: called as u64, ends: Some(Why::Message) });
}

/// Returns how the rendering of a call with these arguments ends, given as a text and as an object.
fn ends(arguments: &str) -> [Option<Why>; 2] {
    let text = serde_json::to_string(arguments).unwrap();
    [&text, arguments].map(|value| {
        let call = format!(r#"{{"function":{{"name":"f","arguments":{value}}}}}"#);
        let body = format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{call}]}}]}}"#);
        rendered(&hermes(), &body).0.ends
    })
}

#[test]
fn arguments_are_bounded() {
    let (call, fine) = ([Some(Why::Call); 2], [None; 2]);
    // The object around them counts as a bracket, too.
    let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert_eq!(ends(&nested(ARGUMENTS_DEPTH_MAX)), fine);
    assert_eq!(ends(&nested(ARGUMENTS_DEPTH_MAX + 1)), call);
    let keys = |count: usize| {
        let keys: Vec<String> = (0..count).map(|key| format!(r#""k{key}":0"#)).collect();
        format!("{{{}}}", keys.join(","))
    };
    assert_eq!(ends(&keys(ARGUMENTS_KEYS_MAX)), fine);
    assert_eq!(ends(&keys(ARGUMENTS_KEYS_MAX + 1)), call);
    let inner = keys(ARGUMENTS_KEYS_MAX - 1);
    assert_eq!(ends(&format!(r#"{{"a":[{inner},{inner},{inner}]}}"#)), fine, "those of a closed object do not count");
    assert_eq!(ends(&format!(r#"{{"a":0,"b":{inner}}}"#)), call);
    let long = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - r#"{"a":""}"#.len()));
    assert_eq!(ends(&long(ARGUMENTS_BYTES_MAX)), fine);
    assert_eq!(ends(&long(ARGUMENTS_BYTES_MAX + 1)), [Some(Why::Call), None]);
}

#[test]
fn a_key_that_is_there_twice_ends_the_form() {
    for twice in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":{"a":2},"\u0061":3}"#,
        r#"{"b":[{"x":1,"y":[{}],"x":2}]}"#,
        r#"{"/":1,"\/":2}"#,
        r#"{"\n":1,"\u000A":2}"#,
        r#"{"":1,"":2}"#,
        r#"{"\ud83d\ude00":1,"😀":2}"#,
    ] {
        assert_eq!(ends(twice), [Some(Why::Call); 2], "{twice}");
    }
    for once in [r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}"#, r#"{"a":1,"a ":1,"A":1}"#, r#"{"\\u0061":1,"a":2}"#] {
        assert_eq!(ends(once), [None; 2], "{once}");
    }
}

/// `arguments.json`: texts with the result of `json.dumps(json.loads(text), ensure_ascii=False)` in CPython 3.11, null
/// if it refuses them, or if they are no object or cannot be written in UTF-8; and whether the text is plain, so that
/// it has to be written.
#[test]
fn arguments_are_written_as_python_writes_them() {
    let recorded: Vec<(String, Option<String>, bool)> =
        serde_json::from_slice(include_bytes!("arguments.json")).unwrap();
    let (form, mut written) = (hermes(), 0);
    let begin = format!("{FIRST}<|im_start|>assistant\n<call>f ");
    for (arguments, expected, is_plain) in &recorded {
        let call =
            format!(r#"{{"function":{{"name":"f","arguments":{}}}}}"#, serde_json::to_string(arguments).unwrap());
        let body = format!(r#"{{"messages":[{{"role":"assistant","tool_calls":[{call}]}}]}}"#);
        let (rendering, _, renderer) = rendered(&form, &body);
        if rendering.ends.is_some() {
            assert_eq!(rendering, Rendering { bytes: 3, ends: Some(Why::Call) }, "{arguments}");
            assert!(!is_plain, "{arguments}");
            continue;
        }
        // Engines read an empty text as an empty object.
        let expected = if arguments.is_empty() { Some("{}") } else { expected.as_deref() };
        let text = format!("{begin}{}</call><|im_end|>\n<|im_start|>assistant\n", expected.unwrap_or("?"));
        assert_eq!(renderer.page.value(), hash(text.as_bytes()), "{arguments}: {expected:?}");
        oracle::check_links(&renderer, text.as_bytes());
        written += 1;
    }
    assert!(recorded.len() > 500 && written > 400, "{written} of {}", recorded.len());
}

#[test]
fn what_is_cut_off_or_broken_is_no_reason_to_panic() {
    let body = concat!(
        r#"{"messages":[{"role":"user","content":"U"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"#,
        r#""function","function":{"name":"read","arguments":"{\"path\": \"a\\u00e9\\/b\\n\", \"lines\":[1, 2.5,true]}"}},"#,
        r#"{"function":{"arguments":{"a":{"b":"\ud83d\ude00"},"c":""},"name":"f"}}]},{"role":"tool","tool_call_id":"c","#,
        r#""content":"R"},{"role":"tool","content":[{"type":"text","text":""}]}],"tools":[1]}"#
    );
    let form = hermes();
    for kernel in Kernel::available() {
        let mut renderer = Box::new(Renderer::with(kernel));
        assert_eq!(renderer.render(Api::Chat, &form, body.as_bytes(), true).ends, None);
        let mut broken = body.as_bytes().to_vec();
        for place in 0..body.len() {
            let cut = renderer.render(Api::Chat, &form, &body.as_bytes()[..place], place % 2 == 1);
            assert!(cut.bytes == 0 && matches!(cut.ends, Some(Why::Body(_))), "{cut:?} at {place}");
            for bit in 0..8 {
                broken[place] ^= 1 << bit;
                renderer.render(Api::Chat, &form, &broken, bit % 2 == 1);
                broken[place] ^= 1 << bit;
            }
        }
    }
}
