//! What the index says of an engine's cache is believed for as long as its replies bear it out.

use std::collections::HashSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::DRIVERS;
use crate::front::{Client, Front};
use crate::wire::{Length, Wire};

const CONFIG: &str = "[routing]\npolicy = \"warm\"\n[health]\nprobe_interval_ms = 50\n";
/// Tokens of each prompt, four bytes each.
const TOKENS: usize = 4_000;

/// How an engine tells how much of a prompt was cached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Always,
    /// Of nothing it does not tell.
    NoZero,
    /// As SGLang of messages: the cached part of the prompt, if there is one, beside the rest.
    Messages,
    /// Of messages always of nothing.
    Zeros,
}

/// Tells of each prompt how much of it was cached: all that it was sent before, or nothing.
struct Engine {
    address: SocketAddr,
    tells: Tells,
    caches: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Engine {
    fn start(tells: Tells) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (caches, requests) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let engine = Engine { address: listener.local_addr().unwrap(), tells, caches, requests };
        let (caches, requests) = (Arc::clone(&engine.caches), Arc::clone(&engine.requests));
        let seen = Arc::new(Mutex::new(HashSet::new()));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (caches, requests, seen) = (Arc::clone(&caches), Arc::clone(&requests), Arc::clone(&seen));
                std::thread::spawn(move || {
                    let mut wire = Wire::new(stream);
                    while let Some(head) = wire.head() {
                        let body = wire.body(head.length().unwrap_or(Length::Of(0))).data;
                        let answer = match head.start.starts_with("POST") {
                            false if head.start.contains("/health") => "{}".to_owned(),
                            false if head.start.contains("/metrics") => tells.metrics().to_owned(),
                            false => String::new(),
                            true => {
                                requests.fetch_add(1, Ordering::Relaxed);
                                let held = !seen.lock().unwrap().insert(body) && caches.load(Ordering::Relaxed);
                                tells.usage(if held { TOKENS - 16 } else { 0 })
                            }
                        };
                        let (status, len) =
                            if answer.is_empty() { ("404 Not Found", 0) } else { ("200 OK", answer.len()) };
                        let head =
                            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n");
                        if wire.stream.write_all(format!("{head}\r\n{answer}").as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        engine
    }

    fn caches(&self, does: bool) {
        self.caches.store(does, Ordering::Relaxed);
    }
}

impl Tells {
    fn usage(self, cached: usize) -> String {
        let details = match self {
            Tells::NoZero if cached == 0 => "null".to_owned(),
            Tells::Always | Tells::NoZero => format!(r#"{{"cached_tokens":{cached}}}"#),
            Tells::Messages | Tells::Zeros => {
                let cached = if self == Tells::Zeros { 0 } else { cached };
                let input = TOKENS - cached;
                let beside = if self == Tells::Messages && cached == 0 {
                    String::new()
                } else {
                    format!(r#","cache_read_input_tokens":{cached}"#)
                };
                return format!(r#"{{"content":[],"usage":{{"input_tokens":{input},"output_tokens":1{beside}}}}}"#);
            }
        };
        format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{TOKENS},"total_tokens":{TOKENS},"completion_tokens":1,"prompt_tokens_details":{details}}}}}"#
        )
    }

    /// `""`: it has none.
    fn metrics(self) -> &'static str {
        match self {
            Tells::Always | Tells::NoZero => "",
            Tells::Messages | Tells::Zeros => "sglang:num_running_reqs 0\n",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Tells::Always | Tells::NoZero => "/v1/chat/completions",
            Tells::Messages | Tells::Zeros => "/v1/messages",
        }
    }
}

fn counts(engines: &[Engine]) -> Vec<usize> {
    engines.iter().map(|engine| engine.requests.load(Ordering::Relaxed)).collect()
}

/// Asks these prompts so many times; answers how many requests each engine got of it.
fn ask(front: &Front, engines: &[Engine], names: &[usize], times: usize) -> Vec<usize> {
    let before = counts(engines);
    let mut client: Client = front.connect();
    for name in names.iter().cycle().take(times * names.len()) {
        let words: String = format!("{name} said so ").chars().cycle().take(4 * TOKENS).collect();
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}]}}"#);
        let (len, path) = (body.len(), engines[0].tells.path());
        client.send(&format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n{body}"));
        assert_eq!(client.reply().status, 200);
    }
    counts(engines).into_iter().zip(before).map(|(now, before)| now - before).collect()
}

/// Six prompts for each engine: where none waits, it is by hash that new ones are spread, and so as it falls.
fn spread(front: &Front, engines: &[Engine]) -> Vec<usize> {
    let mut taken = vec![0; engines.len()];
    let is_taken = |name: &usize| {
        let counts = ask(front, engines, &[*name], 1);
        let place = counts.iter().position(|count| *count == 1).unwrap();
        taken[place] += 1;
        taken[place] <= 6
    };
    let names: Vec<usize> = (0..1_000).filter(is_taken).take(6 * engines.len()).collect();
    assert_eq!(names.len(), 6 * engines.len(), "new prompts all went to one");
    names
}

