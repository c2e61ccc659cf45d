//! A stand-in for an engine: what it answers, and where it says that it publishes.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::publisher::Publisher;
use crate::until;
use crate::wire::{Head, Length, Wire};

/// KV blocks of 16 tokens.
pub const BLOCKS: usize = 512;
pub const BLOCK_SIZE: usize = 16;

pub struct Engine {
    pub address: SocketAddr,
    pub publisher: Publisher,
    listener: Mutex<TcpListener>,
    state: Arc<State>,
}

struct State {
    sources: Mutex<String>,
    started: AtomicU64,
    blocks: AtomicU64,
    block_size: AtomicU64,
    tokens: AtomicU64,
    ranks: AtomicU64,
    ill: AtomicBool,
    hangs: AtomicBool,
    sleeps: AtomicBool,
    refuses: AtomicBool,
    asks_keys: AtomicBool,
    /// How often its metrics were asked for.
    scrapes: AtomicU64,
    /// Whether it tells its flags instead of sources, as SGLang does.
    flags: AtomicBool,
    /// The API key needed to ask where it publishes; empty: none.
    key: Mutex<String>,
    /// An adapter that it lists beside its model; empty: none.
    adapter: Mutex<String>,
    /// Body of the last prompt.
    body: Mutex<Vec<u8>>,
}

impl Engine {
    /// Starts it, with a replay socket or without.
    pub fn start(replays: bool) -> Engine {
        Engine::start_on("127.0.0.1", replays)
    }

    /// Starts it at another address.
    pub fn start_on(host: &str, replays: bool) -> Engine {
        let publisher = Publisher::start(replays);
        let state = Arc::new(State {
            sources: Mutex::new(sources(&publisher)),
            started: AtomicU64::new(1_795_187_461),
            blocks: AtomicU64::new(BLOCKS as u64),
            block_size: AtomicU64::new(BLOCK_SIZE as u64),
            tokens: AtomicU64::new(0),
            ranks: AtomicU64::new(1),
            ill: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            asks_keys: AtomicBool::new(false),
            scrapes: AtomicU64::new(0),
            flags: AtomicBool::new(false),
            key: Mutex::default(),
            adapter: Mutex::default(),
            body: Mutex::default(),
        });
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listen(&listener, &state);
        Engine { address, publisher, listener: listener.into(), state }
    }

    /// The front's name for it.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// The body of the last prompt that it was asked for.
    pub fn body(&self) -> Vec<u8> {
        self.state.body.lock().unwrap().clone()
    }

    /// Has its metrics say that another process is there.
    pub fn is_another_process(&self) {
        self.state.started.fetch_add(60, Ordering::Relaxed);
    }

    /// Waits until the front has read its metrics as they are now, which is certain when it asks for them a second
    /// time. What a new process told before that would be taken for its predecessor's.
    pub fn until_scraped(&self) {
        let before = self.state.scrapes.load(Ordering::Relaxed);
        until("two scrapes", || self.state.scrapes.load(Ordering::Relaxed) >= before + 2);
    }

    /// Its process began at this second; 0: it does not say when.
    pub fn began(&self, second: u64) {
        self.state.started.store(second, Ordering::Relaxed);
    }

    /// Lists an adapter as a model of its own, as vLLM does.
    pub fn lists_adapter(&self, name: &str) {
        name.clone_into(&mut self.state.adapter.lock().unwrap());
    }

    /// Tells where it publishes by its flags, as SGLang does.
    pub fn tells_flags(&self) {
        self.state.flags.store(true, Ordering::Relaxed);
    }

    /// Needs this API key to tell where it publishes.
    pub fn asks_for(&self, key: &str) {
        *self.state.key.lock().unwrap() = key.into();
    }

    /// Has its metrics say another number of blocks.
    pub fn has_blocks(&self, blocks: u64) {
        self.state.blocks.store(blocks, Ordering::Relaxed);
    }

    /// Has its metrics say another block size.
    pub fn has_blocks_of(&self, tokens: usize) {
        self.state.block_size.store(tokens as u64, Ordering::Relaxed);
    }

