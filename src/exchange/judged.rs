//! By what a reply is judged: its status, and the words that engines write when they fail. An error's are waited for
//! before its head goes on: what is refused for load may go elsewhere as long as its client has seen nothing.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::{self, Finder};
use memchr::{memchr, memrchr};

use super::event::{Context, Side};
use super::stored::not_here;
use super::{Asked, Exchange};
use crate::counters::stats::Ended;
use crate::http::rewrite::Form;
use crate::http::{Body, BodyLength, ReplyFraming, ResponseHead, Shape};
use crate::scan::Api;

/// So much of an error's body is read before its head is passed on.
const ERROR_BYTES_MAX: usize = 4 << 10;
/// And so much of it with the framing of its chunks, which may be many times what they hold.
const FRAMED_BYTES_MAX: usize = 2 * ERROR_BYTES_MAX;

/// A vLLM that drains says so to every new request, at once, while `/health` goes on answering 200. Only where its
/// message begins so: what follows may be of a server that a client had it ask for an image.
const DRAINING: &[u8] = b"cannot schedule new futures";
const MESSAGE: [&[u8]; 2] = [b"\"message\":\"", b"\"message\": \""];
/// How aiohttp, by which vLLM fetches what prompts name by its URL, says that it cannot: a server that is not there,
/// one that takes no connection in time, one that goes, and one that answers with an error. Last, SGLang, of media that
/// could not be had or read.
const NOT_FETCHED: [&[u8]; 6] = [
    b"Cannot connect to host ",
    b"Connection timeout to host ",
    b"Server disconnected",
    b", url='http",
    b", url=URL(",
    b"Error while loading data ",
];
/// vLLM, where it is itself that failed: to 0.32, and from 0.33 on.
const OWN: [&[u8]; 2] = [b"EngineCore", b"The server had an error while processing your request"];
/// SGLang, of a message, whatever went wrong with it: a prompt that is too long, too.
const MESSAGE_FAILED: &[u8] = b"\"message\":\"Internal processing error\"";
/// vLLM, when its queue has too many requests or too many tokens, and SGLang when it is full. Nothing of the request
/// was executed.
const BUSY: [&[u8]; 3] = [
    b"currently busy and cannot accept new requests",
    b"reached its prefill token backlog limit",
    b"request queue is full",
];
/// vLLM, likewise, while it changes how many ranks it has (elastic expert parallelism): none of them takes any.
const SCALES: &[u8] = b"The model is currently scaling";
/// SGLang, of a request that waited or ran for too long, had to make room, or names a priority where none is taken: it
/// may have run for a while.
const GIVEN_UP: [&[u8]; 5] = [
    b"aborted by a higher priority request",
    b"Retracted under decode memory pressure",
    b"Request waiting timeout reached",
    b"Request running timeout reached",
    b"Using priority is disabled for this server",
];
/// vLLM, in a 403, of paths that it was not told to serve: whatever key is shown.
const NOT_SERVED: &[u8] = b"\"message\":\"Scale-out endpoints are disabled.";
/// SGLang, of `/v1/responses`: both stand in a 400, behind the status that it was to have.
const MEANT_503: &[u8] = b"{\"error\":{\"message\":\"503: ";

/// SGLang, of a message, in the place of both.
const OVERLOADED: &[u8] = b"\"overloaded_error\"";

/// Envoy, beside the engine, that knows of none, or whose connect to it failed: nothing of the request was sent. What
/// it had tried before, where it says so, its operator allows it.
const NO_UPSTREAM: &[u8] = b"no healthy upstream";
const UPSTREAM_ERROR: &[u8] = b"upstream connect error";
const NOT_CONNECTED: &[u8] = b"connection failure";

