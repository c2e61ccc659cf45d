//! What a client asks and what the engine that gets it is to do, drawn before anything happens.

use crate::network::End;
use crate::random::Random;

/// One request and its reply. Found again by the request's id.
pub struct Plan {
    pub id: String,
    pub kind: Kind,
    pub old: bool,
    pub closes: bool,
    /// Body of the request, as the engine must get it.
    pub body: Vec<u8>,
    /// The request as it is sent.
    pub wire: Vec<u8>,
    pub reply: Reply,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Get,
    Head,
    Post,
    /// Answered by the front.
    Health,
    Upgrade,
    /// Not HTTP; the last of its client.
    Garbage,
}

pub struct Reply {
    pub begins: Begins,
    /// Head and body as they are sent, and the body alone.
    pub wire: Vec<u8>,
    pub body: Vec<u8>,
    pub until_close: bool,
    pub closes: bool,
    /// What breaks it, behind so many bytes.
    pub breaks: Option<(usize, Break)>,
    /// Only the first engine breaks.
    pub first_only: bool,
    /// Not HTTP, or what the front must not pass.
    pub garbage: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    BehindHead,
    BehindBody,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    Ends(End),
    Silence,
}

/// How rough a schedule is.
#[derive(Clone, Copy)]
pub struct Style {
    /// Nothing fails: every request must be answered whole.
    pub calm: bool,
    /// How often an engine or a client does not behave, in percent.
    pub faults: usize,
    pub sizes: usize,
}

