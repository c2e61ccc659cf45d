//! `warmfront check` as a process: what it says of machines without engines, of files, and of what engines serve.

#[path = "relay/untested.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod untested;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

fn check(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warmfront")).arg("check").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A configuration file of the test's own; with it goes the folder that it is in.
struct File(PathBuf);

impl File {
    fn new(test: &str, text: &str) -> File {
        let folder = std::env::temp_dir().join(format!("warmfront-check-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("w.toml"), text).unwrap();
        File(folder)
    }

    /// As the unit does before a reload.
    fn checked(&self) -> Output {
        self.checked_with(&["--quiet", "--no-engines", "--no-ports"])
    }

    fn checked_with(&self, flags: &[&str]) -> Output {
        let path = self.0.join("w.toml");
        check(&[flags, &["--config", path.to_str().unwrap()]].concat())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Who does as it says has a front that starts.
#[test]
fn what_is_too_little_for_a_start_is_not_mended_by_fewer_clients() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64 && exec \"$@\"", "", env!("CARGO_BIN_EXE_warmfront"), "check", "--shards", "2"]);
    let output = shell.args(["--no-engines", "--no-ports", "--upstream", "http://127.0.0.1:1"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.code() == Some(78) && said.contains("WRONG   descriptors "), "{said}");
    assert!(said.contains("69 are needed before the first client") && !said.contains("or set conn"), "{said}");
}

#[test]
fn an_admin_listener_for_all_is_advised_against() {
    let said = |admin: &str| {
        let engine = ["--no-engines", "--no-ports", "--upstream", "http://127.0.0.1:1", "--admin", admin];
        let output = check(&engine);
        assert!(output.status.success(), "{}", text(&output.stdout));
        text(&output.stdout)
    };
    assert!(said("0.0.0.0:9950").contains("advice  admin "), "{}", said("0.0.0.0:9950"));
    assert!(!said("127.0.0.1:9950").contains(" admin "));
}

#[test]
fn a_machine_is_looked_at_without_engines() {
    let output = check(&["--no-ports"]);
    let (said, refused) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(78), "{said}{refused}");
    for subject in ["cores", "descriptors", "driver", "memory", "sysctl"] {
        assert!(said.contains(&format!(" {subject} ")), "{subject}: {said}");
    }
    assert!(said.contains("to change, ") && !said.contains("\n0 to change"), "{said}");
    assert!(refused.contains("no engine to forward to; give --upstream http://HOST:PORT"), "{refused}");
    // What else is wrong comes first.
    let both = check(&["--no-ports", "--listen", "127.0.0.1:9911"]);
    assert!(text(&both.stderr).contains("`admin` and `listen` are both") && both.stdout.is_empty());
}

#[test]
fn files_that_a_reload_would_not_open_are_refused_before_it() {
    let engine = "[[upstream]]\nurl = \"http://127.0.0.1:1\"\n";
    for (test, file, words) in [
        (
            "key",
            format!("{engine}api_key_file = \"/nowhere/key\"\n"),
            "cannot use the key of 127.0.0.1:1 in /nowhere/key",
        ),
        ("access", format!("[log]\naccess = \"/nowhere/log\"\n{engine}"), "cannot write /nowhere/log"),
        ("index", format!("[limits]\nindex_bytes = 1125899906842624\n{engine}"), "does not fit into the memory"),
        (
            "tokenizer",
            format!("[routing]\npolicy = \"precise\"\ntokenizer = \"/nowhere\"\n{engine}"),
            "cannot use the `tokenizer` /nowhere",
        ),
    ] {
        let output = File::new(test, &file).checked();
        let said = text(&output.stdout);
        assert!(output.status.code() == Some(78) && said.contains(words), "{words}: {said}");
    }
    let right = File::new("right", "");
    let log = right.0.join("access.log");
    std::fs::write(right.0.join("w.toml"), format!("[log]\naccess = \"{}\"\n{engine}", log.display())).unwrap();
    let output = right.checked();
    assert!(output.status.success() && output.stdout.is_empty() && !log.exists(), "{}", text(&output.stdout));
}

/// As a container has it of `-v FILE:FILE`. Where it cannot be tried, as without root, that is said.
#[test]
fn a_caches_file_that_is_a_mount_of_its_own_is_advised_on() {
    let file = File::new("mounted", "");
    let caches = file.0.join("caches");
    let engine = "[[upstream]]\nurl = \"http://127.0.0.1:1\"\n";
    let config = format!("[control]\ncaches_file = \"{}\"\n{engine}", caches.display());
    std::fs::write(file.0.join("w.toml"), config).unwrap();
    std::fs::write(&caches, "").unwrap();
    // In a namespace that goes with it.
    let mounted = |program: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", "mount --bind \"$0\" \"$0\" && exec \"$@\""]);
        command.arg(&caches).args(program).output()
    };
    if !mounted(&["true"]).is_ok_and(|tried| tried.status.success()) {
        return untested::say("a caches_file that is a mount of its own, as nothing may be mounted here");
    }
    let path = file.0.join("w.toml");
    let check = ["check", "--no-engines", "--no-ports", "--config", path.to_str().unwrap()];
    let usual = text(&self::check(&check[1..]).stdout);
    assert!(!usual.contains("caches file"), "{usual}");
    let said = text(&mounted(&[&[env!("CARGO_BIN_EXE_warmfront")], &check[..]].concat()).unwrap().stdout);
    let words = format!("cannot write {}: it is mounted as a single file", caches.display());
    assert!(said.contains(&words) && said.contains("mount its folder"), "{said}");
}

