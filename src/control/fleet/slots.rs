//! Slots: which endpoint has which, what it counted there, and when one is free again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Fleet;
use crate::control::health::{Course, REFUSALS};
use crate::control::member::{Member, Tenancy};
use crate::counters::{Counted, Deeds};
use crate::fleet::{Endpoint, EndpointId, Health};
use crate::limits::ENDPOINTS_MAX;

/// Least time that a slot rests after its endpoint left the pools.
pub(super) const QUARANTINE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) generation: u32,
    /// An endpoint that was taken out, and finishes its requests.
    pub(super) leaving: Option<Leaving>,
    /// Name of the engine that has it until it is free.
    pub(super) tenant: Option<Arc<str>>,
    /// Its counts when it was last free.
    before: Deeds,
}

/// See [`Slot`].
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) endpoint: Endpoint,
    since: Instant,
    /// The last snapshot in which it may be chosen.
    epoch: u64,
    /// Probes in a row that the kernel there refused.
    refusals: u32,
    /// Requests of ours that its engine still has.
    running: u32,
}

/// Endpoints that were taken out, by address: how many requests each still has, and its rank if there are several.
#[derive(Default)]
pub(super) struct Leavers(HashMap<SocketAddr, Vec<(Option<u16>, u32)>>);

impl Leavers {
    /// An endpoint as shards are to see it: its cap is lowered by what endpoints taken out at its address still have.
    /// An engine gets no more requests for having another name, or for being taken out and added again.
    pub(super) fn beside(&self, endpoint: Endpoint) -> Endpoint {
        if endpoint.cap == Endpoint::NO_CAP {
            return endpoint;
        }
        // If one server had ranks and now has none, or the reverse, it is not known which rank has what.
        let may_be_here = |rank: Option<u16>| rank.zip(endpoint.rank).is_none_or(|(rank, here)| rank == here);
        let there = self.0.get(&endpoint.address).into_iter().flatten();
        let running = there.filter(|(rank, _)| may_be_here(*rank)).map(|(_, running)| *running);
        Endpoint { cap: running.fold(endpoint.cap, u32::saturating_sub), ..endpoint }
    }
}

impl Fleet {
    /// Gives a member an endpoint at one of its addresses, unless it is at one of them.
    pub(super) fn seat(&mut self, at: usize, now: Instant) -> bool {
        let Some(address) = self.next_address(at) else { return false };
        if self.make_room(at, now) {
            return true;
        }
        self.settle(at, address, self.course_of(at, now), now)
    }

    /// The health with which a member begins at another endpoint.
    fn course_of(&self, at: usize, now: Instant) -> Course {
        let member = &self.members[at];
        // If it was elsewhere before, a new process has begun, with an empty cache.
        let is_elsewhere = member.now.is_some() || member.gave_way;
        match is_elsewhere && self.others_serve(at) {
            true => Course::moved(&self.config.health, now),
            false => Course::new(!is_elsewhere && !member.latecomer, &self.config.health, now),
        }
    }

    /// Moves members to slots with a place in the index: one that came while many were leaving may have a slot without.
    /// It is the same process at the same address, and serves on. A member that is not up waits until it is, since only
    /// its slot knows why.
    pub(super) fn bring_in(&mut self, now: Instant) -> bool {
        let places = self.caches.places().min(self.slots.len());
        let free = self.slots[..places].iter().filter(|slot| slot.tenant.is_none()).count();
        let is_out = |member: &Member| {
            let is_beyond = member.now.as_ref().is_some_and(|now| usize::from(now.id.slot) >= places);
            is_beyond && member.health() == Some(Health::Up)
        };
        let out = (0..).zip(&self.members).filter(|(_, member)| is_out(member)).map(|(at, _)| at);
        let out: Vec<usize> = out.take(free).collect();
        let mut any = false;
        for at in out {
            let Some(id) = self.take_slot(Arc::clone(&self.members[at].name)) else { break };
            if let Some(next) = self.members[at].now.as_ref().map(|before| before.renumbered(id, now)) {
                self.put(at, next, now);
                any = true;
            }
        }
        any
    }

    /// If every slot is taken, takes a dead endpoint out, whose slot is the member's once it has rested. Otherwise that
    /// member would be asked for ever where it no longer is.
    fn make_room(&mut self, at: usize, now: Instant) -> bool {
        let is_full = self.slots.len() >= ENDPOINTS_MAX && self.slots.iter().all(|slot| slot.tenant.is_some());
        let Some(member) = self.members.get_mut(at).filter(|member| is_full && member.health() == Some(Health::Down))
        else {
            return false;
        };
        let Some(endpoint) = member.now.take().map(|tenancy| member.endpoint(&tenancy)) else { return false };
        member.gave_way = true;
        self.let_finish(endpoint, now);
        self.pools.membership_changed();
        true
    }

