//! What a client asks and what the engine that gets it is to do, drawn before anything happens.

use std::rc::Rc;

use crate::pipe::End;
use crate::random::Random;
use crate::reply::{cut, write_chunks};
use crate::script::Script;

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
    /// What the first engine says, or the first few, without executing it; a client may get either.
    pub busy: Option<(Reply, u32)>,
    /// Nobody knows its key before it is let in, and no other request shows it.
    pub stranger: bool,
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
    /// As it is sent, and its body alone.
    pub script: Rc<Script>,
    pub body: Vec<u8>,
    pub stream: bool,
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
    /// How often an engine answers with an error of its own, and how often that it is too busy, in percent.
    pub errors: usize,
    pub busy: usize,
    /// How often something of ours panics, of ten thousand turns.
    pub panics: usize,
    /// Some endpoints cannot be connected to, at least one can.
    pub dead: bool,
    /// So many clients more.
    pub crowd: usize,
    /// Engines have little room, and requests wait for it.
    pub waits: bool,
    /// Engines ask for keys, all of which have this number; 0: they ask for none.
    pub keys: u64,
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
        let kind = if style.waits && kind == Kind::Get { Kind::Post } else { kind };
        let old = (last || !style.calm) && random.chance(10) && kind != Kind::Upgrade;
        let closes = last && random.chance(20) && kind != Kind::Upgrade;
        let text = random.small(style.sizes);
        let body = match kind {
            Kind::Post if style.waits => prompt(&pattern(&id, 'q', 300 + text)),
            Kind::Post if random.chance(50) => pattern(&id, 'q', text),
            Kind::Post => json(&id, text, random),
            _ => Vec::new(),
        };
        let busy = (matches!(kind, Kind::Get | Kind::Post) && random.chance(style.busy))
            .then(|| (Reply::busy(&id, style, random), random.pick(&[1, 1, 9])));
        let reply = Reply::draw(&id, kind, style, random);
        let stranger = style.keys > 0 && random.chance(60);
        let mut plan = Plan { wire: Vec::new(), reply, busy, id, kind, old, closes, body, stranger };
        plan.wire = plan.request(style, random);
        plan
    }

    fn request(&self, style: Style, random: &mut Random) -> Vec<u8> {
        let (method, path) = match self.kind {
            Kind::Get | Kind::Upgrade => ("GET", "/v1/things"),
            Kind::Head => ("HEAD", "/v1/things"),
            Kind::Health => ("GET", "/health"),
            Kind::Post if style.waits => ("POST", "/v1/completions"),
            Kind::Post => ("POST", random.pick(&["/v1/things", "/v1/completions", "/v1/chat/completions"])),
            Kind::Garbage => return b"GET /v1/things HTTP/1.1\r\nhost: a\r\nno field\r\n\r\n".to_vec(),
        };
        let version = if self.old { "1.0" } else { "1.1" };
        let mut head = format!("{method} {path} HTTP/{version}\r\nhost: front\r\nx-request-id: {}\r\n", self.id);
        if style.keys > 0 {
            let whose = if self.stranger { &self.id } else { "ours" };
            head += &format!("authorization: Bearer {}-{whose}\r\n", style.keys);
        }
        // Some are more urgent than others that wait, and take their places.
        if style.waits && self.id.bytes().map(u32::from).sum::<u32>() % 2 == 1 {
            head += "x-warmfront-priority: -1\r\n";
        }
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
        write_chunks(&mut wire, &cut(&self.body, random), random);
        wire
    }
}

fn prompt(text: &[u8]) -> Vec<u8> {
    [br#"{"prompt":""#, text, br#"","model":"m"}"#].concat()
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
