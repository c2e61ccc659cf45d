//! Connections: made, waited for, lost, replaced, silent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;
use warmfront::kvevents::{Endpoint, Pace, Settings, Source, Told};

use crate::engine::{
    Consumer, Layout, PACE, SUBSCRIBER_BYTES, Subscriber, at, listener, message, nobody, payload, publisher_bytes,
    replays, within,
};

/// What is told where the port is another's, in the words of the C library.
fn is_taken() -> String {
    format!("offline Unreachable({:?})", std::io::Error::from(rustix::io::Errno::ADDRINUSE).to_string())
}

#[tokio::test]
async fn an_engine_that_is_not_there_yet_is_tried_again() {
    // On an address of its own, where nobody takes its port meanwhile.
    let engine = tokio::net::TcpListener::bind("127.0.3.1:0").await.unwrap();
    let (place, address) = (at(&engine), engine.local_addr().unwrap());
    drop(engine);
    let mut consumer = Consumer::of(place, None);
    for _ in 0..4 {
        consumer.expect(&[r#"offline Unreachable("Connection refused (os error 111)")"#]).await;
    }
    let engine = tokio::net::TcpListener::bind(address).await.unwrap();
    let (_, mut publisher) =
        tokio::join!(async { while consumer.told().await != "connected" {} }, Subscriber::entered(&engine));
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
}

/// A listener whose queue is full: whatever else comes there is swallowed.
fn full(port: u16) -> (Ipv4Addr, OwnedFd, std::net::TcpStream) {
    let at = SocketAddrV4::new(Ipv4Addr::new(127, 0, 3, 8), port);
    let listener =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &SocketAddr::from(at)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    (*at.ip(), listener, std::net::TcpStream::connect(at).unwrap())
}

/// As an engine whose other family is dropped on the way. Nobody is asked for a name that is the engine's own.
#[tokio::test]
async fn an_address_that_swallows_what_comes_hides_no_other() {
    let (engine, (replay, _log)) = (listener().await, replays(Layout::WithTopic, 1, 0..1).await);
    let full = [engine.local_addr().unwrap().port(), replay.port].map(full);
    let peers: [IpAddr; 2] = [full[0].0.into(), Ipv4Addr::LOCALHOST.into()];
    let called = |at: Endpoint| Endpoint { host: "engine.invalid".into(), ..at };
    let (events, replay) = (called(at(&engine)), Some(called(replay)));
    let settings = Settings { events, replay, topic: String::new(), peers: Some(peers.into()) };
    let pace = Pace { connect: Duration::from_secs(2), ..PACE };
    let mut consumer = Consumer { source: Source::new(settings, pace).called("engine.invalid".into()) };
    let all = ["connected", "1000"];
    tokio::join!(consumer.expect(&all), Subscriber::entered(&engine));
}

/// Doubled from 40 ms to 400 ms, less half of it at most.
#[tokio::test]
async fn attempts_become_rare() {
    let pace = Pace { again: Duration::from_millis(40), again_most: Duration::from_millis(400), ..PACE };
    let mut consumer = Consumer::paced(nobody(), None, pace);
    let began = Instant::now();
    for _ in 0..7 {
        consumer.told().await;
    }
    // 40 + 80 + 160 + 320 + 400 + 400, halved.
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
}

/// Attempts count from there anew: who restarts often is heard at once each time.
#[tokio::test]
async fn who_was_heard_is_connected_to_at_once() {
    let engine = listener().await;
    // Longer than any test waits.
    let minute = Duration::from_secs(60);
    let mut consumer = Consumer::paced(at(&engine), None, Pace { again: minute, again_most: 10 * minute, ..PACE });
    let mut all = vec!["connected"];
    for number in 0..3 {
        let (_, mut publisher) = tokio::join!(consumer.expect(&all), Subscriber::entered(&engine));
        publisher.publish(1, number).await;
        consumer.expect(&[&(1_000 + number).to_string()]).await;
        all = vec!["offline Closed", "connected"];
    }
}

/// On an address that nobody else is given while the process runs.
fn free_port() -> Endpoint {
    let (address, kept) = crate::reserved::address_on([127, 0, 3, 2].into());
    std::mem::forget(kept);
    format!("@tcp://{address}").parse().unwrap()
}

#[tokio::test]
async fn an_engine_that_connects_to_us() {
    let place = free_port();
    let address = (place.host.clone(), place.port);
    let mut consumer = Consumer::of(place, None);
    let connect = || async {
        loop {
            match TcpStream::connect(address.clone()).await {
                Ok(stream) => return stream,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let (_, mut publisher) =
        tokio::join!(consumer.expect(&["connected"]), async { Subscriber::on(connect().await).await });
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    // It is back before its old connection is known to be dead; one that knocks and says nothing holds up nobody.
    let _idle = connect().await;
    let (_, mut again) = tokio::join!(consumer.expect(&["connected"]), async { Subscriber::on(connect().await).await });
    again.publish(1, 1).await;
    consumer.expect(&["1001"]).await;
    let mut nothing = [0; 1];
    assert_eq!(within(publisher.stream.read(&mut nothing)).await.unwrap(), 0, "the old connection is closed");
    // Garbage at the door is counted, and the engine goes on.
    let mut garbage = connect().await;
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let counted = async {
        while consumer.source.counts().broken == 0 {
            consumer.expect_nothing().await;
        }
    };
    let _ = within(async { tokio::join!(counted, garbage.read(&mut nothing)) }).await;
    again.publish(1, 2).await;
    consumer.expect(&["1002"]).await;
    assert_eq!(consumer.source.counts().broken, 1);
    drop(again);
    consumer.expect(&["offline Closed"]).await;
}

/// As the front hears an engine that says itself where it publishes: another may be told the same address.
#[tokio::test]
async fn a_door_is_for_the_engine_alone() {
    let place = free_port();
    let address: std::net::SocketAddr = format!("{}:{}", place.host, place.port).parse().unwrap();
    let peers = Some(["::ffff:127.0.0.1".parse().unwrap()].into());
    let settings = Settings { events: place, replay: None, topic: String::new(), peers };
    let mut consumer = Consumer { source: Source::new(settings, PACE) };
    let connect = |last: u8| connected_from([127, 0, 0, last], address);
    let mut nothing = [0; 1];
    let (_, mut another) = tokio::join!(consumer.expect(&["offline Stranger(127.0.0.2)"]), connect(2));
    assert_eq!(within(another.read(&mut nothing)).await.unwrap(), 0);
    let (_, mut publisher) =
        tokio::join!(consumer.expect(&["connected"]), async { Subscriber::on(connect(1).await).await });
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    // Nor does another take the place of the one that is there.
    let mut another = connect(2).await;
    consumer.expect_nothing().await;
    assert_eq!(within(another.read(&mut nothing)).await.unwrap(), 0);
    publisher.publish(1, 1).await;
    consumer.expect(&["1001"]).await;
    assert_eq!(consumer.strangers(), 2);
}

/// Of each that may be the engine at another address, and of no more than a few.
#[tokio::test]
async fn a_door_is_kept_past_strangers() {
    let place = free_port();
    let address: std::net::SocketAddr = format!("{}:{}", place.host, place.port).parse().unwrap();
    let settings =
        Settings { events: place, replay: None, topic: String::new(), peers: Some([[127, 0, 0, 1].into()].into()) };
    let mut consumer = Consumer { source: Source::new(settings, PACE) };
    for last in 2..10 {
        let told = [&*format!("offline Stranger(127.0.0.{last})")];
        let (_, _another) = tokio::join!(consumer.expect(&told), connected_from([127, 0, 0, last], address));
    }
    for last in [2, 9, 10, 11] {
        let mut another = connected_from([127, 0, 0, last], address).await;
        consumer.expect_nothing().await;
        assert_eq!(within(another.read(&mut [0; 1])).await.unwrap(), 0, "{last}");
    }
    let engine = async { Subscriber::on(connected_from([127, 0, 0, 1], address).await).await };
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), engine);
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    assert_eq!(consumer.strangers(), 12);
}

/// As soon as somebody waits there.
async fn connected_from(own: [u8; 4], address: std::net::SocketAddr) -> TcpStream {
    loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((own, 0).into()).unwrap();
        match socket.connect(address).await {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Nor is anybody connected to because an engine says so.
#[tokio::test]
async fn only_the_engine_is_connected_to() {
    let (other, own) = (tokio::net::TcpListener::bind("127.0.3.2:0").await.unwrap(), listener().await);
    let peers: Option<std::sync::Arc<[std::net::IpAddr]>> = Some([[127, 0, 0, 1].into()].into());
    let of = |events: Endpoint, replay: Endpoint| {
        let settings = Settings { events, replay: Some(replay), topic: String::new(), peers: peers.clone() };
        Consumer { source: Source::new(settings, PACE) }
    };
    of(at(&other), at(&other)).expect(&["offline Stranger(127.0.3.2)"]).await;
    // As if an engine connected to us at an address that is taken.
    let waits = Endpoint { waits: true, ..at(&other) };
    of(waits, at(&other)).expect(&[&is_taken()]).await;
    let mut consumer = of(at(&own), at(&other));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&own));
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    assert_eq!(consumer.source.counts().replays_failed, 1);
    let nobody = tokio::time::timeout(Duration::from_millis(50), other.accept()).await;
    assert!(nobody.is_err(), "{nobody:?}");
}

/// A vLLM that publishes at a port of the kernel's choice waits there itself, and once it is gone it may be another that
/// is to come.
#[tokio::test]
async fn an_address_that_an_engine_waited_at_is_waited_at_when_it_has_gone() {
    let engine = tokio::net::TcpListener::bind("127.0.3.4:0").await.unwrap();
    let address = engine.local_addr().unwrap();
    let mut consumer = Consumer::of(format!("@tcp://{address}").parse().unwrap(), None);
    let (_, publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    drop((engine, publisher));
    consumer.expect(&["offline Closed", r#"offline Unreachable("Connection refused (os error 111)")"#]).await;
    let comes = async { Subscriber::on(connected_from([127, 0, 0, 1], address).await).await };
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), comes);
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_said() {
    let engine = listener().await;
    let place = format!("@tcp://{}", engine.local_addr().unwrap()).parse().unwrap();
    Consumer::of(place, None).expect(&[&is_taken()]).await;
}

/// As a vLLM tells where it publishes that was told to take any port.
#[tokio::test]
async fn an_engine_that_waits_at_an_address_that_looks_like_ours_is_connected_to() {
    for waits in ["@tcp://127.0.0.1", "tcp://*"] {
        is_connected_to(waits).await;
    }
}

async fn is_connected_to(waits: &str) {
    let engine = listener().await;
    let place = format!("{waits}:{}", engine.local_addr().unwrap().port()).parse().unwrap();
    let mut source = Source::new(Settings { events: place, replay: None, topic: String::new(), peers: None }, PACE);
    let peer = async {
        let mut streams = Vec::new();
        // It is lost once, and connected to again.
        for number in 0..2_u64 {
            let (mut stream, _) = engine.accept().await.unwrap();
            stream.write_all(&publisher_bytes()).await.unwrap();
            let mut theirs = vec![0; SUBSCRIBER_BYTES];
            stream.read_exact(&mut theirs).await.unwrap();
            let frames: [&[u8]; 3] = [b"", &number.to_be_bytes(), &payload(1, number, 0)];
            stream.write_all(&message(&frames)).await.unwrap();
            streams.extend((number == 1).then_some(stream));
        }
        streams
    };
    let consumer = async {
        let mut batches = 0;
        while batches < 2 {
            batches += usize::from(matches!(source.told().await, Told::Batch(_)));
        }
    };
    within(async { tokio::join!(peer, consumer) }).await;
}

#[tokio::test]
async fn only_the_topic_asked_for() {
    let engine = listener().await;
    let settings = Settings { events: at(&engine), replay: None, topic: "kv@".into(), peers: None };
    let mut source = Source::new(settings, PACE);
    let peer = async {
        let (mut stream, _) = engine.accept().await.unwrap();
        stream.write_all(&publisher_bytes()).await.unwrap();
        let mut theirs = vec![0; SUBSCRIBER_BYTES + 3];
        stream.read_exact(&mut theirs).await.unwrap();
        assert!(theirs.ends_with(b"\x04\x0d\x09SUBSCRIBEkv@"));
        for (topic, number) in [("kv@b", 0_u64), ("other", 0), ("", 0), ("kv@", 1)] {
            let frames: [&[u8]; 3] = [topic.as_bytes(), &number.to_be_bytes(), &payload(1, number, 0)];
            stream.write_all(&message(&frames)).await.unwrap();
        }
        stream
    };
    let consumer = async {
        let mut times = Vec::new();
        while times.len() < 2 {
            if let Told::Batch(batch) = source.told().await {
                times.push(batch.time());
            }
        }
        assert_eq!((times, source.counts().refused), (vec![1_000.0, 1_001.0], 2));
    };
    within(async { tokio::join!(peer, consumer) }).await;
}

/// Whoever misspells it hears nothing of an engine that answers all that it is asked.
#[tokio::test]
async fn answers_of_another_topic_than_asked_for_are_not_read() {
    for (topic, told) in [("k", &["connected", "1000", "1001", "abreast"][..]), ("kv@", &["connected", "abreast"])] {
        let (engine, (replay, _log)) = (listener().await, replays(Layout::WithTopic, 1, 0..2).await);
        let settings = Settings { events: at(&engine), replay: Some(replay), topic: topic.into(), peers: None };
        let mut consumer = Consumer { source: Source::new(settings, PACE) };
        let peer = async {
            let (mut stream, _) = engine.accept().await.unwrap();
            stream.write_all(&publisher_bytes()).await.unwrap();
            within(stream.read_exact(&mut vec![0; SUBSCRIBER_BYTES + topic.len()])).await.unwrap();
            stream
        };
        let consume = async {
            for each in told {
                assert_eq!(consumer.told_all().await, *each, "{topic}");
            }
        };
        let _ = tokio::join!(consume, peer);
        let counts = consumer.source.counts();
        assert_eq!((counts.unread.is_some(), counts.refused), if topic == "k" { (false, 0) } else { (true, 2) });
    }
}

/// Messages that are not topic, number and payload.
#[tokio::test]
async fn messages_of_another_shape_are_refused() {
    let engine = listener().await;
    let mut consumer = Consumer::of(at(&engine), None);
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    let (number, batch) = (0_u64.to_be_bytes(), payload(1, 0, 0));
    publisher.send(&[b"kv"]).await;
    publisher.send(&[b"kv", &number]).await;
    publisher.send(&[b"kv", &number, &batch, b""]).await;
    publisher.send(&[b"kv", &number[1..], &batch]).await;
    publisher.send(&[b"kv", &(-1_i64).to_be_bytes(), &batch]).await;
    publisher.publish(1, 0).await;
    consumer.expect(&["1000"]).await;
    assert_eq!((consumer.source.counts().refused, consumer.source.counts().messages), (5, 6));
}

/// libzmq before 4.3: a subscription is a message, and there are no heartbeats.
#[tokio::test]
async fn a_peer_of_version_3_0() {
    let engine = listener().await;
    let pace = Pace { heartbeat: Duration::from_millis(30), ..PACE };
    let mut consumer = Consumer::paced(at(&engine), None, pace);
    let peer = async {
        let (mut stream, _) = engine.accept().await.unwrap();
        let mut ours = publisher_bytes();
        ours[11] = 0;
        stream.write_all(&ours).await.unwrap();
        let mut theirs = [0; 64 + 27 + 3];
        stream.read_exact(&mut theirs).await.unwrap();
        assert!(theirs.ends_with(&[0, 1, 1]), "{theirs:?}");
        sleep(Duration::from_millis(150)).await;
        stream.write_all(&message(&[b"", &[0; 8], &payload(1, 0, 0)])).await.unwrap();
        let mut more = [0; 1];
        assert!(tokio::time::timeout(Duration::from_millis(100), stream.read(&mut more)).await.is_err(), "{more:?}");
        stream
    };
    let _ = within(async { tokio::join!(peer, consumer.expect(&["connected", "1000"])) }).await;
}

#[tokio::test]
async fn signs_of_life_are_asked_for_and_given() {
    let engine = listener().await;
    let heartbeat = Duration::from_millis(600);
    let mut consumer = Consumer::paced(at(&engine), None, Pace { heartbeat, ..PACE });
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    let peer = async {
        // Between the frames of a message, as libzmq may put it.
        let whole = message(&[b"", &[0; 8], &payload(1, 0, 0)]);
        publisher.stream.write_all(&whole[..2]).await.unwrap();
        publisher.stream.write_all(b"\x04\x09\x04PING\x00\x64ab").await.unwrap();
        publisher.stream.write_all(&whole[2..]).await.unwrap();
        let mut pong = [0; 9];
        publisher.stream.read_exact(&mut pong).await.unwrap();
        assert_eq!(&pong, b"\x04\x07\x04PONGab");
        for _ in 0..2 {
            let mut ping = [0; 9];
            publisher.stream.read_exact(&mut ping).await.unwrap();
            assert_eq!(&ping, b"\x04\x07\x04PING\0\0");
            publisher.stream.write_all(b"\x04\x05\x04PONG").await.unwrap();
        }
        publisher
    };
    let began = Instant::now();
    let all = ["1000", "offline Silent"];
    within(async { tokio::join!(peer, consumer.expect(&all)) }).await;
    // Two that were answered, and one that was not.
    assert!(began.elapsed() >= 4 * heartbeat, "{:?}", began.elapsed());
    assert_eq!(consumer.source.counts().silent, 1);
}

/// A consumer waits for several things at once: what it does not take up stays.
#[tokio::test]
async fn a_wait_that_is_dropped_loses_nothing() {
    let engine = listener().await;
    let (replay, _log) = crate::engine::replays(crate::engine::Layout::WithTopic, 1, 0..5).await;
    let mut consumer = Consumer::of(at(&engine), Some(replay));
    let (_, mut publisher) = tokio::join!(consumer.expect(&["connected"]), Subscriber::entered(&engine));
    let peer = async {
        for number in 5..60 {
            let whole = message(&[b"kv", &u64::to_be_bytes(number), &payload(1, number, 0)]);
            for part in whole.chunks(11) {
                publisher.stream.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        publisher
    };
    let consumer = async {
        let mut names = Vec::new();
        while names.len() < 60 {
            // With a wait an attempt to connect is lost, and a replay has three of them.
            let wait = if names.len() < 5 { Duration::from_millis(50) } else { Duration::from_micros(300) };
            tokio::select! {
                biased;
                told = consumer.told() => names.push(told),
                () = sleep(wait) => {}
            }
        }
        assert_eq!(names, (0..60).map(|number| (1_000 + number).to_string()).collect::<Vec<_>>());
    };
    within(async { tokio::join!(peer, consumer) }).await;
}
