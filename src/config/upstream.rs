//! One engine as the operator names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::kvevents;

/// Longest name: it stands in metrics, log lines and replies.
const NAME_BYTES_MAX: usize = 256;

/// `[[upstream]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    /// Where it listens.
    pub url: Url,
    /// Its name in metrics and on the ring; empty: `host:port` of `url`.
    #[serde(default)]
    pub name: String,
    /// Whether each address that the host name stands for is an engine of its own; the other keys hold for each of
    /// them.
    #[serde(default)]
    pub each_address: bool,
    /// Its share of the load relative to the others.
    #[serde(default = "one")]
    pub weight: u32,
    /// Data-parallel ranks behind its port, each of which is chosen by itself; 1: it has one cache, or spreads requests
    /// over its ranks itself.
    #[serde(default = "one")]
    pub ranks: u32,
    /// Which of these ranks it is, once each is an endpoint of its own.
    #[serde(skip)]
    pub rank: Option<u16>,
    /// Most requests of one front that run there at once, at each rank; 0: as many as come.
    #[serde(default)]
    pub concurrency_max: u32,
    /// Ids of the models that it serves; empty: learnt from its `/v1/models`.
    #[serde(default)]
    pub models: Vec<String>,
    /// Whether it is being taken out of service: it finishes what it has and gets nothing new, and is probed on.
    #[serde(default)]
    pub drain: bool,
    /// Where it publishes KV events.
    #[serde(default)]
    pub kv_events: KvEvents,
    /// Its replay socket; empty: none, or as the engine says.
    #[serde(default)]
    pub kv_replay: String,
    /// What the topics of its events begin with; empty: any.
    #[serde(default)]
    pub kv_topic: String,
    /// File with the API key that control's own calls carry; empty: none.
    #[serde(default)]
    pub api_key_file: PathBuf,
}

fn one() -> u32 {
    1
}

impl Upstream {
    /// An engine with an address and defaults for all else.
    pub fn new(url: Url) -> Upstream {
        Upstream {
            url,
            name: String::new(),
            each_address: false,
            weight: 1,
            ranks: 1,
            rank: None,
            concurrency_max: 0,
            models: Vec::new(),
            drain: false,
            kv_events: KvEvents::Auto,
            kv_replay: String::new(),
            kv_topic: String::new(),
            api_key_file: PathBuf::new(),
        }
    }

    /// What is wrong with its name, in words.
    pub(super) fn name_fault(&self) -> Option<String> {
        if self.name.len() > NAME_BYTES_MAX {
            Some(format!("`name` has {} bytes; it can have {NAME_BYTES_MAX} at most", self.name.len()))
        } else if self.name.contains(char::is_control) {
            Some(format!(
                "`name` {:?} has control characters, which logs and metrics cannot show; leave them out",
                self.name
            ))
        } else {
            None
        }
    }

    /// Where its KV events are, as far as that is configured.
    ///
    /// # Errors
    /// What is wrong with `kv_events`, `kv_replay` or `kv_topic`.
    pub fn kv_source(&self) -> Result<Option<kvevents::Settings>, String> {
        let is_asked = matches!(self.kv_events, KvEvents::Auto | KvEvents::Told);
        if is_asked && !(self.kv_replay.is_empty() && self.kv_topic.is_empty()) {
            return Err(format!(
                "`kv_replay` and `kv_topic` need an address in `kv_events`; with \"{}\" the engine tells all three",
                String::from(self.kv_events.clone())
            ));
        }
        if self.each_address && matches!(self.kv_events, KvEvents::At(_)) {
            return Err("`kv_events` is one engine's address, but `each_address` stands for several engines: set `kv_events` to \"auto\" or \"told\"".into());
        }
        let kv_replay = match &*self.kv_replay {
            "" => None,
            text => Some(text.parse().map_err(|why| format!("`kv_replay`: {why}"))?),
        };
        let kv_events = match &self.kv_events {
            KvEvents::At(endpoint) => Some(endpoint.clone()),
            KvEvents::Auto | KvEvents::Told | KvEvents::Off => None,
        };
        kvevents::Keys { kv_events, kv_replay, kv_topic: self.kv_topic.clone() }.settings()
    }

    /// Whether both are the same engine, whatever their other keys say.
    pub fn is_same(&self, other: &Upstream) -> bool {
        self.url == other.url && self.label() == other.label()
    }

    /// Whether both are of one server and have the same `api_key_file`.
    pub fn has_key_of(&self, other: &Upstream) -> bool {
        self.is_of_server(other) && self.api_key_file == other.api_key_file
    }

    /// Its server's name, with the number of the rank that it is.
    pub fn label(&self) -> String {
        let server = self.server();
        match self.rank {
            Some(rank) => format!("{server}@{rank}"),
            None => server,
        }
    }

    /// Its name, or `host:port`.
    pub fn server(&self) -> String {
        if self.name.is_empty() { self.url.authority() } else { self.name.clone() }
    }
}

