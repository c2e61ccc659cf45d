//! What came of a probe.

/// Why a probe failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// In words.
    pub why: String,
    /// In what way.
    pub how: How,
}

/// In what way a probe failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The kernel there refused or reset the connection.
    Refused,
    /// The connection was not taken in time, or nothing leads there.
    Unconnected,
    /// It took the connection, and no answer came in time: the engine may be busy.
    Silent,
    /// Another answer than 200.
    Otherwise,
}
