//! What the front answers itself, which pool a request goes to, and what it adds to what passes.

use std::sync::Arc;

use bytes::Bytes;
use warmfront::counters::stats::Count;
use warmfront::fleet::Health;
use warmfront::policy::{Policy, Reason};
use warmfront::scan::{Fault, PrefixMode};
use xxhash_rust::xxh3::xxh3_64;

use crate::client::{chat, chunked, get, post};
use crate::engine::{Engine, HELLO, gate, ok};
use crate::front::{Front, republish};

pub fn with_models(front: &Front, keys: &[&str]) {
    republish(front, |snapshot| {
        let answer = Arc::make_mut(&mut snapshot.models_answer);
        answer.list = Some(Bytes::from_static(b"{\"object\":\"list\"}"));
        let card = Bytes::from_static(b"{\"id\":\"org/m\"}");
        answer.cards.insert(b"org/m"[..].into(), card);
        answer.authorizations = keys.iter().map(|key| xxh3_64(key.as_bytes())).collect();
    });
}

#[test]
fn models_are_answered_here() {
    let engine = Engine::answering(ok("the engine's"));
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    assert_eq!(client.ask(get("/v1/models")).text(), "the engine's", "while nothing is known, the engine is asked");
    with_models(&front, &[]);
    front.until("the models", |front| front.ask(get("/v1/models")).text() == "{\"object\":\"list\"}");
    for path in ["/v1/models/org/m", "/v1/models/org%2Fm", "/v1/models/org/m?x=y"] {
        assert_eq!(client.ask(get(path)).text(), "{\"id\":\"org/m\"}", "{path}");
    }
    let reply = client.ask(get("/v1/models/other"));
    assert_eq!(reply.status, 404);
    let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(error["error"]["message"], "The model `other` does not exist.");
    assert_eq!(error["error"]["type"], "NotFoundError");
    client.send("HEAD /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n");
    client.head();
    assert!(client.is_silent(100));
}

/// Where some are left out for want of a key, a model that is not listed may be one of them: an engine says so.
#[test]
fn a_model_that_may_be_hidden_is_the_engines_to_answer() {
    let engine = Engine::answering(ok("the engine's"));
    let front = Front::start(&[engine.address]);
    with_models(&front, &[]);
    front.until("the models", |front| front.ask(get("/v1/models/other")).status == 404);
    republish(&front, |snapshot| Arc::make_mut(&mut snapshot.models_answer).hides_some = true);
    front.until("that some are hidden", |front| front.ask(get("/v1/models/other")).text() == "the engine's");
    assert_eq!(front.ask(get("/v1/models/org/m")).text(), "{\"id\":\"org/m\"}");
}

