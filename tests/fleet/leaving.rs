//! Engines that are taken out while they have streams, and what becomes of these.

use crate::engine::{EVENTS, Engine, Mood};
use crate::front::Client;
use crate::wire::Head;
use crate::{DRIVERS, QUICK, fleet, front, until};

/// A stream of the one engine that is so.
fn stream(front: &front::Front, engine: &Engine, mood: Mood) -> (Client, Head) {
    engine.becomes(mood);
    let mut stream = front.connect();
    stream.ask();
    let head = stream.head();
    assert_eq!(head.start, "HTTP/1.1 200 OK");
    (stream, head)
}

/// It goes as a vLLM does that is ended behind its removal: the listener closes, streams stay open and silent. Nobody asks for it any more,
/// and it is found to be gone all the same; what it still sends passes, also where another process serves by then.
#[test]
fn streams_of_an_engine_that_was_removed_end_as_those_of_any_other() {
    for (driver, is_succeeded) in DRIVERS.into_iter().flat_map(|driver| [(driver, false), (driver, true)]) {
        let ([leaving], front) = fleet(driver, &format!("{QUICK}[limits]\ndeserted_timeout_ms = 1500\n"));
        let other = Engine::start();
        let (mut silent, silent_head) = stream(&front, &leaving, Mood::Silent);
        let (mut ticking, ticking_head) = stream(&front, &leaving, Mood::Ticks);
        assert_eq!(front.asks("POST", "/endpoints", &format!("{{\"url\":\"http://{}\"}}", other.address)).0, 200);
        assert_eq!(front.asks("DELETE", &format!("/endpoints/{}", leaving.address), "").0, 200);
        if is_succeeded {
            front.upgrade();
        }
        leaving.goes();
        let body = silent.body(&silent_head);
        let text = String::from_utf8(body.data).unwrap();
        assert!(!body.whole && text.starts_with("data: a\n\ndata: {\"error\":"), "{driver}, {is_succeeded}: {text:?}");
        let body = ticking.body(&ticking_head);
        assert!(body.whole, "{driver}, {is_succeeded}");
        assert_eq!(body.data, b"data: a\n\n".repeat(EVENTS), "{driver}, {is_succeeded}");
        if !is_succeeded {
            until("the accounts", || front.metric("warmfront_counted_in_flight") == 0.0);
            assert_eq!(front.metric("warmfront_accounts_differ_total"), 0.0);
            assert_eq!(front.metric("warmfront_upstream_faults_total{kind=\"silent\"}"), 1.0, "{driver}");
        }
    }
}
