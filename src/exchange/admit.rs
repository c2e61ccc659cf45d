//! From the bytes of a request head to an exchange, an answer of our own, or a refusal.

use std::net::IpAddr;

use xxhash_rust::xxh3::xxh3_64;
use xxhash_rust::xxh64::xxh64;

use super::event::{Action, Context, Ending, Peer, Side};
use super::{Asked, Exchange, Leg, Passing, Phase, Waiting, tap};
use crate::counters::stats::Event as Count;
use crate::http::{
    self, Added, Body, BodyLength, HeadLimits, Refusal, RequestFraming, RequestHead, Status, Version, reply, rewrite,
};
use crate::limits::Limits;
use crate::policy::{Avoid, Reason};
use crate::scan::{Api, Needs};

/// Configuration of the data plane that holds for the life of the process.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Bounds and deadlines.
    pub limits: Limits,
    /// Which paths reach an engine.
    pub paths: Paths,
    /// Peers that may see a choice (`x-warmfront-explain: 1`): to others it would show topology and,
    /// by what is cached, other tenants' prompts.
    pub explain_from: Vec<Network>,
    /// A FIN after a complete request means that the client left.
    pub half_close_leaves: bool,
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address in it.
    pub address: IpAddr,
    /// Leading bits that count.
    pub prefix_bits: u8,
}

impl Network {
    /// Whether `ip` lies in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let common = |a: u128, b: u128, width: u32| {
            let bits = u32::from(self.prefix_bits).min(width);
            bits == 0 || (a ^ b) << (128 - width) >> (128 - bits) == 0
        };
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => common(u32::from(a).into(), u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => common(a.into(), b.into(), 128),
            _ => false,
        }
    }
}

/// The paths that reach an engine; others are answered 404, lest an engine's `/pause`,
/// `/reset_prefix_cache`, `/update_weights` or `/metrics` become public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Whole paths, or beginnings that end in `*`.
    allowed: Vec<Box<[u8]>>,
}

/// Inference and read-only paths of vLLM and SGLang.
pub const DEFAULT_PATHS: &[&str] = &[
    "/v1/*", "/v2/rerank", "/tokenize", "/detokenize", "/rerank", "/score", "/pooling", "/classify", "/generate",
    "/version", "/ping", "/get_model_info", "/inference/v1/generate",
];
/// Below `/v1/`, yet changes the engine: only a configured path of its own opens it.
const GUARDED: &[&[u8]] = &[b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"];

impl Default for Paths {
    fn default() -> Self {
        Paths::new(std::iter::empty())
    }
}

impl Paths {
    /// The default paths and `more`.
    pub fn new<'a>(more: impl Iterator<Item = &'a str>) -> Paths {
        let all = DEFAULT_PATHS.iter().copied().chain(more);
        Paths { allowed: all.map(|path| path.as_bytes().into()).collect() }
    }

    /// Whether `path` (without query) reaches an engine. Escapes and dot segments are not interpreted,
    /// and therefore not let through a wildcard: the engine would interpret them.
    pub fn allow(&self, path: &[u8]) -> bool {
        if self.allowed.iter().any(|allowed| &**allowed == path) {
            return true;
        }
        let plain = !path.contains(&b'%') && !path.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
        let guarded = GUARDED.iter().any(|guarded| path.starts_with(guarded));
        let wildcards = self.allowed.iter().filter_map(|allowed| allowed.strip_suffix(b"*"));
        plain && !guarded && wildcards.into_iter().any(|beginning| path.starts_with(beginning))
    }
}

/// What came of a request head.
pub enum Opened {
    /// It is not complete yet.
    Partial,
    /// Answered by us; the head took so many bytes. Actions hold reply and end.
    Answered(usize),
    /// An exchange began; the head took so many bytes.
    Exchange(usize, Box<Exchange>),
}

/// Reads a request head from the beginning of `bytes`.
pub fn open(bytes: &[u8], peer: Peer, cx: &mut Context<'_>) -> Opened {
    let limits = &cx.rules.limits;
    let head_limits = HeadLimits { head_bytes_max: limits.head_bytes_max, head_fields_max: limits.head_fields_max };
    let mut fields = std::mem::take(&mut cx.lender.fields);
    let opened = match http::parse_request(bytes, &mut fields, &head_limits) {
        Ok(Status::Partial) => Opened::Partial,
        Ok(Status::Complete(head)) => match http::framing::request(&head) {
            Ok(framing) => admit(&head, framing, bytes.len() > head.len, peer, cx),
            Err(refusal) => refuse(&refusal, bytes.len(), cx),
        },
        Err(refusal) => refuse(&refusal, bytes.len(), cx),
    };
    cx.lender.fields = fields;
    opened
}

