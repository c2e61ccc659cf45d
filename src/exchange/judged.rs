//! What of an error's body is waited for before its head goes on: errors are judged by their words, and what is refused
//! for load may go elsewhere as long as its client has seen nothing.

use std::borrow::Cow;

use super::Exchange;
use super::event::{Context, Side};
use crate::http::rewrite::Form;
use crate::http::{Body, BodyLength, ReplyFraming, ResponseHead};

/// So much of an error's body is read before its head is passed on.
const ERROR_BYTES_MAX: usize = 4 << 10;
/// And so much of it with the framing of its chunks, which may be many times what they hold.
const FRAMED_BYTES_MAX: usize = 2 * ERROR_BYTES_MAX;

/// The words by which a reply is judged.
pub(super) enum Words<'a> {
    /// As far as they count; none of a reply that is judged without.
    Here(Cow<'a, [u8]>),
    /// They are not all there before so many bytes more have come.
    Wanting(usize),
}

impl<'a> Words<'a> {
    /// Of a reply, of whose body so much is there. A hop before the engine may have put it in chunks.
    pub(super) fn of(head: &ResponseHead<'_>, framing: &ReplyFraming, body: &'a [u8]) -> Words<'a> {
        let none = Words::Here(Cow::Borrowed(b""));
        if !matches!(head.status, 500 | 503) || head.list.is_encoded() {
            return none;
        }
        match framing.body {
            BodyLength::Length(len) => {
                let wanted = len.min(ERROR_BYTES_MAX as u64) as usize;
                match body.get(..wanted) {
                    Some(words) => Words::Here(words.into()),
                    None => Words::Wanting(wanted - body.len()),
                }
            }
            BodyLength::Chunked => in_chunks(body).map_or(Words::Wanting(1), |words| Words::Here(words.into())),
            BodyLength::None | BodyLength::UntilClose => none,
        }
    }
}

/// `None`: more is to come. Where it is malformed, or is framing for the most part, so much as came before that.
fn in_chunks(framed: &[u8]) -> Option<Vec<u8>> {
    let mut rest = framed;
    let (mut body, mut words) = (Body::new(BodyLength::Chunked), Vec::new());
    while !body.done() && words.len() < ERROR_BYTES_MAX {
        if rest.is_empty() {
            if framed.len() < FRAMED_BYTES_MAX {
                return None;
            }
            break;
        }
        let Ok(part) = body.next(rest) else { break };
        words.extend_from_slice(part.data(rest));
        rest = rest.get(part.len..).unwrap_or_default();
    }
    words.truncate(ERROR_BYTES_MAX);
    Some(words)
}

/// Whether an engine that has enough to do may say so here in words that cannot be read.
pub(super) fn hides_words(head: &ResponseHead<'_>, framing: &ReplyFraming) -> bool {
    framing.body == BodyLength::UntilClose || head.list.is_encoded()
}

impl Exchange {
    /// What came of the body before the bytes at hand, while it was waited for.
    pub(super) fn pass_held(&mut self, mut held: &[u8], cx: &mut Context<'_>) {
        while !self.reply.body.done()
            && !held.is_empty()
            && let Ok(part) = self.reply.body.next(held)
        {
            let data = part.data(held);
            self.listen(data, cx);
            self.count_data(data.len() as u64, cx);
            let passes = match self.reply.form {
                Form::AsItComes => part.raw(held),
                Form::Nothing => b"",
                Form::Chunks | Form::Bare => data,
            };
            cx.actions.bytes(Side::Client, passes);
            self.reframe_reply(part.kind, cx);
            held = held.get(part.len..).unwrap_or_default();
        }
    }
}
