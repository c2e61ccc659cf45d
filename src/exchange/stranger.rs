//! Strangers: clients whose request shows no key that an engine has let in of late, where the engines of its pool ask
//! for keys in the [`Realm`] of its path.
//!
//! Engines judge keys, and the choice is made before that. What the front learns with a choice it would learn from
//! anybody: prompts that it notes drive out what it knew, whatever is taken back once they are refused; their lengths
//! bend the means by which costs are counted, and their tools take the room of others'. So a stranger's request goes
//! where any other would, and counts there for as long; but nothing is learnt of it before its engine lets it in. Of
//! what is no stream that takes as long as the answer: its prompt is kept until then as it was cut,
//! since the body is not.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::event::Context;
use super::kept::Kept;
use super::warm::LookedUp;
use super::{Exchange, refusals};
use crate::counters::stats::Count;
use crate::counters::{Credential, Realm};
use crate::http::RequestHead;
use crate::snapshot::PoolId;

/// Where clients show their keys: OpenAI's, Anthropic's, Azure's.
const FIELDS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// The key that a request shows; `None`: no engine is known to ask for keys in this realm, and nobody is a stranger.
pub(super) fn credential(head: &RequestHead<'_>, cx: &Context<'_>) -> Option<Credential> {
    let realm = Realm::of_path(head.path);
    if !are_keys_asked_for(realm, None, cx) {
        return None;
    }
    let shown = FIELDS.iter().find_map(|name| head.fields.get(name)).unwrap_or_default();
    // The realm is part of it: a key let in by a realm that asks for none says nothing here.
    Some(Credential::of(xxh3_64_with_seed(shown, realm as u64)))
}

/// Whether an engine of this pool is known to ask for keys there; `None`: of any.
fn are_keys_asked_for(realm: Realm, pool: Option<PoolId>, cx: &Context<'_>) -> bool {
    let as_it_tells = || match pool {
        Some(id) => cx.snapshot.pool(id).is_some_and(|pool| pool.asks_keys),
        None => cx.snapshot.models_answer.asks_keys,
    };
    let was_refused = || cx.counters.credentials().are_asked_for(realm, pool.map(|pool| pool.0));
    // `/v1/models` tells of its own realm alone: an older engine may ask for keys there and nowhere else.
    realm == Realm::V1 && as_it_tells() || was_refused()
}

impl Exchange {
    /// Whether engines of this pool ask for keys, and none let it in of late; `None`: of any.
    pub(super) fn is_strange_to(&self, pool: Option<PoolId>, cx: &Context<'_>) -> bool {
        let known = |credential| cx.counters.credentials().are_known(credential, pool.map(|pool| pool.0));
        let is_asked = || are_keys_asked_for(self.asked.realm, pool, cx);
        self.asked.credential.is_some_and(|credential| is_asked() && !known(credential))
    }

    /// Its engine answers so, and has judged it. False: the answer is not for its client, who has had another.
    pub(super) fn is_let_in(&mut self, status: u16, is_kept_out: bool, cx: &mut Context<'_>) -> bool {
        let kept = self.take_kept(cx);
        let Some(pool) = self.pool else { return true };
        let (credentials, realm) = (cx.counters.credentials(), self.asked.realm);
        match (status, self.asked.credential) {
            (_, credential) if is_kept_out => credentials.kept_out(credential, realm, pool.0),
            // Only what the engine computed counts: its HTTP server answers much without asking for a key.
            (200..300, Some(credential)) if self.asked.proves_key && are_keys_asked_for(realm, Some(pool), cx) => {
                credentials.let_in(credential, pool.0);
                if std::mem::take(&mut self.stranger) && !self.names_nobody {
                    self.learn_late(kept, cx);
                }
            }
            _ => {}
        }
        // Perhaps an engine serves that model by now: engines' lists are read again, but not for clients that were kept
        // out.
        if self.names_nobody && !matches!(status, 200..300 | 401 | 403) {
            cx.stats.count(Count::StrangersUnknownModel);
        }
        // Some engines answer whatever model is named.
        let is_anothers = self.names_nobody && (200..300).contains(&status);
        if is_anothers {
            self.refuse(refusals::unknown_model(b"(the one that is named)"), cx);
        }
        !is_anothers
    }

    /// Learns late what is learnt of others at the choice; if its prompt was kept, that its endpoint will hold it, too.
    fn learn_late(&mut self, kept: Option<Box<Kept>>, cx: &mut Context<'_>) {
        let Some(endpoint) = self.endpoint() else { return };
        let Some(mut noted) = self.leg.as_mut().and_then(|leg| leg.noted.take()) else { return };
        let looked_up = kept.map(|kept| kept.lend(cx.lender));
        self.learn(&mut noted, endpoint, looked_up, cx);
        if let Some(leg) = &mut self.leg {
            leg.noted = Some(noted);
        }
    }

    /// A stranger's prompt as it was cut, where it may come to be noted and there is memory for it.
    /// It is on the account once it is the leg's.
    pub(super) fn kept(&self, looked_up: LookedUp, cx: &Context<'_>) -> Option<Box<Kept>> {
        let kept = Kept::to_note(looked_up, cx.lender);
        let has_room = cx.lender.held_bytes + kept.bytes() <= cx.lender.budget_bytes;
        (has_room && !self.names_nobody).then(|| Box::new(kept))
    }

    /// The same, kept no longer.
    pub(super) fn take_kept(&mut self, cx: &mut Context<'_>) -> Option<Box<Kept>> {
        let kept = self.leg.as_mut()?.noted.as_mut()?.kept.take()?;
        cx.lender.held_bytes -= kept.bytes();
        Some(kept)
    }

    /// The memory that it takes.
    pub(super) fn kept_bytes(&self) -> usize {
        let noted = self.leg.as_ref().and_then(|leg| leg.noted.as_ref());
        noted.and_then(|noted| noted.kept.as_ref()).map_or(0, |kept| kept.bytes())
    }
}
