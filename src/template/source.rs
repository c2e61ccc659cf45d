//! Reads a chat template from a model's files.

use serde_json::Value;

use super::known::Known;
use crate::limits::{TEMPLATE_BYTES_MAX, TOKENIZER_CONFIG_BYTES_MAX};

/// A chat template and the tokens that it may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The template; `None`: the model has none.
    pub(super) text: Option<String>,
    /// Another template of the same file for chats with tools, if there is one.
    pub(super) with_tools: Option<String>,
    /// `bos_token`, `eos_token` and others, with the text of each.
    pub(super) tokens: Vec<(String, String)>,
    /// Whether `tokenizer_config.json` names the added tokens itself, so that no other file is read for them.
    names_added: bool,
    /// What was found out about the template.
    pub(super) known: Known,
}

/// Why a model's files give no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// `tokenizer_config.json` is no JSON.
    #[error("tokenizer_config.json cannot be read: {0}")]
    Syntax(String),
    /// `special_tokens_map.json` is no JSON.
    #[error("special_tokens_map.json cannot be read: {0}")]
    Tokens(String),
    /// `chat_template.jinja` is not UTF-8.
    #[error("chat_template.jinja is not UTF-8")]
    Encoding,
    /// A file has more bytes than are read.
    #[error("{file} has {bytes} bytes; at most {most} are read")]
    Long {
        /// Which file.
        file: &'static str,
        /// How many bytes it has.
        bytes: usize,
        /// How many are read at most.
        most: usize,
    },
}

/// Reads `tokenizer_config.json` and `chat_template.jinja`, each if there is one. The second's template wins, as in
/// Transformers.
pub fn read(tokenizer_config: Option<&[u8]>, jinja: Option<&[u8]>) -> Result<Source, Unreadable> {
    let mut source = Source::default();
    if let Some(config) = tokenizer_config {
        bounded("tokenizer_config.json", config, TOKENIZER_CONFIG_BYTES_MAX)?;
        let config: Value = serde_json::from_slice(config).map_err(|why| Unreadable::Syntax(why.to_string()))?;
        source.text = template(&config["chat_template"]).map(str::to_owned);
        source.with_tools = named(&config["chat_template"], "tool_use").map(str::to_owned);
        source.tokens = tokens(&config);
        source.names_added = !config["added_tokens_decoder"].is_null();
    }
    if let Some(jinja) = jinja {
        bounded("chat_template.jinja", jinja, TEMPLATE_BYTES_MAX)?;
        source.text = Some(std::str::from_utf8(jinja).map_err(|_| Unreadable::Encoding)?.to_owned());
        source.with_tools = None;
    }
    for text in source.text.iter().chain(&source.with_tools) {
        bounded("the chat template", text.as_bytes(), TEMPLATE_BYTES_MAX)?;
    }
    Ok(source)
}

fn bounded(file: &'static str, bytes: &[u8], most: usize) -> Result<(), Unreadable> {
    if bytes.len() > most { Err(Unreadable::Long { file, bytes: bytes.len(), most }) } else { Ok(()) }
}

/// Returns the template itself, or from a list of named ones the one for chats without tools.
fn template(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| named(value, "default"))
}

/// Returns the template of this name in a list.
fn named<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.as_array()?.iter().find(|named| named["name"] == name)?["template"].as_str()
}

impl Source {
    /// Adds the tokens of `special_tokens_map.json`, which wins over a `tokenizer_config.json` that names no added
    /// tokens, as in Transformers.
    ///
    /// # Errors
    /// When it is no JSON, or too long.
    pub fn with_tokens(mut self, special_tokens_map: &[u8]) -> Result<Source, Unreadable> {
        if self.names_added {
            return Ok(self);
        }
        bounded("special_tokens_map.json", special_tokens_map, TOKENIZER_CONFIG_BYTES_MAX)?;
        let map: Value =
            serde_json::from_slice(special_tokens_map).map_err(|why| Unreadable::Tokens(why.to_string()))?;
        for (name, text) in tokens(&map) {
            self.tokens.retain(|(known, _)| *known != name);
            self.tokens.push((name, text));
        }
        Ok(self)
    }

    /// Whether this is the template for chats without tools.
    pub fn is(&self, template: &str) -> bool {
        self.text.as_deref() == Some(template)
    }

    /// Returns the template for chats with tools, or without.
    pub(super) fn text(&self, has_tools: bool) -> Option<&str> {
        self.with_tools.as_deref().filter(|_| has_tools).or(self.text.as_deref())
    }
}

fn tokens(config: &Value) -> Vec<(String, String)> {
    let named = config.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    named.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_its_own_wins() {
        let config =
            br#"{"chat_template": "a", "bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null}"#;
        let source = read(Some(config), None).expect("a template");
        assert_eq!(source.text.as_deref(), Some("a"));
        let tokens =
            [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(source.tokens, tokens);
        assert_eq!(read(Some(config), Some(b"b")).expect("a template").text.as_deref(), Some("b"));
    }

    #[test]
    fn tokens_of_a_file_of_their_own_win_where_added_ones_are_not_named() {
        let map = br#"{"bos_token": {"content": "<bos>"}, "eos_token": "</s>"}"#;
        let read = |config: &[u8]| {
            let source = read(Some(config), None).and_then(|source| source.with_tokens(map)).expect("tokens");
            source.tokens.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(read(b"{}"), ["<bos>", "</s>"]);
        assert_eq!(read(br#"{"bos_token": "<s>", "unk_token": "?"}"#), ["?", "<bos>", "</s>"]);
        assert_eq!(read(br#"{"bos_token": "<s>", "added_tokens_decoder": {}}"#), ["<s>"]);
        assert!(matches!(Source::default().with_tokens(b"{"), Err(Unreadable::Tokens(_))));
    }

    #[test]
    fn of_named_ones_the_default_is_taken() {
        let config =
            br#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let source = read(Some(config), None).expect("templates");
        assert_eq!((source.text(false), source.text(true)), (Some("d"), Some("t")));
        // A file of its own is in place of all of them.
        let source = read(Some(config), Some(b"f")).expect("a template");
        assert_eq!((source.text(false), source.text(true)), (Some("f"), Some("f")));
        let others = br#"{"chat_template": [{"name": "other", "template": "t"}, 3]}"#;
        assert_eq!(read(Some(others), None), Ok(Source::default()));
        assert_eq!(read(None, None), Ok(Source::default()));
    }

    #[test]
    fn what_is_no_text_is_refused_in_words() {
        assert!(matches!(read(Some(b"{"), None), Err(Unreadable::Syntax(_))));
        assert_eq!(read(None, Some(b"\xff")), Err(Unreadable::Encoding));
        let long = vec![b'a'; TEMPLATE_BYTES_MAX + 1];
        assert!(matches!(read(None, Some(&long)), Err(Unreadable::Long { file: "chat_template.jinja", .. })));
    }
}
