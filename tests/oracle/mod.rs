//! An independent reading of request bodies, to compare the scanner with: strings and numbers are parsed by
//! `serde_json`, the prompt's canonical bytes are built in memory from whole values.
//!
//! Where the scanner differs from "parse everything, the last of equal names wins" on purpose:
//!
//! | where | scanner | reason |
//! | --- | --- | --- |
//! | body that serde_json refuses | may pass | it does not look at what it skips; engines accept more, and the engine answers |
//! | `null` (or any scalar) after a prompt of the same section | the prompt stays | `prompt` and `messages` stand side by side, one of them null |
//! | `role` twice in one message | the first decides, both are hashed | the first is hashed when the second comes |
//! | `content` twice in one message | both are read | the same |
//! | `role` behind more than 4 KiB of its message | marked as late; `first-user` reads the first 4 KiB | bounded memory |
//! | nesting beyond 15 levels of prompt arrays and parts | skipped | bounded memory |
//! | early end ([`Progress::Enough`]) | later duplicates are not seen | that is what ending early means |
//!
//! Beside it stands simd-json, whose object the scanner has to read to its end, with the same model. It goes 1,024
//! levels deep, where serde_json goes 127 and the reading here 120; it refuses whole numbers beyond 64 bits, which
//! serde_json takes for fractions, and a byte order mark, which the reading here passes over. Of equal names it keeps
//! one, so that a body with such says nothing of the model.

use serde_json::Value;
use simd_json::prelude::{ValueAsObject, ValueAsScalar};
use warmfront::scan::PrefixMode;
use warmfront::scan::{Api, Counts, Kernel, Needs, Plain, Plan, Progress, Scan};
use xxhash_rust::xxh64::xxh64;

/// All that a scan tells, in a form that can be compared.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Seen {
    pub model: Option<Vec<u8>>,
    pub model_over: bool,
    pub stream: Option<bool>,
    pub max_tokens: Option<u64>,
    pub choices: Option<u64>,
    pub priority: Option<i64>,
    pub salt: Option<u64>,
    pub session: Option<u64>,
    pub tools: bool,
    pub background: bool,
    pub beam_search: bool,
    pub recomputes: bool,
    pub duplicates: u32,
    pub prefix: Option<(u64, u64)>,
    pub plain_prefix: Option<(u64, u64)>,
    pub chain: Vec<u64>,
    pub counts: Counts,
    pub beside: Option<Counts>,
}

/// What chains begin with here.
const ROOT: u64 = 0x0123_4567_89ab_cdef;

/// What a scan's facts say now.
pub fn seen(scan: &Scan) -> Seen {
    let facts = scan.facts();
    let mut chain = vec![7];
    facts.chain(ROOT, &mut chain);
    Seen {
        model: facts.model().map(<[u8]>::to_vec),
        model_over: facts.model_over(),
        stream: facts.stream,
        max_tokens: facts.max_tokens(),
        choices: facts.choices,
        priority: facts.priority,
        salt: facts.salt(),
        session: facts.session(),
        tools: facts.tools,
        background: facts.background,
        beam_search: facts.beam_search,
        recomputes: facts.recomputes(),
        duplicates: facts.duplicates,
        prefix: facts.prefix().map(|prefix| (prefix.hash, prefix.bytes)),
        plain_prefix: facts.plain_prefix().map(|prefix| (prefix.hash, prefix.bytes)),
        chain,
        counts: facts.counts(),
        beside: facts.beside(),
    }
}

/// Everything that can be asked for.
pub fn all_needs() -> Needs {
    Needs::MODEL | Needs::PREFIX | Needs::SESSION | Needs::WHOLE
}

/// Scans `pieces` with `scan` and finishes, unless it ends before.
pub fn scan_pieces<'a>(
    scan: &mut Scan,
    api: Api,
    plan: &Plan,
    needs: Needs,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Progress, Seen) {
    scan.begin(api, plan, needs);
    for piece in pieces {
        let progress = scan.push(piece);
        if progress != Progress::More {
            return (progress, seen(scan));
        }
    }
    (scan.finish(), seen(scan))
}

