//! What engines' `/metrics` say, and for how long it is believed.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Fleet, TICK};
use crate::control::member::Member;
use crate::control::scrape::Reading;
use crate::control::truth::Ours;
use crate::counters::Counted;
use crate::fleet::{EndpointId, Room, Turnover};
use crate::snapshot::Pool;

/// How long after a reading it is believed what others have in an engine's cache: their requests may have ended since,
/// and ours would wait for room that is there.
pub(super) const OTHERS_LAST: Duration = Duration::from_secs(60);

/// Logs once for each address that several caches are there among which the front cannot choose. `is_back`: another
/// process than the one before answered, and it is not a new one.
fn say_who_is_there(member: &mut Member, reading: &Reading, is_back: bool) {
    let (ranks, from, configured) = (reading.ranks, reading.ranks_from, member.upstream.ranks);
    if is_back && reading.started.is_some() && !std::mem::replace(&mut member.said_by_turns, true) {
        tracing::warn!(
            engine = &*member.name,
            "several engines answer at this address by turns, and none of their caches can be known: name each by an address of its own"
        );
    }
    // An engine that names no ranks may be without figures.
    let is_as_configured = ranks.max(1) == configured as usize && (from == 0 || configured == 1);
    if is_as_configured || ranks == 0 || std::mem::replace(&mut member.said_ranks, true) {
        return;
    }
    let engine = &*member.upstream.server();
    if from > 0 && configured == 1 {
        tracing::warn!(
            engine,
            ranks,
            from,
            "this engine has several data-parallel ranks, each with a cache of its own, behind one port, and numbers them from {from}, as with hybrid load balancing: it spreads requests itself, so that a prompt is mostly not at the rank that holds it; `ranks` counts from 0, so leave it out, and give each rank a port of its own to have it chosen by itself"
        );
    } else if from > 0 {
        tracing::warn!(
            engine,
            ranks,
            from,
            configured,
            "this engine numbers its data-parallel ranks from {from}, as with hybrid load balancing, and `ranks` of its [[upstream]] counts from 0: it refuses what is sent to those that it does not have; leave `ranks` out"
        );
    } else if configured == 1 {
        tracing::warn!(
            engine,
            ranks,
            "this engine has several data-parallel ranks, each with a cache of its own, behind one port: it spreads requests itself, so that a prompt is mostly not at the rank that holds it; `ranks = {ranks}` of its [[upstream]] has each chosen by itself"
        );
    } else {
        tracing::warn!(
            engine,
            ranks,
            configured,
            "this engine names another number of data-parallel ranks in its /metrics than `ranks` of its [[upstream]] does: it refuses what is sent to those that it does not have, and gets nothing at those that are not configured; set `ranks = {ranks}`"
        );
    }
}

