//! Peers that send what should not be sent: the connection ends, is counted, and is tried again.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warmfront::kvevents::{Broken, Pace, Progress, Role, Wire};

use crate::engine::{Consumer, PACE, Subscriber, at, listener, message, payload, publisher_bytes, within};
use crate::recordings::file;

/// Feeds bytes as they may come; answers how many messages there were, and how it ended.
fn fed(bytes: &[u8], step: usize) -> (usize, Result<(), Broken>) {
    let (mut wire, mut messages) = (Wire::new(Role::Subscriber(Vec::new())), 0);
    for chunk in bytes.chunks(step) {
        wire.room()[..chunk.len()].copy_from_slice(chunk);
        wire.received(chunk.len());
        loop {
            match wire.advance() {
                Ok(Progress::More) => break,
                Ok(Progress::Open) => {}
                Ok(Progress::Message) => messages += 1,
                Err(broken) => return (messages, Err(broken)),
            }
        }
        wire.sent(wire.outbox().len());
    }
    (messages, Ok(()))
}

#[test]
fn every_cut_reads_the_same() {
    let whole = file("sha256-int", "wire-sub.s2c");
    for step in [1, 2, 3, 7, 64, 91, 100, 1_000, 16_000] {
        assert_eq!(fed(&whole, step), (20, Ok(())), "in steps of {step}");
    }
}

/// Every value of every byte of the handshake.
#[test]
fn a_handshake_with_any_byte_changed() {
    let good = publisher_bytes();
    let mut passed = 0;
    for at in 0..good.len() {
        for value in 0..=255 {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes.extend(message(&[b"", &[0; 8], b"x"]));
            let (messages, end) = fed(&bytes, 8_192);
            assert!(messages <= 1 && (end.is_ok() || messages == 0));
            passed += usize::from(messages == 1);
        }
    }
    // Padding of the signature and the greeting, and the minor version, may be anything; nothing else may.
    let free = 8 + 1 + 1 + (64 - 16 - 1);
    assert!((free * 256 - 512..free * 256 + 1_024).contains(&passed), "{passed} of {} pass", good.len() * 256);
}

/// One bit of every byte of a whole connection: read on or ended, never more messages than there are.
#[test]
fn a_connection_with_any_byte_changed() {
    let good = file("sha256-int", "wire-sub.s2c");
    for at in (0..1_200).chain((1_200..good.len()).step_by(53)) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let (messages, _) = fed(&bytes, 4_096);
        assert!(messages <= 40, "{messages} messages with byte {at} changed");
    }
}

#[test]
fn what_cannot_be_is_ended_at_once() {
    let ends = |behind: &[u8]| fed(&[&publisher_bytes(), behind].concat(), 4_096).1;
    let long = |flags: u8, length: u64| [&[flags][..], &length.to_be_bytes()].concat();
    assert!(matches!(fed(b"HTTP/1.1 400 Bad Request\r\n", 1), (0, Err(Broken::Garbage(_)))));
    assert_eq!(ends(&long(2, u64::MAX)), Err(Broken::TooLong));
    assert_eq!(ends(&long(2, (16 << 20) + 1)), Err(Broken::TooLong));
    assert_eq!(ends(&long(2, 16 << 20)), Ok(()), "a length that may be");
    assert_eq!(ends(&long(6, 4_097)), Err(Broken::TooLong), "a command");
    assert!(matches!(ends(&[8, 0]), Err(Broken::Garbage(_))), "a flag that does not exist");
    assert!(matches!(ends(&[5, 0]), Err(Broken::Garbage(_))), "a command with more to come");
    assert!(matches!(ends(&[4, 0]), Err(Broken::Garbage(_))), "a command without a name");
    assert!(matches!(ends(&[4, 3, 200, 1, 2]), Err(Broken::Garbage(_))), "a name longer than its command");
    assert!(matches!(ends(b"\x04\x05\x04PING"), Err(Broken::Garbage(_))), "a PING that is cut short");
    assert_eq!(ends(b"\x04\x06\x05ERROR"), Err(Broken::Refused));
    assert_eq!(ends(&b"\x04\x08\x07UNKNOWN".repeat(1_000)), Ok(()), "commands of later versions");
    assert_eq!(ends(&[1, 0].repeat(9)), Err(Broken::TooLong), "frames without end");
    let many = [long(3, 6 << 20), vec![0; 6 << 20]].concat().repeat(3);
    assert_eq!(ends(&many), Err(Broken::TooLong), "a message in parts");
    let mut older = publisher_bytes();
    older[10] = 1;
    assert!(matches!(fed(&older, 64).1, Err(Broken::Otherwise(_))));
    let mut keyed = publisher_bytes();
    keyed[12..17].copy_from_slice(b"PLAIN");
    assert!(matches!(fed(&keyed, 64).1, Err(Broken::Otherwise(_))));
    let other = [&publisher_bytes()[..88], b"SUB"].concat();
    assert_eq!(fed(&other, 64).1, Err(Broken::Stranger));
    let early = [&publisher_bytes()[..64], &message(&[b"x"])].concat();
    assert!(matches!(fed(&early, 64).1, Err(Broken::Garbage(_))));
}

