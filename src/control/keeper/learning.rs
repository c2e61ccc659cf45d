//! Learning what engines serve, and when they are asked for it.

use std::sync::Arc;

use super::{Keeper, rung};
use crate::control::models::{Cards, Learnt, ModelsError};
use crate::fleet::EndpointId;

impl Keeper {
    /// See [`crate::control::fleet::Fleet::learnt`].
    pub fn learnt(&self, place: usize, id: EndpointId, learnt: Result<Learnt, ModelsError>) {
        let changed = self.fleet().learnt(place, id, learnt);
        self.changed_if(changed);
    }

    /// What an engine listed last.
    pub fn listed(&self, place: usize) -> Option<Cards> {
        self.fleet().member(place)?.models.as_ref().map(|learnt| learnt.cards.clone())
    }

    /// Has the models of an engine read now.
    pub fn wake_models(&self, place: usize) {
        if let Some(member) = self.fleet().member(place) {
            member.models_wanted.notify_one();
        }
    }

    /// Waits for [`Keeper::wake_models`].
    pub async fn models_wanted(&self, place: usize) {
        let bell = self.fleet().member(place).map(|member| Arc::clone(&member.models_wanted));
        rung(bell).await;
    }
}
