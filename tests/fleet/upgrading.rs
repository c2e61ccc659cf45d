//! Upgrades: another process takes the place of the one that serves.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{EVENTS, Engine, Mood};
use crate::front::{Client, Front};
use crate::stops::Stops;
use crate::wire::{Head, Length, Wire};
use crate::{DRIVERS, on_both, reserved, until};

const STREAMS: usize = 40;

fn config(shards: usize) -> String {
    format!(
        "[serve]\nshards = {shards}\npin = false\n[routing]\npolicy = \"round-robin\"\n[health]\nprobe_interval_ms = 50\n"
    )
}

/// Five in a row, with more and with fewer shards, under a load of short requests and of streams: no request fails, no
/// connection is refused, no stream is cut.
#[test]
fn upgrades_under_load_cost_nothing() {
    for driver in DRIVERS {
        let (short, ticking) = (Engine::start(), Engine::start());
        ticking.becomes(Mood::Ticks);
        let mut front = Front::start(driver, &[short.address, ticking.address], &config(2));
        (0..2).for_each(|place| front.until_health(place, "up"));
        let (stop, whole, served) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            // Round-robin gives each client half of each kind of reply; both kinds are checked whole.
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let mut client = front.connect();
                    while !stop.load(Ordering::Relaxed) {
                        let reply = client.post();
                        assert!(reply.status == 200 && reply.body.whole, "{}", reply.status);
                        match reply.body.data.as_slice() {
                            b"{}" => served.fetch_add(1, Ordering::Relaxed),
                            events => {
                                assert_eq!(events, b"data: a\n\n".repeat(EVENTS));
                                whole.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                        if reply.closes {
                            client = front.connect();
                        }
                    }
                });
            }
            for _ in 0..4 {
                scope.spawn(|| {
                    // A connection for each request, so that one is always just being made.
                    while !stop.load(Ordering::Relaxed) {
                        let reply = front.connect().get("/v1/models");
                        assert_eq!(reply.status, 404);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for shards in [1, 4, 2, 3, 1] {
                front.write(&config(shards));
                let before = whole.load(Ordering::Relaxed);
                front.upgrade();
                until("streams behind it", || whole.load(Ordering::Relaxed) >= before + STREAMS / 4);
            }
        });
        let (served, whole) = (served.load(Ordering::Relaxed), whole.load(Ordering::Relaxed));
        eprintln!("{driver}: {served} short replies and {whole} streams over 5 upgrades, none failed");
        until("the first process's end", || front.first_has_ended());
        let latest = front.connect().get("/v1/models").status;
        assert_eq!(latest, 404);
    }
}

/// A program that does not come to serve changes nothing.
#[test]
fn a_failed_upgrade_leaves_the_one_that_serves() {
    on_both(|driver| {
        let engine = Arc::new(Engine::start());
        let front = Front::start(driver, &[engine.address], &config(1));
        front.until_health(0, "up");
        front.write("[limits]\nno_such_key = 1\n");
        assert_eq!(front.metric("warmfront_upgrade_failures_total"), 0.0);
        front.try_upgrade();
        front.until_said("no process took this one's place");
        assert_eq!(front.metric("warmfront_upgrade_failures_total"), 1.0);
        (0..10).for_each(|_| assert_eq!(front.connect().post().status, 200));
        let resumes = format!("/endpoints/{}/resume", engine.address);
        assert_eq!(front.asks("POST", &resumes, "").0, 200, "changes by hand are taken again");
        std::thread::sleep(Duration::from_millis(50));
        front.write(&config(1));
        front.upgrade();
        (0..10).for_each(|_| assert_eq!(front.connect().post().status, 200));
    });
}

/// A process that a shell found by PATH knows its program's path from the kernel alone, and a package puts another
/// there.
#[test]
fn a_front_that_was_called_by_its_name_is_followed_by_what_lies_in_its_files_place() {
    let engine = Engine::start();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("called-{}", std::process::id()));
    // Links of one file cannot be renamed over each other; to the kernel the program is deleted either way.
    let put = || {
        let _ = std::fs::remove_file(&path);
        std::fs::hard_link(env!("CARGO_BIN_EXE_warmfront"), &path).unwrap();
    };
    put();
    let mut command = Command::new(&path);
    command.arg0("warmfront");
    let front = Front::by(command, "auto", &[engine.address], &config(1));
    put();
    front.upgrade();
    assert_eq!(front.connect().post().status, 200);
    let _ = std::fs::remove_file(path);
}

