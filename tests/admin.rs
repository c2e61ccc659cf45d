//! Control and its admin listener against small engines over real sockets: what is learnt, what is
//! published, and that a dead, silent or hostile engine delays nothing.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use warmfront::config::{Config, Upstream};
use warmfront::control::client::{Answer, Call, Client};
use warmfront::control::{self, Setup};
use warmfront::counters::stats::{Count, Ended, RequestKey, Shadowed, Stats, Timing, TokenCount};
use warmfront::counters::{Counters, Prediction};
use warmfront::fleet::{EndpointId, Health, Method};
use warmfront::policy::Policy;
use warmfront::prefix::{session_key, text_hash};
use warmfront::publish::{DriverInUse, Process, Published};
use warmfront::snapshot::{Selected, Snapshot};

const METRICS: &str = include_str!("fixtures/engine-metrics/vllm-0.32.0.txt");
const MODELS: &str = include_str!("fixtures/engine-metrics/vllm-0.32.0-lora.models.json");

/// An engine that can be made ill, on a thread of its own.
struct Engine {
    address: SocketAddr,
    healthy: Arc<AtomicBool>,
    probes: Arc<AtomicU32>,
}

fn engine(models: &'static str, metrics: &'static str, key: Option<&'static str>) -> Engine {
    let healthy = Arc::new(AtomicBool::new(true));
    let probes = Arc::new(AtomicU32::new(0));
    let (health, probed) = (Arc::clone(&healthy), Arc::clone(&probes));
    let router = Router::new()
        .route(
            "/health",
            get(async move || {
                probed.fetch_add(1, Ordering::Relaxed);
                if health.load(Ordering::Relaxed) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
            }),
        )
        .route("/metrics", get(async move || metrics))
        .route(
            "/v1/models",
            get(async move |headers: HeaderMap| match key {
                Some(key) if headers.get("authorization").is_none_or(|value| value != key) => {
                    StatusCode::UNAUTHORIZED.into_response()
                }
                _ => models.into_response(),
            }),
        );
    Engine { address: served(router), healthy, probes }
}

/// An engine that sleeps, as vLLM says it, until it is woken.
fn sleeper() -> (SocketAddr, Arc<AtomicBool>) {
    let awake = Arc::new(AtomicBool::new(false));
    let woken = Arc::clone(&awake);
    let metrics = move || match woken.load(Ordering::Relaxed) {
        true => METRICS.to_owned(),
        false => METRICS.replace("sleep_state=\"awake\"} 1.0", "sleep_state=\"awake\"} 0.0"),
    };
    (telling(metrics), awake)
}

/// A healthy engine of one model that tells this whenever it is asked.
fn telling(metrics: impl Fn() -> String + Send + Sync + 'static) -> SocketAddr {
    let metrics = Arc::new(metrics);
    served(
        Router::new()
            .route("/health", get(async || ""))
            .route("/metrics", get(async move || metrics()))
            .route("/v1/models", get(async || MODELS)),
    )
}

fn served(router: Router) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), router).await.unwrap()
        });
    });
    address
}

struct Front {
    setup: Setup,
    control: control::Handle,
}

fn front(upstreams: Vec<Upstream>) -> Front {
    front_with(upstreams, |_| {})
}

fn front_with(upstreams: Vec<Upstream>, set: impl FnOnce(&mut Config)) -> Front {
    let mut config = Config { upstream: upstreams, ..Config::default() };
    config.serve.admin = "127.0.0.1:0".parse().unwrap();
    config.health.probe_interval_ms = 30;
    config.control.scrape_interval_ms = 30;
    config.control.scrape_timeout_ms = 500;
    config.control.models_interval_ms = 50;
    // Longer than an engine here stands still that is to be well.
    config.health.probe_timeout_ms = 5_000;
    config.control.models_timeout_ms = 5_000;
    config.control.stale_after_ms = 10_000;
    config.control.scrape_bytes_max = 1 << 20;
    set(&mut config);
    let config = Arc::new(config);
    let setup = Setup {
        config: Arc::clone(&config),
        published: Published::leak(Snapshot::default()),
        counters: Counters::leak(),
        stats: Stats::leak(1),
        process: Process::leak(1),
        source: Arc::new(Same(config)),
        bequest: Default::default(),
    };
    let control = control::start(setup.clone(), None, false).unwrap();
    Front { setup, control }
}

/// A file that stays as it is.
#[derive(Debug)]
struct Same(Arc<Config>);

impl control::reload::Source for Same {
    fn load(&self) -> Result<Config, String> {
        Ok((*self.0).clone())
    }

    fn in_use(&self, _: &Config) {}

    fn say_wanting(&self, _: &Config) {}
}

impl Front {
    fn get(&self, path: &str) -> Answer {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = self.control.admin;
        let authority = address.to_string();
        let call = Call {
            address,
            authority: &authority,
            path,
            key: None,
            timeout: Duration::from_secs(5),
            bytes_max: 1 << 24,
        };
        runtime.block_on(Client::default().get(&call)).unwrap()
    }

