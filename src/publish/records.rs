//! Takes one shard's records to the access log and the receipts, and back for reuse.

use std::sync::OnceLock;

use crossbeam::queue::ArrayQueue;

use crate::exchange::{Record, Recorder, Rules};

/// Bounded queues, made once log or receipts are switched on. The shard never waits for room in them, nor control for a
/// record.
#[derive(Debug, Default)]
pub struct Records(OnceLock<Queues>);

/// Boxes are reused: one is written at a request's end, read by control and given back, so that a request allocates
/// none.
#[derive(Debug)]
struct Queues {
    told: ArrayQueue<Box<Record>>,
    spare: ArrayQueue<Box<Record>>,
}

impl Records {
    /// Returns the queue, made with room for `most` records if there was none. To be called before rules that want
    /// records are published.
    pub fn open(&self, most: usize) -> &ArrayQueue<Box<Record>> {
        let queues = || Queues { told: ArrayQueue::new(most), spare: ArrayQueue::new(most) };
        &self.0.get_or_init(queues).told
    }

    /// Returns what exchanges hand their records to, if the rules want any.
    pub fn recorder(&'static self, rules: &Rules) -> Option<Recorder> {
        let queues = self.0.get().filter(|_| rules.access_log || rules.receipts > 0);
        queues.map(|Queues { told, spare }| Recorder { queue: told, spare })
    }

    /// Returns the queue, if log or receipts were ever on.
    pub fn queue(&self) -> Option<&ArrayQueue<Box<Record>>> {
        self.0.get().map(|queues| &queues.told)
    }

    /// Takes back a record that was read. No more are kept than may wait to be read, so that a crowd of requests leaves
    /// no more memory in use.
    pub fn give_back(&self, mut record: Box<Record>) {
        if let Some(queues) = self.0.get() {
            // Its chain is freed here, and not by the shard that reuses it.
            record.chain = None;
            let _ = queues.spare.push(record);
        }
    }
}
