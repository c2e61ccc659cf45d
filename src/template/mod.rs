//! What a chat template writes: a model's template is run on probes, its [`scan::Form`](crate::scan::Form) is read off
//! what comes out, and then held against the template on some thousand chats. Where both differ, the form says less, or
//! there is none: never a guess.
//!
//! A template is a program of the model's maker. It is run at load alone, with bounds on its time and output
//! ([`crate::limits`]).

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
    /// Who says it.
    pub role: String,
    /// What is said.
    pub content: Content,
    /// Which tools are called.
    pub calls: Vec<Call>,
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub name: String,
    /// With what: a JSON text as models write it, which may be none at all.
    pub arguments: String,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A string.
    Text(String),
    /// A list of parts, all of them text; none where there is no content.
    Parts(Vec<String>),
}

/// Why a template has no form. Chats of its model are routed approximately.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// There is no template.
    #[error("the model has no chat template")]
    None,
    /// It is none.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// Not even the simplest chat passes.
    #[error("the chat template refuses a single user message: {0}")]
    Refuses(String),
    /// Today's date is in the prompt.
    #[error("the chat template writes today's date into the prompt")]
    Dated,
    /// More instructions or bytes than any prompt needs.
    #[error("the chat template takes too long, or writes too much")]
    Costly,
    /// It is not certain what an engine makes of them.
    #[error("the tools {0}")]
    Tools(String),
    /// What it writes is not of the kind that [`Form`] says.
    #[error("the chat template {0}")]
    Otherwise(String),
}

/// A model's form, and what of its template is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How prompts are written.
    pub form: Form,
    /// Why it has no chats.
    pub no_chat: Option<Why>,
    /// Messages at which a form ends.
    pub left_out: Vec<LeftOut>,
    /// For how many prompts the template was run.
    pub prompts: u32,
}

/// A role that is no turn of the form, or messages of one that it has no words for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name, or theirs.
    pub role: &'static str,
    /// What the template does with them.
    pub why: &'static str,
}

/// The form of a model of this template and vocabulary.
pub fn form(source: &Source, vocabulary: Arc<Vocabulary>) -> Reading {
    let (read, prompts) = derive::chat(source, None);
    let (chat, no_chat, left_out) = match read {
        Ok((chat, left_out)) => (Some(chat), None, left_out),
        Err(why) => (None, Some(why), Vec::new()),
    };
    let id = identity::of(chat.as_ref(), &vocabulary);
    Reading { form: Form { id, chat, vocabulary, toolsets: Arc::default() }, no_chat, left_out, prompts }
}

/// How chats with these tools are written: the value of `tools`, byte by byte as a body has it. Takes a while, so that
/// it is for another thread than a shard's.
///
/// # Errors
/// It is not certain what engines make of these tools, or what the template writes with them is no [`Chat`].
pub fn with_tools(source: &Source, tools: &[u8]) -> Result<Chat, Why> {
    let tools = tools::read(tools)?;
    derive::chat(source, Some(&tools)).0.map(|(chat, _)| chat)
}

/// One of a conversation, for probes.
fn said(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.into(), content: Content::Text(content.into()), calls: Vec::new() }
}

#[cfg(test)]
mod tests;
