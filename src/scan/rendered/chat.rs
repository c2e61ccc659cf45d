//! Chats: message after message, each between the two texts of its role.

use super::super::fields::Inner;
use super::super::form::{Chat, Place, Turn};
use super::super::reader::Reader;
use super::super::text::Taker;
use super::super::words::Word;
use super::{Why, Writer};
use crate::vocabulary::Lead;

/// Where a message's content is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Absent,
    /// It is before its role, at this offset, to come back to.
    At(usize),
    There(Written),
}

/// How much was written of a content.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Nothing: it is null, or a list without parts.
    Nothing,
    /// An empty text.
    Empty,
    Text,
}

impl<'a> Writer<'a> {
    /// Writes the value of `messages`. Only whole messages are believed; the text after the last one is not written
    /// yet.
    pub(super) fn messages(&mut self) -> Result<(), Why> {
        self.page.clear();
        (self.after, self.generation, self.called) = (&[], &[], false);
        let chat = self.chat()?;
        self.generation = &chat.generation;
        if self.reader.peek()? != b'[' {
            return Err(Why::Prompt);
        }
        self.reader.step();
        let first = self.reader.at();
        let ended = self.each_message(chat);
        if ended.is_err() {
            self.reader.go_to(first);
            // A message after the one that could not be written may change what is before it.
            if !matches!(self.changed(chat), Ok(false)) {
                self.page.clear();
            }
        }
        ended
    }

    /// Whether any message changes what is before it; only the role of each is looked at. `Err`: this cannot be known.
    fn changed(&mut self, chat: &Chat) -> Result<bool, Why> {
        if !chat.turns.iter().any(|turn| matches!(turn.place, Place::First | Place::Nowhere)) {
            return Ok(false);
        }
        let (mut opening, mut is_first) = (true, true);
        while self.reader.element(&mut opening)? {
            let changes = match self.place(chat)? {
                Some(Place::Nowhere) => true,
                Some(Place::First) => !is_first,
                _ => false,
            };
            if changes {
                return Ok(true);
            }
            is_first = false;
        }
        Ok(false)
    }

    /// Returns the place of the next message's role; `None`: the form does not know that role.
    fn place(&mut self, chat: &Chat) -> Result<Option<Place>, Why> {
        if self.reader.peek()? != b'{' {
            return Err(Why::Prompt);
        }
        self.reader.step();
        let (mut opening, mut found) = (true, None);
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            if name != b"role" {
                self.reader.skip()?;
                continue;
            }
            if found.is_some() {
                return Err(Why::Twice);
            }
            if self.reader.peek()? != b'"' {
                return Err(Why::Role);
            }
            let role = self.reader.word(self.word)?;
            found = Some(chat.turns.iter().find(|turn| Some(&*turn.role) == role).map(|turn| turn.place));
        }
        found.ok_or(Why::Role)
    }

    /// Writes the text before all messages. A prompt's text begins after the tokens that the tokenizer itself puts
    /// before it.
    fn start(&mut self, mut text: &[u8]) {
        let vocabulary = &*self.form.vocabulary;
        if vocabulary.lead() == Lead::First {
            let begins =
                || vocabulary.begins().iter().filter_map(|id| vocabulary.text(*id)).filter(|id| !id.is_empty());
            while let Some((begin, rest)) = begins().find_map(|begin| Some((begin, text.strip_prefix(begin)?))) {
                self.page.put(begin);
                text = rest;
            }
            self.page.lead();
        }
        self.page.put(text);
    }

    fn each_message(&mut self, chat: &'a Chat) -> Result<(), Why> {
        self.start(&chat.start);
        let (mut opening, mut last) = (true, None::<&Turn>);
        while self.reader.element(&mut opening)? {
            if last.is_none_or(|turn| turn.joined.is_none()) {
                self.page.put(std::mem::take(&mut self.after));
            }
            self.page.keep();
            last = Some(self.message(chat, last)?);
        }
        match last {
            None => Err(Why::Prompt),
            Some(Turn { place: Place::NotLast | Place::First, .. }) => Err(Why::Place),
            Some(_) => Ok(()),
        }
    }

    /// Writes a message that follows one of the turn `last`.
    fn message(&mut self, chat: &'a Chat, last: Option<&Turn>) -> Result<&'a Turn, Why> {
        if self.reader.peek()? != b'{' {
            return Err(Why::Prompt);
        }
        self.reader.step();
        let (mut opening, mut content, mut turn, mut calls) = (true, Content::Absent, None, None);
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                b"role" if turn.is_some() => return Err(Why::Twice),
                b"role" => turn = Some(self.role(chat, last)?),
                b"content" if content != Content::Absent => return Err(Why::Twice),
                b"content" => content = self.content_or_place(chat, turn)?,
                b"tool_calls" if calls.is_some() => return Err(Why::Twice),
                b"tool_calls" => calls = self.place_unless_null()?,
                name => {
                    let ends = ends_message(name);
                    if self.reader.skip()?
                        && let Some(why) = ends
                    {
                        return Err(why);
                    }
                }
            }
        }
        let turn = turn.ok_or(Why::Role)?;
        let written = match content {
            Content::Absent => Written::Nothing,
            Content::At(place) => self.at(place, |writer| writer.content(chat, turn))?,
            Content::There(written) => written,
        };
        let calls = match calls {
            Some(place) => self.at(place, |writer| writer.calls(turn, written))?,
            None => None,
        };
        let stands = written == Written::Text || written == Written::Empty && turn.empty;
        if calls.is_none() && !stands {
            return Err(Why::Empty);
        }
        (self.after, self.called) = (calls.map_or(&turn.after, |calls| &calls.after), calls.is_some());
        Ok(turn)
    }

    /// Reads what was skipped at `place`, and comes back.
    pub(super) fn at<T>(&mut self, place: usize, read: impl FnOnce(&mut Self) -> Result<T, Why>) -> Result<T, Why> {
        let behind = self.reader.at();
        self.reader.go_to(place);
        let read = read(self)?;
        self.reader.go_to(behind);
        Ok(read)
    }

    /// Reads the role of a message, and writes the text before its content.
    fn role(&mut self, chat: &'a Chat, last: Option<&Turn>) -> Result<&'a Turn, Why> {
        if self.reader.peek()? != b'"' {
            return Err(Why::Role);
        }
        let role = self.reader.word(self.word)?;
        let turn = chat.turns.iter().find(|turn| Some(&*turn.role) == role).ok_or(Why::Role)?;
        if turn.place == Place::Nowhere || turn.place == Place::First && last.is_some() {
            return Err(Why::Place);
        }
        let joined = turn.joined.as_deref().filter(|_| last.is_some_and(|last| last.role == turn.role));
        match joined {
            // A turn does not say whether a message with calls is joined, too.
            Some(_) if self.called => return Err(Why::Message),
            Some(joined) => self.page.put(joined),
            None => {
                self.page.put(self.after);
                if last.is_none() && &*turn.role != b"system" {
                    self.page.put(&chat.without_system);
                }
                self.page.put(&turn.before);
            }
        }
        Ok(turn)
    }

    fn content_or_place(&mut self, chat: &Chat, turn: Option<&Turn>) -> Result<Content, Why> {
        if let Some(turn) = turn {
            return Ok(Content::There(self.content(chat, turn)?));
        }
        let place = self.reader.at();
        self.reader.skip()?;
        Ok(Content::At(place))
    }

    fn place_unless_null(&mut self) -> Result<Option<usize>, Why> {
        let place = self.reader.at();
        Ok(self.reader.skip()?.then_some(place))
    }

    fn content(&mut self, chat: &Chat, turn: &Turn) -> Result<Written, Why> {
        let before = self.page.bytes();
        let (reader, word) = (&mut self.reader, &mut *self.word);
        let (is_there, is_blank) = if !turn.trims && turn.stops.is_empty() {
            (texts(reader, word, chat, turn, self.page)?, false)
        } else {
            let mut sieved = self.sieve.over(self.page, turn);
            let is_there = texts(reader, word, chat, turn, &mut sieved)?;
            (is_there, sieved.end()?)
        };
        match self.page.bytes() > before {
            true => Ok(Written::Text),
            // It was only white space, and nothing is left.
            false if is_blank => Err(Why::Empty),
            false if is_there => Ok(Written::Empty),
            false => Ok(Written::Nothing),
        }
    }
}

