//! Turns structure into facts: what a value is for, and what is known when it is over.

use super::fields::{self, Field, Inner};
use super::frames::Frame;
use super::kernel::Skip;
use super::machine::{Scan, SkippedTo, State};
use super::section::Section;
use super::{Api, Facts, Needs, Plan};

/// What a name means at its place.
#[derive(Clone, Copy)]
pub(super) struct Named {
    field: Field,
    inner: Inner,
}

impl Named {
    const NOTHING: Named = Named { field: Field::Ignored, inner: Inner::Ignored };
}

impl Scan {
    /// Returns what a key's name says of the value that follows; `None`: a name too long to mean anything.
    pub(super) fn named(&self, name: Option<&[u8]>) -> Named {
        let Some(name) = name else { return Named::NOTHING };
        match self.frames.top() {
            Frame::Top => Named { field: self.field_of(name), ..Named::NOTHING },
            Frame::Sampling => Named { inner: Inner::of_sampling(name), ..Named::NOTHING },
            _ => Named { inner: Inner::of(name), ..Named::NOTHING },
        }
    }

    fn field_of(&self, name: &[u8]) -> Field {
        match Field::of(self.api, name) {
            field @ (Field::Ignored | Field::Previous) => self.names.place(name).map_or(field, Field::Session),
            field => field,
        }
    }

    /// Ends a key.
    pub(super) fn key_ends(&mut self, named: Named) {
        if self.frames.top() == Frame::Top {
            let is_sealed = self.sealed_by_model && self.seen & Field::Model.bit() != 0;
            self.field = if is_sealed && named.field.is_of_prompt() { Field::Ignored } else { named.field };
        }
        self.inner = named.inner;
        self.state = State::Colon;
    }

    /// At a top-level value's first byte: forgets what an earlier field of the same name said.
    fn field_begins(&mut self) {
        let bit = self.field.bit();
        self.facts.stated.duplicates += (self.seen & bit != 0) as u32;
        self.seen |= bit;
        let stated = &mut self.facts.stated;
        match self.field {
            Field::Model => stated.model_is_string = false,
            Field::Stream => stated.stream = None,
            Field::MaxTokens => stated.max_tokens = None,
            Field::MaxOutputTokens => stated.max_output_tokens = None,
            Field::Choices => stated.choices = None,
            Field::Priority => stated.priority = None,
            Field::Salt => stated.cache_salt = None,
            Field::Adapter => stated.adapter = None,
            Field::ExtraKey => stated.extra_key = None,
            Field::Background => stated.background = false,
            Field::Previous => stated.previous = None,
            Field::BeamSearch => stated.beam_search = false,
            Field::Echo => stated.echo = false,
            Field::Logprobs => stated.logprobs = false,
            Field::PromptLogprobs => stated.prompt_logprobs = false,
            Field::ReturnLogprob => stated.return_logprob = false,
            Field::LogprobStart => stated.logprob_from_begin = false,
            Field::SamplingParams => {
                (stated.prompt_logprobs, stated.prompt_logprob_ids, stated.skips_cache) = (false, false, None);
            }
            Field::Tools => {
                stated.tools = false;
                self.section_begins(Section::Tools);
            }
            Field::Session(place) => self.facts.set_session(place, None),
            Field::Ignored | Field::StreamOptions | Field::Prompt(_) | Field::Ids | Field::Media => {}
        }
    }

    /// Begins a string.
    pub(super) fn string_begins(&mut self) {
        self.decoder.reset();
        if self.frames.top() == Frame::Top {
            self.field_begins();
            let field = self.field;
            match field {
                Field::Model => self.keep_string(),
                Field::Salt | Field::Adapter | Field::ExtraKey | Field::Previous | Field::Session(_) => {
                    self.opaque.clear();
                    self.state = State::Opaque;
                }
                Field::Prompt(section) if self.section_begins(section) => {
                    self.lone_message_begins();
                    self.text_begins(true);
                }
                Field::Media => self.media_beside(b'"'),
                _ => self.skip_string(),
            }
            return;
        }
        match (self.frames.top(), self.inner) {
            (Frame::Message, Inner::Role) => self.keep_string(),
            (Frame::Message, Inner::Content) | (Frame::Items | Frame::Ids, _) => self.text_begins(true),
            (Frame::Part, Inner::Content) | (Frame::Parts, _) => self.text_begins(false),
            (_, Inner::Raw) | (Frame::Part, Inner::MediumName) => self.raw_begins(b'"'),
            (_, Inner::Media) => self.media(b'"'),
            _ => self.skip_string(),
        }
    }