/// How vLLM begins the event of an error. In a token's text the quotes would be escaped.
static ERROR_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"data: {\"error\""));
/// How vLLM and SGLang begin it where they speak as Anthropic,
static MESSAGES_ERROR_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"data: {\"type\":\"error\""));
/// and what says there whose error it is.
const MESSAGES_ERROR_TYPE: &[u8] = b"\"error\":{\"type\":\"";
/// SGLang, there, of whatever went wrong behind the stream's head: a full queue, a prompt that is too long, itself.
const STREAM_FAILED: &[u8] = b"\"message\":\"Stream processing error\"";
/// How SGLang begins the last event of a response that failed, the rest of which it repeats there,
static RESPONSE_FAILED: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(b"data: {\"type\":\"response.failed\""));
/// and what says there why: of all that goes wrong, a prompt that is too long too.
const RESPONSE_ERROR: &[u8] = b"\"error\":{\"code\":\"server_error\",\"message\":\"";
/// vLLM, there, of an error that it wrote for a chat and does not know again: of what it could not read Python prints
/// the end, and there is the code.
const PRINTED_CODE: &[u8] = b"'code': ";
/// In that event: the server's error, which vLLM's front in Rust has in words,
const SERVER_ERROR: [&[u8]; 3] = [b"\"code\": 5", b"\"code\":5", b"\"code\":\"server_error\""];
/// or the client's.
const CLIENT_ERROR: [&[u8]; 2] = [b"\"code\": 4", b"\"code\":4"];
/// And it is not that something failed: SGLang has enough to do, and says so in a stream, whose head it has written.
const BUSY_CODE: [&[u8]; 2] = [b"\"code\": 503", b"\"code\":503"];

/// How SGLang ends a stream of `/generate` for which its queue has no room, or which it gives up: an event as others,
/// without text.
static ABORTED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"finish_reason\":{\"type\":\"abort\""));
/// What it says there; of one that was to be aborted, nothing.
const ABORTED_BY: &[u8] = b"\"status_code\":";

/// What a reply's status and, for some errors, its body say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing, before its last byte has come.
    Neutral,
    /// Too many requests for this engine.
    BackPressure,
    /// The same, and certainly not executed.
    Busy,
    /// The same, by whichever rank behind that port.
    Scales,
    /// It has not stored the response that is asked for; another may have.
    NotHere,
    Fault,
    /// The same, and certainly not executed: it was not reached.
    NotReached,
    /// A 500 for want of an image or the like, which the client had it fetch from a server that does not answer, or
    /// that cannot be read.
    NotFetched,
    /// One that may be so, or is SGLang's and does not say what was wrong.
    MayBeTheClients,
    /// It takes no request any more.
    Drains,
}

impl Verdict {
    /// Whether nothing of the request was executed, so that it may go to another engine.
    pub(super) fn goes_elsewhere(self) -> bool {
        matches!(self, Verdict::Busy | Verdict::Scales | Verdict::NotReached)
    }

    /// Whether it is so for all ranks behind that port.
    pub(super) fn is_of_the_server(self) -> bool {
        matches!(self, Verdict::Scales | Verdict::NotReached)
    }

    /// Whether nothing of its prompt was computed: with this status, the client's doing too.
    pub(super) fn was_refused(self, status: u16) -> bool {
        let its_own = matches!(self, Verdict::Drains | Verdict::NotFetched | Verdict::MayBeTheClients);
        let by_its_words = self.goes_elsewhere() || its_own;
        by_its_words || (400..500).contains(&status)
    }

    /// What comes of a request whose client gets this, where the status says something else.
    pub(super) fn ended(self, status: u16) -> Option<Ended> {
        match self {
            Verdict::BackPressure | Verdict::Busy if status == 400 => Some(Ended::by_status(503, true)),
            Verdict::NotFetched => Some(Ended::Refused),
            _ => None,
        }
    }
}