#[test]
fn what_of_a_models_prompts_is_followed_is_said() {
    let file = File::new("followed", "");
    let said = |routing: &str| {
        let config = format!("{routing}[[upstream]]\nurl = \"http://127.0.0.1:1\"\n");
        std::fs::write(file.0.join("w.toml"), config).unwrap();
        text(&file.checked_with(&["--no-engines", "--no-ports"]).stdout)
    };
    let none = said("");
    assert!(none.contains("is valid") && !none.contains("tokenizer"), "{none}");
    let precise = "[routing]\npolicy = \"precise\"\n";
    let named = format!("{precise}tokenizer = \"{}\"\n", file.0.display());
    let put = |name: &str| {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-llama");
        std::fs::copy(fixture.join(name), file.0.join(name)).unwrap();
    };
    let unnamed = said(precise);
    put("tokenizer.json");
    let without_template = said(&named);
    put("tokenizer_config.json");
    let whole = said(&named);
    std::fs::write(file.0.join("tokenizer.json"), r#"{"model": {"type": "BPE", "vocab": {}, "merges": []}}"#).unwrap();
    let other = said(&named);
    for (said, mark, words) in [
        (unnamed, "advice ", "policy \"precise\" has no `tokenizer`"),
        (without_template, "advice ", "chats are routed as by \"warm\""),
        (whole, "ok ", ": chats of user, assistant, system, tool, developer are followed"),
        (other, "advice ", ": its model is routed as by \"warm\": it says neither ByteLevel nor Metaspace"),
    ] {
        let line = said.lines().find(|line| line.contains(" tokenizer ")).unwrap_or_default();
        assert!(line.starts_with(mark) && line.contains(words), "{words}: {said}");
    }
}

/// Before a start they are to be had; before a reload the front that runs has them.
#[test]
fn ports_are_tried_unless_they_are_left_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let engine = "[[upstream]]\nurl = \"http://127.0.0.1:1\"\n";
    let file = File::new("ports", &format!("[serve]\nlisten = [\"{address}\"]\n{engine}"));
    let left_out = file.checked();
    assert!(left_out.status.success() && left_out.stdout.is_empty(), "{}", text(&left_out.stdout));
    let tried = file.checked_with(&["--quiet", "--no-engines"]);
    let said = text(&tried.stdout);
    assert_eq!(tried.status.code(), Some(78), "{said}");
    assert!(said.contains(&format!("listen {address}")) && said.contains("is in use"), "{said}");
}

/// Serves one model, and takes so long to say that it is healthy.
fn engine(health_takes: Duration) -> String {
    engine_named(health_takes, None, "")
}

/// The same behind a server that knows it by this `Host` alone, if there is one.
fn engine_named(health_takes: Duration, host: Option<fn(&str) -> bool>, metrics: &'static str) -> String {
    listening(move |path, named| match path {
        _ if host.is_some_and(|knows| !knows(named)) => (404, ""),
        "/health" => {
            std::thread::sleep(health_takes);
            (200, "")
        }
        "/v1/models" => (200, LLAMA),
        "/metrics" if !metrics.is_empty() => (200, metrics),
        _ => (404, ""),
    })
}

const LLAMA: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"llama\",\"object\":\"model\"}]}";

/// Answers who asks for a path of a `Host` with a status and a body.
fn listening(answer: impl Fn(&str, &str) -> (u16, &'static str) + Copy + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let serve = move |stream: TcpStream| {
            let mut reader = BufReader::new(stream);
            let mut lines = reader.by_ref().lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            let fields: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let field = |name: &str| fields.iter().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            // What is left unread may take the answer back.
            let _ = reader.read_exact(&mut vec![0; field("content-length: ").parse().unwrap_or(0)]);
            let (status, body) = answer(first.split(' ').nth(1).unwrap_or_default(), field("host: "));
            let length = body.len();
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = reader.into_inner().write_all((head + body).as_bytes());
        };
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    url
}

