//! What a chat template writes: a model's template is run on probes, its [`scan::Form`](crate::scan::Form) is read off what comes out, and
//! then held against the template on some thousand chats. Where both differ, the form says less, or there is none: never a guess.
//!
//! A template is a program of the model's maker. It is run at load alone, with bounds on its time and output ([`crate::limits`]).

mod chats;
mod contents;
mod derive;
mod executor;
mod identity;
mod literals;
mod places;
mod reference;
mod source;
mod turns;

use std::sync::Arc;

pub use executor::{Written, write};
pub use source::{Source, Unreadable, read};

use crate::scan::Form;
use crate::vocabulary::Vocabulary;

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: String,
    /// What is said.
    pub content: Content,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A string.
    Text(String),
    /// A list of parts, all of them text.
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
    /// Roles at which a form ends.
    pub left_out: Vec<LeftOut>,
    /// For how many prompts the template was run.
    pub prompts: u32,
}

/// A role that is no turn of the form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub role: &'static str,
    /// What the template does with it.
    pub why: &'static str,
}

/// The form of a model of this template and vocabulary.
pub fn form(source: &Source, vocabulary: Arc<Vocabulary>) -> Reading {
    let (read, prompts) = derive::chat(source);
    let (chat, no_chat, left_out) = match read {
        Ok((chat, left_out)) => (Some(chat), None, left_out),
        Err(why) => (None, Some(why), Vec::new()),
    };
    let id = identity::of(chat.as_ref(), &vocabulary);
    Reading { form: Form { id, chat, vocabulary, toolsets: Arc::default() }, no_chat, left_out, prompts }
}

/// One of a conversation, for probes.
fn said(role: &str, content: impl Into<String>) -> Message {
    Message { role: role.into(), content: Content::Text(content.into()) }
}
