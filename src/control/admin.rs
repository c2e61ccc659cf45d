//! The admin listener: metrics, liveness, readiness, the fleet. Never public; on a thread that no
//! request's work can delay.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, State as Shared};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Json};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::explain::{self, Explanation, Question};
use super::keeper::Keeper;
use super::metrics::{self, Format};
use super::reload::{self, Changes, Source};
use super::{endpoints, gate, receipts, seats};
use crate::counters::Counters;
use crate::counters::stats::Stats;
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

/// For who asks for something else.
const PATHS: &str = "the admin listener has\n\
    GET /metrics, /healthz, /readyz, /endpoints, /receipts, /receipts/REQUEST_ID\n\
    POST /reload, /explain, /endpoints, /endpoints/NAME/drain, /endpoints/NAME/resume\n\
    DELETE /endpoints/NAME\n";

/// Answers until the runtime ends.
pub(super) async fn serve(listener: TcpListener, state: State) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .merge(endpoints::routes())
        .merge(receipts::routes())
        .route("/reload", post(reload))
        .route("/explain", post(explain))
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, PATHS))
        .layer(from_fn_with_state(Arc::clone(&state.keeper), gate::guard))
        .layer(from_fn_with_state(state.process, gate::send_on))
        .with_state(state);
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => seats::serve(listener, router).await,
        Err(error) => tracing::error!(%error, "the admin listener ended"),
    }
}

async fn metrics(Shared(state): Shared<State>, fields: HeaderMap) -> Result<impl IntoResponse, StatusCode> {
    let format = Format::taken_by(fields.get_all(ACCEPT).iter().filter_map(|taken| taken.to_str().ok()));
    let text = beside(move || metrics::text(&state, format)).await?;
    Ok(([(CONTENT_TYPE, format.content_type())], text))
}

/// What is written beside this thread: many engines and models take it tens of milliseconds, in which it would look at
/// no engine. One after the other, so that no crowd of askers takes the shards' CPUs.
pub(super) async fn beside<T: Send + 'static>(write: impl FnOnce() -> T + Send + 'static) -> Result<T, StatusCode> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let written = spawn_blocking(move || {
        let _turn = turn;
        write()
    });
    written.await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

/// As SIGHUP does; answers what has changed, or 422 and what is wrong, or 500 where that is our own fault.
async fn reload(Shared(state): Shared<State>) -> Result<Json<Changes>, (StatusCode, String)> {
    let outcome = reload::reload_and_say(&state.keeper, &state.source, state.keeper.ask()).await;
    outcome.map(Json).map_err(|refused| endpoints::told(&refused))
}

/// 503 has whoever supervises the process start it anew, where no watchdog of systemd's does.
async fn alive(Shared(state): Shared<State>) -> impl IntoResponse {
    let is_wedged = state.process.shards().iter().any(|shard| shard.is_wedged());
    // It is for the process in this one's place by then.
    match is_wedged && !state.process.has_successor() {
        true => (StatusCode::SERVICE_UNAVAILABLE, "a shard has stood still for 10 s\n"),
        false => (StatusCode::OK, "ok\n"),
    }
}

/// 503 tells a load balancer in front to send its connections elsewhere, and not where another process serves from the
/// same sockets.
async fn ready(Shared(state): Shared<State>) -> impl IntoResponse {
    let unready = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
    if state.process.has_successor() {
        (StatusCode::OK, "ready: another process serves in this one's place\n")
    } else if state.process.is_ending() {
        unready("draining\n")
    } else if !state.process.all_serving() {
        unready("shards are starting\n")
    } else if !state.keeper.fleet().usable() {
        unready(
            "no engine takes requests: each is drained, asleep, without an address, or has answered no probe well of late; GET /endpoints tells which\n",
        )
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
    body: Body,
) -> Result<Json<Explanation>, StatusCode> {
    // As long as clients' may be by now.
    let longest = usize::try_from(state.keeper.config().limits.body_bytes_max).unwrap_or(usize::MAX);
    let body = to_bytes(body, longest).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let fields: Vec<_> =
        headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect();
    let explained = spawn_blocking(move || {
        let question = Question { path: &asked.path, fields: &fields, body: &body, random: explain::random() };
        explain::explain(&question, &state.keeper.config(), &state.published.current(), state.counters.loads())
    });
    explained.await.map(Json).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
