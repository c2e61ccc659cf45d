//! Messages that were not heard: engines that begin anew, messages that are lost, fronts that come late.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engine::{BLOCK_SIZE, BLOCKS, Engine};
use crate::front::Front;
use crate::msgpack::packed;
use crate::publisher::Publisher;
use crate::scene::{Scene, config};
use crate::tokens::{Blocks, Dialect, chat_prompt, cleared, text};
use crate::{on_both, reserved, until};

const BYTES: usize = 3_000;
/// An engine whose metrics are a second or two late, on a busy machine, is not to be taken for another.
const PATIENT: &str = "[control]\nscrape_timeout_ms = 10000\n";

/// A user's message and its blocks.
fn prompt(seed: u64) -> (String, Blocks) {
    let content = text(seed, BYTES);
    let blocks = Blocks::of(&chat_prompt(&content));
    (content, blocks)
}

/// Two engines, of which the second has told its first prompts, by one message each.
fn told(driver: &'static str, replays: bool, seeds: std::ops::Range<u64>) -> Scene {
    told_by([Engine::start(true), Engine::start(replays)], driver, seeds)
}

fn told_by(engines: [Engine; 2], driver: &'static str, seeds: std::ops::Range<u64>) -> Scene {
    let scene = Scene::of(driver, engines, &config(PATIENT));
    scene.until_subscribed(1, 1);
    seeds.for_each(|seed| scene.engines[1].publisher.publish(&[prompt(seed).1.stored(Dialect::Maps)]));
    (0..2).for_each(|place| scene.until_rung(place, "exact"));
    scene.until_read(1);
    scene
}

#[test]
fn nothing_is_held_by_an_engine_that_is_gone_or_another_process() {
    for replays in [true, false] {
        on_both(|driver| {
            let scene = told(driver, replays, 21..24);
            let engine = &scene.engines[1];
            assert_eq!((scene.chat(&prompt(21).0).place, scene.why(1)), (1, "events".into()), "{driver}");
            engine.publisher.goes();
            scene.until_rung(1, "approximate");
            assert_eq!((scene.chat(&prompt(22).0).held, scene.why(1)), (0, "no_events".into()), "{driver}");
            scene.front.until_said(&format!("engine=\"{}\" rung=\"approximate\" why=\"no_events\"", engine.name()));
            engine.publisher.begins_anew();
            scene.until_subscribed(1, 2);
            if !replays {
                // It is not known yet whether it is the same process.
                scene.until_rung(1, "approximate");
                assert_eq!(scene.chat(&prompt(23).0).held, 0, "{driver}");
            }
            let (content, blocks) = prompt(24);
            engine.publisher.publish(&[blocks.stored(Dialect::Maps)]);
            scene.until_rung(1, "exact");
            scene.until_counted("warmfront_kv_events_batches_total", 1, 4.0);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
            assert_eq!(scene.chat(&prompt(21).0).held, 0, "{driver}: what its predecessor held");
            assert_eq!(scene.counted("warmfront_kv_events_restarts_total", 1), 1.0, "{driver}");
            assert_eq!(scene.counted("warmfront_kv_events_restarts_total", 0), 0.0, "{driver}");
        });
    }
}

/// The connection was lost, and the engine is the same: nothing that it told is lost.
#[test]
fn what_was_told_outlasts_a_lost_connection() {
    for replays in [true, false] {
        on_both(|driver| {
            let scene = told(driver, replays, 25..27);
            let publisher = &scene.engines[1].publisher;
            publisher.goes();
            scene.until_rung(1, "approximate");
            publisher.returns();
            scene.until_subscribed(1, 2);
            if !replays {
                scene.until_rung(1, "approximate");
                assert_eq!(scene.chat(&text(99, BYTES)).held, 0);
                publisher.publish(&[prompt(27).1.stored(Dialect::Maps)]);
            }
            scene.until_rung(1, "exact");
            for seed in 25..27 {
                let (content, blocks) = prompt(seed);
                let chosen = scene.chat(&content);
                assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
            }
            assert_eq!(scene.counted("warmfront_kv_events_restarts_total", 1), 0.0, "{driver}");
        });
    }
}

