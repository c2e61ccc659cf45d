//! Another configuration while requests run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::{DRIVERS, until};

const HEAD: &str = "[routing]\npolicy = \"round-robin\"\n[health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n";

pub fn config(rest: &str, engines: &[&Engine]) -> String {
    let upstreams = engines.iter().map(|engine| format!("[[upstream]]\nurl = \"http://{}\"\n", engine.address));
    format!("{HEAD}{rest}{}", upstreams.collect::<String>())
}

/// Names of engines that `/endpoints` shows.
pub fn names(front: &Front) -> Vec<String> {
    let places = (0..).map(|place| front.endpoint(place)["name"].clone());
    places.map_while(|name| name.as_str().map(str::to_owned)).collect()
}

#[test]
fn engines_come_and_go_and_limits_change() {
    for driver in DRIVERS {
        let [first, second, third] = std::array::from_fn(|_| Engine::start());
        let front = Front::start(driver, &[], &config("", &[&first, &second]));
        (0..2).for_each(|place| front.until_health(place, "up"));
        let mut client = front.connect();
        (0..10).for_each(|_| assert_eq!(client.post().status, 200));
        assert_eq!((first.requests(), second.requests()), (5, 5));
        // A stream of the engine that leaves is not cut.
        first.becomes(Mood::Silent);
        let mut stream = front.connect();
        until("a stream of the first", || {
            stream = front.connect();
            stream.ask();
            stream.head().fields.iter().any(|(_, value)| value.contains("event-stream"))
        });

        assert_eq!(front.asks("POST", "/explain", "{}").0, 200);
        front.write(&config("[limits]\nbody_bytes_max = 1\nhold_bytes = 1\n", &[&second, &third]));
        let (status, said) = front.reload();
        assert_eq!(status, 200, "{said}");
        let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(changes["added"], serde_json::json!([third.address.to_string()]), "{said}");
        assert_eq!(changes["removed"], serde_json::json!([first.address.to_string()]), "{said}");
        assert_eq!(changes["changed"], serde_json::json!(["limits", "upstream"]), "{said}");
        assert_eq!(names(&front), [second.address.to_string(), third.address.to_string()]);
        assert_eq!(client.post().status, 413, "{driver}: two bytes are too many now");
        assert_eq!(front.asks("POST", "/explain", "{}").0, 413, "{driver}: for who asks about them, too");
        // Until its first probe it gets only a part of its later share.
        front.until_health(1, "up");
        let mut client = front.connect();
        let before = first.requests();
        (0..10).for_each(|_| assert_eq!(client.get("/v1/a").status, 200));
        assert_eq!((first.requests(), third.requests()), (before, 5), "{driver}");
        // A request is counted until its shard has seen the last byte go, a moment after the client has it.
        until("the stream alone", || front.metric("warmfront_counted_in_flight") == 1.0);
        drop(stream);
        until("its end", || front.metric("warmfront_counted_in_flight") == 0.0);
        assert_eq!(front.stop(), Some(0));
    }
}

#[test]
fn a_wrong_file_changes_nothing_and_is_explained() {
    let engine = Engine::start();
    let front = Front::start("auto", &[], &config("", &[&engine]));
    front.until_health(0, "up");
    for (wrong, words) in [
        ("[limits]\nbody_bytes_maxx = 1\n".to_owned(), "body_bytes_max"),
        (config("[limits]\nhead_bytes_max = 1\n", &[&engine]), "below 256"),
        (config("api_key_file = \"/nowhere\"\n", &[]), "api_key_file"),
        (format!("{HEAD}[[upstream]]\nurl = \"http://127.0.0.1:1\"\napi_key_file = \"/nowhere\"\n"), "/nowhere"),
    ] {
        front.write(&wrong);
        let (status, said) = front.reload();
        assert!(status == 422 && said.contains(words), "{status} {said}");
        assert_eq!((names(&front), front.connect().post().status), (vec![engine.address.to_string()], 200));
    }
}

/// Watching engines goes on through a reload, unless keys change that it depends on.
#[test]
fn a_watch_follows_what_it_goes_by() {
    let engine = Engine::start();
    let text = |rest: &str| config(rest, &[&engine]);
    let quick = text("successes_up = 2\n");
    let slow = quick.replace("_ms = 50", "_ms = 60000");
    let front = Front::start("auto", &[], &slow);
    // One probe comes when watching begins and is not enough, and the next one comes in a minute.
    front.write(&format!("{slow}weight = 2\n"));
    assert_eq!(front.reload().0, 200);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(front.endpoint(0)["health"], "unknown");
    front.write(&quick);
    assert_eq!(front.reload().0, 200);
    front.until_health(0, "up");
}

