//! What a scan costs by what the body holds and by the instructions it runs on: `cargo bench --bench kernels`.
//!
//! Each body is read to its end, its whole conversation hashed, as one piece; p50 of scans timed alone. Before
//! the clock runs, every kernel's facts are compared with the portable one's, in one piece and in several, and
//! no scan may allocate. `first user` rows make KubeAI's key and skip all behind it up to `model`, which stands last.

#[path = "words.rs"]
mod words;

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use warmfront::scan::{Api, Kernel, Needs, Plan, PrefixHash, PrefixMode, Progress, Scan};

use words::{CODE, PROSE};

/// Different bodies of one kind take about so much memory, at least four of them: none is in a core's first
/// cache when its turn comes.
const BODIES_BYTES: usize = 2 << 20;

/// A row: what its bodies hold.
struct Kind {
    name: &'static str,
    bytes: usize,
    api: Api,
    prefix: PrefixMode,
    /// It is cut into blocks, as `warm` has it.
    chain: bool,
    body: fn(&mut Random, usize) -> String,
}

#[rustfmt::skip]
const KINDS: [Kind; 16] = [
    Kind::conversation("prose", 2 << 10, |random, bytes| chat(random, bytes, prose)),
    Kind::conversation("prose", 16 << 10, |random, bytes| chat(random, bytes, prose)),
    Kind::conversation("prose", 128 << 10, |random, bytes| chat(random, bytes, prose)),
    Kind::conversation("prose", 1 << 20, |random, bytes| chat(random, bytes, prose)),
    Kind::conversation("code", 128 << 10, |random, bytes| chat(random, bytes, code)),
    Kind::conversation("JSON in JSON", 64 << 10, |random, bytes| chat(random, bytes, json)),
    Kind::conversation("CJK", 64 << 10, |random, bytes| chat(random, bytes, cjk)),
    Kind::conversation("CJK as \\uXXXX", 128 << 10, |random, bytes| chat(random, bytes, escaped_cjk)),
    Kind::conversation("German as \\uXXXX", 128 << 10, |random, bytes| chat(random, bytes, escaped_german)),
    Kind::conversation("tools", 64 << 10, tools),
    Kind::conversation("image, sampled", 2 << 20, image),
    Kind { chain: true, ..Kind::conversation("prose, blocks", 2 << 10, |random, bytes| chat(random, bytes, prose)) },
    Kind { chain: true, ..Kind::conversation("prose, blocks", 128 << 10, |random, bytes| chat(random, bytes, prose)) },
    Kind { api: Api::Completions, ..Kind::conversation("token ids", 100 << 10, ids) },
    Kind::first_user("prose, first user", 2 << 10, |random, bytes| chat(random, bytes, prose)),
    Kind::first_user("prose, first user", 128 << 10, |random, bytes| chat(random, bytes, prose)),
];

impl Kind {
    const fn conversation(name: &'static str, bytes: usize, body: fn(&mut Random, usize) -> String) -> Kind {
        Kind { name, bytes, api: Api::Chat, prefix: PrefixMode::Conversation, chain: false, body }
    }

    const fn first_user(name: &'static str, bytes: usize, body: fn(&mut Random, usize) -> String) -> Kind {
        Kind { name, bytes, api: Api::Chat, prefix: PrefixMode::FirstUser, chain: false, body }
    }

