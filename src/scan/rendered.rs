//! A whole body's prompt as its engine writes it, in a [`Form`], and the chain of those bytes: equal to the one that [`super::Cut`] makes
//! of what the engine says it holds.
//!
//! Nothing is guessed: where the form does not say what the engine would write, the prompt ends, and the chain holds what comes before. As a
//! field may stand behind the prompt that it changes, the whole body is read before anything is believed.

mod bare;
mod chat;
mod page;
mod why;

use super::Api;
use super::form::Form;
use super::kernel::Kernel;
use super::reader::Reader;
use super::words::Word;
use page::{Page, Sieve};
pub use why::{Rendering, Why};

/// Writes prompts, one after the other; allocates when it is made and never again. Some 130 KiB, most of them links.
pub struct Renderer {
    kernel: &'static Kernel,
    page: Page,
    sieve: Sieve,
    word: Word,
    ids: [u8; IDS_BYTES],
}

/// Token ids that are read at once, four bytes each.
const IDS_BYTES: usize = 1_024;

impl Default for Renderer {
    fn default() -> Self {
        Renderer::new()
    }
}

impl Renderer {
    /// One that has written nothing.
    pub fn new() -> Self {
        Renderer::with(Kernel::detected())
    }

    /// The same on these loops; no answer depends on them.
    pub fn with(kernel: &'static Kernel) -> Self {
        Renderer { kernel, page: Page::new(kernel), sieve: Sieve::new(), word: Word::new(), ids: [0; IDS_BYTES] }
    }

    /// Writes the prompt of a whole body.
    pub fn render(&mut self, api: Api, form: &Form, body: &[u8]) -> Rendering {
        let Renderer { kernel, page, sieve, word, ids } = self;
        page.clear();
        let reader = Reader::new(kernel, body);
        let mut writer = Writer { reader, form, page, sieve, word, ids, after: &[], written: 0, said: Said::default() };
        match writer.body(api) {
            Ok(ends) => {
                writer.page.end();
                Rendering { bytes: writer.page.kept(), ends }
            }
            Err(why) => {
                writer.page.clear();
                Rendering { bytes: 0, ends: Some(why) }
            }
        }
    }

    /// Replaces both by the links of the last prompt below `root`: `blocks` has one for each whole block of
    /// [`crate::limits::BLOCK_BYTES`], at most [`crate::limits::LINKS_MAX`], `steps` those between them, at every further
    /// [`crate::limits::STEP_BYTES`], three for each block and up to three behind the last.
    pub fn links(&self, root: u64, blocks: &mut Vec<u64>, steps: &mut Vec<u64>) {
        self.page.links(root, blocks, steps);
    }
}

/// One body on its way to the page.
struct Writer<'a> {
    reader: Reader<'a>,
    form: &'a Form,
    page: &'a mut Page,
    sieve: &'a mut Sieve,
    word: &'a mut Word,
    ids: &'a mut [u8; IDS_BYTES],
    /// What stands behind the last message, unless that is to be continued.
    after: &'a [u8],
    /// The place of the prompt that is on the page.
    written: usize,
    said: Said,
}

/// What a body's top-level fields say; the last of equal names.
#[derive(Default)]
struct Said {
    messages: Option<Told>,
    prompt: Option<Told>,
    tools: bool,
    /// Which of [`ALTERING`] say anything.
    altering: u32,
    /// `add_generation_prompt`, `continue_final_message`, `add_special_tokens`.
    flags: [Flag; 3],
}

