//! What an engine tells takes turns with what else there is to do, and what was counted stays counted.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::yield_now;

use super::*;
use crate::config::{Config, KvEvents, Upstream};
use crate::control::access::AccessLog;
use crate::control::fleet::Fleet;
use crate::control::scrape::Reading;
use crate::control::tests::config_of;
use crate::control::truth::Ours;
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::fleet::Rung;
use crate::index::{Capacity, Origin, PROMISE_SECONDS};
use crate::kvevents::{Batch, Ended};
use crate::limits::KV_STRANGERS_MAX;
use crate::mirror::Sink;
use crate::policy::Policy;
use crate::publish::{Process, Published};
use crate::vocabulary::{Lead, Vocabulary};

#[path = "../../../tests/kvevents/msgpack.rs"]
#[allow(dead_code)]
mod msgpack;

/// Of an engine that says that it has so many blocks.
fn hearing(blocks_max: u32) -> Hearing {
    hearing_at(blocks_max, &[])
}

fn hearing_at(blocks_max: u32, sources: &[Settings]) -> Hearing {
    let index = Arc::new(Index::new(Capacity { endpoints: 1, blocks: 1 << 12, lengths: false }).unwrap());
    let fleet = Fleet::new(Arc::new(config_of([])), Vec::new(), Arc::default());
    hearing_of(fleet, EndpointId { slot: 0, generation: 1 }, index, blocks_max, sources).0
}

/// Of the engine that is the fleet's only one, with room for thousands of blocks.
fn member(blocks_max: u32) -> (Hearing, ToHear) {
    member_at(blocks_max, &[])
}

fn member_at(blocks_max: u32, sources: &[Settings]) -> (Hearing, ToHear) {
    let mut config = config_of([Upstream::new("http://engine:8000".parse().unwrap())]);
    config.routing.policy = Policy::Precise;
    config.limits.index_bytes = 64 << 20;
    let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
    fleet.resolved(0, vec![SocketAddr::from(([127, 0, 0, 1], 1))], Instant::now());
    let (id, index) = (fleet.target(0).unwrap().0, fleet.caches.index().unwrap());
    hearing_of(fleet, id, index, blocks_max, sources)
}

fn hearing_of(
    mut fleet: Fleet,
    id: EndpointId,
    index: Arc<Index>,
    blocks_max: u32,
    sources: &[Settings],
) -> (Hearing, ToHear) {
    let config: Arc<Config> = Arc::default();
    let published = Published::leak(fleet.snapshot());
    let access = Arc::new(AccessLog::new(Process::leak(1), published));
    let keeper = Keeper::new(config, fleet, Counters::leak(), Stats::leak(1), published, access);
    let texts: Vec<Vec<u8>> = (0..100).map(|id| format!("t{id} ").into_bytes()).collect();
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    let vocabulary = Arc::new(Vocabulary::new(&tokens, &[], Lead::Nowhere, &[]));
    let wanted = ToHear {
        id,
        host: String::new(),
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        authority: String::new(),
        key: None,
        rank: None,
        peers: Arc::new([]),
        mode: KvEvents::Auto,
        configured: None,
        form: Arc::new(Form { id: 1, chat: None, vocabulary, toolsets: Arc::new([]) }),
        index,
        began: None,
        blocks: 0,
        blocks_max,
        room: blocks_max,
        computed: None,
        remembered: Arc::default(),
    };
    (Hearing::new(Arc::new(keeper), 0, &wanted, sources), wanted)
}

fn batch(events: &[Value], rank: u32) -> Batch {
    let mut batch = Batch::default();
    batch.read(&msgpack::packed(&json!([1.0, events, rank]))).unwrap();
    batch
}

fn stored(name: u64, parent: Option<u64>) -> Value {
    let tokens = [name % 90, name / 90 % 90, name / 8_100 % 90, 99];
    json!(["BlockStored", [name], parent, tokens, 4, null])
}

