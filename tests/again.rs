//! Exchanges by hand, without sockets: a request that is sent again, mostly to the endpoint that it was chosen for before,
//! since that takes a FIN that crosses the request on its way; and what others hold, and tell of engines.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use warmfront::counters::Counters;
use warmfront::counters::stats::{Count, Stats};
use warmfront::exchange::{Action, Actions, Context, Event, Exchange, Lender, Opened, Peer, Rules, Side, open};
use warmfront::fleet::{Endpoint, EndpointId, Health, Method, Rung};
use warmfront::index::{Capacity, Index};
use warmfront::policy::{Policy, Settings};
use warmfront::ring::Ring;
use warmfront::scan::{Chat, Form, Turn};
use warmfront::snapshot::{Pool, PoolId, Snapshot};

const ENGINE: EndpointId = EndpointId { slot: 0, generation: 1 };

/// So many engines under `warm`, all of them in each of these pools.
fn fleet(engines: u16, models: &[&str]) -> Snapshot {
    let settings = Arc::new(Settings { policy: Policy::Warm, ..Settings::default() });
    let names: Vec<String> = (0..engines).map(|slot| format!("engine-{slot}")).collect();
    let points: Vec<_> = (0..engines).map(|slot| (slot, &*names[slot as usize], 1)).collect();
    let ring = Arc::new(Ring::build(&points, settings.replication));
    let mut snapshot = Snapshot { plan: Arc::new(settings.plan()), models_complete: true, ..Snapshot::default() };
    let index = Index::new(Capacity { endpoints: 64, blocks: 1 << 14, lengths: false }).unwrap();
    for (slot, name) in (0..engines).zip(&names) {
        let id = EndpointId { slot, ..ENGINE };
        let address = SocketAddr::from(([127, 0, 0, 1], 1 + slot));
        let endpoint = Endpoint::new(id, name.as_str().into(), address);
        snapshot.endpoints.push(Some(Endpoint { health: Health::Up, ..endpoint }));
        index.assign(id, None).unwrap();
    }
    for (id, model) in (0..).map(PoolId).zip(models) {
        Arc::make_mut(&mut snapshot.models).insert(model.as_bytes().into(), id);
        let members = (0..engines).collect();
        snapshot.pools.push(Pool::new(id, (*model).into(), members, Arc::clone(&ring), Arc::clone(&settings)));
    }
    snapshot.index = Some(Arc::new(index));
    snapshot.seal();
    snapshot
}

