//! vLLM's HTTP around a running engine.
//!
//! As vLLM does, the head of a stream goes out as soon as the request is taken, before queue and
//! prefill, and a client that leaves in any phase ends its request. Each connection is one task;
//! hyper writes the chunks that one step made ready together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::batch::Finish;
use super::metrics;
use super::pump::{Answering, Engine};
use super::reply::{self, Shape, Usage};
use super::request::{self, Api, Refused, Request};
use super::stream::{Cut, Stream};
use super::tokens;

/// Longer bodies are cut off; vLLM has no such limit, but this machine's memory does.
const BODY_BYTES_MAX: usize = 64 << 20;

type Asked = hyper::Request<Incoming>;
type Answer = Response<Either<Full<Bytes>, Stream>>;

/// Data-parallel ranks behind one port, each with a batch and a cache of its own.
type Ranks = Arc<[Arc<Engine>]>;

/// Accepts connections and makes steps until the task is dropped.
pub async fn serve(engine: Arc<Engine>, listener: TcpListener) {
    serve_ranks([engine].into(), listener).await;
}

/// Serves several ranks of one server.
pub async fn serve_ranks(ranks: Arc<[Arc<Engine>]>, listener: TcpListener) {
    let steps = ranks.iter().map(|rank| AbortOnDrop(tokio::spawn(Arc::clone(rank).run())));
    let _steps: Vec<AbortOnDrop> = steps.collect();
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let _ = socket.set_nodelay(true);
                tokio::spawn(connection(Arc::clone(&ranks), socket));
            }
            // Out of descriptors: wait for some to close instead of spinning.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn connection(ranks: Ranks, socket: tokio::net::TcpStream) {
    let idle = ranks[0].settings().idle_timeout;
    let service = service_fn(move |asked| {
        let ranks = Arc::clone(&ranks);
        async move { answer(ranks, asked).await }
    });
    // Errors are clients that left or sent no HTTP, and a restart amid a reply: all end here, as in vLLM.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .serve_connection(TokioIo::new(socket), service)
        .await;
}

/// A body that ends by an error cuts the connection.
async fn answer(ranks: Ranks, asked: Asked) -> Result<Answer, Cut> {
    let path = asked.uri().path().to_owned();
    let (allow, route) = match path.as_str() {
        "/health" | "/ping" => ("GET", Route::Empty),
        "/version" => ("GET", Route::Version),
        "/metrics" => ("GET", Route::Metrics),
        "/load" => ("GET", Route::Load),
        "/v1/models" => ("GET", Route::Models),
        "/v1/chat/completions" => ("POST", Route::Generate(Api::Chat)),
        "/v1/completions" => ("POST", Route::Generate(Api::Completions)),
        "/tokenize" => ("POST", Route::Tokenize),
        "/detokenize" => ("POST", Route::Detokenize),
        "/reset_prefix_cache" => ("POST", Route::Forget),
        _ => return Ok(plain(404, Bytes::from_static(b"{\"detail\":\"Not Found\"}"))),
    };
    if asked.method() != allow && !(path == "/ping" && asked.method() == Method::POST) {
        let mut refusal = plain(405, Bytes::from_static(b"{\"detail\":\"Method Not Allowed\"}"));
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        return Ok(refusal);
    }
    if path.starts_with("/v1") && !authorized(&ranks[0], &asked) {
        return Ok(plain(401, Bytes::from_static(b"{\"error\":\"Unauthorized\"}")));
    }
    match route.run(&ranks, asked).await {
        Ok(answer) => Ok(answer),
        Err(Unanswered::Refused(refused)) => Ok(plain(refused.status, reply::error(&refused))),
        Err(Unanswered::Cut(cut)) => Err(cut),
    }
}

/// Why a route has no answer.
enum Unanswered {
    Refused(Refused),
    Cut(Cut),
}

impl From<Refused> for Unanswered {
    fn from(refused: Refused) -> Unanswered {
        Unanswered::Refused(refused)
    }
}

enum Route {
    Empty,
    Version,
    Metrics,
    Load,
    Models,
    Generate(Api),
    Tokenize,
    Detokenize,
    Forget,
}

impl Route {
    async fn run(self, ranks: &[Arc<Engine>], asked: Asked) -> Result<Answer, Unanswered> {
        let settings = ranks[0].settings();
        let profile = &settings.profile;
        Ok(match self {
            Route::Empty => empty(),
            Route::Forget => {
                ranks.iter().for_each(|rank| rank.forget());
                empty()
            }
            Route::Version => plain(200, Bytes::from_static(b"{\"version\":\"0.32.0\"}")),
            Route::Load => {
                let load: usize = ranks.iter().map(load).sum();
                plain(200, Bytes::from(format!("{{\"server_load\":{load}}}")))
            }
            Route::Models => plain(200, reply::models(&settings.serving.models, unix_seconds(), profile.max_model_len)),
            Route::Metrics => {
                let model = settings.serving.models.first().map_or("", String::as_str);
                let all = ranks.len();
                let page = |(rank, engine): (usize, &Arc<Engine>)| {
                    metrics::exposition(model, profile, (rank, all), &engine.figures(), engine.lag())
                };
                let pages = ranks.iter().enumerate().map(page);
                let page: String = std::iter::once(metrics::process(ranks[0].began())).chain(pages).collect();
                let kind = "text/plain; version=1.0.0; charset=utf-8";
                typed(200, kind, Either::Left(Full::new(page.into())))
            }
            Route::Generate(api) => generate(named(ranks, &asked)?, api, asked).await?,
            Route::Tokenize => {
                let root = request::json(&json_body(asked).await?)?;
                let prompt = match root.get("prompt").and_then(serde_json::Value::as_str) {
                    Some(text) => {
                        let mut out = Vec::new();
                        tokens::push_text(&mut out, text);
                        out
                    }
                    None => request::chat_prompt(&root)?,
                };
                plain(200, reply::tokenized(&prompt, profile.max_model_len))
            }
            Route::Detokenize => {
                let root = request::json(&json_body(asked).await?)?;
                let list = root.get("tokens").and_then(serde_json::Value::as_array);
                let ids: Vec<u32> =
                    list.into_iter().flatten().filter_map(|id| id.as_u64()).map(|id| id as u32).collect();
                let text = serde_json::Value::from(tokens::text_of(&ids));
                plain(200, Bytes::from(format!("{{\"prompt\":{text}}}")))
            }
        })
    }
}

