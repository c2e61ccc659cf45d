//! The simulated vLLM engine: for the demo, tests, benches and capacity planning.
//!
//! [`core`] is an engine without sockets or a clock, over [`batch`] (which sequences a step
//! computes), [`cache`] (the paged KV cache), [`profile`] (what a step costs) and [`tokens`].
//! [`pump`] gives it time; [`server`] puts vLLM's HTTP around it with [`request`], [`reply`],
//! [`stream`] and [`metrics`]. Nothing of the front imports this room, nor it anything of the front.
//!
//! # What it leaves out
//!
//! * Mixed steps cost the sum of prefill and decode, while a GPU overlaps part of them.
//! * The HTTP server publishes no KV events; a replay takes what changes from the [`cache`] itself.
//! * No speculative decoding, structured output, logprobs, LoRA, embeddings, pooling or multimodal
//!   encoders (an image counts as a fixed number of tokens).
//! * Tokens are four bytes of text; a prompt has no begin-of-text token or template words.
//! * A reply is exactly as long as `max_tokens`, or `--output-tokens` without one, so its length
//!   never depends on what was said, and stop strings never match.
//! * Aborted requests free their blocks at once, where an engine does so between two steps.

pub mod batch;
pub mod cache;
pub mod core;
pub mod metrics;
pub mod profile;
pub mod pump;
pub mod reply;
pub mod request;
pub mod server;
pub mod stream;
pub mod tokens;