    /// Has its metrics say for how many tokens it has room: groups of layers may share its blocks, or ranks a context.
    pub fn has_room_for(&self, tokens: usize) {
        self.state.tokens.store(tokens as u64, Ordering::Relaxed);
    }

    /// Replaces its publisher by another process's at other ports; returns the old one.
    pub fn moves(&mut self, replays: bool) -> Publisher {
        let publisher = Publisher::start(replays);
        *self.state.sources.lock().unwrap() = sources(&publisher);
        std::mem::replace(&mut self.publisher, publisher)
    }

    /// Says that it publishes by connecting to these addresses, one for each of its ranks.
    pub fn connects_to(&self, doors: &[SocketAddr]) {
        let source = |at: &SocketAddr| json!({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": format!("tcp://{at}"), "topic": "kv"});
        let all: BTreeMap<usize, serde_json::Value> = doors.iter().map(source).enumerate().collect();
        *self.state.sources.lock().unwrap() = json!(all).to_string();
    }

    /// Has as many ranks, each with one of these publishers.
    pub fn has_ranks(&self, publishers: &[&Publisher]) {
        let all: BTreeMap<usize, serde_json::Value> = publishers.iter().map(|rank| source(rank)).enumerate().collect();
        *self.state.sources.lock().unwrap() = json!(all).to_string();
        self.state.ranks.store(publishers.len() as u64, Ordering::Relaxed);
    }

    /// Says that it publishes nothing.
    pub fn publishes_nothing(&self) {
        *self.state.sources.lock().unwrap() = "{}".into();
    }

    /// Stops listening, or listens again. Others may get its port meanwhile, unless its address is its own.
    pub fn is_gone(&self, gone: bool) {
        let mut listener = self.listener.lock().unwrap();
        if gone {
            rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both).unwrap();
        } else {
            *listener = TcpListener::bind(self.address).unwrap();
            listen(&listener, &self.state);
        }
    }

    /// Sets whether `/health` says that it is ill.
    pub fn is_ill(&self, ill: bool) {
        self.state.ill.store(ill, Ordering::Relaxed);
    }

    /// Sets whether it refuses prompts.
    pub fn refuses(&self, refuses: bool) {
        self.state.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Sets whether it refuses prompts without a key.
    pub fn asks_keys(&self, asks_keys: bool) {
        self.state.asks_keys.store(asks_keys, Ordering::Relaxed);
    }

    /// Sets whether its metrics say that it sleeps.
    pub fn sleeps(&self, sleeps: bool) {
        self.state.sleeps.store(sleeps, Ordering::Relaxed);
    }

    /// Sets whether `/metrics` is not answered.
    pub fn hangs(&self, hangs: bool) {
        self.state.hangs.store(hangs, Ordering::Relaxed);
    }
}

/// Answers connections until the listener is shut down.
fn listen(listener: &TcpListener, state: &Arc<State>) {
    let (listener, state) = (listener.try_clone().unwrap(), Arc::clone(state));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve(Wire::new(stream), &state));
        }
    });
}

/// What `/kv_event_sources` answers.
fn sources(publisher: &Publisher) -> String {
    json!({"0": source(publisher)}).to_string()
}

fn source(publisher: &Publisher) -> serde_json::Value {
    let at = |address: SocketAddr| format!("tcp://*:{}", address.port());
    json!({
        "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": at(publisher.events),
        "replay_endpoint": publisher.replay.map(at), "topic": "kv",
    })
}

impl State {
    fn admits(&self, head: &Head) -> bool {
        let key = self.key.lock().unwrap();
        key.is_empty() || head.get("authorization") == Some(&*format!("Bearer {key}"))
    }

    fn models(&self) -> String {
        let adapter = self.adapter.lock().unwrap();
        let mut models = vec![json!({"id": "tiny", "object": "model", "max_model_len": 8_192})];
        models.extend(
            (!adapter.is_empty()).then(|| json!({"id": adapter.as_str(), "object": "model", "parent": "tiny"})),
        );
        json!({"object": "list", "data": models}).to_string()
    }

