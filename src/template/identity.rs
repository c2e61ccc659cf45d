//! What a form is known by, on every front that reads the same files.

use xxhash_rust::xxh64::Xxh64;

use crate::scan::Chat;
use crate::vocabulary::{Lead, Vocabulary};

/// "warmform", so that it is no other hash of the same bytes.
const SEED: u64 = u64::from_be_bytes(*b"warmform");

/// A hash of all that a form says, each part behind its length.
pub(super) fn of(chat: Option<&Chat>, vocabulary: &Vocabulary) -> u64 {
    let mut hash = Xxh64::new(SEED);
    match chat {
        None => number(&mut hash, 0),
        Some(chat) => {
            number(&mut hash, 1);
            [&chat.start, &chat.without_system, &chat.joint, &chat.generation]
                .iter()
                .for_each(|text| part(&mut hash, text));
            number(&mut hash, chat.turns.iter().fold(0, |lone, turn| lone << 1 | u64::from(turn.lone)));
            number(&mut hash, chat.turns.len() as u64);
            for turn in &chat.turns {
                [&turn.role, &turn.before, &turn.after].iter().for_each(|text| part(&mut hash, text));
                maybe(&mut hash, turn.joined.as_deref());
                number(&mut hash, u64::from(turn.calls.is_some()));
                if let Some(calls) = &turn.calls {
                    [&calls.behind, &calls.bare].iter().for_each(|text| maybe(&mut hash, text.as_deref()));
                    [&calls.arguments, &calls.next, &calls.after].iter().for_each(|text| part(&mut hash, text));
                }
                number(&mut hash, u64::from(turn.empty));
                number(&mut hash, u64::from(turn.trims));
                number(&mut hash, turn.place as u64);
                number(&mut hash, turn.stops.len() as u64);
                turn.stops.iter().for_each(|stop| part(&mut hash, stop));
            }
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