/// As a front would: SGLang's `/health` answers a second after it is asked, and later.
#[test]
fn an_engine_is_given_as_long_as_the_probes_give_it() {
    let said = |takes: u64, health: &str| {
        let url = engine(Duration::from_millis(takes));
        let file = File::new("slow", &format!("{health}[[upstream]]\nurl = \"{url}\"\n"));
        let path = file.0.join("w.toml");
        text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout)
    };
    let usual = said(1_050, "");
    assert!(usual.contains("/health answers 200"), "{usual}");
    // So much longer that who is let run late does not have the answer by then.
    let hasty = said(4_000, "[health]\nprobe_timeout_ms = 1000\n");
    assert!(hasty.contains("no whole answer within 1000 ms") && hasty.contains("raise `probe_timeout_ms`"), "{hasty}");
}

/// The status is what a script goes by.
#[test]
fn engines_that_cannot_serve_are_wrong() {
    let engine = |health: u16, models: (u16, &'static str)| {
        listening(move |path, _| match path {
            "/health" => (health, ""),
            "/v1/models" => models,
            _ => (404, ""),
        })
    };
    let (serves, fails, others) = ((200, LLAMA), (500, ""), "models = [\"x\"]\n");
    for (url, keys, words) in [
        (engine(200, serves), "", ""),
        (engine(503, serves), "", "/health answers 503: it is not healthy"),
        (engine(404, serves), "", "as `path` in [health]"),
        ("http://127.0.0.1:1".into(), "", "start it, or mend `url`"),
        (engine(200, serves), others, "`models` has [\"x\"], but it serves llama"),
        (engine(200, fails), "", "cannot read its models"),
        // Who has them in the configuration does without.
        (engine(200, fails), others, ""),
    ] {
        let file = File::new("sick", &format!("[[upstream]]\nurl = \"{url}\"\n{keys}"));
        let output = file.checked_with(&["--quiet", "--no-ports"]);
        let said = text(&output.stdout);
        let (code, begin) = if words.is_empty() { (0, "") } else { (78, "WRONG ") };
        assert_eq!(output.status.code(), Some(code), "{keys}{words}: {said}");
        assert!(said.starts_with(begin) && said.contains(words) && said.lines().count() <= 1, "{keys}{words}: {said}");
    }
}

/// Of hundreds of adapters, each with histograms of its own: the front reads it line by line.
#[test]
fn a_long_page_of_metrics_is_read() {
    let known = "vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n";
    let said = |metrics: String| {
        let url = engine_named(Duration::ZERO, None, metrics.leak());
        let file = File::new("metrics", &format!("[[upstream]]\nurl = \"{url}\"\n"));
        let path = file.0.join("w.toml");
        text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout)
    };
    // Many bytes in few lines: reading it takes an unoptimised build long enough.
    let line = format!("vllm:request_latency_bucket{{le=\"1\",lora=\"{}\"}} 0\n", "x".repeat(400));
    let long = said(line.repeat(25_000) + known);
    assert!(long.contains("KV cache of 16000 tokens in blocks of 16"), "{long}");
    assert!(!long.contains("ranks"), "{long}");
    let ranks = said(format!(
        "vllm:num_requests_running{{engine=\"0\"}} 1\nvllm:num_requests_running{{engine=\"1\"}} 1\n{known}"
    ));
    assert!(ranks.contains("2 data-parallel ranks behind this port, each with a cache of its own"), "{ranks}");
    // Of one of several nodes, with hybrid load balancing.
    let from = |metrics: &str, keys: &str| {
        let url = engine_named(Duration::ZERO, None, format!("{metrics}{known}").leak());
        let file = File::new("numbered", &format!("[[upstream]]\nurl = \"{url}\"\n{keys}"));
        let path = file.0.join("w.toml");
        text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout)
    };
    let [five, six] = [5, 6].map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n"));
    let numbered = from(&(five.clone() + &six), "");
    assert!(numbered.contains("numbered from 5") && numbered.contains("so leave it out"), "{numbered}");
    assert!(!numbered.contains("with `ranks = 2`"), "{numbered}");
    let configured = from(&(five.clone() + &six), "ranks = 2\n");
    assert!(configured.contains("numbered from 5") && configured.contains("leave `ranks` out"), "{configured}");
    let alone = from(&five, "");
    assert!(!alone.contains("ranks"), "{alone}");
    let silent = said("python_info{version=\"3.12\"} 1\n".into());
    assert!(silent.contains("none of vLLM's or SGLang's names (take away vLLM's --disable-log-stats"), "{silent}");
    let none = said(String::new());
    assert!(none.contains("its load is not seen, and it is taken to be as full as the others"), "{none}");
}