#[test]
fn an_engine_that_has_not_what_it_was_sent_is_not_believed_until_it_has() {
    for (driver, tells) in DRIVERS.into_iter().zip([Tells::Always, Tells::NoZero]) {
        let engines = [Engine::start(tells), Engine::start(tells)];
        let front = Front::start(driver, &engines.each_ref().map(|engine| engine.address), CONFIG);
        (0..2).for_each(|place| front.until_health(place, "up"));
        let rung = |place: usize| front.endpoint(place)["cache"]["rung"].as_str().unwrap().to_owned();
        // `/endpoints` knows up to 20 ms sooner than shards, and would have them believe the old for some requests more.
        let acts_on = |place: usize, rung: &str| {
            let name = engines[place].address;
            front.metric(&format!("warmfront_endpoint_rung{{endpoint=\"{name}\",rung=\"{rung}\"}}")) == 1.0
        };
        let held = || front.metric("warmfront_prompt_tokens_held_total");
        let liar = &engines[0];
        let names = spread(&front, &engines);
        let ask = |times: usize| ask(&front, &engines, &names, times);
        assert_eq!(ask(10), [60, 60], "{driver}: each where it was first");
        assert_eq!((rung(0), rung(1)), ("approximate".into(), "approximate".into()), "{driver}");
        assert!(
            front.metric("warmfront_overpredicted_tokens_total{")
                < 0.05 * front.metric("warmfront_predicted_tokens_total{")
        );
        liar.caches(false);
        let mut rounds = 0;
        crate::until("the liar's fall", || {
            ask(2);
            rounds += 2;
            acts_on(0, "hash")
        });
        // Three windows of 20,000 tokens, of which every prompt that it holds has 4,000.
        assert!((2..=20).contains(&rounds), "{driver}: {rounds} times 6 prompts");
        assert_eq!(rung(1), "approximate", "{driver}");
        assert!(front.endpoint(0)["cache"]["overpredicted_tokens"].as_u64().unwrap() > 60_000);
        assert_eq!(front.metric("warmfront_endpoint_rung{endpoint=\"") as u32, 2, "one of each endpoint's");
        front.until_said("counts as holding nothing until it does");
        // The honest one's prompts stay with it and are held. The liar still gets its own, since nobody else holds them,
        // but nothing of them counts as held.
        let before = held();
        let now = ask(5);
        assert_eq!(now, [30, 30], "{driver}");
        let each = (held() - before) / now[1] as f64;
        assert!(
            (0.9..1.1).contains(&(each / TOKENS as f64)),
            "{driver}: {each} tokens held of each of the honest one's"
        );
        // Predictions go on, and are right again.
        liar.caches(true);
        crate::until("the liar's rise", || {
            ask(2);
            acts_on(0, "approximate")
        });
        front.until_said("is believed again");
        let why = front.endpoint(0)["cache"]["why"].clone();
        assert!(why == "right_again" || why == "tried_again", "{driver}: {why}");
        let before = held();
        ask(5);
        assert!(held() - before > 0.9 * (60 * TOKENS) as f64, "{driver}");
        assert_eq!(front.stop(), Some(0));
    }
}

/// It leaves out what was cached, as Anthropic does; and who writes that nothing was may not know.
#[test]
fn what_sglang_tells_of_messages_is_taken_as_it_means_it() {
    for (driver, tells) in DRIVERS.into_iter().flat_map(|driver| [(driver, Tells::Zeros), (driver, Tells::Messages)]) {
        let engines = [Engine::start(tells)];
        let front = Front::start(driver, &[engines[0].address], CONFIG);
        front.until_health(0, "up");
        crate::until("its metrics", || !front.endpoint(0)["engine"].is_null());
        let names: Vec<usize> = (0..6).collect();
        // Each time as much as three windows are.
        (0..3).for_each(|_| assert_eq!(ask(&front, &engines, &names, 5), [30]));
        assert_eq!(front.endpoint(0)["cache"]["rung"], "approximate", "{driver}");
        assert_eq!(front.endpoint(0)["cache"]["overpredicted_tokens"], 0, "{driver}");
        let told = |kind: &str| front.metric(&format!("warmfront_told_tokens_total{{kind=\"{kind}\",")) as usize;
        assert_eq!(told("prompt"), 90 * TOKENS, "{driver}");
        assert_eq!(told("cached"), if tells == Tells::Zeros { 0 } else { 84 * (TOKENS - 16) }, "{driver}");
        assert_eq!(front.stop(), Some(0));
    }
}
