//! An engine's two sockets, written from the recorded bytes of libzmq's, and a consumer that writes down what it is told.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use warmfront::kvevents::{Endpoint, Event, Pace, Settings, Source, Told};

pub use crate::frames::message;
use crate::msgpack::packed;
use crate::recordings::file;

/// What a subscriber sends before anything else: greeting, READY, a subscription to everything.
pub const SUBSCRIBER_BYTES: usize = 103;
/// Greeting and READY of a DEALER.
const DEALER_BYTES: usize = 64 + 30;
const REQUEST: &[u8] = b"\x01\x00\x00\x08";

/// No test waits longer for anything.
const LONGEST: Duration = Duration::from_secs(20);

/// Soon again, and longer for what should come than this thread stands still: engine and consumer share it.
pub const PACE: Pace = Pace {
    connect: Duration::from_secs(5),
    handshake: Duration::from_secs(5),
    heartbeat: Duration::from_secs(5),
    answer: Duration::from_secs(5),
    replay: Duration::from_secs(10),
    again: Duration::from_millis(5),
    again_most: Duration::from_millis(40),
};

/// A batch that names one block by the number of its message; `process` stands in its time.
pub fn payload(process: u64, number: u64, rank: u32) -> Vec<u8> {
    let time = (process * 1_000 + number) as f64;
    packed(&json!([time, [["BlockRemoved", [process * 1_000 + number]]], rank]))
}

/// Greeting and READY of libzmq's PUB.
pub fn publisher_bytes() -> Vec<u8> {
    file("sha256-int", "wire-sub.s2c")[..91].to_vec()
}

fn router_bytes() -> Vec<u8> {
    file("sha256-int", "wire-replay.s2c")[..107].to_vec()
}

pub async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Where nobody listens, ever. A port that was just free would soon be another test's.
pub fn nobody() -> Endpoint {
    "tcp://127.0.0.1:1".parse().unwrap()
}

pub fn at(listener: &TcpListener) -> Endpoint {
    format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap()
}

/// A subscriber that has come in.
pub struct Subscriber {
    pub stream: TcpStream,
}

impl Subscriber {
    pub async fn entered(listener: &TcpListener) -> Subscriber {
        let (stream, _) = within(listener.accept()).await.unwrap();
        Subscriber::on(stream).await
    }

    pub async fn on(mut stream: TcpStream) -> Subscriber {
        stream.write_all(&publisher_bytes()).await.unwrap();
        let mut theirs = [0; SUBSCRIBER_BYTES];
        within(stream.read_exact(&mut theirs)).await.unwrap();
        assert_eq!(theirs[..], file("sha256-int", "wire-sub.c2s"), "not what libzmq's subscriber sends");
        Subscriber { stream }
    }

    pub async fn publish(&mut self, process: u64, number: u64) {
        self.publish_of(process, number, 0).await;
    }

    pub async fn publish_of(&mut self, process: u64, number: u64, rank: u32) {
        self.send(&[b"kv", &number.to_be_bytes(), &payload(process, number, rank)]).await;
    }

    pub async fn send(&mut self, frames: &[&[u8]]) {
        self.stream.write_all(&message(frames)).await.unwrap();
    }
}

/// How replays are answered.
#[derive(Clone, Copy, PartialEq)]
pub enum Layout {
    /// Before vLLM 0.26.
    WithoutTopic,
    WithTopic,
}

/// Answers of a replay socket, and what it was asked.
#[derive(Default)]
pub struct Log {
    /// Number and payload of what it still has.
    pub kept: Vec<(u64, Vec<u8>)>,
    pub asked: Vec<u64>,
    /// How many answers fit into its queue: the others are lost, but for the last one and the end mark. 0: all.
    pub fitting: usize,
    /// It answers with all it has, whatever is asked for.
    pub answers_all: bool,
    /// What it has once it has answered again.
    pub later: Vec<(u64, Vec<u8>)>,
}

pub type Shared = Arc<Mutex<Log>>;

/// A replay socket that has these messages of one process.
pub async fn replays(layout: Layout, process: u64, numbers: std::ops::Range<u64>) -> (Endpoint, Shared) {
    let kept = numbers.map(|number| (number, payload(process, number, 0))).collect();
    let log = Arc::new(Mutex::new(Log { kept, ..Log::default() }));
    (serve_replays(layout, Arc::clone(&log)).await, log)
}

