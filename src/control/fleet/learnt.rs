//! What the fleet learns of its engines' models: when they are asked again, and what a list changes.

use std::time::{Duration, Instant};

use super::Fleet;
use crate::control::member::{InVain, Member};
use crate::control::models::{Card, Cards, Learnt, ModelsError};
use crate::fleet::EndpointId;

/// How often an engine is asked at most what it serves because requests were in vain.
const IN_VAIN: Duration = Duration::from_secs(1);
/// Its pause for each engine of the fleet, where they are more together: anybody may name models that nobody serves, at
/// which all are asked.
const IN_VAIN_EACH: Duration = Duration::from_millis(10);

/// Most engines that are asked at a time: lists of a thousand adapters take half a megabyte each, and all that come at
/// one moment would be held, and keep control from whatever else it is to do.
const RUNG_AT_ONCE: usize = 16;

/// Models that a line of the log names at most.
const NAMED_MAX: usize = 8;

impl Fleet {
    /// Has engines asked what they serve that answered 404 since, and all where models were asked for that nobody is
    /// known to serve: adapters are loaded and unloaded by hand.
    pub fn ring_for_models(&mut self, not_found: impl Fn(u16) -> u32, unknown: u64, now: Instant) {
        let mut left = RUNG_AT_ONCE;
        let pause = IN_VAIN.max(IN_VAIN_EACH.saturating_mul(self.members.len() as u32));
        // All ranks of a server have one bell.
        for ranks in self.members.chunk_by_mut(|one, other| one.upstream.is_beside(&other.upstream)) {
            let seated = ranks.iter().filter_map(|rank| Some(not_found(rank.now.as_ref()?.id.slot)));
            let Some(there) = seated.reduce(u32::wrapping_add) else { continue };
            let Some(first) = ranks.first_mut() else { continue };
            let before = &first.in_vain;
            let is_more = (there, unknown) != (before.there, before.in_all);
            if left > 0 && is_more && before.rung.is_none_or(|rung| now.saturating_duration_since(rung) >= pause) {
                first.in_vain = InVain { there, in_all: unknown, rung: Some(now) };
                first.models_wanted.notify_one();
                left -= 1;
            }
        }
    }

    /// An engine's `/v1/models` was read, or was not. Whether shards must know.
    pub fn learnt(&mut self, place: usize, id: EndpointId, learnt: Result<Learnt, ModelsError>) -> bool {
        let is_there =
            |member: &Member| member.place == place && member.now.as_ref().is_some_and(|tenancy| tenancy.id == id);
        let Some(at) = self.members.iter().position(is_there) else { return false };
        let speaks = self.speaks_for_server(at);
        let learnt = learnt.map(|learnt| self.shared(at, learnt));
        let member = &mut self.members[at];
        let lock = member.lock.after(&learnt, member.key.is_some());
        let mut changed = std::mem::replace(&mut member.lock, lock) != lock;
        member.models_error = learnt.as_ref().err().map(ToString::to_string);
        let (mut before, mut serves_others) = (None, false);
        let is_locked = learnt.as_ref().is_err_and(ModelsError::is_locked);
        match learnt {
            // An engine that takes ids which it does not list, as SGLang does, never listed them: it is not doubted.
            Ok(others) if member.models_doubted && was_listed(member) && !member.is_listed(&others) => {
                let lists_others_now = !std::mem::replace(&mut member.lists_others, true);
                changed |= lists_others_now;
                if lists_others_now && speaks {
                    tracing::warn!(
                        engine = %member.upstream.server(),
                        "lists none of its `models` any more: it gets no requests while other engines serve them"
                    );
                }
                member.models_error = Some("/v1/models lists none of its `models`, of which it listed some".into());
            }
            Ok(learnt) => {
                changed |= std::mem::take(&mut member.lists_others);
                changed |= !member.models.as_ref().is_some_and(|before| before.is_as(&learnt));
                serves_others = member.models.as_ref().is_some_and(|before| learnt.is_of_others(before));
                (before, member.models) = (member.models.take(), Some(learnt));
                (member.models_doubted, member.models_anothers, member.forgotten) = (false, false, None);
            }
            // Another server at its address would draw requests for these models, and answer each with an instant 404;
            // likewise one that wants another key. If it is still the process that told them, only our key is wrong.
            Err(error) if member.models_doubted && error.is_no_list() || member.models_anothers && is_locked => {
                before = member.models.take();
                serves_others = before.is_some();
                changed |= serves_others;
                if let Some(before) = &before {
                    member.forgotten = Some(before.cards.clone());
                }
                if serves_others && speaks {
                    tracing::warn!(
                        engine = %member.upstream.server(),
                        why = %error,
                        "another process may answer there by now, and does not tell what it serves: its models are forgotten"
                    );
                }
            }
            Err(_) => {}
        }
        if let Some(tenancy) = member.now.as_mut().filter(|_| serves_others) {
            tenancy.truth.serves_another_model();
        }
        changed |= is_locked && member.models.is_none() && self.judge_locked(at);
        if changed {
            self.answer_is_old = true;
            for before in before.iter().filter(|_| speaks) {
                self.say_joined(place, before);
                self.say_changed(place, before);
            }
        }
        changed
    }

