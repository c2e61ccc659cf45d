//! Bounds, and answers that come before all of a request was read: what was not read is dropped within a bound or
//! the connection closed, and none of it is ever taken for a request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use warmfront::counters::stats::Count;
use warmfront::policy::Policy;

use crate::audit::{End, check_requests, converse, next_reply};
use crate::client::Reply;
use crate::front::{Front, Options};
use crate::origin::Origin;
use crate::requests::NEXT;

const EVIL: &[u8] = b"GET /v1/evil HTTP/1.1\r\nHost: x\r\n\r\n";

fn start(change: impl FnOnce(&mut Options)) -> (Front, Origin) {
    let origin = Origin::start();
    let front = Front::with(&[origin.address], |options| {
        options.rules.half_close_leaves = false;
        change(options);
    });
    (front, origin)
}

/// The refusal: its status, the connection closed behind it, and nothing that is whole at the origin.
fn refused(front: &Front, origin: &Origin, bytes: &[u8], cuts: &[usize]) -> u16 {
    let (got, end) = converse(front, bytes, cuts);
    front.settles();
    let seen = origin.take();
    assert!(seen.is_empty(), "{} requests arrived", seen.len());
    let (reply, len) = next_reply(&got, b"GET", false).expect("one whole answer");
    assert_eq!((len, end), (got.len(), End::Fin), "{}", got.escape_ascii());
    assert!(reply.head.list("connection").contains(&b"close".to_vec()));
    reply.status
}

#[test]
fn heads_up_to_32_kib_and_100_fields() {
    let (front, origin) = start(|_| {});
    let start = "GET /v1/a HTTP/1.1\r\nHost: x\r\nX: ";
    let padded = |len: usize| format!("{start}{}\r\n\r\n", "a".repeat(len - start.len() - 4)).into_bytes();
    let fields =
        |count: usize| format!("GET /v1/a HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(count - 1)).into_bytes();
    for good in [padded(32 << 10), fields(100)] {
        let bytes = [&good, NEXT].concat();
        for cuts in [vec![], vec![100, 1_000, good.len() - 1]] {
            assert_eq!(check_requests(&front, &origin, &bytes, &cuts).served, 2);
        }
    }
    let endless = |start: &str, what: &str| [start.as_bytes(), what.repeat(40_000).as_bytes()].concat();
    for wrong in [
        [&padded((32 << 10) + 1), NEXT].concat(),
        [&fields(101), NEXT].concat(),
        endless("", "A"),
        endless("GET /v1/", "a"),
        endless("GET /v1/a HTTP/1.1\r\nHost: x\r\n", "a"),
        endless("GET /v1/a HTTP/1.1\r\nHost: x\r\nA: ", " "),
        endless("GET /v1/a HTTP/1.1\r\nHost: x\r\n", "A:\r\n"),
    ] {
        for cuts in [vec![], vec![100, 1_000, wrong.len() - 1]] {
            assert_eq!(refused(&front, &origin, &wrong, &cuts), 431, "{}", wrong[..80].escape_ascii());
        }
    }
}

/// The answer to a length beyond the limit waits for nothing of the body, and asks for none of it.
#[test]
fn announced_bodies_over_the_limit_are_not_read() {
    let (front, origin) = start(|options| options.rules.limits.body_bytes_max = 1 << 20);
    for expect in ["", "Expect: 100-continue\r\n"] {
        let mut client = front.connect();
        client.send(format!("POST /v1/a HTTP/1.1\r\nHost: x\r\n{expect}Content-Length: 1048577\r\n\r\n"));
        let Reply { status, whole, .. } = client.reply();
        assert_eq!((status, whole), (413, true));
        client.ends();
    }
    assert!(origin.take().is_empty());
    let body = "x".repeat(1 << 20);
    let bytes =
        [format!("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes(), NEXT]
            .concat();
    assert_eq!(check_requests(&front, &origin, &bytes, &[]).served, 2, "a body of just the limit");
}

/// Chunks beyond the limit: 413 once it is passed, held or streamed, and never a whole request at the engine,
/// although the last chunk came with the byte too many.
#[test]
fn chunked_bodies_over_the_limit() {
    for policy in [Policy::RoundRobin, Policy::PrefixHash] {
        let (front, origin) = start(|options| {
            options.settings.policy = policy;
            options.rules.limits.body_bytes_max = 10_000;
            options.rules.limits.hold_bytes = 8_000;
        });
        let head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let body = |len: usize| crate::client::chunked(&vec![b'x'; len], 1_000);
        let good = [head, &body(10_000)[..], NEXT].concat();
        assert_eq!(check_requests(&front, &origin, &good, &[]).served, 2);
        for len in [10_001, 12_000, 60_000] {
            let wrong = [head, &body(len)[..], NEXT].concat();
            for cuts in [vec![], vec![head.len(), 2_000], (1..10).map(|piece| piece * 1_000).collect()] {
                assert_eq!(refused(&front, &origin, &wrong, &cuts), 413, "{len} bytes in {cuts:?}");
            }
        }
    }
}

/// Extensions and trailers are bounded in a body, not in a chunk.
#[test]
fn endless_extensions_and_trailers() {
    let (front, origin) = start(|_| {});
    let head = "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    for endless in [
        format!("2;{}\r\nhi\r\n0\r\n\r\n", "a".repeat(5_000)),
        format!("{}0\r\n\r\n", format!("2;{}\r\nhi\r\n", "a".repeat(1_000)).repeat(5)),
        format!("{}0\r\n\r\n", "2;abcdefgh\r\nhi\r\n".repeat(1_000)),
        format!("0\r\n{}\r\n", "A: b\r\n".repeat(33)),
        format!("0\r\nA: {}\r\n\r\n", "b".repeat(9_000)),
        format!("0\r\n{}", "a".repeat(9_000)),
    ] {
        let bytes = [head.as_bytes(), endless.as_bytes(), NEXT].concat();
        for cuts in [vec![], vec![head.len() + 1, head.len() + 3_000]] {
            assert_eq!(refused(&front, &origin, &bytes, &cuts), 400, "{}", endless.get(..20).unwrap_or_default());
        }
    }
}

/// Behind an answer of ours what comes is dropped, within a bound and for a while, and never a request.
#[test]
fn a_flood_behind_a_refusal_is_dropped_within_a_bound() {
    let (front, origin) = start(|options| options.rules.limits.linger_bytes_max = 64 << 10);
    let flood = EVIL.repeat(200_000);
    for refused in [
        &b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"[..],
        b"POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n",
        b"POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /v1/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ] {
        let before = front.count(Count::BytesIn);
        let mut client = front.connect();
        client.send([refused, EVIL].concat());
        let status = client.reply().status;
        assert!([404, 413, 400, 200].contains(&status), "{status}");
        // The socket ends: this many bytes would not fit into what the kernel holds.
        assert!(client.stream().write_all(&flood).is_err(), "{} bytes were taken", flood.len());
        let taken = front.count(Count::BytesIn) - before;
        assert!(taken <= (64 << 10) + (128 << 10), "{taken} bytes were read");
    }
    front.settles();
    let paths: Vec<_> = origin.take().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, [b"/v1/a"]);
}

/// An engine that answers before it has read the body, and reads on or does not.
fn hasty(reply: &'static [u8], reads: bool) -> (std::net::SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut got = Vec::new();
                let mut buffer = [0; 4_096];
                while memchr::memmem::find(&got, b"\r\n\r\n").is_none() {
                    match stream.read(&mut buffer) {
                        Ok(len) if len > 0 => got.extend_from_slice(&buffer[..len]),
                        _ => return,
                    }
                }
                let _ = stream.write_all(reply);
                if !reads {
                    std::thread::sleep(Duration::from_millis(100));
                }
                while let Ok(len) = stream.read(&mut buffer)
                    && len > 0
                {
                    got.extend_from_slice(&buffer[..len]);
                }
                let _ = sender.send(got);
            });
        }
    });
    (address, receiver)
}

