//! Long replies that the front need not look into pass inside the kernel: every byte of them, whatever happens.

use std::io::Write;
use std::time::Duration;

use warmfront::counters::stats::Count;

use crate::client::{get, post};
use crate::engine::{Engine, gate};
use crate::front::{Front, Options};
use crate::random::Random;

/// Bytes that differ at every place.
fn speech(len: usize) -> Vec<u8> {
    (0..len as u32).flat_map(|place| (place.wrapping_mul(2_654_435_761)).to_le_bytes()).take(len).collect()
}

fn head(len: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {len}\r\n\r\n").into_bytes()
}

fn speaking(len: usize) -> Engine {
    Engine::answering([head(len), speech(len)].concat())
}

fn passed(front: &Front) -> u64 {
    front.count(Count::BytesSpliced)
}

#[test]
fn long_replies_pass_whole_and_the_connections_go_on() {
    for len in [0, 1, 65_535, 65_536, 200_000, 3_000_000] {
        let engine = speaking(len);
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        for _ in 0..3 {
            let reply = client.ask(post("/v1/audio/speech", "{}"));
            assert!(reply.status == 200 && reply.body == speech(len), "{len}: {} bytes", reply.body.len());
        }
        front.settles();
        assert_eq!(engine.connections(), 1, "the engine's connection is kept");
        assert_eq!(front.count(Count::UpstreamBytesIn), 3 * (head(len).len() + len) as u64, "seen or not");
        // What was received before the splice began has been copied.
        assert!(passed(&front) <= 3 * len as u64);
        if len >= 200_000 {
            assert!(passed(&front) > 0, "{len}: nothing passed unseen");
        }
    }
}

#[test]
fn what_must_be_seen_is_copied() {
    let body = vec![b' '; 300_000];
    for kind in ["application/json", "text/event-stream", "application/json; charset=utf-8"] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        let engine = Engine::answering([head.as_bytes(), &body].concat());
        let front = Front::start(&[engine.address]);
        assert!(front.ask(get("/v1/a")).body == body);
        front.settles();
        assert_eq!(passed(&front), 0, "{kind}");
    }
}

#[test]
fn pieces_at_any_pace_pass_in_order() {
    let mut random = Random::new(7);
    let len = 700_000;
    let paces: Vec<usize> = (0..40).map(|_| 1 + random.below(60_000)).collect();
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            let (bytes, mut at) = ([head(len), speech(len)].concat(), 0);
            for pace in paces.iter().cycle() {
                let end = (at + pace).min(bytes.len());
                connection.send(&bytes[at..end]);
                std::thread::sleep(Duration::from_micros(*pace as u64 / 20));
                at = end;
                if at == bytes.len() {
                    break;
                }
            }
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for _ in 0..4 {
        assert!(client.ask(get("/v1/a")).body == speech(len));
    }
    front.settles();
    assert!(passed(&front) > 0);
}

#[test]
fn a_reader_that_pauses_holds_the_engine_back_and_gets_everything() {
    let len = 30_000_000;
    let engine = speaking(len);
    let front = Front::with(&[engine.address], |options: &mut Options| {
        options.rules.limits.client_stall_timeout_ms = 20_000;
    });
    let mut client = front.connect();
    client.send(get("/v1/a"));
    client.head();
    let mut body = Vec::new();
    while body.len() < len {
        if body.len() < 5_000_000 {
            std::thread::sleep(Duration::from_millis(60));
        }
        body.extend(client.bytes(1_000_000));
    }
    assert!(body == speech(len));
    front.settles();
}

#[test]
fn an_engine_that_ends_early_is_a_visible_cut() {
    for reset in [false, true] {
        let (len, (open, wait)) = (400_000, gate());
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(head(len));
            connection.send(&speech(len)[..len - 1_000]);
            if reset {
                // What the front has not received by then is lost in the engine's own kernel.
                wait();
                connection.reset();
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(get("/v1/a"));
        client.head();
        let got = client.bytes(len - 1_000);
        assert!(got == speech(len)[..len - 1_000], "what came before the end is passed on: {} bytes", got.len());
        let _ = open.send(());
        client.ends();
        front.settles();
    }
}

#[test]
fn a_client_that_leaves_frees_the_engine() {
    for reset in [false, true] {
        let engine = Engine::run(|mut connection| {
            connection.request();
            connection.send(head(1 << 30));
            let piece = speech(1 << 16);
            while connection.stream().write_all(&piece).is_ok() {}
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(get("/v1/a"));
        client.head();
        client.bytes(1_000_000);
        if reset {
            client.reset();
        } else {
            drop(client);
        }
        front.settles();
    }
}

#[test]
fn bytes_behind_the_end_are_nobodys() {
    let len = 300_000;
    let engine = Engine::answering([head(len), speech(len), b"HTTP/1.1 200 OK\r\n\r\n".to_vec()].concat());
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for _ in 0..3 {
        assert!(client.ask(get("/v1/a")).body == speech(len));
    }
    front.settles();
}
