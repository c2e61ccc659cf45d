//! Responses that are stored (`/v1/responses/ID`, `previous_response_id`): each lies in the engine that made it.
//!
//! Who makes one names it at the beginning of its reply; that is kept as a hint ([`crate::counters::Stored`]). Where
//! there is none, as behind a restart or another front, or a body that nobody reads names it, the request goes where
//! any would. An engine that has no such response says so before it does anything else, and the next one is asked: by
//! no budget, since nothing was computed, but of so many engines at most.

use memchr::memmem;

use super::Exchange;
use super::event::{Action, Context};
use crate::counters::StoredId;
use crate::counters::stats::Count;
use crate::http;
use crate::policy::Eligible;
use crate::prefix;
use crate::scan::Api;
use crate::snapshot::Pool;

/// Before the id in a target.
const PATH: &[u8] = b"/v1/responses/";
/// How vLLM and SGLang begin each id.
const ID: &[u8] = b"resp";
/// Where it stands in a reply that makes one,
const MADE: &[u8] = b"\"id\":\"resp";
/// among so many of its first bytes.
const LOOK_BYTES: usize = 512;
/// Longer bodies are not sent from engine to engine.
const ASKED_ON_BYTES_MAX: u64 = 64 << 10;
/// How vLLM and SGLang say that they have none of an id: before it, and behind.
const NOT_HERE: [&[u8]; 2] = [b"\"message\":\"Response with id '", b"' not found.\""];

/// The id in an answer that says that there is no such response.
pub(super) fn not_here(words: &[u8]) -> Option<&[u8]> {
    let [before, behind] = NOT_HERE;
    let id = words.get(memmem::find(words, before)? + before.len()..)?;
    id.get(..memmem::find(id, behind)?)
}

/// That of the one which a request asks for by its path.
pub(super) fn asked_for(target: &[u8]) -> Option<StoredId> {
    let id = http::without_query(target).strip_prefix(PATH)?.split(|byte| *byte == b'/').next()?;
    id.starts_with(ID).then(|| stored_id(id))
}

/// As of a body that names it.
fn stored_id(id: &[u8]) -> StoredId {
    StoredId::of(prefix::text_hash(id))
}

impl Exchange {
    /// Where the response lies that it is about, as far as is known.
    pub(super) fn lies_at(&self, cx: &Context<'_>) -> Option<u16> {
        cx.counters.stored().slot(self.sought?)
    }

    /// More of a reply came, perhaps the beginning of one that makes a response.
    #[inline]
    pub(super) fn note_made(&self, data: &[u8], cx: &Context<'_>) {
        if self.reply.bytes == 0 && self.asked.api == Api::Responses && self.reply.status == 200 {
            self.note_its_id(data, cx);
        }
    }

    fn note_its_id(&self, data: &[u8], cx: &Context<'_>) {
        let begins = data.get(..LOOK_BYTES).unwrap_or(data);
        let Some(at) = memmem::find(begins, MADE) else { return };
        let rest = data.get(at + MADE.len() - ID.len()..).unwrap_or_default();
        // What is cut here is asked for as what nobody knows.
        let id = rest.get(..LOOK_BYTES).unwrap_or(rest).split_inclusive(|byte| *byte == b'"').next();
        if let Some(id) = id.and_then(|id| id.strip_suffix(b"\"")) {
            self.note_lying(stored_id(id), cx);
        }
    }

    /// Its engine has the one that it is about.
    pub(super) fn note_found(&self, cx: &Context<'_>) {
        if let Some(id) = self.sought {
            self.note_lying(id, cx);
        }
    }

    fn note_lying(&self, id: StoredId, cx: &Context<'_>) {
        if let Some(endpoint) = self.endpoint() {
            cx.counters.stored().lies(id, endpoint.slot);
        }
    }

    /// Its engine says that it has no such response: whether another is asked. All ranks of a server have the same.
    /// `reuse`: its reply is here to its last byte, so that the connection may serve others.
    pub(super) fn asks_on(&mut self, words: &[u8], reuse: bool, cx: &mut Context<'_>) -> bool {
        // Of the eight that are known as tried the oldest may have been forgotten: it was asked once more.
        let is_again = self.endpoint().is_some_and(|endpoint| self.tried.contains(endpoint.slot));
        if !self.upload.held_whole || self.upload.bytes > ASKED_ON_BYTES_MAX || self.tried.is_full() || is_again {
            return false;
        }
        // The answer is to be about what was asked: nothing else is sent twice for what an engine says.
        let asked = self.upload.request();
        let Some(id) = not_here(words).filter(|id| memmem::find(asked, id).is_some()) else { return false };
        self.sought = Some(stored_id(id));
        if self.has_no_other(cx.snapshot) && !self.turns_to_another_pool(cx) {
            return false;
        }
        cx.actions.push(Action::Dismiss { reuse });
        self.leave_server(cx);
        self.send_again(Count::RetriedNotHere, cx);
        true
    }

    /// A path names no model: where its pool has nobody left, it may be another's.
    fn turns_to_another_pool(&mut self, cx: &Context<'_>) -> bool {
        let pools = cx.snapshot.pools.iter().filter(|_| self.names_it_alone());
        // Where its key is not known it would be told that, and not what those said who let it in.
        let mut others = pools.filter(|pool| !self.is_strange_to(Some(pool.id), cx));
        let other = others.find(|pool| !self.has_no_other_in(pool, Eligible::is_one_server));
        self.pool = other.map(|pool| pool.id).or(self.pool);
        other.is_some()
    }

    /// The pool of who has the response, where the request names nothing but that.
    pub(super) fn pool_it_lies_in<'a>(&self, cx: &Context<'a>) -> Option<&'a Pool> {
        let slot = self.lies_at(cx).filter(|_| self.names_it_alone())?;
        cx.snapshot.pools.iter().find(|pool| pool.eligible().slots().contains(&slot))
    }

    /// Whether neither a body nor the query may name a model.
    fn names_it_alone(&self) -> bool {
        let target = || http::method_and_target(self.upload.request()).1;
        let has_body = self.upload.bytes > 0;
        self.asked.api == Api::Other && !has_body && http::query_value(target(), b"model").is_none()
    }
}
