//! Where the access log goes.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

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
