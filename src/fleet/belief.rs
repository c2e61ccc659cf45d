//! How the content of engines' caches is predicted, and how far that is believed.

/// How the part of a prompt that an engine's cache holds was predicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Method {
    /// By the index of what was sent there.
    Warm,
    /// By the index of what the engine says it holds.
    Precise,
}

/// Number of methods.
pub const METHODS: usize = Method::ALL.len();

impl Method {
    /// All of them, in the order of their numbers.
    pub const ALL: [Method; 2] = [Method::Warm, Method::Precise];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Warm => "warm",
            Method::Precise => "precise",
        }
    }
}

/// How far what is known of one endpoint's cache is believed, the best first. Below these would be to know only loads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Rung {
    /// Its engine tells what it holds, and none of that was missed.
    Exact,
    /// Its engine tells what it holds, and is being asked for what was missed; meanwhile what was sent there counts as
    /// well.
    Replaying,
    /// The index of what was sent there is believed.
    #[default]
    Approximate,
    /// That index is not believed: the endpoint counts as holding nothing, and alike prompts meet only by the ring.
    Hash,
}

impl Rung {
    /// All of them, the best first.
    pub const ALL: [Rung; 4] = [Rung::Exact, Rung::Replaying, Rung::Approximate, Rung::Hash];

    /// The name in metrics, `/endpoints` and the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Exact => "exact",
            Rung::Replaying => "replaying",
            Rung::Approximate => "approximate",
            Rung::Hash => "hash",
        }
    }

    /// Whether choices use the index.
    #[inline]
    pub fn believes_index(self) -> bool {
        self != Rung::Hash
    }

    /// Whether only what the engine tells decides what it holds.
    #[inline]
    pub fn is_exact(self) -> bool {
        self == Rung::Exact
    }
}
