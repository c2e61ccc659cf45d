//! Other processes at the same address: what their predecessors told is not believed, however alike they look.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::{BLOCK_SIZE, BLOCKS, Engine};
use crate::front::Front;
use crate::scene::{Scene, config};
use crate::tokens::{Blocks, Dialect, chat_prompt, text};
use crate::{on_both, until};

const BYTES: usize = 3_000;

fn prompt(seed: u64) -> (String, Blocks) {
    let content = text(seed, BYTES);
    let blocks = Blocks::of(&chat_prompt(&content));
    (content, blocks)
}

fn second() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The new process's next message has the number that its predecessor's would have had; only its metrics tell, later,
/// that it is another.
#[test]
fn a_number_that_fits_does_not_make_another_process_the_same() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(false)];
        engines[1].began(second() - 1_000);
        let control = "[control]\nscrape_interval_ms = 200\nscrape_timeout_ms = 60000\nstale_after_ms = 90000\n";
        let scene = Scene::of(driver, engines, &config(control));
        scene.until_subscribed(1, 1);
        scene.tells(1, &[prompt(1).1.stored(Dialect::Maps)]);
        scene.tells(1, &[prompt(2).1.stored(Dialect::Maps)]);
        scene.until_rung(1, "exact");
        let engine = &scene.engines[1];
        engine.hangs(true);
        engine.publisher.goes();
        scene.until_rung(1, "approximate");
        engine.began(second());
        // An engine takes its time to load.
        std::thread::sleep(Duration::from_millis(2_100));
        engine.publisher.begins_anew();
        (10..12).for_each(|seed| engine.publisher.lose(&[prompt(seed).1.stored(Dialect::Maps)]));
        scene.until_subscribed(1, 2);
        scene.tells(1, &[prompt(12).1.stored(Dialect::Maps)]);
        // Nothing tells yet that it is another.
        scene.until_rung(1, "exact");
        engine.hangs(false);
        scene.until_subscribed(1, 3);
        scene.tells(1, &[prompt(13).1.stored(Dialect::Maps)]);
        scene.until_rung(1, "approximate");
        assert_eq!(scene.chat(&prompt(1).0).held, 0, "{driver}: what its predecessor held");
        let (content, blocks) = prompt(13);
        assert_eq!(scene.chat(&content).held, blocks.held(), "{driver}");
    });
}

/// With a hybrid model one group of layers may have most of the blocks, and all groups together have room for fewer
/// tokens than these would be.
#[test]
fn a_hybrid_may_tell_of_more_than_it_has_room_for() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(true)];
        engines[1].has_room_for(BLOCKS * BLOCK_SIZE / 4);
        let scene = Scene::of(driver, engines, &config(""));
        scene.until_exact();
        (60..68).for_each(|seed| scene.tells(1, &[prompt(seed).1.stored(Dialect::Maps)]));
        assert!(scene.counted("warmfront_kv_blocks", 1) > (BLOCKS / 2) as f64, "{driver}");
        for seed in 60..68 {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(scene.front.endpoint(1)["cache"]["rung"], "exact", "{driver}");
    });
}

/// A process with a larger cache tells of more blocks than its predecessor could have had.
#[test]
fn another_process_may_have_a_larger_cache() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let engine = &scene.engines[1];
        let many = |seeds: std::ops::Range<u64>| {
            seeds.for_each(|seed| engine.publisher.publish(&[prompt(seed).1.stored(Dialect::Maps)]));
        };
        many(100..105);
        engine.publisher.goes();
        scene.until_rung(1, "approximate");
        engine.is_another_process();
        engine.until_scraped();
        engine.has_blocks(4 * BLOCKS as u64);
        engine.publisher.begins_anew();
        // Before its metrics say how large its cache is, and after.
        many(200..215);
        scene.until_subscribed(1, 2);
        many(215..230);
        until("room for all blocks", || {
            scene.counted("warmfront_kv_blocks", 1) as usize == 30 * prompt(0).1.names.len()
        });
        scene.until_rung(1, "exact");
        for seed in [200, 214, 229] {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(scene.chat(&prompt(100).0).held, 0, "{driver}");
    });
}

