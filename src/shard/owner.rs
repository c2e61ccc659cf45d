//! Which connection a completion is about, and the method that takes it up.

use super::Shard;
use crate::driver::{Completion, Driver, Tag};
use crate::publish::Doing;
use crate::slots::Key;

/// Whose socket a completion is about: the lowest bits of its tag.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Client(Key),
    /// A connection to an engine, while it serves no client.
    Upstream(Key),
    /// The connection to the engine that serves this client. Its tag has the client's key: each chunk of a reply is the
    /// client's, and the upstream's own entry need not be looked up for it.
    UpstreamOf(Key),
}

impl Owner {
    pub fn of(tag: Tag) -> Owner {
        let key = Key::from_u64(tag.0 >> 2);
        match tag.0 & 3 {
            0 => Owner::Client(key),
            1 => Owner::Upstream(key),
            _ => Owner::UpstreamOf(key),
        }
    }

    pub fn tag(self) -> Tag {
        match self {
            Owner::Client(key) => Tag(key.to_u64() << 2),
            Owner::Upstream(key) => Tag(key.to_u64() << 2 | 1),
            Owner::UpstreamOf(key) => Tag(key.to_u64() << 2 | 2),
        }
    }
}

/// What the shard does when it takes a completion.
fn doing(completion: &Completion) -> Doing {
    let tag = match completion {
        Completion::Accepted { .. } => return Doing::Accepts,
        Completion::Connected(tag)
        | Completion::Received(tag, _)
        | Completion::Ended(tag)
        | Completion::Failed(tag)
        | Completion::Reset(tag)
        | Completion::Full(tag)
        | Completion::Spliced(tag, _)
        | Completion::Drained(tag) => *tag,
    };
    match Owner::of(tag) {
        Owner::Client(_) => Doing::ServesClient,
        Owner::Upstream(_) | Owner::UpstreamOf(_) => Doing::ServesEngine,
    }
}

impl<D: Driver> Shard<D> {
    /// Hands a completion to the connection that it is about.
    pub(super) fn complete(&mut self, completion: Completion) {
        self.doing.begin(doing(&completion));
        match completion {
            Completion::Accepted { socket, peer } => self.arrived(socket, peer),
            Completion::Connected(tag) => self.of_engine(tag, Self::upstream_connected),
            Completion::Received(tag, lease) => match Owner::of(tag) {
                Owner::Client(key) => self.client_received(key, lease),
                Owner::UpstreamOf(client) => self.reply_received(client, lease),
                Owner::Upstream(key) => self.unasked_received(key, lease),
            },
            Completion::Spliced(tag, len) => self.of_engine(tag, |shard, key| shard.upstream_spliced(key, len)),
            Completion::Ended(tag) => {
                self.of_either(tag, Self::client_ended, |shard, key| shard.upstream_gone(key, true))
            }
            Completion::Failed(tag) => {
                self.of_either(tag, Self::client_reset, |shard, key| shard.upstream_gone(key, false))
            }
            // What the engine sent before its reset is still passed on once the client reads again.
            Completion::Reset(tag) => {
                if let Owner::Client(key) = Owner::of(tag) {
                    self.client_reset(key);
                }
            }
            Completion::Full(tag) => self.of_either(tag, Self::client_full_later, Self::upstream_full_later),
            Completion::Drained(tag) => self.of_either(tag, Self::client_drained, Self::upstream_drained),
        }
    }

    /// Calls `client` or `engine`, by the side that the connection is on.
    fn of_either(&mut self, tag: Tag, client: impl FnOnce(&mut Self, Key), engine: impl FnOnce(&mut Self, Key)) {
        match Owner::of(tag) {
            Owner::Client(key) => client(self, key),
            Owner::Upstream(_) | Owner::UpstreamOf(_) => self.of_engine(tag, engine),
        }
    }

    /// Calls `act` if the connection is one to an engine, whether it serves a client or not.
    fn of_engine(&mut self, tag: Tag, act: impl FnOnce(&mut Self, Key)) {
        let key = match Owner::of(tag) {
            Owner::Upstream(key) => Some(key),
            Owner::UpstreamOf(client) => self.clients.get(client).and_then(|client| client.upstream),
            Owner::Client(_) => None,
        };
        if let Some(key) = key {
            act(self, key);
        }
    }
}
