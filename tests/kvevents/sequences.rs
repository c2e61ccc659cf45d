//! Holes, replays and restarts, over sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use warmfront::kvevents::{Counts, Pace, Reached, Settings, Source, Told};

use crate::engine::{
    Consumer, Layout, Log, PACE, Subscriber, at, listener, message, nobody, payload, publisher_bytes, replays,
    request_on, serve_replays, within,
};
use crate::msgpack::packed;
use crate::recordings::{expected, file, messages, payloads, shown};

#[tokio::test]
async fn messages_come_in_order() {
    let engine = listener().await;
    let mut consumer = Consumer::of(at(&engine), None);
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    for number in 0..4 {
        publisher.publish(1, number).await;
    }
    consumer.expect(&["1000", "1001", "1002", "1003"]).await;
    assert!(consumer.source.is_complete(0) && !consumer.source.is_complete(1));
}

#[tokio::test]
async fn a_hole_is_replayed_in_both_layouts() {
    for layout in [Layout::WithTopic, Layout::WithoutTopic] {
        let engine = listener().await;
        let (replay, log) = replays(layout, 1, 0..0).await;
        let mut consumer = Consumer::of(at(&engine), Some(replay));
        let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
        publisher.publish(1, 0).await;
        consumer.expect(&["1000"]).await;
        log.lock().unwrap().kept = (0..6).map(|number| (number, payload(1, number, 0))).collect();
        publisher.publish(1, 5).await;
        publisher.publish(1, 6).await;
        consumer.expect(&["1001", "1002", "1003", "1004", "1005", "1006"]).await;
        assert_eq!(log.lock().unwrap().asked, [0, 1], "once at the beginning, once for the hole");
        let Counts { holes, replays, replayed, batches, incomplete, .. } = consumer.source.counts();
        assert_eq!((holes, replays, replayed, batches, incomplete), (1, 2, 4, 7, 0));
        assert!(consumer.source.is_complete(0));
    }
}

/// The recorded connections, and nothing else: messages up to a hole, the answer that libzmq's ROUTER gave for it.
#[tokio::test]
async fn the_recorded_replay_fills_a_hole() {
    for recording in crate::recordings::RECORDINGS {
        let (events, router) = (listener().await, listener().await);
        let settings =
            Settings { events: at(&events), replay: Some(at(&router)), topic: "kv@127.0.0.1".into(), peers: None };
        let mut source = Source::new(settings, PACE);
        let payloads = payloads(recording);
        let last = payloads.len() as u64 - 1;
        let engine = async {
            let (mut stream, _) = events.accept().await.unwrap();
            stream.write_all(&publisher_bytes()).await.unwrap();
            let topic = b"kv@127.0.0.1:9100@tiny-llama";
            for number in [0, 1, 2, last] {
                let frames: [&[u8]; 3] = [topic, &number.to_be_bytes(), &payloads[number as usize]];
                stream.write_all(&message(&frames)).await.unwrap();
            }
            let (mut nothing, from) = request_on(router.accept().await.unwrap().0).await;
            assert_eq!(from, 0);
            nothing.write_all(&message(&[b"", b"", &[0xff; 8], b""])).await.unwrap();
            let (mut stream_replayed, from) = request_on(router.accept().await.unwrap().0).await;
            assert_eq!(from, 3);
            stream_replayed.write_all(&file(recording, "wire-replay.s2c")[107..]).await.unwrap();
            (stream, stream_replayed)
        };
        let consumer = async {
            let mut read = Vec::new();
            while read.len() < payloads.len() {
                match source.told().await {
                    Told::Batch(batch) => read.push(shown(batch)),
                    Told::Connected | Told::Abreast => {}
                    other => panic!("{other:?}"),
                }
            }
            read
        };
        let (_sockets, read) = within(async { tokio::join!(engine, consumer) }).await;
        assert_eq!(read, messages(recording).iter().map(expected).collect::<Vec<_>>());
    }
}

