//! Payloads: the recorded ones, and those of other versions and of SGLang.

use serde_json::{Value, json};
use warmfront::kvevents::{Batch, Event, Progress, Role, Skipped, Stored, Wire, listed};

use crate::msgpack::packed;
use crate::recordings::{RECORDINGS, expected, file, messages, payloads, shown};

fn read(payload: &Value) -> Batch {
    let mut batch = Batch::default();
    batch.read(&packed(payload)).unwrap_or_else(|fault| panic!("{payload}: {fault}"));
    batch
}

fn fault(payload: &Value) -> String {
    let mut batch = Batch::default();
    let fault = batch.read(&packed(payload)).expect_err(&payload.to_string());
    assert_eq!((batch.events().len(), batch.skipped()), (0, Skipped::default()), "half of {payload} is applied");
    fault.to_string()
}

fn stored(batch: &Batch) -> Stored<'_> {
    match batch.events().next() {
        Some(Event::Stored(stored)) => stored,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_recorded_payload_reads_as_it_was_recorded() {
    let mut batch = Batch::default();
    for recording in RECORDINGS {
        let mut events = 0;
        for (message, payload) in messages(recording).iter().zip(payloads(recording)) {
            batch.read(&payload).unwrap();
            assert_eq!(shown(&batch), expected(message), "{recording}");
            assert_eq!(batch.skipped(), Skipped::default(), "{recording}: all of it is known");
            events += batch.events().len();
        }
        assert!(events > 50, "{recording} has {events} events only");
    }
}

/// Whole messages, as they lie on the connection: the subscription's, and a replay's with its end mark.
#[test]
fn every_recorded_connection_reads_as_it_was_recorded() {
    for recording in RECORDINGS {
        let messages = messages(recording);
        let expected = |from: usize| messages[from..].iter().map(expected).collect::<Vec<_>>();
        let (sent, read) = heard(Role::Subscriber(Vec::new()), &file(recording, "wire-sub.s2c"));
        assert_eq!(sent, file(recording, "wire-sub.c2s"), "{recording}: not what libzmq sends");
        let numbered = |frames: &Vec<Vec<u8>>| i64::from_be_bytes(frames[frames.len() - 2][..].try_into().unwrap());
        let decoded = |frames: &Vec<Vec<u8>>| {
            let mut batch = Batch::default();
            batch.read(&frames[frames.len() - 1]).unwrap();
            shown(&batch)
        };
        assert_eq!(read.iter().map(decoded).collect::<Vec<_>>(), expected(0));
        assert!(read.iter().enumerate().all(|(place, frames)| numbered(frames) == place as i64 && frames.len() == 3));

        let (_, mut read) = heard(Role::Dealer, &file(recording, "wire-replay.s2c"));
        assert_eq!(read.pop().unwrap(), [vec![], vec![], vec![0xff; 8], vec![]]);
        assert_eq!(read.iter().map(decoded).collect::<Vec<_>>(), expected(3));
        assert!(read.iter().all(|frames| frames.len() == 4 && frames[0].is_empty()));
    }
}

/// What a connection sends back, and the messages it reads.
fn heard(role: Role, bytes: &[u8]) -> (Vec<u8>, Vec<Vec<Vec<u8>>>) {
    let (mut wire, mut sent, mut messages) = (Wire::new(role), Vec::new(), Vec::new());
    for chunk in bytes.chunks(777) {
        wire.room()[..chunk.len()].copy_from_slice(chunk);
        wire.received(chunk.len());
        while let step @ (Progress::Open | Progress::Message) = wire.advance().unwrap() {
            if step == Progress::Message {
                messages.push(wire.message().map(<[u8]>::to_vec).collect());
            }
        }
        sent.extend_from_slice(wire.outbox());
        wire.sent(wire.outbox().len());
    }
    (sent, messages)
}

#[test]
fn a_digest_is_known_by_the_number_that_engines_make_of_it() {
    // The recorder's own example: the whole digest, and the number that was published for it.
    let digest = json!({"hex": "7482c973fbb51a4feb20c4647c8af77fd322e4c1fe5a64f173c60dcabe46b361"});
    let batch = read(&json!([0.5, [["BlockRemoved", [digest, 8_342_370_524_177_281_889_u64]]]]));
    let Some(Event::Removed(removed)) = batch.events().next() else { panic!("{batch:?}") };
    assert_eq!(removed.hashes, [8_342_370_524_177_281_889; 2]);
    let signed = read(&json!([0.5, [["BlockRemoved", [-2, i64::MIN, u64::MAX]]]]));
    let Some(Event::Removed(removed)) = signed.events().next() else { panic!("{signed:?}") };
    assert_eq!(removed.hashes, [u64::MAX - 1, 1 << 63, u64::MAX]);
    assert!(fault(&json!([0.5, [["BlockRemoved", [{"hex": "00112233445566"}]]]])).contains("8 bytes or more"));
}

/// Up to vLLM 0.25, and SGLang: tag first, what is left out at the end is at its default.
#[test]
fn events_as_arrays() {
    let batch = read(&json!([
        1.5,
        [
            ["BlockStored", [7, 8], 6, [1, 2, 3, 70_000], 2],
            ["BlockStored", [9], null, [5, 6], 2, 3, "CPU", "adapter", [["adapter", "salt"]], 1, "sliding_window", 128],
            ["BlockRemoved", [7]],
            ["BlockRemoved", [8], "CPU", 1],
            ["AllBlocksCleared"],
        ],
        2
    ]));
    assert_eq!((batch.time(), batch.rank(), batch.skipped()), (1.5, 2, Skipped::default()));
    let events: Vec<Event<'_>> = batch.events().collect();
    let [Event::Stored(first), Event::Stored(second), Event::Removed(third), Event::Removed(fourth), Event::Cleared] =
        events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((first.hashes, first.parent, first.block_size), (&[7, 8][..], Some(6), 2));
    assert_eq!(
        (first.tokens_of(0), first.tokens_of(1), first.tokens_of(2)),
        (Some(&[1, 2][..]), Some(&[3, 70_000][..]), None)
    );
    assert_eq!((first.medium, first.lora_name, first.group, first.extras.raw(0)), (None, None, None, &[][..]));
    assert_eq!((second.medium, second.lora_name), (Some(&b"CPU"[..]), Some(&b"adapter"[..])));
    assert_eq!((second.group, second.attention, second.window), (Some(1), Some(&b"sliding_window"[..]), Some(128)));
    assert_eq!(second.extras.raw(0), packed(&json!(["adapter", "salt"])));
    assert_eq!((third.hashes, third.medium, third.group), (&[7][..], None, None));
    assert_eq!((fourth.medium, fourth.group), (Some(&b"CPU"[..]), Some(1)));
}

/// SGLang with EAGLE keeps pairs, each token with the one behind it: its blocks are as long in pairs as others' in tokens.
#[test]
fn of_a_pair_of_tokens_the_first_is_the_blocks() {
    let pairs = json!([[1, 2], [2, 3], [3, 70_000], [70_000, 5]]);
    let array = json!(["BlockStored", [7, 8], null, pairs, 2, null, "GPU"]);
    let map = json!({"type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": null, "token_ids": pairs,
        "block_size": 2});
    for event in [array, map] {
        let batch = read(&json!([1.0, [event]]));
        let stored = stored(&batch);
        let tokens = [stored.tokens_of(0), stored.tokens_of(1), stored.tokens_of(2)];
        assert_eq!(tokens, [Some(&[1, 2][..]), Some(&[3, 70_000][..]), None]);
    }
    for wrong in [json!([[1]]), json!([[1, 2, 3]]), json!([[1, null]]), json!([[[1, 2], 3]]), json!([[u64::MAX, 1]])] {
        let told = fault(&json!([1.0, [["BlockStored", [7], null, wrong, 1]]]));
        assert!(told.contains("a token id is a number of 32 bits"), "{told}");
    }
}

/// As vLLM wrote them before it told the adapter's name; 0 is no adapter's.
#[test]
fn an_adapter_may_be_a_number_alone() {
    let nameless = |event: Value| {
        let batch = read(&json!([1.0, [event]]));
        let Some(Event::Stored(stored)) = batch.events().next() else { panic!("no block") };
        (stored.nameless, batch.skipped())
    };
    let map = |more: Value| {
        let mut event = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [3, 4], "block_size": 2});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        nameless(event)
    };
    let none = Skipped::default();
    for (id, name, expected) in [
        (json!(3), Value::Null, true),
        (json!(70_000), Value::Null, true),
        (json!(3), json!("a"), false),
        (json!(0), Value::Null, false),
        (Value::Null, Value::Null, false),
        (Value::Null, json!("a"), false),
    ] {
        assert_eq!(map(json!({"lora_id": id, "lora_name": name})), (expected, none), "{id} {name}");
        let listed = json!(["BlockStored", [1], null, [3, 4], 2, id, "GPU", name]);
        assert_eq!(nameless(listed), (expected, none), "{id} {name}");
    }
    assert_eq!(nameless(json!(["BlockStored", [1], null, [3, 4], 2, 3])), (true, none), "as old as it gets");
    assert_eq!(map(json!({})), (false, none));
    let removed = json!([1.0, [{"type": "BlockRemoved", "block_hashes": [1], "lora_id": 3}]]);
    assert_eq!(read(&removed).skipped(), none);
}