/// Who shows a key that the engines are known to take is answered here; the engines judge all others.
#[test]
fn models_ask_for_the_key_that_the_engines_ask_for() {
    let engine = Engine::answering("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno");
    let front = Front::start(&[engine.address]);
    with_models(&front, &["Bearer one", "Bearer two"]);
    front.until("the keys", |front| {
        front.ask("GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one\r\n\r\n").status == 200
    });
    let mut client = front.connect();
    for (key, status) in [("Bearer one", 200), ("Bearer two", 200), ("Bearer three", 401), ("", 401)] {
        for path in ["/v1/models", "/v1/models/org/m", "/v1/models/org%2Fm"] {
            let reply = client.ask(format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n"));
            assert_eq!((reply.status, reply.closes()), (status, false), "{key:?} {path}");
        }
    }
}

#[test]
fn health_is_the_fleets() {
    let front = Front::start(&[crate::engine::refusing(), crate::engine::refusing()]);
    assert_eq!(front.ask(get("/health")).status, 200);
    let down = |place: usize| {
        republish(&front, |snapshot| snapshot.endpoints[place].as_mut().unwrap().health = Health::Down);
    };
    down(0);
    for asked in
        [get("/health"), get("/health?ready=1"), b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".into()]
    {
        let reply = front.ask(asked);
        assert_eq!((reply.status, reply.closes()), (200, false));
    }
    down(1);
    front.until("503", |front| front.ask(get("/health")).status == 503);
    // To who asks it is an answer, and no request that found no engine.
    let count = |of| front.count(of);
    let before = count(Count::AnsweredHere);
    let reply = front.ask(get("/health"));
    assert_eq!((reply.status, reply.head.get("retry-after"), reply.closes()), (503, Some("1"), false));
    assert_eq!((count(Count::AnsweredHere) - before, count(Count::RefusedUnreachable)), (1, 0));
    assert!(front.stats.requests(|_| true).is_empty());
}

/// An endpoint that is down gets nothing, unless all are: then they are asked all the same.
#[test]
fn endpoints_that_are_down_are_not_asked() {
    let engines = [Engine::answering(HELLO), Engine::answering(HELLO)];
    let front = Front::start(&engines.each_ref().map(|engine| engine.address));
    republish(&front, |snapshot| snapshot.endpoints[0].as_mut().unwrap().health = Health::Down);
    front.until("the snapshot", |front| {
        let before = engines[0].executions();
        (0..4).for_each(|_| assert_eq!(front.ask(get("/v1/a")).status, 200));
        engines[0].executions() == before
    });
    republish(&front, |snapshot| snapshot.endpoints[1].as_mut().unwrap().health = Health::Down);
    front.until("the first to be asked again", |front| {
        assert_eq!(front.ask(get("/v1/a")).status, 200);
        engines[0].executions() > 4
    });
    front.settles();
}

#[test]
fn paths_of_engine_controls_are_not_there() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for path in ["/pause", "/metrics", "/reset_prefix_cache", "/v1/../pause", "/v1/%2e%2e/pause", "/v1//x", "/"] {
        let reply = client.ask(get(path));
        assert_eq!((reply.status, reply.closes()), (404, false), "{path}");
        assert!(serde_json::from_slice::<serde_json::Value>(&reply.body).is_ok(), "{path}");
    }
    assert_eq!(engine.connections(), 0);
    for path in ["/v1/chat/completions?x=%2e", "/tokenize?x=%41//./", "/version?", "/v1/messages"] {
        assert_eq!(client.ask(get(path)).status, 200, "{path}");
    }
}

fn two_pools(policy: Policy) -> ([Engine; 2], Front) {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("a", vec![0]), ("b", vec![1]), ("org/b-lora", vec![1])];
        options.settings.policy = policy;
    });
    (engines, front)
}

#[test]
fn the_model_of_a_body_selects_the_pool() {
    for policy in
        [Policy::RoundRobin, Policy::PrefixHash, Policy::Session, Policy::LeastLoad, Policy::Random, Policy::Warm]
    {
        let (_engines, front) = two_pools(policy);
        let mut client = front.connect();
        for (model, text) in [("a", "a's"), ("b", "b's"), ("org/b-lora", "b's"), ("org\\/b-lora", "b's"), ("a", "a's")]
        {
            assert_eq!(client.ask(chat(model, "hi")).text(), text, "{model} {policy:?}");
        }
        let reply = client.ask(chat("c\\\"x", "hi"));
        let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!((reply.status, error["error"]["code"].as_u64()), (404, Some(404)));
        assert_eq!(error["error"]["param"], "model");
        // A model named in the prompt is no model.
        let forged = r#"{"messages":[{"role":"user","content":"\"model\":\"b\"","model":"b"}],"model":"a"}"#;
        assert_eq!(client.ask(post("/v1/chat/completions", forged)).text(), "a's");
        front.settles();
    }
}

/// Who names two models tries which of them is read: that shows also where the last is nobody's, or none.
#[test]
fn a_model_named_twice_is_counted_whoever_serves_it() {
    for policy in [Policy::PrefixHash, Policy::Warm] {
        let (_engines, front) = two_pools(policy);
        let mut client = front.connect();
        for (last, status, count) in [("b", 200, 1), ("nobody's", 404, 2), ("", 400, 3)] {
            let body = format!(r#"{{"model":"a","model":"{last}","messages":[{{"role":"user","content":"hi"}}]}}"#);
            let reply = client.ask(post("/v1/chat/completions", body));
            assert_eq!((reply.status, front.count(Count::DuplicateField)), (status, count), "{last:?} {policy:?}");
        }
        assert_eq!(client.ask(chat("a", "hi")).status, 200);
        assert_eq!(front.count(Count::DuplicateField), 3, "once is not twice");
        front.settles();
    }
}

/// Two pools that are asked in turn have each their own order.
#[test]
fn each_pool_goes_round_by_itself() {
    let engines = [(); 3].map(|()| Engine::answering(HELLO));
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("a", vec![0]), ("b", vec![1, 2])];
        options.settings.policy = Policy::RoundRobin;
    });
    let mut client = front.connect();
    for _ in 0..10 {
        assert_eq!([client.ask(chat("a", "hi")).status, client.ask(chat("b", "hi")).status], [200, 200]);
    }
    assert_eq!(engines.each_ref().map(Engine::executions), [10, 5, 5]);
}

