//! `/endpoints` of the admin listener: shows the fleet, adds engines, drains and removes them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json};
use axum::routing::{delete, get, post};
use serde::{Serialize, Serializer};

use super::admin::{State, beside};
use super::edit::{Edit, Refused};
use super::health::Course;
use super::ladder::Why;
use super::member::{Member, Tenancy};
use super::models::Cards;
use super::reload::Changes;
use crate::config::Upstream;
use crate::counters::stats::{Shadowed, Stats};
use crate::counters::{Counted, Deeds};
use crate::fleet::{Endpoint, Health};
use crate::snapshot::{Pool, Snapshot};

type Outcome = Result<Json<Changes>, (StatusCode, String)>;

pub(super) fn routes() -> Router<State> {
    Router::new()
        .route("/endpoints", get(endpoints).post(add))
        .route("/endpoints/{name}", delete(remove))
        .route("/endpoints/{name}/drain", post(drain))
        .route("/endpoints/{name}/resume", post(resume))
}

/// Takes an engine with the keys of an `[[upstream]]`, as JSON.
async fn add(state: Shared<State>, upstream: Result<Json<Upstream>, JsonRejection>) -> Outcome {
    match upstream {
        Ok(Json(upstream)) => edit(state, Edit::Add(upstream)).await,
        Err(wrong) => Err((
            StatusCode::UNPROCESSABLE_ENTITY,
            format!(
                "{}\nwrite the keys of an [[upstream]], such as {{\"url\": \"http://HOST:PORT\"}}\n",
                wrong.body_text()
            ),
        )),
    }
}

async fn remove(state: Shared<State>, Path(name): Path<String>) -> Outcome {
    edit(state, Edit::Remove(name)).await
}

async fn drain(state: Shared<State>, Path(name): Path<String>) -> Outcome {
    edit(state, Edit::Drain(name, true)).await
}

async fn resume(state: Shared<State>, Path(name): Path<String>) -> Outcome {
    edit(state, Edit::Drain(name, false)).await
}

async fn edit(Shared(state): Shared<State>, edit: Edit) -> Outcome {
    match state.keeper.edit(&edit).await {
        Ok(changes) => {
            say(&edit);
            Ok(Json(changes))
        }
        Err(refused) => Err(told(&refused)),
    }
}

/// In words, and of what an engine was added with no more than tells which it is: the rest is in `/endpoints`.
fn say(edit: &Edit) {
    const WORDS: &str = "engines changed until the configuration is read anew";
    match edit {
        Edit::Add(Upstream { url, weight, .. }) => {
            let (added, name, weight) = (&*url.to_string(), &*edit.name(), *weight);
            tracing::info!(added, name, weight, "{WORDS}");
        }
        Edit::Drain(name, true) => tracing::info!(drained = &**name, "{WORDS}"),
        Edit::Drain(name, false) => tracing::info!(resumed = &**name, "{WORDS}"),
        Edit::Remove(name) => tracing::info!(removed = &**name, "{WORDS}"),
    }
}

/// What who asked for a change is told, where it is not made.
pub(super) fn told(refused: &Refused) -> (StatusCode, String) {
    let status = match refused {
        Refused::Unknown { .. } => StatusCode::NOT_FOUND,
        Refused::Rank { .. } | Refused::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
        Refused::Broken => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{refused}\n"))
}

/// One engine as `/endpoints` shows it.
#[derive(Debug, Serialize)]
struct Shown {
    name: String,
    url: String,
    address: Option<String>,
    slot: Option<u16>,
    generation: Option<u32>,
    weight: u32,
    health: &'static str,
    /// Since when it is so.
    health_ms: Option<u128>,
    /// Why, where that needs words.
    why: Option<String>,
    ejections: u64,
    faults: u64,
    refuses_probes: bool,
    /// Most requests of ours there; none: as many as come.
    cap: Option<u32>,
    /// Less than 100 in a slow start.
    share_percent: u8,
    in_flight: u32,
    /// Tokens of prompts sent there that have no first token yet and are in no cache, as far as is known.
    pending_tokens: u64,
    foreign: u32,
    models: Option<Models>,
    asks_key: bool,
    cache: Option<ShownCache>,
    engine: Option<ShownEngine>,
    errors: Vec<String>,
}

/// Ids that it serves: those configured, then those that it lists, a thousand of which no one takes down while others
/// wait for the fleet.
#[derive(Debug)]
struct Models(Vec<String>, Cards);

impl Serialize for Models {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Models(configured, listed) = self;
        out.collect_seq(configured.iter().map(String::as_str).chain(listed.iter().map(|card| &*card.id)))
    }
}

