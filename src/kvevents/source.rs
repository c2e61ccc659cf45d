//! One engine's events in order: what its subscription brings, and what a replay brings to fill its holes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::batch::Batch;
use super::connection::{Came, Connection, Ended, Peer};
use super::counts::Counts;
use super::door::Door;
use super::msgpack::Malformed;
use super::replay::{Answer, Ask, Replay};
use super::sequence::{Sequence, Verdict};
use super::settings::{Pace, Settings};
use super::told::{Hole, Reached, Told};
use super::zmtp::Role;
use crate::limits::KV_RANKS_MAX;

/// A subscription. It works only while it is asked for news: it starts no tasks, except for handshakes of engines that
/// connect to us.
#[derive(Debug)]
pub struct Source {
    settings: Settings,
    pace: Pace,
    door: Door,
    connection: Option<Connection>,
    sequences: Vec<(u32, Sequence)>,
    live: Batch,
    /// The number of `live`, until it is applied or dropped.
    pending: Option<u64>,
    /// Why the replay for `pending` did not fill the hole, if there was one.
    asked: Option<Hole>,
    replay: Option<Replay>,
    replayed: Batch,
    /// Replays of other ranks, to come after this one.
    asks: Vec<Ask>,
    /// Whether the replays asked for when the connection began have not ended yet.
    is_behind: bool,
    counts: Counts,
}

/// [`Told`] without what it borrows.
enum News {
    Connected,
    Abreast,
    Live,
    Replayed,
    Restarted(u32),
    Incomplete(u32, Hole),
    Malformed(Malformed),
    Offline(Ended),
}

impl Source {
    /// Makes a subscription to the socket that `settings` name. It must be asked on a tokio runtime with time and I/O.
    pub fn new(settings: Settings, pace: Pace) -> Source {
        let role = Role::Subscriber(settings.topic.clone().into_bytes());
        let peer = Peer { addresses: settings.peers.clone(), host: String::new() };
        let door = Door::new(settings.events.clone(), peer, role, pace);
        Source {
            settings,
            pace,
            door,
            connection: None,
            sequences: Vec::new(),
            live: Batch::default(),
            pending: None,
            asked: None,
            replay: None,
            replayed: Batch::default(),
            asks: Vec::new(),
            is_behind: false,
            counts: Counts::default(),
        }
    }

    /// Sets the engine's host name: if its events come from that host, [`Settings::peers`] are tried in their order,
    /// without a look-up.
    #[must_use]
    pub fn called(mut self, host: String) -> Source {
        self.door.set_host(host);
        self
    }

    /// Goes on where an earlier process of ours left off, whose applied messages are known.
    #[must_use]
    pub fn resumed(mut self, reached: &[Reached]) -> Source {
        let known = reached.iter().take(KV_RANKS_MAX);
        self.sequences =
            known.map(|known| (known.rank, Sequence::resumed(known.next, known.time, known.is_whole))).collect();
        self
    }

    /// Writes how far it has come, by rank.
    pub fn reached(&self, into: &mut Vec<Reached>) {
        let each = self.sequences.iter().map(|(rank, sequence)| Reached {
            rank: *rank,
            next: sequence.next(),
            time: sequence.time(),
            is_whole: sequence.is_complete(),
        });
        into.clear();
        into.extend(each);
    }

