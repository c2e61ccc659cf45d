//! Decodes strings: clean runs go to the taker as they are, escapes are decoded between them.

use super::Fault;
use super::kernel::{BLOCK, Kernel, plain_escape, wtf8};

/// Decodes one string, in pieces cut anywhere. Lone surrogates become WTF-8, as Python's decoder keeps them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decoder {
    escape: Escape,
    /// Number of hexadecimal digits read of the escape in progress.
    digits: u8,
    /// Their value.
    unit: u16,
    /// A high surrogate that waits for its low one.
    high: u16,
}

/// Takes decoded bytes.
pub(super) trait Taker {
    /// Takes a run; returns how many bytes it took. If these are fewer than all, decoding stops right after them.
    fn take(&mut self, run: &[u8]) -> usize;

    /// Returns room to write decoded bytes into, all of which are taken; none by default.
    fn room(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Notes that so many bytes of the room are written.
    fn written(&mut self, _length: usize) {}
}

/// Why decoding stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The piece is over, the string is not.
    Piece,
    /// At the closing quote, which is used.
    Quote,
    /// The taker wanted no more.
    Full,
    /// The string is malformed.
    Fault(Fault),
}

/// How far an escape is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Escape {
    #[default]
    None,
    /// `\`
    Backslash,
    /// `\u` and up to three digits.
    Digits,
    /// `\ud83d`: a low surrogate may follow.
    High,
    /// `\ud83d\`
    HighBackslash,
    /// `\ud83d\u` and up to three digits.
    LowDigits,
}

/// What one byte of an escape brings.
enum Step {
    /// Nothing yet; the byte is used.
    More,
    /// This code point; the byte is used.
    Point(u32),
    /// This code point, a lone surrogate; the byte belongs to what follows.
    Lone(u32),
    /// A lone surrogate and a code point; the byte is used.
    Both(u32, u32),
    /// No escape of JSON.
    Bad,
}

impl Decoder {
    /// Forgets the last string.
    pub fn reset(&mut self) {
        *self = Decoder::default();
    }

    /// Whether no escape is in progress.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.escape == Escape::None
    }

    /// Whether the next byte is escaped, for skipping the rest of the string.
    pub fn escaped(&self) -> bool {
        self.escape == Escape::Backslash
    }

    /// Decodes `bytes` up to the closing quote. Returns how many bytes were used.
    #[inline]
    pub fn decode(&mut self, kernel: &Kernel, bytes: &[u8], taker: &mut impl Taker) -> (usize, Ended) {
        let mut at = 0;
        loop {
            let Some(rest) = bytes.get(at..) else { return (bytes.len(), Ended::Piece) };
            if self.escape != Escape::None {
                let Some(&byte) = rest.first() else { return (at, Ended::Piece) };
                let (used, ended) = self.escape_byte(byte, taker);
                at += used;
                if let Some(ended) = ended {
                    return (at, ended);
                }
                continue;
            }
            let room = taker.room();
            let size = room.len();
            let (used, written) = kernel.unescape(rest, room);
            taker.written(written);
            at += used;
            if written > 0 && size - written < BLOCK {
                // Out of room: there is more of it.
                continue;
            }
            let rest = rest.get(used..).unwrap_or_default();
            let run = kernel.text_run(rest);
            if run > 0 {
                let taken = taker.take(rest.get(..run).unwrap_or(rest));
                at += taken;
                if taken < run {
                    return (at, Ended::Full);
                }
            }
            match rest.get(run) {
                None => return (at, Ended::Piece),
                Some(b'"') => return (at + 1, Ended::Quote),
                Some(b'\\') if run > 0 => continue,
                Some(b'\\') => {
                    // An escape that is not decoded at once: at the end of the piece or of the room, or malformed.
                    self.escape = Escape::Backslash;
                    at += 1;
                }
                Some(_) => return (at, Ended::Fault(Fault::Control)),
            }
        }
    }

    /// Takes one byte of an escape; returns how many bytes are used (0 or 1) and whether decoding ends.
    fn escape_byte(&mut self, byte: u8, taker: &mut impl Taker) -> (usize, Option<Ended>) {
        let mut put = |point: u32| {
            let (bytes, length) = wtf8(point);
            let bytes = bytes.get(..length).unwrap_or_default();
            (taker.take(bytes) < length).then_some(Ended::Full)
        };
        match self.advance(byte) {
            Step::More => (1, None),
            Step::Point(point) => (1, put(point)),
            Step::Lone(point) => (0, put(point)),
            Step::Both(lone, point) => (1, put(lone).or_else(|| put(point))),
            Step::Bad => (0, Some(Ended::Fault(Fault::Escape))),
        }
    }

    fn advance(&mut self, byte: u8) -> Step {
        match self.escape {
            Escape::None => Step::Bad,
            Escape::Backslash if byte == b'u' => self.digits_follow(Escape::Digits),
            Escape::Backslash => match plain_escape(byte) {
                0 => Step::Bad,
                plain => self.ends_with(Step::Point(plain as u32)),
            },
            Escape::Digits => match self.digit(byte) {
                None => Step::Bad,
                Some(false) => Step::More,
                Some(true) if is_high(self.unit) => self.high_waits(self.unit),
                Some(true) => self.ends_with(Step::Point(self.unit as u32)),
            },
            Escape::High if byte == b'\\' => {
                self.escape = Escape::HighBackslash;
                Step::More
            }
            Escape::High => self.ends_with(Step::Lone(self.high as u32)),
            Escape::HighBackslash if byte == b'u' => self.digits_follow(Escape::LowDigits),
            Escape::HighBackslash => {
                self.escape = Escape::Backslash;
                Step::Lone(self.high as u32)
            }
            Escape::LowDigits => match self.digit(byte) {
                None => Step::Bad,
                Some(false) => Step::More,
                Some(true) => self.low_known(),
            },
        }
    }

    /// After `\ud83d\uXXXX`: a pair, or a lone surrogate and what came instead of the low one.
    fn low_known(&mut self) -> Step {
        let (high, unit) = (self.high as u32, self.unit as u32);
        if unit & 0xfc00 == 0xdc00 {
            return self.ends_with(Step::Point(0x1_0000 + ((high & 0x3ff) << 10) + (unit & 0x3ff)));
        }
        if is_high(self.unit) {
            self.high_waits(self.unit);
            return Step::Point(high);
        }
        self.ends_with(Step::Both(high, unit))
    }

    fn digits_follow(&mut self, escape: Escape) -> Step {
        (self.escape, self.digits, self.unit) = (escape, 0, 0);
        Step::More
    }

    fn high_waits(&mut self, high: u16) -> Step {
        (self.escape, self.high) = (Escape::High, high);
        Step::More
    }

    fn ends_with(&mut self, step: Step) -> Step {
        self.escape = Escape::None;
        step
    }

    /// Takes a digit: `Some(true)` at the fourth one, `None` if the byte is no digit.
    fn digit(&mut self, byte: u8) -> Option<bool> {
        let value = (byte as char).to_digit(16)?;
        self.unit = self.unit << 4 | value as u16;
        self.digits += 1;
        Some(self.digits == 4)
    }
}

