//! What a client's bytes mean: the requests in them, in order, up to the first that has to be refused. Where an
//! intermediary could be of two minds, refusing is what is meant.

use crate::grammar::{self, Chunks, Field, Head, Step, is_token};

/// One request that has to be served.
#[derive(Clone, Debug)]
pub struct Meant {
    pub method: Vec<u8>,
    /// Path and query.
    pub path: Vec<u8>,
    /// Fields that have to arrive, in order.
    pub fields: Vec<Field>,
    pub body: Vec<u8>,
    pub chunked: bool,
    pub trailers: Vec<Field>,
    pub expects: bool,
    /// The front answers it itself, with this status.
    pub own: Option<u16>,
    /// Nothing is served behind it.
    pub last: bool,
}

/// Why nothing more is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The bytes are over.
    Over,
    /// They are over in the middle of a request, which may be wrong already.
    Unfinished,
    /// The last request ends the connection.
    Closes,
    /// What follows has to be refused.
    Refused(&'static str),
}

/// The requests in `bytes`, why there are no more, and what follows them.
pub fn requests(bytes: &[u8]) -> (Vec<Meant>, Stop, &[u8]) {
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (meant, len) = match request(rest) {
            Step::Whole(whole) => whole,
            Step::Partial => return (found, Stop::Unfinished, rest),
            Step::Wrong(what) => return (found, Stop::Refused(what), rest),
        };
        rest = &rest[len..];
        let last = meant.last;
        found.push(meant);
        if last {
            return (found, Stop::Closes, rest);
        }
    }
    (found, Stop::Over, rest)
}

/// What stands where a request's method does, however wrong the rest of it is.
pub fn method(request: &[u8]) -> &[u8] {
    let line = request.strip_prefix(b"\r\n").unwrap_or(request);
    let end = line.iter().position(|byte| !is_token(&[*byte]));
    &line[..end.unwrap_or(line.len())]
}

fn request(bytes: &[u8]) -> Step<(Meant, usize)> {
    // One empty line is forgiven.
    let skipped = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let bytes = &bytes[skipped..];
    let head = match grammar::head(bytes) {
        Step::Whole(head) => head,
        Step::Partial => return Step::Partial,
        Step::Wrong(what) => return Step::Wrong(what),
    };
    let parts: Vec<&[u8]> = head.start.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else { return Step::Wrong("a request line of other than three words") };
    let old = version == b"HTTP/1.0";
    if !is_token(method) || (!old && version != b"HTTP/1.1") {
        return Step::Wrong("a method that is no token, or a version that is not spoken");
    }
    let judged = path(method, target, old, &head).and_then(|path| Ok((path, framing(&head, old)?)));
    let (path, length) = match judged {
        Ok(judged) => judged,
        Err(what) => return Step::Wrong(what),
    };
    let rest = &bytes[head.len..];
    let has_body = head.has("content-length") || head.has("transfer-encoding");
    let own = own_answer(method, &path);
    let (body, chunked) = match length {
        // What follows a body that nobody reads cannot be found: it ends the connection, whatever it is.
        _ if own.is_some() => (Chunks::default(), false),
        Length::Of(len) if len > rest.len() => return Step::Partial,
        Length::Of(len) => (Chunks { data: rest[..len].to_vec(), trailers: Vec::new(), len }, false),
        Length::Chunked => match grammar::chunks(rest).step {
            Step::Whole(chunks) => (chunks, true),
            Step::Partial => return Step::Partial,
            Step::Wrong(what) => return Step::Wrong(what),
        },
    };
    let options = head.list("connection");
    let named = |option: &[u8]| options.iter().any(|found| found == option);
    let closes = named(b"close") || (old && !named(b"keep-alive"));
    let meant = Meant {
        method: method.to_vec(),
        fields: head.fields.iter().filter(|(name, _)| arrives(name, &options)).cloned().collect(),
        path,
        body: body.data,
        chunked,
        trailers: body.trailers,
        expects: head.has("expect"),
        own,
        last: closes || (own.is_some() && has_body),
    };
    Step::Whole((meant, skipped + head.len + body.len))
}

