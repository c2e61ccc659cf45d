//! Listens for a moment to where an engine publishes.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::kvevents::{Batch, Ended, Event, Malformed, Pace, Settings, Skipped, Source, Told};

/// Longest wait for a connection, and then for a message.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most ranks that are listened to.
pub(super) const RANKS_MAX: usize = 16;

/// What came of one socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    pub(super) connected: bool,
    /// The first message.
    pub(super) message: Option<Result<String, Malformed>>,
    pub(super) ended: Option<Ended>,
}

/// Subscriptions that are open.
pub(super) struct Listening {
    tasks: Vec<JoinHandle<Heard>>,
    /// Ends when each has been tried.
    tried: mpsc::Receiver<()>,
    stop: watch::Sender<()>,
}

impl Listening {
    /// Connects to each socket of `ranks`, as the engine at `host` tells them. An engine that connects itself is not
    /// waited for: that is the front's address to take.
    pub(super) fn begin(ranks: &[(u32, Settings)], host: &str) -> Listening {
        let (trying, tried) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(());
        let ours = ranks.iter().filter(|(_, settings)| !settings.events.waits).take(RANKS_MAX);
        let listen = |(_, settings): &(u32, Settings)| {
            // No replay is asked for: it is work for the engine.
            let settings = Settings { replay: None, ..settings.clone() };
            tokio::spawn(listen(settings, host.to_owned(), trying.clone(), stopped.clone()))
        };
        Listening { tasks: ours.map(listen).collect(), tried, stop }
    }

    /// Waits until each has connected, or could not.
    pub(super) async fn ready(&mut self) {
        let _ = timeout(PATIENCE, self.tried.recv()).await;
    }

    /// Listens for a moment more; returns what was heard since the beginning.
    pub(super) async fn end(self) -> Vec<Heard> {
        let Listening { tasks, stop, .. } = self;
        let until = async {
            while tasks.iter().any(|task| !task.is_finished()) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = timeout(PATIENCE, until).await;
        drop(stop);
        let mut heard = Vec::new();
        for task in tasks {
            heard.push(task.await.unwrap_or_default());
        }
        heard
    }
}

async fn listen(settings: Settings, host: String, trying: mpsc::Sender<()>, mut stopped: watch::Receiver<()>) -> Heard {
    let pace = Pace { connect: PATIENCE, handshake: PATIENCE, ..Pace::default() };
    let mut source = Source::new(settings, pace).called(host);
    let mut heard = Heard::default();
    // Dropped with the first try: the channel ends when all have tried.
    let mut trying = Some(trying);
    loop {
        let told = tokio::select! {
            told = source.told() => told,
            _ = stopped.changed() => return heard,
        };
        match told {
            Told::Connected => {
                heard.connected = true;
                drop(trying.take());
            }
            Told::Offline(why) => {
                heard.ended = Some(why);
                drop(trying.take());
            }
            Told::Batch(batch) => {
                heard.message = Some(Ok(words(batch)));
                return heard;
            }
            Told::Malformed(what) => {
                heard.message = Some(Err(what));
                return heard;
            }
            // What these tell of messages before the first one heard does not matter here.
            Told::Restarted { .. } | Told::Abreast | Told::Incomplete { .. } => {}
        }
    }
}

/// A message, in words.
fn words(batch: &Batch) -> String {
    let events = batch.events().len();
    let stored = batch.events().filter(|event| matches!(event, Event::Stored(_))).count();
    let form = match batch.names_fields() {
        Some(true) => "fields by name",
        Some(false) => "fields by place",
        None => "no event of a known type",
    };
    let passed = match batch.skipped() {
        Skipped { events: 0, fields: 0 } => String::new(),
        Skipped { events, fields } => format!("; not known and passed over: events {events}, fields {fields}"),
    };
    format!("events in the first message {events}, of stored blocks {stored}, {form}{passed}")
}
