//! Listens to the engines' KV events, if a pool chooses by them: one task for each engine, and one for each of its
//! sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::client::{Answer, Call, Client};
use super::hearing::{Computed, Hearing};
use super::keeper::Keeper;
use super::lasting;
use super::saved::Heard;
use crate::config::KvEvents;
use crate::fleet::EndpointId;
use crate::index::Index;
use crate::kvevents::{self, Pace, Settings, Source};
use crate::scan::Form;

/// How often changes are looked for that come by other ways than events.
const TICK: Duration = Duration::from_secs(1);
/// How often to look whether it is known by now how to listen to an engine.
const SOON: Duration = Duration::from_millis(100);
/// Pause before an engine that publishes nothing, or is not heard, is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const PUBLISHES_NOTHING: &str = "it publishes no KV events; `warmfront doctor` says how it would";
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
const ASK_BYTES_MAX: usize = 1 << 20;

/// What is needed to listen to an engine, and what its events are for.
#[derive(Clone, Debug)]
pub struct ToHear {
    /// The endpoint that it is.
    pub id: EndpointId,
    /// The host to connect to if its events' address names none.
    pub host: String,
    /// The engine's own addresses: only these are connected with because it says so, unless its word is taken (`told`).
    pub peers: Arc<[IpAddr]>,
    /// Its rank, if there are several: each publishes by itself.
    pub rank: Option<u16>,
    /// The address at which it is asked where it publishes.
    pub address: SocketAddr,
    /// The `Host` of such a call.
    pub authority: String,
    /// The API key of such a call.
    pub key: Option<Arc<str>>,
    /// Whether it is listened to, and whose word tells where.
    pub mode: KvEvents,
    /// Where it publishes, if that is configured.
    pub configured: Option<Settings>,
    /// How its prompts are written.
    pub form: Arc<Form>,
    /// Where what it holds is noted.
    pub index: Arc<Index>,
    /// When its process began, as it says.
    pub began: Option<f64>,
    /// KV blocks that it has; 0: not known.
    pub blocks: u32,
    /// How many it may tell of at once.
    pub blocks_max: u32,
    /// For how many blocks of usual size a mirror has room.
    pub room: u32,
    /// What it has computed, if its metrics tell.
    pub computed: Option<Computed>,
    /// What an earlier process of ours knew of it, until it is used.
    pub remembered: Arc<Mutex<Option<Heard>>>,
}

impl ToHear {
    /// Whether listening can go on as it is. Another index, or size of its cache, does not matter for that.
    fn is_same(&self, other: &ToHear) -> bool {
        (self.id, &self.mode, &self.configured, self.form.id)
            == (other.id, &other.mode, &other.configured, other.form.id)
    }

    /// The sockets on which it publishes; an error if it connects to a port of ours that is another's as well.
    async fn usable_sources(&self, keeper: &Keeper, place: usize, client: &Client) -> Result<Vec<Settings>, String> {
        let sources = self.sources(client).await;
        match &sources {
            Ok(sources) if self.configured.is_none() => keeper.comes_by(place, sources),
            // What it told before stays: it counts again once it is back.
            Err(_) => {}
            _ => keeper.comes_by(place, &[]),
        }
        keeper.door_taken(place).map_or(sources, Err)
    }

    /// The sockets on which it publishes.
    async fn sources(&self, client: &Client) -> Result<Vec<Settings>, String> {
        if let Some(settings) = &self.configured {
            return Ok(vec![settings.clone()]);
        }
        let answer = self.ask(client, "/kv_event_sources").await?;
        match answer.status {
            200 => self.listed(&answer.body),
            404 => self.flagged(client).await,
            status => Err(format!("/kv_event_sources answers {status}")),
        }
    }

    /// The sockets on which SGLang publishes, by its flags, which are all that it tells.
    async fn flagged(&self, client: &Client) -> Result<Vec<Settings>, String> {
        // The older name comes last: newer releases log a warning each time that it is asked for.
        for path in ["/server_info", "/get_server_info"] {
            let answer = self.ask(client, path).await?;
            let Some(flags) = serde_json::from_slice::<Flags>(&answer.body).ok().filter(|_| answer.status == 200)
            else {
                continue;
            };
            return self.listed_by(flags);
        }
        Err("it does not tell where it publishes KV events; if it does, say so in `kv_events`".into())
    }

    fn listed_by(&self, flags: Flags) -> Result<Vec<Settings>, String> {
        let Some(config) = flags.kv_events_config.filter(|config| !config.is_empty()) else {
            return Ok(Vec::new());
        };
        let ranks = kvevents::flagged_ranks(flags.dp_size, flags.attn_dp_size);
        if self.rank.is_none() && ranks.is_some_and(|ranks| ranks > 1) {
            return Err("it has several data-parallel ranks, which publish on a port each: see `ranks`".into());
        }
        let listed = kvevents::as_listed(&config).ok_or("its kv_events_config is no JSON object")?;
        // The flags name the first rank's ports; the other ranks add their numbers to them.
        let first = kvevents::listed(&listed, &self.host)?.into_iter().map(|(_, first)| first);
        let told = first.map(|first| first.of_rank(self.rank.unwrap_or(0))).collect::<Result<Vec<_>, _>>()?;
        Ok(self.held_to_peers(told))
    }

