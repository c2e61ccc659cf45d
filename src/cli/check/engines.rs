//! The engines: do they answer, what do they serve, and do they say what good routing needs?

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::Finding;
use crate::cli::runtime;
use crate::cli::shown::shown;
use crate::config::{Config, Health, Upstream};
use crate::control::client::{self, Answer, Call, CallError, Client};
use crate::control::models::{self, Learnt};
use crate::control::scrape::{EngineKind, Page, Reading};
use crate::control::{self, keys, names, unserved};

/// An engine may be busy, and `check` is in no hurry.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The request for one token may have to wait in the engine's queue.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Words of the prompt: more than a KV block, so that the second time some of it is cached.
const PROMPT_WORDS: usize = 200;

/// All engines, side by side.
pub(super) fn findings(config: &Config) -> io::Result<Vec<Finding>> {
    runtime()?.block_on(async {
        let check = |upstream: &Upstream| tokio::spawn(engine(upstream.clone(), config.health.clone()));
        let mut found = Vec::new();
        let engines = control::engines(config).await.unwrap_or_else(|why| {
            found.push(Finding::wrong("engines", why));
            config.upstream.clone()
        });
        let checks: Vec<_> = engines.iter().map(check).collect();
        let mut lengths = Vec::new();
        let mut ids = Some(HashSet::new());
        for check in checks {
            let looked = check.await.map_err(io::Error::other)?;
            found.extend(looked.findings);
            lengths.extend(looked.block_size);
            ids = ids.zip(looked.ids).map(|(all, its)| &all | &its);
        }
        // Unknown if there is no engine, or if one does not tell.
        if let Some(ids) = ids.filter(|ids| !ids.is_empty()) {
            found.extend(unserved(config, |id| ids.contains(id)).into_iter().map(|name| nobodys(&name, &ids)));
        }
        lengths.sort_unstable();
        lengths.dedup();
        if lengths.len() > 1 {
            let words = format!("engines have KV blocks of {lengths:?} tokens; give all the same --block-size, or compare hit rates with care");
            found.push(Finding::advice("engines", words));
        }
        Ok(found)
    })
}

/// The finding for a model that the configuration names and no engine serves.
fn nobodys(name: &str, ids: &HashSet<String>) -> Finding {
    let mut served: Vec<String> = ids.iter().map(|id| shown(id)).collect();
    served.sort();
    let words = format!("no engine serves the model of {name}, which has no effect; they serve {}", served.join(", "));
    Finding::advice("models", words)
}

/// What was found at one engine.
#[derive(Default)]
struct Looked {
    findings: Vec<Finding>,
    /// Tokens of its KV blocks.
    block_size: Option<u32>,
    /// The ids that it serves, if they are known.
    ids: Option<HashSet<String>>,
}

/// One engine.
async fn engine(upstream: Upstream, health: Health) -> Looked {
    let configured = (!upstream.models.is_empty()).then(|| upstream.models.iter().cloned().collect());
    let alone = |findings: Vec<Finding>| Looked { findings, ids: configured.clone(), ..Looked::default() };
    let name = upstream.label();
    let key = match keys::of(&upstream) {
        Ok(key) => key,
        // The files' findings tell it if that is a fault.
        Err(_) => return alone(vec![Finding::good(name, "is not asked, since its key cannot be read here")]),
    };
    let address = match names::lookup(&upstream).await {
        Ok(addresses) => addresses,
        Err(why) => return alone(vec![Finding::wrong(name, format!("cannot look it up: {why}"))]),
    };
    let shared = shared(&name, &upstream.url.host, &address);
    let asked = Asked { name, authority: upstream.url.authority(), key: key.as_deref(), client: Client::default() };
    let (first, address) = match asked.reach(&address, &health).await {
        Ok(reached) => reached,
        Err(error) => return alone(shared.into_iter().chain([asked.unreached(&error, &health)]).collect()),
    };
    let mut found: Vec<Finding> = shared.into_iter().chain([asked.health(&first, &health.path)]).collect();
    let learnt = asked.models(address, &upstream, &mut found).await;
    asked.by_another_name(address, learnt.as_ref(), &mut found).await;
    let reading = asked.metrics(address, upstream.ranks, &mut found).await;
    let sleeps = reading.as_ref().is_some_and(|reading| reading.awake == Some(false));
    if sleeps {
        found.push(Finding::advice(&*asked.name, "sleeps, and gets no requests: POST /wake_up wakes it"));
    } else if let Some(model) = learnt.as_ref().and_then(|learnt| learnt.cards.first()) {
        let engine = reading.as_ref().and_then(|reading| reading.engine);
        asked.usage(address, &model.id, engine, &mut found).await;
    }
    let learnt = learnt.map(|learnt| learnt.cards.iter().map(|card| card.id.to_string()).collect());
    Looked { findings: found, block_size: reading.and_then(|reading| reading.block_size), ids: configured.or(learnt) }
}

