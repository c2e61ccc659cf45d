//! The members of the fleet as another configuration has them. Engines that stay keep their endpoint, what was learnt
//! of them and their requests; those that go finish what they have.

use std::sync::Arc;
use std::time::Instant;

use super::Fleet;
use crate::config::{Config, Upstream};
use crate::control::forms::Forms;
use crate::control::keys::Keys;
use crate::control::member::Member;

impl Fleet {
    /// Keys that wait for a restart because of what is in use, not of what the process was started with: an index is
    /// made when a pool first needs it. Engines beyond those it was made for are served, and cold.
    pub fn waits_for_restart(&self) -> impl Iterator<Item = &'static str> {
        let resized = self.caches.is_of_other_size(&self.config).then_some("limits.index_bytes");
        resized.into_iter().chain(self.caches.lacks_seats(&self.config).then_some("upstream"))
    }

    /// Takes another configuration, with the keys of its engines.
    /// Returns the names of engines that are new, and that go.
    pub fn reconfigure(
        &mut self,
        config: Arc<Config>,
        keys: Keys,
        forms: Arc<Forms>,
        now: Instant,
    ) -> (Vec<String>, Vec<String>) {
        self.pools.reconfigure(Arc::clone(&config), Arc::clone(&forms));
        self.forms = forms;
        self.plan = Arc::new(config.plan());
        if self.caches.follow(&config) {
            let emptied = self.members.iter_mut().filter_map(|member| member.now.as_mut());
            emptied.for_each(|tenancy| tenancy.emptied += 1);
            for (member, tenancy) in self.members.iter().filter_map(|member| Some((member, member.now.as_ref()?))) {
                self.caches.empty(tenancy.id, tenancy.tokens(), self.token_bytes(member), tenancy.unit);
            }
        }
        self.session_headers = session_headers(&config);
        self.config = config;
        self.follow(keys, now)
    }

    /// Makes the members those of the configuration, in its order. None leaves the list before all others are in it: a
    /// fault of ours on the way would lose members that are in neither list.
    pub(super) fn follow(&mut self, keys: Keys, now: Instant) -> (Vec<String>, Vec<String>) {
        let config = Arc::clone(&self.config);
        let mut added = Vec::new();
        let servers = config.upstream.iter().zip(keys.into_iter().chain(std::iter::repeat(None)));
        let ranks = servers.flat_map(|(server, key)| server.each_rank().map(move |rank| (rank, key.clone())));
        let ranks: Vec<(Upstream, Option<Arc<str>>)> = ranks.collect();
        for (upstream, key) in &ranks {
            match self.members.iter_mut().find(|member| member.upstream.is_same(upstream)) {
                Some(member) => (member.upstream, member.key) = (upstream.clone(), key.clone()),
                None => {
                    added.push(upstream.label());
                    let newcomer = self.newcomer(upstream, key.clone());
                    self.members.push(newcomer);
                }
            }
        }
        let place = |member: &Member| ranks.iter().position(|(upstream, _)| member.upstream.is_same(upstream));
        // Those that go come last.
        self.members.sort_by_cached_key(|member| place(member).unwrap_or(usize::MAX));
        let gone = self.members.split_off(self.members.partition_point(|member| place(member).is_some()));
        self.members.iter_mut().for_each(|member| inherit(member, &gone));
        let removed = gone.iter().map(|member| member.name.to_string()).collect();
        for member in gone {
            self.bank.leaves(&member);
            if let Some(tenancy) = &member.now {
                self.let_finish(member.endpoint(tenancy), now);
            }
        }
        // Also members that have another address under the same name.
        self.members.iter_mut().for_each(|member| self.bank.returns(member));
        self.forget_the_gone();
        self.forget_unconfigured();
        self.pools.membership_changed();
        self.answer_is_old = true;
        (added, removed)
    }

    fn newcomer(&mut self, upstream: &Upstream, key: Option<Arc<str>>) -> Member {
        self.places += 1;
        let mut newcomer = Member::new(self.places - 1, upstream.clone(), key, self.epoch > 0);
        if let Some(other) = self.members.iter().find(|member| member.upstream.is_beside(upstream)) {
            // One watch looks at all ranks of a server, and hears one bell.
            newcomer.models_wanted = Arc::clone(&other.models_wanted);
            newcomer.troubled = Arc::clone(&other.troubled);
        }
        newcomer
    }
}

/// A new member at the URL of one that goes is most likely the same engine under another name: until it says itself
/// what it serves, it is taken to serve what that one did, lest no engine serve these models meanwhile.
fn inherit(member: &mut Member, gone: &[Member]) {
    let is_new = member.now.is_none() && member.models.is_none();
    let same = gone.iter().find(|gone| is_new && gone.upstream.url == member.upstream.url);
    if let Some(gone) = same {
        member.models.clone_from(&gone.models);
        if gone.key == member.key {
            member.lock = gone.lock;
        }
    }
}

/// The names of fields that may carry a session key.
pub(super) fn session_headers(config: &Config) -> Arc<[Box<str>]> {
    config.routing.session_headers.iter().map(|name| name.as_str().into()).collect()
}
