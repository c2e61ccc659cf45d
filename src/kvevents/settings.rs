//! Where an engine publishes its events: from configuration, or from what the engine lists.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::KV_RANKS_MAX;

/// Longest topic: it has to fit into a short frame, after `SUBSCRIBE`.
const TOPIC_BYTES_MAX: usize = 200;

/// One socket that publishes: that of an engine, or of one of its data-parallel ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where events come from.
    pub events: Endpoint,
    /// Where missed events can be asked for again, if anywhere.
    pub replay: Option<Endpoint>,
    /// What the topics of messages begin with; empty: any.
    pub topic: String,
    /// Addresses that the peer may have, the one in use first; `None`: any.
    pub peers: Option<Arc<[IpAddr]>>,
}

impl Settings {
    /// Returns the settings of another rank, from these of the first.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn of_rank(&self, rank: u16) -> Result<Settings, String> {
        let behind = |first: &Endpoint| {
            first
                .of_rank(rank)
                .ok_or_else(|| format!("rank {rank} would publish at no port: the first does at {first}"))
        };
        let replay = self.replay.as_ref().map(behind).transpose()?;
        Ok(Settings { events: behind(&self.events)?, replay, ..self.clone() })
    }
}

/// The keys of `[[upstream]]` about events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// Where the engine publishes: `tcp://HOST:PORT`, or `tcp://*:PORT` to wait here for an engine that connects to us.
    pub kv_events: Option<Endpoint>,
    /// The engine's replay socket: `tcp://HOST:PORT`.
    pub kv_replay: Option<Endpoint>,
    /// What the topics of messages begin with; empty: any.
    pub kv_topic: String,
}

impl Keys {
    /// Checks the keys and makes settings of them; `None` if no events are wanted.
    pub fn settings(self) -> Result<Option<Settings>, String> {
        let Keys { kv_events, kv_replay, kv_topic } = self;
        if kv_topic.len() > TOPIC_BYTES_MAX {
            return Err(format!("`kv_topic` is longer than {TOPIC_BYTES_MAX} bytes"));
        }
        if let Some(Endpoint { waits: true, .. }) = kv_replay {
            return Err("`kv_replay` is where the engine listens; write its host, as in tcp://gpu-1:5558".to_owned());
        }
        match kv_events {
            Some(events) => Ok(Some(Settings { events, replay: kv_replay, topic: kv_topic, peers: None })),
            None if kv_replay.is_some() || !kv_topic.is_empty() => {
                Err("`kv_replay` and `kv_topic` say how to read `kv_events`, which is missing".to_owned())
            }
            None => Ok(None),
        }
    }
}

/// `tcp://HOST:PORT`. With the host `*`, or an `@` before it, we wait there for the engine to connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// Name or address, without brackets; `*`: all addresses of this machine.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the engine connects to us.
    pub waits: bool,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let (address, waits) = text.strip_prefix('@').map_or((text, false), |rest| (rest, true));
        let Some(authority) = address.strip_prefix("tcp://") else {
            return Err(format!("\"{text}\" is not spoken here; publish over TCP and write tcp://HOST:PORT"));
        };
        let (host, port) = authority
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, usable_port(port)?)))
            .ok_or_else(|| format!("\"{text}\" does not name a host and a port from 1 to 65535"))?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let plain = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
        let fits = match bracketed {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => host == "*" || (!host.is_empty() && plain(host)),
        };
        if !fits {
            return Err(format!("\"{text}\" does not name a host; an IPv6 address stands in brackets"));
        }
        let host = bracketed.unwrap_or(host).to_owned();
        Ok(Endpoint { waits: waits || matches!(&*host, "*" | "::" | "0.0.0.0"), host, port })
    }
}

impl Endpoint {
    /// Returns the endpoint of another rank: its port is so many further on; `None` if there is no such port.
    pub fn of_rank(&self, rank: u16) -> Option<Endpoint> {
        Some(Endpoint { port: self.port.checked_add(rank)?, ..self.clone() })
    }

    /// Whether a peer that connects to one of two endpoints that wait may reach the other; a name may stand for any
    /// address.
    pub fn meets(&self, other: &Endpoint) -> bool {
        let ip = |end: &Endpoint| end.host.parse().map(|ip: IpAddr| ip.to_canonical());
        let apart = |one: IpAddr, other: IpAddr| one != other && !one.is_unspecified() && !other.is_unspecified();
        self.port == other.port && !matches!((ip(self), ip(other)), (Ok(one), Ok(other)) if apart(one, other))
    }
}