/// The scanner's answer must not depend on how the body was cut, nor on the CPU: compared at the given cuts and,
/// where `single`, in pieces of one byte, on every kernel.
pub fn check_cuts(api: Api, plan: &Plan, needs: Needs, body: &[u8], cuts: impl Iterator<Item = usize>, single: bool) {
    let cuts: Vec<usize> = cuts.map(|cut| cut.min(body.len())).collect();
    let whole = scan_pieces(&mut Scan::with(Kernel::portable()), api, plan, needs, std::iter::once(body));
    // What is asked for does not reach the loops: one question is enough for those that this CPU would not use.
    let kernels = if needs == all_needs() { usize::MAX } else { 1 };
    for kernel in Kernel::available().take(kernels) {
        let mut scan = Scan::with(kernel);
        let name = kernel.name();
        for &cut in cuts.iter().chain([&body.len()]) {
            let (left, right) = body.split_at(cut);
            let cut_up = scan_pieces(&mut scan, api, plan, needs, [left, right].into_iter());
            assert_eq!(cut_up, whole, "{name}: cut at {cut}, {api:?} {plan:?} {needs:?}: {}", body.escape_ascii());
        }
        if single {
            let cut_up = scan_pieces(&mut scan, api, plan, needs, body.chunks(1));
            assert_eq!(cut_up, whole, "{name}: single bytes, {api:?} {plan:?} {needs:?}: {}", body.escape_ascii());
        }
    }
}

/// Compares the scanner with the oracle, where the oracle can read the body. Says whether it could.
pub fn check_against_oracle(api: Api, plan: &Plan, body: &[u8]) -> bool {
    check_against_simd_json(api, plan, body);
    let Some(expected) = expect(api, plan, body) else {
        let accepted = serde_json::from_slice::<Value>(body).is_ok_and(|value| value.is_object());
        assert!(!accepted, "the oracle cannot read what serde_json reads: {}", body.escape_ascii());
        return false;
    };
    for kernel in Kernel::available() {
        let mut scan = Scan::with(kernel);
        let (progress, got) = scan_pieces(&mut scan, api, plan, all_needs(), std::iter::once(body));
        assert_eq!(progress, Progress::Done, "{api:?}: {}", body.escape_ascii());
        assert_eq!(got, expected, "{api:?} {plan:?}: {}", body.escape_ascii());
        // Ending early must not change what was asked for.
        let needs = Needs::MODEL | Needs::PREFIX;
        let (progress, early) = scan_pieces(&mut scan, api, plan, needs, std::iter::once(body));
        assert!(matches!(progress, Progress::Done | Progress::Enough { .. }), "{progress:?}");
        if expected.duplicates == 0 {
            assert_eq!(early.model, expected.model, "{}", body.escape_ascii());
            assert_eq!(early.chain, expected.chain, "{progress:?} {api:?} {plan:?}: {}", body.escape_ascii());
            assert_eq!(early.prefix, expected.prefix, "{progress:?} {api:?} {plan:?}: {}", body.escape_ascii());
            let plain = (early.plain_prefix, expected.plain_prefix);
            assert_eq!(plain.0, plain.1, "{progress:?} {api:?} {plan:?}: {}", body.escape_ascii());
            if plan.chain {
                let of_all = |seen: &Seen| (seen.salt, seen.priority, seen.recomputes);
                let (early, all) = (of_all(&early), of_all(&expected));
                assert_eq!(early, all, "{progress:?} {api:?} {plan:?}: {}", body.escape_ascii());
            }
            // Where tokens count, nothing of what is computed is left out. Nobody computes a `suffix`.
            if plan.chain && api != Api::Completions {
                let (early, all) = ((early.counts, early.beside), (expected.counts, expected.beside));
                assert_eq!(early, all, "{progress:?} {api:?} {plan:?}: {}", body.escape_ascii());
            }
        }
    }
    true
}

/// Compares the scanner with simd-json, where that reads an object.
fn check_against_simd_json(api: Api, plan: &Plan, body: &[u8]) {
    let mut copy = body.to_vec();
    let Ok(value) = simd_json::to_borrowed_value(&mut copy) else { return };
    let Some(object) = value.as_object() else { return };
    let model = object.get("model").and_then(|model| model.as_str()).map(str::as_bytes);
    let expected = (model.filter(|model| model.len() <= 256), model.is_some_and(|model| model.len() > 256));
    for kernel in Kernel::available() {
        let mut scan = Scan::with(kernel);
        let (progress, got) = scan_pieces(&mut scan, api, plan, all_needs(), std::iter::once(body));
        assert_eq!(progress, Progress::Done, "{}: simd-json reads {}", kernel.name(), body.escape_ascii());
        if got.duplicates == 0 {
            assert_eq!((got.model.as_deref(), got.model_over), expected, "{}", body.escape_ascii());
        }
    }
}

/// A JSON value in the order of its source, with the source of what may be hashed raw.
enum Tree<'a> {
    Scalar(Value),
    Text(Vec<u8>, &'a [u8]),
    Array(Vec<Tree<'a>>, &'a [u8]),
    Object(Vec<Entry<'a>>, &'a [u8]),
}