/// Who asks for signs of life and reads none.
#[test]
fn answers_that_nobody_takes_do_not_pile_up() {
    let mut wire = Wire::new(Role::Subscriber(Vec::new()));
    let bytes = [&publisher_bytes()[..], &b"\x04\x07\x04PING\0\0".repeat(1_500)].concat();
    wire.room()[..bytes.len()].copy_from_slice(&bytes);
    wire.received(bytes.len());
    assert_eq!(wire.advance(), Ok(Progress::Open));
    assert_eq!(wire.advance(), Err(Broken::Deaf));
    assert!(wire.held() < 64 << 10);
}

/// A frame's length is believed as its bytes come.
#[test]
fn memory_grows_with_what_comes() {
    let mut wire = Wire::new(Role::Subscriber(Vec::new()));
    let mut take = |bytes: &[u8]| {
        for part in bytes.chunks(8 << 10) {
            wire.room()[..part.len()].copy_from_slice(part);
            wire.received(part.len());
            while wire.advance().unwrap() != Progress::More {}
        }
        wire.held()
    };
    let announced = [&publisher_bytes()[..], &[2, 0, 0, 0, 0, 1, 0, 0, 0]].concat();
    assert!(take(&announced) < 64 << 10);
    let half = take(&vec![0; 8 << 20]);
    assert!((8 << 20..=17 << 20).contains(&half), "{half}");
    let whole = take(&vec![0; 8 << 20]);
    assert!(whole < 1 << 20, "{whole} bytes are kept once the message is done with");
}

#[tokio::test]
async fn garbage_ends_the_connection_and_the_next_one_is_tried() {
    let engine = listener().await;
    let pace = Pace { handshake: Duration::from_millis(600), ..PACE };
    let mut consumer = Consumer::paced(at(&engine), None, pace);
    let whole = [&publisher_bytes()[..], &message(&[b"", &[0; 8], &payload(1, 0, 0)])].concat();
    let too_long = [&publisher_bytes()[..], &[2, 0, 0, 1, 0, 0, 0, 0, 0]].concat();
    let cases: [(&[u8], bool, &str); 6] = [
        (b"SSH-2.0-OpenSSH\r\n", true, "offline Broken(Garbage(\"no greeting\"))"),
        (&too_long, true, "offline Broken(TooLong)"),
        (&whole[..20], true, "offline Slow"),
        (&whole[..80], true, "offline Slow"),
        (&whole[..20], false, "offline Closed"),
        (&whole[..100], false, "offline Closed"),
    ];
    for (bytes, stays, expected) in cases {
        let peer = async {
            let (mut stream, _) = engine.accept().await.unwrap();
            stream.write_all(bytes).await.unwrap();
            if stays {
                // Until the other side has had enough.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            } else {
                let mut theirs = [0; 64];
                stream.read_exact(&mut theirs).await.unwrap();
            }
        };
        let consumer = async {
            let mut told = consumer.told().await;
            if told == "connected" {
                told = consumer.told().await;
            }
            assert_eq!(told, expected);
        };
        within(async { tokio::join!(peer, consumer) }).await;
    }
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    let counts = consumer.source.counts();
    assert_eq!((counts.broken, counts.slow, counts.closed), (2, 2, 2));
}

/// A handshake that goes on byte by byte has one end.
#[tokio::test]
async fn a_dripping_handshake_ends() {
    let engine = listener().await;
    let pace = Pace { handshake: Duration::from_millis(200), ..PACE };
    let mut consumer = Consumer::paced(at(&engine), None, pace);
    let peer = async {
        let (mut stream, _) = engine.accept().await.unwrap();
        for byte in publisher_bytes() {
            if stream.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(async { tokio::join!(peer, consumer.expect(&["offline Slow"])) }).await;
}

/// A replay that never comes to its end is given up, and what it sends is not kept.
#[tokio::test]
async fn a_replay_without_end_ends() {
    let (engine, router) = (listener().await, listener().await);
    let pace = Pace { replay: Duration::from_millis(1_500), ..PACE };
    let mut consumer = Consumer::paced(at(&engine), Some(at(&router)), pace);
    let endless = tokio::spawn(async move {
        let (mut stream, _) = crate::engine::request_on(router.accept().await.unwrap().0).await;
        let same = message(&[b"", b"kv", &0_u64.to_be_bytes(), &payload(1, 0, 0)]).repeat(100);
        while stream.write_all(&same).await.is_ok() {}
    });
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    publisher.publish(1, 1).await;
    consumer.expect(&["1000", "1001"]).await;
    assert_eq!(consumer.source.counts().replays_failed, 1);
    assert!(consumer.source.held() < 1 << 20);
    endless.abort();
}
