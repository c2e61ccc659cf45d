//! The chunked coding (RFC 9112 section 7), decoded in place.
//!
//! [`Chunked::next`] takes the bytes at hand and says of a leading part of them what it is. Size lines in their
//! plainest form, data, and the line ends around them may be passed on as they are, in one range. Everything that
//! another parser might read differently (extensions, leading zeros, trailers, a size line cut in two) is taken out,
//! and written anew in its plainest form.

use super::class::{HEX, VALUE, is};
use super::digits::{HEX_DIGITS_MAX, HEX_MAX, hex_push};
use super::fields::{FieldTable, Fields, Known, parse_fields};
use super::reply::{Cause, Fault};
use super::rewrite::write_field;

/// Most bytes of chunk extensions in one body. No known client or engine sends any.
pub const EXTENSION_BYTES_MAX: u16 = 4 << 10;
/// Most bytes of one trailer section.
pub const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Most fields of one trailer section.
pub const TRAILER_FIELDS_MAX: usize = 32;

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What the first `len` bytes given to `next` are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// How many bytes it takes. 0 only for no bytes, or after the end.
    pub len: usize,
    /// What they are.
    pub kind: Kind,
}

/// Kinds of parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// They may be passed on as they are. The body's own bytes among them are `start..end`; before and after these are
    /// size lines and line ends, at the end perhaps the whole last chunk.
    Pass {
        /// Where the body's bytes start.
        start: usize,
        /// Where the body's bytes end.
        end: usize,
    },
    /// The rest of a size line that must not be passed on: a [`SizeLine`] of this size takes its place.
    Size(u64),
    /// They must not be passed on, and nothing takes their place.
    Drop,
    /// They must not be passed on; [`Chunked::write_end`] takes their place. The body is over.
    End,
}

