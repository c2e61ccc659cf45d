//! Turns runs of token ids into text, without the spaces that the tokenizer itself has put there.

use super::{Lead, Vocabulary};

/// The state of reading a run of tokens: whether a space that comes next is the tokenizer's, and so no part of the
/// text. It is copied where two prompts part.
///
/// Both sides go by this one rule: token ids of a request, and those that an engine says it holds. If they read one
/// token differently, nothing after it would be found. A tokenizer that puts a space only if there is none writes `x`
/// and ` x` alike: both are taken for `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    leads: bool,
}

impl Run {
    /// Makes the state before the first token.
    #[inline]
    pub fn begin(vocabulary: &Vocabulary) -> Run {
        Run { leads: vocabulary.lead() != Lead::Nowhere }
    }

    /// Makes the state of which [`Run::leads`] says this.
    pub fn at(leads: bool) -> Run {
        Run { leads }
    }

    /// Whether a space that comes next is the tokenizer's.
    pub fn leads(self) -> bool {
        self.leads
    }

    /// Returns the bytes that the next token adds; `None` if no token has the id, or if it stands for no text.
    #[inline]
    pub fn text<'v>(&mut self, vocabulary: &'v Vocabulary, id: u32) -> Option<&'v [u8]> {
        let text = vocabulary.text(id)?;
        let lead = vocabulary.lead();
        if lead == Lead::Nowhere {
            return Some(text);
        }
        if vocabulary.is_special(id) {
            // After the tokens that the tokenizer itself puts before a text, the text still begins.
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

    /// Makes a vocabulary of `<s>` (which begins a prompt), `</s>`, ` `, ` a`, `b` and an id without a token.
    fn vocabulary(lead: Lead) -> Vocabulary {
        let tokens: [Option<&[u8]>; 6] = [Some(b"<s>"), Some(b"</s>"), Some(b" "), Some(b" a"), Some(b"b"), None];
        Vocabulary::new(&tokens, &[0, 1], lead, &[0])
    }

    fn text(lead: Lead, ids: &[u32]) -> String {
        let vocabulary = vocabulary(lead);
        let mut run = Run::begin(&vocabulary);
        let bytes = ids.iter().flat_map(|&id| run.text(&vocabulary, id).expect("a known id"));
        String::from_utf8(bytes.copied().collect()).expect("text")
    }

    #[test]
    fn a_space_of_the_tokenizer_is_no_text() {
        let ids = [0, 3, 3, 1, 3, 4, 3];
        assert_eq!(text(Lead::Nowhere, &ids), "<s> a a</s> ab a");
        assert_eq!(text(Lead::First, &ids), "<s>a a</s> ab a");
        assert_eq!(text(Lead::BehindSpecial, &ids), "<s>a a</s>ab a");
        assert_eq!([Lead::Nowhere, Lead::First, Lead::BehindSpecial].map(|lead| text(lead, &[3])), [" a", "a", "a"]);
    }

    #[test]
    fn one_space_alone_is_the_one_that_was_put() {
        assert_eq!(text(Lead::First, &[2, 3]), " a");
        assert_eq!(text(Lead::First, &[2, 4]), "b");
        assert_eq!(text(Lead::First, &[4, 2, 4]), "b b");
        assert_eq!(text(Lead::First, &[1, 3]), "</s> a", "a special token of the text itself");
        assert_eq!(text(Lead::BehindSpecial, &[1, 2, 3]), "</s> a");
    }

    #[test]
    fn an_unknown_id_has_no_text() {
        let vocabulary = vocabulary(Lead::First);
        let mut run = Run::begin(&vocabulary);
        assert_eq!([5, 6, u32::MAX].map(|id| run.text(&vocabulary, id)), [None; 3]);
        assert_eq!(run.text(&vocabulary, 3), Some(b"a".as_slice()), "they are no part of it");
    }
}
