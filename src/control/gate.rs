//! Which requests the admin listener takes. A page in a browser on this machine reaches it as an operator does; it is
//! told apart by its `Origin`, and by the `Host` if the page's own name servers led that name here (DNS rebinding).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::keeper::Keeper;
use crate::config::Cidr;
use crate::publish::Process;

/// Pages that may be read under any `Host`, since Prometheus and probes use a service's name: they change nothing and
/// show no request.
const OPEN: &[&str] = &["/metrics", "/healthz", "/readyz"];

const NAMED: &str = "ask the admin listener by IP address or as localhost, or send `Host: localhost`; under another name, which a \
                     page in a browser could have sent here, it answers GET of /metrics, /healthz and /readyz alone\n";
const FOREIGN: &str = "the admin listener does what no page of another site asks for; ask it without a browser, \
                       such as with curl, or leave out `Origin` and `Sec-Fetch-Site`\n";
const ELSEWHERE: &str = "from your address the admin listener answers GET of /metrics, /healthz and /readyz alone; for more, \
                         `admin_from` in [serve] must list it\n";
/// A path that is asked with a body and changes nothing.
const EXPLAIN: &str = "/explain";
/// A change that is passed on to the process that takes this one's place.
const RELOAD: &str = "/reload";
const SUCCEEDED: &str = "another process serves by now: ask again on a new connection\n";
const SUCCEEDS: &str = "another process is about to take this one's place and reads the configuration, which has no \
                        changes by hand: ask again in a moment\n";

