//! What the benches share: a load generator that verifies every reply byte, mock engines, CPU and memory
//! of a process tree, rounds in turn, and the report. `peers` compares whole fronts with it,
//! `bench/runtimes` the ways to write one.

pub mod args;
pub mod change;
pub mod content;
pub mod engine;
pub mod fronts;
pub mod http;
pub mod load;
pub mod measure;
pub mod net;
pub mod process;
pub mod relay;
pub mod report;
pub mod run;
pub mod scenario;
pub mod sent;
pub mod verify;
pub mod warmfront;
