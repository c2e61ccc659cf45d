//! Ways to read a value, by what it is for.

use super::Api;
use super::Needs;
use super::fields::Field;
use super::frames::Frame;
use super::kernel::Skip;
use super::machine::{Scan, SkippedTo, State};
use super::section::Section;

impl Scan {
    /// Whether a section's value is to be read; if so, makes it the current section.
    pub(super) fn section_begins(&mut self, section: Section) -> bool {
        let wanted = self.section_wanted(section);
        if wanted {
            self.facts.prompt.begin(section);
        }
        wanted
    }

    pub(super) fn section_wanted(&self, section: Section) -> bool {
        self.needs.contains(Needs::PREFIX) && self.facts.prompt.wants_section(section)
    }

    pub(super) fn enter(&mut self, frame: Frame) {
        if self.frames.push(frame) {
            self.state = if frame.is_array() { State::FirstElement } else { State::FirstKey };
        } else {
            self.skip_container();
        }
    }

    /// Begins a prompt, or an element of an array of prompts, that is an object or array.
    pub(super) fn item_begins(&mut self, bracket: u8) {
        if bracket == b'[' {
            self.enter(Frame::Items);
            return;
        }
        self.enter(Frame::Message);
        if self.state == State::FirstKey {
            self.facts.prompt.message_begins();
        }
    }

    /// Takes a string in place of a list of messages as the single message of a user, where engines do so: with the
    /// next turn the client may list it as that.
    pub(super) fn lone_message_begins(&mut self) {
        if self.api == Api::Responses && self.field == Field::Prompt(Section::Main) {
            self.facts.prompt.message_begins();
            self.facts.prompt.role(b"user");
        }
    }

    pub(super) fn text_begins(&mut self, marked: bool) {
        if !self.facts.prompt.wants_text() {
            self.skip_string();
            return;
        }
        if marked {
            self.facts.prompt.content_begins();
        }
        self.facts.prompt.text_begins();
        self.state = State::Text;
    }

    pub(super) fn keep_string(&mut self) {
        self.word.clear();
        self.state = State::Word;
    }

    pub(super) fn tools_begin(&mut self, bracket: u8) {
        self.facts.stated.tools = true;
        self.skip_container();
        if self.section_wanted(Section::Tools) {
            self.skipped_to = SkippedTo::Prompt;
            self.facts.prompt.raw(&[bracket]);
        }
    }

    /// Begins JSON that takes part as it is written, from its quote or bracket on.
    pub(super) fn raw_begins(&mut self, opening: u8) {
        self.skip_value(opening);
        if self.facts.prompt.wants_text() {
            self.skipped_to = SkippedTo::Prompt;
            self.facts.prompt.raw_begins();
            self.facts.prompt.raw(&[opening]);
        }
    }

    /// Begins a medium, from its quote or bracket on.
    pub(super) fn media(&mut self, opening: u8) {
        self.skip_value(opening);
        if self.facts.prompt.media_begins() {
            self.skipped_to = SkippedTo::Sample;
            self.sample.begin();
            self.sample.take(&[opening]);
        }
    }

    /// Begins media at the body's top, from their quote or bracket on: all media of a field are sampled and counted as
    /// one. They count to the beginning of the prompt, wherever they are.
    pub(super) fn media_beside(&mut self, opening: u8) {
        if !self.section_wanted(Section::System) {
            self.skip_value(opening);
            return;
        }
        self.facts.prompt.goes_on(Section::System);
        self.media(opening);
    }

    pub(super) fn skip_value(&mut self, opening: u8) {
        if opening == b'"' { self.skip_string() } else { self.skip_container() }
    }

    pub(super) fn skip_string(&mut self) {
        self.skip = Skip { depth: 0, in_string: true, escaped: false };
        self.skipped_to = SkippedTo::Nobody;
        self.state = State::Skip;
    }

    pub(super) fn skip_container(&mut self) {
        self.skip = Skip { depth: 1, in_string: false, escaped: false };
        self.skipped_to = SkippedTo::Nobody;
        self.state = State::Skip;
    }

    pub(super) fn opaque_known(&mut self) {
        let hash = self.opaque.value();
        match self.field {
            Field::Session(place) => self.facts.set_session(place, hash),
            Field::Salt => self.facts.stated.cache_salt = hash,
            Field::Adapter => self.facts.stated.adapter = hash,
            Field::ExtraKey => self.facts.stated.extra_key = hash,
            Field::Previous => self.facts.stated.previous = hash,
            _ => {}
        }
    }
}