/// How often others have their turn before it has taken that.
async fn turns_beside(hearing: &Hearing, batch: &Batch) -> u32 {
    let mut turns = 0;
    let others = async {
        loop {
            turns += 1;
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = hearing.take(0, Told::Batch(batch)) => {}
        () = others => {}
    }
    turns
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_batch_lets_others_have_their_turn() {
    let (blocks, hearing) = (20_000, hearing(50_000));
    let all: Vec<Value> = (1..=blocks).map(|name| stored(name, (name > 1).then_some(1))).collect();
    assert!(turns_beside(&hearing, &batch(&all, 0)).await >= blocks as u32 / 4_096);
    assert_eq!(hearing.figures().blocks, blocks);
    // It is in the midst of that only for as long as it takes, and is given up over it.
    let flip = [json!(["BlockRemoved", [1]]), stored(1, None)];
    let flips: Vec<Value> = std::iter::repeat_n(flip, 100).flatten().collect();
    let turns = turns_beside(&hearing, &batch(&flips, 0)).await;
    assert!(turns >= 4 * 50_000 / 4_096, "{turns}");
    let figures = hearing.figures();
    assert!(figures.mirrored.beyond >= blocks - 1 && figures.blocks <= 1, "{figures:?}");
    let inner = hearing.inner();
    assert!(inner.midst.is_none() && inner.ranks[&0].mirror.overflowed());
    assert_eq!(inner.ranks[&0].mirror.room(), 50_000, "it is the same mirror again");
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_rank_told_is_counted_for_ever() {
    let hearing = hearing(100);
    for rank in 0..2 {
        hearing.take(0, Told::Batch(&batch(&[stored(1, None), stored(2, Some(1))], rank))).await;
    }
    let before = hearing.figures();
    assert_eq!((before.mirrored.stored, before.blocks), (4, 4));
    hearing.take(0, Told::Restarted { rank: 1 }).await;
    assert_eq!((hearing.figures().mirrored, hearing.figures().blocks), (before.mirrored, 2));
    hearing.take(0, Told::Batch(&batch(&[stored(3, None)], 1))).await;
    hearing.take(0, Told::Batch(&batch(&[json!(["AllBlocksCleared"])], 0))).await;
    assert_eq!((hearing.figures().mirrored.stored, hearing.figures().blocks), (5, 1));
}

/// It may be idle for hours.
#[tokio::test(flavor = "current_thread")]
async fn who_cannot_be_asked_what_it_told_is_not_said_to_be() {
    for (replay, tells) in [(None, Tells::Nothing), (Some("tcp://127.0.0.1:2"), Tells::Replaying)] {
        let replay = replay.map(|at| at.parse().unwrap());
        let settings =
            Settings { events: "tcp://127.0.0.1:1".parse().unwrap(), replay, topic: String::new(), peers: None };
        let hearing = hearing_at(100, &[settings]);
        hearing.take(0, Told::Connected).await;
        hearing.settle(false).await;
        assert_eq!(hearing.inner().tells, tells);
    }
}

/// Its version may speak in a way that is not known here: it has told nothing, and yet it is not empty.
#[tokio::test(flavor = "current_thread")]
async fn who_cannot_be_read_has_not_told_all() {
    let replay = Some("tcp://127.0.0.1:2".parse().unwrap());
    let settings = Settings { events: "tcp://127.0.0.1:1".parse().unwrap(), replay, topic: String::new(), peers: None };
    let (hearing, unread) = (hearing_at(100, &[settings]), Batch::default().read(&[0x92]).unwrap_err());
    for (number, (unread, tells)) in
        [(None, Tells::All), (Some(unread), Tells::Nothing), (None, Tells::All)].into_iter().enumerate()
    {
        hearing.take(0, Told::Connected).await;
        {
            let mut inner = hearing.inner();
            (inner.sockets[0].course, inner.sockets[0].counts.unread) = (Course::Heard, unread);
        }
        hearing.say_unread(&mut hearing.inner());
        let said_before_it_is_well = hearing.inner().unread.lasts();
        hearing.settle(false).await;
        hearing.say_unread(&mut hearing.inner());
        let inner = hearing.inner();
        assert_eq!((inner.tells, inner.unread.lasts()), (tells, unread.is_some()), "{unread:?}");
        assert_eq!(said_before_it_is_well, number > 0, "{unread:?}");
    }
}

/// Where it is connected with, and asked, another may be.
#[tokio::test(flavor = "current_thread")]
async fn who_tells_nothing_while_it_serves_is_not_believed_until_it_does() {
    let replay = Some("tcp://127.0.0.1:2".parse().unwrap());
    let settings = Settings { events: "tcp://127.0.0.1:1".parse().unwrap(), replay, topic: String::new(), peers: None };
    let (hearing, wanted) = member_at(100, &[settings]);
    hearing.inner().sockets[0].course = Course::Heard;
    hearing.tick(&wanted).await;
    let said = |inner: &Inner| (inner.tells, inner.silent.lasts(), inner.sockets[0].course == Course::Heard);
    assert_eq!(said(&hearing.inner()), (Tells::All, false, true));
    for second in [10, 20, 30, 40] {
        let read = Instant::now() + Duration::from_secs(second);
        let prompts = second << 20;
        let computed =
            Computed { read, looked_up: prompts, found: 0, prompts, ended: second, present: 1, block_size: 16 };
        hearing.inner().silence.look(0, true, Some(computed), read);
    }
    hearing.tick(&wanted).await;
    assert_eq!(said(&hearing.inner()), (Tells::Nothing, true, true));
    hearing.inner().sockets[0].counts.messages += 1;
    hearing.tick(&wanted).await;
    assert_eq!(said(&hearing.inner()), (Tells::All, false, true));
}

/// Another process is told from now on, and of what the engine holds nobody says any more when it goes.
#[tokio::test(flavor = "current_thread")]
async fn what_an_heir_hears_is_believed_here_as_what_was_sent_there() {
    let (hearing, wanted) = member(50_000);
    let hearing = Arc::new(hearing);
    hearing.keeper.hears(0, Some(Arc::clone(&hearing)));
    hearing.settle(false).await;
    hearing.take(0, Told::Batch(&batch(&[long(1, None), long(2, Some(1))], 0))).await;
    let known = || {
        let rung = hearing.keeper.fleet().members()[0].now.as_ref().unwrap().truth.ladder.rung();
        (rung, is_noted(&hearing, &wanted))
    };
    assert_eq!(known(), (Rung::Exact, true));
    hearing.keeper.listen_no_more();
    assert_eq!(known(), (Rung::Approximate, true));
}

/// Whoever scans ports is not to hide why the engine is not heard, nor to be said without end.
#[tokio::test(flavor = "current_thread")]
async fn why_an_engine_is_not_heard_is_said_once_and_of_a_few_strangers() {
    let events = "tcp://*:5557".parse().unwrap();
    let hearing = hearing_at(100, &[Settings { events, replay: None, topic: String::new(), peers: None }]);
    let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
    let who = |last: u8| Ended::Stranger(ip(last));
    let want = Ended::Want("Too many open files".into());
    for why in [want, who(1), who(1), Ended::Closed, Ended::Slow, who(2)].into_iter().chain((3..200).map(who)) {
        hearing.take(0, Told::Offline(why)).await;
    }
    let said = hearing.inner().said_unheard.clone();
    assert_eq!(said[..3], [Some(ip(1)), None, Some(ip(2))]);
    assert_eq!(said.len(), KV_STRANGERS_MAX + 1);
    // While there is no other news.
    for connection in 1..3 {
        let turned_away = Arc::default();
        hearing.counts_strangers(0, &turned_away);
        turned_away.fetch_add(5, Ordering::Relaxed);
        assert_eq!(hearing.figures().counts.strangers, connection * 5);
    }
}

/// What layers with windows hold does not say what a prompt finds: an engine that tells of no others is known from what
/// was sent there.
#[tokio::test(flavor = "current_thread")]
async fn who_tells_of_a_part_of_its_layers_alone_has_not_told_all() {
    let hearing = hearing(100);
    let of = |group: u32, kind: &str| {
        json!({
            "type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [1, 0, 0, 99], "block_size": 4,
            "medium": "GPU", "group_idx": group, "kv_cache_spec_kind": kind,
        })
    };
    let state = || {
        let inner = hearing.inner();
        (inner.tells, inner.is_noted, inner.partial.lasts())
    };
    hearing.settle(false).await;
    assert_eq!((state(), hearing.figures().came), ((Tells::All, true, false), 0.0));
    for _ in 0..2 {
        hearing.take(0, Told::Batch(&batch(&[of(0, "sliding_window")], 0))).await;
        hearing.settle(false).await;
        assert_eq!(state(), (Tells::Nothing, false, true));
    }
    hearing.take(0, Told::Batch(&batch(&[of(0, "sliding_window"), of(1, "full_attention")], 0))).await;
    hearing.settle(false).await;
    assert_eq!(state(), (Tells::All, true, false));
    let Figures { mirrored, blocks, came, lag_seconds, .. } = hearing.figures();
    assert_eq!((mirrored.groups, blocks), (3, 1));
    assert!(came > 1.6e9, "{came}");
    assert!((came - lag_seconds - 1.0).abs() < 0.01, "{lag_seconds} behind the engine's clock, which says 1.0");
}

/// One that ends a step or two.
fn long(name: u64, parent: Option<u64>) -> Value {
    let mut tokens = [50; 20];
    tokens[..3].copy_from_slice(&[name % 90, name / 90 % 90, name / 8_100 % 90]);
    json!(["BlockStored", [name], parent, tokens, 20, null])
}

/// All links that its engine holds by its own word.
#[derive(Default)]
struct Links(Vec<u64>);

impl Sink for Links {
    fn hold(&mut self, _after: Option<u64>, link: u64, _tokens: u32) {
        self.0.push(link);
    }
    fn worth(&mut self, _link: u64, _tokens: u32) {}
    fn release(&mut self, _link: u64) {}
}

/// Whether the index has what the engine holds, and no more.
fn is_noted(hearing: &Hearing, wanted: &ToHear) -> bool {
    let mut links = Links::default();
    hearing.inner().ranks.values().for_each(|rank| rank.mirror.retell(&mut links));
    let held = links.0.iter().filter(|link| wanted.index.append(Some(**link), &[], wanted.id, Origin::Engine).is_ok());
    held.count() == links.0.len() && wanted.index.figures(wanted.id.slot).blocks as usize == links.0.len()
}

/// A shard stands still for as long as that takes, in the midst of writing for the engine.
async fn while_a_shard_stands_still(wanted: &ToHear, run: impl Future<Output = ()>) {
    let (index, id) = (Arc::clone(&wanted.index), wanted.id);
    index.insert(&[1 << 40], id, Origin::Choice).unwrap();
    let (begun, begins) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let shard = thread::spawn(move || {
        let mut once = Some((begun, waits));
        index.save(id, &mut |_, _| {
            if let Some((begun, waits)) = once.take() {
                begun.send(()).unwrap();
                waits.recv().unwrap();
            }
        })
    });
    begins.recv().unwrap();
    run.await;
    go_on.send(()).unwrap();
    shard.join().unwrap().unwrap();
    let _ = wanted.index.remove(1 << 40, id);
}

/// What it was too busy for would be thought cold until it comes again,
/// and what it did not hear go be thought to be there.
#[tokio::test(flavor = "current_thread")]
async fn what_the_index_was_too_busy_for_is_noted_later() {
    let (hearing, wanted) = member(50_000);
    hearing.settle(false).await;
    hearing.take(0, Told::Batch(&batch(&[long(1, None), long(2, Some(1)), long(3, Some(2))], 0))).await;
    assert!(is_noted(&hearing, &wanted) && hearing.figures().blocks == 3);
    for (events, blocks) in [
        (vec![long(4, Some(2)), long(5, Some(4)), json!(["BlockRemoved", [3]])], 4),
        // Held again, and gone again, before it is looked at.
        (vec![long(3, Some(2)), long(6, Some(3)), json!(["BlockRemoved", [6]])], 5),
        // Far more than is noted one by one.
        ((10..6_000).map(|name| long(name, Some(1))).collect(), 5_995),
    ] {
        let began = Instant::now();
        while_a_shard_stands_still(&wanted, async {
            hearing.take(0, Told::Batch(&batch(&events, 0))).await;
            hearing.settle(false).await;
        })
        .await;
        assert!(began.elapsed() < Duration::from_secs(10), "who stands still is waited for once");
        assert!(!is_noted(&hearing, &wanted), "{blocks}");
        let lost = blocks > 100;
        assert_eq!(hearing.inner().owed.is_lost(), lost);
        assert_eq!(hearing.inner().tells, if lost { Tells::Replaying } else { Tells::All });
        hearing.tick(&wanted).await;
        assert!(is_noted(&hearing, &wanted), "{blocks}");
        assert_eq!((hearing.figures().blocks, hearing.inner().tells), (blocks, Tells::All));
        // What was in time is not told of again.
        hearing.take(0, Told::Batch(&batch(&[], 0))).await;
    }
    assert!(hearing.figures().missed > 0);
    wanted.index.audit().unwrap();
}

/// An engine comes to be heard while a shard writes for it: it is no better known than before until the index has what
/// it holds.
#[tokio::test(flavor = "current_thread")]
async fn who_is_taken_for_cold_is_not_believed_in_full() {
    let (hearing, wanted) = member(100);
    hearing.take(0, Told::Batch(&batch(&[long(1, None), long(2, Some(1))], 0))).await;
    while_a_shard_stands_still(&wanted, hearing.settle(false)).await;
    for _ in 0..2 {
        hearing.settle(false).await;
        assert!(!is_noted(&hearing, &wanted) && hearing.inner().tells == Tells::Nothing);
    }
    hearing.keeper.fleet().caches.settle();
    hearing.tick(&wanted).await;
    assert!(is_noted(&hearing, &wanted) && hearing.inner().tells == Tells::All);
    // What it is chosen for is a promise from then on, also where the index was too busy to hear of it.
    hearing.say(Tells::Nothing, &mut hearing.inner());
    while_a_shard_stands_still(&wanted, async { hearing.say(Tells::All, &mut hearing.inner()) }).await;
    let promised = || wanted.index.figures(wanted.id.slot).inserted[Origin::Promised as usize];
    wanted.index.promise(&[7 << 40], wanted.id, 0).unwrap();
    assert_eq!(promised(), 0);
    hearing.tick(&wanted).await;
    wanted.index.promise(&[8 << 40], wanted.id, 0).unwrap();
    assert_eq!(promised(), 1);
}

/// Its memory is gone, and it tells so only with its first step after it wakes.
#[tokio::test(flavor = "current_thread")]
async fn what_who_sleeps_has_told_is_forgotten() {
    let (hearing, wanted) = member(50_000);
    hearing.settle(false).await;
    let told = async |name: u64| hearing.take(0, Told::Batch(&batch(&[long(name, None)], 0))).await;
    let says = |awake: u8| {
        let text = format!("vllm:engine_sleep_state{{sleep_state=\"awake\"}} {awake}\n");
        let read = Ok((Reading::of(text.as_bytes()), Ours::default()));
        hearing.keeper.fleet().scraped(0, wanted.id, read, Instant::now());
    };
    let known = || (hearing.figures().blocks, wanted.index.figures(wanted.id.slot).blocks > 0);
    told(1).await;
    says(1);
    hearing.tick(&wanted).await;
    assert_eq!(known(), (1, true));
    says(0);
    hearing.keep_in(&wanted.remembered);
    assert_eq!(*wanted.remembered.lock().unwrap(), None, "who hears it next would believe that");
    hearing.tick(&wanted).await;
    assert_eq!(known(), (0, false));
    // As a front is told that asks who sleeps already for all messages.
    told(2).await;
    says(0);
    hearing.tick(&wanted).await;
    assert_eq!(known(), (0, false));
    says(1);
    told(3).await;
    hearing.tick(&wanted).await;
    assert_eq!((known(), hearing.inner().tells), ((1, true), Tells::All));
    // It slept for less than a tick.
    says(0);
    says(1);
    told(4).await;
    hearing.tick(&wanted).await;
    assert_eq!(known(), (1, true), "the last alone");
    assert!(is_noted(&hearing, &wanted));
}

/// Its metrics did not answer at once: what an earlier process knew is there later than who listens.
#[tokio::test(flavor = "current_thread")]
async fn what_comes_late_is_written_on_until_it_is_used() {
    let (hearing, _) = member(100);
    let late = Heard { form: 1, sockets: Vec::new(), mirrors: vec![(0, vec![1])] };
    assert_eq!(hearing.saved_or(None), hearing.saved());
    assert_eq!(hearing.saved_or(Some(late.clone())), late);
    hearing.settle(false).await;
    assert_eq!(hearing.inner().tells, Tells::All);
    assert_eq!(hearing.saved_or(Some(late)), hearing.saved(), "it has told all itself");
}

/// They are one cache for whoever asks.
#[tokio::test(flavor = "current_thread")]
async fn what_one_rank_lets_go_of_is_there_while_another_holds_it() {
    let (hearing, wanted) = member(100);
    hearing.settle(false).await;
    let blocks = || wanted.index.figures(wanted.id.slot).blocks;
    for rank in 0..2 {
        hearing.take(0, Told::Batch(&batch(&[long(1, None)], rank))).await;
    }
    let both = blocks();
    let mut left = Vec::new();
    for rank in 0..2 {
        hearing.take(0, Told::Batch(&batch(&[json!(["BlockRemoved", [1]])], rank))).await;
        left.push(blocks());
    }
    assert!(both > 0 && left == [both, 0], "{both}, then {left:?}");
}

/// An engine that tells of many ranks gets no more memory than one that tells of as many blocks.
#[tokio::test(flavor = "current_thread")]
async fn all_ranks_together_have_room_for_so_many_blocks() {
    let hearing = hearing(100);
    let tells = |rank: u32| batch(&[stored(1, None)], rank);
    hearing.take(0, Told::Batch(&tells(0))).await;
    hearing.inner().room = MIRROR_BLOCKS_MAX;
    assert_eq!(hearing.inner().newcomer(), Some(MIRROR_BLOCKS_MAX - 100));
    hearing.inner().room = 100;
    let ranks = KV_RANKS_MAX as u32;
    for rank in 1..ranks {
        assert_eq!(hearing.inner().newcomer(), Some(100), "{rank}");
        hearing.take(0, Told::Batch(&tells(rank))).await;
    }
    assert_eq!(hearing.inner().newcomer(), None);
    hearing.take(0, Told::Batch(&tells(ranks))).await;
    assert_eq!(hearing.figures().blocks, u64::from(ranks));
}

/// Small blocks need less memory, and may be more all the same: what it told beyond those before is asked for anew.
#[tokio::test(flavor = "current_thread")]
async fn another_process_may_have_more_blocks_in_less_room() {
    let (hearing, mut wanted) = member(100);
    let is = |hearing: &Hearing| (hearing.figures().blocks, hearing.inner().tells);
    let tells = async |hearing: &Hearing| {
        hearing.take(0, Told::Batch(&batch(&[stored(1, None), stored(2, Some(1)), stored(3, Some(2))], 0))).await;
    };
    (wanted.blocks, wanted.blocks_max) = (2, 2);
    hearing.tick(&wanted).await;
    tells(&hearing).await;
    assert!(hearing.inner().any(Mirror::is_overfull));
    (wanted.blocks, wanted.blocks_max, wanted.room) = (4, 4, 50);
    hearing.tick(&wanted).await;
    assert_eq!(is(&hearing), (0, Tells::All));
    tells(&hearing).await;
    hearing.tick(&wanted).await;
    assert_eq!(is(&hearing), (3, Tells::All));
    (wanted.blocks, wanted.blocks_max) = (1, 1);
    hearing.tick(&wanted).await;
    hearing.take(0, Told::Batch(&batch(&[stored(4, None)], 0))).await;
    hearing.tick(&wanted).await;
    assert_eq!(is(&hearing), (0, Tells::Nothing), "one that has fewer");
}

/// The engine was chosen for a prompt that it refused, or that its client left: it has never told of it.
#[tokio::test(flavor = "current_thread")]
async fn what_an_engine_never_told_of_is_held_no_longer_than_promised() {
    let (hearing, wanted) = member(100);
    hearing.settle(false).await;
    let index = &wanted.index;
    index.promise(&[1 << 40, 2 << 40], wanted.id, index.second()).unwrap();
    let blocks = |index: &Index| index.figures(wanted.id.slot).blocks;
    hearing.tick(&wanted).await;
    assert_eq!(blocks(index), 2);
    (0..=PROMISE_SECONDS + 1).for_each(|_| index.tick());
    hearing.tick(&wanted).await;
    assert_eq!(blocks(index), 0);
}