/// Returns the rank that the field names, as vLLM reads it; without the field, the rank that has least to do.
fn named<'r>(ranks: &'r [Arc<Engine>], asked: &Asked) -> Result<&'r Arc<Engine>, Refused> {
    let named = asked.headers().get("x-data-parallel-rank").and_then(|rank| rank.to_str().ok());
    let Some(rank) = named.and_then(|rank| rank.trim().parse::<i64>().ok()) else {
        return Ok(ranks.iter().min_by_key(|rank| load(rank)).unwrap_or(&ranks[0]));
    };
    usize::try_from(rank).ok().and_then(|rank| ranks.get(rank)).ok_or_else(|| Refused {
        status: 400,
        kind: "BadRequestError",
        message: format!("data_parallel_rank {rank} is out of range [0, {}).", ranks.len()),
        param: None,
    })
}

fn load(rank: &Arc<Engine>) -> usize {
    let figures = rank.figures();
    figures.running + figures.waiting
}

async fn generate(engine: &Arc<Engine>, api: Api, asked: Asked) -> Result<Answer, Unanswered> {
    let id = request_id(&asked);
    let body = json_body(asked).await?;
    let settings = engine.settings();
    let request = request::parse(api, &body, &settings.serving, &settings.profile)?;
    let answering = engine.submit(&request.asks).map_err(|_| busy())?;
    let model = settings.serving.models.first().map_or("", String::as_str);
    let shape = Shape::new(api, &id, unix_seconds(), model);
    let cached = settings.prompt_tokens_details;
    if request.stream {
        let keep_alive = settings.sse_keep_alive;
        let stream = Stream::new(shape, &request, answering, cached, keep_alive);
        return Ok(typed(200, "text/event-stream; charset=utf-8", Either::Right(stream)));
    }
    let whole = whole(shape, &request, answering, cached).await;
    whole.map(|whole| plain(200, whole)).map_err(Unanswered::Cut)
}

async fn whole(shape: Shape, request: &Request, mut answering: Answering, tells_cached: bool) -> Result<Bytes, Cut> {
    let mut left = request.asks.len();
    let mut usage = Usage { prompt: request.prompt_tokens, ..Usage::default() };
    let mut choices = vec![(String::new(), Finish::Stop); request.asks.len()];
    while let Some(event) = answering.next().await {
        let Some((text, finish)) = choices.get_mut(event.choice) else { continue };
        text.push_str(std::str::from_utf8(&event.token.to_le_bytes()).unwrap_or_default());
        *finish = event.finish.unwrap_or(*finish);
        left -= usize::from(event.finish.is_some());
        usage.completion += 1;
        if let Some(cached) = event.cached.filter(|_| tells_cached) {
            usage.cached = Some(usage.cached.unwrap_or(0) + cached);
        }
    }
    // The events end early if the engine was restarted, and the rest of the reply is not known.
    if left == 0 { Ok(shape.whole(&choices, usage)) } else { Err(Cut) }
}

async fn json_body(asked: Asked) -> Result<Bytes, Refused> {
    let kind = asked.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let json = kind.is_none_or(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    });
    let body = Limited::new(asked.into_body(), BODY_BYTES_MAX).collect().await;
    let refuse =
        |message: &str, status| Refused { status, kind: "Bad Request", message: message.to_owned(), param: None };
    if !json {
        let text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        return Err(refuse(text, 400));
    }
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(_) => Err(refuse("the body was cut or is larger than 64 MiB", 413)),
    }
}

fn authorized(engine: &Engine, asked: &Asked) -> bool {
    let Some(key) = &engine.settings().api_key else { return true };
    let given = asked.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")) == Some(key.as_str())
}

/// `X-Request-Id` if there is one, else 16 hex digits that no two requests of a process share.
fn request_id(asked: &Asked) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let given = asked.headers().get("x-request-id").and_then(|id| id.to_str().ok());
    given.map_or_else(
        || {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&next.to_le_bytes()))
        },
        str::to_owned,
    )
}

fn busy() -> Refused {
    Refused {
        status: 503,
        kind: "Service Unavailable",
        message: "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.".into(),
        param: None,
    }
}

fn empty() -> Answer {
    let mut answer = typed(200, "", Either::Left(Full::new(Bytes::new())));
    answer.headers_mut().remove(CONTENT_TYPE);
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    answer
}

fn plain(status: u16, body: Bytes) -> Answer {
    typed(status, "application/json", Either::Left(Full::new(body)))
}

fn typed(status: u16, kind: &'static str, body: Either<Full<Bytes>, Stream>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    answer
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
