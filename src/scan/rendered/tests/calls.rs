//! Random calls of tools, the forms in which they are written, and their arguments as Python would write them.

use proptest::prelude::*;

use super::super::Form;
use super::form;
use super::random::{Json, text};
use crate::scan::{Calls, Place, Toolset, Turn};
use crate::vocabulary::Lead;

/// Numbers that Python writes as they are.
const PLAIN: &[&str] = &[
    "0",
    "1",
    "-7",
    "12",
    "1024",
    "3.5",
    "0.0001",
    "-0.25",
    "1.0",
    "-0.0",
    "123456789012.345",
    "9007199254740993",
    "123456789012345678901234567890",
    "true",
    "false",
    "null",
];
/// Numbers that it writes in another way, or that are refused to be sure.
const ODD: &[&str] = &["-0", "1e3", "1.50", "0.00001", "2E-7", "0.1234567890123456", "12345678901234567.5"];

/// Returns what `json.dumps` writes, with letters as they are; `None`: this is not certain, or a key is there twice.
pub fn dumped(value: &Json) -> Option<String> {
    let all = |parts: Option<Vec<String>>| parts.map(|parts| parts.join(", "));
    Some(match value {
        Json::Raw(raw) => PLAIN.contains(raw).then(|| raw.to_string())?,
        Json::Text(text) => quoted(text),
        Json::Array(values) => format!("[{}]", all(values.iter().map(dumped).collect())?),
        Json::Object(fields) => {
            let twice = |place: usize| fields[..place].iter().any(|(name, _)| *name == fields[place].0);
            if (0..fields.len()).any(twice) {
                return None;
            }
            let member = |(name, value): &(&str, Json)| Some(format!("{}: {}", quoted(name), dumped(value)?));
            format!("{{{}}}", all(fields.iter().map(member).collect())?)
        }
        Json::Inner(..) => return None,
    })
}

fn quoted(text: &str) -> String {
    let signs = text.chars().map(|sign| match sign {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        '\u{8}' => "\\b".into(),
        '\u{c}' => "\\f".into(),
        '\0'..' ' => format!("\\u{:04x}", u32::from(sign)),
        _ => sign.to_string(),
    });
    format!("\"{}\"", signs.collect::<String>())
}

/// Returns arguments as engines read them; `None`: they, or their text, are no object.
pub fn arguments(value: Option<&Json>) -> Option<String> {
    match value {
        None | Some(Json::Raw("null")) => Some("{}".into()),
        Some(Json::Text(text)) => text.is_empty().then(|| "{}".into()),
        Some(Json::Inner(inner, _)) => arguments(Some(inner)).filter(|_| matches!(**inner, Json::Object(_))),
        Some(value @ Json::Object(_)) => dumped(value),
        Some(_) => None,
    }
}

fn argument() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        6 => text().prop_map(Json::Text),
        4 => prop::sample::select(PLAIN).prop_map(Json::Raw),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            object(inner).prop_map(Json::Object),
        ]
    })
}

fn object(value: impl Strategy<Value = Json>) -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let names =
        vec!["path", "content", "a", "é", "a b", "\"", "\\", "/", "", "line\n", "\u{1}", "\u{1f}b", "😀", "lines"];
    let names = prop::sample::subsequence(names, 0..5).prop_shuffle();
    let odd = prop::option::weighted(
        0.03,
        prop_oneof![
            prop::sample::select(ODD).prop_map(|odd| ("odd", Json::Raw(odd))),
            Just(("path", Json::Raw("1"))),
            Just(("content", Json::Array(vec![]))),
        ],
    );
    (names, prop::collection::vec(value, 5), odd)
        .prop_map(|(names, values, odd)| names.into_iter().zip(values).chain(odd).collect())
}

/// The value of `tool_calls`.
pub fn calls_value() -> impl Strategy<Value = Json> {
    let name = prop_oneof![
        40 => prop::sample::select(vec!["get_weather", "Read", "mcp__x-y.z", "7"]).prop_map(|name| Json::Text(name.into())),
        1 => prop::sample::select(vec![Json::Text("a b".into()), Json::Text("é".into()), Json::Text(String::new()), Json::Raw("null"), Json::Raw("1")]),
    ];
    let arguments = prop_oneof![
        40 => (object(argument()), any::<u64>()).prop_map(|(fields, state)| Json::Inner(Box::new(Json::Object(fields)), state)),
        10 => object(argument()).prop_map(Json::Object),
        4 => prop::sample::select(vec![Json::Text(String::new()), Json::Raw("null")]),
        1 => (argument(), any::<u64>()).prop_map(|(value, state)| Json::Inner(Box::new(value), state)),
        1 => prop::sample::select(vec!["{\"a\":", "{\"a\":NaN}", "{}x", "{'a':1}", " ", "{\"a\":\"\\ud800\"}", "\u{feff}{}"]).prop_map(|text| Json::Text(text.into())),
        1 => prop::sample::select(vec![Json::Raw("1"), Json::Array(vec![])]),
    ];
    let function = (prop::option::weighted(0.99, name), prop::option::weighted(0.9, arguments), any::<u8>()).prop_map(
        |(name, arguments, turns)| {
            let mut fields: Vec<_> = name.map(|name| ("name", name)).into_iter().collect();
            fields.extend(arguments.map(|arguments| ("arguments", arguments)));
            fields.extend((turns & 1 == 1).then(|| ("more", Json::Array(vec![Json::Text("]\"".into())]))));
            let length = fields.len();
            fields.rotate_left(turns as usize % length.max(1));
            fields.extend((turns > 253).then(|| ("name", Json::Text("again".into()))));
            Json::Object(fields)
        },
    );
    let function = prop_oneof![80 => function, 1 => Just(Json::Raw("null"))];
    let kind = prop_oneof![60 => Just(Json::Text("function".into())), 1 => prop::sample::select(vec![Json::Text("custom".into()), Json::Raw("null")])];
    let call = (function, prop::option::weighted(0.9, kind), any::<u8>()).prop_map(|(function, kind, turns)| {
        let mut fields = vec![("id", Json::Text("call_1".into())), ("function", function)];
        fields.extend(kind.map(|kind| ("type", kind)));
        let length = fields.len();
        fields.rotate_left(turns as usize % length);
        Json::Object(fields)
    });
    let call = prop_oneof![120 => call, 1 => Just(Json::Raw("null"))];
    prop_oneof![
        24 => prop::collection::vec(call, 1..3).prop_map(Json::Array),
        2 => Just(Json::Array(vec![])),
        2 => Just(Json::Raw("null")),
        1 => prop::sample::select(vec![Json::Object(vec![]), Json::Text("x".into())]),
    ]
}

