//! Reads `tokenizer.json`, as Hugging Face's tokenizers write it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::Vocabulary;
use super::layout::{Layout, SPACE, Sections, Spelling};
use crate::limits::{TOKEN_BYTES_MAX, TOKEN_ID_MAX, TOKENIZER_BYTES_MAX};

/// Why the tokens of a tokenizer cannot be turned into text. A model is routed approximately if its tokenizer [is of
/// such a kind](Unreadable::is_of_its_kind).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The file is no tokenizer.
    #[error("tokenizer.json cannot be read: {0}")]
    Syntax(String),
    /// The file has more bytes than are read.
    #[error("tokenizer.json has {0} bytes; at most {TOKENIZER_BYTES_MAX} are read")]
    Long(usize),
    /// An id is too large.
    #[error("the tokenizer has a token {0}; ids up to {TOKEN_ID_MAX} are read")]
    Id(u64),
    /// Two tokens have one id.
    #[error("the tokenizer has two tokens {0}")]
    Twice(u32),
    /// A token has too many bytes.
    #[error("token {0} has more than {TOKEN_BYTES_MAX} bytes")]
    Token(u32),
    /// Its model is of another kind.
    #[error(
        "its model is of the type {0}: its tokens do not keep a text's bytes, so they cannot be compared with a request"
    )]
    Model(String),
    /// A step changes the text.
    #[error("its {section} {step} changes a text's bytes, so that tokens cannot be compared with a request")]
    Loses {
        /// Which of the file's sections.
        section: &'static str,
        /// The step's type.
        step: String,
    },
    /// Nothing shows how its tokens spell bytes.
    #[error("it says neither ByteLevel nor Metaspace: how its tokens spell spaces is not known")]
    Spelling,
    /// It marks parts of words otherwise than by a space.
    #[error("it marks the parts of words with {0:?}, so that tokens cannot be compared with a request")]
    Affix(String),
    /// A token takes the white space next to it.
    #[error(
        "its token {0:?} takes the white space next to it with it, so that tokens cannot be compared with a request"
    )]
    Swallows(String),
}

impl Unreadable {
    /// Whether the file is well-formed, and its tokenizer only of a kind that is not supported.
    pub fn is_of_its_kind(&self) -> bool {
        use Unreadable::{Affix, Id, Long, Loses, Model, Spelling, Swallows, Syntax, Token, Twice};
        match self {
            Model(_) | Loses { .. } | Spelling | Affix(_) | Swallows(_) => true,
            Syntax(_) | Long(_) | Id(_) | Twice(_) | Token(_) => false,
        }
    }
}

impl Vocabulary {
    /// Reads a model's `tokenizer.json`.
    pub fn read(tokenizer_json: &[u8]) -> Result<Vocabulary, Unreadable> {
        if tokenizer_json.len() > TOKENIZER_BYTES_MAX {
            return Err(Unreadable::Long(tokenizer_json.len()));
        }
        let file: File = serde_json::from_slice(tokenizer_json).map_err(|why| Unreadable::Syntax(why.to_string()))?;
        let layout = Layout::of(&Sections {
            normalizer: &file.normalizer,
            pre_tokenizer: &file.pre_tokenizer,
            post_processor: &file.post_processor,
            decoder: &file.decoder,
        })?;
        file.model.check()?;
        let mut table = Table::default();
        for (piece, id) in &file.model.vocab.0 {
            let bytes = match layout.spelling {
                Spelling::Letters => letters(piece),
                Spelling::Pieces => file.model.piece(piece, *id),
            };
            if table.put(*id, bytes)? {
                return Err(Unreadable::Twice(*id as u32));
            }
        }
        let mut special = Vec::with_capacity(file.added_tokens.len());
        for token in &file.added_tokens {
            if token.lstrip || token.rstrip {
                return Err(Unreadable::Swallows(token.content.chars().take(64).collect()));
            }
            // Gemma lists runs of spaces, which are pieces of its model as well: the tokenizer turns spaces into that
            // token. Texts that templates write have the letter itself.
            let spaces = layout.spelling == Spelling::Pieces && !token.special;
            let text = if spaces { token.content.replace(SPACE, " ") } else { token.content.to_string() };
            // The unknown token stands for text whose bytes are lost, also if it is an added token.
            if !file.model.is_lossy_unknown(&token.content, token.id) {
                table.put(token.id, Some(text.into_bytes()))?;
            }
            special.push(token.id as u32);
        }
        special.sort_unstable();
        special.dedup();
        Ok(Vocabulary::new(&table.tokens(), &special, layout.lead, &layout.begins))
    }
}