/// Who comes late knows when there is nothing more to come, and does not where nobody answers.
#[tokio::test]
async fn it_is_told_when_nothing_is_missing() {
    let engine = listener().await;
    let (replay, _) = replays(Layout::WithTopic, 1, 0..2).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, _publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    let news = [consumer.told_all().await, consumer.told_all().await, consumer.told_all().await];
    assert_eq!(news, ["1000", "1001", "abreast"]);
    consumer.expect_nothing().await;
    let (engine, deaf) = (listener().await, listener().await);
    let pace = Pace { answer: Duration::from_millis(500), ..PACE };
    let mut consumer = Consumer::paced(at(&engine), Some(at(&deaf)), pace);
    let (_, _publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    let told = tokio::time::timeout(Duration::from_secs(8), consumer.source.told()).await;
    assert!(told.is_err(), "{told:?}");
    assert_eq!(consumer.source.counts().replays_failed, 1);
}

/// Who comes late is brought up to date before anything new is published; what both bring counts once.
#[tokio::test]
async fn a_late_subscriber_catches_up() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..4).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    // These waited in the subscription while the replay was asked for.
    for number in 2..5 {
        publisher.publish(1, number).await;
    }
    consumer.expect(&["1000", "1001", "1002", "1003", "1004"]).await;
    consumer.expect_nothing().await;
    let counts = consumer.source.counts();
    assert_eq!((counts.messages, counts.batches, counts.restarts, counts.holes), (3, 5, 0, 0));
    assert_eq!(log.lock().unwrap().asked, [0]);
}

#[tokio::test]
async fn a_hole_that_is_too_old_leaves_the_engine_incomplete() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 3..5).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["incomplete 0 Gone", "1003", "1004"]).await;
    publisher.publish(1, 5).await;
    consumer.expect(&["1005"]).await;
    assert!(!consumer.source.is_complete(0));
    // The replay has nothing of this one: its end says so.
    log.lock().unwrap().kept.clear();
    publisher.publish(1, 9).await;
    consumer.expect(&["incomplete 0 Gone", "1009"]).await;
    assert_eq!(consumer.source.counts().incomplete, 2);
}

/// Of what was missed before its cache was emptied nothing is there, whichever way it tells that.
#[tokio::test]
async fn an_emptied_cache_makes_the_engine_complete() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 3..4).await;
    let cleared = |number: u64| packed(&json!([1_000 + number, [["AllBlocksCleared"]], 0]));
    log.lock().unwrap().kept.push((4, cleared(4)));
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["incomplete 0 Gone", "1003"]).await;
    assert!(!consumer.source.is_complete(0));
    consumer.expect(&[""]).await;
    assert!(consumer.source.is_complete(0), "as it was replayed");
    log.lock().unwrap().kept.clear();
    publisher.publish(1, 9).await;
    consumer.expect(&["incomplete 0 Gone", "1009"]).await;
    assert!(!consumer.source.is_complete(0));
    publisher.send(&[b"kv", &10u64.to_be_bytes(), &cleared(10)]).await;
    consumer.expect(&[""]).await;
    assert!(consumer.source.is_complete(0), "as it was published");
}

/// A ROUTER sends what fits into its queue, and nothing says that the rest is lost.
#[tokio::test]
async fn answers_that_are_lost_are_asked_for_again() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..8).await;
    log.lock().unwrap().fitting = 3;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["1000", "1001", "1002", "1003", "1004", "1005", "1006", "1007"]).await;
    assert_eq!(log.lock().unwrap().asked, [0, 3, 6]);
    // And where the last one is lost as well, the end mark comes before the hole is closed.
    {
        let mut log = log.lock().unwrap();
        log.kept = (0..9).map(|number| (number, payload(1, number, 0))).collect();
        log.later = vec![(9, payload(1, 9, 0))];
    }
    publisher.publish(1, 10).await;
    consumer.expect(&["1008", "1009", "1010"]).await;
    assert_eq!(log.lock().unwrap().asked, [0, 3, 6, 8, 9]);
    assert_eq!((consumer.source.counts().incomplete, consumer.source.counts().replays), (0, 2));
}

/// vLLM keeps 10,000 messages, and 1,000 of them fit: each connection that brings some is followed by another.
#[tokio::test]
async fn answers_are_asked_for_as_often_as_some_come() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..12).await;
    log.lock().unwrap().fitting = 2;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, _publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    for number in 1_000..1_012 {
        consumer.expect(&[&number.to_string()]).await;
    }
    assert_eq!(log.lock().unwrap().asked, [0, 2, 4, 6, 8, 10]);
    assert_eq!((consumer.source.counts().incomplete, consumer.source.counts().replays_failed), (0, 0));
}