    fn listed(&self, answer: &[u8]) -> Result<Vec<Settings>, String> {
        let all = kvevents::listed(answer, &self.host)?.into_iter();
        let told = all.filter(|(rank, _)| self.rank.is_none_or(|own| *rank == u32::from(own)));
        Ok(self.held_to_peers(told.map(|(_, told)| told).collect()))
    }

    fn held_to_peers(&self, told: Vec<Settings>) -> Vec<Settings> {
        // It says which address, but only its own addresses are connected with, unless the operator takes its word.
        let peers = (self.mode != KvEvents::Told).then_some(&self.peers);
        told.into_iter().map(|told| Settings { peers: peers.cloned(), ..told }).collect()
    }

    async fn ask(&self, client: &Client, path: &str) -> Result<Answer, String> {
        let call = Call {
            address: self.address,
            authority: &self.authority,
            path,
            key: self.key.as_deref(),
            timeout: ASK_TIMEOUT,
            bytes_max: ASK_BYTES_MAX,
        };
        client.get(&call).await.map_err(|error| error.to_string())
    }
}

/// What is read of SGLang's flags. Its API key may stand beside them, and is not read.
#[derive(Deserialize)]
struct Flags {
    kv_events_config: Option<String>,
    dp_size: Option<u64>,
    attn_dp_size: Option<u64>,
}

/// The tasks that listen to one engine.
struct Ears {
    wanted: ToHear,
    hearing: Arc<Hearing>,
    sources: Vec<Settings>,
    /// One task for each source; dropping it ends it.
    sockets: Vec<JoinSet<()>>,
    /// When the engine was last asked where it publishes.
    asked: Instant,
}

impl Ears {
    fn open(keeper: &Arc<Keeper>, place: usize, wanted: ToHear, sources: Vec<Settings>) -> Ears {
        let hearing = Arc::new(Hearing::new(Arc::clone(keeper), place, &wanted, &sources));
        let sockets = sources.iter().map(|_| JoinSet::new()).collect();
        let mut ears = Ears { wanted, hearing, sources, sockets, asked: Instant::now() };
        (0..ears.sources.len()).for_each(|number| ears.connect(number));
        ears
    }

    /// Connects a socket anew, from where it had been read to: the engine is asked for what came since.
    fn connect(&mut self, number: usize) {
        let (Some(settings), Some(socket)) = (self.sources.get(number), self.sockets.get_mut(number)) else { return };
        let (hearing, settings, host) = (Arc::clone(&self.hearing), settings.clone(), self.wanted.host.clone());
        *socket = JoinSet::new();
        socket.spawn(async move {
            let mut source = Source::new(settings, Pace::default()).called(host).resumed(&hearing.reached(number));
            hearing.counts_strangers(number, source.turned_away());
            loop {
                // What the source tells is taken in before it is polled again; `told` borrows from it.
                let told = source.told().await;
                let turn = hearing.turn().await;
                hearing.take(number, told).await;
                hearing.stands(number, &source).await;
                drop(turn);
                // Many messages may have come already, and control has more to do than to listen to one engine.
                yield_now().await;
            }
        });
    }

    /// Whether one of the sockets' tasks, which are to run for ever, has ended.
    fn has_fallen(&mut self) -> bool {
        self.sockets.iter_mut().any(|socket| socket.try_join_next().is_some())
    }

    /// Asks an engine that is not heard where it publishes now: it may have been restarted with other ports.
    async fn asked_anew(&mut self, client: &Client) -> Option<Result<Vec<Settings>, String>> {
        let is_told = self.wanted.configured.is_none();
        if !is_told || self.asked.elapsed() < ASK_AGAIN || !self.hearing.is_silent() {
            return None;
        }
        let sources = self.wanted.sources(client).await;
        self.asked = Instant::now();
        Some(sources)
    }
}

/// Listens to the engine at `place` for as long as that is wanted, for ever.
pub async fn listen(keeper: Arc<Keeper>, place: usize) {
    let engine = name(&keeper, place);
    let begin = || {
        let mut listener = Listener::new(Arc::clone(&keeper), place);
        async move {
            loop {
                let wanted = listener.keeper.fleet().to_hear(place);
                let wait = listener.turn(wanted).await;
                sleep(wait).await;
            }
        }
    };
    lasting::anew("KV events", engine.as_deref(), begin, || keeper.gives_up_hearing(place)).await;
}

