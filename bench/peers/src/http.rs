//! Finds where HTTP/1.1 messages end, and no more: the peers on both sides are ours.

use std::borrow::Cow;

/// One step through a message. `Body` gives decoded bytes, without chunk framing.
pub enum Step<'a> {
    /// The input is used up and the message goes on.
    More,
    Head(Cow<'a, [u8]>),
    Body(&'a [u8]),
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Head,
    Length,
    Size,
    SizeLine,
    Data,
    DataEnd,
    TrailerStart,
    TrailerLine,
    Finished,
}

/// Which side writes the messages: a reply without framing headers would run until close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Request,
    Reply,
}

pub struct Framer {
    left: u64,
    partial: Vec<u8>,
    kind: Kind,
    state: State,
}

pub type Bad = &'static str;

impl Framer {
    pub fn new(kind: Kind) -> Framer {
        Framer { kind, state: State::Head, left: 0, partial: Vec::new() }
    }

    /// Between two messages: nothing of the next one has been seen.
    pub fn at_start(&self) -> bool {
        self.state == State::Head && self.partial.is_empty()
    }

    /// Takes one step and moves `input` past the bytes it used.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, Bad> {
        loop {
            if self.state == State::Finished {
                self.state = State::Head;
                return Ok(Step::End);
            }
            if input.is_empty() {
                return Ok(Step::More);
            }
            match self.state {
                State::Head => return self.head(input),
                State::Length | State::Data => return Ok(Step::Body(self.body(input))),
                _ => self.framing_byte(input)?,
            }
        }
    }

    fn head<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, Bad> {
        if self.partial.is_empty() {
            let Some(framing) = scan_head(input)? else {
                self.partial.extend_from_slice(input);
                *input = &[];
                return Ok(Step::More);
            };
            let (head, rest) = input.split_at(framing.head_bytes);
            *input = rest;
            self.begin_body(&framing)?;
            return Ok(Step::Head(Cow::Borrowed(head)));
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(input);
        let Some(framing) = scan_head(&self.partial)? else {
            *input = &[];
            return Ok(Step::More);
        };
        *input = &input[framing.head_bytes - before..];
        let mut head = std::mem::take(&mut self.partial);
        head.truncate(framing.head_bytes);
        self.begin_body(&framing)?;
        Ok(Step::Head(Cow::Owned(head)))
    }

    fn begin_body(&mut self, framing: &Framing) -> Result<(), Bad> {
        self.left = 0;
        self.state = match (framing.chunked, framing.length) {
            (true, _) => State::Size,
            (false, Some(0)) => State::Finished,
            (false, Some(length)) => {
                self.left = length;
                State::Length
            }
            (false, None) if self.kind == Kind::Request => State::Finished,
            (false, None) => return Err("reply without content-length or chunks"),
        };
        Ok(())
    }

    fn body<'a>(&mut self, input: &mut &'a [u8]) -> &'a [u8] {
        let count = self.left.min(input.len() as u64) as usize;
        let (piece, rest) = input.split_at(count);
        *input = rest;
        self.left -= count as u64;
        if self.left == 0 {
            self.state = if self.state == State::Length { State::Finished } else { State::DataEnd };
        }
        piece
    }

    fn framing_byte(&mut self, input: &mut &[u8]) -> Result<(), Bad> {
        let byte = input[0];
        *input = &input[1..];
        self.state = match (self.state, byte) {
            (State::Size, b'\r' | b';') => State::SizeLine,
            (State::Size, _) => {
                let digit = (byte as char).to_digit(16).ok_or("chunk size is not hexadecimal")?;
                if self.left >> 40 != 0 {
                    return Err("chunk size is absurd");
                }
                self.left = self.left << 4 | u64::from(digit);
                State::Size
            }
            (State::SizeLine, b'\n') if self.left == 0 => State::TrailerStart,
            (State::SizeLine, b'\n') => State::Data,
            (State::SizeLine, _) => State::SizeLine,
            (State::DataEnd, b'\r') => State::DataEnd,
            (State::DataEnd, b'\n') => State::Size,
            (State::DataEnd, _) => return Err("chunk longer than its size"),
            (State::TrailerStart, b'\r') => State::TrailerStart,
            (State::TrailerStart, b'\n') => State::Finished,
            (State::TrailerLine, b'\n') => State::TrailerStart,
            (State::TrailerStart | State::TrailerLine, _) => State::TrailerLine,
            (State::Head | State::Length | State::Data | State::Finished, _) => unreachable!("handled by next"),
        };
        Ok(())
    }
}

struct Framing {
    head_bytes: usize,
    length: Option<u64>,
    chunked: bool,
}

/// `None` while the empty line has not arrived.
fn scan_head(bytes: &[u8]) -> Result<Option<Framing>, Bad> {
    let mut framing = Framing { head_bytes: 0, length: None, chunked: false };
    loop {
        let rest = &bytes[framing.head_bytes..];
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return if bytes.len() > 64 << 10 { Err("head over 64 KiB") } else { Ok(None) };
        };
        framing.head_bytes += end + 1;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        match line.first() {
            None => return Ok(Some(framing)),
            Some(b'c' | b'C') => {
                if let Some(value) = field(line, "content-length") {
                    let text = std::str::from_utf8(value).map_err(|_| "content-length is not text")?;
                    framing.length = Some(text.trim().parse().map_err(|_| "content-length is not a number")?);
                }
            }
            Some(b't' | b'T') => framing.chunked |= field(line, "transfer-encoding").is_some(),
            Some(_) => {}
        }
    }
}

fn field<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (field, value) = line.split_at_checked(name.len())?;
    if field.eq_ignore_ascii_case(name.as_bytes()) { value.strip_prefix(b":") } else { None }
}

/// The value of the first field `name` (lower case) in a complete head.
pub fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').skip(1).find_map(|line| field(line, name)).map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Heads, decoded body and ends, whatever the cut.
    fn read(framer: &mut Framer, pieces: &[&[u8]]) -> (usize, Vec<u8>, usize) {
        let (mut heads, mut body, mut ends) = (0, Vec::new(), 0);
        for piece in pieces {
            let mut input = *piece;
            loop {
                match framer.next(&mut input).unwrap() {
                    Step::More => break,
                    Step::Head(_) => heads += 1,
                    Step::Body(bytes) => body.extend_from_slice(bytes),
                    Step::End => ends += 1,
                }
            }
        }
        (heads, body, ends)
    }

    #[test]
    fn every_cut_reads_the_same() {
        let messages: &[(&[u8], &[u8])] = &[
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nt: v\r\n\r\n",
                b"hello0123456789",
            ),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        ];
        for (message, body) in messages {
            for cut in 0..=message.len() {
                let mut framer = Framer::new(Kind::Reply);
                let got = read(&mut framer, &[&message[..cut], &message[cut..]]);
                assert_eq!(got, (1, body.to_vec(), 1), "cut at {cut}");
                assert!(framer.at_start());
            }
        }
    }

    #[test]
    fn a_chunk_longer_than_its_size_is_refused() {
        let mut framer = Framer::new(Kind::Reply);
        let mut input: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc";
        let refused = loop {
            match framer.next(&mut input) {
                Ok(Step::More | Step::End) => break false,
                Ok(_) => {}
                Err(_) => break true,
            }
        };
        assert!(refused);
    }

    #[test]
    fn header_is_found_whatever_its_case() {
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nx-MOCK:  t=1\r\n\r\n";
        assert_eq!(header(head, "x-mock"), Some(&b"t=1"[..]));
        assert_eq!(header(head, "x-none"), None);
    }
}