fn usable_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?.filter(|port| *port != 0)
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { host, port, waits } = self;
        let at = if *waits && !matches!(&**host, "*" | "::" | "0.0.0.0") { "@" } else { "" };
        if host.contains(':') {
            write!(out, "{at}tcp://[{host}]:{port}")
        } else {
            write!(out, "{at}tcp://{host}:{port}")
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Endpoint, String> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> String {
        endpoint.to_string()
    }
}

/// One rank, as vLLM's `GET /kv_event_sources` lists it. Versions differ in further keys.
#[derive(Deserialize)]
struct Listed {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    /// Whether it listens at the endpoint (SGLang's key). If missing, it listens at `*` and wherever there is a `::`.
    #[serde(default)]
    bind: Option<bool>,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: Option<String>,
}

/// The port at which vLLM and SGLang publish by default.
pub const EVENTS_PORT: u16 = 5557;

/// Rewrites SGLang's `--kv-events-config` to what [`listed`] reads: it does not list ranks, SGLang publishes wherever a
/// publisher is named, and it listens at `0.0.0.0` as at `*`. `None`: it is no JSON object.
pub fn as_listed(config: &str) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = serde_json::from_str(config).ok()?;
    config.insert("enable_kv_cache_events".into(), true.into());
    let endpoint = config.entry("endpoint").or_insert_with(|| format!("tcp://*:{EVENTS_PORT}").into());
    let is_all = endpoint.as_str().and_then(|at| at.parse().ok()).is_some_and(|at: Endpoint| at.host == "0.0.0.0");
    if is_all && config.get("bind").is_none_or(Value::is_null) {
        config.insert("bind".into(), true.into());
    }
    serde_json::to_vec(&json!({ "0": config })).ok()
}

/// Returns how many data-parallel ranks SGLang has, each of which publishes by itself. `dp_size` counts replicas. If
/// there is `attn_dp_size` (0.5.23), that counts the groups of attention, which `dp_size` counted before.
pub fn flagged_ranks(dp_size: Option<u64>, attn_dp_size: Option<u64>) -> Option<u64> {
    let groups = attn_dp_size.unwrap_or(1).max(1);
    dp_size.map(|replicas| replicas.saturating_mul(groups))
}

/// Returns where the ranks of the engine at `host` (a name or an address) publish, from the answer to `GET
/// /kv_event_sources`. Ranks that publish nothing are left out.
pub fn listed(answer: &[u8], host: &str) -> Result<Vec<(u32, Settings)>, String> {
    let ranks: BTreeMap<u32, Listed> =
        serde_json::from_slice(answer).map_err(|error| format!("not a list of event sources: {error}"))?;
    let publishes = |listed: &Listed| listed.enable_kv_cache_events && listed.publisher.as_deref() == Some("zmq");
    let ranks: Vec<_> = ranks.into_iter().filter(|(_, listed)| publishes(listed)).collect();
    if ranks.len() > KV_RANKS_MAX {
        return Err(format!("it lists {} ranks, more than {KV_RANKS_MAX}", ranks.len()));
    }
    ranks.into_iter().map(|(rank, listed)| Ok((rank, listed.settings(host)?))).collect()
}

