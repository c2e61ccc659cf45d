//! An engine that runs: the core under a lock, its clock, and the loop that makes its steps.
//!
//! A step's tokens are handed to their streams in one pass when it ends. The next step begins at the simulated instant
//! at which the last one ended, not when the loop woke up, so that timer granularity does not slow the engine down. If
//! the loop comes more than 10 real ms late, [`Lag`] says so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, mpsc};

use super::batch::{Ask, Finish, Token};
use super::cache::ByHash;
use super::core::{Busy, Core, Figures};
use super::metrics::Lag;
use super::profile::Profile;
use super::request::Serving;

/// Real time by which a step may begin late and still count as punctual.
const SLACK: Duration = Duration::from_millis(10);

/// What an engine is and how it presents itself.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Capacity and speed.
    pub profile: Profile,
    /// Served models, and the length of replies that set none.
    pub serving: Serving,
    /// Simulated seconds to a real one.
    pub time_scale: f64,
    /// Whether `usage` tells cached tokens, as with `--enable-prompt-tokens-details`.
    pub prompt_tokens_details: bool,
    /// Bearer token that `/v1` asks for.
    pub api_key: Option<String>,
    /// Silence of a stream after which it sends a comment; zero sends none.
    pub sse_keep_alive: Duration,
    /// Idle connections close after this.
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            profile: Profile::default(),
            serving: Serving { models: vec!["llama-3.1-8b".to_owned()], output_tokens: 256 },
            time_scale: 1.0,
            prompt_tokens_details: true,
            api_key: None,
            sse_keep_alive: Duration::ZERO,
            idle_timeout: Duration::from_secs(5),
        }
    }
}

/// A token on its way to its client.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Number of the sequence within its request.
    pub choice: usize,
    /// The token.
    pub token: u32,
    /// With a sequence's first token: prompt tokens found in the cache, told once for each prompt.
    pub cached: Option<u32>,
    /// With a sequence's last token: why it ended.
    pub finish: Option<Finish>,
}

struct Client {
    to: mpsc::UnboundedSender<Event>,
    choice: usize,
    tells_cached: bool,
}

struct Inner {
    core: Core,
    clients: ByHash<Client>,
    lag_ns: u64,
    /// Restarts so far: ids begin again with each.
    life: u64,
    began: SystemTime,
}

/// A running engine.
pub struct Engine {
    settings: Settings,
    started: Instant,
    inner: Mutex<Inner>,
    work: Notify,
}

impl Engine {
    /// Makes a cold engine. [`Engine::run`] must be polled for it to run.
    pub fn new(settings: Settings) -> Arc<Engine> {
        let core = Core::new(settings.profile.clone());
        Arc::new(Engine {
            settings,
            started: Instant::now(),
            inner: Mutex::new(Inner { core, clients: ByHash::default(), lag_ns: 0, life: 0, began: SystemTime::now() }),
            work: Notify::new(),
        })
    }

    /// The settings that it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its figures now.
    pub fn figures(&self) -> Figures {
        self.lock().core.figures()
    }

    /// How late its steps were.
    pub fn lag(&self) -> Lag {
        let seconds = self.lock().lag_ns as f64 / 1e9;
        Lag { seconds, time_scale: self.settings.time_scale }
    }

    /// Forgets cached prefixes; streams go on.
    pub fn forget(&self) {
        self.lock().core.forget();
    }

    /// Puts the engine back to the state of its start, counters included. Replies in flight are cut.
    pub fn restart(&self) {
        let mut inner = self.lock();
        inner.core = Core::new(self.settings.profile.clone());
        inner.clients.clear();
        inner.lag_ns = 0;
        inner.life += 1;
        inner.began = SystemTime::now();
    }

    /// Wall-clock time of its start.
    pub fn began(&self) -> SystemTime {
        self.lock().began
    }

    /// Queues the sequences of a request.
    pub fn submit(self: &Arc<Self>, asks: &[Ask]) -> Result<Answering, Busy> {
        let (to, from) = mpsc::unbounded_channel();
        let mut ids = Vec::with_capacity(asks.len());
        let now_ns = self.now_ns();
        let mut inner = self.lock();
        inner.core.submit(now_ns, asks, &mut ids)?;
        for (choice, (id, ask)) in ids.iter().zip(asks).enumerate() {
            let client = Client { to: to.clone(), choice, tells_cached: ask.choice == 0 };
            inner.clients.insert(*id, client);
        }
        let life = inner.life;
        drop(inner);
        self.work.notify_one();
        Ok(Answering { events: from, engine: Arc::clone(self), ids, life })
    }

    /// Makes steps for ever.
    pub async fn run(self: Arc<Self>) {
        let mut ended_ns = None;
        let mut tokens = Vec::new();
        loop {
            let Some(ends_ns) = self.begin_step(ended_ns) else {
                ended_ns = None;
                self.work.notified().await;
                continue;
            };
            let due = self.started + self.real(ends_ns);
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.end_step(&mut tokens);
            ended_ns = Some(ends_ns);
        }
    }

    fn begin_step(&self, ended_ns: Option<u64>) -> Option<u64> {
        let now_ns = self.now_ns();
        let mut inner = self.lock();
        let mut begin_ns = now_ns;
        if let Some(ended_ns) = ended_ns {
            let late_ns = now_ns.saturating_sub(ended_ns);
            let slack_ns = SLACK.as_secs_f64() * self.settings.time_scale * 1e9;
            if late_ns as f64 <= slack_ns {
                begin_ns = ended_ns;
            } else {
                inner.lag_ns += late_ns;
            }
        }
        inner.core.begin_step(begin_ns)
    }

    fn end_step(&self, tokens: &mut Vec<Token>) {
        let mut inner = self.lock();
        tokens.clear();
        inner.core.end_step(tokens);
        for token in tokens.iter() {
            if let Some(client) = inner.clients.get(&token.id) {
                let cached = token.first.map(|first| if client.tells_cached { first.cached } else { 0 });
                let event = Event { choice: client.choice, token: token.token, cached, finish: token.finish };
                // A client that has just gone aborts when its end is dropped.
                let _ = client.to.send(event);
            }
            if token.finish.is_some() {
                inner.clients.remove(&token.id);
            }
        }
    }

    fn abort(&self, ids: &[u64], life: u64) {
        let mut inner = self.lock();
        if inner.life != life {
            return;
        }
        for id in ids {
            // An id that belongs to no client has ended.
            if inner.clients.remove(id).is_some() {
                inner.core.abort(*id);
            }
        }
    }

    fn now_ns(&self) -> u64 {
        (self.started.elapsed().as_secs_f64() * self.settings.time_scale * 1e9) as u64
    }

    fn real(&self, simulated_ns: u64) -> Duration {
        Duration::from_secs_f64(simulated_ns as f64 / 1e9 / self.settings.time_scale)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in the engine. Dropping it aborts what has not ended.
pub struct Answering {
    events: mpsc::UnboundedReceiver<Event>,
    engine: Arc<Engine>,
    ids: Vec<u64>,
    life: u64,
}

impl Answering {
    /// Polls for its next token; `None` after the last, or if the engine was restarted.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context)
    }

    /// Returns its next token; `None` as with [`Answering::poll_next`].
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.engine.abort(&self.ids, self.life);
    }
}