/// Has clients ask again on a new connection if a successor serves from the same sockets by now: a change made here
/// would not reach the service. Nor would one made by hand while it begins.
pub(super) async fn send_on(State(process): State<&'static Process>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let changes = !is_read(request.method()) && path != EXPLAIN;
    let is_by_hand = changes && path != RELOAD;
    let refusal = |why| (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    let mut answer = if changes && process.has_successor() {
        refusal(SUCCEEDED)
    } else if is_by_hand && process.is_handing_on() {
        refusal(SUCCEEDS)
    } else {
        next.run(request).await
    };
    // Asked again afterwards: it may have taken this one's place meanwhile.
    if process.has_successor() {
        if is_by_hand {
            answer = refusal(SUCCEEDED);
        }
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Lets a request pass, or answers 403 and what to do.
pub(super) async fn guard(
    State(keeper): State<Arc<Keeper>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let is_believed = is_believed(peer.ip(), &keeper.config().serve.admin_from);
    match refusal(request.method(), request.uri(), request.headers(), is_believed) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
    }
}

fn is_believed(peer: IpAddr, from: &[Cidr]) -> bool {
    from.iter().any(|peers| peers.contains(peer))
}

fn refusal(method: &Method, target: &Uri, fields: &HeaderMap, is_believed: bool) -> Option<&'static str> {
    let reads = is_read(method);
    if reads && OPEN.contains(&target.path()) {
        return None;
    }
    let mut hosts = fields.get_all(HOST).iter();
    let named = target.authority().is_some_and(|target| !is_no_name(target))
        || hosts.any(|host| !host.to_str().is_ok_and(|host| host.parse().is_ok_and(|host| is_no_name(&host))));
    // Reading is left to the browser, which does not let a page of another site see the answer.
    let foreign = !reads && (has_foreign_origin(fields) || is_cross_site(fields));
    if !is_believed {
        Some(ELSEWHERE)
    } else if named {
        Some(NAMED)
    } else if foreign {
        Some(FOREIGN)
    } else {
        None
    }
}

/// Whether the host is an address or `localhost`: no name server can lead these elsewhere.
fn is_no_name(host: &Authority) -> bool {
    let host = host.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

/// Whether it has an origin other than this listener's own, by the request's own `Host`.
fn has_foreign_origin(fields: &HeaderMap) -> bool {
    let host = fields.get(HOST).map_or(b"".as_slice(), |host| host.as_bytes());
    let is_own = |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|own| own.eq_ignore_ascii_case(host));
    fields.get_all(ORIGIN).iter().any(|origin| !is_own(origin.as_bytes()))
}

/// Whether the browser says that another site caused the request. `none`: a person typed the address.
fn is_cross_site(fields: &HeaderMap) -> bool {
    fields.get_all("sec-fetch-site").iter().any(|site| !matches!(site.as_bytes(), b"none" | b"same-origin"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    const HERE: (&str, &str) = ("host", "127.0.0.1:9911");

    fn asked(method: &str, target: &str, fields: &[(&str, &str)]) -> Option<&'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        refusal(&method.parse().unwrap(), &target.parse().unwrap(), &map, true)
    }

    #[test]
    fn who_is_not_to_command_reads_metrics_and_probes_alone() {
        let elsewhere = |method: &str, path: &str| {
            let fields = HeaderMap::from_iter([(HOST, HeaderValue::from_static("10.0.0.7:9911"))]);
            refusal(&method.parse().unwrap(), &path.parse().unwrap(), &fields, false)
        };
        OPEN.iter().for_each(|path| assert_eq!(elsewhere("GET", path), None, "{path}"));
        for (method, path) in [("GET", "/endpoints"), ("GET", "/receipts"), ("POST", "/reload"), ("POST", "/metrics")] {
            assert_eq!(elsewhere(method, path), Some(ELSEWHERE), "{method} {path}");
        }
        let from = ["127.0.0.1/32".parse().unwrap(), "::1".parse().unwrap()];
        let believed =
            ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7"].map(|peer| is_believed(peer.parse().unwrap(), &from));
        assert_eq!(believed, [true, true, true, false]);
    }

    #[test]
    fn addresses_and_localhost_pass_and_names_do_not() {
        for host in ["127.0.0.1:9911", "10.0.0.7", "[::1]:9911", "[2001:db8::1]", "localhost", "LocalHost:9911"] {
            for method in ["GET", "POST", "DELETE"] {
                assert_eq!(asked(method, "/endpoints", &[("host", host)]), None, "{method} {host}");
            }
        }
        for host in
            ["evil.example", "evil.example:9911", "127.0.0.1.evil.example", "localhost.evil.example", "x", "", "a b"]
        {
            for (method, path) in
                [("GET", "/endpoints"), ("GET", "/receipts"), ("POST", "/metrics"), ("POST", "/reload")]
            {
                assert_eq!(asked(method, path, &[("host", host)]), Some(NAMED), "{method} {path} {host}");
            }
            for path in OPEN {
                assert_eq!(
                    (asked("GET", path, &[("host", host)]), asked("HEAD", path, &[("host", host)])),
                    (None, None)
                );
            }
        }
        assert_eq!(asked("POST", "http://evil.example/reload", &[HERE]), Some(NAMED));
        assert_eq!(asked("POST", "http://127.0.0.1:9911/reload", &[("host", "evil.example")]), Some(NAMED));
        assert_eq!(asked("POST", "/reload", &[HERE, ("host", "evil.example")]), Some(NAMED));
        assert_eq!(asked("POST", "/reload", &[]), None, "HTTP/1.0, which no browser speaks");
    }

    #[test]
    fn pages_of_other_sites_change_nothing() {
        for from in
            ["http://evil.example", "null", "https://127.0.0.1:9911", "http://127.0.0.1:9912", "http://127.0.0.1"]
        {
            assert_eq!(asked("POST", "/reload", &[HERE, ("origin", from)]), Some(FOREIGN), "{from}");
            assert_eq!(asked("GET", "/endpoints", &[HERE, ("origin", from)]), None, "{from}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(asked("DELETE", "/endpoints/a", &[HERE, ("sec-fetch-site", site)]), Some(FOREIGN), "{site}");
        }
        let own = ("origin", "http://127.0.0.1:9911");
        assert_eq!(asked("POST", "/reload", &[HERE, own, ("sec-fetch-site", "same-origin")]), None);
        assert_eq!(asked("POST", "/reload", &[HERE, ("sec-fetch-site", "none")]), None);
        assert_eq!(asked("POST", "/reload", &[HERE, own, ("origin", "http://evil.example")]), Some(FOREIGN));
    }
}
