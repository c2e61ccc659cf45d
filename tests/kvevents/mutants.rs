//! Payloads near to recorded ones, and bytes of no kind: read, or refused with a place in them.

use std::sync::LazyLock;

use proptest::prelude::*;
use warmfront::kvevents::{Batch, Event};

use crate::recordings::{RECORDINGS, payloads, shown};

static RECORDED: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| RECORDINGS.iter().flat_map(|recording| payloads(recording)).collect());

/// Whatever it is: no panic, the fault lies in the payload, and nothing is left of what was refused.
fn holds(payload: &[u8]) {
    let mut batch = Batch::default();
    match batch.read(payload) {
        Ok(()) => {
            for event in batch.events() {
                if let Event::Stored(stored) = event {
                    (0..stored.hashes.len() + 2).for_each(|block| {
                        assert!(
                            stored.tokens_of(block).is_none_or(|tokens| tokens.len() == stored.block_size as usize)
                        );
                        assert!(stored.extras.keys(block).count() <= payload.len());
                    });
                }
            }
            let mut again = Batch::default();
            again.read(payload).unwrap();
            assert_eq!(format!("{batch:?}"), format!("{again:?}"));
        }
        Err(fault) => assert!(fault.at <= payload.len() && batch.events().len() == 0, "{fault}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn recorded_payloads_with_bytes_changed(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut payload = which.get(&RECORDED).clone();
        for (at, value) in changes {
            let at = at.index(payload.len());
            payload[at] = value;
        }
        holds(&payload);
    }

    #[test]
    fn recorded_payloads_cut_and_joined(
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        cut in any::<prop::sample::Index>(),
        joined in any::<prop::sample::Index>(),
    ) {
        let (one, other) = (one.get(&RECORDED), other.get(&RECORDED));
        let payload = [&one[..cut.index(one.len())], &other[joined.index(other.len())..]].concat();
        holds(&payload);
    }

    #[test]
    fn bytes_of_no_kind(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        holds(&payload);
    }
}

/// Every cut of every recorded payload is refused; a buffer that has seen it reads the next as if it had not.
#[test]
fn every_cut_is_refused_and_leaves_nothing() {
    let mut batch = Batch::default();
    for payload in RECORDED.iter() {
        for cut in (0..payload.len()).step_by(payload.len() / 400 + 1) {
            assert!(batch.read(&payload[..cut]).is_err(), "cut at {cut}");
        }
        let mut fresh = Batch::default();
        fresh.read(payload).unwrap();
        batch.read(payload).unwrap();
        assert_eq!(shown(&batch), shown(&fresh));
    }
}
