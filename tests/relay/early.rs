//! Answers that come before their request's end: they reach a client that has not sent all yet, and no other request is
//! sent on a connection to an engine where half of one may lie unread.

use std::io::Write;
use std::time::Duration;

use warmfront::counters::stats::Count;
use warmfront::limits::Limits;

use crate::client::{get, post, status};
use crate::engine::{Engine, LAST, STREAM, TOKEN, ok};
use crate::front::{Front, Options};
use crate::tries::in_one_of;
use crate::wire::End;

/// An engine that refuses by the head alone, as vLLM does with `--api-key`, and reads on as uvicorn does.
fn refusing_by_the_head() -> Engine {
    Engine::run(|mut connection| {
        while let Some(head) = connection.head() {
            connection.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno");
            connection.body(head);
        }
    })
}

fn bounded(engine: &Engine, bytes_max: usize) -> Front {
    Front::with(&[engine.address], |options: &mut Options| options.rules.limits.linger_bytes_max = bytes_max)
}

/// Most clients write all before they read. A reset while they write would destroy the answer that has arrived.
#[test]
fn an_answer_reaches_who_writes_all_before_it_reads() {
    let engine = refusing_by_the_head();
    let front = Front::with(&[engine.address], |options: &mut Options| {
        options.rules.limits.body_bytes_max = 8 << 20;
        // Longer than anybody is stopped while it writes.
        options.rules.limits.linger_timeout_ms = 20_000;
    });
    for (path, bytes, status) in [("/v1/a", 5_000_000, 401), ("/pause", 5_000_000, 404), ("/v1/a", 20_000_000, 413)] {
        let request = post(path, vec![b'x'; bytes]);
        for _ in 0..5 {
            let mut client = front.connect();
            client.stream().write_all(&request).unwrap_or_else(|error| panic!("{path}, {bytes} bytes: {error}"));
            let reply = client.reply();
            assert_eq!((reply.status, reply.whole), (status, true), "{path}, {bytes} bytes");
            if reply.closes() {
                assert_eq!(client.ends(), End::Fin);
            }
        }
    }
    front.settles();
}

/// A client that is held back because the engine does not read on is read from again once the engine has answered.
#[test]
fn an_answer_reaches_who_was_held_back() {
    let engine = Engine::narrow(|mut connection| {
        connection.head();
        std::thread::sleep(Duration::from_millis(300));
        connection.send("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno");
        std::thread::sleep(Duration::from_secs(2));
    });
    // Longer than anybody is stopped while it writes.
    let front = Front::with(&[engine.address], |options: &mut Options| options.rules.limits.linger_timeout_ms = 20_000);
    let mut client = front.connect();
    client.stream().write_all(&post("/v1/a", vec![b'x'; 24_000_000])).unwrap();
    let reply = client.reply();
    assert_eq!((reply.status, reply.text().as_str(), reply.whole), (413, "no", true));
    assert_eq!(client.ends(), End::Fin);
    front.settles();
}

/// A refused client is read from as long as it goes on sending, but not for ever.
#[test]
fn who_writes_slowly_is_heard_out_for_a_while() {
    let engine = refusing_by_the_head();
    let front = Front::with(&[engine.address], |options: &mut Options| options.rules.limits.linger_timeout_ms = 500);
    let begin = "POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n";
    let is_heard = || {
        let mut client = front.connect();
        client.send(begin);
        let heard = (0..10).all(|_| {
            let taken = client.stream().write_all(&[b'x'; 10_000]).is_ok();
            std::thread::sleep(Duration::from_millis(100));
            taken
        });
        heard && (client.reply().status, client.ends()) == (404, End::Fin)
    };
    // A client that the machine stops between two writes is silent for too long; that hardly happens in each of five
    // tries.
    in_one_of(5, "who goes on sending is heard", true, is_heard);
    let mut client = front.connect();
    client.send(begin);
    let begun = std::time::Instant::now();
    while client.stream().write_all(b"x").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(12), "a byte now and then holds a connection");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_comes_behind_an_answer_is_bounded() {
    let engine = refusing_by_the_head();
    let front = bounded(&engine, 64 << 10);
    let mut client = front.connect();
    client.send("POST /pause HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n");
    // The kernel buffers a part of that for a peer that reads none of it.
    let piece = vec![b'x'; 1 << 20];
    assert!((0..90).any(|_| client.stream().write_all(&piece).is_err()), "90 MiB were read and dropped");
}

/// Reply and request are whole in the end; but an engine that answered before the request's end may have read the rest
/// of it as another request.
#[test]
fn who_answers_before_it_has_all_is_asked_nothing_more_there() {
    let engine = Engine::run(|mut connection| {
        while let Some(head) = connection.head() {
            if head.start.starts_with("GET") {
                connection.send(ok(connection.number.to_string()));
                continue;
            }
            connection.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            connection.body(head);
            connection.send(format!("1\r\n{}\r\n0\r\n\r\n", connection.number));
        }
    });
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nhalf");
    let early = client.head();
    assert!(early.start.ends_with("200 OK"), "{early:?}");
    client.send(vec![b'x'; 100_000 - "half".len()]);
    assert_eq!(client.bytes(11), b"1\r\n1\r\n0\r\n\r\n"[..11]);
    assert_eq!(front.ask(get("/v1/b")).text(), "2");
    // If the answer was not early, the connection is kept.
    assert_eq!(front.ask(get("/v1/b")).text(), "2");
    front.settles();
}

/// Once the answer has begun, the deadlines of replies hold alone: the rest of the request may come late, and slowly.
#[test]
fn an_answer_that_has_begun_is_not_cut_for_a_slow_upload() {
    let engine = Engine::run(|mut connection| {
        while let Some(head) = connection.head() {
            connection.send([STREAM, TOKEN].concat());
            connection.body(head);
            connection.send([TOKEN, LAST].concat());
        }
    });
    let late = |limits: &mut Limits| limits.upload_timeout_ms = 400;
    let slowly = |limits: &mut Limits| limits.upload_grace_ms = 400;
    for (what, change) in [("late", &late as &dyn Fn(&mut Limits)), ("slowly", &slowly)] {
        let front = Front::with(&[engine.address], |options| change(&mut options.rules.limits));
        let begins = || {
            let mut client = front.connect();
            client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nhalf");
            let begun = status(&client.head());
            if begun == 200 {
                std::thread::sleep(Duration::from_millis(500));
                for rest in ["+", "+"] {
                    let before = front.count(Count::BytesIn);
                    client.send(rest);
                    front.until("it has that", |front| front.count(Count::BytesIn) > before);
                }
                assert_eq!(client.chunks(), [9, 9], "{what}");
            }
            begun
        };
        // An engine that the machine stops before it answers is too late itself; that hardly happens in each of five
        // tries.
        in_one_of(5, what, 200, begins);
        front.settles();
    }
}
