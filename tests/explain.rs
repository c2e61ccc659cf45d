//! `warmfront explain` and the command line's exit statuses, as a process.

use std::io::Write;
use std::process::{Command, Output, Stdio};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Name three primes."}],"user":"alice"}"#;

fn warmfront(arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_warmfront"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Fails if the process refuses its arguments: it does not read then.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    process.wait_with_output().unwrap()
}

fn explained(arguments: &[&str], input: &str) -> serde_json::Value {
    let fleet =
        ["explain", "--json", "--upstream", "http://a:1", "--upstream", "http://b:1", "--upstream", "http://c:1"];
    let output = warmfront(&[&fleet, arguments].concat(), input);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row(explanation: &serde_json::Value, policy: &str) -> serde_json::Value {
    let rows = explanation["choices"].as_array().unwrap();
    rows.iter().find(|row| row["policy"] == policy).unwrap().clone()
}

#[test]
fn a_choice_is_explained_and_repeats_itself() {
    let first = explained(&[], BODY);
    assert_eq!(
        (first["model"].as_str(), first["pool"].as_str(), first["scan"].as_str()),
        (Some("m"), Some("m"), Some("whole"))
    );
    let prefix = row(&first, "prefix-hash");
    assert_eq!((prefix["reason"].as_str(), prefix["configured"].as_bool()), (Some("home"), Some(false)));
    let warm = row(&first, "warm");
    assert_eq!((warm["reason"].as_str(), warm["configured"].as_bool()), (Some("cold"), Some(true)));
    assert_eq!(warm["endpoint"], row(&explained(&[], BODY), "warm")["endpoint"]);
    assert_eq!(prefix["decided_at"].as_u64().unwrap(), BODY.len() as u64, "what is read is read for all pools");
    let by_prefix = explained(&["--policy", "prefix-hash"], BODY);
    let told =
        |explanation: &serde_json::Value| ["prefix_mode", "prefix_bytes", "key"].map(|name| explanation[name].clone());
    assert_eq!(told(&first), told(&by_prefix), "the key of prefix-hash, whichever policy is configured");
    let alone = row(&by_prefix, "prefix-hash");
    assert!(alone["decided_at"].as_u64().unwrap() < BODY.len() as u64, "the choice does not wait for the end");
    assert_eq!(prefix["endpoint"], row(&explained(&[], BODY), "prefix-hash")["endpoint"]);
    assert_eq!(row(&first, "session")["reason"], "session_home");
}

#[test]
fn a_session_header_wins_over_the_body() {
    let field = explained(&[], BODY);
    let header = explained(&["--header", "X-Session-Id: bob"], BODY);
    assert_ne!(field["session_key"], header["session_key"]);
    assert_eq!(row(&header, "session")["decided_at"], 0);
    let same = explained(&["--header", "x-session-id:alice"], BODY);
    assert_eq!(field["session_key"], same["session_key"], "the same text is the same session");
}

#[test]
fn what_cannot_be_scanned_goes_by_load() {
    let broken = explained(&[], "{\"model\":");
    assert_eq!(row(&broken, "prefix-hash")["reason"], "unscannable");
    assert!(broken["key"].is_null());
    assert_eq!(
        row(&explained(&["--path", "/v1/audio/speech"], "{\"model\":\"m\"}"), "prefix-hash")["reason"],
        "no_prefix"
    );
}

#[test]
fn a_default_model_that_nobody_serves_is_said() {
    let path = std::env::temp_dir().join(format!("warmfront-explain-{}.toml", std::process::id()));
    let engine = |host: &str, model: &str| format!("[[upstream]]\nurl = \"http://{host}:1\"\nmodels = [\"{model}\"]\n");
    for (key, words) in [
        ("", "there is no `default_model`, and engines differ in what they serve or name first: 400"),
        ("[serve]\ndefault_model = \"c\"\n", "no endpoint serves `default_model`, \"c\": 400"),
    ] {
        std::fs::write(&path, format!("{key}{}{}", engine("a", "a"), engine("b", "b"))).unwrap();
        let output = warmfront(&["explain", "--config", path.to_str().unwrap()], "{\"prompt\":\"x\"}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(words), "{said}");
    }
    // If all engines serve the same models, such a request is for all of them.
    let both = engine("a", "m\", \"n") + &engine("b", "m\", \"n");
    std::fs::write(&path, both).unwrap();
    let output = warmfront(&["explain", "--config", path.to_str().unwrap(), "--json"], "{\"prompt\":\"x\"}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((said["pool"].as_str(), said["refused"].as_str()), (Some("m"), None), "{said}");
    std::fs::remove_file(path).unwrap();
}

/// As with requests of clients, a model read before the fault counts.
#[test]
fn a_model_before_what_is_no_json_is_asked_for() {
    let path = std::env::temp_dir().join(format!("warmfront-explain-broken-{}.toml", std::process::id()));
    let engine = |host: &str, model: &str| format!("[[upstream]]\nurl = \"http://{host}:1\"\nmodels = [\"{model}\"]\n");
    std::fs::write(&path, engine("a", "a") + &engine("b", "b")).unwrap();
    let output = warmfront(&["explain", "--json", "--config", path.to_str().unwrap()], "{\"model\":\"b\",!");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["pool"].as_str(), json["refused"].as_str()), (Some("b"), None), "{json}");
    assert_eq!(row(&json, "least-load")["endpoint"], "b:1", "{json}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_image_counts_as_many_tokens_as_are_configured() {
    let path = std::env::temp_dir().join(format!("warmfront-explain-images-{}.toml", std::process::id()));
    std::fs::write(&path, "[routing]\nimage_tokens = 5000\n").unwrap();
    let image = r#"{"type":"image_url","image_url":{"url":"https://screens/1.png"}}"#;
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{image},{image}]}}]}}"#);
    let told = |arguments: &[&str]| explained(arguments, &body)["tokens_estimate"].clone();
    assert_eq!([told(&[]), told(&["--config", path.to_str().unwrap()])], [2_000, 10_000]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_table_is_for_people() {
    let output = warmfront(&["explain", "--upstream", "http://a:1"], BODY);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n* warm         a:1       cold"), "{text}");
}

#[test]
fn a_model_in_a_form_or_in_the_query_is_found_as_by_a_front() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("explain-forms.toml");
    let config = "[[upstream]]\nurl = \"http://a:1\"\nmodels = [\"llm\"]\n\
                  [[upstream]]\nurl = \"http://b:1\"\nmodels = [\"whisper\"]\n";
    std::fs::write(&path, config).unwrap();
    let pool = |path_asked: &str, header: &str, body: &str| {
        let config = path.to_str().unwrap();
        let arguments = ["explain", "--json", "--config", config, "--path", path_asked, "--header", header];
        let output = warmfront(&arguments, body);
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (told["pool"].as_str().map(str::to_owned), told["refused"].as_str().map(str::to_owned))
    };
    let form = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
    let is_form = "Content-Type: multipart/form-data; boundary=x";
    let found = |name: &str| (Some(name.to_owned()), None);
    assert_eq!(pool("/v1/audio/transcriptions", is_form, form), found("whisper"));
    assert_eq!(pool("/v1/audio/transcriptions?model=whisper", "x: y", "--x--\r\n"), found("whisper"));
    let chat = "/v1/chat/completions?model=whisper";
    assert_eq!(pool(chat, "x: y", "{\"messages\":[]}"), found("whisper"));
    assert_eq!(pool(chat, "x: y", "{\"model\":\"llm\"}"), found("llm"), "the body's wins");
    let (_, refused) = pool("/v1/chat/completions?model=other", "x: y", "{\"messages\":[]}");
    assert!(refused.is_some_and(|why| why.contains("404")));
}

