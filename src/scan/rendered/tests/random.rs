//! Random bodies, near to what clients send.

use proptest::prelude::*;

use super::calls::{calls_value, tools_value};
use super::oracle::ALTERING;

/// A JSON value that keeps equal names apart.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// A number or literal, as it is written.
    Raw(&'static str),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
    /// A text that is JSON itself, written by a scribe of this state.
    Inner(Box<Json>, u64),
}

pub fn text() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec!["</think>", "[I]", "\u{a0}", "\u{3000}", "\u{2003}", "\u{1c}", "\u{85}"]);
    let piece = prop_oneof![
        8 => prop::sample::select(vec!["hello, world. ", "é", "中文", "😀", "\n", " ", "\t \r\n", "\"", "\\", "/", "</thi", "nk", "[", "“", "…", "\u{1}"]).prop_map(String::from),
        1 => odd.prop_map(String::from),
        1 => (1..400usize, prop::sample::select(vec!["x", "lorem ipsum, ", "ab\n", "\"}", "é"])).prop_map(|(times, what)| what.repeat(times)),
        1 => (30..60usize).prop_map(|times| " ".repeat(times)),
    ];
    // Four parts of only white space are still supported.
    let is_short = |text: &String| {
        text.split(|sign: char| !sign.is_ascii_whitespace() && sign != '\x0b' && sign != '\x1c')
            .all(|run| run.len() < 60)
    };
    prop::collection::vec(piece, 0..6)
        .prop_map(|pieces| pieces.concat())
        .prop_filter("white space is too long", is_short)
}

fn part() -> impl Strategy<Value = Json> {
    let kind = prop::sample::select(vec!["text", "text", "text", "text", "input_text", "image_url"]);
    let field = prop_oneof![
        2 => Just(("type", Json::Raw("null"))),
        1 => Just(("text", Json::Text("again".into()))),
        1 => Just(("image_url", Json::Object(vec![("url", Json::Text("data:".into()))]))),
        6 => Just(("image_url", Json::Raw("null"))),
        6 => Just(("cache_control", Json::Array(vec![Json::Raw("1")]))),
    ];
    let object = (kind, text(), prop::option::weighted(0.2, field), any::<bool>(), prop::bool::weighted(0.97))
        .prop_map(|(kind, text, field, turned, typed)| {
            let mut fields = vec![("text", Json::Text(text))];
            fields.extend(typed.then(|| ("type", Json::Text(kind.into()))));
            fields.extend(field);
            if turned {
                fields.reverse();
            }
            Json::Object(fields)
        });
    prop_oneof![8 => object, 2 => text().prop_map(Json::Text), 1 => Just(Json::Raw("1"))]
}

fn message_value() -> impl Strategy<Value = Json> {
    let role = prop_oneof![
        12 => prop::sample::select(vec!["system", "user", "user", "assistant", "assistant", "tool", "tool", "tool"]).prop_map(|role| Json::Text(role.into())),
        1 => prop::sample::select(vec![Json::Text("odd".into()), Json::Text("x".repeat(300)), Json::Raw("null")]),
    ];
    let content = prop_oneof![
        12 => text().prop_map(Json::Text),
        2 => Just(Json::Text(String::new())),
        3 => prop::collection::vec(part(), 0..4).prop_map(Json::Array),
        1 => Just(Json::Raw("null")),
        1 => prop::sample::select(vec![Json::Raw("true"), Json::Object(vec![])]),
    ];
    let more = (
        prop::sample::select(vec![
            "tool_calls",
            "tool_call_id",
            "name",
            "reasoning",
            "thinking",
            "tools",
            "image_url",
            "refusal",
            "role",
            "content",
        ]),
        prop::sample::select(vec![
            Json::Raw("null"),
            Json::Raw("null"),
            Json::Text("user".into()),
            Json::Array(vec![]),
        ]),
    );
    let fields = (
        prop::option::weighted(0.97, role),
        prop::option::weighted(0.9, content),
        prop::option::weighted(0.15, more),
        prop::option::weighted(0.3, calls_value()),
    );
    let object = (fields, any::<u8>()).prop_map(|((role, content, more, calls), turns)| {
        let mut fields: Vec<_> = role.map(|role| ("role", role)).into_iter().collect();
        fields.extend(content.map(|content| ("content", content)));
        fields.extend(more);
        // Messages of other roles call no tools.
        fields.extend(
            calls
                .filter(|_| turns > 250 || fields.contains(&("role", Json::Text("assistant".into()))))
                .map(|calls| ("tool_calls", calls)),
        );
        let length = fields.len();
        fields.rotate_left(turns as usize % length.max(1));
        Json::Object(fields)
    });
    prop_oneof![40 => object, 1 => Just(Json::Raw("null"))]
}