/// The task that listens to the engine at one place.
struct Listener {
    keeper: Arc<Keeper>,
    place: usize,
    client: Client,
    ears: Option<Ears>,
    /// Why the engine is not heard, as the log was last told.
    said: Option<String>,
}

impl Listener {
    fn new(keeper: Arc<Keeper>, place: usize) -> Listener {
        Listener { keeper, place, client: Client::default(), ears: None, said: None }
    }

    /// Looks at what has changed; returns how long to wait until the next turn.
    async fn turn(&mut self, wanted: Option<ToHear>) -> Duration {
        let Listener { keeper, place, ears, .. } = self;
        if let Some(old) = ears.take_if(|ears| !wanted.as_ref().is_some_and(|wanted| wanted.is_same(&ears.wanted))) {
            old.hearing.keep_in(&old.wanted.remembered);
            keeper.gives_up_hearing(*place);
        }
        if ears.take_if(|_| keeper.door_taken(*place).is_some()).is_some() {
            // What has connected there meanwhile may be another engine.
            keeper.gives_up_hearing(*place);
        }
        if ears.take_if(Ears::has_fallen).is_some() {
            // Listening has ended, and what is known may be half of what was told last.
            keeper.gives_up_hearing(*place);
            let engine = name(keeper, *place);
            tracing::error!(
                engine = engine.as_deref(),
                "the task that listens to this engine's KV events ended by this fault, and begins anew"
            );
            return ASK_AGAIN;
        }
        match (&mut self.ears, wanted) {
            (Some(_), Some(wanted)) => self.hear_on(wanted).await,
            (None, Some(wanted)) => return self.begin(wanted).await,
            // There is nothing to listen to.
            (_, None) => {
                self.keeper.comes_by(self.place, &[]);
                self.keeper.fleet().unheard(self.place);
                return SOON;
            }
        }
        TICK
    }

    async fn hear_on(&mut self, wanted: ToHear) {
        let Listener { keeper, place, client, ears, said } = self;
        let Some(open) = ears else { return };
        open.hearing.tick(&wanted).await.into_iter().for_each(|number| open.connect(number));
        // It may be asked with another key by now.
        open.wanted = wanted;
        match open.asked_anew(client).await {
            None => {}
            Some(Ok(sources)) if sources == open.sources => *said = None,
            Some(Ok(sources)) => {
                // It is another process, most likely, with other sockets or none: nothing continues what was told.
                open.hearing.end();
                keeper.comes_by(*place, &sources);
                let wanted = open.wanted.clone();
                *ears = (!sources.is_empty()).then(|| Ears::open(keeper, *place, wanted, sources));
                keeper.hears(*place, ears.as_ref().map(|ears| Arc::clone(&ears.hearing)));
                *said = None;
            }
            Some(Err(why)) if answers(keeper, *place) => say_once(keeper, *place, said, why),
            // That it is down is logged elsewhere.
            Some(Err(_)) => {}
        }
    }

    async fn begin(&mut self, wanted: ToHear) -> Duration {
        let Listener { keeper, place, client, ears, said } = self;
        let why = match wanted.usable_sources(keeper, *place, client).await {
            Ok(sources) if !sources.is_empty() => {
                let opened = Ears::open(keeper, *place, wanted, sources);
                keeper.hears(*place, Some(Arc::clone(&opened.hearing)));
                (*ears, *said) = (Some(opened), None);
                return TICK;
            }
            Ok(_) => PUBLISHES_NOTHING.to_owned(),
            Err(why) => why,
        };
        say_once(keeper, *place, said, why);
        keeper.fleet().unheard(*place);
        ASK_AGAIN
    }
}

fn name(keeper: &Keeper, place: usize) -> Option<Arc<str>> {
    keeper.fleet().member(place).map(|member| Arc::clone(&member.name))
}

fn answers(keeper: &Keeper, place: usize) -> bool {
    let fleet = keeper.fleet();
    fleet.member(place).and_then(|member| member.now.as_ref()).is_some_and(|tenancy| tenancy.course.answers())
}

