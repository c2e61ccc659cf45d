//! What engines answer, drawn: as it should be, with errors of their own, too busy, broken, or no HTTP at all.

use std::ops::Range;
use std::rc::Rc;

use crate::pipe::End;
use crate::plan::{Begins, Break, Kind, Reply, Style, pattern};
use crate::random::Random;
use crate::script::{Framed, Script, Shape};

const DRAINS: &str = r#"{"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}"#;
const BUSY: [&str; 2] = [
    r#"{"error": {"message": "The server is currently busy and cannot accept new requests. Retry.", "code": 503}}"#,
    r#"{"object": "error", "message": "The request queue is full.", "code": 503}"#,
];
/// Inside a 200: the engine's own fault, or the client's.
const ERROR_EVENTS: [&str; 2] = [
    "data: {\"error\": {\"message\": \"EngineCore died\", \"code\": 500}}\n\n",
    "data: {\"error\": {\"message\": \"too long\", \"code\": 400}}\n\n",
];

/// An error that an engine answers by itself: status, a further field, body.
fn error(random: &mut Random) -> (u16, &'static str, &'static str) {
    random.pick(&[
        (500, "", "Internal Server Error"),
        (500, "", DRAINS),
        (500, "", "{}"),
        (501, "", "{}"),
        (502, "", "{}"),
        (503, "", "{}"),
        (503, "retry-after: 1\r\n", "{}"),
        (504, "", "{}"),
        (429, "", "{}"),
        (400, "", "{}"),
    ])
}

/// In chunks of any size, some written as nobody would. Answers where the bytes lie.
pub fn write_chunks(wire: &mut Vec<u8>, pieces: &[&[u8]], random: &mut Random) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let line = match random.below(8) {
            0 => format!("{:X};a=b\r\n", piece.len()),
            1 => format!("0{:x}\r\n", piece.len()),
            _ => format!("{:x}\r\n", piece.len()),
        };
        wire.extend_from_slice(line.as_bytes());
        runs.push(wire.len()..wire.len() + piece.len());
        wire.extend_from_slice(piece);
        wire.extend_from_slice(b"\r\n");
    }
    let end: &[u8] = if random.chance(20) { b"0\r\nx-sum: 1\r\n\r\n" } else { b"0\r\n\r\n" };
    wire.extend_from_slice(end);
    runs
}

