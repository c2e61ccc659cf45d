//! Files of one JSON object a line, and which format they are in.

use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::frames::Frames;

/// Longest line: 16 M tokens in blocks of 16 have a million ids.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Most lines, and most blocks in all of them: half a gigabyte.
const LINES_MAX: usize = 4_000_000;
pub(super) const BLOCKS_MAX: usize = 64 << 20;
/// First bytes of files that gzip or zstd has compressed, and the mark with which some editors begin files.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTANDARD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BYTE_ORDER: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Lines at the start of which the first that is JSON says what the file is.
const LOOKED_AT: usize = 16;

/// Why a trace cannot be replayed, and where.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The file.
    #[error("cannot read {path}: {error}")]
    File {
        /// Its path.
        path: String,
        /// The system's or the decoder's words.
        error: std::io::Error,
    },
    /// A line.
    #[error("{path}, line {line}: {what}")]
    Line {
        /// Path of the file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to do.
        what: String,
    },
    /// No line of the pool that was named.
    #[error("{path} holds no request of that pool: it has {pools}")]
    Pool {
        /// Path of the file.
        path: String,
        /// The pools there are, in words.
        pools: String,
    },
    /// No line.
    #[error("{path} holds no request: expected one JSON object a line")]
    Empty {
        /// Path of the file.
        path: String,
    },
}

/// What a file's first lines look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A trace in Mooncake's format, or one that will be refused as such.
    Mooncake,
    /// An access log of a front.
    Access,
}

#[derive(Deserialize)]
struct Keys {
    timestamp: Option<IgnoredAny>,
    time: Option<IgnoredAny>,
}

/// Opens the lines of a file, which may be a pipe. A file that begins as Zstandard, or has a name that ends in `.zst`,
/// is decompressed.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, Unusable> {
    let file = |error| Unusable::File { path: path.display().to_string(), error };
    let (start, all) = peek::<4>(BufReader::new(std::fs::File::open(path).map_err(file)?)).map_err(file)?;
    if start.starts_with(&GZIP) {
        return Err(file(std::io::Error::other(
            "it is compressed with gzip: `zcat FILE | warmfront replay /dev/stdin` reads it",
        )));
    }
    let named = path.extension().is_some_and(|end| end == "zst");
    let plain: Box<dyn BufRead> = match named || start == ZSTANDARD {
        true => Box::new(BufReader::new(Frames::new(all))),
        false => Box::new(all),
    };
    let (mark, mut all) = peek::<3>(plain).map_err(file)?;
    if mark == BYTE_ORDER {
        all.consume(mark.len());
    }
    Ok(Box::new(all))
}

/// Returns the first bytes, fewer if there are no more, and a reader of all bytes from the start.
fn peek<const BYTES: usize>(mut from: impl BufRead) -> std::io::Result<(Vec<u8>, impl BufRead)> {
    let mut start = Vec::with_capacity(BYTES);
    from.by_ref().take(BYTES as u64).read_to_end(&mut start)?;
    Ok((start.clone(), Cursor::new(start).chain(from)))
}

/// Looks at the first lines; returns a reader of all lines from the start.
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
