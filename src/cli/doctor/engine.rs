//! One engine: what it is asked, and the order of the findings.

use std::iter::once;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::cached::{self, Room};
use super::connection;
use super::events::{self, Known, Sources};
use super::finding::{Finding, Mark, shown};
use super::listening::Listening;
use super::load::{self, Page};
use super::server::{self, Info};
use super::tokenizer;
use crate::cli::check::files::CREDENTIALS;
use crate::config::{Config, KvEvents, Upstream};
use crate::control::client::{self, Answer, Call, CallError, Client};
use crate::control::models;
use crate::control::scrape::{self, EngineKind};
use crate::control::{keys, names};

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// How engines are asked.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    /// Whether they may be made to compute.
    pub(super) ask: bool,
    /// Longest wait for each answer.
    pub(super) timeout: Duration,
    /// The front's configuration.
    pub(super) config: Arc<Config>,
}

/// What is known of one engine.
#[derive(Clone, Debug)]
pub(super) struct Examined {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) host: String,
    /// Whether it answers at all.
    pub(super) answers: bool,
    pub(super) kind: Option<EngineKind>,
    pub(super) version: Option<String>,
    /// Ports of its host that it uses, as far as known.
    pub(super) ports: Vec<u16>,
    pub(super) findings: Vec<Finding>,
}

impl Examined {
    pub(super) fn has_advice(&self) -> bool {
        self.findings.iter().any(|finding| finding.mark == Mark::Advice)
    }
}

/// Examines one engine.
pub(super) async fn examine(upstream: Upstream, manner: Manner) -> Examined {
    let mut examined = Examined {
        name: upstream.label(),
        url: upstream.url.to_string(),
        host: upstream.url.host.clone(),
        answers: false,
        kind: None,
        version: None,
        ports: vec![upstream.url.port],
        findings: Vec::new(),
    };
    let unreachable =
        |examined: Examined, why: String| Examined { findings: vec![Finding::advice("server", why)], ..examined };
    let (key, keyless) = match keys::of(&upstream) {
        Ok(key) => (key, None),
        Err(error) => {
            let is_the_units = upstream.api_key_file.starts_with(CREDENTIALS);
            let (weigh, why) = match is_the_units {
                true => (Finding::unknown as fn(_, _) -> _, "only the unit can read it"),
                false => (Finding::advice as fn(_, _) -> _, "a front would not start"),
            };
            (None, Some(weigh("key", format!("{error}: {why};\nthe engine was asked without it"))))
        }
    };
    let addresses = match names::lookup(&upstream).await {
        Ok(addresses) => addresses,
        Err(why) => return unreachable(examined, format!("cannot look it up: {}", shown(&why))),
    };
    let keyless = keyless.map(|found| examined.findings.push(found)).is_some();
    let asking = Asking { authority: upstream.url.authority(), key, keyless, client: Client::default() };
    match asking.reach(&addresses, manner.timeout).await {
        Ok(reached) => asking.all(reached, &upstream, &manner, &mut examined).await,
        Err(error) => {
            return unreachable(
                examined,
                format!("{}; {}start it, or mend `url`", shown(&error.to_string()), client::may_be_tls(&error)),
            );
        }
    }
    examined
}

/// The first answer, and between which times it was given.
struct Reached {
    address: SocketAddr,
    /// All addresses of the engine, this one first.
    peers: Arc<[IpAddr]>,
    version: Answer,
    sent: SystemTime,
    came: SystemTime,
}

/// Asks one engine.
pub(super) struct Asking {
    authority: String,
    key: Option<Arc<str>>,
    /// It has a key, which cannot be read here.
    keyless: bool,
    pub(super) client: Client,
}

impl Asking {
    pub(super) fn call<'a>(&'a self, address: SocketAddr, path: &'a str, timeout: Duration) -> Call<'a> {
        Call {
            address,
            authority: &self.authority,
            path,
            key: self.key.as_deref(),
            timeout,
            bytes_max: ANSWER_BYTES_MAX,
        }
    }

