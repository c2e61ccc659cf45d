//! How an engine writes a request's prompt before it cuts it into tokens: a model's chat template, as far as it is a
//! *segment program*: which texts of the body follow each other in which order, and what stands between them.

use std::sync::Arc;

use crate::vocabulary::Vocabulary;

/// The form of one model's prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// Tells it from other forms, whoever makes them: part of the root of chains that are cut in it. A hash of all the
    /// rest.
    pub id: u64,
    /// Chats; `None`: the template is not of this kind, or there is none.
    pub chat: Option<Chat>,
    /// Prompts of token ids, and what comes before a bare text.
    pub vocabulary: Arc<Vocabulary>,
    /// Chats of which the tools are known. They do not change `id`: what is written of them is part of the prompt.
    pub toolsets: Arc<[Arc<Toolset>]>,
}

/// How chats with certain tools are written. Templates write tools in words and places of their own, so that each set
/// makes another chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolset {
    /// The value of `tools`, byte by byte as bodies have it.
    pub tools: Box<[u8]>,
    /// `None`: with these the template is not of this kind.
    pub chat: Option<Chat>,
}

impl Form {
    /// The set with these tools, if they are known.
    pub fn toolset(&self, tools: &[u8]) -> Option<&Toolset> {
        self.toolsets.iter().map(|toolset| &**toolset).find(|toolset| *toolset.tools == *tools)
    }
}

/// A template that writes message after message, each between two texts that its role alone decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// Before everything.
    pub start: Box<[u8]>,
    /// What stands behind `start` where the first message has another role than `system`.
    pub without_system: Box<[u8]>,
    /// The roles that are known.
    pub turns: Box<[Turn]>,
    /// Between the texts of a content that is a list of parts.
    pub joint: Box<[u8]>,
    /// At the end, where an answer is asked for.
    pub generation: Box<[u8]>,
}

/// Messages of one role. A content of which nothing is left is none: many templates write no turn for it, so the form
/// ends before it unless `empty` says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Its name in the body.
    pub role: Box<[u8]>,
    /// Before the content.
    pub before: Box<[u8]>,
    /// Behind it.
    pub after: Box<[u8]>,
    /// Between two messages of this role of which one is right behind the other, in place of `after` and `before`;
    /// `None`: those stand there, too.
    pub joined: Option<Box<[u8]>>,
    /// How a message is written that calls tools; `None`: the form ends before it.
    pub calls: Option<Calls>,
    /// A content that is there and has no bytes is written as others are.
    pub empty: bool,
    /// A list of several parts is written otherwise: the form ends before it.
    pub lone: bool,
    /// White space at both ends of the content, as Python has it, is left out.
    pub trims: bool,
    /// Where it is written so.
    pub place: Place,
    /// A content in which one of these occurs is written otherwise: the form ends before it.
    pub stops: Box<[Box<[u8]>]>,
}

/// What stands around the calls of one message, which come behind its content. A name of ASCII letters, digits, `_`,
/// `-` and `.` is written as it is, with any other the form ends before the message; arguments, which are the text of a
/// JSON object or no text at all, as Python's `json.dumps` writes that object with letters as they are: a space behind
/// each comma and colon, keys in their order. A content of no bytes or no parts is none; one of which nothing is left,
/// but which had bytes, ends the form before the message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Behind the content, before the first name; `None`: beside calls a content is written otherwise, the form ends
    /// before the message.
    pub behind: Option<Box<[u8]>>,
    /// The same where there is no content, behind the turn's `before`; `None`: the form ends before the message.
    pub bare: Option<Box<[u8]>>,
    /// Between a name and its arguments.
    pub arguments: Box<[u8]>,
    /// Between arguments and the next name.
    pub next: Box<[u8]>,
    /// Behind the last arguments, in place of the turn's `after`.
    pub after: Box<[u8]>,
}

/// Where messages of a role are written as their [`Turn`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Wherever they stand.
    #[default]
    Anywhere,
    /// Not as the last message: there the form ends before it.
    NotLast,
    /// As the first message, and not the only one: alone the form ends before it. One that stands elsewhere changes
    /// what is before it: the prompt has no form, from its start.
    First,
    /// None is, and each changes what is before it: a prompt with one has no form, from its start.
    Nowhere,
}
