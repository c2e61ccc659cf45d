//! From a model's files to the bytes of its prompts: tokenizers, chat templates, and both against what engines recorded.

mod hostile;
mod recordings;
mod spaces;
mod templates;
mod tokenizers;
mod tools;
