//! warmfront: a drop-in L7 front for fleets of vLLM and SGLang engines.
//!
//! Read a request's path top-down: [`shard`] completes I/O and hands bytes to an [`exchange`], which
//! parses with [`http`], looks into the body with [`scan`], chooses with [`policy`] over a
//! [`snapshot`] and the shared [`counters`], and asks the shard to relay. [`control`] keeps the
//! snapshot fresh and answers the admin listener. Imports go down only; `tests/tidy` holds them to it.

pub mod atomics;
pub mod bout;
pub mod calendar;
pub mod cli;
pub mod config;
pub mod control;
pub mod counters;
pub mod demo;
pub mod driver;
pub mod engine;
pub mod exchange;
pub mod fleet;
pub mod http;
pub mod index;
pub mod kvevents;
pub mod limits;
pub mod mirror;
pub mod pages;
pub mod policy;
pub mod prefix;
pub mod publish;
pub mod replay;
pub mod resolver;
pub mod ring;
pub mod scan;
pub mod shard;
pub mod slots;
pub mod snapshot;
pub mod succession;
pub mod template;
pub mod vocabulary;
pub mod want;
