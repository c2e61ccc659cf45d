//! The answers of our own that name a cause beyond HTTP: what was wrong, and what to do.

use std::borrow::Cow;

use super::cors::Cors;
use super::event::{Context, Side};
use crate::counters::stats::Count;
use crate::http::reply::{self, ErrorReply};
use crate::http::{Cause, Fault, Refusal, Shape, ToClient};
use crate::scan::Api;

/// Seconds after which a client may try again what was refused for load or want of an endpoint.
const RETRY_AFTER: &str = "1";
/// Methods that go on to an engine, which knows for each path which of them it takes.
const ALLOW: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

pub(super) const BODY_TOO_LARGE: Refusal = Refusal::new(
    413,
    Cause::BodyTooLarge,
    "The request body is longer than this server accepts (limits.body_bytes_max).",
);
pub(super) const MODEL_TOO_FAR: Refusal = Refusal::new(
    413,
    Cause::BodyTooLarge,
    "The request body has to be held until its `model` is read, and takes more memory than there is for that \
     (limits.budget_bytes): write `model` before the rest.",
);
pub(super) const OVER_BUDGET: Refusal =
    Refusal::new(503, Cause::OverBudget, "Too many request bodies are waiting at once. Please try again later.");
pub(super) const HEAD_OVER_BUDGET: Refusal = Refusal::new(
    503,
    Cause::OverBudget,
    "The request head came in pieces while too much is held for other requests. Please try again later.",
);
pub(super) const REPLY_OVER_BUDGET: Refusal = Refusal::new(
    502,
    Cause::OverBudget,
    "The head of the engine's reply came in pieces while too much is held for other requests. Please try again later.",
);
pub(super) const WANT: Refusal = Refusal::new(
    503,
    Cause::NoDescriptor,
    "No descriptor, port or memory is left for a connection to an engine. Please try again later.",
);
pub(super) const SLOW_UPLOAD: Refusal =
    Refusal::new(408, Cause::ClientTimeout, "The request body came too slowly, or stopped before its end.");
pub(super) const SLOW_HEAD: Refusal =
    Refusal::new(408, Cause::ClientTimeout, "The request head was not complete in time.");
pub(super) const NO_MODEL: Refusal = Refusal::new(
    400,
    Cause::UnknownModel,
    "The request names no model that could be read, and several are served: say which in `model`.",
);
pub(super) const NO_ENDPOINT: Refusal =
    Refusal::new(503, Cause::Unreachable, "No engine can take this request now. Please try again later.");
/// For who asks for the front's health alone.
pub(super) const DRAINING: Refusal =
    Refusal::new(503, Cause::Unreachable, "This front is draining. Please send requests to another.");
pub(super) const ALL_AT_THEIR_CAP: Refusal = Refusal::new(
    503,
    Cause::AllAtCap,
    "Every engine has as many requests as it may have at a time. Please try again later.",
);
pub(super) const QUEUE_FULL: Refusal = Refusal::new(
    429,
    Cause::Shed,
    "No engine has room for this prompt, and the queue is full. Please try again later.",
);
pub(super) const PUSHED_OUT: Refusal = Refusal::new(
    429,
    Cause::Shed,
    "No engine has room for this prompt, and requests that come before it took its place in the queue. Please try again \
     later.",
);
pub(super) const NO_ROOM_IN_TIME: Refusal = Refusal::new(
    429,
    Cause::Shed,
    "No engine had room for this prompt within the time that a request may wait. Please try again later.",
);
pub(super) const UPSTREAM_LOST: Refusal =
    Refusal::new(502, Cause::EarlyEnd, "The engine closed the connection before it had answered.");
pub(super) const BROKEN_OFF: Refusal =
    Refusal::new(502, Cause::EarlyEnd, "The engine broke off before the end of its reply.");
pub(super) const DESERTED: Refusal =
    Refusal::new(502, Cause::EarlyEnd, "The engine is gone and had not answered to the end.");
pub(super) const REPLY_TIMEOUT: Refusal = Refusal::new(504, Cause::EngineTimeout, "The engine did not answer in time.");

