//! What differs here from `tuning/90-warmfront.conf`, which is read as it stands: its comments are the reasons.

use std::fs;
use std::path::Path;

use super::{Finding, shipped};

const FILE: &str = include_str!("../../../tuning/90-warmfront.conf");

/// One setting of the file and what stands above it.
#[derive(Debug)]
struct Setting<'a> {
    name: &'a str,
    value: &'a str,
    wanted: Option<Wanted>,
    /// The lines before the first `Word:`.
    why: String,
}

/// How the value here is compared with the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Exactly,
    AtLeast,
    AtMost,
    /// A range that has all of the file's.
    Covers,
}

impl Wanted {
    fn of(word: &str) -> Option<Wanted> {
        Some(match word.trim() {
            "exactly" => Wanted::Exactly,
            "at least" => Wanted::AtLeast,
            "at most" => Wanted::AtMost,
            "covers" => Wanted::Covers,
            _ => return None,
        })
    }

    fn met(self, now: &[u64], file: &[u64]) -> bool {
        match (self, now, file) {
            (Wanted::Exactly, now, file) => now == file,
            (Wanted::AtLeast, [now], [file]) => now >= file,
            (Wanted::AtMost, [now], [file]) => now <= file,
            (Wanted::Covers, [low, high], [file_low, file_high]) => low <= file_low && high >= file_high,
            _ => false,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Wanted::Exactly | Wanted::Covers => "",
            Wanted::AtLeast => "at least ",
            Wanted::AtMost => "at most ",
        }
    }
}

/// The settings that differ. They are advice: the front runs without them.
pub(super) fn findings(proc: &Path) -> Vec<Finding> {
    let (mut found, mut met, mut absent) = (Vec::new(), 0, Vec::new());
    for setting in settings(FILE) {
        let now = fs::read_to_string(proc.join("sys").join(setting.name.replace('.', "/")));
        match now.ok().map(|now| setting.compare(&now)) {
            Some(Some(finding)) => found.push(finding),
            Some(None) => met += 1,
            None => absent.push(setting.name),
        }
    }
    if met > 0 {
        found.insert(0, Finding::good("sysctl", format!("{met} of {} settings are as wanted", settings(FILE).len())));
    }
    if !absent.is_empty() {
        // An older kernel, a container, or a service that does not see them.
        found.push(Finding::good("sysctl", format!("cannot be read here, and left out: {}", absent.join(", "))));
    }
    found
}

impl Setting<'_> {
    /// The finding on the value here, if it is not as wanted.
    fn compare(&self, now: &str) -> Option<Finding> {
        let wanted = self.wanted.unwrap_or(Wanted::Exactly);
        if wanted.met(&numbers(now), &numbers(self.value)) {
            return None;
        }
        let now = now.split_whitespace().collect::<Vec<_>>().join(" ");
        let quote = if self.value.contains(' ') { "\"" } else { "" };
        let first_sentence = self.why.split_once(". ").map_or(self.why.as_str(), |(first, _)| first);
        Some(Finding::advice(
            "sysctl",
            format!(
                "{name} is {now}, wanted {}{value}.\n{}.\n\
                 `sysctl -w {name}={quote}{value}{quote}` until the next boot;\n{} for good",
                wanted.words(),
                wrapped(first_sentence.trim_end_matches('.')),
                shipped("tuning/90-warmfront.conf"),
                name = self.name,
                value = self.value,
            ),
        ))
    }
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Settings with their comments; a comment that an empty line cuts off belongs to none.
fn settings(file: &str) -> Vec<Setting<'_>> {
    let (mut settings, mut block) = (Vec::new(), Vec::new());
    for line in file.lines() {
        match (line.strip_prefix('#'), line.split_once('=')) {
            (Some(comment), _) => block.push(comment.trim_start()),
            (None, Some((name, value))) => settings.push(setting(name.trim(), value.trim(), &block)),
            (None, None) => block.clear(),
        }
    }
    settings
}

fn setting<'a>(name: &'a str, value: &'a str, block: &[&str]) -> Setting<'a> {
    let why: Vec<&str> = block.iter().copied().take_while(|line| !line.starts_with("Default:")).collect();
    let wanted = block.iter().find_map(|line| Wanted::of(line.strip_prefix("Wanted:")?));
    Setting { name, value, wanted, why: why.join(" ") }
}

