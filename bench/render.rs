//! What it costs to write a chat's prompt in its model's form, with all links of its chain:
//! `cargo bench --bench render`.
//!
//! Every call is timed alone; the clock's own time is in each figure. Beside it stands the scan that the same body had
//! before, which reads it whole and leaves a chain of blocks. `hot`: one body again and again; `cold`: bodies of 64 MiB
//! in turn, so that none is in a cache of its core when its turn comes.

#[path = "words.rs"]
mod words;

use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use warmfront::scan::{Api, Calls, Chat, Form, Needs, Plan, Progress, Renderer, Rendering, Scan, Toolset, Turn};
use warmfront::vocabulary::Vocabulary;

use words::{CODE, PROSE};

const BODY_BYTES: [usize; 3] = [2 << 10, 16 << 10, 128 << 10];
const COLD_BYTES: usize = 64 << 20;

/// ChatML. `sieves`: answers may hold what stops the form, and questions are trimmed.
fn form(sieves: bool) -> Form {
    let turn = |role: &str| {
        let stops: &[&[u8]] = if sieves && role == "assistant" { &[b"</think>"] } else { &[] };
        Turn {
            role: role.as_bytes().into(),
            before: format!("<|im_start|>{role}\n").into_bytes().into(),
            after: b"<|im_end|>\n"[..].into(),
            trims: sieves && role == "user",
            stops: stops.iter().map(|stop| (*stop).into()).collect(),
            ..Turn::default()
        }
    };
    let mut turns = ["system", "user", "assistant", "tool"].map(turn);
    turns[2].calls = Some(Calls {
        behind: Some(b"\n<tool_call>\n{\"name\": \""[..].into()),
        bare: Some(b"<tool_call>\n{\"name\": \""[..].into()),
        arguments: b"\", \"arguments\": "[..].into(),
        next: b"}\n</tool_call>\n<tool_call>\n{\"name\": \""[..].into(),
        after: b"}\n</tool_call><|im_end|>\n"[..].into(),
    });
    turns[3].joined = Some(b"\n</tool_response>\n<tool_response>\n"[..].into());
    let chat = Chat {
        turns: Box::new(turns),
        joint: b"\n"[..].into(),
        generation: b"<|im_start|>assistant\n"[..].into(),
        ..Chat::default()
    };
    let toolset = Toolset { tools: tools().into_bytes().into(), chat: Some(chat.clone()) };
    Form { id: 1, chat: Some(chat), vocabulary: Arc::new(Vocabulary::default()), toolsets: [toolset.into()].into() }
}

/// Eight tools, some 2 KB.
fn tools() -> String {
    let tool = |number: usize| {
        let properties = r#"{"path":{"type":"string","description":"Where it is."},"content":{"type":"string","description":"What is written there."}}"#;
        format!(
            r#"{{"type":"function","function":{{"name":"tool_{number}","description":"Does one of eight things.","parameters":{{"type":"object","properties":{properties}}}}}}}"#
        )
    };
    format!("[{}]", (0..8).map(tool).collect::<Vec<_>>().join(","))
}

