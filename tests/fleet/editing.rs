//! Engines added, drained and removed on the admin listener.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::engine::{Engine, Mood};
use crate::front::Front;
use crate::reloading::{config, names};
use crate::{DRIVERS, until};

#[test]
fn engines_are_added_drained_and_removed_while_requests_run() {
    for driver in DRIVERS {
        let [first, second] = std::array::from_fn(|_| Engine::start());
        let front = Front::start(driver, &[], &config("", &[&first]));
        front.until_health(0, "up");
        let (name, path) = (first.address.to_string(), format!("/endpoints/{}", first.address));

        let (status, said) = front.asks("POST", "/endpoints", &format!("{{\"url\":\"http://{}\"}}", second.address));
        let changes: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((status, &changes["added"]), (200, &serde_json::json!([second.address.to_string()])), "{said}");
        front.until_health(1, "up");
        let mut client = front.connect();
        (0..10).for_each(|_| assert_eq!(client.post().status, 200));
        assert_eq!((first.requests(), second.requests()), (5, 5), "{driver}");

        // A stream runs on while its engine drains.
        first.becomes(Mood::Silent);
        let mut stream = front.connect();
        until("a stream of the first", || {
            stream = front.connect();
            stream.ask();
            stream.head().fields.iter().any(|(_, value)| value.contains("event-stream"))
        });
        assert_eq!(front.asks("POST", &format!("{path}/drain"), "").0, 200);
        assert_eq!(
            (front.endpoint(0)["health"].as_str(), front.endpoint(0)["in_flight"].as_u64()),
            (Some("draining"), Some(1))
        );
        let before = first.requests();
        let mut client = front.connect();
        (0..10).for_each(|_| assert_eq!(client.post().status, 200));
        assert_eq!(first.requests(), before, "{driver}: it gets nothing new");
        until("the stream alone", || front.metric("warmfront_endpoint_in_flight") == 1.0);
        let state = format!("warmfront_endpoint_health{{endpoint=\"{name}\",state=\"draining\"}}");
        assert_eq!(front.metric(&state), 1.0, "{driver}");
        drop(stream);
        until("its end", || front.endpoint(0)["in_flight"] == 0);

        first.becomes(Mood::Good);
        assert_eq!(front.asks("POST", &format!("{path}/resume"), "").0, 200);
        (0..10).for_each(|_| assert_eq!(client.post().status, 200));
        assert_eq!(first.requests(), before + 5, "{driver}: it serves again");

        assert_eq!(front.asks("DELETE", &path, "").0, 200);
        assert_eq!(names(&front), [second.address.to_string()]);
        (0..10).for_each(|_| assert_eq!(client.post().status, 200));
        assert_eq!(first.requests(), before + 5, "{driver}");

        // A change that is not in the file is undone by the next reload.
        assert_eq!(front.reload().0, 200);
        assert_eq!(names(&front), [name]);
    }
}

/// The file counts, even if it was read for another reason, such as log rotation: an operator who drained an engine by
/// hand has to learn that it serves again.
#[test]
fn what_a_reload_undoes_is_named() {
    let [first, second, third] = std::array::from_fn::<_, 3, _>(|_| Engine::start());
    let both = config("", &[&second, &first]);
    let front = Front::start("auto", &[], &both);
    front.until_health(1, "up");
    let [first, second, third] = [&first, &second, &third].map(|engine| engine.address.to_string());
    let drains = |engine: &str| assert_eq!(front.asks("POST", &format!("/endpoints/{engine}/drain"), "").0, 200);
    let added = format!("{{\"url\":\"http://{third}\",\"weight\":2,\"api_key_file\":\"\"}}");
    let undone = || {
        let (status, said) = front.reload();
        assert_eq!(status, 200, "{said}");
        serde_json::from_str::<serde_json::Value>(&said).unwrap()["undone"].clone()
    };
    drains(&first);
    front.until_said(&format!("drained=\"{first}\""));
    assert_eq!(front.asks("POST", "/endpoints", &added).0, 200);
    front.until_said(&format!("added=\"http://{third}\" name=\"{third}\" weight=2"));
    assert_eq!(undone(), serde_json::json!([first, third]));
    front.until_said(&format!("engines=[\"{first}\", \"{third}\"]"));
    assert_eq!(undone(), serde_json::json!([]), "once");
    // It comes back, though the file has not changed.
    assert_eq!(front.asks("DELETE", &format!("/endpoints/{second}"), "").0, 200);
    front.until_said(&format!("removed=\"{second}\""));
    front.hang_up();
    front.until_said(&format!("engines=[\"{second}\"]"));
    // The file says so by now.
    drains(&first);
    front.write(&format!("{both}drain = true\n"));
    assert_eq!(undone(), serde_json::json!([]));
}

