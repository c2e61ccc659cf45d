//! What has come of an engine's reply, and what its head said of the rest.

use super::event::{Context, Micros};
use super::shown::Shown;
use super::{Exchange, refusals, tap, usage};
use crate::counters::stats::Ended;
use crate::http::rewrite::Form;
use crate::http::{Body, BodyLength};
use crate::scan::Api;

/// What has come of a head of this length is held whatever else is: most are shorter, and come in one piece.
const HEAD_BYTES_FREE: usize = 16 << 10;

/// The reply to one request. What each chunk reads or writes comes first, as [`super::Exchange`] has it.
#[repr(C)]
pub(super) struct Reply {
    /// Its framing, as it comes from the engine.
    pub body: Body,
    /// Bytes of the body so far, its framing not counted.
    pub bytes: u64,
    pub usage: usage::Reader,
    /// When the last of it came.
    pub last: Micros,
    pub tap: tap::Tap,
    /// How its bytes reach the client.
    pub form: Form,
    pub event_stream: bool,
    /// An answer in JSON, in one piece, the end of which may tell of tokens.
    pub json: bool,
    /// Nobody has to see the bytes of its body, nor asked for them to pass unseen yet.
    pub opaque: bool,
    /// Of an answer, where it is a stream.
    pub shown: Shown,

    /// The client was sent its head.
    pub started: bool,
    /// The engine's, or that of an answer of our own in its place; 0 before either.
    pub status: u16,
    /// What came of the request, where its words say something else than its status.
    pub ended: Option<Ended>,
    pub interim: u32,
    /// `head` is not worth reading again before it has so many bytes.
    pub head_needs: u32,
    /// Its head as far as it has come, and behind an error's head its body.
    pub head: Vec<u8>,
    /// Tokens as it told them: of the prompt, of these found in the prefix cache, generated.
    pub prompt_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub completion_tokens: Option<u32>,
}

impl Reply {
    /// Nothing has come of it.
    pub fn to(api: Api, now: Micros) -> Reply {
        Reply {
            body: Body::new(BodyLength::None),
            bytes: 0,
            usage: usage::Reader::default(),
            last: now,
            tap: tap::Tap::of(api),
            form: Form::Nothing,
            event_stream: false,
            json: false,
            opaque: false,
            shown: Shown::Nothing,
            started: false,
            status: 0,
            ended: None,
            interim: 0,
            head: Vec::new(),
            head_needs: 0,
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
        }
    }

    /// Whether a client that was sent so much of it would read another event in its place.
    pub fn takes_an_event(&self) -> bool {
        let between_chunks = match self.form {
            Form::AsItComes => self.body.between_chunks(),
            Form::Chunks => true,
            Form::Bare | Form::Nothing => false,
        };
        self.event_stream && between_chunks && self.tap.between_events()
    }

    /// So many bytes are left, and nobody has to look into them: once only.
    pub fn may_pass_unseen(&mut self, least: u64) -> Option<u64> {
        let left = self.body.left().filter(|left| *left >= least && self.form == Form::AsItComes)?;
        std::mem::take(&mut self.opaque).then_some(left)
    }
}

impl Exchange {
    /// Keeps what has come of the head until there is more of it.
    pub(super) fn hold_head(&mut self, head: Vec<u8>, cx: &mut Context<'_>) {
        self.reply.head = head;
        cx.lender.held_bytes += self.reply.head.capacity();
        if self.reply.head.len() > HEAD_BYTES_FREE && cx.lender.held_bytes > cx.lender.budget_bytes {
            // It may be as long as what its client asked for.
            self.charge();
            self.refuse(refusals::REPLY_OVER_BUDGET.into(), cx);
        }
    }

    /// What has come of it, held no more.
    pub(super) fn take_held_head(&mut self, cx: &mut Context<'_>) -> Vec<u8> {
        cx.lender.held_bytes -= self.reply.head.capacity();
        std::mem::take(&mut self.reply.head)
    }
}