/// SGLang: one event for each page, hashes signed, no extra keys; the last field is its attention rank.
#[test]
fn pages_of_sglang() {
    let page = |hash: i64, parent: Value| json!(["BlockStored", [hash], parent, [11, 12], 2, null, "GPU"]);
    let batch = read(&json!([7, [page(-5, Value::Null), page(-6, json!(-5)), ["BlockRemoved", [-6]]], 3]));
    let shown: Vec<Event<'_>> = batch.events().collect();
    assert_eq!((shown.len(), batch.rank(), batch.time()), (3, 3, 7.0));
    let Event::Stored(second) = shown[1] else { panic!("{shown:?}") };
    assert_eq!((second.parent, second.hashes), (Some(-5_i64 as u64), &[-6_i64 as u64][..]));
}

/// What SGLang 0.5.23 sent (`--page-size 16`, its server in Rust): two pages, one that parts from them behind the first,
/// and its answer to `/flush_cache`.
#[test]
fn recorded_messages_of_sglang() {
    let pages = "93cb41dac2b1ad3752a29187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf4faa8bd53eda3d89\
        d3fc228fb55a288afeb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc0020cd03e8cd03e9cd03eacd03ebcd03ec\
        cd03edcd03eecd03efcd03f0cd03f1cd03f2cd03f3cd03f4cd03f5cd03f6cd03f7cd03f8cd03f9cd03facd03fbcd03fccd03fdcd03fecd03ff\
        cd0400cd0401cd0402cd0403cd0404cd0405cd0406cd0407aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da3475055\
        00";
    let behind = "93cb41dac2b1ad3ca9ab9187a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf2fd35b309c29cc60\
        b1706172656e745f626c6f636b5f68617368cf4faa8bd53eda3d89a9746f6b656e5f696473dc001007070707070707070707070707070707\
        aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da347505500";
    let cleared = "93cb41dac2b1ada4ae369181a474797065b0416c6c426c6f636b73436c656172656400";
    let [pages, behind, cleared] = [pages, behind, cleared].map(|hex| {
        let digits: Vec<u8> = hex.bytes().map(|digit| char::from(digit).to_digit(16).unwrap() as u8).collect();
        let mut batch = Batch::default();
        batch.read(&digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<u8>>()).unwrap();
        assert_eq!((batch.rank(), batch.names_fields(), batch.skipped()), (0, Some(true), Skipped::default()));
        batch
    });
    let [first, second] = [5_740_554_423_035_903_369, -278_502_217_879_090_434].map(|name: i64| name as u64);
    let told = stored(&pages);
    assert_eq!((told.hashes, told.parent, told.block_size), (&[first, second][..], None, 16));
    assert_eq!((told.tokens, told.medium), (&(1_000..1_032).collect::<Vec<u32>>()[..], Some(&b"GPU"[..])));
    let told = stored(&behind);
    assert_eq!((told.hashes.len(), told.parent, told.tokens), (1, Some(first), &[7; 16][..]));
    assert!(matches!(cleared.events().collect::<Vec<_>>()[..], [Event::Cleared]));
}

