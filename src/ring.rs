//! The hash ring.

/// The hash ring.
#[derive(Clone, Debug, Default)]
pub struct Ring {}