    /// Returns the next news. The future may be dropped while it waits: nothing is lost except an attempt to connect.
    pub async fn told(&mut self) -> Told<'_> {
        match self.news().await {
            News::Connected => Told::Connected,
            News::Abreast => Told::Abreast,
            News::Live => Told::Batch(&self.live),
            News::Replayed => Told::Batch(&self.replayed),
            News::Restarted(rank) => Told::Restarted { rank },
            News::Incomplete(rank, why) => Told::Incomplete { rank, why },
            News::Malformed(what) => Told::Malformed(what),
            News::Offline(why) => Told::Offline(why),
        }
    }

    /// Counts of what it has seen and done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of strangers turned away without any news, beside those in the counts: for a while they may be all that
    /// comes.
    pub fn turned_away(&self) -> &Arc<AtomicU64> {
        self.door.turned_away()
    }

    /// Whether no message of the rank was missed since its process began, or since it last emptied its cache.
    pub fn is_complete(&self, rank: u32) -> bool {
        self.sequences.iter().any(|(known, sequence)| *known == rank && sequence.is_complete())
    }

    /// Whether earlier messages are being asked for.
    pub fn is_behind(&self) -> bool {
        self.is_behind || self.replay.is_some() || !self.asks.is_empty()
    }

    /// Bytes of memory held for connections, batches not counted.
    pub fn held(&self) -> usize {
        self.connection.as_ref().map_or(0, Connection::held) + self.replay.as_ref().map_or(0, Replay::held)
    }

    /// Returns the next news, older events first: what a replay brings, then further replays, then that nothing older
    /// is missing, then the pending message, which may have waited for these. Only then the next message is received.
    async fn news(&mut self) -> News {
        loop {
            let news = if self.replay.is_some() {
                self.replaying().await
            } else if let Some(ask) = self.asks.pop() {
                self.counts.replays += 1;
                self.replay = Some(Replay::new(ask));
                None
            } else if std::mem::take(&mut self.is_behind) {
                Some(News::Abreast)
            } else if let Some(number) = self.pending {
                self.judge(number)
            } else if self.connection.is_some() {
                self.receive().await
            } else {
                match self.door.opened().await {
                    Ok(connection) => Some(self.connected(connection)),
                    Err(why) => Some(self.offline(why)),
                }
            };
            if let Some(news) = news {
                return news;
            }
        }
    }

    fn connected(&mut self, connection: Connection) -> News {
        self.counts.connected();
        self.connection = Some(connection);
        if self.settings.replay.is_some() {
            // The last known message is asked for again: if it comes, the engine is the same process.
            let known = |(rank, sequence): &(u32, Sequence)| {
                let last = sequence.next().checked_sub(1);
                Ask { rank: Some(*rank), from: last.unwrap_or(0), until: None, known: last.is_some() }
            };
            self.asks = self.sequences.iter().map(known).collect();
            if self.asks.is_empty() {
                self.asks.push(Ask { rank: None, from: 0, until: None, known: false });
            }
            self.is_behind = true;
        }
        News::Connected
    }

    fn offline(&mut self, why: Ended) -> News {
        (self.connection, self.is_behind) = (None, false);
        self.counts.ended(&why);
        News::Offline(why)
    }

    async fn receive(&mut self) -> Option<News> {
        let connection = self.connection.as_mut()?;
        let came = tokio::select! {
            came = connection.came() => came,
            another = self.door.replaced() => return match another {
                Ok(connection) => Some(self.connected(connection)),
                Err(why) => {
                    self.counts.ended(&why);
                    None
                }
            },
        };
        match came {
            Ok(Came::Message) => self.message(),
            Ok(Came::Open) => None,
            Err(why) => Some(self.offline(why)),
        }
    }

    /// Reads a published message: topic, number, payload.
    fn message(&mut self) -> Option<News> {
        let connection = self.connection.as_ref()?;
        self.counts.messages += 1;
        let mut frames = connection.message();
        let (count, [topic, number, payload]) =
            (frames.len(), std::array::from_fn(|_| frames.next().unwrap_or_default()));
        let number = number.first_chunk().filter(|_| count == 3 && number.len() == 8);
        let number = number.and_then(|number| u64::try_from(i64::from_be_bytes(*number)).ok());
        let Some(number) = number.filter(|_| topic.starts_with(self.settings.topic.as_bytes())) else {
            self.counts.refused += 1;
            return None;
        };
        self.door.proved();
        match self.live.read(payload) {
            Ok(()) => {
                (self.pending, self.asked) = (Some(number), None);
                None
            }
            Err(what) => {
                self.counts.malformed(what);
                Some(News::Malformed(what))
            }
        }
    }

    /// Decides what becomes of the pending message.
    fn judge(&mut self, number: u64) -> Option<News> {
        let (rank, time) = (self.live.rank(), self.live.time());
        let Some(sequence) = sequence_of(&mut self.sequences, rank) else {
            self.counts.refused += 1;
            self.pending = None;
            return None;
        };
        match sequence.live(number, time) {
            Verdict::Next => {
                sequence.applied(time, self.live.clears());
                self.pending = None;
                self.counts.batches += 1;
                self.counts.skipped(self.live.skipped());
                Some(News::Live)
            }
            Verdict::Duplicate => {
                self.pending = None;
                None
            }
            Verdict::Restarted => {
                *sequence = Sequence::new();
                self.counts.restarts += 1;
                Some(News::Restarted(rank))
            }
            Verdict::Hole => {
                let from = sequence.next();
                let why = match self.asked {
                    Some(why) => why,
                    None => {
                        self.counts.holes += 1;
                        if self.settings.replay.is_some() {
                            self.asks.push(Ask { rank: Some(rank), from, until: Some(number), known: false });
                            return None;
                        }
                        Hole::NotOffered
                    }
                };
                sequence.give_up_before(number);
                self.counts.incomplete += 1;
                Some(News::Incomplete(rank, why))
            }
        }
    }

    /// Takes one step of the replay.
    async fn replaying(&mut self) -> Option<News> {
        let (replay, at) = (self.replay.as_mut()?, self.settings.replay.as_ref()?);
        if let Some(number) = replay.answer {
            return self.judge_replayed(number);
        }
        let Ask { rank, from, known, .. } = replay.ask;
        let reached =
            rank.and_then(|rank| sequence_of(&mut self.sequences, rank)).map_or(0, |sequence| sequence.next());
        let next = if known && !replay.heard { from } else { reached.max(from) };
        match replay.next(at, self.door.peer(), &self.pace, next).await {
            Some(Answer::Message(_)) if !replay.has_topic(&self.settings.topic) => self.counts.other_topic(),
            Some(Answer::Message(number)) => match self.replayed.read(replay.payload()) {
                Ok(()) => replay.answer = Some(number),
                // It is not the message known before, which made sense.
                Err(what) => self.counts.malformed(what),
            },
            Some(Answer::Nonsense) => self.counts.refused += 1,
            Some(Answer::End) => return self.replay_ended(),
            None => {
                self.counts.replays_failed += 1;
                self.asked = Some(Hole::Unanswered);
                (self.replay, self.is_behind) = (None, false);
            }
        }
        None
    }

    fn judge_replayed(&mut self, number: u64) -> Option<News> {
        let replay = self.replay.as_mut()?;
        let (rank, time) = (self.replayed.rank(), self.replayed.time());
        let others = replay.ask.rank.is_some_and(|asked| asked != rank);
        let sequence = sequence_of(&mut self.sequences, rank).filter(|_| !others);
        let Some(sequence) = sequence else {
            self.counts.refused += u64::from(!others);
            replay.answer = None;
            return None;
        };
        // An answer before `from`, which was not asked for, says nothing of the messages that were.
        replay.heard |= number >= replay.ask.from;
        match sequence.replayed(number, time) {
            Verdict::Next => {
                sequence.applied_replayed(time, self.replayed.clears());
                replay.progressed();
                // Answers are of this rank: only its rest is asked for again.
                replay.ask.rank = Some(rank);
                if replay.ask.until.is_some_and(|until| sequence.next() >= until) {
                    self.replay = None;
                }
                self.counts.batches += 1;
                self.counts.replayed += 1;
                self.counts.skipped(self.replayed.skipped());
                Some(News::Replayed)
            }
            Verdict::Duplicate => {
                replay.answer = None;
                None
            }
            Verdict::Restarted => Some(self.restarted(rank)),
            Verdict::Hole if replay.has_progress() => {
                replay.again();
                None
            }
            // The engine keeps only the latest thousands of messages.
            Verdict::Hole => {
                sequence.give_up_before(number);
                self.counts.holes += 1;
                self.counts.incomplete += 1;
                Some(News::Incomplete(rank, Hole::Gone))
            }
        }
    }

    /// Ends the replay at its end mark.
    fn replay_ended(&mut self) -> Option<News> {
        let mut replay = self.replay.take()?;
        if replay.ask.until.is_some() && replay.again() {
            self.replay = Some(replay);
            return None;
        }
        self.asked = Some(Hole::Gone);
        // An engine always has its latest message: if ours did not come, it is another process.
        match replay.ask {
            Ask { rank: Some(rank), known: true, .. } if !replay.heard => Some(self.restarted(rank)),
            _ => None,
        }
    }

    /// Notes a restart that a replay found, and has what the new process published asked for.
    fn restarted(&mut self, rank: u32) -> News {
        if let Some(sequence) = sequence_of(&mut self.sequences, rank) {
            *sequence = Sequence::new();
        }
        self.counts.restarts += 1;
        self.replay = None;
        self.asks.push(Ask { rank: Some(rank), from: 0, until: None, known: false });
        News::Restarted(rank)
    }
}

/// Returns the rank's sequence, made if there is none; `None` if there are too many.
fn sequence_of(sequences: &mut Vec<(u32, Sequence)>, rank: u32) -> Option<&mut Sequence> {
    let place = sequences.iter().position(|(known, _)| *known == rank);
    let place = match place {
        Some(place) => place,
        None if sequences.len() < KV_RANKS_MAX => {
            sequences.push((rank, Sequence::new()));
            sequences.len() - 1
        }
        None => return None,
    };
    sequences.get_mut(place).map(|(_, sequence)| sequence)
}
