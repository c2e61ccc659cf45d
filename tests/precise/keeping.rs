//! What is known of caches outlasts the front's process and its configuration.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::{BLOCK_SIZE, BLOCKS, Engine};
use crate::on_both;
use crate::scene::{Scene, config};
use crate::tokens::{Blocks, Dialect, FOLDER, chat_prompt, text};

const BYTES: usize = 3_000;

fn prompt(seed: u64) -> (String, Blocks) {
    let content = text(seed, BYTES);
    let blocks = Blocks::of(&chat_prompt(&content));
    (content, blocks)
}

/// A file for what is known, and a configuration that names it.
fn file() -> (PathBuf, String) {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("precise-{}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    // Saved knowledge is of use only after an engine's metrics first answer.
    let control = format!("[control]\nscrape_timeout_ms = 10000\ncaches_file = \"{}\"\n", path.display());
    (path, config(&control))
}

/// The second engine tells these prompts, by one message each.
fn told(scene: &Scene, seeds: std::ops::Range<u64>) {
    seeds.for_each(|seed| scene.tells(1, &[prompt(seed).1.stored(Dialect::Maps)]));
}

fn assert_held(scene: &Scene, seeds: std::ops::Range<u64>, held: bool) {
    for seed in seeds {
        let (content, blocks) = prompt(seed);
        let chosen = scene.chat(&content);
        let expected = if held { blocks.held() } else { 0 };
        assert_eq!((chosen.held, !held || chosen.place == 1), (expected, true), "{}: {seed}", scene.driver);
    }
}

/// Ends the front, and returns the engines.
fn ended(scene: Scene) -> [Engine; 2] {
    let Scene { engines, front, driver } = scene;
    assert_eq!(front.stop(), Some(0), "{driver}");
    engines
}

#[test]
fn another_front_knows_what_was_told_to_the_one_before() {
    on_both(|driver| {
        let (path, config) = file();
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config);
        scene.until_exact();
        told(&scene, 51..54);
        let engines = ended(scene);
        assert_eq!(engines[1].publisher.asked(), [0], "{driver}");
        // One message came between the two fronts.
        engines[1].publisher.publish(&[prompt(54).1.stored(Dialect::Arrays)]);
        let scene = Scene::of(driver, engines, &config);
        scene.until_rung(1, "exact");
        assert_held(&scene, 51..55, true);
        assert_eq!(scene.engines[1].publisher.asked(), [0, 2], "{driver}: the last message that is known");
        assert_eq!(scene.counted("warmfront_kv_events_batches_total", 1), 1.0, "{driver}: and nothing before that is");
        let engines = ended(scene);
        engines[1].publisher.begins_anew();
        engines[1].is_another_process();
        let scene = Scene::of(driver, engines, &config);
        scene.until_rung(1, "exact");
        assert_held(&scene, 51..55, false);
        assert_eq!(scene.engines[1].publisher.asked(), [0, 2, 0], "{driver}: another process is asked for all it has");
        let _ = std::fs::remove_file(path);
    });
}

/// The engine cannot be asked: its next message shows whether any came between.
#[test]
fn what_was_saved_of_an_engine_that_cannot_be_asked_waits_for_its_next_message() {
    on_both(|driver| {
        let (path, config) = file();
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(false)], &config);
        scene.until_subscribed(1, 1);
        told(&scene, 55..57);
        scene.until_rung(1, "exact");
        let scene = Scene::of(driver, ended(scene), &config);
        scene.until_subscribed(1, 2);
        scene.until_rung(1, "approximate");
        told(&scene, 57..58);
        scene.until_rung(1, "exact");
        assert_held(&scene, 55..58, true);
        let _ = std::fs::remove_file(path);
    });
}

/// Told blocks have room of their own, four times that of what is sent there, but only while the engine may be heard.
#[test]
fn an_engine_that_is_not_heard_after_a_restart_is_not_believed_to_hold_more_than_it_can() {
    on_both(|driver| {
        let (path, config) = file();
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config);
        scene.until_exact();
        told(&scene, 101..103);
        let engines = ended(scene);
        engines[1].publisher.goes();
        let scene = Scene::of(driver, engines, &config);
        scene.front.until_said("KV events are not heard");
        let drained = format!("/endpoints/{}/drain", scene.engines[0].name());
        assert_eq!(scene.front.asks("POST", &drained, "").0, 200, "{driver}");
        // Twice as much text as its cache has room for, and half of what would be believed of an engine that tells.
        let chats = 2 * BLOCKS * BLOCK_SIZE * 4 / BYTES;
        let asks = |number: usize| scene.chat(&text(200 + number as u64, BYTES)).held;
        (0..chats).for_each(|number| assert_eq!(asks(number), 0, "{driver}: {number}"));
        assert!(asks(chats - 1) > 0, "{driver}: the last one is there");
        assert_eq!(asks(0), 0, "{driver}: the first one is gone");
        let _ = std::fs::remove_file(path);
    });
}

