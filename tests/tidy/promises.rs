//! What is promised in words names the test that holds it; a test that was renamed or lost must not be promised on.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::source::{Source, is_word, tokens};

/// Texts with tables of promises, and from which heading on. Their last column names tests.
const TEXTS: &[(&str, &str)] = &[("tests/incidents.md", "# What broke"), ("tests/threats.md", "# Threat model")];

/// Tests that are promised and are nowhere, or may be either of two.
pub fn broken(root: &Path, sources: &[&Source]) -> Vec<String> {
    let mut known = HashMap::<_, Vec<_>>::new();
    for source in sources {
        tests(source).into_iter().for_each(|name| known.entry(name).or_default().push(&*source.path));
    }
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
            faults.extend(names(last).filter_map(|name| {
                let fault = match known.get(name).map(Vec::as_slice) {
                    Some([_]) => return None,
                    Some(places) => format!("tests `{name}` in {}: name them apart", places.join(", ")),
                    None => format!("no test `{name}`: name the one that holds this"),
                };
                Some(format!("{path}:{}: {fault}", line + 1))
            }));
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

/// The tests of a file: functions under `#[test]`, and those that a macro makes tests of, one for each driver.
fn tests(source: &Source) -> Vec<&str> {
    let (tokens, mut tests) = (tokens(&source.code), Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        let (before, behind) = (&tokens[..at], &tokens[at + 1..]);
        if token.text == "fn" {
            let from = before.iter().rposition(|token| matches!(token.text, ";" | "{" | "}")).map_or(0, |end| end + 1);
            // Or `#[tokio::test(...)]`.
            let is_test =
                before[from..].windows(2).any(|run| matches!((run[0].text, run[1].text), ("[" | "::", "test")));
            tests.extend(behind.first().filter(|name| is_test && is_word(name.text)).map(|name| name.text));
        } else if token.text.ends_with("on_both_drivers") && behind.first().is_some_and(|sign| sign.text == "!") {
            let list = behind[1..].iter().skip(1).map(|token| token.text);
            tests.extend(list.take_while(|word| *word == "," || is_word(word)).filter(|word| *word != ","));
        }
    }
    tests
}

#[test]
fn tests_are_told_from_other_functions() {
    let text = "#[test]\n#[allow(dead_code)]\npub fn one() {}\n#[cfg(test)]\nfn two() {}\n#[tokio::test(flavor = \"x\")]\nasync fn three() {}\n\
                on_both_drivers!(four, five,);\nalone_on_both_drivers! {\n    six\n    seven\n}\n\
                fn four<D>() {}\nmacro_rules! on_both_drivers { ($($name:ident)*) => {} }\n";
    let source = Source::of("tests/a.rs".into(), text.into());
    assert_eq!(tests(&source), ["one", "three", "four", "five", "six", "seven"]);
}
