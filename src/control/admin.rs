//! The admin listener: metrics, liveness, readiness, the fleet. Never public; on a thread that no
//! request's work can delay.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::explain::{self, Explanation, Question};
use super::health::Course;
use super::keeper::Keeper;
use super::member::Member;
use super::reload::{Changes, Source};
use super::{metrics, service};
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::fleet::{Endpoint, Health};
use crate::publish::{Process, Published};

/// What answers are made of.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) keeper: Arc<Keeper>,
    pub(super) published: &'static Published,
    pub(super) counters: &'static Counters,
    pub(super) stats: &'static Stats,
    pub(super) process: &'static Process,
    pub(super) began: Instant,
    pub(super) source: Arc<dyn Source>,
}

/// Answers until the runtime ends.
pub(super) async fn serve(listener: TcpListener, state: State) {
    let longest = usize::try_from(state.keeper.config().limits.body_bytes_max).unwrap_or(usize::MAX);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/endpoints", get(endpoints))
        .route("/reload", post(reload))
        .route("/explain", post(explain).layer(DefaultBodyLimit::max(longest)))
        .with_state(state);
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, router).await,
        Err(error) => Err(error),
    };
    if let Err(error) = served {
        tracing::error!(%error, "the admin listener ended");
    }
}

async fn metrics(Shared(state): Shared<State>) -> impl IntoResponse {
    let text = metrics::text(&state);
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

/// As SIGHUP does; answers what has changed, or 422 and what is wrong.
async fn reload(Shared(state): Shared<State>) -> Result<Json<Changes>, (StatusCode, String)> {
    let outcome = service::reload(&state.keeper, &*state.source).await;
    outcome.map(Json).map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n")))
}

/// 503 tells a load balancer in front to send its connections elsewhere.
async fn ready(Shared(state): Shared<State>) -> (StatusCode, &'static str) {
    let unready = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
    if state.process.draining() {
        unready("draining\n")
    } else if !state.process.all_serving() {
        unready("shards are starting\n")
    } else if !state.keeper.fleet().usable() {
        unready("no engine answers its probes\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

/// Query of `/explain`.
#[derive(Debug, Deserialize)]
struct Asked {
    /// Path the body would be sent to.
    #[serde(default = "chat")]
    path: String,
}

fn chat() -> String {
    "/v1/chat/completions".into()
}

/// Scans and chooses as a shard would, without sending anything; beside this thread, for a body may be long.
async fn explain(
    Shared(state): Shared<State>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Explanation>, StatusCode> {
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let fields: Vec<_> = headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let explained = tokio::task::spawn_blocking(move || {
        let question = Question { path: &asked.path, fields: &fields, body: &body, random: explain::random() };
        explain::explain(&question, &state.keeper.config(), &state.published.current(), state.counters.loads())
    });
    explained.await.map(Json).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
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
    foreign: u32,
    models: Option<Vec<String>>,
    asks_key: bool,
    engine: Option<ShownEngine>,
    errors: Vec<String>,
}

/// What the engine says of itself.
#[derive(Debug, Serialize)]
struct ShownEngine {
    running: Option<u32>,
    waiting: Option<u32>,
    kv_use: Option<f32>,
    kv_capacity_tokens: Option<u64>,
    block_size: Option<u32>,
    prefix_caching: Option<bool>,
    prefix_queries_total: Option<u64>,
    prefix_hits_total: Option<u64>,
    read_ms_ago: u128,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct ShownFleet {
    epoch: u64,
    draining: bool,
    pools: Vec<ShownPool>,
    endpoints: Vec<Shown>,
}

/// One pool as `/endpoints` shows it.
#[derive(Debug, Serialize)]
struct ShownPool {
    model: String,
    policy: &'static str,
    endpoints: Vec<String>,
}

async fn endpoints(Shared(state): Shared<State>) -> Json<ShownFleet> {
    let snapshot = state.published.current();
    let name = |slot: &u16| {
        let endpoint = snapshot.endpoints.get(usize::from(*slot))?.as_ref()?;
        Some(endpoint.name.to_string())
    };
    let pool = |pool: &crate::snapshot::Pool| ShownPool {
        model: pool.name.to_string(),
        policy: pool.settings.policy.as_str(),
        endpoints: pool.members.iter().filter_map(name).collect(),
    };
    Json(ShownFleet {
        epoch: snapshot.epoch,
        draining: state.process.draining(),
        pools: snapshot.pools.iter().filter(|pool| !pool.members.is_empty()).map(pool).collect(),
        endpoints: state.keeper.fleet().members().iter().map(|member| show(member, state.counters)).collect(),
    })
}

fn show(member: &Member, counters: &Counters) -> Shown {
    let now = member.now.as_ref();
    let course = now.map(|tenancy| &tenancy.course);
    let engine = |(reading, at): &(super::scrape::Reading, Instant)| ShownEngine {
        running: reading.load.running,
        waiting: reading.load.waiting,
        kv_use: reading.load.kv_use,
        kv_capacity_tokens: reading.load.kv_capacity_tokens,
        block_size: reading.block_size,
        prefix_caching: reading.prefix_caching,
        prefix_queries_total: reading.load.prefix_queries_total,
        prefix_hits_total: reading.load.prefix_hits_total,
        read_ms_ago: at.elapsed().as_millis(),
    };
    let errors = [
        now.and_then(|tenancy| tenancy.course.probe_error()).map(|why| format!("health: {why}")),
        now.and_then(|tenancy| tenancy.scrape_error.as_ref()).map(|why| format!("metrics: {why}")),
        member.models_error.as_ref().map(|why| format!("models: {why}")),
        now.is_none().then(|| "address: its host name could not be looked up".to_owned()),
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
        why: course.and_then(Course::why).map(str::to_owned),
        ejections: member.ejections,
        faults: member.faults,
        refuses_probes: course.is_some_and(Course::refuses_probes),
        cap: Some(member.cap()).filter(|cap| *cap != Endpoint::NO_CAP),
        share_percent: course.map_or(0, Course::share_percent),
        in_flight: now.map_or(0, |tenancy| counters.in_flight(tenancy.id.slot)),
        foreign: now.map_or(0, |tenancy| tenancy.foreign),
        models: member.ids().map(|ids| ids.into_iter().map(str::to_owned).collect()),
        asks_key: member.models.as_ref().is_some_and(|learnt| learnt.asks_key),
        engine: now.and_then(|tenancy| tenancy.reading.as_ref()).map(engine),
        errors: errors.into_iter().flatten().collect(),
    }
}

/// A state of health as metrics and `/endpoints` name it.
pub(super) fn health(health: Option<Health>) -> &'static str {
    match health {
        None => "unresolved",
        Some(Health::Unknown) => "unknown",
        Some(Health::Up) => "up",
        Some(Health::Down) => "down",
        Some(Health::Draining) => "draining",
        Some(Health::Ejected) => "ejected",
        Some(Health::Trial) => "trial",
    }
}
