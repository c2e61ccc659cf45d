//! The load generator before mock fronts that fail in ways that a count of bytes does not show.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{Load, Plan};
use crate::content::{self, Digest, Pace, Request};
use crate::engine::replies;
use crate::http::{Framer, Kind, Step};

const TOKENS: u32 = 40;

/// A front with one thread a connection, which ends with its client. `answer` gets each request's digest.
fn front(answer: impl Fn(&mut TcpStream, u64) + Clone + Send + 'static) -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || serve(stream, answer));
        }
    });
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

fn serve(mut stream: TcpStream, answer: impl Fn(&mut TcpStream, u64)) {
    stream.set_nodelay(true).unwrap();
    let (mut framer, mut digest) = (Framer::new(Kind::Request), Digest::new());
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut input = &buffer[..count];
        loop {
            match framer.next(&mut input).unwrap() {
                Step::More => break,
                Step::Head(_) => {}
                Step::Body(bytes) => digest.update(bytes),
                Step::End => answer(&mut stream, std::mem::replace(&mut digest, Digest::new()).finish()),
            }
        }
    }
}

fn load(target: SocketAddrV4, pace: Pace, rate: u64) -> Load {
    let plan = Plan {
        targets: vec![target],
        pace,
        connections: 4,
        tokens: TOKENS,
        vary: 0,
        rate,
        warmup: Duration::from_millis(100),
        window: Duration::from_millis(1000),
        pid: 0,
    };
    Load::new(plan, Request::new(pace, 1024)).unwrap()
}

#[test]
fn a_front_that_stands_still_at_the_end_of_the_window_shows_in_its_latencies() {
    let begin = Instant::now();
    // The window lies between 110 and 1110 ms: most requests that are due in its last third wait for a connection, four
    // are on their way, and none of these is answered within it.
    let still = begin + Duration::from_millis(800)..begin + Duration::from_millis(1400);
    let target = front(move |stream, digest| {
        if still.contains(&Instant::now()) {
            thread::sleep(still.end - Instant::now());
        }
        let body = content::plain_reply(digest);
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
        // The client may have gone at its end.
        let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    });
    let mut load = load(target, Pace::Plain, 100);
    load.open_loop().unwrap();
    assert_eq!(load.tally.timed(), 100, "all that was due, and nothing else");
    assert!(load.tally.latency_us(0.99) > 300_000.0, "{}", load.tally.latency_us(0.99));
}

/// Runs the generator before a front to which its engine sends an event every 5 ms, and that writes `together` of them
/// at a time: returns chunks a read, and the median of their delay in ms.
fn streamed(together: usize) -> (f64, f64) {
    let target = front(move |stream, digest| {
        let mut held = replies::stream_head("").into_bytes();
        for index in 0..TOKENS + 2 {
            held.extend_from_slice(&replies::chunk(digest, index, TOKENS));
            if (index as usize + 1).is_multiple_of(together) {
                // The client may have gone at its end.
                let _ = stream.write_all(&std::mem::take(&mut held));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = stream.write_all(&[&held[..], b"0\r\n\r\n"].concat());
    });
    let mut load = load(target, Pace::Step, 0);
    load.closed_loop().unwrap();
    let counts = load.tally.counts;
    (counts.events as f64 / counts.arrivals as f64, load.tally.delay_us(0.50) / 1000.0)
}

#[test]
fn a_front_that_writes_tokens_together_stands_out() {
    let (chunks, delay_ms) = streamed(1);
    assert!(chunks < 1.5 && delay_ms < 10.0, "one by one: {chunks} chunks a read, {delay_ms} ms late");
    let (chunks, delay_ms) = streamed(8);
    assert!(chunks > 6.0 && delay_ms > 12.0, "by eight: {chunks} chunks a read, {delay_ms} ms late");
}