/// `kv_events`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KvEvents {
    /// Where the engine says, if that is one of its own addresses.
    #[default]
    Auto,
    /// Where the engine says, whatever address that is.
    Told,
    /// Nowhere.
    Off,
    /// At this address.
    At(kvevents::Endpoint),
}

impl TryFrom<String> for KvEvents {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match &*text {
            "" | "auto" => Ok(KvEvents::Auto),
            "told" => Ok(KvEvents::Told),
            "off" => Ok(KvEvents::Off),
            text => text.parse().map(KvEvents::At),
        }
    }
}

impl From<KvEvents> for String {
    fn from(events: KvEvents) -> String {
        match events {
            KvEvents::Auto => "auto".into(),
            KvEvents::Told => "told".into(),
            KvEvents::Off => "off".into(),
            KvEvents::At(endpoint) => endpoint.to_string(),
        }
    }
}

/// `http://HOST:PORT`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    /// Name or address, without brackets.
    pub host: String,
    /// Port, 80 if the URL has none.
    pub port: u16,
}

impl Url {
    /// `host:port`, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let Url { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Checked first: no other message may show them.
        if let Some((_, behind)) = text.rsplit_once('@') {
            return Err(format!(
                "\"http://...@{behind}\" holds credentials; put the engine's key into a file and name it in `api_key_file`"
            ));
        }
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("https://") {
            return Err(format!(
                "\"{text}\" asks for TLS towards the engine, which warmfront does not speak yet; \
                 write http://HOST:PORT, and use it on a network you trust"
            ));
        }
        let Some(rest) = lower.strip_prefix("http://") else {
            return Err(format!("\"{text}\" is not an engine's URL; write it as http://HOST:PORT"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains(',') {
            return Err(format!(
                "\"{text}\" names several engines; name each by itself: \
                 repeat --upstream, or [[upstream]] in the file, for each"
            ));
        }
        if !path.is_empty() {
            return Err(format!(
                "\"{text}\" has a path; warmfront passes the client's own path on, so write http://{authority}"
            ));
        }
        let (host, port) = split_port(authority).ok_or_else(|| {
            format!("\"{text}\" does not name a host and a port from 1 to 65535; write it as http://HOST:PORT")
        })?;
        Ok(Url { host: host.to_owned(), port })
    }
}

/// Host and port of `name`, `name:port`, `[v6]` or `[v6]:port`.
fn split_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if after.is_empty() { "80" } else { after.strip_prefix(':')? })
        }
        None => authority.split_once(':').unwrap_or((authority, "80")),
    };
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok())??;
    (!host.is_empty() && host.bytes().all(usable) && port != 0).then_some((host, port))
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "http://{}", self.authority())
    }
}

impl TryFrom<String> for Url {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Url> for String {
    fn from(url: Url) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_one_engine_tells_its_events_is_not_said_of_several() {
        let one = Upstream::new("http://engines:8000".parse().unwrap());
        let at = |each_address| {
            let kv_events = KvEvents::At("tcp://engines:5557".parse().unwrap());
            Upstream { each_address, kv_events, ..one.clone() }.kv_source()
        };
        assert!(at(false).is_ok() && at(true).unwrap_err().contains("`each_address`"));
        for kv_events in [KvEvents::Auto, KvEvents::Told, KvEvents::Off] {
            assert!(Upstream { each_address: true, kv_events, ..one.clone() }.kv_source().is_ok());
        }
    }

    #[test]
    fn urls_are_host_and_port() {
        let url = |text: &str| text.parse::<Url>().map(|url| url.to_string());
        assert_eq!(url("http://gpu-1:8000").unwrap(), "http://gpu-1:8000");
        assert_eq!(url("http://GPU-1:8000/").unwrap(), "http://gpu-1:8000");
        assert_eq!(url("http://10.0.0.1").unwrap(), "http://10.0.0.1:80");
        assert_eq!(url("http://[::1]:8000").unwrap(), "http://[::1]:8000");
        for wrong in [
            "",
            "gpu-1:8000",
            "http://",
            "http://:80",
            "http://a:0",
            "http://a:99999",
            "http://a:+8",
            "http://a b:1",
            "http://[::1:80",
            "http://[x]:80",
            "ftp://a:1",
            "http://u:p@a:1",
            "http://a:1/v1",
            "http://a:1?x",
            "http://::1:80",
        ] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
        assert!(url("https://a:1").unwrap_err().contains("TLS"));
        for several in ["http://a:1,http://b:2", "http://a:1,b:2", "http://a,b/"] {
            assert!(url(several).unwrap_err().contains("repeat --upstream"), "{several}");
        }
        for secret in
            ["http://u:pw@a:1", "http://u:pw@a:1/v1", "https://u:pw@a:1", "http://u:pw@a:1,http://b:2", "u:p/pw@a"]
        {
            let why = url(secret).unwrap_err();
            assert!(why.contains("holds credentials") && !why.contains("pw"), "{why}");
        }
        assert!(url("http://a:1/x,y").unwrap_err().contains("has a path"));
    }
}
