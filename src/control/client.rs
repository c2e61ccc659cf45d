//! Control's own calls to engines: small requests, bounded in size and time.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use memchr::memchr;

use crate::want;

/// Idle connections to engines are dropped before engines on uvicorn drop them (5 s).
const IDLE: Duration = Duration::from_secs(3);
/// Longest wait for a probe's connection. A kernel takes it whatever its engine is about, so a machine that is gone is
/// known long before an engine that is slow.
const CONNECT: Duration = Duration::from_secs(1);
/// Longest head of an engine's answer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Longest page that is read line by line. Engines may count separately for each set of adapters that was ever in use:
/// such a page grows for as long as they live, by lines that the front does not use.
const PAGE_BYTES_MAX: usize = 64 << 20;

/// A name that no engine has (RFC 2606).
const FOREIGN: &str = "warmfront.invalid";

/// The one HTTP client of control.
#[derive(Clone, Debug)]
pub struct Client(hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>);

/// One call: which engine to ask, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Where to connect to.
    pub address: SocketAddr,
    /// `Host`.
    pub authority: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Key for `Authorization: Bearer`.
    pub key: Option<&'a str>,
    /// Longest time for connecting, asking and the whole answer together.
    pub timeout: Duration,
    /// Longest body read; of a page that is read line by line, longest line.
    pub bytes_max: usize,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Header fields.
    pub fields: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There was no route, or another fault in connecting.
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, String),
    /// There was no descriptor, or port, to connect with: nothing is known of the engine.
    #[error("nothing is left to connect with: {0}")]
    Want(String),
    /// The kernel there refused: nothing listens.
    #[error("cannot connect to {0}: {1}")]
    Refused(SocketAddr, String),
    /// The kernel there ended the connection.
    #[error("the connection was reset: {0}")]
    Reset(String),
    /// There was a connection, and the answer was not complete in time.
    #[error("no whole answer within {0} ms")]
    Timeout(u128),
    /// The answer is longer than asked for.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// One line of it is longer than asked for.
    #[error("a line of the answer is longer than {0} bytes")]
    LongLine(usize),
    /// The answer is not HTTP, or cut.
    #[error("the answer is broken: {0}")]
    Broken(String),
}

impl CallError {
    /// Whether the kernel there refused or reset the connection: no answer will come.
    pub fn is_refusal(&self) -> bool {
        matches!(self, CallError::Refused(..) | CallError::Reset(_))
    }

    /// Whether the kernel there took the connection, and no answer came in time: the engine may be busy.
    pub fn is_silence(&self) -> bool {
        matches!(self, CallError::Timeout(_))
    }

    fn of(error: &(dyn std::error::Error + 'static), connecting: Option<SocketAddr>) -> CallError {
        let (root, kind) = root(error);
        match (kind, connecting) {
            (Some(ErrorKind::ConnectionRefused), Some(address)) => CallError::Refused(address, root),
            (Some(ErrorKind::ConnectionReset), _) => CallError::Reset(root),
            (_, Some(_)) if is_want(error) => CallError::Want(root),
            (Some(ErrorKind::TimedOut), Some(address)) => CallError::unconnected(address),
            (_, Some(address)) => CallError::Connect(address, root),
            (_, None) => CallError::Broken(root),
        }
    }

    fn unconnected(address: SocketAddr) -> CallError {
        CallError::Connect(address, "nobody took the connection in time".into())
    }
}

impl Default for Client {
    fn default() -> Self {
        Client::keeping(1, None)
    }
}

impl Client {
    /// A client that connects for each call, since a process that answers on a kept connection may have closed its
    /// listener. It waits for a connection for a second at most.
    pub fn connecting_anew() -> Client {
        Client::keeping(0, Some(CONNECT))
    }

    fn keeping(connections: usize, connect_timeout: Option<Duration>) -> Client {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(connect_timeout);
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(connections)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        Client(client)
    }

    /// One GET.
    pub async fn get(&self, call: &Call<'_>) -> Result<Answer, CallError> {
        self.ask(call, Vec::new(), None, |response| whole(response, call.bytes_max)).await
    }

