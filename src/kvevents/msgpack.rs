//! Reads msgpack from a slice, one value after the other. Nothing is built from the values, and values of any depth are
//! skipped without recursion: the number of values still to come says where one ends.

use thiserror::Error;

/// Where a payload stops making sense, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("byte {at}: {what}")]
pub struct Malformed {
    /// Offset in the payload, in bytes.
    pub at: usize,
    /// What was expected there.
    pub what: &'static str,
}

/// A value without parts, or the beginning of an array or map.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Number(u64),
    /// A number below zero.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs of values follow.
    Map(u32),
    Extension,
}

/// A place in a payload.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns the bytes that were read since offset `from`.
    pub(super) fn since(&self, from: usize) -> &'a [u8] {
        self.bytes.get(from..self.at).unwrap_or_default()
    }

    /// Makes a fault at the next byte.
    pub(super) fn fault(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// Reads the next value. Of an array or a map this is the length, and its parts follow.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value<'a>, Malformed> {
        let began = self.at;
        self.form().map_err(|fault| {
            self.at = began;
            Malformed { at: began, ..fault }
        })
    }

    fn form(&mut self) -> Result<Value<'a>, Malformed> {
        let [first] = self.array()?;
        Ok(match first {
            0x00..=0x7f => Value::Number(first.into()),
            0x80..=0x8f => self.map(u32::from(first & 0x0f))?,
            0x90..=0x9f => self.list(u32::from(first & 0x0f))?,
            0xa0..=0xbf => Value::Text(self.take(usize::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return Err(self.fault("0xc1 begins no value")),
            0xc2 | 0xc3 => Value::Bool,
            0xc4 => self.sized(1).and_then(|length| self.take(length)).map(Value::Bytes)?,
            0xc5 => self.sized(2).and_then(|length| self.take(length)).map(Value::Bytes)?,
            0xc6 => self.sized(4).and_then(|length| self.take(length)).map(Value::Bytes)?,
            // An extension has a byte for its type before its bytes.
            0xc7 => self.sized(1).and_then(|length| self.take(length + 1)).map(|_| Value::Extension)?,
            0xc8 => self.sized(2).and_then(|length| self.take(length + 1)).map(|_| Value::Extension)?,
            0xc9 => self.sized(4).and_then(|length| self.take(length + 1)).map(|_| Value::Extension)?,
            0xca => Value::Float(f32::from_be_bytes(self.array()?).into()),
            0xcb => Value::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Value::Number(u8::from_be_bytes(self.array()?).into()),
            0xcd => Value::Number(u16::from_be_bytes(self.array()?).into()),
            0xce => Value::Number(u32::from_be_bytes(self.array()?).into()),
            0xcf => Value::Number(u64::from_be_bytes(self.array()?)),
            0xd0 => signed(i8::from_be_bytes(self.array()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.array()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.array()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => self.take((1 << (first - 0xd4)) + 1).map(|_| Value::Extension)?,
            0xd9 => self.sized(1).and_then(|length| self.take(length)).map(Value::Text)?,
            0xda => self.sized(2).and_then(|length| self.take(length)).map(Value::Text)?,
            0xdb => self.sized(4).and_then(|length| self.take(length)).map(Value::Text)?,
            0xdc => self.sized(2).and_then(|length| self.list(length as u32))?,
            0xdd => self.sized(4).and_then(|length| self.list(length as u32))?,
            0xde => self.sized(2).and_then(|length| self.map(length as u32))?,
            0xdf => self.sized(4).and_then(|length| self.map(length as u32))?,
            0xe0..=0xff => signed((first as i8).into()),
        })
    }

    /// Goes past the next value and all its parts.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            left += match self.value()? {
                Value::Array(length) => u64::from(length),
                Value::Map(length) => 2 * u64::from(length),
                _ => 0,
            };
        }
        Ok(())
    }

    /// Every part takes at least a byte, so that a length beyond the rest of the payload is refused at once.
    fn list(&self, length: u32) -> Result<Value<'a>, Malformed> {
        self.holds(length as usize).map(|()| Value::Array(length))
    }

    fn map(&self, length: u32) -> Result<Value<'a>, Malformed> {
        self.holds(2 * length as usize).map(|()| Value::Map(length))
    }

    fn holds(&self, bytes: usize) -> Result<(), Malformed> {
        if self.bytes.len() - self.at >= bytes { Ok(()) } else { Err(self.fault("more is announced than is there")) }
    }

    /// Reads a length that is written in so many bytes.
    fn sized(&mut self, bytes: usize) -> Result<usize, Malformed> {
        Ok(self.take(bytes)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let found = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk());
        let found = *found.ok_or(self.fault("the payload ends here"))?;
        self.at += N;
        Ok(found)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        self.holds(bytes)?;
        let from = self.at;
        self.at += bytes;
        Ok(self.since(from))
    }
}