impl Listed {
    fn settings(self, host: &str) -> Result<Settings, String> {
        let topic = self.topic.unwrap_or_default();
        if topic.len() > TOPIC_BYTES_MAX {
            return Err(format!("a topic is longer than {TOPIC_BYTES_MAX} bytes"));
        }
        let other_end = |text: &str, bind: Option<bool>| -> Result<Endpoint, String> {
            let theirs: Endpoint = text.parse()?;
            let double = theirs.host.contains("::");
            Ok(match (bind.unwrap_or(double || theirs.host == "*"), double || theirs.waits) {
                // It listens at all its addresses: we connect to the one that we know.
                (true, true) => Endpoint { host: host.to_owned(), port: theirs.port, waits: false },
                // It listens at this one alone.
                (true, false) => theirs,
                (false, _) if matches!(&*theirs.host, "0.0.0.0" | "::") => {
                    let port = theirs.port;
                    return Err(format!(
                        "it connects to {theirs}, which is itself, where nobody hears it; write tcp://*:{port} in its --kv-events-config"
                    ));
                }
                // It connects to an address of ours, at which we have to wait.
                (false, _) => Endpoint { waits: true, ..theirs },
            })
        };
        let events = self.endpoint.as_deref().ok_or("a source without an endpoint")?;
        // The replay socket always listens, whatever its address looks like.
        let replay = self.replay_endpoint.as_deref().map(|text| other_end(text, Some(true)));
        Ok(Settings { events: other_end(events, self.bind)?, replay: replay.transpose()?, topic, peers: None })
    }
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Longest attempt to connect.
    pub connect: Duration,
    /// Longest time from a connection's beginning to the end of its handshake.
    pub handshake: Duration,
    /// Silence after which a sign of life is asked for, and then the longest wait for that.
    pub heartbeat: Duration,
    /// Longest wait for each answer to a replay.
    pub answer: Duration,
    /// Longest replay.
    pub replay: Duration,
    /// Wait before the first of a row of new attempts; doubled for each further one.
    pub again: Duration,
    /// Longest such wait.
    pub again_most: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            answer: Duration::from_secs(5),
            replay: Duration::from_secs(30),
            again: Duration::from_millis(100),
            again_most: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_connect_or_wait() {
        let read =
            |text: &str| text.parse::<Endpoint>().map(|end| (end.host.clone(), end.port, end.waits, end.to_string()));
        let expect = |host: &str, port, waits, text: &str| Ok((host.to_owned(), port, waits, text.to_owned()));
        assert_eq!(read("tcp://gpu-1:5557"), expect("gpu-1", 5557, false, "tcp://gpu-1:5557"));
        assert_eq!(read("tcp://[::1]:5557"), expect("::1", 5557, false, "tcp://[::1]:5557"));
        assert_eq!(read("tcp://*:5557"), expect("*", 5557, true, "tcp://*:5557"));
        assert_eq!(read("tcp://[::]:5557"), expect("::", 5557, true, "tcp://[::]:5557"));
        assert_eq!(read("@tcp://10.0.0.1:5557"), expect("10.0.0.1", 5557, true, "@tcp://10.0.0.1:5557"));
        for wrong in [
            "",
            "gpu-1:5557",
            "tcp://gpu-1",
            "tcp://gpu-1:0",
            "tcp://gpu-1:70000",
            "tcp://gpu-1:+5",
            "tcp://:5557",
            "tcp://a b:5557",
            "tcp://::1:5557",
            "tcp://[x]:5557",
            "ipc:///tmp/kv",
            "inproc://kv",
            "tcp://a/b:1",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read("ipc:///tmp/kv").unwrap_err().contains("TCP"));
    }

    #[test]
    fn doors_meet_that_may_be_one() {
        let end = |text: &str| text.parse::<Endpoint>().unwrap();
        let meet = |one: &str, other: &str| {
            let (one, other) = (end(one), end(other));
            assert_eq!(one.meets(&other), other.meets(&one));
            one.meets(&other)
        };
        for other in [
            "@tcp://10.0.0.1:5557",
            "@tcp://[::ffff:10.0.0.1]:5557",
            "tcp://*:5557",
            "tcp://[::]:5557",
            "@tcp://front:5557",
        ] {
            assert!(meet("@tcp://10.0.0.1:5557", other), "{other}");
        }
        assert!(!meet("@tcp://10.0.0.1:5557", "@tcp://10.0.0.2:5557"));
        assert!(!meet("@tcp://10.0.0.1:5557", "@tcp://10.0.0.1:5558"));
    }

    #[test]
    fn keys_are_read_and_belong_together() {
        let read = |text: &str| toml::from_str::<Keys>(text).map_err(|error| error.to_string())?.settings();
        assert_eq!(read(""), Ok(None));
        let all = "kv_events = 'tcp://a:1'\nkv_replay = 'tcp://a:2'\nkv_topic = 'kv'";
        let settings = read(all).unwrap().unwrap();
        assert_eq!((settings.replay.unwrap().port, &*settings.topic), (2, "kv"));
        assert!(read("kv_topic = 'kv'").unwrap_err().contains("kv_events"));
        assert!(read("kv_events = 'tcp://a:1'\nkv_replay = 'tcp://*:2'").unwrap_err().contains("kv_replay"));
        assert!(read("kv_events = 'ipc://a'").unwrap_err().contains("ipc://a"));
        assert!(read(&format!("kv_events = 'tcp://a:1'\nkv_topic = '{}'", "x".repeat(201))).is_err());
    }