    /// The status of an answer to a request without a body.
    fn post(&self, path: &str) -> u16 {
        let host = self.control.admin;
        raw(host, &format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).0
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.get(path).body.to_vec()).unwrap()
    }

    /// Waits until the published snapshot is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let began = Instant::now();
        loop {
            let snapshot = self.setup.published.current();
            if wanted(&snapshot) {
                return snapshot;
            }
            if began.elapsed() >= Duration::from_secs(10) {
                // Not all of it: its index has a line for each row.
                let (endpoints, pools) = (&snapshot.endpoints, &snapshot.pools);
                panic!("{what} never came: {endpoints:#?} {pools:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends bytes on a connection of their own: the status of the answer, and all of it.
fn raw(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let close = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    stream.write_all(close.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), answer)
}

fn upstream(address: SocketAddr) -> Upstream {
    Upstream::new(format!("http://{address}").parse().unwrap())
}

fn health(snapshot: &Snapshot, slot: usize) -> Health {
    snapshot.endpoints[slot].as_ref().unwrap().health
}

#[test]
fn an_engine_that_does_not_say_what_it_serves_is_not_waited_for() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let front = front(vec![upstream(mute.local_addr().unwrap())]);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let first = front.setup.published.current();
    assert!(
        first.epoch > 0 && matches!(first.select(Some(b"anything")), Selected::Pool(pool) if pool.members.len() == 1)
    );
}

#[test]
fn models_are_learnt_before_traffic_flows() {
    let engine = engine(MODELS, METRICS, None);
    // `start` has published what it serves already, at best of three times: it waits for a second and no longer.
    let front = (0..3)
        .map(|_| front(vec![upstream(engine.address)]))
        .find(|front| front.setup.published.current().models_complete)
        .expect("models that are known when the start returns");
    let learnt = front.until("the models", |snapshot| snapshot.models_complete && health(snapshot, 0) == Health::Up);
    let Selected::Pool(base) = learnt.select(Some(b"tiny-llama")) else { panic!("no pool") };
    let Selected::Pool(adapter) = learnt.select(Some(b"tiny-lora")) else { panic!("no pool") };
    assert_ne!(base.id, adapter.id);
    assert!(Arc::ptr_eq(&base.ring, &adapter.ring), "equal members share a ring");
    assert!(matches!(learnt.select(Some(b"other")), Selected::UnknownModel));
    assert!(matches!(learnt.select(None), Selected::Pool(pool) if pool.id == base.id), "as its engine has it");
    let list: serde_json::Value = serde_json::from_slice(learnt.models_answer.list.as_ref().unwrap()).unwrap();
    assert_eq!(list, serde_json::from_str::<serde_json::Value>(MODELS).unwrap());
    assert!(
        learnt.models_answer.cards.contains_key(b"tiny-lora".as_slice())
            && learnt.models_answer.authorizations.is_empty()
    );

    let read =
        front.until("the load", |snapshot| snapshot.endpoints[0].as_ref().unwrap().engine.kv_capacity_tokens.is_some());
    assert_eq!(read.endpoints[0].as_ref().unwrap().engine.kv_capacity_tokens, Some(65_536));
    let ring = read.pools[base.id.0 as usize].ring.clone();
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        Arc::ptr_eq(&ring, &front.setup.published.current().pools[base.id.0 as usize].ring),
        "a ring outlives publications"
    );
    front.control.stop();
}

#[test]
fn an_engine_goes_down_and_comes_back() {
    let (steady, ill) = (engine(MODELS, METRICS, None), engine(MODELS, METRICS, None));
    let front = front(vec![upstream(steady.address), upstream(ill.address)]);
    front.until("both up", |snapshot| health(snapshot, 0) == Health::Up && health(snapshot, 1) == Health::Up);
    assert_eq!(front.get("/readyz").status, 503, "no shard serves yet");
    front.setup.process.shards()[0].now_serves(DriverInUse::Epoll, "as configured");
    assert_eq!(front.get("/readyz").status, 200);
    ill.healthy.store(false, Ordering::Relaxed);
    let down = front.until("down", |snapshot| health(snapshot, 1) == Health::Down);
    let Selected::Pool(pool) = down.select(Some(b"tiny-llama")) else { panic!("no pool") };
    assert_eq!(*pool.members, [0, 1], "membership stays, so that keys keep their homes");
    assert!(front.text("/endpoints").contains("/health answers 503"));
    ill.healthy.store(true, Ordering::Relaxed);
    front.until("up again", |snapshot| health(snapshot, 1) == Health::Up);
    front.setup.process.drain();
    assert_eq!((front.get("/readyz").status, front.get("/healthz").status), (503, 200));
    front.control.stop();
}

#[test]
fn an_engine_that_sleeps_gets_nothing_until_it_is_awake() {
    let (address, awake) = sleeper();
    let front = front(vec![upstream(address)]);
    front.setup.process.shards()[0].now_serves(DriverInUse::Epoll, "as configured");
    let snapshot = front.until("asleep", |snapshot| health(snapshot, 0) == Health::Asleep);
    let Selected::Pool(pool) = snapshot.select(Some(b"tiny-llama")) else { panic!("no pool") };
    assert!(pool.eligible().slots().is_empty());
    assert_eq!(front.get("/readyz").status, 503);
    let shown = front.text("/endpoints");
    assert!(shown.contains("\"health\":\"asleep\"") && shown.contains("POST /wake_up"), "{shown}");
    awake.store(true, Ordering::Relaxed);
    front.until("up", |snapshot| health(snapshot, 0) == Health::Up);
    assert_eq!(front.get("/readyz").status, 200);
    front.control.stop();
}

/// Nobody there would take what comes.
#[test]
fn a_front_whose_engines_are_all_drained_by_hand_is_not_ready() {
    let engine = engine(MODELS, METRICS, None);
    let front = front(vec![upstream(engine.address)]);
    front.setup.process.shards()[0].now_serves(DriverInUse::Epoll, "as configured");
    front.until("up", |snapshot| health(snapshot, 0) == Health::Up);
    for (what, ready) in [("resume", 200), ("drain", 503), ("resume", 200)] {
        assert_eq!(front.post(&format!("/endpoints/{}/{what}", engine.address)), 200);
        assert_eq!(front.get("/readyz").status, ready, "{what}");
    }
    front.control.stop();
}

