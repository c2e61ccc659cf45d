//! Requests: the rows, and sweeps that no list could hold.

use crate::audit::{Outcome, check_requests};
use crate::front::Front;
use crate::origin::Origin;
use crate::random::Random;
use crate::request_rows::{CHUNKED, Expected, POST, ROWS};
use crate::tally::Tally;

/// A good request, sent behind every case: served in its own right, or not at all.
pub const NEXT: &[u8] = b"GET /v1/next HTTP/1.1\r\nHost: x\r\n\r\n";

pub fn start() -> (Front, Origin) {
    let origin = Origin::start();
    let front = Front::with(&[origin.address], |options| {
        // A FIN says that a case is over, and takes nothing back.
        options.rules.half_close_leaves = false;
        options.settings.policy = warmfront::policy::Policy::PrefixHash;
    });
    (front, origin)
}

/// The bytes of a row: one a character.
pub fn bytes_of(text: &str) -> Vec<u8> {
    let byte = |char: char| u8::try_from(u32::from(char)).unwrap_or(0xff);
    text.replacen('~', POST, usize::from(text.starts_with('~')))
        .replacen('^', CHUNKED, usize::from(text.starts_with('^')))
        .chars()
        .map(byte)
        .collect()
}

fn fits(outcome: Outcome, expected: Expected) -> bool {
    match expected {
        Expected::No(status) => outcome == Outcome { served: 0, refused: Some(status) },
        Expected::Then(served, status) => outcome == Outcome { served, refused: Some(status) },
        Expected::Yes(served) | Expected::Last(served) => outcome == Outcome { served, refused: None },
    }
}

#[test]
fn rows() {
    let (front, origin) = start();
    let mut tally = Tally::default();
    let mut random = Random::new(1);
    for (group, text, expected) in ROWS {
        let bytes = [&bytes_of(text), NEXT].concat();
        let single: Vec<usize> = (1..bytes.len()).collect();
        for cuts in [vec![], single, random.cuts(bytes.len(), 3)] {
            let outcome = check_requests(&front, &origin, &bytes, &cuts);
            assert!(fits(outcome, *expected), "{outcome:?}, not {expected:?}: {text:?}");
            tally.count(group, outcome);
        }
    }
    assert_eq!(front.count(warmfront::counters::stats::Count::Panicked), 0);
    tally.print("requests, by row");
}

/// Every sequence of up to three framing fields: whole where there is one clear length, refused else.
#[test]
fn framing_fields_in_every_order() {
    const FIELDS: [&str; 8] = [
        "Content-Length: 0\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
    ];
    let (front, origin) = start();
    let mut tally = Tally::default();
    let n = FIELDS.len();
    let sequences = (0..n).map(|a| vec![a]).chain((0..n * n).map(|ab| vec![ab / n, ab % n]));
    let sequences = sequences.chain((0..n * n * n).map(|abc| vec![abc / n / n, abc / n % n, abc % n]));
    for sequence in sequences {
        let fields: String = sequence.iter().map(|field| FIELDS[*field]).collect();
        // A body that is as good for five bytes as for chunks.
        let body = if sequence == [2] { "0\r\n\r\n!" } else { "0\r\n\r\n" };
        let body = if sequence == [0] { "" } else { body };
        let bytes = [format!("{POST}{fields}\r\n{body}").as_bytes(), NEXT].concat();
        let outcome = check_requests(&front, &origin, &bytes, &[]);
        let expected = match sequence[..] {
            [0 | 1 | 2 | 4] => Expected::Yes(2),
            [5 | 6] => Expected::No(501),
            _ => Expected::No(400),
        };
        assert!(fits(outcome, expected), "{outcome:?}, not {expected:?}: {fields:?}");
        let group = ["one framing field", "two framing fields", "three framing fields"][sequence.len() - 1];
        tally.count(group, outcome);
    }
    tally.print("framing fields in every order");
}

