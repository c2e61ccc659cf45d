//! What `/v1/models` says of the whole fleet: each id once, as the first engine that serves it describes it.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::member::Member;
use super::models::{self, Card};
use crate::snapshot::ModelsAnswer;

/// The merged `/v1/models` of these engines.
pub(super) fn of(members: &[Member]) -> ModelsAnswer {
    let mut cards: Vec<Card> = Vec::new();
    let mut cards_at: HashMap<Box<str>, usize> = HashMap::new();
    for member in members {
        for card in member.cards() {
            cards_at.entry(card.id.clone()).or_insert_with(|| {
                cards.push(card);
                cards.len() - 1
            });
        }
    }
    let asking = |member: &&Member| member.models.as_ref().is_some_and(|learnt| learnt.asks_key);
    let value = |member: &Member| member.key.as_ref().map(|key| xxh3_64(format!("Bearer {key}").as_bytes()));
    let mut authorizations: Vec<u64> = members.iter().filter(asking).filter_map(value).collect();
    authorizations.sort_unstable();
    authorizations.dedup();
    ModelsAnswer {
        list: (!cards.is_empty()).then(|| models::list(cards.iter())),
        cards: cards.into_iter().map(|card| (card.id.as_bytes().into(), card.json)).collect(),
        authorizations,
    }
}
