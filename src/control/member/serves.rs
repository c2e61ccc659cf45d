//! What an engine serves, as it is configured and as it lists it.

use super::Member;
use crate::control::models::{Card, Cards, Learnt};

impl Member {
    /// Ids it serves: those configured, else those learnt; `None`: not known yet.
    pub fn ids(&self) -> Option<Vec<&str>> {
        self.has_ids().then(|| self.known_ids().collect())
    }

    /// Whether it is known what it serves.
    pub fn has_ids(&self) -> bool {
        !self.upstream.models.is_empty() || self.models.is_some()
    }

    /// Ids it serves, as far as they are known.
    pub fn known_ids(&self) -> impl Iterator<Item = &str> {
        let configured = self.upstream.models.iter().map(String::as_str);
        configured.chain(self.served_list().into_iter().flatten().map(|card| &*card.id))
    }

    /// The first of them that is no adapter.
    pub fn base(&self) -> Option<&str> {
        let mut configured = self.upstream.models.iter().map(String::as_str);
        let listed = || Some(&*self.served_list()?.iter().find(|card| !card.is_adapter)?.id);
        configured.find(|id| !self.is_adapter(id)).or_else(listed)
    }

    /// Whether this id is one of them.
    pub fn serves(&self, id: &str) -> bool {
        match self.served_list() {
            Some(list) => list.of(id).is_some(),
            None => self.upstream.models.iter().any(|served| served == id),
        }
    }

    /// Another process answers there than the one that told its models, or one that may be another.
    pub fn doubt_models(&mut self) {
        self.models_doubted |= self.models.is_some();
        self.models_anothers |= self.models.is_some();
    }

    /// Whether another process may answer there by now, and has no list of models, or one without the configured ones.
    /// It gets nothing beside engines that list theirs.
    pub fn has_lost_its_models(&self) -> bool {
        self.models_doubted && (self.models.is_none() || self.lists_others)
    }

    /// Whether one of the configured ids is in a list.
    pub fn is_listed(&self, list: &Learnt) -> bool {
        list.cards.iter().any(|card| self.upstream.models.iter().any(|id| **id == *card.id))
    }

    /// Whether both serve one of the same ids, as far as is known.
    pub fn shares_a_model(&self, other: &Member) -> bool {
        match (self.served_list(), other.served_list()) {
            (Some(ours), Some(theirs)) => ours.has_any_of(theirs),
            // Of those that are configured there are few.
            (Some(_), None) => other.known_ids().any(|id| self.serves(id)),
            (None, _) => self.known_ids().any(|id| other.serves(id)),
        }
    }

    /// What it lists, where that is what it serves; nothing else.
    pub fn listed(&self) -> Cards {
        self.served_list().cloned().unwrap_or_default()
    }

    /// Whether it lists these.
    pub fn lists(&self, cards: &Cards) -> bool {
        self.served_list().is_some_and(|own| own.are(cards))
    }

    /// What it lists, if that is known.
    fn served_list(&self) -> Option<&Cards> {
        self.models.as_ref().map(|learnt| &learnt.cards).filter(|_| self.upstream.models.is_empty())
    }

    /// Whether this id is an adapter on another model, as its engine describes it.
    pub fn is_adapter(&self, id: &str) -> bool {
        self.models.as_ref().and_then(|learnt| learnt.cards.of(id)).is_some_and(|card| card.is_adapter)
    }

    /// Tokens of the longest prompt that it takes for this id, as it says: of the id, else the longest of its others,
    /// on which the id is an adapter.
    pub fn described_context(&self, id: &str) -> Option<u32> {
        self.models.as_ref()?.cards.context_for(id)
    }

    /// The card of an id that it serves.
    pub fn card(&self, id: &str) -> Card {
        let described = self.models.as_ref().and_then(|learnt| learnt.cards.of(id));
        described.cloned().unwrap_or_else(|| Card::made(id))
    }
}