/// A prompt that was there.
#[derive(Clone, Copy)]
struct Told {
    /// Where its value begins.
    place: usize,
    /// Whether `add_special_tokens` held when it was written.
    begins: bool,
    ends: Option<Why>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Flag {
    #[default]
    Absent,
    True,
    False,
    /// No boolean: what engines make of it is theirs.
    Odd,
}

const GENERATION: usize = 0;
const CONTINUES: usize = 1;
const SPECIAL: usize = 2;

/// Fields that change what is written, or how much of it.
const ALTERING: [&[u8]; 9] = [
    b"chat_template",
    b"chat_template_kwargs",
    b"documents",
    b"mm_processor_kwargs",
    b"truncate_prompt_tokens",
    b"truncation_side",
    b"reasoning_effort",
    b"prompt_embeds",
    b"suffix",
];

impl Writer<'_> {
    /// Reads all of the body. `Err`: nothing of its prompt is known.
    fn body(&mut self, api: Api) -> Result<Option<Why>, Why> {
        if !matches!(api, Api::Chat | Api::Completions | Api::Tokenize) {
            return Err(Why::Api);
        }
        self.reader.body_begins()?;
        let mut opening = true;
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                b"messages" if api != Api::Completions => self.said.messages = self.told(Writer::messages)?,
                b"prompt" if api != Api::Chat => self.said.prompt = self.told(Writer::prompt)?,
                b"tools" => self.said.tools = self.reader.skip()?,
                b"add_generation_prompt" => self.said.flags[GENERATION] = self.flag()?,
                b"continue_final_message" => self.said.flags[CONTINUES] = self.flag()?,
                b"add_special_tokens" => self.said.flags[SPECIAL] = self.flag()?,
                name => {
                    let place = ALTERING.iter().position(|altering| *altering == name);
                    let says = self.reader.skip()?;
                    if let Some(place) = place {
                        self.said.altering = self.said.altering & !(1 << place) | u32::from(says) << place;
                    }
                }
            }
        }
        self.reader.body_ends()?;
        self.end()
    }

    /// A prompt, as `write` writes it; `None`: it is null.
    fn told(&mut self, write: fn(&mut Self) -> Result<(), Why>) -> Result<Option<Told>, Why> {
        if self.reader.peek()? == b'n' {
            return if self.reader.skip()? { Err(Why::Prompt) } else { Ok(None) };
        }
        let (place, begins) = (self.reader.at(), self.said.begins());
        self.written = place;
        let ends = match write(self) {
            Ok(()) => None,
            Err(why @ Why::Body(_)) => return Err(why),
            Err(why) => {
                // The rest is left unseen.
                self.reader.go_to(place);
                self.reader.skip()?;
                Some(why)
            }
        };
        Ok(Some(Told { place, begins, ends }))
    }

    fn flag(&mut self) -> Result<Flag, Why> {
        if matches!(self.reader.peek()?, b'"' | b'{' | b'[') {
            self.reader.skip()?;
            return Ok(Flag::Odd);
        }
        Ok(match self.reader.scalar()? {
            b"true" => Flag::True,
            b"false" => Flag::False,
            _ => Flag::Odd,
        })
    }

    /// The body is over: what all of it says of the prompt.
    fn end(&mut self) -> Result<Option<Why>, Why> {
        if self.said.altering != 0 || self.said.flags.contains(&Flag::Odd) {
            return Err(Why::Field);
        }
        if self.said.tools {
            return Err(Why::Tools);
        }
        match (self.said.messages, self.said.prompt) {
            (Some(told), None) => self.chat_ends(told),
            (None, Some(told)) => self.prompt_ends(told),
            _ => Err(Why::Prompt),
        }
    }

    fn chat_ends(&mut self, told: Told) -> Result<Option<Why>, Why> {
        if self.said.flags[SPECIAL] == Flag::True {
            return Err(Why::Field);
        }
        let told = if self.written == told.place { told } else { self.again(told, Writer::messages)? };
        if told.ends.is_none() {
            if self.said.flags[CONTINUES] != Flag::True {
                self.page.put(self.after);
                if self.said.flags[GENERATION] != Flag::False {
                    self.page.put(self.form.chat.as_ref().map_or(&[], |chat| &chat.generation));
                }
            }
            self.page.keep();
        }
        Ok(told.ends)
    }

    fn prompt_ends(&mut self, told: Told) -> Result<Option<Why>, Why> {
        let stands = self.written == told.place && self.said.begins() == told.begins;
        let told = if stands { told } else { self.again(told, Writer::prompt)? };
        Ok(told.ends)
    }

    /// A prompt behind which stood what changes it, or another one, which was null in the end.
    fn again(&mut self, told: Told, write: fn(&mut Self) -> Result<(), Why>) -> Result<Told, Why> {
        self.reader.go_to(told.place);
        Ok(self.told(write)?.unwrap_or(told))
    }
}

impl Said {
    /// Whether the tokenizer puts something before a bare text.
    fn begins(&self) -> bool {
        self.flags[SPECIAL] != Flag::False
    }
}

#[cfg(test)]
mod tests;