/// Logs why an engine is not heard, unless that was the last reason logged.
fn say_once(keeper: &Keeper, place: usize, said: &mut Option<String>, why: String) {
    if said.as_ref() != Some(&why) {
        let engine = name(keeper, place);
        let engine = engine.as_deref().unwrap_or_default();
        tracing::warn!(engine, why, "this engine is chosen for as by policy warm, by what was sent there");
    }
    *said = Some(why);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::config::Upstream;
    use crate::control::keeper::tests::keeper;
    use crate::control::tests::config_of;
    use crate::index::Capacity;
    use crate::vocabulary::{Lead, Vocabulary};

    fn wanted(id: EndpointId, address: SocketAddr) -> ToHear {
        let vocabulary = Arc::new(Vocabulary::new(&[], &[], Lead::Nowhere, &[]));
        ToHear {
            id,
            host: String::new(),
            peers: Arc::new([]),
            rank: None,
            address,
            authority: String::new(),
            key: None,
            mode: KvEvents::Auto,
            configured: None,
            form: Arc::new(Form { id: 1, chat: None, vocabulary, toolsets: Arc::new([]) }),
            index: Arc::new(Index::new(Capacity { endpoints: 1, blocks: 1 << 12, lengths: false }).unwrap()),
            began: None,
            blocks: 0,
            blocks_max: 100,
            room: 100,
            computed: None,
            remembered: Arc::default(),
        }
    }

    /// An SGLang with several attention ranks tells the port of the first alone: what the others hold would count as
    /// cold.
    #[test]
    fn flags_of_several_ranks_are_not_gone_by() {
        let wanted = wanted(EndpointId { slot: 0, generation: 1 }, ([10, 0, 0, 1], 8_000).into());
        let listed = |dp_size: Option<u64>, attn_dp_size: Option<u64>| {
            let kv_events_config = Some(r#"{"publisher": "zmq", "endpoint": "tcp://*:5557"}"#.to_owned());
            wanted.listed_by(Flags { kv_events_config, dp_size, attn_dp_size })
        };
        for ranks in [(None, None), (Some(1), None), (Some(1), Some(1))] {
            assert!(listed(ranks.0, ranks.1).is_ok_and(|sources| sources.len() == 1), "{ranks:?}");
        }
        for ranks in [(Some(2), None), (Some(2), Some(1)), (Some(1), Some(2))] {
            let several = |why: String| why.contains("several data-parallel ranks");
            assert!(listed(ranks.0, ranks.1).is_err_and(several), "{ranks:?}");
        }
    }

    /// vLLM lists the ports of all, SGLang tells that of the first.
    #[test]
    fn a_rank_is_heard_where_it_publishes_itself() {
        let address = ([10, 0, 0, 1], 8_000).into();
        let of = |rank| ToHear { rank, ..wanted(EndpointId { slot: 0, generation: 1 }, address) };
        let ports = |told: Result<Vec<Settings>, String>| {
            told.unwrap().iter().map(|told| (told.events.port, told.replay.as_ref().unwrap().port)).collect::<Vec<_>>()
        };
        let source = |port: u16| {
            format!(
                r#"{{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{port}", "replay_endpoint": "tcp://*:{}"}}"#,
                port + 100
            )
        };
        let sources = format!(r#"{{"0": {}, "1": {}}}"#, source(5557), source(5558));
        let flags = || Flags { kv_events_config: Some(source(7_000)), dp_size: Some(3), attn_dp_size: None };
        for (rank, listed, flagged) in [(0, (5557, 5657), (7_000, 7_100)), (1, (5558, 5658), (7_001, 7_101))] {
            let wanted = of(Some(rank));
            assert_eq!(ports(wanted.listed(sources.as_bytes())), [listed]);
            assert_eq!(ports(wanted.listed_by(flags())), [flagged]);
        }
        assert_eq!(ports(of(Some(2)).listed(sources.as_bytes())), [], "it does not publish");
        assert_eq!(ports(of(None).listed(sources.as_bytes())).len(), 2);
    }

    /// As over what an engine told.
    #[tokio::test(flavor = "current_thread")]
    async fn what_hears_an_engine_begins_anew_behind_a_panic() {
        let engine = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = engine.local_addr().unwrap();
        let keeper = keeper(config_of([Upstream::new("http://engine:8000".parse().unwrap())]));
        keeper.resolved(0, vec![address]);
        let events = format!("tcp://{address}").parse().unwrap();
        let configured = Some(Settings { events, replay: None, topic: String::new(), peers: None });
        let wanted = ToHear { configured, ..wanted(keeper.target(0).unwrap().0, address) };
        let mut listener = Listener::new(Arc::clone(&keeper), 0);
        for wait in [TICK, TICK] {
            assert_eq!(listener.turn(Some(wanted.clone())).await, wait);
            assert_eq!((listener.ears.is_some(), keeper.heard().len()), (true, 1));
        }
        let before = Arc::clone(&listener.ears.as_ref().unwrap().hearing);
        listener.ears.as_mut().unwrap().sockets[0].spawn(async { panic!("a fault, on purpose") });
        yield_now().await;
        assert_eq!(listener.turn(Some(wanted.clone())).await, ASK_AGAIN);
        assert_eq!((listener.ears.is_some(), keeper.heard().len()), (false, 0), "what it told is believed no more");
        assert_eq!(listener.turn(Some(wanted)).await, TICK);
        let now = &listener.ears.as_ref().unwrap().hearing;
        assert!(!Arc::ptr_eq(now, &before) && keeper.heard().len() == 1);
    }
}
