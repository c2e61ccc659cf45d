//! What an operator is told of trouble that no request shows: log lines, each once, and series for alarms.

use std::collections::HashSet;
use std::time::Duration;

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::reloading::config;
use crate::{QUICK, fleet, on_both, until};

const LOADED: &str =
    "HTTP/1.1 200 OK\r\ncontent-length: 57\r\n\r\nvllm:num_requests_running 7\nvllm:num_requests_waiting 3\n\n";
/// Metrics that say which process it is.
const STARTED: &str =
    "HTTP/1.1 200 OK\r\ncontent-length: 66\r\n\r\nprocess_start_time_seconds 1700000000\nvllm:num_requests_running 0\n";
const SORRY: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nsorry";
/// Said of an engine that does not tell how it is loaded.
const UNREAD: &str = "cannot read an engine's /metrics";

fn lines(front: &Front, words: &str) -> usize {
    front.log().lines().filter(|line| line.contains(words)).count()
}

/// The engine is up all the while: its last known load is no longer believed, nor is it taken for none.
#[test]
fn an_engine_whose_metrics_become_unreadable_is_told() {
    let engine = Engine::start();
    engine.tells(LOADED);
    let quick = "[control]\nscrape_interval_ms = 20\nscrape_timeout_ms = 10000\nstale_after_ms = 200\n";
    let front = Front::start("auto", &[engine.address], &format!("{QUICK}{quick}"));
    front.until_health(0, "up");
    let foreign = || {
        let text = front.asks("GET", "/metrics", "").1;
        let of = format!("warmfront_endpoint_foreign{{endpoint=\"{}\"}} ", engine.address);
        text.lines().find_map(|line| line.strip_prefix(&of).map(str::to_owned))
    };
    let failures = || front.metric("warmfront_endpoint_scrape_failures_total{");
    until("its load", || foreign().as_deref() == Some("10.0"));
    assert_eq!(lines(&front, UNREAD), 0);
    engine.tells(SORRY);
    front.until_said("/metrics answers 500");
    until("no figure", || foreign().is_none());
    let before = failures();
    until("ten more failures", || failures() >= before + 10.0);
    assert_eq!((lines(&front, UNREAD), front.acts_on(0, "up")), (1, true), "{}", front.log());
    engine.tells(LOADED);
    front.until_said("/metrics is read again");
    until("its load again", || foreign().as_deref() == Some("10.0"));
}

