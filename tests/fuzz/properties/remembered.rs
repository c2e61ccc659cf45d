//! The file in which what is known of caches outlasts the front: any content is read or refused, and what is read is
//! written as it was and leaves an index whole.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use warmfront::config::{Config, Upstream};
use warmfront::control::fleet::Fleet;
use warmfront::control::saved::{Engine, Rows, Saved, Unusable, Writing};
use warmfront::control::scrape::Reading;
use warmfront::index::{Origin, Saved as Row};
use warmfront::policy::Policy;
use xxhash_rust::xxh64::xxh64;

use super::indexed::ends;

/// What reading takes of itself: what is read at once, and what an engine's name and account are.
const MEMORY_LEAST: u64 = 16 << 10;
/// And for each byte of the file: of two or three, `[]` and a comma, a list is made, which may lie there twice while
/// the list that it is in grows.
const MEMORY_BY_BYTE: u64 = 32;
/// As every file begins.
const FIRST: &[u8] = b"{\"warmfront";
/// Of further engines no index is made.
const ENGINES_MAX: usize = 3;
/// Of one row.
const ROW_BYTES: usize = 24;
/// As the index counts them: of 64 tokens.
const BLOCKS: u32 = 24;

/// Any content, to which its sum is added; the first line, too, where it has none of its own.
pub fn caches_file(content: &[u8]) {
    let whole = [&first_line(), content].concat();
    let content = if content.starts_with(FIRST) { content } else { &whole };
    let sum = xxh64(content, 0);
    let of = |sum: u64| [content, &sum.to_le_bytes()].concat();
    let Ok(saved) = read(&of(sum)) else { return };
    assert!(read(&of(sum ^ 1 << (sum % 64))).is_err(), "under another's sum");
    let engines = sorted(&saved);
    let mirrors = engines.values().flat_map(|engine| &engine.remembered).flat_map(|heard| &heard.mirrors);
    let rows = engines.values().flat_map(|engine| &engine.rows).map(|rows| rows.bytes.len());
    let kept = mirrors.map(|(_, bytes)| bytes.len()).chain(rows).sum::<usize>();
    assert!(kept <= content.len(), "{kept} of {}", content.len());

    let written = written(&engines);
    let again = read(&written).expect("what was written");
    // In words: of a time that is no number none is the same. The bits of such times are among the bytes.
    assert_eq!(format!("{:?}", sorted(&again)), format!("{engines:?}"));
    assert_eq!(self::written(&sorted(&again)), written);
    let rows = engines.values().flat_map(|engine| &engine.rows).take(ENGINES_MAX);
    rows.for_each(|rows| known_again(&rows.bytes));
}

/// What a file begins with that this version writes.
fn first_line() -> Vec<u8> {
    static FIRST_LINE: OnceLock<Vec<u8>> = OnceLock::new();
    let none = || written(&BTreeMap::new()).into_iter().take_while(|&byte| byte != b'\n').chain([b'\n']).collect();
    FIRST_LINE.get_or_init(none).clone()
}

fn sorted(saved: &Saved) -> BTreeMap<&str, &Engine> {
    saved.engines().map(|(name, engine)| (name, &**engine)).collect()
}

/// What is in memory, if there is such a folder: nothing has to be kept.
fn place() -> PathBuf {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let shared = Path::new("/dev/shm");
    let folder = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    folder.join(format!("warmfront-fuzz-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)))
}

fn read(file: &[u8]) -> Result<Saved, Unusable> {
    let path = place();
    fs::write(&path, file).unwrap();
    let mut read = None;
    let taken = allocation_counter::measure(|| read = Some(Saved::read(&path)));
    fs::remove_file(&path).unwrap();
    let most = MEMORY_LEAST + MEMORY_BY_BYTE * file.len() as u64;
    assert!(taken.bytes_max <= most, "{} bytes for a file of {}", taken.bytes_max, file.len());
    read.unwrap()
}

fn written(engines: &BTreeMap<&str, &Engine>) -> Vec<u8> {
    let path = place();
    let mut writing = Writing::to(&path, 0, Arc::default()).unwrap();
    engines.iter().for_each(|(name, engine)| writing.add(name, engine).unwrap());
    let length = writing.end(|| true).unwrap();
    let written = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(length, Some(written.len() as u64));
    written
}

/// What an index holds of any rows, and of a prompt before them, it holds of those that it says of itself then.
fn known_again(rows: &[u8]) {
    let prompt: Vec<u64> = (1..=u64::from(BLOCKS) / 4).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
    let first = taken(rows, &prompt);
    let second = taken(&first, &[]);
    assert_eq!(blocks(&first), blocks(&second));
    assert_eq!(ends(&rows_of(&first)), ends(&rows_of(&second)));
}

fn blocks(rows: &[u8]) -> HashSet<&[u8]> {
    rows.chunks_exact(ROW_BYTES).map(|row| &row[ROW_BYTES / 2..]).collect()
}

fn rows_of(rows: &[u8]) -> Vec<(Option<Row>, Row)> {
    let row = |bytes: &[u8]| {
        let (bucket, tag) = bytes.split_first_chunk().unwrap();
        Row { bucket: u32::from_le_bytes(*bucket), tag: u64::from_le_bytes(tag.try_into().unwrap()) }
    };
    let both = |bytes: &[u8]| {
        let [parent, block] = [&bytes[..ROW_BYTES / 2], &bytes[ROW_BYTES / 2..]].map(row);
        (Some(parent).filter(|parent| parent.bucket != u32::MAX), block)
    };
    rows.chunks_exact(ROW_BYTES).map(both).collect()
}

/// Has a front choose its engine for a prompt, and then know again what these rows say of it; answers what it would
/// write of all that.
fn taken(rows: &[u8], prompt: &[u64]) -> Vec<u8> {
    let upstream = vec![Upstream::new("http://engine:8000".parse().unwrap())];
    let mut config = Config { upstream, ..Config::default() };
    config.routing.policy = Policy::Warm;
    config.limits.index_bytes = 256 << 10;
    let (mut fleet, now) = (Fleet::new(Arc::new(config), Vec::new(), Arc::default()), Instant::now());
    fleet.resolved(0, vec![([10, 0, 0, 1], 8_000).into()], now);
    let index = fleet.snapshot().index.unwrap();
    let metrics = format!(
        "process_start_time_seconds 5\nvllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{}\"}} 1\n",
        BLOCKS * 4
    );
    let reading = Reading::of(metrics.as_bytes());
    let rows = Some(Rows { layout: index.layout(), bytes: rows.to_vec() });
    let mut known = Saved::default();
    let engine = Engine { process: reading.process().unwrap(), remembered: None, rows };
    known.add(&fleet.members()[0].name, engine);
    fleet.remember(known);
    let (id, _) = fleet.target(0).unwrap();
    index.insert(prompt, id, Origin::Choice).unwrap();
    fleet.scraped(0, id, Ok((reading, Default::default())), now);
    index.audit().unwrap();
    let figures = index.figures(id.slot);
    assert!(fleet.remembered().is_empty() && figures.capacity == BLOCKS, "{figures:?}");
    let rows = fleet.saved(0).unwrap().1.rows.unwrap().bytes;
    assert_eq!(blocks(&rows).len(), figures.blocks as usize);
    assert_eq!(rows.len() % ROW_BYTES, 0);
    rows
}
