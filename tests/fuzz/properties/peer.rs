//! hyper as server and as client, in memory: what it makes of bytes that arrive.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Request, Response, Version};

/// Name in lower case and value, sorted by name; the order among those of one name is as it was.
pub type FieldList = Vec<(String, Vec<u8>)>;

/// A message as it was understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The method, or the status.
    pub start: String,
    /// The target; nothing for a reply.
    pub target: String,
    /// HTTP/1.1, not 1.0.
    pub new: bool,
    pub fields: FieldList,
    /// `None`: it broke off or broke the rules.
    pub body: Option<Vec<u8>>,
}

/// `list` as [`Message`] has it.
pub fn sorted<'a>(list: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> FieldList {
    let lower = |name: &[u8]| String::from_utf8_lossy(name).to_ascii_lowercase();
    let mut fields: FieldList = list.map(|(name, value)| (lower(name), value.to_vec())).collect();
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// A connection of which everything that will ever arrive is there, and then its end.
struct Wire {
    arriving: Vec<u8>,
    read: usize,
    /// Bytes arrive only once something was written: the reply to a request.
    answers: bool,
    written: usize,
}

impl Wire {
    fn new(bytes: &[u8], answers: bool) -> Wire {
        Wire { arriving: bytes.to_vec(), read: 0, answers, written: 0 }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.answers && self.written == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let len = into.remaining().min(self.arriving.len() - self.read);
        into.put_slice(&self.arriving[self.read..self.read + len]);
        self.read += len;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.written += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls until it is ready. Nothing is ever waited for but turns of its own, and of those there are few.
fn drive<T>(mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut cx = Context::from_waker(Waker::noop());
    (0..10_000).find_map(|_| match future.as_mut().poll(&mut cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

fn listed(fields: &HeaderMap) -> FieldList {
    sorted(fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())))
}

async fn collected(body: Incoming) -> Option<Vec<u8>> {
    body.collect().await.ok().map(|body| body.to_bytes().to_vec())
}

/// The requests that hyper as a server finds in `bytes`, up to the first it refuses.
pub fn serve(bytes: &[u8]) -> Vec<Message> {
    let found = Rc::new(RefCell::new(Vec::new()));
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let found = Rc::clone(&found);
        async move {
            let (head, body) = request.into_parts();
            let at = found.borrow().len();
            found.borrow_mut().push(Message {
                start: head.method.to_string(),
                target: head.uri.to_string(),
                new: head.version == Version::HTTP_11,
                fields: listed(&head.headers),
                body: None,
            });
            let body = collected(body).await;
            found.borrow_mut()[at].body = body;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    // The end of what arrives is there at once, and means no leaving.
    let mut server = hyper::server::conn::http1::Builder::new();
    let connection = server.half_close(true).serve_connection(Wire::new(bytes, false), service);
    let _ = drive(pin!(connection));
    found.take()
}

/// The reply that hyper as a client finds in `bytes`, behind any interim ones.
pub fn ask(method: &str, bytes: &[u8]) -> Option<Message> {
    let (mut sender, connection) =
        drive(pin!(hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(Wire::new(bytes, true))))?.ok()?;
    let request = Request::builder().method(method).uri("/").header("host", "h").body(Empty::new()).ok()?;
    let reply = sender.send_request(request);
    let asking = async move {
        let (head, body) = reply.await.ok()?.into_parts();
        Some(Message {
            start: head.status.as_u16().to_string(),
            target: String::new(),
            new: head.version == Version::HTTP_11,
            fields: listed(&head.headers),
            body: collected(body).await,
        })
    };
    let (mut asking, mut connection) = (pin!(asking), pin!(connection));
    let mut over = false;
    let both = std::future::poll_fn(|cx| {
        over = over || connection.as_mut().poll(cx).is_ready();
        asking.as_mut().poll(cx)
    });
    drive(pin!(both)).flatten()
}
