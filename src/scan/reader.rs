//! A cursor over a body that is all there: as strict as [`super::machine`] about what it looks at, as blind to what it
//! skips.

use std::ops::Range;

use super::Fault;
use super::kernel::{Kernel, Skip, ends_scalar, is_scalar, white_space};
use super::text::{Decoder, Ended, Taker};
use super::words::Word;

/// A place in a body.
pub(super) struct Reader<'a> {
    kernel: &'static Kernel,
    body: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Makes a reader before the body's first byte.
    pub fn new(kernel: &'static Kernel, body: &'a [u8]) -> Self {
        Reader { kernel, body, at: 0 }
    }

    /// Returns the offset of the next byte, to come back to.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes to an offset where the reader has been.
    pub fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Returns the bytes in this range.
    pub fn between(&self, places: Range<usize>) -> &'a [u8] {
        self.body.get(places).unwrap_or_default()
    }

    /// Returns the kernel that it reads with.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Returns the bytes that were not used yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.body.get(self.at..).unwrap_or_default()
    }

    /// Goes past white space and returns the next byte, without using it.
    #[inline]
    pub fn peek(&mut self) -> Result<u8, Fault> {
        if let Some(&byte) = self.body.get(self.at)
            && byte > b' '
        {
            return Ok(byte);
        }
        self.at += white_space(self.rest());
        self.body.get(self.at).copied().ok_or(Fault::Truncated)
    }

    /// Uses the byte that [`Reader::peek`] returned.
    #[inline]
    pub fn step(&mut self) {
        self.at += 1;
    }

    /// Uses so many bytes of the rest.
    pub fn skip_bytes(&mut self, length: usize) {
        self.at += length;
    }

    /// Uses the bracket that the body begins with, and a byte order mark before it.
    pub fn body_begins(&mut self) -> Result<(), Fault> {
        if self.body.is_empty() {
            return Err(Fault::Empty);
        }
        self.at = if self.body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        if self.peek()? != b'{' {
            return Err(Fault::NotObject);
        }
        self.step();
        Ok(())
    }

    /// Checks that only white space is left.
    pub fn body_ends(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Err(_) => Ok(()),
            Ok(_) => Err(Fault::Trailing),
        }
    }

    /// Reads the next key of an object and its colon; `None` if the object closes. A key that is too long is returned
    /// as an empty one.
    #[inline]
    pub fn key<'w>(&mut self, first: &mut bool, word: &'w mut Word) -> Result<Option<&'w [u8]>, Fault>
    where
        'a: 'w,
    {
        if !self.member(first)? {
            return Ok(None);
        }
        let name = self.word(word)?;
        self.colon()?;
        Ok(Some(name.unwrap_or_default()))
    }

    /// Whether an object has a further key, whose quote is then the next byte; if not, it is closed.
    #[inline]
    pub fn member(&mut self, first: &mut bool) -> Result<bool, Fault> {
        if !self.goes_on(first, b'}')? {
            return Ok(false);
        }
        if self.peek()? == b'"' { Ok(true) } else { Err(Fault::Syntax) }
    }

    /// Uses the colon after a key.
    #[inline]
    pub fn colon(&mut self) -> Result<(), Fault> {
        if self.peek()? != b':' {
            return Err(Fault::Syntax);
        }
        self.step();
        Ok(())
    }

    /// Whether an array has a further element; if not, it is closed.
    #[inline]
    pub fn element(&mut self, first: &mut bool) -> Result<bool, Fault> {
        self.goes_on(first, b']')
    }

    #[inline]
    fn goes_on(&mut self, first: &mut bool, close: u8) -> Result<bool, Fault> {
        let was_first = std::mem::replace(first, false);
        let byte = self.peek()?;
        if byte == close {
            self.step();
            return Ok(false);
        }
        if was_first {
            return Ok(true);
        }
        if byte != b',' {
            return Err(Fault::Syntax);
        }
        self.step();
        // A comma needs a following value.
        if self.peek()? == close { Err(Fault::Syntax) } else { Ok(true) }
    }

    /// Reads and decodes the string whose quote is next; `None`: it is too long to be kept.
    pub fn word<'w>(&mut self, word: &'w mut Word) -> Result<Option<&'w [u8]>, Fault>
    where
        'a: 'w,
    {
        self.step();
        let rest = self.rest();
        let run = self.kernel.text_run(rest);
        if rest.get(run) == Some(&b'"') {
            self.at += run + 1;
            return Ok(rest.get(..run).filter(|name| name.len() <= super::MODEL_BYTES_MAX));
        }
        word.clear();
        self.decode(word)?;
        Ok(word.get())
    }

    /// Reads and decodes a string of any length.
    #[inline]
    pub fn string(&mut self, taker: &mut impl Taker) -> Result<(), Fault> {
        self.step();
        self.decode(taker)
    }

    fn decode(&mut self, taker: &mut impl Taker) -> Result<(), Fault> {
        let (used, ended) = Decoder::default().decode(self.kernel, self.rest(), taker);
        self.at += used;
        match ended {
            Ended::Quote => Ok(()),
            Ended::Fault(fault) => Err(fault),
            Ended::Piece | Ended::Full => Err(Fault::Truncated),
        }
    }

    /// Reads the number or literal that begins here.
    pub fn scalar(&mut self) -> Result<&'a [u8], Fault> {
        let rest = self.rest();
        let length = rest.iter().position(|&byte| !is_scalar(byte)).ok_or(Fault::Truncated)?;
        self.at += length;
        match rest.get(length) {
            Some(&behind) if length > 0 && ends_scalar(behind) => Ok(rest.get(..length).unwrap_or_default()),
            _ => Err(Fault::Syntax),
        }
    }

    /// Reads token ids with their commas, while they are plain numbers; returns how many were written, four bytes each.
    /// See [`Kernel::token_ids`].
    pub fn token_ids(&mut self, out: &mut [u8]) -> usize {
        let (used, written) = self.kernel.token_ids(self.rest(), out);
        self.at += used;
        written
    }

    /// Skips a value; true if it is other than `null`.
    pub fn skip(&mut self) -> Result<bool, Fault> {
        let mut skip = match self.peek()? {
            b'"' => Skip { depth: 0, in_string: true, escaped: false },
            b'{' | b'[' => Skip { depth: 1, in_string: false, escaped: false },
            _ => return Ok(self.scalar()? != b"null"),
        };
        self.step();
        self.at += self.kernel.skip(&mut skip, self.rest()).ok_or(Fault::Truncated)?;
        Ok(true)
    }
}
