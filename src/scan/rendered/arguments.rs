//! Arguments of a call: the text of a JSON object, written as Python's `json.dumps(…, ensure_ascii=False)` writes what
//! `json.loads` has read. If the result is not certain, they are refused.

use super::super::Fault;
use super::super::kernel::{Kernel, unicode_escape, wtf8};
use super::super::reader::Reader;
use super::super::text::Taker;
use super::Why;
use super::page::Page;
use crate::limits::{ARGUMENTS_BYTES_MAX, ARGUMENTS_DEPTH_MAX, ARGUMENTS_KEYS_MAX};

/// Writes arguments, one after the other.
pub(super) struct Arguments {
    kernel: &'static Kernel,
    text: Text,
    names: Names,
}

impl Arguments {
    pub fn new(kernel: &'static Kernel) -> Arguments {
        let text = Text { bytes: vec![0; ARGUMENTS_BYTES_MAX].into_boxed_slice(), length: 0, over: false };
        let names = Names { hashes: [0; ARGUMENTS_KEYS_MAX], length: 0, begins: [0; ARGUMENTS_DEPTH_MAX] };
        Arguments { kernel, text, names }
    }

    /// Writes the value that is next in `reader`: a text that is JSON, or the object itself. Null, and an empty text,
    /// count as an object without keys.
    pub fn write(&mut self, reader: &mut Reader<'_>, page: &mut Page) -> Result<(), Why> {
        match reader.peek()? {
            b'"' => {
                (self.text.length, self.text.over) = (0, false);
                reader.string(&mut self.text)?;
                // Engines differ in what they make of a text that is no JSON.
                self.write_text(page).map_err(|_| Why::Call)
            }
            b'{' => object(reader, &mut self.names, page),
            b'n' if !reader.skip()? => {
                page.put(b"{}");
                Ok(())
            }
            _ => Err(Why::Call),
        }
    }

    fn write_text(&mut self, page: &mut Page) -> Result<(), Why> {
        let text = self.text.get().ok_or(Why::Call)?;
        if text.is_empty() {
            page.put(b"{}");
            return Ok(());
        }
        let mut reader = Reader::new(self.kernel, text);
        if reader.peek()? != b'{' {
            return Err(Why::Call);
        }
        object(&mut reader, &mut self.names, page)?;
        Ok(reader.body_ends()?)
    }
}

/// A text while it is decoded.
struct Text {
    bytes: Box<[u8]>,
    length: usize,
    over: bool,
}

impl Text {
    /// Returns the text; `None`: it is too long, or contains a lone surrogate, which cannot be sent on.
    fn get(&self) -> Option<&[u8]> {
        let text = self.bytes.get(..self.length).filter(|_| !self.over)?;
        let is_half = |place: usize| text.get(place + 1).is_some_and(|next| *next >= 0xa0);
        (!memchr::memchr_iter(0xed, text).any(is_half)).then_some(text)
    }
}

impl Taker for Text {
    fn take(&mut self, run: &[u8]) -> usize {
        match self.bytes.get_mut(self.length..self.length + run.len()) {
            Some(free) => {
                free.copy_from_slice(run);
                self.length += run.len();
            }
            None => self.over = true,
        }
        run.len()
    }

    fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.length..).unwrap_or_default()
    }

    fn written(&mut self, length: usize) {
        self.length += length;
    }
}

/// Hashes of the keys of all objects that are open.
struct Names {
    hashes: [u32; ARGUMENTS_KEYS_MAX],
    length: usize,
    /// Where the hashes of each open bracket's keys begin.
    begins: [usize; ARGUMENTS_DEPTH_MAX],
}

impl Names {
    /// Adds a key of the innermost object, at this depth; one that is there already, or seems to be, is refused.
    fn add(&mut self, depth: usize, hash: u32) -> Result<(), Why> {
        let begin = depth.checked_sub(1).and_then(|depth| self.begins.get(depth)).ok_or(Why::Call)?;
        let own = self.hashes.get(*begin..self.length).unwrap_or_default();
        // Without an early end, so that several are compared at once.
        if own.iter().fold(false, |found, other| found | (*other == hash)) {
            return Err(Why::Call);
        }
        *self.hashes.get_mut(self.length).ok_or(Why::Call)? = hash;
        self.length += 1;
        Ok(())
    }
}

/// The open brackets. A bit of `objects` is set for an object, the lowest for the innermost bracket.
#[derive(Default)]
struct Open {
    depth: usize,
    objects: u64,
}

const _: () = assert!(ARGUMENTS_DEPTH_MAX <= 64, "a bit for each level");

