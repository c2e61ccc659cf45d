//! Who shows no key that an engine let in, where engines ask for keys: nothing is learnt of it before one lets it in.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use warmfront::counters::stats::{Count, Gauge, TokenCount};
use warmfront::counters::{Credential, Realm};
use warmfront::exchange::Rules;
use warmfront::index::Figures;
use warmfront::limits::Limits;
use warmfront::policy::{Policy, PoolId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::client::Client;
use crate::engine::{Connection, Engine, HELLO, ok};
use crate::front::{Front, PATIENCE};
use crate::recorded::recording;

const GOOD: &str = "Authorization: Bearer good\r\n";
const OTHER: &str = "Authorization: Bearer good, too\r\n";
const BAD: &str = "Authorization: Bearer guessed\r\n";
const NONE: &str = "";
/// Its engine answers when it is told to.
const WAITS: &str = "x-waits: 1\r\n";
const KEY_WANTED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 24\r\n\r\n{\"error\":\"Unauthorized\"}";
const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\n{}";

struct Scene {
    engine: Engine,
    front: Front,
    answer: mpsc::Sender<()>,
}

impl Scene {
    /// One engine that lets in who shows a key that begins so, before a front that has not heard of keys yet, or has.
    fn new(begins: &'static str, asks_keys: bool) -> Scene {
        Scene::judging("authorization", begins, KEY_WANTED, asks_keys)
    }

    /// The same of the key in this field; what it says to others.
    fn judging(field: &'static str, begins: &'static str, refusal: &'static str, asks_keys: bool) -> Scene {
        let (answer, told) = mpsc::channel::<()>();
        let told = Arc::new(Mutex::new(told));
        let engine = Engine::run(move |mut connection| {
            while let Some(request) = connection.request() {
                if request.head.get("x-waits").is_some() {
                    let _ = told.lock().unwrap().recv_timeout(PATIENCE);
                }
                let shown = request.head.get(field).unwrap_or_default();
                connection.send(if shown.starts_with(begins) { ok("{}") } else { refusal.into() });
            }
        });
        let front = Front::with(&[engine.address], |options| {
            options.settings.policy = Policy::Warm;
            options.asks_keys = asks_keys;
        });
        Scene { engine, front, answer }
    }

    fn ask(&self, fields: &str, prompt: &str) -> u16 {
        let status = self.front.ask(completion("tiny-llama", fields, prompt)).status;
        self.front.settles();
        status
    }

    /// Sends what its engine answers when it is told to, and waits until it has it.
    fn begins(&self, fields: &str, prompt: &str) -> Client {
        let (before, mut client) = (self.engine.executions(), self.front.connect());
        client.send(completion("tiny-llama", &format!("{fields}{WAITS}"), prompt));
        self.front.until("its engine has it", |_| self.engine.executions() > before);
        client
    }

    /// So many tokens are known to be held of this prompt, by its next request.
    fn held(&self, prompt: &str) -> u64 {
        let before = self.front.tokens(TokenCount::Held);
        assert_eq!(self.ask(GOOD, prompt), 200);
        self.front.tokens(TokenCount::Held) - before
    }

    fn figures(&self) -> Figures {
        self.front.published.current().index.as_ref().unwrap().figures(0)
    }
}

fn completion(model: &str, fields: &str, prompt: &str) -> Vec<u8> {
    request("/v1/completions", fields, &format!(r#"{{"model":"{model}","prompt":"{prompt}"}}"#))
}

fn request(path: &str, fields: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()).into()
}

/// That is like no other.
fn text(name: &str, bytes: usize) -> String {
    let mut text = format!("{name} ").repeat(bytes / (name.len() + 1));
    text.truncate(bytes);
    text
}

/// What is refused is taken back, and what went for it while it was noted would stay gone.
#[test]
fn many_at_once_without_a_key_drive_nothing_out_of_a_full_index() {
    for (shown, refusal, status) in [(BAD, KEY_WANTED, 401), (NONE, KEY_WANTED, 401), (BAD, FORBIDDEN, 403)] {
        let scene = Scene::judging("authorization", "Bearer good", refusal, false);
        assert_eq!(scene.ask(shown, "hello"), status);
        for part in 0..6 {
            assert_eq!(scene.ask(GOOD, &text(&format!("part {part}"), 60_000)), 200);
        }
        let old = text("old", 40_000);
        scene.held(&old);
        let (known, before) = (scene.held(&old), scene.figures());
        assert!(known > 9_000 && before.blocks == before.capacity, "{known}, {before:?}");
        let mut crowd: Vec<Client> =
            (0..16).map(|at| scene.begins(shown, &text(&format!("crowd {at}"), 30_000))).collect();
        assert_eq!(scene.figures(), before, "{status}");
        crowd.iter().for_each(|_| scene.answer.send(()).unwrap());
        assert!(crowd.iter_mut().all(|client| client.reply().status == status));
        scene.front.settles();
        assert_eq!((scene.held(&old), scene.figures().evicted), (known, before.evicted));
    }
}

/// And it is the first of them that counts: a key that is known from elsewhere does not stand for the one that is judged.
#[test]
fn a_key_is_known_by_the_field_in_which_it_is_shown() {
    let fields = ["authorization", "x-api-key", "api-key"];
    for (place, field) in fields.into_iter().enumerate() {
        let scene = Scene::judging(field, "good", KEY_WANTED, true);
        let (good, guessed) = (format!("{field}: good\r\n"), format!("{field}: guessed\r\n"));
        assert_eq!(scene.ask(&good, &text("first", 20_000)), 200);
        let before = scene.figures();
        let behind = fields[place + 1..].iter().map(|later| format!("{later}: good\r\n{guessed}"));
        for (at, shown) in std::iter::once(guessed.clone()).chain(behind).enumerate() {
            assert_eq!(scene.ask(&shown, &text(&format!("guessed {at}"), 20_000)), 401);
            assert_eq!(scene.figures(), before, "{shown}");
        }
        let _known = scene.begins(&good, &text("second", 20_000));
        assert!(scene.figures().blocks >= before.blocks + 78, "{field}");
        scene.answer.send(()).unwrap();
        scene.front.settles();
    }
}

/// What is kept of a prompt until its engine answers is on the same account as bodies; where there is no room for it
/// beside them nothing is learnt of the prompt, and its request goes on as any other.
#[test]
fn a_stranger_whose_prompt_has_no_room_is_served_all_the_same() {
    const PROMPT: usize = 400_000;
    // The links of two such prompts, and not of three.
    const BESIDE: u64 = 32_000;
    let scene = Scene::new("Bearer good", true);
    let limits = Limits { budget_bytes: PROMPT + BESIDE as usize, ..Limits::default() };
    scene.front.published.publish_rules(Rules { limits, ..Rules::default() });
    let shard = scene.front.stats.shard(0);
    let crowd: Vec<Client> = (0..4)
        .map(|at| {
            let client = scene.begins(BAD, &text(&format!("crowd {at}"), PROMPT));
            let sent_in = shard.turns();
            let is_gone = || shard.turns() > sent_in && shard.gauge(Gauge::HeldBytes) < PROMPT as u64;
            scene.front.until("its body to be held no more", |_| is_gone());
            client
        })
        .collect();
    let held = shard.gauge(Gauge::HeldBytes);
    assert!((BESIDE / 2..BESIDE).contains(&held), "{held}");
    for mut client in crowd {
        scene.answer.send(()).unwrap();
        assert_eq!(client.reply().status, 401);
    }
    scene.front.settles();
}

/// The first of them when its engine answers, as all are whom their engine may refuse; however long that takes, and
/// though nothing of the request is held by then.
#[test]
fn who_was_let_in_is_learnt_of_with_the_choice() {
    for asks_keys in [true, false] {
        let scene = Scene::new("Bearer good", asks_keys);
        if !asks_keys {
            assert_eq!(scene.ask(NONE, "hello"), 401);
        }
        let noted = || scene.figures().blocks;
        let mut first = scene.begins(GOOD, &text("first", 20_000));
        assert_eq!(noted(), 0, "its engine has not answered");
        let (shard, sent_in) = (scene.front.stats.shard(0), scene.front.stats.shard(0).turns());
        let is_gone = || shard.turns() > sent_in && shard.gauge(Gauge::HeldBytes) < 20_000;
        scene.front.until("its body to be held no more", |_| is_gone());
        scene.answer.send(()).unwrap();
        assert_eq!(first.reply().status, 200);
        scene.front.settles();
        let of_first = noted();
        assert!(of_first >= 78, "{of_first}");
        assert!(scene.held(&text("first", 20_000)) > 4_500);
        let _second = scene.begins(GOOD, &text("second", 20_000));
        assert!(noted() >= of_first + 78, "{}", noted());
        let (all, _third) = (noted(), scene.begins(OTHER, &text("third", 20_000)));
        assert_eq!(noted(), all, "another key is another's");
        (0..2).for_each(|_| scene.answer.send(()).unwrap());
        scene.front.settles();
    }
}

/// Before anything of it is computed.
#[test]
fn a_key_with_which_something_is_queued_at_an_engine_is_known() {
    let scene = Scene::new("Bearer good", true);
    let queued = request("/v1/responses", GOOD, r#"{"model":"tiny-llama","input":"hello","background":true}"#);
    assert_eq!(scene.front.ask(queued).status, 200);
    scene.front.settles();
    let _second = scene.begins(GOOD, &text("second", 20_000));
    assert!(scene.figures().blocks >= 78);
    scene.answer.send(()).unwrap();
    scene.front.settles();
}

/// One that was let in before, and is not any more, is a stranger's.
#[test]
fn a_key_that_is_refused_is_known_no_more() {
    let scene = Scene::new("Bearer good", true);
    let word = xxh3_64_with_seed(b"Bearer guessed", 1);
    scene.front.counters.credentials().let_in(Credential::of(word), 0);
    let before = scene.figures();
    assert_eq!(scene.ask(BAD, &text("first", 20_000)), 401);
    assert_ne!(scene.figures().inserted, before.inserted, "its engine took it of late");
    let before = scene.figures();
    assert_eq!(scene.ask(BAD, &text("second", 20_000)), 401);
    assert_eq!(scene.figures(), before);
}

/// Nor where those of other models do, or what is not under `/v1` is guarded.
#[test]
fn where_no_engine_asks_for_keys_nobody_is_a_stranger() {
    for (shown, elsewhere) in [NONE, BAD, GOOD].into_iter().flat_map(|shown| [(shown, false), (shown, true)]) {
        let scene = Scene::new("", false);
        if elsewhere {
            scene.front.counters.credentials().kept_out(None, Realm::V1, 1);
            scene.front.counters.credentials().kept_out(None, Realm::Rest, 0);
        }
        let mut first = scene.begins(shown, &text("first", 20_000));
        assert!(scene.figures().blocks >= 78);
        scene.answer.send(()).unwrap();
        assert_eq!(first.reply().status, 200);
        assert!(!scene.front.counters.credentials().are_asked_for(Realm::V1, Some(0)));
        scene.front.settles();
    }
}

/// As vLLM 0.32 answers who asks for what it was not told to serve, whatever key is shown; also where it asks for keys.
#[test]
fn what_an_engine_does_not_serve_to_anybody_tells_of_no_key() {
    let not_served: &'static str = String::from_utf8(recording("render-not-served.response")).unwrap().leak();
    let forbidden: &'static str = not_served.replace("Scale-out", "Something").leak();
    for (asks_keys, shown) in [(false, NONE), (false, GOOD), (true, GOOD)] {
        for (refusal, tells) in [(not_served, false), (forbidden, true)] {
            let scene = Scene::judging("x-is-served", "yes", refusal, asks_keys);
            let served = format!("{shown}x-is-served: yes\r\n");
            assert_eq!(scene.ask(&served, "hello"), 200);
            assert_eq!(scene.ask(shown, "hello"), 403);
            assert_eq!(scene.front.counters.credentials().are_asked_for(Realm::V1, Some(0)), tells);
            let before = scene.figures().blocks;
            let _next = scene.begins(&served, &text("next", 20_000));
            assert_eq!(scene.figures().blocks >= before + 78, !tells, "{asks_keys} {shown}");
            scene.answer.send(()).unwrap();
            scene.front.settles();
        }
    }
}

/// One that asks for keys as vLLM does, where paths begin so, and one beside it that asks for none, let in whatever is
/// shown: were it remembered, who has no key would drive all keys out.
#[test]
fn what_is_let_in_where_nobody_is_kept_out_is_not_remembered() {
    const V1: &str = "/v1/completions";
    const GUARDED: [&str; 4] = ["/v1", "/v2", "/inference", "/cohere"];
    let guarded = Engine::run(|mut connection: Connection| {
        while let Some(request) = connection.request() {
            let good = request.head.get("authorization").unwrap_or_default() == "Bearer good";
            let is_open = !GUARDED.iter().any(|prefix| request.path().starts_with(prefix));
            connection.send(if good || is_open { ok("{}") } else { KEY_WANTED.into() });
        }
    });
    let open = Engine::answering(HELLO);
    let front = Front::with(&[guarded.address, open.address], |options| {
        options.pools = vec![("guarded", vec![0]), ("open", vec![1])];
        options.settings.policy = Policy::Warm;
    });
    let ask = |path: &str, model: &str, fields: &str| {
        front.ask(request(path, fields, &format!(r#"{{"model":"{model}","prompt":"hello"}}"#))).status
    };
    let judged = [V1, "/v2/embed", "/inference/v1/generate", "/cohere/v2/chat"];
    for path in judged {
        assert_eq!([BAD, GOOD].map(|shown| ask(path, "guarded", shown)), [401, 200], "{path}");
    }
    let unguarded = ["/pooling", "/invocations", "/classify", "/score", "/rerank", "/generative_scoring"];
    let of_both = unguarded.into_iter().flat_map(|path| [(path, "guarded"), (path, "open")]);
    for (path, model) in of_both.chain(judged.map(|path| (path, "open"))) {
        assert_eq!(ask(path, model, BAD), 200, "{path} {model}");
    }
    let places = |shown: &str| {
        let credentials = [0, 1, 2, 3, 4].map(|realm| Credential::of(xxh3_64_with_seed(shown.as_bytes(), realm)));
        let is_known = |credential, pool| front.counters.credentials().are_known(credential, pool);
        let all = credentials.into_iter().flat_map(|shown| [None, Some(0), Some(1)].map(|pool| is_known(shown, pool)));
        all.filter(|known| *known).count()
    };
    assert_eq!((places("Bearer good"), places("Bearer guessed")), (2 * judged.len(), 0));
    front.settles();
}

/// They are the means of what engines compute, by which costs are counted.
#[test]
fn what_strangers_send_moves_no_means() {
    let scene = Scene::new("Bearer good", true);
    let loads = scene.front.counters.loads();
    let means = || (loads.mean_prompt(PoolId(0)), loads.mean_new(PoolId(0)), loads.held_share(PoolId(0)).to_bits());
    for at in 0..20 {
        assert_eq!(scene.ask(GOOD, &text(&format!("long {at}"), 40_000)), 200);
    }
    let before = means();
    assert!((2_600..2_700).contains(&before.0), "all of twenty, the first one too: {before:?}");
    for at in 0..200 {
        assert_eq!(scene.ask(BAD, &text(&format!("guessed {at}"), 100_000)), 401);
    }
    assert_eq!(means(), before);
    scene.held(&text("long 1", 40_000));
    assert_ne!(means(), before);
}

/// Which models there are is told by `/v1/models`, to who may know; where others are told of a model that nobody serves
/// they can guess which ones are.
#[test]
fn a_stranger_is_not_told_which_models_there_are() {
    const FORBIDDEN_KEY: &str = "Bearer of another";
    fn lenient(mut connection: Connection) {
        while let Some(request) = connection.request() {
            let shown = request.head.get("authorization").unwrap_or_default();
            let refusal = if shown == FORBIDDEN_KEY { FORBIDDEN } else { KEY_WANTED };
            connection.send(if shown.starts_with("Bearer good") { ok("{}") } else { refusal.into() });
        }
    }
    let engines = [Engine::run(lenient), Engine::run(lenient)];
    let front = Front::with(&engines.each_ref().map(|engine| engine.address), |options| {
        options.pools = vec![("one", vec![0]), ("other", vec![1])];
        options.settings.policy = Policy::Warm;
        options.asks_keys = true;
    });
    let asked = |model: &str, fields: &str| front.ask(completion(model, fields, "hello"));
    let overlong = "n".repeat(300);
    for model in ["one", "other", "third", &overlong] {
        let reply = asked(model, BAD);
        assert_eq!((reply.status, &*reply.text()), (401, r#"{"error":"Unauthorized"}"#), "{model}");
    }
    assert_eq!(asked("third", &format!("Authorization: {FORBIDDEN_KEY}\r\n")).status, 403);
    front.settles();
    assert_eq!(front.count(Count::StrangersUnknownModel), 0, "engines are asked what they serve for who is let in");
    // Not even where its engine does not look at the name.
    assert_eq!([asked("third", GOOD), asked("third", OTHER)].map(|reply| reply.status), [404; 2]);
    assert_eq!(asked("one", GOOD).status, 200);
    front.settles();
    let executed = || engines.iter().map(Engine::executions).sum::<usize>();
    let before = executed();
    assert!(asked("third", GOOD).text().contains("The model `third` does not exist."));
    assert_eq!(executed(), before, "it is told here, as anybody whom an engine let in");
    assert_eq!(front.count(Count::Panicked), 0);
}

/// It was started again with another key: what it answers at once would have it look idle.
#[test]
fn who_refuses_the_known_at_once_draws_no_more_than_its_part() {
    for (refusal, status) in [(KEY_WANTED, 401), (FORBIDDEN, 403), (NOT_FOUND, 404)] {
        let serving = Engine::run(|mut connection| {
            while let Some(request) = connection.request() {
                let is_let_in = request.head.get("authorization") == Some("Bearer good");
                std::thread::sleep(Duration::from_millis(20));
                connection.send(if is_let_in { ok("{}") } else { KEY_WANTED.into() });
            }
        });
        let refusing = Engine::answering(refusal);
        let front = Front::with(&[serving.address, refusing.address], |options| {
            options.settings.policy = Policy::LeastLoad;
            options.asks_keys = true;
            options.rules.limits.failed_charge_ms = 60_000;
        });
        let asks = |times: usize| {
            let mut client = front.connect();
            let answers =
                (0..times).map(|at| client.ask(completion("tiny-llama", GOOD, &text(&format!("{at}"), 100))).status);
            answers.filter(|got| *got == status).count()
        };
        // What is refused before anybody is let in is a stranger's.
        while front.ask(completion("tiny-llama", GOOD, "hello")).status != 200 {}
        front.until("the account", |front| front.counters.in_flight(0) == 0);
        let before = front.counters.in_flight(1);
        let refused: usize = std::thread::scope(|scope| {
            let clients = [(); 4].map(|()| scope.spawn(|| asks(25)));
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert!((1..=10).contains(&refused), "{status}: {refused} of 100");
        let charged = before + refused as u32;
        assert_eq!((front.counters.in_flight(1), front.counters.loads().running(1)), (charged, 0), "{status}");
    }
}

/// Whoever has no key could have all engines look busy; and what is wrong with a request is its client's doing.
#[test]
fn what_strangers_and_mistaken_clients_are_answered_is_no_load_once_it_is_over() {
    let charges_long = |options: &mut crate::front::Options| {
        options.asks_keys = true;
        options.rules.limits.failed_charge_ms = 60_000;
    };
    for refusal in [KEY_WANTED, FORBIDDEN, NOT_FOUND] {
        let engine = Engine::answering(refusal);
        let front = Front::with(&[engine.address], charges_long);
        for shown in [BAD, NONE] {
            assert!(front.ask(completion("tiny-llama", shown, "hello")).status >= 401);
        }
        front.settles();
    }
    for status in ["400 Bad Request", "422 Unprocessable Entity", "404 Not Found"] {
        let engine = Engine::run(move |mut connection| {
            while let Some(request) = connection.request() {
                let is_wrong = request.head.get("x-wrong").is_some();
                connection.send(if is_wrong {
                    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into_bytes()
                } else {
                    ok("{}")
                });
            }
        });
        let front = Front::with(&[engine.address], charges_long);
        assert_eq!(front.ask(completion("tiny-llama", GOOD, "hello")).status, 200);
        let wrong = format!("{GOOD}x-wrong: 1\r\n");
        // Nobody is asked for a model there.
        let path = if status.starts_with("404") { "/v1/responses/r1/cancel" } else { "/v1/completions" };
        assert!(front.ask(request(path, &wrong, "{\"model\":\"tiny-llama\"}")).status >= 400);
        front.settles();
    }
}