    /// The same with the cards of an engine that lists as much: hundreds may have a thousand adapters each.
    fn shared(&self, at: usize, learnt: Learnt) -> Learnt {
        let known = |member: &Member| member.models.as_ref().is_some_and(|known| known.cards.are(&learnt.cards));
        let told = self.members.iter().filter_map(|member| member.models.as_ref());
        let mut alike = told.filter(|other| other.asks_key == learnt.asks_key && other.cards.say_as(&learnt.cards));
        let other = if self.members.get(at).is_some_and(known) { None } else { alike.next() };
        Learnt { cards: other.map_or_else(|| learnt.cards.clone(), |other| other.cards.clone()), ..learnt }
    }

    /// An engine that wants a key not known here is taken for one that wanted it from the first: it may be asked for
    /// models that nobody is known to serve. But it is doubted while others serve all that it did: requests that name
    /// no such model are theirs, and they would get none. Answers whether that has changed.
    fn judge_locked(&mut self, at: usize) -> bool {
        let Some(member) = self.members.get(at) else { return false };
        let others = || self.beside_server_of(member);
        // Hundreds may want another key by now than those with which they share one list.
        let are_theirs = |cards: &Cards| {
            let any_serves = |card: &Card| others().any(|other| other.serves(&card.id));
            others().any(|other| other.lists(cards)) || cards.iter().all(any_serves)
        };
        let are_served = member.forgotten.as_ref().is_some_and(are_theirs);
        let is_doubted = are_served && member.upstream.models.is_empty();
        self.members
            .get_mut(at)
            .is_some_and(|member| std::mem::replace(&mut member.models_doubted, is_doubted) != is_doubted)
    }

    /// Engines that are new said this of what they serve, before anybody is sent there.
    pub(in crate::control) fn first_learnt(&mut self, lists: Vec<(String, Learnt)>) {
        for (server, learnt) in lists {
            let ranks = self.members().iter().filter(|member| member.upstream.server() == server);
            let seated = ranks.filter_map(|member| Some((member.place, member.now.as_ref()?.id)));
            for (place, id) in seated.collect::<Vec<_>>() {
                self.learnt(place, id, Ok(learnt.clone()));
            }
        }
    }

    /// Whether each engine has said what it serves and how it is loaded, or failed to; `succeeds`: and it is known
    /// where each is, and whether it is up or stays in service all the same.
    pub(in crate::control) fn is_acquainted(&self, succeeds: bool) -> bool {
        self.members().iter().all(|member| {
            let Some(tenancy) = &member.now else { return !succeeds };
            let says_models = member.has_ids() || member.models_error.is_some();
            // An engine that sleeps says so beside its load.
            let says_load = tenancy.is_known || tenancy.scrape_error.is_some();
            says_models && says_load && (tenancy.course.is_settled() || !succeeds)
        })
    }

    /// It serves others than `before`. What nobody serves any more is refused while the engine is up.
    fn say_changed(&self, place: usize, before: &Learnt) {
        let Some(member) = self.member(place).filter(|member| member.upstream.models.is_empty()) else { return };
        let went: Vec<&str> = before.cards.iter().map(|card| &*card.id).filter(|id| !member.serves(id)).collect();
        let came: Vec<&str> = member.known_ids().filter(|id| before.cards.of(id).is_none()).collect();
        let engine = &*member.upstream.server();
        if member.models.is_some() && went.len() + came.len() > 0 {
            tracing::info!(went = ?few(&went), came = ?few(&came), engine, "this engine serves other models than before");
        }
        let gone = self.of_no_other(member, went.into_iter());
        if !gone.is_empty() {
            tracing::warn!(models = ?few(&gone), engine, "no engine is known to serve these models any more");
        }
    }

    /// Those of these ids that no engine is known to serve, but for a server and its ranks.
    fn of_no_other<'a>(&self, member: &Member, ids: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        ids.filter(|id| !self.beside_server_of(member).any(|other| other.serves(id))).collect()
    }

    /// Whoever lists a model gets prompts for it. With its first list an engine is what it was configured for; one that
    /// comes to list what others serve may be told to, or not be what it was.
    fn say_joined(&self, place: usize, before: &Learnt) {
        let Some(member) = self.member(place) else { return };
        if !member.upstream.models.is_empty() {
            return;
        }
        // Adapters come and go.
        let mut joined = member.known_ids().filter(|id| before.cards.of(id).is_none());
        let is_base_of = |other: &Member, id: &str| other.serves(id) && !other.is_adapter(id);
        if let Some(model) = joined.find(|id| self.beside_server_of(member).any(|other| is_base_of(other, id))) {
            tracing::warn!(
                engine = &*member.upstream.server(),
                model,
                "this engine lists a model that others serve and that it did not list before: it gets prompts for it from now on; `models` of its \
                 [[upstream]] says what it is to serve, whatever it lists"
            );
        }
    }

    /// Engines of other servers than this one's.
    fn beside_server_of<'f>(&'f self, member: &'f Member) -> impl Iterator<Item = &'f Member> {
        self.members.iter().filter(|other| !other.upstream.is_of_server(&member.upstream))
    }
}

/// As many of them as a line of the log has room for, whatever an engine lists.
fn few<'a>(ids: &[&'a str]) -> Vec<&'a str> {
    ids.iter().copied().take(NAMED_MAX).chain((ids.len() > NAMED_MAX).then_some("...")).collect()
}

/// Whether one of the configured ids is in the list that is known.
fn was_listed(member: &Member) -> bool {
    member.models.as_ref().is_some_and(|list| member.is_listed(list))
}