/// SGLang 0.5.18 and 0.5.19 write it behind the others of a prompt that has one, and later ones by its name.
#[test]
fn a_salt_may_stand_apart() {
    let listed = |behind: Value| json!(["BlockStored", [1], null, [3, 4], 2, null, "GPU", behind]);
    let mapped = |name: &str, value: Value| {
        json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [3, 4], "block_size": 2,
            "lora_id": null, "medium": "GPU", "lora_name": "a", "session_id": "s", name: value})
    };
    for (event, name, salt, fields) in [
        (listed(json!({"cache_salt": "s1"})), None, Some("s1"), 0),
        (listed(json!({"cache_salt": null, "other": [1, {"cache_salt": "no"}]})), None, None, 1),
        (listed(json!(7)), None, None, 1),
        (listed(json!([{"cache_salt": "no"}])), None, None, 1),
        (listed(json!("a")), Some("a"), None, 0),
        (mapped("cache_salt", json!("s1")), Some("a"), Some("s1"), 0),
        (mapped("metadata", json!({"cache_salt": "s1"})), Some("a"), Some("s1"), 0),
        (mapped("cache_salt", Value::Null), Some("a"), None, 0),
    ] {
        let batch = read(&json!([1.0, [event]]));
        let stored = stored(&batch);
        assert_eq!((stored.lora_name, stored.salt), (name.map(str::as_bytes), salt.map(str::as_bytes)), "{event}");
        assert_eq!(batch.skipped(), Skipped { events: 0, fields }, "{event}");
    }
    let told = fault(&json!([1.0, [listed(json!({"cache_salt": 5}))]]));
    assert!(told.contains("a name is a text or nil"), "{told}");
}

