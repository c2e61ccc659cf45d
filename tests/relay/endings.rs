//! Every way a request may end, brought about once each.

use std::net::SocketAddr;

use warmfront::counters::stats::Count;
use warmfront::exchange::{End, Phase};
use warmfront::http::Cause;
use warmfront::policy::Policy;

use crate::client::{chat, get, post};
use crate::engine::{Connection, Engine, HELLO, STREAM, TOKEN, black_hole, ok, refusing};
use crate::front::{Front, Options};
use crate::tunnel::{ASK, SWITCH};

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 47\r\n\r\ncurrently busy and cannot accept new requests..";

/// What the case is, its engines, the front's settings, what its client does, and what the record tells: end, status,
/// tries.
pub type Row = (&'static str, fn() -> Vec<SocketAddr>, fn(&mut Options), Box<dyn Fn(&Front)>, (End, u16, u8));

/// All of them.
pub fn all() -> impl Iterator<Item = Row> {
    answers().into_iter().chain(departures()).chain(failures())
}

fn running(script: fn(Connection)) -> Vec<SocketAddr> {
    vec![Engine::run(script).address]
}

/// An engine that reads a request and answers with `reply`.
pub fn answering(reply: impl Into<Vec<u8>>) -> Vec<SocketAddr> {
    vec![Engine::answering(reply).address]
}

/// Sends and reads one reply.
fn asks(request: impl Into<Vec<u8>>) -> impl Fn(&Front) {
    let request = request.into();
    move |front| drop(front.ask(&request))
}

/// Sends, waits until `there`, and leaves.
fn leaves(request: impl Into<Vec<u8>>, there: fn(&Front) -> bool) -> impl Fn(&Front) {
    let request = request.into();
    move |front| {
        let mut client = front.connect();
        client.send(&request);
        front.until("where it leaves", there);
        client.reset();
    }
}

fn row(
    what: &'static str,
    engines: fn() -> Vec<SocketAddr>,
    change: fn(&mut Options),
    act: impl Fn(&Front) + 'static,
    expected: (End, u16, u8),
) -> Row {
    (what, engines, change, Box::new(act), expected)
}

fn unchanged(_: &mut Options) {}

/// In order: an engine's answer, our own, refusals before a choice.
fn answers() -> Vec<Row> {
    let good = || answering(HELLO);
    let refused = |cause, status| (End::Refused(cause), status, 0);
    let large = |options: &mut Options| {
        options.rules.limits.body_bytes_max = 3;
        options.rules.limits.hold_bytes = 3;
    };
    let slow = |options: &mut Options| {
        options.settings.policy = Policy::PrefixHash;
        options.rules.limits.head_timeout_ms = 50;
        options.rules.limits.body_stall_timeout_ms = 50;
    };
    let half = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"me";
    let chunks = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let both = "POST /v1/a HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n";
    vec![
        row("served", good, unchanged, asks(post("/v1/a", "{}")), (End::Whole, 200, 1)),
        row(
            "served to the end of the connection",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send("HTTP/1.1 200 OK\r\n\r\n{}");
                })
            },
            unchanged,
            asks(get("/v1/a")),
            (End::Whole, 200, 1),
        ),
        row(
            "an error of the engine's",
            || answering("HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno"),
            unchanged,
            asks(get("/v1/a")),
            (End::Whole, 500, 1),
        ),
        row("health", good, unchanged, asks(get("/health")), (End::Whole, 200, 0)),
        row("a path that is not open", good, unchanged, asks(get("/pause")), refused(Cause::BadTarget, 404)),
        row("a long body", good, large, asks(post("/v1/a", "long")), refused(Cause::BodyTooLarge, 413)),
        row(
            "a body that turns out long",
            good,
            |options| {
                options.settings.policy = Policy::PrefixHash;
                options.rules.limits.body_bytes_max = 3;
            },
            asks([chunks, "4\r\n{\"me\r\n0\r\n\r\n"].concat()),
            refused(Cause::BodyTooLarge, 413),
        ),
        row("unclear framing", good, unchanged, asks(both), refused(Cause::BadFraming, 400)),
        row("no head", good, unchanged, asks("GET / HTTP/1.1\r\nno field\r\n\r\n"), refused(Cause::BadHead, 400)),
        row("a broken chunk", good, slow, asks([chunks, "x\r\n"].concat()), refused(Cause::BadChunk, 400)),
        row("half a head", good, slow, asks("GET /v1/a HTTP/1.1\r\nHos"), refused(Cause::ClientTimeout, 408)),
        row("half a body", good, slow, asks(half), refused(Cause::ClientTimeout, 408)),
        row(
            "a model that nobody has",
            || [answering(HELLO), answering(HELLO)].concat(),
            |options| options.pools = vec![("a", vec![0]), ("b", vec![1])],
            asks(chat("c", "hi")),
            refused(Cause::UnknownModel, 404),
        ),
        row(
            "too many bodies",
            good,
            |options| {
                options.settings.policy = Policy::PrefixHash;
                options.rules.limits.budget_bytes = 1;
            },
            asks(half),
            refused(Cause::OverBudget, 503),
        ),
    ]
}

