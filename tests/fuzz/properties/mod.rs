//! What must hold for any bytes. The fuzz targets run these functions on bytes of their own making, `cargo test`
//! on those of `tests/fuzz/corpus` and on what `tests/differential.rs` draws.
#![allow(dead_code, reason = "a target runs one of them")]

pub mod bodies;
pub mod events;
pub mod exchange;
mod exchange_audit;
mod exchange_fleet;
pub mod heads;
pub mod indexed;
pub mod metrics;
pub mod mirrored;
pub mod peer;
pub mod remembered;
pub mod scanned;
pub mod settings;
pub mod streams;

#[path = "../../oracle/mod.rs"]
mod oracle;
#[path = "../../index/rules.rs"]
mod rules;

/// One property, by the name of its target and its corpus.
pub type Property = (&'static str, fn(&[u8]));

/// All of them.
pub const PROPERTIES: &[Property] = &[
    ("request_head", heads::request_head),
    ("reply_head", heads::reply_head),
    ("chunked", bodies::chunked),
    ("scan", scanned::scan),
    ("requests", streams::requests),
    ("replies", streams::replies),
    ("exchange", exchange::exchange),
    ("config", settings::config),
    ("metrics", metrics::metrics),
    ("kv_batch", events::kv_batch),
    ("kv_peer", events::kv_peer),
    ("mirror", mirrored::mirror),
    ("index", indexed::index),
    ("caches_file", remembered::caches_file),
];

/// Runs the property called `name`.
pub fn check(name: &str, bytes: &[u8]) {
    let property = PROPERTIES.iter().find(|(known, _)| *known == name).expect("a property of this name");
    property.1(bytes);
}
