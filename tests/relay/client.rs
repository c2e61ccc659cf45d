//! What a client sends and what it gets.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::wire::{Body, End, Head, Length, Wire};

/// A client's connection.
pub struct Client {
    wire: Wire,
}

/// A reply as a strict client reads it.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub head: Head,
    pub body: Vec<u8>,
    pub chunks: Vec<usize>,
    pub trailers: Vec<(String, String)>,
    /// Whether it ended as its framing says.
    pub whole: bool,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn closes(&self) -> bool {
        self.head.get("connection") == Some("close")
    }
}

impl Client {
    pub fn new(stream: TcpStream) -> Client {
        Client { wire: Wire::new(stream) }
    }

    /// Sends bytes. If the front has closed the connection meanwhile, the reply shows it.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.wire.stream.write_all(bytes.as_ref());
    }

    /// Sends bytes in pieces, cut at these places.
    pub fn send_cut(&mut self, bytes: &[u8], cuts: &[usize]) {
        let mut from = 0;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            self.send(&bytes[from..cut]);
            from = cut;
        }
    }

    /// The next head, interim ones included. Panics where none comes.
    pub fn head(&mut self) -> Head {
        let head = self.wire.head();
        head.unwrap_or_else(|| panic!("no reply but {:?} after {:?}", self.wire.end, self.text_ahead()))
    }

    fn text_ahead(&self) -> String {
        String::from_utf8_lossy(self.wire.ahead()).into_owned()
    }

    /// The next reply to a request that was not HEAD.
    pub fn reply(&mut self) -> Reply {
        self.reply_to("GET")
    }

    pub fn reply_to(&mut self, method: &str) -> Reply {
        let head = self.head();
        let status = status(&head);
        let told = head.length();
        let length = match (method, status) {
            ("HEAD", _) | (_, 100..=199 | 204 | 304) => Length::Of(0),
            _ => told.unwrap_or(Length::UntilClose),
        };
        let Body { data, chunks, trailers, whole } = self.wire.body(length);
        Reply { status, head, body: data, chunks, trailers, whole }
    }

    /// The next `len` bytes, whatever they are.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.wire.body(Length::Of(len)).data
    }

    /// The lengths of the chunks up to the last one, of a reply whose head was read before. Panics if the last one does
    /// not come.
    pub fn chunks(&mut self) -> Vec<usize> {
        let body = self.wire.body(Length::Chunked);
        assert!(body.whole, "{:?} after {} bytes", self.wire.end, body.data.len());
        body.chunks
    }

    /// Sends a request and reads its reply.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Reply {
        self.send(request);
        self.reply()
    }

    /// Reads to the end of the connection.
    pub fn rest(&mut self) -> (Vec<u8>, End) {
        self.wire.drain()
    }

    /// Nothing more comes but the end.
    pub fn ends(&mut self) -> End {
        let (rest, end) = self.rest();
        assert!(rest.is_empty(), "surplus: {:?}", String::from_utf8_lossy(&rest));
        assert_ne!(end, End::Silence, "the connection did not end");
        end
    }

    /// Whether nothing comes for a while.
    pub fn is_silent(&mut self, milliseconds: u64) -> bool {
        self.wire.stream.set_read_timeout(Some(Duration::from_millis(milliseconds))).unwrap();
        let silent = self.wire.ahead().is_empty() && !self.wire.fill() && self.wire.end == Some(End::Silence);
        self.wire.stream.set_read_timeout(Some(crate::front::PATIENCE)).unwrap();
        silent
    }

    pub fn half_close(&mut self) {
        self.wire.stream.shutdown(Shutdown::Write).unwrap();
    }

    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.wire.stream, Some(Duration::ZERO)).unwrap();
    }

    /// The same socket, for a thread that goes on sending while this one reads.
    pub fn clone_stream(&self) -> TcpStream {
        self.wire.stream.try_clone().unwrap()
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.wire.stream
    }
}

pub fn status(head: &Head) -> u16 {
    let rest = head.start.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{:?}", head.start));
    rest.get(..3).and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{:?}", head.start))
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into()
}

pub fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    request
}

/// A chat request as clients write it, for a model and a user's words.
pub fn chat(model: &str, words: &str) -> Vec<u8> {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}],"model":"{model}"}}"#);
    post("/v1/chat/completions", body)
}

/// `body` in chunks of `size`.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}