/// Judges a final reply by status, by whether it names a time to come back, or may in words that cannot be read, by the
/// beginning of an error's body, if it is at hand, and by whether images or the like were asked about: of a server that
/// never answers vLLM says nothing at all, and of others each version something else.
pub(super) fn judge(status: u16, is_for_now: bool, body: &[u8], media: bool) -> Verdict {
    let says = |words: &[u8]| memmem::find(body, words).is_some();
    let drains = || {
        let before = memmem::find(body, DRAINING).and_then(|at| body.get(..at)).unwrap_or_default();
        MESSAGE.iter().any(|message| before.ends_with(message))
    };
    let not_reached = || body.starts_with(NO_UPSTREAM) || body.starts_with(UPSTREAM_ERROR) && says(NOT_CONNECTED);
    match status {
        429 => Verdict::BackPressure,
        400 if !body.starts_with(MEANT_503) => Verdict::Neutral,
        400 if BUSY.into_iter().any(says) => Verdict::Busy,
        400 => Verdict::BackPressure,
        404 if not_here(body).is_some() => Verdict::NotHere,
        503 if BUSY.into_iter().any(says) => Verdict::Busy,
        503 if says(SCALES) => Verdict::Scales,
        503 if not_reached() => Verdict::NotReached,
        503 if is_for_now || GIVEN_UP.into_iter().any(says) || says(OVERLOADED) => Verdict::BackPressure,
        500 if drains() => Verdict::Drains,
        500 if NOT_FETCHED.into_iter().any(says) => Verdict::NotFetched,
        500 if says(MESSAGE_FAILED) => Verdict::MayBeTheClients,
        500 if media && !OWN.into_iter().any(says) => Verdict::MayBeTheClients,
        500 | 502..=504 => Verdict::Fault,
        _ => Verdict::Neutral,
    }
}

/// Whether it is its client whom a reply keeps out, and not everybody.
pub(super) fn keeps_out(status: u16, words: &[u8]) -> bool {
    status == 401 || status == 403 && memmem::find(words, NOT_SERVED).is_none()
}

/// What a reply is judged by, beside its head.
#[derive(Clone, Copy)]
pub(super) struct Judged<'a> {
    pub words: &'a [u8],
    /// Bytes of its body that are here.
    pub body_bytes: usize,
}

/// The words by which a reply is judged.
pub(super) enum Words<'a> {
    /// As far as they count; none of a reply that is judged without.
    Here(Cow<'a, [u8]>),
    /// They are not all there before so many bytes more have come.
    Wanting(usize),
}

impl<'a> Words<'a> {
    /// Of a reply, of whose body so much is there. A hop before the engine may have put it in chunks.
    pub(super) fn of(head: &ResponseHead<'_>, framing: &ReplyFraming, body: &'a [u8], asked: &Asked) -> Words<'a> {
        let none = Words::Here(Cow::Borrowed(b""));
        let counts = match head.status {
            403 | 500 | 503 => true,
            400 => asked.api == Api::Responses,
            404 => asked.shape == Shape::Responses,
            _ => false,
        };
        if !counts || head.fields.is_encoded() {
            return none;
        }
        match framing.body {
            BodyLength::Length(len) => {
                let wanted = len.min(ERROR_BYTES_MAX as u64) as usize;
                match body.get(..wanted) {
                    Some(words) => Words::Here(words.into()),
                    None => Words::Wanting(wanted - body.len()),
                }
            }
            BodyLength::Chunked => in_chunks(body).map_or(Words::Wanting(1), |words| Words::Here(words.into())),
            BodyLength::None | BodyLength::UntilClose => none,
        }
    }
}

/// `None`: more is to come. Where it is malformed, or is framing for the most part, so much as came before that.
fn in_chunks(framed: &[u8]) -> Option<Vec<u8>> {
    let mut rest = framed;
    let (mut body, mut words) = (Body::new(BodyLength::Chunked), Vec::new());
    while !body.done() && words.len() < ERROR_BYTES_MAX {
        if rest.is_empty() {
            if framed.len() < FRAMED_BYTES_MAX {
                return None;
            }
            break;
        }
        let Ok(part) = body.next(rest) else { break };
        words.extend_from_slice(part.data(rest));
        rest = rest.get(part.len..).unwrap_or_default();
    }
    words.truncate(ERROR_BYTES_MAX);
    Some(words)
}

/// Whether an engine that has enough to do may say so here in words that cannot be read.
pub(super) fn hides_words(head: &ResponseHead<'_>, framing: &ReplyFraming) -> bool {
    framing.body == BodyLength::UntilClose || head.fields.is_encoded()
}