/// And is counted as sent past its home, where that has as many as it may.
#[test]
fn who_is_sent_past_a_home_is_counted() {
    let (open, wait) = gate();
    let wait = Arc::new(wait);
    let engines = [(); 2].map(|()| {
        let wait = Arc::clone(&wait);
        Engine::gated(move || wait())
    });
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.settings.policy = Policy::PrefixHash;
        // A bound of one where nothing, or one other, is in flight.
        (options.settings.load_percent, options.settings.load_slack) = (100, 0);
    });
    let executed = || engines.iter().map(Engine::executions).sum::<usize>();
    let mut clients = Vec::new();
    for spilled in [0, 1] {
        let mut client = front.connect();
        client.send(chat("tiny-llama", "hi"));
        clients.push(client);
        front.until("its engine has it", |_| executed() == clients.len());
        assert_eq!(front.count(Count::Spilled), spilled);
    }
    assert_eq!(engines.each_ref().map(Engine::executions), [1, 1]);
    (0..10).for_each(|_| open.send(()).unwrap());
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    for other in 0..8 {
        front.settles();
        assert_eq!(front.ask(chat("tiny-llama", &format!("hi, {other}"))).status, 200);
    }
    let opened = engines.iter().map(Engine::connections).sum::<usize>() as u64;
    let counted = [Count::Spilled, Count::UpstreamOpened, Count::UpstreamReused].map(|event| front.count(event));
    assert_eq!(counted, [1, opened, 10 - opened]);
    front.settles();
}

#[test]
fn without_a_model_there_must_be_a_default() {
    let (_engines, front) = two_pools(Policy::PrefixHash);
    for body in ["{\"messages\":[]}", "{\"model\":7}", "{\"model\":\"\"}", "no JSON"] {
        let reply = front.ask(post("/v1/chat/completions", body));
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    republish(&front, |snapshot| snapshot.default_pool = Some(snapshot.pools[1].id));
    front.until("the default", |front| front.ask(post("/v1/chat/completions", "no JSON")).text() == "b's");
    for body in ["{\"messages\":[]}", "{\"model\":7}", "{\"model\":\"\"}", ""] {
        assert_eq!(front.ask(post("/v1/chat/completions", body)).text(), "b's", "{body}");
    }
    // What has no body has no model, and is for any engine.
    assert_eq!(front.ask(get("/version")).text(), "b's");
    front.settles();
}

/// Whoever names a model does not want another, however long its name is.
#[test]
fn a_name_too_long_to_be_kept_is_a_model_that_nobody_serves() {
    let (_engines, front) = two_pools(Policy::Warm);
    let longest = "b".repeat(256);
    republish(&front, |snapshot| {
        let second = snapshot.pools[1].id;
        snapshot.default_pool = Some(second);
        Arc::make_mut(&mut snapshot.models).insert(longest.as_bytes().into(), second);
    });
    front.until("the long name", |front| front.ask(chat(&longest, "hi")).text() == "b's");
    let reply = front.ask(chat(&(longest.clone() + "b"), "hi"));
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("The model `(a name of more than 256 bytes)` does not exist."), "{}", reply.text());
    republish(&front, |snapshot| snapshot.unlearnt = Some(snapshot.pools[0].id));
    front.until("the one that has not said", |front| front.ask(chat(&"c".repeat(400), "hi")).text() == "a's");
    front.settles();
}

/// What was read before a body turned out to be no JSON stands: its engine judges it.
#[test]
fn a_model_before_what_is_no_json_is_asked_for() {
    let (_engines, front) = two_pools(Policy::Warm);
    for body in ["{\"model\":\"b\",!", "{\"model\":\"b\""] {
        assert_eq!(front.ask(post("/v1/chat/completions", body)).text(), "b's", "{body}");
    }
    front.settles();
}