/// What we send there while its metrics are written is ours, and not counted as others'.
#[test]
fn what_is_sent_while_an_engine_counts_is_no_foreign_load() {
    let counters = Arc::new(OnceLock::<&'static Counters>::new());
    let (known, open) = (Arc::clone(&counters), Mutex::new(Vec::new()));
    let metrics = move || {
        let mut open = open.lock().unwrap();
        let id = EndpointId { slot: 0, generation: 1 };
        open.extend(known.get().and_then(|counters| counters.try_admit(id, None)));
        format!("vllm:num_requests_running {}\nvllm:num_requests_waiting 0\n", open.len())
    };
    let front = front(vec![upstream(telling(metrics))]);
    counters.set(front.setup.counters).ok().unwrap();
    let load = |snapshot: &Snapshot| {
        let endpoint = snapshot.endpoints[0].as_ref().unwrap();
        (endpoint.id.generation, endpoint.engine.running, endpoint.foreign)
    };
    for more in 1..4 {
        let snapshot = front.until("more of them", |snapshot| load(snapshot).1 >= Some(more));
        let (generation, running, foreign) = load(&snapshot);
        assert_eq!((generation, foreign), (1, 0), "{running:?}");
    }
    front.control.stop();
}

/// The engine has counted what ends while its page is on its way.
#[test]
fn what_ends_while_an_engine_counts_is_no_foreign_load() {
    let counters = Arc::new(OnceLock::<&'static Counters>::new());
    let (known, open) = (Arc::clone(&counters), Mutex::new(None::<Vec<_>>));
    let metrics = move || {
        let mut open = open.lock().unwrap();
        let told = open.as_ref().map_or(0, Vec::len);
        match (&mut *open, known.get()) {
            (Some(open), _) => drop(open.pop()),
            (open, Some(counters)) => {
                let id = EndpointId { slot: 0, generation: 1 };
                *open = Some((0..20).filter_map(|_| counters.try_admit(id, None)).collect());
            }
            (None, None) => {}
        }
        format!("vllm:num_requests_running {told}\nvllm:num_requests_waiting 0\n")
    };
    let front = front(vec![upstream(telling(metrics))]);
    counters.set(front.setup.counters).ok().unwrap();
    let most = Cell::new(0);
    front.until("the end of all", |snapshot| {
        let endpoint = snapshot.endpoints[0].as_ref().unwrap();
        let running = endpoint.engine.running.unwrap_or(0);
        assert_eq!((endpoint.id.generation, endpoint.foreign), (1, 0), "{running}");
        most.set(most.get().max(running));
        most.get() > 0 && running == 0
    });
    front.control.stop();
}

/// A page in a browser reaches the loopback as well, under a name of its own or with its origin.
#[test]
fn pages_in_a_browser_command_nothing() {
    let (first, second) = (engine(MODELS, METRICS, None), engine(MODELS, METRICS, None));
    let front = front(vec![upstream(first.address), upstream(second.address)]);
    let (here, path) = (front.control.admin, format!("/endpoints/{}", first.address));
    let asked = |method: &str, path: &str, host: &str, rest: &str| {
        raw(here, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{rest}\r\n"))
    };
    let ip = here.to_string();
    for (method, path, host, rest) in [
        ("POST", &*format!("{path}/drain"), "evil.example", ""),
        ("POST", &*format!("{path}/drain"), &*ip, "Origin: http://evil.example\r\n"),
        ("DELETE", &*path, &*ip, "Sec-Fetch-Site: cross-site\r\n"),
        ("GET", "/endpoints", "evil.example:9911", ""),
        ("GET", "/nothing", "evil.example", ""),
        ("POST", "/metrics", "evil.example", ""),
    ] {
        let (status, answer) = asked(method, path, host, rest);
        let says = answer.contains("by IP address or as localhost") || answer.contains("ask it without a browser");
        assert!(status == 403 && says, "{method} {path} {host} {rest}: {answer}");
    }
    // Prometheus and probes come under the name of a service.
    for path in ["/metrics", "/healthz"] {
        assert_eq!(asked("GET", path, "warmfront.llm.svc:9911", "").0, 200, "{path}");
    }
    for host in [&*ip, "localhost", "localhost:9911", "[::1]:9911"] {
        assert_eq!(asked("GET", "/endpoints", host, "").0, 200, "{host}");
        assert_eq!(asked("POST", &format!("{path}/resume"), host, "").0, 200, "{host}");
    }
    front.control.stop();
}

/// As a kubelet and Prometheus come to a pod's address, and whoever else is in its network.
#[test]
fn who_comes_from_elsewhere_commands_nothing() {
    let engine = engine(MODELS, METRICS, None).address;
    let front = front_with(vec![upstream(engine)], |config| {
        config.serve.admin_from = vec!["192.0.2.0/24".parse().unwrap()];
    });
    let asked = |method: &str, path: &str| {
        raw(front.control.admin, &format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    };
    for path in ["/metrics", "/healthz"] {
        assert_eq!(asked("GET", path).0, 200, "{path}");
    }
    let drain = format!("/endpoints/{engine}/drain");
    for (method, path) in [("POST", &*drain), ("POST", "/reload"), ("GET", "/endpoints"), ("GET", "/receipts")] {
        let (status, answer) = asked(method, path);
        assert!(status == 403 && answer.contains("`admin_from` in [serve]"), "{method} {path}: {answer}");
    }
    front.control.stop();
}

/// Who says nothing, or half of a head, leaves after 5 s; until then 64 of them are what there is room for.
#[test]
fn silent_connections_do_not_keep_the_admin_listener() {
    let front = front(vec![upstream(engine(MODELS, METRICS, None).address)]);
    let (here, began) = (front.control.admin, Instant::now());
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(here).unwrap()).collect();
    silent.iter_mut().step_by(2).for_each(|half| half.write_all(b"GET /metrics HT").unwrap());
    assert_eq!(raw(here, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").0, 200);
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}: it has waited behind them", began.elapsed());
    for stream in silent.iter_mut().take(64) {
        // Behind the others if it came, or was taken, a little later.
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(stream.read_to_end(&mut Vec::new()).is_ok(), "still open");
    }
    front.control.stop();
}

/// Else engines would be probed and scraped with each edit, all at one moment, and names looked up never.
#[test]
fn who_is_watched_is_watched_on_through_edits() {
    let (first, second) = (engine(MODELS, METRICS, None), engine(MODELS, METRICS, None));
    let front = front_with(vec![upstream(first.address), upstream(second.address)], |config| {
        config.health.probe_interval_ms = 60_000;
    });
    front.until("both", |snapshot| (0..2).all(|slot| health(snapshot, slot) == Health::Up));
    for what in ["drain", "resume"].repeat(5) {
        assert_eq!(front.post(&format!("/endpoints/{}/{what}", first.address)), 200);
        std::thread::sleep(Duration::from_millis(20));
    }
    let probes = [&first, &second].map(|engine| engine.probes.load(Ordering::Relaxed));
    assert_eq!(probes, [1, 1]);
    front.control.stop();
}

/// A row of faults that shards count is published at once, whatever probes say, and one good end behind its time
/// brings the engine back, slowly.
#[test]
fn an_engine_whose_requests_fail_is_ejected_and_tried_again() {
    let (steady, ill) = (engine(MODELS, METRICS, None), engine(MODELS, METRICS, None));
    let ill = Upstream { name: "ill".into(), concurrency_max: 9, ..upstream(ill.address) };
    let front = front_with(vec![upstream(steady.address), ill], |config| {
        // All that is looked at in that time is, also where the machine stands still for a while.
        (config.health.eject_ms, config.health.eject_ms_max, config.health.slow_start_ms) = (3_000, 3_000, 60_000);
    });
    front.until("both", |snapshot| snapshot.models_complete && (0..2).all(|slot| health(snapshot, slot) == Health::Up));
    let outcomes = front.setup.counters.outcomes();
    let shown = || -> serde_json::Value {
        let all: serde_json::Value = serde_json::from_str(&front.text("/endpoints")).unwrap();
        all["endpoints"][1].clone()
    };
    let up = shown();
    assert_eq!((&up["health"], &up["cap"], &up["share_percent"]), (&"up".into(), &9.into(), &100.into()));

    // When, how long until shards knew, and what they knew.
    let fails = || {
        let failed = Instant::now();
        (0..3).for_each(|_| _ = outcomes.fault(1));
        let out = front.until("ejected", |snapshot| health(snapshot, 1) == Health::Ejected);
        (failed, failed.elapsed(), out)
    };
    let (failed, took, out) = fails();
    // All that is shown of it is asked for while it is out.
    let (ill, text) = (shown(), front.text("/metrics"));
    let Selected::Pool(pool) = out.select(Some(b"tiny-llama")) else { panic!("no pool") };
    assert_eq!((&*pool.members, pool.eligible().slots()), ([0, 1].as_slice(), [0].as_slice()));
    assert_eq!((&ill["health"], &ill["ejections"], &ill["faults"]), (&"ejected".into(), &1.into(), &3.into()));
    assert_eq!(ill["why"], "3 requests in a row failed by its fault");
    assert_eq!(ill["refuses_probes"], false);
    assert!(ill["health_ms"].as_u64() < Some(5_000));
    for line in [
        "warmfront_endpoint_health{endpoint=\"ill\",state=\"ejected\"} 1",
        "warmfront_endpoint_ejections_total{endpoint=\"ill\"} 1",
        "warmfront_endpoint_faults_total{endpoint=\"ill\"} 3",
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line}\nis not in\n{text}");
    }

    front.until("on trial", |snapshot| health(snapshot, 1) == Health::Trial);
    assert!(failed.elapsed() >= Duration::from_secs(3) && !outcomes.is_barred(1));
    outcomes.good(1);
    let back = front.until("back", |snapshot| health(snapshot, 1) == Health::Up);
    assert!((10..20).contains(&back.endpoints[1].as_ref().unwrap().share_percent));
    front.until("more of its share", |snapshot| snapshot.endpoints[1].as_ref().unwrap().share_percent > 12);
    assert!(front.text("/metrics").contains("warmfront_endpoint_share_ratio{endpoint=\"ill\"} 0.1"));
    // At once, at best of three times.
    let fails_again = || {
        let (_, took, _) = fails();
        front.until("on trial again", |snapshot| health(snapshot, 1) == Health::Trial);
        outcomes.good(1);
        front.until("back again", |snapshot| health(snapshot, 1) == Health::Up);
        took
    };
    let soon = Duration::from_millis(250);
    assert!(took < soon || (0..2).any(|_| fails_again() < soon), "{took:?} late");
    front.control.stop();
}

/// A fault makes the next probe come at once, but faults without end make no storm of probes.
#[test]
fn faults_bring_probes_forward() {
    let engine = engine(MODELS, METRICS, None);
    let front = front_with(vec![upstream(engine.address)], |config| config.health.probe_interval_ms = 60_000);
    front.until("up", |snapshot| health(snapshot, 0) == Health::Up);
    let probes = || engine.probes.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(probes(), 1);
    front.setup.counters.outcomes().fault(0);
    let began = Instant::now();
    while probes() < 2 {
        assert!(began.elapsed() < Duration::from_secs(5), "the fault brought no probe");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(probes(), 2, "one fault is one probe");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) || probes() < 4 {
        assert!(began.elapsed() < Duration::from_secs(10), "faults without end brought no probes");
        front.setup.counters.outcomes().fault(0);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Four a second, for as long as it took.
    let (came, most) = (u128::from(probes()), 4 + began.elapsed().as_millis() / 250);
    assert!(came <= most, "{came} probes in {:?}", began.elapsed());
    front.control.stop();
}

/// SGLang's `/health` answers a second after it is asked, and later.
#[test]
fn an_engine_that_takes_a_second_to_say_so_is_healthy() {
    let slow = served(
        Router::new()
            .route(
                "/health",
                get(async || {
                    tokio::time::sleep(Duration::from_millis(1_050)).await;
                    StatusCode::OK
                }),
            )
            .route("/v1/models", get(async || MODELS)),
    );
    let front = front_with(vec![upstream(slow)], |config| config.health = Config::default().health);
    front.until("a good probe", |snapshot| health(snapshot, 0) == Health::Up);
    front.control.stop();
}

/// Who refuses or resets says that nobody is there; who is silent or ill says no such thing.
#[test]
fn refusals_are_told_from_silence() {
    let refusing: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ill = engine(MODELS, METRICS, None);
    ill.healthy.store(false, Ordering::Relaxed);
    let resetting = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let resets = resetting.local_addr().unwrap();
    std::thread::spawn(move || {
        for accepted in resetting.incoming() {
            // What came and was not read turns the close into a reset.
            let mut first = [0];
            let _ = accepted.and_then(|stream| stream.peek(&mut first));
        }
    });
    let upstreams = [refusing, silent.local_addr().unwrap(), ill.address, resets].map(upstream);
    let front = front_with(upstreams.into(), |config| config.health.probe_timeout_ms = 200);
    let refuses = |snapshot: &Snapshot, slot: usize| snapshot.endpoints[slot].as_ref().unwrap().refuses_probes;
    // Two probes in a row tell it, which need not be those that had one down: a reset may come too late.
    let snapshot = front.until("all down", |snapshot| {
        (0..4).all(|slot| health(snapshot, slot) == Health::Down) && [0, 3].iter().all(|slot| refuses(snapshot, *slot))
    });
    assert_eq!([1, 2].map(|slot| refuses(&snapshot, slot)), [false, false]);
    assert!(snapshot.any_refuses);
    front.control.stop();
}

/// Where the event loop that answers probes is busy with tokens, these come all the same.
#[test]
fn who_gives_first_tokens_is_not_down_for_silence() {
    let silent = Arc::new(AtomicBool::new(false));
    let engine = |silent: &Arc<AtomicBool>| {
        let silent = Arc::clone(silent);
        let health = async move || {
            if silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            StatusCode::OK
        };
        upstream(served(Router::new().route("/health", get(health)).route("/v1/models", get(async || MODELS))))
    };
    let upstreams = vec![engine(&silent), engine(&Arc::default())];
    // Two probes without a token have it down: whoever tells of tokens here is not stopped for as long.
    let front = front_with(upstreams, |config| config.health.probe_timeout_ms = 1_500);
    front.until("both up", |snapshot| (0..2).all(|slot| health(snapshot, slot) == Health::Up));
    silent.store(true, Ordering::Relaxed);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        front.setup.stats.shard(0).first_token_of(0, 1_000);
        assert_eq!(health(&front.setup.published.current(), 0), Health::Up);
        std::thread::sleep(Duration::from_millis(10));
    }
    front.until("down", |snapshot| health(snapshot, 0) == Health::Down);
    assert!(front.text("/endpoints").contains("no whole answer within 1500 ms"));
    front.control.stop();
}

#[test]
fn keys_are_asked_for_and_used() {
    let engine = engine(MODELS, METRICS, Some("Bearer sesame"));
    let file = std::env::temp_dir().join(format!("warmfront-key-{}", std::process::id()));
    std::fs::write(&file, "sesame\n").unwrap();
    let with_key = Upstream { api_key_file: file.clone(), ..upstream(engine.address) };
    // Also where it is asked for by the path of the probes.
    let front = front_with(vec![with_key], |config| config.health.path = "/v1/models".to_owned());
    front.until("a probe that is let in", |snapshot| health(snapshot, 0) == Health::Up);
    let learnt = front.until("the models", |snapshot| snapshot.models_complete);
    assert_eq!(learnt.models_answer.authorizations, [xxhash_rust::xxh3::xxh3_64(b"Bearer sesame")]);
    front.control.stop();
    std::fs::remove_file(file).unwrap();

    for models in [vec![], vec!["tiny-llama".to_owned()]] {
        let is_learnt = !models.is_empty();
        let without = self::front(vec![Upstream { models, ..upstream(engine.address) }]);
        let began = Instant::now();
        while !without.text("/endpoints").contains("name a file with the key") {
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        let snapshot = without.setup.published.current();
        assert_eq!(snapshot.models_complete, is_learnt);
        assert!(snapshot.models_answer.list.is_none(), "the engine is to judge who asks");
        without.control.stop();
    }
}

/// As an engine that stands still for a moment: it is not given up for that.
#[test]
fn a_list_that_does_not_come_in_time_is_asked_for_again() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let models = get(async move || {
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            std::future::pending::<()>().await;
        }
        MODELS
    });
    let router = Router::new().route("/health", get(async || "")).route("/v1/models", models);
    let front = front_with(vec![upstream(served(router))], |config| config.control.models_timeout_ms = 200);
    front.until("the models", |snapshot| snapshot.models_complete);
    assert!(asked.load(Ordering::Relaxed) > 1);
    front.control.stop();
}

#[test]
fn a_list_that_is_too_long_is_not_read() {
    let front = front_with(vec![upstream(engine(MODELS, METRICS, None).address)], |config| {
        config.control.models_bytes_max = 64;
    });
    let began = Instant::now();
    while !front.text("/endpoints").contains("longer than 64 bytes") {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", front.text("/endpoints"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!front.setup.published.current().models_complete);
    front.control.stop();
}

/// It does not wait for the next reading of models, which may be a minute away.
#[test]
fn another_key_is_tried_at_once() {
    let engine = engine(MODELS, METRICS, Some("Bearer sesame"));
    let file = std::env::temp_dir().join(format!("warmfront-other-key-{}", std::process::id()));
    std::fs::write(&file, "simsim").unwrap();
    let with_key = Upstream { api_key_file: file.clone(), ..upstream(engine.address) };
    let front = front_with(vec![with_key], |config| {
        (config.health.probe_interval_ms, config.control.models_interval_ms) = (60_000, 60_000);
    });
    front.until("up", |snapshot| health(snapshot, 0) == Health::Up);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!front.setup.published.current().models_complete);
    std::fs::write(&file, "sesame").unwrap();
    assert_eq!(front.post("/reload"), 200);
    front.until("the models", |snapshot| snapshot.models_complete);
    front.control.stop();
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_hostile_or_silent_engine_delays_nothing_and_is_bounded() {
    let good = engine(MODELS, METRICS, None);
    // Accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Never stops answering.
    let flood = served(Router::new().fallback(async || axum::body::Body::from(vec![b'x'; 32 << 20])));
    let dead: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let upstreams = [silent.local_addr().unwrap(), flood, dead, good.address].map(upstream);
    let front = front_with(upstreams.into(), |config| {
        (config.health.probe_timeout_ms, config.control.models_timeout_ms) = (200, 20_000);
    });
    // The silent one's models are given up later than anything is waited for here.
    let snapshot = front.until("the good one", |snapshot| {
        health(snapshot, 3) == Health::Up && snapshot.models.contains_key(b"tiny-llama".as_slice())
    });
    // Those whose models are unknown stand in a pool of their own until they are down.
    assert!(!snapshot.models_complete);
    let snapshot = front.until("the others down", |snapshot| (0..3).all(|slot| health(snapshot, slot) == Health::Down));
    let Selected::Pool(pool) = snapshot.select(Some(b"tiny-llama")) else { panic!("no pool") };
    assert_eq!(*pool.members, [3]);
    front.control.stop();
}

/// As a vLLM's with adapters is some days old: each set of them that was ever in use has a line.
#[test]
fn an_engine_is_read_whose_metrics_have_grown_by_megabytes() {
    let line = |set| {
        // Of long names, so that an unoptimised build has fewer lines to read.
        let adapters = format!("adapter-{set},").repeat(32);
        format!("vllm:lora_requests_info{{max_lora=\"32\",running_lora_adapters=\"{adapters}\"}} 1.79e+09\n")
    };
    let mut page: String = (0..)
        .map(line)
        .scan(0, |length, line| {
            *length += line.len();
            (*length < 10 << 20).then_some(line)
        })
        .collect();
    page.push_str(METRICS);
    let page: &'static str = page.leak();
    let engine = engine(MODELS, page, None);
    let front = front_with(vec![upstream(engine.address)], |config| {
        config.control.scrape_timeout_ms = 8_000;
        config.control.scrape_bytes_max = 64 << 10;
    });
    let snapshot = front.until("its load", |snapshot| {
        snapshot.endpoints[0].as_ref().is_some_and(|endpoint| endpoint.engine.running.is_some())
    });
    assert_eq!(snapshot.endpoints[0].as_ref().unwrap().engine.kv_capacity_tokens, Some(65_536));
    let failures = format!("warmfront_endpoint_scrape_failures_total{{endpoint=\"{}\"}} 0\n", engine.address);
    assert!(front.text("/metrics").contains(&failures));
    front.control.stop();
}

/// Whoever asks for `/metrics` sees 50 more requests ended, of 700 tokens each.
#[test]
fn how_long_answers_are_is_learnt_from_what_engines_count() {
    let asked = AtomicU32::new(0);
    let metrics = move || {
        let asked = asked.fetch_add(1, Ordering::Relaxed);
        format!(
            "vllm:request_success_total{{finished_reason=\"stop\"}} {}\nvllm:request_success_total{{finished_reason=\"length\"}} {}\n\
             vllm:generation_tokens_total {}\n",
            20 * asked,
            30 * asked,
            35_000 * asked
        )
    };
    let front = front(vec![upstream(telling(metrics))]);
    let snapshot = front.until("its models", |snapshot| snapshot.models_complete);
    let pool = snapshot.models[b"tiny-llama".as_slice()];
    assert!(front.text("/metrics").contains("warmfront_answer_tokens{model=\"tiny-llama\"}"));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !(650..=700).contains(&front.setup.counters.loads().mean_answer(pool)) {
        assert!(Instant::now() < deadline, "{}", front.setup.counters.loads().mean_answer(pool));
        std::thread::sleep(Duration::from_millis(10));
    }
    front.control.stop();
}

#[test]
fn metrics_are_exposed() {
    const METRICS: &str = "vllm:num_requests_running{engine=\"0\"} 5\nvllm:num_requests_waiting{engine=\"0\"} 2\n\
                           vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n";
    let engine = engine(MODELS, METRICS, None);
    let nowhere = Upstream {
        name: "two".into(),
        models: vec!["tiny-llama".into()],
        ..Upstream::new("http://nowhere.invalid:8000".parse().unwrap())
    };
    let one = Upstream { name: "one".into(), concurrency_max: 9, ..upstream(engine.address) };
    let front = front(vec![one, nowhere]);
    let snapshot = front
        .until("load", |snapshot| snapshot.models_complete && snapshot.endpoints[0].as_ref().unwrap().foreign == 7);
    let pool = snapshot.models[b"tiny-llama".as_slice()].0;
    let shard = front.setup.stats.shard(0);
    shard.request(RequestKey { pool, slot: 0, status: 200, reason: 3 });
    shard.request(RequestKey { pool: u16::MAX, slot: u16::MAX, status: 404, reason: u8::MAX });
    shard.ends(pool, Ended::Broken);
    shard.ends(u16::MAX, Ended::Refused);
    shard.observe(pool, Timing::FirstToken, 1_500);
    (0..2).for_each(|_| shard.observe(pool, Timing::Queue, 2_500));
    (0..3).for_each(|_| shard.observe(pool, Timing::Total, 3_500));
    (0..4).for_each(|_| shard.observe(pool, Timing::InterToken, 4_500));
    shard.count_tokens(pool, TokenCount::ToldPrompt, 300);
    shard.count_tokens(pool, TokenCount::ToldCached, 200);
    shard.count_tokens(u16::MAX, TokenCount::ToldPrompt, 9);
    shard.count_tokens(pool, TokenCount::Held, 150);
    shard.count(Count::AbortedRelay);
    for (held, cached) in [(40, 70), (60, 50)] {
        let prediction =
            Prediction { method: Method::Warm, tokens: 100, held, text_bytes: 0, batch: false, omits_zero: false };
        front.setup.counters.predictions().told(0, &prediction, 100, Some(cached));
    }
    front.setup.process.shards()[0].now_serves(DriverInUse::Uring, "it works");
    let text = front.text("/metrics");
    for line in [
        "warmfront_requests_total{model=\"tiny-llama\",endpoint=\"one\",status=\"200\",reason=\"home\"} 1",
        "warmfront_requests_total{model=\"unknown\",endpoint=\"none\",status=\"404\",reason=\"none\"} 1",
        "warmfront_time_to_first_token_seconds_count{model=\"tiny-llama\"} 1",
        "warmfront_time_to_first_token_seconds_bucket{le=\"0.01\",model=\"tiny-llama\"} 1",
        "warmfront_time_to_first_token_seconds_bucket{le=\"+Inf\",model=\"tiny-llama\"} 1",
        "warmfront_told_tokens_total{kind=\"prompt\",model=\"tiny-llama\"} 300",
        "warmfront_told_tokens_total{kind=\"cached\",model=\"tiny-llama\"} 200",
        "warmfront_told_tokens_total{kind=\"completion\",model=\"tiny-llama\"} 0",
        "warmfront_told_tokens_total{kind=\"prompt\",model=\"unknown\"} 9",
        "warmfront_prompt_tokens_held_total{model=\"tiny-llama\"} 150",
        "warmfront_prompt_tokens_new_total{model=\"tiny-llama\"} 0",
        "warmfront_queue_seconds_count{model=\"tiny-llama\"} 2",
        "warmfront_request_seconds_count{model=\"tiny-llama\"} 3",
        "warmfront_inter_token_seconds_count{model=\"tiny-llama\"} 4",
        "warmfront_client_aborts_total{phase=\"relay\"} 1",
        "warmfront_endpoint_foreign{endpoint=\"one\"} 7",
        "warmfront_engine_waiting{endpoint=\"one\"} 2",
        "warmfront_engine_kv_capacity_tokens{endpoint=\"one\"} 1600",
        "warmfront_compared_requests_total{endpoint=\"one\",method=\"warm\"} 2",
        "warmfront_predicted_tokens_total{endpoint=\"one\",method=\"warm\"} 100",
        "warmfront_cached_tokens_total{endpoint=\"one\",method=\"warm\"} 120",
        "warmfront_overpredicted_tokens_total{endpoint=\"one\",method=\"warm\"} 10",
        "warmfront_underpredicted_tokens_total{endpoint=\"one\",method=\"warm\"} 30",
        "warmfront_endpoint_health{endpoint=\"one\",state=\"up\"} 1",
        "warmfront_endpoint_health{endpoint=\"one\",state=\"unresolved\"} 0",
        "warmfront_endpoint_health{endpoint=\"two\",state=\"up\"} 0",
        "warmfront_endpoint_health{endpoint=\"two\",state=\"unresolved\"} 1",
        "warmfront_shard_driver{shard=\"0\",driver=\"uring\",why=\"it works\"} 1",
        "warmfront_choose_seconds_count 0",
        "warmfront_request_outcomes_total{model=\"tiny-llama\",outcome=\"broken\"} 1",
        "warmfront_request_outcomes_total{model=\"tiny-llama\",outcome=\"failed\"} 0",
        "warmfront_request_outcomes_total{model=\"unknown\",outcome=\"refused\"} 1",
        "warmfront_model_endpoints{model=\"tiny-llama\"} 1",
        "warmfront_model_endpoints_up{model=\"tiny-llama\"} 1",
        "warmfront_endpoint_in_flight_max{endpoint=\"one\"} 9",
        "warmfront_queue_waiting_max 1024",
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line}\nis not in\n{text}");
    }
    // A name that is told twice would be refused by Prometheus.
    let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
    let unique: std::collections::HashSet<_> = types.iter().collect();
    assert_eq!(types.len(), unique.len());
    front.control.stop();
}

/// By the unit, and not by the blocks, it is known what counts as held.
#[test]
fn the_unit_in_which_prompts_are_found_is_shown_beside_the_block() {
    const HYBRID: &str =
        "vllm:cache_config_info{block_size=\"3584\",num_gpu_blocks=\"9\",prefix_match_unit=\"16\"} 1\n";
    let engine = engine(MODELS, HYBRID, None);
    let front = front(vec![upstream(engine.address)]);
    front.until("its metrics", |snapshot| snapshot.endpoints[0].as_ref().unwrap().engine.kv_capacity_tokens.is_some());
    let all: serde_json::Value = serde_json::from_str(&front.text("/endpoints")).unwrap();
    let shown = &all["endpoints"][0]["engine"];
    assert_eq!((shown["block_size"].as_u64(), shown["match_unit"].as_u64()), (Some(3_584), Some(16)), "{shown}");
    front.control.stop();
}

/// What has no label of its own is counted under a name that a model may have too; a series told twice would be refused.
#[test]
fn a_model_called_unknown_is_one_series_with_what_is_unknown() {
    let models = r#"{"object":"list","data":[{"id":"unknown","object":"model"}]}"#;
    let front = front(vec![upstream(engine(models, METRICS, None).address)]);
    let snapshot = front.until("models", |snapshot| snapshot.models_complete);
    let (pool, shard) = (snapshot.models[b"unknown".as_slice()].0, front.setup.stats.shard(0));
    for pool in [pool, u16::MAX] {
        shard.observe(pool, Timing::Total, 1_500);
        shard.shadow(pool, Policy::Warm as u8, Shadowed::Agreed, 3);
    }
    let text = front.text("/metrics");
    for line in [
        "warmfront_request_seconds_count{model=\"unknown\"} 2",
        "warmfront_shadow_choices_total{model=\"unknown\",policy=\"warm\",outcome=\"agreed\"} 6",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\nis not in\n{text}");
    }
    let mut told = std::collections::HashSet::new();
    for series in text.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(series, _)| !series.starts_with('#')) {
        assert!(told.insert(series.0), "{} is told twice", series.0);
    }
    front.control.stop();
}

#[test]
fn a_taken_admin_port_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config { upstream: vec![upstream("127.0.0.1:1".parse().unwrap())], ..Config::default() };
    config.serve.admin = taken.local_addr().unwrap();
    let config = Arc::new(config);
    let setup = Setup {
        config: Arc::clone(&config),
        published: Published::leak(Snapshot::default()),
        counters: Counters::leak(),
        stats: Stats::leak(1),
        process: Process::leak(1),
        source: Arc::new(Same(config)),
        bequest: Default::default(),
    };
    let said = control::start(setup, None, false).unwrap_err().to_string();
    assert!(said.contains("cannot open the admin listener") && said.contains("--admin"), "{said}");
}

