//! The logs of a whole process: a line for each request wherever lines are sent, nothing secret in any of them, and no
//! delay by a reader of the lines.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::stops::Stops;
use crate::tries::in_one_of;
use crate::{DRIVERS, PATIENCE, fleet, until};

/// An access log's file for one test.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("access-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        File(path)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    fn lines(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
            .collect()
    }

    fn until_lines(&self, count: usize) -> Vec<Value> {
        until(&format!("{count} lines"), || self.text().matches('\n').count() >= count);
        let lines = self.lines();
        assert_eq!(lines.len(), count, "{lines:?}");
        lines
    }

    fn config(&self) -> String {
        format!("access = \"{}\"\n", self.0.display())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const HEAD: &str = "[routing]\npolicy = \"round-robin\"\n[health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n[log]\n";

fn upstreams(engines: &[&Engine]) -> String {
    engines.iter().map(|engine| format!("[[upstream]]\nurl = \"http://{}\"\n", engine.address)).collect()
}

/// What clients send where secrets stand, also in refused requests, is in no log, at any level.
#[test]
fn prompts_and_keys_are_in_no_log() {
    const MARK: &str = "hunter2";
    for driver in DRIVERS {
        for format in ["json", "text"] {
            let file = File::new(&format!("secrets-{driver}-{format}"));
            let log = format!(
                "[routing]\npolicy = \"warm\"\n[log]\nlevel = \"trace\"\naccess_chain = true\naccess_format = \"{format}\"\n{}",
                file.config()
            );
            let ([engine], front) = fleet(driver, &log);
            let body = format!(r#"{{"messages":[{{"role":"user","content":"{MARK}"}}],"user":"{MARK}","model":"m"}}"#);
            let fields = format!(
                "host: x\r\nauthorization: Bearer {MARK}\r\ncookie: {MARK}\r\nx-session-id: {MARK}\r\nx-{MARK}: 1\r\n\
                 x-warmfront-explain: 1\r\ncontent-length: {}\r\n",
                body.len()
            );
            let mut asked = 0;
            let mut ask = |start: &str, fields: &str, body: &str| {
                let mut client = front.connect();
                client.send(&format!("{start}\r\n{fields}\r\n{body}"));
                asked += 1;
                client.reply().status
            };
            let post = format!("POST /v1/chat/completions?key={MARK} HTTP/1.1");
            assert_eq!(ask(&post, &fields, &body), 200);
            engine.becomes(Mood::Fails);
            assert_eq!(ask(&post, &fields, &body), 500);
            engine.becomes(Mood::Good);
            assert_eq!(ask(&format!("POST /pause?key={MARK} HTTP/1.1"), &fields, &body), 404);
            assert_eq!(ask(&post, &format!("{fields}content-length: 1\r\n"), &body), 400);
            assert_eq!(ask(&post, &format!("{fields}no field {MARK}\r\n"), &body), 400);
            assert_eq!(ask(&format!("{MARK} {MARK}"), &fields, &body), 400);
            let expected = asked;
            until("the lines", || file.text().matches('\n').count() == expected);
            let (access, log, receipts) = (file.text(), front.log(), front.asks("GET", "/receipts", "").1);
            assert!(!access.contains(MARK), "{driver}: {access}");
            assert!(receipts.contains("/v1/chat/completions") && !receipts.contains(MARK), "{driver}: {receipts}");
            assert!(!log.contains(MARK), "{driver}: {log}");
            assert!(log.contains("DEBUG") || log.contains("TRACE"), "it was not talkative: {log}");
        }
    }
}

/// Nothing that a client writes and that is logged makes a second line, or ends a text.
#[test]
fn what_clients_write_stays_in_its_place() {
    for driver in DRIVERS {
        let file = File::new(&format!("hostile-{driver}"));
        let ([_engine], front) = fleet(driver, &format!("[log]\n{}", file.config()));
        let hostile =
            ["\"", "\\", "\",\"status\":1,\"x\":\"", "\u{7f}", "\u{85}", "\u{2028}", "\u{1b}[31m", "%0a", "{}"];
        for (number, text) in hostile.iter().enumerate() {
            let mut client = front.connect();
            client.send(&format!("GET /v1/{text} HTTP/1.1\r\nhost: x\r\nx-request-id: {text}\r\n\r\n"));
            client.reply();
            let lines = file.until_lines(number + 1);
            let line = &lines[number];
            assert_eq!(line["version"], 2, "{text}: {line}");
            // Nothing of a refused target is logged.
            let path = line["path"].as_str();
            assert!(path.is_none() || path == Some(&format!("/v1/{text}")), "{text}: {line}");
            assert!([200, 400, 404].contains(&line["status"].as_u64().unwrap()), "{line}");
        }
    }
}

/// Lines go to standard output; the process ends with every line written.
#[test]
fn standard_output_has_every_line_at_the_end() {
    for driver in DRIVERS {
        assert!((0..3).any(|_| has_every_line_at_the_end(driver)), "{driver}: its lines take a second");
    }
}

/// Whether all lines were written; if that takes a second, the process ends without some.
fn has_every_line_at_the_end(driver: &str) -> bool {
    let ([engine], mut front) = fleet(driver, "[log]\naccess = \"stdout\"\n");
    let output = BufReader::new(front.output());
    let reader = std::thread::spawn(|| output.lines().collect::<Result<Vec<String>, _>>().unwrap());
    let mut client = front.connect();
    (0..200).for_each(|_| assert_eq!(client.post().status, 200));
    let told = Instant::now();
    assert_eq!(front.stop(), Some(0));
    let had_time = told.elapsed() < Duration::from_secs(1);
    let lines = reader.join().unwrap();
    if !had_time && lines.len() < 200 {
        return false;
    }
    assert_eq!(lines.len(), 200, "{driver}");
    for line in lines {
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["end"], &line["status"], &line["tries"]), (&"whole".into(), &200.into(), &1.into()));
        assert_eq!(line["endpoint"], engine.address.to_string(), "{line}");
    }
    true
}