/// One engine that tells what it holds, of a model whose prompts are written as they are asked for.
fn telling() -> Snapshot {
    let mut snapshot = fleet(1, &["m"]);
    let user = Turn { role: b"user"[..].into(), before: b"<user>"[..].into(), ..Turn::default() };
    let chat = Some(Chat { turns: [user].into(), ..Chat::default() });
    let form = Form { id: 1, chat, vocabulary: Arc::default(), toolsets: Arc::default() };
    snapshot.pools[0].form = Some(Arc::new(form));
    snapshot.endpoints[0].as_mut().unwrap().rung = Rung::Exact;
    snapshot.index.as_ref().unwrap().keeps_promises(ENGINE, true).unwrap();
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
        Play::of(fleet(1, &["m"]))
    }

    fn of(snapshot: Snapshot) -> Play {
        let (counters, stats, rules) = (Counters::leak(), Stats::leak(1), Rules::default());
        let lender = Lender { budget_bytes: usize::MAX, ..Lender::default() };
        Play { counters, stats, rules, snapshot, lender, actions: Actions::default() }
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

    /// Has a request come, whole; it asks for a connection to the first engine.
    fn begin(&mut self, head: &str, body: &[u8]) -> Box<Exchange> {
        let exchange = self.comes(head, body);
        self.connects(false);
        exchange
    }

    fn comes(&mut self, head: &str, body: &[u8]) -> Box<Exchange> {
        let peer = Peer { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1 };
        let opened = self.with(|cx| open(head.as_bytes(), peer, 0, cx));
        let Opened::Exchange(_, mut exchange) = opened else { panic!("no exchange") };
        self.with(|cx| exchange.advance(Event::Request(body), cx));
        exchange
    }

    fn connects(&self, fresh: bool) {
        assert_eq!(self.actions.list.last(), Some(&Action::Connect { endpoint: ENGINE, fresh }));
    }

    /// The engine that a connection was just asked for to.
    fn place(&self) -> u16 {
        let Some(Action::Connect { endpoint, .. }) = self.actions.list.last() else {
            panic!("{:?}", self.actions.list)
        };
        endpoint.slot
    }

    /// What was thought so far of all that was sent there: its tokens, and those that are held.
    fn thought(&self, place: u16, method: Method) -> (u64, u64) {
        let sent = self.counters.predictions().sent(place, method);
        (sent.tokens, sent.held)
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

/// A reply says as many tries as log and receipt do: the second one counts, also at the same engine.
#[test]
fn a_request_that_was_sent_again_to_its_engine_says_so() {
    let mut play = Play::new();
    play.rules.explain_from = vec!["127.0.0.0/8".parse().unwrap()];
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-warmfront-explain: 1\r\nContent-Length: 13\r\n\r\n";
    let mut exchange = play.begin(head, br#"{"model":"m"}"#);
    play.goes_stale(&mut exchange);
    play.is_sent(&mut exchange, false, Some(7));
    play.with(|cx| exchange.advance(Event::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), cx));
    let head = String::from_utf8_lossy(&play.actions.scratch);
    assert!(head.contains("x-warmfront-explain: ") && head.contains(" tries=2 "), "{head}");
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

/// What an engine that tells of itself is promised is not taken back: the second try is not to find it there.
#[test]
fn a_promise_of_the_first_try_is_not_believed_by_the_second() {
    let mut play = Play::of(telling());
    let words = "all of this is new ".repeat(200);
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut exchange = play.begin(&head, body.as_bytes());
    let (tokens, held) = play.thought(0, Method::Precise);
    assert!(tokens > 500 && held == 0, "{tokens} and {held}");
    let pending = play.counters.loads().pending(0);
    play.goes_stale(&mut exchange);
    assert_eq!(play.thought(0, Method::Precise), (2 * tokens, 0));
    assert_eq!(play.counters.loads().pending(0), pending);
    play.with(|cx| exchange.advance(Event::ClientReset, cx));
    // It stands all the same: its engine may be computing it, and says so if it does.
    let mut next = play.begin(&head, body.as_bytes());
    assert!(play.thought(0, Method::Precise).1 > tokens / 2);
    play.with(|cx| next.advance(Event::ClientReset, cx));
    assert_eq!((play.lender.held_bytes, play.lender.charges.counted()), (0, 0));
}

/// In chunks of so many bytes, or as it is.
fn framed(body: &str, chunks: Option<usize>) -> (String, String) {
    let Some(bytes) = chunks else { return (format!("Content-Length: {}", body.len()), body.to_owned()) };
    let parts = body.as_bytes().chunks(bytes).map(|part| std::str::from_utf8(part).unwrap());
    let parts: String = parts.map(|part| format!("{:x}\r\n{part}\r\n", part.len())).collect();
    ("Transfer-Encoding: chunked".to_owned(), parts + "0\r\n\r\n")
}

/// What another engine holds of a prompt is read once more from the request, but of one that was held whole for its
/// model's sake no more than of others: the rest would keep others waiting, and counts as new.
#[test]
fn what_is_held_elsewhere_is_read_from_as_much_as_others_hold() {
    let words = "the same words as before ".repeat(1_200);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}],"model":"m"}}"#);
    let tokens = |bytes: usize| (bytes / 4) as u64;
    let whole = tokens(body.len());
    for chunks in [None, Some(1_000)] {
        for hold_bytes in [64 << 10, 8 << 10] {
            let mut play = Play::of(fleet(2, &["m", "other"]));
            play.rules.limits.hold_bytes = hold_bytes;
            let (framing, bytes) = framed(&body, chunks);
            let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n");
            let seen = [false, true, true].map(|fails| comes_and_is_answered(&mut play, &head, &bytes, fails));
            let case = format!("{framing}, {hold_bytes}: {seen:?}");
            let read = tokens(body.len().min(hold_bytes));
            // Nobody tells how long the rest of chunks is.
            let known = if chunks.is_some() { read } else { whole };
            let [_, (_, first), (all, held)] = seen;
            assert!(first == 0 && (known - 32..known + 32).contains(&all), "{case}");
            assert!((read - 128..=read).contains(&held), "{case}");
        }
    }
}

