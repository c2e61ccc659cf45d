//! A chat form executed plainly: what the scanner's stream of it is compared with, and what is compared with the template.

use super::{Content, Message};
use crate::scan::{Chat, Place, Turn};

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
    for (place, message) in messages.iter().enumerate() {
        let last = place + 1 == messages.len();
        let Some(turn) = turn(message).filter(|turn| !(last && turn.place == Place::NotLast)) else {
            return Some(written);
        };
        let is_lone = matches!(&message.content, Content::Parts(parts) if parts.len() > 1) && chat.lone;
        if is_lone || !written.turn(turn, &text(chat, message)) {
            return Some(written);
        }
    }
    if generation {
        written.bytes.extend_from_slice(&chat.generation);
    }
    written.whole = true;
    Some(written)
}

impl Written {
    /// Whether it is written; of one that stops the form, what stands before its content is.
    fn turn(&mut self, turn: &Turn, content: &str) -> bool {
        let rest = if turn.trims { strip(content) } else { content };
        if rest.is_empty() {
            return false;
        }
        self.bytes.extend_from_slice(&turn.before);
        if turn.stops.iter().any(|stop| memchr::memmem::find(content.as_bytes(), stop).is_some()) {
            return false;
        }
        self.bytes.extend_from_slice(rest.as_bytes());
        self.bytes.extend_from_slice(&turn.after);
        true
    }
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
