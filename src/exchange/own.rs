//! Requests that need no engine: health, models, and what is refused by its head alone.

use xxhash_rust::xxh3::xxh3_64;

use super::End;
use super::admit::Opened;
use super::cors::Cors;
use super::event::{Action, Context, Ending, Side};
use super::refusals::{self, Refused};
use crate::counters::stats::Count;
use crate::http::{self, BodyLength, Refusal, RequestFraming, RequestHead, Shape, ToClient, reply};
use crate::scan::Api;

/// An answer that needs no engine.
pub(super) enum Answer {
    Json(bytes::Bytes),
    Healthy,
    /// `/health` where no engine can serve, or the front drains: an answer, not a refused request.
    Unhealthy(Refusal),
    Refused(Refused),
}

impl Answer {
    /// Its status, and how the request ends with it.
    pub(super) fn outcome(&self) -> (u16, End) {
        match self {
            Answer::Refused(refused) => (refused.refusal.status, End::Refused(refused.refusal.cause)),
            Answer::Unhealthy(why) => (why.status, End::Whole),
            Answer::Json(_) | Answer::Healthy => (200, End::Whole),
        }
    }
}

pub(super) fn own_answer(
    head: &RequestHead<'_>,
    api: Api,
    framing: &RequestFraming,
    cx: &Context<'_>,
) -> Option<Answer> {
    let (path, is_read) = (head.path, matches!(head.method, b"GET" | b"HEAD"));
    let is_health = http::without_query(path) == b"/health";
    if is_read && is_health {
        return Some(health(cx));
    }
    if is_read
        && framing.body.is_empty()
        && let Some(answer) = models(head, path, cx)
    {
        return Some(answer);
    }
    // The APIs that are known are open; it is the other paths that are looked up.
    let allowed = api != Api::Other || cx.rules.paths.allow(http::without_query(path));
    if !allowed && is_health {
        return Some(Answer::Refused(refusals::read_only(b"/health")));
    }
    if !allowed {
        return Some(Answer::Refused(refusals::unknown_path(http::without_query(path))));
    }
    let too_large = matches!(framing.body, BodyLength::Length(len) if len > cx.rules.limits.body_bytes_max);
    too_large.then(|| Answer::Refused(refusals::BODY_TOO_LARGE.into()))
}

/// `/health`: as an engine's, for the fleet. A balancer asks on a connection that it keeps: behind an upgrade it is not
/// to take the service for one that ends.
fn health(cx: &Context<'_>) -> Answer {
    let mut endpoints = cx.snapshot.endpoints.iter().flatten();
    let stays = !cx.leaving && (!cx.draining || cx.has_successor);
    if !stays {
        return Answer::Unhealthy(refusals::DRAINING);
    }
    let serving = endpoints.any(|endpoint| endpoint.health.takes_requests());
    if serving { Answer::Healthy } else { Answer::Unhealthy(refusals::NO_ENDPOINT) }
}

/// `/v1/models` and `/v1/models/{id}`, merged over the fleet; `None`: an engine is to answer.
fn models(head: &RequestHead<'_>, path: &[u8], cx: &Context<'_>) -> Option<Answer> {
    let rest = http::without_query(path).strip_prefix(b"/v1/models")?;
    let models = &cx.snapshot.models_answer;
    let list = models.list.as_ref()?;
    let key = head.fields.get("authorization").map(xxh3_64);
    // An engine may take keys that the front does not know: it has to judge this one.
    if !models.authorizations.is_empty() && !key.is_some_and(|key| models.authorizations.contains(&key)) {
        return None;
    }
    match rest {
        // No id is the empty one.
        b"" | b"/" => Some(Answer::Json(list.clone())),
        [b'/', id @ ..] => {
            let id = http::percent_decoded(id);
            let card = models.cards.get(&*id).map(|card| Answer::Json(card.clone()));
            card.or_else(|| (!models.hides_some).then(|| Answer::Refused(refusals::unknown_model(&id))))
        }
        _ => None,
    }
}

pub(super) fn answer_ourselves(
    head: &RequestHead<'_>,
    framing: &RequestFraming,
    answer: &Answer,
    id: &[u8],
    cx: &mut Context<'_>,
) -> Opened {
    // What follows an unread body cannot be found, so such a connection ends with the answer.
    let stays = framing.body.is_empty() && framing.keep_alive && !cx.draining;
    let to = ToClient {
        version: head.version,
        keep_alive: stays,
        head_request: framing.head_method,
        request_id: Some(id),
        explain: None,
    };
    let cors = cx.rules.origins.judge(&head.fields);
    let shape = Shape::of_path(head.path);
    match answer {
        Answer::Refused(refused) => refusals::answer(refused, &to, (shape, &cors), cx),
        Answer::Unhealthy(why) => refusals::compose(&(*why).into(), &to, (shape, &cors), cx),
        Answer::Json(json) => show(json, &to, &cors, cx),
        Answer::Healthy => show(b"", &to, &cors, cx),
    }
    if !matches!(answer, Answer::Refused(_)) {
        cx.stats.count(Count::AnsweredHere);
    }
    cx.actions.push(Action::End(if stays { Ending::KeepAlive } else { Ending::Linger }));
    Opened::Answered(head.len)
}

fn show(json: &[u8], to: &ToClient<'_>, cors: &Cors, cx: &mut Context<'_>) {
    let date = cx.date();
    let extra: Vec<_> = date.as_deref().map(|date| ("date", date)).into_iter().chain(cors.fields()).collect();
    cx.actions.compose(Side::Client, |out| reply::write_json(out, 200, json, &extra, to));
}
