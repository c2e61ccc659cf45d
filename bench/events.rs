//! What it costs to read engines' KV events, and to keep what engines hold by them: `cargo bench --bench events`, best
//! under `nice -n -15`. One thread; medians and 90th percentiles of many short runs, since other work runs beside. Each
//! answer is checked.

use std::hint::black_box;
use std::time::Instant;

use warmfront::kvevents::{Batch, Event, Extras, Progress, Removed, Role, Stored, Wire};
use warmfront::mirror::{Mirror, Reading, Sink};
use warmfront::vocabulary::{Lead, Vocabulary};

const BLOCK: u64 = 16;
/// Token ids of a large vocabulary: most take three bytes, some five.
const VOCABULARY: u64 = 128_000;
/// Blocks that an engine holds beside those that come and go: far more than a core's own cache has room for.
const HELD: u32 = 30_000;
/// Number of engines, and tokens a second that each of them stores.
const FLEET: (f64, f64) = (8.0, 50_000.0);

fn token(at: u64) -> u64 {
    at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40
}

/// One step's batch of so many events with so many blocks each, as vLLM 0.32 writes them.
fn payload(events: u64, blocks: u64) -> Vec<u8> {
    let mut out = vec![0x93, 0xcb];
    out.extend(1.8e9_f64.to_be_bytes());
    out.push(0xdc);
    out.extend((events as u16).to_be_bytes());
    let text = |out: &mut Vec<u8>, text: &str| {
        out.push(0xa0 + text.len() as u8);
        out.extend(text.bytes());
    };
    let number = |out: &mut Vec<u8>, number: u64| match number {
        0..128 => out.push(number as u8),
        128..65_536 => {
            out.push(0xcd);
            out.extend((number as u16).to_be_bytes());
        }
        _ => {
            out.push(0xce);
            out.extend((number as u32).to_be_bytes());
        }
    };
    let array = |out: &mut Vec<u8>, length: u64| {
        out.push(0xdc);
        out.extend((length as u16).to_be_bytes());
    };
    for event in 0..events {
        out.push(0x8a);
        text(&mut out, "type");
        text(&mut out, "BlockStored");
        text(&mut out, "block_hashes");
        array(&mut out, blocks);
        for block in 0..blocks {
            out.push(0xcf);
            out.extend((event << 32 | block | 1 << 63).to_be_bytes());
        }
        text(&mut out, "parent_block_hash");
        out.push(0xc0);
        text(&mut out, "token_ids");
        array(&mut out, blocks * BLOCK);
        (0..blocks * BLOCK).for_each(|at| number(&mut out, token(event * 4_096 + at) % VOCABULARY));
        text(&mut out, "block_size");
        out.push(BLOCK as u8);
        text(&mut out, "lora_id");
        out.push(0xc0);
        text(&mut out, "medium");
        text(&mut out, "GPU");
        text(&mut out, "lora_name");
        out.push(0xc0);
        text(&mut out, "extra_keys");
        array(&mut out, blocks);
        out.resize(out.len() + blocks as usize, 0xc0);
        text(&mut out, "group_idx");
        out.push(0);
    }
    out.push(0);
    out
}

/// Nanoseconds of a run: median and 90th percentile.
fn timed(runs: usize, mut run: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[runs / 2], times[runs * 9 / 10])
}

fn report(name: &str, events: u64, blocks: u64) {
    let payload = payload(events, blocks);
    let tokens = events * blocks * BLOCK;
    let mut batch = Batch::default();
    let mut read = || {
        batch.read(black_box(&payload)).expect("a batch");
        let stored = batch.events().map(|event| match event {
            Event::Stored(stored) => stored.tokens.len() as u64,
            other => panic!("{other:?}"),
        });
        assert_eq!(stored.sum::<u64>(), tokens);
    };
    let decoding = timed(2_001, || (0..10).for_each(|_| read()));

    // The same with a connection's frames around it.
    let mut message = vec![1, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    message.extend((payload.len() as u64).to_be_bytes());
    message.extend_from_slice(&payload);
    let mut wire = Wire::new(Role::Subscriber(Vec::new()));
    let greeting = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1][..], b"NULL", &[0; 48]].concat();
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
    feed(&mut wire, &[&greeting[..], ready].concat());
    let whole = timed(2_001, || {
        for _ in 0..10 {
            feed(&mut wire, black_box(&message));
            assert_eq!(wire.message().len(), 3);
            read();
        }
    });
    let share = |time: (f64, f64)| FLEET.0 * FLEET.1 / tokens as f64 * time.0 / 10.0 / 1e9 * 100.0;
    println!(
        "{name:42} {:7} bytes  decode {:8.2} {:8.2} us, with frames {:8.2} {:8.2} us, {:5.2} ns a token; fleet {:.2} % of a core",
        payload.len(),
        decoding.0 / 1e4,
        decoding.1 / 1e4,
        whole.0 / 1e4,
        whole.1 / 1e4,
        whole.0 / 10.0 / tokens as f64,
        share(whole),
    );
}