/// Bytes that tell whose they are at every place.
pub fn pattern(id: &str, mark: char, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 24);
    while bytes.len() < len {
        bytes.extend_from_slice(format!("<{id}{mark}{}>", bytes.len()).as_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Plan {
    pub fn draw(id: String, last: bool, style: Style, random: &mut Random) -> Plan {
        let kind = match random.below(100) {
            0..15 => Kind::Get,
            15..22 => Kind::Head,
            22..28 => Kind::Health,
            28..34 if last => Kind::Upgrade,
            34..37 if last && style.faults > 0 => Kind::Garbage,
            _ => Kind::Post,
        };
        let old = (last || !style.calm) && random.chance(10) && kind != Kind::Upgrade;
        let closes = last && random.chance(20) && kind != Kind::Upgrade;
        let text = random.small(style.sizes);
        let body = match kind {
            Kind::Post if random.chance(50) => pattern(&id, 'q', text),
            Kind::Post => json(&id, text, random),
            _ => Vec::new(),
        };
        let mut plan =
            Plan { wire: Vec::new(), reply: Reply::draw(&id, kind, style, random), id, kind, old, closes, body };
        plan.wire = plan.request(random);
        plan
    }

    fn request(&self, random: &mut Random) -> Vec<u8> {
        let (method, path) = match self.kind {
            Kind::Get | Kind::Upgrade => ("GET", "/v1/things"),
            Kind::Head => ("HEAD", "/v1/things"),
            Kind::Health => ("GET", "/health"),
            Kind::Post => ("POST", random.pick(&["/v1/things", "/v1/completions", "/v1/chat/completions"])),
            Kind::Garbage => return b"GET /v1/things HTTP/1.1\r\nhost: a\r\nno field\r\n\r\n".to_vec(),
        };
        let version = if self.old { "1.0" } else { "1.1" };
        let mut head = format!("{method} {path} HTTP/{version}\r\nhost: front\r\nx-request-id: {}\r\n", self.id);
        if self.kind == Kind::Upgrade {
            head += "connection: upgrade\r\nupgrade: websocket\r\n";
        } else if self.closes && !self.old {
            head += "connection: close\r\n";
        } else if self.old && !self.closes {
            head += "connection: keep-alive\r\n";
        }
        if self.kind != Kind::Post {
            return (head + "\r\n").into_bytes();
        }
        if random.chance(5) && !self.old {
            head += "expect: 100-continue\r\n";
        }
        if self.old || random.chance(50) {
            head += &format!("content-length: {}\r\n\r\n", self.body.len());
            return [head.as_bytes(), &self.body].concat();
        }
        let mut wire = (head + "transfer-encoding: chunked\r\n\r\n").into_bytes();
        write_chunks(&mut wire, &self.body, random);
        wire
    }
}

fn json(id: &str, len: usize, random: &mut Random) -> Vec<u8> {
    let text = String::from_utf8(pattern(id, 'q', len)).expect("ASCII");
    let body = match random.below(3) {
        0 => format!(r#"{{"prompt":"{text}","model":"m"}}"#),
        1 => format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#),
        _ => format!(r#"{{"model":"m","stream":true,"user":"u","prompt":["{text}","b"],"x":"#),
    };
    body.into_bytes()
}

/// In chunks of any size, some written as nobody would.
fn write_chunks(wire: &mut Vec<u8>, body: &[u8], random: &mut Random) {
    let mut rest = body;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(random.small(4_096).min(rest.len()));
        let line = match random.below(8) {
            0 => format!("{:X};a=b\r\n", chunk.len()),
            1 => format!("0{:x}\r\n", chunk.len()),
            _ => format!("{:x}\r\n", chunk.len()),
        };
        wire.extend_from_slice(line.as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
        rest = after;
    }
    let end: &[u8] = if random.chance(20) { b"0\r\nx-sum: 1\r\n\r\n" } else { b"0\r\n\r\n" };
    wire.extend_from_slice(end);
}

impl Reply {
    fn draw(id: &str, kind: Kind, style: Style, random: &mut Random) -> Reply {
        let len = random.small(4 * style.sizes);
        let mut head = String::new();
        if random.chance(10) {
            head += "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n";
        }
        let empty = kind != Kind::Upgrade && random.chance(8);
        let status = match (kind, empty) {
            (Kind::Upgrade, _) => "101 Switching Protocols",
            (_, true) => random.pick(&["204 No Content", "304 Not Modified"]),
            _ => random.pick(&["200 OK", "200 OK", "400 Bad Request", "500 Internal Server Error"]),
        };
        head += &format!("HTTP/1.1 {status}\r\nx-plan: {id}\r\n");
        let mut body = pattern(id, 'r', len);
        if random.chance(30) {
            head += "content-type: text/event-stream\r\n";
            body = events(&body);
        }
        let mut until_close = false;
        let mut wire = Vec::new();
        let mut closes = random.chance(15);
        match (kind, random.below(3)) {
            (Kind::Upgrade, _) => head += "connection: upgrade\r\nupgrade: websocket\r\n",
            _ if empty => {}
            (_, 0) => {
                head += &format!("content-length: {}\r\n", body.len());
                wire.extend_from_slice(&body);
            }
            (_, 1) => {
                head += "transfer-encoding: chunked\r\n";
                write_chunks(&mut wire, &body, random);
            }
            _ => {
                until_close = kind != Kind::Head;
                closes = true;
                wire.extend_from_slice(&body);
            }
        }
        if kind == Kind::Head || empty {
            body.clear();
            wire.clear();
        }
        if closes && kind != Kind::Upgrade {
            head += "connection: close\r\n";
        }
        let mut wire = [head.as_bytes(), b"\r\n", &wire].concat();
        let garbage = random.chance(style.faults / 5);
        if garbage {
            spoil(&mut wire, random);
        }
        let breaks = (random.chance(style.faults)).then(|| {
            let at = if random.chance(30) { 0 } else { random.below(wire.len() + 1) };
            let how = random.pick(&[Break::Ends(End::Fin), Break::Ends(End::Reset), Break::Silence]);
            // Where a FIN is the end of a body, a FIN inside it breaks nothing.
            let how = if until_close && how == Break::Ends(End::Fin) { Break::Silence } else { how };
            (at, how)
        });
        let begins = match random.below(12) {
            0..4 if random.chance(style.faults * 3) => Begins::BehindHead,
            _ => Begins::BehindBody,
        };
        Reply { begins, wire, body, until_close, closes, breaks, first_only: random.chance(50), garbage }
    }
}

/// The same bytes as lines of events, behind a comment.
fn events(body: &[u8]) -> Vec<u8> {
    let mut events = b": wait\n\n".to_vec();
    for piece in body.chunks(100) {
        events.extend_from_slice(b"data: ");
        events.extend_from_slice(piece);
        events.extend_from_slice(b"\n\n");
    }
    events
}

fn spoil(wire: &mut Vec<u8>, random: &mut Random) {
    match random.below(4) {
        0 => *wire = b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(),
        1 => *wire = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        2 => *wire = [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'a'; 40_000]].concat(),
        _ => {
            // Not its status: a reply too many would be taken for the next request's, as by any front.
            wire[random.below(7)] ^= 1 + random.below(255) as u8;
        }
    }
}