/// What an error inside a stream says of its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It failed.
    Failed,
    /// It has enough to do.
    Busy,
    /// One of both, or the client asked for what cannot be done.
    MayBeTheClients,
    /// Nothing: the client did.
    TheClients,
}

/// What an engine's error in a piece of a stream says, and where among these lines of it its event begins. Engines
/// write an event at once, but reads cut what waits together wherever a buffer is full. What is not whole is judged as
/// a `cut` line, once it is, by what was kept of it: one that is longer is not seen, and any counts as data meanwhile.
#[inline]
pub(super) fn tells_of_error(cut: Option<&[u8]>, lines: &[u8], api: Api) -> Option<(usize, Told)> {
    let told = cut.and_then(|line| error_in(line, api)).map(|(_, told)| (0, told));
    told.or_else(|| error_in(lines, api))
}

fn error_in(lines: &[u8], api: Api) -> Option<(usize, Told)> {
    let (begins, told) = match ERROR_EVENT.find(lines) {
        Some(begins) => (begins, told_by_code(line_at(lines, begins)?)?),
        None if api == Api::Messages => {
            let begins = MESSAGES_ERROR_EVENT.find(lines)?;
            (begins, told_by_type(line_at(lines, begins)?))
        }
        None if api == Api::Responses => {
            let begins = RESPONSE_FAILED.find(lines)?;
            (begins, told_by_response(line_at(lines, begins)?)?)
        }
        None if api == Api::Generate => {
            let at = ABORTED.find(lines)?;
            let begins = memrchr(b'\n', lines.get(..at)?).map_or(0, |end| end + 1);
            (begins, told_by_status(line_at(lines, begins)?)?)
        }
        None => return None,
    };
    Some((begins, told))
}

fn line_at(lines: &[u8], begins: usize) -> Option<&[u8]> {
    let event = lines.get(begins..)?;
    event.get(..memchr(b'\n', event)?)
}

fn told_by_code(line: &[u8]) -> Option<Told> {
    let says = |words: &[u8]| memmem::find(line, words).is_some();
    match SERVER_ERROR.into_iter().any(says) {
        true if BUSY_CODE.into_iter().any(says) => Some(Told::Busy),
        true => Some(Told::Failed),
        false => CLIENT_ERROR.into_iter().any(says).then_some(Told::TheClients),
    }
}

fn told_by_status(line: &[u8]) -> Option<Told> {
    let status = line.get(memmem::find(line, ABORTED_BY)? + ABORTED_BY.len()..)?;
    match status {
        [b'5', b'0', b'3', ..] => Some(Told::Busy),
        [b'5', ..] => Some(Told::Failed),
        [b'4', ..] => Some(Told::TheClients),
        _ => None,
    }
}

fn told_by_response(line: &[u8]) -> Option<Told> {
    let why = line.get(memmem::find(line, RESPONSE_ERROR)? + RESPONSE_ERROR.len()..)?;
    // What its client wrote stands behind it.
    let why = why.split(|&byte| byte == b'"').next()?;
    let is_for_load = BUSY.into_iter().chain(GIVEN_UP).any(|words| memmem::find(why, words).is_some());
    Some(if is_for_load { Told::Busy } else { Told::MayBeTheClients })
}

fn told_by_type(line: &[u8]) -> Told {
    let behind = |at: usize| line.get(at + MESSAGES_ERROR_TYPE.len()..);
    let named = memmem::find(line, MESSAGES_ERROR_TYPE).and_then(behind).unwrap_or_default();
    match named.split(|&byte| byte == b'"').next().unwrap_or_default() {
        b"overloaded_error" | b"rate_limit_error" => Told::Busy,
        b"invalid_request_error" | b"not_found_error" | b"request_too_large" => Told::TheClients,
        b"api_error" if memmem::find(line, STREAM_FAILED).is_some() => Told::MayBeTheClients,
        b"internal_error" => told_by_printed_code(line),
        _ => Told::Failed,
    }
}

fn told_by_printed_code(line: &[u8]) -> Told {
    let code = memmem::find(line, PRINTED_CODE).and_then(|at| line.get(at + PRINTED_CODE.len()..));
    match code {
        Some([b'4', ..]) => Told::TheClients,
        Some([b'5', b'0', b'3', ..]) => Told::Busy,
        _ => Told::Failed,
    }
}