/// It did not answer probes for a while. Its metrics say whether it is the same process; if they do not, it is asked.
#[test]
fn what_was_told_outlasts_probes_that_fail() {
    for says in [true, false] {
        on_both(|driver| {
            let engines = [Engine::start(true), Engine::start(true)];
            if !says {
                engines[1].began(0);
            }
            let scene = told_by(engines, driver, 37..40);
            scene.engines[1].is_ill(true);
            scene.front.until_health(1, "down");
            scene.engines[1].is_ill(false);
            scene.front.until_health(1, "up");
            if says {
                // Each second its metrics are read, and control looks at them.
                std::thread::sleep(Duration::from_millis(2_500));
            } else {
                // It is asked anew, and knows its last message.
                scene.until_subscribed(1, 2);
            }
            scene.until_rung(1, "exact");
            let asked: &[u64] = if says { &[0] } else { &[0, 2] };
            assert_eq!(scene.engines[1].publisher.asked(), asked, "{driver}");
            assert_eq!(scene.engines[1].publisher.connections(), asked.len(), "{driver}");
            let batches = scene.counted("warmfront_kv_events_batches_total", 1);
            assert_eq!(batches, 3.0, "{driver}: a counter does not go back");
            for seed in 37..40 {
                let (content, blocks) = prompt(seed);
                let chosen = scene.chat(&content);
                assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
            }
        });
    }
}

/// vLLM tells that its cache is gone only with its first step after it wakes, and until then has the same last message.
#[test]
fn who_has_slept_holds_nothing_before_it_tells_so() {
    on_both(|driver| {
        let scene = told(driver, true, 61..63);
        let engine = &scene.engines[1];
        engine.sleeps(true);
        scene.front.until_health(1, "asleep");
        // It is asked whether it is the same process, and is.
        scene.until_subscribed(1, 2);
        std::thread::sleep(Duration::from_millis(2_500));
        engine.sleeps(false);
        scene.front.until_health(1, "up");
        scene.until_rung(1, "exact");
        assert_eq!(scene.chat(&prompt(61).0).held, 0, "{driver}");
        let (content, blocks) = prompt(63);
        scene.tells(1, &[cleared(Dialect::Maps), blocks.stored(Dialect::Maps)]);
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
        assert_eq!(scene.chat(&prompt(62).0).held, 0, "{driver}");
        scene.until_rung(1, "exact");
        for name in ["restarts", "incomplete"] {
            assert_eq!(scene.counted(&format!("warmfront_kv_events_{name}_total"), 1), 0.0, "{driver}: {name}");
        }
    });
}

/// Its metrics are too old to be believed, but its events are not.
#[test]
fn what_was_told_outlasts_metrics_that_hang() {
    on_both(|driver| {
        let control = "[control]\nscrape_interval_ms = 200\nscrape_timeout_ms = 3000\nstale_after_ms = 500\n";
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(false)], &config(control));
        scene.until_subscribed(1, 1);
        scene.tells(1, &[prompt(46).1.stored(Dialect::Maps)]);
        scene.until_rung(1, "exact");
        scene.engines[1].hangs(true);
        let errors = || scene.front.endpoint(1)["errors"].as_array().is_some_and(|errors| !errors.is_empty());
        until("an error of its metrics", errors);
        assert_eq!(scene.front.endpoint(1)["cache"]["rung"], "exact", "{driver}");
        scene.engines[1].hangs(false);
        let (content, blocks) = prompt(46);
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
        assert_eq!(scene.engines[1].publisher.connections(), 1, "{driver}");
    });
}