/// The pool of engines whose models were not known yet is the first and, once they are, nobody's.
#[test]
fn what_names_no_model_is_for_any_engine_in_service() {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("default", vec![]), ("a", vec![0]), ("b", vec![1])];
        options.settings.policy = Policy::Warm;
    });
    let mut client = front.connect();
    let form = "--x\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nRIFF\r\n--x--\r\n";
    let preflight = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: y\r\n\r\n".into();
    for asked in [get("/version"), preflight, post("/v1/audio/transcriptions", form), get("/v1/responses/resp_1")] {
        let reply = client.ask(&asked);
        assert_eq!(reply.text(), "a's", "{}", asked.escape_ascii());
    }
    // An API that is not known here may name it all the same.
    for (model, text) in [("b", "b's"), ("a", "a's")] {
        let body = format!(r#"{{"tokens":[1,2],"model":"{model}"}}"#);
        assert_eq!(client.ask(post("/detokenize", body)).text(), text);
    }
    assert_eq!(client.ask(post("/detokenize", r#"{"model":"c"}"#)).status, 404);
    republish(&front, |snapshot| snapshot.endpoints[0].as_mut().unwrap().health = Health::Down);
    front.until("the other", |front| front.ask(get("/version")).text() == "b's");
    front.settles();
}

/// As openai-python writes it behind messages with an image: the choice cannot be made without it, however long they are.
#[test]
fn a_model_behind_more_than_is_held_otherwise_is_waited_for() {
    let engines = [Engine::answering(ok("a's")), Engine::answering(ok("b's"))];
    for policy in [Policy::RoundRobin, Policy::Warm] {
        let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
            options.pools = vec![("a", vec![0]), ("b", vec![1])];
            options.settings.policy = policy;
            options.rules.limits.hold_bytes = 64 << 10;
        });
        let mut client = front.connect();
        for (model, text, bytes) in [("a", "a's", 300 << 10), ("b", "b's", 64 << 10), ("b", "b's", 3 << 20)] {
            let image = "iVBORw0KGgo".repeat(bytes / 11);
            let url = format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{image}"}}}}"#);
            let body = format!(r#"{{"messages":[{{"role":"user","content":[{url}]}}],"model":"{model}"}}"#);
            let path = "/v1/chat/completions";
            let in_chunks = chunked(body.as_bytes(), 10_000);
            let in_chunks = [
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
                &in_chunks,
            ]
            .concat();
            for asked in [post(path, &body), in_chunks] {
                assert_eq!(client.ask(asked).text(), text, "{bytes} bytes before {model} {policy:?}");
                let engine = &engines[usize::from(model == "b")];
                assert!(engine.requests().last().unwrap().body == body.as_bytes(), "{bytes} bytes are as they were");
            }
        }
        let none = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(200 << 10));
        assert_eq!(client.ask(post("/v1/chat/completions", none)).status, 400);
        front.settles();
    }
}

fn compressed() -> Vec<u8> {
    coded("Content-Encoding: gzip\r\n")
}

fn coded(lines: &str) -> Vec<u8> {
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 13\r\n\r\n");
    [head.as_bytes(), b"\x1f\x8b\x08\x00\x00\x00rubbish"].concat()
}

/// Of several models a compressed body may mean any: it needs a default as well.
#[test]
fn compressed_bodies_are_not_guessed_at() {
    let (_engines, front) = two_pools(Policy::PrefixHash);
    assert_eq!(front.ask(get("/version")).status, 200);
    assert_eq!(front.ask(compressed()).status, 400);
    republish(&front, |snapshot| snapshot.default_pool = Some(snapshot.pools[1].id));
    front.until("the default", |front| front.ask(compressed()).text() == "b's");
}

/// A header is read whether a body is or not: there may be none, or none that can be read.
#[test]
fn a_header_names_the_session_of_any_request() {
    let engines: Vec<Engine> = (0..4).map(|_| Engine::answering(HELLO)).collect();
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    let front = Front::with(&addresses, |options| options.settings.policy = Policy::Session);
    let mut client = front.connect();
    let mut homes = std::collections::HashSet::new();
    for session in 0..8 {
        let before: Vec<usize> = engines.iter().map(Engine::executions).collect();
        for request in [chat("m", "hi"), chat("m", "more"), compressed(), get("/version"), chat("m", "bye")] {
            // One without a value is nobody's.
            let fields = format!("\r\nx-session-id:\r\nx-smg-routing-key: {session}\r\n");
            let named = String::from_utf8_lossy(&request).replacen("\r\n", &fields, 1);
            // What is no text in a compressed body does not matter here but for its length.
            let named = named.replace('\u{fffd}', "?");
            assert_eq!(client.ask(named).status, 200);
        }
        let got: Vec<usize> =
            engines.iter().zip(&before).map(|(engine, before)| engine.executions() - before).collect();
        assert!(got.contains(&5), "session {session}: {got:?}");
        homes.insert(got.iter().position(|count| *count == 5));
    }
    assert!(homes.len() > 1, "each session has a home of its own");
    front.settles();
}

/// A compressed body cannot be read, in however many lines its codings stand: it goes by load, unchanged.
#[test]
fn compressed_bodies_pass() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| options.settings.policy = Policy::PrefixHash);
    for request in [compressed(), coded("Content-Encoding: identity\r\nContent-Encoding: gzip\r\n")] {
        assert_eq!(front.ask(request).status, 200);
        assert_eq!(engine.requests().last().unwrap().body, b"\x1f\x8b\x08\x00\x00\x00rubbish");
    }
    assert_eq!(front.count(Count::ScanFailedCompressed), 2);
}

