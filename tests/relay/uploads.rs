//! Request bodies of all sizes, however they are cut, arrive byte for byte at the engine.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};

use std::time::Duration;

use warmfront::counters::stats::{Count, Gauge};
use warmfront::policy::Policy;
use warmfront::scan::PrefixMode;

use crate::client::{chunked, post};
use crate::engine::{Engine, HELLO, gate, narrow};
use crate::front::{Front, Options};
use crate::random::Random;
use crate::tries::in_one_of;

/// A chat body of `len` bytes with the model last, as the openai SDK writes it.
pub fn chat_body(len: usize, random: &mut Random) -> Vec<u8> {
    let (start, end) = (r#"{"messages":[{"role":"user","content":""#, r#""}],"user":"u1","model":"tiny-llama"}"#);
    let words = len.saturating_sub(start.len() + end.len());
    let mut body = start.as_bytes().to_vec();
    while body.len() < start.len() + words {
        // Eight letters from a to p.
        let letters = (random.next() & 0x0f0f_0f0f_0f0f_0f0f) + 0x6161_6161_6161_6161;
        body.extend_from_slice(&letters.to_le_bytes());
    }
    body.truncate(start.len() + words);
    body.extend_from_slice(end.as_bytes());
    body
}

type Way = (&'static str, fn(&mut Options));
const POLICIES: [Way; 4] = [
    ("round-robin", |options| options.settings.policy = Policy::RoundRobin),
    ("first-user", |options| {
        options.settings.policy = Policy::PrefixHash;
        options.settings.prefix = PrefixMode::FirstUser;
    }),
    ("conversation", |options| {
        options.settings.policy = Policy::PrefixHash;
        options.settings.prefix = PrefixMode::Conversation;
    }),
    ("session", |options| options.settings.policy = Policy::Session),
];

fn pass(way: Way, sizes: &[usize], seed: u64) {
    let engines = [Engine::answering(HELLO), Engine::answering(HELLO)];
    let front = Front::with(&[engines[0].address, engines[1].address], way.1);
    let mut random = Random::new(seed);
    let mut client = front.connect();
    for (turn, &size) in sizes.iter().enumerate() {
        let context = format!("{} {size} bytes, seed {seed}", way.0);
        let body = chat_body(size, &mut random);
        let in_chunks = turn % 2 == 1;
        let request = if in_chunks {
            let mut request =
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            request.extend(chunked(&body, 1 + random.below(size.clamp(1, 100_000))));
            request
        } else {
            post("/v1/chat/completions", &body)
        };
        let cuts = random.cuts(request.len(), 12);
        client.send_cut(&request, &cuts);
        assert_eq!(client.reply().status, 200, "{context}");
        let seen = engines.iter().flat_map(Engine::requests).find(|request| request.body == body);
        assert!(seen.is_some(), "{context}: the body did not arrive as it was");
    }
    assert_eq!(engines.iter().map(Engine::executions).sum::<usize>(), sizes.len());
    front.settles();
}

const SMALL: [usize; 14] = [1, 100, 101, 300, 1_000, 1_001, 4_000, 16_384, 65_535, 65_536, 65_537, 100_000, 99, 130];
const LARGE: [usize; 4] = [300_000, 1 << 20, 1_500_000, 5_000_000];

#[test]
fn any_cut_of_small_bodies() {
    POLICIES.into_iter().zip(1..).for_each(|(way, seed)| pass(way, &SMALL, seed));
}

#[test]
fn large_bodies() {
    POLICIES.into_iter().for_each(|way| pass(way, &LARGE, 7));
}

/// The front answers `Expect: 100-continue` itself and does not pass it on.
#[test]
fn clients_that_wait_for_100_are_told_to_go_on() {
    for way in POLICIES {
        let engine = Engine::answering(HELLO);
        let front = Front::with(&[engine.address], way.1);
        let mut client = front.connect();
        client
            .send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
        assert_eq!(client.reply().status, 100);
        assert_eq!(client.ask("{}").status, 200);
        let seen = &engine.requests()[0];
        assert_eq!((seen.text().as_str(), seen.head.get("expect")), ("{}", None));
        // A body that came with its head needs no 100.
        client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.reply().status, 200);
    }
}

/// The engine has the head and the beginning of a large upload while the client has yet to send the rest.
#[test]
fn the_choice_falls_in_the_middle_of_an_upload() {
    let (open, wait) = gate();
    let (began, has_begun) = mpsc::channel();
    let began = Mutex::new(began);
    let engine = Engine::run(move |mut connection| {
        let head = connection.head().unwrap();
        began.lock().unwrap().send(()).unwrap();
        wait();
        connection.body(head);
        connection.send(HELLO);
    });
    let front = Front::with(&[engine.address], POLICIES[1].1);
    let body = chat_body(300_000, &mut Random::new(1));
    let request = post("/v1/chat/completions", &body);
    let mut client = front.connect();
    client.send(&request[..150_000]);
    has_begun.recv_timeout(crate::front::PATIENCE).expect("the engine saw nothing before the body's end");
    client.send(&request[150_000..]);
    open.send(()).unwrap();
    assert_eq!(client.reply().status, 200);
    assert!(engine.requests()[0].body == body);
    front.settles();
}

/// If a body is longer than may be held, the engine is chosen by what is known so far, and nothing is lost.
#[test]
fn a_body_beyond_what_may_be_held_is_not_waited_for() {
    let (open, wait) = gate();
    let (began, has_begun) = mpsc::channel();
    let began = Mutex::new(began);
    let engine = Engine::run(move |mut connection| {
        let head = connection.head().unwrap();
        began.lock().unwrap().send(()).unwrap();
        wait();
        connection.body(head);
        connection.send(HELLO);
    });
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::PrefixHash;
        options.settings.prefix = PrefixMode::Conversation;
        options.settings.prefix_bytes = 1 << 20;
        options.rules.limits.hold_bytes = 64 << 10;
    });
    let body = chat_body(400_000, &mut Random::new(2));
    let request = post("/v1/chat/completions", &body);
    let mut client = front.connect();
    client.send(&request[..200_000]);
    has_begun.recv_timeout(crate::front::PATIENCE).expect("the engine saw nothing before the body's end");
    client.send(&request[200_000..]);
    open.send(()).unwrap();
    assert_eq!(client.reply().status, 200);
    assert!(engine.requests()[0].body == body);
    front.settles();
}

