//! Request targets (RFC 9112 section 3.2) and Host (RFC 9110 section 7.2).

use super::class::{self, IP_LITERAL, REG_NAME};
use super::digits;
use super::head::Version;
use super::reply::{Cause, Refusal};

/// A checked target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    /// Path and query in origin-form, or `*`.
    pub path: &'a [u8],
    /// The authority, if the target is in absolute-form.
    pub authority: Option<&'a [u8]>,
}

/// Returns the path of a target in origin-form, without its query.
pub fn without_query(path: &[u8]) -> &[u8] {
    memchr::memchr(b'?', path).and_then(|query| path.get(..query)).unwrap_or(path)
}

/// Returns the value of the first parameter of that name in a target's query, as it is written.
pub fn query_value<'a>(target: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let query = target.get(without_query(target).len() + 1..)?;
    query.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"="))
}

/// Decodes the percent escapes in a part of a target, as a model id with slashes may have them. A `%` that begins no
/// escape is kept (RFC 3986 section 2.1).
pub fn percent_decoded(part: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = if byte == b'%' { after.split_at_checked(2) } else { None };
        match escape.and_then(|(digits, after)| Some((digits::hex(digits)?, after))) {
            Some((value, after)) => {
                decoded.push(value as u8);
                rest = after;
            }
            None => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    decoded
}

/// Judges target and Host together. `hosts` are the values of all Host fields.
pub fn check<'a>(
    method: &[u8],
    target: &'a [u8],
    version: Version,
    hosts: impl Iterator<Item = &'a [u8]>,
) -> Result<Target<'a>, Refusal> {
    let host = one_host(version, hosts)?;
    // "CONNECT is only used in requests to a proxy"; we are a gateway. TRACE would have an engine send back what it
    // got, also what proxies before us added for it alone.
    match method {
        b"CONNECT" => return Err(Refusal::new(405, Cause::BadTarget, "CONNECT is not served")),
        b"TRACE" => return Err(Refusal::new(405, Cause::BadTarget, "TRACE is not served")),
        _ => {}
    }
    if memchr::memchr(b'#', target).is_some() {
        return Err(bad("a request target has no fragment"));
    }
    if target.first() == Some(&b'/') {
        return Ok(Target { path: target, authority: None });
    }
    if target == b"*" {
        return match method {
            b"OPTIONS" => Ok(Target { path: target, authority: None }),
            _ => Err(bad("the target * is for OPTIONS")),
        };
    }
    absolute(method, target, host)
}

/// Checks Host. "A server MUST respond with a 400 to any HTTP/1.1 request message that lacks a Host header field and to
/// any request message that contains more than one Host header field line or [..] an invalid value."
fn one_host<'a>(version: Version, mut hosts: impl Iterator<Item = &'a [u8]>) -> Result<Option<&'a [u8]>, Refusal> {
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Refusal::new(400, Cause::BadHost, "more than one Host field"));
    }
    match host {
        None if version == Version::Http11 => Err(Refusal::new(400, Cause::BadHost, "no Host field")),
        Some(value) if !value.is_empty() && !is_authority(value) => {
            Err(Refusal::new(400, Cause::BadHost, "Host is not a host name with an optional port"))
        }
        _ => Ok(host),
    }
}

/// Checks `http://authority/path`: it is as good as origin-form if the authority equals Host.
fn absolute<'a>(method: &[u8], target: &'a [u8], host: Option<&[u8]>) -> Result<Target<'a>, Refusal> {
    let form = "the request target is neither a path nor an http URL";
    let (rest, usual_port) = match (prefixed(target, b"http://"), prefixed(target, b"https://")) {
        (Some(rest), _) => (rest, &b"80"[..]),
        (_, Some(rest)) => (rest, &b"443"[..]),
        _ => return Err(bad(form)),
    };
    let end = rest.iter().position(|&byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).ok_or(bad(form))?;
    if !is_authority(authority) {
        return Err(bad("the authority of the request target is not a host name with an optional port"));
    }
    let same = |host: &[u8]| {
        let (mine, theirs) = (without_port(authority, usual_port), without_port(host, usual_port));
        mine.eq_ignore_ascii_case(theirs)
    };
    if host.is_some_and(|host| !same(host)) {
        return Err(bad("the request target names another host than Host"));
    }
    let path: &[u8] = match path.first() {
        Some(b'/') => path,
        // It would need a `/` that the received bytes do not have.
        Some(_) => return Err(bad("a query without a path")),
        // RFC 9112 section 3.2.4: OPTIONS without a path asks the server itself.
        None if method == b"OPTIONS" => b"*",
        None => b"/",
    };
    Ok(Target { path, authority: Some(authority) })
}

