//! Asking an engine again for what it has published: a request to its ROUTER, and answers up to its end mark.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::connection::{Came, Connection, Ended, Peer};
use super::settings::{Endpoint, Pace};
use super::zmtp::Role;

/// Connections made for one replay, before what it asked for is given up.
const TRIES_MAX: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    /// Messages of this rank; none: of whichever there are.
    pub rank: Option<u32>,
    /// From this number on.
    pub from: u64,
    /// Nothing from this number on is missing; none: all there is.
    pub until: Option<u64>,
    /// `from` is known already: that it comes again shows that the engine is the same.
    pub known: bool,
}

#[derive(Debug)]
pub(super) struct Replay {
    pub ask: Ask,
    /// Number of the answer that has been read and not yet judged.
    pub answer: Option<u64>,
    /// Whether there was any answer of the rank.
    pub heard: bool,
    connection: Option<Connection>,
    /// Whether this connection has brought what came next.
    progress: bool,
    tries: u32,
    ends: Option<Instant>,
}

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// A message with this number; its payload is [`Replay::payload`].
    Message(u64),
    /// There is no more.
    End,
    /// Neither.
    Nonsense,
}

impl Replay {
    pub(super) fn new(ask: Ask) -> Replay {
        Replay { ask, answer: None, heard: false, connection: None, progress: false, tries: 0, ends: None }
    }

    /// The next answer. `next`: from where on to ask where a connection is made anew. None: the engine does not answer.
    pub(super) async fn next(&mut self, at: &Endpoint, peer: &Peer, pace: &Pace, next: u64) -> Option<Answer> {
        let ends = *self.ends.get_or_insert_with(|| Instant::now() + pace.replay);
        loop {
            let may_try = self.connection.is_some() || self.tries < TRIES_MAX;
            let left = ends.checked_duration_since(Instant::now()).filter(|_| may_try)?;
            match timeout(left.min(pace.answer), self.turn(at, peer, pace, next)).await {
                Ok(Ok(())) => return Some(self.read()),
                _ => {
                    self.again();
                    sleep(BETWEEN_TRIES.min(left)).await;
                }
            }
        }
    }

    /// The answer has been applied.
    pub(super) fn progressed(&mut self) {
        (self.answer, self.progress) = (None, true);
    }

    /// Has the rest asked for again, on a new connection. False: nothing has come of this one, and nothing else would
    /// of another.
    ///
    /// A ROUTER drops what does not fit into its queue, 1,000 messages by default, and vLLM answers with 10,000 at
    /// once: a hole behind an answer that fitted is such a loss, not the end of what the engine has.
    pub(super) fn again(&mut self) -> bool {
        if self.progress {
            self.tries = 0;
        }
        (self.connection, self.answer) = (None, None);
        std::mem::take(&mut self.progress)
    }

    /// Whether more may come of asking again.
    pub(super) fn has_progress(&self) -> bool {
        self.progress
    }

    /// Bytes of memory held for the engine.
    pub(super) fn held(&self) -> usize {
        self.connection.as_ref().map_or(0, Connection::held)
    }

    /// Of the last answer.
    pub(super) fn payload(&self) -> &[u8] {
        self.connection.as_ref().and_then(|connection| connection.message().next_back()).unwrap_or_default()
    }

    /// Whether the last answer is of this topic, for which it would be published, too; before vLLM 0.26 none says.
    pub(super) fn has_topic(&self, topic: &str) -> bool {
        let Some(mut frames) = self.connection.as_ref().map(Connection::message) else { return true };
        frames.len() < 4 || frames.nth(1).is_some_and(|its| its.starts_with(topic.as_bytes()))
    }

    async fn turn(&mut self, at: &Endpoint, peer: &Peer, pace: &Pace, next: u64) -> Result<(), Ended> {
        if self.connection.is_none() {
            self.tries += 1;
            let mut connection = Connection::connected(at, peer, Role::Dealer, *pace).await?;
            // The empty frame is what a REQ socket puts before its request; without it vLLM drops the request silently.
            connection.send(&[b"", &next.to_be_bytes()]);
            self.connection = Some(connection);
        }
        let Some(connection) = &mut self.connection else { return Err(Ended::Closed) };
        while connection.came().await? != Came::Message {}
        Ok(())
    }

    /// `[empty, topic, number, payload]`, and without the topic before vLLM 0.26: from the end they are alike.
    fn read(&self) -> Answer {
        let Some(connection) = &self.connection else { return Answer::Nonsense };
        let mut frames = connection.message();
        if !(3..=4).contains(&frames.len()) {
            return Answer::Nonsense;
        }
        let (payload, number) = (frames.next_back().unwrap_or_default(), frames.next_back().unwrap_or_default());
        match number.first_chunk().filter(|_| number.len() == 8).map(|number| i64::from_be_bytes(*number)) {
            Some(-1) if payload.is_empty() => Answer::End,
            Some(number) => u64::try_from(number).map_or(Answer::Nonsense, Answer::Message),
            None => Answer::Nonsense,
        }
    }
}
