//! How each runtime connects, receives, sends and spawns: they differ in nothing else.

#[cfg(feature = "comparators")]
pub mod compio;
#[cfg(feature = "comparators")]
pub mod glommio;
#[cfg(feature = "comparators")]
pub mod monoio;
pub mod tokio;