/// Policies and how much may be held: by these a body of 8 MiB is streamed, or held and sent from there.
const STREAMED_AND_HELD: [Way; 3] = [
    ("streamed", |options| options.settings.policy = Policy::RoundRobin),
    ("held at first", |options| {
        options.settings.policy = Policy::PrefixHash;
        options.rules.limits.hold_bytes = 64 << 10;
    }),
    ("held", |options| {
        // The session's key comes last in the body.
        options.settings.policy = Policy::Session;
        options.rules.limits.hold_bytes = 8 << 20;
    }),
];

/// An engine that takes its time with an upload is not the client's fault, however short the client's deadlines.
#[test]
fn an_engine_slow_to_read_does_not_time_the_client_out() {
    for (way, change) in STREAMED_AND_HELD {
        let engine = Engine::narrow(|mut connection| {
            let head = connection.head().unwrap();
            std::thread::sleep(Duration::from_millis(400));
            connection.body(head);
            connection.send(HELLO);
        });
        let front = Front::with(&[engine.address], |options| {
            change(options);
            options.rules.limits.body_stall_timeout_ms = 150;
        });
        let body = chat_body(12 << 20, &mut Random::new(3));
        let ask = || front.ask(post("/v1/chat/completions", &body)).status;
        // A client that the machine stops in the middle is timed out; that hardly happens in each of five tries.
        in_one_of(5, way, 200, ask);
        assert!(engine.requests()[0].body == body);
        front.settles();
    }
}

