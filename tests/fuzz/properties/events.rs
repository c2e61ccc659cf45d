//! An engine's KV events: payloads and connections of any bytes, within bounds and the same however they come.

use warmfront::kvevents::{Batch, Broken, Event, Progress, Role, Wire};

/// A payload is read or refused with a place in it; what is refused leaves nothing, and what was read before leaves no
/// trace.
pub fn kv_batch(bytes: &[u8]) {
    let mut batch = Batch::default();
    match batch.read(bytes) {
        Ok(()) => batch.events().for_each(|event| consume(event, bytes.len())),
        Err(fault) => {
            assert!(fault.at <= bytes.len() && batch.events().len() == 0, "{fault}: {}", bytes.escape_ascii())
        }
    }
    let first = format!("{batch:?}");
    let _ = batch.read(b"\x92\x01\x91\x92\xacBlockRemoved\x91\x01");
    let _ = batch.read(bytes);
    assert_eq!(format!("{batch:?}"), first, "what was read before shows in {}", bytes.escape_ascii());
}

fn consume(event: Event<'_>, most: usize) {
    match event {
        Event::Stored(stored) => {
            assert!(stored.tokens.len() <= most);
            for block in 0..=stored.hashes.len() {
                assert!(stored.tokens_of(block).is_none_or(|tokens| tokens.len() == stored.block_size as usize));
                assert!(stored.extras.keys(block).count() <= stored.extras.raw(block).len());
            }
        }
        Event::Removed(removed) => assert!(removed.hashes.len() <= most),
        Event::Cleared => {}
    }
}

/// A peer's bytes come to the same messages, answers and end in whatever pieces they come.
pub fn kv_peer(bytes: &[u8]) {
    let whole = heard(bytes, bytes.len().max(1));
    for step in [1, 7, 64] {
        let pieces = heard(bytes, step);
        assert_eq!((&pieces.0, &pieces.2), (&whole.0, &whole.2), "in steps of {step}: {}", bytes.escape_ascii());
        // An end comes as soon as it is certain, so that in larger pieces less may be answered before it.
        assert!(whole.2.is_some() || pieces.1 == whole.1, "in steps of {step}: {}", bytes.escape_ascii());
    }
}

/// Messages, what is sent, and how it ended.
fn heard(bytes: &[u8], step: usize) -> (Vec<Vec<Vec<u8>>>, Vec<u8>, Option<Broken>) {
    let (mut wire, mut messages, mut sent) = (Wire::new(Role::Subscriber(b"kv".to_vec())), Vec::new(), Vec::new());
    for chunk in bytes.chunks(step) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let room = wire.room();
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            wire.received(now.len());
            rest = later;
            loop {
                match wire.advance() {
                    Ok(Progress::More) => break,
                    Ok(Progress::Open) => {}
                    Ok(Progress::Message) => messages.push(wire.message().map(<[u8]>::to_vec).collect()),
                    Err(broken) => return (messages, sent, Some(broken)),
                }
                sent.extend_from_slice(wire.outbox());
                wire.sent(wire.outbox().len());
            }
            sent.extend_from_slice(wire.outbox());
            wire.sent(wire.outbox().len());
            assert!(wire.held() <= (64 << 10) + 4 * bytes.len(), "{} bytes held", wire.held());
        }
    }
    (messages, sent, None)
}