    /// What `/server_info` answers; a secret key is in it.
    fn flags(&self) -> String {
        let sources: serde_json::Value = serde_json::from_str(&self.sources.lock().unwrap()).unwrap();
        let mut config = sources["0"].clone();
        config.as_object_mut().unwrap().remove("enable_kv_cache_events");
        json!({"dp_size": 1, "api_key": "sk-secret", "kv_events_config": config.to_string()}).to_string()
    }

    fn metrics(&self) -> String {
        let started = match self.started.load(Ordering::Relaxed) {
            0 => String::new(),
            started => format!("process_start_time_seconds {started}.5\n"),
        };
        let (blocks, size) = (self.blocks.load(Ordering::Relaxed), self.block_size.load(Ordering::Relaxed));
        let tokens = match self.tokens.load(Ordering::Relaxed) {
            0 => String::new(),
            tokens => format!("kv_cache_size_tokens=\"{tokens}\","),
        };
        let ranks = self.ranks.load(Ordering::Relaxed);
        let awake = u8::from(!self.sleeps.load(Ordering::Relaxed));
        let rank = |rank: u64| {
            format!(
                "vllm:cache_config_info{{{tokens}block_size=\"{size}\",engine=\"{rank}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"True\"}} 1.0\n\
                 vllm:num_requests_running{{engine=\"{rank}\",model_name=\"tiny\"}} 0.0\n\
                 vllm:num_requests_waiting{{engine=\"{rank}\",model_name=\"tiny\"}} 0.0\n\
                 vllm:kv_cache_usage_perc{{engine=\"{rank}\",model_name=\"tiny\"}} 0.0\n\
                 vllm:engine_sleep_state{{engine=\"{rank}\",sleep_state=\"awake\"}} {awake}\n",
                blocks * ranks
            )
        };
        (0..ranks).map(rank).collect::<String>() + &started
    }
}

fn serve(mut wire: Wire, state: &State) {
    while let Some(head) = wire.head() {
        let body = wire.body(head.length().unwrap_or(Length::Of(0)));
        let flags = state.flags.load(Ordering::Relaxed);
        let (kind, text) = match head.start.split(' ').nth(1).unwrap_or_default() {
            "/kv_event_sources" | "/get_server_info" if flags => ("", String::new()),
            "/server_info" if flags => ("application/json", state.flags()),
            "/health" if state.ill.load(Ordering::Relaxed) => return,
            "/health" => ("text/plain", String::new()),
            "/metrics" => {
                while state.hangs.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                state.scrapes.fetch_add(1, Ordering::Relaxed);
                ("text/plain; version=0.0.4", state.metrics())
            }
            "/v1/models" => ("application/json", state.models()),
            "/kv_event_sources" if !state.admits(&head) => ("text/plain", "who are you?".to_owned()),
            "/kv_event_sources" => ("application/json", state.sources.lock().unwrap().clone()),
            _ if state.asks_keys.load(Ordering::Relaxed) && head.get("authorization").is_none() => {
                ("text/plain", "key?".to_owned())
            }
            _ if state.refuses.load(Ordering::Relaxed) => ("text/plain", "no".to_owned()),
            _ => {
                *state.body.lock().unwrap() = body.data;
                // It says that all of it was cached, so that no prediction counts as too high.
                let usage = json!({"prompt_tokens": 800, "completion_tokens": 1, "total_tokens": 801, "prompt_tokens_details": {"cached_tokens": 800}});
                let answer = json!({"id": "x", "object": "chat.completion", "model": "tiny", "choices": [{"index": 0, "message": {"role": "assistant", "content": "."}}], "usage": usage});
                ("application/json", answer.to_string())
            }
        };
        let status = match (kind, &*text) {
            ("", _) => "404 Not Found",
            (_, "no") => "400 Bad Request",
            (_, "who are you?" | "key?") => "401 Unauthorized",
            _ => "200 OK",
        };
        let reply =
            format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        if wire.stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}