/// The reader of the lines is gone, or stopped reading: requests are still served, and lost lines are counted and
/// logged once.
#[test]
fn a_reader_that_leaves_or_stops_delays_nothing() {
    for gone in [true, false] {
        let (engine, file) = (Engine::start(), File::new("instead"));
        let config = |log: &str| format!("{HEAD}{log}{}", upstreams(&[&engine]));
        let mut front = Front::start("auto", &[], &config("access = \"stdout\"\n"));
        front.until_health(0, "up");
        let output = front.output();
        let kept = (!gone).then_some(output);
        let mut client = front.connect();
        let burst = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(50);
        let lost = |front: &Front| front.metric("warmfront_access_lines_lost_total");
        let mut asked = 0.0;
        until("a loss", || {
            client.send(&burst);
            (0..50).for_each(|_| assert_eq!(client.reply().status, 200));
            asked += 50.0;
            lost(&front) > 0.0
        });
        front.until_said("lines of the access log are lost");
        let accounted = |front: &Front| {
            let dropped = front.metric("warmfront_access_records_dropped_total");
            front.metric("warmfront_access_lines_total") + lost(front) + dropped
        };
        until("the account", || accounted(&front) == asked);
        let written = front.metric("warmfront_access_lines_total");
        assert_eq!(front.log().matches("lines of the access log are lost").count(), 1);
        // While the reader still stands still.
        front.write(&config(&file.config()));
        assert_eq!(front.reload().0, 200);
        assert_eq!(client.post().status, 200);
        file.until_lines(1);
        assert_eq!(front.stop(), Some(0));
        if let Some(output) = kept {
            let lines: Vec<String> = BufReader::new(output).lines().map_while(Result::ok).collect();
            let (whole, torn): (Vec<_>, Vec<_>) =
                lines.iter().partition(|line| serde_json::from_str::<Value>(line).is_ok());
            assert!(whole.len() as f64 == written && torn.len() <= 1, "{} and {torn:?} of {written}", whole.len());
        }
    }
}

/// A full disk is no reason to end, nor to be slow.
#[test]
fn a_full_disk_ends_nothing() {
    let ([_engine], front) = fleet("auto", "[log]\naccess = \"/dev/full\"\n");
    let mut client = front.connect();
    (0..100).for_each(|_| assert_eq!(client.post().status, 200));
    until("the loss", || front.metric("warmfront_access_lines_lost_total") == 100.0);
    // Losses are counted before they are logged.
    front.until_said("lines of the access log are lost");
    assert_eq!(front.log().matches("lines of the access log are lost").count(), 1);
    assert_eq!(front.stop(), Some(0));
}