/// The same events, as each version writes them.
#[test]
fn all_dialects_say_the_same() {
    let mapped = json!({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": 2, "token_ids": [3, 4], "block_size": 2,
        "lora_id": 9, "medium": "GPU", "lora_name": "a", "extra_keys": [["a"]], "group_idx": 0});
    let listed = json!(["BlockStored", [1], 2, [3, 4], 2, 9, "GPU", "a", [["a"]], 0]);
    let batches = [
        json!([1.0, [mapped], 4]),
        json!([1.0, [listed], 4]),
        json!({"ts": 1.0, "events": [mapped], "data_parallel_rank": 4}),
        json!({"attn_dp_rank": 4, "events": [listed], "ts": 1.0}),
    ];
    let all: Vec<Batch> = batches.iter().map(read).collect();
    for batch in &all {
        assert_eq!(shown(batch), shown(&all[0]));
        assert_eq!(batch.skipped(), Skipped::default());
    }
    let names: Vec<Option<bool>> = all.iter().map(Batch::names_fields).collect();
    assert_eq!(names, [Some(true), Some(false), Some(true), Some(false)]);
    assert_eq!(read(&json!([1.0, []])).names_fields(), None);
    assert_eq!((all[0].rank(), stored(&all[0]).parent), (4, Some(2)));
}

#[test]
fn what_is_not_known_is_passed_over_and_counted() {
    let batch = read(&json!([1.0, [
        ["BlockInactive", [1, {"deep": [[[null]]]}], 2.5],
        {"type": "BlockMoved", "token_ids": "none", "block_hashes": {"other": 1}},
        {"block_hashes": [1]},
        [],
        [17, 18],
        ["AllBlocksCleared", "now"],
        {"type": "BlockRemoved", "block_hashes": [5], "origin": {"a": [1]}, "ownership": 1, "token_ids": 7},
        ["BlockRemoved", [6], null, null, "more"],
    ], null, "later", {"field": [1]}]));
    assert_eq!(batch.skipped(), Skipped { events: 5, fields: 2 + 1 + 2 + 1 });
    let removed: Vec<u64> = batch
        .events()
        .filter_map(|event| match event {
            Event::Removed(removed) => Some(removed.hashes[0]),
            _ => None,
        })
        .collect();
    assert_eq!((batch.events().len(), removed), (3, vec![5, 6]));
}

