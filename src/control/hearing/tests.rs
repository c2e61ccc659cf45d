//! What an engine tells takes turns with what else there is to do, and what was counted stays counted.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::task::yield_now;

use super::*;
use crate::config::{Config, KvEvents};
use crate::control::access::AccessLog;
use crate::control::fleet::Fleet;
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::index::Capacity;
use crate::kvevents::Batch;
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
    let config = Arc::new(Config::default());
    let mut fleet = Fleet::new(Arc::clone(&config), Vec::new(), Arc::default());
    let published = Published::leak(fleet.snapshot());
    let access = Arc::new(AccessLog::new(Process::leak(1), published));
    let keeper = Keeper::new(config, fleet, Counters::leak(), Stats::leak(1), published, access);
    let texts: Vec<Vec<u8>> = (0..100).map(|id| format!("t{id} ").into_bytes()).collect();
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    let vocabulary = Arc::new(Vocabulary::new(&tokens, &[], Lead::Nowhere, &[]));
    let wanted = Wanted {
        id: EndpointId { slot: 0, generation: 1 },
        host: String::new(),
        call: (SocketAddr::from(([127, 0, 0, 1], 1)), String::new(), None),
        at: (KvEvents::Auto, None),
        form: Arc::new(Form { id: 1, chat: None, vocabulary, toolsets: Arc::new([]) }),
        index: Arc::new(Index::new(Capacity { endpoints: 1, blocks: 1 << 12, lengths: false }).unwrap()),
        began: None,
        blocks: 0,
        blocks_max,
        told: Arc::default(),
    };
    Hearing::new(Arc::new(keeper), 0, &wanted, sources)
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
    assert_eq!(inner.ranks[&0].mirror.blocks_max(), 50_000, "it is the same mirror again");
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
        let settings = Settings { events: "tcp://127.0.0.1:1".parse().unwrap(), replay, topic: String::new() };
        let hearing = hearing_at(100, &[settings]);
        hearing.take(0, Told::Connected).await;
        hearing.settle().await;
        assert_eq!(hearing.inner().tells, tells);
    }
}

/// What layers with windows hold does not say what a prompt finds: an engine that tells of no others is known from what was sent there.
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
        (inner.tells, inner.is_noted, inner.is_said_partial)
    };
    hearing.settle().await;
    assert_eq!(state(), (Tells::All, true, false));
    for _ in 0..2 {
        hearing.take(0, Told::Batch(&batch(&[of(0, "sliding_window")], 0))).await;
        hearing.settle().await;
        assert_eq!(state(), (Tells::Nothing, false, true));
    }
    hearing.take(0, Told::Batch(&batch(&[of(0, "sliding_window"), of(1, "full_attention")], 0))).await;
    hearing.settle().await;
    assert_eq!(state(), (Tells::All, true, true));
    assert_eq!((hearing.figures().mirrored.groups, hearing.figures().blocks), (3, 1));
}