    /// Whether engines that are up serve what a member does, as far as that is known.
    fn others_serve(&self, at: usize) -> bool {
        let Some(member) = self.members.get(at) else { return false };
        let is_unknown = |member: &Member| !member.has_ids();
        let is_peer = |other: &Member| other.shares_a_model(member) || is_unknown(other) && is_unknown(member);
        let others = self.members.iter().filter(|other| other.place != member.place);
        others.filter(|other| other.health() == Some(Health::Up)).any(is_peer)
    }

    /// The address that a member is to move to, if any. Without addresses it stays where it is: name servers fail more
    /// often than engines move. Ranks of one server go where the first of them is.
    fn next_address(&self, at: usize) -> Option<SocketAddr> {
        let member = &self.members[at];
        let first = self.address_of_first(member).filter(|first| member.addresses.contains(first));
        let is_there = |here: SocketAddr| member.addresses.contains(&here) && first.is_none_or(|first| first == here);
        let stays = member.now.as_ref().is_some_and(|tenancy| is_there(tenancy.address));
        first.or(member.addresses.first().copied()).filter(|_| !stays)
    }

    /// Gives a member an endpoint at `address`; the one it had finishes its requests.
    pub(super) fn settle(&mut self, at: usize, address: SocketAddr, course: Course, now: Instant) -> bool {
        let Some(id) = self.take_slot(Arc::clone(&self.members[at].name)) else {
            tracing::warn!(%address, "every endpoint slot is taken; the address is not used until one is free");
            return false;
        };
        self.members[at].doubt_models();
        self.put(at, Tenancy::new(id, address, course, now), now);
        true
    }

    /// Makes this a member's endpoint; the one it had finishes its requests.
    fn put(&mut self, at: usize, next: Tenancy, now: Instant) {
        let (id, member) = (next.id, &mut self.members[at]);
        if member.now.is_some() {
            // Its watch must look there now.
            member.models_wanted.notify_one();
            member.troubled.notify_one();
        }
        let old = member.now.replace(next).map(|old| (self.caches.part(old.id), member.endpoint(&old)));
        let (part, endpoint) = old.unzip();
        // The one before goes first, so that its part of the index goes to this one and no other.
        if let Some(endpoint) = endpoint {
            self.let_finish(endpoint, now);
        }
        self.caches.moved(id, &self.members[at].name, part.flatten());
        self.pools.membership_changed();
    }

    /// Takes an endpoint out: it gets nothing new, and its slot is free once its requests have ended.
    pub(super) fn let_finish(&mut self, endpoint: Endpoint, now: Instant) {
        let slot = usize::from(endpoint.id.slot);
        self.caches.forget(endpoint.id.slot);
        let endpoint = Endpoint { health: Health::Draining, ..endpoint };
        self.slots[slot].leaving = Some(Leaving { endpoint, since: now, epoch: self.epoch, refusals: 0, running: 0 });
    }

    /// Endpoints that were taken out and still have requests, with their addresses.
    pub fn leaving(&self, in_flight: impl Fn(u16) -> u32) -> Vec<(EndpointId, SocketAddr)> {
        let endpoints = self.slots.iter().filter_map(|slot| Some(&slot.leaving.as_ref()?.endpoint));
        let busy = endpoints.filter(|endpoint| in_flight(endpoint.id.slot) > 0);
        busy.map(|endpoint| (endpoint.id, endpoint.address)).collect()
    }

    /// Takes in a probe of one of them, which its kernel refused or not. True: shards must know.
    pub fn probed_leaving(&mut self, id: EndpointId, refused: bool) -> bool {
        let slot = self.slots.get_mut(usize::from(id.slot));
        let Some(leaving) = slot.and_then(|slot| slot.leaving.as_mut()).filter(|leaving| leaving.endpoint.id == id)
        else {
            return false;
        };
        leaving.refusals = if refused { leaving.refusals.saturating_add(1) } else { 0 };
        // One that refused before it was taken out does so until it is known to have come back.
        let refuses = leaving.refusals >= REFUSALS || refused && leaving.endpoint.refuses_probes;
        std::mem::replace(&mut leaving.endpoint.refuses_probes, refuses) != refuses
    }