#[tokio::test]
async fn without_a_replay_socket_holes_stay() {
    let engine = listener().await;
    let mut consumer = Consumer::of(at(&engine), None);
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    publisher.publish(1, 7).await;
    publisher.publish(1, 8).await;
    publisher.publish(1, 10).await;
    consumer.expect(&["incomplete 0 NotOffered", "1007", "1008", "incomplete 0 NotOffered", "1010"]).await;
    assert_eq!(consumer.source.counts().holes, 2);
}

#[tokio::test]
async fn a_replay_socket_that_does_not_answer_is_given_up() {
    let (engine, silent) = (listener().await, listener().await);
    for replay in [nobody(), at(&silent)] {
        let pace = Pace { answer: Duration::from_millis(60), ..PACE };
        let mut consumer = Consumer::paced(at(&engine), Some(replay), pace);
        let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
        publisher.publish(1, 0).await;
        publisher.publish(1, 2).await;
        consumer.expect(&["1000", "incomplete 0 Unanswered", "1002"]).await;
        assert_eq!(consumer.source.counts().replays_failed, 2);
    }
}

#[tokio::test]
async fn a_number_that_goes_back_is_a_restart() {
    let engine = listener().await;
    let mut consumer = Consumer::of(at(&engine), None);
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    for number in 0..3 {
        publisher.publish(1, number).await;
    }
    // Through a proxy, the connection may stay.
    publisher.publish(2, 0).await;
    publisher.publish(2, 1).await;
    publisher.publish(3, 1).await;
    consumer.expect(&["1000", "1001", "1002", "restarted 0", "2000", "2001"]).await;
    consumer.expect(&["restarted 0", "incomplete 0 NotOffered", "3001"]).await;
}

#[tokio::test]
async fn an_engine_that_comes_back_is_known_by_its_last_message() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..3).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["1000", "1001", "1002"]).await;
    // The connection breaks, the engine goes on.
    drop(publisher);
    log.lock().unwrap().kept.push((3, payload(1, 3, 0)));
    let all = ["offline Closed", "connected", "1003"];
    let (_, publisher) = tokio::join!(consumer.expect(&all), Subscriber::entered(&engine));
    assert_eq!(log.lock().unwrap().asked, [0, 2], "the last one known, again");
    // It begins anew, and has published less than is known: found before it publishes again.
    drop(publisher);
    log.lock().unwrap().kept = vec![(0, payload(2, 0, 0))];
    let all = ["offline Closed", "connected", "restarted 0", "2000"];
    let (_, publisher) = tokio::join!(consumer.expect(&all), Subscriber::entered(&engine));
    // It begins anew, and has published more: its message of our number is another one.
    drop(publisher);
    log.lock().unwrap().kept = (0..3).map(|number| (number, payload(3, number, 0))).collect();
    let all = ["offline Closed", "connected", "restarted 0", "3000", "3001", "3002"];
    let (_, mut publisher) = tokio::join!(consumer.expect(&all), Subscriber::entered(&engine));
    publisher.publish(3, 3).await;
    consumer.expect(&["3003"]).await;
    assert!(consumer.source.is_complete(0));
    assert_eq!((consumer.source.counts().restarts, consumer.source.counts().incomplete), (2, 0));
}

#[tokio::test]
async fn ranks_have_numbers_of_their_own() {
    let engine = listener().await;
    let mut consumer = Consumer::of(at(&engine), None);
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    publisher.publish_of(1, 0, 0).await;
    publisher.publish_of(1, 0, 3).await;
    publisher.publish_of(1, 1, 0).await;
    publisher.publish_of(1, 2, 3).await;
    consumer.expect(&["1000", "1000 of 3", "1001", "incomplete 3 NotOffered", "1002 of 3"]).await;
    assert!(consumer.source.is_complete(0) && !consumer.source.is_complete(3));
    for rank in 100..200 {
        publisher.publish_of(1, 0, rank).await;
    }
    publisher.publish_of(1, 2, 0).await;
    for rank in 100..162 {
        consumer.expect(&[&format!("1000 of {rank}")]).await;
    }
    consumer.expect(&["1002"]).await;
    assert_eq!(consumer.source.counts().refused, 38);
}

