//! The id of a form, the same on every front that reads the same files.

use xxhash_rust::xxh64::Xxh64;

use crate::scan::{Calls, Chat, Turn};
use crate::vocabulary::{Lead, Vocabulary};

/// "warmform", so that no other hash of the same bytes equals it.
const SEED: u64 = u64::from_be_bytes(*b"warmform");

/// Returns a hash of all that a form says, each part after its length.
pub(super) fn of(chat: Option<&Chat>, vocabulary: &Vocabulary) -> u64 {
    let mut hash = Xxh64::new(SEED);
    match chat {
        None => number(&mut hash, 0),
        Some(chat) => {
            number(&mut hash, 1);
            add_chat(&mut hash, chat);
        }
    }
    number(
        &mut hash,
        match vocabulary.lead() {
            Lead::Nowhere => 0,
            Lead::First => 1,
            Lead::BehindSpecial => 2,
        },
    );
    for ids in [vocabulary.begins(), vocabulary.special()] {
        number(&mut hash, ids.len() as u64);
        ids.iter().for_each(|id| number(&mut hash, u64::from(*id)));
    }
    number(&mut hash, u64::from(vocabulary.ids()));
    for id in 0..vocabulary.ids() {
        part(&mut hash, vocabulary.text(id).unwrap_or_default());
    }
    hash.digest()
}

// Each struct is destructured in full: a new field left out of the hash would give two forms the same id.

fn add_chat(hash: &mut Xxh64, chat: &Chat) {
    let Chat { start, without_system, turns, joint, generation } = chat;
    [start, without_system, joint, generation].iter().for_each(|text| part(hash, text));
    number(hash, turns.iter().fold(0, |lone, turn| lone << 1 | u64::from(turn.lone)));
    number(hash, turns.len() as u64);
    turns.iter().for_each(|turn| add_turn(hash, turn));
}

fn add_turn(hash: &mut Xxh64, turn: &Turn) {
    // `lone` of all turns is hashed with their chat.
    let Turn { role, before, after, joined, calls, empty, lone: _, trims, place, stops } = turn;
    [role, before, after].iter().for_each(|text| part(hash, text));
    maybe(hash, joined.as_deref());
    number(hash, u64::from(calls.is_some()));
    if let Some(calls) = calls {
        add_calls(hash, calls);
    }
    number(hash, u64::from(*empty));
    number(hash, u64::from(*trims));
    number(hash, *place as u64);
    number(hash, stops.len() as u64);
    stops.iter().for_each(|stop| part(hash, stop));
}

fn add_calls(hash: &mut Xxh64, calls: &Calls) {
    let Calls { behind, bare, arguments, next, after } = calls;
    [behind, bare].iter().for_each(|text| maybe(hash, text.as_deref()));
    [arguments, next, after].iter().for_each(|text| part(hash, text));
}

fn part(hash: &mut Xxh64, bytes: &[u8]) {
    number(hash, bytes.len() as u64);
    hash.update(bytes);
}

fn maybe(hash: &mut Xxh64, bytes: Option<&[u8]>) {
    number(hash, u64::from(bytes.is_some()));
    part(hash, bytes.unwrap_or_default());
}

fn number(hash: &mut Xxh64, number: u64) {
    hash.update(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Place;

    /// Fronts of one release must agree, and saved caches of an earlier one are below roots with this id: another value
    /// here is another form, whatever it says.
    #[test]
    fn a_form_keeps_its_id() {
        let text = |text: &str| Box::from(text.as_bytes());
        let calls = Calls {
            behind: Some(text("behind")),
            bare: None,
            arguments: text("arguments"),
            next: text("next"),
            after: text("end"),
        };
        let user = Turn {
            role: text("user"),
            before: text("before"),
            after: text("after"),
            joined: Some(text("joined")),
            calls: Some(calls),
            empty: true,
            lone: false,
            trims: false,
            place: Place::First,
            stops: [text("stop"), text("halt")].into(),
        };
        let chat = Chat {
            start: text("start"),
            without_system: text("without"),
            turns: [user, Turn { role: text("tool"), lone: true, trims: true, ..Turn::default() }].into(),
            joint: text("joint"),
            generation: text("generation"),
        };
        let vocabulary = Vocabulary::new(&[Some(b"a"), None], &[0], Lead::First, &[1]);
        assert_eq!(of(Some(&chat), &vocabulary), PINNED);
    }

    /// Computed by another implementation of XXH64, from the bytes in their order.
    const PINNED: u64 = 0x1289_9f82_6b2f_58df;
}
