//! Many clients doing anything to engines that fail in any way: what is answered is right, nothing is
//! executed twice, and at the end nothing is left over.

use std::collections::HashSet;
use std::time::Duration;

use warmfront::counters::stats::Count;
use warmfront::policy::Policy;

use crate::alone::alone;
use crate::client::{Client, chunked, post};
use crate::engine::{Connection, Engine, Request, ok, refusing};
use crate::front::Front;
use crate::random::Random;
use crate::wire::Head;

const CLIENTS: u64 = 12;
const TURNS: usize = 40;

/// What the engine owes to the request with this token; its length tells the token.
fn owed(token: usize) -> String {
    format!("<{token}>").repeat(1 + token % 97 * 40)
}

fn token(head: &Head) -> Option<usize> {
    head.start.split("?t=").nth(1)?.split(' ').next()?.parse().ok()
}

fn events(body: &str) -> String {
    let events: String = body
        .as_bytes()
        .chunks(500)
        .map(|piece| {
            let text = std::str::from_utf8(piece).unwrap();
            format!("{:x}\r\n{text}\r\n", text.len())
        })
        .collect();
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n{events}0\r\n\r\n")
}

/// Answers one request well or badly. False: the connection is over.
fn answer(connection: &mut Connection, request: &Request, random: &mut Random) -> bool {
    let body = token(&request.head).map_or(String::new(), owed);
    let good = if random.below(2) == 0 { ok(&body) } else { events(&body).into_bytes() };
    match random.below(16) {
        0 => return false,
        1 => connection.send(&good[..random.below(good.len())]),
        2 => connection.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nwrong"),
        3 => connection.send([&good[..], b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"].concat()),
        4 => connection.send(format!("HTTP/1.1 200 OK\r\n\r\n{body}")),
        5 => {
            std::thread::sleep(Duration::from_millis(random.below(60) as u64));
            connection.send(good);
            return true;
        }
        6 => {
            connection.send(good);
            return false;
        }
        7 => {
            let pieces = 1 + random.below(700);
            connection.send_pieces(&good, pieces);
            return true;
        }
        _ => {
            connection.send(good);
            return true;
        }
    }
    if random.below(2) == 0 {
        connection.closed();
    }
    false
}

fn failing() -> Engine {
    Engine::run(|mut connection| {
        let mut random = Random::new(connection.number as u64);
        if random.below(20) == 0 {
            return connection.reset();
        }
        while let Some(head) = connection.head() {
            if random.below(20) == 0 {
                connection.send("HTTP/1.1 429 Enough\r\ncontent-length: 0\r\n\r\n");
                return;
            }
            let Some(request) = connection.body(head) else { return };
            if !answer(&mut connection, &request, &mut random) {
                if random.below(2) == 0 {
                    connection.reset();
                }
                return;
            }
        }
    })
}

fn request(token: usize, random: &mut Random) -> Vec<u8> {
    let len = [10, 2_000, 70_000, 250_000][random.below(4)];
    let body = crate::uploads::chat_body(len, random);
    let path = format!("/v1/chat/completions?t={token}");
    if random.below(2) == 0 {
        return post(&path, body);
    }
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").into_bytes();
    request.extend(chunked(&body, 1 + random.below(body.len())));
    request
}

/// Reads one reply; true if the connection goes on.
fn verify(client: &mut Client, token: usize, served: &mut usize) -> bool {
    let reply = client.reply();
    match reply.status {
        200 if reply.whole => {
            assert!(reply.text() == owed(token), "request {token} got {:?}", reply.text());
            *served += 1;
        }
        200 => assert!(owed(token).starts_with(&reply.text()), "request {token} got {:?}", reply.text()),
        status => assert!([408, 429, 502, 503, 504].contains(&status), "{status}: {}", reply.text()),
    }
    reply.whole && !reply.closes()
}

/// One client's life; how many of its requests were served.
fn live(front: &Front, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut served = 0;
    for turn in 0..TURNS {
        let first = (seed as usize * TURNS + turn) * 10;
        let mut client = front.connect();
        let bytes = request(first, &mut random);
        match random.below(9) {
            0 => client.send(&bytes[..random.below(bytes.len())]),
            1 => {
                client.send(&bytes[..random.below(bytes.len())]);
                client.reset();
            }
            2 => {
                client.send(&bytes);
                client.half_close();
            }
            3 => {
                client.send(&bytes);
                client.head();
            }
            4 => {
                client.send([&b"GET /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n"[..], &bytes].concat());
                assert_eq!(client.reply().status, 400);
                client.rest();
            }
            5 => {
                let more: Vec<_> = (0..3).map(|place| request(first + place, &mut random)).collect();
                let mut writer = client.clone_stream();
                let all = more.concat();
                let sender = std::thread::spawn(move || drop(std::io::Write::write_all(&mut writer, &all)));
                let answered = (0..3).take_while(|place| verify(&mut client, first + place, &mut served)).count();
                if answered < 3 {
                    client.rest();
                }
                drop(client);
                sender.join().unwrap();
            }
            _ => {
                let cuts = random.cuts(bytes.len(), 4);
                client.send_cut(&bytes, &cuts);
                let mut place = 0;
                while verify(&mut client, first + place, &mut served) && place < 4 {
                    place += 1;
                    client.send(request(first + place, &mut random));
                }
            }
        }
    }
    served
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn storms_leave_nothing_behind() {
    alone("storm::storms_leave_nothing_behind", a_storm);
}

fn a_storm() {
    let engines = [failing(), failing(), failing()];
    let mut addresses = engines.each_ref().map(|engine| engine.address).to_vec();
    addresses.push(refusing());
    let front = Front::with(&addresses, |options| {
        options.settings.policy = Policy::PrefixHash;
        options.rules.limits.upstream_idle_timeout_ms = 200;
        options.rules.limits.reply_head_timeout_ms = 300;
        options.rules.limits.inter_chunk_timeout_ms = 300;
        options.rules.limits.first_token_timeout_ms = 300;
    });
    front.ask(crate::client::get("/health"));
    let before = descriptors();
    let served: usize = std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|seed| {
                let front = &front;
                scope.spawn(move || live(front, seed))
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(served > 100, "{served}");
    front.settles();
    front.until("all descriptors to be given back", |_| descriptors() <= before);
    let mut executed = HashSet::new();
    for request in engines.iter().flat_map(Engine::requests) {
        assert!(executed.insert(token(&request.head)), "{} was executed twice", request.head.start);
    }
    assert_eq!(front.count(Count::Panicked), 0);
    println!("{served} served, {} executed", executed.len());
}
