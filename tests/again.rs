//! A request that is sent again to the endpoint that it was chosen for before: without sockets, since it takes a FIN that
//! crosses the request on its way.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use warmfront::counters::Counters;
use warmfront::counters::stats::{Count, Stats};
use warmfront::exchange::{Action, Actions, Context, Event, Exchange, Lender, Opened, Peer, Rules, Side, open};
use warmfront::fleet::{Endpoint, EndpointId, Health, Method};
use warmfront::index::{Capacity, Index};
use warmfront::policy::{Policy, Settings};
use warmfront::ring::Ring;
use warmfront::snapshot::{Pool, PoolId, Snapshot};

const ENGINE: EndpointId = EndpointId { slot: 0, generation: 1 };

/// One engine under `warm`.
fn fleet() -> Snapshot {
    let settings = Arc::new(Settings { policy: Policy::Warm, ..Settings::default() });
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let endpoint = Endpoint { health: Health::Up, ..Endpoint::new(ENGINE, "engine".into(), address) };
    let ring = Arc::new(Ring::build(&[(0, "engine", 1)], settings.replication));
    let mut snapshot = Snapshot { plan: Arc::new(settings.plan()), models_complete: true, ..Snapshot::default() };
    snapshot.endpoints = vec![Some(endpoint)];
    snapshot.models.insert(b"m"[..].into(), PoolId(0));
    snapshot.pools.push(Pool::new(PoolId(0), "m".into(), [0].into(), ring, settings));
    let index = Index::new(Capacity { endpoints: 64, blocks: 1 << 10, lengths: false }).unwrap();
    index.assign(ENGINE, None).unwrap();
    snapshot.index = Some(Arc::new(index));
    snapshot.seal();
    snapshot
}

struct Play {
    counters: &'static Counters,
    stats: &'static Stats,
    rules: Rules,
    snapshot: Snapshot,
    lender: Lender,
    actions: Actions,
}

impl Play {
    fn new() -> Play {
        let (counters, stats, rules) = (Counters::leak(), Stats::leak(1), Rules::default());
        let lender = Lender { budget_bytes: usize::MAX, ..Lender::default() };
        Play { counters, stats, rules, snapshot: fleet(), lender, actions: Actions::default() }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Context<'_>) -> T) -> T {
        self.actions.clear();
        act(&mut Context {
            now: 1_000_000,
            stopwatch: || 0,
            snapshot: &self.snapshot,
            counters: self.counters,
            stats: self.stats.shard(0),
            rules: &self.rules,
            leaving: false,
            draining: false,
            has_successor: false,
            lender: &mut self.lender,
            actions: &mut self.actions,
        })
    }

    /// Has a request come, whole; it asks for a connection.
    fn begin(&mut self, head: &str, body: &[u8]) -> Box<Exchange> {
        let peer = Peer { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1 };
        let opened = self.with(|cx| open(head.as_bytes(), peer, 0, cx));
        let Opened::Exchange(_, mut exchange) = opened else { panic!("no exchange") };
        self.with(|cx| exchange.advance(Event::Request(body), cx));
        self.connects(false);
        exchange
    }

    fn connects(&self, fresh: bool) {
        assert_eq!(self.actions.list.last(), Some(&Action::Connect { endpoint: ENGINE, fresh }));
    }

    /// It gets a connection, whose kernel takes all of it.
    fn is_sent(&mut self, exchange: &mut Exchange, reused: bool, acknowledged: Option<u64>) {
        self.with(|cx| exchange.advance(Event::Connected { reused, acknowledged }, cx));
        let len = exchange.unsent().len();
        self.with(|cx| exchange.advance(Event::Pushed(len), cx));
    }

    /// The connection that it gets ends by a FIN that came before any of the request had been taken.
    fn goes_stale(&mut self, exchange: &mut Exchange) {
        let acknowledged = Some(7);
        self.is_sent(exchange, true, acknowledged);
        self.with(|cx| exchange.advance(Event::UpstreamGone { by_fin: true, acknowledged }, cx));
        self.connects(true);
    }
}

/// It is charged as before, once, and the note of the first try does not say that the engine holds it: nor to who comes
/// next, where the second was not sent either.
#[test]
fn a_stale_connection_changes_nothing_of_what_is_charged() {
    for is_sent in [true, false] {
        goes_stale_and_on(is_sent);
    }
}

fn goes_stale_and_on(is_sent: bool) {
    let words = "all of this is new ".repeat(200);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let (whole, chunked) = (body.clone(), format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    for (framing, bytes) in
        [(format!("Content-Length: {}", body.len()), whole), ("Transfer-Encoding: chunked".into(), chunked)]
    {
        let mut play = Play::new();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n");
        let mut exchange = play.begin(&head, bytes.as_bytes());
        let charged = |play: &Play| (play.counters.loads().pending(0), play.counters.in_flight(0));
        let first = charged(&play);
        assert!(first.0 > 500, "{first:?}");
        play.goes_stale(&mut exchange);
        assert_eq!((charged(&play), play.stats.total(Count::RetriedStale)), (first, 1), "{framing}");
        let sent = play.counters.predictions().sent(0, Method::Warm);
        assert_eq!((sent.requests, sent.held), (2, 0), "{framing}");
        if is_sent {
            play.is_sent(&mut exchange, false, Some(7));
            play.with(|cx| exchange.advance(Event::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), cx));
        } else {
            play.with(|cx| exchange.advance(Event::ClientReset, cx));
        }
        assert_eq!((charged(&play), play.counters.underflow()), ((0, 0), 0), "{framing}");
        // What was answered is held by who comes next.
        let mut next = play.begin(&head, bytes.as_bytes());
        let after = play.counters.predictions().sent(0, Method::Warm);
        assert_eq!(
            (after.held > first.0 / 2, charged(&play).0 < first.0 / 2),
            (is_sent, is_sent),
            "{framing} {is_sent}"
        );
        play.with(|cx| next.advance(Event::ClientReset, cx));
        assert_eq!((play.lender.held_bytes, play.lender.charges.counted()), (0, 0), "{framing}");
    }
}

fn small(play: &mut Play) -> Box<Exchange> {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    play.begin(&head, body.as_bytes())
}

/// An engine that was there and closed is not told of as one that could not be reached, because nobody else can be asked.
#[test]
fn who_closes_a_new_connection_and_is_alone_is_named() {
    let mut play = Play::new();
    let mut exchange = small(&mut play);
    let acknowledged = Some(7);
    play.is_sent(&mut exchange, false, acknowledged);
    play.with(|cx| exchange.advance(Event::UpstreamGone { by_fin: true, acknowledged }, cx));
    let counts = [Count::UpstreamFaultEarlyEnd, Count::RetriedFault, Count::RefusedUnreachable];
    assert_eq!(counts.map(|count| play.stats.total(count)), [1, 0, 0]);
}

/// Who has not taken the reply before has none yet that an engine could be held back with.
#[test]
fn an_engine_that_is_gone_is_not_waited_for_because_its_client_has_yet_to_read() {
    let mut play = Play::new();
    play.rules.limits.deserted_head_timeout_ms = 0;
    let mut exchange = small(&mut play);
    play.is_sent(&mut exchange, false, Some(7));
    play.with(|cx| exchange.advance(Event::Full(Side::Client), cx));
    play.with(|cx| exchange.advance(Event::Deserted, cx));
    assert_eq!(play.stats.total(Count::UpstreamFaultSilent), 1);
}