/// Requests that it still has from before count against its cap, and are shown.
#[test]
fn an_engine_that_is_taken_out_and_added_again_gets_no_more_at_once() {
    for driver in DRIVERS {
        let [other, engine] = std::array::from_fn(|_| Engine::start());
        let front = Front::start(driver, &[], &config("", &[&other, &engine]));
        (0..2).for_each(|place| front.until_health(place, "up"));
        assert_eq!(front.asks("POST", &format!("/endpoints/{}/drain", other.address), "").0, 200);
        engine.becomes(Mood::Silent);
        let mut stream = front.connect();
        stream.ask();
        stream.head();
        engine.becomes(Mood::Good);
        let added = format!("{{\"url\":\"http://{}\",\"concurrency_max\":1}}", engine.address);
        assert_eq!(front.asks("DELETE", &format!("/endpoints/{}", engine.address), "").0, 200);
        assert_eq!(front.asks("POST", "/endpoints", &added).0, 200);
        front.until_health(1, "up");
        let in_flight = || (front.endpoint(1)["in_flight"].as_u64(), front.metric("warmfront_endpoint_in_flight"));
        assert_eq!(in_flight(), (Some(1), 1.0), "{driver}");
        assert_eq!(front.connect().post().status, 503, "{driver}");
        drop(stream);
        until("its place", || front.connect().post().status == 200);
    }
}

#[test]
fn a_wrong_change_changes_nothing_and_is_explained() {
    let engine = Engine::start();
    let front = Front::start("auto", &[], &config("", &[&engine]));
    front.until_health(0, "up");
    let this = engine.address;
    let same = format!("same `url`, http://{this}");
    for (method, path, body, status, words) in [
        ("POST", "/endpoints", format!("{{\"url\":\"http://{this}\"}}"), 422, &*same),
        ("POST", "/endpoints", "{\"url\":\"https://gpu\"}".into(), 422, "TLS"),
        ("POST", "/endpoints", "{\"url\":\"http://gpu\",\"weigth\":1}".into(), 422, "weigth"),
        ("POST", "/endpoints", "{".into(), 422, "[[upstream]]"),
        ("DELETE", "/endpoints/gpu:1", String::new(), 404, "no engine is called \"gpu:1\""),
        ("POST", "/endpoints/gpu:1/drain", String::new(), 404, "there are \"127.0.0.1:"),
        ("DELETE", &format!("/endpoints/{this}"), String::new(), 422, "is the only engine: add another one"),
    ] {
        let (answered, said) = front.asks(method, path, &body);
        assert!(answered == status && said.contains(words), "{method} {path} {body}: {answered} {said}");
        assert_eq!((names(&front), front.connect().post().status), (vec![this.to_string()], 200));
    }
}

