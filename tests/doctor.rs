//! `warmfront doctor` as a process: before simulated engines, engines written by hand that offer this and that, and servers
//! that send what none should.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A process that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn warmfront(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn doctor(engines: &[&str], flags: &[&str]) -> Output {
    let mut command = warmfront(&["doctor"]);
    for engine in engines {
        command.args(["--upstream", &format!("http://{engine}")]);
    }
    // Longer than anybody here stands still that is to answer.
    if !flags.contains(&"--timeout") {
        command.args(["--timeout", "20"]);
    }
    command.args(flags).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The report of one engine, as a program reads it.
fn examined(engine: &str, flags: &[&str]) -> Value {
    let output = doctor(&[engine], &[&["--json"], flags].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["engines"][0].clone()
}

/// The same, until these words are said of its events, three times at most: who publishes is listened to for a second,
/// and may stand still for longer.
fn listened_to(engine: &str, words: &str) -> Value {
    let mut report = examined(engine, HEARS);
    for _ in 1..3 {
        if found(&report, "events").1.contains(words) {
            break;
        }
        report = examined(engine, HEARS);
    }
    report
}

/// Mark and words of a finding.
fn found<'a>(engine: &'a Value, subject: &str) -> (&'a str, &'a str) {
    let finding = engine["findings"].as_array().unwrap().iter().find(|finding| finding["subject"] == subject);
    let finding = finding.unwrap_or_else(|| panic!("no {subject} in {engine:#}"));
    (finding["mark"].as_str().unwrap(), finding["words"].as_str().unwrap())
}

/// A policy that goes by what engines tell.
const HEARS: &[&str] = &["--policy", "precise"];

/// Where nobody listens, ever.
const NOBODY: &str = "127.0.0.1:1";

/// A simulated engine, and where it listens, as it says.
fn simulated(flags: &[&str]) -> (Running, String) {
    let all = [&["engine", "--model", "m", "--time-scale", "50", "--listen", "127.0.0.1:0"], flags].concat();
    let mut engine = Running(warmfront(&all).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(engine.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.split_once("http://").expect("where it listens").1.split(' ').next().unwrap().to_owned();
    (engine, address)
}

/// Gives each connection to `serve`, on a thread of its own.
fn listening(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(socket));
        }
    });
    address
}

/// The path that is asked for; none where the other side has left.
fn asked(socket: &mut TcpStream) -> Option<String> {
    Some(asked_with(socket)?.split(' ').nth(1)?.to_owned())
}