/// How far is believed what is known of an engine's cache, and how right that was.
#[derive(Debug, Serialize)]
struct ShownCache {
    rung: &'static str,
    /// Since when it is so.
    rung_ms: u128,
    /// Why, where it was ever elsewhere.
    why: Option<&'static str>,
    /// Bytes of text that a token stands for, where that is known.
    token_bytes: Option<f32>,
    /// Requests for which it is known what came of the prediction, and tokens.
    compared_requests: u64,
    predicted_tokens: u64,
    cached_tokens: u64,
    overpredicted_tokens: u64,
    underpredicted_tokens: u64,
}

/// What the engine says of itself.
#[derive(Debug, Serialize)]
struct ShownEngine {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_use: Option<f32>,
    kv_capacity_tokens: Option<u64>,
    block_size: Option<u32>,
    /// Tokens of the unit in which it finds prompts.
    match_unit: Option<u32>,
    prefix_caching: Option<bool>,
    prefix_queries_total: Option<u64>,
    prefix_hits_total: Option<u64>,
    read_ms_ago: u128,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct ShownFleet<'a> {
    epoch: u64,
    draining: bool,
    pools: Vec<ShownPool<'a>>,
    endpoints: Vec<Shown>,
}

/// One pool as `/endpoints` shows it.
#[derive(Debug, Serialize)]
struct ShownPool<'a> {
    model: &'a str,
    policy: &'static str,
    /// None: the policy is compared with no other.
    shadow: Option<ShownShadow>,
    endpoints: Vec<&'a str>,
}

impl<'a> ShownPool<'a> {
    fn of(pool: &'a Pool, snapshot: &'a Snapshot, stats: &Stats) -> ShownPool<'a> {
        let name = |slot: &u16| snapshot.at(*slot).map(|endpoint| &*endpoint.name);
        ShownPool {
            model: &pool.name,
            policy: pool.settings.policy.as_str(),
            shadow: shadow(pool, stats),
            endpoints: pool.members.iter().filter_map(name).collect(),
        }
    }
}

/// What the policy that looks on would have done since the process began.
#[derive(Debug, Serialize)]
struct ShownShadow {
    policy: &'static str,
    agreed: u64,
    differed: u64,
    nobody: u64,
    skipped: u64,
    /// Of prompts that were looked up: what was done, and what would have been.
    chosen: ShownTokens,
    instead: ShownTokens,
}

#[derive(Debug, Serialize)]
struct ShownTokens {
    held_tokens: u64,
    new_tokens: u64,
    cost_tokens: u64,
}

fn shadow(pool: &Pool, stats: &Stats) -> Option<ShownShadow> {
    let policy = pool.settings.shadow_policy.0?;
    let count = |what| stats.shadowed(pool.id.0, policy as u8, what);
    let tokens = |[held, new, cost]: [Shadowed; 3]| ShownTokens {
        held_tokens: count(held),
        new_tokens: count(new),
        cost_tokens: count(cost),
    };
    Some(ShownShadow {
        policy: policy.as_str(),
        agreed: count(Shadowed::Agreed),
        differed: count(Shadowed::Differed),
        nobody: count(Shadowed::Nobody),
        skipped: count(Shadowed::Skipped),
        chosen: tokens([Shadowed::HeldThere, Shadowed::NewThere, Shadowed::CostThere]),
        instead: tokens([Shadowed::HeldInstead, Shadowed::NewInstead, Shadowed::CostInstead]),
    })
}

