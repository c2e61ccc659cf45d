//! What is counted of one engine's KV events, for metrics.

use super::socket::Socket;
use super::{Hearing, Rank};
use crate::kvevents::Counts;
use crate::mirror::{self, Mirror};

/// Figures of one engine, for metrics.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// Counts of all its sockets.
    pub counts: Counts,
    /// Counts of all its ranks' mirrors.
    pub mirrored: mirror::Counts,
    /// KV blocks known by name.
    pub blocks: u64,
    /// Links that the index did not take, or not at once.
    pub missed: u64,
    /// The most memory that its mirrors take.
    pub bytes_max: usize,
    /// Seconds from the engine's clock to ours at the last batch.
    pub lag_seconds: f64,
    /// When the last batch came, in seconds since 1970 by our clock; 0: none did.
    pub came: f64,
}

impl Figures {
    /// Adds the counts of a hearing before this one. Its gauges are left out: what was known then is known no more.
    pub fn add(&mut self, before: &Figures) {
        self.counts.add(&before.counts);
        self.mirrored.add(&before.mirrored);
        self.missed += before.missed;
    }
}

impl Hearing {
    /// Its figures as of now.
    pub fn figures(&self) -> Figures {
        let inner = self.inner();
        let mut figures = Figures {
            missed: inner.owed.missed(),
            lag_seconds: inner.lag,
            came: inner.came,
            mirrored: inner.earlier,
            ..Figures::default()
        };
        let counts = inner.sockets.iter().flat_map(|socket| [&socket.earlier, &socket.counts]);
        counts.for_each(|counts| figures.counts.add(counts));
        figures.counts.strangers += inner.sockets.iter().map(Socket::turned_away).sum::<u64>();
        for Rank { mirror, .. } in inner.ranks.values() {
            figures.blocks += u64::from(mirror.blocks());
            figures.bytes_max += Mirror::bytes(mirror.room());
            figures.mirrored.add(&mirror.counts());
        }
        figures
    }
}