impl Part {
    /// Returns the body's own bytes among `bytes`, the slice that was given to `next`.
    pub fn data<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        match self.kind {
            Kind::Pass { start, end } => bytes.get(start..end).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Returns the bytes that may be passed on as they are.
    pub fn raw<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        match self.kind {
            Kind::Pass { .. } => bytes.get(..self.len).unwrap_or_default(),
            _ => &[],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// At the first byte of a size line.
    Start,
    /// Among a size line's digits, all of which are in `left`.
    Digits,
    /// After its `;`.
    Extension,
    /// After its CR.
    SizeLf,
    /// `left` bytes of data are to come.
    Data,
    /// The line end after the data.
    DataCr,
    DataLf,
    /// After the last chunk's size line.
    Trailers,
    Done,
    Failed,
}

#[derive(Debug, Default)]
struct Trailers {
    /// The section as it came.
    raw: Vec<u8>,
    /// The lines that are passed on.
    kept: Vec<u8>,
}

/// A chunked body, as far as it has come.
#[derive(Debug)]
pub struct Chunked {
    left: u64,
    trailers: Option<Box<Trailers>>,
    extension_bytes: u16,
    digits: u8,
    state: State,
}

impl Default for Chunked {
    fn default() -> Self {
        Chunked::new()
    }
}

impl Chunked {
    /// Makes a body of which nothing has come.
    pub const fn new() -> Chunked {
        Chunked { left: 0, trailers: None, extension_bytes: 0, digits: 0, state: State::Start }
    }

    /// Whether a size line is next: no chunk is unfinished.
    pub fn at_start(&self) -> bool {
        self.state == State::Start
    }

    /// Whether the whole body has come.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Says what a leading part of `bytes` is. Call again with the bytes after it until [`Chunked::done`]; bytes after
    /// the body's end are not looked at. A fault stays, and is returned only after all parts that came before it.
    #[inline]
    pub fn next(&mut self, bytes: &[u8]) -> Result<Part, Fault> {
        let part = match self.state {
            State::Data => Ok(self.data(bytes, 0)),
            State::Start | State::DataCr | State::DataLf => self.chunk(bytes),
            State::Digits | State::Extension | State::SizeLf => self.size_line(bytes),
            State::Trailers => self.trailers(bytes),
            State::Done => Ok(pass(0, 0, 0)),
            State::Failed => Err(Fault::new(Cause::BadChunk, "a chunked body that is malformed")),
        };
        if part.is_err() {
            self.state = State::Failed;
        }
        part
    }

    /// Reads the line end of the last chunk, a size line, and as much of the data as there is.
    #[inline]
    fn chunk(&mut self, bytes: &[u8]) -> Result<Part, Fault> {
        let mut at = 0;
        if self.state != State::Start {
            at = self.data_end(bytes, 0);
            if self.state != State::Start {
                return match at < bytes.len() && at == 0 {
                    true => Err(Fault::new(Cause::BadChunk, "chunk data is longer than its size")),
                    false => Ok(pass(at, at, at)),
                };
            }
        }
        let rest = bytes.get(at..).unwrap_or_default();
        if let Some((len, size)) = plain_size_line(rest) {
            self.left = size;
            self.state = State::Data;
            return Ok(self.data(bytes, at + len));
        }
        if rest.starts_with(LAST_CHUNK) {
            self.state = State::Done;
            return Ok(pass(at + LAST_CHUNK.len(), at, at));
        }
        // The line end that is certain is passed on first, so that it is never held back or taken out.
        if at > 0 { Ok(pass(at, at, at)) } else { self.size_line(bytes) }
    }

    /// Reads data from `start` on, and the line end after it.
    #[inline]
    fn data(&mut self, bytes: &[u8], start: usize) -> Part {
        let there = bytes.len().saturating_sub(start);
        let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(there);
        self.left -= taken as u64;
        let end = start + taken;
        if self.left > 0 {
            return pass(end, start, end);
        }
        self.state = State::DataCr;
        pass(self.data_end(bytes, end), start, end)
    }

    /// Reads as much of the line end after data as there is at `at`; other bytes are left for the next call.
    #[inline]
    fn data_end(&mut self, bytes: &[u8], mut at: usize) -> usize {
        if self.state == State::DataCr && bytes.get(at) == Some(&b'\r') {
            self.state = State::DataLf;
            at += 1;
        }
        if self.state == State::DataLf && bytes.get(at) == Some(&b'\n') {
            self.state = State::Start;
            at += 1;
        }
        at
    }

    /// Reads a size line byte by byte: one that is cut in two, or not in its plainest form, or the last.
    #[cold]
    fn size_line(&mut self, bytes: &[u8]) -> Result<Part, Fault> {
        let fault = |message| Err(Fault::new(Cause::BadChunk, message));
        if self.state == State::Start {
            self.left = 0;
            self.digits = 0;
        }
        for (at, &byte) in bytes.iter().enumerate() {
            match (self.state, byte) {
                (State::Start | State::Digits, _) if HEX[usize::from(byte)] < 16 => {
                    self.digits += 1;
                    self.left = match hex_push(self.left, byte) {
                        Some(size) if usize::from(self.digits) <= HEX_DIGITS_MAX => size,
                        _ => return fault("a chunk size is too large"),
                    };
                    self.state = State::Digits;
                }
                (State::Digits, b';') => self.state = State::Extension,
                (State::Digits | State::Extension, b'\r') => self.state = State::SizeLf,
                (State::Extension, _) if is(&VALUE, byte) => {}
                (State::Extension, _) => return fault("a control character in a chunk extension"),
                (State::SizeLf, b'\n') => {
                    self.digits = 0;
                    let last = self.left == 0;
                    self.state = if last { State::Trailers } else { State::Data };
                    return Ok(Part { len: at + 1, kind: if last { Kind::Drop } else { Kind::Size(self.left) } });
                }
                (State::SizeLf, _) => return fault("a CR without its LF in a chunk size line"),
                _ => return fault("a chunk size is not a hexadecimal number"),
            }
            if self.state == State::Extension {
                self.extension_bytes += 1;
                if self.extension_bytes > EXTENSION_BYTES_MAX {
                    return fault("too many bytes of chunk extensions");
                }
            }
        }
        Ok(Part { len: bytes.len(), kind: Kind::Drop })
    }

    /// Reads the trailer section up to its blank line, and keeps it until it is all there.
    #[cold]
    fn trailers(&mut self, bytes: &[u8]) -> Result<Part, Fault> {
        if bytes.is_empty() {
            return Ok(Part { len: 0, kind: Kind::Drop });
        }
        let held = self.trailers.get_or_insert_default();
        let before = held.raw.len();
        let fresh = bytes.get(..TRAILER_BYTES_MAX.saturating_sub(before)).unwrap_or(bytes);
        held.raw.extend_from_slice(fresh);
        let mut table = FieldTable::default();
        match parse_fields(&held.raw, 0, &mut table, TRAILER_FIELDS_MAX) {
            Err(fault) => Err(Fault::new(Cause::BadTrailers, fault.message)),
            Ok(None) if held.raw.len() >= TRAILER_BYTES_MAX => {
                Err(Fault::new(Cause::BadTrailers, "the trailer section is too large"))
            }
            Ok(None) => Ok(Part { len: fresh.len(), kind: Kind::Drop }),
            Ok(Some(end)) => {
                for (name, value, known) in Fields::of(&held.raw, &table).iter() {
                    if known == Known::Other && may_trail(name) {
                        write_field(&mut held.kept, name, value);
                    }
                }
                held.raw = Vec::new();
                self.state = State::Done;
                Ok(Part { len: end.saturating_sub(before), kind: Kind::End })
            }
        }
    }

    /// Appends the last chunk and the trailers that may be passed on.
    pub fn write_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"0\r\n");
        if let Some(trailers) = &self.trailers {
            out.extend_from_slice(&trailers.kept);
        }
        out.extend_from_slice(b"\r\n");
    }
}

