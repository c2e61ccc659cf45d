//! What the access log is told: one record for each request, however it ends, and never a wait for it.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use warmfront::counters::stats::{Count, RequestKey};
use warmfront::exchange::{End, Record, Rules};
use warmfront::limits::RECORDS_MAX;
use warmfront::policy::{Policy, Reason};
use warmfront::scan::Api;

use crate::client::{get, post};
use crate::endings::{self, answering};
use crate::engine::{Engine, HELLO, STREAM, reporting};
use crate::front::{Front, Options, PATIENCE};
use crate::wire;

/// A front whose log is on.
fn logging(engines: &[SocketAddr], change: impl FnOnce(&mut Options)) -> Front {
    Front::with(engines, |options| {
        options.rules.access_log = true;
        change(options);
    })
}

/// Waits for so many records, and that no further one comes.
fn told(front: &Front, what: &str, count: usize) -> Vec<Record> {
    let records = std::cell::RefCell::new(Vec::new());
    front.until(what, |front| {
        records.borrow_mut().extend(front.records());
        records.borrow().len() >= count
    });
    front.settles();
    let mut records = records.into_inner();
    records.extend(front.records());
    assert_eq!(records.len(), count, "{what}: {records:?}");
    records
}

fn told_all<const COUNT: usize>(front: &Front, what: &str) -> [Record; COUNT] {
    told(front, what, COUNT).try_into().unwrap()
}

/// What of a body was read to refuse it counts as sent.
#[test]
fn a_body_that_is_refused_in_its_midst_has_its_bytes() {
    let engines = [Engine::answering(HELLO), Engine::answering(HELLO)];
    let front = logging(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("a", vec![0]), ("b", vec![1])];
        options.settings.policy = Policy::RoundRobin;
    });
    let body = r#"{"model":"c","messages":[{"role":"user","content":"hello"}]}"#;
    assert_eq!(front.ask(post("/v1/chat/completions", body)).status, 404);
    let [record] = told_all(&front, "a model that nobody serves");
    assert_eq!((record.status, record.request_bytes), (404, body.len() as u64));
}

#[test]
fn every_end_is_told_once() {
    for (what, engines, change, act, expected) in endings::all() {
        let front = logging(&engines(), change);
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        act(&front);
        let [record] = told_all(&front, what);
        assert_eq!((record.end, record.status, record.tries), expected, "{what}: {record:?}");
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
        // The turn's instant is a little older than the clock; and later by as long as the shard was stopped between
        // the looks at its two clocks.
        assert!((before - 20_000..=after + 2_000_000).contains(&record.at), "{what}: {before} {record:?}");
        assert!(record.client.ip().is_loopback() && record.client.port() > 0, "{what}");
        let times = [Some(0), record.chosen, record.connected, record.head, record.first_data, Some(record.total)];
        assert!(times.iter().flatten().is_sorted(), "{what}: {times:?}");
        let seen = [record.chosen.is_some(), record.endpoint.is_some(), record.reason.is_some(), record.tries > 0];
        assert!(seen == [true; 4] || seen == [false; 4], "{what}: {record:?}");
        let passed = record.tries > 0 && (record.end == End::Whole || matches!(record.status, 101 | 200));
        assert_eq!(record.head.is_some(), passed, "{what}: {record:?}");
        // Counted the same, but for pages of the front's own.
        let is_page = record.end == End::Whole && record.tries == 0;
        let counted: Vec<_> =
            front.stats.requests(|_| true).iter().map(|(key, n)| (key.status, key.reason, *n)).collect();
        let reason = record.reason.map_or(RequestKey::NO_REASON, |reason| reason as u8);
        let expected = (!is_page).then_some((record.status, reason, 1));
        assert_eq!(counted, Vec::from_iter(expected), "{what}");
        // What its engine did is named as it is counted.
        if record.end.as_str() == "engine_broke" {
            let faults = Count::ALL.iter().filter(|count| count.family() == "upstream_faults");
            let counted = faults.filter(|count| front.count(**count) > 0).filter_map(|count| count.label());
            assert_eq!(counted.map(|(_, kind)| Some(kind)).collect::<Vec<_>>(), [record.end.why()], "{what}");
        }
    }
}