/// A body that cannot be read is no fault of its client's here: it goes by load, unchanged, and counts by what is amiss.
#[test]
fn what_cannot_be_scanned_goes_by_load_and_says_why() {
    let engine = Engine::answering(HELLO);
    let front = Front::with(&[engine.address], |options| {
        // Their prompts are read to the end.
        options.settings.policy = Policy::PrefixHash;
        options.settings.prefix = PrefixMode::Conversation;
        options.settings.prefix_bytes = 1 << 20;
    });
    let chat = |content: &str, rest: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]{rest}}}"#).into_bytes()
    };
    let cases: Vec<(Vec<u8>, Fault)> = vec![
        (vec![], Fault::Empty),
        (b"  ".to_vec(), Fault::Truncated),
        (b"[]".to_vec(), Fault::NotObject),
        (vec![b'['; 100_000], Fault::NotObject),
        (b"{\0\"\0m\0".to_vec(), Fault::Syntax),
        (b"\xff\xfe{\0".to_vec(), Fault::NotObject),
        (chat("\"a\nb\"", ""), Fault::Control),
        (chat("\"a\\xb\"", ""), Fault::Escape),
        (chat("\"a\"", ","), Fault::Syntax),
        (chat("[\"a\",]", ""), Fault::Syntax),
        (chat("\"a\"", "} x"), Fault::Trailing),
        (chat("\"a\"", "}\0"), Fault::Trailing),
        (chat("\"a", "")[..40].to_vec(), Fault::Truncated),
        (b"{\"a\":1".to_vec(), Fault::Truncated),
        (b"{\"a\":tru\xff}".to_vec(), Fault::Syntax),
    ];
    let mut client = front.connect();
    for (body, fault) in &cases {
        let (kind, context) = (Count::scan_failed(fault.as_str()), body[..body.len().min(80)].escape_ascii());
        let before = front.count(kind);
        // A body of no bytes is one only where that is not said before.
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(client.ask([head.as_bytes(), &chunked(body, 10_000)].concat()).status, 200, "{context}");
        assert!(engine.requests().last().unwrap().body == *body, "{context}");
        assert_eq!(front.count(kind), before + 1, "{context}");
    }
    front.settles();
    let reasons: Vec<_> = front.stats.requests(|_| true).iter().map(|(key, count)| (key.reason, *count)).collect();
    assert_eq!(reasons, [(Reason::Unscannable as u8, cases.len() as u64)]);
}