/// The address where it publishes may be misspelt, or another's port: the only sign would be that it is never exact.
#[test]
fn events_that_never_come_are_said_once() {
    let engines = [Engine::start(false), Engine::start(false)];
    let (refusing, _kept) = reserved::address();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = [format!("tcp://{refusing}"), format!("@tcp://{}", taken.local_addr().unwrap())];
    let upstreams: Vec<String> = engines
        .iter()
        .zip(&at)
        .map(|(engine, at)| format!("[[upstream]]\nurl = \"http://{}\"\nkv_events = \"{at}\"\n", engine.address))
        .collect();
    let front = Front::start("auto", &[], &config(&upstreams.concat()));
    for (at, why) in at.iter().zip(["refused", "in use"]) {
        until(at, || {
            front.log().lines().any(|line| line.contains(at) && line.contains("not heard") && line.contains(why))
        });
    }
    // The first address is tried several times a second in the beginning, the other each five seconds.
    assert_eq!(front.log().matches("KV events are not heard").count(), 2, "{}", front.log());
}

/// Whichever engine connects there would be taken for the other.
#[test]
fn two_engines_that_would_come_to_one_port_are_not_waited_for() {
    on_both(|driver| {
        let mut engines = [Engine::start(false), Engine::start(false)];
        let (door, _kept) = reserved::address_on([127, 0, 3, 3].into());
        engines.iter().for_each(|engine| engine.connects_to(&[door]));
        let front = Front::start(driver, &engines.each_ref().map(|engine| engine.address), &config(""));
        let names = engines.each_ref().map(Engine::name);
        for name in &names {
            let said = |line: &str| {
                names.iter().all(|name| line.contains(name)) && line.contains("give each engine a port of its own")
            };
            let of = |line: &str| line.contains(&format!("engine=\"{name}\""));
            until(&format!("{driver}: words on {name}"), || front.log().lines().any(|line| of(line) && said(line)));
        }
        let is_shut = || TcpStream::connect(door).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        until(&format!("{driver}: a shut door"), is_shut);
        // The other listens now, as it was told to.
        engines[1].moves(false);
        until(&format!("{driver}: the other"), || engines[1].publisher.connections() > 0);
        until(&format!("{driver}: a door"), || TcpStream::connect(door).is_ok());
        assert_eq!(front.log().matches("give each engine a port of its own").count(), 2, "{driver}: said once of each");
    });
}

/// Otherwise an engine that has its flags now would not be heard.
#[test]
fn a_port_is_kept_for_no_engine_that_is_gone() {
    on_both(|driver| {
        let engines = [Engine::start_on("127.0.3.7", false), Engine::start(false)];
        let (door, _kept) = reserved::address_on([127, 0, 3, 4].into());
        engines.iter().for_each(|engine| engine.connects_to(&[door]));
        let front = Front::start(driver, &engines.each_ref().map(|engine| engine.address), &config(""));
        let is_open = || TcpStream::connect(door).is_ok();
        let stays_shut = || {
            (0..20).all(|_| {
                std::thread::sleep(Duration::from_millis(100));
                !is_open()
            })
        };
        until(&format!("{driver}: no door while both are there"), stays_shut);
        engines[0].is_gone(true);
        let stays = || {
            (0..30).all(|_| {
                std::thread::sleep(Duration::from_millis(100));
                is_open()
            })
        };
        until(&format!("{driver}: a door"), stays);
        engines[0].is_gone(false);
        until(&format!("{driver}: a shut door"), || !is_open());
        // Another process, which publishes nothing.
        engines[0].publishes_nothing();
        until(&format!("{driver}: words"), || {
            let of = |line: &str| line.contains(&format!("engine=\"{}\"", engines[0].name()));
            front.log().lines().any(|line| of(line) && line.contains("it publishes no KV events"))
        });
        until(&format!("{driver}: a door again"), is_open);
    });
}

