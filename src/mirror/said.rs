//! What an engine's events have shown so far: whose layers' blocks they tell of, and whether it can hold them all.

/// The group of layers whose blocks are read. It outlasts a clear, as the engine's layers stay the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// No blocks were told of.
    Unknown,
    /// Only blocks of groups that are not read were told of.
    OthersAlone,
    /// The group with this number, if events give it one.
    Read(Option<u32>),
}

/// How many blocks were told of since the engine began anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// No more than the engine can hold.
    Within,
    /// More than it can hold, so that some of the known blocks must be gone.
    Beyond,
    /// All were dropped, as there were more than the engine can hold or than is allowed.
    GivenUp,
}
