//! One request and its response, without I/O or clock: `advance(event, context)` leaves actions.
//!
//! Phases in path order (the head was read by [`admit`]):
//!
//! ```text
//! ReadBody ── choose ──> Connect ──> Send ──> Await ──> Relay ──> Done
//!    │  └─> Queue ─┘      │  ^ next endpoint    │                   ^
//!    └── refused ─────────┴──┴── retry ─────────┴── 502/504 ────────┘
//!                                     Await ──101──> Tunnel
//! ```
//!
//! `ReadBody` holds the body while it is scanned; the choice is made at the byte where the policy knows
//! enough, so a body may go on arriving during every later phase (`upload.body.done()` tells). In flight is counted
//! at the choice by an [`Admission`], which releases when it is dropped: at the last byte of the reply
//! or at whatever ends the exchange before. A leg that failed stays counted for a while ([`Charges`]).

pub mod admit;
mod again;
mod charges;
mod choose;
mod cors;
mod draft;
pub mod event;
mod finish;
mod judged;
mod kept;
mod lender;
mod noted;
mod outcome;
mod own;
pub mod paths;
mod queue;
mod ranked;
mod record;
mod refusals;
mod relay;
pub mod rendered;
mod reply;
mod request;
mod retries;
mod shadow;
mod shown;
mod stored;
mod stranger;
mod tap;
mod toolsets;
mod tunnel;
mod upload;
mod upstream;
mod usage;
pub mod warm;

pub use admit::{Opened, Rules, open, refuse_half_head, refuse_slow_head, tell_fault};
pub use charges::Charges;
pub use choose::model_in_query;
pub use cors::Origins;
pub use event::{Action, Actions, Context, Ending, Event, Micros, Peer, Side, Source};
pub use lender::{Lender, Random};
pub use queue::QueueRules;
pub use record::{Compared, End, Record, Recorder, Short};
pub use retries::Retries;
pub use shadow::{SHADOWS_MAX, Shadows};
pub use toolsets::{Toolsets, Wanted};

use std::num::NonZeroU64;

use crate::counters::queue::Paid;
use crate::counters::{Admission, Credential, Realm, StoredId};
use crate::fleet::EndpointId;
use crate::http::{RequestFraming, Shape, Version};
use crate::policy::{Avoid, Tokens};
use crate::scan::Api;
use crate::snapshot::PoolId;
use admit::RequestId;
use cors::Cors;
use draft::Draft;
use queue::{Asker, Queued};
use reply::Reply;
use upload::Upload;

/// Where an exchange stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The body arrives, is scanned and held; nothing is chosen yet.
    ReadBody,
    /// No endpoint has room for its prompt: it waits for one.
    Queue,
    /// An endpoint is chosen and counted; its connection is awaited.
    Connect,
    /// Head and body go out.
    Send,
    /// All is sent; the reply's head is awaited.
    Await,
    /// The reply's body is passed on.
    Relay,
    /// After a 101: bytes both ways, unread.
    Tunnel,
    /// Over; events are ignored.
    Done,
}

impl Phase {
    /// As metrics and log name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::ReadBody => "read_body",
            Phase::Queue => "queue",
            Phase::Connect => "connect",
            Phase::Send => "send",
            Phase::Await => "await",
            Phase::Relay | Phase::Done => "relay",
            Phase::Tunnel => "tunnel",
        }
    }
}

/// Why an exchange gives up when its deadline passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// For request body bytes.
    Body,
    /// For room in an engine's cache.
    Room,
    /// For a connection.
    Connect,
    /// For the engine to take the request.
    Upload,
    /// For the engine's kernel to acknowledge some of the request: from then on the copy held here is of no use.
    Acknowledgement,
    /// For the reply's head, until the prompt must have been computed: a reply that is no stream does not show when it
    /// was.
    Prefill,
    /// For the reply's head.
    ReplyHead,
    /// For the first data event of a stream.
    FirstToken,
    /// For more of the reply.
    Chunk,
    /// For the client to take what was sent.
    ClientReads,
    /// For any byte in a tunnel.
    Tunnel,
}

/// What the request said of itself, kept until its end.
#[derive(Debug)]
struct Asked {
    framing: RequestFraming,
    /// The protocol that it offers to switch to, as the engine is offered it.
    offers: Option<Box<[u8]>>,
    version: Version,
    api: Api,
    /// As sent to the engine and back to the client.
    request_id: RequestId,
    /// Show the choice in the reply.
    explain: bool,
    /// The key that it shows, where engines ask for keys.
    credential: Option<Credential>,
    /// The group of paths (realm) that the engine's answer on keys holds for.
    realm: Realm,
    /// A good answer shows that the engine computes, not only that its HTTP server is there.
    proves: bool,
    /// The same by the head alone, before the body said `background`: a 2xx shows that its key was let in.
    proves_key: bool,
    /// The body is compressed: routed by load.
    encoded: bool,
    /// The body asks for a stream, as far as it was looked at.
    stream: bool,
    /// Its prompt has images or the like, as far as it was looked at.
    media: bool,
    /// In which shape its client reads errors.
    shape: Shape,
    /// Which pages may read an answer of our own.
    cors: Cors,
    /// Who asks, and how urgently, where requests wait.
    asker: Asker,
}

/// A hash, if there is one, in half the room of an `Option<u64>`: a hash of 0 counts as 1.
#[derive(Clone, Copy)]
struct Hashed(Option<NonZeroU64>);

