//! What engines list in `/v1/models`, and what becomes of requests for it.

use crate::engine::Engine;
use crate::front::Front;
use crate::reloading::config;

const WARM: &str = "[control]\nmodels_interval_ms = 200\n";

/// A front by `warm`, once it knows what these serve.
fn front(driver: &str, engines: &[&Engine]) -> Front {
    let front = Front::start(driver, &[], &config(WARM, engines).replace("round-robin", "warm"));
    (0..engines.len()).for_each(|place| front.until_health(place, "up"));
    front
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
