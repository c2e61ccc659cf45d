//! Counts of an engine are shown under its name, whichever engines have its slot before and after.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::reloading::config;
use crate::{on_both, until};

/// Engines by names of their own.
fn named(engines: &[(&str, &Engine)]) -> String {
    let upstream = |(name, engine): &(&str, &Engine)| {
        format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{}\"\n", engine.address)
    };
    config(&engines.iter().map(upstream).collect::<String>(), &[])
}

/// A counter by endpoint.
fn counts(front: &Front, family: &str) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for line in front.asks("GET", "/metrics", "").1.lines().filter(|line| line.starts_with(&format!("{family}{{"))) {
        let (_, name) = line.split_once("endpoint=\"").unwrap();
        let (name, value) = (name.split_once('"').unwrap().0, line.rsplit_once(' ').unwrap().1);
        *counts.entry(name.to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    counts
}

fn ended(front: &Front, name: &str) -> f64 {
    counts(front, "warmfront_requests_total").get(name).copied().unwrap_or(0.0)
}

/// Waits for exactly these counts; on the way no count falls.
fn until_ended(front: &Front, expected: &[(&str, f64)]) {
    until("the counts", || expected.iter().all(|(name, count)| ended(front, name) == *count));
    let sum: f64 = expected.iter().map(|(_, count)| count).sum();
    let all = counts(front, "warmfront_requests_total");
    assert_eq!(all.values().sum::<f64>(), sum, "{all:?}");
}

fn serve(front: &Front, requests: usize) {
    let mut client = front.connect();
    (0..requests).for_each(|_| assert_eq!(client.post().status, 200));
}

fn slot(front: &Front, place: usize) -> u64 {
    front.endpoint(place)["slot"].as_u64().unwrap()
}

/// Waits until no request runs in a slot that was left; meanwhile no count falls.
fn until_at_rest(front: &Front, slots: usize) {
    let before = counts(front, "warmfront_requests_total");
    until("the slot's rest", || {
        let now = counts(front, "warmfront_requests_total");
        assert_eq!(now, before);
        // An engine that has left has its own series until its slot is free.
        counts(front, "warmfront_endpoint_in_flight").len() == slots
    });
}

#[test]
fn who_takes_the_slot_of_one_that_left_begins_at_zero() {
    let [first, second, third] = std::array::from_fn(|_| Engine::start());
    let front = Front::start("auto", &[], &config("", &[&first, &second]));
    (0..2).for_each(|place| front.until_health(place, "up"));
    let [a, b, c] = [&first, &second, &third].map(|engine| engine.address.to_string());
    let left = slot(&front, 0);
    serve(&front, 10);
    until_ended(&front, &[(&a, 5.0), (&b, 5.0)]);
    first.becomes(Mood::Silent);
    second.becomes(Mood::Silent);
    let mut streams = [front.connect(), front.connect()];
    streams.iter_mut().for_each(|stream| {
        stream.ask();
        stream.head();
    });
    let first_tokens = "warmfront_endpoint_time_to_first_token_seconds_count";
    until("both first tokens", || counts(&front, first_tokens).values().sum::<f64>() == 2.0);
    [&first, &second].into_iter().for_each(|engine| engine.becomes(Mood::Good));

    assert_eq!(front.asks("DELETE", &format!("/endpoints/{a}"), "").0, 200);
    serve(&front, 2);
    // Its requests end while it leaves, and are counted as its own.
    drop(streams);
    until_ended(&front, &[(&a, 6.0), (&b, 8.0)]);
    until_at_rest(&front, 1);
    assert_eq!(front.asks("POST", "/endpoints", &format!("{{\"url\":\"http://{c}\"}}")).0, 200);
    front.until_health(1, "up");
    assert_eq!(slot(&front, 1), left);
    assert_eq!((ended(&front, &c), counts(&front, first_tokens).get(&c)), (0.0, None));
    serve(&front, 10);
    until_ended(&front, &[(&a, 6.0), (&b, 13.0), (&c, 5.0)]);
    assert_eq!(counts(&front, first_tokens), BTreeMap::from([(a.clone(), 1.0), (b.clone(), 1.0)]));

    // It returns, to another slot.
    assert_eq!(front.asks("POST", "/endpoints", &format!("{{\"url\":\"http://{a}\"}}")).0, 200);
    front.until_health(2, "up");
    assert_ne!(slot(&front, 2), left);
    serve(&front, 9);
    until_ended(&front, &[(&a, 9.0), (&b, 16.0), (&c, 8.0)]);
}

#[test]
fn engines_that_change_addresses_keep_their_counts_and_no_others() {
    let engines: [Engine; 4] = std::array::from_fn(|_| Engine::start());
    let [a, b, elsewhere, there] = &engines;
    let front = Front::start("auto", &[], &named(&[("a", a), ("b", b)]));
    (0..2).for_each(|place| front.until_health(place, "up"));
    let left = slot(&front, 0);
    a.becomes(Mood::Fails);
    let failed = (0..4).filter(|_| front.connect().post().status != 200).count();
    a.becomes(Mood::Good);
    serve(&front, 2);
    assert_eq!(failed, 2);
    until_ended(&front, &[("a", 3.0), ("b", 3.0)]);
    until("the faults", || counts(&front, "warmfront_endpoint_faults_total")["a"] == 2.0);

    front.write(&named(&[("a", elsewhere), ("b", b)]));
    assert_eq!(front.reload().0, 200);
    front.until_health(0, "up");
    assert_eq!(
        counts(&front, "warmfront_endpoint_faults_total"),
        BTreeMap::from([("a".into(), 2.0), ("b".into(), 0.0)])
    );
    serve(&front, 10);
    until_ended(&front, &[("a", 8.0), ("b", 8.0)]);
    // Longer than the slot that was left rests: nothing tells two slots of one name apart.
    std::thread::sleep(Duration::from_secs(3));
    until_ended(&front, &[("a", 8.0), ("b", 8.0)]);

    front.write(&named(&[("a", elsewhere), ("b", there)]));
    assert_eq!(front.reload().0, 200);
    front.until_health(1, "up");
    assert_eq!(slot(&front, 1), left);
    until_ended(&front, &[("a", 8.0), ("b", 8.0)]);
    serve(&front, 10);
    until_ended(&front, &[("a", 13.0), ("b", 13.0)]);
    let sums: Vec<usize> = engines.iter().map(Engine::requests).collect();
    assert_eq!(sums, [3, 8, 10, 5]);
}

/// Each request is answered by the other engine: only this count tells which one the failed connect was to.
#[test]
fn a_connect_that_fails_is_counted_by_its_endpoint() {
    on_both(|driver| {
        let [there, gone]: [Engine; 2] = std::array::from_fn(|_| Engine::start());
        // Only requests find out that it is gone, no probe.
        let seldom = config("", &[&there, &gone]).replace("probe_interval_ms = 50", "probe_interval_ms = 3600000");
        let front = Front::start(driver, &[], &seldom);
        (0..2).for_each(|place| front.until_health(place, "up"));
        gone.goes();
        serve(&front, 2);
        let failed = counts(&front, "warmfront_endpoint_connect_failures_total");
        let all = front.metric("warmfront_connect_failures_total");
        assert!(all >= 1.0, "{failed:?}");
        let expected = [(there.address.to_string(), 0.0), (gone.address.to_string(), all)];
        assert_eq!(failed, BTreeMap::from(expected));
    });
}

/// A rolling update: the name has another address before the requests at the old one have ended.
#[test]
fn what_breaks_where_an_engine_was_is_counted_under_its_name() {
    on_both(|driver| {
        let [before, after]: [Engine; 2] = std::array::from_fn(|_| Engine::start());
        let front = Front::start(driver, &[], &named(&[("a", &before)]));
        front.until_health(0, "up");
        before.becomes(Mood::Breaks);
        let mut stream = front.connect();
        stream.ask();
        stream.head();
        front.write(&named(&[("a", &after)]));
        assert_eq!(front.reload().0, 200);
        front.until_health(0, "up");
        let faults = || counts(&front, "warmfront_endpoint_faults_total");
        assert_eq!(faults(), BTreeMap::from([("a".into(), 0.0)]));
        before.becomes(Mood::Good);
        until("the fault", || faults() == BTreeMap::from([("a".into(), 1.0)]));
        assert_eq!(front.endpoint(0)["faults"], 1);
        // Longer than the slot that was left rests.
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(faults(), BTreeMap::from([("a".into(), 1.0)]));
    });
}
