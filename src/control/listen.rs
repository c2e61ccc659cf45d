//! Listens to what engines publish of their KV caches, where a pool chooses by it: a task for each engine, and one for each of
//! its sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::{Call, Client};
use super::hearing::Hearing;
use super::keeper::Keeper;
use super::saved::Heard;
use crate::config::KvEvents;
use crate::fleet::EndpointId;
use crate::index::Index;
use crate::kvevents::{self, Pace, Settings, Source};
use crate::scan::Form;

/// How often it is looked at what has changed beside the events.
const TICK: Duration = Duration::from_secs(1);
/// The same before it is known what to ask an engine.
const SOON: Duration = Duration::from_millis(100);
/// Before an engine that publishes nothing is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_BYTES_MAX: usize = 1 << 20;

/// What an engine is to be listened to for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The endpoint that it is.
    pub id: EndpointId,
    /// Its host, as configured.
    pub host: String,
    /// What it is asked with.
    pub call: (std::net::SocketAddr, String, Option<Arc<str>>),
    /// Where its events are, as far as that is configured.
    pub at: (KvEvents, Option<Settings>),
    /// How its prompts are written.
    pub form: Arc<Form>,
    /// Where what it holds is noted.
    pub index: Arc<Index>,
    /// KV blocks that it has; 0: not known.
    pub blocks: u32,
    /// What a mirror of them is made for.
    pub blocks_max: u32,
    /// What an earlier process of ours knew of it, until it is used.
    pub told: Arc<Mutex<Option<Heard>>>,
}

impl Wanted {
    /// Whether it is heard in the same way; another size of its cache changes nothing of that.
    fn is_same(&self, other: &Wanted) -> bool {
        let of = |wanted: &Wanted| (wanted.id, wanted.at.clone(), wanted.form.id);
        of(self) == of(other) && Arc::ptr_eq(&self.index, &other.index)
    }

    /// The sockets on which it publishes.
    async fn sources(&self, client: &Client) -> Result<Vec<Settings>, String> {
        if let (_, Some(settings)) = &self.at {
            return Ok(vec![settings.clone()]);
        }
        let (address, authority, key) = &self.call;
        let call = Call {
            address: *address,
            authority,
            path: "/kv_event_sources",
            key: key.as_deref(),
            timeout: ASK_TIMEOUT,
            bytes_max: ASK_BYTES_MAX,
        };
        let answer = client.get(&call).await.map_err(|error| error.to_string())?;
        match answer.status {
            200 => {
                let ranks = kvevents::listed(&answer.body, &self.host)?;
                Ok(ranks.into_iter().map(|(_, settings)| settings).collect())
            }
            404 => Err("it does not tell where it publishes KV events; if it does, say so in `kv_events`".into()),
            status => Err(format!("/kv_event_sources answers {status}")),
        }
    }
}

/// Who listens to one engine.
struct Ears {
    wanted: Wanted,
    hearing: Arc<Hearing>,
    sources: Vec<Settings>,
    /// They end with this.
    sockets: JoinSet<()>,
}

impl Ears {
    fn open(keeper: &Arc<Keeper>, place: usize, wanted: Wanted, sources: Vec<Settings>) -> Ears {
        let hearing = Arc::new(Hearing::new(Arc::clone(keeper), place, &wanted, sources.len()));
        let mut ears = Ears { wanted, hearing, sources, sockets: JoinSet::new() };
        ears.connect();
        ears
    }

    /// Goes on where it is, on new connections: with each of them an engine is asked whether it still knows what it said last.
    fn connect(&mut self) {
        self.sockets = JoinSet::new();
        for (number, settings) in self.sources.iter().enumerate() {
            let (hearing, settings) = (Arc::clone(&self.hearing), settings.clone());
            self.sockets.spawn(async move {
                let mut source = Source::new(settings, Pace::default()).resumed(&hearing.reached(number));
                loop {
                    // What it says is taken before it is asked again; `told` borrows from it.
                    hearing.take(number, source.told().await);
                    hearing.stands(number, &source);
                }
            });
        }
    }
}

/// Listens to the engine at `place` for as long as that is wanted, for ever.
pub async fn listen(keeper: Arc<Keeper>, place: usize) {
    let client = Client::default();
    let mut ears: Option<Ears> = None;
    let mut said = None;
    loop {
        let wanted = keeper.fleet().wanted(place);
        if let Some(old) = ears.take_if(|ears| !wanted.as_ref().is_some_and(|wanted| wanted.is_same(&ears.wanted))) {
            old.hearing.end();
            keeper.hears(place, None);
        }
        let mut wait = TICK;
        match (&mut ears, wanted) {
            (Some(ears), _) => {
                if ears.hearing.tick() {
                    ears.connect();
                }
            }
            (None, Some(wanted)) => {
                let found = wanted.sources(&client).await;
                let nothing = || "it publishes no KV events; `warmfront doctor` says how it would".to_owned();
                let why = match found {
                    Ok(sources) if !sources.is_empty() => {
                        let opened = Ears::open(&keeper, place, wanted, sources);
                        keeper.hears(place, Some(Arc::clone(&opened.hearing)));
                        ears = Some(opened);
                        None
                    }
                    Ok(_) => Some(nothing()),
                    Err(why) => Some(why),
                };
                if let Some(why) = why.as_ref().filter(|why| said.as_ref() != Some(*why)) {
                    let engine = keeper.fleet().member(place).map(|member| Arc::clone(&member.name));
                    let engine = engine.as_deref().unwrap_or_default();
                    tracing::warn!(engine, why, "this engine's cache is known from what was sent there alone");
                }
                wait = if why.is_some() { ASK_AGAIN } else { TICK };
                said = why;
            }
            (None, None) => wait = SOON,
        }
        sleep(wait).await;
    }
}
