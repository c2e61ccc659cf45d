//! The engine of these tests: it notes every byte the front sends on, strictly, and answers by script or with what
//! it has understood.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::grammar::{self, Field, Head, Step};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Vec<u8>,
    pub path: Vec<u8>,
    pub fields: Vec<Field>,
    pub body: Vec<u8>,
    pub chunked: bool,
    pub trailers: Vec<Field>,
    /// Which of the origin's connections it came on.
    pub connection: usize,
}

/// What stands for a reply.
#[derive(Clone, Debug)]
pub struct Script {
    /// Written one by one.
    pub pieces: Vec<Vec<u8>>,
    pub then: Then,
}

/// What happens behind a scripted reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    Stay,
    Close,
    Reset,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    /// What no front may send.
    wrong: Vec<String>,
    /// By path.
    scripts: HashMap<Vec<u8>, Script>,
    /// Bytes of a request not yet whole, by connection.
    begun: HashMap<usize, usize>,
    connections: usize,
}

/// A listener whose connections are all read this way.
pub struct Origin {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Origin {
    pub fn start() -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                let number = {
                    let mut state = state.lock().unwrap();
                    state.connections += 1;
                    let number = state.connections;
                    state.begun.insert(number, 0);
                    number
                };
                std::thread::spawn(move || Connection { stream, state, number, bytes: Vec::new() }.serve());
            }
        });
        Origin { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Requests for `path` get this.
    pub fn script(&self, path: &str, script: Script) {
        self.state().scripts.insert(path.into(), script);
    }

    /// What came since the last call, once no connection stands in the middle of a request. Panics on what no front
    /// may send, and on a request that is begun and neither ended nor cut.
    pub fn take(&self) -> Vec<Seen> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let mut state = self.state();
            assert_eq!(state.wrong, Vec::<String>::new(), "sent by the front");
            if state.begun.values().all(|begun| *begun == 0) {
                return std::mem::take(&mut state.seen);
            }
            assert!(Instant::now() < deadline, "half a request on a connection that stays: {:?}", state.begun);
            drop(state);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

struct Connection {
    stream: TcpStream,
    state: Arc<Mutex<State>>,
    number: usize,
    bytes: Vec<u8>,
}

impl Connection {
    fn serve(mut self) {
        let _ = self.stream.set_nodelay(true);
        let mut buffer = vec![0; 65_536];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(len) if len > 0 => self.bytes.extend_from_slice(&buffer[..len]),
                _ => break,
            }
            while let Some(seen) = self.request() {
                let script = self.state.lock().unwrap().scripts.get(&seen.path).cloned();
                if !self.answer(&seen, script) {
                    self.note(|state, number| _ = state.begun.remove(&number));
                    return;
                }
            }
            let begun = self.bytes.len();
            self.note(|state, number| _ = state.begun.insert(number, begun));
        }
        self.note(|state, number| _ = state.begun.remove(&number));
    }

    fn note(&self, what: impl FnOnce(&mut State, usize)) {
        what(&mut self.state.lock().unwrap(), self.number);
    }

    /// The next request, if it is whole.
    fn request(&mut self) -> Option<Seen> {
        match read(&self.bytes) {
            Step::Whole((mut seen, len)) => {
                seen.connection = self.number;
                self.bytes.drain(..len);
                let copy = (!is_probe(&seen)).then(|| seen.clone());
                self.note(|state, number| {
                    state.seen.extend(copy);
                    state.begun.insert(number, 0);
                });
                Some(seen)
            }
            Step::Partial => None,
            Step::Wrong(what) => {
                let wrong = format!("{what}: {}", self.bytes.escape_ascii());
                self.bytes.clear();
                self.note(|state, _| state.wrong.push(wrong));
                None
            }
        }
    }

    /// Answers; false: the connection is over.
    fn answer(&mut self, seen: &Seen, script: Option<Script>) -> bool {
        let Some(script) = script else {
            let body = if seen.method == b"HEAD" { Vec::new() } else { identity(&seen.method, &seen.path, &seen.body) };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            return self.stream.write_all(&[head.as_bytes(), &body].concat()).is_ok();
        };
        for piece in &script.pieces {
            if self.stream.write_all(piece).is_err() {
                return false;
            }
        }
        if script.then == Then::Reset {
            let _ = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
        script.then == Then::Stay
    }
}

