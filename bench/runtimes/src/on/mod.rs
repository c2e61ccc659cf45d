//! How each runtime connects, receives, sends and spawns: no more than that differs between them.

#[cfg(feature = "comparators")]
pub mod compio;
#[cfg(feature = "comparators")]
pub mod glommio;
#[cfg(feature = "comparators")]
pub mod monoio;
pub mod tokio;
