//! The simulated engine answers with the bytes that vLLM 0.32.0 was recorded to send, but for text,
//! counts, ids and dates; and it behaves as vLLM does when clients leave or come too many at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmfront::engine::profile::Profile;
use warmfront::engine::pump::{Engine, Settings};
use warmfront::engine::request::Serving;
use warmfront::engine::server;

/// A runtime with an engine on it.
struct Running {
    engine: Arc<Engine>,
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

fn start(change: impl FnOnce(&mut Settings)) -> Running {
    let mut settings = Settings {
        serving: Serving { models: vec!["tiny-llama".into()], output_tokens: 16 },
        time_scale: 100.0,
        prompt_tokens_details: false,
        ..Settings::default()
    };
    change(&mut settings);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let engine = Engine::new(settings);
    runtime.spawn(server::serve(Arc::clone(&engine), listener));
    Running { engine, address, _runtime: runtime }
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Status line, field names in lower case, and body chunks (one if it is length-delimited).
struct Reply {
    status: String,
    fields: Vec<String>,
    chunks: Vec<Vec<u8>>,
}

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/engine/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// A reply, if `bytes` hold all of it.
fn reply(bytes: &[u8]) -> Option<Reply> {
    let head_end = find(bytes, b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut rest = &bytes[head_end + 4..];
    let mut lines = head.split("\r\n").map(str::to_owned);
    let status = lines.next().unwrap();
    let fields: Vec<String> = lines.map(|line| line.to_ascii_lowercase()).collect();
    let mut chunks = Vec::new();
    if fields.iter().any(|field| field == "transfer-encoding: chunked") {
        loop {
            let line = find(rest, b"\r\n")?;
            let size = std::str::from_utf8(&rest[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            let chunk = rest.get(line + 2..line + 2 + size)?;
            rest = rest.get(line + 4 + size..)?;
            if size == 0 {
                break;
            }
            chunks.push(chunk.to_vec());
        }
    } else {
        let length = fields.iter().find_map(|field| field.strip_prefix("content-length: "))?;
        chunks.push(rest.get(..length.parse().unwrap())?.to_vec());
    }
    let mut names: Vec<String> = fields.iter().map(|field| field.split(':').next().unwrap().to_owned()).collect();
    names.sort();
    Some(Reply { status, fields: names, chunks })
}

fn exchange(address: SocketAddr, request: &[u8]) -> Reply {
    let mut socket = connect(address);
    socket.write_all(request).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        if let Some(reply) = reply(&bytes) {
            return reply;
        }
        let count = socket.read(&mut buffer).unwrap();
        assert!(count > 0, "closed early: {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// JSON text with every string value and number made equal; keys, nulls and order stay. Values that
/// are part of the protocol stay too.
fn skeleton(bytes: &[u8]) -> String {
    let keep = ["chat.completion", "chat.completion.chunk", "text_completion", "assistant", "length", "stop"];
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '"' {
            let mut string = String::new();
            while let Some(c) = chars.next() {
                match c {
                    '\\' => string.extend(chars.next()),
                    '"' => break,
                    c => string.push(c),
                }
            }
            let kept = chars.peek() == Some(&':') || string.is_empty() || keep.contains(&string.as_str());
            out.push_str(if kept { &string } else { "_" });
            out.push('"');
        } else if c.is_ascii_digit() {
            while chars.next_if(|c| c.is_ascii_digit() || *c == '.').is_some() {}
            out.push('0');
        } else {
            out.push(c);
        }
    }
    out
}

/// Skeletons of a reply's chunks, equal neighbours as one: replies differ in length.
fn shape(reply: &Reply) -> Vec<String> {
    let mut shape: Vec<String> = reply.chunks.iter().map(|chunk| skeleton(chunk)).collect();
    shape.dedup();
    shape
}

#[test]
fn replies_have_the_recorded_shape() {
    let plain = start(|_| {});
    let detailed = start(|settings| settings.prompt_tokens_details = true);
    let cases = [
        (&plain, "chat", "chat"),
        (&plain, "chat-stream", "chat-stream"),
        (&plain, "chat-stream-usage", "chat-stream-usage"),
        (&plain, "chat-stream-usage-continuous", "chat-stream-usage-continuous"),
        (&plain, "completion", "completion"),
        (&plain, "completion-batch", "completion-batch"),
        (&plain, "completion-token-ids", "completion-token-ids"),
        (&plain, "models", "models"),
        (&plain, "version", "version"),
        (&detailed, "chat", "chat-details"),
        (&detailed, "chat-stream-usage", "chat-stream-details"),
    ];
    for (running, request, recorded) in cases {
        let ours = exchange(running.address, &fixture(&format!("{request}.request")));
        let theirs = reply(&fixture(&format!("{recorded}.response"))).unwrap();
        assert_eq!(ours.status, theirs.status, "{recorded}");
        let mut fields = theirs.fields.clone();
        fields.retain(|name| name != "x-request-id");
        assert_eq!(ours.fields, fields, "{recorded}");
        assert_eq!(shape(&ours), shape(&theirs), "{recorded}");
    }
}

/// A recorded token may be half a character, whose event is empty; ours never are.
#[test]
fn completion_streams_have_the_recorded_shape() {
    let running = start(|_| {});
    let ours = exchange(running.address, &fixture("completion-stream.request"));
    let mut theirs = reply(&fixture("completion-stream.response")).unwrap();
    theirs.chunks.retain(|chunk| find(chunk, b"\"text\":\"\"").is_none());
    assert_eq!(shape(&ours), shape(&theirs));
    assert_eq!(ours.chunks.len(), 16 + 2, "16 tokens, usage, [DONE]");
}

#[test]
fn refusals_are_the_recorded_bytes() {
    let running = start(|_| {});
    let names = [
        "err-404",
        "err-405",
        "err-bad-json",
        "err-bad-param",
        "err-content-type",
        "err-context-maxtok",
        "err-empty-body",
        "err-missing-messages",
        "err-unknown-model",
        "err-wrong-type",
    ];
    for name in names {
        let ours = exchange(running.address, &fixture(&format!("{name}.request")));
        let theirs = reply(&fixture(&format!("{name}.response"))).unwrap();
        assert_eq!(ours.status, theirs.status, "{name}");
        assert_eq!(ours.fields, theirs.fields, "{name}");
        assert_eq!(String::from_utf8_lossy(&ours.chunks[0]), String::from_utf8_lossy(&theirs.chunks[0]), "{name}");
    }
}

#[test]
fn a_prompt_of_20000_tokens_is_refused_in_the_recorded_words() {
    let running = start(|_| {});
    let body = format!("{{\"model\":\"tiny-llama\",\"prompt\":[7{}]}}", ", 7".repeat(19_999));
    let ours = exchange(running.address, &post("/v1/completions", &body));
    assert_eq!(ours.status, "HTTP/1.1 400 Bad Request");
    let words = "This model's maximum context length is 16384 tokens. However, your prompt contains 20000 input tokens, \
                 which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. \
                 (parameter=input_tokens, value=20000)";
    assert!(String::from_utf8_lossy(&ours.chunks[0]).contains(words));
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn wait_for(what: &str, mut test: impl FnMut() -> bool) {
    let start = Instant::now();
    while !test() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const LONG: &str = r#"{"prompt":"abcd","max_tokens":16000,"stream":STREAM}"#;

#[test]
fn a_client_that_leaves_ends_its_request_in_any_phase() {
    // Clients leave in a stream, in an unstreamed reply, and in the queue behind both.
    let running = start(|settings| {
        settings.time_scale = 1.0;
        settings.profile = Profile { max_num_seqs: 2, ..Profile::default() };
    });
    let mut sockets: Vec<TcpStream> = ["true", "false", "true", "false"]
        .iter()
        .map(|stream| {
            let mut socket = connect(running.address);
            let body = LONG.replace("STREAM", stream);
            socket.write_all(&post("/v1/completions", &body)).unwrap();
            socket
        })
        .collect();
    let state = || {
        let figures = running.engine.figures();
        (figures.running, figures.waiting)
    };
    wait_for("two run, two wait", || state() == (2, 2));
    drop(sockets.pop());
    drop(sockets.pop());
    wait_for("the queue is empty", || state() == (2, 0));
    drop(sockets);
    wait_for("nothing runs", || state() == (0, 0));
    assert_eq!(running.engine.figures().ends.abort, 4);
    assert_eq!(running.engine.figures().kv_usage, 0.0);
}

#[test]
fn a_restart_cuts_replies_in_whatever_form() {
    let running = start(|settings| settings.time_scale = 1.0);
    let ask = |stream| {
        let mut socket = connect(running.address);
        socket.write_all(&post("/v1/completions", &LONG.replace("STREAM", stream))).unwrap();
        socket
    };
    let (mut streamed, mut whole) = (ask("true"), ask("false"));
    wait_for("both run", || running.engine.figures().running == 2);
    running.engine.restart();
    let mut bytes = Vec::new();
    whole.read_to_end(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), "", "nothing, as where an engine dies");
    streamed.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200") && !bytes.ends_with(b"0\r\n\r\n") && find(&bytes, b"[DONE]").is_none());
}

#[test]
fn the_head_comes_before_queue_and_prefill_and_silence_is_broken_by_comments() {
    let running = start(|settings| {
        settings.time_scale = 1.0;
        settings.sse_keep_alive = Duration::from_millis(50);
        settings.profile = Profile { max_num_seqs: 1, ..Profile::default() };
    });
    let mut first = connect(running.address);
    first.write_all(&post("/v1/completions", &LONG.replace("STREAM", "true"))).unwrap();
    wait_for("the first runs", || running.engine.figures().running == 1);
    let mut second = connect(running.address);
    second.write_all(&post("/v1/completions", &LONG.replace("STREAM", "true"))).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    wait_for("two comments", || {
        let count = second.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..count]);
        bytes.ends_with(b"E\r\n: keep-alive\n\n\r\nE\r\n: keep-alive\n\n\r\n")
    });
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert_eq!(running.engine.figures().waiting, 1);
}

#[test]
fn a_full_queue_answers_with_the_recorded_503() {
    let running = start(|settings| {
        settings.time_scale = 1.0;
        settings.profile = Profile { max_num_seqs: 1, max_num_queued_reqs: 2, ..Profile::default() };
    });
    let mut held = Vec::new();
    for place in 0..3 {
        let mut socket = connect(running.address);
        socket.write_all(&post("/v1/completions", &LONG.replace("STREAM", "true"))).unwrap();
        held.push(socket);
        wait_for("its place", || {
            let figures = running.engine.figures();
            figures.running + figures.waiting == place + 1 && figures.running == 1
        });
    }
    let ours = exchange(running.address, &post("/v1/completions", &LONG.replace("STREAM", "false")));
    let theirs = reply(&fixture("rejected-plain.response")).unwrap();
    assert_eq!(ours.status, theirs.status);
    assert_eq!(ours.fields, theirs.fields);
    assert_eq!(ours.chunks, theirs.chunks);
}

#[test]
fn the_next_turn_of_a_conversation_reports_what_was_cached() {
    let running = start(|settings| settings.prompt_tokens_details = true);
    let ask = |messages: &serde_json::Value| {
        let body = serde_json::json!({"messages": messages, "max_tokens": 64}).to_string();
        let reply = exchange(running.address, &post("/v1/chat/completions", &body));
        serde_json::from_slice::<serde_json::Value>(&reply.chunks[0]).unwrap()
    };
    let question = "what is the meaning of this? ".repeat(20);
    let mut messages = serde_json::json!([{"role": "user", "content": question}]);
    let first = ask(&messages);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let said = first["choices"][0]["message"]["content"].as_str().unwrap();
    messages.as_array_mut().unwrap().extend([
        serde_json::json!({"role": "assistant", "content": said}),
        serde_json::json!({"role": "user", "content": "and of that?"}),
    ]);
    let known = first["usage"]["total_tokens"].as_u64().unwrap();
    let next = ask(&messages);
    let cached = next["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    // All full blocks of the first turn, whose last token was never computed.
    assert_eq!(cached, (known - 1) / 16 * 16);
}

#[test]
fn keys_are_asked_on_v1_alone() {
    let running = start(|settings| settings.api_key = Some("secret".into()));
    let get = |path: &str, field: &str| {
        exchange(running.address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n{field}\r\n").as_bytes()).status
    };
    assert_eq!(get("/v1/models", ""), "HTTP/1.1 401 Unauthorized");
    assert_eq!(get("/v1/models", "Authorization: Bearer secret\r\n"), "HTTP/1.1 200 OK");
    assert_eq!(get("/metrics", ""), "HTTP/1.1 200 OK");
    assert_eq!(get("/health", ""), "HTTP/1.1 200 OK");
}

#[test]
fn idle_connections_close() {
    // The request has to come within that time.
    let running = start(|settings| settings.idle_timeout = Duration::from_secs(3));
    let mut socket = connect(running.address);
    socket.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(find(&bytes, b"408").is_none());
}

/// A front that chooses among ranks needs each to have a cache and series of its own, and to take the requests that
/// name it.
#[test]
fn ranks_behind_one_port_are_named_by_a_field() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let ranks: Vec<_> = (0..2).map(|_| Engine::new(Settings { time_scale: 100.0, ..Settings::default() })).collect();
    runtime.spawn(server::serve_ranks(ranks.clone().into(), listener));
    let body = format!("{{\"model\":\"llama-3.1-8b\",\"prompt\":\"{}\",\"max_tokens\":1}}", "warm ".repeat(200));
    let ask = |rank: &str| {
        let head = format!("POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Data-Parallel-Rank: {rank}\r\n");
        exchange(address, format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    };
    let hits = || ranks.iter().map(|rank| rank.figures().counts.prefix_hits).collect::<Vec<_>>();
    assert!((0..2).all(|_| ask("1").status.contains(" 200 ")));
    assert!(hits()[0] == 0 && hits()[1] > 0, "{:?}", hits());
    assert_eq!(ranks[0].figures().counts.prompt, 0, "all of it went to the other");
    let refused = ask("2");
    let words = String::from_utf8(refused.chunks.concat()).unwrap();
    assert!(
        refused.status.contains(" 400 ") && words.contains("data_parallel_rank 2 is out of range [0, 2)"),
        "{words}"
    );
    let page = exchange(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").chunks.concat();
    let page = String::from_utf8(page).unwrap();
    assert!((0..2).all(|rank| page.contains(&format!("vllm:num_requests_running{{engine=\"{rank}\""))), "{page}");
}
