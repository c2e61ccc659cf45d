//! Text from engines, fronts and requests is printed without an effect on the terminal: no character of theirs moves
//! its cursor, begins an escape sequence, makes a line or turns the direction of reading. (`doctor` and `top` have
//! tests of their own.)

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;

/// A title, a cleared screen, a line like ours, a turned direction, and CSI in one sign.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nok      forged\u{202e}\u{9b}31m";

/// A server that answers paths that begin with one of these with its status and body, and others with 404.
fn answering(answers: Vec<(&'static str, u16, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(socket);
            let (mut path, mut length) = (String::new(), 0);
            for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
                if path.is_empty() {
                    path = line.split(' ').nth(1).unwrap_or_default().into();
                }
                if let Some(told) = line.strip_prefix("content-length: ") {
                    length = told.parse().unwrap();
                }
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            let answer = answers.iter().find(|(begin, ..)| path.starts_with(begin));
            let (status, body) = answer.map_or((404, ""), |(_, status, body)| (*status, body));
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            reader.into_inner().write_all((head + body).as_bytes()).unwrap();
        }
    });
    address
}

fn warmfront(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    // Fails if the process refuses its arguments: it does not read then.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    process.wait_with_output().unwrap()
}

/// What was printed. Panics unless all of it is without effect, and the evil text in it is written out.
fn without_effect(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let effective = |sign: &char| (sign.is_control() && *sign != '\n') || *sign == '\u{202e}';
    assert_eq!(text.chars().find(effective), None, "{text:?}");
    assert!(
        text.contains("owned") && !text.lines().any(|line| line.trim_start().starts_with("ok      forged")),
        "{text}"
    );
    text
}

#[test]
fn check_shows_what_engines_say_without_effect() {
    let models = json!({"object": "list", "data": [{"id": EVIL, "object": "model"}, {"id": "x\u{1b}c"}]}).to_string();
    let engine = answering(vec![("/health", 200, String::new()), ("/v1/models", 200, models)]);
    let url = format!("http://{engine}");
    let text = without_effect(&warmfront(&["check", "--no-ports", "--upstream", &url], ""));
    assert!(text.contains("serves \\u{1b}]0;owned\\u{7}\\u{1b}[2J") && text.contains(", x\\u{1b}c"), "{text}");
    // A model that the file names but the engine does not serve is reported with those that it does serve.
    let file = std::env::temp_dir().join(format!("warmfront-terminal-{}.toml", std::process::id()));
    std::fs::write(&file, format!("[[upstream]]\nurl = \"{url}\"\nmodels = [\"m\"]\n")).unwrap();
    let output = warmfront(&["check", "--no-ports", "--config", file.to_str().unwrap()], "");
    std::fs::remove_file(file).unwrap();
    assert!(without_effect(&output).contains("but it serves "));
}

#[test]
fn explain_shows_what_requests_and_fronts_say_without_effect() {
    let body = json!({"model": EVIL, "prompt": "hi"}).to_string();
    without_effect(&warmfront(&["explain", "--path", "/v1/completions", "--upstream", "http://a:1"], &body));
    // Another server may answer at the address where a front is expected.
    let explanation = json!({
        "api": EVIL, "body_bytes": 1, "scan": "whole", "model": EVIL, "stream": null, "max_tokens": null, "tools": false,
        "images": 0, "duplicates": 0, "prompt_bytes": 1, "tokens_estimate": 1, "refused": null, "pool": EVIL,
        "endpoints": [1, 1], "last_resort": false, "prefix_mode": null, "prefix_bytes": null, "key": null,
        "session_key": null, "choices": [{"policy": "warm", "configured": true, "endpoint": EVIL, "reason": EVIL,
        "runner_up": null, "load": 0, "bound": null, "tokens": null, "decided_at": 1}]
    });
    for (status, answer) in [(200, explanation.to_string()), (500, EVIL.into())] {
        let front = answering(vec![("/explain", status, answer)]);
        without_effect(&warmfront(&["explain", "--admin", &front], &body));
    }
}

/// As usual on terminals: with NO_COLOR, or on a terminal without colours, there are none.
#[test]
fn the_log_has_colours_where_they_are_wanted() {
    for (variables, coloured) in [
        (&[("TERM", "xterm")][..], true),
        (&[("TERM", "dumb")], false),
        (&[("TERM", "xterm"), ("NO_COLOR", "1")], false),
    ] {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let tty = ptsname(&master, Vec::new()).unwrap();
        let open = || rustix::fs::open(&tty, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        // As long as it is open here, what was written is kept.
        let _kept = open();
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        command.args(["serve", "--upstream", "http://127.0.0.1:1", "--admin", "127.0.0.1:0", "--shards", "1"]);
        // It logs that it starts, and that it cannot listen there.
        command.args(["--listen", "192.0.2.1:1"]).env_remove("NO_COLOR").env_remove("JOURNAL_STREAM");
        let mut front = command.envs(variables.iter().copied()).stdin(Stdio::null()).stderr(open()).spawn().unwrap();
        assert_eq!(front.wait().unwrap().code(), Some(78));
        rustix::fs::fcntl_setfl(&master, OFlags::NONBLOCK | OFlags::RDWR).unwrap();
        let mut said = Vec::new();
        let mut bytes = [0; 4_096];
        while let Ok(length @ 1..) = rustix::io::read(&master, &mut bytes) {
            said.extend_from_slice(&bytes[..length]);
        }
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("starting") && said.contains("cannot listen on 192.0.2.1:1"), "{said}");
        assert_eq!(said.contains('\x1b'), coloured, "{variables:?}: {said:?}");
    }
}
