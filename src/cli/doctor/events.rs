//! Whether an engine tells what is in its cache: what it says of that, and what comes of listening.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::finding::{Change, Finding, Mark, Publish, is_plain, shown};
use super::listening::Heard;
use super::server::Info;
use crate::config::{KvEvents, Upstream};
use crate::control::client::{Answer, CallError};
use crate::control::scrape::EngineKind;
use crate::kvevents::{EVENTS_PORT, Ended, Endpoint, Settings, as_listed, listed, reach};
use crate::limits::RANKS_MAX;

const EVENTS: &str = "events";
const REPLAY: &str = "replay";
/// Added to findings that are no fault, since the front does not listen.
const UNNEEDED: &str = "none are needed: policy \"precise\" would hear them";
/// Longest wait for a connection to a replay socket.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where an engine publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sources {
    /// Ranks that publish; there may be none.
    Listed(Vec<(u32, Settings)>),
    /// It publishes where it cannot be heard from here.
    Unusable(String),
    /// It does not say.
    Untold(String),
    /// It is to connect to the front, which waits at this address.
    Awaited(Endpoint),
    /// The front is not to listen.
    Off,
}

impl Sources {
    /// The sources that the front's configuration names, or else those that the engine tells; and how many ranks it
    /// tells.
    pub(super) fn of(upstream: &Upstream, told: impl FnOnce() -> Sources) -> (Sources, usize) {
        let configured = Sources::configured(upstream).map(|configured| (configured, 0));
        configured.unwrap_or_else(|| {
            let told = told();
            let ranks = told.ranks().len();
            (told, ranks)
        })
    }

    fn configured(upstream: &Upstream) -> Option<Sources> {
        match (&upstream.kv_events, upstream.kv_source()) {
            (KvEvents::Off, _) => Some(Sources::Off),
            (_, Ok(Some(settings))) if settings.events.waits => Some(Sources::Awaited(settings.events)),
            (_, Ok(Some(_))) => {
                let ranks = upstream.each_rank().filter_map(|rank| rank.kv_source().ok()?);
                Some(Sources::Listed((0..).zip(ranks).collect()))
            }
            // A fault would have been refused with the configuration.
            (_, Ok(None) | Err(_)) => None,
        }
    }

    /// What the engine tells: vLLM by its answer to `/kv_event_sources`, SGLang by its flags.
    pub(super) fn told(
        answer: &Result<Answer, CallError>,
        kind: Option<EngineKind>,
        info: Option<&Info>,
        host: &str,
    ) -> Sources {
        if kind == Some(EngineKind::Sglang) {
            return match info {
                Some(info) => Sources::flagged(info.kv_events_config.as_deref(), info.ranks, host),
                None => Sources::Untold("/server_info does not answer with its flags".into()),
            };
        }
        match answer {
            Ok(answer) if answer.status == 200 => Sources::read(&answer.body, host),
            Ok(answer) if answer.status == 404 => {
                Sources::Untold("it has no /kv_event_sources, as before vLLM 0.30".into())
            }
            Ok(answer) => Sources::Untold(format!("/kv_event_sources answers {}", answer.status)),
            Err(error) => Sources::Untold(format!("/kv_event_sources: {}", shown(&error.to_string()))),
        }
    }

    /// Allows only these peers as addresses that the engine told, unless its word is believed.
    pub(super) fn held_to(self, peers: &Arc<[IpAddr]>, is_believed: bool) -> Sources {
        let held = |(rank, told)| (rank, Settings { peers: Some(Arc::clone(peers)), ..told });
        match self {
            Sources::Listed(ranks) if !is_believed => Sources::Listed(ranks.into_iter().map(held).collect()),
            other => other,
        }
    }

    fn read(answer: &[u8], host: &str) -> Sources {
        match listed(answer, host) {
            Ok(ranks) => Sources::Listed(ranks),
            Err(why) => match serde_json::from_slice::<Value>(answer) {
                Ok(Value::Object(ranks)) if ranks.values().all(Value::is_object) => Sources::Unusable(shown(&why)),
                _ => Sources::Untold(format!("/kv_event_sources: {}", shown(&why))),
            },
        }
    }

