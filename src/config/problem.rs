//! What is wrong with a configuration, in words, with the line it stands on.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::Utf8Error;

use super::shape;

/// Most characters of a line that are shown.
const EXCERPT_SIGNS: usize = 160;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, from the outermost table; an upstream's place counts from 0.
    pub path: Vec<String>,
    /// What is wrong and what to write instead.
    pub message: String,
    /// Its place in the file in bytes, if it has one there.
    pub span: Option<Range<usize>>,
}

impl Problem {
    /// A fault of the value at `path`.
    pub fn new<const N: usize>(path: [&str; N], message: impl Into<String>) -> Problem {
        Problem { path: path.iter().map(|part| part.to_string()).collect(), message: message.into(), span: None }
    }

    /// A fault found by the TOML library: its message, made plainer if it lists choices.
    pub(super) fn from_toml(error: &toml::de::Error) -> Problem {
        Problem { path: Vec::new(), message: plainer(error.message()), span: error.span() }
    }
}

/// Everything that is wrong with one configuration.
#[derive(Clone, Debug)]
pub struct Invalid {
    source: Option<(PathBuf, String)>,
    /// Whether faults without a place in the file are told as the file's.
    is_files: bool,
    problems: Vec<Problem>,
}

impl Invalid {
    pub(super) fn in_file(path: &Path, text: &str, problems: Vec<Problem>) -> Invalid {
        Invalid { source: Some((path.to_owned(), text.to_owned())), is_files: true, problems }
    }

    /// Faults of file and flags together; those with a place are the file's.
    pub(super) fn beside_file((path, text): (PathBuf, String), problems: Vec<Problem>) -> Invalid {
        Invalid { source: Some((path, text)), is_files: false, problems }
    }

    /// Faults of the flags, or of values that stand in no file.
    pub(super) fn outside_file(problems: Vec<Problem>) -> Invalid {
        Invalid { source: None, is_files: false, problems }
    }

    pub(super) fn unreadable(path: &Path, error: &std::io::Error) -> Invalid {
        let message = format!("cannot read {}: {error}", path.display());
        Invalid::outside_file(vec![Problem::new([], message)])
    }

    /// A file that is not UTF-8.
    pub(super) fn no_text(path: &Path, bytes: &[u8], error: Utf8Error) -> Invalid {
        let at = error.valid_up_to();
        let byte = bytes.get(at).copied().unwrap_or_default();
        let message = format!("byte 0x{byte:02X} is no UTF-8; save the file as UTF-8");
        let text = String::from_utf8_lossy(bytes);
        // The place of the replacement character that stands for the byte in the text.
        let span = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
        Invalid::in_file(path, &text, vec![Problem { path: Vec::new(), message, span: Some(span) }])
    }

    /// The faults.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Whether there is nothing wrong but that no engine is named.
    pub fn wants_engines_alone(&self) -> bool {
        self.problems.iter().all(|problem| problem.path == ["upstream"])
    }
}

impl std::error::Error for Invalid {}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            match (&self.source, &problem.span) {
                (Some((path, text)), Some(span)) => excerpt(out, path, text, span, &problem.message)?,
                (Some((path, _)), None) if self.is_files => write!(out, "{}: {}", path.display(), problem.message)?,
                _ => out.write_str(&problem.message)?,
            }
        }
        Ok(())
    }
}

/// Writes `file:line:column: message`, the line, and carets under the fault.
fn excerpt(out: &mut fmt::Formatter<'_>, path: &Path, text: &str, span: &Range<usize>, message: &str) -> fmt::Result {
    let before = text.get(..span.start).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or("");
    let column = before.rsplit('\n').next().unwrap_or("").chars().count();
    let marked = text.get(span.clone()).unwrap_or("").lines().next().unwrap_or("").chars().count().max(1);
    let margin = " ".repeat(number.to_string().len());
    write!(out, "{}:{number}:{}: {message}", path.display(), column + 1)?;
    if names_tenants(before, line) || names_secret(before, line) || names_user(line) {
        return Ok(());
    }
    write!(out, "\n{margin} |\n")?;
    // Of a longer line only the part around the fault is shown.
    let skipped = column.saturating_sub(EXCERPT_SIGNS / 2);
    let shown: String = line.chars().skip(skipped).take(EXCERPT_SIGNS).collect();
    let before = if skipped > 0 { "..." } else { "" };
    let behind = if line.chars().nth(skipped + EXCERPT_SIGNS).is_some() { "..." } else { "" };
    let (indent, room) = (before.len() + column - skipped, EXCERPT_SIGNS.saturating_sub(column - skipped).max(1));
    writeln!(out, "{number} | {before}{shown}{behind}")?;
    write!(out, "{margin} | {}{}", " ".repeat(indent), "^".repeat(marked.min(room)))
}

