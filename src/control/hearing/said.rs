//! What is said, when it begins, of an engine whose events fall short: its rung alone would not tell why.

use std::sync::Arc;
use std::time::Instant;

use super::socket::Socket;
use super::{Hearing, Inner};
use crate::control::ladder::Tells;
use crate::kvevents::Ended;
use crate::limits::KV_STRANGERS_MAX;
use crate::mirror::Mirror;

impl Hearing {
    /// What it publishes at may be misspelt, or another's; and of strangers, each of whom may be the engine.
    /// Of one that was heard before its rung tells.
    pub(super) fn say_unheard(&self, socket: usize, why: Ended, inner: &mut Inner) {
        let never = |socket: &&Socket| !socket.has_connected();
        let stranger = match why {
            // It says nothing of the engine.
            Ended::Want(_) => return,
            Ended::Stranger(who) => Some(who),
            _ => None,
        };
        let said = &inner.said_unheard;
        let is_said = said.contains(&stranger) || (stranger.is_some() && said.len() > KV_STRANGERS_MAX);
        let Some(socket) = inner.sockets.get(socket).filter(never).filter(|_| !is_said) else { return };
        tracing::warn!(
            engine = self.name().as_deref().unwrap_or_default(),
            at = socket.at,
            %why,
            "this engine's KV events are not heard; that is tried again, and until then it is chosen for as by policy warm, by what was sent there"
        );
        inner.said_unheard.push(stranger);
    }

    /// It tells of no layers that see all of a prompt.
    pub(super) fn say_partial(&self) {
        let mut inner = self.inner();
        if !inner.any(Mirror::is_partial) {
            inner.partial.over();
            return;
        }
        if !inner.partial.troubled(Instant::now()) {
            return;
        }
        tracing::warn!(
            engine = self.name().as_deref().unwrap_or_default(),
            "this engine's KV events are of layers alone that see a part of a prompt (windows, states), which do not say what a prompt finds there: until it tells of others it is chosen for as by policy \"warm\", by what was sent there; that is the policy to set for such a model"
        );
    }

    /// It speaks in a way that is not known here, or sends nonsense.
    pub(super) fn say_unread(&self, inner: &mut Inner) {
        let why = inner.sockets.iter().find_map(|socket| socket.counts.unread);
        // A new connection alone has read nothing yet.
        if why.is_none() && inner.tells == Tells::All {
            inner.unread.over();
        }
        let Some(why) = why.filter(|_| inner.unread.troubled(Instant::now())) else { return };
        tracing::warn!(
            engine = self.name().as_deref().unwrap_or_default(),
            %why,
            "this engine's KV events cannot all be read: for as long as something of them is missing it is chosen for as by policy warm, by what was sent there"
        );
    }

    /// What is listened to may be another's.
    pub(super) fn say_silent(&self, inner: &mut Inner) {
        if !inner.silence.lasts() {
            inner.silent.over();
            return;
        }
        if !inner.silent.troubled(Instant::now()) {
            return;
        }
        tracing::warn!(
            engine = self.name().as_deref().unwrap_or_default(),
            "this engine is connected, and tells no KV events while it serves, as it counts in its /metrics: `kv_events`, `kv_replay` or `kv_topic` may be another's; until it tells something it is chosen for as by policy warm, by what was sent there"
        );
    }

    fn name(&self) -> Option<Arc<str>> {
        self.keeper.fleet().member(self.place).map(|member| Arc::clone(&member.name))
    }
}
