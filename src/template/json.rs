//! JSON as Python reads and writes it: the tools and calls of a body, as a template gets them. If it is not certain
//! that Python reads the same value and writes it so, reading fails.

use std::collections::BTreeSet;

use crate::limits::TEMPLATE_JSON_DEPTH_MAX;

/// A value of which Python's text is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i128),
    /// Of a magnitude that Python writes without an exponent.
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Dict(Vec<(String, Json)>),
}

/// Options of `json.dumps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Style {
    /// Blanks for each level; `None`: all in one line.
    pub(super) indent: Option<usize>,
    /// The text after each item but the last of a list or dictionary, before a line break.
    pub(super) comma: String,
    /// The text after a key.
    pub(super) colon: String,
}

impl Style {
    /// Returns Python's defaults.
    pub(super) fn plain() -> Style {
        Style { indent: None, comma: ", ".into(), colon: ": ".into() }
    }
}

/// Reads a whole text.
pub(super) fn read(bytes: &[u8]) -> Result<Json, &'static str> {
    let mut reader = Reader { rest: bytes, depth: 0 };
    let value = reader.value()?;
    reader.blanks();
    if reader.rest.is_empty() { Ok(value) } else { Err("are no JSON") }
}

struct Reader<'a> {
    rest: &'a [u8],
    depth: usize,
}

const NO_JSON: &str = "are no JSON";

impl Reader<'_> {
    fn value(&mut self) -> Result<Json, &'static str> {
        self.blanks();
        match self.rest.first() {
            Some(b'"') => self.text().map(Json::Text),
            Some(b'{') => self.deeper(Reader::dict),
            Some(b'[') => self.deeper(Reader::list),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let words = [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))];
                let (behind, value) = words
                    .into_iter()
                    .find_map(|(word, value)| Some((self.rest.strip_prefix(word.as_bytes())?, value)))
                    .ok_or(NO_JSON)?;
                self.rest = behind;
                Ok(value)
            }
        }
    }

    fn deeper(&mut self, read: fn(&mut Self) -> Result<Json, &'static str>) -> Result<Json, &'static str> {
        self.depth += 1;
        if self.depth > TEMPLATE_JSON_DEPTH_MAX {
            return Err("are nested too deep");
        }
        self.rest = self.rest.get(1..).unwrap_or_default();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Json, &'static str> {
        let mut values = Vec::new();
        if self.takes(b']') {
            return Ok(Json::List(values));
        }
        loop {
            values.push(self.value()?);
            match (self.takes(b','), self.takes(b']')) {
                (true, false) => {}
                (false, true) => return Ok(Json::List(values)),
                _ => return Err(NO_JSON),
            }
        }
    }

    fn dict(&mut self) -> Result<Json, &'static str> {
        let (mut pairs, mut keys) = (Vec::new(), BTreeSet::new());
        if self.takes(b'}') {
            return Ok(Json::Dict(pairs));
        }
        loop {
            self.blanks();
            let key = self.text()?;
            if !keys.insert(key.clone()) {
                return Err("name a key twice");
            }
            if !self.takes(b':') {
                return Err(NO_JSON);
            }
            pairs.push((key, self.value()?));
            match (self.takes(b','), self.takes(b'}')) {
                (true, false) => {}
                (false, true) => return Ok(Json::Dict(pairs)),
                _ => return Err(NO_JSON),
            }
        }
    }

    /// Reads a string; a lone surrogate is an error, as UTF-8 has none.
    fn text(&mut self) -> Result<String, &'static str> {
        let inner = self.rest.strip_prefix(b"\"").ok_or(NO_JSON)?;
        let mut escaped = false;
        let ends = |byte: &u8| {
            let is_end = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            is_end
        };
        let length = inner.iter().position(ends).ok_or(NO_JSON)? + 2;
        let (text, behind) = self.rest.split_at(length);
        self.rest = behind;
        serde_json::from_slice(text).map_err(|_| "have a string that is no text")
    }

    /// Reads a number that Python writes with the same digits.
    fn number(&mut self) -> Result<Json, &'static str> {
        const OTHER: &str = "have a number that Python may write in another way";
        let is_of = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let (number, behind) = self.rest.split_at(self.rest.iter().take_while(is_of).count());
        self.rest = behind;
        let number = std::str::from_utf8(number).map_err(|_| NO_JSON)?;
        let Some((whole, decimals)) = number.split_once('.') else {
            let value: i128 = number.parse().map_err(|_| OTHER)?;
            return if value.to_string() == number { Ok(Json::Int(value)) } else { Err(OTHER) };
        };
        let value: f64 = number.parse().map_err(|_| OTHER)?;
        let digits = whole.len() + decimals.len() - usize::from(whole.starts_with('-'));
        let is_certain = digits <= 15 && decimal(value).is_some_and(|text| text == number);
        if is_certain { Ok(Json::Float(value)) } else { Err(OTHER) }
    }

    fn takes(&mut self, byte: u8) -> bool {
        self.blanks();
        let behind = self.rest.strip_prefix(&[byte]);
        self.rest = behind.unwrap_or(self.rest);
        behind.is_some()
    }

    fn blanks(&mut self) {
        let blanks = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.rest = self.rest.get(blanks..).unwrap_or_default();
    }
}

/// Returns Python's `repr` of a number; `None` if that has an exponent.
pub(super) fn decimal(value: f64) -> Option<String> {
    let is_plain = value == 0.0 || (1e-4..1e16).contains(&value.abs());
    is_plain.then(|| format!("{value:?}"))
}

impl Json {
    /// Writes the value as `json.dumps(…, ensure_ascii=False)` does.
    pub(super) fn write(&self, style: &Style, level: usize, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Int(value) => out.push_str(&value.to_string()),
            Json::Float(value) => out.push_str(&format!("{value:?}")),
            Json::Text(text) => quote(text, out),
            Json::List(values) => {
                within("[]", values, style, level, out, |value, out| value.write(style, level + 1, out))
            }
            Json::Dict(pairs) => within("{}", pairs, style, level, out, |(key, value), out| {
                quote(key, out);
                out.push_str(&style.colon);
                value.write(style, level + 1, out);
            }),
        }
    }
}

/// Writes the items of a list or dictionary between these brackets.
fn within<T>(signs: &str, items: &[T], style: &Style, level: usize, out: &mut String, write: impl Fn(&T, &mut String)) {
    if items.is_empty() {
        return out.push_str(signs);
    }
    let (open, close) = signs.split_at(1);
    let line = |level: usize, out: &mut String| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * level));
        }
    };
    out.push_str(open);
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            out.push_str(&style.comma);
        }
        line(level + 1, out);
        write(item, out);
    }
    line(level, out);
    out.push_str(close);
}

/// Writes a string, with escapes only for quotes, backslashes and control characters.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..'\u{20}' => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => out.push(letter),
        }
    }
    out.push('"');
}