#[test]
fn what_needs_a_restart_is_said() {
    let engine = Engine::start();
    let front = Front::start("auto", &[], &config("", &[&engine]));
    let other = "[log]\nlevel = \"warn\"\nformat = \"json\"\n[serve]\npin = false\n";
    let both = serde_json::json!(["serve.pin", "log.format"]);
    for (rest, restart) in [
        (other.to_owned(), both.clone()),
        // It still waits for a restart, whatever else changes.
        (other.to_owned(), both.clone()),
        (format!("{other}stream_error_event = false\nallowed_origins = []\n"), both),
        // As the process was started.
        (String::new(), serde_json::json!([])),
    ] {
        front.write(&config(&rest, &[&engine]));
        let (status, said) = front.reload();
        let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((status, &changes["restart"]), (200, &restart), "{rest}: {said}");
    }
}

#[test]
fn an_index_that_is_made_anew_is_as_large_as_it_is_to_be() {
    let engine = Engine::start();
    let written = |policy: &str, rest: &str| config(rest, &[&engine]).replace("round-robin", policy);
    let front = Front::start("auto", &[], &written("warm", ""));
    let small = "[limits]\nindex_bytes = 33554432\n";
    let waits = serde_json::json!(["limits.index_bytes"]);
    for (policy, rest, restart) in [
        ("warm", small, &waits),
        ("precise", small, &serde_json::json!([])),
        ("precise", "", &waits),
        ("random", "", &serde_json::json!([])),
        ("warm", "", &serde_json::json!([])),
        ("warm", "[limits]\nindex_bytes = 0\n", &serde_json::json!([])),
        ("warm", small, &serde_json::json!([])),
    ] {
        front.write(&written(policy, rest));
        let (status, said) = front.reload();
        let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((status, &changes["restart"]), (200, restart), "{policy} {rest}: {said}");
    }
    for why in [
        "`precise` is used from now on",
        "no pool has the policy warm or precise any more",
        "`index_bytes` is 0 from now on",
    ] {
        front.until_said(&format!("{why}: what was known of caches is forgotten"));
    }
}

/// Twenty reloads, each with other engines, policies and limits, by signal and by request, under a load of short
/// requests and streams: no request fails.
#[test]
fn reloads_under_load_cost_no_request() {
    for driver in DRIVERS {
        let engines: [Engine; 4] = std::array::from_fn(|_| Engine::start());
        let [a, b, c, d] = &engines;
        let front = Arc::new(Front::start(driver, &[], &config("", &[a, b])));
        (0..2).for_each(|place| front.until_health(place, "up"));
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let (front, stop, served) = (Arc::clone(&front), Arc::clone(&stop), Arc::clone(&served));
                std::thread::spawn(move || {
                    let mut client = front.connect();
                    while !stop.load(Ordering::Relaxed) {
                        let reply = client.post();
                        assert!(reply.status == 200 && reply.body.data == b"{}", "{}", reply.status);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let policies = ["random", "warm", "prefix-hash", "round-robin"];
        for turn in 0..20 {
            let fleet = [vec![a, b], vec![c, d], vec![a, b, c, d], vec![d]][turn % 4].clone();
            let text = config("", &fleet).replace("round-robin", policies[turn % policies.len()]);
            front.write(&text);
            let before = served.load(Ordering::Relaxed);
            if turn % 2 == 0 {
                assert_eq!(front.reload().0, 200);
            } else {
                front.hang_up();
            }
            until("the reload", || names(&front).len() == fleet.len());
            until("requests behind it", || served.load(Ordering::Relaxed) >= before + 50);
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        eprintln!("{driver}: {} requests over 20 reloads, none failed", served.load(Ordering::Relaxed));
        until("the accounts", || front.metric("warmfront_counted_in_flight") == 0.0);
        assert_eq!(front.metric("warmfront_accounts_differ_total"), 0.0);
    }
}

/// A budget that is derived from the machine stays so: bodies are still held after a reload.
#[test]
fn bodies_are_held_behind_a_reload() {
    let engine = Engine::start();
    let by_prefix = |engine: &Engine| config("", &[engine]).replace("round-robin", "prefix-hash");
    let front = Front::start("auto", &[], &by_prefix(&engine));
    front.until_health(0, "up");
    assert_eq!(front.reload().0, 200);
    let mut client = front.connect();
    (0..5).for_each(|_| assert_eq!(client.post().status, 200));
}

/// Until a reload ends, which may be never, nothing else in the log would tell of it.
#[test]
fn a_reload_that_hangs_is_told() {
    let engine = Engine::start();
    let key = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("reloading-key-{}", std::process::id()));
    std::fs::write(&key, "secret").unwrap();
    let upstream = format!("[[upstream]]\nurl = \"http://{}\"\napi_key_file = \"{}\"\n", engine.address, key.display());
    let front = Front::start("auto", &[], &upstream);
    front.until_health(0, "up");
    std::fs::remove_file(&key).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&key).status().unwrap().success());
    front.hang_up();
    front.until_said("a reload has been under way for 10 s");
    std::fs::write(&key, "secret").unwrap();
    front.until_said("configuration taken");
    std::fs::remove_file(&key).unwrap();
}