/// Every byte in every place of a head. No control byte passes but a tab among blanks; none of them anywhere makes
/// one request two.
#[test]
fn every_byte_everywhere_in_a_head() {
    const PLACES: &[(&str, &str, &str)] = &[
        ("before the method", "", "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("in the method", "G", "ET /v1/a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("behind the method", "GET", " /v1/a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("in the target", "GET /v1/", "a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("behind the target", "GET /v1/a", " HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("in the version", "GET /v1/a HTTP/1.", "1\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("behind the version", "GET /v1/a HTTP/1.1", "\r\nHost: x\r\nX-A: b\r\n\r\n"),
        ("in a line end", "GET /v1/a HTTP/1.1\r", "\nHost: x\r\nX-A: b\r\n\r\n"),
        ("before a name", "GET /v1/a HTTP/1.1\r\n", "Host: x\r\nX-A: b\r\n\r\n"),
        ("in a name", "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-", "A: b\r\n\r\n"),
        ("behind a name", "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-A", ": b\r\n\r\n"),
        ("in a value", "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-A: b", "c\r\n\r\n"),
        ("in Host", "GET /v1/a HTTP/1.1\r\nHost: x", "y\r\nX-A: b\r\n\r\n"),
        ("before a length", "POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length:", "2\r\n\r\nhi"),
        ("behind a length", "POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 2", "\r\n\r\nhi"),
        ("before a coding", "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:", "chunked\r\n\r\n0\r\n\r\n"),
        ("behind a coding", "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked", "\r\n\r\n0\r\n\r\n"),
        ("in the blank line", "GET /v1/a HTTP/1.1\r\nHost: x\r\n\r", "\n"),
        (
            "before a chunk size",
            "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            "2\r\nhi\r\n0\r\n\r\n",
        ),
        (
            "behind a chunk size",
            "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2",
            "\r\nhi\r\n0\r\n\r\n",
        ),
        (
            "behind a chunk",
            "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi",
            "\r\n0\r\n\r\n",
        ),
        ("in a trailer", "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b", "c\r\n\r\n"),
    ];
    let (front, origin) = start();
    let mut tally = Tally::default();
    for (place, before, after) in PLACES {
        for byte in 0..=255u8 {
            let bytes = [before.as_bytes(), &[byte], after.as_bytes(), NEXT].concat();
            // A cut just behind the byte: what is not decided yet must not be decided otherwise later.
            let outcome = check_requests(&front, &origin, &bytes, &[before.len() + 1]);
            let control = byte < 0x20 || byte == 0x7f;
            let blank =
                byte == b'\t' && (place.contains("value") || place.contains("length") || place.contains("coding"));
            let spare = *place == "behind a chunk size" || *place == "in a trailer" || *place == "in Host" || blank;
            if control && !spare {
                assert_ne!(outcome.refused, None, "{place}: {byte:#04x}: {outcome:?}");
            }
            tally.count(place, outcome);
        }
    }
    tally.print("every byte in every place");
}

/// Every line end of a request as something else: one of them, or all.
#[test]
fn line_ends_of_every_kind() {
    const REQUESTS: [&str; 3] = [
        "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n\r\n",
        "POST /v1/a HTTP/1.1\r\nContent-Length: 2\r\nHost: x\r\n\r\nhi",
        "POST /v1/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a\r\nhi\r\n0\r\nA: b\r\n\r\n",
    ];
    const INSTEAD: [&str; 8] = ["\n", "\r", "\n\r", "\r\r\n", "\r\n ", "\r\n\t", "\0\r\n", "\u{b}"];
    let (front, origin) = start();
    let mut tally = Tally::default();
    for request in REQUESTS {
        let lines: Vec<&str> = request.split("\r\n").collect();
        for instead in INSTEAD {
            for changed in 0..lines.len() {
                // The last stands for all of them.
                let all = changed == lines.len() - 1;
                let end = |place: usize| if all || place == changed { instead } else { "\r\n" };
                let mut text = lines[0].to_owned();
                for (place, line) in lines[1..].iter().enumerate() {
                    text.push_str(end(place));
                    text.push_str(line);
                }
                let bytes = [text.as_bytes(), NEXT].concat();
                let outcome = check_requests(&front, &origin, &bytes, &[]);
                // A blank behind a line end folds the next field, or is the first byte of the body.
                assert!(outcome.refused.is_some() || instead.starts_with("\r\n"), "{text:?}: {outcome:?}");
                tally.count(if all { "all line ends" } else { "one line end" }, outcome);
            }
        }
    }
    tally.print("line ends of other kinds");
}
