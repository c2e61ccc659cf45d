//! Upstreams that follow a script, byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::front::PATIENCE;

/// One accepted connection of a scripted engine.
pub struct Connection {
    stream: TcpStream,
    ahead: Vec<u8>,
}

impl Connection {
    /// Reads one request: its head, and its body by length or chunks. `None`: the front closed.
    pub fn request(&mut self) -> Option<Vec<u8>> {
        let head = loop {
            if let Some(at) = find(&self.ahead, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let text = String::from_utf8_lossy(&self.ahead[..head]).to_lowercase();
        let end = if let Some(at) = text.find("content-length: ") {
            let digits: String = text[at + 16..].chars().take_while(char::is_ascii_digit).collect();
            let end = head + digits.parse::<usize>().unwrap();
            while self.ahead.len() < end {
                self.fill()?;
            }
            end
        } else if text.contains("transfer-encoding: chunked") {
            loop {
                if let Some(at) = find(&self.ahead[head..], b"0\r\n\r\n") {
                    break head + at + 5;
                }
                self.fill()?;
            }
        } else {
            head
        };
        Some(self.ahead.drain(..end).collect())
    }

    fn fill(&mut self) -> Option<()> {
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(0) | Err(_) => None,
            Ok(len) => {
                self.ahead.extend_from_slice(&buffer[..len]);
                Some(())
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn pause(&self, milliseconds: u64) {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    /// Waits for the front to close or reset; how long that took.
    pub fn closed(&mut self) -> Duration {
        let begun = std::time::Instant::now();
        while self.fill().is_some() {}
        begun.elapsed()
    }

    pub fn reset(self) {
        let socket = rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
        socket.unwrap();
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// A listener whose connections each run the script in a thread of their own.
pub struct Engine {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Engine {
    /// Runs `script` for each connection until it returns.
    pub fn run(script: impl Fn(Connection) + Send + Sync + 'static) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_nodelay(true).unwrap();
                let script = Arc::clone(&script);
                std::thread::spawn(move || script(Connection { stream, ahead: Vec::new() }));
            }
        });
        Engine { address, requests: Arc::default() }
    }

    /// Answers every request with `reply`, keeping the connection; what it was asked is kept.
    pub fn answering(reply: impl Into<Vec<u8>>) -> Engine {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, reply) = (Arc::clone(&requests), reply.into());
        let engine = Engine::run(move |mut connection| {
            while let Some(request) = connection.request() {
                seen.lock().unwrap().push(request);
                connection.send(&reply);
            }
        });
        Engine { requests, ..engine }
    }

    /// Answers one request on each connection with `reply`, then closes.
    pub fn closing_after(reply: impl Into<Vec<u8>>) -> Engine {
        let reply = reply.into();
        Engine::run(move |mut connection| {
            if connection.request().is_some() {
                connection.send(&reply);
            }
        })
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().unwrap().clone()
    }
}

/// Runs `script` and hands out what it sends to the channel.
pub fn reporting<T: Send + 'static>(
    script: impl Fn(Connection, &mpsc::Sender<T>) + Send + Sync + 'static,
) -> (Engine, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let engine = Engine::run(move |connection| {
        let sender = sender.lock().unwrap().clone();
        script(connection, &sender);
    });
    (engine, receiver)
}