/// Clients that leave, phase by phase.
fn departures() -> Vec<Row> {
    let chosen = |front: &Front| front.counters.in_flight(0) == 1;
    let half = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{";
    let by = |phase, status, tries| (End::ClientLeft(phase), status, tries);
    let silent = || {
        running(|mut connection| {
            connection.request();
            connection.closed();
        })
    };
    vec![
        row(
            "leaves in its body",
            silent,
            |options| options.settings.policy = Policy::PrefixHash,
            leaves(half, |front| front.count(Count::BytesIn) > 0),
            by(Phase::ReadBody, 0, 0),
        ),
        row(
            "leaves while connecting",
            || {
                let (hole, kept) = black_hole();
                std::mem::forget(kept);
                vec![hole]
            },
            |options| options.rules.limits.connect_timeout_ms = 60_000,
            leaves(get("/v1/a"), chosen),
            by(Phase::Connect, 0, 1),
        ),
        row(
            "leaves while uploading",
            || {
                running(|mut connection| {
                    connection.head();
                    connection.closed();
                })
            },
            unchanged,
            leaves(half, |front| front.count(Count::UpstreamBytesOut) > 0),
            by(Phase::Send, 0, 1),
        ),
        row(
            "leaves in a prefill",
            silent,
            unchanged,
            leaves(post("/v1/a", "{}"), |front| front.count(Count::UpstreamBytesOut) > 0),
            by(Phase::Await, 0, 1),
        ),
        row(
            "leaves in a stream",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send([STREAM, TOKEN].concat());
                    connection.closed();
                })
            },
            unchanged,
            leaves(post("/v1/a", "{}"), |front| front.count(Count::BytesOut) > 0),
            by(Phase::Relay, 200, 1),
        ),
        row(
            "leaves a tunnel",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send(SWITCH);
                    connection.closed();
                })
            },
            unchanged,
            leaves(ASK, |front| front.count(Count::BytesOut) > 0),
            by(Phase::Tunnel, 101, 1),
        ),
        row(
            "reads nothing",
            || answering(ok(vec![b'x'; 32 << 20])),
            |options| options.rules.limits.client_stall_timeout_ms = 100,
            |front| {
                let mut client = front.connect();
                client.send(get("/v1/a"));
                front.until("the stall", |front| front.count(Count::ClientStalled) == 1);
            },
            (End::ClientStalled, 200, 1),
        ),
    ]
}

/// Engines that fail, requests that go elsewhere, a drain.
fn failures() -> Vec<Row> {
    let broke = |kind, status| (End::EngineBroke(kind), status, 1);
    let hurried = |options: &mut Options| options.rules.limits.reply_head_timeout_ms = 50;
    let tunnel = || {
        running(|mut connection| {
            connection.request();
            connection.send(SWITCH);
            connection.bytes(1);
        })
    };
    vec![
        row(
            "nobody to connect to",
            || (0..5).map(|_| refusing()).collect(),
            unchanged,
            asks(get("/v1/a")),
            (End::Refused(Cause::Unreachable), 503, 4),
        ),
        row(
            "connected elsewhere",
            || vec![refusing(), refusing(), answering(HELLO)[0]],
            unchanged,
            asks(get("/v1/a")),
            (End::Whole, 200, 3),
        ),
        row(
            "too busy, then elsewhere",
            || [answering(BUSY), answering(HELLO)].concat(),
            unchanged,
            asks(post("/v1/a", "{}")),
            (End::Whole, 200, 2),
        ),
        row(
            "too busy everywhere",
            || [answering(BUSY), answering(BUSY)].concat(),
            unchanged,
            asks(post("/v1/a", "{}")),
            (End::Whole, 503, 2),
        ),
        row(
            "breaks before its head",
            || running(|mut connection| drop(connection.request())),
            unchanged,
            asks(post("/v1/a", "{}")),
            broke(Count::UpstreamFaultEarlyEnd, 502),
        ),
        row(
            "resets before its head",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.reset();
                })
            },
            unchanged,
            asks(post("/v1/a", "{}")),
            broke(Count::UpstreamFaultReset, 502),
        ),
        row(
            "speaks no HTTP",
            || answering("SSH-2.0\r\n\r\n"),
            unchanged,
            asks(get("/v1/a")),
            broke(Count::UpstreamFaultBadHead, 502),
        ),
        row(
            "says nothing",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.closed();
                })
            },
            hurried,
            asks(get("/v1/a")),
            broke(Count::UpstreamFaultHeadTimeout, 504),
        ),
        row(
            "breaks its stream",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send([STREAM, TOKEN].concat());
                })
            },
            unchanged,
            asks(get("/v1/a")),
            broke(Count::UpstreamFaultEarlyEnd, 200),
        ),
        row(
            "breaks a chunk of its stream",
            || answering([STREAM, "9\r\ndata: a\n\n\r\nx\r\n"].concat()),
            unchanged,
            asks(get("/v1/a")),
            broke(Count::UpstreamFaultBadChunk, 200),
        ),
        row(
            "never speaks in its stream",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send(STREAM);
                    connection.closed();
                })
            },
            |options| options.rules.limits.first_token_timeout_ms = 50,
            asks(get("/v1/a")),
            broke(Count::UpstreamFaultFirstTokenTimeout, 200),
        ),
        row(
            "a tunnel",
            tunnel,
            unchanged,
            |front| {
                let mut client = front.connect();
                client.send(ASK);
                client.head();
                client.half_close();
                client.ends();
            },
            (End::Whole, 101, 1),
        ),
        row(
            "an idle tunnel",
            tunnel,
            |options| options.rules.limits.tunnel_idle_timeout_ms = 50,
            |front| {
                let mut client = front.connect();
                client.send(ASK);
                client.head();
                client.ends();
            },
            broke(Count::UpstreamFaultChunkTimeout, 101),
        ),
        row(
            "a drain",
            || {
                running(|mut connection| {
                    connection.request();
                    connection.send([STREAM, TOKEN].concat());
                    connection.closed();
                })
            },
            |options| options.rules.limits.drain_timeout_ms = 50,
            |front| {
                let mut client = front.connect();
                client.send(get("/v1/a"));
                client.head();
                front.drain();
                client.rest();
            },
            (End::Drained, 200, 1),
        ),
    ]
}