/// Whether these are a host and an optional port: no userinfo, no list, nothing that ends an authority.
pub fn is_authority(bytes: &[u8]) -> bool {
    let (host_ok, rest) = match bytes.first() {
        Some(b'[') => {
            let end = bytes.iter().position(|&byte| byte == b']').unwrap_or(bytes.len());
            let inside = bytes.get(1..end).unwrap_or_default();
            let ok = end < bytes.len() && !inside.is_empty() && class::all(&IP_LITERAL, inside);
            (ok, bytes.get(end + 1..).unwrap_or_default())
        }
        _ => {
            let end = bytes.iter().position(|&byte| byte == b':').unwrap_or(bytes.len());
            let name = bytes.get(..end).unwrap_or_default();
            (!name.is_empty() && class::all(&REG_NAME, name), bytes.get(end..).unwrap_or_default())
        }
    };
    let port_ok = match rest.split_first() {
        None => true,
        Some((b':', port)) => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    };
    host_ok && port_ok
}

/// Returns an authority without its port, if that is empty or the usual one.
fn without_port<'a>(authority: &'a [u8], usual: &[u8]) -> &'a [u8] {
    let cut = authority.iter().rposition(|&byte| byte == b':').unwrap_or(authority.len());
    match authority.get(cut + 1..) {
        Some(port) if port.is_empty() || port == usual => authority.get(..cut).unwrap_or_default(),
        _ => authority,
    }
}

fn prefixed<'a>(target: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = target.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

const fn bad(message: &'static str) -> Refusal {
    Refusal::new(400, Cause::BadTarget, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_and_what_is_none_stands() {
        for (written, read) in [
            ("org%2Fmodel", "org/model"),
            ("a%2fb%2", "a/b%2"),
            ("%zz%%41", "%zz%A"),
            ("%", "%"),
            ("%+1", "%+1"),
            ("", ""),
        ] {
            assert_eq!(percent_decoded(written.as_bytes()), read.as_bytes(), "{written}");
        }
    }

    #[test]
    fn authorities() {
        for good in
            ["a", "a.b:80", "A-b_c.d~e", "10.0.0.1:9100", "[::1]", "[::1]:80", "[fe80::1%25eth0]:8", "x:", "a%20b"]
        {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for wrong in [
            "", ":80", "a:b", "a:80:80", "a b", "a/b", "u@a", "a#", "a?", "a,b", "[::1", "::1", "[]", "[::1]x",
            "a:123456", "a\\", "[::1]80", "a\t", "\u{e9}",
        ] {
            assert!(!is_authority(wrong.as_bytes()), "{wrong}");
        }
        for byte in 0..=255u8 {
            let listed = byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(&byte);
            assert_eq!(is_authority(&[b'a', byte, b'b']), listed, "{byte:#x}");
        }
    }

    #[test]
    fn targets() {
        type Row = (&'static str, &'static str, Option<&'static str>, Option<&'static str>);
        let rows: &[Row] = &[
            ("GET", "/a?b", Some("h"), Some("/a?b")),
            ("GET", "//x/..", Some("h"), Some("//x/..")),
            ("GET", "/a#b", Some("h"), None),
            ("GET", "a", Some("h"), None),
            ("OPTIONS", "*", Some("h"), Some("*")),
            ("GET", "*", Some("h"), None),
            ("OPTIONS", "**", Some("h"), None),
            ("CONNECT", "h:80", Some("h"), None),
            ("CONNECT", "/", Some("h"), None),
            ("TRACE", "/", Some("h"), None),
            ("TRACER", "/", Some("h"), Some("/")),
            ("GET", "http://h/a", Some("h"), Some("/a")),
            ("GET", "HTTP://H:80/a", Some("h"), Some("/a")),
            ("GET", "https://h:443/a", Some("h:"), Some("/a")),
            ("GET", "http://h:8080/a", Some("h"), None),
            ("GET", "http://h", Some("h"), Some("/")),
            ("OPTIONS", "http://h", Some("h"), Some("*")),
            ("GET", "http://h?q", Some("h"), None),
            ("GET", "http://u@h/", Some("h"), None),
            ("GET", "http:///a", Some("h"), None),
            ("GET", "http://h/a", Some("other"), None),
            ("GET", "http://h/a", Some(""), None),
            ("GET", "http://h/a", None, Some("/a")),
            ("GET", "ftp://h/a", Some("h"), None),
            ("GET", "http:/h/a", Some("h"), None),
            ("GET", "/", Some(""), Some("/")),
        ];
        for (method, target, host, path) in rows {
            let verdict =
                check(method.as_bytes(), target.as_bytes(), Version::Http10, host.iter().map(|host| host.as_bytes()));
            let got = verdict.ok().map(|target| String::from_utf8_lossy(target.path).into_owned());
            assert_eq!(got.as_deref(), *path, "{method} {target} Host: {host:?}");
        }
    }
}
