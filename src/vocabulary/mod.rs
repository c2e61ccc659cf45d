//! The text of tokens: what a model's tokenizer makes of bytes, backwards. No text is cut into tokens here.
//!
//! [`read`](Vocabulary::read) takes it from a model's `tokenizer.json`, a [`Run`] makes text of tokens.

mod layout;
mod read;
mod run;

pub use read::Unreadable;
pub use run::Run;

/// Token ids and the bytes that they stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vocabulary {
    bytes: Box<[u8]>,
    /// Where each token's bytes end; they begin where those of the one before end.
    ends: Box<[u32]>,
    /// Ids that are cut out of a text before all others, such as `<|im_start|>`; sorted.
    special: Box<[u32]>,
    /// Whether a space that was not there comes before a text.
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
    /// Before the text, and behind each special token.
    BehindSpecial,
}

impl Vocabulary {
    /// Of these tokens, in the order of their ids; `None`: nobody has the id. `special`: sorted.
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

    /// The bytes of a token; `None`: it stands for none, or nobody has the id.
    #[inline]
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        let end = *self.ends.get(id as usize)? as usize;
        let begin = id.checked_sub(1).map_or(0, |before| self.ends[before as usize] as usize);
        self.bytes.get(begin..end).filter(|text| !text.is_empty())
    }

    /// Whether it is cut out of a text before all others.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Where there is a space that the text does not have.
    pub fn lead(&self) -> Lead {
        self.lead
    }

    /// What the tokenizer puts before a prompt that is no chat.
    pub fn begins(&self) -> &[u32] {
        &self.begins
    }

    /// How many ids there are, without a text or with one.
    pub fn ids(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The ids that are cut out of a text before all others; sorted.
    pub fn special(&self) -> &[u32] {
        &self.special
    }
}