impl<'a> Tree<'a> {
    /// Its source, unless it is a number or literal.
    fn raw(&self) -> Option<&'a [u8]> {
        match self {
            Tree::Scalar(_) => None,
            Tree::Text(_, raw) | Tree::Array(_, raw) | Tree::Object(_, raw) => Some(raw),
        }
    }
}

struct Entry<'a> {
    name: Vec<u8>,
    value: Tree<'a>,
}

/// Reads a value; `None` where it is not JSON by `serde_json`'s rules.
struct Reader<'a> {
    body: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        while matches!(self.body.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.space();
        (self.body.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn text(&mut self) -> Option<(Vec<u8>, &'a [u8])> {
        let start = self.at;
        self.eat(b'"')?;
        while *self.body.get(self.at)? != b'"' {
            self.at += 1 + (self.body[self.at] == b'\\') as usize;
        }
        self.at += 1;
        let raw = self.body.get(start..self.at)?;
        let text: String = serde_json::from_slice(raw).ok()?;
        Some((text.into_bytes(), raw))
    }

    fn value(&mut self) -> Option<Tree<'a>> {
        self.space();
        let start = self.at;
        self.depth += 1;
        if self.depth > 120 {
            return None;
        }
        let tree = match self.body.get(self.at)? {
            b'"' => {
                let (text, raw) = self.text()?;
                Tree::Text(text, raw)
            }
            b'[' => {
                self.at += 1;
                let mut elements = Vec::new();
                if self.eat(b']').is_none() {
                    loop {
                        elements.push(self.value()?);
                        if self.eat(b',').is_none() {
                            break;
                        }
                    }
                    self.eat(b']')?;
                }
                Tree::Array(elements, &self.body[start..self.at])
            }
            b'{' => {
                self.at += 1;
                let entries = self.entries()?;
                Tree::Object(entries, &self.body[start..self.at])
            }
            _ => {
                let rest = &self.body[start..];
                let end = rest.iter().position(|b| b",]} \n\r\t".contains(b)).unwrap_or(rest.len());
                self.at += end;
                Tree::Scalar(serde_json::from_slice(&rest[..end]).ok()?)
            }
        };
        self.depth -= 1;
        Some(tree)
    }

    fn entries(&mut self) -> Option<Vec<Entry<'a>>> {
        let mut entries = Vec::new();
        if self.eat(b'}').is_some() {
            return Some(entries);
        }
        loop {
            self.space();
            let (name, _) = self.text()?;
            self.eat(b':')?;
            self.space();
            entries.push(Entry { name, value: self.value()? });
            if self.eat(b',').is_none() {
                break;
            }
        }
        self.eat(b'}')?;
        Some(entries)
    }

    fn body(&mut self) -> Option<Vec<Entry<'a>>> {
        if self.body.starts_with(b"\xef\xbb\xbf") {
            self.at = 3;
        }
        self.eat(b'{')?;
        let entries = self.entries()?;
        self.space();
        (self.at == self.body.len()).then_some(entries)
    }
}

/// The prompt names of an API: main, system, extra.
fn names(api: Api) -> (&'static [&'static str], &'static str, &'static [&'static str]) {
    match api {
        Api::Chat => (&["messages"], "", &[]),
        Api::Completions => (&["prompt"], "", &["suffix"]),
        Api::Embeddings => (&["input", "messages", "text", "input_ids"], "", &[]),
        Api::Responses => (&["input"], "instructions", &[]),
        Api::Messages => (&["messages"], "system", &[]),
        Api::Rerank => (&["query"], "", &["documents"]),
        Api::Score => (&["text_1", "queries", "data_1", "query"], "", &["text_2", "documents", "data_2", "items"]),
        Api::Tokenize => (&["prompt", "messages"], "", &[]),
        Api::Generate => (&["text", "input_ids", "token_ids"], "", &[]),
        Api::Other => (&[], "", &[]),
    }
}

/// Fields of media that stand beside the prompt.
fn media(api: Api) -> &'static [&'static str] {
    match api {
        Api::Generate => &["image_data", "video_data", "audio_data", "features", "content_parts"],
        Api::Embeddings => &["image_data", "video_data", "audio_data"],
        _ => &[],
    }
}