/// `type` stands first wherever engines write it, but a map has no order.
#[test]
fn a_type_may_stand_last() {
    let mut payload = vec![0x92, 0x01, 0x91, 0x82];
    for value in [json!("block_hashes"), json!([3]), json!("type"), json!("BlockRemoved")] {
        payload.extend(packed(&value));
    }
    let mut batch = Batch::default();
    batch.read(&payload).unwrap();
    assert!(matches!(batch.events().next(), Some(Event::Removed(removed)) if removed.hashes == [3]));
}

#[test]
fn extra_keys_of_each_block() {
    let extras = json!([null, ["adapter", ["image", 5], "salt"], [], "bare", null]);
    let batch = read(&json!([
        1,
        [
            ["BlockStored", [9], null, [1], 1, null, null, null, [["before"]]],
            ["BlockStored", [1, 2, 3, 4, 5], null, [1, 2, 3, 4, 5], 1, null, "GPU", "adapter", extras],
        ]
    ]));
    let Some(Event::Stored(stored)) = batch.events().nth(1) else { panic!() };
    let keys = |block: usize| stored.extras.keys(block).map(|key| format!("{key:?}")).collect::<Vec<_>>();
    let image = packed(&json!(["image", 5]));
    let expected = [format!("Text({:?})", b"adapter"), format!("Other({image:?})"), format!("Text({:?})", b"salt")];
    assert_eq!(keys(1), expected);
    assert_eq!(keys(3), [format!("Text({:?})", b"bare")]);
    assert!([0, 2, 4, 5].iter().all(|block| keys(*block).is_empty() && stored.extras.raw(*block).is_empty()));
    assert!(
        fault(&json!([1, [["BlockStored", [1, 2], null, [1, 2], 1, null, null, null, [["a"]]]]]))
            .contains("extra keys")
    );
}

/// Where a block lies beyond the GPU, engines name it without its tokens.
#[test]
fn blocks_without_tokens() {
    let batch = read(&json!([1, [["BlockStored", [1, 2], null, [], 0, null, "CPU"]]]));
    assert_eq!((stored(&batch).tokens_of(0), stored(&batch).hashes.len()), (None, 2));
    let uneven = read(&json!([1, [["BlockStored", [1, 2], null, [1, 2, 3], 2]]]));
    assert_eq!((stored(&uneven).tokens_of(0), stored(&uneven).tokens_of(1)), (None, None));
}

#[test]
fn what_makes_no_sense_says_where_and_is_not_half_applied() {
    let good = json!(["BlockRemoved", [1]]);
    for (payload, says) in [
        (json!(5), "byte 0: a batch is an array or a map"),
        (json!([]), "byte 0: a batch without events"),
        (json!({"ts": 1}), "byte 0: a batch without events"),
        (json!([1, 2]), "byte 2: events are an array"),
        (json!(["x", []]), "byte 1: a time"),
        (json!([1, [good, 5]]), "byte 19: an event is an array or a map"),
        (json!([1, [good, ["BlockRemoved", ["x"]]]]), "byte 34: a hash"),
        (json!([1, [good, ["BlockRemoved", [null]]]]), "byte 34: a block's hash is nil"),
        (json!([1, [["BlockRemoved", 5]]]), "block hashes are an array"),
        (json!([1, [["BlockRemoved"]]]), "lacks"),
        (json!([1, [["BlockStored", [1], null, [1]]]]), "lacks"),
        (json!([1, [["BlockStored", [1], null, [-1], 1]]]), "a token id"),
        (json!([1, [["BlockStored", [1], null, [4_294_967_296_u64], 1]]]), "a token id"),
        (json!([1, [["BlockStored", [1], null, [1], "x"]]]), "a block size"),
        (json!([1, [["BlockStored", [1], 1.5, [1], 1]]]), "a hash"),
        (json!([1, [["BlockStored", [1], null, [1], 1, null, 5]]]), "a name"),
        (json!([1, [["BlockRemoved", [1], "GPU", -1]]]), "a group"),
        (json!([1, [good], -1]), "a rank"),
    ] {
        let fault = fault(&payload);
        assert!(fault.contains(says), "{payload}: {fault}");
    }
    // What JSON cannot say: every later message would be another than the last.
    for time in [f64::NAN, f64::INFINITY] {
        let payload = [&[0x92, 0xcb], &time.to_be_bytes()[..], &[0x90]].concat();
        assert_eq!(Batch::default().read(&payload).unwrap_err().to_string(), "byte 1: a time is a number", "{time}");
    }
    let mut longer = packed(&json!([1, [good]]));
    longer.push(0xc0);
    assert_eq!(Batch::default().read(&longer).unwrap_err().to_string(), "byte 19: behind the batch");
}

