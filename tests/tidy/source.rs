//! Reads Rust well enough to hold it to rules: what is code and what is not, the paths it names, how
//! long its functions are.

use std::ops::Range;
use std::path::Path;

/// One file of the tree.
pub struct Source {
    /// Relative to the root of the tree.
    pub path: String,
    pub text: String,
    /// As long as `text`, line for line; comments and what stands in quotes are blank.
    pub code: String,
    /// `code` with what is built for tests alone blank as well.
    pub product: String,
    /// Lines, without those built for tests alone.
    pub length: usize,
}

/// A word, `::` or one sign, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub line: usize,
    pub text: &'a str,
}

impl Source {
    pub fn read(root: &Path, path: String) -> Source {
        let text = std::fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Source::of(path, text)
    }

    pub fn of(path: String, text: String) -> Source {
        let code = code(&text);
        let whole = path.ends_with("/tests.rs") || path.contains("/tests/");
        let tests = if whole { std::iter::once(0..code.len()).collect() } else { test_items(&code) };
        let length = text.lines().count() - tests.iter().map(|item| code[item.clone()].lines().count()).sum::<usize>();
        let product = blank(&code, &tests);
        Source { path, text, code, product, length }
    }

    /// The room of a file under `src`: its first directory, or its own name.
    pub fn room(&self) -> &str {
        let below = self.path.trim_start_matches("src/");
        below.split(['/', '.']).next().unwrap_or(below)
    }

    /// Every path of two or more words that the product names, in use trees and in place, with its line.
    pub fn paths(&self) -> Vec<(usize, Vec<&str>)> {
        let tokens = tokens(&self.product);
        let (mut paths, mut at) = (Vec::new(), 0);
        while at < tokens.len() {
            at = if is_word(tokens[at].text) { path(&tokens, at, &[], &mut paths) } else { at + 1 };
        }
        paths.retain(|(_, path)| path.len() > 1);
        paths
    }

    /// Line, name and length of every function with a body.
    pub fn functions(&self) -> Vec<(usize, &str, usize)> {
        let tokens = tokens(&self.product);
        let mut functions = Vec::new();
        for (at, pair) in tokens.windows(2).enumerate() {
            let [function, name] = pair else { continue };
            if function.text != "fn" || !is_word(name.text) {
                continue;
            }
            if let Some(end) = item_end(&tokens, at).filter(|&end| tokens[end].text == "}") {
                functions.push((function.line, name.text, tokens[end].line - function.line + 1));
            }
        }
        functions
    }
}

pub fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words and signs of code.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut line, mut rest) = (Vec::new(), 1, code);
    while let Some(first) = rest.chars().next() {
        let in_word = |sign: char| sign.is_alphanumeric() || sign == '_';
        let length = match first {
            _ if in_word(first) => rest.find(|sign| !in_word(sign)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        let (text, after) = rest.split_at(length);
        if first == '\n' {
            line += 1;
        } else if !first.is_whitespace() {
            tokens.push(Token { line, text });
        }
        rest = after;
    }
    tokens
}

/// Reads the path or use tree that begins at `at`; answers where it ends.
fn path<'a>(tokens: &[Token<'a>], mut at: usize, before: &[&'a str], paths: &mut Vec<(usize, Vec<&'a str>)>) -> usize {
    let (line, mut path_so_far) = (tokens[at].line, before.to_vec());
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    loop {
        match text(at) {
            "{" => {
                at += 1;
                while !matches!(text(at), "}" | "") {
                    // `as NAME` and commas lie between the branches.
                    at = match text(at) {
                        "as" => at + 2,
                        word if is_word(word) => path(tokens, at, &path_so_far, paths),
                        _ => at + 1,
                    };
                }
                return at + 1;
            }
            word if is_word(word) => path_so_far.push(word),
            // `*`, or the generic arguments of a type: what lies before it was named.
            _ => break,
        }
        at += 1;
        if text(at) != "::" {
            break;
        }
        at += 1;
    }
    if path_so_far.len() > 1 && path_so_far.last() == Some(&"self") {
        path_so_far.pop();
    }
    paths.push((line, path_so_far));
    at
}

/// The token that ends the item at `at`: its `;`, or the brace that closes it.
fn item_end(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth -= 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return Some(place);
                }
            }
            ";" if depth == 0 => return Some(place),
            _ => {}
        }
    }
    None
}

/// The items under `#[cfg(test)]`, from the attribute to the end.
fn test_items(code: &str) -> Vec<Range<usize>> {
    const MARK: &str = "#[cfg(test)]";
    let mut items: Vec<Range<usize>> = Vec::new();
    for (start, _) in code.match_indices(MARK) {
        if items.last().is_some_and(|item| item.contains(&start)) {
            continue;
        }
        let tail = &code[start + MARK.len()..];
        let tokens = tokens(tail);
        let end = item_end(&tokens, 0).map_or(tail.len(), |end| {
            let text = tokens[end].text;
            text.as_ptr() as usize - tail.as_ptr() as usize + text.len()
        });
        items.push(start..start + MARK.len() + end);
    }
    items
}

fn blank(code: &str, ranges: &[Range<usize>]) -> String {
    let hidden = |at: usize| ranges.iter().any(|range| range.contains(&at));
    code.bytes().enumerate().map(|(at, byte)| if byte != b'\n' && hidden(at) { ' ' } else { byte as char }).collect()
}

/// `text` with comments and everything in quotes blank. Bytes that are not ASCII become blank too: no rule
/// asks for them.
fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (String::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let end = at + opaque(&text[at..], text[..at].chars().next_back());
        if end == at {
            let sign = text[at..].chars().next().filter(char::is_ascii);
            out.push(sign.unwrap_or(' '));
            at += 1;
            while !text.is_char_boundary(at) {
                out.push(' ');
                at += 1;
            }
        } else {
            out.extend(bytes[at..end].iter().map(|&byte| if byte == b'\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// How many bytes the comment or literal takes that `rest` begins with; 0: it begins with none.
fn opaque(rest: &str, before: Option<char>) -> usize {
    let bytes = rest.as_bytes();
    match bytes {
        [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => comment(rest),
        [b'"', ..] => quoted(rest, 1, b'"'),
        [b'r', ..] if !before.is_some_and(|sign| sign.is_alphanumeric() && !"bc".contains(sign) || sign == '_') => {
            let signs = bytes[1..].iter().take_while(|&&byte| byte == b'#').count();
            let end = format!("\"{}", "#".repeat(signs));
            if bytes.get(1 + signs) != Some(&b'"') {
                return 0;
            }
            let from = signs + 2;
            rest[from..].find(&end).map_or(rest.len(), |at| from + at + end.len())
        }
        [b'\'', b'\\', ..] => quoted(rest, 1, b'\''),
        [b'\'', ..] => {
            // A quote two signs on: a character. None: a lifetime.
            let mut signs = rest.char_indices().skip(2);
            signs.next().filter(|&(_, sign)| sign == '\'').map_or(0, |(at, _)| at + 1)
        }
        _ => 0,
    }
}

fn quoted(rest: &str, mut at: usize, end: u8) -> usize {
    let bytes = rest.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        at += if byte == b'\\' { 2 } else { 1 };
        if byte == end {
            break;
        }
    }
    at.min(bytes.len())
}

/// Comments nest.
fn comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}
