//! Looks into a request body while it passes: which model, which prompt prefix, which session, how large.
//!
//! The body is forwarded byte for byte; a scan only reads. It takes pieces cut anywhere, allocates nothing after its
//! first use and does not recurse. It is strict about what it looks at and blind to what it skips. A body that a scan
//! fails on is routed by load and forwarded all the same: engines accept bodies that strict parsers refuse, so refusing
//! is left to them.
//!
//! Two fronts must make the same key of the same body. All facts are therefore a function of the body's
//! bytes read so far; a scan that ends early does so at a byte that the body alone decides
//! ([`Progress::Enough`]), and reads nothing beyond it.
//!
//! # The way of a body
//!
//! [`machine`] turns bytes into structure: [`frames`] are the objects and lists that are open, [`text`] decodes
//! strings, [`words`] keeps short values. [`meaning`] turns structure into [`facts`]: [`fields`] knows the names,
//! [`values`] how each value is read, [`sample`] which bytes of a medium tell it from another. [`kernel`] has the loops
//! over long runs of bytes. [`multipart`] finds the model in a `multipart/form-data` body, which is no JSON.
//!
//! # Three ways to a chain
//!
//! A chain is a list of hashes (links), one for each beginning of a prompt that is a whole number of blocks. It begins
//! at a root, a hash that stands for the model and whatever else keeps equal prompts apart. There are three ways to a
//! chain. [`lanes`] hash on all of them, and [`lanes::linked`] mixes the root into each hash.
//!
//! - As the client wrote it: `machine`, `meaning`, [`prompt`] (its [`section`]s one after the other, with marks between
//!   texts), [`digest`]; each block gives a link of [`Facts::chain`], below [`crate::prefix::root`].
//! - As its engine writes it: [`reader`] goes through the whole body a second time, [`rendered`] writes the prompt in a
//!   [`form`], `digest`; each step, of which several make a block, gives a link of [`Renderer::links`], below
//!   [`crate::prefix::form_root`].
//! - As the engine tells it: a `kvevents::Batch` names blocks of tokens, `mirror` gets their texts from
//!   `vocabulary::Run`, [`cut`] hashes these piece by piece; each [`Step`] is below the same `form_root`.
//!
//! The last two must agree to the byte, else nothing that an engine holds is ever found. The first has a form of its
//! own, the same for every model (`GENERIC_FORM` in [`crate::prefix`]), and its links equal none of the other two's.

mod cut;
mod digest;
mod facts;
mod fields;
mod form;
mod frames;
mod kernel;
mod lanes;
mod machine;
mod meaning;
mod multipart;
mod prompt;
mod reader;
mod rendered;
mod sample;
mod section;
mod text;
mod values;
mod words;

use std::ops::BitOr;

use serde::{Deserialize, Serialize};

pub use cut::{Cut, Step};
pub use facts::{Counts, Facts, MODEL_BYTES_MAX, PrefixHash, SESSION_FIELDS_MAX, Stated};
pub use fields::reads;
pub use form::{Calls, Chat, Form, Place, Toolset, Turn};
pub use kernel::Kernel;
pub use machine::Scan;
pub use multipart::boundary;
pub use rendered::{Renderer, Rendering, Why};

/// The API that a path belongs to, which decides how its bodies are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    /// `/v1/chat/completions`, and its `/batch`, of several chats
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`, `/pooling`, `/classify`, `/v1/classify`; `/encode` (SGLang, whose `/classify` has its fields)
    Embeddings,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/rerank`, `/v1/rerank`, `/v2/rerank`
    Rerank,
    /// `/score`, `/v1/score`, `/generative_scoring`
    Score,
    /// Paths that describe a prompt and compute nothing: `/tokenize`, `/v1/tokenize`, `/v1/messages/count_tokens`,
    /// `/v1/chat/completions/render`, `/v1/completions/render`
    Tokenize,
    /// `/generate` (SGLang), `/inference/v1/generate` (vLLM's, of token ids)
    Generate,
    /// Any other: `model` and session fields are looked for, prompts are not.
    Other,
}

impl Api {
    /// The name in logs and `explain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Api::Chat => "chat",
            Api::Completions => "completions",
            Api::Embeddings => "embeddings",
            Api::Responses => "responses",
            Api::Messages => "messages",
            Api::Rerank => "rerank",
            Api::Score => "score",
            Api::Tokenize => "tokenize",
            Api::Generate => "generate",
            Api::Other => "other",
        }
    }

    /// Returns the API of a request target's path; a query is ignored.
    pub fn of_path(target: &[u8]) -> Api {
        let path = memchr::memchr(b'?', target).and_then(|query| target.get(..query)).unwrap_or(target);
        match path {
            b"/v1/chat/completions" | b"/v1/chat/completions/batch" => Api::Chat,
            b"/v1/completions" => Api::Completions,
            b"/v1/embeddings" | b"/pooling" | b"/classify" | b"/v1/classify" | b"/encode" => Api::Embeddings,
            b"/v1/responses" => Api::Responses,
            b"/v1/messages" => Api::Messages,
            b"/rerank" | b"/v1/rerank" | b"/v2/rerank" => Api::Rerank,
            b"/score" | b"/v1/score" | b"/generative_scoring" => Api::Score,
            b"/tokenize"
            | b"/v1/tokenize"
            | b"/v1/messages/count_tokens"
            | b"/v1/chat/completions/render"
            | b"/v1/completions/render" => Api::Tokenize,
            b"/generate" | b"/inference/v1/generate" => Api::Generate,
            _ => Api::Other,
        }
    }
}

