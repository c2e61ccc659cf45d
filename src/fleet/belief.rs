//! What is thought of the engines' caches: by which method, and how far that is believed.

/// How it was predicted what an engine's cache holds of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Method {
    /// By the index of what was sent there.
    Warm,
    /// By the index of what its engine says that it holds.
    Precise,
}

/// How many there are.
pub const METHODS: usize = Method::ALL.len();

impl Method {
    /// All of them, in the order of their numbers.
    pub const ALL: [Method; 2] = [Method::Warm, Method::Precise];

    /// Its label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Warm => "warm",
            Method::Precise => "precise",
        }
    }
}

/// How far is believed what is known of one endpoint's cache: the best first.
/// Knowing nothing but loads stands below these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Rung {
    /// Its engine says what it holds, and nothing that it said was missed.
    Exact,
    /// Its engine says so, and it is being asked for what was missed;
    /// what was sent there counts beside what it has said.
    Replaying,
    /// The index of what was sent there is believed.
    #[default]
    Approximate,
    /// It is not: the endpoint counts as holding nothing, and alike prompts meet by the ring alone.
    Hash,
}

impl Rung {
    /// All of them, the best first.
    pub const ALL: [Rung; 4] = [Rung::Exact, Rung::Replaying, Rung::Approximate, Rung::Hash];

    /// As metrics, `/endpoints` and log name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Exact => "exact",
            Rung::Replaying => "replaying",
            Rung::Approximate => "approximate",
            Rung::Hash => "hash",
        }
    }

    /// Whether choices go by the index.
    #[inline]
    pub fn believes_index(self) -> bool {
        self != Rung::Hash
    }

    /// Whether the engine's word alone decides what it holds.
    #[inline]
    pub fn is_exact(self) -> bool {
        self == Rung::Exact
    }
}
