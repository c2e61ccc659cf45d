//! Engines that tell nonsense, and more than they can hold: requests are served all the while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engine::{BLOCKS, Engine};
use crate::msgpack::packed;
use crate::scene::{Scene, body, config};
use crate::tokens::{Blocks, Dialect, chat_prompt, cleared, text};
use crate::{on_both, until};

const BYTES: usize = 3_000;
/// Longest time of a request, on a busy machine.
const SLOWEST: Duration = Duration::from_secs(10);

/// Does `act` while requests are served one after the other.
fn while_served(scene: &Scene, act: impl FnOnce()) {
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let number = served.fetch_add(1, Ordering::Relaxed);
                scene.ask("/v1/chat/completions", &body(&text(1_000 + number % 3, BYTES)));
                slowest = slowest.max(begun.elapsed());
            }
            slowest
        });
        // The client ends, however `act` does.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            act();
            until("requests beside it", || served.load(Ordering::Relaxed) > 10 || client.is_finished());
        }));
        stop.store(true, Ordering::Relaxed);
        let slowest = client.join().unwrap();
        ended.unwrap_or_else(|why| std::panic::resume_unwind(why));
        eprintln!("{}: {served:?} requests beside it, the slowest took {slowest:?}", scene.driver);
        assert!(slowest < SLOWEST, "{}: {slowest:?}", scene.driver);
    });
}

#[test]
fn nonsense_is_counted_and_costs_what_it_hides() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let publisher = &scene.engines[1].publisher;
        let content = text(91, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        while_served(&scene, || {
            for round in 0..100u8 {
                publisher.publish_bytes(|_| vec![round; usize::from(round)]);
                publisher.publish_bytes(|time| packed(&json!([time, [["BlockStored", "no", {"a": 1}]], 0])));
                publisher.publish_bytes(|time| {
                    let mut cut = packed(&json!([time, [blocks.stored(Dialect::Maps)], 0]));
                    cut.truncate(40 + usize::from(round));
                    cut
                });
            }
            scene.until_counted("warmfront_kv_events_malformed_total", 1, 200.0);
            // The nonsense may have told that blocks are gone.
            publisher.publish(&[blocks.stored(Dialect::Maps)]);
            scene.until_rung(1, "approximate");
        });
        until("the last message", || scene.counted("warmfront_kv_blocks", 1) as usize == blocks.names.len());
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
        // Not even ZMTP: the connection is closed.
        while_served(&scene, || {
            publisher.send_raw(&[0xff; 5_000]);
            scene.until_subscribed(1, 2);
        });
        assert_eq!(scene.front.endpoint(0)["cache"]["rung"], "exact", "{driver}");
    });
}

#[test]
fn more_than_an_engine_can_hold_is_bounded() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let publisher = &scene.engines[1].publisher;
        while_served(&scene, || {
            // Ten times its blocks, as prompts of 46.
            for seed in 0..10 * BLOCKS as u64 / 46 {
                publisher.publish(&[Blocks::of(&chat_prompt(&text(2_000 + seed, BYTES))).stored(Dialect::Arrays)]);
            }
            scene.until_read(1);
        });
        assert!(scene.counted("warmfront_kv_blocks", 1) <= BLOCKS as f64 * 1.1, "{driver}");
        assert!(scene.front.metric("warmfront_kv_events_blocks_total") > 9.0 * BLOCKS as f64, "{driver}");
        // The engine is known again once it begins anew.
        scene.tells(1, &[cleared(Dialect::Maps)]);
        scene.until_rung(1, "exact");
        let content = text(92, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// Large blocks have more memory each, and are no more for that.
#[test]
fn more_large_blocks_than_an_engine_can_hold_are_bounded() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(true)];
        engines[1].has_blocks_of(64);
        engines[1].has_blocks(100);
        let scene = Scene::of(driver, engines, &config(""));
        scene.until_exact();
        let large = |seed: u64| Blocks::sized(&chat_prompt(&text(seed, BYTES)), None, 64).stored(Dialect::Maps);
        // 12 blocks each, and two more may be told of than nine have.
        (4_000..4_009).for_each(|seed| scene.tells(1, &[large(seed)]));
        assert_eq!(scene.counted("warmfront_kv_blocks", 1), 108.0, "{driver}");
        assert_eq!(scene.front.endpoint(1)["cache"]["rung"], "exact", "{driver}");
        scene.engines[1].publisher.publish(&[large(4_009)]);
        scene.until_rung(1, "approximate");
        until("that it is forgotten", || scene.counted("warmfront_kv_blocks", 1) == 0.0);
    });
}

/// Which blocks are still there is not known: all are forgotten, and it is known again when nearly all of its blocks
/// are.
#[test]
fn who_told_of_more_than_it_can_hold_is_known_again() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let prompt = |seed: u64| {
            let content = text(seed, BYTES);
            let blocks = Blocks::of(&chat_prompt(&content));
            (content, blocks)
        };
        let publish = |seeds: std::ops::Range<u64>| {
            let publisher = &scene.engines[1].publisher;
            seeds.for_each(|seed| publisher.publish(&[prompt(seed).1.stored(Dialect::Maps)]));
        };
        // 47 blocks each, and the last one's last is one more than it can hold: none is left to be read after that.
        publish(3_000..3_012);
        scene.until_rung(1, "approximate");
        until("that it is forgotten", || scene.counted("warmfront_kv_blocks", 1) < 100.0);
        publish(3_100..3_111);
        scene.until_rung(1, "exact");
        for seed in 3_100..3_111 {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(scene.chat(&prompt(3_000).0).held, 0, "{driver}: what was told before");
    });
}