    /// By SGLang's `--kv-events-config`, which is the first rank's: the others offset its ports.
    fn flagged(config: Option<&str>, ranks: Option<u64>, host: &str) -> Sources {
        let Some(config) = config.filter(|config| !config.is_empty()) else { return Sources::Listed(Vec::new()) };
        match as_listed(config).map(|listed| Sources::read(&listed, host)) {
            Some(Sources::Listed(first)) => {
                let ranks = 0..ranks.unwrap_or(1).clamp(1, RANKS_MAX.into()) as u16;
                let of = |rank: u16| first.iter().map(move |(_, first)| Ok((rank.into(), first.of_rank(rank)?)));
                ranks.flat_map(of).collect::<Result<_, _>>().map_or_else(Sources::Unusable, Sources::Listed)
            }
            Some(unheard) => unheard,
            None => Sources::Untold("its kv_events_config is no JSON object".into()),
        }
    }

    pub(super) fn ranks(&self) -> &[(u32, Settings)] {
        match self {
            Sources::Listed(ranks) => ranks,
            Sources::Unusable(_) | Sources::Untold(_) | Sources::Awaited(_) | Sources::Off => &[],
        }
    }

    /// Ports of its host that are taken.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> {
        let of = |(_, settings): &(u32, Settings)| {
            [Some(settings.events.port), settings.replay.as_ref().map(|end| end.port)]
        };
        self.ranks().iter().flat_map(of).flatten()
    }
}

/// What else is known of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) kind: Option<EngineKind>,
    pub(super) ranks: usize,
    pub(super) host: &'a str,
    /// Whether it computed a prompt while it was listened to.
    pub(super) computed: bool,
    /// Whether a policy goes by what it publishes.
    pub(super) is_heard: bool,
    /// Whether its `[[upstream]]` takes its word for where it publishes (`kv_events = "told"`).
    pub(super) is_believed: bool,
}

impl Known<'_> {
    fn publish(&self) -> Option<Publish> {
        self.kind.map(|kind| Publish::new(kind, self.ranks))
    }

    /// The flag with its present ports and topic, for findings that change other parts of it.
    fn publish_on(&self, first: &Settings) -> Option<Publish> {
        let topic = Some(first.topic.clone()).filter(|topic| !topic.is_empty());
        // A topic that cannot be copied into a shell is left to its author.
        if topic.as_deref().is_some_and(|topic| !is_plain(topic)) {
            return None;
        }
        let replay = first.replay.as_ref().map(|end| end.port);
        Some(Publish { events: Some(first.events.port), replay, topic, ..self.publish()? })
    }
}

fn with(found: Finding, publish: Option<Publish>) -> Finding {
    match publish {
        Some(publish) => found.to(Change::Publish(publish)),
        None => found,
    }
}

/// Findings on what was `heard` at the sockets by [`super::listening::Listening`], and on its replay sockets.
pub(super) async fn findings(sources: &Sources, heard: &[Heard], known: Known<'_>) -> Vec<Finding> {
    let mut found = offered(sources, heard, known).await;
    if !known.is_heard {
        found.iter_mut().for_each(unneeded);
    }
    found
}

/// Takes advice back if the front does not listen: such ports are open to all, and tell prompts.
fn unneeded(found: &mut Finding) {
    if found.mark == Mark::Advice || found.change.is_some() {
        found.words += &format!(";\n{UNNEEDED}");
        found.change = None;
    }
    if found.mark == Mark::Advice {
        found.mark = Mark::Good;
    }
}

/// Findings on what it offers to a front that listens.
async fn offered(sources: &Sources, heard: &[Heard], known: Known<'_>) -> Vec<Finding> {
    let ranks = match sources {
        Sources::Listed(ranks) => ranks,
        Sources::Unusable(why) => {
            let words = format!("published where they cannot be heard: {why}");
            return vec![with(Finding::advice(EVENTS, words), known.publish())];
        }
        Sources::Untold(why) => {
            let at = Endpoint { host: known.host.to_owned(), port: EVENTS_PORT, waits: false };
            let words = format!("not told ({why});\nif it publishes, write kv_events = \"{at}\" below its `url`");
            return vec![with(Finding::unknown(EVENTS, words), known.publish())];
        }
        Sources::Awaited(at) => {
            let words = format!(
                "the front waits at {at} for it to connect (kv_events); not tried: a front may be waiting there"
            );
            return vec![Finding::unknown(EVENTS, words)];
        }
        Sources::Off => {
            return vec![Finding::unknown(
                EVENTS,
                "kv_events is \"off\": the front does not listen, and it was not asked",
            )];
        }
    };
    let Some((_, first)) = ranks.first() else {
        if !known.is_heard {
            return vec![Finding::good(EVENTS, UNNEEDED)];
        }
        let words = "none are published: what its cache holds is not known, but guessed from what was sent there";
        return vec![with(Finding::advice(EVENTS, words), known.publish())];
    };
    if first.events.waits {
        return vec![connects(first, ranks.len(), known)];
    }
    vec![events(ranks, heard, known), replay(ranks, first, known).await]
}