    /// The first address that answers.
    async fn reach(&self, addresses: &[SocketAddr], timeout: Duration) -> Result<Reached, CallError> {
        let mut last = CallError::Broken("it has no address".into());
        for address in addresses {
            let sent = SystemTime::now();
            match self.client.get(&self.call(*address, "/version", timeout)).await {
                Ok(version) => {
                    let others = addresses.iter().filter(|other| *other != address && !names::is_shared(addresses));
                    let peers = once(address).chain(others).map(SocketAddr::ip).collect();
                    return Ok(Reached { address: *address, peers, version, sent, came: SystemTime::now() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether several processes answer at its address, as behind a Service: one process tells the same start each
    /// time.
    async fn by_turns(&self, address: SocketAddr, started: Option<f64>, timeout: Duration) -> Option<Finding> {
        // If two answer by turns, all these connections reach the same one with a chance of 1 in 128.
        const CONNECTIONS: usize = 7;
        let mut starts = vec![started?];
        for _ in 0..CONNECTIONS {
            let mut lines = scrape::Page::default();
            let call = self.call(address, "/metrics", timeout);
            let status = Client::connecting_anew().get_lines(&call, |line| lines.line(line)).await;
            let other = lines.reading().started.filter(|start| status == Ok(200) && !starts.contains(start));
            starts.extend(other);
        }
        (starts.len() > 1).then(|| {
            let words = "engines with different process_start_time_seconds answer at this address by turns: none of\n\
                         their caches can be known; name each as an [[upstream]] by an address of its own";
            Finding::advice("address", words)
        })
    }

    /// Whether it generates, and does not only embed or the like; asked only if its prefixes are not cached.
    async fn generates(&self, address: SocketAddr, page: &Page, timeout: Duration) -> bool {
        page.reading.prefix_caching != Some(false)
            || !matches!(self.client.get(&self.call(address, "/v1/completions", timeout)).await,
                // 405 if it has the path, which takes only POST.
                Ok(answer) if answer.status == 404)
    }

    /// Asks at once for all that costs the engine no work; then listens to it, and gives it work with `--ask`.
    async fn all(&self, reached: Reached, upstream: &Upstream, manner: &Manner, examined: &mut Examined) {
        let Reached { address, peers, version, sent, came } = reached;
        let call = |path| self.call(address, path, manner.timeout);
        let (models_call, metrics_call, sources_call, info_call) =
            (call("/v1/models"), call("/metrics"), call("/kv_event_sources"), call("/server_info"));
        let mut lines = scrape::Page::default();
        let (learnt, metrics, sources, info) = tokio::join!(
            models::learn(&self.client, &models_call, None),
            self.client.get_lines(&metrics_call, |line| lines.line(line)),
            self.client.get(&sources_call),
            self.client.get(&info_call),
        );
        let page = Page::of(&metrics, lines);
        let info = match Info::of(&info) {
            // The path's name in older releases; newer ones log a warning if it is asked for.
            None if version.status != 200 => Info::of(&self.client.get(&call("/get_server_info")).await),
            info => info,
        };
        let says = server::version(&version);
        let by_paths = || match (&info, &says) {
            (Some(_), _) => Some(EngineKind::Sglang),
            (None, Some(_)) => Some(EngineKind::Vllm),
            (None, None) => None,
        };
        let kind = page.reading.engine.or_else(by_paths);
        let version_text = info.as_ref().and_then(|info| info.version.clone()).or(says);
        let is_believed = upstream.kv_events == KvEvents::Told;
        let told = || Sources::told(&sources, kind, info.as_ref(), &upstream.url.host).held_to(&peers, is_believed);
        let (sources, listed) = Sources::of(upstream, told);
        let own = info.clone().unwrap_or_default();
        let ranks = page.reading.ranks.max(listed).max(own.ranks.map_or(0, |ranks| ranks as usize));
        let context = own.context.or(learnt.as_ref().ok().and_then(server::longest));

        let mut listening = Listening::begin(sources.ranks(), &examined.host);
        listening.ready().await;
        let model = learnt.as_ref().ok().and_then(|learnt| learnt.cards.first());
        let (cached, computed) = match model {
            Some(model) if manner.ask => {
                let block_size = page.reading.block_size.map(u64::from).or(own.page_size);
                let room = Room { block_size, context, caches: page.reading.prefix_caching.or(own.caches) };
                cached::asked(self, address, &model.id, kind, &own, room).await
            }
            _ => (cached::unasked(kind, &own), false),
        };
        let heard = listening.end().await;
        let other_status = match learnt.is_ok() {
            true => self.client.by_another_name(&models_call, 200).await,
            false => None,
        };
        let generates = self.generates(address, &page, manner.timeout).await;
        let ids: Vec<&str> = learnt.iter().flat_map(|learnt| &learnt.cards).map(|card| &*card.id).collect();
        let idle = Duration::from_millis(manner.config.limits.upstream_idle_timeout_ms);
        let found = &mut examined.findings;
        found.push(server::server(kind, version_text.as_deref()));
        found.push(server::models(&learnt, context, self.keyless));
        found.extend(other_status.map(|status| Finding::advice("host", client::host_matters(status))));
        found.extend(self.by_turns(address, page.reading.started, manner.timeout).await);
        found.push(tokenizer::finding(&manner.config, &ids));
        let is_heard = tokenizer::is_needed(&manner.config, &ids);
        found.extend(page.cache(kind, &own, generates, is_heard));
        found.push(page.metrics(kind));
        found.push(load::several(ranks, page.reading.ranks_from, upstream.ranks));
        let known = Known { kind, ranks, host: &examined.host, computed, is_heard, is_believed };
        found.extend(events::findings(&sources, &heard, known).await);
        found.push(cached);
        found.push(connection::clock(&version.fields, sent, came));
        found.push(connection::keep_alive(&version.fields, kind, idle));
        examined.ports.extend(sources.ports());
        (examined.answers, examined.kind, examined.version) = (true, kind, version_text);
    }
}