/// Who mistyped a path is told those that there are.
#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let front = front(vec![upstream("127.0.0.1:1".parse().unwrap())]);
    let host = front.control.admin;
    for (asked, status) in [
        ("GET /endpoint", 404),
        ("POST /", 404),
        ("GET /reload", 405),
        ("GET /endpoints/a/drain", 405),
        ("PUT /endpoints", 405),
    ] {
        let (answered, said) = raw(host, &format!("{asked} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(answered == status && said.contains("POST /reload, /explain, /endpoints,"), "{asked}: {said}");
    }
}

/// Of whatever bytes it is, and of the first field of its name.
#[test]
fn a_session_is_explained_as_a_shard_reads_it() {
    let front = front(vec![upstream("127.0.0.1:1".parse().unwrap())]);
    let host = front.control.admin;
    let body = "{\"prompt\":\"x\"}";
    for (fields, session) in [
        (&b"x-session-id: zo\xEB\r\n"[..], Some(&b"zo\xEB"[..])),
        (b"x-session-id:\r\nx-session-id: a\r\n", None),
        (b"x-session-id:\r\nx-user-id: b\r\n", Some(b"b")),
    ] {
        let head = format!(
            "POST /explain?path=/v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(&[head.as_bytes(), fields, b"\r\n", body.as_bytes()].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let answer: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let pool = answer["pool"].as_str().unwrap_or_default().as_bytes();
        let key = session.map(|session| format!("{:016x}", session_key(pool, text_hash(session))));
        assert_eq!(answer["session_key"].as_str(), key.as_deref(), "{answer}");
    }
}

/// With each scrape, whose engine has computed more by then.
#[test]
fn what_shards_count_is_read_beside_what_an_engine_says() {
    let asked = AtomicU32::new(0);
    let metrics = move || format!("vllm:prompt_tokens_total {}\n", asked.fetch_add(1, Ordering::Relaxed));
    let front = front(vec![upstream(telling(metrics))]);
    let snapshot = front.until("its models", |snapshot| snapshot.models_complete);
    let (id, counters) = (snapshot.endpoints[0].as_ref().unwrap().id, front.setup.counters);
    let mut admission = counters.try_admit(id, None).unwrap();
    admission.computes(700);
    admission.occupies(500);
    let dispatched = counters.loads().dispatched(id.slot);
    assert!(dispatched >= 700);
    let shows = |resident: u64| {
        front.until("what is ours", |snapshot| {
            let endpoint = snapshot.endpoints[0].as_ref().unwrap();
            (endpoint.dispatched_at, endpoint.resident_at) == (dispatched, resident)
        });
    };
    shows(500);
    drop(admission);
    shows(0);
    front.control.stop();
}
