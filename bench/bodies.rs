//! Bodies by what they hold, for the benches of the scanner and of decisions.

use std::fmt::Write;

use warmfront::scan::Api;

use crate::words::{CODE, PROSE};

/// The model that every chat asks for.
pub const MODEL: &str = "meta-llama/Llama-3.1-8B-Instruct";

/// A kind of contents, and how many bytes of it.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub bytes: usize,
    pub api: Api,
    body: fn(&mut Random, usize) -> String,
}

/// Bodies that make different work for a scanner, each of a size that is usual for its kind.
pub const KINDS: [Kind; 12] = [
    Kind::prose(2 << 10),
    Kind::prose(16 << 10),
    Kind::prose(128 << 10),
    Kind::prose(1 << 20),
    Kind::chat("code", 128 << 10, |random, bytes| chat(random, bytes, code)),
    Kind::chat("JSON in JSON", 64 << 10, |random, bytes| chat(random, bytes, json)),
    Kind::chat("CJK", 64 << 10, |random, bytes| chat(random, bytes, cjk)),
    Kind::chat("CJK as \\uXXXX", 128 << 10, |random, bytes| chat(random, bytes, escaped_cjk)),
    Kind::chat("German as \\uXXXX", 128 << 10, |random, bytes| chat(random, bytes, escaped_german)),
    Kind::chat("tools", 64 << 10, tools),
    Kind::chat("image, sampled", 2 << 20, image),
    Kind { api: Api::Completions, ..Kind::chat("token ids", 100 << 10, ids) },
];

impl Kind {
    const fn chat(name: &'static str, bytes: usize, body: fn(&mut Random, usize) -> String) -> Kind {
        Kind { name, bytes, api: Api::Chat, body }
    }

    pub const fn prose(bytes: usize) -> Kind {
        Kind::chat("prose", bytes, |random, bytes| chat(random, bytes, prose))
    }

    /// Makes so many different bodies; the same at each call.
    pub fn bodies(&self, count: usize) -> Vec<Vec<u8>> {
        (0..count as u64).map(|seed| (self.body)(&mut Random(seed + 1), self.bytes).into_bytes()).collect()
    }
}

/// A linear congruential generator, so that a figure can be repeated.
pub struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }
}

/// A chat as the openai SDK writes it: `messages` first, `model` last, turns of some hundred bytes to 8 KiB.
fn chat(random: &mut Random, bytes: usize, word: fn(&mut Random, &mut String)) -> String {
    let mut text = String::from(r#"{"messages":[{"role":"system","content":"You are a helpful assistant."}"#);
    let turn_bytes = (bytes / 16).clamp(300, 8_192);
    for role in ["user", "assistant"].iter().cycle() {
        let _ = write!(text, r#",{{"role":"{role}","content":""#);
        let end = (text.len() + turn_bytes).min(bytes.saturating_sub(128));
        while text.len() < end {
            word(random, &mut text);
        }
        text.push_str("\"}");
        if text.len() + 256 > bytes {
            break;
        }
    }
    let _ = write!(text, r#"],"model":"{MODEL}","max_tokens":256,"stream":true,"temperature":0.7}}"#);
    text
}

/// Prose: an escape every hundred bytes or more.
fn prose(random: &mut Random, text: &mut String) {
    text.push_str(random.pick(PROSE));
    text.push(' ');
}

/// Code: an escape every twenty bytes.
fn code(random: &mut Random, text: &mut String) {
    text.push_str(random.pick(CODE));
    text.push(' ');
}

/// A tool's answer: an escape every five bytes.
fn json(random: &mut Random, text: &mut String) {
    const WORDS: &[&str] = &["city", "unit", "temperature", "id", "name", "a", "created_at", "tags"];
    let (name, value, number) = (random.pick(WORDS), random.pick(WORDS), random.below(10_000));
    let _ = match random.below(3) {
        0 => write!(text, r#"\"{name}\": \"{value}\", "#),
        1 => write!(text, r#"\"{name}\": {number}, "#),
        _ => write!(text, r#"\"{name}\": {{\n  \"{value}\": {number}}}, "#),
    };
}

fn cjk_letter(random: &mut Random) -> char {
    match random.below(16) {
        0 => ['，', '。', '、', '「'][random.below(4)],
        _ => char::from_u32(0x4e00 + random.below(0x5000) as u32).unwrap_or('中'),
    }
}

fn cjk(random: &mut Random, text: &mut String) {
    let letter = cjk_letter(random);
    text.push(letter);
    if letter == '。' {
        text.push_str("\\n");
    }
}

/// CJK as Python's `json.dumps` writes it by default; an emoji here and there.
fn escaped_cjk(random: &mut Random, text: &mut String) {
    let letter = if random.below(200) == 0 { '😀' } else { cjk_letter(random) };
    for unit in letter.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
    if letter == '。' {
        text.push_str(" ok\\n");
    }
}

/// The same of a language in which one letter of forty is not ASCII.
fn escaped_german(random: &mut Random, text: &mut String) {
    const WORDS: &[&str] = &[
        "Schl\\u00fcssel",
        "der",
        "die",
        "Anfrage",
        "f\\u00fcr",
        "wird",
        "und",
        "gro\\u00df",
        "Rechner",
        "warm.\\n",
        "ein",
    ];
    text.push_str(random.pick(WORDS));
    text.push(' ');
}

fn tools(random: &mut Random, bytes: usize) -> String {
    let mut text = format!(r#"{{"messages":[{{"role":"user","content":"Weather?"}}],"model":"{MODEL}","tools":["#);
    while text.len() < bytes {
        let number = random.below(1_000_000);
        let _ = write!(
            text,
            r#"{{"type":"function","function":{{"name":"tool_{number}","description":"Weather of a \"city\", today","parameters":{{"type":"object","properties":{{"city":{{"type":"string"}},"unit":{{"type":"string","enum":["c","f"]}}}},"required":["city"]}}}}}},"#
        );
    }
    text.push_str("null]}");
    text
}

fn image(random: &mut Random, bytes: usize) -> String {
    let mut data = String::with_capacity(bytes + 8);
    while data.len() < bytes {
        let _ = write!(data, "{:06x}/A", random.below(1 << 24));
    }
    format!(
        r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":[{{"type":"text","text":"What is this?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#
    )
}

fn ids(random: &mut Random, bytes: usize) -> String {
    let mut text = format!(r#"{{"model":"{MODEL}","prompt":["#);
    while text.len() < bytes {
        let id = random.below(128_000);
        let _ = write!(text, "{id}, ");
    }
    text.push_str("1]}");
    text
}
