//! Finds out at which places each role is written as its turn says: of all ways to restrict the turns, the weakest with
//! which every order of roles agrees.

use super::derive::is_begin;
use super::reference::{Reference, Rendered};
use super::turns::Draft;
use super::{Message, Why, calls, chats};
use crate::scan::{Calls, Chat, Place, Turn};

/// What may be said of a role's place (`None`: it has no turn), with the cost of each.
const CHOICES: &[(Option<Place>, u32)] = &[
    (Some(Place::Anywhere), 0),
    (Some(Place::NotLast), 1),
    (Some(Place::First), 1),
    (None, 8),
    (Some(Place::Nowhere), 9),
];

/// A chat with some order of roles, and what the template writes of it.
struct Tried {
    messages: Vec<Message>,
    generation: bool,
    /// `None`: what an engine writes is not known.
    text: Option<String>,
}

/// One way to restrict all roles but the user's, and calls.
struct Way {
    cost: u32,
    places: Vec<Option<Place>>,
    calls: Option<Calls>,
}

/// Restricts the draft's turns to the places where they are right.
pub(super) fn find(reference: &Reference, draft: &mut Draft) -> Result<(), Why> {
    let tried = tried(reference, &draft.roles)?;
    let roles: Vec<&'static str> = draft.roles.iter().copied().filter(|role| *role != "user").collect();
    // A chat that one way writes wrongly, the next one usually writes wrongly, too: it is tried first.
    let mut hardest = 0;
    for way in ways(draft, &roles) {
        let chat = restricted(&draft.chat, &roles, &way);
        if tried.get(hardest).is_some_and(|tried| tried.differs(&chat)) {
            continue;
        }
        match tried.iter().position(|tried| tried.differs(&chat)) {
            Some(place) => hardest = place,
            None => {
                take(draft, &roles, &way.places);
                draft.chat = chat;
                return Ok(());
            }
        }
    }
    Err(Why::Otherwise("writes messages in a way that depends on those around them".into()))
}

impl Tried {
    /// Whether the template writes it differently than the form.
    fn differs(&self, chat: &Chat) -> bool {
        match &self.text {
            Some(text) => !is_begin(chat, &self.messages, self.generation, text),
            None => super::write(chat, &self.messages, self.generation).is_some_and(|written| written.whole),
        }
    }
}

/// Returns all ways, those that restrict least first.
fn ways(draft: &Draft, roles: &[&'static str]) -> Vec<Way> {
    let assistant = draft.chat.turns.iter().find(|turn| *turn.role == *b"assistant");
    let calls = calls::choices(assistant.and_then(|turn| turn.calls.as_ref()));
    let mut ways: Vec<Way> = calls.into_iter().map(|(calls, cost)| Way { cost, places: Vec::new(), calls }).collect();
    for role in roles {
        let choices: Vec<_> = CHOICES.iter().filter(|(place, _)| is_possible(draft, role, *place)).collect();
        let longer = |way: &Way, (place, more): &(Option<Place>, u32)| Way {
            cost: way.cost + more,
            places: way.places.iter().copied().chain([*place]).collect(),
            calls: way.calls.clone(),
        };
        ways = ways.iter().flat_map(|way| choices.iter().map(move |choice| longer(way, choice))).collect();
    }
    ways.sort_by_key(|way| way.cost);
    ways
}

/// Runs the template on every order of roles, with and without asking for an answer. Chats that it refuses are left
/// out.
fn tried(reference: &Reference, roles: &[&'static str]) -> Result<Vec<Tried>, Why> {
    let mut tried = Vec::new();
    let roles: Vec<&'static str> = roles.iter().copied().chain([chats::CALL]).collect();
    for (place, order) in chats::orders(&roles).iter().enumerate() {
        // Tools do not change what asking for an answer does, so that with them one of both is enough.
        let asks: &[bool] = match reference.has_tools() {
            true => &[!place.is_multiple_of(4)],
            false => &[true, false],
        };
        for generation in asks.iter().copied() {
            let messages = chats::plain(order);
            let text = match reference.render(&messages, generation)? {
                Rendered::Text(text) => Some(text),
                Rendered::Unclear => None,
                Rendered::Refused(_) => continue,
            };
            tried.push(Tried { text, messages, generation });
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

fn restricted(chat: &Chat, roles: &[&'static str], way: &Way) -> Chat {
    let mut turns: Vec<Turn> = chat.turns.iter().filter(|turn| *turn.role == *b"user").cloned().collect();
    for (role, place) in roles.iter().zip(&way.places).filter_map(|(role, place)| Some((*role, (*place)?))) {
        let known = chat.turns.iter().find(|turn| *turn.role == *role.as_bytes() && place != Place::Nowhere);
        let bare = || Turn { role: role.as_bytes().into(), ..Turn::default() };
        let calls = way.calls.clone().filter(|_| role == "assistant");
        turns.push(Turn { place, calls, ..known.cloned().unwrap_or_else(bare) });
    }
    Chat { turns: turns.into(), ..chat.clone() }
}

/// Notes which roles have no turn, and why.
fn take(draft: &mut Draft, roles: &[&'static str], way: &[Option<Place>]) {
    for (role, place) in roles.iter().copied().zip(way) {
        let why = match place {
            None => "written in a way that depends on the messages around it",
            Some(Place::Nowhere) => "changes what is before it",
            Some(_) => continue,
        };
        match draft.left_out.iter_mut().find(|out| out.role == role) {
            Some(out) if *place == Some(Place::Nowhere) => out.why = why,
            Some(_) => {}
            None => draft.left_out.push(super::LeftOut { role, why }),
        }
    }
}