/// An engine with room for one prompt, all of which is taken.
const FULL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 121\r\n\r\nprocess_start_time_seconds 1700000000\n\
                    vllm:kv_cache_usage_perc 0.9\nvllm:cache_config_info{kv_cache_size_tokens=\"1000\"} 1\n";

/// The engine is too busy to answer `/metrics`, just when requests have to wait: these go one by one as there is room,
/// and not all at once.
#[test]
fn who_waits_goes_on_waiting_where_metrics_become_unreadable() {
    let engine = Engine::start();
    engine.tells(FULL);
    engine.becomes(Mood::TicksOn);
    let control = "[control]\nscrape_interval_ms = 20\nscrape_timeout_ms = 10000\nstale_after_ms = 200\n";
    let warm = QUICK.replace("round-robin\"", "warm\"\nqueue = \"on\"");
    let front = Front::start("auto", &[engine.address], &format!("{warm}{control}"));
    front.until_health(0, "up");
    until("its figures", || front.endpoint(0)["engine"]["kv_use"].is_number());
    let asks = || {
        let mut client = front.connect();
        std::thread::spawn(move || client.prompts("m", 3_200))
    };
    let waiting = || front.metric("warmfront_queue_waiting");
    let mut clients = vec![asks()];
    until("it is computed", || engine.requests() == 1);
    clients.push(asks());
    until("one waits", || waiting() == 1.0);
    engine.tells(SORRY);
    until("figures too old", || front.endpoint(0)["engine"].is_null());
    clients.push(asks());
    until("both wait", || waiting() == 2.0);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((waiting(), engine.requests()), (2.0, 1));
    engine.becomes(Mood::Good);
    assert!(clients.into_iter().all(|client| client.join().unwrap() == 200));
    assert_eq!((waiting(), engine.requests()), (0.0, 3));
}

/// Some engines have no metrics at all.
#[test]
fn that_an_engine_has_no_metrics_is_said_once() {
    let ([_engine], front) =
        fleet("auto", &format!("{QUICK}[control]\nscrape_interval_ms = 20\nscrape_timeout_ms = 10000\n"));
    front.until_said("/metrics answers 404");
    until("more of it", || front.metric("warmfront_endpoint_scrape_failures_total{") > 20.0);
    assert_eq!(lines(&front, UNREAD), 1);
}

/// The old configuration goes on serving, and the reload's answer may not have been read.
#[test]
fn a_configuration_that_is_refused_or_waits_is_told() {
    let engine = Engine::start();
    let front = Front::start("auto", &[], &config("", &[&engine]));
    let [taken, read, waiting] = ["last_reload_successful", "last_reload_success_timestamp_seconds", "restart_wanted"]
        .map(|name| format!("warmfront_config_{name} "));
    let told = || [&taken, &waiting].map(|name| front.metric(name));
    let begun = front.metric(&read);
    assert!((told(), begun > 1_600_000_000.0) == ([1.0, 0.0], true), "{begun}");
    front.write("[limits]\nbody_bytes_maxx = 1\n");
    assert_eq!((front.reload().0, told(), front.metric(&read)), (422, [0.0, 0.0], begun));
    front.write(&config("[log]\nformat = \"json\"\n[serve]\npin = false\n", &[&engine]));
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    assert_eq!((front.reload().0, told()), (200, [1.0, 2.0]));
    assert!(front.metric(&read) > begun);
    front.write(&config("", &[&engine]));
    assert_eq!((front.reload().0, told()), (200, [1.0, 0.0]));
    assert_eq!(
        ["s_total ", "s_under_way "].map(|name| front.metric(&format!("warmfront_config_reload{name}"))),
        [3.0, 0.0]
    );
}

/// Under the names that dashboards know, whatever program the process is.
#[test]
fn what_the_kernel_knows_of_the_process_is_told() {
    let ([_engine], front) = fleet("auto", QUICK);
    let told = |name: &str| front.metric(&format!("process_{name} "));
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!((now - 120.0..now).contains(&told("start_time_seconds")), "{} at {now}", told("start_time_seconds"));
    assert!(told("max_fds") >= 64.0);
    until("some work", || told("cpu_seconds_total") > 0.0);
    assert!(told("resident_memory_bytes") > f64::from(1 << 20));
    assert!(told("virtual_memory_bytes") > told("resident_memory_bytes"));
    let before = told("open_fds");
    let clients: Vec<_> = (0..8).map(|_| front.connect()).collect();
    until("their descriptors", || told("open_fds") >= before + 8.0);
    drop(clients);
    let text = front.asks("GET", "/metrics", "").1;
    let mut families = HashSet::new();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.for_each(|name| assert!(families.insert(name), "{name} twice"));
}

/// The file's name is the same: without a log line an operator would not know whether the old key is gone.
#[test]
fn engines_that_are_asked_with_another_key_are_named() {
    let [open, locked] = std::array::from_fn(|_| Engine::start());
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-{}", std::process::id()));
    let write = |key: &str| std::fs::write(&file, key).unwrap();
    write("one");
    let key = format!("api_key_file = \"{}\"\n", file.display());
    let front = Front::start("auto", &[], &format!("{}{key}", config("", &[&open, &locked])));
    let rekeyed = || {
        let (status, said) = front.reload();
        let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((status, &changes["changed"]), (200, &serde_json::json!([])), "{said}");
        changes["rekeyed"].clone()
    };
    assert_eq!(rekeyed(), serde_json::json!([]));
    write("two");
    let name = locked.address.to_string();
    assert_eq!(rekeyed(), serde_json::json!([name]));
    front.until_said(&format!("rekeyed=[\"{name}\"]"));
    assert_eq!(rekeyed(), serde_json::json!([]));
    std::fs::remove_file(&file).unwrap();
}

/// Further clients hang, and are no requests yet.
#[test]
fn a_shard_that_has_as_many_clients_as_it_may_is_told() {
    on_both(|driver| {
        let ([_engine], front) = fleet(driver, &format!("{QUICK}[limits]\nconnections_max = 2\n"));
        let pauses = || front.metric("warmfront_accept_pauses_total");
        let first = front.connect();
        until("one", || front.metric("warmfront_client_connections ") == 1.0);
        assert_eq!((pauses(), front.metric("warmfront_shard_client_connections_max")), (0.0, 2.0), "{driver}");
        let _second = front.connect();
        front.until_said("a shard has as many clients as it may");
        assert_eq!(pauses(), 1.0, "{driver}");
        let mut third = front.connect();
        third.ask();
        drop(first);
        assert_eq!((third.reply().status, pauses()), (200, 2.0), "{driver}");
        assert_eq!(lines(&front, "a shard has as many clients as it may"), 1, "{driver}");
    });
}

/// No other engine serves its models, so it stays, however slow; and what it serves is not known.
#[test]
fn an_engine_that_stays_although_it_is_slow_is_told_and_so_is_the_end_of_it() {
    let engine = Engine::start();
    let quick = QUICK.replace("slow_start_ms", "probe_timeout_ms = 500\nslow_start_ms");
    let front = Front::start("auto", &[engine.address], &quick);
    front.until_health(0, "up");
    until("its models", || front.metric("warmfront_endpoint_models_unread{") == 1.0);
    engine.is_slow(true);
    front.until_said("although it does not answer its probes in time");
    until("more of it", || front.metric("warmfront_endpoint_probe_failures_total{") >= 4.0);
    assert!(front.acts_on(0, "up"));
    let why = || front.endpoint(0)["why"].as_str().map(str::to_owned);
    assert!(why().is_some_and(|why| why.contains("kept in service") && why.contains("500 ms")), "{:?}", why());
    engine.is_slow(false);
    front.until_said("engine answers its probes in time again");
    until("nothing more to say", || why().is_none());
}

/// One engine is taken out, the other stays because none else is left, and neither looks healthy.
#[test]
fn what_engines_fail_by_is_told_of_who_is_out_and_of_who_is_kept() {
    on_both(|driver| {
        let quick = QUICK.replace("eject_ms = 3000\neject_ms_max = 4000", "eject_ms = 60000\neject_ms_max = 60000");
        let (engines, front) = fleet::<2>(driver, &quick);
        let mut client = front.connect();
        let why = |place| front.endpoint(place)["why"].as_str().unwrap_or_default().to_owned();
        assert_eq!([0, 1].map(why), ["", ""]);
        engines[0].becomes(Mood::Fails);
        until("an ejection", || {
            client.post();
            front.acts_on(0, "ejected")
        });
        assert!(why(0).contains("in a row") && why(0).contains("error_reply"), "{driver}: {}", why(0));
        let line = front.log().lines().find(|line| line.contains("engine is ejected")).unwrap().to_owned();
        assert!(line.contains("the last by error_reply"), "{line}");
        assert_eq!(why(1), "");
        engines[1].becomes(Mood::Fails);
        until("what it fails by", || client.post().status == 500 && why(1).contains("error_reply"));
        assert!(why(1).contains("kept in service") && front.acts_on(1, "up"), "{driver}: {}", why(1));
        front.until_said("engine stays in service");
        let line = front.log().lines().find(|line| line.contains("engine stays in service")).unwrap().to_owned();
        assert!(line.contains("the last by error_reply"), "{line}");
        assert_eq!(front.metric("warmfront_endpoint_kept{"), 1.0, "{driver}");
        engines[1].becomes(Mood::Good);
        until("a good answer", || client.post().status == 200 && why(1).is_empty());
    });
}

/// The file is written each minute, and here before another process takes this one's place.
#[test]
fn caches_that_cannot_be_written_down_are_counted() {
    let engine = Engine::start();
    engine.tells(STARTED);
    let front = Front::start("auto", &[], &config("[control]\ncaches_file = \"/nowhere/caches\"\n", &[&engine]));
    until("its figures", || !front.endpoint(0)["engine"].is_null());
    let failures = || front.metric("warmfront_caches_file_failures_total");
    assert_eq!(failures(), 0.0);
    front.write("this is no configuration");
    front.try_upgrade();
    front.until_said("no process took this one's place");
    assert_eq!(failures(), 1.0);
}
