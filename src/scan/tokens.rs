//! Token ids back into text, one after the other.

use crate::vocabulary::{Lead, Vocabulary};

/// Where a run of tokens stands: whether a space that comes next is one that the tokenizer has put there, which is no
/// part of the text. Copied where two prompts part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    leads: bool,
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens { leads: true }
    }
}

impl Tokens {
    /// The bytes that the next token adds; `None`: nobody has the id, or it stands for no text.
    #[inline]
    pub fn text<'v>(&mut self, vocabulary: &'v Vocabulary, id: u32) -> Option<&'v [u8]> {
        let text = vocabulary.text(id)?;
        let lead = vocabulary.lead();
        if lead == Lead::Nowhere {
            return Some(text);
        }
        if vocabulary.is_special(id) {
            // What the tokenizer itself puts before a text does not part the text from its begin.
            self.leads = lead == Lead::BehindSpecial || self.leads && vocabulary.begins().contains(&id);
            return Some(text);
        }
        let led = std::mem::replace(&mut self.leads, false);
        Some(if led { text.strip_prefix(b" ").unwrap_or(text) } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of `<s>`, ` a`, `[I]`, ` a`, ` a`, and of ` a` alone.
    fn texts(lead: Lead) -> [Vec<u8>; 2] {
        let tokens: [Option<&[u8]>; 3] = [Some(b"<s>"), Some(b" a"), Some(b"[I]")];
        let vocabulary = Vocabulary::new(&tokens, &[0, 2], lead, &[0]);
        [&[0, 1, 2, 1, 1][..], &[1]].map(|ids| {
            let mut run = Tokens::default();
            ids.iter().flat_map(|&id| run.text(&vocabulary, id).unwrap()).copied().collect()
        })
    }

    #[test]
    fn a_space_of_the_tokenizer_is_no_text() {
        assert_eq!(texts(Lead::Nowhere), [&b"<s> a[I] a a"[..], b" a"]);
        assert_eq!(texts(Lead::First), [&b"<s>a[I] a a"[..], b"a"]);
        assert_eq!(texts(Lead::BehindSpecial), [&b"<s>a[I]a a"[..], b"a"]);
    }

    #[test]
    fn an_unknown_id_has_no_text() {
        let vocabulary = Vocabulary::new(&[Some(b"a"), None], &[], Lead::First, &[]);
        let mut run = Tokens::default();
        assert_eq!(
            [run.text(&vocabulary, 1), run.text(&vocabulary, 7), run.text(&vocabulary, 0)],
            [None, None, Some(b"a".as_slice())]
        );
    }
}