/// The next process has blocks of another size, twice. Its events are read by the size that each of them names.
#[test]
fn another_process_may_have_blocks_of_another_size() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let engine = &scene.engines[1];
        scene.tells(1, &[prompt(60).1.stored(Dialect::Maps)]);
        for (began, size) in [(1, 48), (2, 1)] {
            let sized = |seed: u64| {
                let content = text(seed, BYTES);
                let blocks = Blocks::sized(&chat_prompt(&content), None, size);
                (content, blocks)
            };
            engine.publisher.goes();
            scene.until_rung(1, "approximate");
            engine.is_another_process();
            engine.until_scraped();
            engine.has_blocks((BLOCKS * BLOCK_SIZE / size) as u64);
            engine.has_blocks_of(size);
            engine.publisher.begins_anew();
            let seeds = [60 + 2 * began, 61 + 2 * began];
            seeds.iter().for_each(|seed| engine.publisher.publish(&[sized(*seed).1.stored(Dialect::Maps)]));
            scene.until_subscribed(1, 1 + began as usize);
            scene.until_rung(1, "exact");
            let [one, other] = seeds.map(|seed| sized(seed).1);
            let tokens = one.held() + other.held() - one.shared(&other);
            scene.until_counted("warmfront_kv_blocks", 1, (tokens / size) as f64);
            for seed in seeds {
                let (content, blocks) = sized(seed);
                let chosen = scene.chat(&content);
                // Matches are known to 64 bytes, which here are 16 tokens.
                let held = blocks.held() - BLOCK_SIZE..=blocks.held();
                assert!(chosen.place == 1 && held.contains(&chosen.held), "{driver}: {size}: {chosen:?} of {held:?}");
            }
            let before = if began == 1 { 60 } else { 62 };
            assert_eq!(scene.chat(&text(before, BYTES)).held, 0, "{driver}: what its predecessor held");
        }
    });
}

/// Its metrics do not answer when first asked: then its size, and what was saved of it, come later.
#[test]
fn what_was_saved_waits_for_metrics() {
    for replays in [true, false] {
        on_both(|driver| {
            let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("another-{}-{driver}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let config = config(&format!(
                "[control]\nscrape_timeout_ms = 150\nscrape_interval_ms = 200\ncaches_file = \"{}\"\n",
                path.display()
            ));
            let scene = Scene::of(driver, [Engine::start(true), Engine::start(replays)], &config);
            scene.until_subscribed(1, 1);
            (20..23).for_each(|seed| scene.tells(1, &[prompt(seed).1.stored(Dialect::Maps)]));
            scene.until_rung(1, "exact");
            let Scene { engines, front, .. } = scene;
            assert_eq!(front.stop(), Some(0), "{driver}");
            // It has forgotten the first message, which can no longer be asked for.
            engines[1].publisher.keeps(1);
            engines[1].hangs(true);
            let scene = Scene::of(driver, engines, &config);
            scene.until_subscribed(1, 2);
            scene.engines[1].hangs(false);
            scene.front.until_said("is known again");
            scene.until_subscribed(1, 3);
            if !replays {
                scene.tells(1, &[prompt(23).1.stored(Dialect::Maps)]);
            }
            scene.until_rung(1, "exact");
            for (seed, held) in [(20, true), (22, true), (23, !replays)] {
                let (content, blocks) = prompt(seed);
                assert_eq!(scene.chat(&content).held, if held { blocks.held() } else { 0 }, "{driver}: {seed}");
            }
            let _ = std::fs::remove_file(&path);
        });
    }
}

/// It restarts with other ports, and with another API key, which a reload brings.
#[test]
fn an_engine_that_publishes_elsewhere_is_found_again() {
    on_both(|driver| {
        let key = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("key-{}-{driver}", std::process::id()));
        std::fs::write(&key, "first").unwrap();
        let engines = [Engine::start(true), Engine::start(true)];
        engines[1].asks_for("first");
        let upstreams = engines.each_ref().map(|engine| {
            format!("[[upstream]]\nurl = \"http://{}\"\napi_key_file = \"{}\"\n", engine.address, key.display())
        });
        let front = Front::start(driver, &[], &config(&upstreams.concat()));
        let mut scene = Scene { engines, front, driver };
        scene.until_exact();
        scene.tells(1, &[prompt(30).1.stored(Dialect::Maps)]);
        scene.engines[1].asks_for("second");
        let before = scene.engines[1].moves(true);
        before.goes();
        scene.engines[1].is_another_process();
        let (content, blocks) = prompt(31);
        scene.engines[1].publisher.publish(&[blocks.stored(Dialect::Maps)]);
        scene.front.until_said("/kv_event_sources answers 401");
        std::fs::write(&key, "second").unwrap();
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        scene.until_subscribed(1, 1);
        scene.until_rung(1, "exact");
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
        assert_eq!(scene.chat(&prompt(30).0).held, 0, "{driver}");
        let _ = std::fs::remove_file(&key);
    });
}

