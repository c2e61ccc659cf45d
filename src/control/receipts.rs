//! `/receipts` of the admin listener: what the front knew of each of the last requests when
//! it chose, and what came of it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::response::Json;
use axum::routing::get;
use serde::{Deserialize, Serialize};

use super::access::{Line, Named};
use super::admin::State;
use crate::exchange::Record;
use crate::policy::Cost;

/// Most receipts in one answer, the newest.
const SHOWN_MAX: usize = 20;

/// The last requests that ended, newest last. Shards never touch it.
#[derive(Debug, Default)]
pub struct Receipts(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    most: usize,
    ended: VecDeque<Named>,
}

impl Receipts {
    /// Keeps at most `most` receipts from now on.
    pub(super) fn bound(&self, most: usize) {
        let mut kept = self.kept();
        let surplus = kept.ended.len().saturating_sub(most);
        kept.ended.drain(..surplus);
        kept.ended.shrink_to(most);
        kept.most = most;
    }

    /// Adds one; returns the oldest, which goes for it, or the new one itself if it is not worth a place.
    pub(super) fn keep(&self, mut ended: Named) -> Option<Named> {
        let mut kept = self.kept();
        // With balancers that ask each second or two a quiet front would soon have nothing else.
        let is_check = ended.record.path.as_bytes() == b"/health";
        if kept.most == 0 || is_check {
            return Some(ended);
        }
        let full = kept.ended.len() >= kept.most;
        let oldest = if full { kept.ended.pop_front() } else { None };
        // The chain is for the log alone, and may be of any length.
        ended.record.chain = None;
        kept.ended.push_back(ended);
        oldest
    }

    /// The newest of those that `wanted` takes, newest first; with how many are kept.
    pub(super) fn newest(&self, wanted: impl Fn(&Record) -> bool) -> (Vec<Named>, usize) {
        let kept = self.kept();
        let found = kept.ended.iter().rev().filter(|ended| wanted(&ended.record)).take(SHOWN_MAX).cloned();
        (found.collect(), kept.most)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // A panic while it was held left whole records.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request as `/receipts` shows it: its line in the access log, and what its choice compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt<'a> {
    /// As in the access log.
    #[serde(flatten)]
    pub line: Line<'a>,
    /// Requests at the endpoint before this one.
    pub in_flight: Option<u32>,
    /// Most it might have had, this one included; `None`: no bound.
    pub slots: Option<u32>,
    /// Requests at the runner-up.
    pub runner_up_in_flight: Option<u32>,
    /// Its cost there, if the policy counts work in tokens.
    pub cost: Option<Cost>,
    /// Its cost at the runner-up.
    pub runner_up_cost: Option<Cost>,
}

impl<'a> From<&'a Named> for Receipt<'a> {
    fn from(ended: &'a Named) -> Receipt<'a> {
        let compared = ended.record.compared;
        let costs = compared.and_then(|compared| compared.costs);
        Receipt {
            line: ended.line(),
            in_flight: compared.map(|compared| compared.in_flight),
            slots: compared.and_then(|compared| compared.slots),
            runner_up_in_flight: compared.and_then(|compared| compared.runner_up_in_flight),
            cost: costs.map(|costs| costs.chosen),
            runner_up_cost: costs.and_then(|costs| costs.runner_up),
        }
    }
}

pub(super) fn routes() -> Router<State> {
    Router::new().route("/receipts", get(last)).route("/receipts/{*id}", get(of_request))
}

type Answer = Result<Json<serde_json::Value>, (StatusCode, String)>;

/// Answers with the receipts of the last requests.
async fn last(Shared(state): Shared<State>) -> Answer {
    let (found, most) = state.keeper.access().receipts().await.newest(|_| true);
    if most == 0 { Err(off()) } else { shown(&found) }
}

/// Answers with the receipts of one request, or of several that had the same id, the last one first.
async fn of_request(Shared(state): Shared<State>, Path(id): Path<String>) -> Answer {
    let (found, most) = state.keeper.access().receipts().await.newest(|record| record.is_called(id.as_bytes()));
    match found.is_empty() {
        true if most == 0 => Err(off()),
        true => Err((StatusCode::NOT_FOUND, unknown(&id, most))),
        false => shown(&found),
    }
}

fn shown(found: &[Named]) -> Answer {
    let receipts: Vec<Receipt<'_>> = found.iter().map(Receipt::from).collect();
    let answer = serde_json::to_value(receipts);
    answer.map(Json).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")))
}

fn off() -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, "no receipts are kept: set `receipts` in [log] to how many and reload\n".into())
}

fn unknown(id: &str, most: usize) -> String {
    let id: String = id.chars().take(Record::ID_BYTES).flat_map(char::escape_debug).collect();
    format!(
        "no request \"{id}\" is among the last {most} that ended here: look for its id in the reply's x-request-id, and wait \
         until it has ended; `receipts` in [log] keeps more of them. Requests that began before an upgrade (SIGUSR2) \
         have none here; the access log has them\n"
    )
}
