//! The text of tokens, the reverse of what a model's tokenizer does. No text is cut into tokens here.
//!
//! [`read`](Vocabulary::read) reads a model's `tokenizer.json`, a [`Run`] turns tokens into text.

mod layout;
mod read;
mod run;

pub use read::Unreadable;
pub use run::Run;

/// Token ids and the bytes that they stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    bytes: Box<[u8]>,
    /// Where each token's bytes end; they begin where those of the id before end.
    ends: Box<[u32]>,
    /// Ids of special tokens, which are cut out of a text before all others, such as `<|im_start|>`; sorted.
    special: Box<[u32]>,
    /// Where the tokenizer puts a space that the text does not have.
    lead: Lead,
    /// What the tokenizer puts before a prompt that is no chat.
    begins: Box<[u32]>,
}

/// Where a tokenizer puts a space that the text does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// Nowhere.
    #[default]
    Nowhere,
    /// Before the text.
    First,
    /// Before the text, and after each special token.
    BehindSpecial,
}

impl Vocabulary {
    /// Makes a vocabulary of these tokens, in the order of their ids; `None`: no token has the id. `special`: sorted.
    pub fn new(tokens: &[Option<&[u8]>], special: &[u32], lead: Lead, begins: &[u32]) -> Vocabulary {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            bytes.extend_from_slice(token.unwrap_or_default());
            ends.push(bytes.len() as u32);
        }
        let (bytes, ends) = (bytes.into(), ends.into());
        Vocabulary { bytes, ends, special: special.into(), lead, begins: begins.into() }
    }

    /// Returns the bytes of a token; `None` if it stands for none, or if no token has the id.
    #[inline]
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let begin = id.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        self.bytes.get(begin..end).filter(|text| !text.is_empty())
    }

    /// Whether it is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Where the tokenizer puts a space that the text does not have.
    pub fn lead(&self) -> Lead {
        self.lead
    }

    /// What the tokenizer puts before a prompt that is no chat.
    pub fn begins(&self) -> &[u32] {
        &self.begins
    }

    /// Returns how many ids there are, with or without a text.
    pub fn ids(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The ids of special tokens, sorted.
    pub fn special(&self) -> &[u32] {
        &self.special
    }
}
