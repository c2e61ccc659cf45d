//! From the bytes of a request head to an exchange, an answer of our own, or a refusal.

use std::ops::Deref;

use super::cors::Origins;
use super::draft::{self, Came, Draft, Heard};
use super::event::{Action, Context, Ending, Micros, Peer, Side};
use super::own::{answer_ourselves, own_answer};
use super::paths::Paths;
use super::queue::{Asker, QueueRules};
use super::ranked::{self, Naming};
use super::refusals;
use super::reply::Reply;
use super::upload::Upload;
use super::{Asked, End, Exchange, Hashed, Leg, Phase, outcome, stored, stranger};
use crate::config::{Access, Cidr, Config, HalfClose};
use crate::counters::{Realm, Telling};
use crate::http::rewrite;
use crate::http::{
    self, Added, BodyLength, Known, RequestFraming, RequestHead, Shape, Status, ToClient, Version, reply,
};
use crate::limits::Limits;
use crate::policy::Avoid;
use crate::prefix;
use crate::scan::{self, Api, Needs};

/// Configuration of the data plane.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Bounds and deadlines.
    pub limits: Limits,
    /// How often streams tell that they go on, by their deadlines.
    pub telling: Telling,
    /// Which paths reach an engine.
    pub paths: Paths,
    /// Pages that may read answers of the front's own.
    pub origins: Origins,
    /// Peers that may see a choice (`x-warmfront-explain: 1`): to others it would show topology and,
    /// by what is cached, other tenants' prompts.
    pub explain_from: Vec<Cidr>,
    /// A FIN after a complete request means that the client left.
    pub half_close_leaves: bool,
    /// A stream that its engine breaks off ends with an event that says so.
    pub stream_error_event: bool,
    /// Whether each request gets a line in the access log.
    pub access_log: bool,
    /// Whether that line has the prompt's hashes, if the policy makes them anyway.
    pub access_chain: bool,
    /// How many of the last requests have receipts.
    pub receipts: usize,
    /// How requests wait for room.
    pub queue: QueueRules,
}

impl From<&Config> for Rules {
    fn from(config: &Config) -> Rules {
        Rules {
            limits: config.limits.clone(),
            telling: Telling::of(&config.limits),
            paths: Paths::new(config.serve.paths.iter().map(String::as_str)),
            origins: Origins::new(config.serve.allowed_origins.iter().map(String::as_str)),
            explain_from: config.serve.explain_from.clone(),
            stream_error_event: config.serve.stream_error_event,
            half_close_leaves: config.serve.half_close == HalfClose::Leaves,
            access_log: config.log.access != Access::Off,
            access_chain: config.logs_chains(),
            receipts: config.log.receipts,
            queue: QueueRules::from(config),
        }
    }
}

/// How much longer the rewritten head may be than the one that came.
const ADDED_BYTES: usize = 192;
/// A body no longer than this shares the first buffer with its head.
const SMALL_BODY: u64 = 16 << 10;

/// What came of a request head.
pub enum Opened {
    /// It is not complete yet.
    Partial,
    /// Answered by us; the head took so many bytes. Actions hold reply and end.
    Answered(usize),
    /// An exchange began; the head took so many bytes.
    Exchange(usize, Box<Exchange>),
}

/// Reads a request head from the beginning of `bytes`, the first of which came at `since`.
pub fn open(bytes: &[u8], peer: Peer, since: Micros, cx: &mut Context<'_>) -> Opened {
    cx.may_break();
    let came = Came { peer, since };
    let limits = http::HeadLimits::from(&cx.rules.limits);
    let mut fields = std::mem::take(&mut cx.lender.fields);
    let opened = match http::parse_request(bytes, &mut fields, &limits) {
        Ok(Status::Partial) => Opened::Partial,
        Ok(Status::Complete(head)) => match http::framing::request(&head) {
            Ok(framing) => admit(&head, framing, bytes.len() > head.len, came, cx),
            Err(refusal) => {
                let id = rewrite::request_id(&head).unwrap_or_default();
                let heard = Heard::of(&head, Api::of_path(head.path), id);
                refuse(refusal, bytes, Some(&head), heard, came, cx)
            }
        },
        Err(refusal) => refuse(refusal, bytes, None, Heard::of_flawed(bytes), came, cx),
    };
    cx.lender.fields = fields;
    opened
}