/// A disk that is gone is a reason to drain an engine, and no reason to refuse to: only the key of a new engine is
/// read.
#[test]
fn engines_are_drained_and_removed_where_no_file_can_be_read() {
    let [first, second, third] = std::array::from_fn::<_, 3, _>(|_| Engine::start());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("editing-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-llama").join(name);
        std::fs::copy(&file, folder.join(name)).unwrap();
    }
    let key = folder.join("key");
    std::fs::write(&key, "secret").unwrap();
    let (tokenizer, key) = (folder.display(), key.display());
    let upstream = |engine: &Engine| {
        format!("[[upstream]]\nurl = \"http://{}\"\nkv_events = \"off\"\napi_key_file = \"{key}\"\n", engine.address)
    };
    let rest =
        format!("[routing]\npolicy = \"precise\"\ntokenizer = \"{tokenizer}\"\n[health]\nprobe_interval_ms = 50\n");
    let front = Front::start("auto", &[], &format!("{rest}{}{}", upstream(&first), upstream(&second)));
    (0..2).for_each(|place| front.until_health(place, "up"));
    let added = |key: &str| format!("{{\"url\":\"http://{}\",\"api_key_file\":\"{key}\"}}", third.address);
    // Only key files may be named: the content of any other would be sent to the address in the request.
    let hidden = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("editing-hidden-{}", std::process::id()));
    std::fs::write(&hidden, "secret").unwrap();
    std::os::unix::fs::symlink(&hidden, folder.join("link")).unwrap();
    let around = format!("{}/../{}", folder.display(), hidden.file_name().unwrap().display());
    for file in [hidden.display().to_string(), around, folder.join("link").display().to_string()] {
        let (status, said) = front.asks("POST", "/endpoints", &added(&file));
        assert!(status == 422 && said.contains("is not beside a key"), "{file}: {status} {said}");
    }
    let beside = folder.join("another-key");
    std::fs::write(&beside, "another").unwrap();
    assert_eq!(front.asks("POST", "/endpoints", &added(&beside.display().to_string())).0, 200);
    assert_eq!(front.asks("DELETE", &format!("/endpoints/{}", third.address), "").0, 200);
    std::fs::remove_file(&hidden).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let path = format!("/endpoints/{}", first.address);
    for (method, path, shown) in
        [("POST", format!("{path}/drain"), "draining"), ("POST", format!("{path}/resume"), "up")]
    {
        let (status, said) = front.asks(method, &path, "");
        assert_eq!(status, 200, "{method} {path}: {said}");
        assert_eq!(front.endpoint(0)["health"], shown);
    }
    assert_eq!(front.asks("POST", "/endpoints", &added("")).0, 200);
    assert_eq!(front.asks("DELETE", &format!("/endpoints/{}", third.address), "").0, 200);
    let (status, said) = front.asks("POST", "/endpoints", &added(&key.to_string()));
    assert!(status == 422 && said.contains("cannot use the key"), "{status} {said}");
    assert_eq!(front.asks("DELETE", &path, "").0, 200);
    assert_eq!(names(&front), [second.address.to_string()]);
    let (status, said) = front.reload();
    assert!(status == 422, "a reload reads all of it: {status} {said}");
}

/// The key of an engine that is to be added is on a disk that is gone: until it comes others can be drained, and the
/// front answers.
#[test]
fn a_key_that_is_not_read_holds_nobody_up() {
    let [first, second, third] = std::array::from_fn::<_, 3, _>(|_| Engine::start());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("editing-far-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let (key, far) = (folder.join("key"), folder.join("far"));
    std::fs::write(&key, "secret").unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&far).status().unwrap().success());
    let upstream = |engine: &Engine| {
        format!("[[upstream]]\nurl = \"http://{}\"\napi_key_file = \"{}\"\n", engine.address, key.display())
    };
    let front = Front::start("auto", &[], &format!("{}{}", upstream(&first), upstream(&second)));
    (0..2).for_each(|place| front.until_health(place, "up"));
    std::thread::scope(|scope| {
        let added = scope.spawn(|| {
            let engine = format!("{{\"url\":\"http://{}\",\"api_key_file\":\"{}\"}}", third.address, far.display());
            front.asks("POST", "/endpoints", &engine)
        });
        // The pipe opens once it is read.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut opened = None;
        until("a reader", || {
            opened = std::fs::OpenOptions::new().write(true).custom_flags(flags).open(&far).ok();
            opened.is_some()
        });
        let mut far = opened.unwrap();
        assert_eq!(front.asks("POST", &format!("/endpoints/{}/drain", first.address), "").0, 200);
        assert_eq!(names(&front).len(), 2);
        std::io::Write::write_all(&mut far, b"secret").unwrap();
        drop(far);
        assert_eq!(added.join().unwrap().0, 200);
    });
    assert_eq!(names(&front).len(), 3);
    std::fs::remove_dir_all(&folder).unwrap();
}
