//! Which sections of a prompt are read, and when the rest of them is not needed.

use super::super::PrefixMode;
use super::super::section::Section;
use super::{Prompt, Speaker};

impl Prompt {
    /// Whether a section is to be read, and not skipped unseen.
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

    /// Begins a section; if it was there before, the last one wins.
    pub fn begin(&mut self, section: Section) {
        self.current = section;
        let links_max = self.links_max;
        self.section().reset(links_max);
        self.section().seen = true;
        // A section that takes part in no prefix is closed from the start.
        let closed = section == Section::Extra || self.mode == PrefixMode::FirstUser && section != Section::Main;
        self.section().closed = closed;
        // A message in which the last section was left says nothing of this one.
        self.hold_nothing(Speaker::Bare);
        if section == Section::Main {
            self.chars = 0;
        }
    }

    /// Begins token ids that an engine takes as the whole prompt: messages and tools are no part of it, wherever they
    /// are.
    pub fn begin_instead(&mut self) {
        let links_max = self.links_max;
        self.sections[Section::Tools as usize].reset(links_max);
        self.begin(Section::Main);
        self.replaced = true;
    }

    /// Begins, or goes on with, a section that is in several fields of the body.
    pub fn goes_on(&mut self, section: Section) {
        self.current = section;
        if !self.section_ref().seen {
            self.begin(section);
        }
    }

    /// Ends the section's value.
    pub fn end(&mut self, section: Section) {
        self.sections[section as usize].ended = true;
    }

    /// Whether the rest of the current section can be skipped.
    pub fn leaves(&self) -> bool {
        !self.counts_all && self.section_ref().closed
    }

    /// Whether the prefix cannot change any more, and everything to be counted was counted, given the sections that
    /// this API has.
    pub fn settled(&self, expected: &[Section]) -> bool {
        let settled = |section: Section| {
            let state = &self.sections[section as usize];
            state.seen && (state.ended || state.closed && !self.counts_all)
        };
        let mut expected = expected.iter().filter(|section| self.wants_section(**section));
        settled(Section::Main) && (self.mode == PrefixMode::FirstUser || expected.all(|section| settled(*section)))
    }
}