/// Once the last byte is on its way the client has nothing more to send: a long prefill is no slow upload.
/// Bodies are of about the size that the kernel takes for an engine that does not read.
#[test]
fn a_long_wait_behind_a_large_upload_is_no_slow_upload() {
    let engine = Engine::narrow(|mut connection| {
        let head = connection.head().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        connection.body(head);
        std::thread::sleep(Duration::from_millis(6_500));
        connection.send(HELLO);
    });
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.hold_bytes = 64 << 10;
        // Ten clients share the machine: it stops none of them for so long while it sends.
        options.rules.limits.body_stall_timeout_ms = 5_000;
    });
    let room = room_towards_narrow();
    let sizes = (0..10).map(|step| room - (128 << 10) + (step << 15));
    let clients: Vec<_> = sizes
        .map(|size| {
            let mut client = front.connect();
            std::thread::spawn(move || {
                client.ask(post("/v1/chat/completions", chat_body(size, &mut Random::new(size as u64))))
            })
        })
        .collect();
    for client in clients {
        let reply = client.join().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    front.settles();
}

/// How many bytes the kernel buffers for an engine with a narrow socket that does not read them.
pub fn room_towards_narrow() -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    narrow(&listener);
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut room = 0;
    while let Ok(len) = stream.write(&[0; 16_384]) {
        room += len;
    }
    room
}

/// An engine may send its head before it has read the body; it still gets all of it.
#[test]
fn an_early_head_does_not_stop_the_upload() {
    for (way, change) in STREAMED_AND_HELD {
        let engine = Engine::narrow(|mut connection| {
            let head = connection.head().unwrap();
            connection.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            std::thread::sleep(Duration::from_millis(50));
            let request = connection.body(head);
            let text = request.map_or("short".to_owned(), |request| request.body.len().to_string());
            connection.send(format!("{:x}\r\n{text}\r\n0\r\n\r\n", text.len()));
        });
        let front = Front::with(&[engine.address], |options| {
            change(options);
            options.rules.limits.inter_chunk_timeout_ms = 20_000;
        });
        let body = chat_body(12 << 20, &mut Random::new(4));
        let mut client = front.connect();
        let request = post("/v1/chat/completions", &body);
        let mut writer = client.clone_stream();
        let sender = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &request).is_ok());
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, body.len().to_string()), "{way}");
        assert!(sender.join().unwrap());
        front.settles();
    }
}

/// If an engine answers and reads no further, its answer arrives; and as half a request is left unread on its
/// connection, nothing else is sent there.
#[test]
fn an_early_reply_to_a_held_body_arrives_and_ends_the_connection() {
    for (way, change) in STREAMED_AND_HELD {
        let engine = Engine::narrow(|mut connection| {
            let head = connection.head().unwrap();
            connection.send("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno");
            std::thread::sleep(Duration::from_millis(100));
            // If another request came here, it would be taken for the end of this one's body.
            connection.body(head);
            connection.closed();
        });
        let front = Front::with(&[engine.address], change);
        // Nearly all of the body is held before an engine is chosen, so that its end is there when the reply comes.
        let request = post("/v1/chat/completions", chat_body((8 << 20) - 4_096, &mut Random::new(6)));
        let mut client = front.connect();
        let mut writer = client.clone_stream();
        let sender = std::thread::spawn(move || drop(writer.write_all(&request)));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text().as_str()), (413, "no"), "{way}");
        if !reply.closes() {
            assert_eq!(client.ask(post("/v1/a", "x".repeat(9 << 20))).status, 413, "{way}");
        }
        drop(client);
        sender.join().unwrap();
        front.settles();
        let mixed = engine.requests().iter().any(|request| crate::wire::find(&request.body, b"POST /v1/a").is_some());
        assert!(!mixed, "{way}: another request was read as the end of the body");
    }
}