    fn scan(&self, scan: &mut Scan, body: &[u8], piece_bytes: usize) -> (Option<PrefixHash>, u64) {
        let plan = Plan {
            prefix: self.prefix,
            prefix_chars: 100,
            prefix_bytes: u32::MAX,
            chain: self.chain,
            ..Plan::default()
        };
        let whole = if self.prefix == PrefixMode::Conversation { Needs::WHOLE } else { Needs::NONE };
        scan.begin(self.api, &plan, Needs::MODEL | Needs::PREFIX | whole);
        for piece in body.chunks(piece_bytes) {
            match scan.push(piece) {
                Progress::More => {}
                Progress::Enough { .. } => return (scan.facts().prefix(), scan.facts().prompt_bytes()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(scan.finish(), Progress::Done);
        (scan.facts().prefix(), scan.facts().prompt_bytes())
    }

    /// The row's figures, one a kernel, in µs.
    fn time(&self, kernels: &[&'static Kernel], rounds: usize) -> Vec<f64> {
        // One more than a multiple: body by body in turn, every kernel gets to all of them.
        let count = (BODIES_BYTES / self.bytes).max(4).next_multiple_of(kernels.len()) + 1;
        let bodies: Vec<Vec<u8>> =
            (0..count as u64).map(|seed| (self.body)(&mut Random(seed + 1), self.bytes).into_bytes()).collect();
        let mut scans: Vec<Box<Scan>> = kernels.iter().map(|kernel| Box::new(Scan::with(kernel))).collect();
        self.check(&mut scans, &bodies);
        let rounds = (rounds * (128 << 10) / self.bytes).clamp(rounds / 8, rounds * 4);
        let mut nanos = vec![Vec::with_capacity(rounds); kernels.len()];
        for round in 0..rounds {
            // One kernel behind the other, so that what else the machine does meets all of them alike; each on
            // another body, or the first alone would find it cold.
            for (place, (scan, nanos)) in scans.iter_mut().zip(&mut nanos).enumerate() {
                let body = &bodies[(round * kernels.len() + place) % bodies.len()];
                let begun = Instant::now();
                black_box(self.scan(scan, black_box(body), usize::MAX));
                nanos.push(begun.elapsed().as_nanos() as u64);
            }
        }
        let median = |nanos: &mut Vec<u64>| *nanos.select_nth_unstable(rounds / 2).1 as f64 / 1_000.0;
        nanos.iter_mut().map(median).collect()
    }

    /// The same facts on every kernel however the body is cut, without an allocation.
    fn check(&self, scans: &mut [Box<Scan>], bodies: &[Vec<u8>]) {
        let mut portable = Scan::with(Kernel::portable());
        let expected: Vec<_> = bodies.iter().map(|body| self.scan(&mut portable, body, usize::MAX)).collect();
        assert!(expected.iter().all(|(prefix, _)| prefix.is_some()));
        for scan in scans {
            // A chain's links find their room once.
            for body in bodies {
                self.scan(scan, body, usize::MAX);
            }
            let allocations = allocation_counter::measure(|| {
                for (body, expected) in bodies.iter().zip(&expected) {
                    for piece_bytes in [usize::MAX, 16 << 10, 1_448] {
                        assert_eq!(self.scan(scan, body, piece_bytes), *expected, "{}", self.name);
                    }
                }
            });
            assert_eq!(allocations.count_total, 0, "a scan allocates");
        }
    }
}

/// A linear congruential generator, so that a figure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }
}

/// As the openai SDK writes a chat: `messages` first, `model` last, turns of some hundred bytes to 8 KiB.
fn chat(random: &mut Random, bytes: usize, word: fn(&mut Random, &mut String)) -> String {
    let mut text = String::from(r#"{"messages":[{"role":"system","content":"You are a helpful assistant."}"#);
    let turn_bytes = (bytes / 16).clamp(300, 8_192);
    for role in ["user", "assistant"].iter().cycle() {
        let _ = write!(text, r#",{{"role":"{role}","content":""#);
        let end = (text.len() + turn_bytes).min(bytes.saturating_sub(128));
        while text.len() < end {
            word(random, &mut text);
        }
        text.push_str("\"}");
        if text.len() + 256 > bytes {
            break;
        }
    }
    text.push_str(r#"],"model":"meta-llama/Llama-3.1-8B-Instruct","max_tokens":256,"stream":true,"temperature":0.7}"#);
    text
}

/// An escape every hundred bytes and more.
fn prose(random: &mut Random, text: &mut String) {
    text.push_str(random.pick(PROSE));
    text.push(' ');
}

/// An escape every twenty bytes.
fn code(random: &mut Random, text: &mut String) {
    text.push_str(random.pick(CODE));
    text.push(' ');
}

/// What a tool answers: an escape every five bytes.
fn json(random: &mut Random, text: &mut String) {
    const WORDS: &[&str] = &["city", "unit", "temperature", "id", "name", "a", "created_at", "tags"];
    let (name, value, number) = (random.pick(WORDS), random.pick(WORDS), random.below(10_000));
    let _ = match random.below(3) {
        0 => write!(text, r#"\"{name}\": \"{value}\", "#),
        1 => write!(text, r#"\"{name}\": {number}, "#),
        _ => write!(text, r#"\"{name}\": {{\n  \"{value}\": {number}}}, "#),
    };
}

fn cjk_letter(random: &mut Random) -> char {
    match random.below(16) {
        0 => ['，', '。', '、', '「'][random.below(4)],
        _ => char::from_u32(0x4e00 + random.below(0x5000) as u32).unwrap_or('中'),
    }
}

fn cjk(random: &mut Random, text: &mut String) {
    let letter = cjk_letter(random);
    text.push(letter);
    if letter == '。' {
        text.push_str("\\n");
    }
}

/// As Python's `json.dumps` writes them by default; an emoji here and there.
fn escaped_cjk(random: &mut Random, text: &mut String) {
    let letter = if random.below(200) == 0 { '😀' } else { cjk_letter(random) };
    for unit in letter.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
    if letter == '。' {
        text.push_str(" ok\\n");
    }
}

/// The same of a language in which one letter of forty is none of ASCII's.
fn escaped_german(random: &mut Random, text: &mut String) {
    const WORDS: &[&str] = &[
        "Schl\\u00fcssel",
        "der",
        "die",
        "Anfrage",
        "f\\u00fcr",
        "wird",
        "und",
        "gro\\u00df",
        "Rechner",
        "warm.\\n",
        "ein",
    ];
    text.push_str(random.pick(WORDS));
    text.push(' ');
}

fn tools(random: &mut Random, bytes: usize) -> String {
    let mut text = String::from(r#"{"messages":[{"role":"user","content":"Weather?"}],"model":"m","tools":["#);
    while text.len() < bytes {
        let number = random.below(1_000_000);
        let _ = write!(
            text,
            r#"{{"type":"function","function":{{"name":"tool_{number}","description":"Weather of a \"city\", today","parameters":{{"type":"object","properties":{{"city":{{"type":"string"}},"unit":{{"type":"string","enum":["c","f"]}}}},"required":["city"]}}}}}},"#
        );
    }
    text.push_str("null]}");
    text
}

fn image(random: &mut Random, bytes: usize) -> String {
    let mut data = String::with_capacity(bytes + 8);
    while data.len() < bytes {
        let _ = write!(data, "{:06x}/A", random.below(1 << 24));
    }
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"What is this?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#
    )
}

fn ids(random: &mut Random, bytes: usize) -> String {
    let mut text = String::from(r#"{"model":"m","prompt":["#);
    while text.len() < bytes {
        let id = random.below(128_000);
        let _ = write!(text, "{id}, ");
    }
    text.push_str("1]}");
    text
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--test");
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let kernels: Vec<&'static Kernel> = Kernel::available().collect();
    let names = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect::<Vec<_>>().join(" |");
    println!("\nA scan to the body's end in µs (p50, each timed alone, none allocates), by kernel.\n");
    println!("| {:18} | {:>9} |{names} |", "body", "bytes");
    println!("|:-------------------|----------:|{}", "----------:|".repeat(kernels.len()));
    for kind in KINDS.iter().filter(|kind| kind.name.contains(&filter)) {
        let figures = kind.time(&kernels, if quick { 40 } else { 2_000 });
        let figures = figures.iter().map(|figure| format!("{figure:10.2}")).collect::<Vec<_>>().join(" |");
        println!("| {:18} | {:9} |{figures} |", kind.name, kind.bytes);
    }
}
