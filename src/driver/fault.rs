//! What was told of a broken connection.

use super::{Completion, Tag};

/// The worst that was told, each once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug, Default)]
pub(super) enum Fault {
    #[default]
    None,
    Reset,
    /// Nothing is told behind it.
    Failed,
}

impl Fault {
    /// Tells of `fault`, unless that or worse was told before.
    pub(super) fn tell(&mut self, fault: Fault, tag: Tag) -> Option<Completion> {
        if *self >= fault {
            return None;
        }
        *self = fault;
        Some(if fault == Fault::Failed { Completion::Failed(tag) } else { Completion::Reset(tag) })
    }
}
