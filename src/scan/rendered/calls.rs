//! Calls of tools in a message: names and arguments, each between the texts of its turn.

use super::super::form::{Calls, Turn};
use super::chat::Written;
use super::{Why, Writer};

impl<'a> Writer<'a> {
    /// Writes the value of `tool_calls`, after a content of which `content` was written. Returns the calls' texts;
    /// `None`: there are no calls.
    pub(super) fn calls(&mut self, turn: &'a Turn, content: Written) -> Result<Option<&'a Calls>, Why> {
        if self.reader.peek()? != b'[' {
            return Err(Why::Call);
        }
        self.reader.step();
        let mut opening = true;
        if !self.reader.element(&mut opening)? {
            return Ok(None);
        }
        let calls = turn.calls.as_ref().ok_or(Why::Message)?;
        let before = if content == Written::Text { &calls.behind } else { &calls.bare };
        self.page.put(before.as_ref().ok_or(Why::Message)?);
        loop {
            self.call(calls)?;
            if !self.reader.element(&mut opening)? {
                return Ok(Some(calls));
            }
            self.page.put(&calls.next);
        }
    }

    fn call(&mut self, calls: &Calls) -> Result<(), Why> {
        self.object()?;
        let (mut opening, mut called) = (true, false);
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                b"type" if self.reader.peek()? == b'"' => {
                    if self.reader.word(self.word)? != Some(b"function") {
                        return Err(Why::Call);
                    }
                }
                b"type" => return Err(Why::Call),
                b"function" if called => return Err(Why::Twice),
                b"function" => {
                    self.function(calls)?;
                    called = true;
                }
                _ => _ = self.reader.skip()?,
            }
        }
        if called { Ok(()) } else { Err(Why::Call) }
    }

    fn function(&mut self, calls: &Calls) -> Result<(), Why> {
        self.object()?;
        let (mut opening, mut named, mut given, mut early) = (true, false, false, None);
        while let Some(name) = self.reader.key(&mut opening, self.word)? {
            match name {
                b"name" if named => return Err(Why::Twice),
                b"name" => {
                    self.name()?;
                    self.page.put(&calls.arguments);
                    named = true;
                }
                b"arguments" if given => return Err(Why::Twice),
                b"arguments" => {
                    given = true;
                    if named {
                        self.arguments.write(&mut self.reader, self.page)?;
                    } else {
                        early = Some(self.reader.at());
                        self.reader.skip()?;
                    }
                }
                _ => _ = self.reader.skip()?,
            }
        }
        match early {
            _ if !named => return Err(Why::Call),
            Some(place) => self.at(place, |writer| writer.arguments.write(&mut writer.reader, writer.page))?,
            None if !given => self.page.put(b"{}"),
            None => {}
        }
        Ok(())
    }

    /// Writes the name of a tool. Names with other characters are refused, as templates may escape them.
    fn name(&mut self) -> Result<(), Why> {
        if self.reader.peek()? != b'"' {
            return Err(Why::Call);
        }
        let name = self.reader.word(self.word)?.filter(|name| !name.is_empty()).ok_or(Why::Call)?;
        if !name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')) {
            return Err(Why::Call);
        }
        self.page.put(name);
        Ok(())
    }

    fn object(&mut self) -> Result<(), Why> {
        if self.reader.peek()? != b'{' {
            return Err(Why::Call);
        }
        self.reader.step();
        Ok(())
    }
}
