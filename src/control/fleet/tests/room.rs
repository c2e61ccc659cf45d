//! What of an engine's readings outlasts them: how much room there is, for those that wait for it.

use super::readings::OTHERS_LAST;
use super::*;
use crate::counters::Admission;
use crate::fleet::Caps;
use crate::index::Matches;
use crate::policy::{self, Choice, Policy, Prompt, Request};

/// An engine with a cache of 10,000 tokens, and requests of ours there.
struct Scene {
    fleet: Fleet,
    id: EndpointId,
    counters: &'static Counters,
    ours: Vec<Admission>,
    now: Instant,
}

impl Scene {
    fn new() -> Scene {
        let (fleet, counters) = (fleet(1), Counters::leak());
        let (id, _) = fleet.target(0).unwrap();
        Scene { fleet, id, counters, ours: Vec::new(), now: Instant::now() }
    }

    /// One more of ours that occupies so many tokens.
    fn sends(&mut self, tokens: u32) {
        let mut admission = self.counters.try_admit_below(self.id, Caps::NONE).unwrap();
        admission.occupies(tokens);
        self.ours.push(admission);
    }

    /// It tells that so many percent of its cache are in use.
    fn tells(&mut self, used: u32) {
        let text = format!(
            "process_start_time_seconds 5\nvllm:kv_cache_usage_perc 0.{used}\n\
             vllm:cache_config_info{{kv_cache_size_tokens=\"10000\"}} 1\n"
        );
        let resident = self.counters.loads().resident(self.id.slot);
        let ours = Ours { in_flight: self.ours.len() as u32, resident, ..Ours::default() };
        self.fleet.scraped(0, self.id, Ok((Reading::of(text.as_bytes()), ours)), self.now);
    }

    /// It tells nothing for so long.
    fn is_silent_for(&mut self, span: Duration) {
        for _ in 0..span.as_millis() / TICK.as_millis() {
            self.now += TICK;
            self.fleet.scraped(0, self.id, Err("too busy".into()), self.now);
            self.fleet.tick(self.now, |_| 1, nothing);
        }
    }

    /// What is chosen for a prompt of 1,000 tokens.
    fn choice(&mut self) -> Choice {
        let mut snapshot = self.fleet.snapshot();
        snapshot.seal();
        let matches = Matches::default();
        let prompt = Some(Prompt { tokens: 1_000, block_tokens: 64.0, matches: &matches, tie: 0 });
        let request = Request { prompt, ..Request::default() };
        policy::choose_by(Policy::Warm, &snapshot.pools[0], self.counters.loads(), &request).unwrap()
    }

    fn has_room(&mut self) -> bool {
        self.choice().room
    }

    fn is_read(&self) -> bool {
        self.fleet.members()[0].now.as_ref().is_some_and(|tenancy| tenancy.reading.is_some())
    }
}

const STALE: Duration = Duration::from_secs(6);

/// As an engine is that has too much to do to tell: all would be let go at once, and more come behind them.
#[test]
fn an_engine_that_tells_no_more_has_room_as_ours_end() {
    let mut scene = Scene::new();
    (0..3).for_each(|_| scene.sends(3_000));
    scene.tells(90);
    assert!(!scene.has_room());
    scene.is_silent_for(STALE);
    assert!(!scene.is_read() && !scene.has_room());
    let cost = scene.choice().costs.unwrap().chosen;
    assert_eq!((cost.full, cost.no_room), (0, 0), "where to go is chosen without what is too old");
    scene.is_silent_for(2 * OTHERS_LAST);
    assert!(!scene.has_room(), "ours are all there still");
    scene.ours.pop();
    assert!(scene.has_room());
    scene.sends(3_000);
    assert!(!scene.has_room());
    // What the next process there has in its cache is nobody's of these.
    scene.fleet.begin_anew(0, scene.id, None, scene.now);
    assert!(scene.has_room(), "nothing is known of it");
}

/// Nobody tells when they end, so that room would never come again.
#[test]
fn what_others_had_is_not_held_against_ours_for_ever() {
    let mut scene = Scene::new();
    scene.tells(90);
    scene.sends(100);
    assert!(!scene.has_room());
    scene.is_silent_for(OTHERS_LAST);
    assert!(!scene.is_read() && !scene.has_room());
    scene.is_silent_for(STALE);
    assert!(scene.has_room());
    (0..3).for_each(|_| scene.sends(3_000));
    assert!(!scene.has_room(), "ours are counted all the same");
    scene.tells(10);
    assert!(scene.has_room());
}

/// As one that comes to a slot with a place in the index; what was sent there before was for another.
#[test]
fn what_a_former_tenant_was_sent_takes_no_room_of_who_comes_to_its_slot() {
    let mut scene = Scene::new();
    scene.sends(0);
    (0..1_000).for_each(|_| scene.ours[0].computes(10_000));
    scene.tells(10);
    assert!(scene.choice().costs.unwrap().chosen.no_room > 0, "all of that came after it told");
    let id = EndpointId { generation: scene.id.generation + 1, ..scene.id };
    let now = &mut scene.fleet.members[0].now;
    *now = now.as_ref().map(|before| before.renumbered(id, scene.now));
    assert_eq!(scene.choice().costs.unwrap().chosen.no_room, 0);
}
