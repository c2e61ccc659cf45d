//! Chats: message after message, each between the two texts of its role.

use super::super::fields::Inner;
use super::super::form::{Chat, Place, Turn};
use super::super::reader::Reader;
use super::super::text::Taker;
use super::super::words::Word;
use super::{Why, Writer};

/// Where a message's content stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Absent,
    /// Before its role: to come back to.
    At(usize),
    Written,
}

impl<'a> Writer<'a> {
    /// The value of `messages`. What is believed of it ends with the last whole message; what stands behind that is not written yet.
    pub(super) fn messages(&mut self) -> Result<(), Why> {
        self.page.clear();
        self.after = &[];
        let chat = self.form.chat.as_ref().ok_or(Why::Template)?;
        if self.reader.peek()? != b'[' {
            return Err(Why::Prompt);
        }
        self.reader.step();
        let ended = self.each_message(chat);
        if ended.is_err() && chat.turns.iter().any(|turn| matches!(turn.place, Place::First | Place::Nowhere)) {
            // What was not read may change all that was.
            self.page.clear();
        }
        ended
    }

    fn each_message(&mut self, chat: &'a Chat) -> Result<(), Why> {
        self.page.put(&chat.start);
        let (mut opening, mut last) = (true, None::<&Turn>);
        while self.reader.element(&mut opening)? {
            self.page.put(std::mem::take(&mut self.after));
            self.page.keep();
            last = Some(self.message(chat, last.is_none())?);
        }
        match last {
            None => Err(Why::Prompt),
            Some(Turn { place: Place::NotLast, .. }) => Err(Why::Place),
            Some(_) => Ok(()),
        }
    }

    fn message(&mut self, chat: &'a Chat, first: bool) -> Result<&'a Turn, Why> {
        if self.reader.peek()? != b'{' {
            return Err(Why::Prompt);
        }
        self.reader.step();
        let (mut opening, mut content, mut turn) = (true, Content::Absent, None);
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                b"role" if turn.is_some() => return Err(Why::Twice),
                b"role" => turn = Some(self.role(chat, first)?),
                b"content" if content != Content::Absent => return Err(Why::Twice),
                b"content" => content = self.content_or_place(chat, turn)?,
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
        match content {
            Content::Absent => return Err(Why::Empty),
            Content::At(place) => {
                let behind = self.reader.at();
                self.reader.go_to(place);
                self.content(chat, turn)?;
                self.reader.go_to(behind);
            }
            Content::Written => {}
        }
        self.after = &turn.after;
        Ok(turn)
    }

    /// The role of a message, and what stands before its content.
    fn role(&mut self, chat: &'a Chat, first: bool) -> Result<&'a Turn, Why> {
        if self.reader.peek()? != b'"' {
            return Err(Why::Role);
        }
        let role = self.reader.word(self.word)?;
        let turn = chat.turns.iter().find(|turn| Some(&*turn.role) == role).ok_or(Why::Role)?;
        if turn.place == Place::Nowhere || turn.place == Place::First && !first {
            return Err(Why::Place);
        }
        if first && &*turn.role != b"system" {
            self.page.put(&chat.without_system);
        }
        self.page.put(&turn.before);
        Ok(turn)
    }

    fn content_or_place(&mut self, chat: &Chat, turn: Option<&Turn>) -> Result<Content, Why> {
        if let Some(turn) = turn {
            self.content(chat, turn)?;
            return Ok(Content::Written);
        }
        let place = self.reader.at();
        self.reader.skip()?;
        Ok(Content::At(place))
    }

    fn content(&mut self, chat: &Chat, turn: &Turn) -> Result<(), Why> {
        let before = self.page.bytes();
        let (reader, word) = (&mut self.reader, &mut *self.word);
        if !turn.trims && turn.stops.is_empty() {
            texts(reader, word, chat, self.page)?;
        } else {
            let mut sieved = self.sieve.over(self.page, turn);
            texts(reader, word, chat, &mut sieved)?;
            sieved.end()?;
        }
        if self.page.bytes() == before { Err(Why::Empty) } else { Ok(()) }
    }
}

/// A field of a message that templates write, other than the content: where it says anything, the form ends.
fn ends_message(name: &[u8]) -> Option<Why> {
    match Inner::of(name) {
        Inner::Raw | Inner::Content => Some(Why::Message),
        Inner::Media => Some(Why::Media),
        // The tools of a developer's message.
        Inner::Role | Inner::Ignored => (name == b"tools").then_some(Why::Message),
    }
}

/// A content: a text, or parts, or nothing.
fn texts(reader: &mut Reader, word: &mut Word, chat: &Chat, taker: &mut impl Taker) -> Result<(), Why> {
    match reader.peek()? {
        b'"' => Ok(reader.string(taker)?),
        b'[' => {
            reader.step();
            let (mut opening, mut parts) = (true, 0);
            while reader.element(&mut opening)? {
                if parts > 0 && chat.lone {
                    return Err(Why::Parts);
                }
                taker.take(if parts > 0 { &chat.joint } else { &[] });
                part(reader, word, taker)?;
                parts += 1;
            }
            Ok(())
        }
        b'{' => Err(Why::Prompt),
        _ if reader.scalar()? == b"null" => Ok(()),
        _ => Err(Why::Prompt),
    }
}

/// One part of a content: a text, bare or with its type.
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