/// Whether it comes from a front of some other test, which still looks after an engine that had this port.
fn is_probe(seen: &Seen) -> bool {
    seen.fields.iter().any(|(name, value)| name == b"user-agent" && value.starts_with(b"warmfront/"))
}

/// What the origin answers with: method, path, and the body's length and checksum.
pub fn identity(method: &[u8], path: &[u8], body: &[u8]) -> Vec<u8> {
    let sum = xxhash_rust::xxh3::xxh3_64(body);
    [method, b" ", path, format!(" {} {sum:x}", body.len()).as_bytes()].concat()
}

/// A request in the only form the front may write.
fn read(bytes: &[u8]) -> Step<(Seen, usize)> {
    let head = match grammar::head(bytes) {
        Step::Whole(head) => head,
        Step::Partial => return Step::Partial,
        Step::Wrong(what) => return Step::Wrong(what),
    };
    let parts: Vec<&[u8]> = head.start.split(|byte| *byte == b' ').collect();
    let [method, path, b"HTTP/1.1"] = parts[..] else { return Step::Wrong("a request line") };
    if !grammar::is_token(method) || path.is_empty() || head.all("host").len() != 1 {
        return Step::Wrong("a method, a path, or not one Host");
    }
    let rest = &bytes[head.len..];
    let (body, trailers, len, chunked) = match framing(&head) {
        Err(what) => return Step::Wrong(what),
        Ok(Some(len)) if len > rest.len() => return Step::Partial,
        Ok(Some(len)) => (rest[..len].to_vec(), Vec::new(), len, false),
        Ok(None) => match plain_chunks(rest) {
            Step::Whole(chunks) => (chunks.data, chunks.trailers, chunks.len, true),
            Step::Partial => return Step::Partial,
            Step::Wrong(what) => return Step::Wrong(what),
        },
    };
    let (method, path) = (method.to_vec(), path.to_vec());
    let len = head.len + len;
    Step::Whole((Seen { method, path, fields: head.fields, body, chunked, trailers, connection: 0 }, len))
}

/// The length, or `None` for chunks; told once, in plain digits or the plain word.
fn framing(head: &Head) -> Result<Option<usize>, &'static str> {
    match (&head.all("content-length")[..], &head.all("transfer-encoding")[..]) {
        ([], []) => Ok(Some(0)),
        ([length], []) if *length == b"0" || !length.starts_with(b"0") => {
            grammar::digits(length).and_then(|length| usize::try_from(length).ok()).map(Some).ok_or("a length")
        }
        ([], [b"chunked"]) => Ok(None),
        _ => Err("framing that is not plain"),
    }
}

/// Chunks without anything that someone else might read differently.
fn plain_chunks(bytes: &[u8]) -> Step<grammar::Chunks> {
    let decoded = grammar::chunks(bytes);
    // Size lines are looked at again: no extension, no leading zero.
    let mut rest = bytes;
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let line = &rest[..end];
        let plain = line == b"0" || (!line.starts_with(b"0") && line.iter().all(u8::is_ascii_hexdigit));
        if !plain {
            return Step::Wrong("a size line that is not plain");
        }
        let size = std::str::from_utf8(line).ok().and_then(|line| usize::from_str_radix(line, 16).ok()).unwrap_or(0);
        match rest.get(end + 2 + size + 2..) {
            Some(next) if size > 0 => rest = next,
            _ => break,
        }
    }
    decoded.step
}