/// An engine behind a Service: it is asked at another address than it connects from.
#[test]
fn all_ranks_that_come_from_elsewhere_are_heard_where_an_operator_says_so() {
    on_both(|driver| {
        let engines = [Engine::start_on("127.0.3.5", false), Engine::start(false)];
        let kept = [(); 2].map(|()| reserved::address_on([127, 0, 3, 6].into()));
        let doors = kept.each_ref().map(|(door, _)| *door);
        engines[0].connects_to(&doors);
        let config = |events: &str| {
            let upstream = |place: usize, events: &str| {
                format!("[[upstream]]\nurl = \"http://{}\"\nkv_events = \"{events}\"\n", engines[place].address)
            };
            config(&(upstream(0, events) + &upstream(1, "off")))
        };
        let (asked, told) = (config("auto"), config("told"));
        let front = Front::start(driver, &[], &asked);
        let ranks = [Publisher::start(false), Publisher::start(false)];
        ranks.iter().zip(doors).for_each(|(rank, door)| rank.connects(door));
        front.until_said("127.0.0.1 is no address of this engine");
        assert_eq!(ranks.each_ref().map(Publisher::connections), [0, 0], "{driver}");
        front.write(&told);
        assert_eq!(front.reload().0, 200, "{driver}");
        let scene = Scene { engines, front, driver };
        until(&format!("{driver}: both ranks"), || ranks.iter().all(|rank| rank.connections() > 0));
        let prompts = [90, 91].map(prompt);
        ranks[0].publish(&[prompts[0].1.stored(Dialect::Maps)]);
        scene.until_counted("warmfront_kv_events_batches_total", 0, 1.0);
        scene.until_rung(0, "approximate");
        ranks[1].publish_bytes(|time| packed(&json!([time, [prompts[1].1.stored(Dialect::Maps)], 1])));
        scene.until_rung(0, "exact");
        for (content, blocks) in &prompts {
            let chosen = scene.chat(content);
            assert_eq!((chosen.place, chosen.held), (0, blocks.held()), "{driver}");
        }
    });
}

#[test]
fn nobody_is_waited_for_who_publishes_no_more() {
    on_both(|driver| {
        let engines = [Engine::start(false), Engine::start(false)];
        let (door, _kept) = reserved::address_on([127, 0, 3, 4].into());
        engines[0].connects_to(&[door]);
        let front = Front::start(driver, &engines.each_ref().map(|engine| engine.address), &config(""));
        until(&format!("{driver}: a door"), || TcpStream::connect(door).is_ok());
        engines[0].publishes_nothing();
        until(&format!("{driver}: a shut door"), || TcpStream::connect(door).is_err());
        front.until_said("it publishes no KV events");
    });
}

/// Another process has published more than its predecessor before it is heard, and cannot be asked: its numbers prove
/// nothing.
#[test]
fn another_process_that_has_told_more_is_not_taken_for_the_one_before() {
    on_both(|driver| {
        let scene = told(driver, false, 28..30);
        let engine = &scene.engines[1];
        engine.publisher.goes();
        scene.until_rung(1, "approximate");
        engine.publisher.begins_anew();
        (0..3).for_each(|seed| engine.publisher.lose(&[prompt(80 + seed).1.stored(Dialect::Maps)]));
        scene.until_subscribed(1, 2);
        scene.until_rung(1, "approximate");
        let (content, blocks) = prompt(83);
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        assert_eq!(scene.chat(&prompt(28).0).held, 0, "{driver}: what its predecessor held");
        assert_eq!(scene.chat(&content).held, blocks.held(), "{driver}");
    });
}

#[test]
fn what_nobody_can_be_asked_for_is_missed() {
    on_both(|driver| {
        let scene = told(driver, false, 31..32);
        let publisher = &scene.engines[1].publisher;
        publisher.lose(&[prompt(32).1.stored(Dialect::Maps)]);
        scene.tells(1, &[prompt(33).1.stored(Dialect::Maps)]);
        scene.until_rung(1, "approximate");
        assert_eq!(scene.why(1), "no_events", "{driver}");
        for (seed, knows) in [(31, true), (32, false), (33, true)] {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!(chosen.held, if knows { blocks.held() } else { 0 }, "{driver}: {seed}");
            assert!(!knows || chosen.place == 1, "{driver}: {seed}");
        }
        assert_eq!(scene.counted("warmfront_kv_events_holes_total", 1), 1.0, "{driver}");
        assert_eq!(scene.counted("warmfront_kv_events_incomplete_total", 1), 1.0, "{driver}");
        // Of what was missed nothing is there any more.
        let (content, blocks) = prompt(60);
        scene.tells(1, &[cleared(Dialect::Maps), blocks.stored(Dialect::Maps)]);
        scene.until_rung(1, "exact");
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
        assert_eq!(scene.chat(&prompt(33).0).held, 0, "{driver}");
    });
}