const fn pass(len: usize, start: usize, end: usize) -> Part {
    Part { len, kind: Kind::Pass { start, end } }
}

/// Reads a size line that is just as [`SizeLine`] writes it; returns its length and the size.
#[inline]
fn plain_size_line(bytes: &[u8]) -> Option<(usize, u64)> {
    let mut size = 0u64;
    let mut digits = 0;
    // 2^53 has 14 digits.
    for &byte in bytes.iter().take(14) {
        let digit = HEX[usize::from(byte)];
        // Capitals (without the bit 0x20) are not plain, so that the bytes sent on never depend on where the input was
        // cut.
        if digit > 15 || byte & 0x20 == 0 {
            break;
        }
        size = (size << 4) | u64::from(digit);
        digits += 1;
    }
    let plain = bytes.first() != Some(&b'0') && digits > 0 && size <= HEX_MAX;
    let ends = bytes.get(digits..digits + 2) == Some(b"\r\n");
    (plain && ends).then_some((digits + 2, size))
}

/// Whether a field may be in a trailer. RFC 9110 section 6.5.1: no field that is needed for framing, routing,
/// authentication, request modifiers, response controls or content format. Those in [`Known`] were sorted out already.
fn may_trail(name: &[u8]) -> bool {
    const STARTS: [&[u8]; 6] = [b"content-", b"proxy-", b"x-forwarded-", b"if-", b"sec-", b"access-control-"];
    const NAMES: [&[u8]; 22] = [
        b"accept",
        b"age",
        b"api-key",
        b"authorization",
        b"cache-control",
        b"cookie",
        b"date",
        b"expires",
        b"forwarded",
        b"location",
        b"max-forwards",
        b"origin",
        b"pragma",
        b"range",
        b"retry-after",
        b"server",
        b"set-cookie",
        b"vary",
        b"via",
        b"warning",
        b"www-authenticate",
        b"x-api-key",
    ];
    let starts = |start: &&[u8]| name.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start));
    !STARTS.iter().any(starts) && !NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// A size line written without allocation.
#[derive(Clone, Copy, Debug)]
pub struct SizeLine {
    bytes: [u8; 18],
    start: u8,
}

impl SizeLine {
    /// Makes the line of a chunk of `size` bytes. `size` is not 0: that would be the last chunk.
    pub fn new(size: u64) -> SizeLine {
        debug_assert!(size != 0, "a chunk of 0 bytes ends the body");
        let mut bytes = [0; 18];
        let mut left = size;
        let mut start = 16;
        for (place, slot) in bytes.iter_mut().enumerate().take(16).rev() {
            *slot = b"0123456789abcdef"[(left & 15) as usize];
            start = place;
            left >>= 4;
            if left == 0 {
                break;
            }
        }
        bytes[16] = b'\r';
        bytes[17] = b'\n';
        SizeLine { bytes, start: start as u8 }
    }

    /// Returns its bytes, CRLF included.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(usize::from(self.start)..).unwrap_or_default()
    }
}
