//! The string literals of a template's own code. If a template looks for something in a content, it is one of them:
//! `'</think>' in content`.

/// Returns each string between quotes inside `{{ }}` and `{% %}`, once, in the order of their occurrence.
pub(super) fn literals(source: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = source;
    while let Some((_, code)) = first(rest, &["{{", "{%", "{#"]) {
        let (opener, code) = code;
        if opener == "{#" {
            rest = first(code, &["#}"]).map_or("", |(_, (_, behind))| behind);
            continue;
        }
        rest = strings(code, &mut found);
    }
    found
}

/// Whether a loop iterates over something with `content` in its name.
pub(super) fn loops_over_content(source: &str) -> bool {
    let mut rest = source;
    while let Some((_, (opener, code))) = first(rest, &["{%", "{#"]) {
        let (code, behind) = code.split_once(if opener == "{#" { "#}" } else { "%}" }).unwrap_or((code, ""));
        let mut words = code.trim_start_matches(['-', '+']).split_whitespace();
        if opener == "{%"
            && words.next() == Some("for")
            && words.skip_while(|word| *word != "in").any(|word| word.contains("content"))
        {
            return true;
        }
        rest = behind;
    }
    false
}

/// Finds the earliest of these; returns the text before it, which one it is, and the text after it.
fn first<'a, 'n>(text: &'a str, needles: &[&'n str]) -> Option<(&'a str, (&'n str, &'a str))> {
    let at = |needle: &&'n str| text.find(*needle).map(|at| (at, *needle));
    let (at, needle) = needles.iter().filter_map(at).min()?;
    let (before, behind) = text.split_at(at);
    Some((before, (needle, behind.strip_prefix(needle)?)))
}

/// Collects strings up to the end of this piece of code; returns the text after it.
fn strings<'a>(code: &'a str, found: &mut Vec<String>) -> &'a str {
    let mut letters = code.chars();
    let mut last = ' ';
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let text = string(&mut letters, letter);
                if !text.is_empty() && !found.contains(&text) {
                    found.push(text);
                }
            }
            '}' if matches!(last, '}' | '%') => break,
            _ => {}
        }
        last = letter;
    }
    letters.as_str()
}

/// Reads a string up to its closing quote, with its escapes decoded.
fn string(letters: &mut std::str::Chars<'_>, quote: char) -> String {
    let mut text = String::new();
    while let Some(letter) = letters.next().filter(|letter| *letter != quote) {
        text.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other) => other,
                None => break,
            },
            other => other,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{literals, loops_over_content};

    #[test]
    fn loops_are_known_by_what_they_go_through() {
        for source in
            ["{% for x in m.content %}", "{%- for x in m['content'] | list -%}", "{% if a %}{%+ for x\nin content%}"]
        {
            assert!(loops_over_content(source), "{source}");
        }
        for source in [
            "{% for content in parts %}",
            "{# {% for x in content %} #}",
            "for x in content",
            "{% for x in m",
            "{{ content }}",
        ] {
            assert!(!loops_over_content(source), "{source}");
        }
    }

    #[test]
    fn strings_of_code_are_found_and_text_is_not() {
        let source = "it's {{ 'a' + \"b\\n\" }} 'no' {# 'no' #}{%- if x == 'it\\'s' and y != '}}' -%}{% set z = 'a' %}\"no\"{{ '";
        assert_eq!(literals(source), ["a", "b\n", "it's", "}}"]);
        assert_eq!(literals("{{ {'k': {'l': 1}} }} 'no' {% 'm' %}"), ["k", "l", "m"]);
    }
}