#[test]
fn a_record_says_what_was_asked_and_what_came_of_it() {
    let reply = [STREAM, "d\r\n: keep-alive\n\r\n", "9\r\ndata: a\n\n\r\n0\r\n\r\n"].concat();
    let engine = Engine::answering(reply);
    let front = logging(&[engine.address], |options| options.settings.policy = Policy::PrefixHash);
    let body = r#"{"messages":[{"role":"user","content":"words"}],"model":"tiny-llama"}"#;
    let request = format!(
        "POST /v1/chat/completions?token=secret HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let mut client = front.connect();
    client.ask(&request);
    client.ask(get(&format!("/v1/{}", "a".repeat(100))));
    let [chat, other] = told_all(&front, "both");
    assert_eq!((chat.method.as_bytes(), chat.path.as_bytes()), (&b"POST"[..], &b"/v1/chat/completions"[..]));
    assert_eq!((chat.api, chat.request_id.as_bytes()), (Api::Chat, &b"mine"[..]));
    assert_eq!((chat.pool.unwrap().0, chat.endpoint.unwrap().slot, chat.reason), (0, 0, Some(Reason::Home)));
    assert_eq!((chat.request_bytes, chat.reply_bytes, chat.streamed), (body.len() as u64, 22, true));
    assert!(chat.key.is_some() && chat.first_data.is_some() && chat.logged && chat.chain.is_none());
    let compared = chat.compared.unwrap();
    assert_eq!((compared.in_flight, compared.runner_up_in_flight, compared.costs), (0, None, None));
    assert!(compared.slots.is_some() && chat.runner_up.is_none() && chat.prompt_tokens.is_none(), "{chat:?}");
    assert_eq!(other.path.as_bytes(), format!("/v1/{}", "a".repeat(60)).as_bytes());
    let made = engine.requests()[1].head.get("x-request-id").unwrap().to_owned();
    assert_eq!((other.api, other.request_id.as_bytes(), other.key), (Api::Other, made.as_bytes(), None));
}

/// A choice that counts tokens is taken at its word: what is compared with `held_tokens` is what it thought.
#[test]
fn where_no_choice_counted_a_prompts_tokens_its_engine_did() {
    let body = r#"{"choices":[],"usage":{"prompt_tokens":750,"completion_tokens":7}}"#;
    let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    let reply = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
    for (policy, is_engines, held) in [(Policy::LeastLoad, true, None), (Policy::Warm, false, Some(0))] {
        let engine = Engine::answering(reply.clone());
        let front = logging(&[engine.address], |options| options.settings.policy = policy);
        let asked = post("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"words"}]}"#);
        assert_eq!(front.ask(asked).status, 200);
        let [record] = told_all(&front, policy.as_str());
        let told = (record.prompt_tokens == Some(750), record.held_tokens, record.completion_tokens);
        assert_eq!(told, (is_engines, held, Some(7)), "{record:?}");
        assert!(record.prompt_tokens.is_some(), "{record:?}");
    }
}

/// The head's first byte counts, not its last.
#[test]
fn time_runs_from_the_first_byte() {
    let front = logging(&answering(HELLO), |_| {});
    let mut client = front.connect();
    client.send("GET /v1/a HTTP/1.1\r\n");
    front.until("the first byte", |front| front.count(Count::BytesIn) > 0);
    std::thread::sleep(Duration::from_millis(200));
    client.send("Host: x\r\n\r\n");
    assert_eq!(client.reply().status, 200);
    std::thread::sleep(Duration::from_millis(200));
    client.ask(get("/v1/a"));
    let [slow, quick] = told_all(&front, "both");
    assert!(slow.chosen.unwrap() >= 100_000 && slow.total >= 100_000, "{slow:?}");
    assert!(quick.at >= slow.at + 300_000, "{slow:?} {quick:?}");
}

#[test]
fn bytes_that_pass_unseen_are_counted() {
    const LEN: usize = 3_000_000;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {LEN}\r\n\r\n");
    let front = logging(&answering([head.into_bytes(), vec![b'x'; LEN]].concat()), |_| {});
    assert_eq!(front.ask(post("/v1/audio/speech", "{}")).body.len(), LEN);
    let [record] = told_all(&front, "the reply");
    assert_eq!((record.reply_bytes, record.streamed), (LEN as u64, false));
    assert!(front.count(Count::BytesSpliced) > 0);
}

/// Of what passes as it comes, of what is written anew, and of what passes inside the kernel.
#[test]
fn bytes_are_counted_as_both_sides_see_them() {
    const LEN: usize = 3_000_000;
    let audio = format!("HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: {LEN}\r\n");
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n";
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";
    let events = "9\r\ndata: a\n\n\r\n".repeat(3) + "0\r\n\r\n";
    let asks = |line: &str, rest: &str| format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}");
    for (request, ends_with, head, body, is_spliced) in [
        (asks("GET /v1/a", "\r\n"), "\r\n\r\n", &*audio, "x".repeat(LEN), true),
        (asks("POST /v1/a", "Content-Length: 5\r\n\r\n{ \"\"}"), "{ \"\"}", json, "{}".into(), false),
        (
            asks("POST /v1/a", "Transfer-Encoding: chunked\r\n\r\n4;x\r\n{ }~\r\n0\r\n\r\n"),
            "\r\n0\r\n\r\n",
            stream,
            events,
            false,
        ),
    ] {
        let reply = format!("{head}connection: close\r\n\r\n{body}");
        let told = reply.clone();
        let (engine, got) = reporting(move |mut connection, got| {
            let mut bytes = Vec::new();
            while let Some(byte) = connection.bytes(1).pop() {
                bytes.push(byte);
                if bytes.ends_with(ends_with.as_bytes()) {
                    connection.send(&told);
                }
            }
            got.send(bytes.len()).unwrap();
        });
        let front = Front::start(&[engine.address]);
        let mut client = front.connect();
        client.send(&request);
        let (answer, end) = client.rest();
        assert_eq!(end, wire::End::Fin);
        let seen = [request.len(), answer.len(), got.recv_timeout(PATIENCE).unwrap(), reply.len()];
        let counted = [Count::BytesIn, Count::BytesOut, Count::UpstreamBytesOut, Count::UpstreamBytesIn];
        assert_eq!(counted.map(|event| front.count(event)), seen.map(|len| len as u64), "{request}");
        assert_eq!(front.count(Count::BytesSpliced) > 0, is_spliced);
        assert!(answer.len() > body.len());
        front.settles();
    }
}

/// Nobody reads the records: requests are served on, the first are kept and the others counted.
#[test]
fn a_full_queue_drops_and_counts() {
    const MORE: usize = 500;
    let front = logging(&answering(HELLO), |_| {});
    let mut client = front.connect();
    for _ in 0..(RECORDS_MAX + MORE) / 4 {
        client.send(get("/health").repeat(4));
        (0..4).for_each(|_| assert_eq!(client.reply().status, 200));
    }
    assert_eq!(client.ask(get("/v1/a")).status, 200);
    assert_eq!(
        told(&front, "the queue", RECORDS_MAX).len() + MORE + 1,
        RECORDS_MAX + front.count(Count::RecordDropped) as usize
    );
    assert_eq!(client.ask(get("/v1/a")).status, 200);
    told(&front, "one more", 1);
}

/// Without a log only the last are wanted: an older one that nobody has read gives its place to a newer one, and is not
/// missed unless a log that was on until then had it coming.
#[test]
fn what_receipts_have_no_room_for_is_written_over() {
    const KEPT: usize = 8;
    let front = logging(&answering(HELLO), |_| {});
    let mut client = front.connect();
    let mut ask = |paths: std::ops::Range<usize>| {
        paths.for_each(|number| assert_eq!(client.ask(get(&format!("/v1/{number}"))).status, 200));
    };
    ask(0..3);
    front.published.publish_rules(Rules { receipts: KEPT, ..Rules::default() });
    ask(3..40);
    let told = told(&front, "the last", KEPT);
    let paths = told.iter().map(|record| record.path.as_bytes().to_vec());
    assert!(paths.eq((40 - KEPT..40).map(|number| format!("/v1/{number}").into_bytes())), "{told:?}");
    assert_eq!(front.count(Count::RecordDropped), 3, "those of the log");
}

#[test]
fn rules_switch_it_off_and_on() {
    let front = logging(&answering(HELLO), |_| {});
    let mut client = front.connect();
    for access_log in [true, false, true] {
        front.published.publish_rules(Rules { access_log, ..Rules::default() });
        assert_eq!(client.ask(get("/v1/a")).status, 200);
        told(&front, "as published", usize::from(access_log));
    }
}

/// Receipts need the same records; a log that is off writes none of them, and its chains are not asked for.
#[test]
fn receipts_alone_are_told_of_too() {
    let front = logging(&answering(HELLO), |_| {});
    let mut client = front.connect();
    for (access_log, receipts) in [(true, 1), (false, 1), (true, 0), (false, 0)] {
        front.published.publish_rules(Rules { access_log, receipts, ..Rules::default() });
        assert_eq!(client.ask(get("/v1/a")).status, 200);
        let told = told(&front, "as published", usize::from(access_log || receipts > 0));
        assert!(told.iter().all(|record| record.logged == access_log), "{told:?}");
    }
}

/// Who scans and who errs is looked for by what he asked; what is no request's line may be a body, and nothing of it is
/// told.
#[test]
fn a_head_that_is_refused_tells_its_line() {
    let front = logging(&answering(HELLO), |_| {});
    for (head, status, method, path) in [
        ("TRACE /v1/models?key=k HTTP/1.1\r\nhost: x\r\n", 405, "TRACE", "/v1/models"),
        ("POST /v1/completions HTTP/1.1\r\nhost: x\r\nno field\r\n", 400, "POST", "/v1/completions"),
        ("GET /v1/a HTTP/1.1\r\nhost: x\r\nhost: y\r\n", 400, "GET", "/v1/a"),
        ("GET http://user:word@x:y/v1/a HTTP/1.1\r\nhost: x\r\n", 400, "GET", ""),
        ("Dear Anna, I write\r\n", 400, "", ""),
        ("Dear /Anna, I write\r\n", 400, "", ""),
    ] {
        assert_eq!(front.ask(format!("{head}\r\n").into_bytes()).status, status, "{head}");
        let [record] = told_all(&front, head);
        assert_eq!((record.method.as_bytes(), record.path.as_bytes()), (method.as_bytes(), path.as_bytes()), "{head}");
    }
}

/// Whoever has a slow request's trace finds its line, and from a line its trace; what is no trace is not guessed at.
#[test]
fn a_record_has_the_trace_that_its_client_names() {
    let engine = Engine::answering(HELLO);
    let front = logging(&[engine.address], |_| {});
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let good = format!("00-{trace}-b7ad6b7169203331-01");
    let others = "Tracestate: a=1,b=2\r\ntracestate: c=3\r\nBaggage: user=anna;secret\r\nB3: 0\r\n";
    let mut client = front.connect();
    for (fields, path, expected) in [
        (format!("traceparent: {good}\r\n{others}"), "/v1/completions", Some(trace)),
        (format!("TraceParent:{good}\r\nx-request-id: mine\r\n"), "/v1/completions", Some(trace)),
        (format!("traceparent: {good}\r\ntraceparent: {good}\r\n"), "/v1/completions", None),
        (format!("traceparent: {}\r\n", good.to_uppercase()), "/v1/completions", None),
        (format!("traceparent: {good}-\"}}\r\n"), "/v1/completions", None),
        (format!("traceparent: {}\r\n", "0".repeat(4_000)), "/v1/completions", None),
        (String::new(), "/v1/completions", None),
        // What the front answers by itself is looked for no less.
        (format!("traceparent: {good}\r\n"), "/nope", Some(trace)),
    ] {
        let before = engine.requests().len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{fields}content-length: 2\r\n\r\n{{}}");
        client.ask(request.as_bytes());
        let [record] = told_all(&front, &fields);
        assert_eq!(record.trace.digits().as_deref(), expected, "{fields}");
        for request in engine.requests().iter().skip(before) {
            for (name, value) in fields.lines().filter_map(|line| line.split_once(':')) {
                let came = |(other, told): &&(String, String)| other.eq_ignore_ascii_case(name) && told == value.trim();
                assert!(request.head.fields.iter().any(|field| came(&field)), "{name}: {value} became {request:?}");
            }
            let of =
                |name: &str| request.head.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name)).count();
            let sent = fields.to_lowercase().matches("traceparent:").count();
            assert_eq!(
                (of("traceparent"), of("tracestate")),
                (sent, fields.to_lowercase().matches("tracestate:").count())
            );
        }
    }
    assert_eq!(engine.requests().len(), 7);
}

#[test]
fn nothing_is_told_while_it_is_off() {
    let front = Front::start(&answering(HELLO));
    assert_eq!(front.ask(get("/v1/a")).status, 200);
    assert_eq!(front.ask(get("/pause")).status, 404);
    front.settles();
    assert_eq!((front.records().len(), front.count(Count::RecordDropped)), (0, 0));
}
