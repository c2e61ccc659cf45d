//! What is thought of the engines' caches: by which method, and how far that is believed.

/// How it was predicted what an engine's cache holds of a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Method {
    /// By the index of what was sent there.
    Warm,
}

impl Method {
    /// All of them, in the order of their numbers.
    pub const ALL: [Method; 1] = [Method::Warm];

    /// Its label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Warm => "warm",
        }
    }
}

/// How far is believed what is known of one endpoint's cache: the best first. What engines tell themselves will stand
/// above these, and knowing nothing but loads below.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Rung {
    /// The index of what was sent there is believed.
    #[default]
    Approximate,
    /// It is not: the endpoint counts as holding nothing, and alike prompts meet by the ring alone.
    Hash,
}

impl Rung {
    /// All of them, the best first.
    pub const ALL: [Rung; 2] = [Rung::Approximate, Rung::Hash];

    /// As metrics, `/endpoints` and log name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Approximate => "approximate",
            Rung::Hash => "hash",
        }
    }

    /// Whether choices go by the index.
    #[inline]
    pub fn believes_index(self) -> bool {
        self == Rung::Approximate
    }
}