/// Whatever follows a refused head cannot be told apart from it: answer and close.
fn refuse(refusal: &Refusal, consumed: usize, cx: &mut Context<'_>) -> Opened {
    cx.stats.refused(refusal.cause);
    cx.actions.compose(Side::Client, |out| reply::write_refusal(out, refusal, None, true, false));
    cx.actions.push(Action::End(Ending::Linger));
    Opened::Answered(consumed)
}

fn admit(head: &RequestHead<'_>, framing: RequestFraming, body_here: bool, peer: Peer, cx: &mut Context<'_>) -> Opened {
    let path = head.path();
    let id = request_id(head, cx);
    if let Some(answer) = own_answer(head, &framing, path, cx) {
        return answer_ourselves(head, &framing, &answer, &id, cx);
    }
    if !cx.rules.paths.allow(path) {
        let refusal = Refusal::not_found(path);
        return answer_ourselves(head, &framing, &Answer::Refusal(refusal), &id, cx);
    }
    if matches!(framing.body, BodyLength::Length(len) if len > cx.rules.limits.body_bytes_max) {
        return answer_ourselves(head, &framing, &Answer::Refusal(Refusal::body_too_large()), &id, cx);
    }
    if framing.expect_continue && framing.body != BodyLength::None && !body_here {
        cx.actions.compose(Side::Client, reply::write_continue);
    }
    let exchange = Exchange::new(head, framing, id, peer, cx);
    Opened::Exchange(head.len, Box::new(exchange))
}

/// The client's request id if it can be used, else one of ours.
fn request_id(head: &RequestHead<'_>, cx: &mut Context<'_>) -> Box<[u8]> {
    match head.get("x-request-id").filter(|id| rewrite::usable_request_id(id)) {
        Some(id) => id.into(),
        None => {
            let number = u128::from(cx.lender.random.next()) << 64 | u128::from(cx.lender.random.next());
            const HEX: &[u8; 16] = b"0123456789abcdef";
            (0..32).map(|nibble| HEX[(number >> (124 - 4 * nibble) & 15) as usize]).collect()
        }
    }
}

/// An answer that needs no engine.
enum Answer {
    Json(bytes::Bytes),
    Health(bool),
    Refusal(Refusal),
}

fn own_answer(head: &RequestHead<'_>, framing: &RequestFraming, path: &[u8], cx: &Context<'_>) -> Option<Answer> {
    if head.method != b"GET" || framing.body != BodyLength::None {
        return None;
    }
    if path == b"/health" {
        let mut endpoints = cx.snapshot.endpoints.iter().flatten();
        return Some(Answer::Health(endpoints.any(|endpoint| endpoint.health.takes_requests())));
    }
    let rest = path.strip_prefix(b"/v1/models")?;
    let models = &cx.snapshot.models_answer;
    let list = models.list.as_ref()?;
    let key = head.get("authorization").map(xxh3_64);
    if !models.authorizations.is_empty() && !key.is_some_and(|key| models.authorizations.contains(&key)) {
        return Some(Answer::Refusal(Refusal::unauthorized()));
    }
    match rest {
        b"" => Some(Answer::Json(list.clone())),
        [b'/', id @ ..] => {
            let id = http::percent_decode(id);
            Some(models.cards.get(&*id).map_or_else(
                || Answer::Refusal(Refusal::unknown_model(&id)),
                |card| Answer::Json(card.clone()),
            ))
        }
        _ => None,
    }
}

fn answer_ourselves(
    head: &RequestHead<'_>,
    framing: &RequestFraming,
    answer: &Answer,
    id: &[u8],
    cx: &mut Context<'_>,
) -> Opened {
    // What follows an unread body cannot be found, so such a connection ends with the answer.
    let close = framing.body != BodyLength::None || !framing.keep_alive || cx.draining;
    let head_only = framing.head_method;
    cx.actions.compose(Side::Client, |out| match answer {
        Answer::Json(json) => reply::write_json(out, 200, json, Some(id), close, head_only),
        Answer::Health(true) => reply::write_json(out, 200, b"", Some(id), close, head_only),
        Answer::Health(false) => reply::write_refusal(out, &Refusal::no_endpoint(), Some(id), close, head_only),
        Answer::Refusal(refusal) => reply::write_refusal(out, refusal, Some(id), close, head_only),
    });
    match answer {
        Answer::Refusal(refusal) => cx.stats.refused(refusal.cause),
        Answer::Json(_) | Answer::Health(_) => cx.stats.count(Count::AnsweredOurselves),
    }
    cx.actions.push(Action::End(if close { Ending::Linger } else { Ending::KeepAlive }));
    Opened::Answered(head.len)
}

