//! Replies: what a client gets of what an engine, or whatever answers in its place, sends; and that nothing of one
//! reply is ever read as another.

use crate::answers::{Answer, Asker, Came, answer};
use crate::audit::{End, converse, next_reply, status};
use crate::front::Front;
use crate::grammar::{self, Step};
use crate::meant::is_of_connection;
use crate::origin::{Origin, Script, Then, identity};
use crate::random::Random;
use crate::reply_rows::{Expected, ROWS};
use crate::tally::Tally;

/// What the client saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Bad,
    Whole,
    Cut,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Outcome::Bad => "502",
            Outcome::Whole => "passed",
            Outcome::Cut => "cut",
        })
    }
}

pub fn start() -> (Front, Origin) {
    let origin = Origin::start();
    let front = Front::with(&[origin.address], |options| {
        options.rules.half_close_leaves = false;
        // A case is over when its request is.
        options.rules.limits.failed_charge_ms = 0;
    });
    (front, origin)
}

/// Has the origin answer with `bytes` in pieces of its last cuts, asks, and holds what comes to what they mean.
pub fn check_reply(front: &Front, origin: &Origin, bytes: &[u8], asker: Asker, cuts: &[usize]) -> Outcome {
    let meant = answer(bytes, asker);
    // What comes later than the last byte of a reply could not be told from the next one: it comes with that byte.
    let cuts: Vec<usize> = cuts.iter().copied().filter(|cut| *cut < meant.len).collect();
    let ends = std::iter::once(0).chain(cuts.iter().copied());
    let pieces = ends.zip(cuts.iter().copied().chain([bytes.len()])).map(|(from, to)| bytes[from..to].to_vec());
    let delimited = matches!(meant.came, Came::Whole(..)) && closes_by_itself(bytes, &meant, asker);
    let then = if delimited { Then::Stay } else { Then::Close };
    origin.script("/v1/case", Script { pieces: pieces.collect(), then });
    let (method, rest) = match asker {
        Asker::Get => ("GET", " HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/next HTTP/1.1\r\nHost: x\r\n\r\n"),
        Asker::Head => ("HEAD", " HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/next HTTP/1.1\r\nHost: x\r\n\r\n"),
        Asker::Old => ("GET", " HTTP/1.0\r\n\r\n"),
    };
    let (got, end) = converse(front, format!("{method} /v1/case{rest}").as_bytes(), &[]);
    front.settles();
    let told = || {
        format!("\nreply: {}\n{asker:?} got: {} {end:?}\nmeant: {meant:?}", bytes.escape_ascii(), got.escape_ascii())
    };
    let seen = origin.take();
    let judged = judge(&got, end, &meant, asker);
    let (outcome, next) = judged.unwrap_or_else(|what| panic!("{what}{}", told()));
    let paths: Vec<_> = seen.iter().map(|seen| String::from_utf8_lossy(&seen.path).into_owned()).collect();
    assert_eq!(paths, if next { vec!["/v1/case", "/v1/next"] } else { vec!["/v1/case"] }, "{}", told());
    if next && !meant.reusable {
        assert_ne!(seen[0].connection, seen[1].connection, "used again{}", told());
    }
    outcome
}

/// Whether the reply ends without its connection.
fn closes_by_itself(bytes: &[u8], meant: &Answer, asker: Asker) -> bool {
    // One byte more belongs to it only where closing ends it.
    let more = [bytes, b"!"].concat();
    answer(&more, asker).len == meant.len
}

