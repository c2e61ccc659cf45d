//! What an engine holds by its own word: one rule at a time (`rules`), what there is no room for (`room`), a recorded
//! engine (`recorded`), any engine against a plain model (`model`), what is written down (`saved`), memory (`memory`),
//! toil (`toil`), and an index that notes what is told (`noted`).

mod memory;
mod model;
#[path = "../kvevents/msgpack.rs"]
mod msgpack;
mod noted;
#[path = "../fuzz/properties/mirrored.rs"]
mod property;
mod recorded;
mod room;
mod rules;
mod saved;
mod toil;

pub(crate) use property::Held;
use warmfront::kvevents::{Batch, Event, Extras, Removed, Stored};
use warmfront::limits::{BLOCK_BYTES, STEP_BYTES};
use warmfront::mirror::{Mirror, Reading};
use warmfront::scan::Cut;
use warmfront::vocabulary::{Lead, Vocabulary};

pub(crate) const ROOT: u64 = 77;

/// Tokens cached for a prompt of these bytes, by its last link that is held.
pub(crate) fn cached(held: &Held, root: u64, text: &[u8]) -> u32 {
    let known = links(root, text).into_iter().map_while(|(_, link)| held.0.get(&link));
    known.last().map_or(0, |(_, tokens)| *tokens)
}

/// Steps of a text, and where they end.
pub(crate) fn links(root: u64, text: &[u8]) -> Vec<(usize, u64)> {
    let mut links = Vec::new();
    Cut::default().push(root, text, |step| links.push((step.at as usize, step.link)));
    assert_eq!(links.len(), text.len() / STEP_BYTES);
    links
}

/// The link of the last whole block before the end of each.
pub(crate) fn after(links: &[(usize, u64)], at: usize) -> Option<u64> {
    let block = (at - 1) / BLOCK_BYTES * BLOCK_BYTES;
    links.iter().find(|(end, _)| *end == block).map(|(_, link)| *link)
}

/// Ids that stand for `t7 ` and the like: each text is one of ids, and no other's.
pub(crate) fn plain(count: u32) -> Vocabulary {
    let texts: Vec<Vec<u8>> = (0..count).map(|id| format!("t{id} ").into_bytes()).collect();
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    Vocabulary::new(&tokens, &[], Lead::Nowhere, &[])
}

pub(crate) fn text(vocabulary: &Vocabulary, tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|id| vocabulary.text(*id).unwrap()).copied().collect()
}

/// A root for every adapter and salt.
pub(crate) fn roots(adapter: Option<&[u8]>, salt: Option<&[u8]>) -> u64 {
    let name = |name: Option<&[u8]>| name.map_or(0, |name| xxhash_rust::xxh64::xxh64(name, 1));
    ROOT ^ name(adapter) ^ name(salt).rotate_left(1)
}

pub(crate) fn stored<'a>(hashes: &'a [u64], parent: Option<u64>, tokens: &'a [u32]) -> Stored<'a> {
    let block_size = (tokens.len() / hashes.len().max(1)) as u32;
    let extras = Extras::default();
    Stored {
        hashes,
        parent,
        tokens,
        block_size,
        medium: None,
        lora_name: None,
        salt: None,
        nameless: false,
        group: None,
        attention: None,
        window: None,
        extras,
    }
}

pub(crate) fn removed(hashes: &[u64]) -> Removed<'_> {
    Removed { hashes, medium: None, group: None }
}

/// A mirror, who is told, and how blocks are read.
pub(crate) struct Engine {
    pub mirror: Mirror,
    pub held: Held,
    pub vocabulary: Vocabulary,
}

impl Engine {
    pub fn new(vocabulary: Vocabulary) -> Engine {
        Engine { mirror: Mirror::new(1_000), held: Held::default(), vocabulary }
    }

    pub fn tell(&mut self, event: Event<'_>) {
        let still_holds = match event {
            Event::Stored(stored) => {
                let reading = Reading { vocabulary: &self.vocabulary, root: &roots };
                self.mirror.stored(&stored, &reading, &mut self.held)
            }
            Event::Removed(removed) => self.mirror.removed(&removed, &mut self.held),
            Event::Cleared => {
                self.mirror.cleared();
                false
            }
        };
        if !still_holds {
            self.held = Held::default();
        }
        assert!(self.held.0.keys().all(|link| self.mirror.owns(*link)));
    }

    pub fn store(&mut self, hashes: &[u64], parent: Option<u64>, tokens: &[u32]) {
        self.tell(Event::Stored(stored(hashes, parent, tokens)));
    }

    pub fn remove(&mut self, hashes: &[u64]) {
        self.tell(Event::Removed(removed(hashes)));
    }

    /// The events of a message in JSON.
    pub fn message(&mut self, events: &serde_json::Value) {
        let mut batch = Batch::default();
        batch.read(&msgpack::packed(&serde_json::json!([1.0, events]))).unwrap();
        batch.events().for_each(|event| self.tell(event));
    }

    /// How many tokens a prompt of these has cached, below the root of prompts without adapter and salt.
    pub fn tokens(&self, tokens: &[u32]) -> u32 {
        cached(&self.held, ROOT, &text(&self.vocabulary, tokens))
    }
}

#[test]
fn the_helpers_own_links_are_those_of_blocks() {
    let text = [7; 3 * BLOCK_BYTES];
    let links = links(ROOT, &text);
    assert_eq!((after(&links, 64), after(&links, 256), after(&links, 320)), (None, None, Some(links[3].1)));
    assert_eq!(after(&links, 512), Some(links[3].1));
}