/// A folder with this program in it, and a link by which it is started.
struct Linked(PathBuf);

impl Linked {
    fn new(name: &str) -> Linked {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        std::fs::hard_link(env!("CARGO_BIN_EXE_warmfront"), folder.join("warmfront-1")).unwrap();
        let linked = Linked(folder);
        linked.leads_to("warmfront-1");
        linked
    }

    fn link(&self) -> PathBuf {
        self.0.join("warmfront")
    }

    fn leads_to(&self, target: &str) {
        let _ = std::fs::remove_file(self.link());
        std::os::unix::fs::symlink(target, self.link()).unwrap();
    }

    /// Makes a file of this mode, by another process: a file that a fork of this one has open for writing cannot be
    /// executed.
    fn put(&self, name: &str, mode: &str, text: &str) {
        let script = "printf '%s' \"$0\" >\"$1\" && chmod \"$2\" \"$1\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, text]).arg(self.0.join(name)).arg(mode);
        assert!(shell.status().unwrap().success());
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// If the link is turned to nothing the upgrade must fail, and not start the old program anew from a path that no link
/// leads to.
#[test]
fn a_link_that_leads_to_no_program_is_named_and_starts_none() {
    let (engine, linked) = (Engine::start(), Linked::new("linked"));
    linked.put("text", "644", "no program\n");
    linked.put("words", "755", "no program\n");
    for by_name in [false, true] {
        let mut command = Command::new(linked.link());
        if by_name {
            command.arg0("warmfront").env("PATH", format!("/nowhere:{}", linked.0.display()));
        }
        let front = Front::by(command, "auto", &[engine.address], &config(1));
        front.until_health(0, "up");
        let wrong = [
            ("nothere", "No such file or directory"),
            (".", "it is no file"),
            ("text", "it is not executable (mode 644)"),
            ("words", "Exec format error"),
        ];
        for (count, (target, why)) in wrong.into_iter().enumerate() {
            linked.leads_to(target);
            front.try_upgrade();
            until(why, || front.metric("warmfront_upgrade_failures_total") == (count + 1) as f64);
            front.until_said(&format!("cannot start {}: {why}", linked.link().display()));
            assert_eq!(front.connect().post().status, 200);
        }
        linked.leads_to("warmfront-1");
        front.upgrade();
        let called = std::fs::read(format!("/proc/{}/cmdline", front.heir())).unwrap();
        assert!(called.starts_with(linked.link().as_os_str().as_encoded_bytes()), "a link can be turned again");
        assert_eq!(front.connect().post().status, 200);
    }
}

/// Asks for an upgrade to a program that sleeps instead of beginning, behind such a link. Returns its process.
fn asked_for_one_that_sleeps(front: &Front, linked: &Linked) -> String {
    let note = linked.0.join("process");
    linked.put("sleeps", "755", &format!("#!/bin/sh\necho $$ >{}\nexec sleep 600\n", note.display()));
    linked.leads_to("sleeps");
    front.try_upgrade();
    let process = || std::fs::read_to_string(&note).unwrap_or_default();
    until("a process that sleeps", || process().ends_with('\n'));
    process().trim().to_owned()
}

/// Whether a process has ended; a zombie has.
fn has_ended(process: &str) -> bool {
    std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default().is_empty()
}

#[test]
fn a_program_that_does_not_begin_is_ended_and_another_may_come() {
    let (engine, linked) = (Engine::start(), Linked::new("sleeping"));
    let front = Front::by(Command::new(linked.link()), "auto", &[engine.address], &config(1));
    front.until_health(0, "up");
    let process = asked_for_one_that_sleeps(&front, &linked);
    front.until_said(&format!("{} has not begun within 10 s", linked.link().display()));
    until("its end", || has_ended(&process));
    assert_eq!(front.metric("warmfront_upgrade_failures_total"), 1.0);
    assert_eq!(front.connect().post().status, 200);
    linked.leads_to("warmfront-1");
    front.upgrade();
    assert_eq!(front.connect().post().status, 200);
}

#[test]
fn a_program_that_does_not_begin_ends_with_the_front() {
    let (engine, linked) = (Engine::start(), Linked::new("left-behind"));
    let mut front = Front::by(Command::new(linked.link()), "auto", &[engine.address], &config(1));
    front.until_health(0, "up");
    let process = asked_for_one_that_sleeps(&front, &linked);
    front.terminate();
    until("the end of both", || front.first_has_ended() && has_ended(&process));
}

/// An engine of one model, slow to say so, which refuses requests for another.
struct OfOneModel {
    address: SocketAddr,
    /// Whether `/health` is not answered either.
    is_deaf: Arc<AtomicBool>,
    /// How often `/health` was not answered.
    unheard: Arc<AtomicUsize>,
}

impl OfOneModel {
    fn start(name: &'static str) -> OfOneModel {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let engine = OfOneModel { address, is_deaf: Arc::default(), unheard: Arc::default() };
        let (is_deaf, unheard) = (Arc::clone(&engine.is_deaf), Arc::clone(&engine.unheard));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (is_deaf, unheard) = (Arc::clone(&is_deaf), Arc::clone(&unheard));
                std::thread::spawn(move || {
                    let mut wire = Wire::new(stream);
                    while let Some(head) = wire.head() {
                        let body = wire.body(head.length().unwrap_or(Length::Of(0))).data;
                        let named = format!("\"model\":\"{name}\"");
                        let (status, text) = if head.start.contains("/v1/models") {
                            std::thread::sleep(Duration::from_millis(300));
                            ("200 OK", format!("{{\"object\":\"list\",\"data\":[{{\"id\":\"{name}\"}}]}}"))
                        } else if head.start.contains("/health") {
                            if is_deaf.load(Ordering::Relaxed) {
                                unheard.fetch_add(1, Ordering::Relaxed);
                                std::thread::sleep(Duration::from_secs(20));
                            }
                            ("200 OK", String::new())
                        } else if String::from_utf8_lossy(&body).contains(&named) {
                            ("200 OK", "{}".to_owned())
                        } else {
                            ("404 Not Found", String::new())
                        };
                        let len = text.len();
                        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
                        if write!(wire.stream, "{head}content-length: {len}\r\n\r\n{text}").is_err() {
                            return;
                        }
                    }
                });
            }
        });
        engine
    }
}