/// Holds what a client got to what was meant; also whether the request behind it was answered.
fn judge(got: &[u8], end: End, meant: &Answer, asker: Asker) -> Result<(Outcome, bool), String> {
    let mut rest = got;
    if asker != Asker::Old {
        for wanted in &meant.interim {
            let Step::Whole(head) = grammar::head(rest) else { return Err("an interim reply is missing".into()) };
            if status(&head)? != *wanted || head.has("content-length") || head.has("transfer-encoding") {
                return Err("another interim reply".into());
            }
            rest = &rest[head.len..];
        }
    }
    let head = match grammar::head(rest) {
        Step::Whole(head) => head,
        // Not even a head: only a reset says so.
        _ if rest.is_empty() && end == End::Reset && matches!(meant.came, Came::Cut(..)) => {
            return Ok((Outcome::Cut, false));
        }
        other => return Err(format!("no reply: {other:?}")),
    };
    let bare = asker == Asker::Old && !head.has("content-length");
    let hops = head.fields.iter().filter(|(name, _)| is_of_connection(name));
    let framing = |name: &[u8]| {
        let plain = [&b"connection"[..], b"content-length", b"transfer-encoding"];
        plain.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    if let Some((name, _)) = hops.clone().find(|(name, _)| !framing(name)) {
        return Err(format!("a field of the engine's connection: {}", name.escape_ascii()));
    }
    if bare && (head.has("transfer-encoding") || !head.list("connection").contains(&b"close".to_vec())) {
        return Err("an old client cannot tell where this ends".into());
    }
    let method: &[u8] = if asker == Asker::Head { b"HEAD" } else { b"GET" };
    let found = status(&head)?;
    match &meant.came {
        Came::Whole(status, _) | Came::Cut(status, _) if found != *status && !early_error(found, *status, meant) => {
            Err(format!("{found} instead of {status}"))
        }
        Came::Whole(_, body) if bare && method != b"HEAD" => {
            let same = rest[head.len..] == **body && end == End::Fin;
            same.then_some((Outcome::Whole, false)).ok_or("another body".into())
        }
        Came::Whole(_, body) => {
            let (reply, len) = next_reply(rest, method, false)?;
            if method != b"HEAD" && reply.body != *body {
                return Err("another body".into());
            }
            behind(&rest[len..], asker, Outcome::Whole)
        }
        Came::Bad | Came::Cut(..) if found == 502 && !matches!(meant.came, Came::Cut(502, _)) => {
            let (reply, len) = next_reply(rest, method, false)?;
            let ours = method == b"HEAD" || reply.body.starts_with(b"{\"error\":{");
            if !ours {
                return Err("a 502 that is not ours".into());
            }
            behind(&rest[len..], asker, Outcome::Bad)
        }
        Came::Bad => Err(format!("{found} of a reply that is none")),
        Came::Cut(_, data) => {
            let body = &rest[head.len..];
            let (whole, before) = match head.all("content-length")[..] {
                [length] => (grammar::digits(length).is_some_and(|len| len <= body.len() as u64), body.to_vec()),
                _ if bare => (end == End::Fin, body.to_vec()),
                _ => {
                    let decoded = grammar::chunks(body);
                    (!matches!(decoded.step, Step::Partial), decoded.data)
                }
            };
            if whole || !data.starts_with(&before) {
                return Err(format!("a cut that looks whole, or other data: {}", before.escape_ascii()));
            }
            Ok((Outcome::Cut, false))
        }
    }
}

/// An error's head is passed on once its short body is there; where that breaks off, nothing was passed on yet.
fn early_error(found: u16, told: u16, meant: &Answer) -> bool {
    found == 502 && matches!(told, 500 | 503) && matches!(meant.came, Came::Cut(..))
}

/// Behind a whole reply stands the next one, and nothing else.
fn behind(rest: &[u8], asker: Asker, outcome: Outcome) -> Result<(Outcome, bool), String> {
    if asker == Asker::Old {
        return if rest.is_empty() { Ok((outcome, false)) } else { Err("surplus behind a reply".into()) };
    }
    let (reply, len) = next_reply(rest, b"GET", false)?;
    if reply.body != identity(b"GET", b"/v1/next", b"") || len != rest.len() {
        return Err("another reply to the next request, or surplus behind it".into());
    }
    Ok((outcome, true))
}

/// The bytes of a row: all of them behind `=`, else behind a status line's version.
fn bytes_of(text: &str) -> Vec<u8> {
    let byte = |char: char| u8::try_from(u32::from(char)).unwrap_or(0xff);
    match text.strip_prefix('=') {
        Some(all) => all.chars().map(byte).collect(),
        None => "HTTP/1.1 ".chars().chain(text.chars()).map(byte).collect(),
    }
}

#[test]
fn rows() {
    let (front, origin) = start();
    let mut tally = Tally::default();
    let mut random = Random::new(2);
    for (group, text, get, old) in ROWS {
        let bytes = bytes_of(text);
        let single: Vec<usize> = (1..bytes.len()).collect();
        for (asker, expected) in [(Asker::Get, get), (Asker::Old, old)] {
            for cuts in [vec![], single.clone(), random.cuts(bytes.len(), 3)] {
                let outcome = check_reply(&front, &origin, &bytes, asker, &cuts);
                let expected = match expected {
                    Expected::Bad => Outcome::Bad,
                    Expected::Whole => Outcome::Whole,
                    Expected::Cut => Outcome::Cut,
                };
                assert_eq!(outcome, expected, "{asker:?}: {text:?}");
                tally.count(group, outcome);
            }
        }
        // A reply to HEAD has no body, whatever its fields say: a fault in the head is all there can be.
        let outcome = check_reply(&front, &origin, &bytes, Asker::Head, &[]);
        assert_ne!(outcome, Outcome::Cut, "HEAD: {text:?}");
        tally.count("to HEAD", outcome);
    }
    assert_eq!(front.count(warmfront::counters::stats::Count::Panicked), 0);
    tally.print("replies, by row");
}

/// Every sequence of up to three framing fields.
#[test]
fn framing_fields_in_every_order() {
    const FIELDS: [&str; 7] = [
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: -5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Connection: close\r\n",
    ];
    let (front, origin) = start();
    let mut tally = Tally::default();
    let n = FIELDS.len();
    for number in 0..n * n * n {
        let fields: String = [number / n / n, number / n % n, number % n].map(|field| FIELDS[field]).concat();
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            for asker in [Asker::Get, Asker::Old, Asker::Head] {
                let bytes = format!("{version} 200 OK\r\n{fields}\r\n0\r\n\r\n");
                let outcome = check_reply(&front, &origin, bytes.as_bytes(), asker, &[]);
                let lengths = fields.matches("-Length").count() + fields.matches("-Encoding").count();
                let unclear = fields.contains('-')
                    && (fields.contains("-5") || fields.contains("gzip") || fields.contains("identity"));
                let old_coding = version == "HTTP/1.0" && fields.contains("-Encoding");
                assert_eq!(outcome == Outcome::Bad, lengths > 1 || unclear || old_coding, "{bytes:?}");
                tally.count(if lengths > 1 { "two lengths and more" } else { "one length" }, outcome);
            }
        }
    }
    tally.print("framing fields of replies in every order");
}