/// At the engine that it is chosen for, or where that `fails` at the other: so that by the second time both have it.
/// Answers what was thought of it there: its tokens, and those that are held.
fn comes_and_is_answered(play: &mut Play, head: &str, body: &str, fails: bool) -> (u64, u64) {
    let before = [0, 1].map(|place| play.thought(place, Method::Warm));
    let mut exchange = play.comes(head, body.as_bytes());
    if fails {
        play.with(|cx| exchange.advance(Event::ConnectFailed, cx));
    }
    let place = play.place();
    let ((tokens, held), after) = (before[place as usize], play.thought(place, Method::Warm));
    play.is_sent(&mut exchange, false, Some(7));
    play.with(|cx| exchange.advance(Event::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), cx));
    (after.0 - tokens, after.1 - held)
}

/// Where the kernel does not tell what was acknowledged, the engine may have read all of it.
#[test]
fn what_may_have_been_read_is_not_sent_again() {
    for (before, at_its_end) in [(None, None), (Some(7), None), (None, Some(7)), (Some(7), Some(8))] {
        let mut play = Play::new();
        let mut exchange = small(&mut play);
        play.is_sent(&mut exchange, true, before);
        play.with(|cx| exchange.advance(Event::UpstreamGone { by_fin: true, acknowledged: at_its_end }, cx));
        let counts = [Count::UpstreamFaultEarlyEnd, Count::RetriedStale].map(|count| play.stats.total(count));
        assert_eq!(counts, [1, 0], "{before:?}, then {at_its_end:?}");
    }
}

/// Whoever is asked second, and ends as the first did: there is one further try, and no more.
#[test]
fn nothing_is_sent_a_third_time() {
    for (engines, reused) in [(1, true), (2, true), (2, false)] {
        let mut play = Play::of(fleet(engines, &["m"]));
        let mut exchange = small_one(&mut play);
        let acknowledged = Some(7);
        play.is_sent(&mut exchange, true, acknowledged);
        play.with(|cx| exchange.advance(Event::UpstreamGone { by_fin: true, acknowledged }, cx));
        let asks = |play: &Play| play.actions.list.iter().any(|action| matches!(action, Action::Connect { .. }));
        assert!(asks(&play), "{engines}");
        play.is_sent(&mut exchange, reused, acknowledged);
        play.with(|cx| exchange.advance(Event::UpstreamGone { by_fin: true, acknowledged }, cx));
        let counts = [Count::RetriedStale, Count::RetriedFault, Count::UpstreamFaultEarlyEnd];
        assert_eq!(counts.map(|count| play.stats.total(count)), [1, 0, 1], "{engines} {reused}");
        assert!(!asks(&play), "{engines} {reused}: {:?}", play.actions.list);
    }
}

/// Whoever has unloaded a model says so by a 404: of other answers, and where no model is asked, nothing follows.
#[test]
fn who_does_not_find_a_model_is_told_of() {
    for (path, status, told) in [
        ("/v1/chat/completions", 404, 1),
        ("/v1/chat/completions", 200, 0),
        ("/v1/chat/completions", 400, 0),
        ("/v1/files", 404, 0),
    ] {
        let mut play = Play::new();
        let body = r#"{"model":"m","messages":[]}"#;
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut exchange = play.begin(&head, body.as_bytes());
        play.is_sent(&mut exchange, false, Some(7));
        let reply = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 2\r\n\r\n{{}}");
        play.with(|cx| exchange.advance(Event::Reply(reply.as_bytes()), cx));
        assert_eq!(play.counters.outcomes().not_found(0), told, "{path} {status}");
    }
}

/// How long a prompt is in tokens is a guess: one of twice the context may yet fit. What is longer is refused, and would
/// only push out what is there.
#[test]
fn what_may_fit_is_thought_to_be_held() {
    for (words, is_held) in [(1_500, true), (2_500, false)] {
        let mut play = Play::new();
        play.snapshot.pools[0].context = 4_000;
        play.snapshot.seal();
        // Of 16 bytes, which are four tokens as far as is known.
        let words = "all of it is so ".repeat(words);
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{words}"}}]}}"#);
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{}\r\n\r\n", framed(&body, None).0);
        let mut exchange = play.begin(&head, body.as_bytes());
        let blocks = play.snapshot.index.as_ref().unwrap().figures(0).blocks;
        assert_eq!(blocks > 64, is_held, "{blocks}");
        play.with(|cx| exchange.advance(Event::ClientReset, cx));
    }
}

