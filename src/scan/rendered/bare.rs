//! Prompts that are no chats: a text, or token ids.

use super::super::words::Scalar;
use super::{Why, Writer};
use crate::vocabulary::{Lead, Run};

impl Writer<'_> {
    /// Writes the value of `prompt`; of several prompts the first.
    pub(super) fn prompt(&mut self) -> Result<(), Why> {
        self.page.clear();
        match self.reader.peek()? {
            b'"' => self.bare_text()?,
            b'[' => self.list()?,
            _ => return Err(Why::Prompt),
        }
        self.page.keep();
        Ok(())
    }

    /// Writes a text, after the tokens that the tokenizer puts before it.
    fn bare_text(&mut self) -> Result<(), Why> {
        let vocabulary = &*self.form.vocabulary;
        let ids = if self.said.begins() { vocabulary.begins() } else { &[] };
        for &id in ids {
            self.page.put(vocabulary.text(id).ok_or(Why::Token)?);
        }
        if vocabulary.lead() == Lead::First {
            self.page.lead();
        }
        Ok(self.reader.string(self.page)?)
    }

    /// Writes token ids, or the first of several prompts of one kind.
    fn list(&mut self) -> Result<(), Why> {
        self.reader.step();
        let mut opening = true;
        if !self.reader.element(&mut opening)? {
            return Err(Why::Prompt);
        }
        let kind = self.reader.peek()?;
        match kind {
            b'"' => self.bare_text()?,
            b'[' => {
                self.reader.step();
                if !self.reader.element(&mut true)? {
                    return Err(Why::Prompt);
                }
                self.ids()?;
            }
            _ => return self.ids(),
        }
        while self.reader.element(&mut opening)? {
            if self.reader.peek()? != kind {
                return Err(Why::Prompt);
            }
            self.reader.skip()?;
        }
        Ok(())
    }

    /// Writes token ids up to the end of their list, which has at least one.
    fn ids(&mut self) -> Result<(), Why> {
        let (form, mut run, mut opening) = (self.form, Run::begin(&self.form.vocabulary), false);
        loop {
            let written = self.reader.token_ids(self.ids);
            let (ids, _) = self.ids.as_chunks::<4>();
            for id in ids.iter().take(written) {
                let text = run.text(&form.vocabulary, u32::from_le_bytes(*id));
                if text.is_none() {
                    self.page.keep();
                }
                self.page.put(text.ok_or(Why::Token)?);
            }
            if written > 0 {
                continue;
            }
            if matches!(self.reader.peek()?, b'"' | b'[' | b'{') {
                return Err(Why::Prompt);
            }
            let mut scalar = Scalar::new();
            scalar.put(self.reader.scalar()?);
            let id = scalar.integer().and_then(|id| u32::try_from(id).ok());
            let text = id.and_then(|id| run.text(&form.vocabulary, id));
            if text.is_none() {
                self.page.keep();
            }
            self.page.put(text.ok_or(Why::Token)?);
            if !self.reader.element(&mut opening)? {
                return Ok(());
            }
        }
    }
}
