//! Asks an engine again for what it has published: a request to its ROUTER socket, and answers up to its end mark.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::connection::{Came, Connection, Ended, Peer};
use super::settings::{Endpoint, Pace};
use super::zmtp::Role;

/// Most connections made in vain for one replay; then it is given up.
const TRIES_MAX: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// What a replay asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    /// The rank whose messages are asked for; `None`: all ranks'.
    pub rank: Option<u32>,
    /// The first number that is asked for.
    pub from: u64,
    /// The first number that is not missing any more; `None`: all there are.
    pub until: Option<u64>,
    /// Whether message `from` is known already: if it comes again, the engine is the same process.
    pub known: bool,
}

#[derive(Debug)]
pub(super) struct Replay {
    pub ask: Ask,
    /// Number of the answer that was read and is still to be judged.
    pub answer: Option<u64>,
    /// Whether any answer from number `from` on was of the rank.
    pub heard: bool,
    connection: Option<Connection>,
    /// Whether an answer of this connection was applied.
    progress: bool,
    tries: u32,
    ends: Option<Instant>,
}

/// One answer to a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// A message with this number; its payload is [`Replay::payload`].
    Message(u64),
    /// The end mark.
    End,
    /// A malformed answer.
    Nonsense,
}

impl Replay {
    pub(super) fn new(ask: Ask) -> Replay {
        Replay { ask, answer: None, heard: false, connection: None, progress: false, tries: 0, ends: None }
    }

    /// Returns the next answer; `None` if the engine does not answer. `next`: the first number to ask for on a new
    /// connection.
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

    /// Notes that the answer was applied.
    pub(super) fn progressed(&mut self) {
        (self.answer, self.progress) = (None, true);
    }

    /// Has the rest asked for again, on a new connection. False: no answer of the last one was applied, so that another
    /// would bring nothing else.
    ///
    /// A ROUTER drops what does not fit into its queue, 1,000 messages by default, and vLLM answers with 10,000 at
    /// once: a hole after answers that fitted is such a loss, not the end of what the engine has.
    pub(super) fn again(&mut self) -> bool {
        if self.progress {
            self.tries = 0;
        }
        (self.connection, self.answer) = (None, None);
        std::mem::take(&mut self.progress)
    }

    /// Whether asking again may bring more.
    pub(super) fn has_progress(&self) -> bool {
        self.progress
    }

    /// Bytes of memory held for the engine.
    pub(super) fn held(&self) -> usize {
        self.connection.as_ref().map_or(0, Connection::held)
    }

    /// The payload of the last answer.
    pub(super) fn payload(&self) -> &[u8] {
        self.connection.as_ref().and_then(|connection| connection.message().next_back()).unwrap_or_default()
    }

    /// Whether the last answer's topic begins with this one, as that of published messages does. Before vLLM 0.26
    /// answers have no topic, and it is true.
    pub(super) fn has_topic(&self, topic: &str) -> bool {
        let Some(mut frames) = self.connection.as_ref().map(Connection::message) else { return true };
        frames.len() < 4 || frames.nth(1).is_some_and(|its| its.starts_with(topic.as_bytes()))
    }

    async fn turn(&mut self, at: &Endpoint, peer: &Peer, pace: &Pace, next: u64) -> Result<(), Ended> {
        if self.connection.is_none() {
            self.tries += 1;
            let mut connection = Connection::connected(at, peer, Role::Dealer, *pace).await?;
            // A REQ socket puts an empty frame before its request; without it vLLM drops the request silently.
            connection.send(&[b"", &next.to_be_bytes()]);
            self.connection = Some(connection);
        }
        let Some(connection) = &mut self.connection else { return Err(Ended::Closed) };
        while connection.came().await? != Came::Message {}
        Ok(())
    }

    /// Reads `[empty, topic, number, payload]`, from the end, as the topic is missing before vLLM 0.26.
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
