//! Exchanges recorded from vLLM 0.32.0, replayed: a client gets through the front what it gets without it.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::PathBuf;

use crate::client::{Client, Reply, get};
use crate::engine::Engine;
use crate::front::{Front, PATIENCE};
use warmfront::policy::Policy;
use warmfront::scan::PrefixMode;

/// Fields of a reply that are the connection's, or the front's own addition.
const NOT_COMPARED: [&str; 4] = ["connection", "transfer-encoding", "content-length", "x-request-id"];

/// vLLM's side of an exchange, or a client's.
pub fn recording(name: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/vllm-0.32.0", name].iter().collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn names() -> BTreeSet<String> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/vllm-0.32.0"].iter().collect();
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    files.filter_map(|name| name.strip_suffix(".request").map(str::to_owned)).collect()
}

/// Answers every request with the recorded bytes, in pieces of the size that its turn has.
fn replaying(response: Vec<u8>, pieces: &'static [usize]) -> Engine {
    // uvicorn closes behind the reply to HTTP/1.0, and where it was asked to.
    let closes = crate::wire::find(&response, b"\r\nconnection: close\r\n").is_some();
    Engine::run(move |mut connection| {
        for turn in connection.number.. {
            if connection.request().is_none() {
                break;
            }
            connection.send_pieces(&response, pieces[turn % pieces.len()]);
            if closes {
                break;
            }
        }
    })
}

fn final_reply(client: &mut Client) -> Reply {
    loop {
        let reply = client.reply();
        if reply.status != 100 {
            return reply;
        }
    }
}

fn compared(reply: &Reply) -> Vec<(String, String)> {
    let fields = reply.head.fields.iter();
    fields.filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str())).cloned().collect()
}

fn same(name: &str, pieces: &'static [usize], policy: Policy, prefix: PrefixMode) {
    let request = recording(&format!("{name}.request"));
    let old = crate::wire::find(&request, b" HTTP/1.0\r\n").is_some();
    let engine = replaying(recording(&format!("{name}.response")), pieces);
    let stream = TcpStream::connect(engine.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut direct = Client::new(stream);
    direct.send(&request);
    let expected = final_reply(&mut direct);
    let front = Front::with(&[engine.address], |options| {
        options.settings.policy = policy;
        options.settings.prefix = prefix;
    });
    for turn in 0..=pieces.len() {
        let mut client = front.connect();
        client.send(&request);
        let reply = final_reply(&mut client);
        let context = format!("{name}, turn {turn}");
        assert_eq!(reply.head.start, expected.head.start, "{context}");
        assert_eq!(compared(&reply), compared(&expected), "{context}");
        assert!(reply.body == expected.body, "{context}: {}", reply.text());
        assert!(reply.whole && expected.whole, "{context}");
        if !old {
            // One event, one chunk: also on this side.
            assert_eq!(reply.chunks, expected.chunks, "{context}");
            assert_eq!(reply.closes(), expected.closes(), "{context}");
        }
    }
    let requests = engine.requests();
    assert_eq!(requests.len(), pieces.len() + 2, "{name}");
    for seen in &requests[1..] {
        assert!(seen.body == requests[0].body, "{name}");
        assert_eq!(seen.path(), requests[0].path(), "{name}");
    }
    front.settles();
}

fn all(pieces: &'static [usize], policy: Policy, prefix: PrefixMode) {
    let names = names();
    assert!(names.len() > 25, "the recordings are there");
    names.iter().for_each(|name| same(name, pieces, policy, prefix));
}

#[test]
fn replies_in_large_pieces() {
    all(&[usize::MAX, 1_000], Policy::RoundRobin, PrefixMode::FirstUser);
}

#[test]
fn replies_in_small_pieces_behind_scanned_requests() {
    all(&[97, 13], Policy::PrefixHash, PrefixMode::FirstUser);
}

#[test]
fn replies_byte_by_byte() {
    for name in ["chat-stream", "completion", "err-unknown-model-stream", "hdr-http10", "hdr-expect-continue"] {
        same(name, &[1], Policy::PrefixHash, PrefixMode::Conversation);
    }
}

/// What broke off at the engine breaks off at the client, behind the same bytes.
#[test]
fn broken_streams_stay_broken() {
    for name in ["sigterm.stream", "waiting-stream", "sigkill-engine-core.stream", "rejected-stream"] {
        let response = recording(&format!("{name}.response"));
        let engine = Engine::closing_after(response.clone());
        let request = recording("chat-stream.request");
        let mut direct = Client::new(TcpStream::connect(engine.address).unwrap());
        let expected = direct.ask(&request);
        let front = Front::start(&[engine.address]);
        let reply = front.ask(&request);
        assert!(reply.body == expected.body, "{name}");
        assert_eq!((reply.status, reply.whole), (expected.status, expected.whole), "{name}");
        let whole = name.starts_with("sigkill") || name.starts_with("rejected");
        assert_eq!(reply.whole, whole, "{name}");
        front.settles();
    }
}

/// The end of a reply tells of tokens by the names of its API; a response that is only asked for again, nothing.
#[test]
fn tokens_are_read_by_the_names_of_each_api() {
    for (name, prompt, cached, completion) in [
        ("chat", 27, None, 16),
        ("completion", 4, None, 16),
        ("responses", 14, Some(0), 16),
        ("responses-stream", 14, Some(0), 16),
        ("messages", 14, None, 16),
        ("messages-stream", 14, None, 16),
    ] {
        let engine = replaying(recording(&format!("{name}.response")), &[usize::MAX, 61]);
        let front = Front::with(&[engine.address], |options| options.rules.access_log = true);
        let mut client = front.connect();
        for _ in 0..2 {
            assert_eq!(client.ask(recording(&format!("{name}.request"))).status, 200);
        }
        assert_eq!(client.ask(get("/v1/responses/resp_1")).status, 200);
        front.settles();
        let told = front.told();
        assert_eq!(told, [2 * prompt, 0, 2 * completion], "{name}");
        let records: Vec<_> = front.records().iter().map(|told| (told.cached_tokens, told.completion_tokens)).collect();
        let told = (cached, Some(completion as u32));
        assert_eq!(records, [told, told, (None, None)], "{name}");
    }
}