/// The finding for a publisher that connects: its address names its only listener.
fn connects(first: &Settings, ranks: usize, known: Known<'_>) -> Finding {
    let plain = Endpoint { waits: false, ..first.events.clone() };
    if known.is_believed {
        let words = format!(
            "published by connecting to {plain}, where the front waits for it (kv_events); not tried: a front may be waiting there"
        );
        return Finding::unknown(EVENTS, words);
    }
    // With an address one rank alone would be heard.
    let at = if ranks > 1 { "told".to_owned() } else { first.events.to_string() };
    let words = format!(
        "published by connecting to {plain}; but if that is an address of the engine's own, it listens there at a port of the\n\
         kernel's choice (tcp://*:0). An engine that connects needs a front that waits there (kv_events = \"{at}\"), and other\n\
         fronts hear nothing. Not tried from here.\n\
         An engine whose endpoint has a * listens, for any number of fronts"
    );
    with(Finding::advice(EVENTS, words), known.publish_on(first))
}

fn events(ranks: &[(u32, Settings)], heard: &[Heard], known: Known<'_>) -> Finding {
    let tried = || ranks.iter().filter(|(_, settings)| !settings.events.waits).zip(heard);
    let place = match ranks {
        [(_, only)] if only.topic.is_empty() => format!("published at {}", only.events),
        [(_, only)] => format!("published at {}, topic {}", only.events, shown(&only.topic)),
        [(_, first), .., (_, last)] => {
            format!("published by {} ranks at {} to {}", ranks.len(), first.events, last.events)
        }
        [] => String::new(),
    };
    if let Some(((rank, settings), heard)) = tried().find(|(_, heard)| !heard.connected) {
        let words = format!(
            "{place}; but rank {rank} cannot be heard from here at {}: {}",
            settings.events,
            unreached(heard.ended.as_ref())
        );
        return Finding::advice(EVENTS, words);
    }
    let mut messages = tried().filter_map(|(_, heard)| heard.message.as_ref());
    if let Some(Err(what)) = messages.clone().find(|message| message.is_err()) {
        let words = format!("{place}; connected, but a message makes no sense: {} at byte {}", what.what, what.at);
        return Finding::advice(EVENTS, words);
    }
    match messages.next() {
        Some(Ok(words)) => Finding::good(EVENTS, format!("{place}; connected, and heard:\n{words}")),
        _ if known.computed => {
            let words = format!(
                "{place}; connected, but nothing was heard of the prompt that it computed.\nDoes another engine publish there?"
            );
            Finding::advice(EVENTS, words)
        }
        _ => Finding::good(
            EVENTS,
            format!("{place}; connected.\nNothing heard within a second: events come only while it computes"),
        ),
    }
}

/// Why there is no connection, and what to do; `None`: it took too long.
fn unreached(ended: Option<&Ended>) -> String {
    let why = ended.map_or("no answer within a second".into(), Ended::to_string);
    let advice = match ended {
        // Its words say what to do.
        Some(Ended::Stranger(_)) => return shown(&why),
        Some(Ended::Unknown(..)) => "Is that its name, also from here?",
        Some(Ended::Want(_)) => "Try again when this machine has some",
        _ => "Let the port through firewall and container",
    };
    format!("{}.\n{advice}", shown(&why))
}