/// Refuses a head of which only half came in time, its first byte at `since`.
pub fn refuse_slow_head(half: &[u8], peer: Peer, since: Micros, cx: &mut Context<'_>) {
    refuse(refusals::SLOW_HEAD, half, None, Heard::of_flawed(half), Came { peer, since }, cx);
}

/// Refuses half a head because others hold all the memory that there is for such.
pub fn refuse_half_head(half: &[u8], peer: Peer, since: Micros, cx: &mut Context<'_>) {
    refuse(refusals::HEAD_OVER_BUDGET, half, None, Heard::of_flawed(half), Came { peer, since }, cx);
}

/// Records a request whose head a fault of ours kept from being read or refused: nothing is known of what it asked.
pub fn tell_fault(peer: Peer, since: Micros, cx: &mut Context<'_>) {
    draft::answered(Heard::of_flawed(b""), Came { peer, since }, 0, End::Fault, cx);
}

/// Whatever follows a refused head cannot be told apart from it: answer and close. All of `bytes` are taken.
fn refuse(
    refusal: http::Refusal,
    bytes: &[u8],
    head: Option<&RequestHead<'_>>,
    heard: Heard<'_>,
    came: Came,
    cx: &mut Context<'_>,
) -> Opened {
    cx.may_break();
    let (method, target) = http::method_and_target(bytes);
    let head_request = method == b"HEAD";
    let to = ToClient { version: Version::Http11, keep_alive: false, head_request, request_id: None, explain: None };
    let cors = match head {
        Some(head) => cx.rules.origins.judge(&head.fields),
        None => cx.rules.origins.unread(),
    };
    let shape = Shape::of_path(head.map_or(target, |head| head.path));
    refusals::answer(&refusal.into(), &to, (shape, &cors), cx);
    cx.actions.push(Action::End(Ending::Linger));
    // Last, behind all that may panic: a request already in the access log must not get a second line as a fault.
    draft::answered(heard, came, refusal.status, End::Refused(refusal.cause), cx);
    Opened::Answered(bytes.len())
}

fn admit(head: &RequestHead<'_>, framing: RequestFraming, body_here: bool, came: Came, cx: &mut Context<'_>) -> Opened {
    let id = request_id(head, cx);
    let api = Api::of_path(head.path);
    if let Some(answer) = own_answer(head, api, &framing, cx) {
        let (status, end) = answer.outcome();
        let opened = answer_ourselves(head, &framing, &answer, &id, cx);
        draft::answered(Heard::of(head, api, &id), came, status, end, cx);
        return opened;
    }
    if framing.expect_continue && framing.body != BodyLength::None && !body_here {
        cx.actions.bytes(Side::Client, reply::CONTINUE);
    }
    let asked = Asked::of(head, framing, api, id, came.peer, cx);
    cx.lender.retries.earn(cx.rules.limits.retry_percent);
    let exchange = Exchange::new(head, asked, came, cx);
    cx.may_break();
    Opened::Exchange(head.len, cx.lender.boxed(exchange))
}

/// The id of a request, here, at its engine and for its client.
#[derive(Debug)]
pub(super) enum RequestId {
    /// The client's.
    Given(Box<[u8]>),
    /// Made here. The usual case, so kept in place, without an allocation.
    Made([u8; 32]),
}

impl Deref for RequestId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            RequestId::Given(id) => id,
            RequestId::Made(id) => id,
        }
    }
}

/// The client's request id if it can be used, else one of ours.
fn request_id(head: &RequestHead<'_>, cx: &mut Context<'_>) -> RequestId {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    rewrite::request_id(head).map(|id| RequestId::Given(id.into())).unwrap_or_else(|| {
        let halves = cx.lender.ids.halves().map(u64::to_be_bytes);
        let mut id = [0; 32];
        for (digits, byte) in id.as_chunks_mut::<2>().0.iter_mut().zip(halves.as_flattened()) {
            *digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
        }
        RequestId::Made(id)
    })
}