/// Every byte in every place of a reply's head.
#[test]
fn every_byte_everywhere_in_a_head() {
    const PLACES: &[(&str, &str, &str)] = &[
        ("before the version", "", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        ("in the version", "HTTP/1.", "1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        ("before the status", "HTTP/1.1 ", "200 OK\r\nContent-Length: 2\r\n\r\nhi"),
        ("behind the status", "HTTP/1.1 200", " OK\r\nContent-Length: 2\r\n\r\nhi"),
        ("in the reason", "HTTP/1.1 200 O", "K\r\nContent-Length: 2\r\n\r\nhi"),
        ("in a line end", "HTTP/1.1 200 OK\r", "\nContent-Length: 2\r\n\r\nhi"),
        ("in a name", "HTTP/1.1 200 OK\r\nContent-", "Length: 2\r\n\r\nhi"),
        ("behind a name", "HTTP/1.1 200 OK\r\nContent-Length", ": 2\r\n\r\nhi"),
        ("before a length", "HTTP/1.1 200 OK\r\nContent-Length:", "2\r\n\r\nhi"),
        ("behind a length", "HTTP/1.1 200 OK\r\nContent-Length: 2", "\r\n\r\nhi"),
        ("before a coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding:", "chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"),
        ("in the blank line", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r", "\nhi"),
        ("before a chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "2\r\nhi\r\n0\r\n\r\n"),
        ("behind a chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2", "\r\nhi\r\n0\r\n\r\n"),
        ("behind a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi", "\r\n0\r\n\r\n"),
        ("behind a reply", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", ""),
    ];
    let (front, origin) = start();
    let mut tally = Tally::default();
    for (place, before, after) in PLACES {
        for byte in 0..=255u8 {
            let bytes = [before.as_bytes(), &[byte], after.as_bytes()].concat();
            let outcome = check_reply(&front, &origin, &bytes, Asker::Get, &[before.len() + 1]);
            tally.count(place, outcome);
        }
    }
    assert_eq!(tally.of("behind a reply", "passed"), 256);
    tally.print("every byte in every place of a reply");
}
