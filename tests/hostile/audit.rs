//! The client of these tests, and the judge: what was sent, what arrived at the origin and what came back have to
//! tell one story.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::front::Front;
use crate::grammar::{self, Head, Step};
use crate::meant::{self, Meant, Stop};
use crate::origin::{Origin, Seen, identity};

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Fin,
    Reset,
}

/// What a client was given for all it sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Requests that were served.
    pub served: usize,
    /// The status that ended the connection.
    pub refused: Option<u16>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.served, self.refused) {
            (_, Some(status)) => write!(out, "{status}"),
            (0, None) => out.write_str("closed"),
            (_, None) => out.write_str("passed"),
        }
    }
}

/// Statuses with which a request may be refused for what it is.
const REFUSALS: [u16; 8] = [400, 405, 408, 413, 417, 431, 501, 505];

/// A reply as it stands in what a client got.
pub struct Reply {
    pub status: u16,
    pub head: Head,
    pub body: Vec<u8>,
}

/// Sends `bytes`, cut at `cuts`, says that no more will come, and reads to the end.
pub fn converse(front: &Front, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, End) {
    let mut stream = TcpStream::connect(front.address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut from = 0;
    for cut in cuts.iter().copied().filter(|cut| *cut < bytes.len()).chain([bytes.len()]) {
        // That the front closed meanwhile shows below.
        let _ = stream.write_all(&bytes[from..cut]);
        from = cut;
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut got = Vec::new();
    let mut buffer = [0; 16_384];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (got, End::Fin),
            Ok(len) => got.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("no end: {} sent, {} got", bytes.escape_ascii(), got.escape_ascii())
            }
            Err(_) => return (got, End::Reset),
        }
    }
}

/// Sends a client's bytes and holds everything that follows to what they mean.
pub fn check_requests(front: &Front, origin: &Origin, bytes: &[u8], cuts: &[usize]) -> Outcome {
    let (meant, stop, behind) = meant::requests(bytes);
    let (got, end) = converse(front, bytes, cuts);
    front.settles();
    let seen = origin.take();
    let told = || {
        format!(
            "\nsent: {}\nin pieces: {cuts:?}\nmeant: {}{stop:?}\ngot: {} {end:?}\norigin: {}",
            bytes.escape_ascii(),
            meant.iter().map(|meant| shown(&meant.method, &meant.path, &meant.fields, &meant.body)).collect::<String>(),
            got.escape_ascii(),
            seen.iter().map(|seen| shown(&seen.method, &seen.path, &seen.fields, &seen.body)).collect::<String>(),
        )
    };
    let arrived: Vec<&Meant> = meant.iter().filter(|meant| meant.own.is_none()).collect();
    assert_eq!(seen.len(), arrived.len(), "requests at the origin{}", told());
    for (seen, meant) in seen.iter().zip(&arrived) {
        if let Err(what) = same_request(seen, meant) {
            panic!("{what}{}", told());
        }
    }
    judge(&got, end, &meant, stop, meant::method(behind)).unwrap_or_else(|what| panic!("{what}{}", told()))
}

fn shown(method: &[u8], path: &[u8], fields: &[grammar::Field], body: &[u8]) -> String {
    let fields = fields.iter().flat_map(|(name, value)| [name, &b": "[..], value, b", "].concat()).collect::<Vec<_>>();
    let [method, path, fields, body] = [method, path, &fields, body].map(|bytes| bytes.escape_ascii().to_string());
    format!("{method} {path} {fields}{body}\n")
}

/// Whether the origin got what was meant, and of the front's own only what it may add.
fn same_request(seen: &Seen, meant: &Meant) -> Result<(), String> {
    if (&seen.method, &seen.path, &seen.body) != (&meant.method, &meant.path, &meant.body) {
        return Err("another request arrived".into());
    }
    if seen.chunked != meant.chunked {
        return Err("another framing".into());
    }
    const ADDED: [&[u8]; 4] = [b"x-forwarded-for", b"x-forwarded-proto", b"x-request-id", b"host"];
    let mut left = meant.fields.iter().peekable();
    for (name, value) in &seen.fields {
        if left.next_if(|(wanted, meant)| (wanted, meant) == (name, value)).is_some() {
            continue;
        }
        let framing = name == b"content-length" || name == b"transfer-encoding";
        let upgrade = name == b"connection" && value == b"Upgrade" || name == b"upgrade";
        if !framing && !upgrade && !ADDED.iter().any(|added| name.eq_ignore_ascii_case(added)) {
            return Err(format!("a field from nowhere: {}", name.escape_ascii()));
        }
    }
    if let Some((name, _)) = left.next() {
        return Err(format!("a field lost or out of order: {}", name.escape_ascii()));
    }
    let ids = seen.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"x-request-id")).count();
    if ids != 1 {
        return Err(format!("{ids} request ids"));
    }
    let from_client = |trailer: &grammar::Field| meant.trailers.contains(trailer);
    let frames = |(name, _): &grammar::Field| meant::is_of_connection(name) || name.eq_ignore_ascii_case(b"host");
    if !seen.trailers.iter().all(from_client) || seen.trailers.iter().any(frames) {
        return Err("a trailer that may not pass".into());
    }
    Ok(())
}