/// An agent's chat of about `bytes` bytes: calls that write files, their results, and the tools after them.
fn agents(words: &[&str], bytes: usize, number: u64) -> Vec<u8> {
    let texts = String::from_utf8(body(words, bytes, number)).expect("text");
    let mut contents =
        texts.split("\"content\":\"").skip(2).filter_map(|rest| rest.split_once("\"}").map(|(text, _)| text));
    let mut text = String::from(r#"{"messages":[{"role":"user","content":"Write it."}"#);
    let end = bytes - tools().len() - 256;
    while let (Some(code), Some(result)) = (contents.next(), contents.next()) {
        // JSON in JSON: escapes are escaped again.
        let arguments = format!(
            r#"{{\"path\":\"src/lib.rs\",\"content\":\"{}\"}}"#,
            code.replace('\\', "\\\\").replace('"', "\\\"")
        );
        let call = format!(
            r#"{{"id":"call_{number}","type":"function","function":{{"name":"write","arguments":"{arguments}"}}}}"#
        );
        if text.len() + call.len() + result.len() + 256 > end {
            break;
        }
        let _ = write!(
            text,
            r#",{{"role":"assistant","content":null,"tool_calls":[{call}]}},{{"role":"tool","tool_call_id":"call_{number}","content":"{result}"}}"#
        );
    }
    let _ = write!(text, r#"],"model":"meta-llama/Llama-3.1-8B-Instruct","stream":true,"tools":{}}}"#, tools());
    text.into_bytes()
}

/// A chat of about `bytes` bytes: sixteen turns.
fn body(words: &[&str], bytes: usize, number: u64) -> Vec<u8> {
    let mut state = number + 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut text = String::with_capacity(bytes + 4_096);
    text.push_str(r#"{"messages":[{"role":"system","content":"You answer questions on serving language models."}"#);
    for role in ["user", "assistant"].iter().cycle() {
        let _ = write!(text, r#",{{"role":"{role}","content":"{number}:"#);
        let end = (text.len() + bytes / 16).min(bytes.saturating_sub(128));
        while text.len() < end {
            text.push(' ');
            text.push_str(words[next() % words.len()]);
        }
        text.push_str("\"}");
        if text.len() + 256 > bytes {
            break;
        }
    }
    text.push_str(r#"],"model":"meta-llama/Llama-3.1-8B-Instruct","max_tokens":256,"stream":true,"temperature":0.7}"#);
    text.into_bytes()
}

/// The least and the median of so many calls, each timed alone, in µs.
fn timed(rounds: usize, mut call: impl FnMut(usize)) -> [f64; 2] {
    let mut nanos: Vec<u64> = (0..rounds)
        .map(|round| {
            let begun = Instant::now();
            call(round);
            begun.elapsed().as_nanos() as u64
        })
        .collect();
    nanos.sort_unstable();
    [nanos[0], nanos[rounds / 2]].map(|nanos| nanos as f64 / 1_000.0)
}

/// Scan, plan and renderer, used for one body after the other.
struct Worker {
    scan: Box<Scan>,
    plan: Plan,
    renderer: Box<Renderer>,
    form: Form,
    tools: bool,
    blocks: Vec<u64>,
    steps: Vec<u64>,
}

impl Worker {
    fn scan(&mut self, body: &[u8]) {
        self.scan.begin(Api::Chat, &self.plan, Needs::MODEL | Needs::PREFIX);
        if self.scan.push(body) == Progress::More {
            assert_eq!(self.scan.finish(), Progress::Done);
        }
        self.scan.facts().chain(7, &mut self.blocks);
        black_box(&self.blocks);
    }

    fn render(&mut self, body: &[u8]) -> Rendering {
        let rendering = self.renderer.render(Api::Chat, &self.form, body, self.tools);
        self.renderer.links(7, &mut self.blocks, &mut self.steps);
        black_box((&self.blocks, &self.steps));
        rendering
    }
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--test");
    let rounds = if quick { 10 } else { 20_000 };
    println!("µs: least and median. The clock takes {:.2}.\n", timed(20_000, |_| {})[1]);
    println!("{:14} {:>8} {:>8} | {:^35} | {:^35}", "", "", "", "scanned", "rendered, with links");
    println!(
        "{:14} {:>8} {:>8} | {:^17} {:^17} | {:^17} {:^17}",
        "text", "body", "prompt", "hot", "cold", "hot", "cold"
    );
    for (name, words, sieves, tools) in [
        ("prose", PROSE, false, false),
        ("code", CODE, false, false),
        ("prose, sieved", PROSE, true, false),
        ("code, sieved", CODE, true, false),
        ("agent, prose", PROSE, false, true),
        ("agent, code", CODE, false, true),
    ] {
        for bytes in BODY_BYTES.into_iter().filter(|bytes| !tools || *bytes > 4 << 10) {
            let write = if tools { agents } else { body };
            let count = if quick { 4 } else { COLD_BYTES / bytes };
            let bodies: Vec<Vec<u8>> = (0..count as u64).map(|number| write(words, bytes, number)).collect();
            let mut worker = Worker {
                scan: Box::new(Scan::new()),
                plan: Plan { chain: true, ..Plan::default() },
                renderer: Box::new(Renderer::new()),
                form: form(sieves),
                tools,
                blocks: Vec::new(),
                steps: Vec::new(),
            };
            let rendering = worker.render(&bodies[0]);
            assert_eq!(rendering.ends, None);
            let shown = |[least, median]: [f64; 2]| format!("{least:8.2} {median:8.2}");
            let columns = [
                shown(timed(rounds, |_| worker.scan(black_box(&bodies[0])))),
                shown(timed(rounds.min(2 * count), |round| worker.scan(&bodies[round % count]))),
                shown(timed(rounds, |_| _ = worker.render(black_box(&bodies[0])))),
                shown(timed(rounds.min(2 * count), |round| _ = worker.render(&bodies[round % count]))),
            ];
            let [hot, cold, own, own_cold] = columns;
            println!("{name:14} {:8} {:8} | {hot} {cold} | {own} {own_cold}", bodies[0].len(), rendering.bytes);
        }
    }
}
