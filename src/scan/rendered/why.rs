//! How a rendering ends.

use super::super::Fault;

/// What became of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rendering {
    /// How many bytes of the prompt are known.
    pub bytes: u64,
    /// Why there is more of it, if so; `None`: these are all.
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
    /// Tools that the form does not know: templates write them first.
    Tools,
    /// Tools with which the template is not of the kind that makes forms.
    Toolset,
    /// No prompt, or none that engines take.
    Prompt,
    /// A message without a role, or with one that the form does not know.
    Role,
    /// A message that says more than its content: a name, a reasoning,
    /// calls of tools where the form has no words for them.
    Message,
    /// A call of a tool of which it is not certain how engines write it.
    Call,
    /// An image, or another part that is no text.
    Media,
    /// A role or content that is there twice in one message.
    Twice,
    /// A text that the template writes otherwise.
    Stop,
    /// White space at an end or inside of a content that is trimmed, of a kind or length that this one does not follow.
    Space,
    /// A content of which nothing is left.
    Empty,
    /// Several parts of a content, where the template does more than to join them.
    Parts,
    /// A role where it is written otherwise.
    Place,
    /// A token id that nobody has, or that stands for no text.
    Token,
}

impl Why {
    /// Its label in counters.
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
