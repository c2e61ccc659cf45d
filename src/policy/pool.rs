//! The endpoints that serve one model id, and how one of them is chosen.

use std::sync::Arc;

use crate::fleet::{Endpoint, PoolId};
use crate::limits::TOKENS_MAX;
use crate::policy::lengths::Longer;
use crate::policy::{Eligible, Settings};
use crate::ring::Ring;
use crate::scan::Form;

/// The endpoints that serve one model id (base model or adapter).
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its place in [`crate::snapshot::Snapshot::pools`].
    pub id: PoolId,
    /// The served id.
    pub name: Arc<str>,
    /// The same, or another by which all its endpoints serve the same weights: their caches are one for both. Part of
    /// every prefix key.
    pub root: Arc<str>,
    /// Slots of its endpoints, ascending, whatever their health.
    pub members: Arc<[u16]>,
    /// Points of the members; pools of equal members share it. Rebuilt only when membership changes.
    pub ring: Arc<Ring>,
    /// How this pool chooses.
    pub settings: Arc<Settings>,
    /// Bytes of text that a token of its model stands for.
    pub token_bytes: f32,
    /// Tokens of the unit in which its endpoints find a prompt in their caches: the largest that one of them tells of,
    /// those that are down left out unless all are; 0: none does.
    pub match_unit: u32,
    /// Tokens of the longest prompt that one of its endpoints takes, as far as is known.
    pub context: u32,
    /// What each of `members` takes, in their order, where they say that they differ in that; mostly empty.
    pub contexts: Arc<[u32]>,
    /// How its prompts are written, where that is known and of use.
    pub form: Option<Arc<Form>>,
    /// Whether its model is an adapter on another.
    pub is_adapter: bool,
    /// Whether one of its endpoints is known to ask for keys under `/v1`.
    pub asks_keys: bool,
    /// Who may be chosen; computed when the snapshot is sealed.
    eligible: Arc<Eligible>,
    /// Those of its endpoints that take longer prompts than others; likewise.
    pub(super) longer: Arc<[Longer]>,
}

impl Pool {
    /// See [`Pool::token_bytes`]: where nothing better is known.
    pub const TOKEN_BYTES: f32 = 4.0;

    /// A pool whose choices answer nothing until its snapshot is sealed (as publication does).
    pub fn new(id: PoolId, name: Arc<str>, members: Arc<[u16]>, ring: Arc<Ring>, settings: Arc<Settings>) -> Pool {
        Pool {
            id,
            root: Arc::clone(&name),
            name,
            members,
            ring,
            settings,
            token_bytes: Pool::TOKEN_BYTES,
            match_unit: 0,
            context: TOKENS_MAX,
            contexts: Arc::default(),
            form: None,
            is_adapter: false,
            asks_keys: false,
            eligible: Arc::default(),
            longer: Arc::default(),
        }
    }

    /// The same with fewer endpoints.
    pub(super) fn part(&self, members: Arc<[u16]>, eligible: Eligible) -> Pool {
        let (contexts, longer) = (Arc::default(), Arc::default());
        Pool { members, contexts, longer, eligible: Arc::new(eligible), ..self.clone() }
    }

    /// The same with the endpoints of a part of another pool, whose table it takes.
    pub(super) fn part_as(&self, part: &Pool) -> Pool {
        let (members, eligible) = (Arc::clone(&part.members), Arc::clone(&part.eligible));
        Pool { members, contexts: Arc::default(), longer: Arc::default(), eligible, ..self.clone() }
    }

    /// Who may be chosen.
    #[inline]
    pub fn eligible(&self) -> &Eligible {
        &self.eligible
    }

    /// Computes who may be chosen from the endpoints as they are now.
    pub(crate) fn refresh(&mut self, endpoints: &[Option<Endpoint>]) {
        self.eligible = Arc::new(Eligible::of(&self.members, endpoints));
        self.longer = self.longer(endpoints).into();
    }

    /// Takes the table of a pool of equal members.
    pub(crate) fn share_eligible(&mut self, twin: &Pool, endpoints: &[Option<Endpoint>]) {
        self.eligible = Arc::clone(&twin.eligible);
        self.longer = if self.contexts == twin.contexts { self.longer_as(twin) } else { self.longer(endpoints) }.into();
    }
}