/// Cuts of any size.
pub fn cut<'a>(body: &'a [u8], random: &mut Random) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(random.small(4_096).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// As lines of events, behind a comment; as vLLM does, with an error among them at times.
fn events(body: &[u8], errors: bool, random: &mut Random) -> Vec<Vec<u8>> {
    let mut events = vec![b": wait\n\n".to_vec()];
    let line = |data: &[u8]| [b"data: ", data, b"\n\n"].concat();
    events.extend(body.chunks(100).map(line));
    if errors {
        let at = 1 + random.below(events.len());
        events.insert(at, random.pick(&ERROR_EVENTS).as_bytes().to_vec());
    }
    if random.chance(70) {
        events.push(line(b"[DONE]"));
    }
    events
}

impl Reply {
    pub fn draw(id: &str, kind: Kind, style: Style, random: &mut Random) -> Reply {
        let empty = kind != Kind::Upgrade && random.chance(8);
        let fails = kind != Kind::Upgrade && !empty && random.chance(style.errors);
        let (status, field, words) = match kind {
            Kind::Upgrade => (101, "", ""),
            _ if empty => (random.pick(&[204, 304]), "", ""),
            _ if fails => error(random),
            _ => (random.pick(&[200, 200, 200, 400]), "", ""),
        };
        let mut pieces = if fails && random.chance(80) {
            vec![words.as_bytes().to_vec()]
        } else {
            vec![pattern(id, 'r', random.small(4 * style.sizes))]
        };
        let stream = !fails && kind != Kind::Upgrade && random.chance(30);
        if stream {
            let errors = random.chance(style.errors.min(50));
            pieces = events(&pieces[0], errors, random);
        }
        let framing = match (kind, random.below(if stream { 4 } else { 3 })) {
            (Kind::Upgrade, _) => Framed::Tunnel,
            (Kind::Head, _) => Framed::Nothing,
            _ if empty => Framed::Nothing,
            (_, 0) => Framed::Length,
            (_, 1) => Framed::UntilClose,
            _ => Framed::Chunks,
        };
        let head = format!("HTTP/1.1 {status} S\r\nx-plan: {id}\r\n{field}");
        let mut reply = Reply::build(head, status, stream, &pieces, framing, kind, random);
        reply.begins = match random.below(12) {
            0..4 if random.chance(style.faults * 3) => Begins::BehindHead,
            _ => Begins::BehindBody,
        };
        reply.break_off(style, &pieces, random);
        reply
    }

    /// The refusal of an engine that has enough to do.
    pub fn busy(id: &str, style: Style, random: &mut Random) -> Reply {
        let field = random.pick(&["", "retry-after: 5\r\n"]);
        let head = format!("HTTP/1.1 503 Busy\r\nx-plan: {id}\r\nx-part: busy\r\n{field}");
        let pieces = [random.pick(&BUSY).as_bytes().to_vec()];
        let framing = random.pick(&[Framed::Length, Framed::Length, Framed::Length, Framed::Chunks]);
        let mut reply = Reply::build(head, 503, false, &pieces, framing, Kind::Post, random);
        if random.chance(style.faults / 2) {
            reply.break_off(style, &pieces, random);
        }
        reply
    }

    fn build(
        mut head: String,
        status: u16,
        stream: bool,
        pieces: &[Vec<u8>],
        framing: Framed,
        kind: Kind,
        random: &mut Random,
    ) -> Reply {
        if random.chance(10) {
            head = format!("HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n{head}");
        }
        head += if stream {
            "content-type: text/event-stream\r\n"
        } else {
            random.pick(&["", "content-type: audio/a\r\n"])
        };
        let body = pieces.concat();
        let mut closes = random.chance(15);
        let mut framed = body.clone();
        let mut data: Vec<_> = std::iter::once(0..body.len()).collect();
        match framing {
            Framed::Tunnel => head += "connection: upgrade\r\nupgrade: websocket\r\n",
            Framed::Nothing => {}
            Framed::Length => head += &format!("content-length: {}\r\n", body.len()),
            Framed::Chunks => {
                head += "transfer-encoding: chunked\r\n";
                framed.clear();
                let whole: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                let pieces = if stream && random.chance(70) { whole } else { cut(&body, random) };
                data = write_chunks(&mut framed, &pieces, random);
            }
            Framed::UntilClose => closes = true,
        }
        if framing == Framed::Nothing {
            framed.clear();
            data.clear();
        } else if framing == Framed::Tunnel {
            data.clear();
        }
        if closes && framing != Framed::Tunnel {
            head += "connection: close\r\n";
        }
        head += "\r\n";
        let names_a_time = head.contains("retry-after");
        let head = head.as_bytes();
        let proves = kind == Kind::Post;
        let script = Script::new(Shape { status, proves, names_a_time, stream, head, framed: &framed, data, framing });
        Reply {
            begins: Begins::BehindBody,
            script: Rc::new(script),
            body: if framing == Framed::Nothing || kind == Kind::Head { Vec::new() } else { body },
            stream,
            until_close: framing == Framed::UntilClose,
            closes,
            breaks: None,
            first_only: random.chance(50),
            garbage: false,
        }
    }

    /// Some are spoilt, some break off: often where an event or a chunk ends.
    fn break_off(&mut self, style: Style, pieces: &[Vec<u8>], random: &mut Random) {
        if random.chance(style.faults / 5) {
            self.garbage = true;
            self.script = Rc::new(Script::wild(spoil(self.script.wire.clone(), random)));
        }
        let wire = &self.script.wire;
        // What a client may be told of a broken stream wants looking at most.
        let often = if self.stream { 3 * style.faults } else { style.faults };
        if !random.chance(often) {
            return;
        }
        let ends: Vec<usize> = memchr::memmem::find_iter(wire, b"\n\n").map(|at| at + 2).collect();
        let at = match random.below(10) {
            0..3 => 0,
            3..7 if !ends.is_empty() && pieces.len() > 1 => {
                let last = ends.last().copied().unwrap_or(0);
                let at = if random.chance(30) { last } else { random.pick(&ends) };
                // Behind the end of the chunk, where one ends here.
                if wire[at..].starts_with(b"\r\n") && random.chance(80) { at + 2 } else { at }
            }
            _ => random.below(wire.len() + 1),
        };
        let how = random.pick(&[Break::Ends(End::Fin), Break::Ends(End::Reset), Break::Silence]);
        // Where a FIN is the end of a body, a FIN inside it breaks nothing.
        let how = if self.until_close && how == Break::Ends(End::Fin) { Break::Silence } else { how };
        self.breaks = Some((at, how));
    }
}

fn spoil(mut wire: Vec<u8>, random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(),
        1 => b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        2 => [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'a'; 40_000]].concat(),
        _ => {
            // Not its status: a reply too many would be taken for the next request's, as by any front.
            wire[random.below(7)] ^= 1 + random.below(255) as u8;
            wire
        }
    }
}
