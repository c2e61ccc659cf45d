//! What `/v1/models` says of the whole fleet: each id once, as the first engine that serves it describes it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::fleet::Fleet;
use super::member::Member;
use super::models::{self, Card, Learnt, Lock, ModelsError};
use crate::fleet::EndpointId;
use crate::snapshot::ModelsAnswer;

/// The merged `/v1/models` of these engines.
pub(super) fn of(members: &[Member]) -> ModelsAnswer {
    let takes = |member: &Member| member.key.as_ref().filter(|_| member.lock == Lock::Ours).cloned();
    let hash = |key: Arc<str>| xxh3_64(format!("Bearer {key}").as_bytes());
    let mut authorizations: Vec<u64> = members.iter().filter_map(takes).map(hash).collect();
    authorizations.sort_unstable();
    authorizations.dedup();
    // Nobody can show a key that we know: who is told of such an engine's models, that engine has to judge.
    let is_hidden = |member: &&Member| authorizations.is_empty() && member.lock != Lock::Open && member.ids().is_some();
    let mut cards: Vec<Card> = Vec::new();
    let mut places = HashMap::new();
    for member in members.iter().filter(|member| !is_hidden(member)) {
        for card in member.cards() {
            places.entry(card.id.clone()).or_insert_with(|| {
                cards.push(card);
                cards.len() - 1
            });
        }
    }
    ModelsAnswer {
        list: (!cards.is_empty()).then(|| models::list(cards.iter())),
        cards: cards.into_iter().map(|card| (card.id.as_bytes().into(), card.json)).collect(),
        hides_some: members.iter().any(|member| is_hidden(&member)),
        authorizations,
        asks_keys: members.iter().any(|member| member.lock.asks()),
    }
}

/// Whether one of the configured ids is in the list that is known.
fn was_listed(member: &Member) -> bool {
    member.models.as_ref().is_some_and(|list| member.is_listed(list))
}

/// How often an engine is asked at most what it serves because requests were in vain.
const IN_VAIN: Duration = Duration::from_secs(1);
/// The same for each engine of the fleet, where that is longer: anybody may name models that nobody serves, at which
/// all are asked.
const IN_VAIN_EACH: Duration = Duration::from_millis(10);

impl Fleet {
    /// Has engines asked what they serve that answered 404 since, and all where models were asked for that nobody is
    /// known to serve: adapters are loaded and unloaded by hand.
    pub fn ring_for_models(&mut self, not_found: impl Fn(u16) -> u32, unknown: u64, now: Instant) {
        let pause = IN_VAIN.max(IN_VAIN_EACH.saturating_mul(self.members.len() as u32));
        for member in &mut self.members {
            let Some(tenancy) = &member.now else { continue };
            let (seen, (before, rung)) = ((not_found(tenancy.id.slot), unknown), member.in_vain);
            if seen != before && rung.is_none_or(|rung| now.saturating_duration_since(rung) >= pause) {
                member.in_vain = (seen, Some(now));
                member.models_wanted.notify_one();
            }
        }
    }

    /// An engine's `/v1/models` was read, or was not. Whether shards must know.
    pub fn learnt(&mut self, place: usize, id: EndpointId, learnt: Result<Learnt, ModelsError>) -> bool {
        let is_there =
            |member: &&mut Member| member.place == place && member.now.as_ref().is_some_and(|tenancy| tenancy.id == id);
        let Some(member) = self.members.iter_mut().find(is_there) else { return false };
        let lock = member.lock.after(&learnt, member.key.is_some());
        let mut changed = std::mem::replace(&mut member.lock, lock) != lock;
        member.models_error = learnt.as_ref().err().map(ToString::to_string);
        let mut before = None;
        match learnt {
            // Who takes ids that it does not list, as SGLang does, never listed them.
            Ok(others) if member.models_doubted && was_listed(member) && !member.is_listed(&others) => {
                if !std::mem::replace(&mut member.lists_others, true) {
                    changed = true;
                    tracing::warn!(
                        engine = %member.name,
                        "lists none of its `models`, of which it listed some before: it gets no requests beside others"
                    );
                }
                member.models_error = Some("/v1/models lists none of its `models`, of which it listed some".into());
            }
            Ok(learnt) => {
                changed |= std::mem::take(&mut member.lists_others);
                changed |= !member.models.as_ref().is_some_and(|before| before.is_as(&learnt));
                (before, member.models, member.models_doubted) = (member.models.take(), Some(learnt), false);
            }
            // A stranger at its address would draw what it asks for, and answer it with an instant 404.
            Err(error) if member.models_doubted && error.is_no_list() => changed |= member.models.take().is_some(),
            Err(_) => {}
        }
        if changed {
            self.answer = of(&self.members);
            before.iter().for_each(|before| self.say_joined(place, before));
        }
        changed
    }

    /// Whoever lists a model gets prompts for it. With its first list an engine is what it was configured for; one that
    /// comes to list what others serve may be told to, or not be what it was.
    fn say_joined(&self, place: usize, before: &Learnt) {
        let others = self.members.iter().filter(|other| other.place != place);
        let theirs: HashSet<&str> = others.flat_map(Member::bases).collect();
        let before: HashSet<&str> = before.cards.iter().map(|card| &*card.id).collect();
        let Some(member) = self.member(place) else { return };
        if !member.upstream.models.is_empty() {
            return;
        }
        // Adapters come and go.
        if let Some(model) = member.known_ids().find(|id| theirs.contains(id) && !before.contains(id)) {
            tracing::warn!(
                engine = &*member.name,
                model,
                "this engine lists a model that others serve and that it did not list before: it gets prompts for it from now on; `models` of its \
                 [[upstream]] says what it is to serve, whatever it lists"
            );
        }
    }
}