/// A reload switches the log on, moves it, and switches it off again; a path that cannot be opened changes nothing.
#[test]
fn a_reload_switches_it_on_and_off() {
    for driver in DRIVERS {
        let (engine, first, second) = (Engine::start(), File::new("first"), File::new("second"));
        let config = |log: &str| format!("{HEAD}{log}{}", upstreams(&[&engine]));
        let front = Front::start(driver, &[], &config(""));
        front.until_health(0, "up");
        let mut client = front.connect();
        let mut ask = || assert_eq!(client.post().status, 200);
        let reload = |log: &str| {
            front.write(&config(log));
            let (status, said) = front.reload();
            assert_eq!(status, 200, "{said}");
            let changes: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(
                (&changes["changed"], &changes["restart"]),
                (&serde_json::json!(["log"]), &serde_json::json!([]))
            );
        };
        ask();
        reload(&first.config());
        (0..3).for_each(|_| ask());
        first.until_lines(3);
        reload(&format!("access_format = \"text\"\n{}", second.config()));
        ask();
        until("a line of text", || second.text().ends_with('\n'));
        assert!(second.text().contains(" POST /v1/chat/completions 200 whole why=- api=chat "), "{}", second.text());
        front.write(&config("access = \"/nowhere/access.log\"\n"));
        let (status, said) = front.reload();
        assert!(status == 422 && said.contains("cannot write the access log to /nowhere/access.log: "), "{said}");
        ask();
        until("a second line", || second.text().matches('\n').count() == 2);
        reload("");
        ask();
        assert_eq!(front.stop(), Some(0));
        assert_eq!((first.lines().len(), second.text().matches('\n').count()), (3, 2));
        [first, second].into_iter().for_each(drop);
    }
}

/// Lines have hashes of each prompt if they are configured: those of a common start are the same, and all after a
/// difference differ. A reload ends them; if no policy makes any, that is logged.
#[test]
fn chains_are_there_when_asked_for() {
    let (engines, file) = ([Engine::start(), Engine::start()], File::new("chains"));
    let config = |policy: &str, log: &str| {
        let upstreams = upstreams(&engines.each_ref());
        format!("{}{log}{}{upstreams}", HEAD.replace("round-robin", policy), file.config())
    };
    let front = Front::start("auto", &[], &config("warm", "access_chain = true\n"));
    (0..2).for_each(|place| front.until_health(place, "up"));
    let mut client = front.connect();
    let mut ask = |text: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"m"}}"#);
        client.send(&format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(client.reply().status, 200);
    };
    let start = "said ".repeat(1_000);
    ask(&format!("{start}this {}", "x".repeat(4_000)));
    ask(&format!("{start}that {}", "x".repeat(4_000)));
    ask("short");
    let lines = file.until_lines(3);
    let chain = |line: &Value| -> Vec<String> { serde_json::from_value(line["chain"].clone()).unwrap() };
    let (first, second) = (chain(&lines[0]), chain(&lines[1]));
    // 9,000 bytes and what the API writes around them; the first 5,000 are the same.
    assert_eq!((first.len(), second.len(), chain(&lines[2]).len()), (17, 17, 0), "{lines:?}");
    let alike: Vec<bool> = first.iter().zip(&second).map(|(one, other)| one == other).collect();
    assert_eq!(alike, [[true; 9].as_slice(), &[false; 8]].concat());
    assert!(first.iter().all(|link| link.len() == 16 && u64::from_str_radix(link, 16).is_ok()), "{first:?}");
    assert!(lines.iter().all(|line| line["chain_bytes"] == 512 && line["wait_us"].is_null()), "{lines:?}");
    let tokens = |line: &Value, key: &str| line[key].as_u64().unwrap();
    assert!(tokens(&lines[0], "prompt_tokens") > 2_000 && tokens(&lines[0], "held_tokens") == 0, "{lines:?}");
    assert!((1_000..1_300).contains(&tokens(&lines[1], "held_tokens")), "{lines:?}");
    assert!(
        lines.iter().all(|line| line["runner_up"].is_string() && line["runner_up"] != line["endpoint"]),
        "{lines:?}"
    );
    front.write(&config("warm", ""));
    assert_eq!(front.reload().0, 200);
    ask(&start);
    let line = file.until_lines(4).remove(3);
    assert!(
        line.get("chain").is_none() && line.get("chain_bytes").is_none() && line["prompt_tokens"].is_u64(),
        "{line}"
    );
    assert!(!front.has_said("the access log has no chains"));
    front.write(&config("prefix-hash", "access_chain = true\n"));
    assert_eq!(front.reload().0, 200);
    // An engine that did not answer in time while the machine stood still would be no runner-up.
    (0..2).for_each(|place| front.until_health(place, "up"));
    ask(&start);
    let line = file.until_lines(5).remove(4);
    assert!(line.get("chain").is_none() && line["prompt_tokens"].is_null() && line["runner_up"].is_string(), "{line}");
    front.until_said("the access log has no chains");
}

