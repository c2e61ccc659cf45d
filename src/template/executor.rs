//! Executes a chat form plainly: the scanner's renderer is compared with this, and this is compared with the template.

use super::json::{self, Json, Style};
use super::{Call, Content, Message};
use crate::scan::{Calls, Chat, Place, Turn};

/// What a form writes of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The prompt's first bytes.
    pub bytes: Vec<u8>,
    /// Whether they are all of it; if no answer is asked for, except for a text at its end.
    pub whole: bool,
}

/// Writes the prompt of a chat; `None`: a message changes what is before it.
pub fn write(chat: &Chat, messages: &[Message], generation: bool) -> Option<Written> {
    let turn = |message: &Message| chat.turns.iter().find(|turn| *turn.role == *message.role.as_bytes());
    let changes = |(place, message)| match turn(message).map(|turn| turn.place) {
        Some(Place::Nowhere) => true,
        Some(Place::First) => place > 0,
        _ => false,
    };
    if messages.iter().enumerate().any(changes) {
        return None;
    }
    let mut written = Written { bytes: chat.start.to_vec(), whole: false };
    if messages.first().is_some_and(|first| first.role != "system") {
        written.bytes.extend_from_slice(&chat.without_system);
    }
    let (mut after, mut last): (&[u8], Option<&Turn>) = (&[], None);
    for (place, message) in messages.iter().enumerate() {
        let next = turn(message);
        let joined =
            next.zip(last).filter(|(next, last)| next.role == last.role).and_then(|(next, _)| next.joined.as_deref());
        if joined.is_none() {
            written.bytes.extend_from_slice(after);
        }
        let is_last = place + 1 == messages.len();
        let Some(next) = next.filter(|turn| !(is_last && matches!(turn.place, Place::NotLast | Place::First))) else {
            return Some(written);
        };
        let Some(behind) = written.message(chat, next, joined, message) else { return Some(written) };
        (after, last) = (behind, Some(next));
    }
    written.bytes.extend_from_slice(after);
    if generation {
        written.bytes.extend_from_slice(&chat.generation);
    }
    written.whole = true;
    Some(written)
}

impl Written {
    /// Writes a message, and returns the text after it, which is not written yet. `None`: nothing of the message is
    /// written.
    fn message<'a>(
        &mut self,
        chat: &Chat,
        turn: &'a Turn,
        joined: Option<&[u8]>,
        message: &Message,
    ) -> Option<&'a [u8]> {
        let is_lone = matches!(&message.content, Content::Parts(parts) if parts.len() > 1) && turn.lone;
        let is_there = message.content != Content::Parts(Vec::new());
        let content = text(chat, message);
        let rest = if turn.trims { strip(&content) } else { &content };
        let calls = (!message.calls.is_empty()).then_some(&turn.calls);
        let is_written = match calls {
            None => !rest.is_empty() || turn.empty && is_there,
            Some(None) => false,
            // Trimming must have left something of it.
            Some(Some(calls)) if content.is_empty() => calls.bare.is_some(),
            Some(Some(calls)) => calls.behind.is_some() && !rest.is_empty(),
        };
        if is_lone || !is_written {
            return None;
        }
        let called = match calls {
            Some(Some(calls)) => Some(called(calls, content.is_empty(), &message.calls)?),
            _ => None,
        };
        if turn.stops.iter().any(|stop| memchr::memmem::find(content.as_bytes(), stop).is_some()) {
            return None;
        }
        self.bytes.extend_from_slice(joined.unwrap_or(&turn.before));
        self.bytes.extend_from_slice(rest.as_bytes());
        match (called, &turn.calls) {
            (Some(called), Some(calls)) => {
                self.bytes.extend_from_slice(&called);
                Some(&calls.after)
            }
            _ => Some(&turn.after),
        }
    }
}

/// Returns what follows the content of a message that calls tools, up to the end of the last arguments; `None`: this is
/// not known for one of the calls.
fn called(form: &Calls, bare: bool, calls: &[Call]) -> Option<Vec<u8>> {
    let mut bytes = if bare { &form.bare } else { &form.behind }.as_deref()?.to_vec();
    for (place, call) in calls.iter().enumerate() {
        if place > 0 {
            bytes.extend_from_slice(&form.next);
        }
        if !is_plain(&call.name) {
            return None;
        }
        bytes.extend_from_slice(call.name.as_bytes());
        bytes.extend_from_slice(&form.arguments);
        bytes.extend_from_slice(arguments(&call.arguments)?.as_bytes());
    }
    Some(bytes)
}

/// Whether a name is written the same in JSON and by every template: engines accept only letters, digits and a few
/// signs.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Returns arguments as Python writes them; `None`: they are no object, or this is not certain.
fn arguments(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    let value = json::read(text.as_bytes()).ok().filter(|value| matches!(value, Json::Dict(_)))?;
    let mut written = String::new();
    value.write(&Style::plain(), 0, &mut written);
    Some(written)
}

/// Returns a message's content as one text.
fn text(chat: &Chat, message: &Message) -> String {
    match &message.content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => parts.join(&String::from_utf8_lossy(&chat.joint)),
    }
}

/// Returns a text without white space at both ends, as Python's `str.strip` does: Unicode's, and the four separators of
/// ASCII.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter))
}