impl Exchange {
    /// What came of the body before the bytes at hand, while it was waited for.
    pub(super) fn pass_held(&mut self, mut held: &[u8], cx: &mut Context<'_>) {
        while !self.reply.body.done()
            && !held.is_empty()
            && let Ok(part) = self.reply.body.next(held)
        {
            let data = part.data(held);
            self.listen(data, cx);
            self.count_data(data.len() as u64, cx);
            let passes = match self.reply.form {
                Form::AsItComes => part.raw(held),
                Form::Nothing => b"",
                Form::Chunks | Form::Bare => data,
            };
            cx.actions.bytes(Side::Client, passes);
            self.reframe_reply(part.kind, cx);
            held = held.get(part.len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::Reader;
    use super::*;

    #[test]
    fn replies_are_judged() {
        let busy = br#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please"}}"#;
        let drains = br#"{"error":{"message":"cannot schedule new futures after shutdown"}}"#;
        let not_there = br#"{"error":{"message":"Cannot connect to host x:80 ssl:default [Connection refused]"}}"#;
        let says_no = br#"{"error":{"message":"500, message='cannot schedule new futures', url='http://x/a.png'"}}"#;
        let backlog = br#"{"error":{"message":"The engine has reached its prefill token backlog limit. Please try"}}"#;
        let scaling = br#"{"error":"The model is currently scaling. Please try again later."}"#;
        let gone = br#"{"error":{"message":"Server disconnected","type":"InternalServerError"}}"#;
        let late = br#"{"error":{"message":"Connection timeout to host http://x/a.png"}}"#;
        let not_found = br#"{"error":{"message":"404, message='Not Found', url=URL('http://x/a.png')"}}"#;
        let unread = br#"{"message":"Internal server error: Error while loading data data:image/png;base64,AAAA"}"#;
        let unsaid = br#"{"type":"error","error":{"type":"internal_error","message":"Internal processing error"}}"#;
        let not_connected =
            b"upstream connect error or disconnect/reset before headers. reset reason: connection failure";
        let retried = b"upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote connection failure, transport failure reason: delayed connect error: Connection refused";
        let terminated =
            b"upstream connect error or disconnect/reset before headers. reset reason: connection termination";
        let overloaded = br#"{"type":"error","error":{"type":"overloaded_error","message":"Internal server error"}}"#;
        let said = br#"{"type":"error","error":{"type":"api_error","message":"\"overloaded_error\""}}"#;
        // As SGLang 0.5.23 answers where `/v1/responses` is not streamed.
        let meant_busy = br#"{"error":{"message":"503: The request queue is full.","type":"invalid_request_error","param":null,"code":400}}"#;
        let meant_late =
            br#"{"error":{"message":"503: Request waiting timeout reached.","type":"invalid_request_error","param":null,"code":400}}"#;
        let quotes_busy = br#"{"error":{"message":"no model 503: The request queue is full.","type":"invalid_request_error","code":400}}"#;
        let lacks = br#"{"error":{"message":"Response with id 'resp_1' not found.","type":"invalid_request_error","param":"response_id","code":404}}"#;
        let no_model =
            br#"{"error":{"message":"The model `Response with id 'resp_1' not found.` does not exist.","code":404}}"#;
        let quoted = br#"{"error":{"message":"upstream connect error: connection failure"}}"#;
        for (status, names_a_time, body, expected) in [
            (200, false, &drains[..], Verdict::Neutral),
            (400, false, b"", Verdict::Neutral),
            (404, false, drains, Verdict::Neutral),
            (404, false, no_model, Verdict::Neutral),
            (404, false, lacks, Verdict::NotHere),
            (400, false, lacks, Verdict::Neutral),
            (400, false, meant_busy, Verdict::Busy),
            (400, false, meant_late, Verdict::BackPressure),
            (400, false, quotes_busy, Verdict::Neutral),
            (400, true, busy, Verdict::Neutral),
            (429, false, b"", Verdict::BackPressure),
            (500, false, b"", Verdict::Fault),
            (500, true, busy, Verdict::Fault),
            (500, false, drains, Verdict::Drains),
            (500, false, not_there, Verdict::NotFetched),
            (500, false, says_no, Verdict::NotFetched),
            (500, false, unsaid, Verdict::MayBeTheClients),
            (500, false, gone, Verdict::NotFetched),
            (500, false, late, Verdict::NotFetched),
            (500, false, not_found, Verdict::NotFetched),
            (500, false, unread, Verdict::NotFetched),
            (501, false, b"", Verdict::Neutral),
            (502, false, b"", Verdict::Fault),
            (503, false, b"", Verdict::Fault),
            (503, true, b"", Verdict::BackPressure),
            (
                503,
                false,
                br#"{"message":"The request is aborted by a higher priority request."}"#,
                Verdict::BackPressure,
            ),
            (
                503,
                false,
                br#"{"message":"Retracted under decode memory pressure without a KV backup. Retry later."}"#,
                Verdict::BackPressure,
            ),
            (503, false, br#"{"message":"Request waiting timeout reached."}"#, Verdict::BackPressure),
            (503, false, br#"{"message":"Request running timeout reached."}"#, Verdict::BackPressure),
            (503, false, br#"{"message":"Using priority is disabled for this server."}"#, Verdict::BackPressure),
            (503, false, busy, Verdict::Busy),
            (503, false, scaling, Verdict::Scales),
            (503, false, backlog, Verdict::Busy),
            (503, false, overloaded, Verdict::BackPressure),
            (503, false, said, Verdict::Fault),
            (500, false, overloaded, Verdict::Fault),
            (503, false, drains, Verdict::Fault),
            (503, false, b"no healthy upstream", Verdict::NotReached),
            (503, true, b"no healthy upstream", Verdict::NotReached),
            (503, false, not_connected, Verdict::NotReached),
            (503, false, retried, Verdict::NotReached),
            (503, false, terminated, Verdict::Fault),
            (503, false, quoted, Verdict::Fault),
            (504, false, not_connected, Verdict::Fault),
            (504, false, b"", Verdict::Fault),
        ] {
            assert_eq!(judge(status, names_a_time, body, false), expected, "{status} {}", body.escape_ascii());
        }
    }

    /// A fetch that timed out has an empty message, and vLLM of old has no words for any.
    #[test]
    fn where_there_were_images_an_engine_fails_only_if_it_says_so() {
        let unsaid = br#"{"error":{"message":"","type":"InternalServerError","param":null,"code":500}}"#;
        let own = br#"{"error":{"message":"EngineCore encountered an issue. See stack trace","code":500}}"#;
        let newer = br#"{"error":{"message":"The server had an error while processing your request.","type":"InternalServerError","param":null,"code":500}}"#;
        let drains = br#"{"error":{"message":"cannot schedule new futures after shutdown"}}"#;
        for (status, body, expected) in [
            (500, &newer[..], Verdict::Fault),
            (500, unsaid, Verdict::MayBeTheClients),
            (500, b"Internal Server Error", Verdict::MayBeTheClients),
            (500, own, Verdict::Fault),
            (500, drains, Verdict::Drains),
            (502, b"", Verdict::Fault),
            (503, unsaid, Verdict::Fault),
        ] {
            assert_eq!(judge(status, false, body, true), expected, "{status} {}", body.escape_ascii());
        }
        assert_eq!(judge(500, false, unsaid, false), Verdict::Fault);
    }

    /// As SGLang writes it, whose head has gone out before.
    #[test]
    fn a_generation_that_is_given_up_for_a_reason_is_no_answer() {
        let told = |lines: &str| error_in(lines.as_bytes(), Api::Generate);
        let token = "data: {\"text\":\"a\",\"meta_info\":{\"finish_reason\":null}}\n\n";
        for (status, expected) in
            [("503", Some(Told::Busy)), ("500", Some(Told::Failed)), ("400", Some(Told::TheClients)), ("null", None)]
        {
            let reason = format!(r#"{{"type":"abort","message":"The queue","status_code":{status},"err_type":null}}"#);
            let event = format!("data: {{\"text\":\"\",\"meta_info\":{{\"finish_reason\":{reason}}}}}\n\n");
            assert_eq!(told(&event), expected.map(|told| (0, told)), "{event}");
            let behind = format!("{token}{event}data: [DONE]\n\n");
            assert_eq!(told(&behind), expected.map(|told| (token.len(), told)), "{behind}");
            assert_eq!(error_in(event.as_bytes(), Api::Chat), None, "{event}");
            let said = format!("data: {{\"text\":\"{}\"}}\n\n", reason.replace('"', "\\\""));
            assert_eq!(told(&said), None, "{said}");
        }
    }

    /// As SGLang 0.5.23 ends a stream of `/v1/responses`: what was asked stands in it, too.
    #[test]
    fn a_response_that_failed_for_load_is_told_from_others() {
        let event = |why: &str| {
            format!(
                "data: {{\"type\":\"response.failed\",\"response\":{{\"id\":\"resp_1\",\"object\":\"response\",\"output\":[],\
                 \"status\":\"failed\",\"usage\":null,\"tools\":[],\"error\":{{\"code\":\"server_error\",\"message\":\"{why}\"}},\
                 \"instructions\":\"The request queue is full.\"}},\"sequence_number\":2}}\n\n"
            )
        };
        let told = |lines: &str| error_in(lines.as_bytes(), Api::Responses);
        for (why, expected) in [
            ("The request queue is full.", Told::Busy),
            ("503: The request queue is full.", Told::Busy),
            ("Request waiting timeout reached.", Told::Busy),
            ("Generation aborted", Told::MayBeTheClients),
            ("The input (70000 tokens) is longer than the model's context length", Told::MayBeTheClients),
        ] {
            assert_eq!(told(&event(why)), Some((0, expected)), "{why}");
            let begun = "event: response.failed\n";
            assert_eq!(told(&format!("{begun}{}", event(why))), Some((begun.len(), expected)), "{why}");
            assert_eq!(error_in(event(why).as_bytes(), Api::Chat), None, "{why}");
        }
        assert_eq!(told("data: {\"type\":\"response.failed\",\"response\":{\"error\":null}}\n\n"), None);
        let said = event("The request queue is full.").replace('"', "\\\"");
        assert_eq!(told(&format!("data: {{\"delta\":\"{}\"}}\n\n", said.trim())), None);
    }

    #[test]
    fn an_engines_error_is_told_from_a_clients_and_from_text() {
        for (piece, expected) in [
            (
                &br#"data: {"error": {"message": "EngineCore", "type": "InternalServerError", "code": 500}}"#[..],
                Some((0, Told::Failed)),
            ),
            (
                br#"data: {"error": {"message": "The request queue is full.", "param": null, "code": 503}}"#,
                Some((0, Told::Busy)),
            ),
            (b"data: {\"id\":1}\n\ndata: {\"error\":{\"code\":503}}\n\ndata: [DONE]\n\n", Some((16, Told::Busy))),
            (b"data: {\"error\":{\"code\":400}}\n\ndata: {\"code\":500}\n\n", Some((0, Told::TheClients))),
            (
                br#"data: {"error":{"message":"the engine is gone","type":"server_error","code":"server_error"}}"#,
                Some((0, Told::Failed)),
            ),
            (b"data: {\"error\":{\"message\":\"no code\"}}\n\n", None),
            (br#"data: {"text":"data: {\"error\": {\"code\": 500}}"}"#, None),
            (b"data: {\"id\":1}\n\n", None),
        ] {
            for api in [Api::Chat, Api::Messages] {
                let lines = [piece, b"\n\n"].concat();
                assert_eq!(error_in(&lines, api), expected, "{}", piece.escape_ascii());
            }
        }
        // As vLLM and SGLang write it in streams of messages, and others who speak as Anthropic.
        for (error, expected) in [
            (r#"{"type":"internal_error","message":"EngineCore"}"#, Told::Failed),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'Th...am': None, 'code': 400}}, in"}"#,
                Told::TheClients,
            ),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'Th...am': None, 'code': 503}}, in"}"#,
                Told::Busy,
            ),
            (
                r#"{"type":"internal_error","message":"2 errors … [input_value={'error': {'message': 'En...am': None, 'code': 500}}, in"}"#,
                Told::Failed,
            ),
            (r#"{"type":"api_error","message":"The engine broke off"}"#, Told::Failed),
            (r#"{"type":"api_error","message":"Stream processing error"}"#, Told::MayBeTheClients),
            (r#"{"type":"overloaded_error","message":"Overloaded"}"#, Told::Busy),
            (r#"{"type":"rate_limit_error","message":""}"#, Told::Busy),
            (r#"{"type":"invalid_request_error","message":"overloaded_error"}"#, Told::TheClients),
            ("null", Told::Failed),
        ] {
            let piece = format!("event: error\ndata: {{\"type\":\"error\",\"error\":{error}}}\n\n");
            assert_eq!(error_in(piece.as_bytes(), Api::Messages), Some((13, expected)), "{error}");
            assert_eq!(error_in(piece.as_bytes(), Api::Chat), None, "{error}: there it may be anything");
            let said = piece.replace('"', "\\\"");
            let text = format!("event: content_block_delta\ndata: {{\"delta\":{{\"text\":\"{said}\"}}}}\n\n");
            assert_eq!(error_in(text.as_bytes(), Api::Messages), None, "{error}");
        }
    }

    /// What waits together behind tokens is read in as many pieces as there are buffers for it.
    #[test]
    fn an_engines_error_is_told_once_wherever_reads_cut_it() {
        let named = |data: &str| format!("event: error\ndata: {data}\n\n");
        let plain = |data: &str| format!("data: {data}\n\n");
        let aborted = r#"{"text":"a","meta_info":{"finish_reason":{"type":"abort","message":"","status_code":503}}}"#;
        let token = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "a".repeat(40));
        let long = token.replacen("aa", &"a".repeat(1_100), 1);
        for (api, event, expected) in [
            (
                Api::Chat,
                plain(r#"{"error": {"message": "EngineCore", "param": null, "code": 500}}"#),
                Some(Told::Failed),
            ),
            (Api::Chat, plain(r#"{"error":{"message":"is full","code":503}}"#).replace('\n', "\r\n"), Some(Told::Busy)),
            (Api::Chat, plain(r#"{"error":{"code":400,"message":"\"code\":500"}}"#), Some(Told::TheClients)),
            (
                Api::Messages,
                named(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
                Some(Told::Busy),
            ),
            (
                Api::Messages,
                named(r#"{"type":"error","error":{"type":"invalid_request_error","message":""}}"#),
                Some(Told::TheClients),
            ),
            (Api::Generate, plain(aborted), Some(Told::Busy)),
            (Api::Generate, plain(&aborted.replace("503", "null")), None),
        ] {
            for before in [&token, &long] {
                let stream = format!("{before}{token}{event}data: [DONE]\n\n");
                let told = |cuts: &[usize]| {
                    let (mut reader, mut all, mut from) = (Reader::default(), Vec::new(), 0);
                    for &to in cuts.iter().chain([&stream.len()]) {
                        let piece = &stream.as_bytes()[from..to];
                        let lines = reader.join(piece);
                        let error = tells_of_error(reader.joined(), lines, api);
                        assert!(error.is_none_or(|(begins, _)| begins <= lines.len()), "{event} {cuts:?}");
                        all.extend(error.map(|(_, told)| told));
                        assert_eq!(reader.stream(lines, api), None);
                        from = to;
                    }
                    all
                };
                let expected: Vec<_> = expected.into_iter().collect();
                for cut in 0..=stream.len() {
                    assert_eq!(told(&[cut]), expected, "{event} at {cut}");
                    assert_eq!(told(&[cut, stream.len().min(cut + 30)]), expected, "{event} at {cut} and 30 on");
                }
                for size in [1, 7, 64, 1_000] {
                    let cuts: Vec<_> = (0..stream.len()).step_by(size).collect();
                    assert_eq!(told(&cuts), expected, "{event} by {size}");
                }
            }
        }
    }
}
