//! One client connection: sends a chat request, reads its stream, and believes nothing.
//!
//! A reply counts only if it is a 200 event stream of exactly the tokens asked for, one event each, with the text that
//! a simulated engine answers to that prompt and to no other, a finish reason, the same counts in `usage`, `[DONE]`,
//! and an end of the body right after it. A reply of which nothing comes for too long has failed.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use memchr::memmem;
use tokio::net::TcpStream;

use crate::engine::{request, tokens};

/// What the reply to a prompt must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
}

impl Expected {
    /// What an engine with blocks of `block_size` tokens replies to a chat request without `cache_salt`.
    pub fn of(body: &[u8], tokens: u32, block_size: u32) -> Result<Expected, String> {
        let root: serde_json::Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let prompt = request::chat_prompt(&root).map_err(|refused| refused.message)?;
        let seed = tokens::reply_seed(&prompt, 0, 0, block_size as usize);
        let reply: Vec<u32> = (0..tokens).map(|at| tokens::generated(seed, at)).collect();
        Ok(Expected { text: tokens::text_of(&reply), tokens, prompt_tokens: prompt.len() as u64 })
    }
}

/// A verified reply.
#[derive(Debug)]
pub struct Reply {
    /// What the assistant said.
    pub text: String,
    /// When the first token came.
    pub first: Instant,
    /// When the last token came.
    pub last: Instant,
}

/// A connection that is opened when needed and kept for the next turn.
pub struct Client {
    kept: Option<(SocketAddr, SendRequest<Full<Bytes>>)>,
    patience: Duration,
}

impl Client {
    /// Makes a client without a connection; it waits at most `patience` for the next piece of a reply.
    pub fn new(patience: Duration) -> Client {
        Client { kept: None, patience }
    }

    /// Sends `body` and reads the reply; `seen` is called with the number of new tokens as they come.
    pub async fn chat(
        &mut self,
        to: SocketAddr,
        body: Bytes,
        expected: &Expected,
        seen: impl FnMut(u32),
    ) -> Result<Reply, String> {
        let (patience, last) = (self.patience, Cell::new(Instant::now()));
        tokio::select! {
            biased;
            reply = self.exchange(to, body, expected, &last, seen) => reply,
            () = silence(&last, patience) => Err(format!("nothing came for {:.1} s", patience.as_secs_f64())),
        }
    }

    async fn exchange(
        &mut self,
        to: SocketAddr,
        body: Bytes,
        expected: &Expected,
        last: &Cell<Instant>,
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
            last.set(Instant::now());
            if let Ok(data) = frame.into_data() {
                let new = stream.read(&data)?;
                if new > 0 {
                    seen(new);
                }
            }
        }
        self.kept = Some((to, sender));
        stream.finish(expected)
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

/// Ends when nothing has come for `patience`.
async fn silence(last: &Cell<Instant>, patience: Duration) {
    loop {
        let left = patience.saturating_sub(last.get().elapsed());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
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
    /// Reads a piece of the body; returns the number of tokens in it.
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

    fn finish(self, expected: &Expected) -> Result<Reply, String> {
        let tokens = expected.tokens;
        let wrong = if !self.done || !self.partial.is_empty() {
            "no [DONE] at its end"
        } else if self.tokens != tokens {
            "another number of tokens than asked for"
        } else if !self.finished {
            "no finish reason"
        } else if self.text != expected.text {
            "another text than this prompt is answered"
        } else {
            match (self.first, self.last, self.usage) {
                (Some(first), Some(last), Some(usage)) if usage == (expected.prompt_tokens, u64::from(tokens)) => {
                    return Ok(Reply { text: self.text, first, last });
                }
                _ => "usage that differs from what was asked and streamed",
            }
        };
        Err(format!("a stream of {} of {tokens} tokens had {wrong}", self.tokens))
    }
}

/// Returns the text up to the next quote: the engine's tokens have no escapes.
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
    use crate::engine::pump::{Engine, Settings};
    use crate::engine::server;

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
        stream.finish(&Expected { text: " abc def".into(), tokens: 2, prompt_tokens: 7 })
    }

    #[test]
    fn whole_streams_count_however_they_are_cut() {
        for cut in 1..200 {
            let reply = read(&[": keep-alive\n\n", TOKEN, LAST, USAGE, DONE], cut).unwrap();
            assert_eq!(reply.text, " abc def");
        }
    }

    #[test]
    fn anything_else_does_not() {
        let other = &TOKEN.replace("abc", "abd");
        let longer = &USAGE.replace("\"prompt_tokens\":7", "\"prompt_tokens\":8");
        let bad: [&[&str]; 8] = [
            &[other, LAST, USAGE, DONE],
            &[TOKEN, LAST, longer, DONE],
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

    fn run<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
    }

    #[test]
    fn what_an_engine_answers_is_known_beforehand() {
        let settings = Settings::default();
        let block_size = settings.profile.block_size;
        let (first, second) = run(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = listener.local_addr().unwrap();
            tokio::spawn(server::serve(Engine::new(Settings { time_scale: 100.0, ..settings }), listener));
            let mut client = Client::new(Duration::from_secs(60));
            let mut ask = async |content: &str| {
                let body = format!(
                    "{{\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"max_tokens\":9,\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}"
                );
                let expected = Expected::of(body.as_bytes(), 9, block_size).unwrap();
                client.chat(to, body.into(), &expected, |_| ()).await.map(|reply| reply.text)
            };
            (ask(&"How is it? ".repeat(20)).await, ask("And now?").await)
        });
        assert_ne!(first.unwrap(), second.unwrap());
    }

    #[test]
    fn a_reply_that_does_not_come_has_failed() {
        let refused = run(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = listener.local_addr().unwrap();
            let expected = Expected { text: String::new(), tokens: 1, prompt_tokens: 1 };
            let mut client = Client::new(Duration::from_millis(50));
            client.chat(to, Bytes::from_static(b"{}"), &expected, |_| ()).await.map(|reply| reply.text)
        });
        assert_eq!(refused, Err("nothing came for 0.1 s".into()));
    }
}
