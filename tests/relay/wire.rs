//! Reads HTTP/1.1 messages off a socket, strictly and apart from the front's own parser, so that both
//! would have to be wrong in the same way.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Fin,
    Reset,
    /// It did not end while the test waited.
    Silence,
}

/// A socket and the bytes read from it that no message has taken yet.
pub struct Wire {
    pub stream: TcpStream,
    bytes: Vec<u8>,
    /// How many of `bytes` belong to messages that were read.
    taken: usize,
    pub end: Option<End>,
}

/// Start line and fields of a message.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub start: String,
    pub fields: Vec<(String, String)>,
}

/// Where a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    Of(usize),
    Chunked,
    UntilClose,
}

/// A body without its framing.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pub data: Vec<u8>,
    pub chunks: Vec<usize>,
    pub trailers: Vec<(String, String)>,
    /// Whether it ended as its framing says.
    pub whole: bool,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Wire {
        Wire { stream, bytes: Vec::new(), taken: 0, end: None }
    }

    pub fn ahead(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let taken = self.ahead()[..len].to_vec();
        self.taken += len;
        taken
    }

    /// Reads more; false: nothing more comes.
    pub fn fill(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..std::mem::take(&mut self.taken));
        }
        loop {
            self.end = Some(match self.stream.read(&mut buffer) {
                Ok(0) => End::Fin,
                Ok(len) => {
                    self.bytes.extend_from_slice(&buffer[..len]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => End::Silence,
                Err(_) => End::Reset,
            });
            return false;
        }
    }

    /// Reads one head. `None`: the connection ended before.
    pub fn head(&mut self) -> Option<Head> {
        loop {
            if let Some(at) = find(self.ahead(), b"\r\n\r\n") {
                return Some(Head::parse(&self.take(at + 4)));
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads a body of `length`.
    pub fn body(&mut self, length: Length) -> Body {
        match length {
            Length::Of(len) => {
                while self.ahead().len() < len && self.fill() {}
                let there = len.min(self.ahead().len());
                Body { data: self.take(there), whole: there == len, ..Body::default() }
            }
            Length::Chunked => self.chunks(),
            Length::UntilClose => {
                while self.fill() {}
                let whole = self.end == Some(End::Fin);
                Body { data: self.take(self.ahead().len()), whole, ..Body::default() }
            }
        }
    }

    fn chunks(&mut self) -> Body {
        let mut body = Body::default();
        loop {
            let Some(line) = self.line() else { return body };
            let size = plain_size(&line);
            if size == 0 {
                break;
            }
            while self.ahead().len() < size + 2 && self.fill() {}
            let there = size.min(self.ahead().len());
            body.data.extend_from_slice(&self.ahead()[..there]);
            self.taken += there;
            if self.ahead().len() < 2 {
                return body;
            }
            assert_eq!(&self.ahead()[..2], b"\r\n", "a chunk of {size} bytes does not end with its line");
            self.taken += 2;
            body.chunks.push(size);
        }
        while let Some(line) = self.line() {
            if line.is_empty() {
                body.whole = true;
                break;
            }
            body.trailers.push(field(&line));
        }
        body
    }

    /// One line without its CRLF.
    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(self.ahead(), b"\r\n") {
                let line = self.take(at);
                self.taken += 2;
                return Some(String::from_utf8(line).expect("a line of text"));
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// Reads to the end of the connection.
    pub fn drain(&mut self) -> (Vec<u8>, End) {
        while self.fill() {}
        (self.take(self.ahead().len()), self.end.unwrap_or(End::Fin))
    }
}

impl Head {
    fn parse(raw: &[u8]) -> Head {
        let text = std::str::from_utf8(raw).expect("a head of text");
        let mut lines = text.strip_suffix("\r\n\r\n").expect("a whole head").split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        assert!(!start.contains(['\r', '\n']), "{text:?}");
        Head { start, fields: lines.map(field).collect() }
    }

    /// The values of all fields called `name`.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of the only field called `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() <= 1, "{name} is repeated: {self:?}");
        all.first().copied()
    }

    /// The length that the fields tell. Panics if they tell it in two ways.
    pub fn length(&self) -> Option<Length> {
        match (self.get("content-length"), self.get("transfer-encoding")) {
            (Some(_), Some(_)) => panic!("two lengths: {self:?}"),
            (Some(digits), None) => {
                assert!(!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()), "{self:?}");
                Some(Length::Of(digits.parse().expect("a length")))
            }
            (None, Some(coding)) => {
                assert_eq!(coding, "chunked");
                Some(Length::Chunked)
            }
            (None, None) => None,
        }
    }
}

fn field(line: &str) -> (String, String) {
    let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("not a field: {line:?}"));
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    assert!(!name.is_empty() && name.bytes().all(token), "not a field name: {line:?}");
    assert!(!value.contains(['\r', '\n', '\0']), "{line:?}");
    (name.to_owned(), value.trim_matches([' ', '\t']).to_owned())
}

/// The size in a line of the only form that all parsers read alike.
fn plain_size(line: &str) -> usize {
    let plain = line == "0" || (!line.starts_with('0') && line.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(plain && !line.is_empty(), "not a plain size line: {line:?}");
    usize::from_str_radix(line, 16).expect("a chunk size")
}

pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}
