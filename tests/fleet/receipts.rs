//! Receipts: what became of a request and why it went where it went, asked by its id, on the admin listener and in
//! words.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::engine::{Engine, Mood};
use crate::front::{Client, Front};
use crate::{DRIVERS, fleet};

const WARM: &str = "[routing]\npolicy = \"warm\"\n[health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n";

fn ask(client: &mut Client, id: &str, text: &str) -> u16 {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"m"}}"#);
    let head = "POST /v1/chat/completions?key=secret HTTP/1.1\r\nhost: x\r\n";
    client.send(&format!("{head}x-request-id: {id}\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    client.reply().status
}

/// How long the front waits for its thread that keeps them.
const FRESH_WAIT: Duration = Duration::from_secs(1);

/// `GET /receipts` followed by `rest`. An answer that took the whole wait may lack the last requests, since that thread
/// stood still: only then it is asked again.
fn receipts(front: &Front, rest: &str) -> Vec<Value> {
    let mut answer = (0, String::new());
    for _ in 0..3 {
        let asked = Instant::now();
        answer = front.asks("GET", &format!("/receipts{rest}"), "");
        if asked.elapsed() < FRESH_WAIT {
            break;
        }
    }
    let (status, said) = answer;
    assert_eq!(status, 200, "{said}");
    serde_json::from_str(&said).unwrap()
}

fn ids(receipts: &[Value]) -> Vec<&str> {
    receipts.iter().map(|receipt| receipt["request_id"].as_str().unwrap()).collect()
}

fn explain(admin: SocketAddr, id: &str, more: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    let output =
        command.args(["explain", "--admin", &admin.to_string(), "--request-id", id]).args(more).output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(said).unwrap())
}

/// The figures are there the moment the reply is, and add up.
#[test]
fn a_request_can_be_asked_for_as_soon_as_it_is_answered() {
    for driver in DRIVERS {
        let (engines, front): ([Engine; 2], Front) = fleet(driver, WARM);
        let mut client = front.connect();
        let text = "words ".repeat(1_000);
        for id in ["first", "second"] {
            assert_eq!(ask(&mut client, id, &text), 200);
            let [receipt] = &receipts(&front, &format!("/{id}"))[..] else { panic!("one of {id}") };
            let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{receipt}"));
            let names: Vec<String> = engines.iter().map(|engine| engine.address.to_string()).collect();
            let of = |key: &str| names.iter().position(|name| receipt[key] == **name).unwrap();
            assert_ne!(of("endpoint"), of("runner_up"), "{receipt}");
            assert_eq!((number(&receipt["status"]), number(&receipt["tries"])), (200, 1));
            let (prompt, held) = (number(&receipt["prompt_tokens"]), number(&receipt["held_tokens"]));
            assert!(prompt > 1_400 && (held > 1_300) == (id == "second"), "{receipt}");
            assert_eq!(receipt["reason"], if id == "second" { "warm" } else { "cold" });
            for (key, held) in [("cost", held), ("runner_up_cost", 0)] {
                let cost = &receipt[key];
                assert_eq!(number(&cost["new"]), 6 * (prompt - held), "{receipt}");
                let terms = ["pending", "new", "decoding", "full", "no_room"].map(|term| number(&cost[term]));
                assert_eq!(number(&cost["total"]), terms.iter().sum::<u64>(), "{receipt}");
            }
            assert!(receipt["wait_us"].is_null() && receipt["in_flight"] == 0 && receipt["slots"].is_null());
            let (output, said) = explain(front.admin, id, &[]);
            assert!(output.status.success(), "{said}");
            for words in [
                format!("request         {id}: POST /v1/chat/completions, from 127.0.0.1:"),
                format!(
                    "\nprompt          about {prompt} tokens: {held} held there as far as was known, {} new\n",
                    prompt - held
                ),
                format!("\nendpoint        {}: least work, ", names[of("endpoint")]),
            ] {
                assert!(said.contains(&words), "{words}\n{said}");
            }
        }
        assert!(!front.asks("GET", "/receipts", "").1.contains("secret"));
    }
}

#[test]
fn by_prefix_it_says_the_load_and_the_bound() {
    let (_engines, front): ([Engine; 2], Front) = fleet("auto", &WARM.replace("warm", "prefix-hash"));
    assert_eq!(ask(&mut front.connect(), "mine", "words"), 200);
    let [receipt] = &receipts(&front, "/mine")[..] else { panic!("one of mine") };
    assert_eq!((&receipt["reason"], &receipt["in_flight"]), (&"home".into(), &0.into()));
    assert!(receipt["slots"].as_u64().unwrap() > 1 && receipt["runner_up_in_flight"] == 0, "{receipt}");
    assert!(receipt["cost"].is_null() && receipt["prompt_tokens"].is_null(), "{receipt}");
    let said = explain(front.admin, "mine", &[]).1;
    assert!(said.contains(": the home of the prompt's prefix, below its bound; the prefix's key is "), "{said}");
    assert!(said.contains("most requests it might have, this one included"), "{said}");
}

