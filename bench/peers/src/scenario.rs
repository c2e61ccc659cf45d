//! What is measured.

use crate::content::Pace;

pub struct Scenario {
    pub name: &'static str,
    pub title: String,
    pub pace: Pace,
    pub connections: usize,
    pub body_bytes: usize,
    pub tokens: u32,
    pub vary: u32,
    pub rate: u32,
    /// Fronts that can are to choose by the whole conversation.
    pub by_prompt: bool,
    /// No request begins like another. This measures a policy, not a front: the scenario runs only if it is named.
    pub fresh: bool,
    /// The figure that is compared, and further columns, by names of the load generator's values.
    pub cost: Column,
    pub columns: &'static [Column],
}

#[derive(Clone, Copy)]
pub struct Column {
    pub heading: &'static str,
    pub key: &'static str,
    pub digits: usize,
}

pub const fn column(heading: &'static str, key: &'static str, digits: usize) -> Column {
    Column { heading, key, digits }
}

pub const PER_REQUEST: Column = column("us/req", "cpu_us_per_request", 2);
pub const PER_CHUNK: Column = column("us/chunk", "cpu_us_per_chunk", 2);
pub const REPLIES: &[Column] = &[
    column("req/s", "requests_per_second", 0),
    column("p50 us", "p50_us", 0),
    column("p99 us", "p99_us", 0),
    column("cpu %", "cpu_percent", 0),
];
pub const STREAMS: &[Column] = &[
    column("chunks/s", "chunks_per_second", 0),
    column("streams", "verified_requests", 0),
    column("cpu %", "cpu_percent", 0),
    CHUNKS_PER_READ,
];
/// Columns of streams whose engine sends each event at a time of its own: a front that holds some back to write them
/// together costs less a chunk, and stands out by these.
pub const PACED_STREAMS: &[Column] = &[
    column("chunks/s", "chunks_per_second", 0),
    column("streams", "verified_requests", 0),
    column("cpu %", "cpu_percent", 0),
    CHUNKS_PER_READ,
    column("delay p50", "delay_p50_us", 0),
    column("delay p99", "delay_p99_us", 0),
];
const CHUNKS_PER_READ: Column = column("chunks/read", "chunks_per_read", 2);
const MEMORY: &[Column] = &[column("KiB before", "rss_before_kib", 0), column("KiB idle", "rss_idle_kib", 0)];
const LATENCY: &[Column] = &[
    column("p99 us", "p99_us", 0),
    column("added p50", "added_p50_us", 0),
    column("added p99", "added_p99_us", 0),
    column("us/req", "cpu_us_per_request", 2),
];

impl Scenario {
    /// The smallest exchange, from which the other scenarios differ.
    pub fn plain() -> Scenario {
        Scenario {
            name: "plain",
            title: "1 KB request, 1 KB reply, 64 connections".into(),
            pace: Pace::Plain,
            connections: 64,
            body_bytes: 1024,
            tokens: 100,
            vary: 0,
            rate: 0,
            by_prompt: false,
            fresh: false,
            cost: PER_REQUEST,
            columns: REPLIES,
        }
    }
}

/// Scenarios that `only` names, by name or by its first words; if it names none, all that need not be named.
pub fn chosen(mut scenarios: Vec<Scenario>, only: &[String]) -> Result<Vec<Scenario>, String> {
    let matches = |name: &str, word: &str| name == word || name.starts_with(&format!("{word}-"));
    if let Some(word) = only.iter().find(|word| !scenarios.iter().any(|scenario| matches(scenario.name, word))) {
        let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
        return Err(format!("--only {word}: no such scenario; there are {}", names.join(", ")));
    }
    scenarios.retain(|scenario| match only {
        [] => !scenario.fresh,
        only => only.iter().any(|word| matches(scenario.name, word)),
    });
    Ok(scenarios)
}

/// `quick` shortens scenarios that take time of their own: paced streams have fewer tokens, and fewer streams are idle.
pub fn all(quick: bool, idle_streams: usize) -> Vec<Scenario> {
    // Streams of different lengths: equal ones would all end, and begin again, together.
    let (tokens, vary) = if quick { (30, 20) } else { (100, 50) };
    let stream = |name, title: &str, pace| Scenario {
        name,
        title: title.into(),
        pace,
        cost: PER_CHUNK,
        columns: STREAMS,
        ..Scenario::plain()
    };
    let paced = |name, title: &str, pace| Scenario {
        connections: 500,
        tokens,
        vary,
        columns: PACED_STREAMS,
        ..stream(name, title, pace)
    };
    // 1 MB is 1,000,000 bytes: within the 1 MiB that warmfront holds by default while it looks for `model`.
    let prompt = |name, title: &str, body_bytes, connections| Scenario {
        name,
        title: title.into(),
        body_bytes,
        connections,
        by_prompt: true,
        ..Scenario::plain()
    };
    vec![
        Scenario::plain(),
        stream("stream-flat", "100-token streams flat out, 64 connections", Pace::Flat),
        paced("stream-step", "500 streams, one decode step of 20-30 ms for all of an engine", Pace::Step),
        paced("stream-phase", "500 streams, steps of 20-30 ms, each at its own time", Pace::Phase),
        prompt("prompt-2k", "2 KB chat prompt, model last, 1 KB reply, 16 connections", 2_048, 16),
        prompt("prompt-128k", "128 KB chat prompt, model last, 1 KB reply, 16 connections", 131_072, 16),
        prompt("prompt-1m", "1 MB chat prompt, model last, 1 KB reply, 8 connections", 1_000_000, 8),
        Scenario {
            fresh: true,
            ..prompt("fresh-128k", "128 KB chat prompts that nobody holds, 16 connections", 131_072, 16)
        },
        Scenario {
            name: "speech",
            title: "1 KB request, 1 MB of audio, 8 connections".into(),
            pace: Pace::Speech,
            connections: 8,
            ..Scenario::plain()
        },
        Scenario {
            name: "idle",
            title: format!("{idle_streams} idle streams: head and first event sent, then silence"),
            pace: Pace::Hold,
            connections: idle_streams,
            cost: column("KiB/stream", "rss_kib_per_stream", 3),
            columns: MEMORY,
            ..Scenario::plain()
        },
        Scenario {
            name: "latency",
            title: "1 KB request, 1 KB reply, 500 requests a second on schedule".into(),
            rate: 500,
            cost: column("p50 us", "p50_us", 0),
            columns: LATENCY,
            ..Scenario::plain()
        },
    ]
}
