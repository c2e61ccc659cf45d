//! Log lines for an engine whose events fall short, when that begins: its rung alone would not tell why.

use std::sync::Arc;
use std::time::Instant;

use super::socket::Socket;
use super::{Hearing, Inner};
use crate::control::ladder::Tells;
use crate::kvevents::Ended;
use crate::limits::KV_STRANGERS_MAX;
use crate::mirror::Mirror;

impl Hearing {
    /// Says why a socket is not heard: its address may be misspelt or another's, or strangers connect there, each of
    /// which may be the engine. Not said of a socket that was heard before, which its rung tells.
    pub(super) fn say_unheard(&self, socket: usize, why: Ended, inner: &mut Inner) {
        let never = |socket: &&Socket| !socket.has_connected();
        let stranger = match why {
            // A want of this machine's says nothing of the engine.
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

    /// Says if it tells of no layers that see all of a prompt.
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
            "this engine's KV events are only of layers that see a part of a prompt (windows, states), which do not say what a prompt finds there: until it tells of others it is chosen for as by policy \"warm\", by what was sent there; that is the policy to set for such a model"
        );
    }

    /// Says if some of its events cannot be read.
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

    /// Says if it tells nothing while it computes: the address that is listened to may be another engine's.
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
            "this engine is connected, but tells no KV events though it serves, by its /metrics: `kv_events`, `kv_replay` or `kv_topic` may be another's; until it tells something it is chosen for as by policy warm, by what was sent there"
        );
    }

    fn name(&self) -> Option<Arc<str>> {
        self.keeper.fleet().member(self.place).map(|member| Arc::clone(&member.name))
    }
}
