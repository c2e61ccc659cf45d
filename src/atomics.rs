//! Atomics of the rooms that share memory without locks. In a model check (`--cfg modelled`, see
//! `tests/orderings.rs`) they are loom's, which tries every order that the memory model allows.

#[cfg(modelled)]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(modelled))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
