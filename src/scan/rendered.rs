//! Writes a body's prompt as its engine does, in a [`Form`], and makes the chain of those bytes: it equals the one that
//! [`super::Cut`] makes of what the engine says it holds.
//!
//! Nothing is guessed: if the form does not say what the engine would write, the prompt ends there, and the chain
//! covers what comes before. As a field that changes the prompt may follow it, the whole body is read before anything
//! is believed.

mod arguments;
mod bare;
mod calls;
mod chat;
mod page;
mod stops;
mod why;

use std::ops::Range;

use super::Api;
use super::form::{Chat, Form};
use super::kernel::Kernel;
use super::reader::Reader;
use super::words::Word;
use arguments::Arguments;
use page::{Page, Sieve};
pub use why::{Rendering, Why};

/// Writes prompts, one after the other; allocates only when it is made. It takes some 130 KiB, most of them links, and
/// [`crate::limits::ARGUMENTS_BYTES_MAX`], of which it touches as much as the longest arguments have.
pub struct Renderer {
    kernel: &'static Kernel,
    page: Page,
    sieve: Sieve,
    word: Word,
    ids: [u8; IDS_BYTES],
    arguments: Arguments,
    unknown_tools: Option<Range<usize>>,
}

/// Bytes of the token ids that are read at once, four bytes each.
const IDS_BYTES: usize = 1_024;

impl Default for Renderer {
    fn default() -> Self {
        Renderer::new()
    }
}

impl Renderer {
    /// Makes a renderer that has written nothing.
    pub fn new() -> Self {
        Renderer::with(Kernel::detected())
    }

    /// Makes a renderer that uses this kernel; no result depends on it.
    pub fn with(kernel: &'static Kernel) -> Self {
        Renderer {
            kernel,
            page: Page::new(kernel),
            sieve: Sieve::new(),
            word: Word::new(),
            ids: [0; IDS_BYTES],
            arguments: Arguments::new(kernel),
            unknown_tools: None,
        }
    }

    /// Writes the prompt of a whole body. `tools`: whether the body is known to have some, so that messages before them
    /// are not written until they were read. Only the time that this takes depends on it.
    pub fn render(&mut self, api: Api, form: &Form, body: &[u8], tools: bool) -> Rendering {
        let Renderer { kernel, page, sieve, word, ids, arguments, unknown_tools } = self;
        *unknown_tools = None;
        page.clear();
        let mut writer = Writer {
            reader: Reader::new(kernel, body),
            form,
            page,
            sieve,
            word,
            ids,
            arguments,
            unknown_tools,
            after: &[],
            called: false,
            generation: &[],
            written: 0,
            awaits_tools: tools,
            said: Said::default(),
        };
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

    /// Returns the range of the value of `tools` in the last body, if the form does not know this set and nothing else
    /// was wrong so far: the bytes that [`Form::toolset`] would have to find.
    pub fn unknown_tools(&self) -> Option<Range<usize>> {
        self.unknown_tools.clone()
    }

    /// Replaces both by the links of the last prompt below `root`: `blocks` gets one for each whole block of
    /// [`crate::limits::BLOCK_BYTES`], at most [`crate::limits::LINKS_MAX`]; `steps` gets those between them, at each
    /// further [`crate::limits::STEP_BYTES`], three for each block and up to three after the last.
    pub fn links(&self, root: u64, blocks: &mut Vec<u64>, steps: &mut Vec<u64>) {
        self.page.links(root, blocks, steps);
    }
}

/// The state of writing one body's prompt.
struct Writer<'a> {
    reader: Reader<'a>,
    form: &'a Form,
    page: &'a mut Page,
    sieve: &'a mut Sieve,
    word: &'a mut Word,
    ids: &'a mut [u8; IDS_BYTES],
    arguments: &'a mut Arguments,
    unknown_tools: &'a mut Option<Range<usize>>,
    /// The text after the last message, unless that is to be continued.
    after: &'a [u8],
    /// Whether the last message calls tools.
    called: bool,
    /// The text at the end, if an answer is asked for.
    generation: &'a [u8],
    /// Where in the body the prompt begins that is written.
    written: usize,
    /// Whether tools are expected, and messages before them left unwritten.
    awaits_tools: bool,
    said: Said,
}

/// What a body's top-level fields say; of equal names the last counts.
#[derive(Default)]
struct Said {
    messages: Option<Told>,
    prompt: Option<Told>,
    /// Range of the value of `tools`.
    tools: Option<Range<usize>>,
    /// Bits of the [`ALTERING`] fields that are other than null.
    altering: u32,
    /// `add_generation_prompt`
    generation: Flag,
    /// `continue_final_message`
    continues: Flag,
    /// `add_special_tokens`
    special: Flag,
}

/// A prompt field of the body.
struct Told {
    /// Where its value begins.
    place: usize,
    /// Whether `add_special_tokens` held when it was written.
    begins: bool,
    /// Range of the tools that were known when it was written.
    tools: Option<Range<usize>>,
    ends: Option<Why>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Flag {
    #[default]
    Absent,
    True,
    False,
    /// No boolean: nobody knows what engines make of it.
    Odd,
}

/// Fields that change the prompt or cut it off.
const ALTERING: [&[u8]; 12] = [
    b"chat_template",
    b"chat_template_kwargs",
    b"documents",
    b"mm_processor_kwargs",
    b"truncate_prompt_tokens",
    b"truncation_side",
    b"reasoning_effort",
    b"prompt_embeds",
    b"suffix",
    b"features",
    b"content_parts",
    b"input_ids",
];

/// Whether bodies of this API may have messages.
fn is_chat(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Tokenize)
}

