//! Where control writes and shards read: the snapshot, replaced whole.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::snapshot::Snapshot;

/// The shared pointer. Shards read it once a turn through a [`Cache`]: one atomic load while unchanged.
#[derive(Debug)]
pub struct Published(ArcSwap<Snapshot>);

/// A shard's reader.
pub type Reader = Cache<&'static ArcSwap<Snapshot>, Arc<Snapshot>>;

impl Published {
    /// Starts with `first`. Lives as long as the process, so that shards may hold plain references.
    pub fn leak(mut first: Snapshot) -> &'static Published {
        first.seal();
        Box::leak(Box::new(Published(ArcSwap::from_pointee(first))))
    }

    /// Replaces the snapshot.
    pub fn publish(&self, mut next: Snapshot) {
        next.seal();
        self.0.store(Arc::new(next));
    }

    /// The snapshot as it is now, for control and the admin listener.
    pub fn current(&self) -> Arc<Snapshot> {
        self.0.load_full()
    }

    /// A reader for one shard.
    pub fn reader(&'static self) -> Reader {
        Cache::new(&self.0)
    }
}
