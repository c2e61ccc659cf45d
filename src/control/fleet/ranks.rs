//! The ranks of one server: they have one address, and are asked with one call.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Fleet;
use crate::control::member::Member;
use crate::control::pools;
use crate::control::scrape::Reading;
use crate::counters::{Barred, Outcomes};
use crate::fleet::{EndpointId, Health};

/// A server's address, and the endpoints of its ranks: one, unless the front chooses among several ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The address of all of its ranks.
    pub address: SocketAddr,
    /// The ranks, in their order.
    pub ranks: Vec<Seated>,
}

/// One rank that has an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seated {
    /// See [`Member::place`].
    pub place: usize,
    /// The endpoint that it has now.
    pub id: EndpointId,
    /// Its number, if there are several.
    pub rank: Option<u16>,
}

impl Fleet {
    /// The server of the engine at `place`, if any of its ranks has an endpoint.
    pub fn server(&self, place: usize) -> Option<Server> {
        let member = self.member(place)?;
        let mut seated = self.of_server(member).filter_map(|other| Some((other, other.now.as_ref()?))).peekable();
        let address = seated.peek().map(|(_, first)| first.address)?;
        let here = seated.filter(|(_, tenancy)| tenancy.address == address);
        let ranks =
            here.map(|(other, tenancy)| Seated { place: other.place, id: tenancy.id, rank: other.upstream.rank });
        Some(Server { address, ranks: ranks.collect() })
    }

    /// The places of all of its ranks.
    pub fn ranks(&self, place: usize) -> Vec<usize> {
        let ranks = self.member(place).into_iter().flat_map(|member| self.of_server(member));
        ranks.map(|member| member.place).collect()
    }

    /// Bars all ranks of a server if one of them said that it is shutting down.
    pub(super) fn bar_servers(&self, outcomes: &Outcomes) {
        for member in self.members.iter().filter(|member| member.upstream.rank.is_some()) {
            let Some(tenancy) = &member.now else { continue };
            let says_so = || outcomes.read(tenancy.id.slot).barred == Some(Barred::ByItsWord);
            if tenancy.course.heeds_bars() && says_so() {
                let others = self.of_server(member).filter_map(|other| other.now.as_ref());
                others.for_each(|other| _ = outcomes.bar(other.id.slot));
            }
        }
    }

    /// Whether a member that is out may be tried, once its time is over. Of a server that is out with all its ranks
    /// only the first may: if the server were not back, as many requests would fail there as it has ranks. The next one
    /// follows if that trial has no outcome for as long as the shortest ejection. All may at once if the server is
    /// back, or if it serves anything that no other server does: the first would get all requests for that.
    pub(super) fn may_be_tried(&self, at: usize, now: Instant) -> bool {
        let Some(member) = self.members.get(at).filter(|member| member.upstream.rank.is_some()) else { return true };
        // Else ranks would be tried together, once what hides the ejection is over.
        if member.health() != Some(Health::Ejected) {
            return false;
        }
        let patience = Duration::from_millis(self.config.health.eject_ms);
        let is_on_trial = |other: &Member| {
            let course = other.now.as_ref().map(|tenancy| &tenancy.course);
            other.health() == Some(Health::Trial)
                && course.is_some_and(|course| now.saturating_duration_since(course.since()) < patience)
        };
        !self.of_server(member).any(is_on_trial)
            || self.of_server(member).any(is_in_service)
            || !self.is_served_elsewhere(member)
    }

    /// Whether others in service serve all that this one's server does; if it has not said what it serves, whether
    /// there is another that has not either.
    fn is_served_elsewhere(&self, member: &Member) -> bool {
        let any_known = pools::any_known(&self.members);
        let is_elsewhere = |other: &&Member| {
            // A member that has lost its models is in no pool.
            !other.upstream.is_of_server(&member.upstream)
                && is_in_service(other)
                && !(any_known && other.has_lost_its_models())
        };
        let mut elsewhere = self.members.iter().filter(is_elsewhere);
        let Some(ids) = member.ids() else { return elsewhere.any(|other| !other.has_ids()) };
        let mut nowhere: HashSet<&str> = ids.into_iter().collect();
        elsewhere.any(|other| {
            other.known_ids().for_each(|id| _ = nowhere.remove(id));
            nowhere.is_empty()
        })
    }