/// SGLang does not list where it publishes.
#[test]
fn an_engine_that_tells_flags_alone_is_heard_by_these() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(true)];
        engines[1].tells_flags();
        let scene = Scene::of(driver, engines, &config(""));
        let (content, blocks) = prompt(32);
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        // The message may come with the replayed ones, which are believed when all of them are there.
        scene.until_rung(1, "exact");
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// Another policy for a while, and back: listening to the engine goes on where it stopped.
#[test]
fn what_was_told_outlasts_another_policy() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        scene.tells(1, &[prompt(40).1.stored(Dialect::Maps)]);
        scene.tells(1, &[prompt(41).1.stored(Dialect::Maps)]);
        let batches = || scene.counted("warmfront_kv_events_batches_total", 1);
        let before = batches();
        scene.front.write(&config("").replace("policy = \"precise\"", "policy = \"warm\""));
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        (0..2).for_each(|place| scene.until_rung(place, "approximate"));
        scene.engines[1].publisher.publish(&[prompt(42).1.stored(Dialect::Maps)]);
        scene.front.write(&config(""));
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        (0..2).for_each(|place| scene.until_rung(place, "exact"));
        for seed in 40..43 {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(scene.engines[1].publisher.asked(), [0, 1], "{driver}: the last message that is known");
        assert!(batches() > before, "{driver}: a counter does not go back");
    });
}

/// Two reloads at once make another index twice.
#[test]
fn what_was_told_outlasts_two_reloads_in_quick_succession() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        scene.tells(1, &[prompt(50).1.stored(Dialect::Maps)]);
        let precise = config("");
        for config in [precise.replace("policy = \"precise\"", "policy = \"warm\""), precise] {
            scene.front.write(&config);
            assert_eq!(scene.front.reload().0, 200, "{driver}");
        }
        let (content, blocks) = prompt(51);
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        // Whether control looks between the two reloads or after both.
        std::thread::sleep(Duration::from_millis(2_500));
        (0..2).for_each(|place| scene.until_rung(place, "exact"));
        assert_eq!(scene.chat(&content).held, blocks.held(), "{driver}");
        let (content, blocks) = prompt(50);
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// The front missed more messages than the engine can replay, and the cache was full: nothing known before is believed,
/// though all blocks are known.
#[test]
fn what_was_saved_before_a_hole_is_not_believed() {
    on_both(|driver| {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hole-{}-{driver}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let config = config(&format!("[control]\ncaches_file = \"{}\"\n", path.display()));
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config);
        scene.until_exact();
        // Nearly as many blocks as the engine has.
        (60..71).for_each(|seed| scene.tells(1, &[prompt(seed).1.stored(Dialect::Maps)]));
        assert!(scene.counted("warmfront_kv_blocks", 1) >= 0.95 * BLOCKS as f64, "{driver}");
        let Scene { engines, front, .. } = scene;
        assert_eq!(front.stop(), Some(0), "{driver}");
        let all = |seed: u64| prompt(seed).1;
        for seed in 60..71 {
            engines[1].publisher.publish(&[all(seed).removed(0..all(seed).names.len(), Dialect::Maps)]);
            engines[1].publisher.publish(&[all(seed + 100).stored(Dialect::Maps)]);
        }
        engines[1].publisher.keeps(2);
        let scene = Scene::of(driver, engines, &config);
        scene.until_rung(0, "exact");
        scene.until_counted("warmfront_kv_events_incomplete_total", 1, 1.0);
        scene.until_rung(1, "approximate");
        until("what is left", || scene.counted("warmfront_kv_blocks", 1) as usize == all(0).names.len());
        let _ = std::fs::remove_file(&path);
    });
}
