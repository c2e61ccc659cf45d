//! How far an engine is known by its events, and what follows for the index.

use super::socket::{Course, Socket};
use super::{Hearing, Inner};
use crate::control::ladder::Tells;
use crate::mirror::Mirror;

/// The part of its blocks, in percent, that has to be known of an engine before it is believed again after missed
/// events.
const KNOWN_PERCENT: u64 = 95;

impl Hearing {
    /// Tells the fleet how far the engine is known, and has the index hold that. `again`: also if that was tried in
    /// vain.
    pub(super) async fn settle(&self, again: bool) {
        self.doubt(&mut self.inner());
        let (tells, retells) = self.judge(again, &mut self.inner());
        if retells {
            self.retell().await;
        }
        let mut inner = self.inner();
        if tells != Tells::All || !inner.owed.is_lost() {
            self.say(tells, &mut inner);
        }
        self.doubt(&mut inner);
    }

    /// Takes an engine's rung back if the index lost its entries: it would be believed in full, and taken for cold.
    fn doubt(&self, inner: &mut Inner) {
        if inner.owed.is_lost() && inner.tells == Tells::All {
            self.say(Tells::Replaying, inner);
        }
    }

    /// How far it is known, and whether all of that has to be noted in the index again.
    fn judge(&self, again: bool, inner: &mut Inner) -> (Tells, bool) {
        let heard = inner.sockets.iter().all(|socket| socket.course == Course::Heard);
        let silent = inner.sockets.iter().any(|socket| socket.course == Course::Silent);
        // Without a replay socket its next message has to be waited for, which may come in an hour.
        let asked = inner.sockets.iter().any(Socket::is_asked);
        let tells = match (heard, silent) {
            (true, _) if self.is_whole(inner) => Tells::All,
            (false, false) if asked => Tells::Replaying,
            _ => Tells::Nothing,
        };
        // What was sent there counts beside what it tells until it has told all, and alone if it tells nothing of what
        // prompts find.
        let partial = inner.any(Mirror::is_partial);
        if partial {
            self.distrust(inner);
        }
        let begins = tells == Tells::All && inner.tells != Tells::All;
        let lost = inner.owed.is_lost();
        let retells = heard && !partial && if lost { again } else { begins || !inner.is_noted };
        if retells {
            if begins || lost {
                self.empty(inner);
            }
            self.note(inner);
        }
        (tells, retells)
    }

    fn is_whole(&self, inner: &Inner) -> bool {
        let known: u64 = inner.ranks.values().map(|rank| u64::from(rank.mirror.blocks())).sum();
        let all_known = inner.blocks > 0 && known * 100 >= u64::from(inner.blocks) * KNOWN_PERCENT;
        let whole = inner.sockets.iter().all(Socket::is_whole) && !inner.any(Mirror::overflowed);
        let trusted = !inner.any(Mirror::is_overfull) && !inner.any(Mirror::is_partial) && !inner.silence.lasts();
        (whole || all_known) && trusted
    }
}
