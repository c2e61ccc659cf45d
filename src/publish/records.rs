//! The way of one shard's records to the access log and to the receipts.

use std::sync::OnceLock;

use crossbeam::queue::ArrayQueue;

use crate::exchange::{Record, Recorder, Rules};

/// A bounded queue that is there once log or receipts were switched on. The shard never waits for room in it, nor control for a
/// record.
#[derive(Debug, Default)]
pub struct Records(OnceLock<ArrayQueue<Record>>);

impl Records {
    /// The queue, with room for `most` records if there was none. Rules that want records are to be published behind this.
    pub fn open(&self, most: usize) -> &ArrayQueue<Record> {
        self.0.get_or_init(|| ArrayQueue::new(most))
    }

    /// What exchanges tell of themselves to, where the rules want that; `wall` is the time in microseconds since 1970.
    pub fn recorder(&'static self, rules: &Rules, wall: fn() -> u64) -> Option<Recorder> {
        self.queue().filter(|_| rules.access_log || rules.receipts).map(|queue| Recorder { queue, wall })
    }

    /// The queue, if either was ever on.
    pub fn queue(&self) -> Option<&ArrayQueue<Record>> {
        self.0.get()
    }
}
