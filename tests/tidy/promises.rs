//! What is promised in words names the test that holds it; a test that was renamed or lost must not be promised on.

use std::fs;
use std::path::Path;

use crate::source::Source;

/// Texts with tables of promises, and from which heading on. Their last column names tests.
const TEXTS: &[(&str, &str)] = &[("tests/incidents.md", "# What broke"), ("tests/threats.md", "# Threat model")];

/// Tests that are promised and are nowhere.
pub fn broken(root: &Path, sources: &[&Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, heading) in TEXTS {
        let text = fs::read_to_string(root.join(path)).unwrap_or_default();
        let mut inside = false;
        for (line, words) in text.lines().enumerate() {
            if words.starts_with('#') {
                inside = words.starts_with(heading);
            }
            let Some(last) =
                words.trim_end_matches('|').rsplit('|').next().filter(|_| inside && words.starts_with('|'))
            else {
                continue;
            };
            let missing = names(last).filter(|name| !sources.iter().any(|source| defines(source, name)));
            faults.extend(
                missing.map(|name| format!("{path}:{}: no test `{name}`: name the one that holds this", line + 1)),
            );
        }
        if !text.contains(heading) {
            faults.push(format!("{path}:1: no heading \"{heading}\""));
        }
    }
    faults
}

fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit()))
}

fn defines(source: &Source, name: &str) -> bool {
    // Those of the drivers have a parameter.
    ["(", "<"].iter().any(|opening| source.code.contains(&format!("fn {name}{opening}")))
}
