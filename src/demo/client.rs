//! One client connection: sends a chat request, reads its stream, and believes nothing.
//!
//! A reply counts only if it is a 200 event stream of exactly the tokens asked for, one event each,
//! a finish reason, the same count in `usage`, `[DONE]`, and an end of the body right behind it.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::net::TcpStream;

/// A verified reply.
#[derive(Debug)]
pub struct Reply {
    /// What the assistant said.
    pub text: String,
    /// When the first token came.
    pub first: Instant,
    /// When the last token came.
    pub last: Instant,
    /// Prompt tokens, and those found in the cache, as `usage` tells.
    pub prompt_tokens: u64,
}

/// A connection that is opened when needed and kept for the next turn.
#[derive(Default)]
pub struct Client {
    kept: Option<(SocketAddr, SendRequest<Full<Bytes>>)>,
}

impl Client {
    /// Sends `body` and reads the reply; `seen` is called with the number of new tokens as they come.
    pub async fn chat(
        &mut self,
        to: SocketAddr,
        body: Bytes,
        tokens: u32,
        mut seen: impl FnMut(u32),
    ) -> Result<Reply, String> {
        let mut sender = self.sender(to).await?;
        let request = hyper::Request::post("/v1/chat/completions")
            .header(HOST, to.to_string())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| format!("no reply: {error}"))?;
        let status = response.status();
        let mut body = response.into_body();
        if status != 200 {
            let words = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let words: String = String::from_utf8_lossy(&words).chars().take(300).collect();
            return Err(format!("status {status}: {words}"));
        }
        let mut stream = Stream::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the stream was cut: {error}"))?;
            if let Ok(data) = frame.into_data() {
                let new = stream.read(&data)?;
                if new > 0 {
                    seen(new);
                }
            }
        }
        self.kept = Some((to, sender));
        stream.finish(tokens)
    }

    async fn sender(&mut self, to: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
        if let Some((kept_to, mut sender)) = self.kept.take()
            && kept_to == to
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let socket = TcpStream::connect(to).await.map_err(|error| format!("cannot connect to {to}: {error}"))?;
        let _ = socket.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(socket)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// What has been read of an event stream.
#[derive(Default)]
struct Stream {
    /// Bytes of an event that is not whole yet; events rarely cross frames.
    partial: Vec<u8>,
    text: String,
    tokens: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    finished: bool,
    usage: Option<(u64, u64)>,
    done: bool,
}

impl Stream {
    /// Reads a piece of the body; answers with the tokens in it.
    fn read(&mut self, piece: &[u8]) -> Result<u32, String> {
        let before = self.tokens;
        let mut joined = std::mem::take(&mut self.partial);
        let mut data = piece;
        if !joined.is_empty() {
            joined.extend_from_slice(piece);
            data = &joined;
        }
        while let Some(end) = memmem::find(data, b"\n\n") {
            self.event(data.get(..end).unwrap_or_default())?;
            data.advance(end + 2);
        }
        self.partial = data.to_vec();
        Ok(self.tokens - before)
    }

    fn event(&mut self, event: &[u8]) -> Result<(), String> {
        if event.first() == Some(&b':') {
            return Ok(());
        }
        let show = || String::from_utf8_lossy(event).chars().take(300).collect::<String>();
        if self.done {
            return Err(format!("more after [DONE]: {}", show()));
        }
        let data = event.strip_prefix(b"data: ").ok_or_else(|| format!("no event: {}", show()))?;
        if data == b"[DONE]" {
            self.done = true;
        } else if let Some(text) = string_after(data, b"\"delta\":{\"content\":\"") {
            let now = Instant::now();
            self.first.get_or_insert(now);
            self.last = Some(now);
            self.tokens += 1;
            self.text.push_str(text);
            self.finished |= memmem::find(data, b"\"finish_reason\":\"length\"").is_some();
        } else if let Some(prompt) = number_after(data, b"\"prompt_tokens\":") {
            let completion = number_after(data, b"\"completion_tokens\":").unwrap_or(0);
            self.usage = Some((prompt, completion));
        } else if memmem::find(data, b"\"delta\":{\"role\":\"assistant\"").is_none() {
            return Err(format!("unexpected event: {}", show()));
        }
        Ok(())
    }

    fn finish(self, tokens: u32) -> Result<Reply, String> {
        let wrong = if !self.done || !self.partial.is_empty() {
            "no [DONE] at its end"
        } else if self.tokens != tokens {
            "another number of tokens than asked for"
        } else if !self.finished {
            "no finish reason"
        } else {
            match (self.first, self.last, self.usage) {
                (Some(first), Some(last), Some((prompt_tokens, completion))) if completion == u64::from(tokens) => {
                    return Ok(Reply { text: self.text, first, last, prompt_tokens });
                }
                _ => "usage that differs from what was streamed",
            }
        };
        Err(format!("a stream of {} of {tokens} tokens had {wrong}", self.tokens))
    }
}

/// The text up to the next quote: the engine's tokens have no escapes.
fn string_after<'a>(data: &'a [u8], key: &[u8]) -> Option<&'a str> {
    let start = memmem::find(data, key)? + key.len();
    let rest = data.get(start..)?;
    let end = memchr::memchr(b'"', rest)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

fn number_after(data: &[u8], key: &[u8]) -> Option<u64> {
    let start = memmem::find(data, key)? + key.len();
    let digits = data.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |sum, digit| Some(sum.unwrap_or(0) * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" abc\"},\"finish_reason\":null}]}\n\n";
    const LAST: &str =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" def\"},\"finish_reason\":\"length\"}]}\n\n";
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"total_tokens\":9,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn read(parts: &[&str], cut: usize) -> Result<Reply, String> {
        let whole = parts.concat();
        let mut stream = Stream::default();
        for piece in whole.as_bytes().chunks(cut) {
            stream.read(piece)?;
        }
        stream.finish(2)
    }

    #[test]
    fn whole_streams_count_however_they_are_cut() {
        for cut in 1..200 {
            let reply = read(&[": keep-alive\n\n", TOKEN, LAST, USAGE, DONE], cut).unwrap();
            assert_eq!((reply.text.as_str(), reply.prompt_tokens), (" abc def", 7));
        }
    }

    #[test]
    fn anything_else_does_not() {
        let bad: [&[&str]; 6] = [
            &[TOKEN, LAST, USAGE],
            &[LAST, USAGE, DONE],
            &[TOKEN, TOKEN, USAGE, DONE],
            &[TOKEN, LAST, DONE],
            &[TOKEN, LAST, USAGE, DONE, TOKEN],
            &[TOKEN, "data: {\"error\":{\"code\":500}}\n\n", DONE],
        ];
        for parts in bad {
            assert!(read(parts, 64).is_err(), "{parts:?}");
        }
    }
}
