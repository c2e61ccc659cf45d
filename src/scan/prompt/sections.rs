//! Which sections of a prompt are read, and when no more of them is wanted.

use super::super::PrefixMode;
use super::super::section::Section;
use super::{Prompt, Speaker};

impl Prompt {
    /// Whether a section is to be read at all, or skipped unseen.
    pub fn wants_section(&self, section: Section) -> bool {
        if self.replaced && matches!(section, Section::Tools | Section::Main) {
            return false;
        }
        self.counts_all
            || match self.mode {
                PrefixMode::FirstUser => section == Section::Main,
                PrefixMode::Conversation => section != Section::Extra,
            }
    }

    /// A section begins; when it has been there before, the last one wins.
    pub fn begin(&mut self, section: Section) {
        self.current = section;
        let links_max = self.links_max;
        self.section().reset(links_max);
        self.section().seen = true;
        // What counts toward no prefix is closed from the start.
        let closed = section == Section::Extra || self.mode == PrefixMode::FirstUser && section != Section::Main;
        self.section().closed = closed;
        // What was left in the midst of a message says nothing of this one.
        self.hold_nothing(Speaker::Bare);
        if section == Section::Main {
            self.chars = 0;
        }
    }

    /// Token ids begin that an engine takes for the whole prompt: messages and tools are no part of it, wherever they
    /// stand.
    pub fn begin_instead(&mut self) {
        let links_max = self.links_max;
        self.sections[Section::Tools as usize].reset(links_max);
        self.begin(Section::Main);
        self.replaced = true;
    }

    /// A section that is in several fields of the body begins, or goes on.
    pub fn goes_on(&mut self, section: Section) {
        self.current = section;
        if !self.section_ref().seen {
            self.begin(section);
        }
    }

    /// The section's value is over.
    pub fn end(&mut self, section: Section) {
        self.sections[section as usize].ended = true;
    }

    /// Whether the rest of the current section can be skipped.
    pub fn leaves(&self) -> bool {
        !self.counts_all && self.section_ref().closed
    }

    /// Whether the prefix cannot change any more, and what is to be counted has been, given the sections this API has.
    pub fn settled(&self, expected: &[Section]) -> bool {
        let settled = |section: Section| {
            let state = &self.sections[section as usize];
            state.seen && (state.ended || state.closed && !self.counts_all)
        };
        let mut expected = expected.iter().filter(|section| self.wants_section(**section));
        settled(Section::Main) && (self.mode == PrefixMode::FirstUser || expected.all(|section| settled(*section)))
    }
}
