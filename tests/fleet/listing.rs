//! What engines list in `/v1/models`, and what becomes of requests for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::engine::Engine;
use crate::front::Front;
use crate::reloading::config;
use crate::{DRIVERS, until};

const WARM: &str = "[control]\nmodels_interval_ms = 200\n";

/// A front with policy `warm`, once it knows what these engines serve.
fn front(driver: &str, engines: &[&Engine]) -> Front {
    let front = Front::start(driver, &[], &config(WARM, engines).replace("round-robin", "warm"));
    (0..engines.len()).for_each(|place| until_known(&front, place));
    front
}

/// Waits until it is known what the engine at `place` serves. If the engine is slow to say so, requests may come first.
fn until_known(front: &Front, place: usize) {
    front.until_health(place, "up");
    until("a pool of its model", || {
        let fleet: serde_json::Value = serde_json::from_str(&front.asks("GET", "/endpoints", "").1).unwrap();
        let shown = &fleet["endpoints"][place];
        let lists =
            |of: &serde_json::Value, what: &serde_json::Value| of.as_array().is_some_and(|all| all.contains(what));
        let is_its = |pool: &serde_json::Value| {
            lists(&shown["models"], &pool["model"]) && lists(&pool["endpoints"], &shown["name"])
        };
        fleet["pools"].as_array().unwrap().iter().any(is_its)
    });
}

#[test]
fn a_long_prompt_is_sent_to_who_takes_it() {
    let [short, long] = std::array::from_fn(|_| Engine::start());
    short.serves(&[("m", 8_192)]);
    long.serves(&[("m", 32_768)]);
    let front = front("auto", &[&short, &long]);
    let mut client = front.connect();
    let mut sent = |bytes: usize, turns: usize| {
        let before = [short.requests(), long.requests()];
        (0..turns).for_each(|_| assert_eq!(client.prompts("m", bytes), 200));
        [short.requests() - before[0], long.requests() - before[1]]
    };
    assert_eq!(sent(80_000, 10), [0, 10], "some 20,000 tokens");
    assert!(sent(400, 40)[0] > 0, "short ones go where the least is to do");
    long.goes();
    front.until_health(1, "down");
    assert_eq!(sent(80_000, 1), [1, 0], "there is no other");
}

/// A reload under load that renames engines of different models, and one that replaces them by others: what each serves
/// is known before it gets requests.
#[test]
fn engines_that_are_renamed_or_replaced_serve_on() {
    for driver in DRIVERS {
        // A reload waits a second to learn what an engine serves. The machine may stop some for that long, but hardly
        // in each of three tries.
        let failed: Vec<_> = (0..3).map(|_| renamed_and_replaced(driver)).take_while(|failed| *failed > 0).collect();
        assert!(failed.len() < 3, "{driver}: {failed:?} requests failed");
    }
}