fn asks_for(front: &Front, model: &str) -> u16 {
    let mut client = front.connect();
    let body = format!("{{\"model\":\"{model}\"}}");
    let len = body.len();
    client.send(&format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n{body}"));
    client.reply().status
}

/// The serving process knows which engine serves what: until its heir knows as well it goes on serving, and answers
/// that it is ready.
#[test]
fn an_heir_knows_the_engines_before_it_serves() {
    on_both(|driver| {
        let engines = [OfOneModel::start("a"), OfOneModel::start("b")];
        let front = Front::start(driver, &engines.each_ref().map(|engine| engine.address), &config(2));
        // By what is published: a request could be answered by luck before.
        let known = |model: &str| front.asks("GET", "/endpoints", "").1.contains(&format!("\"model\":\"{model}\""));
        until("both models", || known("a") && known("b"));
        (0..2).for_each(|place| front.until_health(place, "up"));
        let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            for model in ["a", "b", "a", "b"] {
                let (front, stop, asked) = (&front, &stop, &asked);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(asks_for(front, model), 200, "{model}");
                        assert_eq!(front.asks("GET", "/readyz", "").0, 200);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..3 {
                let before = asked.load(Ordering::Relaxed);
                front.upgrade();
                until("requests behind it", || asked.load(Ordering::Relaxed) > before + 20);
            }
        });
        assert_eq!(front.connect().get("/version").status, 404, "any engine is asked for what is of no model");
    });
}

/// A front with a stream to finish, which therefore still answers after an upgrade. The stream ends when its engine's
/// mood changes.
fn amid_a_stream(driver: &str) -> (Engine, Front, Client, Head) {
    let engine = Engine::start();
    let front = Front::start(driver, &[engine.address], &config(1));
    front.until_health(0, "up");
    engine.becomes(Mood::TicksOn);
    let mut stream = front.connect();
    stream.ask();
    let head = stream.head();
    (engine, front, stream, head)
}

/// The same after an upgrade, with what was prepared before it. The admin listener closes connections that are idle for
/// five seconds: if the upgrade takes nearly as long on this machine, all of it is done again.
fn upgraded_amid_a_stream<T>(prepare: impl Fn(&Front) -> T) -> (Engine, Front, Client, Head, T) {
    let upgraded = || {
        let (engine, front, stream, head) = amid_a_stream("auto");
        let begun = Instant::now();
        let prepared = prepare(&front);
        front.upgrade();
        (begun.elapsed() < Duration::from_secs(2)).then_some((engine, front, stream, head, prepared))
    };
    (0..5).find_map(|_| upgraded()).expect("an upgrade within two seconds")
}