fn feed(wire: &mut Wire, bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        let room = wire.room();
        let (now, later) = rest.split_at(rest.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        wire.received(now.len());
        rest = later;
        loop {
            match wire.advance().expect("a publisher") {
                Progress::More => break,
                Progress::Open => {}
                Progress::Message => return,
            }
        }
        if rest.is_empty() {
            return;
        }
    }
}

/// Counts what it is told.
#[derive(Default)]
struct Told(u64, u64);

impl Sink for Told {
    fn hold(&mut self, after: Option<u64>, link: u64, tokens: u32) {
        black_box((after, link, tokens));
        self.0 += 1;
    }

    fn worth(&mut self, link: u64, tokens: u32) {
        black_box((link, tokens));
    }

    fn release(&mut self, link: u64) {
        black_box(link);
        self.1 += 1;
    }
}

/// Tokens of 1 to 8 bytes, 4.5 in the mean.
fn vocabulary() -> Vocabulary {
    let text = |id: u64| token(id + 1).to_le_bytes().map(|byte| b'a' + byte % 26)[..1 + id as usize % 8].to_vec();
    let texts: Vec<Vec<u8>> = (0..VOCABULARY).map(text).collect();
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    Vocabulary::new(&tokens, &[], Lead::Nowhere, &[])
}

/// A mirror with prompts of 100 blocks in it.
fn filled(reading: &Reading<'_>) -> Mirror {
    let mut mirror = Mirror::new(2 * HELD);
    for prompt in 0..u64::from(HELD) / 100 {
        let hashes: Vec<u64> = (0..100).map(|block| prompt << 20 | block).collect();
        let tokens: Vec<u32> = (0..100 * BLOCK).map(|at| (token(prompt << 20 | at) % VOCABULARY) as u32).collect();
        let (parent, medium, lora_name, attention, window) = (None, None, None, None, None);
        let (block_size, extras, hashes, tokens) = (BLOCK as u32, Extras::default(), &hashes[..], &tokens[..]);
        // The group of the events that follow.
        let group = Some(0);
        mirror.stored(
            &Stored {
                hashes,
                parent,
                tokens,
                block_size,
                medium,
                lora_name,
                salt: None,
                nameless: false,
                group,
                attention,
                window,
                extras,
            },
            reading,
            &mut Told::default(),
        );
    }
    assert_eq!(mirror.blocks(), HELD);
    mirror
}

/// Times blocks that come and go: events are read, their text cut, told of, and in the end removed, last blocks first.
fn report_mirror(name: &str, events: u64, blocks: u64, mirror: &mut Mirror, reading: &Reading<'_>) {
    let payload = payload(events, blocks);
    let tokens = events * blocks * BLOCK;
    let (mut batch, mut told) = (Batch::default(), Told::default());
    let mut once = || {
        batch.read(black_box(&payload)).expect("a batch");
        for event in batch.events() {
            let Event::Stored(stored) = event else { panic!("{event:?}") };
            mirror.stored(&stored, reading, &mut told);
        }
        assert_eq!(u64::from(mirror.blocks()), u64::from(HELD) + events * blocks);
        for event in batch.events() {
            let Event::Stored(stored) = event else { panic!("{event:?}") };
            for hash in stored.hashes.iter().rev() {
                mirror.removed(&Removed { hashes: &[*hash], medium: None, group: Some(0) }, &mut told);
            }
        }
        assert_eq!(mirror.blocks(), HELD);
    };
    let (median, ninth) = timed(501, || (0..10).for_each(|_| once()));
    assert_eq!(told.0, told.1, "links held and released");
    let thousand = |time: f64| time / 10.0 / tokens as f64;
    println!(
        "{name:42} {:.2} {:.2} us for 1,000 tokens; fleet {:.2} % of a core",
        thousand(median),
        thousand(ninth),
        FLEET.0 * FLEET.1 * thousand(median) / 1e9 * 100.0,
    );
}

fn main() {
    println!(
        "{:42} median and 90th percentile of 2,001 runs of 10; the fleet: 8 engines, 50,000 tokens a second each",
        ""
    );
    report("a prefill chunk: 1 event of 512 blocks", 1, 512);
    report("decode steps: 32 events of 1 block", 32, 1);
    report("one block a message", 1, 1);
    report("pages of one prompt: 512 events of 1", 512, 1);
    let vocabulary = vocabulary();
    let reading = Reading { vocabulary: &vocabulary, root: &|_, _| 7 };
    let mut mirror = filled(&reading);
    println!("\n{:42} the same with what is held of it, until it is removed again, beside {HELD} blocks", "");
    report_mirror("a prefill chunk: 1 event of 512 blocks", 1, 512, &mut mirror, &reading);
    report_mirror("decode steps: 32 events of 1 block", 32, 1, &mut mirror, &reading);
    report_mirror("one block a message", 1, 1, &mut mirror, &reading);
}
