//! Origins (RFC 6454, 6.2) as browsers write them into `Origin`, with which they are compared byte by byte.

/// What is wrong with an origin that the configuration names; `*` stands for all.
pub(super) fn fault(origin: &str) -> Option<String> {
    let without_port = without_usual_port(origin).filter(|_| is_origin(origin));
    let words = if let Some(without) = without_port {
        format!(
            "names the default port of its scheme, which browsers leave out: it would never match; write \"{without}\""
        )
    } else if origin == "*" || is_origin(origin) {
        return None;
    } else if is_origin(&origin.to_ascii_lowercase()) {
        "has capitals, which no browser writes: it would never match".to_owned()
    } else if origin.strip_suffix('/').is_some_and(is_origin) {
        "ends in a slash, which no browser writes: it would never match".to_owned()
    } else {
        "is not an origin; write scheme://host or scheme://host:port, such as \"https://chat.example.com\", or \"*\" for all"
            .to_owned()
    };
    Some(format!("\"{origin}\" {words}"))
}

/// An origin that names the default port of its scheme, without that port.
fn without_usual_port(origin: &str) -> Option<&str> {
    [("http://", ":80"), ("https://", ":443")]
        .into_iter()
        .find(|(scheme, _)| origin.starts_with(scheme))
        .and_then(|(_, port)| origin.strip_suffix(port))
}

fn is_origin(origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let (host, port) = match authority.rsplit_once(':') {
        // Within brackets a colon is the address's.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    let address = |inner: &str| inner.parse::<std::net::Ipv6Addr>().is_ok();
    let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => address(inner),
        None => !host.is_empty() && host.bytes().all(named),
    };
    let in_scheme = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase()) && scheme.bytes().all(in_scheme);
    is_scheme && is_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|number| number.to_string() == port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_write() {
        for origin in [
            "*",
            "https://a.example",
            "http://localhost:3000",
            "http://[::1]:8080",
            "http://[::1]",
            "http://a:443",
            "tauri://localhost:80",
        ] {
            assert_eq!(fault(origin), None, "{origin}");
        }
        for (origin, words) in [
            ("https://A.example", "capitals"),
            ("https://a.example/", "slash"),
            ("https://a.example:443", "write \"https://a.example\""),
            ("http://a:80", "write \"http://a\""),
            ("http://[::1]:80", "write \"http://[::1]\""),
            ("http://::80", "is not an origin"),
            ("http://a:8080:80", "is not an origin"),
            ("https://a.example/chat", "is not an origin"),
            ("a.example", "is not an origin"),
            ("https://", "is not an origin"),
            ("https://a:", "is not an origin"),
            ("https://a:080", "is not an origin"),
            ("https://a:65536", "is not an origin"),
            ("http://::1", "is not an origin"),
            ("https://*.a.example", "is not an origin"),
            ("", "is not an origin"),
        ] {
            assert!(fault(origin).is_some_and(|said| said.contains(words)), "{origin}: {:?}", fault(origin));
        }
    }
}