/// The finding on replay sockets: whether missed events can be asked for.
async fn replay(ranks: &[(u32, Settings)], first: &Settings, known: Known<'_>) -> Finding {
    if first.replay.is_none() {
        let words = "none: what is missed while a front restarts, or is slow, stays unknown";
        return with(Finding::advice(REPLAY, words), known.publish_on(first));
    }
    for (rank, settings) in ranks.iter().take(super::listening::RANKS_MAX) {
        let Some(at) = &settings.replay else {
            return Finding::advice(REPLAY, format!("rank {rank} has none"));
        };
        if is_loopback(&at.host) && !is_loopback(known.host) {
            let words = format!("it listens at {at} of its own machine only");
            return with(Finding::advice(REPLAY, words), known.publish_on(first));
        }
        // Nothing is asked: an answer may be thousands of messages.
        let why = match timeout(PATIENCE, reach(at, settings.peers.clone(), known.host, PATIENCE)).await {
            Ok(Ok(())) => continue,
            Ok(Err(ended)) => Some(ended),
            Err(_) => None,
        };
        let words = format!("at {at}, which cannot be reached from here: {}", unreached(why.as_ref()));
        return Finding::advice(REPLAY, words);
    }
    let at = first.replay.as_ref().map(Endpoint::to_string).unwrap_or_default();
    Finding::good(REPLAY, format!("at {at}, which takes connections; what is missed can be asked for"))
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    fn told(host: &str, settings: &str, heard: Heard, computed: bool) -> Vec<Finding> {
        said(&Sources::read(settings.as_bytes(), host), heard, host, computed, true)
    }

    fn said(sources: &Sources, heard: Heard, host: &str, computed: bool, is_heard: bool) -> Vec<Finding> {
        let known = Known { computed, is_heard, ..known(host) };
        crate::cli::runtime().unwrap().block_on(findings(sources, &[heard], known))
    }

    fn known(host: &str) -> Known<'_> {
        Known { kind: Some(EngineKind::Vllm), ranks: 1, host, computed: false, is_heard: true, is_believed: false }
    }

    const LOCAL_REPLAY: &str = r#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:9800",
        "replay_endpoint": "tcp://127.0.0.1:9", "topic": ""}}"#;

    #[test]
    fn a_replay_socket_of_another_machine_s_loopback_is_none() {
        let heard = || Heard { connected: true, ..Heard::default() };
        let found = told("gpu-1", LOCAL_REPLAY, heard(), false);
        assert!(found[1].mark == Mark::Advice && found[1].words.contains("of its own machine only"), "{found:?}");
        // It keeps its ports, and listens to all.
        let publish = Publish { events: Some(9800), replay: Some(9), ..Publish::new(EngineKind::Vllm, 1) };
        assert_eq!(found[1].change, Some(Change::Publish(publish)));
        let here = told("127.0.0.1", LOCAL_REPLAY, heard(), false);
        assert!(here[1].mark == Mark::Advice && here[1].words.contains("cannot be reached from here"), "{here:?}");
    }

    #[test]
    fn a_name_that_nobody_knows_is_behind_no_firewall() {
        // Longer than a label may be: nobody is asked.
        let host = "a".repeat(64);
        let [events, replay] = [9_800, 9_900].map(|port| Endpoint { host: host.clone(), port, waits: false });
        let settings = Settings { events, replay: Some(replay), topic: String::new(), peers: None };
        let sources = Sources::Listed(vec![(0, settings)]);
        let ended = Some(Ended::Unknown(host.clone(), "Name or service not known".into()));
        let heard = [Heard::default(), Heard { ended, ..Heard::default() }]
            .map(|heard| said(&sources, heard, "gpu-1", false, true));
        let lets_through = |found: &Finding| found.words.contains("Let the port through firewall and container");
        assert_eq!(heard.each_ref().map(|found| lets_through(&found[0])), [true, false], "{heard:?}");
        assert!(heard.iter().all(|found| !lets_through(&found[1]) && found[1].words.contains(&host)), "{heard:?}");
    }

    /// The front would not hear it there, and whoever is there is not to be spoken to because an engine says so.
    #[test]
    fn nobody_else_is_connected_to() {
        let other = std::net::TcpListener::bind("127.0.3.9:0").unwrap();
        let at = format!("tcp://{}", other.local_addr().unwrap());
        let told = LOCAL_REPLAY.replace("tcp://127.0.0.1:9", &at);
        let peers = [[127, 0, 0, 1].into()].into();
        let sources = Sources::read(told.as_bytes(), "127.0.0.1").held_to(&peers, false);
        let found = said(&sources, Heard { connected: true, ..Heard::default() }, "127.0.0.1", false, true);
        assert!(found[1].mark == Mark::Advice && found[1].words.contains("no address of this engine"), "{found:?}");
        assert!(!found[1].words.contains("firewall"), "{found:?}");
        other.set_nonblocking(true).unwrap();
        assert!(other.accept().is_err());
    }

    #[test]
    fn where_nobody_listens_nothing_is_to_be_changed() {
        let read = |text: &str| Sources::read(text.as_bytes(), "gpu-1");
        let of = |sources: &Sources| said(sources, Heard::default(), "gpu-1", false, false);
        assert_eq!(of(&read("{}")), [Finding::good(EVENTS, UNNEEDED)]);
        for sources in [
            read(LOCAL_REPLAY),
            read(&LOCAL_REPLAY.replace("tcp://127.0.0.1:9", "")),
            read(&LOCAL_REPLAY.replace("tcp://*:9800", "ipc:///tmp/kv")),
            read(&LOCAL_REPLAY.replace("*:9800", "10.0.0.9:9800")),
            Sources::Untold("it has no path for it".into()),
        ] {
            let heard = said(&sources, Heard::default(), "gpu-1", false, true);
            assert!(heard.iter().any(|found| found.mark == Mark::Advice || found.change.is_some()), "{heard:?}");
            for found in of(&sources) {
                let is_said = found.words.ends_with(&format!(";\n{UNNEEDED}"));
                assert!(is_said && found.mark != Mark::Advice && found.change.is_none(), "{found:?}");
            }
        }
    }

    #[test]
    fn of_ranks_that_connect_no_one_is_named() {
        let rank = |port: u16| {
            format!(r#"{{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://10.0.0.9:{port}"}}"#)
        };
        for (ranks, named) in [(1, "@tcp://10.0.0.9:5557"), (2, "told")] {
            let all: Vec<String> = (0..ranks).map(|number| format!("\"{number}\": {}", rank(5557 + number))).collect();
            let all = format!("{{{}}}", all.join(","));
            let found = told("gpu-1", &all, Heard::default(), false);
            assert!(found[0].words.contains(&format!("(kv_events = \"{named}\")")), "{found:?}");
            // It is written there already, and nothing is to be changed.
            let believed = connects(
                &listed(all.as_bytes(), "gpu-1").unwrap()[0].1,
                ranks.into(),
                Known { is_believed: true, ..known("gpu-1") },
            );
            assert_eq!((believed.mark, &believed.change), (Mark::Unknown, &None), "{believed:?}");
            assert!(!believed.words.contains("kv_events = "), "{believed:?}");
        }
    }

    #[test]
    fn silence_behind_a_prompt_is_strange() {
        let found = |computed| told("gpu-1", LOCAL_REPLAY, Heard { connected: true, ..Heard::default() }, computed);
        assert_eq!((found(false)[0].mark, found(true)[0].mark), (Mark::Good, Mark::Advice));
    }

    #[test]
    fn what_cannot_be_read_is_told_from_what_cannot_be_heard() {
        let of = |text: &str| Sources::read(text.as_bytes(), "gpu-1");
        assert_eq!(of("{}"), Sources::Listed(Vec::new()));
        assert!(matches!(of("[]"), Sources::Untold(_)) && matches!(of("{\"0\": 3}"), Sources::Untold(_)));
        assert!(matches!(of(&LOCAL_REPLAY.replace("tcp://*:9800", "ipc:///tmp/kv")), Sources::Unusable(_)));
        assert!(matches!(of(&LOCAL_REPLAY.replace("9800", "0")), Sources::Unusable(_)));
        let itself = of(&LOCAL_REPLAY.replace("*:9800", "0.0.0.0:9800"));
        assert!(matches!(&itself, Sources::Unusable(why) if why.contains("write tcp://*:9800")), "{itself:?}");
        let sglang = |config| Sources::flagged(config, None, "gpu-1");
        assert_eq!((sglang(None), sglang(Some("{}"))), (Sources::Listed(Vec::new()), Sources::Listed(Vec::new())));
        assert!(matches!(sglang(Some("zmq")), Sources::Untold(_)));
        assert_eq!(sglang(Some(r#"{"publisher": "zmq"}"#)).ports().collect::<Vec<_>>(), [EVENTS_PORT]);
        let ranks = |ranks| Sources::flagged(Some(r#"{"publisher": "zmq"}"#), Some(ranks), "gpu-1");
        assert_eq!(ranks(2).ports().collect::<Vec<_>>(), [EVENTS_PORT, EVENTS_PORT + 1], "each offsets the first's");
        assert_eq!(ranks(u64::MAX).ports().count(), 64);
    }
}