/// Whether the stream ends whole.
fn ends_whole(engine: &Engine, stream: &mut Client, head: &Head) -> bool {
    engine.becomes(Mood::Good);
    let body = stream.body(head);
    let events = body.data.len() / b"data: a\n\n".len();
    body.whole && events > 0 && body.data == b"data: a\n\n".repeat(events)
}

/// A load balancer's probe on a connection that it keeps must not take the service for one that ends.
#[test]
fn who_asks_the_one_that_served_whether_it_is_ready_is_sent_to_its_heir() {
    let (engine, _front, mut stream, head, mut probe) = upgraded_amid_a_stream(|front| {
        let mut probe = front.admin();
        let before = probe.get("/readyz");
        assert_eq!((before.status, before.closes), (200, false));
        probe
    });
    until("a word of its heir", || {
        let reply = probe.get("/readyz");
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body.data));
        reply.closes
    });
    assert!(ends_whole(&engine, &mut stream, &head));
}

/// The same for a probe of the clients' port, which many balancers use.
#[test]
fn who_asks_the_one_that_served_for_its_health_is_sent_to_its_heir() {
    on_both(|driver| {
        let (engine, front, mut stream, head) = amid_a_stream(driver);
        let mut probe = front.connect();
        let before = probe.get("/health");
        assert_eq!((before.status, before.closes), (200, false));
        front.upgrade();
        until("a word of its heir", || {
            let reply = probe.get("/health");
            assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body.data));
            reply.closes
        });
        assert!(ends_whole(&engine, &mut stream, &head), "{driver}");
    });
}

