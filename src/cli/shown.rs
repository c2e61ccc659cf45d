//! Text of engines, clients and files on a terminal.

/// Most characters of a text that is shown as a name.
const SHOWN_SIGNS_MAX: usize = 256;

/// Whether a character moves a cursor, begins an escape sequence, ends a line, is invisible, or turns the direction of
/// reading.
pub(super) fn has_effect(sign: char) -> bool {
    let is_format = matches!(sign,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    sign.is_control() || is_format
}

/// A text as it may be printed, in one line: such characters are escaped.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for sign in text.chars() {
        if has_effect(sign) { out.extend(sign.escape_unicode()) } else { out.push(sign) }
    }
    out
}

/// The same for a name or a few words; a longer text is cut.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_SIGNS_MAX) {
        Some((end, _)) => plain(text.get(..end).unwrap_or_default()) + "...",
        None => plain(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_shown_without_effect() {
        assert_eq!(shown("tiny-llama é"), "tiny-llama é");
        assert_eq!(shown("\x1b[2J\r\n\u{9b}\u{202e}"), "\\u{1b}[2J\\u{d}\\u{a}\\u{9b}\\u{202e}");
        assert_eq!(shown(&"é".repeat(1_000)).chars().count(), SHOWN_SIGNS_MAX + 3);
        assert_eq!(plain(&"é".repeat(1_000)).chars().count(), 1_000);
    }
}
