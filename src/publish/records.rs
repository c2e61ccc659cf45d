//! The way of one shard's records to the access log and to the receipts, and back.

use std::sync::OnceLock;

use crossbeam::queue::ArrayQueue;

use crate::exchange::{Record, Recorder, Rules};

/// Bounded queues that are there once log or receipts were switched on. The shard never waits for room in them, nor
/// control for a record.
#[derive(Debug, Default)]
pub struct Records(OnceLock<Queues>);

/// Boxes go round: one is written at a request's end, read by control and given back, so that a request costs no
/// allocation for its own.
#[derive(Debug)]
struct Queues {
    told: ArrayQueue<Box<Record>>,
    spare: ArrayQueue<Box<Record>>,
}

impl Records {
    /// The queue, with room for `most` records if there was none.
    /// Rules that want records are to be published behind this.
    pub fn open(&self, most: usize) -> &ArrayQueue<Box<Record>> {
        let queues = || Queues { told: ArrayQueue::new(most), spare: ArrayQueue::new(most) };
        &self.0.get_or_init(queues).told
    }

    /// Where exchanges hand their records to, if the rules want any.
    pub fn recorder(&'static self, rules: &Rules) -> Option<Recorder> {
        let queues = self.0.get().filter(|_| rules.access_log || rules.receipts > 0);
        queues.map(|Queues { told, spare }| Recorder { queue: told, spare })
    }

    /// The queue, if either was ever on.
    pub fn queue(&self) -> Option<&ArrayQueue<Box<Record>>> {
        self.0.get().map(|queues| &queues.told)
    }

    /// Takes back a record that was read. As many are kept as may wait to be read: a crowd of requests leaves no more
    /// behind.
    pub fn give_back(&self, mut record: Box<Record>) {
        if let Some(queues) = self.0.get() {
            // What it owns is freed here, not on the shard that writes it anew.
            record.chain = None;
            let _ = queues.spare.push(record);
        }
    }
}