fn prompt_value() -> impl Strategy<Value = Json> {
    let id = || {
        prop::sample::select(vec![
            "0",
            "1",
            "2",
            "4",
            "5",
            "6",
            "1",
            "2",
            "5",
            "6",
            "0",
            "1",
            "2",
            "4",
            "5",
            "6",
            "3",
            "7",
            "8",
            "4294967297",
            "-1",
            "1.0",
            "true",
        ])
        .prop_map(Json::Raw)
    };
    let known = || prop::sample::select(vec!["0", "1", "2", "4", "5", "6"]).prop_map(Json::Raw);
    let ids = || {
        prop_oneof![
            3 => prop::collection::vec(known(), 0..200).prop_map(Json::Array),
            1 => prop::collection::vec(id(), 0..40).prop_map(Json::Array),
        ]
    };
    let mixed = prop_oneof![id(), ids(), text().prop_map(Json::Text)];
    prop_oneof![
        3 => text().prop_map(Json::Text),
        3 => ids(),
        1 => prop::collection::vec(text().prop_map(Json::Text), 0..3).prop_map(Json::Array),
        1 => prop::collection::vec(ids(), 0..3).prop_map(Json::Array),
        1 => prop::collection::vec(mixed, 0..3).prop_map(Json::Array),
        1 => Just(Json::Raw("null")),
    ]
}

/// Makes a body: a prompt, and other fields.
pub fn body() -> impl Strategy<Value = Vec<(&'static str, Json)>> {
    let flag = || {
        prop::sample::select(vec!["true", "false", "true", "false", "true", "false", "null", "1"]).prop_map(Json::Raw)
    };
    let altering = prop::sample::select(&ALTERING[..]);
    let messages = || prop_oneof![12 => prop::collection::vec(message_value(), 0..6).prop_map(Json::Array), 1 => Just(Json::Raw("null")), 1 => Just(Json::Text("x".into()))];
    let field = prop_oneof![
        10 => messages().prop_map(|messages| ("messages", messages)),
        10 => prompt_value().prop_map(|prompt| ("prompt", prompt)),
        3 => flag().prop_map(|flag| ("add_generation_prompt", flag)),
        3 => flag().prop_map(|flag| ("continue_final_message", flag)),
        3 => flag().prop_map(|flag| ("add_special_tokens", flag)),
        4 => altering.clone().prop_map(|name| (name, Json::Raw("null"))),
        1 => (altering, prop::sample::select(vec![Json::Raw("1"), Json::Array(vec![]), Json::Text("x".into())])),
        6 => tools_value().prop_map(|tools| ("tools", tools)),
        6 => Just(("model", Json::Text("m \"\\ n".into()))),
        6 => Just(("metadata", Json::Object(vec![("messages", Json::Array(vec![Json::Text("]}".into())]))]))),
    ];
    (messages(), prompt_value(), prop::collection::vec(field, 0..4), any::<u8>()).prop_map(
        |(messages, prompt, mut fields, turns)| {
            fields.push(if turns & 64 == 0 { ("messages", messages) } else { ("prompt", prompt) });
            let length = fields.len();
            fields.rotate_right(turns as usize % length);
            fields
        },
    )
}

/// Writes values as clients may: white space anywhere, any escape that fits.
pub struct Scribe {
    pub out: String,
    pub state: u64,
}

impl Scribe {
    fn draw(&mut self, of: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % of
    }

    fn space(&mut self) {
        if self.draw(4) == 0 {
            let space = [" ", "\n", "\t ", "\r\n  "][self.draw(4) as usize];
            self.out.push_str(space);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        let dense = self.draw(3) == 0;
        for sign in text.chars() {
            let short = "\"\\/\n\r\t\u{8}\u{c}"
                .find(sign)
                .map(|place| ["\\\"", "\\\\", "\\/", "\\n", "\\r", "\\t", "\\b", "\\f"][place]);
            match short {
                Some(short) if sign != '/' || dense => self.out.push_str(short),
                None if sign < ' ' || dense && self.draw(8) == 0 => {
                    let mut units = [0; 2];
                    for unit in sign.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(sign),
            }
        }
        self.out.push('"');
    }

    fn value(&mut self, value: &Json) {
        self.space();
        match value {
            Json::Raw(raw) => self.out.push_str(raw),
            Json::Text(text) => self.text(text),
            Json::Array(all) => {
                self.out.push('[');
                for (place, one) in all.iter().enumerate() {
                    if place > 0 {
                        self.out.push(',');
                    }
                    self.value(one);
                }
                self.space();
                self.out.push(']');
            }
            Json::Object(fields) => self.object(fields),
            Json::Inner(inner, state) => {
                let mut scribe = Scribe { out: String::new(), state: *state };
                scribe.value(inner);
                self.text(&scribe.out);
            }
        }
        self.space();
    }

    pub fn object(&mut self, fields: &[(&str, Json)]) {
        self.out.push('{');
        for (place, (name, value)) in fields.iter().enumerate() {
            if place > 0 {
                self.out.push(',');
            }
            self.space();
            self.text(name);
            self.space();
            self.out.push(':');
            self.value(value);
        }
        self.space();
        self.out.push('}');
    }
}
