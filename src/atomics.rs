//! Atomics of the rooms that share memory without locks. In a model check (`--cfg modelled`, see
//! `tests/orderings.rs`) they are loom's, which tries every order that the memory model allows.

#[cfg(modelled)]
pub use loom::hint::spin_loop;
#[cfg(modelled)]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(modelled)]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(not(modelled))]
pub use std::hint::spin_loop;
#[cfg(not(modelled))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(modelled))]
pub use std::sync::{Mutex, MutexGuard};
