//! An engine that answers at once, streams without end, or takes no byte.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Client, field};
use crate::front::PATIENCE;

/// How long it takes to begin to read what it is late with.
pub const LATE: Duration = Duration::from_secs(4);

/// Numbered events, so that a reader sees whether one is missing.
pub const EVENT_BYTES: usize = 1_024;

/// What it has seen and sent; lives as long as the test process.
#[derive(Default)]
pub struct Log {
    /// Bytes of streams that the kernel took.
    pub streamed: AtomicUsize,
    /// Requests read to their end, but for control's own.
    pub requests: AtomicUsize,
    /// Connections that are open.
    pub connections: AtomicUsize,
}

pub struct Engine {
    pub address: SocketAddr,
    pub log: &'static Log,
}

impl Engine {
    pub fn start() -> Engine {
        Engine::serving("")
    }

    /// Serves one model; its card says `about`.
    pub fn serving(about: &str) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log: &'static Log = Box::leak(Box::default());
        let models: &'static str = Box::leak(
            format!(r#"{{"object":"list","data":[{{"id":"m","object":"model","about":"{about}"}}]}}"#).into_boxed_str(),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let script = move || serve(stream, log, models);
                std::thread::Builder::new().stack_size(256 << 10).spawn(script).unwrap();
            }
        });
        Engine { address, log }
    }

    /// Waits until the streams stand still; how many bytes the kernel took for them.
    pub fn standstill(&self) -> usize {
        let (mut before, deadline) = (usize::MAX, Instant::now() + PATIENCE);
        loop {
            assert!(Instant::now() < deadline, "{before} bytes, and no standstill");
            let now = self.log.streamed.load(Ordering::Relaxed);
            if now > 0 && now == before {
                return now;
            }
            before = now;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn serve(stream: TcpStream, log: &'static Log, models: &str) {
    log.connections.fetch_add(1, Ordering::Relaxed);
    let mut connection = Client::new(stream);
    connection.stream.set_read_timeout(None).unwrap();
    connection.stream.set_write_timeout(None).unwrap();
    while answer(&mut connection, log, models) {}
    log.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Whether another request may follow.
fn answer(connection: &mut Client, log: &Log, models: &str) -> bool {
    let head = connection.head();
    let Some(path) = head.split(' ').nth(1) else { return false };
    let wanted = field(&head, "content-length").map_or(0, |len| len.parse().unwrap());
    if path == "/v1/late" {
        std::thread::sleep(LATE);
    }
    if connection.bytes(wanted).len() < wanted {
        return false;
    }
    let ok = |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    match path {
        "/health" | "/metrics" => connection.stream.write_all(ok("").as_bytes()).is_ok(),
        "/v1/models" => connection.stream.write_all(ok(models).as_bytes()).is_ok(),
        "/v1/stream" => {
            log.requests.fetch_add(1, Ordering::Relaxed);
            stream(connection, log)
        }
        _ => {
            log.requests.fetch_add(1, Ordering::Relaxed);
            connection.stream.write_all(ok(path).as_bytes()).is_ok()
        }
    }
}

/// Sends events as fast as they are taken, for as long as they are.
fn stream(connection: &mut Client, log: &Log) -> bool {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    if connection.stream.write_all(head.as_bytes()).is_err() {
        return false;
    }
    for number in 0.. {
        let chunk = [format!("{EVENT_BYTES:x}\r\n").into_bytes(), event(number), b"\r\n".to_vec()].concat();
        if connection.stream.write_all(&chunk).is_err() {
            return false;
        }
        log.streamed.fetch_add(chunk.len(), Ordering::Relaxed);
    }
    true
}

/// The event of this number.
pub fn event(number: usize) -> Vec<u8> {
    let mut event = format!("data: {number:016} ").into_bytes();
    event.resize(EVENT_BYTES - 2, b'a' + (number % 26) as u8);
    event.extend_from_slice(b"\n\n");
    event
}
