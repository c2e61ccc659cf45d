//! A well-behaved client, or one that does what a scene tells it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::front::PATIENCE;

pub struct Client {
    pub stream: TcpStream,
    ahead: Vec<u8>,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }
}

pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

pub fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A field of a head, by its name in lower case.
pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

impl Client {
    pub fn new(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, ahead: Vec::new() }
    }

    /// Sends; that the front closed meanwhile shows in the reply.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// A read with a timeout is not begun again by the kernel when a signal interrupts it.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    fn fill(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        match self.read(&mut buffer) {
            Ok(len) => {
                self.ahead.extend_from_slice(&buffer[..len]);
                len > 0
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing came"),
            Err(_) => false,
        }
    }

    /// The bytes up to and with `end`; what came, if the connection ended before.
    fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.ahead.windows(end.len()).position(|window| window == end) {
                return self.ahead.drain(..at + end.len()).collect();
            }
            if !self.fill() {
                return std::mem::take(&mut self.ahead);
            }
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        while self.ahead.len() < len && self.fill() {}
        let len = len.min(self.ahead.len());
        self.ahead.drain(..len).collect()
    }

    pub fn head(&mut self) -> String {
        String::from_utf8(self.until(b"\r\n\r\n")).unwrap()
    }

    /// The next chunk; nothing: the last, or no more.
    pub fn chunk(&mut self) -> Vec<u8> {
        let size = String::from_utf8(self.until(b"\r\n")).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let mut chunk = self.bytes(size + 2);
        chunk.truncate(size);
        chunk
    }

    pub fn reply(&mut self) -> Reply {
        let head = self.head();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no reply but {head:?}"));
        let mut body = Vec::new();
        if let Some(len) = field(&head, "content-length") {
            body = self.bytes(len.parse().unwrap());
        } else if field(&head, "transfer-encoding").is_some() {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
        } else {
            while self.fill() {}
            body.append(&mut self.ahead);
        }
        Reply { status, head, body }
    }

    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Reply {
        self.send(request);
        self.reply()
    }

    /// Reads to the end of the connection; false: it was a reset.
    pub fn ends(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it does not end"),
                Err(_) => return false,
            }
        }
    }

    /// Whether nothing comes for a while.
    pub fn is_silent(&mut self, wait: Duration) -> bool {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        let looked = loop {
            match self.stream.peek(&mut [0; 1]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        let silent = matches!(looked, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }

    /// Closes with a reset.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }
}
