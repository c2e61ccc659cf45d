//! Requests and replies, nearly all of them good, with something changed, in random pieces, by the thousand: each
//! audited like a row.
//!
//! A run is replayed by its seed, one case of it by its number: `HOSTILE=requests:7:1234` (or `replies:...`)
//! runs case 1234 of seed 7 alone. `HOSTILE_CASES` asks for more of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::answers::Asker;
use crate::audit::check_requests;
use crate::random::Random;
use crate::replies::{self, check_reply};
use crate::requests::{self, NEXT};
use crate::tally::Tally;

const CASES: usize = 3_000;
const SEED: u64 = 7;

const REQUESTS: &[&str] = &[
    "GET /v1/a?b=c HTTP/1.1\r\nHost: x:80\r\nAccept: */*\r\nX-A: 1\r\nx-a: 2\r\n\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 25\r\n\r\n\
     {\"model\":\"a\",\"prompt\":\"\"}\n",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
     5\r\nhello\r\n1f;a=b\r\n0123456789012345678901234567890\r\n0\r\nX-T: 1\r\n\r\n",
    "POST http://x/v1/a HTTP/1.1\r\nHost: x\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\nTE: trailers\r\n\
     Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    "POST /v1/a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 10\r\n\r\n\r\nGET / HT\n",
    "POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HEAD /v1/a HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.1\r\nX-Request-Id: r\r\n\r\n",
];

const REPLIES: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\nX-A: 1\r\n\r\n{\"a\":1}",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1f;a=b\r\n0123456789012345678901234567890\r\n\
     0\r\nX-T: 1\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
     9\r\ndata: a\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 404 Not Found\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 2\r\n\r\nno",
    "HTTP/1.0 200 OK\r\nServer: y\r\n\r\nuntil close",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\nKeep-Alive: timeout=5\r\n\r\n",
    "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nerror",
];

/// What to put in.
const INSERTED: &[&[u8]] = &[
    b"\r",
    b"\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"0",
    b"9",
    b"\r\n",
    b"\r\n\r\n",
    b",",
    b";",
    b"\x0b",
    b"\xff",
    b"+",
    b"-",
];

/// One to three changes.
fn mutate(random: &mut Random, good: &[&str]) -> (&'static str, Vec<u8>) {
    let mut bytes = good[random.below(good.len())].as_bytes().to_vec();
    let mut name = "";
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() + 1);
        let len = 1 + random.below(12.min(bytes.len().max(1)));
        let end = (at + len).min(bytes.len());
        name = match random.below(8) {
            0 | 1 => {
                let what = INSERTED[random.below(INSERTED.len())];
                bytes.splice(at..at, what.iter().copied());
                "something put in"
            }
            2 if at < bytes.len() => {
                bytes[at] ^= 1 << random.below(8);
                "a bit turned"
            }
            3 if at < bytes.len() => {
                bytes[at] = random.next() as u8;
                "a byte changed"
            }
            4 => {
                let twice = bytes[at..end].to_vec();
                bytes.splice(at..at, twice);
                "something doubled"
            }
            5 => {
                bytes.drain(at..end);
                "something taken out"
            }
            6 => double_a_line(random, &mut bytes),
            _ => {
                bytes.truncate(bytes.len() - random.below(bytes.len() / 4 + 1));
                "the end cut off"
            }
        };
    }
    (name, bytes)
}

/// A whole line again, somewhere else: repeated fields, size lines, start lines.
fn double_a_line(random: &mut Random, bytes: &mut Vec<u8>) -> &'static str {
    let ends: Vec<usize> = memchr::memmem::find_iter(bytes, b"\r\n").map(|at| at + 2).collect();
    if !ends.is_empty() {
        let place = random.below(ends.len());
        let start = if place == 0 { 0 } else { ends[place - 1] };
        let line = bytes[start..ends[place]].to_vec();
        let to = ends[random.below(ends.len())];
        bytes.splice(to..to, line);
    }
    "a line doubled"
}

/// The cases to run: those of the variable for this side, or all.
fn cases(side: &str) -> Vec<(u64, usize)> {
    let told = std::env::var("HOSTILE").unwrap_or_default();
    let parts: Vec<&str> = told.split(':').collect();
    let count = std::env::var("HOSTILE_CASES").map_or(CASES, |count| count.parse().expect("a number"));
    let (only, seed, cases) = match parts[..] {
        [only, seed, case] => (only, seed, vec![case.parse().expect("a number")]),
        [only, seed] => (only, seed, (0..count).collect()),
        [""] => return (0..count).map(|case| (SEED, case)).collect(),
        _ => panic!("HOSTILE={told}: requests or replies, a seed, and a number where it is one case"),
    };
    assert!(["requests", "replies"].contains(&only), "HOSTILE={told}: requests or replies");
    let seed = seed.parse().expect("a seed");
    cases.into_iter().filter(|_| only == side).map(|case| (seed, case)).collect()
}

/// Runs each case, and says of one that fails how to run it alone.
fn run(side: &str, mut case: impl FnMut(&mut Random)) {
    for (seed, number) in cases(side) {
        let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
        random.next();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut random))) {
            eprintln!("again: HOSTILE={side}:{seed}:{number} on {}", crate::DRIVER);
            resume_unwind(panic);
        }
    }
}

#[test]
fn mutated_requests() {
    let (front, origin) = requests::start();
    let mut tally = Tally::default();
    run("requests", |random| {
        // Sometimes behind a good one on the same connection.
        let before: &[u8] = if random.below(4) == 0 { NEXT } else { b"" };
        let (change, bytes) = mutate(random, REQUESTS);
        let bytes = [before, &bytes, NEXT].concat();
        let pieces = random.below(5);
        let cuts = random.cuts(bytes.len(), pieces);
        tally.count(change, check_requests(&front, &origin, &bytes, &cuts));
    });
    tally.print("mutated requests");
}

#[test]
fn mutated_replies() {
    let (front, origin) = replies::start();
    let mut tally = Tally::default();
    run("replies", |random| {
        let (change, bytes) = mutate(random, REPLIES);
        let asker = [Asker::Get, Asker::Get, Asker::Head, Asker::Old][random.below(4)];
        let pieces = random.below(5);
        let cuts = random.cuts(bytes.len(), pieces);
        tally.count(change, check_reply(&front, &origin, &bytes, asker, &cuts));
    });
    tally.print("mutated replies");
}