/// Lines of a width that fits behind the subject.
fn wrapped(text: &str) -> String {
    let (mut wrapped, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        width += word.len() + 1;
        if width > 90 {
            wrapped.push('\n');
            width = word.len() + 1;
        } else if !wrapped.is_empty() {
            wrapped.push(' ');
        }
        wrapped.push_str(word);
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::Weight;

    /// A `/proc` with these settings.
    struct Proc(std::path::PathBuf);

    impl Proc {
        fn new(test: &str, settings: &[(&str, &str)]) -> Proc {
            let root = std::env::temp_dir().join(format!("warmfront-proc-{test}-{}", std::process::id()));
            for (name, value) in settings {
                let path = root.join("sys").join(name.replace('.', "/"));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{value}\n")).unwrap();
            }
            Proc(root)
        }
    }

    impl Drop for Proc {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_setting_says_why_what_it_was_what_it_costs_and_how_to_see_it() {
        assert!(settings(FILE).len() >= 4);
        for setting in settings(FILE) {
            assert!(setting.wanted.is_some() && setting.why.ends_with('.'), "{setting:?}");
            assert!(!numbers(setting.value).is_empty(), "{setting:?}");
            let block = FILE.split("\n\n").find(|block| block.contains(&format!("\n{} = ", setting.name))).unwrap();
            for word in ["\n# Default: ", "\n# Wanted: ", "\n# Costs: ", "\n# See: "] {
                assert_eq!(block.matches(word).count(), 1, "{} and {word}", setting.name);
            }
        }
    }

    #[test]
    fn what_differs_is_said_with_the_command() {
        let proc = Proc::new(
            "differs",
            &[
                ("net.core.somaxconn", "128"),
                ("net.ipv4.ip_local_port_range", "32768\t60999"),
                ("net.ipv4.tcp_slow_start_after_idle", "1"),
                ("net.ipv4.tcp_notsent_lowat", "4294967295"),
                ("net.core.netdev_max_backlog", "30000"),
            ],
        );
        let found = findings(&proc.0);
        let words: Vec<&str> = found.iter().map(|finding| finding.words.as_str()).collect();
        let advice = found.iter().filter(|finding| finding.weight == Weight::Advice).count();
        assert_eq!((found.len(), advice), (6, 4), "{words:#?}");
        assert_eq!(words[0], "1 of 6 settings are as wanted");
        assert_eq!(
            words[1],
            "net.core.somaxconn is 128, wanted at least 4096.\nConnections that may wait for a shard to accept them.\n\
             `sysctl -w net.core.somaxconn=4096` until the next boot;\n"
                .to_owned()
                + &shipped("tuning/90-warmfront.conf")
                + " for good"
        );
        assert!(
            words[2].starts_with("net.ipv4.ip_local_port_range is 32768 60999, wanted 20480 65535."),
            "{}",
            words[2]
        );
        assert!(words[2].contains("`sysctl -w net.ipv4.ip_local_port_range=\"20480 65535\"`"), "{}", words[2]);
        assert!(words[4].contains("is 4294967295, wanted at most 131072."), "{}", words[4]);
        assert_eq!(words[5], "cannot be read here, and left out: net.ipv4.tcp_migrate_req");
        assert!(words.iter().flat_map(|words| words.lines()).all(|line| line.len() <= 120));
    }

    #[test]
    fn better_values_are_as_wanted() {
        let mut better: Vec<(&str, &str)> =
            settings(FILE).iter().map(|setting| (setting.name, setting.value)).collect();
        better.retain(|(name, _)| !["net.core.somaxconn", "net.ipv4.ip_local_port_range"].contains(name));
        better.extend([("net.core.somaxconn", "65535"), ("net.ipv4.ip_local_port_range", "1024\t65535")]);
        let found = findings(&Proc::new("better", &better).0);
        assert_eq!(found, [Finding::good("sysctl", "6 of 6 settings are as wanted")]);
        assert!(!Wanted::Covers.met(&[1024, 60999], &[20480, 65535]) && !Wanted::AtLeast.met(&[], &[1]));
    }
}