/// What the client got: a reply to each request, and then what the stop asks for; an answer to `refused`, if to anything.
fn judge(got: &[u8], end: End, meant: &[Meant], stop: Stop, refused: &[u8]) -> Result<Outcome, String> {
    let mut at = 0;
    let mut outcome = Outcome::default();
    for meant in meant {
        let (reply, len) = next_reply(&got[at..], &meant.method, meant.expects)?;
        at += len;
        let wanted = meant.own.unwrap_or(200);
        if reply.status != wanted {
            return Err(format!("{} for a request that {wanted} was meant for", reply.status));
        }
        let body = identity(&meant.method, &meant.path, &meant.body);
        if meant.own.is_none() && meant.method != b"HEAD" && reply.body != body {
            return Err("another reply's body".into());
        }
        outcome.served += 1;
        let told_close = reply.head.list("connection").contains(&b"close".to_vec());
        if meant.last && !told_close && at < got.len() {
            return Err("goes on behind a request that ends the connection".into());
        }
    }
    let mut rest = &got[at..];
    // Whoever waits for the go-ahead gets it before the body that is then missing or wrong.
    while let Some(behind) = rest.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        rest = behind;
    }
    if !rest.is_empty() {
        if matches!(stop, Stop::Over | Stop::Closes) {
            return Err("a reply to nothing".into());
        }
        let (reply, len) = next_reply(rest, refused, false)?;
        let closes = reply.head.list("connection").contains(&b"close".to_vec());
        if !REFUSALS.contains(&reply.status) || !closes || len != rest.len() {
            return Err(format!("not one refusal that closes, but {}", reply.status));
        }
        outcome.refused = Some(reply.status);
    } else if let Stop::Refused(what) = stop {
        return Err(format!("no answer to what has to be refused: {what}"));
    }
    if end == End::Reset && outcome.refused.is_none() {
        return Err("a reset behind whole replies".into());
    }
    Ok(outcome)
}

/// One whole reply to a request of `method`, behind the go-ahead if that may come, and the bytes they take.
pub fn next_reply(bytes: &[u8], method: &[u8], may_continue: bool) -> Result<(Reply, usize), String> {
    let mut at = 0;
    loop {
        let head = match grammar::head(&bytes[at..]) {
            Step::Whole(head) => head,
            Step::Partial => return Err("a reply is missing or cut".into()),
            Step::Wrong(what) => return Err(format!("a reply's head: {what}")),
        };
        at += head.len;
        let status = status(&head)?;
        if status == 100 && may_continue {
            continue;
        }
        let rest = &bytes[at..];
        let (body, len) = match (&head.all("content-length")[..], &head.all("transfer-encoding")[..]) {
            _ if method == b"HEAD" || status < 200 || status == 204 || status == 304 => (Vec::new(), 0),
            ([length], []) => {
                let len = grammar::digits(length).ok_or("a reply's length")? as usize;
                (rest.get(..len).ok_or("a reply's body is cut")?.to_vec(), len)
            }
            ([], [b"chunked"]) => match grammar::chunks(rest).step {
                Step::Whole(chunks) => (chunks.data, chunks.len),
                step => return Err(format!("a reply's chunks: {step:?}")),
            },
            _ => return Err("a reply without one clear length".into()),
        };
        return Ok((Reply { status, head, body }, at + len));
    }
}

/// The status, of a line as the front writes it.
pub fn status(head: &Head) -> Result<u16, String> {
    let digits = head.start.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = digits.and_then(grammar::digits).filter(|status| (100..600).contains(status));
    let clean = head.start.get(12) == Some(&b' ');
    status.filter(|_| clean).map(|status| status as u16).ok_or("a status line".into())
}
