//! What an engine serves: its `/v1/models`, and whether it asks for a key; and what ours says of all of them.

mod cards;
mod list;

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::client::{Call, CallError, Client};
use super::member::Member;
use crate::snapshot::ModelsAnswer;
pub use cards::Cards;
#[cfg(test)]
pub use cards::looks;
pub(super) use list::MODELS_MAX;

/// See [`Card::lasting`].
type Lasting<'a> = (&'a str, bool, Option<u32>, Option<&'a str>);

/// One served id with its card as the engine writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The id, as in a request's `model`.
    pub id: Box<str>,
    /// One JSON object.
    pub json: Bytes,
    /// Whether it is an adapter on another model.
    pub is_adapter: bool,
    /// Tokens of the longest prompt and answer together that its engine takes; adapters mostly do not say it.
    pub context: Option<u32>,
    /// What it is loaded from, as its engine says.
    pub root: Option<Box<str>>,
}

impl Card {
    /// The card of an id that no engine has described yet.
    pub fn made(id: &str) -> Card {
        let json = serde_json::json!({"id": id, "object": "model", "created": 0, "owned_by": "warmfront"});
        Card { id: id.into(), json: json.to_string().into(), is_adapter: false, context: None, root: None }
    }

    /// What of it stays as it is for as long as its engine serves the same.
    fn lasting(&self) -> Lasting<'_> {
        (&self.id, self.is_adapter, self.context, self.root.as_deref())
    }
}

/// What was learnt from one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learnt {
    /// Its ids in its own order: base model first, then adapters.
    pub cards: Cards,
    /// Whether it answers only who has the key.
    pub asks_key: bool,
    /// Entries of its list behind those that are taken.
    pub left_out: usize,
}

impl Learnt {
    /// Its ids that stand for the same weights, this one included: engines hash no name, so that what is computed for
    /// one is cached for all. Of adapters they hash the id.
    pub fn alike<'a>(&'a self, id: &str) -> impl Iterator<Item = &'a str> {
        fn root(card: &Card) -> Option<&str> {
            card.root.as_deref().filter(|root| !card.is_adapter && !root.is_empty())
        }
        let of_id = self.cards.of(id).and_then(root);
        let cards: &[Card] = if of_id.is_some() { &self.cards } else { &[] };
        cards.iter().filter(move |card| root(card) == of_id).map(|card| &*card.id)
    }

    /// Whether none of the models that it `served` is in it, by their ids and by what they are loaded from: one path is
    /// mounted for any model, and one id given to any. Adapters are none: they come and go.
    pub fn is_of_others(&self, served: &Learnt) -> bool {
        fn bases(learnt: &Learnt) -> HashSet<(&str, Option<&str>)> {
            let cards = learnt.cards.iter().filter(|card| !card.is_adapter);
            cards.map(|card| (&*card.id, card.root.as_deref())).collect()
        }
        if self.cards.are(&served.cards) {
            return false;
        }
        let served = bases(served);
        !served.is_empty() && served.is_disjoint(&bases(self))
    }

    /// Whether both say the same of what is served: vLLM makes times and permission ids up anew for each answer.
    pub fn is_as(&self, other: &Learnt) -> bool {
        let lasting = |learnt: &Learnt| (learnt.asks_key, learnt.left_out);
        lasting(self) == lasting(other) && self.cards.say_as(&other.cards)
    }
}

/// Why nothing was learnt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelsError {
    /// No answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// 401 or 403, and `api_key_file` is empty.
    #[error("it asks for a key; name a file with the key of its --api-key in `api_key_file`")]
    KeyWanted,
    /// 401 or 403 with the key.
    #[error("it refuses the key in `api_key_file`")]
    KeyRefused,
    /// Neither 200 nor 401.
    #[error("/v1/models answers {0}")]
    Status(u16),
    /// Not a list of models.
    #[error("/v1/models does not answer a list of models")]
    Shape,
}

impl ModelsError {
    /// Whether who answers so serves no such list, as far as it can be asked: busy, failing or locked it says nothing
    /// of that.
    pub fn is_no_list(&self) -> bool {
        match self {
            ModelsError::Shape => true,
            ModelsError::Status(status) => *status < 500 && !matches!(status, 408 | 425 | 429),
            ModelsError::Call(_) | ModelsError::KeyWanted | ModelsError::KeyRefused => false,
        }
    }

    /// Whether it wants a key that is not known here.
    pub fn is_locked(&self) -> bool {
        matches!(self, ModelsError::KeyWanted | ModelsError::KeyRefused)
    }
}

