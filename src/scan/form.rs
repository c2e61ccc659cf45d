//! How an engine writes a request's prompt before cutting it into tokens: a model's chat template, as far as it is a
//! *segment program*, which texts of the body follow each other in which order, and the fixed texts between them.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;

/// The form of one model's prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// A hash of all the rest, which tells it from other forms on any front: part of the root of chains in this form.
    pub id: u64,
    /// How chats are written; `None`: the template is not of this kind, or there is none.
    pub chat: Option<Chat>,
    /// Tells the text of token ids, and what comes before a bare text.
    pub vocabulary: Arc<Vocabulary>,
    /// How chats with known tools are written. They do not change `id`: what is written of tools is part of the prompt.
    pub toolsets: Arc<[Arc<Toolset>]>,
}

/// How chats with certain tools are written. Templates write tools in words and places of their own, so that chats with
/// each set are written differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolset {
    /// The value of `tools`, with the same bytes as in bodies.
    pub tools: Box<[u8]>,
    /// How chats with these tools are written; `None`: with them the template is not of this kind.
    pub chat: Option<Chat>,
}

impl Form {
    /// Returns the set with these tools, if it is known.
    pub fn toolset(&self, tools: &[u8]) -> Option<&Toolset> {
        self.toolsets.iter().map(|toolset| &**toolset).find(|toolset| *toolset.tools == *tools)
    }
}

/// A template that writes message after message, each between two texts that depend only on its role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// The text before everything.
    pub start: Box<[u8]>,
    /// The text after `start` if the first message has another role than `system`.
    pub without_system: Box<[u8]>,
    /// The roles that are known.
    pub turns: Box<[Turn]>,
    /// The text between the parts of a content that is a list.
    pub joint: Box<[u8]>,
    /// The text at the end, if an answer is asked for.
    pub generation: Box<[u8]>,
}

/// How messages of one role are written. A content of which nothing is left counts as none: many templates write no
/// turn for it, so the form ends before it unless `empty` says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The role's name in the body.
    pub role: Box<[u8]>,
    /// The text before the content.
    pub before: Box<[u8]>,
    /// The text after the content.
    pub after: Box<[u8]>,
    /// The text between two successive messages of this role, in place of `after` and `before`; `None`: those are
    /// written between them, too.
    pub joined: Option<Box<[u8]>>,
    /// How a message that calls tools is written; `None`: the form ends before it.
    pub calls: Option<Calls>,
    /// Whether a content that is there but has no bytes is written like others.
    pub empty: bool,
    /// Whether a list of several parts is written in another way: the form ends before it.
    pub lone: bool,
    /// Whether white space (Python's definition) at both ends of the content is left out.
    pub trims: bool,
    /// Where in a chat messages are written so.
    pub place: Place,
    /// Texts that, in a content, make the template write it in another way: the form ends before it.
    pub stops: Box<[Box<[u8]>]>,
}

/// The texts around the calls of one message, which come after its content. A name of ASCII letters, digits, `_`, `-`
/// and `.` is written as it is; with any other the form ends before the message. Arguments, which are the text of a
/// JSON object or an empty text, are written as Python's `json.dumps` writes that object with letters as they are: a
/// space after each comma and colon, keys in their order. A content without bytes or parts counts as none; one of which
/// nothing is left, but which had bytes, ends the form before the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// The text between the content and the first name; `None`: beside calls a content is written in another way, and
    /// the form ends before the message.
    pub behind: Option<Box<[u8]>>,
    /// The text between the turn's `before` and the first name, if there is no content; `None`: the form ends before
    /// the message.
    pub bare: Option<Box<[u8]>>,
    /// The text between a name and its arguments.
    pub arguments: Box<[u8]>,
    /// The text between arguments and the next name.
    pub next: Box<[u8]>,
    /// The text after the last arguments, in place of the turn's `after`.
    pub after: Box<[u8]>,
}

/// Where messages of a role are written as their [`Turn`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Anywhere.
    #[default]
    Anywhere,
    /// Anywhere but as the last message, before which the form ends.
    NotLast,
    /// As the first message but not the only one, before which the form ends. Elsewhere such a message changes what is
    /// before it: the prompt then has no form, from its start.
    First,
    /// Nowhere, as each changes what is before it: a prompt with such a message has no form, from its start.
    Nowhere,
}