/// Who has one of his own would know those of others, were they numbers of one generator (xorshift64*).
#[test]
fn an_id_does_not_tell_the_next() {
    const FACTOR: u64 = 0x2545_F491_4F6C_DD1D;
    // Its inverse, by Newton's method.
    let inverse =
        (0..6).fold(FACTOR, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse))));
    let engine = Engine::answering(HELLO);
    let reply = Front::start(&[engine.address]).ask(get("/v1/a"));
    let (first, second) = reply.head.get("x-request-id").unwrap().split_at(16);
    let [first, second] = [first, second].map(|half| u64::from_str_radix(half, 16).unwrap());
    let mut state = first.wrapping_mul(inverse);
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    assert_ne!(state.wrapping_mul(FACTOR), second);
}

#[test]
fn request_ids_pass_or_are_made() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    let mut ids = Vec::new();
    for (sent, passes) in [(None, false), (Some("my-id.1"), true), (Some(""), false), (Some("a b"), false)] {
        let field = sent.map(|id| format!("X-Request-Id: {id}\r\n")).unwrap_or_default();
        let reply = client.ask(format!("GET /v1/a HTTP/1.1\r\nHost: x\r\n{field}\r\n"));
        let told = reply.head.get("x-request-id").unwrap().to_owned();
        assert_eq!(engine.requests().last().unwrap().head.get("x-request-id"), Some(told.as_str()), "{sent:?}");
        assert_eq!(sent == Some(told.as_str()), passes, "{sent:?}");
        ids.push(told);
    }
    let twice = client.ask("GET /v1/a HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n\r\n");
    ids.push(twice.head.get("x-request-id").unwrap().to_owned());
    assert!(engine.requests().last().unwrap().head.get("x-request-id").is_some());
    // Errors of ours tell it as well.
    ids.push(client.ask(get("/nowhere")).head.get("x-request-id").unwrap().to_owned());
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "made ids differ");
}

#[test]
fn the_client_is_told_to_the_engine() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    client.ask(get("/v1/a"));
    client.ask(
        "GET /v1/a HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\n\r\n",
    );
    let requests = engine.requests();
    assert_eq!(requests[0].head.get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(requests[0].head.get("x-forwarded-proto"), Some("http"));
    assert_eq!(requests[1].head.get("x-forwarded-for"), Some("1.2.3.4, 5.6.7.8, 127.0.0.1"));
    assert_eq!(requests[1].head.get("x-forwarded-proto"), Some("https"));
}

/// The choice is shown to those who may see it, on every kind of reply; to others it stays hidden.
#[test]
fn explanations_are_for_those_who_may_see_them() {
    // Of another front behind this one, which believes this one.
    let engine = Engine::answering(HELLO.replacen("\r\n", "\r\nx-warmfront-explain: endpoint=hidden\r\n", 1));
    // The last is whom a mesh's proxy beside the front connects as: one that asks from 127.0.0.1 is none.
    for (network, allowed) in [("127.0.0.1/32", true), ("10.0.0.0/8", false), ("127.0.0.6/32", false)] {
        let front = Front::with(&[engine.address], |options| {
            options.rules.explain_from = vec![network.parse().unwrap()];
            options.settings.policy = Policy::PrefixHash;
        });
        let mut request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-warmfront-explain: 1\r\n".to_vec();
        request
            .extend_from_slice(&chat("m", "hello there")[b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n".len()..]);
        let reply = front.ask(&request);
        let told = reply.head.get("x-warmfront-explain");
        assert_eq!(told.is_some(), allowed);
        if let Some(told) = told {
            let begins = "endpoint=engine-0 reason=home tries=1 in_flight=0 slots=";
            assert!(told.starts_with(begins) && told.contains(" key="), "{told}");
            assert_eq!(reply.head.all("x-warmfront-explain").len(), 1);
        }
        assert_eq!(engine.requests().last().unwrap().head.get("x-warmfront-explain"), None);
        assert_eq!(front.ask(chat("m", "hello there")).head.get("x-warmfront-explain"), None);
        // What came through a proxy is not of the peer, whoever that is.
        for field in ["X-Forwarded-For: 203.0.113.9", "Forwarded: for=203.0.113.9"] {
            let request = String::from_utf8(request.clone()).unwrap();
            let through = request.replacen("Host: x\r\n", &format!("Host: x\r\n{field}\r\n"), 1);
            assert_eq!(front.ask(through).head.get("x-warmfront-explain"), None, "{field}");
        }
    }
}
