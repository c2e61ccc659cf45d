//! Engines' KV events: recorded ones, the dialects that were not recorded, engines that lose messages and begin anew,
//! and peers that send what should not be sent.

mod decoding;
mod engine;
mod flooding;
mod frames;
mod hostile;
mod msgpack;
mod mutants;
mod recordings;
#[path = "../fleet/reserved.rs"]
mod reserved;
mod sequences;
mod subscribing;
