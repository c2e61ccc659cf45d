//! Counts of what a subscription has seen and done.

use super::batch::Skipped;
use super::connection::Ended;
use super::msgpack::Malformed;

/// Counts since the subscription began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections whose handshake was done.
    pub connected: u64,
    /// Attempts that found no connection.
    pub unreachable: u64,
    /// Attempts for which the front had no descriptor or memory left.
    pub wanting: u64,
    /// Connections that the peer ended.
    pub closed: u64,
    /// Handshakes that took too long.
    pub slow: u64,
    /// Connections without a sign of life.
    pub silent: u64,
    /// Connections ended because of what the peer sent.
    pub broken: u64,
    /// Strangers at the other end that were reported: peers with an address not known as the engine's.
    pub strangers: u64,
    /// Messages published to us.
    pub messages: u64,
    /// Batches handed on, replayed ones among them.
    pub batches: u64,
    /// Batches that came by a replay.
    pub replayed: u64,
    /// Messages that are not three frames with our topic and a number, answers that are malformed, ranks beyond the
    /// bound.
    pub refused: u64,
    /// Payloads that make no sense.
    pub malformed: u64,
    /// The last such payload, or answer of another topic, since the connection, or the engine, began anew. Nobody can
    /// say of which rank it is, and by its number it is only missed if a readable message of that rank follows.
    pub unread: Option<Malformed>,
    /// Events of unknown types, passed over.
    pub unknown_events: u64,
    /// Unknown fields, passed over.
    pub unknown_fields: u64,
    /// How often messages were found missing before another.
    pub holes: u64,
    /// Replays begun.
    pub replays: u64,
    /// Replays that were not answered to their end.
    pub replays_failed: u64,
    /// Engines that began anew.
    pub restarts: u64,
    /// Holes that were given up.
    pub incomplete: u64,
}

impl Counts {
    /// Adds the counts of another subscription, except `unread`.
    pub fn add(&mut self, other: &Counts) {
        // Destructured in full, so that the compiler asks for each new count.
        let Counts {
            connected,
            unreachable,
            wanting,
            closed,
            slow,
            silent,
            broken,
            strangers,
            messages,
            batches,
            replayed,
            refused,
            malformed,
            unknown_events,
            unknown_fields,
            holes,
            replays,
            replays_failed,
            restarts,
            incomplete,
            unread: _,
        } = other;
        self.connected += connected;
        self.unreachable += unreachable;
        self.wanting += wanting;
        self.closed += closed;
        self.slow += slow;
        self.silent += silent;
        self.broken += broken;
        self.strangers += strangers;
        self.messages += messages;
        self.batches += batches;
        self.replayed += replayed;
        self.refused += refused;
        self.malformed += malformed;
        self.unknown_events += unknown_events;
        self.unknown_fields += unknown_fields;
        self.holes += holes;
        self.replays += replays;
        self.replays_failed += replays_failed;
        self.restarts += restarts;
        self.incomplete += incomplete;
    }

    pub(super) fn connected(&mut self) {
        self.connected += 1;
        self.unread = None;
    }

    pub(super) fn malformed(&mut self, what: Malformed) {
        self.malformed += 1;
        self.unread = Some(what);
    }

    /// Notes an answer of a topic that was not asked for. Ours may be misspelt, in which case the engine's messages are
    /// not published to us.
    pub(super) fn other_topic(&mut self) {
        self.refused += 1;
        self.unread = Some(Malformed { at: 0, what: "its topic does not begin with the one asked for (`kv_topic`)" });
    }

    pub(super) fn ended(&mut self, why: &Ended) {
        *match why {
            Ended::Unreachable(_) | Ended::Unknown(..) => &mut self.unreachable,
            Ended::Want(_) => &mut self.wanting,
            Ended::Closed => &mut self.closed,
            Ended::Slow => &mut self.slow,
            Ended::Silent => &mut self.silent,
            Ended::Broken(_) => &mut self.broken,
            Ended::Stranger(_) => &mut self.strangers,
        } += 1;
    }

    pub(super) fn skipped(&mut self, skipped: Skipped) {
        self.unknown_events += skipped.events;
        self.unknown_fields += skipped.fields;
    }
}