/// What the scanner must find when it reads everything.
pub fn expect(api: Api, plan: &Plan, body: &[u8]) -> Option<Seen> {
    let mut reader = Reader { body, at: 0, depth: 0 };
    let entries = reader.body()?;
    let has_tools = matches!(api, Api::Chat | Api::Responses | Api::Messages | Api::Tokenize);
    let (main, system, extra) = names(api);
    let is = |names: &[&str], entry: &Entry| names.iter().any(|name| !name.is_empty() && name.as_bytes() == entry.name);
    let last = |names: &[&str]| entries.iter().rev().find(|entry| is(names, entry));
    let last_prompt =
        |names: &[&str]| entries.iter().rev().find(|e| is(names, e) && !matches!(e.value, Tree::Scalar(_)));
    let mut duplicates = 0;
    let mut count = |names: &[&str]| {
        duplicates += entries.iter().filter(|entry| is(names, entry)).count().saturating_sub(1) as u32;
    };
    if matches!(api, Api::Chat | Api::Completions) {
        count(&["echo"]);
        count(&["prompt_logprobs"]);
        count(&["use_beam_search"]);
    }
    match api {
        Api::Completions => count(&["logprobs"]),
        Api::Generate => {
            ["sampling_params", "return_logprob", "logprob_start_len"].iter().for_each(|name| count(&[name]))
        }
        Api::Responses => count(&["background"]),
        _ => {}
    }
    let apart = ["cache_salt", "lora_path", "extra_key"];
    for name in ["model", "stream", "stream_options", "max_tokens", "n", "priority"].iter().chain(&apart) {
        count(&[name]);
    }
    count(&["max_completion_tokens", "max_output_tokens"]);
    let instead: &[&str] = if api == Api::Chat { &["input_ids"] } else { &[] };
    let mains = [main, instead].concat();
    [&mains[..], &[system], extra].into_iter().for_each(&mut count);
    if has_tools {
        count(&["tools"]);
    }
    let sessions: Vec<&str> = plan.session_fields.iter().map(|name| std::str::from_utf8(name).unwrap()).collect();
    sessions.iter().for_each(|name| count(&[name]));

    let text = |names: &[&str]| match last(names).map(|entry| &entry.value) {
        Some(Tree::Text(text, _)) => Some(text.clone()),
        _ => None,
    };
    let hash = |names: &[&str]| text(names).filter(|text| !text.is_empty()).map(|text| xxh64(&text, 0));
    let scalar = |names: &[&str]| match last(names).map(|entry| &entry.value) {
        Some(Tree::Scalar(value)) => value.clone(),
        _ => Value::Null,
    };
    let model = text(&["model"]);
    let tools = last(&["tools"]).filter(|_| has_tools);
    // With these, an engine writes neither messages nor tools.
    let ids = entries.iter().rev().find(|entry| is(instead, entry) && matches!(entry.value, Tree::Array(..)));

    let mut prompt = Canonical::new(plan);
    if let Some(Entry { value: Tree::Array(_, raw) | Tree::Object(_, raw), .. }) = tools.filter(|_| ids.is_none()) {
        prompt.section(0, is_conversation(plan), |part| part.raw(raw, false));
    }
    if let Some(entry) = last_prompt(&[system]) {
        prompt.section(1, is_conversation(plan), |part| part.top_without_attribution(&entry.value));
    }
    let beside: Vec<&[u8]> =
        entries.iter().filter(|entry| is(media(api), entry)).filter_map(|e| e.value.raw()).collect();
    if !beside.is_empty() {
        prompt.section(1, is_conversation(plan), |part| beside.iter().for_each(|raw| part.medium(raw)));
    }
    if let Some(entry) = ids.or_else(|| last_prompt(main)) {
        prompt.section(2, true, |part| match &entry.value {
            Tree::Text(text, _) if api == Api::Responses => part.only_message(text),
            value => part.top(value),
        });
    }
    if let Some(entry) = last_prompt(extra) {
        prompt.section(3, false, |part| part.top(&entry.value));
    }
    let out_tokens = ["max_completion_tokens", "max_output_tokens"];
    Some(Seen {
        model_over: model.as_ref().is_some_and(|model| model.len() > 256),
        model: model.filter(|model| model.len() <= 256),
        stream: scalar(&["stream"]).as_bool(),
        max_tokens: scalar(&out_tokens).as_u64().or(scalar(&["max_tokens"]).as_u64()),
        choices: scalar(&["n"]).as_u64(),
        priority: scalar(&["priority"]).as_i64(),
        salt: salt(apart.map(|name| hash(&[name]))),
        session: sessions.iter().find_map(|name| hash(&[name])),
        background: api == Api::Responses && scalar(&["background"]) == true,
        beam_search: matches!(api, Api::Chat | Api::Completions) && scalar(&["use_beam_search"]) == true,
        recomputes: match api {
            Api::Chat => scalar(&["echo"]) == true || !scalar(&["prompt_logprobs"]).is_null(),
            Api::Completions => {
                let echoes = scalar(&["echo"]) == true && !scalar(&["logprobs"]).is_null();
                echoes || !scalar(&["prompt_logprobs"]).is_null()
            }
            Api::Generate => {
                let starts_at = scalar(&["logprob_start_len"]).as_u64();
                scalar(&["return_logprob"]) == true && starts_at == Some(0)
                    || last(&["sampling_params"]).is_some_and(|entry| reads_no_cache(&entry.value))
            }
            _ => false,
        },
        tools: matches!(tools.map(|entry| &entry.value), Some(Tree::Array(..) | Tree::Object(..))),
        duplicates,
        prefix: prompt.prefix(),
        plain_prefix: match plan.chain && plan.plain.is_wanted() {
            true => expect(api, &Plan { chain: false, plain: Plain::default(), ..plan.clone() }, body)?.prefix,
            false => prompt.prefix(),
        },
        chain: prompt.chain(),
        counts: prompt.counts(),
        beside: prompt.beside(),
    })
}