    /// Begins an object or array.
    pub(super) fn container_begins(&mut self, bracket: u8) {
        if self.frames.top() == Frame::Top {
            self.field_begins();
            let field = self.field;
            match field {
                Field::Prompt(section) if self.section_begins(section) => self.item_begins(bracket),
                Field::Ids if bracket == b'[' && self.needs.contains(Needs::PREFIX) => {
                    self.facts.prompt.begin_instead();
                    self.item_begins(bracket);
                }
                Field::Tools => self.tools_begin(bracket),
                Field::Media => self.media_beside(bracket),
                Field::SamplingParams if bracket == b'{' => self.enter(Frame::Sampling),
                _ => self.skip_container(),
            }
            return;
        }
        match (self.frames.top(), self.inner) {
            (Frame::Items | Frame::Ids, _) => self.item_begins(bracket),
            (Frame::Message | Frame::Part, Inner::Content) => {
                if self.frames.top() == Frame::Message {
                    self.facts.prompt.content_begins();
                }
                let frame = if bracket == b'[' { Frame::Parts } else { Frame::Part };
                if self.facts.prompt.wants_text() { self.enter(frame) } else { self.skip_container() }
            }
            (Frame::Parts, _) if bracket == b'{' => self.enter(Frame::Part),
            (Frame::Message | Frame::Part, Inner::Raw) => self.raw_begins(bracket),
            (Frame::Message | Frame::Part, Inner::Media) => self.media(bracket),
            (Frame::Sampling, Inner::PromptLogprobIds) => {
                self.facts.stated.prompt_logprob_ids = true;
                self.skip_container();
            }
            _ => self.skip_container(),
        }
    }

    /// Begins a number or literal.
    pub(super) fn scalar_begins(&mut self) {
        if self.frames.top() == Frame::Top {
            self.field_begins();
        }
        self.scalar.clear();
        self.state = State::Scalar;
    }

    /// Ends a number or literal.
    pub(super) fn scalar_ends(&mut self) {
        match self.frames.top() {
            Frame::Top => {
                let (stated, integer) = (&mut self.facts.stated, self.scalar.integer());
                match self.field {
                    Field::Stream => stated.stream = boolean(self.scalar.text()),
                    Field::MaxTokens => stated.max_tokens = integer,
                    Field::MaxOutputTokens => stated.max_output_tokens = integer,
                    Field::Choices => stated.choices = integer,
                    Field::Priority => stated.priority = self.scalar.signed(),
                    Field::Background => stated.background = self.scalar.text() == b"true",
                    Field::BeamSearch => stated.beam_search = self.scalar.text() == b"true",
                    Field::Echo => stated.echo = self.scalar.text() == b"true",
                    Field::Logprobs => stated.logprobs = self.scalar.text() != b"null",
                    Field::PromptLogprobs => stated.prompt_logprobs = self.scalar.text() != b"null",
                    Field::ReturnLogprob => stated.return_logprob = self.scalar.text() == b"true",
                    Field::LogprobStart => stated.logprob_from_begin = integer == Some(0),
                    _ => {}
                }
            }
            Frame::Items | Frame::Ids => self.id_ends(),
            Frame::Sampling => self.parameter_ends(),
            _ => {}
        }
        self.value_ends();
    }

    /// Takes a sampling parameter that is a number or literal.
    fn parameter_ends(&mut self) {
        let (stated, value) = (&mut self.facts.stated, self.scalar.text());
        match self.inner {
            Inner::PromptLogprobs => stated.prompt_logprobs = value != b"null",
            Inner::PromptLogprobIds => stated.prompt_logprob_ids = false,
            Inner::SkipsCache => stated.skips_cache = boolean(value),
            _ => {}
        }
    }

    /// Takes an element that is a number as a token id, if it can be one.
    fn id_ends(&mut self) {
        let Some(id) = self.scalar.integer().and_then(|value| u32::try_from(value).ok()) else { return };
        if self.frames.top() == Frame::Items {
            self.frames.replace_top(Frame::Ids);
            self.facts.prompt.ids_begin();
        }
        self.facts.prompt.id(id);
    }

