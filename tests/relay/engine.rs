//! Upstreams that follow a script, byte by byte.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::front::PATIENCE;
use crate::wire::{Body, End, Head, Length, Wire};

/// A reply with a short body by length.
pub const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
/// The head of a stream of events, one of them as a chunk, and what ends the chunks.
pub const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
pub const TOKEN: &str = "9\r\ndata: a\n\n\r\n";
pub const LAST: &str = "0\r\n\r\n";

/// A request as the engine understands it.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: Head,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// Which of the engine's connections it came on.
    pub connection: usize,
}

impl Request {
    pub fn path(&self) -> &str {
        self.head.start.split(' ').nth(1).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What happened at an engine, on all its connections.
#[derive(Default)]
struct Log {
    requests: Mutex<Vec<Request>>,
    connections: Mutex<usize>,
}

/// One accepted connection of a scripted engine.
pub struct Connection {
    wire: Wire,
    pub number: usize,
    log: Arc<Log>,
}

impl Connection {
    /// Reads one request's head. `None`: the front closed.
    pub fn head(&mut self) -> Option<Head> {
        self.wire.head()
    }

    /// Reads the body that belongs to `head`, and counts the request as executed if all of it came.
    pub fn body(&mut self, head: Head) -> Option<Request> {
        let length = head.length().unwrap_or(Length::Of(0));
        let Body { data, trailers, whole, .. } = self.wire.body(length);
        let request = Request { head, body: data, trailers, connection: self.number };
        whole.then(|| {
            self.log.requests.lock().unwrap().push(request.clone());
            request
        })
    }

    /// Reads one request, head and body. `None`: the front closed before its end.
    pub fn request(&mut self) -> Option<Request> {
        let head = self.head()?;
        self.body(head)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.wire.body(Length::Of(len)).data
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.wire.stream.write_all(bytes.as_ref());
    }

    /// Sends bytes in pieces of `size`.
    pub fn send_pieces(&mut self, bytes: &[u8], size: usize) {
        bytes.chunks(size).for_each(|piece| self.send(piece));
    }

    /// Waits for the front to close or reset the connection. Returns how long that took.
    pub fn closed(&mut self) -> Option<Duration> {
        let begun = Instant::now();
        let (_, end) = self.wire.drain();
        (end != End::Silence).then(|| begun.elapsed())
    }

    pub fn finish(&mut self) {
        let _ = self.wire.stream.shutdown(Shutdown::Write);
    }

    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.wire.stream, Some(Duration::ZERO)).unwrap();
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.wire.stream
    }
}

/// A listener whose connections each run the script in a thread of their own.
pub struct Engine {
    pub address: SocketAddr,
    log: Arc<Log>,
}

impl Engine {
    /// Answers each request with [`HELLO`] once its gate lets it.
    pub fn gated(wait: impl Fn() + Send + Sync + 'static) -> Engine {
        Engine::run(move |mut connection| {
            while connection.request().is_some() {
                wait();
                connection.send(HELLO);
            }
        })
    }

    /// Runs `script` for each connection until it returns.
    pub fn run(script: impl Fn(Connection) + Send + Sync + 'static) -> Engine {
        Engine::behind(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// The same, with a receive window so small that the front's sending soon stalls.
    pub fn narrow(script: impl Fn(Connection) + Send + Sync + 'static) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        narrow(&listener);
        Engine::behind(listener, script)
    }

    fn behind(listener: TcpListener, script: impl Fn(Connection) + Send + Sync + 'static) -> Engine {
        // A SYN for which the queue has no place is only sent again after a second.
        rustix::net::listen(&listener, 1_024).unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Log>::default();
        let (script, seen) = (Arc::new(script), Arc::clone(&log));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_nodelay(true).unwrap();
                let (script, log) = (Arc::clone(&script), Arc::clone(&seen));
                let number = {
                    let mut connections = log.connections.lock().unwrap();
                    *connections += 1;
                    *connections
                };
                std::thread::spawn(move || script(Connection { wire: Wire::new(stream), number, log }));
            }
        });
        Engine { address, log }
    }

    /// Answers every request with `reply`, keeping the connection.
    pub fn answering(reply: impl Into<Vec<u8>>) -> Engine {
        let reply = reply.into();
        Engine::run(move |mut connection| {
            while connection.request().is_some() {
                connection.send(&reply);
            }
        })
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

    /// The requests that came whole so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.requests.lock().unwrap().clone()
    }

    pub fn executions(&self) -> usize {
        self.log.requests.lock().unwrap().len()
    }

    pub fn connections(&self) -> usize {
        *self.log.connections.lock().unwrap()
    }
}

/// Gives connections to this listener a small receive window.
pub fn narrow(listener: &TcpListener) {
    rustix::net::sockopt::set_socket_recv_buffer_size(listener, 32 << 10).unwrap();
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

/// A reply of status 200 with `body` by length.
pub fn ok(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    reply.extend_from_slice(body);
    reply
}

/// A reply of this status in which the engine refuses a request.
pub fn error(status: u16) -> String {
    format!("HTTP/1.1 {status} Sorry\r\ncontent-length: 2\r\n\r\nno")
}

/// Lets test and engine wait for each other.
pub fn gate() -> (mpsc::Sender<()>, impl Fn() + Send + Sync) {
    let (open, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    (open, move || {
        let _ = gate.lock().unwrap().recv_timeout(PATIENCE);
    })
}

/// A listener that lets the kernel answer no further SYN: a connect hangs. Keep what it returns.
pub fn black_hole() -> (SocketAddr, Vec<Box<dyn std::any::Any>>) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let mut kept: Vec<Box<dyn std::any::Any>> = vec![Box::new(listener)];
    // Its queue takes one connection, perhaps two; from there on the kernel drops SYNs.
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        kept.push(Box::new(stream));
    }
    (address, kept)
}

/// An address on which nothing listens, another one each time. A port that was just free could soon be another test's.
pub fn refusing() -> SocketAddr {
    static GIVEN: AtomicU8 = AtomicU8::new(0);
    SocketAddr::from(([127, 0, 1, GIVEN.fetch_add(1, Ordering::Relaxed)], 1))
}
