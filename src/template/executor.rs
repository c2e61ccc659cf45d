//! A chat form executed plainly: what the scanner's stream of it is compared with,
//! and what is compared with the template.

use super::json::{self, Json, Style};
use super::{Call, Content, Message};
use crate::scan::{Calls, Chat, Place, Turn};

/// What a form says of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// They are all of it; where no answer is asked for, but for what may end it.
    pub whole: bool,
}

/// The prompt of a chat; `None`: a message changes what stands before it.
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
    /// A message, but for what stands behind it, which is answered. `None`: nothing of it is written.
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
            // None of its bytes may have been left out.
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

/// What stands behind the content of a message that calls, up to the end of the last arguments; `None`: it is not known
/// of one of them.
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

/// A name that is the same in JSON and for every template: engines take none but of letters, digits and few signs.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Arguments as Python writes them; `None`: they are no object, or this is not certain.
fn arguments(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("{}".to_owned());
    }
    let value = json::read(text.as_bytes()).ok().filter(|value| matches!(value, Json::Dict(_)))?;
    let mut written = String::new();
    value.write(&Style::plain(), 0, &mut written);
    Some(written)
}

/// A message's content as one text.
fn text(chat: &Chat, message: &Message) -> String {
    match &message.content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => parts.join(&String::from_utf8_lossy(&chat.joint)),
    }
}

/// Without white space at both ends, as Python's `str.strip` has it: that of Unicode, and the four separators of ASCII.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter))
}