fn signed(number: i64) -> Value<'static> {
    u64::try_from(number).map_or(Value::Negative(number), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Value<'_>, Malformed> {
        Reader::new(bytes).value()
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(read(&[0x7f]), Ok(Value::Number(127)));
        assert_eq!(read(&[0xff]), Ok(Value::Negative(-1)));
        assert_eq!(read(&[0xe0]), Ok(Value::Negative(-32)));
        assert_eq!(read(&[0xcc, 200]), Ok(Value::Number(200)));
        assert_eq!(read(&[0xcd, 1, 2]), Ok(Value::Number(0x102)));
        assert_eq!(read(&[0xce, 1, 2, 3, 4]), Ok(Value::Number(0x0102_0304)));
        assert_eq!(read(&[0xcf, 255, 0, 0, 0, 0, 0, 0, 1]), Ok(Value::Number(0xff00_0000_0000_0001)));
        assert_eq!(read(&[0xd0, 0x80]), Ok(Value::Negative(-128)));
        assert_eq!(read(&[0xd0, 5]), Ok(Value::Number(5)));
        assert_eq!(read(&[0xd1, 0xff, 0]), Ok(Value::Negative(-256)));
        assert_eq!(read(&[0xd2, 0xff, 0xff, 0xff, 0xfe]), Ok(Value::Negative(-2)));
        assert_eq!(read(&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]), Ok(Value::Negative(i64::MIN)));
        assert_eq!(read(&[0xca, 0x3f, 0x80, 0, 0]), Ok(Value::Float(1.0)));
        assert_eq!(read(&[0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]), Ok(Value::Float(1.0)));
        for text in [&[0xa2, b'a', b'b'][..], &[0xd9, 2, b'a', b'b'], &[0xda, 0, 2, b'a', b'b']] {
            assert_eq!(read(text), Ok(Value::Text(b"ab")));
        }
        assert_eq!(read(&[0xdb, 0, 0, 0, 2, b'a', b'b']), Ok(Value::Text(b"ab")));
        for bytes in [&[0xc4, 1, 9][..], &[0xc5, 0, 1, 9], &[0xc6, 0, 0, 0, 1, 9]] {
            assert_eq!(read(bytes), Ok(Value::Bytes(&[9])));
        }
        for extension in [&[0xc7, 1, 0, 9][..], &[0xc8, 0, 1, 0, 9], &[0xc9, 0, 0, 0, 1, 0, 9], &[0xd4, 0, 9]] {
            let mut reader = Reader::new(extension);
            assert_eq!((reader.value(), reader.is_empty()), (Ok(Value::Extension), true));
        }
        assert_eq!(read(&[0x92, 0, 0]), Ok(Value::Array(2)));
        assert_eq!(read(&[0xdc, 0, 1, 0]), Ok(Value::Array(1)));
        assert_eq!(read(&[0xdd, 0, 0, 0, 1, 0]), Ok(Value::Array(1)));
        assert_eq!(read(&[0x81, 0, 0]), Ok(Value::Map(1)));
        assert_eq!(read(&[0xde, 0, 1, 0, 0]), Ok(Value::Map(1)));
        assert_eq!(read(&[0xdf, 0, 0, 0, 1, 0, 0]), Ok(Value::Map(1)));
        assert_eq!([read(&[0xc0]), read(&[0xc2]), read(&[0xc3])], [Ok(Value::Nil), Ok(Value::Bool), Ok(Value::Bool)]);
    }

    #[test]
    fn what_is_cut_short_or_no_value_says_where() {
        assert_eq!(read(&[]).unwrap_err().to_string(), "byte 0: the payload ends here");
        assert!(read(&[0xc1]).is_err());
        for cut in
            [&[0xcd, 1][..], &[0xa2, b'a'], &[0xc4], &[0x92, 0], &[0x81, 0], &[0xd8, 0, 0], &[0xc9, 255, 255, 255, 255]]
        {
            let mut reader = Reader::new(cut);
            assert!(reader.value().is_err() && reader.at() == 0, "{cut:?}");
        }
        let mut reader = Reader::new(&[0x92, 0, 0xdd, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(reader.skip().unwrap_err().what, "more is announced than is there");
    }

    /// A stack of one frame for each level would end at some thousand.
    #[test]
    fn a_million_levels_are_skipped() {
        let mut deep = vec![0x91; 1_000_000];
        deep.push(0xc0);
        let mut reader = Reader::new(&deep);
        assert_eq!((reader.skip(), reader.is_empty()), (Ok(()), true));
        let mut reader = Reader::new(&[0x82, 0x01, 0x91, 0xa1, b'x', 0x02, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x05]);
        reader.skip().unwrap();
        assert_eq!(reader.value(), Ok(Value::Number(5)));
    }
}
