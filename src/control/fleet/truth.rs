//! How the fleet compares what is known of its engines' caches with predictions, and what it undoes when a cache is
//! empty.

use std::sync::Arc;
use std::time::Instant;

use super::Fleet;
use crate::control::calibration;
use crate::control::ladder::Ladder;
use crate::control::member::Member;
use crate::counters::{Deeds, Predictions};
use crate::fleet::{EndpointId, Turnover};
use crate::snapshot::Pool;

/// An endpoint that is on another rung.
#[derive(Debug)]
pub struct Moved {
    /// Its engine's name.
    pub engine: Arc<str>,
    /// The rung that it is on, and why.
    pub ladder: Ladder,
}

impl Fleet {
    /// Compares what was predicted with what is known by now. Returns which endpoints are on another rung, and whether
    /// shards must know.
    pub fn compare(&mut self, predictions: &Predictions, now: Instant) -> (Vec<Moved>, bool) {
        let (mut moved, mut first_told) = (Vec::new(), false);
        for member in &mut self.members {
            let Some(tenancy) = &mut member.now else { continue };
            let knew = tenancy.truth.calibration.token_bytes().is_some();
            let on_another = tenancy.truth.look(tenancy.id.slot, predictions, now);
            first_told |= !knew && tenancy.truth.calibration.token_bytes().is_some();
            if let Some(compared) = tenancy.truth.untold() {
                self.bank.keep(Arc::clone(&member.name), &Deeds { compared, ..Deeds::default() });
            }
            if on_another {
                moved.push(Moved { engine: Arc::clone(&member.name), ladder: tenancy.truth.ladder.clone() });
            }
        }
        if first_told {
            self.size_caches();
        }
        let changed = first_told || !moved.is_empty();
        (moved, changed)
    }

    /// Takes in that another process answers there: its cache is empty, and faults of the one before,
    /// in predictions or requests, are not its own.
    pub(super) fn begin_anew(&mut self, place: usize, id: EndpointId, tokens: Option<u64>, now: Instant) {
        let config = Arc::clone(&self.config);
        if let Some(tenancy) = self.tenancy(place, id) {
            tenancy.course.begin_anew(&config.health, now);
        }
        self.empty_cache(place, id, tokens, now);
    }

    /// Takes in that its cache is empty, or may be, and takes back doubts about it. `tokens`: how many it can hold.
    pub(super) fn empty_cache(&mut self, place: usize, id: EndpointId, tokens: Option<u64>, now: Instant) {
        let token_bytes = self.member(place).map_or(Pool::TOKEN_BYTES, |member| self.token_bytes(member));
        let Some(tenancy) = self.tenancy(place, id) else { return };
        tenancy.truth.restarted(now);
        tenancy.emptied += 1;
        (tenancy.process, tenancy.kind, tenancy.match_unit) = (None, None, None);
        tenancy.room = None;
        tenancy.asleep = false;
        tenancy.turnover = Turnover::default();
        let unit = tenancy.unit;
        self.caches.empty(id, tokens, token_bytes, unit);
        // It may serve other models than the one before, and no failed probe tells of a quick restart.
        if let Some(member) = self.members.iter_mut().find(|member| member.place == place) {
            member.doubt_models();
            member.models_wanted.notify_one();
        }
    }

    /// Bytes that a token stands for at one engine: as learnt from itself, else from others that serve the same models.
    pub(super) fn token_bytes(&self, member: &Member) -> f32 {
        let told = |member: &Member| member.now.as_ref()?.truth.calibration.token_bytes();
        // Mostly all engines have told or none has: lists of models are compared for the others alone.
        let all_told = || self.members.iter().filter_map(|other| Some((other, told(other)?)));
        let others = || all_told().filter(|(other, _)| other.shares_a_model(member)).map(|(_, told)| told);
        told(member).unwrap_or_else(|| calibration::mean(others()))
    }
}