impl Fleet {
    /// Takes in a reading of an engine's `/metrics`, with what was `ours` there; or that it could not be read.
    pub fn scraped(
        &mut self,
        place: usize,
        id: EndpointId,
        read: Result<(Reading, Ours), String>,
        now: Instant,
    ) -> bool {
        let Some(at) = self.at(place) else { return false };
        let speaks = self.speaks_for_server(at);
        let member = &mut self.members[at];
        let Some(tenancy) = member.now.as_mut().filter(|tenancy| tenancy.id == id) else { return false };
        member.scrape_failures += u64::from(read.is_err());
        let (reading, ours) = match read {
            Ok(read) => read,
            Err(why) => return self.unread(place, id, why, now),
        };
        tenancy.scrape_error = None;
        let theirs = reading.load.running.zip(reading.load.waiting).map(|(run, wait)| run.saturating_add(wait));
        // A request that it counts as several hides how many are others'.
        let foreign = theirs.filter(|_| ours.several == 0).map_or(0, |theirs| theirs.saturating_sub(ours.in_flight));
        let was_silent = tenancy.was_silent.take().is_some();
        let another = tenancy.is_another(&reading, was_silent);
        let began = tenancy.began;
        (tenancy.began, tenancy.computed) = (reading.started.or(tenancy.began), reading.computed());
        let before = tenancy.reading.as_ref().map(|(reading, _)| reading.load);
        let since = tenancy.reading.as_ref().map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at));
        let changed = before != Some(reading.load) || tenancy.foreign != foreign;
        // Its cache is gone with its memory.
        let (was_asleep, asleep) = (tenancy.asleep, reading.awake == Some(false));
        let anew = another && tenancy.processes.join(began, reading.started, now);
        let emptied = another || asleep && !was_asleep;
        if asleep {
            member.slept += 1;
            // What an earlier process of ours knew was not of this memory.
            tenancy.remembered.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let capacity = tenancy.unit.tokens(&reading);
        if speaks {
            say_who_is_there(member, &reading, another && !anew && began.is_some());
        }
        if anew {
            self.begin_anew(place, id, capacity, now);
        } else if emptied {
            self.empty_cache(place, id, capacity, now);
        }
        let Some(tenancy) = self.tenancy(place, id) else { return false };
        let several = std::mem::replace(&mut tenancy.several, ours.several);
        let alone = foreign.max(tenancy.foreign) == 0 && several.max(ours.several) == 0;
        tenancy.truth.scraped(&ours, &reading, alone, now);
        (tenancy.asleep, tenancy.foreign) = (asleep, foreign);
        (tenancy.dispatched_at, tenancy.resident_at) = (ours.dispatched, ours.resident);
        tenancy.room = Room::of(&reading.load, ours.resident).map(|room| (room, now));
        tenancy.kind = reading.engine.or(tenancy.kind);
        tenancy.match_unit = reading.match_unit.or(tenancy.match_unit);
        tenancy.process = reading.process().or(tenancy.process);
        let unit = tenancy.unit;
        let first =
            tenancy.reading.replace((reading, now)).is_none() && !std::mem::replace(&mut tenancy.is_known, true);
        let token_bytes = self.member(place).map_or(Pool::TOKEN_BYTES, |member| self.token_bytes(member));
        if let Some(tokens) = capacity.filter(|_| !emptied) {
            self.caches.holds(id, tokens, token_bytes, unit);
        }
        if first {
            self.recall(place, id);
        }
        self.turned(place, id, since) || changed || asleep != was_asleep
    }

    /// Takes in that it could not be read.
    fn unread(&mut self, place: usize, id: EndpointId, why: String, now: Instant) -> bool {
        let stale = Duration::from_millis(self.config.control.stale_after_ms);
        let Some(tenancy) = self.tenancy(place, id) else { return false };
        tenancy.scrape_error = Some(why);
        // An engine that was too busy for its probes may still be for a scrape.
        let is_long = |since: &mut Instant| now.saturating_duration_since(*since) > stale;
        let cannot_say = tenancy.was_silent.take_if(is_long).is_some() && tenancy.can_say();
        let tokens = tenancy.tokens();
        if cannot_say {
            self.empty_cache(place, id, tokens, now);
        }
        cannot_say
    }

    /// Sizes caches anew after a model's first reply told how many bytes its tokens stand for: until the next scrapes
    /// much may be sent there.
    pub(super) fn size_caches(&mut self) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            let Some(tenancy) = &member.now else { continue };
            let Some(tokens) = tenancy.tokens() else { continue };
            let (place, id, unit) = (member.place, tenancy.id, tenancy.unit);
            self.caches.holds(id, tokens, self.token_bytes(member), unit);
            self.turned(place, id, Duration::ZERO);
        }
    }

    /// Looks how much left an engine's cache since then, and how much has room there, by the size that is known by now.
    fn turned(&mut self, place: usize, id: EndpointId, since: Duration) -> bool {
        let cached = self.caches.figures(id.slot);
        self.tenancy(place, id).is_some_and(|tenancy| {
            tenancy.turnover.saw((cached.gone(), cached.came()), cached.blocks, cached.capacity, since)
        })
    }

    /// Drops readings that are too old, except for what they told of room; makes parts of the index as large as they
    /// should be; and frees slots whose requests have ended, for which it calls `counted`.
    pub fn tick(
        &mut self,
        now: Instant,
        in_flight: impl Fn(u16) -> u32,
        counted: impl FnOnce(&[u16]) -> Counted,
    ) -> bool {
        let stale = Duration::from_millis(self.config.control.stale_after_ms);
        let since = self.ticked.replace(now).map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        // If this process stood still, no engine could be asked meanwhile: to forget all readings at once would release
        // all waiting requests.
        let usual = 2 * TICK + Duration::from_millis(self.config.control.publish_interval_ms);
        let stood_still = since.saturating_sub(usual);
        let mut changed = false;
        for tenancy in self.members.iter_mut().filter_map(|member| member.now.as_mut()) {
            if let Some((_, at)) = &mut tenancy.reading {
                // A reading from after the standstill must not become younger than now.
                *at = (*at + stood_still).min(now);
            }
            if tenancy.reading.as_ref().is_some_and(|(_, at)| now.saturating_duration_since(*at) > stale) {
                tenancy.reading = None;
                tenancy.turnover = Turnover::default();
                tenancy.foreign = 0;
                changed = true;
            }
            if let Some((room, at)) = &mut tenancy.room {
                *at = (*at + stood_still).min(now);
                let of_ours = room.of_ours_alone();
                if now.saturating_duration_since(*at) > OTHERS_LAST && *room != of_ours {
                    *room = of_ours;
                    changed = true;
                }
            }
        }
        self.caches.settle();
        changed |= self.free_slots(now, in_flight, counted);
        self.bring_in(now) || changed
    }
}