/// Whether sampling parameters say that all of the prompt is computed: in so many words, or since somebody asks for
/// what a cache has not.
fn reads_no_cache(parameters: &Tree) -> bool {
    let Tree::Object(entries, _) = parameters else { return false };
    let last = |name: &str, counts: fn(&Tree) -> bool| {
        entries
            .iter()
            .rev()
            .find(|entry| entry.name == name.as_bytes() && counts(&entry.value))
            .map(|entry| &entry.value)
    };
    let is_scalar = |value: &Tree| matches!(value, Tree::Scalar(_));
    let is_no_text = |value: &Tree| !matches!(value, Tree::Text(..));
    if let Some(Tree::Scalar(Value::Bool(skips))) = last("skip_reading_prefix_cache", is_scalar) {
        return *skips;
    }
    matches!(last("prompt_logprobs", is_scalar), Some(Tree::Scalar(value)) if !value.is_null())
        || matches!(last("prompt_logprob_token_ids", is_no_text), Some(Tree::Array(..) | Tree::Object(..)))
}

/// A `cache_salt` alone stands for itself. Else the salt, zero where there is none, with what `extra_key` says behind
/// it if anything, is hashed with the adapter as a seed.
fn salt([salt, adapter, extra]: [Option<u64>; 3]) -> Option<u64> {
    if adapter.or(extra).is_none() {
        return salt;
    }
    let mut bytes = salt.unwrap_or(0).to_le_bytes().to_vec();
    bytes.extend(extra.into_iter().flat_map(u64::to_le_bytes));
    Some(xxh64(&bytes, adapter.unwrap_or(0)))
}

const DEPTH_MAX: usize = 15;
const HELD_MAX: usize = 4096;

/// The prompt's canonical bytes, section by section.
struct Canonical<'p> {
    plan: &'p Plan,
    parts: [Part; 4],
}

/// The hash of canonical bytes: of blocks of 256, the last one filled up with zeros to whole 64. Each word goes to one of
/// four lanes, in turns: as the product of its halves, once a key is laid upon it, and to the other lane of the pair as
/// it is, turned by a byte more in each round. A block's lanes are joined with what all blocks before it came to.
fn hashed(bytes: &[u8]) -> u64 {
    let (first, second) = (0x9e37_79b1_85eb_ca87_u64, 0xc2b2_ae3d_27d4_eb4f_u64);
    let (third, fourth) = (0x1656_67b1_9e37_79f9_u64, 0x85eb_ca77_c2b2_ae63_u64);
    let (mut before, mut length) = (0x4528_21e6_38d0_1377_u64, 0);
    for block in bytes.chunks(256) {
        let mut lanes =
            [0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];
        for place in 0..8 * block.len().div_ceil(64) {
            let byte = |at: usize| u64::from(block.get(8 * place + at).copied().unwrap_or(0)) << (8 * at);
            let word: u64 = (0..8).map(byte).sum();
            let keyed = word ^ key(place as u64);
            let (own, other) = (place % 4, [1, 0, 3, 2][place % 4]);
            lanes[own] = lanes[own].wrapping_add((keyed % (1 << 32)) * (keyed / (1 << 32)));
            lanes[other] = lanes[other].wrapping_add(word.rotate_left(8 * (place as u32 / 4)));
        }
        length += block.len() as u64;
        let (one, three) = (lanes[0].wrapping_add(before), lanes[2].wrapping_add(before.rotate_left(32)));
        let last = lanes[3] ^ fourth.wrapping_add(length);
        before = folded(one ^ first, lanes[1] ^ second) ^ folded(three ^ third, last);
    }
    before
}