/// An early refusal reaches a client that is still sending, also if the engine then resets its connection.
#[test]
fn an_early_reply_ends_the_upload() {
    for reset in [false, true] {
        let engine = Engine::run(move |mut connection| {
            connection.head();
            connection.send("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno");
            if reset {
                connection.reset();
            } else {
                connection.closed();
            }
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send("POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nhalf");
        let reply = client.reply();
        assert_eq!((reply.status, reply.text().as_str(), reply.closes()), (413, "no", true), "reset: {reset}");
        client.ends();
        front.settles();
        assert_eq!(engine.executions(), 0);
    }
}

/// What all requests of a shard may hold together is bounded.
#[test]
fn held_bodies_have_a_budget() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::PrefixHash;
        options.settings.prefix = PrefixMode::Conversation;
        options.settings.prefix_bytes = 1 << 20;
        options.rules.limits.budget_bytes = 100_000;
    });
    let body = chat_body(60_000, &mut Random::new(5));
    let request = post("/v1/chat/completions", &body);
    let mut first = front.connect();
    first.send(&request[..50_000]);
    // Each body has the room reserved that its length announces. One fits, with what a scan takes; two do not.
    front.until("the first one held", |front| front.stats.gauge(Gauge::HeldBytes) >= 60_000);
    let reply = front.ask(&request);
    assert_eq!((reply.status, reply.head.get("retry-after")), (503, Some("1")), "{}", reply.text());
    assert_eq!((front.count(Count::RefusedOverBudget), engine.executions()), (1, 0));
    first.send(&request[50_000..]);
    assert_eq!(first.reply().status, 200);
    front.settles();
    // Afterwards nothing is held, and the budget is free again.
    for _ in 0..3 {
        assert_eq!(front.ask(&request).status, 200);
    }
}

/// A body is held only as long as it may have to be sent again, not until its answer ends.
#[test]
fn what_an_engine_has_is_not_held() {
    for begins in [true, false] {
        let (open, wait) = gate();
        let engine = Engine::run(move |mut connection| {
            connection.request();
            if begins {
                connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9\r\n\r\n");
            }
            wait();
            connection.send(if begins { "data: a\n\n" } else { HELLO });
        });
        let front = Front::with(&[engine.address], POLICIES[1].1);
        let request = post("/v1/chat/completions", chat_body(60_000, &mut Random::new(8)));
        let mut client = front.connect();
        client.send(&request[..200]);
        front.until("the choice to wait", |front| front.stats.gauge(Gauge::HeldBytes) > 0);
        client.send(&request[200..]);
        front.until("all of it there", |_| engine.executions() == 1);
        front.until("what was held given back", |front| front.stats.gauge(Gauge::HeldBytes) == 0);
        assert_eq!(front.counters.in_flight(0), 1, "it goes on; begun: {begins}");
        open.send(()).unwrap();
        assert_eq!(client.reply().status, 200);
        front.settles();
    }
}

/// A body that has to be held until its model is found, but is longer than all memory for bodies, gets 413 and not 503:
/// to come again would never help.
#[test]
fn a_body_beyond_the_budget_that_names_its_model_last_is_413() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        options.pools = vec![("one", vec![0]), ("two", vec![0])];
        (options.rules.limits.hold_bytes, options.rules.limits.budget_bytes) = (10_000, 100_000);
    });
    let body = |bytes| format!(r#"{{"messages":[{{"role":"user","content":"{}"}}],"model":"one"}}"#, "x".repeat(bytes));
    // Buffers double while the model is looked for, up to what the budget allows.
    assert_eq!(front.ask(post("/v1/chat/completions", body(90_000))).status, 200);
    let refused = front.ask(post("/v1/chat/completions", body(200_000)));
    assert_eq!(refused.status, 413);
    assert!(refused.text().contains("limits.budget_bytes"), "{}", refused.text());
    front.settles();
}