#[test]
fn exit_statuses_tell_usage_from_configuration() {
    assert_eq!(warmfront(&["serve", "--no-such-flag"], "").status.code(), Some(2));
    assert_eq!(warmfront(&["serve", "--shards", "x"], "").status.code(), Some(2));
    assert_eq!(warmfront(&["serve"], "").status.code(), Some(78));
    let refused = warmfront(&["serve", "--upstream", "https://gpu-1:8000"], "");
    assert_eq!(refused.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("TLS"));
    let version = warmfront(&["--version"], "");
    assert_eq!(String::from_utf8(version.stdout).unwrap().trim(), concat!("warmfront ", env!("CARGO_PKG_VERSION")));
    for command in ["serve", "check", "explain", "top"] {
        let help = String::from_utf8(warmfront(&[command, "--help"], "").stdout).unwrap();
        assert!(help.contains("Examples:"), "{command}");
    }
}

/// When a front is asked, only the admin listener's address is taken from the file.
#[test]
fn a_front_is_asked_by_a_file_without_engines() {
    let path = std::env::temp_dir().join(format!("warmfront-explain-asked-{}.toml", std::process::id()));
    std::fs::write(&path, "[serve]\nadmin = \"127.0.0.1:1\"\n").unwrap();
    let output = warmfront(&["explain", "--request-id", "x", "--config", path.to_str().unwrap()], "");
    std::fs::remove_file(&path).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("127.0.0.1:1") && said.contains("is a front running"), "{said}");
}

/// The text holds what clap and the query could have mangled.
#[test]
fn what_is_asked_is_asked_as_it_was_written() {
    for (flags, words) in [
        (["--request-id", ""], "the x-request-id of its reply"),
        (["--path", "v1/completions"], "a path begins with /"),
        (["--header", "x y: 1"], "the name in letters, digits and hyphens"),
        (["--header", "x: \u{1b}"], "one line without control characters"),
        (["--admin", "localhost:9911"], "write it as IP:PORT"),
    ] {
        let output = warmfront(&[&["explain", "--upstream", "http://a:1"], &flags[..]].concat(), BODY);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(words), "{flags:?}: {said}");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = Vec::new();
        for line in std::io::BufRead::split(std::io::BufReader::new(stream.try_clone().unwrap()), b'\n') {
            lines.push(line.unwrap());
            if lines.last().unwrap() == b"\r" {
                break;
            }
        }
        let _ = stream.write_all(b"HTTP/1.1 404 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        lines
    });
    let flags = ["explain", "--admin", &admin, "--path", "/v1/completions?a=b&c#d e", "--header", "X-Session-Id: zoë"];
    // Headers as copied from a client's request.
    let client = ["--header", "Host: api.example", "--header", "Origin: http://a.example"];
    warmfront(&[&flags[..], &client].concat(), BODY);
    let lines = asked.join().unwrap();
    let first = String::from_utf8(lines[0].clone()).unwrap();
    assert_eq!(first, "POST /explain?path=%2Fv1%2Fcompletions%3Fa%3Db%26c%23d%20e HTTP/1.1\r");
    let text = lines.concat();
    assert!(!String::from_utf8_lossy(&text).contains("example"), "{lines:?}: who asks is this command");
    assert!(lines.contains(&"x-session-id: zoë\r".as_bytes().to_vec()), "{lines:?}");
}

#[test]
fn every_reason_is_explained_in_the_readme() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let table = readme.split("| reason | why").nth(1).unwrap().split("\n\n").next().unwrap();
    let first_cells: String = table.lines().filter_map(|row| row.split('|').nth(1)).collect();
    for reason in warmfront::policy::Reason::ALL {
        assert!(first_cells.contains(&format!("`{}`", reason.as_str())), "{}", reason.as_str());
    }
}
