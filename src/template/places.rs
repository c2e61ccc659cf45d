//! Where each role is written as its turn says: of all ways to restrict them, the least under which every order of roles agrees.

use super::derive::is_begin;
use super::reference::Reference;
use super::turns::Draft;
use super::{Message, Why, chats};
use crate::scan::{Chat, Place, Turn};

/// What may be said of a role's place; `None`: it is no turn. With what each costs a form.
const CHOICES: &[(Option<Place>, u32)] = &[
    (Some(Place::Anywhere), 0),
    (Some(Place::NotLast), 1),
    (Some(Place::First), 1),
    (None, 8),
    (Some(Place::Nowhere), 9),
];

/// A chat of some order, and what the template makes of it.
struct Tried {
    messages: Vec<Message>,
    generation: bool,
    text: String,
}

/// Restricts the draft's turns.
pub(super) fn find(reference: &Reference, draft: &mut Draft) -> Result<(), Why> {
    let tried = tried(reference, &draft.roles)?;
    let roles: Vec<&'static str> = draft.roles.iter().copied().filter(|role| *role != "user").collect();
    let mut ways: Vec<(u32, Vec<Option<Place>>)> = vec![(0, Vec::new())];
    for role in &roles {
        let choices: Vec<_> = CHOICES.iter().filter(|(place, _)| is_possible(draft, role, *place)).collect();
        let longer = |(cost, way): &(u32, Vec<Option<Place>>), (place, more): &(Option<Place>, u32)| {
            (cost + more, way.iter().copied().chain([*place]).collect())
        };
        ways = ways.iter().flat_map(|way| choices.iter().map(move |choice| longer(way, choice))).collect();
    }
    ways.sort_by_key(|(cost, _)| *cost);
    // What one way was wrong about, the next one most often is, too.
    let mut hardest = 0;
    for (_, way) in &ways {
        let chat = restricted(&draft.chat, &roles, way);
        let differs = |tried: &Tried| !is_begin(&chat, &tried.messages, tried.generation, &tried.text);
        if tried.get(hardest).is_some_and(differs) {
            continue;
        }
        match tried.iter().position(differs) {
            Some(place) => hardest = place,
            None => {
                take(draft, &roles, way);
                return Ok(());
            }
        }
    }
    Err(Why::Otherwise("writes messages otherwise by what stands around them".into()))
}

/// Every order, whether an answer is asked for or not. What the template refuses is not there.
fn tried(reference: &Reference, roles: &[&'static str]) -> Result<Vec<Tried>, Why> {
    let mut tried = Vec::new();
    for order in chats::orders(roles) {
        for generation in [true, false] {
            let messages = chats::plain(&order);
            if let Some(text) = reference.render(&messages, generation)?.text() {
                tried.push(Tried { text: text.to_owned(), messages, generation });
            }
        }
    }
    Ok(tried)
}

fn is_possible(draft: &Draft, role: &str, place: Option<Place>) -> bool {
    let is_turn = draft.chat.turns.iter().any(|turn| *turn.role == *role.as_bytes());
    match place {
        None | Some(Place::Nowhere) => true,
        Some(Place::First) => is_turn && role == "system",
        Some(Place::Anywhere | Place::NotLast) => is_turn,
    }
}

fn restricted(chat: &Chat, roles: &[&'static str], way: &[Option<Place>]) -> Chat {
    let mut turns: Vec<Turn> = chat.turns.iter().filter(|turn| *turn.role == *b"user").cloned().collect();
    for (role, place) in roles.iter().zip(way).filter_map(|(role, place)| Some((*role, (*place)?))) {
        let known = chat.turns.iter().find(|turn| *turn.role == *role.as_bytes() && place != Place::Nowhere);
        let bare = || Turn { role: role.as_bytes().into(), ..Turn::default() };
        turns.push(Turn { place, ..known.cloned().unwrap_or_else(bare) });
    }
    Chat { turns: turns.into(), ..chat.clone() }
}

fn take(draft: &mut Draft, roles: &[&'static str], way: &[Option<Place>]) {
    let chat = restricted(&draft.chat, roles, way);
    for (role, place) in roles.iter().copied().zip(way) {
        let why = match place {
            None => "written otherwise by what stands around it",
            Some(Place::Nowhere) => "changes what stands before it",
            Some(_) => continue,
        };
        match draft.left_out.iter_mut().find(|out| out.role == role) {
            Some(out) if *place == Some(Place::Nowhere) => out.why = why,
            Some(_) => {}
            None => draft.left_out.push(super::LeftOut { role, why }),
        }
    }
    draft.chat = chat;
}