pub async fn serve_replays(layout: Layout, log: Shared) -> Endpoint {
    let listener = listener().await;
    let at = at(&listener);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut stream, from) = request_on(stream).await;
            let answer = |number: u64, topic: &[u8], payload: &[u8]| {
                let number = number.to_be_bytes();
                let all: [&[u8]; 4] = [b"", topic, &number, payload];
                let old: [&[u8]; 3] = [b"", &number, payload];
                message(if layout == Layout::WithTopic { &all } else { &old })
            };
            let (mut kept, fitting, least) = {
                let mut log = log.lock().unwrap();
                log.asked.push(from);
                let kept = log.kept.clone();
                let later = std::mem::take(&mut log.later);
                log.kept.extend(later);
                (kept, log.fitting, if log.answers_all { 0 } else { from })
            };
            kept.retain(|(number, _)| *number >= least);
            if fitting > 0 && kept.len() > fitting {
                let last = kept.pop();
                kept.truncate(fitting);
                kept.extend(last);
            }
            let mut bytes = Vec::new();
            kept.iter().for_each(|(number, payload)| bytes.extend(answer(*number, b"kv", payload)));
            bytes.extend(answer(u64::MAX, b"", b""));
            // Who has what it needs goes before the end.
            let _ = stream.write_all(&bytes).await;
            tokio::spawn(async move { stream.read(&mut [0; 64]).await });
        }
    });
    at
}

/// The handshake of a ROUTER, and the number that is asked for.
pub async fn request_on(mut stream: TcpStream) -> (TcpStream, u64) {
    stream.write_all(&router_bytes()).await.unwrap();
    let mut theirs = [0; DEALER_BYTES + REQUEST.len() + 8];
    within(stream.read_exact(&mut theirs)).await.unwrap();
    let (request, from) = theirs[DEALER_BYTES..].split_at(REQUEST.len());
    assert_eq!(request, REQUEST);
    (stream, u64::from_be_bytes(from.try_into().unwrap()))
}

/// A consumer.
pub struct Consumer {
    pub source: Source,
}

impl Consumer {
    pub fn of(events: Endpoint, replay: Option<Endpoint>) -> Consumer {
        Consumer::paced(events, replay, PACE)
    }

    pub fn paced(events: Endpoint, replay: Option<Endpoint>, pace: Pace) -> Consumer {
        Consumer { source: Source::new(Settings { events, replay, topic: String::new(), peers: None }, pace) }
    }

    /// Others than the engine that came, told of or not.
    pub fn strangers(&self) -> u64 {
        self.source.counts().strangers + self.source.turned_away().load(Ordering::Relaxed)
    }

    /// The next news in words; a batch by the names of its blocks. That it is abreast is told where that is asked for.
    pub async fn told(&mut self) -> String {
        loop {
            let told = self.told_all().await;
            if told != "abreast" {
                return told;
            }
        }
    }

    pub async fn told_all(&mut self) -> String {
        match within(self.source.told()).await {
            Told::Connected => "connected".into(),
            Told::Abreast => "abreast".into(),
            Told::Batch(batch) => {
                let names = batch.events().flat_map(|event| match event {
                    Event::Removed(removed) => removed.hashes.to_vec(),
                    Event::Cleared => Vec::new(),
                    other => panic!("{other:?}"),
                });
                let names: Vec<String> = names.map(|name| name.to_string()).collect();
                let rank = if batch.rank() == 0 { String::new() } else { format!(" of {}", batch.rank()) };
                format!("{}{rank}", names.join(" "))
            }
            Told::Restarted { rank } => format!("restarted {rank}"),
            Told::Incomplete { rank, why } => format!("incomplete {rank} {why:?}"),
            Told::Malformed(what) => format!("malformed {what}"),
            Told::Offline(why) => format!("offline {why:?}"),
        }
    }

    pub async fn expect(&mut self, all: &[&str]) {
        for (place, expected) in all.iter().enumerate() {
            assert_eq!(self.told().await, *expected, "number {place} of {all:?}; {:?}", self.source.counts());
        }
    }

    /// Nothing more is told for a while.
    pub async fn expect_nothing(&mut self) {
        let told = timeout(Duration::from_millis(150), self.source.told()).await.map(|told| format!("{told:?}"));
        assert!(told.is_err(), "{told:?}");
    }
}

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(LONGEST, what).await.expect("hangs")
}
