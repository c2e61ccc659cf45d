//! Lines of words with colours, cut at the screen's edge.

use std::fmt::Write;

/// How words stand out, where colours are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Paint {
    Plain,
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

impl Paint {
    /// Select Graphic Rendition, ECMA-48 8.3.117.
    fn code(self) -> &'static str {
        match self {
            Paint::Plain => "",
            Paint::Strong => "\x1b[1m",
            Paint::Faint => "\x1b[2m",
            Paint::Good => "\x1b[32m",
            Paint::Warning => "\x1b[33m",
            Paint::Bad => "\x1b[31m",
        }
    }

    /// This paint if `so`, else plain.
    pub(super) fn when(self, so: bool) -> Paint {
        if so { self } else { Paint::Plain }
    }
}

/// One line.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(Paint, String)>);

impl Line {
    pub(super) fn of(paint: Paint, words: impl Into<String>) -> Line {
        Line(vec![(paint, words.into())])
    }

    pub(super) fn push(&mut self, paint: Paint, words: impl Into<String>) {
        self.0.push((paint, words.into()));
    }

    /// Characters so far.
    pub(super) fn length(&self) -> usize {
        self.0.iter().map(|(_, words)| words.chars().count()).sum()
    }

    /// Appends it without its end, `width` characters of it at most.
    pub(super) fn write(&self, out: &mut String, width: usize, colours: bool) {
        let mut left = width;
        for (paint, words) in &self.0 {
            let words: String = words.chars().take(left).collect();
            left -= words.chars().count();
            let code = if colours { paint.code() } else { "" };
            let end = if code.is_empty() { "" } else { "\x1b[m" };
            let _ = write!(out, "{code}{words}{end}");
        }
    }
}

/// A name and its items, on as many lines as they take.
pub(super) fn flow(name: &str, items: Vec<(Paint, String)>, width: usize) -> Vec<Line> {
    const INDENT: usize = 10;
    const GAP: &str = "   ";
    let mut lines = Vec::new();
    let mut line = Line::of(Paint::Faint, format!("{name:<INDENT$}"));
    for (paint, words) in items {
        if line.length() > INDENT {
            if line.length() + GAP.len() + words.chars().count() > width {
                lines.push(std::mem::replace(&mut line, Line::of(Paint::Plain, " ".repeat(INDENT))));
            } else {
                line.push(Paint::Plain, GAP);
            }
        }
        line.push(paint, words);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_painted() {
        let mut line = Line::of(Paint::Bad, "dåwn");
        line.push(Paint::Plain, " behind");
        let written = |width, colours| {
            let mut out = String::new();
            line.write(&mut out, width, colours);
            out
        };
        assert_eq!((written(6, false).as_str(), written(2, true).as_str()), ("dåwn b", "\x1b[31mdå\x1b[m"));
        assert_eq!((written(0, false).as_str(), line.length()), ("", 11));
    }

    #[test]
    fn items_flow() {
        let items = ["one", "two", "a word that is longer than the line"].map(|word| (Paint::Plain, word.to_owned()));
        let lines = flow("name", items.into(), 20);
        let mut out = String::new();
        for line in &lines {
            line.write(&mut out, usize::MAX, false);
            out.push('\n');
        }
        assert_eq!(out, "name      one   two\n          a word that is longer than the line\n");
    }
}