/// Who has room within a bound is not counted among those that went beyond it.
#[test]
fn who_is_within_the_bound_is_not_counted_as_beyond_it() {
    let mut play = Play::of(fleet(2, &["m"]));
    let settings = Settings { policy: Policy::PrefixHash, ..Settings::default() };
    play.snapshot.plan = Arc::new(settings.plan());
    play.snapshot.pools[0].settings = Arc::new(settings);
    play.snapshot.seal();
    let mut exchange = small_one(&mut play);
    assert_eq!(play.stats.total(Count::AdmittedOverBound), 0);
    play.with(|cx| exchange.advance(Event::ClientReset, cx));
}

/// Who may hold no more is chosen for with what has come, also where that is mostly the framing of its chunks.
#[test]
fn nothing_is_waited_for_beyond_what_is_held() {
    const HOLDS: usize = 8 << 10;
    let text = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"#, "a".repeat(HOLDS));
    let (whole, chunked) = (text.get(..HOLDS).unwrap(), framed(text.get(..HOLDS / 2).unwrap(), Some(1)).1);
    let chunks = chunked.strip_suffix("0\r\n\r\n").unwrap();
    for (framing, most) in [("Content-Length: 100000", whole), ("Transfer-Encoding: chunked", chunks)] {
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n");
        let at = if most.len() > HOLDS { 2 * HOLDS / 6 * 6 } else { HOLDS - 6 };
        let mut play = Play::new();
        play.rules.limits.hold_bytes = HOLDS;
        let mut exchange = play.comes(&head, most.get(..at).unwrap().as_bytes());
        assert!(play.actions.list.is_empty(), "{framing}: {:?}", play.actions.list);
        play.with(|cx| exchange.advance(Event::Request(most.get(at..at + 6).unwrap().as_bytes()), cx));
        assert!(play.actions.list.contains(&Action::Connect { endpoint: ENGINE, fresh: false }), "{framing}");
        play.with(|cx| exchange.advance(Event::ClientReset, cx));
    }
}

/// What stands behind a model that came late is not read, wherever the pieces end: another chain for each length of it
/// would find nothing again.
#[test]
fn how_a_long_body_is_cut_changes_nothing_of_its_prompt() {
    let words = "all of this is new ".repeat(1_500);
    let tools = format!(r#"[{{"type":"function","function":{{"name":"f","description":"{}"}}}}]"#, "d".repeat(5_000));
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}],"model":"m","tools":{tools}}}"#);
    let model_ends = body.find(r#""m""#).unwrap() + 3;
    let mut play = Play::of(fleet(1, &["m", "other"]));
    play.rules.limits.hold_bytes = 8 << 10;
    let mut before = play.thought(0, Method::Warm);
    let cuts = [model_ends + 1, model_ends + 2_000, body.len(), 8 << 10, model_ends - 1];
    for (number, cut) in cuts.into_iter().enumerate() {
        let (first, rest) = body.as_bytes().split_at(cut);
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut exchange = play.comes(&head, first);
        play.with(|cx| exchange.advance(Event::Request(rest), cx));
        let (tokens, held) = play.thought(0, Method::Warm);
        assert!(tokens - before.0 > 7_000, "{number}");
        assert_eq!(held - before.1 > 1_500, number > 0, "{number}: {}", held - before.1);
        before = (tokens, held);
        play.is_sent(&mut exchange, false, Some(7));
        play.with(|cx| exchange.advance(Event::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), cx));
    }
}

/// A head that announces much takes no memory for it beyond what others are let hold.
#[test]
fn what_is_held_for_its_model_takes_memory_as_it_comes() {
    let mut play = Play::of(fleet(1, &["m", "other"]));
    play.rules.limits.hold_bytes = 8 << 10;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n";
    let words = format!(r#"{{"messages":[{{"role":"user","content":"{}"#, "word ".repeat(8_000));
    let mut exchange = play.comes(head, words.as_bytes());
    assert!(play.lender.held_bytes > 40_000);
    assert!(play.lender.held_bytes < 160_000, "{} for {}", play.lender.held_bytes, words.len());
    play.with(|cx| exchange.advance(Event::ClientReset, cx));
    assert_eq!(play.lender.held_bytes, 0);
}

fn small(play: &mut Play) -> Box<Exchange> {
    let exchange = small_one(play);
    play.connects(false);
    exchange
}

/// Wherever it goes.
fn small_one(play: &mut Play) -> Box<Exchange> {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    play.comes(&head, body.as_bytes())
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
