//! An engine's list as it stands in its answer. With adapters it is half a megabyte and mostly says what it said
//! before, but for the times and permission ids that vLLM makes up for each answer: what lasts of it is compared
//! where it stands, and cards are made of what has changed alone.

use std::borrow::Cow;
use std::collections::HashSet;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Card, Cards, Lasting};

/// Most ids taken from one engine: each is a pool, and whether it is an adapter is looked for among all with each
/// publication.
pub(in crate::control) const MODELS_MAX: usize = 1_024;
/// Longest served id.
const ID_BYTES_MAX: usize = 256;
/// Longest card passed on as it is.
pub(super) const CARD_BYTES_MAX: usize = 16 << 10;

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

/// What is looked at of one entry, whatever kinds of values these are.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    root: Option<&'a RawValue>,
    #[serde(borrow)]
    parent: Option<&'a RawValue>,
    #[serde(borrow)]
    max_model_len: Option<&'a RawValue>,
}

/// One entry that counts.
struct Entry<'a> {
    json: &'a str,
    id: Cow<'a, str>,
    is_adapter: bool,
    context: Option<u32>,
    root: Option<Cow<'a, str>>,
}

impl<'a> Entry<'a> {
    fn of(json: &'a str) -> Option<Entry<'a>> {
        let fields: Fields<'a> = object(json)?;
        let id = fields.id.and_then(string).filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX)?;
        let is_fat = json.len() > CARD_BYTES_MAX;
        let context = fields.max_model_len.and_then(|tokens| tokens.get().parse().ok());
        Some(Entry {
            json,
            id,
            is_adapter: fields.parent.and_then(string).is_some(),
            context: context.filter(|tokens| *tokens > 0),
            root: fields.root.filter(|_| !is_fat).and_then(string),
        })
    }

    fn lasting(&self) -> Lasting<'_> {
        (&self.id, self.is_adapter, self.context, self.root.as_deref())
    }

    /// With the bytes that it stands in, unless these are too many, or clients could not read them.
    fn card(&self, json: Bytes) -> Card {
        // Clients read the list of all engines: one card that they cannot read would hide all models from them.
        let is_unfit = json.len() > CARD_BYTES_MAX || serde_json::from_str::<serde_json::Value>(self.json).is_err();
        Card {
            id: Box::from(&*self.id),
            json: if is_unfit { Card::made(&self.id).json } else { json },
            is_adapter: self.is_adapter,
            context: self.context,
            root: self.root.as_deref().map(Box::from),
        }
    }
}

/// The cards in an answer, those that are `known` where it says the same of what is served; and how many entries are
/// behind those that are taken.
pub(super) fn cards(answer: &[u8], known: Option<&Cards>) -> Option<(Cards, usize)> {
    let List { data } = object(std::str::from_utf8(answer).ok()?)?;
    let left_out = data.len().saturating_sub(MODELS_MAX);
    let entries: Vec<Entry<'_>> =
        data.into_iter().take(MODELS_MAX).filter_map(|entry| Entry::of(entry.get())).collect();
    let says_the_same = |known: &&Cards| entries.iter().map(Entry::lasting).eq(known.iter().map(Card::lasting));
    if let Some(known) = known.filter(says_the_same) {
        return Some((known.clone(), left_out));
    }
    // What came may lie in a longer buffer of the connection's.
    let (begin, answer) = (answer.as_ptr().addr(), Bytes::copy_from_slice(answer));
    let json = |entry: &Entry<'_>| {
        let at = entry.json.as_ptr().addr() - begin;
        answer.slice(at..at + entry.json.len())
    };
    let mut ids: HashSet<&str> = HashSet::new();
    let cards = entries.iter().filter(|entry| ids.insert(&entry.id)).map(|entry| entry.card(json(entry)));
    Some((cards.collect(), left_out))
}

/// An object with these fields; an array of their values is none.
fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    let is_object = json.trim_ascii_start().starts_with('{');
    is_object.then(|| serde_json::from_str(json).ok()).flatten()
}

fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if text.contains('\\') { serde_json::from_str(value.get()).ok().map(Cow::Owned) } else { Some(Cow::Borrowed(text)) }
}
