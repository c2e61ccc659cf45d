//! What every relay here does with bytes, however they are moved: it parses a request's head and writes it anew, and
//! watches a reply for its end. The code is the same for all, so that only the runtimes differ.

use std::io;

use memchr::memchr;
use peers::http::{Framer, Kind, Step};

/// The request that a client is sending.
pub struct Request {
    framer: Framer,
    /// The request as it goes to the engine.
    out: Vec<u8>,
}

impl Request {
    pub fn new() -> Request {
        Request { framer: Framer::new(Kind::Request), out: Vec::new() }
    }

    /// True once the request is whole; [`Request::take`] has it then.
    ///
    /// # Errors
    /// When the framing is broken, or more follows: the load generator does not pipeline.
    pub fn push(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        loop {
            match self.framer.next(&mut bytes).map_err(io::Error::other)? {
                Step::More => return Ok(false),
                Step::Head(head) => rewrite(&head, bytes.len(), &mut self.out),
                Step::Body(piece) => self.out.extend_from_slice(piece),
                Step::End if bytes.is_empty() => return Ok(true),
                Step::End => return Err(io::Error::other("bytes after the request")),
            }
        }
    }

    /// Takes the request out: nothing of it is kept while its reply streams.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

/// A front does not copy heads: it leaves `connection` out and adds a field of its own.
fn rewrite(head: &[u8], body_bytes: usize, out: &mut Vec<u8>) {
    const ADDED: &[u8] = b"x-request-id: 0123456789abcdef\r\n\r\n";
    out.reserve_exact(head.len() + ADDED.len() + body_bytes);
    let mut rest = head;
    while let Some(end) = memchr(b'\n', rest) {
        let (line, after) = rest.split_at(end + 1);
        rest = after;
        let name = line.get(..b"connection:".len()).unwrap_or_default();
        if line.len() > b"\r\n".len() && !name.eq_ignore_ascii_case(b"connection:") {
            out.extend_from_slice(line);
        }
    }
    out.extend_from_slice(ADDED);
}

/// The reply that an engine is sending. It passes unchanged.
pub struct Reply {
    framer: Framer,
}

impl Reply {
    pub fn new() -> Reply {
        Reply { framer: Framer::new(Kind::Reply) }
    }

    /// True once the reply is whole.
    ///
    /// # Errors
    /// When the framing is broken, or more follows.
    pub fn push(&mut self, mut bytes: &[u8]) -> io::Result<bool> {
        loop {
            match self.framer.next(&mut bytes).map_err(io::Error::other)? {
                Step::More => return Ok(false),
                Step::Head(_) | Step::Body(_) => {}
                Step::End if bytes.is_empty() => return Ok(true),
                Step::End => return Err(io::Error::other("bytes after the reply")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_at_every_cut() {
        let came = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello";
        let goes = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nx-request-id: 0123456789abcdef\r\n\r\nhello";
        for cut in 0..came.len() {
            let mut request = Request::new();
            assert!(!request.push(&came[..cut]).unwrap(), "cut at {cut}");
            assert!(request.push(&came[cut..]).unwrap(), "cut at {cut}");
            assert_eq!(request.take(), goes, "cut at {cut}");
        }
    }

    #[test]
    fn a_reply_ends_at_every_cut_where_it_ends() {
        let reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        for cut in 0..reply.len() {
            let mut watched = Reply::new();
            assert!(!watched.push(&reply[..cut]).unwrap(), "cut at {cut}");
            assert!(watched.push(&reply[cut..]).unwrap(), "cut at {cut}");
        }
        assert!(Reply::new().push(&[&reply[..], b"x"].concat()).is_err());
    }
}
