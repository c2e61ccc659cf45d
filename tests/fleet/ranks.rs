//! Servers with several ranks behind one port, before a whole front.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::front::Front;
use crate::on_both;
use crate::reloading::names;
use crate::until;
use crate::wire::{Length, Wire};

/// A vLLM with two ranks, as far as its metrics and the field that names one go.
struct Ranks {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The ranks that each request named: all values of that field.
    asked: Mutex<Vec<Vec<String>>>,
    /// When its process began.
    began: Mutex<u32>,
    metrics: Mutex<usize>,
    /// The number of its first rank.
    first: Mutex<u32>,
    /// Tokens that each rank's cache holds beyond the usual.
    larger: Mutex<u32>,
}

impl Ranks {
    fn start() -> Ranks {
        Ranks::on(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn on(listener: TcpListener) -> Ranks {
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(Wire::new(stream), &state));
            }
        });
        Ranks { address, state }
    }

    /// The ranks that were named since the last call.
    fn asked(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.state.asked.lock().unwrap())
    }

    fn begins_anew(&self) {
        *self.state.began.lock().unwrap() += 1;
    }

    fn config(&self, keys: &str) -> String {
        format!("{CONFIG}[[upstream]]\nurl = \"http://{}\"\nname = \"gpu\"\n{keys}", self.address)
    }
}

const CONFIG: &str = "[routing]\npolicy = \"warm\"\n[health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n\
                      [control]\nscrape_interval_ms = 50\n";

