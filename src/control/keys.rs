//! The API keys with which engines are asked, each in a file that `api_key_file` names: how one is read, which engine
//! gets which, and which files a change made by hand may name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StartError;
use super::edit::{Edit, Refused};
use super::member::Member;
use crate::config::{Config, Upstream};

/// The keys of all engines, in the order of the configuration; `None`: that engine is asked without one.
pub type Keys = Vec<Option<Arc<str>>>;

/// The key in an engine's `api_key_file`.
///
/// # Errors
/// A file that cannot be read, or holds something else.
pub fn of(upstream: &Upstream) -> Result<Option<Arc<str>>, StartError> {
    let file = &upstream.api_key_file;
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| StartError::Key { engine: upstream.label(), file: file.clone(), why };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("the file must hold the key alone, in visible ASCII".into()));
    }
    Ok(Some(key.into()))
}

/// The keys of all engines, read from their files.
///
/// # Errors
/// The first that cannot be used.
pub(super) fn of_all(config: &Config) -> Result<Keys, StartError> {
    config.upstream.iter().map(of).collect()
}

/// The key of the engine that a change adds, in a file that may be named in it. `upstreams` are those of the
/// configuration as it was read.
///
/// # Errors
/// When it names another file, or the key cannot be used.
pub(super) fn of_added(edit: &Edit, upstreams: &[Upstream]) -> Result<Option<Arc<str>>, Refused> {
    let Edit::Add(added) = edit else { return Ok(None) };
    if !may_name(added, upstreams) {
        return Err(Refused::Wrong(format!(
            "`api_key_file` = \"{}\" is not beside a key that the configuration names: name this engine there, and have it read anew",
            added.api_key_file.display()
        )));
    }
    of(added).map_err(|error| Refused::Wrong(error.to_string()))
}

/// Whether an engine that is added by hand names no key file but one that the configuration names, or one in the same
/// folder. The file's content is sent to whatever address the change names, and a peer of the admin listener must not
/// read files with this process's rights.
fn may_name(added: &Upstream, upstreams: &[Upstream]) -> bool {
    let file = &added.api_key_file;
    let folder = |file: &Path| -> Option<PathBuf> { Some(file.canonicalize().ok()?.parent()?.to_owned()) };
    let known = |upstream: &Upstream| {
        let theirs = &upstream.api_key_file;
        theirs == file || folder(theirs).is_some_and(|theirs| folder(file) == Some(theirs))
    };
    file.as_os_str().is_empty() || upstreams.iter().any(known)
}

/// The keys of a configuration without reading files: engines that stay keep the known ones, and a new one has `added`.
pub(super) fn known(config: &Config, members: &[Member], added: Option<&Arc<str>>) -> Keys {
    let members = of_members(members);
    let key_of = |upstream: &Upstream| among(&members, upstream).unwrap_or_else(|| added.cloned());
    config.upstream.iter().map(key_of).collect()
}

/// The keys of a configuration that was `read`, with `keys`, and `edited` since: an engine that was added by hand keeps
/// the known one.
pub(super) fn edited(edited: &Config, read: &Config, keys: &[Option<Arc<str>>], members: &[Member]) -> Keys {
    let read: Known<'_> = read.upstream.iter().zip(keys).collect();
    let members = of_members(members);
    let key_of = |upstream: &Upstream| among(&read, upstream).or_else(|| among(&members, upstream));
    edited.upstream.iter().map(|upstream| key_of(upstream).flatten()).collect()
}

/// Engines, each with its key.
type Known<'k> = Vec<(&'k Upstream, &'k Option<Arc<str>>)>;

fn of_members(members: &[Member]) -> Known<'_> {
    members.iter().map(|member| (&member.upstream, &member.key)).collect()
}

/// An engine's key, if the engine is among the known ones and its key is in the same file.
fn among(known: &Known<'_>, upstream: &Upstream) -> Option<Option<Arc<str>>> {
    known.iter().find(|(known, _)| upstream.has_key_of(known)).map(|(_, key)| (*key).clone())
}
