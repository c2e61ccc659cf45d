//! Compares a reply with the one that its request calls for, byte by byte, as it arrives.

use crate::content;

pub struct Expected {
    digest: u64,
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
        Expected { digest, stream: None, bytes: content::plain_reply(digest), at: 0 }
    }

    pub fn speech(digest: u64) -> Expected {
        Expected { digest, stream: None, bytes: content::speech_reply(digest), at: 0 }
    }

    pub fn stream(digest: u64, tokens: u32) -> Expected {
        let mut bytes = Vec::with_capacity(256);
        content::push_event(&mut bytes, digest, 0, tokens);
        Expected { digest, stream: Some(Stream { tokens, index: 0 }), bytes, at: 0 }
    }

    pub fn head(&self, head: &[u8]) -> Result<(), String> {
        if head.starts_with(b"HTTP/1.1 200 ") {
            return Ok(());
        }
        Err(format!("head is not 200: {}", String::from_utf8_lossy(&head[..head.len().min(400)])))
    }

    /// Returns how many events `body` completed.
    pub fn body(&mut self, mut body: &[u8]) -> Result<u64, String> {
        let mut events = 0;
        while !body.is_empty() {
            let want = &self.bytes[self.at..];
            if want.is_empty() {
                return Err(format!("{} bytes after the end of the reply", body.len()));
            }
            let count = want.len().min(body.len());
            if want[..count] != body[..count] {
                return Err(self.difference(&body[..count]));
            }
            self.at += count;
            body = &body[count..];
            if self.at == self.bytes.len() {
                events += self.next_event();
            }
        }
        Ok(events)
    }

    fn next_event(&mut self) -> u64 {
        let Some(stream) = &mut self.stream else { return 0 };
        stream.index += 1;
        self.at = 0;
        self.bytes.clear();
        // After [DONE] nothing may come: an empty expectation.
        if stream.index <= stream.tokens + 1 {
            content::push_event(&mut self.bytes, self.digest, stream.index, stream.tokens);
        }
        1
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
            content::push_event(&mut bytes, digest, index, tokens);
        }
        bytes
    }

    #[test]
    fn a_right_stream_passes_at_every_cut() {
        let bytes = whole_stream(9, 3);
        for cut in 0..=bytes.len() {
            let mut expected = Expected::stream(9, 3);
            let events = expected.body(&bytes[..cut]).unwrap() + expected.body(&bytes[cut..]).unwrap();
            assert_eq!(events, 5);
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
    fn a_reply_to_another_request_is_seen() {
        assert!(Expected::plain(1).body(&content::plain_reply(2)).is_err());
        assert!(Expected::stream(1, 3).body(&whole_stream(2, 3)).is_err());
    }
}