/// Rotates the log as logrotate does, under load, and also while the configuration is wrong: no line is lost or torn.
#[test]
fn a_rotated_file_is_opened_anew_on_sighup() {
    let (engine, file) = (Engine::start(), File::new("rotated"));
    let config = format!("{HEAD}{}{}", file.config(), upstreams(&[&engine]));
    let front = Front::start("auto", &[], &config);
    front.until_health(0, "up");
    let (mut client, mut asked, mut rotated) = (front.connect(), 0, Vec::new());
    for turn in 0..4 {
        front.write(if turn % 2 == 0 { &config } else { "[nonsense]\n" });
        (0..50).for_each(|_| assert_eq!(client.post().status, 200));
        until("lines", || !file.text().is_empty());
        let old = File::new(&format!("rotated-{turn}"));
        fs::rename(&file.0, &old.0).unwrap();
        (0..50).for_each(|_| assert_eq!(client.post().status, 200));
        front.hang_up();
        until("the new file", || file.0.exists());
        asked += 100;
        rotated.push(old);
    }
    // At its end the process waits for lines that are still to be written, but only for a second.
    until("all lines", || front.metric("warmfront_access_lines_total") == asked as f64);
    assert_eq!(front.stop(), Some(0));
    let lines: usize = rotated.iter().chain([&file]).map(|file| file.lines().len()).sum();
    assert_eq!(lines, asked);
}

/// Two processes write to one file while one takes the other's place: each line is whole, and there is one for each
/// request.
#[test]
fn upgrades_lose_no_line() {
    // A process that ends waits a second for its last lines. The machine may stand still for that long, but hardly in
    // each of three tries.
    in_one_of(3, "a line for each request", true, upgrades_wrote_each_line);
}

/// False if it stood still, and lines are missing.
fn upgrades_wrote_each_line() -> bool {
    let (over, stood_still) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stops = Stops(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                stood_still.fetch_or(begun.elapsed() > Duration::from_millis(500), Ordering::Relaxed);
            }
        });
        let (lines, served) = lines_of_upgrades();
        assert!(
            lines == served || lines < served && stood_still.load(Ordering::Relaxed),
            "{lines} lines of {served} requests"
        );
        lines == served
    })
}

/// How many lines there are in the end, and for how many requests.
fn lines_of_upgrades() -> (usize, usize) {
    let file = File::new("upgraded");
    let ([_engine], front) = fleet("auto", &format!("[log]\n{}", file.config()));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = front.connect();
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.post();
                    assert_eq!(reply.status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                    if reply.closes {
                        client = front.connect();
                    }
                }
            });
        }
        for _ in 0..3 {
            let before = served.load(Ordering::Relaxed);
            until("requests before it", || served.load(Ordering::Relaxed) >= before + 50);
            front.upgrade();
        }
    });
    let (served, deadline) = (served.load(Ordering::Relaxed), Instant::now() + PATIENCE);
    while file.text().matches('\n').count() < served && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    (file.lines().len(), served)
}

/// The level is that of the configuration in use, from the reload on.
#[test]
fn a_reload_changes_the_level() {
    let engine = Engine::start();
    let config = |level: &str| format!("{HEAD}level = \"{level}\"\n{}", upstreams(&[&engine]));
    let front = Front::start("auto", &[], &config("info"));
    front.until_health(0, "up");
    let taken = || front.log().matches("configuration taken").count();
    let reload = |level: &str| {
        front.write(&config(level));
        assert_eq!(front.reload().0, 200);
    };
    reload("error");
    reload("warn,warmfront::control=error");
    reload("info");
    until("its line", || taken() == 1);
    assert!(!front.log().contains("DEBUG"), "{}", front.log());
    reload("debug");
    until("talk", || front.log().contains("DEBUG"));
}