/// Returns why the form ends if a message has this field, other than null: templates write it, and it is neither
/// content nor calls.
fn ends_message(name: &[u8]) -> Option<Why> {
    match Inner::of(name) {
        Inner::Raw if name == b"tool_call_id" => None,
        Inner::Raw | Inner::Content => Some(Why::Message),
        Inner::Media => Some(Why::Media),
        // The tools of a developer's message.
        _ => (name == b"tools").then_some(Why::Message),
    }
}

/// Gives `taker` a content: a text, or parts, or nothing. True if there is any text, even an empty one.
fn texts(reader: &mut Reader, word: &mut Word, chat: &Chat, turn: &Turn, taker: &mut impl Taker) -> Result<bool, Why> {
    match reader.peek()? {
        b'"' => {
            reader.string(taker)?;
            Ok(true)
        }
        b'[' => {
            reader.step();
            let (mut opening, mut parts) = (true, 0);
            while reader.element(&mut opening)? {
                if parts > 0 && turn.lone {
                    return Err(Why::Parts);
                }
                taker.take(if parts > 0 { &chat.joint } else { &[] });
                part(reader, word, taker)?;
                parts += 1;
            }
            Ok(parts > 0)
        }
        b'{' => Err(Why::Prompt),
        _ if reader.scalar()? == b"null" => Ok(false),
        _ => Err(Why::Prompt),
    }
}

/// Gives `taker` one part of a content: a text, bare or with its type.
fn part(reader: &mut Reader, word: &mut Word, taker: &mut impl Taker) -> Result<(), Why> {
    match reader.peek()? {
        b'"' => return Ok(reader.string(taker)?),
        b'{' => reader.step(),
        _ => return Err(Why::Prompt),
    }
    let (mut opening, mut has_type, mut has_text) = (true, false, false);
    while let Some(name) = reader.key(&mut opening, word)? {
        match name {
            b"type" | b"text" if reader.peek()? != b'"' => return Err(Why::Prompt),
            b"type" if has_type => return Err(Why::Twice),
            b"type" => {
                has_type = true;
                if !matches!(reader.word(word)?, Some(b"text" | b"input_text" | b"output_text")) {
                    return Err(Why::Media);
                }
            }
            b"text" if has_text => return Err(Why::Twice),
            b"text" => {
                has_text = true;
                reader.string(taker)?;
            }
            name => {
                let ends = Inner::of(name) == Inner::Media;
                if reader.skip()? && ends {
                    return Err(Why::Media);
                }
            }
        }
    }
    if has_type && has_text { Ok(()) } else { Err(Why::Prompt) }
}