impl Hashed {
    fn of(hash: Option<u64>) -> Hashed {
        Hashed(hash.map(|hash| NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)))
    }

    fn get(self) -> Option<u64> {
        self.0.map(NonZeroU64::get)
    }
}

/// One attempt at one endpoint.
#[derive(Debug)]
struct Leg {
    /// The endpoint, counted as in flight there until this is dropped.
    admission: Admission,
    /// Its connection was used before.
    reused: bool,
    /// Acknowledged bytes when the connection was taken.
    acknowledged: Option<u64>,
    /// Bytes of the reply came.
    answered: bool,
    /// It failed, or was refused for load: it stays charged to its endpoint for a while.
    charged: bool,
    /// Its engine broke it off before the first token, as it says or as what it sent shows.
    aborted: bool,
    /// What its endpoint was thought to hold of the prompt, and will, where that was looked at.
    noted: Option<noted::Noted>,
}

impl Leg {
    fn slot(&self) -> u16 {
        self.admission.endpoint().slot
    }
}

/// One request and its response. In memory it is as it stands here: what each chunk of a reply reads or writes comes
/// first, side by side. Among thousands of streams no cache holds any of it, and each further line that a chunk touches
/// is one more wait for memory.
#[repr(C)]
pub struct Exchange {
    leg: Option<Leg>,
    /// Its place in the queue, while it waits there.
    queued: Option<Box<Queued>>,
    deadline: Option<(Micros, Waiting)>,
    pool: Option<PoolId>,
    /// The pool that was the only one when the head came.
    only: Option<PoolId>,
    phase: Phase,
    /// The kernel takes no more for the client: the engine is held back, once its reply is there.
    client_full: bool,
    /// The client is held back: the kernel takes no more for the engine, or has to take first what is held.
    client_paused: bool,
    client_ended: bool,
    upstream_ended: bool,
    /// The client's connection may serve another request after the reply.
    keep_client: bool,
    keep_upstream: bool,
    reply: Reply,

    asked: Asked,
    upload: Upload,
    key: Option<u64>,
    /// The same for the shadow policy.
    shadow_key: Hashed,
    /// Of its session: the hash of what a header names, until its pool is known.
    session: Hashed,
    /// What the endpoint of the last choice was thought to hold of the prompt, where tokens were counted.
    thought: Option<(EndpointId, Tokens)>,
    /// Tokens that its prompt and its answer may have, as the last choice took them; 0: nothing is known of it.
    context: u32,
    retried: bool,
    connects: u8,
    /// Its client is a stranger to the engine: nothing is learnt of the prompt; see [`stranger`].
    stranger: bool,
    /// A stranger's request for a model that nobody serves: an engine of another model is to judge it.
    names_nobody: bool,
    tried: Avoid,
    /// The stored response that it is about, as far as that was read.
    sought: Option<StoredId>,
    /// What its tenant was charged for it, once it was.
    paid: Option<Paid>,

    /// When all of the request had come,
    whole: Micros,
    /// and when the engine's kernel had all of it.
    sent: Micros,
    explain: Option<Box<[u8]>>,
    /// What the access log will be told.
    draft: Draft,
}

const _: () = assert!(size_of::<Exchange>() <= 1_032, "two thirds of what an idle stream takes of the front");

impl Exchange {
    /// Takes in the next event, and leaves what the shard is to do in `cx.actions`.
    pub fn advance(&mut self, event: Event<'_>, cx: &mut Context<'_>) {
        match (self.phase, event) {
            (Phase::Done, _) => {}
            (_, Event::Cut) => self.cut(End::Drained, cx),
            (_, Event::ClientReset) => self.client_gone(cx),
            (Phase::Tunnel, event) => self.tunnel(event, cx),
            (_, Event::Begin) => self.begin(cx),
            (_, Event::Room) => self.look_for_room(cx),
            (_, Event::Request(bytes)) => self.take_request(bytes, cx),
            (_, Event::ClientEnded) => self.client_ended(cx),
            (_, Event::Connected { reused, acknowledged }) => self.connected(reused, acknowledged, cx),
            (_, Event::ConnectFailed) => self.connect_failed(false, cx),
            (_, Event::ConnectWanting) => self.connect_wanting(cx),
            (_, Event::ConnectPortless) => self.connect_portless(cx),
            (_, Event::Pushed(len)) => self.after_push(len, cx),
            (_, Event::Reply(bytes)) => self.take_reply(bytes, cx),
            (_, Event::Spliced(len)) => self.spliced(len, cx),
            (_, Event::UpstreamGone { by_fin, acknowledged }) => self.upstream_gone(by_fin, acknowledged, cx),
            (_, Event::Full(side)) => self.full(side, cx),
            (_, Event::Drained(side)) => self.drained(side, cx),
            (_, Event::Deserted) => self.deserted(cx),
            (_, Event::Deadline { acknowledged, client_stalls }) => self.overdue(acknowledged, client_stalls, cx),
        }
    }

    /// When [`Event::Deadline`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        self.deadline.map(|(at, _)| at)
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the client asked for another protocol.
    pub fn offers_upgrade(&self) -> bool {
        self.asked.offers.is_some()
    }

    /// Whether it was told of the client's FIN, and goes on.
    pub fn knows_client_ended(&self) -> bool {
        self.client_ended
    }

    /// The endpoint that it is counted at as in flight.
    pub fn endpoint(&self) -> Option<EndpointId> {
        self.leg.as_ref().map(|leg| leg.admission.endpoint())
    }

    fn wait(&mut self, now: Micros, milliseconds: u64, waiting: Waiting) {
        self.deadline = Some((now + milliseconds * 1_000, waiting));
    }
}
