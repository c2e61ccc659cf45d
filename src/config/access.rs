//! Where the access log goes.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Config, LogFormat};

/// `access` of `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Access {
    /// Nowhere.
    #[default]
    Off,
    /// To standard output; the ordinary log is on standard error.
    Stdout,
    /// To the end of this file.
    File(PathBuf),
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Access::Off),
            "stdout" => Ok(Access::Stdout),
            // Relative ones would depend on where the process was started.
            path if path.starts_with('/') && !path.ends_with('/') => Ok(Access::File(path.into())),
            other => Err(format!("`access` is \"off\", \"stdout\" or the whole path of a file, not \"{other}\"")),
        }
    }
}

impl TryFrom<String> for Access {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Access> for String {
    fn from(access: Access) -> String {
        access.to_string()
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Access::Off => f.write_str("off"),
            Access::Stdout => f.write_str("stdout"),
            Access::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Config {
    /// Whether lines of the access log have the chains of prompts, as far as there are any.
    pub fn logs_chains(&self) -> bool {
        self.log.access_chain && self.log.access != Access::Off && self.log.access_format == LogFormat::Json
    }

    /// Why `access_chain` has no effect, in words, if it has none.
    pub(super) fn chain_wanting(&self) -> Option<&'static str> {
        if !self.log.access_chain {
            None
        } else if self.log.access == Access::Off {
            Some("`access_chain` adds to lines of the access log, and `access` is \"off\"")
        } else if self.log.access_format != LogFormat::Json {
            Some("`access_chain` adds to lines in JSON, and `access_format` is \"text\"")
        } else if !self.counts_tokens() {
            Some(
                "`access_chain` has nothing to write: chains of prompts are made for the policies `warm` and `precise`, which no pool has; \
                 `shadow_policy = \"warm\"` makes them beside another policy, and changes no choice",
            )
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_nobody_makes_is_said() {
        let config = |text: &str| Config::parse(text, std::path::Path::new("w.toml")).unwrap();
        for (text, words) in [
            ("", None),
            ("[log]\naccess = \"stdout\"\n", None),
            ("[log]\naccess_chain = true\n", Some("is \"off\"")),
            ("[log]\naccess_chain = true\naccess = \"stdout\"\n", None),
            (
                "[routing]\npolicy = \"session\"\n[log]\naccess_chain = true\naccess = \"stdout\"\n",
                Some("`precise`, which no pool has; `shadow_policy = \"warm\"` makes them"),
            ),
            (
                "[log]\naccess_chain = true\naccess = \"stdout\"\naccess_format = \"text\"\n",
                Some("`access_format` is \"text\""),
            ),
            (
                "[routing]\npolicy = \"session\"\n[pool.x]\npolicy = \"warm\"\n[log]\naccess_chain = true\naccess = \"stdout\"\n",
                None,
            ),
        ] {
            let said = config(text).chain_wanting();
            assert_eq!(said.is_some(), words.is_some(), "{text}: {said:?}");
            assert!(words.is_none_or(|words| said.is_some_and(|said| said.contains(words))), "{text}: {said:?}");
        }
    }

    #[test]
    fn words_and_paths_are_told_apart() {
        for text in ["off", "stdout", "/var/log/warmfront/access.log"] {
            assert_eq!(text.parse::<Access>().unwrap().to_string(), text);
        }
        for text in ["", "on", "access.log", "stderr", "/var/log/"] {
            assert!(text.parse::<Access>().unwrap_err().contains("the whole path of a file"), "{text}");
        }
    }
}