    /// Ends the innermost object or array.
    pub(super) fn frame_closes(&mut self) {
        let closed = self.frames.top();
        if closed == Frame::Top {
            self.state = State::Closed;
            return;
        }
        self.frames.pop();
        if closed == Frame::Message {
            self.facts.prompt.message_ends();
        }
        // It was a whole prompt of a batch.
        if matches!(closed, Frame::Items | Frame::Ids) && self.frames.top() != Frame::Top {
            self.facts.prompt.item_ends();
        }
        self.value_over();
    }

    /// Ends a string, skipped value or scalar.
    pub(super) fn value_ends(&mut self) {
        match self.state {
            State::Text => {
                self.facts.prompt.text_ends();
                // It was a whole prompt of a batch.
                if matches!(self.frames.top(), Frame::Items | Frame::Ids) {
                    self.facts.prompt.item_ends();
                }
            }
            State::Opaque => self.opaque_known(),
            _ => {}
        }
        self.value_over();
    }

    /// Ends any value.
    fn value_over(&mut self) {
        self.state = State::AfterValue;
        match self.frames.top() {
            Frame::Top => self.field_ends(),
            // They are part of no section.
            Frame::Sampling => {}
            _ if self.facts.prompt.leaves() => self.leave_section(),
            _ => {}
        }
    }

    /// Ends a top-level value.
    fn field_ends(&mut self) {
        match self.field {
            Field::Prompt(section) => {
                if self.api == Api::Responses && section == Section::Main {
                    self.facts.prompt.message_ends();
                }
                self.facts.prompt.end(section);
            }
            Field::Ids => self.facts.prompt.end(Section::Main),
            Field::Tools => self.facts.prompt.end(Section::Tools),
            _ => {}
        }
        if self.is_enough() {
            self.state = State::Enough;
        }
    }

    /// Skips to the end of this section, of which nothing more is needed, from inside a text or between values.
    pub(super) fn leave_section(&mut self) {
        if self.is_enough() {
            self.state = State::Enough;
            return;
        }
        let (depth, in_string) = (self.frames.depth() as u64, self.state == State::Text);
        self.frames.unwind();
        self.skip = Skip { depth, in_string, escaped: self.decoder.escaped() && in_string };
        self.skipped_to = SkippedTo::Nobody;
        self.state = State::Skip;
    }

    /// Leaves out of the prompt what begins behind the model: a body is read to wherever the piece ends that has it.
    pub fn seal_by_model(&mut self) {
        self.sealed_by_model = true;
    }

    /// Returns the needs that it was begun with, or more.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Whether the body is read by this plan.
    pub fn is_by(&self, plan: &Plan) -> bool {
        self.plan == *plan
    }

    /// Whether the facts are final: the rest of the body is not looked at, or is white space.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Enough | State::Closed)
    }

    /// Returns how many bytes of the body were read; the scan stops when its needs are met.
    pub fn read(&self) -> u64 {
        self.at
    }

    /// Whether all needs are met by what has been read.
    fn is_enough(&self) -> bool {
        let met = |need: Needs, known: bool| !self.needs.contains(need) || known;
        let seen = |field: Field| self.seen & field.bit() != 0;
        // The last value that has begun is known only when it is over; this is asked only then.
        !self.needs.contains(Needs::WHOLE)
            && met(Needs::MODEL, seen(Field::Model))
            && met(Needs::PREFIX, self.facts.prompt.settled(fields::expected_sections(self.api)))
            && met(Needs::SESSION, self.names.count() == 0 || self.facts.has_session(0))
    }
}

fn boolean(literal: &[u8]) -> Option<bool> {
    match literal {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

impl Facts {
    /// Takes a kept string: the model, or a role. `None`: it is too long to be kept.
    pub(super) fn keep(&mut self, frame: Frame, text: Option<&[u8]>) {
        if frame == Frame::Top {
            self.model.set(text);
            self.stated.model_is_string = true;
        } else {
            // A role that is too long to be kept decides nothing.
            self.prompt.role(text.unwrap_or_default());
        }
    }
}