/// The key of a block's word: splitmix64's numbers from seed 0 on.
fn key(place: u64) -> u64 {
    let mut number = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb_u64)] {
        number = (number ^ (number >> shift)).wrapping_mul(factor);
    }
    number ^ (number >> 31)
}

fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

/// What tells a medium from others: its first 4 KiB, what it ends with, a byte of each 2 KiB between, how long it is.
fn sampled(raw: &[u8]) -> u64 {
    let (head, rest) = raw.split_at(raw.len().min(4_096));
    let places = (4_096..raw.len()).step_by(2_048);
    let between = places.map(|place| {
        let point = ((place + usize::from(raw[place])) as u64).wrapping_mul(0x9e37_79b1_85eb_ca87);
        folded(point, !point)
    });
    let mut bytes = [head, &rest[rest.len().saturating_sub(256)..]].concat();
    bytes.extend(between.fold(0u64, u64::wrapping_add).to_le_bytes());
    bytes.extend((raw.len() as u64).to_le_bytes());
    hashed(&bytes)
}

/// One section being built.
#[derive(Clone, Default)]
struct Part {
    conversation: bool,
    chain: bool,
    chars_left: u32,
    closed: bool,
    /// What was counted when each prompt of a batch was over.
    items: Vec<Counts>,
    /// Each byte, and whether it is more than a mark or a role.
    bytes: Vec<(u8, bool)>,
    counts: Counts,
    /// `first-user`: whether text at this place takes part; `conversation`: always.
    speaks: bool,
    /// Whether text at this place is of a system prompt.
    instructs: bool,
}

fn is_conversation(plan: &Plan) -> bool {
    plan.chain || plan.prefix == PrefixMode::Conversation
}

impl<'p> Canonical<'p> {
    fn new(plan: &'p Plan) -> Self {
        Canonical { plan, parts: Default::default() }
    }

    fn section(&mut self, place: usize, takes_part: bool, read: impl FnOnce(&mut Part)) {
        let part = &mut self.parts[place];
        part.conversation = is_conversation(self.plan);
        part.chain = self.plan.chain;
        part.chars_left = self.plan.prefix_chars;
        part.closed = !takes_part;
        part.speaks = true;
        read(part);
        if part.conversation && !self.plan.chain {
            part.bytes.truncate(self.plan.prefix_bytes as usize);
        }
    }

    fn prefix(&self) -> Option<(u64, u64)> {
        let [tools, system, main, _] = &self.parts;
        if !is_conversation(self.plan) {
            return (!main.bytes.is_empty()).then(|| (main.hash(), main.bytes.len() as u64));
        }
        let has_text = |part: &Part| part.bytes.iter().any(|(_, text)| *text);
        if !has_text(system) && !has_text(main) {
            return None;
        }
        let (mut joined, mut bytes) = (Vec::new(), 0);
        for (place, part) in [tools, system, main].into_iter().enumerate().filter(|(_, part)| !part.bytes.is_empty()) {
            joined.push(place as u8);
            joined.extend(part.hash().to_le_bytes());
            bytes += part.bytes.len() as u64;
        }
        Some((xxh64(&joined, 0), bytes))
    }

    /// A link for each whole block of each section, which says what came before it too.
    fn chain(&self) -> Vec<u64> {
        let mut chain = Vec::new();
        if !self.plan.chain {
            return chain;
        }
        let linked = |root: u64, link: u64| folded(root ^ link, 0x9e37_79b1_85eb_ca87 ^ root.rotate_left(32));
        let mut root = ROOT;
        for (place, part) in (1..).zip(&self.parts[..3]) {
            let bytes: Vec<u8> = part.bytes.iter().map(|(byte, _)| *byte).collect();
            let ends = (256..=bytes.len()).step_by(256);
            chain.extend(ends.map(|end| linked(root, hashed(&bytes[..end]))));
            if !bytes.is_empty() {
                root = linked(root.rotate_left(place), hashed(&bytes));
            }
        }
        chain.truncate(4_096);
        chain
    }

    /// What is not of the first prompt.
    fn beside(&self) -> Option<Counts> {
        let [_, _, main, extra] = &self.parts;
        let others = main.items.first().map_or(Counts::default(), |first| difference(main.counts, *first));
        let all = self.counts();
        let first = difference(difference(all, others), extra.counts);
        (main.items.len() > 1 || first != all).then(|| difference(all, first))
    }

    fn counts(&self) -> Counts {
        let sum = |of: fn(&Counts) -> u64| self.parts.iter().map(|part| of(&part.counts)).sum();
        Counts { text_bytes: sum(|c| c.text_bytes), ids: sum(|c| c.ids), media: sum(|c| c.media) }
    }
}

