//! The way of one shard's records to the access log.

use std::sync::OnceLock;

use crossbeam::queue::ArrayQueue;

use crate::exchange::Record;

/// A bounded queue that is there once the log was switched on. The shard never waits for room in it, nor control for a
/// record.
#[derive(Debug, Default)]
pub struct Records(OnceLock<ArrayQueue<Record>>);

impl Records {
    /// The queue, with room for `most` records if there was none. Rules that want records are to be published behind this.
    pub fn open(&self, most: usize) -> &ArrayQueue<Record> {
        self.0.get_or_init(|| ArrayQueue::new(most))
    }

    /// The queue, if the log was ever on.
    pub fn queue(&self) -> Option<&ArrayQueue<Record>> {
        self.0.get()
    }
}
