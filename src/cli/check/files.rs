//! Files that the front will open: engines' API keys, the access log, and `caches_file`. They are tried without
//! creating any.

use std::env;
use std::fmt::Display;
use std::io;
use std::path::Path;

use super::Finding;
use crate::config::{Access, Config};
use crate::control::{keys, saved, writable};

/// Folders that systemd makes for the unit, shows to it alone, and names to it in these variables.
const OF_THE_UNIT: [(&str, &str); 2] =
    [("/var/log/warmfront", "LOGS_DIRECTORY"), ("/var/lib/warmfront", "STATE_DIRECTORY")];
/// Where systemd keeps credentials for the unit. Mostly only the unit's main process sees them, not what the unit runs
/// before a reload (systemd#35227), whatever the variables say.
pub(in crate::cli) const CREDENTIALS: &str = "/run/credentials";
/// This folder exists if systemd runs (sd_booted(3)). In a container without it no unit has any of the other folders.
const SYSTEMD: &str = "/run/systemd/system";
/// The variable that names the unit's own folder of credentials.
const FOLDER: &str = "CREDENTIALS_DIRECTORY";

/// Findings on files that cannot be opened.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let (mut found, booted) = (Vec::new(), Path::new(SYSTEMD).is_dir());
    for upstream in &config.upstream {
        if let Err(why) = keys::of(upstream) {
            found.push(unless_of_the_unit(
                &upstream.api_key_file,
                Finding::wrong(upstream.label(), why.to_string()),
                booted,
            ));
        }
    }
    if let Access::File(path) = &config.log.access
        && let Err(error) = writable(path)
    {
        let words = format!("{}; `access` in [log] names the file", unwritten(path, &error));
        found.push(unless_of_the_unit(path, Finding::wrong("access log", words), booted));
    }
    let path = &config.control.caches_file;
    if path.as_os_str().is_empty() {
        found.extend(forgetting(config));
    } else if let Err(error) = saved::writable(path) {
        // The front runs without it.
        let words = format!(
            "{}: a restart begins with cold caches; `caches_file` in [control] names the file",
            unwritten(path, &error)
        );
        found.push(unless_of_the_unit(path, Finding::advice("caches file", words), booted));
    }
    found
}

/// Advice for a front that chooses by caches and keeps what it knows of them nowhere.
fn forgetting(config: &Config) -> Option<Finding> {
    let knows = config.counts_tokens() && config.limits.index_bytes > 0 && !config.upstream.is_empty();
    let words = "none: after a restart or an upgrade most conversations' next turns are computed anew;\n\
                 `caches_file` in [control], such as \"/var/lib/warmfront/caches\", keeps what is known of caches";
    knows.then(|| Finding::advice("caches file", words))
}

fn unwritten(path: &Path, error: &io::Error) -> impl Display {
    format!("cannot write {}: {error}", path.display())
}

/// Whether the unit's folder of credentials is visible here, so that a file missing in it is missing for the front,
/// too.
fn is_shown(path: &Path, folder: Option<&Path>) -> bool {
    folder.is_some_and(|folder| path.starts_with(folder) && folder.read_dir().is_ok())
}

/// Makes a fault none if only the unit can open the file and `check` was run by hand. `booted`: systemd runs here.
fn unless_of_the_unit(path: &Path, finding: Finding, booted: bool) -> Finding {
    let by_hand = |(folder, variable): &(&str, &str)| path.starts_with(folder) && env::var_os(variable).is_none();
    let kept = path.starts_with(CREDENTIALS) && !is_shown(path, env::var_os(FOLDER).as_deref().map(Path::new));
    if !booted || !kept && !OF_THE_UNIT.iter().any(by_hand) {
        return finding;
    }
    let words = format!(
        "{} cannot be tried from here: systemd shows its folder to the unit alone; start and reload try it",
        path.display()
    );
    Finding::good(finding.subject, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::Weight;
    use crate::config::Upstream;
    use crate::policy::Policy;

    #[test]
    fn what_cannot_be_opened_is_said_and_nothing_is_made() {
        let folder = env::temp_dir().join(format!("warmfront-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut config = Config::default();
        config.upstream.push(Upstream::new("http://gpu-1:8000".parse().unwrap()));
        let mut found = |key: &str, access: &str, caches: &str| {
            let at = |name: &str| if name.is_empty() { Default::default() } else { folder.join(name) };
            config.upstream[0].api_key_file = at(key);
            config.log.access = if access.is_empty() { Access::Off } else { Access::File(at(access)) };
            config.control.caches_file = at(caches);
            findings(&config).into_iter().map(|finding| (finding.weight, finding.words)).collect::<Vec<_>>()
        };
        assert_eq!(found("", "", "caches"), []);
        std::fs::write(folder.join("key"), "secret\n").unwrap();
        assert_eq!(found("key", "access.log", "caches"), []);
        let all = found("none", "none/access.log", "none/caches");
        let weights: Vec<Weight> = all.iter().map(|(weight, _)| *weight).collect();
        assert_eq!(weights, [Weight::Wrong, Weight::Wrong, Weight::Advice], "{all:?}");
        assert!(
            all[0].1.contains("cannot use the key of gpu-1:8000") && all[1].1.contains("`access` in [log]"),
            "{all:?}"
        );
        std::fs::create_dir(folder.join("folder")).unwrap();
        assert_eq!(found("", "folder", "folder").len(), 2);
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["folder", "key"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_front_that_chooses_by_caches_and_keeps_nothing_of_them_is_advised() {
        let front =
            || Config { upstream: vec![Upstream::new("http://gpu-1:8000".parse().unwrap())], ..Config::default() };
        let said = findings(&front());
        assert!(said.len() == 1 && said[0].weight == Weight::Advice, "{said:?}");
        assert!(
            said[0].words.contains("`caches_file` in [control], such as \"/var/lib/warmfront/caches\""),
            "{said:?}"
        );
        let (mut by_load, mut without_index) = (front(), front());
        by_load.routing.policy = Policy::LeastLoad;
        without_index.limits.index_bytes = 0;
        for nothing_to_keep in [by_load, without_index, Config::default()] {
            assert_eq!(findings(&nothing_to_keep), []);
        }
    }

    #[test]
    fn what_is_the_units_is_not_held_against_who_looks_by_hand() {
        let path = Path::new("/run/credentials/warmfront.service/none");
        let weight = |path: &Path, booted| unless_of_the_unit(path, Finding::wrong("x", "y"), booted).weight;
        assert_eq!(weight(path, true), Weight::Good);
        assert_eq!(weight(Path::new("/srv/none"), true), Weight::Wrong);
        // In a container there is no unit that sees more.
        for path in [path, Path::new("/var/lib/warmfront/caches"), Path::new("/var/log/warmfront/access.log")] {
            assert_eq!(weight(path, false), Weight::Wrong, "{}", path.display());
        }
    }

    #[test]
    fn a_key_is_missing_where_the_folder_of_the_units_keys_is_shown() {
        let folder = env::temp_dir();
        let at = |folder: &Path| is_shown(&folder.join("none"), Some(folder));
        assert!(at(&folder) && !at(&folder.join("warmfront-no-such-folder")));
        assert!(!is_shown(&folder.join("none"), None) && !is_shown(Path::new("/srv/none"), Some(&folder)));
    }
}
