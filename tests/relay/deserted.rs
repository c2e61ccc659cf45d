//! Streams and tunnels of an engine that is gone: silent ones are cut, all others go on.

use std::time::{Duration, Instant};

use warmfront::counters::stats::Count;

use crate::client::post;
use crate::engine::{Engine, HELLO, STREAM, TOKEN, gate};
use crate::front::{Front, republish_each};
use crate::tries::in_one_of;
use crate::wire::End;

/// A vLLM that was told to end keeps its streams open and silent, and refuses its probes: these streams are cut
/// visibly. Those that still speak go on, and so do silent ones of an engine that answers its probes.
#[test]
fn silent_streams_of_an_engine_that_is_gone_are_cut() {
    // An engine that is stopped in the middle is silent as well: hardly in each of three tries.
    in_one_of(3, "a stream that speaks goes on", true, who_speaks_goes_on_where_the_silent_are_cut);
}

fn who_speaks_goes_on_where_the_silent_are_cut() -> bool {
    const AFTER: Duration = Duration::from_millis(2_500);
    let (finish, wait) = gate();
    let engine = Engine::run(move |mut connection| {
        let Some(request) = connection.request() else { return };
        // The answer to this does not show that the engine computes.
        if request.path() == "/v1/finished/ping" {
            wait();
            return connection.send(HELLO);
        }
        if request.path() != "/v1/whole" {
            connection.send(STREAM);
        }
        if request.path() == "/v1/silent" {
            connection.send("9\r\ndata: a\n\n\r\n");
        }
        while request.path() == "/v1/speaks" {
            connection.send("3\r\n:\n\n\r\n");
            std::thread::sleep(Duration::from_millis(100));
        }
        connection.closed();
    });
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64;
        options.rules.limits.deserted_head_timeout_ms = 4 * AFTER.as_millis() as u64;
        options.rules.stream_error_event = true;
    });
    let ask = |path: &str| {
        let mut client = front.connect();
        client.send(post(path, "{}"));
        client
    };
    let [mut speaks, mut silent, mut whole, mut finished] =
        ["/v1/speaks", "/v1/silent", "/v1/whole", "/v1/finished/ping"].map(ask);
    speaks.head();
    assert!(whole.is_silent(AFTER.as_millis() as u64 + 1_500), "its engine is there");
    republish_each(&front, |endpoint| endpoint.refuses_probes = true);
    let cut = silent.reply();
    assert!(!cut.whole && cut.text().starts_with("data: a\n\ndata: {\"error\":{"), "{:?}", cut.text());
    // A reply without a head yet is waited for longer, but not for ever.
    finish.send(()).unwrap();
    assert_eq!((silent.ends(), finished.reply().status, whole.reply().status), (End::Fin, 200, 502));
    let cut = front.count(Count::UpstreamFaultSilent);
    let goes_on = cut == 2 && front.counters.in_flight(0) >= 1 && !speaks.bytes(8).is_empty();
    drop(speaks);
    front.settles();
    assert!(goes_on || cut == 3, "{cut} are cut");
    goes_on
}

/// Behind a Service the probes of an engine are refused as soon as its pod is not ready: while it gives other requests
/// tokens, it is not gone.
#[test]
fn silent_streams_of_an_engine_that_gives_others_tokens_are_not_cut() {
    // An engine that is stopped in the middle is silent as well: hardly in each of three tries.
    in_one_of(3, "streams that are cut", 0, silent_streams_that_are_cut_beside_one_that_goes_on);
}

fn silent_streams_that_are_cut_beside_one_that_goes_on() -> u64 {
    const AFTER: Duration = Duration::from_millis(2_500);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = std::sync::Mutex::new(stopped);
    let engine = Engine::run(move |mut connection| {
        let Some(request) = connection.request() else { return };
        connection.send([STREAM, TOKEN].concat());
        let goes_on = request.path() == "/v1/goes-on";
        while goes_on && stopped.lock().unwrap().recv_timeout(Duration::from_millis(50)).is_err() {
            connection.send("9\r\ndata: a\n\n\r\n");
        }
        connection.closed();
    });
    let front = Front::with(&[engine.address], |options| {
        options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64;
        // Streams tell more often that they go on.
        options.rules.limits.reply_head_timeout_ms = 8_000;
    });
    let _clients = ["/v1/goes-on", "/v1/silent"].map(|path| {
        let mut client = front.connect();
        client.send(post(path, "{}"));
        client.head();
        client
    });
    republish_each(&front, |endpoint| endpoint.refuses_probes = true);
    // Shards look each second.
    std::thread::sleep(AFTER + Duration::from_millis(1_500));
    let cut = front.count(Count::UpstreamFaultSilent);
    stop.send(()).unwrap();
    // No request gets anything from the engine any more.
    front.until("their ends", |front| front.count(Count::UpstreamFaultSilent) == 2);
    front.settles();
    cut
}

/// A stream is not taken for silent while its client does not read: the engine may have sent more, and is not read
/// from.
#[test]
fn a_stream_that_its_client_does_not_take_is_not_silent() {
    const AFTER: Duration = Duration::from_millis(2_500);
    const EVENTS: usize = 400;
    let engine = Engine::run(|mut connection| {
        connection.request();
        let event = format!("data: {}\n\n", "x".repeat(64 << 10));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        connection.send([STREAM, &chunk.repeat(EVENTS), "0\r\n\r\n"].concat());
    });
    let front =
        Front::with(&[engine.address], |options| options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64);
    let mut client = front.connect();
    client.send(post("/v1/completions", "{}"));
    client.head();
    republish_each(&front, |endpoint| endpoint.refuses_probes = true);
    // Shards look each second.
    std::thread::sleep(AFTER + Duration::from_millis(1_500));
    assert_eq!(front.count(Count::UpstreamFaultSilent), 0);
    // Probes succeed again: otherwise an engine that the machine stops while it sends the rest would be taken for
    // silent.
    republish_each(&front, |endpoint| endpoint.refuses_probes = false);
    assert_eq!(client.chunks().len(), EVENTS, "it is whole");
    front.settles();
}

/// The same holds for tunnels: those that pass bytes go on.
#[test]
fn tunnels_of_an_engine_that_is_gone_are_cut_where_they_are_silent() {
    // An engine that is stopped in the middle is silent as well: hardly in each of three tries.
    in_one_of(3, "a tunnel that speaks goes on", true, the_tunnel_that_speaks_goes_on);
}

fn the_tunnel_that_speaks_goes_on() -> bool {
    const AFTER: Duration = Duration::from_millis(2_500);
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.send(crate::tunnel::SWITCH);
        while connection.bytes(1) == b"a" {
            connection.send("b");
        }
    });
    let front =
        Front::with(&[engine.address], |options| options.rules.limits.deserted_timeout_ms = AFTER.as_millis() as u64);
    republish_each(&front, |endpoint| endpoint.refuses_probes = true);
    let mut tunnels = [(); 2].map(|()| front.connect());
    for client in &mut tunnels {
        client.send(crate::tunnel::ASK);
        assert_eq!(client.head().start, "HTTP/1.1 101 Switching Protocols");
    }
    let [speaks, silent] = &mut tunnels;
    let begun = Instant::now();
    let mut goes_on = true;
    while goes_on && begun.elapsed() < 2 * AFTER {
        speaks.send("a");
        goes_on = speaks.bytes(1) == b"b";
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(silent.ends(), End::Reset);
    goes_on && front.count(Count::UpstreamFaultSilent) == 1
}
