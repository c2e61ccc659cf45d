//! Compares a reply with the one that its request calls for, byte by byte, as it arrives.

use crate::content::{self, SENT};
use crate::{http, sent};

pub struct Expected {
    digest: u64,
    content_type: &'static str,
    stream: Option<Stream>,
    /// What is expected now: the whole plain reply, or the current event.
    bytes: Vec<u8>,
    at: usize,
}

struct Stream {
    tokens: u32,
    index: u32,
}

impl Expected {
    pub fn plain(digest: u64) -> Expected {
        let bytes = content::plain_reply(digest);
        Expected { digest, content_type: "application/json", stream: None, bytes, at: 0 }
    }

    pub fn speech(digest: u64) -> Expected {
        let bytes = content::speech_reply(digest);
        Expected { digest, content_type: "audio/wav", stream: None, bytes, at: 0 }
    }

    pub fn stream(digest: u64, tokens: u32) -> Expected {
        let mut bytes = Vec::with_capacity(256);
        content::push_event(&mut bytes, digest, 0, tokens, 0);
        let stream = Some(Stream { tokens, index: 0 });
        Expected { digest, content_type: "text/event-stream; charset=utf-8", stream, bytes, at: 0 }
    }

    pub fn head(&self, head: &[u8]) -> Result<(), String> {
        let words = || String::from_utf8_lossy(&head[..head.len().min(400)]).into_owned();
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err(format!("head is not 200: {}", words()));
        }
        if http::header(head, "content-type") != Some(self.content_type.as_bytes()) {
            return Err(format!("head does not say {}: {}", self.content_type, words()));
        }
        Ok(())
    }

    /// Returns how many events `body` completed.
    pub fn body(&mut self, body: &[u8]) -> Result<u64, String> {
        self.body_sent(body, |_| {})
    }

    /// The same; `each` gets the time at which each of these events was sent, if the event says so.
    pub fn body_sent(&mut self, mut body: &[u8], mut each: impl FnMut(u64)) -> Result<u64, String> {
        let mut events = 0;
        while !body.is_empty() {
            let count = (self.bytes.len() - self.at).min(body.len());
            if count == 0 {
                return Err(format!("{} bytes after the end of the reply", body.len()));
            }
            let (piece, rest) = body.split_at(count);
            self.take_sent(piece);
            if self.bytes[self.at..self.at + count] != *piece {
                return Err(self.difference(piece));
            }
            self.at += count;
            body = rest;
            if self.stream.is_some() && self.at == self.bytes.len() {
                if let Some(digits) = self.bytes.get(SENT) {
                    each(sent::read(digits).ok_or_else(|| self.wrong_time(digits))?);
                }
                self.next_event();
                events += 1;
            }
        }
        Ok(events)
    }

    /// It cannot be known before when an event was sent: what came is expected, and looked at once all of it has come.
    fn take_sent(&mut self, piece: &[u8]) {
        if self.stream.is_none() || self.bytes.len() < SENT.end {
            return;
        }
        let (from, to) = (SENT.start.max(self.at), SENT.end.min(self.at + piece.len()));
        if from < to {
            self.bytes[from..to].copy_from_slice(&piece[from - self.at..to - self.at]);
        }
    }

    fn next_event(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        stream.index += 1;
        self.at = 0;
        self.bytes.clear();
        // After [DONE] nothing may come: an empty expectation.
        if stream.index <= stream.tokens + 1 {
            content::push_event(&mut self.bytes, self.digest, stream.index, stream.tokens, 0);
        }
    }

    /// Events that have arrived whole.
    pub fn events(&self) -> u32 {
        self.stream.as_ref().map_or(0, |stream| stream.index)
    }

    pub fn end(&self) -> Result<(), String> {
        let whole = match &self.stream {
            Some(stream) => stream.index == stream.tokens + 2,
            None => self.at == self.bytes.len(),
        };
        if whole {
            return Ok(());
        }
        Err(format!("reply ended early: {} events, byte {} of {}", self.events(), self.at, self.bytes.len()))
    }

    fn wrong_time(&self, digits: &[u8]) -> String {
        format!("event {} does not say when it was sent: {:?}", self.events(), String::from_utf8_lossy(digits))
    }

    fn difference(&self, got: &[u8]) -> String {
        let want = &self.bytes[self.at..];
        let first = want.iter().zip(got).position(|(want, got)| want != got).unwrap_or(0);
        let near = |bytes: &[u8]| String::from_utf8_lossy(&bytes[first..bytes.len().min(first + 60)]).into_owned();
        let (events, at) = (self.events(), self.at + first);
        format!("reply differs at event {events}, byte {at}: got {:?}, want {:?}", near(got), near(want))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole_stream(digest: u64, tokens: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 0..tokens + 2 {
            content::push_event(&mut bytes, digest, index, tokens, 1000 + u64::from(index));
        }
        bytes
    }

    #[test]
    fn a_right_stream_passes_at_every_cut() {
        let bytes = whole_stream(9, 3);
        for cut in 0..=bytes.len() {
            let mut expected = Expected::stream(9, 3);
            let mut times = Vec::new();
            let mut take = |piece: &[u8]| expected.body_sent(piece, |sent| times.push(sent)).unwrap();
            assert_eq!(take(&bytes[..cut]) + take(&bytes[cut..]), 5);
            assert_eq!(times, [1000, 1001, 1002, 1003], "of all but [DONE]");
            expected.end().unwrap();
        }
    }

    #[test]
    fn a_flipped_bit_a_missing_and_a_surplus_byte_are_seen() {
        let bytes = whole_stream(9, 3);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Expected::stream(9, 3).body(&altered).is_err(), "byte {at}");
        }
        let mut expected = Expected::stream(9, 3);
        expected.body(&bytes[..bytes.len() - 1]).unwrap();
        assert!(expected.end().is_err());
        let mut expected = Expected::stream(9, 3);
        expected.body(&bytes).unwrap();
        assert!(expected.body(b"x").is_err());
    }

    #[test]
    fn a_reply_of_another_type_is_seen() {
        let head = |kind: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n");
        let events = "text/event-stream; charset=utf-8";
        assert_eq!(Expected::stream(1, 3).head(head(events).as_bytes()), Ok(()));
        assert!(Expected::stream(1, 3).head(head("application/json").as_bytes()).is_err());
        assert!(Expected::plain(1).head(head(events).as_bytes()).is_err());
        assert!(Expected::plain(1).head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn a_reply_to_another_request_is_seen() {
        assert!(Expected::plain(1).body(&content::plain_reply(2)).is_err());
        assert!(Expected::stream(1, 3).body(&whole_stream(2, 3)).is_err());
    }
}