/// A name for several engines, such as that of a Kubernetes Service without an address of its own.
fn shared(name: &str, host: &str, addresses: &[SocketAddr]) -> Option<Finding> {
    let words = || {
        let all: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
        let all = all.join(", ");
        format!(
            "{host} stands for {all}, of which one is used at a time; name each engine by a name or an address of its own, or set `each_address = true`"
        )
    };
    names::is_shared(addresses).then(|| Finding::advice(name, words()))
}

struct Asked<'a> {
    name: String,
    authority: String,
    key: Option<&'a str>,
    client: Client,
}

impl Asked<'_> {
    /// The first address that answers at all, in the time that the front's probes give it.
    async fn reach(&self, addresses: &[SocketAddr], health: &Health) -> Result<(Answer, SocketAddr), CallError> {
        let mut last = CallError::Broken("it has no address".into());
        let timeout = Duration::from_millis(health.probe_timeout_ms);
        for address in addresses {
            match self.client.get(&self.call(*address, &health.path, timeout)).await {
                Ok(answer) => return Ok((answer, *address)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn unreached(&self, error: &CallError, health: &Health) -> Finding {
        let words = match error.is_silence() {
            true => format!(
                "{} has {error}, and gets no requests: it hangs, or needs longer; then raise `probe_timeout_ms` in [health]",
                health.path
            ),
            false => format!("{error}; {}start it, or mend `url`", client::may_be_tls(error)),
        };
        Finding::wrong(&*self.name, words)
    }

    fn health(&self, answer: &Answer, path: &str) -> Finding {
        match answer.status {
            200 => Finding::good(&*self.name, format!("{path} answers 200")),
            404 => Finding::wrong(
                &*self.name,
                format!("has no {path}; name the path that says whether it is healthy as `path` in [health]"),
            ),
            status => {
                Finding::wrong(&*self.name, format!("{path} answers {status}: it is not healthy, and gets no requests"))
            }
        }
    }

    async fn models(&self, address: SocketAddr, upstream: &Upstream, found: &mut Vec<Finding>) -> Option<Learnt> {
        match models::learn(&self.client, &self.call(address, "/v1/models", TIMEOUT), None).await {
            Ok(learnt) => {
                let ids: Vec<&str> = learnt.cards.iter().map(|card| &*card.id).collect();
                let missing: Vec<&String> = upstream.models.iter().filter(|id| !ids.contains(&id.as_str())).collect();
                let served = ids.iter().map(|id| shown(id)).collect::<Vec<_>>().join(", ");
                let asks = if learnt.asks_key { ", asks for a key and takes ours" } else { "" };
                found.push(match missing.is_empty() {
                    true => Finding::good(&*self.name, format!("serves {served}{asks}")),
                    false => Finding::wrong(&*self.name, format!("`models` has {missing:?}, but it serves {served}; mend `models`, or leave it out to learn them")),
                });
                Some(learnt)
            }
            Err(error) => {
                let words = format!("cannot read its models: {error}");
                // With configured ids the front does without the list.
                let weigh = if upstream.models.is_empty() { Finding::wrong } else { Finding::advice };
                found.push(weigh(self.name.clone(), words));
                None
            }
        }
    }

    /// Whether a server before it answers otherwise under another `Host`: the front's clients name the front there.
    async fn by_another_name(&self, address: SocketAddr, learnt: Option<&Learnt>, found: &mut Vec<Finding>) {
        let call = self.call(address, "/v1/models", TIMEOUT);
        if learnt.is_some()
            && let Some(status) = self.client.by_another_name(&call, 200).await
        {
            found.push(Finding::advice(&*self.name, client::host_matters(status)));
        }
    }

    async fn metrics(&self, address: SocketAddr, ranks: u32, found: &mut Vec<Finding>) -> Option<Reading> {
        let unread = |why: String| {
            Finding::advice(
                &*self.name,
                format!("{why}: its load is not seen, and it is taken to be as full as the others"),
            )
        };
        // By lines, as the front reads it: adapters may make the page long.
        let mut page = Page::default();
        let call = self.call(address, "/metrics", TIMEOUT);
        let reading = match self.client.get_lines(&call, |line| page.line(line)).await {
            Ok(200) => page.reading(),
            Ok(404) => {
                found.push(unread(
                    "has no /metrics (start SGLang with --enable-metrics, vLLM without --disable-log-stats)".into(),
                ));
                return None;
            }
            Ok(status) => {
                found.push(unread(format!("/metrics answers {status}")));
                return None;
            }
            Err(error) => {
                found.push(unread(format!("/metrics: {error}")));
                return None;
            }
        };
        if reading.load.running.is_none() {
            let flags = "take away vLLM's --disable-log-stats, if it is there";
            found.push(unread(format!("/metrics has none of vLLM's or SGLang's names ({flags})")));
            return Some(reading);
        }
        found.extend(self.ranks(&reading, ranks));
        if reading.prefix_caching == Some(false) {
            // vLLM caches them if its model can; forced on another model, it may end.
            let words = "prefix caching is off: no request can find a warm cache; take away --no-enable-prefix-caching \
                         if it is there; else its model cannot";
            found.push(Finding::advice(&*self.name, words));
        }
        let shown = |value: Option<u64>| value.map_or("unknown".into(), |value| value.to_string());
        let words = format!(
            "KV cache of {} tokens in blocks of {}",
            shown(reading.load.kv_capacity_tokens),
            shown(reading.block_size.map(u64::from))
        );
        found.push(Finding::good(&*self.name, words));
        Some(reading)
    }

    /// Whether it has as many ranks as are `configured`, where it names some.
    fn ranks(&self, reading: &Reading, configured: u32) -> Option<Finding> {
        let (ranks, from) = (reading.ranks, reading.ranks_from);
        let words = match configured as usize {
            configured if ranks == 0 || (ranks, configured) == (1, 1) => return None,
            1 if from > 0 => format!(
                "{ranks} data-parallel ranks behind this port, each with a cache of its own and numbered from {from}: the engine \
                 spreads requests itself, mostly not to the rank that has the prompt; `ranks` counts from 0, so leave it out"
            ),
            configured if from > 0 => format!(
                "its data-parallel ranks are numbered from {from}, but `ranks = {configured}` counts from 0: it refuses requests \
                 for a rank that it does not have; leave `ranks` out"
            ),
            configured if ranks == configured => return None,
            1 => format!(
                "{ranks} data-parallel ranks behind this port, each with a cache of its own: the engine spreads requests itself, \
                 mostly not to the rank that has the prompt; with `ranks = {ranks}` the front chooses the rank"
            ),
            configured => format!(
                "{ranks} data-parallel ranks behind this port, but `ranks` says {configured}: it refuses requests for a rank that \
                 it does not have, and ranks beyond that number get none; write `ranks = {ranks}`"
            ),
        };
        Some(Finding::advice(&*self.name, words))
    }

    /// Whether replies say how much of the prompt was cached. Asked twice: engines may leave a zero out.
    async fn usage(&self, address: SocketAddr, model: &str, engine: Option<EngineKind>, found: &mut Vec<Finding>) {
        let prompt = "warm ".repeat(PROMPT_WORDS);
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}).to_string();
        let mut detail = None;
        for _ in 0..2 {
            let call = self.call(address, "/v1/completions", TOKEN_TIMEOUT);
            let answer = match self.client.post(&call, Vec::new(), body.clone().into()).await {
                Ok(answer) if answer.status == 200 => answer,
                // An engine that only embeds, or a prompt too long for it: nothing is wrong with either.
                Ok(_) => return,
                Err(error) => {
                    found.push(Finding::advice(
                        &*self.name,
                        format!("does not answer a request for one token: {error}"),
                    ));
                    return;
                }
            };
            let reply: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            detail = reply.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(serde_json::Value::as_u64);
        }
        let (flag, but) = match engine {
            Some(EngineKind::Sglang) => {
                ("--enable-cache-report", "; SGLang's server in Rust tells it on /generate alone")
            }
            _ => ("--enable-prompt-tokens-details", ""),
        };
        found.push(match detail {
            Some(_) => Finding::good(&*self.name, "replies say how much of a prompt was cached"),
            None => Finding::advice(
                &*self.name,
                format!("replies do not say how much of a prompt was cached; start it with {flag} to compare{but}"),
            ),
        });
    }

    fn call<'a>(&'a self, address: SocketAddr, path: &'a str, timeout: Duration) -> Call<'a> {
        Call { address, authority: &self.authority, path, key: self.key, timeout, bytes_max: 8 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_several_engines_is_found() {
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 8000)));
        assert_eq!(shared("pool:8000", "pool", &[a]), None);
        let said = shared("pool:8000", "pool", &[a, b]).unwrap().line();
        assert!(said.starts_with("advice") && said.contains("pool stands for 10.0.0.1, 10.0.0.2"), "{said}");
    }
}