/// The value of `tools`: sets with a chat of their own, without one, unknown ones.
pub fn tools_value() -> impl Strategy<Value = Json> {
    prop::sample::select(vec!["[1]", "[1]", "[1]", "null", "null", "[2]", "[ 1]", "[{\"type\":\"function\"}]", "7"])
        .prop_map(Json::Raw)
}

/// Makes chats of agents, most of which can be written.
pub fn body() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let tools = prop::option::weighted(0.6, tools_value());
    let said = |role: &'static str| {
        text().prop_map(move |text| vec![("role", Json::Text(role.into())), ("content", Json::Text(text))])
    };
    let called = (prop::option::weighted(0.6, text()), calls_value()).prop_map(|(text, calls)| {
        let content = text.map_or(Json::Raw("null"), Json::Text);
        vec![("role", Json::Text("assistant".into())), ("content", content), ("tool_calls", calls)]
    });
    let result = prop_oneof![5 => said("tool"), 1 => Just(vec![("role", Json::Text("tool".into())), ("content", Json::Text(String::new()))])];
    let message = (prop_oneof![2 => said("user"), 1 => said("assistant"), 4 => called, 5 => result], any::<u8>())
        .prop_map(|(mut fields, turns)| {
            if fields[0].1 == Json::Text("tool".into()) {
                fields.push(("tool_call_id", Json::Text("call_1".into())));
            }
            let length = fields.len();
            fields.rotate_left(turns as usize % length);
            Json::Object(fields)
        });
    (tools, prop::collection::vec(message, 1..8), any::<u8>()).prop_map(|(tools, messages, turns)| {
        let mut fields = vec![("messages", Json::Array(messages)), ("model", Json::Text("m".into()))];
        fields.extend(tools.map(|tools| ("tools", tools)));
        fields.extend((turns > 240).then_some(("continue_final_message", Json::Raw("true"))));
        let length = fields.len();
        fields.rotate_left(turns as usize % length);
        fields
    })
}

/// What is random about a form.
#[derive(Clone, Debug)]
pub struct Shape {
    trims: bool,
    lone: bool,
    place: Place,
    calls: Option<(bool, bool)>,
    joined: (bool, bool, bool),
    empty: bool,
}

pub fn shape() -> impl Strategy<Value = Shape> {
    let places =
        prop::sample::select(vec![Place::Anywhere, Place::Anywhere, Place::NotLast, Place::First, Place::Nowhere]);
    let calls = prop::option::weighted(0.9, (prop::bool::weighted(0.8), prop::bool::weighted(0.8)));
    let joined = (prop::bool::weighted(0.8), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (any::<bool>(), any::<bool>(), places, calls, joined, any::<bool>())
        .prop_map(|(trims, lone, place, calls, joined, empty)| Shape { trims, lone, place, calls, joined, empty })
}

impl Shape {
    /// Makes a form with four roles; for the set `[1]` the same with other texts around.
    pub fn form(&self, lead: Lead) -> Form {
        let mut form = form(self.trims, lead);
        let chat = form.chat.as_mut().unwrap();
        let mut turns: Vec<Turn> = chat.turns.to_vec();
        turns.push(super::turn("tool", self.trims, &["[I]"]));
        turns[2].place = self.place;
        turns[2].calls = self.calls.map(|(behind, bare)| Calls {
            behind: behind.then(|| b"\n<call>"[..].into()),
            bare: bare.then(|| b"<call>"[..].into()),
            arguments: b"</name>"[..].into(),
            next: b"</call>,<call>"[..].into(),
            after: b"</call><|im_end|>\n"[..].into(),
        });
        let joined = |joins: bool| joins.then(|| b"<joined>"[..].into());
        (turns[3].joined, turns[1].joined, turns[2].joined) =
            (joined(self.joined.0), joined(self.joined.1), joined(self.joined.2));
        (turns[1].empty, turns[3].empty) = (self.empty, true);
        (turns[1].lone, turns[3].lone) = (self.lone, self.lone != self.empty);
        chat.turns = turns.into();
        let mut with_tools = chat.clone();
        with_tools.start = b"<s>[T]"[..].into();
        with_tools.generation = b"[T]"[..].into();
        let set = |tools: &[u8], chat| Toolset { tools: tools.into(), chat }.into();
        form.toolsets = [set(b"[2]", None), set(b"[1]", Some(with_tools))].into();
        form
    }
}
