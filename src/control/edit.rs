//! Changes of the list of engines while requests run, made on the admin listener. They last until the configuration is
//! read anew; what is to stay belongs in the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::key;
use crate::config::Upstream;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// One more engine.
    Add(Upstream),
    /// The engine of this name finishes what it has and gets nothing new; or takes requests again.
    Drain(String, bool),
    /// The engine of this name finishes what it has and is forgotten.
    Remove(String),
}

/// Why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such engine.
    #[error("no engine is called \"{name}\"; there are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The configuration would be wrong.
    #[error("{0}")]
    Wrong(String),
}

impl Edit {
    /// The key of the engine that it adds, in a file that may be named in it.
    ///
    /// # Errors
    /// When it names another file, or the key cannot be used.
    pub fn key(&self, upstreams: &[Upstream]) -> Result<Option<Arc<str>>, Refused> {
        self.names_known_keys(upstreams)?;
        match self {
            Edit::Add(added) => key(added).map_err(|error| Refused::Wrong(error.to_string())),
            Edit::Drain(..) | Edit::Remove(_) => Ok(None),
        }
    }

    /// Whether it names no key but one of the engines that the configuration names, or one beside it: what is in that
    /// file goes to whatever address the change names, and whoever reaches the admin listener is not to read files by
    /// this process's rights.
    fn names_known_keys(&self, upstreams: &[Upstream]) -> Result<(), Refused> {
        let Edit::Add(added) = self else { return Ok(()) };
        let file = &added.api_key_file;
        let folder = |file: &Path| -> Option<PathBuf> { Some(file.canonicalize().ok()?.parent()?.to_owned()) };
        let known = |upstream: &Upstream| {
            let theirs = &upstream.api_key_file;
            theirs == file || folder(theirs).is_some_and(|theirs| folder(file) == Some(theirs))
        };
        if file.as_os_str().is_empty() || upstreams.iter().any(known) {
            return Ok(());
        }
        Err(Refused::Wrong(format!(
            "`api_key_file` = \"{}\" is not beside a key that the configuration names: name this engine there, and have it read anew",
            file.display()
        )))
    }

    /// Makes the change.
    ///
    /// # Errors
    /// When it is about an engine that is not there.
    pub fn apply(&self, upstreams: &mut Vec<Upstream>) -> Result<(), Refused> {
        match self {
            Edit::Add(upstream) => upstreams.push(upstream.clone()),
            Edit::Drain(name, drain) => {
                let at = find(name, upstreams)?;
                upstreams[at].drain = *drain;
            }
            Edit::Remove(name) => {
                let at = find(name, upstreams)?;
                if upstreams.len() == 1 {
                    return Err(Refused::Wrong(format!(
                        "\"{name}\" is the only engine: add another one before it is removed, or drain it"
                    )));
                }
                upstreams.remove(at);
            }
        }
        Ok(())
    }
}

fn find(name: &str, upstreams: &[Upstream]) -> Result<usize, Refused> {
    upstreams.iter().position(|upstream| upstream.label() == name).ok_or_else(|| {
        let known: Vec<String> = upstreams.iter().map(|upstream| format!("\"{}\"", upstream.label())).collect();
        Refused::Unknown { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Makes in `upstreams` the changes that led from one list of engines to another.
pub fn redo(before: &[Upstream], after: &[Upstream], upstreams: &mut Vec<Upstream>) {
    let named = |name: &str, list: &[Upstream]| list.iter().position(|upstream| upstream.label() == name);
    let is_removed = |name: &str| named(name, before).is_some() && named(name, after).is_none();
    upstreams.retain(|upstream| !is_removed(&upstream.label()));
    for upstream in after {
        let name = upstream.label();
        match (named(&name, before), named(&name, upstreams)) {
            (None, None) => upstreams.push(upstream.clone()),
            (Some(was), Some(is)) if before[was].drain != upstream.drain => upstreams[is].drain = upstream.drain,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_changed_again() {
        let list = |ports: &[u16]| -> Vec<Upstream> {
            ports.iter().map(|port| Upstream::new(format!("http://engine:{port}").parse().unwrap())).collect()
        };
        let mut after = list(&[2, 3, 5]);
        after[0].drain = true;
        let mut upstreams = list(&[1, 2, 4]);
        upstreams[1].weight = 2;
        redo(&list(&[1, 2, 3]), &after, &mut upstreams);
        let mut expected = list(&[2, 4, 5]);
        (expected[0].drain, expected[0].weight) = (true, 2);
        assert_eq!(upstreams, expected);
        // What the file says stays so where nobody has changed it.
        redo(&after, &after, &mut upstreams);
        assert_eq!(upstreams, expected);
        redo(&after, &list(&[2, 3, 5]), &mut upstreams);
        assert!(!upstreams[0].drain);
    }
}
