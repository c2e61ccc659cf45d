//! Reuses what is known of a template's contents: it is usually the same with these tools as with others and with none.
//! It is taken over and tried in a few long chats; if one of them differs, it is found out anew, string by string.

use std::sync::{Arc, OnceLock};

use super::derive::is_begin;
use super::executor::strip;
use super::reference::Reference;
use super::turns::Draft;
use super::{Content, Message, Why, chats, said};
use crate::scan::{Chat, Turn};

/// The first [`Chat`] that was made of a template. It changes only the cost of making others, so that all values
/// compare as equal.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Arc<OnceLock<Chat>>);

impl PartialEq for Known {
    fn eq(&self, _: &Known) -> bool {
        true
    }
}

impl Eq for Known {}

impl Known {
    pub(super) fn get(&self) -> Option<&Chat> {
        self.0.get()
    }

    pub(super) fn set(&self, chat: &Chat) {
        self.0.get_or_init(|| chat.clone());
    }
}

/// Takes over what is known of this role's contents; true if the template still does the same.
pub(super) fn holds(
    reference: &Reference,
    draft: &mut Draft,
    known: &Chat,
    role: &str,
    strings: &[String],
) -> Result<bool, Why> {
    let Some(known) = known.turns.iter().find(|turn| *turn.role == *role.as_bytes()) else { return Ok(false) };
    let Some(turn) = draft.turn(role) else { return Ok(false) };
    let before = turn.clone();
    turn.trims = known.trims;
    turn.empty = known.empty;
    turn.lone = known.lone;
    turn.stops = known.stops.clone();
    let contents = contents(turn, strings);
    let mut same = whole(reference, &draft.chat, &long(role, contents))?;
    for stop in &known.stops {
        let content = Content::Text(format!("a{}b", String::from_utf8_lossy(stop)));
        same = same && begins(reference, &draft.chat, &long(role, vec![content]))?;
    }
    if !same && let Some(turn) = draft.turn(role) {
        *turn = before;
    }
    Ok(same)
}

/// Returns all contents at which this turn does not end a form.
fn contents(turn: &Turn, strings: &[String]) -> Vec<Content> {
    let inside = strings.iter().map(|string| format!("a{string}b"));
    let texts = chats::CONTENTS.iter().map(|text| text.to_string()).chain(strings.iter().cloned()).chain(inside);
    let parts = chats::PARTS.iter().filter(|parts| parts.len() == 1 || !turn.lone);
    let parts = parts.map(|parts| parts.iter().map(|part| part.to_string()).collect::<Vec<_>>());
    let has_stop = |text: &str| turn.stops.iter().any(|stop| memchr::memmem::find(text.as_bytes(), stop).is_some());
    let is_written = |text: &str| {
        let rest = if turn.trims { strip(text) } else { text };
        (turn.empty || !rest.is_empty()) && !has_stop(text)
    };
    let texts = texts.filter(|text| is_written(text)).map(Content::Text);
    texts.chain(parts.filter(|parts| is_written(&parts.concat())).map(Content::Parts)).collect()
}

/// Makes chats in which this role has all these contents. A chat has only one system message, which is longer for it.
fn long(role: &str, contents: Vec<Content>) -> Vec<Vec<Message>> {
    let of = |content: Content| Message { content, ..said(role, "") };
    match role {
        "user" => {
            let turns = contents.into_iter().flat_map(|content| [of(content), said("assistant", "said")]);
            vec![turns.chain([said("user", "again")]).collect()]
        }
        "assistant" => {
            let turns = contents.into_iter().flat_map(|content| [said("user", "ask"), of(content)]);
            vec![turns.chain([said("user", "again")]).collect()]
        }
        "system" => {
            let chat =
                |content| vec![of(content), said("user", "ask"), said("assistant", "said"), said("user", "again")];
            let (parts, texts): (Vec<Content>, Vec<Content>) =
                contents.into_iter().partition(|content| matches!(content, Content::Parts(_)));
            let text = |content: &Content| match content {
                Content::Text(text) => text.clone(),
                Content::Parts(parts) => parts.concat(),
            };
            // General contents are tried one by one, the template's own strings together in one content.
            let (alone, inside) = texts.split_at(chats::CONTENTS.len().min(texts.len()));
            let inside: Vec<String> = inside.iter().map(text).collect();
            let inside = Content::Text(format!("a{}b", inside.join("x")));
            alone.iter().cloned().chain(parts).chain([inside]).map(chat).collect()
        }
        _ => {
            let turns =
                contents.into_iter().flat_map(|content| [said("user", "ask"), said("assistant", "said"), of(content)]);
            vec![turns.chain([said("user", "again")]).collect()]
        }
    }
}

/// Whether the form writes all of these as a whole, and as the template does.
fn whole(reference: &Reference, chat: &Chat, chats: &[Vec<Message>]) -> Result<bool, Why> {
    for messages in chats {
        let is_whole = super::write(chat, messages, true).is_some_and(|written| written.whole);
        let rendered = reference.render(messages, true)?;
        if !is_whole || !rendered.text().is_some_and(|text| is_begin(chat, messages, true, text)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the form writes all of these as the template does, as far as it writes them.
fn begins(reference: &Reference, chat: &Chat, chats: &[Vec<Message>]) -> Result<bool, Why> {
    for messages in chats {
        if !super::derive::agrees(reference, chat, messages, true)? {
            return Ok(false);
        }
    }
    Ok(true)
}
