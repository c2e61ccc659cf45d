//! Runs of tokens as text: what a request's side would have written for them.

use super::{Lead, Vocabulary};

/// What stands before the next token; `Copy`, to be kept where two prompts part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behind {
    /// Nothing, or only what the tokenizer itself puts before a prompt.
    #[default]
    Nothing,
    /// A token that is cut out of the text before all others.
    Special,
    /// Text.
    Text,
}

/// Nobody knows what text an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer has no text for token {0}")]
pub struct UnknownId(pub u32);

impl Vocabulary {
    /// Appends the text of further tokens, without the spaces that [`Lead`] says are not the text's.
    ///
    /// A tokenizer that puts a space only where none is writes `x` and ` x` alike: both are taken for `x`. At an id
    /// that nobody has, `out` ends with the text of the ids before.
    pub fn write(&self, ids: &[u32], behind: &mut Behind, out: &mut Vec<u8>) -> Result<(), UnknownId> {
        for id in ids {
            let text = self.text(*id).ok_or(UnknownId(*id))?;
            if self.is_special(*id) {
                let begins = *behind == Behind::Nothing && self.begins().contains(id);
                *behind = if begins { Behind::Nothing } else { Behind::Special };
                out.extend_from_slice(text);
                continue;
            }
            let put = match (self.lead(), *behind) {
                (Lead::Nowhere, _) | (_, Behind::Text) | (Lead::First, Behind::Special) => false,
                (Lead::First, Behind::Nothing) | (Lead::BehindSpecial, _) => true,
            };
            out.extend_from_slice(text.strip_prefix(b" ").filter(|_| put).unwrap_or(text));
            *behind = Behind::Text;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `<s>` (a prompt's begin), `</s>`, ` `, ` a`, `b` and an id without a token.
    fn vocabulary(lead: Lead) -> Vocabulary {
        let tokens: [Option<&[u8]>; 6] = [Some(b"<s>"), Some(b"</s>"), Some(b" "), Some(b" a"), Some(b"b"), None];
        Vocabulary::new(&tokens, &[0, 1], lead, &[0])
    }

    fn text(lead: Lead, ids: &[u32]) -> String {
        let (mut whole, mut behind) = (Vec::new(), Behind::default());
        vocabulary(lead).write(ids, &mut behind, &mut whole).expect("known ids");
        let (mut single, mut behind) = (Vec::new(), Behind::default());
        for id in ids {
            vocabulary(lead).write(&[*id], &mut behind, &mut single).expect("known ids");
        }
        assert_eq!(whole, single, "however it is cut");
        String::from_utf8(whole).expect("text")
    }

    #[test]
    fn a_space_that_was_put_is_left_out() {
        let ids = [0, 3, 3, 1, 3, 4, 3];
        assert_eq!(text(Lead::Nowhere, &ids), "<s> a a</s> ab a");
        assert_eq!(text(Lead::First, &ids), "<s>a a</s> ab a");
        assert_eq!(text(Lead::BehindSpecial, &ids), "<s>a a</s>ab a");
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
    fn an_unknown_id_ends_the_text_before_it() {
        for id in [5, 6, u32::MAX] {
            let (mut out, mut behind) = (Vec::new(), Behind::default());
            assert_eq!(vocabulary(Lead::Nowhere).write(&[4, id, 4], &mut behind, &mut out), Err(UnknownId(id)));
            assert_eq!(out, b"b");
        }
    }
}