fn difference(all: Counts, before: Counts) -> Counts {
    Counts {
        text_bytes: all.text_bytes - before.text_bytes,
        ids: all.ids - before.ids,
        media: all.media - before.media,
    }
}

/// What is left of a text of a system prompt when its first line is not part of it.
fn without_attribution(text: &[u8]) -> &[u8] {
    match text.starts_with(b"x-anthropic-billing-header") {
        true => text.split_inclusive(|byte| *byte == b'\n').next().map_or(text, |line| &text[line.len()..]),
        false => text,
    }
}

impl Part {
    /// A bare string or list in an array is over.
    fn item_ends(&mut self) {
        self.items.push(self.counts);
        self.closed = true;
    }

    fn hash(&self) -> u64 {
        let bytes: Vec<u8> = self.bytes.iter().map(|(byte, _)| *byte).collect();
        hashed(&bytes)
    }

    fn extend(&mut self, bytes: &[u8], text: bool) {
        self.bytes.extend(bytes.iter().map(|byte| (*byte, text)));
    }

    fn mark(&mut self, mark: u8) {
        if self.conversation && !self.closed {
            self.bytes.push((mark, mark == 0xfb));
        }
    }

    fn text(&mut self, text: &[u8]) {
        let text = if self.instructs { without_attribution(text) } else { text };
        self.counts.text_bytes += text.len() as u64;
        self.text_uncounted(text);
    }

    fn text_uncounted(&mut self, text: &[u8]) {
        for &byte in text {
            if self.closed || !self.speaks {
                return;
            }
            if !self.conversation && byte & 0xc0 != 0x80 {
                if self.chars_left == 0 {
                    self.closed = true;
                    return;
                }
                self.chars_left -= 1;
            }
            self.bytes.push((byte, true));
        }
    }

    fn raw(&mut self, raw: &[u8], marked: bool) {
        if marked {
            self.mark(0xfc);
        }
        self.counts.text_bytes += raw.len() as u64;
        if self.conversation && !self.closed {
            self.extend(raw, true);
        }
    }

    /// A system prompt, but for what Claude Code makes anew for each request: a line of a bare text, or a block whose
    /// one text says so.
    fn top_without_attribution(&mut self, value: &Tree) {
        self.instructs = true;
        let Tree::Array(blocks, _) = value else { return self.top(value) };
        for block in blocks {
            let (start, closed) = (self.bytes.len(), self.closed);
            self.items(std::slice::from_ref(block), 1);
            let Tree::Object(entries, _) = block else { continue };
            let said = b"\xf8\xfax-anthropic-billing-header";
            let written = self.bytes.get(start..).unwrap_or_default();
            let is_it = written.len() <= 1 + HELD_MAX && written.iter().map(|(byte, _)| byte).take(said.len()).eq(said);
            if is_it && !entries.iter().any(|entry| entry.name == b"role" && matches!(entry.value, Tree::Text(..))) {
                self.bytes.truncate(start);
                self.closed = closed;
            }
        }
    }

    /// What is said by a user, and there is nothing else.
    fn only_message(&mut self, text: &[u8]) {
        self.mark(0xf8);
        self.unspoken(b"user");
        self.mark(0xfa);
        self.text(text);
        self.closed |= !self.conversation;
    }

    fn top(&mut self, value: &Tree) {
        match value {
            Tree::Text(text, _) => {
                self.mark(0xfa);
                self.text(text);
            }
            Tree::Array(elements, _) => self.items(elements, 1),
            Tree::Object(entries, _) => self.message(entries, 1),
            Tree::Scalar(_) => {}
        }
    }

    fn items(&mut self, elements: &[Tree], depth: usize) {
        let mut ids = false;
        for element in elements {
            match element {
                Tree::Scalar(value) => {
                    if let Some(id) = value.as_u64().and_then(|id| u32::try_from(id).ok()) {
                        if !ids && !self.closed {
                            self.bytes.push((0xfd, false));
                        }
                        ids = true;
                        self.id(id);
                    }
                }
                Tree::Text(text, _) => {
                    self.mark(0xfa);
                    self.text(text);
                    self.item_ends();
                }
                Tree::Array(elements, _) if depth < DEPTH_MAX => {
                    self.items(elements, depth + 1);
                    self.item_ends();
                }
                Tree::Object(entries, _) if depth < DEPTH_MAX => self.message(entries, depth + 1),
                Tree::Array(..) | Tree::Object(..) => {}
            }
        }
    }