#[test]
fn a_process_that_takes_over_knows_what_was_told() {
    on_both(|driver| {
        let (path, config) = file();
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config);
        scene.until_exact();
        told(&scene, 61..63);
        scene.front.upgrade();
        scene.until_subscribed(1, 2);
        scene.until_rung(1, "exact");
        assert_held(&scene, 61..63, true);
        assert_eq!(scene.engines[1].publisher.asked(), [0, 1], "{driver}");
        let _ = std::fs::remove_file(path);
    });
}

/// `warm` knows only what was sent there, which is told by no engine again.
#[test]
fn a_process_that_takes_over_knows_what_was_sent() {
    on_both(|driver| {
        let (path, config) = file();
        let config = config.replace("\"precise\"", "\"warm\"");
        let mut scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config);
        (0..2).for_each(|place| scene.until_known(place));
        let (content, _) = prompt(63);
        let first = scene.chat(&content);
        let held = scene.chat(&content).held;
        assert!(first.held == 0 && held > 0, "{driver}: {held} of {first:?}");
        scene.front.upgrade();
        crate::until("the first process's end", || scene.front.first_has_ended());
        // The new front knows engines again once they have said which processes they are.
        (0..2).for_each(|place| scene.until_known(place));
        let again = scene.chat(&content);
        // Not as many tokens: their length is learnt anew.
        assert!(again.place == first.place && again.held > held / 2, "{driver}: {again:?} after {first:?}, {held}");
        let _ = std::fs::remove_file(path);
    });
}

#[test]
fn a_reload_keeps_what_was_told() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        told(&scene, 64..66);
        let before = scene.front.endpoint(1)["cache"]["rung_ms"].as_u64().unwrap();
        scene.front.write(&config("eject_ms = 2500\n"));
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        assert_held(&scene, 64..65, true);
        scene.front.write(&config("eject_ms = 2600\n[limits]\ndeserted_timeout_ms = 700\n"));
        scene.front.hang_up();
        crate::until("another configuration", || scene.front.log().matches("configuration taken").count() == 2);
        assert_held(&scene, 65..66, true);
        told(&scene, 66..67);
        assert_held(&scene, 66..67, true);
        let after = scene.front.endpoint(1)["cache"]["rung_ms"].as_u64().unwrap();
        assert!(after >= before, "{driver}: it was exact all the while");
        assert_eq!((scene.why(1), scene.engines[1].publisher.connections()), ("events".into(), 1), "{driver}");
    });
}

#[test]
fn a_folder_without_a_model_is_refused() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        told(&scene, 67..68);
        let folder = FOLDER.display().to_string();
        let wrong = config("").replace(&folder, "/no/such/folder");
        scene.front.write(&wrong);
        let (status, words) = scene.front.reload();
        assert!((400..500).contains(&status), "{driver}: {status}");
        assert!(words.contains("`tokenizer` /no/such/folder"), "{driver}: {words}");
        assert_held(&scene, 67..68, true);
        assert_eq!(scene.front.endpoint(1)["cache"]["rung"], "exact", "{driver}");
        assert_eq!(scene.engines[1].publisher.connections(), 1, "{driver}");
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("precise-{}-{driver}.toml", std::process::id()));
        std::fs::write(&path, wrong).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver, "--upstream"]);
        let ended = command.arg("http://127.0.0.1:9").arg("--config").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("`tokenizer` /no/such/folder"), "{driver}: {said}");
        assert_eq!(ended.status.code(), Some(78), "{driver}: {said}");
        let _ = std::fs::remove_file(path);
    });
}

#[test]
fn an_engine_is_not_listened_to_where_that_is_off() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(true)];
        let upstream =
            |place: usize, keys: &str| format!("[[upstream]]\nurl = \"http://{}\"\n{keys}", engines[place].address);
        let config = config(&(upstream(0, "kv_events = \"off\"\n") + &upstream(1, "")));
        let front = crate::front::Front::start(driver, &[], &config);
        let scene = Scene { engines, front, driver };
        scene.until_rung(1, "exact");
        assert_eq!(scene.front.endpoint(0)["cache"]["rung"], "approximate", "{driver}");
        let publisher = &scene.engines[0].publisher;
        publisher.publish(&[prompt(71).1.stored(Dialect::Maps)]);
        told(&scene, 72..73);
        assert_eq!(scene.chat(&prompt(71).0).held, 0, "{driver}");
        assert_eq!((publisher.connections(), publisher.asked()), (0, vec![]), "{driver}");
        assert_eq!(scene.front.endpoint(0)["cache"]["rung"], "approximate", "{driver}");
    });
}
