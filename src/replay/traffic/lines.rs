//! Files of one JSON object a line, and which format they are in.

use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::frames::Frames;

/// Longest line: 16 M tokens in blocks of 16 have a million ids.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most lines, and most blocks of all of them: half a gigabyte.
const LINES_MAX: usize = 4_000_000;
pub(super) const BLOCKS_MAX: usize = 64 << 20;
/// Of how many lines at the start the first that is JSON says what the file is.
const LOOKED_AT: usize = 16;

/// Why a trace cannot be replayed, and where.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file.
    #[error("cannot read {path}: {error}")]
    File {
        /// Which.
        path: String,
        /// The system's or the decoder's words.
        error: std::io::Error,
    },
    /// A line.
    #[error("{path}, line {line}: {what}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to do.
        what: String,
    },
    /// No line.
    #[error("{path} holds no request: expected one JSON object a line")]
    Empty {
        /// The file.
        path: String,
    },
}

/// What a file's first lines look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace in Mooncake's format, or what will be refused as one.
    Mooncake,
    /// An access log of a front.
    Access,
}

#[derive(Deserialize)]
struct Keys {
    timestamp: Option<IgnoredAny>,
    time: Option<IgnoredAny>,
}

/// The lines of a file; a name ending in `.zst` is decompressed.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, Unusable> {
    let file = |error| Unusable::File { path: path.display().to_string(), error };
    let plain = BufReader::new(std::fs::File::open(path).map_err(file)?);
    if path.extension().is_none_or(|end| end != "zst") {
        return Ok(Box::new(plain));
    }
    Ok(Box::new(BufReader::new(Frames::new(plain))))
}

/// Looks at the first lines, and gives all of them back.
pub fn recognise(mut from: Box<dyn BufRead>, name: &str) -> Result<(Format, Box<dyn BufRead>), Unusable> {
    let (mut read, mut format) = (Vec::new(), Format::Mooncake);
    for _ in 0..LOOKED_AT {
        let begins = read.len();
        let bytes = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut read);
        if bytes.map_err(|error| Unusable::File { path: name.to_owned(), error })? == 0 {
            break;
        }
        if let Ok(Keys { timestamp, time }) = serde_json::from_slice(read.get(begins..).unwrap_or_default()) {
            if timestamp.is_none() && time.is_some() {
                format = Format::Access;
            }
            break;
        }
    }
    Ok((format, Box::new(Cursor::new(read).chain(from))))
}

/// Lines that are not blank, each with its number from 1. A file beyond the bounds is refused.
pub(super) struct Lines<'a, R> {
    from: R,
    name: &'a str,
    number: usize,
    text: Vec<u8>,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(super) fn new(from: R, name: &'a str) -> Lines<'a, R> {
        Lines { from, name, number: 0, text: Vec::new() }
    }

    pub(super) fn next_line(&mut self) -> Result<Option<(usize, &[u8])>, Unusable> {
        loop {
            self.number += 1;
            self.text.clear();
            let read = self.from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.text);
            match read.map_err(|error| Unusable::File { path: self.name.to_owned(), error })? {
                0 => return Ok(None),
                _ if self.number > LINES_MAX => {
                    return self.refuse(format!("more than {LINES_MAX} lines: cut the trace"));
                }
                bytes if bytes as u64 == LINE_BYTES_MAX => {
                    return self.refuse(format!("longer than {LINE_BYTES_MAX} bytes: one request a line"));
                }
                _ if self.text.trim_ascii().is_empty() => {}
                _ => return Ok(Some((self.number, &self.text))),
            }
        }
    }

    fn refuse<T>(&self, what: String) -> Result<T, Unusable> {
        Err(Unusable::Line { path: self.name.to_owned(), line: self.number, what })
    }
}