/// Answers that make no sense end nothing; what they should have brought is missing.
#[tokio::test]
async fn nonsense_among_the_answers_of_a_replay() {
    let engine = listener().await;
    let log = Arc::new(Mutex::new(Log::default()));
    let replay = serve_replays(Layout::WithTopic, Arc::clone(&log)).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    // Another rank's, one that was cut, one twice, one with a number below zero.
    let cut = payload(1, 2, 0)[..9].to_vec();
    log.lock().unwrap().kept = vec![
        (1, payload(1, 1, 5)),
        (1, payload(1, 1, 0)),
        (1, payload(1, 1, 0)),
        (2, cut),
        (1 << 63, payload(1, 3, 0)),
        (3, payload(1, 3, 0)),
    ];
    publisher.publish(1, 4).await;
    consumer.expect(&["1001", "incomplete 0 Gone", "1003", "1004"]).await;
    let counts = consumer.source.counts();
    // Twice each: it might have been lost on the way.
    assert_eq!((counts.malformed, counts.refused, counts.restarts), (2, 2, 0));
}

#[tokio::test]
async fn a_payload_that_makes_no_sense_is_a_hole() {
    let engine = listener().await;
    let (replay, _log) = replays(Layout::WithoutTopic, 1, 0..3).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["1000", "1001", "1002"]).await;
    publisher.send(&[b"kv", &3_u64.to_be_bytes(), &[0x92, 0x01]]).await;
    consumer.expect(&["malformed byte 0: more is announced than is there"]).await;
    publisher.publish(1, 4).await;
    consumer.expect(&["incomplete 0 Gone", "1004"]).await;
    assert_eq!(consumer.source.counts().malformed, 1);
}

/// In what is replayed as in what is heard.
#[tokio::test]
async fn what_is_not_known_of_a_payload_is_counted() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..0).await;
    let newer = |number: u64| {
        packed(&json!([number as f64, [["BlockMoved", 1], ["BlockRemoved", [number], null, null, "why", 2]]]))
    };
    log.lock().unwrap().kept = vec![(0, newer(1_000))];
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["1000"]).await;
    for number in 1..3_u64 {
        publisher.send(&[b"kv", &number.to_be_bytes(), &newer(1_000 + number)]).await;
    }
    consumer.expect(&["1001", "1002"]).await;
    let counts = consumer.source.counts();
    assert_eq!((counts.replayed, counts.unknown_events, counts.unknown_fields), (1, 3, 6));
}

/// Without one that can be read no hole is seen: what could not be read is told of until another process is there.
#[tokio::test]
async fn an_engine_of_which_nothing_can_be_read_has_not_said_nothing() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 1, 0..0).await;
    log.lock().unwrap().kept = (0..3).map(|number| (number, vec![0x92, 0x01])).collect();
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    assert_eq!(consumer.told_all().await, "abreast");
    let unread = |consumer: &Consumer| (consumer.source.counts().malformed, consumer.source.counts().unread.is_some());
    assert_eq!(unread(&consumer), (3, true));
    drop(publisher);
    log.lock().unwrap().kept.clear();
    let (_, mut publisher) =
        tokio::join!(consumer.expect(&["offline Closed", "connected"]), Subscriber::entered(&engine));
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    assert_eq!(unread(&consumer), (3, false));
}

/// Another process that answers with all it has, which is less than its predecessor had, says nothing of what was known.
#[tokio::test]
async fn answers_that_were_not_asked_for_do_not_vouch_for_a_process() {
    let engine = listener().await;
    let (replay, log) = replays(Layout::WithTopic, 2, 0..3).await;
    log.lock().unwrap().answers_all = true;
    let settings = Settings { events: at(&engine), replay: Some(replay), topic: String::new(), peers: None };
    let known = Reached { rank: 0, next: 6, time: 1_005.0, is_whole: true };
    let mut consumer = Consumer { source: Source::new(settings, PACE).resumed(&[known]) };
    let (_, _publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    consumer.expect(&["restarted 0", "2000", "2001", "2002"]).await;
    assert_eq!(log.lock().unwrap().asked, [5, 0]);
}