/// The whole head, likewise.
fn asked_with(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if socket.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// An engine that answers each path with a text, or 404.
fn engine(answers: &[(&'static str, String)]) -> String {
    let answers = answers.to_vec();
    listening(move |mut socket| {
        while let Some(path) = asked(&mut socket) {
            let body = answers.iter().find(|(known, _)| *known == path).map(|(_, body)| body.as_str());
            let (status, body) = body.map_or(("404 Not Found", "{}"), |body| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nkeep-alive: timeout=5\r\ncontent-length: {}\r\n\r\n", body.len());
            if socket.write_all((head + body).as_bytes()).is_err() {
                return;
            }
        }
    })
}

const VLLM_METRICS: &str = include_str!("fixtures/engine-metrics/vllm-0.32.0.txt");

fn vllm(more: &[(&'static str, String)]) -> String {
    let models = json!({"data": [{"id": "m", "max_model_len": 4096}]}).to_string();
    let usual =
        [("/version", r#"{"version":"0.32.0"}"#.to_owned()), ("/v1/models", models), ("/metrics", VLLM_METRICS.into())];
    // The first of a path is the answer.
    engine(&[more, &usual[..]].concat())
}

/// What vLLM 0.32 answers to `/kv_event_sources`.
fn sources(endpoint: &str, replay: Option<&str>, topic: &str) -> (&'static str, String) {
    let rank = json!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay,
        "buffer_steps": 10_000, "hwm": 100_000, "max_queue_size": 100_000, "topic": topic});
    ("/kv_event_sources", json!({ "0": rank }).to_string())
}

/// A publisher written from the recorded bytes of libzmq's, which sends `messages` to each subscriber.
fn publisher(messages: &[[Vec<u8>; 3]]) -> String {
    let greeting = recorded("wire-sub.s2c")[..91].to_vec();
    let mut bytes = Vec::new();
    for message in messages {
        for (place, frame) in message.iter().enumerate() {
            let more = u8::from(place < 2);
            bytes.push(more | 2);
            bytes.extend((frame.len() as u64).to_be_bytes());
            bytes.extend_from_slice(frame);
        }
    }
    listening(move |mut socket| {
        let _ = socket.write_all(&greeting);
        // Greeting, READY and subscription of an empty topic or more.
        let mut asked = [0; 103];
        if socket.read_exact(&mut asked).is_ok() {
            let _ = socket.write_all(&bytes);
            let _ = socket.read_to_end(&mut Vec::new());
        }
    })
}

fn recorded(name: &str) -> Vec<u8> {
    let room = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv-events/sha256-int");
    std::fs::read(room.join(name)).unwrap()
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1
}

const FLAG: &str = r#"--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"#;

#[test]
fn an_engine_that_offers_all_needs_no_change() {
    let (_engine, address) = simulated(&[]);
    let output = doctor(&[&address], &["--ask"]);
    let report = text(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    for line in [
        "ok      server         vLLM 0.32.0",
        "ok      models         m; context of 16384 tokens",
        "ok      tokenizer      none is needed: policy \"precise\" would need one",
        "ok      cache          prefixes are cached; 5500 blocks of 16 tokens: 88000 tokens",
        "ok      metrics        running, waiting, KV use and prefix hits are told",
        "ok      ranks          one behind this port",
        "unknown events         not told (it has no /kv_event_sources, as before vLLM 0.30);",
        "                       if it publishes, write kv_events = \"tcp://127.0.0.1:5557\" below its `url`;",
        "                       none are needed: policy \"precise\" would hear them",
        "ok      clock          as ours",
        &format!("{address}: nothing to change"),
    ] {
        assert!(report.lines().any(|printed| printed == line), "{line}\nis not in\n{report}");
    }
    assert!(report.contains("ok      cached_tokens  replies say it: "), "{report}");
    assert!(report.ends_with(&format!("{address}: nothing to change\n")), "{report}");
}

#[test]
fn nothing_is_computed_unless_wanted() {
    let (_engine, address) = simulated(&["--no-prompt-tokens-details"]);
    let computed = || {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        let line = page.lines().find(|line| line.starts_with("vllm:prefix_cache_queries_total")).unwrap().to_owned();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let output = doctor(&[&address], &[]);
    assert_eq!((output.status.code(), computed()), (Some(0), 0.0), "{}", text(&output));
    assert!(text(&output).contains("unknown cached_tokens  not asked; --ask"));
    let output = doctor(&[&address], &["--ask"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(computed() > 100.0);
    assert!(
        text(&output).ends_with(&format!("{address}: add\n    --enable-prompt-tokens-details\n")),
        "{}",
        text(&output)
    );
}

/// As a Service or nginx before them would have it.
#[test]
fn several_engines_at_one_address_are_told_of() {
    let of = |processes: usize| {
        let turn = AtomicUsize::new(0);
        listening(move |mut socket| {
            let process = turn.fetch_add(1, Ordering::Relaxed) % processes;
            while let Some(path) = asked(&mut socket) {
                let body = match path.as_str() {
                    "/version" => r#"{"version":"0.32.0"}"#.to_owned(),
                    "/metrics" => VLLM_METRICS
                        .replace("process_start_time_seconds 1", &format!("process_start_time_seconds {process}1")),
                    _ => "{}".to_owned(),
                };
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                if socket.write_all((head + &body).as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    let report = text(&doctor(&[&of(3)], &[]));
    assert!(report.contains("advice  address        engines with different process_start_time_seconds"), "{report}");
    let report = text(&doctor(&[&of(1)], &[]));
    assert!(!report.contains("process_start_time_seconds"), "{report}");
}

#[test]
fn a_key_is_sent_where_a_file_names_it() {
    let (_engine, address) = simulated(&["--api-key", "secret"]);
    let output = doctor(&[&address], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("advice  models         it asks for a key; name a file"), "{}", text(&output));
    let room = Room::new("key");
    std::fs::write(room.0.join("key"), "secret\n").unwrap();
    let key = room.0.join("key");
    let output =
        room.doctor(&format!("[[upstream]]\nurl = \"http://{address}\"\napi_key_file = \"{}\"\n", key.display()));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!text(&output).contains("secret"));
    // What only the unit can read is no fault, and no silence of the engine's.
    let keyed =
        |file: &str| room.doctor(&format!("[[upstream]]\nurl = \"http://{address}\"\napi_key_file = \"{file}\"\n"));
    for (file, code, line) in [
        ("/run/credentials/warmfront.service/none", 0, "unknown key            cannot use the key of "),
        ("/nowhere/key", 1, "advice  key            cannot use the key of "),
    ] {
        let output = keyed(file);
        let report = text(&output);
        assert!(output.status.code() == Some(code) && report.contains(line), "{report}");
        assert!(
            report.contains("ok      cache ") && report.contains("unknown models         told only with its key"),
            "{report}"
        );
        assert!(!report.contains("does not answer"), "{report}");
    }
}

/// A folder of a test's own.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let room = std::env::temp_dir().join(format!("warmfront-doctor-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&room).unwrap();
        Room(room)
    }

    /// With this configuration, and `--ask`.
    fn doctor(&self, config: &str) -> Output {
        let file = self.0.join("warmfront.toml");
        std::fs::write(&file, config).unwrap();
        warmfront(&["doctor", "--ask", "--timeout", "20", "--config", file.to_str().unwrap()]).output().unwrap()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_configuration_says_where_events_are_and_what_words_mean() {
    let (_engine, address) = simulated(&[]);
    let silent = publisher(&[]);
    let room = Room::new("precise");
    let folder = room.0.display();
    let upstream = |keys: &str| format!("[[upstream]]\nurl = \"http://{address}\"\n{keys}\n");
    let line = |report: String, subject: &str| {
        report.lines().find(|line| line.get(8..).is_some_and(|rest| rest.starts_with(subject))).unwrap().to_owned()
    };
    let precise = |routing: &str| format!("[routing]\npolicy = \"precise\"\n{routing}\n{}", upstream(""));
    let unnamed = room.doctor(&precise(""));
    assert_eq!(unnamed.status.code(), Some(1));
    assert!(line(text(&unnamed), "tokenizer").starts_with("advice  tokenizer      none is named for m,"));
    let named = format!("tokenizer = \"{folder}\"");
    let expected = format!("advice  tokenizer      {folder} has no tokenizer.json that can be read here");
    assert_eq!(line(text(&room.doctor(&precise(&named))), "tokenizer"), expected);
    std::fs::write(room.0.join("tokenizer.json"), "{}").unwrap();
    assert_eq!(line(text(&room.doctor(&precise(&named))), "tokenizer"), format!("ok      tokenizer      {folder}"));
    // The simulated engine does not say where it publishes; the silence of what is said to be it is strange behind a
    // prompt.
    let expected =
        format!("advice  events         published at tcp://{silent}; connected, but nothing was heard of the prompt");
    // At best of three times: it has a second to let itself be connected to.
    let keys = format!("kv_events = \"tcp://{silent}\"");
    let at = || {
        let routing = "[routing]\npolicy = \"least-load\"\nshadow_policy = \"precise\"\n";
        line(text(&room.doctor(&(routing.to_owned() + &upstream(&keys)))), "events")
    };
    assert!((0..3).any(|_| at().starts_with(&expected)), "{}", at());
    let off = text(&room.doctor(&upstream("kv_events = \"off\"")));
    assert!(line(off, "events").starts_with("unknown events         kv_events is \"off\""));
    let awaited = text(&room.doctor(&upstream("kv_events = \"tcp://*:5557\"")));
    assert!(line(awaited, "events").starts_with("unknown events         the front waits at tcp://*:5557"));
}

#[test]
fn events_are_listened_to() {
    let topic = "kv@127.0.0.1:9100@tiny-llama";
    let message = [topic.into(), vec![0; 8], recorded("0000.f2")];
    let (talking, silent) = (publisher(&[message]), publisher(&[]));
    let asked_again = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked_again);
    let replay = listening(move |mut socket| {
        let bytes = socket.read_to_end(&mut Vec::new()).unwrap_or(0);
        counted.fetch_add(bytes, Ordering::SeqCst);
    });
    let ends = |events: &str| [format!("tcp://*:{}", port(events)), format!("tcp://*:{}", port(&replay))];
    let [events, replays] = ends(&talking);
    let heard = listened_to(&vllm(&[sources(&events, Some(&replays), topic)]), "and heard:");
    let (mark, words) = found(&heard, "events");
    let expected =
        format!("published at tcp://{talking}, topic {topic}; connected, and heard: events in the first message ");
    assert!(mark == "ok" && words.starts_with(&expected) && words.ends_with(", fields by name"), "{words}");
    assert_eq!(found(&heard, "replay").0, "ok");
    assert_eq!((&heard["add"], asked_again.load(Ordering::SeqCst)), (&json!([]), 0), "a replay is work for the engine");
    let [events, replays] = ends(&silent);
    let quiet = listened_to(&vllm(&[sources(&events, Some(&replays), "")]), "Nothing heard");
    let (mark, words) = found(&quiet, "events");
    assert!(mark == "ok" && words.contains("Nothing heard within a second"), "{words}");
}

#[test]
fn events_that_cannot_be_heard_are_advised_on() {
    let closed = examined(&vllm(&[sources(&format!("tcp://*:{}", port(NOBODY)), None, "")]), HEARS);
    let (mark, words) = found(&closed, "events");
    assert!(
        mark == "advice" && words.contains(&format!("rank 0 cannot be heard from here at tcp://{NOBODY}")),
        "{words}"
    );
    let garbage = listening(|mut socket| {
        let _ = socket.write_all(&[b'x'; 4_096]);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let at = sources(&format!("tcp://*:{}", port(&garbage)), None, "");
    let other = listened_to(&vllm(&[at]), "it does not speak ZMTP");
    assert!(found(&other, "events").1.contains("it does not speak ZMTP"), "{other:#}");
    let nonsense = publisher(&[[Vec::new(), vec![0; 8], b"\xc1".to_vec()]]);
    let at = sources(&format!("tcp://*:{}", port(&nonsense)), None, "");
    let unread = listened_to(&vllm(&[at]), "a message makes no sense");
    let (mark, words) = found(&unread, "events");
    assert!(mark == "advice" && words.contains("a message makes no sense"), "{words}");
}

#[test]
fn the_flag_keeps_what_the_engine_has() {
    let silent = publisher(&[]);
    let at = format!("tcp://*:{}", port(&silent));
    let plain = examined(&vllm(&[sources(&at, None, "kv@a:1@m")]), HEARS);
    assert_eq!(found(&plain, "replay").0, "advice");
    let flag = FLAG.replace("tcp://*:5557", &at).replace("\"}'", "\", \"topic\": \"kv@a:1@m\"}'");
    let replay: u32 = port(&silent).parse::<u32>().unwrap() + 1;
    assert_eq!(plain["add"], json!([flag.replace("5558", &replay.to_string())]));
    // A topic that a shell would act on is in no line to copy.
    let hostile = examined(&vllm(&[sources(&at, None, "'; reboot; '")]), HEARS);
    assert_eq!((found(&hostile, "replay").0, &hostile["add"]), ("advice", &json!([])));
}

#[test]
fn who_does_not_publish_gets_the_flag() {
    let none =
        json!({"0": {"enable_kv_cache_events": false, "publisher": "null", "endpoint": "tcp://*:5557"}}).to_string();
    let [a, b] = [(); 2].map(|()| vllm(&[("/kv_event_sources", none.clone())]));
    let report = text(&doctor(&[&a, &b], HEARS));
    assert!(report.contains("whoever reaches these ports reads prompts"), "{report}");
    // Nobody listens under others, and the ports are open to all.
    let idle = text(&doctor(&[&a, &b], &[]));
    assert!(!idle.contains("--kv-events-config"), "{idle}");
    assert!(idle.contains("\nok      events         none are needed: policy \"precise\" would hear them\n"), "{idle}");
    let other = FLAG.replace("5557", "5559").replace("5558", "5560");
    assert!(report.ends_with(&format!("{a}: add\n    {FLAG}\n{b}: add\n    {other}\n")), "{report}");
    // Nor does it take those of another, which publishes.
    let publishes = vllm(&[sources("tcp://*:5557", Some("tcp://*:5558"), "")]);
    let report = text(&doctor(&[&publishes, &b], HEARS));
    assert!(report.ends_with(&format!("{b}: add\n    {other}\n")), "{report}");
    let ipc = examined(&vllm(&[sources("ipc:///tmp/kv", None, "")]), HEARS);
    assert!(found(&ipc, "events").1.contains("ipc:///tmp/kv") && ipc["add"] == json!([FLAG]), "{ipc:#}");
    let connects = examined(&vllm(&[sources("tcp://10.0.0.9:5557", None, "")]), HEARS);
    let (mark, words) = found(&connects, "events");
    assert!(mark == "advice" && words.contains("connecting to tcp://10.0.0.9:5557"), "{words}");
    assert!(words.contains("kv_events = \"@tcp://10.0.0.9:5557\"") && connects["add"] == json!([FLAG]), "{words}");
}

#[test]
fn sglang_is_told_its_own_flags() {
    let info = json!({"version": "0.5.4", "disable_radix_cache": true, "enable_cache_report": false, "page_size": 1, "dp_size": 2,
        "kv_events_config": null, "max_total_num_tokens": 5000, "context_length": 8192, "api_key": "secret"});
    let models = json!({"data": [{"id": "q"}]}).to_string();
    let address = engine(&[("/get_server_info", info.to_string()), ("/v1/models", models)]);
    let output = doctor(&[&address], HEARS);
    let report = text(&output);
    assert_eq!(output.status.code(), Some(1));
    for line in [
        "ok      server         SGLang 0.5.4",
        "ok      models         q; context of 8192 tokens",
        "advice  ranks          2 data-parallel ranks behind this port, each with a cache of its own: the engine spreads requests itself,",
        // Two ranks have two ports for each.
        r#"    --page-size 16 --enable-metrics --kv-events-config '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5559"}' --enable-cache-report"#,
        "    --disable-radix-cache",
    ] {
        assert!(report.lines().any(|printed| printed == line), "{line}\nis not in\n{report}");
    }
    assert!(!report.contains("secret"));
    // Its newer path, and a publisher by its own word.
    let silent = publisher(&[]);
    let config = json!({"publisher": "zmq", "endpoint": format!("tcp://*:{}", port(&silent))}).to_string();
    let info = json!({"disable_radix_cache": false, "kv_events_config": config});
    let newer = listened_to(&engine(&[("/server_info", info.to_string())]), "Nothing heard");
    assert_eq!((found(&newer, "events").0, found(&newer, "replay").0), ("ok", "advice"), "{newer:#}");
}

/// What it is compared with has no part in what a policy wants of engines, though a front could not compare the two.
#[test]
fn a_policy_is_asked_about_whatever_looks_on() {
    let path = std::env::temp_dir().join(format!("warmfront-doctor-{}.toml", std::process::id()));
    let shadows = "[routing]\nshadow_policy = \"warm\"\n[pool.m]\nshadow_policy = \"warm\"\n";
    std::fs::write(&path, format!("{shadows}[[upstream]]\nurl = \"http://{NOBODY}\"\n")).unwrap();
    let output = doctor(&[], &[&["--config", path.to_str().unwrap()], HEARS].concat());
    std::fs::remove_file(&path).unwrap();
    assert!(text(&output).starts_with(NOBODY), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("none of the engines answers"), "{output:?}");
}

/// vLLM caches wherever a model can; those of engines that only embed mostly cannot.
#[test]
fn a_cache_that_its_model_cannot_have_is_no_fault() {
    let metrics =
        || ("/metrics", VLLM_METRICS.replace("enable_prefix_caching=\"True\"", "enable_prefix_caching=\"False\""));
    let embeds = doctor(&[&vllm(&[metrics()])], &[]);
    assert_eq!(embeds.status.code(), Some(0), "{}", text(&embeds));
    assert!(text(&embeds).contains("unknown cache          prefixes are not cached"), "{}", text(&embeds));
    let generates = doctor(&[&vllm(&[metrics(), ("/v1/completions", String::new())])], &[]);
    assert_eq!(generates.status.code(), Some(1));
    assert!(text(&generates).contains("advice  cache          prefixes are not cached"), "{}", text(&generates));
    assert!(!text(&generates).contains("--enable-prefix"), "{}", text(&generates));
}

#[test]
fn an_engine_that_is_served_under_its_own_name_alone_is_advised_on() {
    let by_name = |all: bool| {
        listening(move |mut socket| {
            while let Some(head) = asked_with(&mut socket) {
                let is_known = all || head.contains("host: 127.0.0.1:");
                let (status, body) = match is_known && head.starts_with("GET /v1/models ") {
                    true => ("200 OK", r#"{"data":[{"id":"m"}]}"#),
                    false => ("404 Not Found", ""),
                };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                if socket.write_all((head + body).as_bytes()).is_err() {
                    return;
                }
            }
        })
    };
    let (mark, words) = {
        let engine = examined(&by_name(false), &[]);
        let (mark, words) = found(&engine, "host");
        (mark.to_owned(), words.to_owned())
    };
    assert!(mark == "advice" && words.contains("answers 404 under another `Host`"), "{mark} {words}");
    let engine = examined(&by_name(true), &[]);
    let findings = engine["findings"].to_string();
    assert!(findings.contains("models") && !findings.contains("Host"), "{findings}");
}

#[test]
fn ranks_behind_one_port_are_told() {
    let metrics = VLLM_METRICS.to_owned() + "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 0.0\n";
    let several = examined(&vllm(&[("/metrics", metrics)]), &[]);
    let (mark, words) = found(&several, "ranks");
    assert!(mark == "advice" && words.starts_with("2 data-parallel ranks"), "{words}");
}

#[test]
fn hostile_answers_are_bounded_and_shown_without_effect() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n";
    let flood = |begin: String, more: &'static [u8]| {
        listening(move |mut socket| {
            while asked(&mut socket).is_some() {
                let _ = socket.write_all(begin.as_bytes());
                while socket.write_all(more).is_ok() {}
            }
        })
    };
    let drip = |begin: String| {
        listening(move |mut socket| {
            while asked(&mut socket).is_some() {
                let _ = socket.write_all(begin.as_bytes());
                while socket.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        })
    };
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}\r\n\u{9b}31m";
    let models = json!({"data": [{"id": evil, "max_model_len": u64::MAX, "parent": {}}, {"id": 3}]}).to_string();
    let deep = "[".repeat(1 << 20);
    let engines = [
        // Bodies without end, heads without end, nothing, something now and then.
        flood(format!("{head}\r\n"), &[b'{'; 65_536]),
        flood(format!("{head}content-length: 99999999999\r\n\r\n"), b"vllm:num_requests_running 1\n"),
        flood(head.to_owned(), b"x: y\r\n"),
        listening(|mut socket| while asked(&mut socket).is_some() {}),
        drip(head.to_owned()),
        drip(format!("{head}\r\n")),
        // What is no HTTP, and what closes at once.
        flood("\u{1b}[2J\u{7}".into(), b"\x00\xff"),
        listening(drop),
        // HTTP that means harm.
        engine(&[
            ("/version", json!({"version": evil}).to_string()),
            ("/v1/models", models),
            (
                "/metrics",
                format!(
                    "vllm:num_requests_running{{engine=\"{evil}\"}} 1e300\nvllm:cache_config_info{{block_size=\"0\",num_gpu_blocks=\"{}\"}} 1\n",
                    u64::MAX
                ),
            ),
            (
                "/kv_event_sources",
                json!({"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": evil}}).to_string(),
            ),
        ]),
        engine(&[
            ("/version", deep.clone()),
            ("/v1/models", deep.clone()),
            ("/metrics", deep.clone()),
            ("/kv_event_sources", deep),
        ]),
        engine(&[(
            "/get_server_info",
            json!({"disable_radix_cache": 7, "page_size": 0, "dp_size": u64::MAX, "kv_events_config": evil})
                .to_string(),
        )]),
    ];
    let began = Instant::now();
    let urls: Vec<&str> = engines.iter().map(String::as_str).collect();
    let output = doctor(&urls, &["--ask", "--timeout", "2"]);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    let report = text(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    let unsafe_sign = report.chars().find(|sign| (sign.is_control() && *sign != '\n') || *sign == '\u{202e}');
    assert_eq!(unsafe_sign, None, "{report:?}");
    for engine in &engines {
        assert!(report.lines().any(|line| line == engine), "{engine} is not in\n{report}");
    }
    assert!(report.contains("\\u{1b}]0;owned\\u{7}") && output.stderr.is_empty(), "{report}");
    let document: Value = serde_json::from_slice(&doctor(&urls, &["--json", "--timeout", "1"]).stdout).unwrap();
    assert_eq!(document["engines"].as_array().unwrap().len(), engines.len());
}

#[test]
fn where_nothing_answers_the_status_says_so() {
    let output = doctor(&[NOBODY], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(text(&output).ends_with(&format!("{NOBODY}: does not answer\n")), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("warmfront: none of the engines answers"));
    let (_engine, address) = simulated(&[]);
    assert_eq!(doctor(&[NOBODY, &address], &["--ask"]).status.code(), Some(1), "one of two");
    assert_eq!(doctor(&[], &[]).status.code(), Some(78), "no engine is named");
    assert_eq!(doctor(&[&address], &["--timeout", "0"]).status.code(), Some(2));
}
