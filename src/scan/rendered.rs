//! A whole body's prompt as its engine writes it, in a [`Form`], and the chain of those bytes: equal to the one that
//! [`super::Cut`] makes of what the engine says it holds.
//!
//! Nothing is guessed: where the form does not say what the engine would write, the prompt ends, and the chain holds
//! what comes before. As a field may stand behind the prompt that it changes, the whole body is read before anything is
//! believed.

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

/// Writes prompts, one after the other; allocates when it is made and never again. Some 130 KiB, most of them links,
/// and [`crate::limits::ARGUMENTS_BYTES_MAX`] of which it touches as much as the longest arguments have.
pub struct Renderer {
    kernel: &'static Kernel,
    page: Page,
    sieve: Sieve,
    word: Word,
    ids: [u8; IDS_BYTES],
    arguments: Arguments,
    unknown_tools: Option<Range<usize>>,
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

    /// Writes the prompt of a whole body. `tools`: whether it is known to have some, so that messages before them are
    /// not written until those were read; nothing but time depends on it.
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

    /// Where in the last body the value of `tools` stands, if the form does not know this set and nothing else was
    /// wrong so far: the bytes that [`Form::toolset`] would have to find.
    pub fn unknown_tools(&self) -> Option<Range<usize>> {
        self.unknown_tools.clone()
    }

    /// Replaces both by the links of the last prompt below `root`: `blocks` has one for each whole block of
    /// [`crate::limits::BLOCK_BYTES`], at most [`crate::limits::LINKS_MAX`], `steps` those between them, at every
    /// further [`crate::limits::STEP_BYTES`], three for each block and up to three behind the last.
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
    arguments: &'a mut Arguments,
    unknown_tools: &'a mut Option<Range<usize>>,
    /// What stands behind the last message, unless that is to be continued.
    after: &'a [u8],
    /// The last message calls tools.
    called: bool,
    /// At the end, where an answer is asked for.
    generation: &'a [u8],
    /// The place of the prompt that is on the page.
    written: usize,
    /// Tools are expected, and messages before them left unwritten.
    awaits_tools: bool,
    said: Said,
}

/// What a body's top-level fields say; the last of equal names.
#[derive(Default)]
struct Said {
    messages: Option<Told>,
    prompt: Option<Told>,
    /// Where the tools stand.
    tools: Option<Range<usize>>,
    /// Which of [`ALTERING`] say anything.
    altering: u32,
    /// `add_generation_prompt`
    generation: Flag,
    /// `continue_final_message`
    continues: Flag,
    /// `add_special_tokens`
    special: Flag,
}

/// A prompt that was there.
struct Told {
    /// Where its value begins.
    place: usize,
    /// Whether `add_special_tokens` held when it was written.
    begins: bool,
    /// The tools when it was written.
    tools: Option<Range<usize>>,
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

/// Fields that change what is written, or how much of it.
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

/// Whether they may have a bare prompt.
fn has_prompt(api: Api) -> bool {
    matches!(api, Api::Completions | Api::Tokenize)
}

impl<'a> Writer<'a> {
    /// Reads all of the body. `Err`: nothing of its prompt is known.
    fn body(&mut self, api: Api) -> Result<Option<Why>, Why> {
        if !matches!(api, Api::Chat | Api::Completions | Api::Tokenize | Api::Generate) {
            return Err(Why::Api);
        }
        self.reader.body_begins()?;
        let mut opening = true;
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                // SGLang's prompts of that name are left to who looks at bodies alone.
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

    /// Where the tools stand; `None`: there are none.
    fn tools(&mut self) -> Result<Option<Range<usize>>, Why> {
        self.awaits_tools = false;
        self.reader.peek()?;
        let begin = self.reader.at();
        Ok(self.reader.skip()?.then(|| begin..self.reader.at()))
    }

    /// Messages that are written when the tools behind them are known.
    fn unwritten(&mut self) -> Result<Option<Told>, Why> {
        self.reader.peek()?;
        let place = self.reader.at();
        Ok(self.reader.skip()?.then_some(Told { place, begins: false, tools: None, ends: None }))
    }

    /// A prompt, as `write` writes it; `None`: it is null.
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
                // The rest is left unseen.
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

    /// The body is over: what all of it says of the prompt.
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
            // What is behind the content is not written then, and engines find that by the content's text.
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

    /// How chats with these tools are written.
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

    /// A prompt behind which stood what changes it, or another one, which was null in the end.
    fn again(&mut self, told: Told, write: fn(&mut Self) -> Result<(), Why>) -> Result<Told, Why> {
        self.reader.go_to(told.place);
        Ok(self.told(write)?.unwrap_or(told))
    }
}

impl Said {
    /// Whether a flag is no boolean.
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