#[derive(serde::Deserialize)]
struct File<'a> {
    #[serde(borrow, default)]
    added_tokens: Vec<Added<'a>>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(serde::Deserialize)]
struct Added<'a> {
    id: u64,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(serde::Deserialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow)]
    vocab: Pieces<'a>,
    merges: Option<IgnoredAny>,
    #[serde(default)]
    byte_fallback: bool,
    unk_token: Option<String>,
    unk_id: Option<u64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl Model<'_> {
    fn check(&self) -> Result<(), Unreadable> {
        // Older files do not name the type.
        let kind = self.kind.as_deref().unwrap_or(if self.merges.is_some() { "BPE" } else { "without a name" });
        if !matches!(kind, "BPE" | "Unigram") {
            return Err(Unreadable::Model(kind.chars().take(64).collect()));
        }
        let affixes = [&self.continuing_subword_prefix, &self.end_of_word_suffix];
        match affixes.into_iter().flatten().find(|affix| !affix.is_empty()) {
            Some(affix) => Err(Unreadable::Affix(affix.chars().take(64).collect())),
            None => Ok(()),
        }
    }

    /// Returns the bytes of a piece; `None` if it stands for any text that no other token has.
    fn piece(&self, piece: &str, id: u64) -> Option<Vec<u8>> {
        if self.is_lossy_unknown(piece, id) {
            return None;
        }
        let hex = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| self.byte_fallback) {
            return Some(vec![byte]);
        }
        Some(piece.replace(SPACE, " ").into_bytes())
    }

    fn is_lossy_unknown(&self, piece: &str, id: u64) -> bool {
        !self.byte_fallback && (self.unk_token.as_deref() == Some(piece) || self.unk_id == Some(id))
    }
}

/// Pieces and ids: an object that maps pieces to ids, or a list of pieces with scores, where a piece's place is its id.
struct Pieces<'a>(Vec<(Cow<'a, str>, u64)>);

/// A string that is copied only if it has escapes.
#[derive(serde::Deserialize)]
struct Piece<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Pieces<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PiecesVisitor)
    }
}

struct PiecesVisitor;

impl<'de> Visitor<'de> for PiecesVisitor {
    type Value = Pieces<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens and their ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pieces = Vec::new();
        while let Some((Piece(piece), id)) = map.next_entry()? {
            pieces.push((piece, id));
        }
        Ok(Pieces(pieces))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut pieces = Vec::new();
        while let Some((Piece(piece), _)) = list.next_element::<(Piece<'de>, f64)>()? {
            pieces.push((piece, pieces.len() as u64));
        }
        Ok(Pieces(pieces))
    }
}

/// Tokens' bytes by id.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
    /// By id: where its bytes begin and end.
    spans: Vec<Option<(u32, u32)>>,
}

impl Table {
    /// Sets the bytes of an id; true if it had some already.
    fn put(&mut self, id: u64, bytes: Option<Vec<u8>>) -> Result<bool, Unreadable> {
        if id > TOKEN_ID_MAX {
            return Err(Unreadable::Id(id));
        }
        let bytes = bytes.unwrap_or_default();
        if bytes.len() > TOKEN_BYTES_MAX {
            return Err(Unreadable::Token(id as u32));
        }
        let (at, from) = (id as usize, self.bytes.len());
        self.bytes.extend_from_slice(&bytes);
        if self.spans.len() <= at {
            self.spans.resize(at + 1, None);
        }
        Ok(self.spans[at].replace((from as u32, self.bytes.len() as u32)).is_some())
    }

    fn tokens(&self) -> Vec<Option<&[u8]>> {
        let bytes = |(from, to): (u32, u32)| &self.bytes[from as usize..to as usize];
        self.spans.iter().map(|span| span.map(bytes)).collect()
    }
}

/// Returns the bytes that a token's GPT-2 letters stand for; a token with other letters is taken as it is.
fn letters(piece: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = piece.chars().map(byte).collect();
    Some(bytes.unwrap_or_else(|| piece.as_bytes().into()))
}

/// Returns the byte that a letter stands for. Printable bytes of Latin-1 are their own letters; the other 68 have the
/// letters from U+0100 on, in their order.
fn byte(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_those_of_gpt_2() {
        // As GPT-2's `bytes_to_unicode` makes them.
        let own = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let mut next = 0x100;
        for expected in 0..=255u32 {
            let code = if own(expected) { expected } else { next };
            next += u32::from(!own(expected));
            assert_eq!(byte(char::from_u32(code).expect("a letter")), Some(expected as u8));
        }
        assert_eq!(byte(char::from_u32(next).expect("a letter")), None);
        assert_eq!(byte(' '), None);
    }
}