/// Whether an engine answers only who has a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// It has not said.
    #[default]
    Unknown,
    /// It answers anybody.
    Open,
    /// It asks for one, and the one in `api_key_file` is taken; or may ask, where it has no such list.
    Ours,
    /// It asks for one that is not known here.
    Foreign,
}

impl Lock {
    /// What is known after another look, with a key of ours or without.
    pub fn after(self, look: &Result<Learnt, ModelsError>, with_key: bool) -> Lock {
        match look {
            Ok(Learnt { asks_key: false, .. }) => Lock::Open,
            Ok(_) => Lock::Ours,
            Err(ModelsError::KeyWanted | ModelsError::KeyRefused) => Lock::Foreign,
            // It has no such list, whose configured models are to be told all the same; behind a key perhaps.
            Err(ModelsError::Status(404 | 405 | 410)) if with_key => Lock::Ours,
            Err(ModelsError::Status(404 | 405 | 410)) => Lock::Open,
            // What else it answers, or a proxy before it, says nothing of keys.
            Err(_) => self,
        }
    }

    /// Whether it asks for a key.
    pub fn asks(self) -> bool {
        matches!(self, Lock::Ours | Lock::Foreign)
    }
}

/// Asks without the key first: whether the engine asks for one decides who may read our own `/v1/models`. `known`: what
/// it listed last.
pub async fn learn(client: &Client, call: &Call<'_>, known: Option<&Cards>) -> Result<Learnt, ModelsError> {
    let open = client.get(&Call { key: None, ..*call }).await?;
    if !matches!(open.status, 401 | 403) {
        return read(open.status, &open.body, false, known);
    }
    if call.key.is_none() {
        return Err(ModelsError::KeyWanted);
    }
    let locked = client.get(call).await?;
    if matches!(locked.status, 401 | 403) {
        return Err(ModelsError::KeyRefused);
    }
    read(locked.status, &locked.body, true, known)
}

fn read(status: u16, body: &[u8], asks_key: bool, known: Option<&Cards>) -> Result<Learnt, ModelsError> {
    if status != 200 {
        return Err(ModelsError::Status(status));
    }
    let (cards, left_out) = list::cards(body, known).ok_or(ModelsError::Shape)?;
    Ok(Learnt { cards, asks_key, left_out })
}

/// What `/v1/models` says of these engines together: each id once, as the first that serves it describes it.
pub(super) fn merged(members: &[Member]) -> ModelsAnswer {
    let takes = |member: &Member| member.key.as_ref().filter(|_| member.lock == Lock::Ours).cloned();
    let hash = |key: Arc<str>| xxh3_64(format!("Bearer {key}").as_bytes());
    let mut authorizations: Vec<u64> = members.iter().filter_map(takes).map(hash).collect();
    authorizations.sort_unstable();
    authorizations.dedup();
    // Nobody can show a key that we know: who is told of such an engine's models, that engine has to judge.
    let is_hidden = |member: &&Member| authorizations.is_empty() && member.lock != Lock::Open && member.has_ids();
    let (mut cards, mut ids): (Vec<Card>, HashSet<&str>) = Default::default();
    for member in members.iter().filter(|member| !is_hidden(member)) {
        cards.extend(member.known_ids().filter(|id| ids.insert(id)).map(|id| member.card(id)));
    }
    ModelsAnswer {
        list: (!cards.is_empty()).then(|| list(cards.iter())),
        cards: cards.into_iter().map(|card| (card.id.as_bytes().into(), card.json)).collect(),
        hides_some: members.iter().any(|member| is_hidden(&member)),
        authorizations,
        asks_keys: members.iter().any(|member| member.lock.asks()),
    }
}

/// The list of `cards` as `GET /v1/models` answers it.
fn list<'a>(cards: impl Iterator<Item = &'a Card>) -> Bytes {
    let mut out = b"{\"object\":\"list\",\"data\":[".to_vec();
    for (index, card) in cards.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&card.json);
    }
    out.extend_from_slice(b"]}");
    out.into()
}

#[cfg(test)]
mod tests {
    use super::list::{CARD_BYTES_MAX, cards};
    use super::*;