    /// The status with which an engine answers a GET under a `Host` that it does not know, if it is not the `usual`
    /// one: requests are passed on with their clients' `Host`.
    pub async fn by_another_name(&self, call: &Call<'_>, usual: u16) -> Option<u16> {
        let status = self.get(&Call { authority: FOREIGN, ..*call }).await.ok()?.status;
        (status != usual).then_some(status)
    }

    /// One POST of JSON, with header fields of its own.
    pub async fn post(&self, call: &Call<'_>, fields: Vec<(&str, &str)>, json: Bytes) -> Result<Answer, CallError> {
        self.ask(call, fields, Some(json), |response| whole(response, call.bytes_max)).await
    }

    /// One GET of a page that is handed on line by line as it comes,
    /// and of which no more than a line is kept. Returns its status.
    pub async fn get_lines(&self, call: &Call<'_>, line: impl FnMut(&[u8])) -> Result<u16, CallError> {
        self.ask(call, Vec::new(), None, |response| by_lines(response, call.bytes_max, line)).await
    }

    async fn ask<T, R: Future<Output = Result<T, CallError>>>(
        &self,
        call: &Call<'_>,
        fields: Vec<(&str, &str)>,
        json: Option<Bytes>,
        read: impl FnOnce(Response<Incoming>) -> R,
    ) -> Result<T, CallError> {
        let mut request = request(call, fields, json).map_err(|error| CallError::of(&error, None))?;
        let connection = capture_connection(&mut request);
        let answer = async {
            let response = self.0.request(request).await;
            let response =
                response.map_err(|error| CallError::of(&error, error.is_connect().then_some(call.address)))?;
            read(response).await
        };
        tokio::time::timeout(call.timeout, answer).await.unwrap_or_else(|_| {
            match connection.connection_metadata().is_some() {
                true => Err(CallError::Timeout(call.timeout.as_millis())),
                false => Err(CallError::unconnected(call.address)),
            }
        })
    }
}

async fn whole(response: Response<Incoming>, bytes_max: usize) -> Result<Answer, CallError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, bytes_max).collect().await;
    let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => CallError::TooLong(bytes_max),
        false => CallError::of(error.as_ref(), None),
    })?;
    Ok(Answer { status: head.status.as_u16(), fields: head.headers, body: body.to_bytes() })
}

async fn by_lines(
    response: Response<Incoming>,
    bytes_max: usize,
    mut line: impl FnMut(&[u8]),
) -> Result<u16, CallError> {
    let (head, mut body) = response.into_parts();
    let mut lines = Lines { begun: Vec::new(), bytes_max, left: PAGE_BYTES_MAX };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| CallError::of(&error, None))?;
        let Some(data) = frame.data_ref() else { continue };
        lines.take(data, &mut line)?;
    }
    if !lines.begun.is_empty() {
        line(&lines.begun);
    }
    Ok(head.status.as_u16())
}

/// Cuts what comes piece by piece into lines.
struct Lines {
    /// The part of a line that has come.
    begun: Vec<u8>,
    /// Longest line.
    bytes_max: usize,
    /// Bytes that may still come.
    left: usize,
}

impl Lines {
    fn take(&mut self, mut piece: &[u8], line: &mut impl FnMut(&[u8])) -> Result<(), CallError> {
        self.left = self.left.checked_sub(piece.len()).ok_or(CallError::TooLong(PAGE_BYTES_MAX))?;
        while let Some(end) = memchr(b'\n', piece) {
            let (first, behind) = (&piece[..end], &piece[end + 1..]);
            self.has_room(first)?;
            match self.begun.is_empty() {
                true => line(first),
                false => {
                    self.begun.extend_from_slice(first);
                    line(&self.begun);
                    self.begun.clear();
                }
            }
            piece = behind;
        }
        self.has_room(piece)?;
        self.begun.extend_from_slice(piece);
        Ok(())
    }

    fn has_room(&self, more: &[u8]) -> Result<(), CallError> {
        let fits = self.begun.len() + more.len() <= self.bytes_max;
        fits.then_some(()).ok_or(CallError::LongLine(self.bytes_max))
    }
}