/// A change that the former process takes would not reach the service.
#[test]
fn who_changes_something_at_the_one_that_served_is_sent_to_its_heir() {
    let (engine, front, mut stream, head, mut idle) = upgraded_amid_a_stream(|front| {
        let mut idle: Vec<Client> = (0..7).map(|_| front.admin()).collect();
        // All but the last connection, which asks nothing before.
        idle[..6].iter_mut().for_each(|client| assert!(!client.get("/endpoints").closes));
        idle
    });
    let path = format!("/endpoints/{}", engine.address);
    let changes = [
        ("POST", format!("{path}/drain")),
        ("DELETE", path),
        ("POST", "/endpoints".into()),
        ("POST", "/reload".into()),
    ];
    let ask = |client: &mut Client, method: &str, path: &str| {
        client.send(&format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"));
        client.reply()
    };
    let [kept @ .., explains, reads, probe] = idle.as_mut_slice() else { unreachable!() };
    until("a word of its heir", || probe.get("/readyz").closes);
    for (client, (method, path)) in kept.iter_mut().zip(&changes) {
        let reply = ask(client, method, path);
        let said = String::from_utf8(reply.body.data).unwrap();
        assert_eq!((reply.status, reply.closes), (503, true), "{method} {path}: {said}");
        assert_eq!(said, "another process serves by now: ask again on a new connection\n");
    }
    let reply = ask(explains, "POST", "/explain");
    assert!(reply.status != 503 && reply.closes, "{}: it changes nothing", reply.status);
    let reply = reads.get("/endpoints");
    assert_eq!((reply.status, reply.closes), (200, true));
    assert_eq!(ask(&mut front.admin(), "POST", &changes[0].1).status, 200, "on a new one");
    assert_eq!(front.endpoint(0)["health"], "draining");
    assert!(ends_whole(&engine, &mut stream, &head));
}

/// Name servers may fail just then: the serving process has its addresses.
#[test]
fn an_heir_that_finds_no_engine_changes_nothing() {
    let engine = Engine::start();
    let upstream = |url: &str| format!("{}[[upstream]]\nurl = \"http://{url}\"\n", config(1));
    let front = Front::start("auto", &[], &upstream(&engine.address.to_string()));
    front.until_health(0, "up");
    front.write(&upstream("nowhere.invalid:8000"));
    let (status, said) = front.reload();
    assert!(status == 422 && said.contains("name servers know none of the engines"), "{status} {said}");
    front.try_upgrade();
    front.until_said("no process took this one's place");
    assert!(front.has_said("name servers know none of the engines; see"));
    (0..10).for_each(|_| assert_eq!(front.connect().post().status, 200));
    assert_eq!(front.stop(), Some(0));
}

/// Stopping the service stops the process that was to take its place as well.
#[test]
fn nobody_takes_the_place_of_a_service_that_is_stopped() {
    let engine = OfOneModel::start("a");
    // Each process probes once and waits, and an heir that does not know whether an engine is up does not serve yet.
    let patient = config(1) + "probe_timeout_ms = 20000\n";
    let front = Front::start("auto", &[engine.address], &patient);
    front.until_health(0, "up");
    engine.is_deaf.store(true, Ordering::Relaxed);
    let unheard = || engine.unheard.load(Ordering::Relaxed);
    until("a question of its own", || unheard() == 1);
    front.try_upgrade();
    until("another process", || unheard() == 2);
    let (address, begun) = (front.address, Instant::now());
    assert_eq!(front.stop(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    until("nobody there", || TcpStream::connect(address).is_err());
}

/// The port is the old process's until it ends, and it does not end before the new one serves.
#[test]
fn an_heir_that_cannot_have_the_admin_port_at_all_addresses_says_why() {
    let engine = Engine::start();
    let (address, _kept) = reserved::address();
    let port = address.port();
    let at = |ip: &str| config(1).replacen("[serve]\n", &format!("[serve]\nadmin = \"{ip}:{port}\"\n"), 1);
    let front = Front::start("auto", &[engine.address], &at("127.0.0.1"));
    front.until_health(0, "up");
    front.write(&at("0.0.0.0"));
    front.try_upgrade();
    front.until_said("no process took this one's place");
    assert!(front.has_said("`admin` changes with a stop and a start, and not with SIGUSR2"), "{}", front.log());
    assert_eq!(front.connect().post().status, 200);
}

/// Makes the engine leave probes unanswered from now on, once its front has sent one, so that an heir waits for it.
/// Returns a connection that keeps that front running after its heir's start.
fn deafened(engine: &OfOneModel, front: &Front) -> Client {
    let mut kept = front.connect();
    assert_eq!(kept.get("/v1/models").status, 200);
    engine.is_deaf.store(true, Ordering::Relaxed);
    until("a question of its own", || engine.unheard.load(Ordering::Relaxed) == 1);
    kept
}

/// The old process keeps half of them by what they were before; its heir has not seen that.
#[test]
fn engines_that_are_all_too_busy_for_probes_stay_over_an_upgrade() {
    let engines = ["a"; 3].map(OfOneModel::start);
    let hasty = config(1) + "probe_timeout_ms = 700\n";
    let front = Front::start("auto", &engines.each_ref().map(|engine| engine.address), &hasty);
    (0..3).for_each(|place| front.until_health(place, "up"));
    let down = || (0..3).filter(|place| front.endpoint(*place)["health"] == "down").count();
    engines[1..].iter().for_each(|engine| engine.is_deaf.store(true, Ordering::Relaxed));
    front.until_said("engine stays in service although");
    assert_eq!(down(), 1);
    front.upgrade();
    assert_eq!(down(), 1);
}

/// A reload is asked of the process that the asker knows of, and is meant for the service.
#[test]
fn a_reload_during_an_upgrade_or_behind_it_is_the_heirs_as_well() {
    let engine = OfOneModel::start("a");
    let weighing = |weight: u32| {
        let url = format!("[[upstream]]\nurl = \"http://{}\"\nweight = {weight}\n", engine.address);
        config(1) + "probe_timeout_ms = 4000\n" + &url
    };
    let front = Front::start("auto", &[], &weighing(1));
    front.until_health(0, "up");
    let _kept = deafened(&engine, &front);
    let unheard = || engine.unheard.load(Ordering::Relaxed);
    front.try_upgrade();
    // The heir has read the configuration by now, and does not serve before it knows whether the engine is up.
    until("another process", || unheard() >= 2);
    front.write(&weighing(2));
    front.hang_up();
    front.until_said("configuration taken");
    engine.is_deaf.store(false, Ordering::Relaxed);
    until("its heir", || front.has_said(" heir="));
    until("the weight of then", || front.endpoint(0)["weight"] == 2);

    front.until_said("the process in this one's place is to read its configuration anew");
    front.write(&weighing(3));
    front.hang_up();
    until("the weight of now", || front.endpoint(0)["weight"] == 3);
}

/// The heir goes by the file. Whoever drained an engine by hand has to learn that it serves again, and who wants to in
/// the meantime is not to be told that it is done.
#[test]
fn what_an_upgrade_undoes_is_named_and_nothing_is_changed_by_hand_meanwhile() {
    let (engine, other) = (OfOneModel::start("a"), Engine::start());
    let patient = config(1) + "probe_timeout_ms = 4000\n";
    let front = Front::start("auto", &[engine.address, other.address], &patient);
    (0..2).for_each(|place| front.until_health(place, "up"));
    let drains = |address: SocketAddr| front.asks("POST", &format!("/endpoints/{address}/drain"), "");
    assert_eq!(drains(other.address).0, 200);
    let _kept = deafened(&engine, &front);
    front.try_upgrade();
    until("another process", || engine.unheard.load(Ordering::Relaxed) >= 2);
    let (status, said) = drains(engine.address);
    assert!(status == 503 && said.contains("ask again in a moment"), "{status} {said}");
    assert_eq!((front.endpoint(0)["health"].as_str(), front.heirs()), (Some("up"), 0));
    engine.is_deaf.store(false, Ordering::Relaxed);
    front.until_said(&format!("engines=[\"{}\"]", other.address));
    until("its heir", || front.heirs() == 1);
    front.until_health(1, "up");
    assert_eq!(drains(engine.address).0, 200);
    assert_eq!(front.endpoint(0)["health"], "draining");
}

/// An upgrade to yet another program is asked of the process that the operator knows of.
#[test]
fn an_upgrade_during_another_or_behind_it_is_the_heirs_to_make() {
    let engine = OfOneModel::start("a");
    let patient = config(1) + "probe_timeout_ms = 4000\n";
    let front = Front::start("auto", &[engine.address], &patient);
    front.until_health(0, "up");
    let _kept = deafened(&engine, &front);
    let unheard = || engine.unheard.load(Ordering::Relaxed);
    front.upgrade_first();
    until("another process", || unheard() >= 2);
    front.upgrade_first();
    engine.is_deaf.store(false, Ordering::Relaxed);
    until("its heir's heir", || front.heirs() == 2);
    front.until_said("the process in this one's place is to start another in its own");
    front.upgrade_first();
    until("another heir", || front.heirs() == 3);
    assert_eq!(front.connect().get("/v1/models").status, 200);
}

/// A service manager may ask a process that it has just been told of: that waits until it can hand on.
#[test]
fn a_process_that_has_just_begun_can_be_followed() {
    on_both(|driver| {
        let engine = Engine::start();
        let front = Front::start(driver, &[engine.address], &config(1));
        // Each process is named some milliseconds before it has listeners to hand on.
        (0..10).for_each(|_| front.upgrade());
        assert!(!front.has_said("no process can take"), "{driver}: {}", front.log());
        assert_eq!(front.connect().post().status, 200);
    });
}

/// After an upgrade the first Ctrl-C cuts no stream either.
#[test]
fn streams_behind_an_upgrade_outlive_the_first_interrupt() {
    on_both(|driver| {
        let (engine, mut front, mut client, head) = amid_a_stream(driver);
        front.upgrade();
        front.interrupt();
        front.until_said("a second Ctrl-C ends at once");
        assert!(ends_whole(&engine, &mut client, &head), "{driver}");
        drop(client);
        until("the first process's end", || front.first_has_ended());
    });
}

/// A Ctrl-C after a SIGTERM counts as the first one.
#[test]
fn streams_behind_sigterm_outlive_the_first_interrupt_and_not_the_second() {
    on_both(|driver| {
        for interrupts in [1, 2] {
            let (engine, mut front, mut client, head) = amid_a_stream(driver);
            // A client whose request is still to come.
            let mut slow = front.connect();
            slow.send("GET /v1/a HTTP/1.1\r\nhost:");
            until("both", || front.metric("warmfront_client_connections") == 2.0);
            front.terminate();
            front.until_said("draining: no new connections");
            front.interrupt();
            front.until_said("draining already, streams may finish; a second Ctrl-C ends at once");
            match interrupts {
                1 => assert!(ends_whole(&engine, &mut client, &head), "{driver}"),
                _ => {
                    front.interrupt();
                    assert!(!client.body(&head).whole, "{driver}");
                    front.until_said("and cuts what it has at_engines=1 waiting=0 connections=2");
                }
            }
            drop((client, slow));
            until("the process's end", || front.first_has_ended());
        }
    });
}
