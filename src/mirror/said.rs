//! What an engine has said of itself with its blocks: whose they are, and whether they can be all there.

/// The group of layers whose blocks are read. Whatever goes, its engine's layers stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// Nothing was told of.
    Unknown,
    /// Blocks of others were told of, and none of those that are read.
    OthersAlone,
    /// This one, as its events name it.
    Read(Option<u32>),
}

/// How much was told of since the engine began anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// No more than it can hold.
    Within,
    /// More than that, so that something in what is known is gone.
    Beyond,
    /// All of it was dropped, since it was more than that or than is borne.
    GivenUp,
}