    fn id(&mut self, id: u32) {
        self.counts.ids += 1;
        if !self.conversation && !self.closed {
            self.closed = self.chars_left == 0;
            self.chars_left = self.chars_left.saturating_sub(1);
        }
        if !self.closed {
            self.extend(&id.to_le_bytes(), true);
        }
    }

    fn message(&mut self, entries: &[Entry], depth: usize) {
        let start = self.bytes.len();
        let chars_before = self.chars_left;
        let closed_before = self.closed;
        let instructs_before = std::mem::replace(&mut self.instructs, false);
        let mut role: Option<bool> = None;
        // Before the role everything is read as if it were wanted, then put where it belongs.
        for entry in entries {
            match (entry.name.as_slice(), &entry.value) {
                (b"role", Tree::Text(text, _)) => {
                    let text = if text.len() > 256 { &[][..] } else { text };
                    if role.is_some() {
                        self.mark(0xf9);
                        self.unspoken(text);
                        continue;
                    }
                    role = Some(text == b"user");
                    self.instructs = text == b"system";
                    self.role_known(text, start, chars_before, closed_before);
                }
                (b"role", _) => {}
                (name, value) => self.inner(name, value, true, depth),
            }
        }
        match role {
            Some(true) if !self.conversation => self.closed = true,
            Some(_) => {}
            None if self.conversation && !closed_before => self.bytes.insert(start, (0xf8, false)),
            None => self.forget(start, chars_before, closed_before),
        }
        self.speaks = true;
        self.instructs = instructs_before;
    }

    /// The role came behind `self.bytes[start..]` of its message.
    fn role_known(&mut self, role: &[u8], start: usize, chars_before: u32, closed_before: bool) {
        let before = self.bytes.split_off(start);
        if self.conversation {
            if before.len() <= HELD_MAX {
                self.mark(0xf8);
                self.unspoken(role);
                self.bytes.extend(before);
            } else {
                self.mark(0xf8);
                self.bytes.extend(before);
                self.mark(0xf9);
                self.unspoken(role);
            }
            return;
        }
        self.forget(start, chars_before, closed_before);
        self.speaks = role == b"user";
        // Read again, as much as is held: `before` may have ended at the limit of characters only.
        let before: Vec<u8> = before.into_iter().map(|(byte, _)| byte).collect();
        self.text_uncounted(&before[..before.len().min(HELD_MAX)]);
        if self.speaks && self.chars_left == 0 && before.len() > self.bytes.len() - start {
            self.closed = true;
        }
    }

    fn forget(&mut self, start: usize, chars_before: u32, closed_before: bool) {
        self.bytes.truncate(start);
        (self.chars_left, self.closed) = (chars_before, closed_before);
    }

    fn unspoken(&mut self, role: &[u8]) {
        if self.conversation && !self.closed {
            self.extend(role, false);
        }
    }

    /// A field of a message or part other than its role.
    fn inner(&mut self, name: &[u8], value: &Tree, in_message: bool, depth: usize) {
        let Some(raw) = value.raw() else { return };
        match std::str::from_utf8(name).unwrap() {
            "content" | "text" | "output" | "thinking" => {
                if in_message {
                    self.mark(0xfa);
                }
                match value {
                    Tree::Text(text, _) => self.text(text),
                    Tree::Array(elements, _) if depth < DEPTH_MAX => {
                        for element in elements {
                            match element {
                                Tree::Text(text, _) => self.text(text),
                                Tree::Object(entries, _) if depth + 1 < DEPTH_MAX => self.part(entries, depth + 2),
                                _ => {}
                            }
                        }
                    }
                    Tree::Object(entries, _) if depth < DEPTH_MAX => self.part(entries, depth + 1),
                    _ => {}
                }
            }
            "image_url" | "image" | "image_embeds" | "source" | "input_audio" | "audio_url" | "video_url" | "video"
            | "file" | "file_data" | "audio_embeds" | "video_embeds" | "data" => self.medium(raw),
            "uuid" if in_message || !matches!(value, Tree::Text(..)) => {}
            "uuid" | "tool_calls" | "function_call" | "tool_call_id" | "tool_use_id" | "call_id" | "name"
            | "arguments" | "input" | "reasoning" | "reasoning_content" => self.raw(raw, true),
            _ => {}
        }
    }

    fn medium(&mut self, raw: &[u8]) {
        self.mark(0xfb);
        if self.conversation && !self.closed {
            let times = if self.chain { 500 } else { 1 };
            (0..times).for_each(|_| self.extend(&sampled(raw).to_le_bytes(), true));
        }
        self.counts.media += 1;
    }

    fn part(&mut self, entries: &[Entry], depth: usize) {
        for entry in entries {
            self.inner(&entry.name, &entry.value, false, depth);
        }
    }
}