/// The client gets the answer and a closed connection; the engine at most the one request, and no other behind it.
#[test]
fn answers_before_the_body_was_read() {
    const REPLIES: [&[u8]; 4] = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 413 x\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 401 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    ];
    let body = EVIL.repeat(30_000);
    for reply in REPLIES {
        for reads in [true, false] {
            for chunked in [true, false] {
                let (address, received) = hasty(reply, reads);
                let front = Front::start(&[address]);
                let mut client = front.connect();
                let length = if chunked {
                    "Transfer-Encoding: chunked".into()
                } else {
                    format!("Content-Length: {}", body.len())
                };
                let sent = if chunked { crate::client::chunked(&body, 10_000) } else { body.clone() };
                client.send(format!("POST /v1/a HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n"));
                let mut writer = client.clone_stream();
                let half = sent.len() / 2;
                let rest = sent.clone();
                // The rest of the body waits for the answer, however late the engine is with that.
                let (go, gate) = mpsc::channel::<()>();
                let writing = std::thread::spawn(move || {
                    let _ = writer.write_all(&rest[..half]);
                    let _ = gate.recv();
                    let _ = writer.write_all(&[&rest[half..], EVIL].concat());
                });
                let answer = client.reply();
                drop(go);
                assert_eq!((answer.text().as_str(), answer.whole, answer.closes()), ("hi", true, true));
                let (surplus, _) = client.rest();
                assert!(surplus.is_empty(), "surplus: {}", surplus.escape_ascii());
                writing.join().unwrap();
                front.settles();
                let got = received.recv_timeout(Duration::from_secs(10)).expect("the engine's connection ends");
                let at = memchr::memmem::find(&got, b"\r\n\r\n").unwrap() + 4;
                assert!(sent.starts_with(&got[at..]), "{} bytes behind the head", got.len() - at);
                assert!(received.try_recv().is_err(), "a second connection");
            }
        }
    }
}

/// A FIN behind half a request that was sent ahead ends that request once its turn comes: nothing more of it can come.
#[test]
fn a_fin_behind_half_a_request_read_ahead() {
    // What is waited for in vain is waited for by far longer than a machine stands still.
    let (front, origin) = start(|options| {
        options.rules.limits.head_timeout_ms = 60_000;
        options.rules.limits.body_stall_timeout_ms = 60_000;
    });
    let slow = crate::origin::Script { pieces: vec![], then: crate::origin::Then::Close };
    origin.script("/v1/lost", slow);
    let halves: [&[u8]; 3] = [
        b"POST /v1/b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe",
        b"POST /v1/b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        b"POST /v1/b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n",
    ];
    for half in halves {
        for _ in 0..20 {
            let begun = Instant::now();
            let mut stream = TcpStream::connect(front.address).unwrap();
            stream.write_all(&[NEXT, half].concat()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut got = Vec::new();
            let _ = stream.read_to_end(&mut got);
            assert!(begun.elapsed() < Duration::from_secs(20), "it was waited for: {}", got.escape_ascii());
            let (_, len) = next_reply(&got, b"GET", false).unwrap();
            assert_eq!(len, got.len());
        }
    }
    front.settles();
    assert_eq!(origin.take().len(), 60);
}
