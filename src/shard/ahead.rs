//! Bytes of clients that were read ahead of their turn: how they are kept and served, and when no more are read.

use super::Shard;
use super::client::Client;
use super::drive::Input;
use crate::counters::stats::Count;
use crate::driver::Driver;
use crate::exchange::{self, Event, Lender, Phase};
use crate::slots::Key;

/// Half a head of this length is kept whatever else is held: most are shorter, and come in one piece.
const HALF_HEAD_FREE: usize = 16 << 10;

/// Most clients of the line that are served in one turn: each may have sixteen heads that are answered here.
const SERVED_MAX: usize = 64;

impl Client {
    /// Keeps more of what is read ahead of its turn, on the shard's account.
    pub(super) fn keep_ahead(&mut self, bytes: &[u8], lender: &mut Lender) {
        let before = self.ahead.capacity();
        self.ahead.extend_from_slice(bytes);
        lender.held_bytes += self.ahead.capacity() - before;
    }

    /// Takes what was kept out of the shard's account: it is served now, or dropped.
    pub(super) fn take_ahead(&mut self, lender: &mut Lender) -> Vec<u8> {
        lender.held_bytes -= self.ahead.capacity();
        std::mem::take(&mut self.ahead)
    }

    /// Whether nothing was read ahead of the exchange's end: no further request, of which line ends alone are none, and
    /// no first bytes of a tunnel, which may be any.
    pub(super) fn has_nothing_for_later(&self) -> bool {
        match self.exchange.as_ref().is_some_and(|exchange| exchange.offers_upgrade()) {
            true => self.ahead.is_empty(),
            false => self.ahead.iter().all(|byte| matches!(byte, b'\r' | b'\n')),
        }
    }
}

impl<D: Driver> Shard<D> {
    /// Has what was read ahead served at the end of this turn, or of the next if that end has begun: once, however
    /// often it is asked for.
    pub(super) fn serve_later(&mut self, key: Key) {
        if let Some(client) = self.clients.get_mut(key)
            && !std::mem::replace(&mut client.in_line, true)
        {
            self.line.push_back(key);
        }
    }

    /// Serves the first clients of the line.
    pub(super) fn serve_line(&mut self) {
        for _ in 0..self.line.len().min(SERVED_MAX) {
            let Some(key) = self.line.pop_front() else { return };
            if let Some(client) = self.clients.get_mut(key) {
                client.in_line = false;
                self.serve_read_ahead(key);
            }
        }
    }

    /// Serves what was read ahead.
    pub(super) fn serve_read_ahead(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.exchange.is_some() || client.full || client.lingering.is_some() {
            return;
        }
        client.had_its_turn = false;
        if std::mem::take(&mut client.held_back) {
            self.driver.resume(client.socket);
        }
        let ahead = client.take_ahead(&mut self.desk.lender);
        self.serve(key, Input::Owned(&ahead));
        let Some(client) = self.clients.get(key).filter(|client| client.ended) else { return };
        let over = client.exchange.is_none() && client.lingering.is_none() && !client.in_line;
        if client.exchange.as_ref().is_some_and(|exchange| exchange.reads_request()) {
            // Its FIN came before its turn: the rest of it never will.
            self.advance_by(key, Event::ClientEnded);
        } else if over && !self.is_full(key) {
            // Its last request was served, or will never be complete.
            self.close_client(key);
        }
    }

    /// What came behind an upgrade before its 101 was read ahead, and is the tunnel's; so is a FIN.
    pub(super) fn serve_early(&mut self, key: Key) {
        let waits = |client: &&mut Client| client.ended || !client.ahead.is_empty();
        let Some(client) = self.clients.get_mut(key).filter(waits) else { return };
        let tunnel = client.exchange.as_ref().filter(|exchange| exchange.phase() == Phase::Tunnel);
        let Some(knows_of_end) = tunnel.map(|exchange| exchange.knows_client_ended()) else { return };
        if std::mem::take(&mut client.held_back) {
            self.driver.resume(client.socket);
        }
        let ended = client.ended && !knows_of_end;
        let ahead = client.take_ahead(&mut self.desk.lender);
        self.serve(key, Input::Owned(&ahead));
        if ended {
            self.advance_by(key, Event::ClientEnded);
        }
    }

    /// Keeps what does not belong to an exchange yet.
    pub(super) fn read_on(&mut self, key: Key, input: Input<'_>) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let rest = input.bytes(&self.driver);
        client.keep_ahead(rest, &mut self.desk.lender);
        if client.has_nothing_ahead() {
            return;
        }
        if !rest.is_empty() {
            client.head_since.get_or_insert(self.desk.now);
        }
        // A client that is still reading the reply before has time for that.
        if client.exchange.is_none() && !client.full && !rest.is_empty() {
            let from_now = self.desk.now + self.desk.rules.limits.head_timeout_ms * 1_000;
            // More of it does not move its deadline.
            if !std::mem::replace(&mut client.head_is_timed, true) {
                client.deadline = from_now;
            }
            self.arm(key);
        }
    }

    /// Where too much is kept: no more is read of requests that wait for others, and half a head is refused.
    pub(super) fn hold_back(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.exchange.is_none() && !client.full && !client.had_its_turn && !client.in_line {
            return self.refuse_over_budget(key);
        }
        // Where nothing may be read ahead the first bytes are: it has to be seen that they came.
        let most = self.desk.rules.limits.read_ahead_bytes.max(1);
        if client.ahead.len() >= most && !client.held_back {
            client.held_back = true;
            self.desk.stats.count(Count::HeldBack);
            self.driver.pause(client.socket);
        }
    }

    /// Half a long head, while others hold as much as may be. One alone is let come however small the budget is.
    fn refuse_over_budget(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        let others = self.desk.lender.held_bytes - client.ahead.capacity();
        if client.ahead.len() > HALF_HEAD_FREE && others > self.desk.lender.budget_bytes {
            let (half, peer, since) = (&client.ahead, client.peer, client.head_since.unwrap_or(self.desk.now));
            self.desk.read_head(peer, since, |cx| exchange::refuse_half_head(half, peer, since, cx));
            self.drive(key, Input::None);
        }
    }
}