#[test]
fn what_engines_leave_unsaid_of_their_caches_is_advised_on() {
    let said = |metrics: &'static str, reply: &'static str| {
        let url = listening(move |path, _| match path {
            "/health" => (200, ""),
            "/v1/models" => (200, LLAMA),
            "/metrics" => (200, metrics),
            "/v1/completions" => (200, reply),
            _ => (404, ""),
        });
        text(&check(&["--no-ports", "--upstream", &url]).stdout)
    };
    let tells = r#"{"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}"#;
    let cache = |caches: &str| {
        let labels = format!("block_size=\"16\",enable_prefix_caching=\"{caches}\",num_gpu_blocks=\"100\"");
        &*format!("vllm:num_requests_running 1\nvllm:cache_config_info{{{labels}}} 1\n").leak()
    };
    let sleeps = "vllm:num_requests_running 0\nvllm:engine_sleep_state{sleep_state=\"awake\"} 0\n";
    let all = [
        ("ok ", "replies say how much of a prompt was cached"),
        ("advice ", "start it with --enable-prompt-tokens-details to compare"),
        (
            "advice ",
            "start it with --enable-cache-report to compare; SGLang's server in Rust tells it on /generate alone",
        ),
        ("advice ", "prefix caching is off"),
        ("advice ", "sleeps, and gets no requests"),
    ];
    for (metrics, reply, found) in [
        (cache("True"), tells, [true, false, false, false, false]),
        (cache("True"), "{}", [false, true, false, false, false]),
        ("sglang:num_running_reqs 1\n", "{}", [false, false, true, false, false]),
        (cache("False"), tells, [true, false, false, true, false]),
        // Nor is it woken to answer.
        (sleeps, tells, [false, false, false, false, true]),
    ] {
        let said = said(metrics, reply);
        let is_said =
            |(mark, words): (&str, &str)| said.lines().any(|line| line.starts_with(mark) && line.contains(words));
        assert_eq!(all.map(is_said), found, "{metrics}{said}");
    }
}

/// Control's own calls name it as it is configured, and requests as their clients do.
#[test]
fn an_engine_that_is_served_under_its_own_name_alone_is_advised_on() {
    let said = |host: Option<fn(&str) -> bool>| {
        let url = engine_named(Duration::ZERO, host, "");
        let file = File::new("host", &format!("[[upstream]]\nurl = \"{url}\"\n"));
        let path = file.0.join("w.toml");
        text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout)
    };
    let named = said(Some(|host| host.starts_with("127.0.0.1:")));
    assert!(named.contains("serves llama") && named.contains("answers 404 under another `Host`"), "{named}");
    let any = said(None);
    assert!(any.contains("serves llama") && !any.contains("Host"), "{any}");
}

/// As uvicorn does whom a request comes in plain words: it closes without one.
#[test]
fn an_engine_that_wants_tls_is_said_to_want_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (turn, mut stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let _ = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok).find(String::is_empty);
            // Others send an alert: "unexpected message".
            let _ = stream.write_all(if turn % 2 == 0 { b"" } else { b"\x15\x03\x01\x00\x02\x02\x0a" });
        }
    });
    for _ in 0..2 {
        let said = text(&check(&["--no-ports", "--upstream", &url]).stdout);
        assert!(said.contains("if it was started with --ssl-keyfile or the like, it speaks TLS"), "{said}");
    }
    let gone = text(&check(&["--no-ports", "--upstream", "http://127.0.0.1:1"]).stdout);
    assert!(gone.contains("start it, or mend `url`") && !gone.contains("TLS"), "{gone}");
}

#[test]
fn models_that_no_engine_serves_are_named() {
    let of = |engines: &str| {
        format!(
            "[serve]\ndefault_model = \"lama\"\n[pool.\"llama\"]\nload_percent = 150\n[pool.\"x/y\"]\nload_percent = 150\n{engines}"
        )
    };
    let serves = format!("[[upstream]]\nurl = \"{}\"\n", engine(Duration::ZERO));
    let file = File::new("models", &of(&serves));
    let path = file.0.join("w.toml");
    let said = text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout);
    for name in ["default_model = \"lama\"", "[pool.\"x/y\"]"] {
        assert!(
            said.contains(&format!("no engine serves the model of {name}, which has no effect; they serve llama")),
            "{said}"
        );
    }
    assert_eq!(said.matches("no engine serves the model").count(), 2, "{said}");
    // An engine that keeps silent may serve them.
    std::fs::write(&path, of(&format!("{serves}[[upstream]]\nurl = \"http://127.0.0.1:1\"\n"))).unwrap();
    let said = text(&check(&["--no-ports", "--config", path.to_str().unwrap()]).stdout);
    assert!(!said.contains("no engine serves the model"), "{said}");
}