#[test]
fn a_batch_is_bounded() {
    let events = |count: u32| {
        let mut payload = vec![0x92, 0x01, 0xdd];
        payload.extend(count.to_be_bytes());
        let cleared = packed(&json!(["AllBlocksCleared"]));
        payload.extend(cleared.iter().cycle().take(cleared.len() * count as usize));
        payload
    };
    let mut batch = Batch::default();
    assert_eq!(batch.read(&events(1 << 18)).map(|()| batch.events().len()), Ok(1 << 18));
    assert!(batch.read(&events((1 << 18) + 1)).unwrap_err().to_string().contains("more events"));
    let hashes = |count: u32| {
        let mut payload = packed(&json!([1, [["BlockRemoved"]]]));
        payload[3] = 0x92;
        payload.push(0xdd);
        payload.extend(count.to_be_bytes());
        payload.resize(payload.len() + count as usize, 0x01);
        payload
    };
    assert_eq!(batch.read(&hashes(1 << 20)), Ok(()));
    assert!(batch.read(&hashes((1 << 20) + 1)).unwrap_err().to_string().contains("more hashes"));
    let tokens = |count: u32| {
        let mut payload = packed(&json!([1, [["BlockStored", [], null]]]));
        payload[3] = 0x95;
        payload.push(0xdd);
        payload.extend(count.to_be_bytes());
        payload.resize(payload.len() + count as usize + 1, 0x01);
        payload
    };
    assert_eq!(batch.read(&tokens(1 << 22)), Ok(()));
    assert!(batch.read(&tokens((1 << 22) + 1)).unwrap_err().to_string().contains("more tokens"));
}

/// What is announced is not believed: nothing is reserved that is not there.
#[test]
fn announced_lengths_take_no_memory() {
    for form in [&[0x92, 0x01, 0xdd][..], &[0x92, 0x01, 0x91, 0x92, 0xac], &[0xdf], &[0x92, 0x01, 0x91, 0xdf]] {
        let mut payload = form.to_vec();
        if form.ends_with(&[0xac]) {
            payload.extend(b"BlockRemoved\xdd");
        }
        payload.extend([0xff; 4]);
        let measured = allocation_counter::measure(|| assert!(Batch::default().read(&payload).is_err()));
        assert_eq!(measured.count_total, 0, "{payload:x?}");
    }
}

#[test]
fn what_was_read_once_is_read_again_without_allocating() {
    let payloads: Vec<Vec<u8>> = RECORDINGS.iter().flat_map(|recording| payloads(recording)).collect();
    let mut batch = Batch::default();
    payloads.iter().for_each(|payload| batch.read(payload).unwrap());
    let measured = allocation_counter::measure(|| payloads.iter().for_each(|payload| batch.read(payload).unwrap()));
    assert_eq!(measured.count_total, 0);
}

#[test]
fn the_recorded_list_of_sources() {
    for recording in RECORDINGS {
        let found = listed(&file(recording, "kv_event_sources.json"), "gpu-1").unwrap();
        let [(0, settings)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(settings.events.to_string(), "tcp://gpu-1:9200");
        assert_eq!(settings.replay.as_ref().map(ToString::to_string).as_deref(), Some("tcp://127.0.0.1:9300"));
        assert_eq!(settings.topic, "kv@127.0.0.1:9100@tiny-llama");
    }
}
