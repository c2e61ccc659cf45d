//! How many shards there are, and whether each has a CPU of its own.

use serde::{Deserialize, Serialize};

/// How many shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ShardsText", rename_all = "kebab-case")]
pub enum Shards {
    /// One for each physical core that this process may use, within its cgroup's CPU quota.
    Auto,
    /// This many.
    #[serde(untagged)]
    Count(u16),
}

/// `"auto"` or a number, as the file writes it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`shards` is \"auto\" or a number of threads such as 4")]
enum ShardsText {
    Count(u16),
    Word(String),
}

impl TryFrom<ShardsText> for Shards {
    type Error = String;

    fn try_from(text: ShardsText) -> Result<Self, String> {
        match text {
            ShardsText::Count(count) => Ok(Shards::Count(count)),
            ShardsText::Word(word) => word.parse(),
        }
    }
}

impl std::str::FromStr for Shards {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match (word, word.parse()) {
            ("auto", _) => Ok(Shards::Auto),
            (_, Ok(count)) => Ok(Shards::Count(count)),
            _ => Err(format!("`shards` is \"auto\" or a number of threads such as 4, not \"{word}\"")),
        }
    }
}

impl Shards {
    /// The number that was asked for; `None`: as many as suit the machine.
    pub fn asked(self) -> Option<usize> {
        match self {
            Shards::Auto => None,
            Shards::Count(count) => Some(usize::from(count)),
        }
    }
}

/// Whether each shard is pinned to a CPU of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PinText", rename_all = "kebab-case")]
pub enum Pin {
    /// Pinned, unless the cgroup has a CPU quota: then the machine is shared, mostly with others that would pin to the
    /// same CPUs.
    Auto,
    /// Pinned or not.
    #[serde(untagged)]
    Set(bool),
}

/// `"auto"`, `true` or `false`, as the file writes it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`pin` is \"auto\", true or false")]
enum PinText {
    Set(bool),
    Word(String),
}

impl TryFrom<PinText> for Pin {
    type Error = String;

    fn try_from(text: PinText) -> Result<Self, String> {
        match text {
            PinText::Set(pin) => Ok(Pin::Set(pin)),
            PinText::Word(word) if word == "auto" => Ok(Pin::Auto),
            PinText::Word(word) => Err(format!("`pin` is \"auto\", true or false, not \"{word}\"")),
        }
    }
}

impl Pin {
    /// What was asked for; `None`: what suits the machine.
    pub fn asked(self) -> Option<bool> {
        match self {
            Pin::Auto => None,
            Pin::Set(pin) => Some(pin),
        }
    }
}