/// Writes the object that begins here.
fn object(reader: &mut Reader<'_>, names: &mut Names, page: &mut Page) -> Result<(), Why> {
    names.length = 0;
    let (mut open, mut first) = (Open::default(), true);
    loop {
        match reader.peek()? {
            bracket @ (b'{' | b'[') => {
                reader.step();
                page.put(&[bracket]);
                *names.begins.get_mut(open.depth).ok_or(Why::Call)? = names.length;
                open = Open { depth: open.depth + 1, objects: open.objects << 1 | u64::from(bracket == b'{') };
                first = true;
            }
            b'"' => text(reader, |run| page.put(run))?,
            _ => {
                let scalar = reader.scalar()?;
                if !matches!(scalar, b"true" | b"false" | b"null") && !is_plain(scalar) {
                    return Err(Why::Call);
                }
                page.put(scalar);
            }
        }
        if !next(reader, names, page, &mut open, &mut first)? {
            return Ok(());
        }
    }
}

/// Goes on to the next value, past brackets that close before it; false if there is none.
fn next(
    reader: &mut Reader<'_>,
    names: &mut Names,
    page: &mut Page,
    open: &mut Open,
    first: &mut bool,
) -> Result<bool, Why> {
    while open.depth > 0 {
        let (was_first, is_object) = (*first, open.objects & 1 == 1);
        if if is_object { reader.member(first)? } else { reader.element(first)? } {
            page.put(if was_first { b"" } else { b", " });
            if is_object {
                let mut hash = FNV_BASIS;
                text(reader, |run| {
                    hash = run.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
                    page.put(run);
                })?;
                names.add(open.depth, (hash ^ hash >> 32) as u32)?;
                reader.colon()?;
                page.put(b": ");
            }
            return Ok(true);
        }
        page.put(if is_object { b"}" } else { b"]" });
        *open = Open { depth: open.depth - 1, objects: open.objects >> 1 };
        names.length = names.begins.get(open.depth).copied().unwrap_or_default();
    }
    Ok(false)
}

/// Gives `put` the string whose quote is next, as Python writes it, quotes included. Most escapes stay as they are.
fn text(reader: &mut Reader<'_>, mut put: impl FnMut(&[u8])) -> Result<(), Why> {
    let (kernel, bytes) = (reader.kernel(), reader.rest());
    let (mut from, mut at) = (0, 1);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let run = kernel.text_run(rest);
        at += run;
        let written = bytes.get(from..at).unwrap_or_default();
        let rest = rest.get(run..).unwrap_or_default();
        match rest {
            [b'"', ..] => {
                put(bytes.get(from..=at).unwrap_or_default());
                reader.skip_bytes(at + 1);
                return Ok(());
            }
            [b'\\', b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't', ..] => at += 2,
            [b'\\', b'/', ..] => {
                put(written);
                (from, at) = (at + 1, at + 2);
            }
            [b'\\', b'u', ..] => {
                put(written);
                let (used, point) = unicode_escape(rest).ok_or(Why::Call)?;
                put_point(point, &mut put)?;
                at += used;
                from = at;
            }
            [b'\\', _, ..] => return Err(Fault::Escape.into()),
            [] | [b'\\'] => return Err(Fault::Truncated.into()),
            _ => return Err(Fault::Control.into()),
        }
    }
}

fn put_point(point: u32, put: &mut impl FnMut(&[u8])) -> Result<(), Why> {
    let short: &[u8] = match point {
        0x08 => b"\\b",
        0x09 => b"\\t",
        0x0a => b"\\n",
        0x0c => b"\\f",
        0x0d => b"\\r",
        0x22 => b"\\\"",
        0x5c => b"\\\\",
        0..0x20 => {
            let digit = |nibble: u32| b"0123456789abcdef"[(nibble & 15) as usize];
            put(&[b'\\', b'u', b'0', b'0', digit(point >> 4), digit(point)]);
            return Ok(());
        }
        0xd800..0xe000 => return Err(Why::Call),
        _ => {
            let (bytes, length) = wtf8(point);
            put(bytes.get(..length).unwrap_or_default());
            return Ok(());
        }
    };
    put(short);
    Ok(())
}

/// Whether Python writes this number with the same digits: whole ones, and fractions whose digits are exactly those of
/// a double and that it writes without an exponent.
fn is_plain(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, part) = digits.split_at(point);
    if !are_digits(whole) || whole.len() > 1 && whole.starts_with(b"0") {
        return false;
    }
    let Some(part) = part.strip_prefix(b".") else {
        return number != b"-0" && whole.len() <= WHOLE_DIGITS_MAX;
    };
    if !are_digits(part) || part.ends_with(b"0") && part != b"0" {
        return false;
    }
    let zeros = part.iter().take_while(|byte| **byte == b'0').count();
    let leading = if whole == b"0" { 1 + zeros } else { 0 };
    let is_small = whole == b"0" && part != b"0" && zeros > SMALL_ZEROS_MAX;
    !is_small && whole.len() + part.len() - leading <= FRACTION_DIGITS_MAX
}

/// Most digits of a whole number: Python refuses more than 4,300.
const WHOLE_DIGITS_MAX: usize = 4_000;
/// Most digits of a fraction: a double keeps as many, and Python writes an exponent only for more.
const FRACTION_DIGITS_MAX: usize = 15;
/// Most zeros after the point of a fraction that Python writes without an exponent.
const SMALL_ZEROS_MAX: usize = 3;

/// FNV-1a: keys are short.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