    /// Notes that a rank on trial said that its server is shutting down: the ranks that were to be tried after it wait
    /// as long as it does.
    pub(super) fn end_with(&mut self, at: usize, now: Instant) {
        let config = Arc::clone(&self.config);
        let Some(tried) = self.members.get(at).filter(|member| member.upstream.rank.is_some()) else { return };
        for place in self.ranks(tried.place) {
            let other = self.at(place).and_then(|at| self.members.get_mut(at)?.now.as_mut());
            other.into_iter().for_each(|tenancy| tenancy.course.ends_with_another(&config.health, now));
        }
    }

    /// Moves an engine to another address of its name, if its probes say so. Of several ranks the first decides, and
    /// all move together, once the last of them has been told of the probe: one that moved by itself would not be asked
    /// there.
    pub(super) fn look_elsewhere(&mut self, place: usize, now: Instant) -> bool {
        let config = Arc::clone(&self.config);
        let Some(Server { address, ranks }) = self.server(place) else { return false };
        let first = ranks.first().filter(|_| ranks.last().is_some_and(|last| last.place == place));
        let Some(member) = first.and_then(|first| self.member(first.place)) else { return false };
        let looks = member.now.as_ref().is_some_and(|tenancy| tenancy.course.looks_elsewhere(&config.health));
        let addresses = &member.addresses;
        let here = addresses.iter().position(|known| *known == address && addresses.len() > 1);
        let Some(here) = here.filter(|_| looks) else { return false };
        let next = addresses[(here + 1) % addresses.len()];
        let mut moved = false;
        for rank in &ranks {
            let Some(at) = self.at(rank.place) else { continue };
            let Some(tenancy) = &self.members[at].now else { continue };
            let course = tenancy.course.elsewhere(&config.health, now);
            moved |= self.settle(at, next, course, now);
        }
        moved
    }

    /// Looks whether a page of metrics for these ranks of a server, each of which is yet to be [`Fleet::scraped`], is
    /// another process's. If it does not say when its process began, not every rank's counters may show that: one that
    /// does shows it for all, once.
    pub fn paged(&mut self, ranks: &[Seated], readings: &[Reading], now: Instant) {
        if ranks.iter().any(|rank| rank.rank.is_none()) || readings.iter().any(|reading| reading.started.is_some()) {
            return;
        }
        let told = || ranks.iter().zip(readings);
        let mut shows = told().filter_map(|(rank, reading)| {
            let tenancy = self.tenancy(rank.place, rank.id)?;
            Some(tenancy.is_another(reading, tenancy.was_silent.is_some()))
        });
        if !shows.any(|is_another| is_another) {
            return;
        }
        let mut anew = true;
        for rank in ranks {
            let tenancy = self.tenancy(rank.place, rank.id);
            anew &= tenancy.is_none_or(|tenancy| tenancy.processes.join(None, None, now));
        }
        for (rank, reading) in told() {
            let Some(tenancy) = self.tenancy(rank.place, rank.id) else { continue };
            let tokens = tenancy.unit.tokens(reading);
            tenancy.counts_anew();
            match anew {
                true => self.begin_anew(rank.place, rank.id, tokens, now),
                false => self.empty_cache(rank.place, rank.id, tokens, now),
            }
        }
    }

    /// The address of its server's first rank that has one, if the server has several ranks.
    pub(super) fn address_of_first(&self, member: &Member) -> Option<SocketAddr> {
        member.upstream.rank?;
        self.of_server(member).find_map(|other| Some(other.now.as_ref()?.address))
    }

    /// Whether this member logs what is to be logged once for all ranks of a server: the first of them that has an
    /// address does.
    pub(super) fn speaks_for_server(&self, at: usize) -> bool {
        let (before, here) = self.members.split_at(at);
        let is_beside = |other: &&Member| here.first().is_some_and(|member| other.upstream.is_beside(&member.upstream));
        before.iter().rev().take_while(is_beside).all(|other| other.now.is_none())
    }

    fn of_server<'f>(&'f self, member: &'f Member) -> impl Iterator<Item = &'f Member> {
        let is_of_it = |other: &&Member| match member.upstream.rank {
            Some(_) => other.upstream.is_of_server(&member.upstream),
            None => other.place == member.place,
        };
        self.members.iter().filter(is_of_it)
    }
}

fn is_in_service(member: &Member) -> bool {
    matches!(member.health(), Some(Health::Unknown | Health::Up))
}