impl Exchange {
    fn new(head: &RequestHead<'_>, framing: RequestFraming, id: Box<[u8]>, peer: Peer, cx: &mut Context<'_>) -> Exchange {
        let api = Api::of_path(head.path());
        let needs = cx.snapshot.needs;
        let headers = if needs.contains(Needs::SESSION) { &*cx.snapshot.session_headers } else { &[] };
        let session = headers.iter().find_map(|name| head.get(name)).map(|value| xxh64(value, 0));
        let asks_explain = head.get("x-warmfront-explain") == Some(b"1");
        let explain = asks_explain && cx.rules.explain_from.iter().any(|network| network.contains(peer.ip));
        let mut out = Vec::with_capacity(head.len + 192);
        let sent_id = head.get("x-request-id") == Some(&*id);
        let added = Added { request_id: (!sent_id).then_some(&*id), client_ip: peer.ip, proto: "http" };
        rewrite::request(head, &framing, &added, &mut out);
        let encoded = head.get("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"));
        let body = Body::of(framing.body);
        let asked = Asked { version: head.version, api, request_id: id, explain, session, encoded, framing };
        Exchange {
            phase: Phase::ReadBody,
            asked: Box::new(asked),
            body,
            body_bytes: 0,
            upload_since: cx.now,
            upload_bytes: 0,
            head: out,
            held: Vec::new(),
            held_whole: true,
            pushed: 0,
            scan: None,
            scan_nanos: 0,
            pool: None,
            reason: Reason::default(),
            key: None,
            tried: Avoid::default(),
            connects: 0,
            retried: false,
            leg: None::<Leg>,
            explain: None,
            reply: Body::of(BodyLength::None),
            reply_head: Vec::new(),
            passing: Passing::Same,
            status: 0,
            interim: 0,
            reply_started: false,
            keep_upstream: false,
            event_stream: false,
            tap: tap::FirstData::default(),
            client_full: false,
            upstream_full: false,
            client_paused: false,
            client_ended: false,
            upstream_ended: false,
            started: cx.now,
            sent: cx.now,
            last_reply: cx.now,
            deadline: Some((cx.now + cx.rules.limits.body_stall_timeout_ms * 1_000, Waiting::Body)),
        }
    }

    pub(super) fn is_http10(&self) -> bool {
        self.asked.version == Version::Http10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_controls_are_not_public() {
        let paths = Paths::default();
        for path in ["/v1/chat/completions", "/v1/models/a", "/tokenize", "/generate", "/v1/responses/r/cancel"] {
            assert!(paths.allow(path.as_bytes()), "{path}");
        }
        for path in [
            "/", "/pause", "/metrics", "/reset_prefix_cache", "/update_weights", "/v1", "/v1/../pause", "/v1//pause",
            "/v1/%6coad_lora_adapter", "/v1/load_lora_adapter", "/tokenizer", "/v1/./x", "/V1/chat",
        ] {
            assert!(!paths.allow(path.as_bytes()), "{path}");
        }
        let more = Paths::new(["/metrics", "/v1/load_lora_adapter", "/admin/*"].into_iter());
        for path in ["/metrics", "/v1/load_lora_adapter", "/admin/x"] {
            assert!(more.allow(path.as_bytes()), "{path}");
        }
        assert!(!more.allow(b"/admin/../pause"));
    }

    #[test]
    fn networks_contain_their_addresses() {
        let network = |text: &str, prefix_bits| Network { address: text.parse().unwrap(), prefix_bits };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(network("127.0.0.0", 8).contains(ip("127.9.9.9")));
        assert!(network("127.0.0.0", 8).contains(ip("::ffff:127.0.0.1")));
        assert!(!network("127.0.0.0", 8).contains(ip("128.0.0.1")));
        assert!(network("0.0.0.0", 0).contains(ip("8.8.8.8")));
        assert!(network("10.1.2.3", 32).contains(ip("10.1.2.3")) && !network("10.1.2.3", 32).contains(ip("10.1.2.2")));
        assert!(network("fd00::", 8).contains(ip("fd12::1")) && !network("fd00::", 8).contains(ip("fe80::1")));
        assert!(!network("::1", 128).contains(ip("127.0.0.1")));
    }
}