    #[test]
    fn a_recorded_answer_is_read_and_written_again() {
        let recorded = include_bytes!("../../tests/fixtures/engine-metrics/vllm-0.32.0-lora.models.json");
        let (cards, left_out) = cards(recorded, None).unwrap();
        assert_eq!(left_out, 0);
        let ids: Vec<(&str, bool)> = cards.iter().map(|card| (&*card.id, card.is_adapter)).collect();
        assert_eq!(ids, [("tiny-llama", false), ("tiny-lora", true)]);
        assert_eq!(cards.iter().map(|card| card.context).collect::<Vec<_>>(), [Some(2_048), None]);
        let again: serde_json::Value = serde_json::from_slice(&list(cards.iter())).unwrap();
        assert_eq!(again, serde_json::from_slice::<serde_json::Value>(recorded).unwrap());
    }

    #[test]
    fn strange_answers_are_bounded() {
        let of = |text: &str| cards(text.as_bytes(), None);
        assert!(of("").is_none() && of("[]").is_none() && of("{\"data\":3}").is_none());
        assert!(of(&"[".repeat(100_000)).is_none());
        let deep = format!("{{\"data\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(of(&deep).unwrap().0.is_empty(), "no entry is read but an object");
        assert_eq!(of("{\"data\":[3,{\"id\":\"\"},{\"id\":7},{\"id\":\"a\"},{\"id\":\"a\"}]}").unwrap().0.len(), 1);
        let many: Vec<String> = (0..5_000).map(|n| format!("{{\"id\":\"m{n}\"}}")).collect();
        let (taken, left_out) = of(&format!("{{\"data\":[{}]}}", many.join(","))).unwrap();
        assert_eq!((taken.len(), left_out), (MODELS_MAX, 5_000 - MODELS_MAX));
        let fat = format!("{{\"data\":[{{\"id\":\"a\",\"x\":\"{}\"}}]}}", "y".repeat(CARD_BYTES_MAX));
        assert_eq!(of(&fat).unwrap().0, Cards::from(vec![Card::made("a")]));
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        for unreadable in [r#""\ud800""#, "1e999", &deep] {
            let cards = of(&format!("{{\"data\":[{{\"id\":\"a\",\"x\":{unreadable}}}]}}")).unwrap().0;
            assert_eq!(cards, Cards::from(vec![Card::made("a")]), "{unreadable}");
        }
    }

    /// What vLLM makes up for each answer is no reason to make a thousand cards anew, nor to read them as a tree.
    #[test]
    fn a_list_that_says_the_same_is_the_one_that_is_known() {
        let of = |created: u32, context: &str| {
            let card = |id, parent, context| {
                format!("{{\"id\":\"{id}\",\"created\":{created},\"parent\":{parent},\"max_model_len\":{context}}}")
            };
            let data = [card("m\\u0041", "null", context), card("lora", "\"mA\"", "null")].join(", ");
            format!(" {{\"object\":\"list\",\"data\":[{data}]}}\n")
        };
        let read = |text: &str, known| cards(text.as_bytes(), known).unwrap().0;
        let first = read(&of(1, "4096"), None);
        let told: Vec<_> = first.iter().map(Card::lasting).collect();
        assert_eq!(told, [("mA", false, Some(4_096), None), ("lora", true, None, None)]);
        let text = of(1, "4096");
        let second = text.split(", ").nth(1).and_then(|rest| rest.strip_suffix("]}\n")).unwrap();
        assert_eq!(first[1].json, second, "as it stands there");
        assert!(read(&of(2, "4096"), Some(&first)).are(&first));
        let longer = read(&of(3, "8192"), Some(&first));
        assert!(!longer.are(&first) && longer[0].context == Some(8_192));
        assert!(longer[1].json.starts_with(b"{\"id\":\"lora\",\"created\":3,"));
    }

    /// As they were when each answer was read as a tree.
    #[test]
    fn entries_are_taken_whatever_else_stands_in_them() {
        let of = |text: &str| {
            cards(text.as_bytes(), None)
                .map(|(cards, _)| cards.iter().map(|card| card.id.to_string()).collect::<Vec<_>>())
        };
        assert_eq!(
            of("{\"data\":[{\"id\":\"a\",\"root\":7,\"parent\":[],\"max_model_len\":-1.5}]}"),
            Some(vec!["a".into()])
        );
        assert_eq!(
            of("{\"data\":[[\"a\"],{\"id\":\"\\ud800\"},{\"id\":null},{\"id\":\"b\"}]}"),
            Some(vec!["b".into()])
        );
        for broken in
            ["[[{\"id\":\"a\"}]]", "{\"data\":[{\"id\":\"a\"]}", "{\"data\":[{\"id\":\"a\",}]}", "{\"data\":{}}"]
        {
            assert_eq!(of(broken), None, "{broken}");
        }
        assert!(cards(b"{\"data\":[{\"id\":\"\xff\"}]}", None).is_none());
    }
}
