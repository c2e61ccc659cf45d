//! What Claude Code puts before its system prompt, another one for each request: vLLM leaves it out, since whatever
//! follows it would never be found again.
//!
//! Sent to `/v1/messages` it is a block of its own, of which vLLM takes nothing (`_convert_system_message` of its
//! `entrypoints/anthropic/serving.py`). Gateways bring it as a text of a system message, or at its beginning: of each
//! vLLM leaves out the first line, or all if it has no other (`_strip_claude_code_billing_header` of its
//! `renderers/chat_utils.py`).

use super::super::section::{Mark, Section};
use super::super::text::Taker;
use super::{Prompt, Speaker};

/// What such a line begins with.
const ATTRIBUTION: &[u8] = b"x-anthropic-billing-header";

/// Where a text stands that may begin with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// There is none, or it is over.
    Past,
    /// So many bytes were read, none of them other than the line's. Nobody has got them yet.
    Begins(usize),
    /// In it: what comes is left out.
    Inside,
}

impl Prompt {
    /// A text begins: one of several in a content, maybe. Where its role comes behind it, nobody knows yet whose it is,
    /// and all of it is taken.
    pub fn text_begins(&mut self) {
        let is_system = match self.speaker {
            Speaker::System => true,
            Speaker::Bare => self.current == Section::System,
            Speaker::Unknown | Speaker::User | Speaker::Other => false,
        };
        self.line = if is_system { Line::Begins(0) } else { Line::Past };
    }

    /// It is over: what could have become such a line has not.
    pub fn text_ends(&mut self) {
        if let Line::Begins(length) = std::mem::replace(&mut self.line, Line::Past) {
            self.take(ATTRIBUTION.get(..length).unwrap_or_default());
        }
    }

    /// A run of a text that has not come past such a line. Answers as [`Taker::take`] does.
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

    /// Whether what is held of a block of the system prompt is no part of it.
    pub(super) fn is_attribution(&self) -> bool {
        let held = self.held.get(..self.held_length).unwrap_or_default();
        let text = held.strip_prefix(&[Mark::Text as u8]);
        self.current == Section::System && text.is_some_and(|text| text.starts_with(ATTRIBUTION))
    }
}
