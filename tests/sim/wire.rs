//! Messages as peers read them: strict, incremental, and none of the front's own code.

/// Bytes of which more may come.
#[derive(Default)]
pub struct Reader {
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Head {
    pub line: String,
    pub fields: Vec<(String, String)>,
}

impl Head {
    /// The value of the only field of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(found, _)| found == name);
        let value = values.next().map(|(_, value)| value.as_str());
        assert!(values.next().is_none(), "{name} twice in {self:?}");
        value
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.get(name).map(|value| value.parse().expect(name))
    }

    pub fn status(&self) -> u16 {
        let mut words = self.line.split(' ');
        assert_eq!(words.next(), Some("HTTP/1.1"), "{:?}", self.line);
        words.next().and_then(|word| word.parse().ok()).expect("a status")
    }

    pub fn closes(&self) -> bool {
        self.get("connection") == Some("close")
    }

    /// Framing by its fields.
    pub fn framing(&self, without: Framing) -> Framing {
        match (self.get("transfer-encoding"), self.number("content-length")) {
            (Some(coding), None) => {
                assert_eq!(coding, "chunked");
                Framing::Chunks(Chunk::Size)
            }
            (None, Some(len)) => Framing::Length(len),
            (None, None) => without,
            both => panic!("two lengths: {both:?}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    Length(usize),
    Chunks(Chunk),
    UntilClose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk {
    Size,
    Data(usize),
    DataEnd,
    Trailers,
}

impl Reader {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take_all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    pub fn show(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(200)]).into_owned()
    }

    fn line(&mut self, from: usize) -> Option<(String, usize)> {
        let end = from + memchr::memmem::find(&self.bytes[from..], b"\r\n")?;
        let line = std::str::from_utf8(&self.bytes[from..end]).expect("text").to_owned();
        Some((line, end + 2))
    }

    pub fn head(&mut self) -> Option<Head> {
        let (line, mut at) = self.line(0)?;
        let mut fields = Vec::new();
        loop {
            let (field, next) = self.line(at)?;
            at = next;
            if field.is_empty() {
                break;
            }
            let (name, value) = field.split_once(": ").expect("a field line");
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        self.bytes.drain(..at);
        Some(Head { line, fields })
    }

    /// Takes body bytes into `body`; true at its end.
    pub fn body(&mut self, framing: &mut Framing, body: &mut Vec<u8>) -> bool {
        match framing {
            Framing::UntilClose => {
                body.append(&mut self.bytes);
                false
            }
            Framing::Length(left) => {
                *left -= self.data(*left, body);
                *left == 0
            }
            Framing::Chunks(chunk) => self.chunks(chunk, body),
        }
    }

    fn data(&mut self, most: usize, body: &mut Vec<u8>) -> usize {
        let len = most.min(self.bytes.len());
        body.extend_from_slice(&self.bytes[..len]);
        self.bytes.drain(..len);
        len
    }

    fn chunks(&mut self, chunk: &mut Chunk, body: &mut Vec<u8>) -> bool {
        loop {
            match chunk {
                Chunk::Size => {
                    let Some((line, end)) = self.line(0) else { return false };
                    let digits = line.split(';').next().expect("a size");
                    let size = usize::from_str_radix(digits, 16).expect("a chunk size");
                    self.bytes.drain(..end);
                    *chunk = if size == 0 { Chunk::Trailers } else { Chunk::Data(size) };
                }
                Chunk::Data(left) => {
                    *left -= self.data(*left, body);
                    if *left > 0 {
                        return false;
                    }
                    *chunk = Chunk::DataEnd;
                }
                Chunk::DataEnd => {
                    let Some(end) = self.bytes.get(..2) else { return false };
                    assert_eq!(end, b"\r\n", "behind chunk data");
                    self.bytes.drain(..2);
                    *chunk = Chunk::Size;
                }
                Chunk::Trailers => {
                    let Some((line, end)) = self.line(0) else { return false };
                    self.bytes.drain(..end);
                    if line.is_empty() {
                        return true;
                    }
                }
            }
        }
    }
}