/// Which part of the prompt makes the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixMode {
    /// Text of the first user message (KubeAI's).
    FirstUser,
    /// The whole prompt in canonical order from its start: tools and system prompt take part.
    Conversation,
}

/// How keys and chains are made of a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Which part of the prompt.
    pub prefix: PrefixMode,
    /// `first-user`: how many characters of the message take part. Of a content that precedes its role, at most 4 KiB.
    pub prefix_chars: u32,
    /// `conversation`: how many canonical bytes of each of tools, system prompt and messages take part.
    pub prefix_bytes: u32,
    /// Whether the whole prompt is cut into blocks, for [`Facts::chain`]. The prefix is then the whole conversation,
    /// whatever the three fields above say.
    pub chain: bool,
    /// Which policies' keys are of the prefix that the first three fields say, although there is a chain:
    /// [`Facts::plain_prefix`].
    pub plain: Plain,
    /// Top-level string fields that may carry a session key, best first; the first [`SESSION_FIELDS_MAX`] count.
    pub session_fields: Vec<Box<[u8]>>,
}

/// Policies that count no tokens, while the whole prompt is read for another policy's sake: their keys are of the plain
/// prefix all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plain {
    /// Such a policy chooses.
    pub chosen: bool,
    /// Such a policy is a shadow.
    pub shadow: bool,
}

impl Plain {
    /// Whether any policy needs the plain prefix.
    pub fn is_wanted(self) -> bool {
        self.chosen || self.shadow
    }
}

impl Default for Plan {
    /// KubeAI's key, no session fields.
    fn default() -> Self {
        Plan {
            prefix: PrefixMode::FirstUser,
            prefix_chars: 100,
            prefix_bytes: 4_096,
            chain: false,
            plain: Plain::default(),
            session_fields: Vec::new(),
        }
    }
}

/// What the choice waits for, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs(u8);

impl Needs {
    /// Nothing: the body is not looked at.
    pub const NONE: Needs = Needs(0);
    /// `model`
    pub const MODEL: Needs = Needs(1);
    /// The prompt's prefix. Without it prompts are skipped unseen.
    pub const PREFIX: Needs = Needs(2);
    /// The session key.
    pub const SESSION: Needs = Needs(4);
    /// Everything to the body's end: all counts, the last of duplicate fields.
    pub const WHOLE: Needs = Needs(8);

    /// Whether all of `other` is in the set.
    pub fn contains(self, other: Needs) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in both sets.
    pub fn only(self, other: Needs) -> Needs {
        Needs(self.0 & other.0)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set without `other`.
    pub fn without(self, other: Needs) -> Needs {
        Needs(self.0 & !other.0)
    }
}

impl BitOr for Needs {
    type Output = Needs;

    fn bitor(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }
}

/// How far a scan has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Give the next piece, or finish.
    More,
    /// All needs are met; the facts are those of the body's first `at` bytes, whatever the pieces were.
    Enough {
        /// Bytes of the body that were read.
        at: u64,
    },
    /// The body is over and well-formed as far as it was looked at. Only [`Scan::finish`] says so.
    Done,
    /// The body cannot be scanned: route by load, forward unchanged.
    Failed(Fault),
}

/// Why a body cannot be scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The body is empty.
    Empty,
    /// The body does not begin as a JSON object does.
    NotObject,
    /// The body is not JSON.
    Syntax,
    /// A raw control character in a string.
    Control,
    /// An escape that JSON does not know.
    Escape,
    /// More than white space follows the object.
    Trailing,
    /// The body ends inside the object.
    Truncated,
}

impl Fault {
    /// Every fault, in the order of their numbers.
    pub const ALL: [Fault; 7] = [
        Fault::Empty,
        Fault::NotObject,
        Fault::Syntax,
        Fault::Control,
        Fault::Escape,
        Fault::Trailing,
        Fault::Truncated,
    ];

    /// Its label in counters.
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::Empty => "empty",
            Fault::NotObject => "not_object",
            Fault::Syntax => "syntax",
            Fault::Control => "control_character",
            Fault::Escape => "escape",
            Fault::Trailing => "trailing",
            Fault::Truncated => "truncated",
        }
    }
}

/// Name of the instruction set that scans of this process use: [`Kernel::name`].
pub fn kernel_name() -> &'static str {
    Kernel::detected().name()
}

#[cfg(test)]
mod tests;
