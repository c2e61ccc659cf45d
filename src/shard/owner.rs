//! Whom a completion is for.

use crate::driver::{Completion, Tag};
use crate::publish::Doing;
use crate::slots::Key;

/// Whose socket a completion is about: the lowest bit of its tag.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Client(Key),
    Upstream(Key),
}

impl Owner {
    pub fn of(tag: Tag) -> Owner {
        let key = Key::from_u64(tag.0 >> 1);
        if tag.0 & 1 == 0 { Owner::Client(key) } else { Owner::Upstream(key) }
    }

    pub fn tag(self) -> Tag {
        match self {
            Owner::Client(key) => Tag(key.to_u64() << 1),
            Owner::Upstream(key) => Tag(key.to_u64() << 1 | 1),
        }
    }
}

/// What the shard does when it takes a completion.
pub(super) fn doing(completion: &Completion) -> Doing {
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
        Owner::Upstream(_) => Doing::ServesEngine,
    }
}