enum Length {
    Of(usize),
    Chunked,
}

fn framing(head: &Head, old: bool) -> Result<Length, &'static str> {
    const ESSENTIAL: [&[u8]; 8] = [
        b"host",
        b"content-length",
        b"content-type",
        b"authorization",
        b"cookie",
        b"x-request-id",
        b"expect",
        b"accept",
    ];
    let options = head.list("connection");
    if options.iter().any(|option| (!option.is_empty() && !is_token(option)) || ESSENTIAL.contains(&&**option)) {
        return Err("Connection is no list of names of the connection's own");
    }
    let length = match (&head.all("content-length")[..], &head.all("transfer-encoding")[..]) {
        ([], []) => Length::Of(0),
        ([length], []) => {
            let length = grammar::digits(length).ok_or("a length that is no number")?;
            Length::Of(usize::try_from(length).map_err(|_| "a length that is too large")?)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !old => Length::Chunked,
        _ => return Err("more than one length, or an unclear one"),
    };
    match &head.all("expect")[..] {
        [] | [b""] => Ok(length),
        [value] if value.eq_ignore_ascii_case(b"100-continue") => Ok(length),
        _ => Err("another expectation"),
    }
}

fn path(method: &[u8], target: &[u8], old: bool, head: &Head) -> Result<Vec<u8>, &'static str> {
    let hosts = head.all("host");
    if hosts.len() > 1 || (hosts.is_empty() && !old) {
        return Err("not one Host");
    }
    let host = hosts.first().copied();
    if host.is_some_and(|host| !host.is_empty() && !is_authority(host)) {
        return Err("a Host that is none");
    }
    let visible = !target.is_empty() && target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#');
    if !visible || method == b"CONNECT" || method == b"TRACE" {
        return Err("a target that is none, or a method that is not served");
    }
    if target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS") {
        return Ok(target.to_vec());
    }
    let text = std::str::from_utf8(target).map_err(|_| "a target that is none")?;
    let (scheme, rest) = text.split_once("://").ok_or("a target that is none")?;
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        "https" => ":443",
        _ => return Err("another scheme"),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !is_authority(authority.as_bytes()) || path.starts_with('?') {
        return Err("a target without authority or path");
    }
    let plain = |authority: &str| {
        let authority = authority.to_ascii_lowercase();
        authority.strip_suffix(port).or(authority.strip_suffix(':')).unwrap_or(&authority).to_owned()
    };
    if host.is_some_and(|host| plain(&String::from_utf8_lossy(host)) != plain(authority)) {
        return Err("a target of another host");
    }
    Ok(match (path, method) {
        ("", b"OPTIONS") => b"*".to_vec(),
        ("", _) => b"/".to_vec(),
        _ => path.as_bytes().to_vec(),
    })
}

fn is_authority(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, port)) => {
            let literal = |byte: u8| byte.is_ascii_alphanumeric() || b":.-_~%!$&'()*+,;=".contains(&byte);
            if inside.is_empty() || !inside.bytes().all(literal) {
                return false;
            }
            ("x", port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(&byte);
    let number = |port: &str| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
    !host.is_empty() && host.bytes().all(name) && (port.is_empty() || port.strip_prefix(':').is_some_and(number))
}

/// Whether a field has to arrive at the engine as it is. A request's id may be replaced by one of the front.
fn arrives(name: &[u8], options: &[Vec<u8>]) -> bool {
    let name = name.to_ascii_lowercase();
    let rewritten = [&b"expect"[..], b"x-forwarded-for", b"x-request-id"].contains(&&*name);
    !is_of_connection(&name) && !rewritten && !options.contains(&name)
}

/// Fields that end at each hop, and those that frame.
pub fn is_of_connection(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 11] = [
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"content-length",
    ];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn own_answer(method: &[u8], path: &[u8]) -> Option<u16> {
    let plain = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    if plain == b"/health" {
        return Some(if matches!(method, b"GET" | b"HEAD") { 200 } else { 405 });
    }
    (!warmfront::exchange::paths::Paths::default().allow(plain)).then_some(404)
}