/// Whether bodies of this API may have a bare prompt.
fn has_prompt(api: Api) -> bool {
    matches!(api, Api::Completions | Api::Tokenize)
}

impl<'a> Writer<'a> {
    /// Reads the whole body. `Err`: nothing of its prompt is known.
    fn body(&mut self, api: Api) -> Result<Option<Why>, Why> {
        if !matches!(api, Api::Chat | Api::Completions | Api::Tokenize | Api::Generate) {
            return Err(Why::Api);
        }
        self.reader.body_begins()?;
        let mut opening = true;
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                // SGLang's `text` and `input_ids` are not written here.
                b"token_ids" if api == Api::Generate => self.said.prompt = self.told(Writer::prompt)?,
                b"messages" if is_chat(api) && self.awaits_tools => self.said.messages = self.unwritten()?,
                b"messages" if is_chat(api) => self.said.messages = self.told(Writer::messages)?,
                b"prompt" if has_prompt(api) => self.said.prompt = self.told(Writer::prompt)?,
                b"tools" => self.said.tools = self.tools()?,
                b"add_generation_prompt" => self.said.generation = self.flag()?,
                b"continue_final_message" => self.said.continues = self.flag()?,
                b"add_special_tokens" => self.said.special = self.flag()?,
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

    /// Returns the range of the tools; `None`: there are none.
    fn tools(&mut self) -> Result<Option<Range<usize>>, Why> {
        self.awaits_tools = false;
        self.reader.peek()?;
        let begin = self.reader.at();
        Ok(self.reader.skip()?.then(|| begin..self.reader.at()))
    }

    /// Skips messages, which are written when the tools after them are known.
    fn unwritten(&mut self) -> Result<Option<Told>, Why> {
        self.reader.peek()?;
        let place = self.reader.at();
        Ok(self.reader.skip()?.then_some(Told { place, begins: false, tools: None, ends: None }))
    }

    /// Writes a prompt by `write`; `None`: it is null.
    fn told(&mut self, write: fn(&mut Self) -> Result<(), Why>) -> Result<Option<Told>, Why> {
        if self.reader.peek()? == b'n' {
            return if self.reader.skip()? { Err(Why::Prompt) } else { Ok(None) };
        }
        let (place, begins, tools) = (self.reader.at(), self.said.begins(), self.said.tools.clone());
        self.written = place;
        let ends = match write(self) {
            Ok(()) => None,
            Err(why @ Why::Body(_)) => return Err(why),
            Err(why) => {
                // The rest of the value is skipped.
                self.reader.go_to(place);
                self.reader.skip()?;
                Some(why)
            }
        };
        Ok(Some(Told { place, begins, tools, ends }))
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

    /// Returns what the whole body says of the prompt, at its end.
    fn end(&mut self) -> Result<Option<Why>, Why> {
        if self.said.altering != 0 || self.said.is_odd() {
            return Err(Why::Field);
        }
        match (self.said.messages.take(), self.said.prompt.take()) {
            (Some(told), None) => self.chat_ends(told),
            (None, Some(_)) if self.said.tools.is_some() => Err(Why::Tools),
            (None, Some(told)) => self.prompt_ends(told),
            _ => Err(Why::Prompt),
        }
    }

    fn chat_ends(&mut self, told: Told) -> Result<Option<Why>, Why> {
        if self.said.special == Flag::True {
            return Err(Why::Field);
        }
        let stands = self.written == told.place && self.said.tools == told.tools;
        let told = if stands { told } else { self.again(told, Writer::messages)? };
        match told.ends {
            Some(Why::Tools) => self.unknown_tools.clone_from(&self.said.tools),
            Some(_) => {}
            // A continued message ends with its content, which engines find by the content's text.
            None if self.said.continues == Flag::True && self.called => return Ok(Some(Why::Message)),
            None => {
                if self.said.continues != Flag::True {
                    self.page.put(self.after);
                    if self.said.generation != Flag::False {
                        self.page.put(self.generation);
                    }
                }
                self.page.keep();
            }
        }
        Ok(told.ends)
    }

    /// Returns how chats with the body's tools are written.
    fn chat(&self) -> Result<&'a Chat, Why> {
        let Some(tools) = self.said.tools.clone() else { return self.form.chat.as_ref().ok_or(Why::Template) };
        let toolset = self.form.toolset(self.reader.between(tools)).ok_or(Why::Tools)?;
        toolset.chat.as_ref().ok_or(Why::Toolset)
    }

    fn prompt_ends(&mut self, told: Told) -> Result<Option<Why>, Why> {
        let stands = self.written == told.place && self.said.begins() == told.begins;
        let told = if stands { told } else { self.again(told, Writer::prompt)? };
        Ok(told.ends)
    }

    /// Writes a prompt again, because a field after it changes it, or because another prompt, null in the end, was
    /// written since.
    fn again(&mut self, told: Told, write: fn(&mut Self) -> Result<(), Why>) -> Result<Told, Why> {
        self.reader.go_to(told.place);
        Ok(self.told(write)?.unwrap_or(told))
    }
}

impl Said {
    /// Whether any flag is no boolean.
    fn is_odd(&self) -> bool {
        [self.generation, self.continues, self.special].contains(&Flag::Odd)
    }

    /// Whether the tokenizer puts something before a bare text.
    fn begins(&self) -> bool {
        self.special != Flag::False
    }
}

#[cfg(test)]
mod tests;
