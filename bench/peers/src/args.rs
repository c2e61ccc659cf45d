//! Flags as `--name value`; bare switches are named by the caller. Unknown names are refused.

use std::collections::HashMap;
use std::str::FromStr;

pub struct Args {
    values: HashMap<String, String>,
}

impl Args {
    /// `names` take a value, `switches` do not; `help` is the text for `--help` and for mistakes.
    pub fn parse(words: &[String], names: &[&str], switches: &[&str], help: &str) -> Result<Args, String> {
        let mut values = HashMap::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").unwrap_or_default();
            if switches.contains(&name) {
                values.insert(name.to_string(), String::new());
            } else if names.contains(&name) {
                let value = words.next().ok_or(format!("{word} needs a value"))?;
                values.insert(name.to_string(), value.clone());
            } else if name == "help" {
                return Err(help.to_string());
            } else {
                return Err(format!("unknown argument {word}\n\n{help}"));
            }
        }
        Ok(Args { values })
    }

    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        match self.values.get(name) {
            Some(text) => text.parse().map_err(|_| format!("--{name} {text}: not a value that fits")),
            None => Ok(default),
        }
    }

    /// A comma-separated list, empty if the flag is absent.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.text(name).map(|text| text.split(',').map(str::to_string).collect()).unwrap_or_default()
    }
}
