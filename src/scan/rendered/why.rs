//! How a rendering ends, and why.

use super::super::Fault;

/// The result of rendering a body's prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rendering {
    /// Number of bytes of the prompt that are known.
    pub bytes: u64,
    /// Why the rest of the prompt is not known; `None`: these bytes are all of it.
    pub ends: Option<Why>,
}

/// Why a form could not write a prompt, or the rest of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The body is no JSON object.
    Body(Fault),
    /// Prompts of this API are not written in forms.
    Api,
    /// The model's chats have no form.
    Template,
    /// A top-level field that changes what is written.
    Field,
    /// Tools that the form does not know; templates write them before the messages.
    Tools,
    /// Tools with which the template makes no form.
    Toolset,
    /// No prompt, or one that engines refuse.
    Prompt,
    /// A message without a role, or with one that the form does not know.
    Role,
    /// A message with more than its content: a name, reasoning, or calls of tools if the form has no texts for them.
    Message,
    /// A call of a tool if it is not certain how engines write it.
    Call,
    /// An image, or another part that is no text.
    Media,
    /// A field that is there twice in one message or part of it.
    Twice,
    /// A text that the template writes in another way.
    Stop,
    /// White space at an end of or inside a content that is trimmed, of a kind or length that the form does not follow.
    Space,
    /// A message without a content, or with one of which nothing is left.
    Empty,
    /// Several parts of a content, if the template does more than join them.
    Parts,
    /// A role at a place where it is written in another way.
    Place,
    /// A token id that no token has, or that stands for no text.
    Token,
}

impl Why {
    /// The label in counters.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Body(fault) => fault.as_str(),
            Why::Api => "api",
            Why::Template => "template",
            Why::Field => "field",
            Why::Tools => "tools",
            Why::Toolset => "toolset",
            Why::Prompt => "prompt",
            Why::Role => "role",
            Why::Message => "message",
            Why::Call => "call",
            Why::Media => "media",
            Why::Twice => "twice",
            Why::Stop => "stop",
            Why::Space => "space",
            Why::Empty => "empty",
            Why::Parts => "parts",
            Why::Place => "place",
            Why::Token => "token",
        }
    }
}

impl From<Fault> for Why {
    fn from(fault: Fault) -> Why {
        Why::Body(fault)
    }
}
