//! When clients are given up: the wheel looks at each by its deadline.

use super::Shard;
use super::drive::Input;
use crate::driver::Driver;
use crate::exchange::{self, Event, Micros};
use crate::slots::Key;

impl<D: Driver> Shard<D> {
    /// Has the wheel look at this client by its deadline, unless it does so before anyway.
    pub(super) fn arm(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && client.due() < client.armed
        {
            client.armed = self.timers.arm(key, client.due());
        }
    }

    pub(super) fn look_at_deadlines(&mut self) {
        let due = self.timers.expire(self.desk.now);
        for &key in &due {
            let Some(client) = self.clients.get_mut(key) else { continue };
            // A look of before the deadline moved forward; the one that counts is still to come.
            if client.armed > self.desk.now {
                continue;
            }
            client.armed = Micros::MAX;
            if client.due() <= self.desk.now {
                self.client_overdue(key);
            }
            self.arm(key);
        }
        self.timers.done(due);
    }

    fn client_overdue(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        if client.exchange.is_some() {
            let acknowledged = self.acknowledged(client.upstream);
            self.advance(key, Input::None, |_| Event::Deadline { acknowledged });
            return;
        }
        if client.lingering.is_none() && !client.has_nothing_ahead() && !client.full {
            // Half a head: say so before closing.
            self.desk.actions.clear();
            let since = client.head_since.unwrap_or(self.desk.now);
            exchange::refuse_slow_head(&client.ahead, client.peer, since, &mut self.desk.context());
            return self.drive(key, Input::None);
        }
        self.close_client(key);
    }
}
