//! Finds out what a chat template writes: a model's template is run on probes, its [`scan::Form`](crate::scan::Form) is
//! read off the results, and then compared with the template on some thousand chats. If they differ, the form is
//! narrowed, or there is none: never a guess.
//!
//! A template is a program of the model's maker. It is run only when a model is loaded, with bounds on its time and
//! output ([`crate::limits`]).

mod calls;
mod chats;
mod contents;
mod derive;
mod executor;
mod identity;
mod json;
mod known;
mod literals;
mod places;
mod reference;
mod source;
mod tools;
mod turns;
mod values;

use std::sync::Arc;

pub use executor::{Written, write};
pub use source::{Source, Unreadable, read};

use crate::scan::{Chat, Form};
use crate::vocabulary::Vocabulary;

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The role of the speaker.
    pub role: String,
    /// The content.
    pub content: Content,
    /// The calls of tools.
    pub calls: Vec<Call>,
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// The arguments: a JSON text as models write it, which may be empty.
    pub arguments: String,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A string.
    Text(String),
    /// A list of parts, all of them text; empty if there is no content.
    Parts(Vec<String>),
}

/// Why a template has no form. Chats of its model are routed approximately.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// There is no template.
    #[error("the model has no chat template")]
    None,
    /// The template cannot be parsed.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refuses even the simplest chat.
    #[error("the chat template refuses a single user message: {0}")]
    Refuses(String),
    /// It writes today's date into the prompt.
    #[error("the chat template writes today's date into the prompt")]
    Dated,
    /// It takes more instructions or bytes than any prompt needs.
    #[error("the chat template takes too long, or writes too much")]
    Costly,
    /// It is not certain what an engine makes of the tools.
    #[error("the tools {0}")]
    Tools(String),
    /// It writes prompts that a [`Form`] cannot describe.
    #[error("the chat template {0}")]
    Otherwise(String),
}

/// A model's form, and what the form leaves out of its template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The form.
    pub form: Form,
    /// Why the form has no chats.
    pub no_chat: Option<Why>,
    /// Messages at which a form ends.
    pub left_out: Vec<LeftOut>,
    /// Number of prompts for which the template was run.
    pub prompts: u32,
}

/// A role without a turn in the form, or messages that the form cannot write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Name of the role, or of the messages.
    pub role: &'static str,
    /// What the template does with such messages.
    pub why: &'static str,
}

/// Makes the form of a model with this template and vocabulary.
pub fn form(source: &Source, vocabulary: Arc<Vocabulary>) -> Reading {
    let (read, prompts) = derive::chat(source, None);
    let (chat, no_chat, left_out) = match read {
        Ok((chat, left_out)) => (Some(chat), None, left_out),
        Err(why) => (None, Some(why), Vec::new()),
    };
    let id = identity::of(chat.as_ref(), &vocabulary);
    Reading { form: Form { id, chat, vocabulary, toolsets: Arc::default() }, no_chat, left_out, prompts }
}

/// Finds out how chats with these tools are written. `tools`: the value of that field, with the bytes that a body has.
/// It takes a while, so that it is not for a shard's thread.
///
/// # Errors
/// When it is not certain what engines make of these tools, or when a [`Chat`] cannot describe what the template writes
/// with them.
pub fn with_tools(source: &Source, tools: &[u8]) -> Result<Chat, Why> {
    let tools = tools::read(tools)?;
    derive::chat(source, Some(&tools)).0.map(|(chat, _)| chat)
}

/// Makes a message with a text, for probes.
fn said(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.into(), content: Content::Text(content.into()), calls: Vec::new() }
}

#[cfg(test)]
mod tests;