fn is_high(unit: u16) -> bool {
    unit & 0xfc00 == 0xd800
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Taker for Vec<u8> {
        fn take(&mut self, run: &[u8]) -> usize {
            self.extend_from_slice(run);
            run.len()
        }
    }

    fn decode(kernel: &Kernel, pieces: &[&[u8]]) -> Result<Vec<u8>, Fault> {
        let (mut decoder, mut text) = (Decoder::default(), Vec::new());
        for piece in pieces {
            let (used, ended) = decoder.decode(kernel, piece, &mut text);
            match ended {
                Ended::Piece => assert_eq!(used, piece.len()),
                Ended::Quote => return Ok(text),
                Ended::Fault(fault) => return Err(fault),
                Ended::Full => unreachable!(),
            }
        }
        panic!("no quote")
    }

    #[test]
    fn escapes_decode_alike_at_every_cut() {
        type Case = (&'static [u8], Result<&'static [u8], Fault>);
        let cases: [Case; 14] = [
            (br#"plain""#, Ok(b"plain")),
            (br#"a\n\t\r\b\f\/\\\"z""#, Ok(b"a\n\t\r\x08\x0c/\\\"z")),
            (br#"\u0041\u00e9\u4e2d""#, Ok("Aé中".as_bytes())),
            (br#"\ud83d\ude00!""#, Ok("😀!".as_bytes())),
            (br#"\ud83d!""#, Ok(b"\xed\xa0\xbd!")),
            (br#"\ud83d\n""#, Ok(b"\xed\xa0\xbd\n")),
            (br#"\ud83d""#, Ok(b"\xed\xa0\xbd")),
            (br#"\ude00x""#, Ok(b"\xed\xb8\x80x")),
            (br#"\ud83d\ud83d\ude00""#, Ok(b"\xed\xa0\xbd\xf0\x9f\x98\x80")),
            (br#"\ud83d\u0041""#, Ok(b"\xed\xa0\xbdA")),
            (br#"\x""#, Err(Fault::Escape)),
            (br#"\u12g4""#, Err(Fault::Escape)),
            (br#"\ud83d\u12g4""#, Err(Fault::Escape)),
            (b"raw\nline\"", Err(Fault::Control)),
        ];
        for kernel in Kernel::available() {
            for (bytes, expected) in &cases {
                for cut in 0..=bytes.len() {
                    let (left, right) = bytes.split_at(cut);
                    let got = decode(kernel, &[left, right]);
                    assert_eq!(
                        got.as_deref().map_err(|fault| *fault),
                        *expected,
                        "{:?} cut {cut}",
                        bytes.escape_ascii()
                    );
                }
                let single: Vec<&[u8]> = bytes.chunks(1).collect();
                assert_eq!(decode(kernel, &single).as_deref().map_err(|fault| *fault), *expected);
            }
        }
    }
}