/// The head as the engine gets it, in a buffer that a short body may follow in, behind room to name a rank where that
/// may be asked for.
fn rewritten(
    head: &RequestHead<'_>,
    framing: &RequestFraming,
    id: &[u8],
    peer: Peer,
    cx: &mut Context<'_>,
) -> (Vec<u8>, Naming) {
    let body_at_hand = match framing.body {
        BodyLength::Length(len) if len <= SMALL_BODY => len as usize,
        _ => 0,
    };
    let room = if cx.snapshot.any_ranked { ranked::ROOM } else { 0 };
    let mut out = cx.lender.short_buffer(room + head.len + ADDED_BYTES + body_at_hand);
    out.extend_from_slice(&[0; ranked::ROOM][..room]);
    let made_id = rewrite::request_id(head).is_none().then_some(id);
    let priority = cx.rules.queue.believes(peer.ip);
    let added = Added { request_id: made_id, client_ip: peer.ip, proto: "http", priority };
    rewrite::request(head, framing, &added, &mut out);
    (out, Naming::behind(room, head.fields.has(Known::XDataParallelRank)))
}

/// The session that a header names, where that is asked for.
fn named_session(head: &RequestHead<'_>, cx: &Context<'_>) -> Option<u64> {
    let headers = if cx.snapshot.needs.contains(Needs::SESSION) { &*cx.snapshot.session_headers } else { &[] };
    let named = headers.iter().find_map(|name| head.fields.get(name).filter(|value| !value.is_empty()));
    named.map(prefix::text_hash)
}

impl Asked {
    fn of(
        head: &RequestHead<'_>,
        framing: RequestFraming,
        api: Api,
        request_id: RequestId,
        peer: Peer,
        cx: &Context<'_>,
    ) -> Asked {
        let asks_explain = head.fields.known(Known::XWarmfrontExplain).next() == Some(b"1");
        // If it came through a proxy, the peer is not the one who asks.
        let is_direct = || !head.fields.has(Known::XForwardedFor) && head.fields.get("forwarded").is_none();
        let believed = || cx.rules.explain_from.iter().any(|network| network.contains(peer.ip));
        let offers = framing.upgrade.then(|| http::framing::offered_protocol(&head.fields)).flatten();
        let proves = outcome::proves(head.method, head.path, api);
        Asked {
            framing,
            offers: offers.map(Box::from),
            version: head.version,
            api,
            request_id,
            explain: asks_explain && believed() && is_direct(),
            credential: stranger::credential(head, cx),
            realm: Realm::of_path(head.path),
            proves,
            proves_key: proves,
            encoded: head.fields.is_encoded(),
            stream: false,
            media: false,
            shape: Shape::of_path(head.path),
            cors: cx.rules.origins.judge(&head.fields),
            asker: Asker::of(head, peer.ip, &cx.rules.queue),
        }
    }
}

impl Exchange {
    fn new(head: &RequestHead<'_>, asked: Asked, came: Came, cx: &mut Context<'_>) -> Exchange {
        let (out, naming) = rewritten(head, &asked.framing, &asked.request_id, came.peer, cx);
        let mut exchange = Exchange {
            leg: None::<Leg>,
            queued: None,
            deadline: None,
            pool: None,
            only: None,
            phase: Phase::ReadBody,
            client_full: false,
            client_paused: false,
            client_ended: false,
            upstream_ended: false,
            keep_client: false,
            keep_upstream: false,
            reply: Reply::to(asked.api, cx.now),
            upload: Upload::behind(out, naming, asked.framing.body, cx),
            asked,
            key: None,
            shadow_key: Hashed::of(None),
            session: Hashed::of(named_session(head, cx)),
            thought: None,
            context: 0,
            retried: false,
            connects: 0,
            stranger: false,
            names_nobody: false,
            tried: Avoid::default(),
            sought: stored::asked_for(head.path),
            paid: None,
            whole: cx.now,
            sent: cx.now,
            explain: None,
            draft: Draft::of(head, came, cx),
        };
        exchange.wait_for_body(cx);
        let content_type = || head.fields.known(Known::ContentType).next();
        let form = (exchange.asked.api == Api::Other).then(content_type).flatten().and_then(scan::boundary);
        exchange.prepare(form, cx);
        exchange
    }
}
