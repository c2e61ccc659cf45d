//! Uploads of audio name their model in a form, or in the query, and go to its engines.

use warmfront::policy::Policy;

use crate::client::{chunked, get, post};
use crate::engine::{Engine, ok, reporting};
use crate::front::{Front, republish};

const PATH: &str = "/v1/audio/transcriptions";
/// What is held of a body in these tests.
const HOLD: usize = 64 << 10;

fn front(policy: Policy) -> ([Engine; 2], Front) {
    let engines = [Engine::answering(ok("llm's")), Engine::answering(ok("whisper's"))];
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("llm", vec![0]), ("org/whisper", vec![1])];
        options.settings.policy = policy;
        options.rules.limits.hold_bytes = HOLD;
    });
    (engines, front)
}

fn field(name: &str, value: &str) -> Vec<u8> {
    format!("--b-0\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into()
}

/// A file's part in which delimiters begin but are not whole.
fn file(bytes: usize) -> Vec<u8> {
    let head =
        "--b-0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\nContent-Type: audio/wav\r\n\r\n";
    let audio = b"RIFF\r\n--b-\r\0\xff".repeat(bytes / 13);
    [head.as_bytes(), &audio, b"\r\n"].concat()
}

fn form(parts: &[Vec<u8>]) -> Vec<u8> {
    [&parts.concat()[..], b"--b-0--\r\n"].concat()
}

fn typed(request: &[u8]) -> Vec<u8> {
    let line = "\r\nContent-Type: multipart/form-data; boundary=b-0\r\n";
    let at = request.windows(2).position(|pair| pair == b"\r\n").unwrap();
    [&request[..at], line.as_bytes(), &request[at + 2..]].concat()
}

/// A form's request in one piece, and in chunks.
fn uploads(path: &str, body: &[u8]) -> [Vec<u8>; 2] {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    let in_chunks = [head.as_bytes(), &chunked(body, 10_000)].concat();
    [typed(&post(path, body)), typed(&in_chunks)]
}

#[test]
fn a_form_goes_where_its_model_is_served() {
    for policy in [Policy::RoundRobin, Policy::Warm, Policy::Session] {
        let (engines, front) = front(policy);
        let mut client = front.connect();
        let model = |name| field("model", name);
        for (name, text, engine) in [("llm", "llm's", 0), ("org/whisper", "whisper's", 1)] {
            // openai-python writes fields before files, openai-node, curl and browsers in the order in which they are
            // given: mostly the file first.
            for parts in [
                [field("language", "en"), model(name), file(1_000)],
                [file(1_000), model(name), field("language", "en")],
                [file(HOLD - 1_000), model(name), Vec::new()],
                [model(name), file(3 << 20), Vec::new()],
                [file(3 << 20), model(name), Vec::new()],
            ] {
                let body = form(&parts);
                for request in uploads(PATH, &body) {
                    assert_eq!(client.ask(request).text(), text, "{policy:?}");
                    assert!(engines[engine].requests().last().unwrap().body == body, "bytes are as they were");
                }
            }
        }
        for name in ["large-v3", "org/whisper "] {
            let reply = client.ask(&uploads(PATH, &form(&[file(100), model(name)]))[0]);
            let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            assert_eq!(reply.status, 404);
            assert_eq!(error["error"]["message"], format!("The model `{name}` does not exist."));
        }
        front.settles();
    }
}

/// A form may name no model, also behind a long file: it is for any engine.
#[test]
fn a_form_without_a_model_is_for_the_default() {
    let (_engines, front) = front(Policy::Warm);
    let silent = [form(&[file(1_000)]), form(&[file(2 * HOLD)]), b"rubbish".into()];
    let ask = |body: &[u8]| uploads(PATH, body).map(|request| front.ask(request).text());
    for body in &silent {
        assert_eq!(ask(body), ["llm's"; 2]);
    }
    republish(&front, |snapshot| snapshot.default_pool = Some(snapshot.pools[1].id));
    front.until("the default", |front| front.ask(get("/version")).text() == "whisper's");
    for body in &silent {
        assert_eq!(ask(body), ["whisper's"; 2]);
    }
    assert_eq!(ask(&form(&[field("model", "")])), ["whisper's"; 2]);
    assert_eq!(ask(&form(&[field("model", "llm")])), ["llm's"; 2]);
    front.settles();
}

/// As with requests without a body, such as `/v1/realtime?model=ID`.
#[test]
fn a_query_names_the_model_that_no_body_names() {
    let (_engines, front) = front(Policy::Warm);
    let ask = |request: &[u8]| front.ask(request).text();
    let long = form(&[file(2 * HOLD)]);
    for body in [form(&[file(1_000)]), long, b"RIFF".into(), b"{}".into()] {
        for request in uploads(&format!("{PATH}?x=y&model=org%2Fwhisper"), &body) {
            assert_eq!(ask(&request), "whisper's");
        }
    }
    assert_eq!(ask(&get("/v1/responses/resp_1?model=org/whisper")), "whisper's");
    assert_eq!(ask(&post("/v1/chat/completions?model=org/whisper", r#"{"messages":[]}"#)), "whisper's");
    // If the body names one as well, that one counts.
    let named = form(&[field("model", "llm"), file(100)]);
    assert_eq!(uploads(&format!("{PATH}?model=org/whisper"), &named).map(|request| ask(&request)), ["llm's"; 2]);
    assert_eq!(ask(&post("/detokenize?model=org/whisper", r#"{"model":"llm"}"#)), "llm's");
    let reply = front.ask(get("/v1/responses/resp_1?model=nobody%27s"));
    assert_eq!(reply.status, 404);
    assert!(reply.text().contains("The model `nobody's` does not exist."), "{}", reply.text());
    let reply = front.ask(get(&format!("/v1/responses/resp_1?model={}", "m".repeat(257))));
    assert!(reply.status == 404 && reply.text().contains("(a name of more than 256 bytes)"), "{}", reply.text());
    front.settles();
}

/// Once the model is known, the rest of an upload is not held, though chats of that pool may have to wait for room.
#[test]
fn an_upload_is_with_its_engine_before_its_end() {
    let (engine, has_begun) = reporting(|mut connection, begun| {
        let head = connection.head().unwrap();
        begun.send(()).unwrap();
        connection.body(head);
        connection.send(ok("whisper's"));
    });
    let llm = Engine::answering(ok("llm's"));
    let front = Front::with(&[llm.address, engine.address], |options| {
        options.pools = vec![("llm", vec![0]), ("org/whisper", vec![1])];
        options.settings.policy = Policy::Warm;
    });
    let body = form(&[field("model", "org/whisper"), file(200_000)]);
    let [request, _] = uploads(PATH, &body);
    let mut client = front.connect();
    let (first, rest) = request.split_at(50_000);
    client.send(first);
    has_begun.recv_timeout(crate::front::PATIENCE).expect("the engine saw nothing before the body's end");
    client.send(rest);
    assert_eq!(client.reply().text(), "whisper's");
    assert!(engine.requests()[0].body == body);
    front.settles();
}
