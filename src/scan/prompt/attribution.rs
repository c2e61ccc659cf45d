//! Leaves out the billing line that Claude Code puts before its system prompt, another one for each request. vLLM
//! leaves it out, since nothing after it would ever be found again.
//!
//! Sent to `/v1/messages` it is a block of its own, of which vLLM takes nothing (`_convert_system_message` of its
//! `entrypoints/anthropic/serving.py`). Gateways send it as a text of a system message, or at the beginning of one:
//! vLLM leaves out the first line of each such text, or all if it has no other (`_strip_claude_code_billing_header` of
//! its `renderers/chat_utils.py`).

use super::super::section::{Mark, Section};
use super::super::text::Taker;
use super::{Prompt, Speaker};

/// The beginning of such a line.
const ATTRIBUTION: &[u8] = b"x-anthropic-billing-header";

/// How far a text is that may begin with such a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// There is none, or it is over.
    Past,
    /// So many bytes were read, all equal to the line's. They are not hashed yet.
    Begins(usize),
    /// In the line: its rest is left out.
    Inside,
}

impl Prompt {
    /// Begins a text, maybe one of several in a content. If its role comes after it, nobody knows yet whose text it is,
    /// and all of it is taken.
    pub fn text_begins(&mut self) {
        let is_system = match self.speaker {
            Speaker::System => true,
            Speaker::Bare => self.current == Section::System,
            Speaker::Unknown | Speaker::User | Speaker::Other => false,
        };
        self.line = if is_system { Line::Begins(0) } else { Line::Past };
    }

    /// Ends a text. Bytes that could have become such a line have not, and are taken.
    pub fn text_ends(&mut self) {
        if let Line::Begins(length) = std::mem::replace(&mut self.line, Line::Past) {
            self.take(ATTRIBUTION.get(..length).unwrap_or_default());
        }
    }

    /// Takes a run of a text that may still be in such a line. Returns what [`Taker::take`] does.
    #[cold]
    pub(super) fn take_past_line(&mut self, run: &[u8]) -> usize {
        let mut left_out = 0;
        if let Line::Begins(length) = self.line {
            let expected = ATTRIBUTION.get(length..).unwrap_or_default();
            let same = run.iter().zip(expected).take_while(|(byte, of_line)| byte == of_line).count();
            if same < expected.len() && same == run.len() {
                self.line = Line::Begins(length + same);
                return same;
            }
            if same < expected.len() {
                self.line = Line::Past;
                let held = ATTRIBUTION.get(..length + same).unwrap_or_default();
                let fits = self.take(held) == held.len();
                return if fits { same + self.take(run.get(same..).unwrap_or_default()) } else { same };
            }
            (self.line, left_out) = (Line::Inside, same);
        }
        let rest = run.get(left_out..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', rest) else { return run.len() };
        self.line = Line::Past;
        let rest = rest.get(end + 1..).unwrap_or_default();
        run.len() - rest.len() + self.take(rest)
    }

    /// Whether the held block of the system prompt is such a line, and so no part of the prompt.
    pub(super) fn is_attribution(&self) -> bool {
        let held = self.held.get(..self.held_length).unwrap_or_default();
        let text = held.strip_prefix(&[Mark::Text as u8]);
        self.current == Section::System && text.is_some_and(|text| text.starts_with(ATTRIBUTION))
    }
}