/// A refusal whose words may hold what the client sent.
pub(super) struct Refused {
    pub refusal: Refusal,
    /// Instead of the refusal's own.
    pub message: Option<Cow<'static, [u8]>>,
    /// Seconds after which to try again, where that is known.
    pub retry_after: Option<u32>,
    /// Methods that a 405 allows.
    pub allow: &'static str,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Refused { refusal, message: None, retry_after: None, allow: ALLOW }
    }
}

/// As vLLM answers a model it does not serve.
pub(super) fn unknown_model(model: &[u8]) -> Refused {
    let message = [b"The model `", model, b"` does not exist."].concat();
    let refusal = Refusal::new(404, Cause::UnknownModel, "");
    Refused { message: Some(message.into()), ..refusal.into() }
}

/// An engine's reply that breaks a rule. Without its name a client would look for the fault in its own request.
pub(super) fn bad_reply(fault: Fault) -> Refused {
    let message = ["The engine's reply cannot be passed on: ", fault.message, "."].concat();
    Refused { message: Some(message.into_bytes().into()), ..fault.bad_gateway().into() }
}

/// A path of ours, and a method that is not.
pub(super) fn read_only(path: &[u8]) -> Refused {
    let message = [path, b" is answered here, to GET and HEAD alone."].concat();
    let refusal = Refusal::new(405, Cause::BadTarget, "");
    Refused { message: Some(message.into()), allow: "GET, HEAD", ..refusal.into() }
}

/// A path that is not let through.
pub(super) fn unknown_path(path: &[u8]) -> Refused {
    // What an operator could write would open none of the first three: an engine decodes such a path before it looks it
    // up, and has none of the others.
    let why: &[u8] = match path {
        _ if path.contains(&b'%') => b". Percent-encoded bytes do not pass: an engine could take the path for another.",
        _ if path.windows(2).any(|pair| pair == b"//") => b". A slash stands twice in it.",
        _ if lacks_version(path) => b". It is served below /v1, with which a base URL is to end.",
        _ => b". An operator may open it with serve.paths.",
    };
    let message = [b"No such path here: ", path, why].concat();
    Refused { message: Some(message.into()), ..Refusal::new(404, Cause::BadTarget, "").into() }
}

/// Whether SDKs ask for it whose base URL lacks `/v1`.
fn lacks_version(path: &[u8]) -> bool {
    let others: [&[u8]; 2] = [b"/models", b"/audio/"];
    Api::of_path(&[b"/v1", path].concat()) != Api::Other || others.iter().any(|other| path.starts_with(other))
}

/// Counts and composes the answer.
pub(super) fn answer(refused: &Refused, to: &ToClient<'_>, who: (Shape, &Cors), cx: &mut Context<'_>) {
    cx.stats.count(Count::refused(refused.refusal.cause.as_str()));
    compose(refused, to, who, cx);
}

/// The same where no request is refused by it.
pub(super) fn compose(refused: &Refused, to: &ToClient<'_>, (shape, cors): (Shape, &Cors), cx: &mut Context<'_>) {
    let Refusal { status, kind, message, cause } = refused.refusal;
    let message = refused.message.as_deref().unwrap_or(message.as_bytes());
    let param = (cause == Cause::UnknownModel).then_some("model");
    let error = ErrorReply { status, kind, message, param, shape };
    let seconds = refused.retry_after.map(|seconds| seconds.to_string());
    let after = seconds.as_deref().or((status == 503).then_some(RETRY_AFTER));
    let date = cx.date();
    let extra = [
        date.as_deref().map(|date| ("date", date)),
        // RFC 9110, 15.5.6: a 405 has to say what would be allowed.
        (status == 405).then_some(("allow", refused.allow)),
        after.map(|seconds| ("retry-after", seconds)),
    ];
    let extra: Vec<_> = extra.into_iter().flatten().chain(cors.fields()).collect();
    cx.actions.compose(Side::Client, |out| reply::write_error(out, &error, &extra, to));
}