/// As with `--decode-context-parallel-size 2`: a block has the tokens of two of the size that it says, and there are no
/// more than it says.
#[test]
fn ranks_that_share_a_context_are_known_again_by_all_their_blocks() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(false)];
        engines[1].has_blocks_of(BLOCK_SIZE / 2);
        engines[1].has_room_for(BLOCKS * BLOCK_SIZE);
        let scene = told_by(engines, driver, 64..65);
        scene.engines[1].publisher.lose(&[]);
        scene.tells(1, &[prompt(65).1.stored(Dialect::Maps)]);
        scene.until_rung(1, "approximate");
        (66..76).for_each(|seed| scene.tells(1, &[prompt(seed).1.stored(Dialect::Maps)]));
        scene.until_rung(1, "exact");
    });
}

#[test]
fn what_can_be_asked_for_is_not_missed() {
    on_both(|driver| {
        let scene = told(driver, true, 34..35);
        let publisher = &scene.engines[1].publisher;
        (35..37).for_each(|seed| publisher.lose(&[prompt(seed).1.stored(Dialect::Arrays)]));
        publisher.publish(&[prompt(37).1.stored(Dialect::Maps)]);
        scene.until_read(1);
        scene.until_rung(1, "exact");
        for seed in 34..38 {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(publisher.asked(), [0, 1], "{driver}");
        assert_eq!(scene.counted("warmfront_kv_events_holes_total", 1), 1.0, "{driver}");
        assert_eq!(scene.counted("warmfront_kv_events_incomplete_total", 1), 0.0, "{driver}");
        assert!(scene.counted("warmfront_kv_events_replayed_total", 1) >= 2.0, "{driver}");
        assert!(!scene.front.has_said("why=\"no_events\""), "{driver}");
    });
}

#[test]
fn a_front_that_comes_late_asks_for_what_was_said() {
    on_both(|driver| {
        let engines = [Engine::start(true), Engine::start(true)];
        (41..46).for_each(|seed| engines[1].publisher.publish(&[prompt(seed).1.stored(Dialect::Maps)]));
        let begun = Instant::now();
        let scene = Scene::of(driver, engines, &config(""));
        (0..2).for_each(|place| scene.until_rung(place, "exact"));
        let took = begun.elapsed();
        eprintln!("{driver}: exact after {took:?}");
        assert!(took < Duration::from_secs(15), "{driver}: {took:?}");
        for seed in 41..46 {
            let (content, blocks) = prompt(seed);
            let chosen = scene.chat(&content);
            assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}: {seed}");
        }
        assert_eq!(scene.engines[1].publisher.asked(), [0], "{driver}");
        until("the counters", || scene.counted("warmfront_kv_events_replayed_total", 1) == 5.0);
    });
}

/// A cache that was emptied before the engine was heard is no reason to doubt what it tells then.
#[test]
fn an_engine_that_was_down_before_it_told_anything_is_not_asked_again_and_again() {
    on_both(|driver| {
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(false)], &config(""));
        scene.until_subscribed(1, 1);
        scene.engines[1].is_ill(true);
        scene.front.until_health(1, "down");
        scene.engines[1].is_ill(false);
        scene.front.until_health(1, "up");
        let (content, blocks) = prompt(51);
        scene.engines[1].publisher.lose(&[prompt(50).1.stored(Dialect::Maps)]);
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        scene.until_counted("warmfront_kv_events_incomplete_total", 1, 1.0);
        // Control looks each second for reasons to doubt it.
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        assert_eq!(scene.engines[1].publisher.connections(), 1, "{driver}");
        let chosen = scene.chat(&content);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}