/// Whether a line may hold the name of a tenant, which may be its key: such lines are shown in no log and in no answer
/// to a reload.
fn names_tenants(before: &str, line: &str) -> bool {
    let key = |line: &str| line.trim_start().trim_start_matches(['[', ' ', '\t', '"', '\'']).to_owned();
    // `queue = "on"` is a key of [routing].
    let is_choice =
        |behind: &str| behind.trim_start_matches(['"', '\'', ' ', '\t']).starts_with('=') && !behind.contains('{');
    let of_queue = |line: &str| match key(line).strip_prefix("queue") {
        Some(behind) => line.trim_start().starts_with('[') || !is_choice(behind),
        None => key(line).starts_with("weights"),
    };
    let table = before.lines().rev().find(|line| line.trim_start().starts_with('[') || of_queue(line));
    // Whatever key the line has: it may be a misspelt `weights`.
    of_queue(table.unwrap_or_default()) || of_queue(line)
}

/// Whether a line may hold an engine's API key itself, under a name that is no key of the configuration, instead of the
/// name of a file with it.
fn names_secret(before: &str, line: &str) -> bool {
    let in_name = |sign: char| sign.is_alphanumeric() || "_-".contains(sign);
    let gives_away = |name: &str| is_secret(name) && !shape::is_key(name);
    // Where `=` is missing, or is `:` as in YAML, the name is the line's first word.
    if line.split(|sign| !in_name(sign)).find(|word| !word.is_empty()).is_some_and(gives_away) {
        return true;
    }
    // A value may go on over several lines; its name is on the first.
    let begins = |line: &&str| line.contains('=') || line.trim_start().starts_with('[');
    let line = std::iter::once(line).chain(before.lines().rev()).find(begins).unwrap_or_default();
    let ends = line.match_indices('=').map(|(end, _)| line.get(..end).unwrap_or_default());
    let names =
        ends.filter_map(|begin| begin.trim_end_matches(['"', '\'', ' ', '\t']).rsplit(|sign| !in_name(sign)).next());
    names.into_iter().any(gives_away)
}

/// Whether a value with this name is probably secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["key", "token", "secret", "password", "auth", "bearer", "credential"].iter().any(|word| name.contains(word))
}

/// Whether a line holds a URL with what may be a password in it.
fn names_user(line: &str) -> bool {
    line.split_once("://").is_some_and(|(_, behind)| behind.contains('@'))
}

/// The word of `known` that `given` was probably meant to be.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_ascii_lowercase().replace('_', "-");
    known
        .into_iter()
        .map(|word| (distance(&given, &word.replace('_', "-")), word))
        .filter(|(edits, word)| *edits <= 1 + word.len().min(given.len()) / 4)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, word)| word)
}

/// Levenshtein's distance, in bytes.
fn distance(left: &str, right: &str) -> usize {
    let right = right.as_bytes();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in right.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

/// Rewrites serde's "unknown variant `x`, expected one of `a`, `b`", with the one that was probably meant.
pub(super) fn plainer(message: &str) -> String {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match words.as_slice() {
        [given, known @ ..] if message.starts_with("unknown variant") => {
            let list = known.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
            let meant = nearest(given, known.iter().copied());
            let meant = meant.map(|word| format!("; did you mean \"{word}\"?")).unwrap_or_default();
            format!("\"{given}\" is not a choice here; the choices are {list}{meant}")
        }
        _ => message.trim_end().replace('\n', "; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let keys = ["hold_bytes", "body_bytes_max", "head_bytes_max"];
        assert_eq!(nearest("hold_byte", keys), Some("hold_bytes"));
        assert_eq!(nearest("Hold-Bytes", keys), Some("hold_bytes"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn choices_are_listed_with_the_one_meant() {
        let text = plainer("unknown variant `prefix_hash`, expected one of `random`, `prefix-hash`");
        assert!(text.ends_with("did you mean \"prefix-hash\"?"), "{text}");
    }
}
