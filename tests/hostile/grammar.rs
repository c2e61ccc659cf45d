//! HTTP/1.1 read once more, with all bytes at hand and nothing shared with the front: lines are split first and
//! judged then, so that both readings would have to be wrong in the same way.

pub type Field = (Vec<u8>, Vec<u8>);

/// Start line and fields.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub start: Vec<u8>,
    pub fields: Vec<Field>,
    /// Bytes it takes, blank line included.
    pub len: usize,
}

/// What stands at the beginning of some bytes.
#[derive(Clone, Debug)]
pub enum Step<T> {
    Whole(T),
    /// Not all there; what is there may be wrong already.
    Partial,
    Wrong(&'static str),
}

/// A chunked body without its framing.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    pub data: Vec<u8>,
    pub trailers: Vec<Field>,
    pub len: usize,
}

/// What a body came to.
#[derive(Clone, Debug)]
pub struct Decoded {
    pub step: Step<Chunks>,
    /// The data before the end, or before what is wrong.
    pub data: Vec<u8>,
}

impl Head {
    /// Values of all fields of this name.
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let named = self.fields.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|(_, value)| value.as_slice()).collect()
    }

    pub fn has(&self, name: &str) -> bool {
        !self.all(name).is_empty()
    }

    /// Elements of all lists of this name, in lower case.
    pub fn list(&self, name: &str) -> Vec<Vec<u8>> {
        let elements = self.all(name).into_iter().flat_map(|value| value.split(|byte| *byte == b','));
        elements.map(|element| trimmed(element).to_ascii_lowercase()).collect()
    }
}

pub fn is_token(bytes: &[u8]) -> bool {
    let char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(char)
}

fn is_value(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f))
}

pub fn trimmed(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let start = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

/// Digits alone, in a u64 of which half is spare.
pub fn digits(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|value| plain && *value < 1 << 63)
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while let Some(at) = memchr::memmem::find(rest, b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines
}

fn fields(lines: &[&[u8]]) -> Result<Vec<Field>, &'static str> {
    let field = |line: &&[u8]| {
        let colon = line.iter().position(|byte| *byte == b':').ok_or("a field without a colon")?;
        let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
        if !is_token(name) {
            return Err("a field name that is no token");
        }
        is_value(value).then(|| (name.to_vec(), value.to_vec())).ok_or("a control character in a value")
    };
    lines.iter().map(field).collect()
}

/// A start line and fields up to the first CRLF CRLF.
pub fn head(bytes: &[u8]) -> Step<Head> {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Step::Partial };
    let lines = lines(&bytes[..end + 2]);
    let start = lines[0].to_vec();
    if !is_value(&start) {
        return Step::Wrong("a control character in the start line");
    }
    match fields(&lines[1..]) {
        Ok(fields) => Step::Whole(Head { start, fields, len: end + 4 }),
        Err(what) => Step::Wrong(what),
    }
}

/// A chunked body.
pub fn chunks(bytes: &[u8]) -> Decoded {
    let mut data = Vec::new();
    let step = decode(bytes, &mut data);
    Decoded { step, data }
}

fn decode(bytes: &[u8], data: &mut Vec<u8>) -> Step<Chunks> {
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let Some(line_end) = memchr::memmem::find(rest, b"\r\n") else { return Step::Partial };
        let line = &rest[..line_end];
        let semicolon = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
        let (size, extension) = line.split_at(semicolon);
        let hex = !size.is_empty() && size.len() <= 16 && size.iter().all(u8::is_ascii_hexdigit);
        if !hex || !is_value(extension) || line.len() > 4_000 {
            return Step::Wrong("a chunk's size line");
        }
        let size = std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
        let Some(size) = size.filter(|size| *size <= 1 << 53) else { return Step::Wrong("a chunk's size") };
        at += line_end + 2;
        if size == 0 {
            break;
        }
        let there = bytes[at..].len().min(usize::try_from(size).unwrap_or(usize::MAX));
        data.extend_from_slice(&bytes[at..at + there]);
        at += there;
        match &bytes[at..] {
            [b'\r', b'\n', ..] if there as u64 == size => at += 2,
            [] | [b'\r'] => return Step::Partial,
            _ => return Step::Wrong("no line end behind a chunk"),
        }
    }
    // A blank line at once, or field lines and then one.
    let rest = &bytes[at..];
    if rest.starts_with(b"\r\n") {
        return Step::Whole(Chunks { data: data.clone(), trailers: Vec::new(), len: at + 2 });
    }
    let Some(end) = memchr::memmem::find(rest, b"\r\n\r\n") else { return Step::Partial };
    match fields(&lines(&rest[..end + 2])) {
        Ok(trailers) => Step::Whole(Chunks { data: data.clone(), trailers, len: at + end + 4 }),
        Err(what) => Step::Wrong(what),
    }
}