fn serve(mut wire: Wire, state: &State) {
    while let Some(head) = wire.head() {
        wire.body(head.length().unwrap_or(Length::Of(0)));
        let path = head.start.split(' ').nth(1).unwrap_or_default();
        // As before vLLM 0.30.
        let status = if path == "/kv_event_sources" { "404 Not Found" } else { "200 OK" };
        let body = match path {
            "/metrics" => {
                *state.metrics.lock().unwrap() += 1;
                page(state)
            }
            "/v1/models" => "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"max_model_len\":8192}]}".into(),
            "/health" | "/kv_event_sources" => String::new(),
            _ => {
                let named = head.all("x-data-parallel-rank").into_iter().map(str::to_owned).collect();
                state.asked.lock().unwrap().push(named);
                "{}".into()
            }
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if wire.stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn page(state: &State) -> String {
    let [began, first, larger] = [&state.began, &state.first, &state.larger].map(|figure| *figure.lock().unwrap());
    let rank = |rank: u32| {
        format!(
            "vllm:num_requests_running{{engine=\"{rank}\"}} 0\nvllm:num_requests_waiting{{engine=\"{rank}\"}} 0\n\
             vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} 0.0\n\
             vllm:cache_config_info{{block_size=\"16\",engine=\"{rank}\",kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"2000\"}} 1\n",
            16_000 + larger + rank
        )
    };
    format!("process_start_time_seconds {}\n{}{}", 1_000 + began, rank(first), rank(first + 1))
}

fn chat(front: &Front, field: &str, words: &str) {
    let body = format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{words}\"}}]}}");
    let mut client = front.connect();
    client.send(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{field}content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.reply().status, 200);
}

/// Each rank is chosen by itself, by its own figures, and the same prompt goes to the same rank.
#[test]
fn ranks_behind_one_port_are_endpoints_of_their_own() {
    on_both(|driver| {
        let engine = Ranks::start();
        let front = Front::start(driver, &[], &engine.config("ranks = 2\nconcurrency_max = 5\n"));
        (0..2).for_each(|place| front.until_health(place, "up"));
        assert_eq!(names(&front), ["gpu@0", "gpu@1"]);
        for place in 0..2 {
            until("its own figures", || front.endpoint(place)["engine"]["kv_capacity_tokens"] == 16_000 + place);
            assert_eq!(front.endpoint(place)["cap"], 5);
        }
        assert!(!front.has_said("data-parallel ranks"));
        let mut seen = Vec::new();
        for prompt in 0..8 {
            let words = format!("{prompt} {}", "warm ".repeat(400));
            (0..3).for_each(|_| chat(&front, "X-Data-Parallel-Rank: 9\r\n", &words));
            let asked = engine.asked();
            assert!(asked.iter().all(|named| *named == asked[0]) && asked[0].len() == 1, "{asked:?}");
            seen.extend(asked.into_iter().flatten());
        }
        assert!(["0", "1"].iter().all(|rank| seen.iter().any(|named| named == rank)), "{seen:?}");
        let held = || front.metric("warmfront_index_blocks");
        assert!(held() > 0.0);
        // One process is behind both.
        engine.begins_anew();
        until("both are empty", || held() == 0.0);

        let drain = |path: &str| front.asks("POST", path, "");
        let (status, said) = drain("/endpoints/gpu@1/drain");
        assert!(status == 422 && said.contains("\"gpu@1\" is one of the ranks of \"gpu\""), "{said}");
        assert_eq!(drain("/endpoints/gpu/drain").0, 200);
        assert!((0..2).all(|place| front.endpoint(place)["health"] == "draining"));
        assert_eq!(drain("/endpoints/gpu/resume").0, 200);
        // One page tells of both.
        let pages = || *engine.state.metrics.lock().unwrap();
        let (before, began) = (pages(), Instant::now());
        std::thread::sleep(Duration::from_millis(300));
        // One each 50 ms, or a tenth sooner; two for each would be twelve.
        let (told, most) = (pages() - before, began.elapsed().as_secs_f64() / 0.05 * 1.2 + 2.0);
        assert!(told as f64 <= most, "a page for each rank: {told} in {:?}", began.elapsed());
    });
}

/// Reloads `ranks` from one to two and back, and to a number that the engine does not have.
#[test]
fn a_reload_makes_ranks_of_a_server_and_one_again() {
    on_both(|driver| {
        let engine = Ranks::start();
        let front = Front::start(driver, &[], &engine.config(""));
        front.until_health(0, "up");
        front.until_said("`ranks = 2` of its [[upstream]] has each chosen by itself");
        chat(&front, "X-Data-Parallel-Rank: 1\r\n", "hello");
        chat(&front, "", "hello");
        assert_eq!(engine.asked(), [vec!["1".to_owned()], vec![]], "its client's business");
        let reload = |keys: &str| {
            front.write(&engine.config(keys));
            let (status, said) = front.reload();
            assert_eq!(status, 200, "{said}");
            let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
            (changes["added"].clone(), changes["removed"].clone())
        };
        let list = |names: &[&str]| serde_json::json!(names);
        assert_eq!(reload("ranks = 2\n"), (list(&["gpu@0", "gpu@1"]), list(&["gpu"])));
        assert_eq!(names(&front), ["gpu@0", "gpu@1"]);
        (0..2).for_each(|place| front.until_health(place, "up"));
        (0..6).for_each(|turn| chat(&front, "", &format!("{turn}")));
        assert!(engine.asked().iter().all(|named| matches!(named.as_slice(), [rank] if rank == "0" || rank == "1")));
        assert_eq!(reload("ranks = 3\n"), (list(&["gpu@2"]), list(&[])), "the others stay");
        front.until_said("set `ranks = 2`");
        front.until_health(2, "up");
        assert_eq!(reload("ranks = 2\n"), (list(&[]), list(&["gpu@2"])));
        assert_eq!(reload(""), (list(&["gpu"]), list(&["gpu@0", "gpu@1"])));
        front.until_health(0, "up");
        chat(&front, "X-Data-Parallel-Rank: 1\r\n", "hello");
        chat(&front, "", "hello");
        assert_eq!(engine.asked(), [vec!["1".to_owned()], vec![]]);
        for (keys, words) in [("ranks = 0\n", "cannot be 0"), ("ranks = 65\n", "cannot be above 64")] {
            front.write(&engine.config(keys));
            let (status, said) = front.reload();
            assert!(status == 422 && said.contains(words), "{said}");
        }
    });
}

/// One of several nodes with hybrid load balancing.
#[test]
fn ranks_that_are_numbered_from_elsewhere_are_not_advised_to_be_named() {
    on_both(|driver| {
        let engine = Ranks::start();
        *engine.state.first.lock().unwrap() = 4;
        let front = Front::start(driver, &[], &engine.config(""));
        front.until_said("numbers them from 4");
        front.write(&engine.config("ranks = 2\n"));
        assert_eq!(front.reload().0, 200);
        front.until_said("leave `ranks` out");
        assert!(!front.has_said("`ranks = 2`"));
    });
}

/// A block of the index is 256 bytes of text, and a token four of them as long as nothing is known of its model.
#[test]
fn what_engines_want_of_the_index_and_have_of_it_is_counted() {
    on_both(|driver| {
        let engine = Ranks::start();
        let limits = "[limits]\nindex_bytes = 1048576\n";
        let front = Front::start(driver, &[], &(engine.config("ranks = 2\n") + limits));
        let of_index = || ["wanted", "due"].map(|what| front.metric(&format!("warmfront_index_blocks_{what}")) as u32);
        until("all that they want", || of_index() == [2 * 16_000 * 4 / 256; 2]);
        *engine.state.larger.lock().unwrap() = 4_000_000;
        until("far more", || of_index()[0] == 2 * 4_016_000 * 4 / 256);
        let due = of_index()[1];
        assert!((1_000..20_000).contains(&due), "{due}");
        front.until_said(&format!("engines=2 wanted=125500 blocks={due} "));
    });
}

/// An IPv6 address: the name has brackets and further colons, on every page and in every path.
#[test]
fn a_server_at_an_ipv6_address_is_called_so_everywhere() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        return crate::untested::say("what comes by IPv6, as this machine has none");
    };
    on_both(|driver| {
        // An engine for each driver: both run at once, and its requests are counted.
        let engine = Ranks::on(TcpListener::bind("[::1]:0").unwrap());
        let name = engine.address.to_string();
        let config = format!(
            "{CONFIG}[serve]\nlisten = [\"[::1]:0\"]\nadmin = \"[::1]:0\"\n[[upstream]]\nurl = \"http://{name}\"\nranks = 2\n"
        );
        let front = Front::start(driver, &[], &config);
        (0..2).for_each(|place| front.until_health(place, "up"));
        let ranks = [0, 1].map(|rank| format!("{name}@{rank}"));
        assert_eq!(names(&front), ranks);
        (0..4).for_each(|turn| chat(&front, "", &format!("{turn}")));
        assert_eq!(engine.asked().len(), 4);
        let requests = |rank: &String| front.metric(&format!("warmfront_endpoint_in_flight{{endpoint=\"{rank}\"}}"));
        assert_eq!([0, 1].map(|rank| requests(&ranks[rank])), [0.0; 2]);
        let edit = |path: &str| front.asks("POST", &format!("/endpoints/{path}"), "").0;
        let escaped = name.replace('[', "%5B").replace(']', "%5D").replace(':', "%3A");
        for name in [&name, &escaped] {
            assert_eq!(edit(&format!("{name}/drain")), 200);
            (0..2).for_each(|place| front.until_health(place, "draining"));
            assert_eq!((edit(&format!("{name}@1/resume")), edit(&format!("{name}/resume"))), (422, 200));
            (0..2).for_each(|place| front.until_health(place, "up"));
        }
        let said = |args: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_warmfront")).args(args).output().unwrap();
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
        };
        let top = said(&["top", "--once", "--admin", &front.admin.to_string()]);
        assert!(ranks.iter().all(|rank| top.contains(rank.as_str())), "{top}");
        let body = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
        let (status, explained) = front.asks("POST", "/explain", body);
        assert!(status == 200 && explained.contains(&ranks[0]), "{explained}");
    });
    let engine = Ranks::on(listener);
    let name = engine.address.to_string();
    let url = format!("http://{name}");
    let doctor = Command::new(env!("CARGO_BIN_EXE_warmfront")).args(["doctor", "--upstream", &url]).output().unwrap();
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.starts_with(&name) && doctor.contains("2 data-parallel ranks"), "{doctor}");
    assert!(doctor.contains("kv_events = \"tcp://[::1]:5557\""), "{doctor}");
}
