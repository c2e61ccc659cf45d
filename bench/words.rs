//! Words of which generated prompts are written, in the benches of the scanner.

/// An escape every hundred bytes or more.
pub const PROSE: &[&str] = &[
    "engine",
    "cache",
    "the",
    "of",
    "prefix",
    "a",
    "block",
    "warm",
    "request",
    "to",
    "which",
    "token",
    "that",
    "is",
    "conversation",
    "and",
    "begins",
    "where",
    "another",
    "ended,",
    "so",
    "its",
    "home",
    "keeps",
    "what.\\n",
];
/// An escape every twenty bytes.
pub const CODE: &[&str] =
    &["let", "name", "=", "\\\"warm\\\";", "if", "(count", "<", "12)", "{\\n\\t", "return", "key;\\n}", "fn"];