    /// SGLang's flag may contradict the look of the address, and SGLang reads one address differently than vLLM.
    #[test]
    fn an_engine_that_listens_is_connected_to() {
        let at = |endpoint: &str, bind: &str| {
            let config = format!(r#"{{"publisher": "zmq", "endpoint": "{endpoint}", "bind": {bind}}}"#);
            let found = listed(&as_listed(&config).unwrap(), "gpu-1").unwrap();
            found[0].1.events.to_string()
        };
        for (endpoint, bind, expected) in [
            ("tcp://10.0.0.9:5557", "true", "tcp://10.0.0.9:5557"),
            ("tcp://10.0.0.9:5557", "false", "@tcp://10.0.0.9:5557"),
            ("tcp://10.0.0.9:5557", "null", "@tcp://10.0.0.9:5557"),
            ("tcp://*:5557", "true", "tcp://gpu-1:5557"),
            ("tcp://0.0.0.0:5557", "true", "tcp://gpu-1:5557"),
            ("tcp://0.0.0.0:5557", "null", "tcp://gpu-1:5557"),
            ("tcp://[fd00::9]:5557", "null", "tcp://gpu-1:5557"),
            ("tcp://[fd00::9]:5557", "false", "@tcp://[fd00::9]:5557"),
        ] {
            assert_eq!(at(endpoint, bind), expected, "{endpoint} {bind}");
        }
        let vllm = |end: &str, replay: &str| {
            let rank = format!(r#""enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://{end}:5557""#);
            listed(format!(r#"{{"0": {{{rank}, "replay_endpoint": "tcp://{replay}:5558"}}}}"#).as_bytes(), "gpu-1")
        };
        let found = vllm("*", "0.0.0.0").unwrap().remove(0).1;
        assert_eq!(found.replay.unwrap().to_string(), "tcp://gpu-1:5558", "a replay socket listens everywhere");
        let why = vllm("0.0.0.0", "*").unwrap_err();
        assert!(why.contains("connects to tcp://0.0.0.0:5557,") && why.contains("tcp://*:5557"), "{why}");
    }

    /// For `--dp-size 8 --enable-dp-attention` SGLang 0.5.23 tells 1 and 8, older ones 8 and nothing.
    #[test]
    fn ranks_are_counted_wherever_they_stand() {
        let of = flagged_ranks;
        assert_eq!((of(Some(1), Some(8)), of(Some(8), Some(1)), of(Some(8), None)), (Some(8), Some(8), Some(8)));
        assert_eq!((of(Some(1), Some(1)), of(Some(1), None), of(None, None)), (Some(1), Some(1), None));
        assert_eq!((of(Some(u64::MAX), Some(2)), of(Some(2), Some(0))), (Some(u64::MAX), Some(2)));
    }

    #[test]
    fn what_engines_list_is_seen_from_here() {
        let answer = br#"{"1": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://10.0.0.9:5558",
                              "replay_endpoint": null, "topic": "", "news": [1]},
                          "0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
                              "replay_endpoint": "tcp://*:5600", "topic": "kv"},
                          "2": {"enable_kv_cache_events": true, "publisher": "null", "endpoint": "tcp://*:5557"}}"#;
        let found = listed(answer, "gpu-1").unwrap();
        let shown = |(rank, settings): &(u32, Settings)| {
            (*rank, settings.events.to_string(), settings.replay.as_ref().map(Endpoint::to_string))
        };
        let expected = [
            (0, "tcp://gpu-1:5557".to_owned(), Some("tcp://gpu-1:5600".to_owned())),
            (1, "@tcp://10.0.0.9:5558".to_owned(), None),
        ];
        assert_eq!(found.iter().map(shown).collect::<Vec<_>>(), expected);
        assert!(listed(b"[]", "gpu-1").is_err());
        for (address, at) in [("10.0.0.7", "tcp://10.0.0.7:5557"), ("fd00::7", "tcp://[fd00::7]:5557")] {
            assert_eq!(listed(answer, address).unwrap()[0].1.events.to_string(), at);
        }
        // Each would be a connection, or a port of ours.
        let many = |ranks: usize| {
            let source = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}"#;
            let all: Vec<String> = (0..ranks).map(|rank| format!("\"{rank}\": {source}")).collect();
            listed(format!("{{{}}}", all.join(",")).as_bytes(), "gpu-1")
        };
        assert_eq!(many(KV_RANKS_MAX).unwrap().len(), KV_RANKS_MAX);
        assert!(many(KV_RANKS_MAX + 1).unwrap_err().contains("65 ranks"));
        let zero = br#"{"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:0"}}"#;
        assert!(listed(zero, "gpu-1").is_err(), "a port that nobody can connect to");
    }
}
