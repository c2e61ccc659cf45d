//! Microseconds to scan one request body: this scanner against copying it and against parsing it whole.
//!
//! `cargo bench --bench scan [-- FILTER]`. Each scan's prefix is compared with that of the same body in pieces before
//! it is timed: a fast wrong answer is no result.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warmfront::scan::PrefixMode;
use warmfront::scan::{Api, Needs, Plan, Progress, Scan};

/// Prose, as clients send it: ASCII, an escaped line end every few hundred bytes.
const PROSE: &str = "The engine keeps the blocks of a prompt it has seen, and a request that begins with the same \
    text finds them warm. What differs between endpoints is therefore not their speed but their memory, and a \
    front that forgets where it sent a conversation pays for its prefill again and again.\\n";
/// Source code in a JSON string: an escape every dozen bytes.
const CODE: &str = "fn main() {\\n    let name = \\\"scan\\\";\\n\\tprintln!(\\\"{name}: {}\\\\n\\\", 3 * 14);\\n}\\n";
const CJK: &str = "引擎保留它见过的提示块以同样文字开头的请求会发现它们是热的。";
const ESCAPED: &str = "\\u5f15\\u64ce\\u4fdd\\u7559\\u5b83\\u89c1\\u8fc7\\u7684\\u63d0\\u793a\\ud83d\\ude00";

fn filled(with: &str, bytes: usize) -> String {
    with.repeat(bytes.div_ceil(with.len()))
}

fn chat(messages: usize, text: &str) -> Vec<u8> {
    let message = |place: usize| {
        let role = ["user", "assistant"][place % 2];
        format!("{{\"role\":\"{role}\",\"content\":\"{text}\"}}")
    };
    let list: Vec<String> = (0..messages).map(message).collect();
    let head = "{\"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"stream\":true,\"messages\":[";
    let tail = "],\"max_tokens\":256,\"temperature\":0.7,\"user\":\"u-1\"}";
    format!("{head}{}{tail}", list.join(",")).into_bytes()
}

fn tools(bytes: usize) -> Vec<u8> {
    let tool = r#"{"type":"function","function":{"name":"get_weather","description":"Weather of a city, today","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"type":"string","enum":["c","f"]}},"required":["city","unit"]}}}"#;
    let list = vec![tool; bytes / tool.len()].join(",");
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Weather in Paris?"}}],"tools":[{list}]}}"#).into()
}

fn image(bytes: usize) -> Vec<u8> {
    let data = filled("iVBORw0KGgoAAAANSUhEUgAA", bytes);
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"What is this?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]}}"#).into()
}

fn token_ids(count: usize) -> Vec<u8> {
    let ids: Vec<String> = (0..count).map(|place| (place * 7919 % 128_000).to_string()).collect();
    format!("{{\"model\":\"m\",\"prompt\":[{}]}}", ids.join(", ")).into()
}

fn bodies() -> Vec<(&'static str, Api, Vec<u8>)> {
    vec![
        ("chat_2k", Api::Chat, chat(2, &filled(PROSE, 900))),
        ("chat_16k", Api::Chat, chat(20, &filled(PROSE, 700))),
        ("chat_128k", Api::Chat, chat(4, &filled(PROSE, 32_000))),
        ("chat_1m", Api::Chat, chat(8, &filled(PROSE, 131_072))),
        ("code_64k", Api::Chat, chat(4, &filled(CODE, 16_000))),
        ("cjk_64k", Api::Chat, chat(4, &filled(CJK, 16_000))),
        ("escaped_128k", Api::Chat, chat(4, &filled(ESCAPED, 32_000))),
        ("tools_64k", Api::Chat, tools(64_000)),
        ("image_2m", Api::Chat, image(2 << 20)),
        ("ids_16k", Api::Completions, token_ids(16_384)),
    ]
}

fn scan_whole(scan: &mut Scan, api: Api, plan: &Plan, needs: Needs, pieces: &[&[u8]]) -> Option<u64> {
    scan.begin(api, plan, needs);
    for piece in pieces {
        if scan.push(piece) != Progress::More {
            return scan.facts().prefix().map(|prefix| prefix.hash);
        }
    }
    assert_eq!(scan.finish(), Progress::Done);
    scan.facts().prefix().map(|prefix| prefix.hash)
}

fn compare(criterion: &mut Criterion) {
    let plan = |prefix| Plan { prefix, prefix_chars: 100, prefix_bytes: u32::MAX, chain: false, ..Plan::default() };
    let conversation = plan(PrefixMode::Conversation);
    let first_user = plan(PrefixMode::FirstUser);
    let whole = Needs::MODEL | Needs::PREFIX | Needs::WHOLE;
    let mut scan = Box::new(Scan::new());
    for (name, api, body) in bodies() {
        let pieces: Vec<&[u8]> = body.chunks(1_448).collect();
        let one = scan_whole(&mut scan, api, &conversation, whole, &[&body]);
        assert!(one.is_some());
        assert_eq!(one, scan_whole(&mut scan, api, &conversation, whole, &pieces));

        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
        group.bench_function("scan/conversation", |bencher| {
            bencher.iter(|| scan_whole(&mut scan, api, &conversation, whole, &[black_box(&body)]));
        });
        group.bench_function("scan/conversation_1448", |bencher| {
            bencher.iter(|| scan_whole(&mut scan, api, &conversation, whole, black_box(&pieces)));
        });
        group.bench_function("scan/first_user", |bencher| {
            let needs = Needs::MODEL | Needs::PREFIX;
            bencher.iter(|| scan_whole(&mut scan, api, &first_user, needs, &[black_box(&body)]));
        });
        group.bench_function("scan/skip", |bencher| {
            bencher.iter(|| scan_whole(&mut scan, api, &first_user, Needs::WHOLE, &[black_box(&body)]));
        });
        let mut copy = body.clone();
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&body)));
        });
        group.bench_function("simd_json", |bencher| {
            bencher.iter(|| {
                copy.copy_from_slice(&body);
                simd_json::to_borrowed_value(black_box(&mut copy)).is_ok()
            });
        });
        group.bench_function("serde_json", |bencher| {
            bencher.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(&body)).is_ok());
        });
        group.finish();
    }
}

criterion_group!(benches, compare);
criterion_main!(benches);