/// Advice for an operator if the other side may want TLS: it closed without a word, or with an alert.
pub fn may_be_tls(error: &CallError) -> &'static str {
    match error {
        CallError::Broken(_) | CallError::Reset(_) => {
            "if it was started with --ssl-keyfile or the like, it speaks TLS, which warmfront does not speak yet: take that flag away; else "
        }
        _ => "",
    }
}

/// Advice for an operator on [`Client::by_another_name`].
pub fn host_matters(status: u16) -> String {
    format!(
        "answers {status} under another `Host`: requests are passed on with their clients' `Host`, so that all of them may be answered so; \
         have the server in front of it accept any `Host`"
    )
}

fn request(
    call: &Call<'_>,
    fields: Vec<(&str, &str)>,
    json: Option<Bytes>,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::builder()
        .uri(format!("http://{}{}", call.address, call.path))
        .header(HOST, call.authority)
        .header(USER_AGENT, concat!("warmfront/", env!("CARGO_PKG_VERSION")));
    if let Some(key) = call.key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    if json.is_some() {
        request = request.method(Method::POST).header(CONTENT_TYPE, "application/json");
    }
    for (name, value) in fields {
        // As bytes: a value may hold more than ASCII.
        request = request.header(name, value.as_bytes());
    }
    request.body(Full::new(json.unwrap_or_default()))
}

/// Whether the cause is a lack of this machine's (descriptors, memory, ports that lead there), and not the engine.
fn is_want(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut chain = std::iter::successors(Some(error), |error| error.source());
    let is_ours = |error: &io::Error| want::is_want(error) || error.kind() == ErrorKind::AddrNotAvailable;
    chain.any(|error| error.downcast_ref::<io::Error>().is_some_and(is_ours))
}

/// The innermost cause, since the outer ones say "client error (Connect)" and the like; and what the kernel said.
fn root(error: &(dyn std::error::Error + 'static)) -> (String, Option<ErrorKind>) {
    let mut error = error;
    let mut kind = None;
    loop {
        kind = error.downcast_ref::<io::Error>().map(io::Error::kind).or(kind);
        match error.source() {
            Some(source) => error = source,
            None => return (error.to_string(), kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_lack_is_not_the_engines_fault() {
        let of = |number| CallError::of(&io::Error::from_raw_os_error(number), Some(([127, 0, 0, 1], 1).into()));
        let ours = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
        assert!(ours.iter().all(|number| matches!(of(*number), CallError::Want(_))));
        let theirs = [libc::ECONNREFUSED, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ETIMEDOUT];
        assert!(theirs.iter().all(|number| !matches!(of(*number), CallError::Want(_))));
    }

    #[test]
    fn a_page_is_cut_into_lines_wherever_it_is_cut_into_pieces() {
        let page = b"one\n\ntwo \r\nthree";
        for (a, b) in (0..=page.len()).flat_map(|a| (a..=page.len()).map(move |b| (a, b))) {
            let (mut lines, mut told) = (Lines { begun: Vec::new(), bytes_max: 5, left: page.len() }, Vec::new());
            for piece in [&page[..a], &page[a..b], &page[b..]] {
                lines.take(piece, &mut |line: &[u8]| told.push(line.to_vec())).unwrap();
            }
            assert_eq!(lines.take(b"!", &mut |_: &[u8]| {}), Err(CallError::TooLong(PAGE_BYTES_MAX)));
            assert_eq!((told, lines.begun), (vec![b"one".to_vec(), vec![], b"two \r".to_vec()], b"three".to_vec()));
        }
        for piece in [&b"123456"[..], b"123456\n", b"1\n123456"] {
            let (mut lines, mut pieces) = (Lines { begun: Vec::new(), bytes_max: 5, left: 99 }, piece.chunks(2));
            let taken = pieces.try_for_each(|piece| lines.take(piece, &mut |_: &[u8]| {}));
            assert_eq!(taken, Err(CallError::LongLine(5)), "{}", piece.escape_ascii());
            assert!(lines.begun.len() <= 5);
        }
    }
}