/// How many requests failed.
fn renamed_and_replaced(driver: &str) -> usize {
    let [a, b, c, d] = std::array::from_fn(|_| Engine::start());
    [&a, &c].iter().for_each(|engine| engine.serves(&[("a", 8_192)]));
    [&b, &d].iter().for_each(|engine| engine.serves(&[("b", 8_192)]));
    let front = Arc::new(front(driver, &[&a, &b]));
    let stop = Arc::new(AtomicBool::new(false));
    let (served, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let client = |model: &'static str| {
        let (front, stop) = (Arc::clone(&front), Arc::clone(&stop));
        let (served, failed) = (Arc::clone(&served), Arc::clone(&failed));
        std::thread::spawn(move || {
            let mut client = front.connect();
            while !stop.load(Ordering::Relaxed) {
                failed.fetch_add(usize::from(client.prompts(model, 400) != 200), Ordering::Relaxed);
                served.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let clients = ["a", "b", "a", "b"].map(client);
    let takes = |text: String| {
        let before = served.load(Ordering::Relaxed);
        until("requests", || served.load(Ordering::Relaxed) >= before + 20);
        front.write(&text.replace("round-robin", "warm"));
        assert_eq!(front.reload().0, 200);
        let before = served.load(Ordering::Relaxed);
        until("requests behind it", || served.load(Ordering::Relaxed) >= before + 20);
    };
    for turn in 0..4 {
        let named =
            |engine: &Engine| format!("[[upstream]]\nurl = \"http://{0}\"\nname = \"{turn}-{0}\"\n", engine.address);
        takes(config(WARM, &[]) + &named(&a) + &named(&b));
        takes(config(WARM, &[&c, &d]));
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    failed.load(Ordering::Relaxed)
}

/// An engine that lists a model gets prompts for it.
#[test]
fn who_comes_to_list_what_others_serve_is_told_of() {
    let [a, b] = std::array::from_fn(|_| Engine::start());
    a.serves(&[("a", 8_192)]);
    b.serves(&[("b", 8_192)]);
    let front = front("auto", &[&a, &b]);
    const WORDS: &str = "did not list before";
    b.serves(&[("b", 8_192), ("new", 8_192)]);
    let mut client = front.connect();
    until("another", || client.prompts("new", 100) == 200);
    assert!(!front.has_said(WORDS), "{}", front.log());
    b.serves(&[("b", 8_192), ("new", 8_192), ("a", 8_192)]);
    front.until_said(WORDS);
    let told = front.log().lines().find(|line| line.contains(WORDS)).unwrap().to_owned();
    assert!(told.contains(&b.address.to_string()) && told.contains("model=\"a\""), "{told}");
}

/// The next look is a minute away.
#[test]
fn an_adapter_that_is_loaded_by_hand_is_served_soon() {
    let [a, b] = std::array::from_fn(|_| Engine::start());
    a.serves(&[("a", 8_192)]);
    b.serves(&[("b", 8_192)]);
    let text = config("[control]\nmodels_interval_ms = 60000\n", &[&a, &b]);
    let front = Front::start("auto", &[], &text);
    (0..2).for_each(|place| until_known(&front, place));
    let mut client = front.connect();
    assert_eq!(["a", "b", "new"].map(|model| client.prompts(model, 100)), [200, 200, 404]);
    a.serves(&[("a", 8_192), ("new", 8_192)]);
    until("the adapter", || client.prompts("new", 100) == 200);
    // The model is unloaded, and loaded elsewhere: its old engine is the first to know.
    a.serves(&[("a", 8_192)]);
    b.serves(&[("b", 8_192), ("new", 8_192)]);
    until("the other engine's", || client.prompts("new", 100) == 200);
}

/// If engines ask for keys, a client that none has let in yet is judged by one of them, which need not be the only one
/// that serves the model by now.
#[test]
fn an_adapter_that_is_loaded_by_hand_is_served_soon_to_whom_no_engine_knows() {
    let [a, b] = std::array::from_fn(|_| Engine::start());
    a.serves(&[("a", 8_192)]);
    b.serves(&[("b", 8_192)]);
    [&a, &b].iter().for_each(|engine| engine.asks_keys());
    let text = config("[control]\nmodels_interval_ms = 60000\n", &[&a, &b]);
    let front = Front::start("auto", &[], &text);
    (0..2).for_each(|place| until_known(&front, place));
    let mut client = front.connect();
    assert_eq!(["a", "b"].map(|model| client.prompts(model, 100)), [401; 2]);
    let mut new = || client.prompts_with("authorization: Bearer key\r\n", "new", 100);
    assert_eq!(new(), 404);
    b.serves(&[("b", 8_192), ("new", 8_192)]);
    until("the adapter", || new() == 200);
}

/// Its clients show the key that the process before took, and the new one refuses them at once.
#[test]
fn who_is_started_again_with_another_key_serves_nothing() {
    let [a, b] = std::array::from_fn(|_| Engine::start());
    let locked = |engine: &Engine| {
        engine.serves(&[("m", 8_192)]);
        engine.takes("one");
    };
    [&a, &b].into_iter().for_each(locked);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-of-two-{}", std::process::id()));
    std::fs::write(&file, "one").unwrap();
    let key = format!("api_key_file = \"{}\"\n", file.display());
    let upstreams = [&a, &b].map(|engine| config("", &[engine]).split_off(config("", &[]).len()) + &key).concat();
    let front = Front::start("auto", &[], &(config(WARM, &[]) + &upstreams));
    (0..2).for_each(|place| until_known(&front, place));
    let mut client = front.connect();
    let mut asks = |times: usize| {
        let answers = (0..times).map(|_| client.prompts_with("authorization: Bearer one\r\n", "m", 100));
        answers.filter(|status| *status != 200).count()
    };
    assert_eq!(asks(4), 0);
    // As far as is known the process is the same, and so is what it serves.
    b.takes("another");
    front.until_said("it refuses the key");
    assert!(front.endpoint(1)["models"].is_array());
    b.goes();
    front.until_health(1, "down");
    b.returns();
    front.until_health(1, "up");
    until("nobody to be sent there", || asks(10) == 0);
    assert!(front.endpoint(1)["models"].is_null());
    let said = front.log().lines().filter(|line| line.contains("its models are forgotten")).count();
    assert_eq!(said, 1, "{}", front.log());
    let before = b.requests();
    b.takes("one");
    until_known(&front, 1);
    until("its part", || asks(10) == 0 && b.requests() > before);
    std::fs::remove_file(&file).unwrap();
}

/// Clients would get 404 from then on, though the engine is up.
#[test]
fn a_model_that_nobody_serves_any_more_is_told() {
    let [a, b] = std::array::from_fn(|_| Engine::start());
    a.serves(&[("x", 8_192)]);
    b.serves(&[("x", 8_192), ("lora", 8_192)]);
    let front = front("auto", &[&a, &b]);
    const NOBODY: &str = "no engine is known to serve these models any more";
    let changes = |engine: &Engine, models: &[(&'static str, u32)], line: &str| {
        engine.serves(models);
        front.until_said(&format!("{line} engine=\"{}\"", engine.address));
    };
    changes(&b, &[("x", 8_192), ("other", 8_192)], "went=[\"lora\"] came=[\"other\"]");
    front.until_said(&format!("{NOBODY} models=[\"lora\"]"));
    changes(&a, &[("y", 8_192)], "went=[\"x\"] came=[\"y\"]");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!front.has_said(&format!("{NOBODY} models=[\"x\"]")), "{}", front.log());
    changes(&b, &[("y", 8_192), ("other", 8_192)], "went=[\"x\"] came=[\"y\"]");
    front.until_said(&format!("{NOBODY} models=[\"x\"]"));
}