    /// Looks how many requests endpoints that were taken out still have. True: shards must know, since an engine at the
    /// same address may have so many fewer.
    pub(super) fn look_at_leaving(&mut self, running: impl Fn(u16) -> u32) -> bool {
        let mut changed = Vec::new();
        for leaving in self.slots.iter_mut().filter_map(|slot| slot.leaving.as_mut()) {
            let now = running(leaving.endpoint.id.slot);
            if std::mem::replace(&mut leaving.running, now) != now {
                changed.push(leaving.endpoint.address);
            }
        }
        let capped = self.members.iter().filter(|member| member.cap() != Endpoint::NO_CAP);
        let mut capped = capped.filter_map(|member| member.now.as_ref());
        !changed.is_empty() && capped.any(|tenancy| changed.contains(&tenancy.address))
    }

    /// What still runs at endpoints that were taken out.
    pub(super) fn leavers(&self) -> Leavers {
        let mut leavers = Leavers::default();
        let leaving = self.slots.iter().filter_map(|slot| slot.leaving.as_ref());
        for Leaving { endpoint, running, .. } in leaving.filter(|leaving| leaving.running > 0) {
            leavers.0.entry(endpoint.address).or_default().push((endpoint.rank, *running));
        }
        leavers
    }

    /// Slots with their engines' names; also of endpoints that were taken out, for as long as they have requests.
    pub fn tenants(&self) -> impl Iterator<Item = (u16, &Arc<str>)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| Some((index, slot.tenant.as_ref()?)))
    }

    /// Frees slots whose endpoints have finished their requests, for members that wait for one; their counts are kept
    /// by name.
    pub(super) fn free_slots(
        &mut self,
        now: Instant,
        in_flight: impl Fn(u16) -> u32,
        counted: impl FnOnce(&[u16]) -> Counted,
    ) -> bool {
        // A shard that stood still in the middle of a turn goes on with its old snapshot, and what it sends to the
        // endpoint that left would be counted as the next one's.
        let rested = |slot: &Slot| {
            let leaving = slot.leaving.as_ref();
            leaving.is_some_and(|leaving| {
                leaving.epoch < self.chosen_by && now.saturating_duration_since(leaving.since) > QUARANTINE
            })
        };
        let at_rest: Vec<u16> =
            (0..).zip(&self.slots).filter(|(_, slot)| rested(slot)).map(|(index, _)| index).collect();
        let free: Vec<u16> = at_rest.into_iter().filter(|index| in_flight(*index) == 0).collect();
        if free.is_empty() {
            return false;
        }
        // After the look at what is in flight, so that all counts of these requests are in.
        let counted = counted(&free);
        for index in free {
            let slot = &mut self.slots[usize::from(index)];
            slot.leaving = None;
            let here = counted.at(index);
            let before = std::mem::replace(&mut slot.before, here.clone());
            if let Some(tenant) = slot.tenant.take() {
                self.bank.keep(tenant, &here.since(&before));
            }
        }
        // An address that is configured is not looked up again: a member that got no slot for it then gets one now,
        // while there are any.
        for at in 0..self.members.len() {
            if self.next_address(at).is_some() && !self.seat(at, now) {
                break;
            }
        }
        self.forget_the_gone();
        true
    }

    /// The counts of each engine, by name, over all slots that it has had; of engines that left, the last ones.
    pub fn deeds(&self, counted: &Counted) -> BTreeMap<Arc<str>, Deeds> {
        let mut deeds = self.bank.deeds();
        for (index, tenant) in self.tenants() {
            let before = &self.slots[usize::from(index)].before;
            deeds.entry(Arc::clone(tenant)).or_default().add(&counted.at(index).since(before));
        }
        deeds
    }

    pub(super) fn forget_the_gone(&mut self) {
        let members = self.members.iter().map(|member| &member.name);
        let here: HashSet<&Arc<str>> =
            members.chain(self.slots.iter().filter_map(|slot| slot.tenant.as_ref())).collect();
        self.bank.forget(&here);
    }

    /// A free slot, with a generation that it never had.
    fn take_slot(&mut self, tenant: Arc<str>) -> Option<EndpointId> {
        let free = self.slots.iter().position(|slot| slot.tenant.is_none());
        let index = free.unwrap_or(self.slots.len());
        if index == self.slots.len() {
            if index >= ENDPOINTS_MAX {
                return None;
            }
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[index];
        slot.tenant = Some(tenant);
        slot.generation = slot.generation.wrapping_add(1);
        Some(EndpointId { slot: index as u16, generation: slot.generation })
    }
}
