//! What a configuration asks for and does not get: the front runs without it, and says so.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use crate::engine::Engine;
use crate::front::Front;
use crate::reloading::config;
use crate::until;

fn times(front: &Front, words: &str) -> usize {
    front.log().lines().filter(|line| line.contains(words)).count()
}

#[test]
fn models_that_no_engine_serves_are_said_at_each_change() {
    let engine = Engine::start();
    let of = |model: &str, pool: &str| {
        format!(
            "[serve]\ndefault_model = \"{model}\"\n[pool.\"{pool}\"]\nload_percent = 150\n\
             [[upstream]]\nurl = \"http://{}\"\nmodels = [\"m\", \"n\"]\n",
            engine.address
        )
    };
    let front = Front::start("auto", &[], &of("mm", "n"));
    let unserved = "no engine serves the model that the configuration names here";
    front.until_said("no engine serves");
    assert!(front.log().contains("name=\"default_model = \\\"mm\\\"\""), "{}", front.log());
    front.until_health(0, "up");
    assert_eq!(front.reload().0, 200);
    front.write(&of("mm", "nn"));
    assert_eq!(front.reload().0, 200);
    until("the pool", || times(&front, unserved) == 2);
    assert!(front.log().contains("[pool.\\\"nn\\\"]"), "{}", front.log());
    front.write(&of("m", "nn"));
    assert_eq!(front.reload().0, 200);
    front.until_said("the model is served, or the configuration names it no longer");
    assert_eq!(times(&front, unserved), 2, "{}", front.log());
}

#[test]
fn a_file_for_caches_that_cannot_be_written_is_said_at_the_start() {
    let engine = Engine::start();
    let of = |file: &str| config(&format!("[control]\ncaches_file = \"{file}\"\n"), &[&engine]);
    let front = Front::start("auto", &[], &of("/nowhere/caches"));
    front.until_said("caches_file cannot be written: a restart will begin with cold caches");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("caches-{}", std::process::id()));
    front.write(&of(&file.display().to_string()));
    assert_eq!(front.reload().0, 200);
    front.until_said("caches_file has nothing to keep: no pool has the policy warm or precise");
}

#[test]
fn too_few_descriptors_are_said_whenever_more_are_asked_for() {
    let engine = Engine::start();
    let of = |clients: u64| config(&format!("[limits]\nconnections_max = {clients}\n"), &[&engine]);
    let front = Front::start("auto", &[], &of(10));
    front.until_health(0, "up");
    let said = "too few descriptors for connections_max";
    assert!(!front.has_said(said), "{}", front.log());
    front.write(&of(1 << 40));
    assert_eq!(front.reload().0, 200);
    front.until_said(said);
}

/// An engine that answers every request with the same figures.
fn engine_that_tells(figures: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let length = figures.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all((head + figures).as_bytes());
        }
    });
    address
}

#[test]
fn that_no_engine_would_be_known_again_is_said() {
    let engine = engine_that_tells("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n");
    let file = std::env::temp_dir().join(format!("warmfront-wanting-{}", std::process::id()));
    let front = Front::start("auto", &[engine], &format!("[control]\ncaches_file = \"{}\"\n", file.display()));
    until("its figures", || !front.endpoint(0)["engine"].is_null());
    front.interrupt();
    front.until_said("caches_file keeps nothing of this engine: it tells no process_start_time_seconds");
    assert!(!file.exists());
}

/// An engine as a process of its own; ends with the value.
struct Simulated(Child, SocketAddr);

impl Simulated {
    fn start() -> Simulated {
        let mut engine = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        engine.args(["engine", "--listen", "127.0.0.1:0", "--time-scale", "100"]).stdin(Stdio::null());
        let mut child = engine.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let address = said.split("http://").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        Simulated(child, address)
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// So that it can be tried without a GPU.
#[test]
fn a_front_that_starts_again_before_simulated_engines_knows_their_caches() {
    let engine = Simulated::start();
    let file = std::env::temp_dir().join(format!("warmfront-kept-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let keeps = format!("[control]\nscrape_interval_ms = 100\ncaches_file = \"{}\"\n", file.display());
    let held = |says: &str, also: &str| {
        let front = Front::start("auto", &[engine.1], &(keeps.clone() + also));
        front.until_health(0, "up");
        until("its figures", || !front.endpoint(0)["engine"].is_null());
        let body = format!("{{\"prompt\":\"{}\",\"max_tokens\":1}}", "warm ".repeat(2_000));
        let mut client = front.connect();
        client
            .send(&format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.reply().status, 200);
        drop(client);
        let held = front.metric("warmfront_prompt_tokens_held_total");
        assert!(!front.has_said("caches_file keeps nothing"));
        assert!(front.has_said(says), "{}", front.log());
        assert_eq!(front.has_said("is known again"), held > 0.0, "{}", front.log());
        assert_eq!(front.stop(), Some(0));
        held
    };
    let again = "what was known of this engine's cache is known again";
    assert_eq!(held("caches_file is not there yet: caches begin cold", ""), 0.0);
    assert!(held(again, "") > 1_000.0);
    // Saved rows are of no use in an index of another size; the log says so, and nothing else.
    let smaller = "[limits]\nindex_bytes = 8388608\n";
    assert_eq!(held("caches_file was written beside a prefix index of another size", smaller), 0.0);
    assert!(held(again, smaller) > 1_000.0);
    // Likewise for a front that names its engines otherwise.
    let renamed = format!("{smaller}[[upstream]]\nname = \"gpu-1\"\nurl = \"http://{}\"\n", engine.1);
    let front = Front::start("auto", &[], &(keeps.clone() + &renamed));
    assert!(front.has_said("no engine in caches_file has the name of one of these"), "{}", front.log());
    let _ = std::fs::remove_file(file);
}

#[test]
fn an_index_beyond_memory_is_refused_by_a_reload() {
    let engine = Engine::start();
    let front = Front::start("auto", &[], &config("", &[&engine]));
    let huge = config("[limits]\nindex_bytes = 1125899906842624\n", &[&engine]).replace("round-robin", "warm");
    front.write(&huge);
    let (status, said) = front.reload();
    assert!(status == 422 && said.contains("does not fit into the memory"), "{status} {said}");
}
