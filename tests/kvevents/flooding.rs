//! A publisher that is faster than we read: the memory is that of one message.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use warmfront::kvevents::Told;

use crate::engine::{Consumer, SUBSCRIBER_BYTES, message, publisher_bytes};
use crate::recordings::payloads;

#[test]
fn a_flood_takes_no_more_memory_than_a_trickle() {
    let engine = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("tcp://{}", engine.local_addr().unwrap()).parse().unwrap();
    let (done, published) = (AtomicBool::new(false), AtomicU64::new(0));
    // The longest recorded payload, again and again.
    let payload = payloads("sha256_cbor-bytes-lora").into_iter().max_by_key(Vec::len).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = engine.accept().unwrap();
            stream.write_all(&publisher_bytes()).unwrap();
            stream.read_exact(&mut [0; SUBSCRIBER_BYTES]).unwrap();
            for number in 0_u64.. {
                if done.load(Ordering::Relaxed)
                    || stream.write_all(&message(&[b"", &number.to_be_bytes(), &payload])).is_err()
                {
                    break;
                }
                published.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (mut held, mut batches, mut longest_wait) = (0, 0, 0);
        let measured = allocation_counter::measure(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut consumer = Consumer::of(place, None);
                while batches < 3_000 {
                    match consumer.source.told().await {
                        Told::Batch(_) => batches += 1,
                        Told::Connected => {}
                        other => panic!("{other:?}"),
                    }
                    held = held.max(consumer.source.held());
                    if batches % 100 == 0 {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        // What was written may be read before it is counted.
                        longest_wait = longest_wait.max(published.load(Ordering::Relaxed).saturating_sub(batches));
                    }
                }
                assert_eq!(consumer.source.counts().holes, 0);
            });
        });
        done.store(true, Ordering::Relaxed);
        println!(
            "{batches} batches of {} bytes, at most {longest_wait} ahead; {held} bytes held, {} at most in all, {} allocations",
            payload.len(),
            measured.bytes_max,
            measured.count_total
        );
        assert!(longest_wait > 10, "it was no flood: {longest_wait} messages ahead at most");
        assert!(held < 256 << 10, "{held} bytes held for the connection");
        assert!(measured.bytes_max < 1 << 20, "{} bytes in all", measured.bytes_max);
        assert!(measured.count_total < 3_000, "{} allocations for {batches} batches", measured.count_total);
    });
}