async fn endpoints(Shared(state): Shared<State>) -> Result<impl IntoResponse, StatusCode> {
    let json = beside(move || json(&state)).await?;
    let json = json.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(([(CONTENT_TYPE, "application/json")], json))
}

/// The whole page. What is in it of members is taken down first: control waits for whoever has the fleet.
fn json(state: &State) -> Result<Vec<u8>, serde_json::Error> {
    let mut json = Vec::new();
    write(state, &mut json).map(|()| json)
}

pub(super) fn write(state: &State, out: impl Write) -> Result<(), serde_json::Error> {
    // In this order: the members shown are as new as the epoch beside them, or newer.
    let snapshot = state.published.current();
    let endpoints = shown(state);
    let served = snapshot.pools.iter().filter(|pool| !pool.members.is_empty());
    let shown = ShownFleet {
        epoch: snapshot.epoch,
        draining: state.process.is_ending(),
        pools: served.map(|pool| ShownPool::of(pool, &snapshot, state.stats)).collect(),
        endpoints,
    };
    serde_json::to_writer(out, &shown)
}

fn shown(state: &State) -> Vec<Shown> {
    let fleet = state.keeper.fleet();
    // Read while nobody gives a slot away.
    let (deeds, nothing) = (fleet.deeds(&Counted::read(state.counters, state.stats)), Deeds::default());
    // One that was taken out finishes beside its successor of the same name: as in `/metrics` they are one.
    let mut loads: BTreeMap<&str, Load> = BTreeMap::new();
    for (slot, tenant) in fleet.tenants() {
        let load = loads.entry(tenant).or_default();
        load.in_flight += state.counters.in_flight(slot);
        load.pending += state.counters.loads().pending(slot);
    }
    let show = |member: &Member| {
        let load = loads.get(&*member.name).copied().unwrap_or_default();
        show(member, deeds.get(&member.name).unwrap_or(&nothing), load)
    };
    fleet.members().iter().map(show).collect()
}

/// What one engine has of ours, whichever slots it has.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    in_flight: u32,
    /// Tokens.
    pending: u64,
}

fn show(member: &Member, deeds: &Deeds, load: Load) -> Shown {
    let now = member.now.as_ref();
    let course = now.map(|tenancy| &tenancy.course);
    let compared = deeds.compared_in_all();
    let cache = |tenancy: &Tenancy| ShownCache {
        rung: tenancy.truth.ladder.rung().as_str(),
        rung_ms: tenancy.truth.ladder.since().elapsed().as_millis(),
        why: tenancy.truth.ladder.why().map(Why::as_str),
        token_bytes: tenancy.truth.calibration.token_bytes(),
        compared_requests: compared.requests,
        predicted_tokens: compared.predicted,
        cached_tokens: compared.cached,
        overpredicted_tokens: compared.over,
        underpredicted_tokens: compared.under,
    };
    let errors = [
        now.and_then(|tenancy| tenancy.course.probe_error()).map(|why| format!("health: {why}")),
        now.and_then(|tenancy| tenancy.scrape_error.as_ref()).map(|why| format!("metrics: {why}")),
        member.models_error.as_ref().map(|why| format!("models: {why}")),
        no_address(member).map(|why| format!("address: {why}")),
    ];
    Shown {
        name: member.name.to_string(),
        url: member.upstream.url.to_string(),
        address: now.map(|tenancy| tenancy.address.to_string()),
        slot: now.map(|tenancy| tenancy.id.slot),
        generation: now.map(|tenancy| tenancy.id.generation),
        weight: member.upstream.weight,
        health: health(member.health()),
        health_ms: course.map(|course| course.since().elapsed().as_millis()),
        why: member.why().map(Cow::into_owned),
        ejections: member.ejections,
        faults: deeds.faults,
        refuses_probes: course.is_some_and(Course::refuses_probes),
        cap: Some(member.cap()).filter(|cap| *cap != Endpoint::NO_CAP),
        share_percent: course.map_or(0, Course::share_percent),
        in_flight: load.in_flight,
        pending_tokens: load.pending,
        foreign: now.map_or(0, |tenancy| tenancy.foreign),
        models: member.has_ids().then(|| Models(member.upstream.models.clone(), member.listed())),
        asks_key: member.lock.asks(),
        cache: now.map(cache),
        engine: now.and_then(shown_engine),
        errors: errors.into_iter().flatten().collect(),
    }
}

