//! Where each role is written as its turn says: of all ways to restrict them, the least under which every order of
//! roles agrees.

use super::derive::is_begin;
use super::reference::{Reference, Rendered};
use super::turns::Draft;
use super::{Message, Why, calls, chats};
use crate::scan::{Calls, Chat, Place, Turn};

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
    /// `None`: that is not known.
    text: Option<String>,
}

/// What may be said of all roles but the user's, and of calls.
struct Way {
    cost: u32,
    places: Vec<Option<Place>>,
    calls: Option<Calls>,
}

/// Restricts the draft's turns.
pub(super) fn find(reference: &Reference, draft: &mut Draft) -> Result<(), Why> {
    let tried = tried(reference, &draft.roles)?;
    let roles: Vec<&'static str> = draft.roles.iter().copied().filter(|role| *role != "user").collect();
    // What one way was wrong about, the next one most often is, too.
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
    Err(Why::Otherwise("writes messages otherwise by what stands around them".into()))
}

impl Tried {
    /// Whether the template writes it otherwise than the form.
    fn differs(&self, chat: &Chat) -> bool {
        match &self.text {
            Some(text) => !is_begin(chat, &self.messages, self.generation, text),
            None => super::write(chat, &self.messages, self.generation).is_some_and(|written| written.whole),
        }
    }
}

/// All ways, those that say most first.
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

/// Every order, whether an answer is asked for or not. What the template refuses is not there.
fn tried(reference: &Reference, roles: &[&'static str]) -> Result<Vec<Tried>, Why> {
    let mut tried = Vec::new();
    let roles: Vec<&'static str> = roles.iter().copied().chain([chats::CALL]).collect();
    for (place, order) in chats::orders(&roles).iter().enumerate() {
        // What asking for an answer changes, tools do not, so that one of both is enough.
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

/// Says of which roles there is no turn.
fn take(draft: &mut Draft, roles: &[&'static str], way: &[Option<Place>]) {
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
}