/// The last requests, newest first, and no more of them than configured; a reload changes how many.
#[test]
fn the_newest_come_first_and_the_oldest_go() {
    let engine = Engine::start();
    let config = |receipts: usize| {
        format!(
            "[health]\nprobe_interval_ms = 50\n[log]\nreceipts = {receipts}\n[[upstream]]\nurl = \"http://{}\"\n",
            engine.address
        )
    };
    let front = Front::start("auto", &[], &config(4));
    front.until_health(0, "up");
    let mut client = front.connect();
    let again = ["again", "b", "again", "c", "d"];
    for (number, id) in again.iter().enumerate() {
        engine.becomes(if number == 2 { Mood::Fails } else { Mood::Good });
        assert_eq!(ask(&mut client, id, "words"), if number == 2 { 500 } else { 200 });
    }
    assert_eq!(ids(&receipts(&front, "")), ["d", "c", "again", "b"]);
    // Balancers' checks are the most frequent requests.
    for _ in 0..3 {
        (0..3).for_each(|_| assert_eq!(client.get("/health").status, 200));
        assert_eq!(ids(&receipts(&front, "")), ["d", "c", "again", "b"]);
    }
    engine.becomes(Mood::Good);
    assert_eq!(ask(&mut client, "again", "words"), 200);
    let twice = receipts(&front, "/again");
    assert_eq!((ids(&twice), &twice[0]["status"], &twice[1]["status"]), (vec!["again"; 2], &200.into(), &500.into()));
    let said = explain(front.admin, "again", &[]).1;
    assert!(said.starts_with("2 requests had this id, the last one first.\n\nrequest         again: "), "{said}");
    assert!(said.find("with status 200") < said.find("with status 500"), "{said}");
    let json = explain(front.admin, "again", &["--json"]).1;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&json).unwrap().len(), 2);
    for (id, words) in
        [("b", "no request \"b\" is among the last 4 that ended here"), ("a b", "no request \"a b\" is among")]
    {
        let (output, said) = explain(front.admin, id, &[]);
        assert_eq!(output.status.code(), Some(78));
        assert!(said.contains(words) && said.contains("`receipts` in [log] keeps more"), "{said}");
    }
    front.write(&config(1));
    assert_eq!(front.reload().0, 200);
    assert_eq!(ids(&receipts(&front, "")), ["again"]);
    front.write(&config(0));
    assert_eq!(front.reload().0, 200);
    let (output, said) = explain(front.admin, "again", &[]);
    assert!(output.status.code() == Some(78) && said.contains("set `receipts` in [log]"), "{said}");
    assert_eq!(front.asks("GET", "/receipts", "").0, 404);
}

/// A client's id for its request is cut, compared, and shown as data.
#[test]
fn hostile_ids_are_found_cut_and_shown_in_one_line() {
    let ([_engine], front) = fleet("auto", "[log]\nreceipts = 64\n");
    let long = "x".repeat(128);
    let hostile =
        ["..", "../../receipts", "a/b", "a?b=c#d", "%2e%00", "\"}]", "\\n\\u001b[2J", "';--", "*", "{id}", &long];
    for id in hostile {
        assert_eq!(ask(&mut front.connect(), id, "words"), 200);
        let shown = id.get(..64).unwrap_or(id);
        assert_eq!(ids(&receipts(&front, ""))[0], shown);
        let (output, said) = explain(front.admin, id, &[]);
        assert!(output.status.success(), "{id}: {said}");
        assert!(said.starts_with(&format!("request         {shown}: POST ")), "{id}: {said}");
    }
    // Bytes that no id can have.
    for path in ["/%00", "/%1b%5b2J%0a", "/%ff%fe", "/%", "//", &format!("/{}", "y".repeat(5_000))] {
        let (status, said) = front.asks("GET", &format!("/receipts{path}"), "");
        assert!(matches!(status, 400 | 404), "{path}: {status}");
        let controls = said.trim_end().chars().filter(|sign| sign.is_control()).count();
        assert!(controls == 0 && said.len() < 1_000, "{path}: {said:?}");
    }
    let (output, said) = explain(front.admin, "\u{1b}[2J\u{9b}", &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(said.contains("no request \"\\u{1b}[2J\\u{9b}\" is among"), "{said}");
    let mut client = front.connect();
    client.send("GET /v1/a\u{1} HTTP/1.1\r\nhost: x\r\nx-request-id: refused\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    let last = receipts(&front, "").remove(0);
    assert_eq!(
        (&last["end"], last["endpoint"].is_null(), last["in_flight"].is_null()),
        (&"refused".into(), true, true)
    );
}
