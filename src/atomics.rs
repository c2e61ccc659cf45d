//! Atomics of the rooms that share memory without locks. In a model check (feature `modelled`, see
//! `tests/orderings.rs`) they are loom's, which tries every order that the memory model allows.

#[cfg(feature = "modelled")]
pub use loom::hint::spin_loop;
#[cfg(feature = "modelled")]
pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "modelled")]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(not(feature = "modelled"))]
pub use std::hint::spin_loop;
#[cfg(not(feature = "modelled"))]
pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(feature = "modelled"))]
pub use std::sync::{Mutex, MutexGuard};