fn shown_engine(tenancy: &Tenancy) -> Option<ShownEngine> {
    let (reading, at) = tenancy.reading.as_ref()?;
    Some(ShownEngine {
        running: reading.load.running,
        waiting: reading.load.waiting,
        kv_use: reading.load.kv_use,
        kv_capacity_tokens: reading.load.kv_capacity_tokens,
        block_size: reading.block_size,
        // What is used, of whichever reading told it.
        match_unit: tenancy.match_unit,
        prefix_caching: reading.prefix_caching,
        prefix_queries_total: reading.load.prefix_queries_total,
        prefix_hits_total: reading.load.prefix_hits_total,
        read_ms_ago: at.elapsed().as_millis(),
    })
}

/// Why a member is nowhere.
fn no_address(member: &Member) -> Option<&'static str> {
    let why = match member.addresses.is_empty() {
        true => "its host name could not be looked up",
        false => "every endpoint slot is taken; it is used once one is free",
    };
    member.now.is_none().then_some(why)
}

/// A state of health as metrics and `/endpoints` name it.
pub(super) fn health(health: Option<Health>) -> &'static str {
    match health {
        None => "unresolved",
        Some(Health::Unknown) => "unknown",
        Some(Health::Up) => "up",
        Some(Health::Down) => "down",
        Some(Health::Draining) => "draining",
        Some(Health::Asleep) => "asleep",
        Some(Health::Ejected) => "ejected",
        Some(Health::Trial) => "trial",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::control::fleet::Fleet;
    use crate::control::scrape::Reading;
    use crate::control::tests::config_of;
    use crate::control::truth::Ours;

    /// It outlasts a reading that lacks it.
    #[test]
    fn the_unit_in_which_prompts_are_found_is_the_one_that_is_used() {
        let config = config_of([Upstream::new("http://engine:8000".parse().unwrap())]);
        let (mut fleet, now) = (Fleet::new(Arc::new(config), Vec::new(), Arc::default()), Instant::now());
        fleet.resolved(0, vec![([10, 0, 0, 1], 8_000).into()], now);
        let (id, _) = fleet.target(0).unwrap();
        let hybrid = "vllm:cache_config_info{block_size=\"3584\",prefix_match_unit=\"16\"} 1\n";
        for (text, block_size) in [(hybrid, Some(3_584)), ("vllm:num_requests_running 0\n", None)] {
            fleet.scraped(0, id, Ok((Reading::of(text.as_bytes()), Ours::default())), now);
            let engine = show(&fleet.members()[0], &Deeds::default(), Load::default()).engine.unwrap();
            assert_eq!((engine.block_size, engine.match_unit), (block_size, Some(16)));
        }
    }

    #[test]
    fn who_has_an_address_and_no_slot_was_looked_up() {
        let upstream = Upstream::new("http://engine:8000".parse().unwrap());
        let mut member = Member::new(0, upstream, None, false);
        let errors = |member: &Member| show(member, &Deeds::default(), Load::default()).errors;
        assert_eq!(errors(&member), ["address: its host name could not be looked up"]);
        member.addresses = vec![([10, 0, 0, 1], 8_000).into()];
        assert_eq!(errors(&member), ["address: every endpoint slot is taken; it is used once one is free"]);
    }
}
