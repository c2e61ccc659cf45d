//! Two engines that tell what they hold, a front that chooses by it, and requests to that.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::front::{Client, Front};
use crate::tokens::FOLDER;
use crate::until;

pub struct Scene {
    pub engines: [Engine; 2],
    pub front: Front,
    pub driver: &'static str,
}

/// A choice, as the reply tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The engine's place.
    pub place: usize,
    pub held: usize,
    pub reason: String,
}

/// The configuration of all these tests, with more at the end of its last table.
pub fn config(more: &str) -> String {
    config_of(&FOLDER, more)
}

/// The same with another folder's model. Its timeouts are long: engines are threads of this process, which may all
/// stand still for a second or two.
pub fn config_of(folder: &Path, more: &str) -> String {
    let folder = folder.display();
    format!(
        "[routing]\npolicy = \"precise\"\nqueue = \"off\"\ntokenizer = \"{folder}\"\n\
         [health]\nprobe_interval_ms = 100\nprobe_timeout_ms = 5000\n{more}"
    )
}

impl Scene {
    /// Starts engines with replay sockets and empty caches, and waits until all of that is known.
    pub fn start(driver: &'static str) -> Scene {
        let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config(""));
        scene.until_exact();
        scene
    }

    pub fn of(driver: &'static str, engines: [Engine; 2], config: &str) -> Scene {
        let addresses: [SocketAddr; 2] = engines.each_ref().map(|engine| engine.address);
        let front = Front::start(driver, &addresses, config);
        let scene = Scene { engines, front, driver };
        (0..2).for_each(|place| scene.front.until_health(place, "up"));
        scene
    }

    /// The same with engines that list an adapter beside their model, and more of a configuration.
    pub fn with_adapter(driver: &'static str, name: &str, more: &str) -> Scene {
        let engines = [Engine::start(true), Engine::start(true)];
        engines.iter().for_each(|engine| engine.lists_adapter(name));
        let scene = Scene::of(driver, engines, &config(more));
        scene.until_exact();
        let listed = || String::from_utf8(scene.front.connect().get("/v1/models").body.data).unwrap();
        until(&format!("{driver}: {name} is listed"), || listed().contains(&format!("\"{name}\"")));
        scene
    }

    /// Waits until all of both engines is known and heard: what an engine publishes before it has read the subscription
    /// is lost.
    pub fn until_exact(&self) {
        (0..2).for_each(|place| self.until_rung(place, "exact"));
        (0..2).for_each(|place| self.until_subscribed(place, 1));
    }

    pub fn until_rung(&self, place: usize, rung: &str) {
        let what = format!("{}: rung {rung} of engine {place}", self.driver);
        until(&what, || self.front.endpoint(place)["cache"]["rung"] == rung);
    }

    /// Waits until an engine's metrics have been read.
    pub fn until_known(&self, place: usize) {
        let what = format!("{}: metrics of engine {place}", self.driver);
        until(&what, || !self.front.endpoint(place)["engine"].is_null());
    }

    /// Waits until all that an engine has published so far is read.
    pub fn until_read(&self, place: usize) {
        self.until_counted(
            "warmfront_kv_events_batches_total",
            place,
            self.engines[place].publisher.published() as f64,
        );
    }

    pub fn until_counted(&self, name: &str, place: usize, least: f64) {
        let what = format!("{}: {name} {least} of engine {place}", self.driver);
        until(&what, || self.counted(name, place) >= least);
    }

    /// An engine's own counter.
    pub fn counted(&self, name: &str, place: usize) -> f64 {
        self.front.metric(&format!("{name}{{endpoint=\"{}\"", self.engines[place].name()))
    }

    /// Waits until an engine has so many subscribers.
    pub fn until_subscribed(&self, place: usize, connections: usize) {
        let what = format!("{}: connection {connections} to what engine {place} publishes", self.driver);
        until(&what, || self.engines[place].publisher.connections() >= connections);
    }

    pub fn why(&self, place: usize) -> Value {
        self.front.endpoint(place)["cache"]["why"].clone()
    }

    /// Publishes, and waits until it is read.
    pub fn tells(&self, place: usize, events: &[Value]) {
        let read = self.counted("warmfront_kv_events_batches_total", place);
        self.engines[place].publisher.publish(events);
        self.until_counted("warmfront_kv_events_batches_total", place, read + 1.0);
    }

    /// Sends one user's message.
    pub fn chat(&self, content: &str) -> Chosen {
        self.ask("/v1/chat/completions", &body(content))
    }

    pub fn ask(&self, path: &str, body: &Value) -> Chosen {
        let body = body.to_string();
        self.sent(&format!("POST {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len()), &body)
    }

    /// Sends a request that its engine refuses.
    pub fn ask_in_vain(&self, path: &str, body: &Value) {
        let (mut client, body) = (self.front.connect(), body.to_string());
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n");
        client.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
        let head = client.head();
        assert!(head.start.contains(" 400 ") && client.body(&head).whole, "{}: {}", self.driver, head.start);
    }

    /// Sends a request in chunks of so many bytes.
    pub fn ask_in_chunks(&self, path: &str, body: &Value, bytes: usize) -> Chosen {
        let body = body.to_string();
        let chunks = body
            .as_bytes()
            .chunks(bytes)
            .map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap()));
        let chunks: String = chunks.collect::<String>() + "0\r\n\r\n";
        self.sent(&format!("POST {path} HTTP/1.1\r\ntransfer-encoding: chunked\r\n"), &chunks)
    }

    fn sent(&self, head: &str, body: &str) -> Chosen {
        let mut client: Client = self.front.connect();
        client
            .send(&format!("{head}host: x\r\ncontent-type: application/json\r\nx-warmfront-explain: 1\r\n\r\n{body}"));
        let head = client.head();
        assert!(head.start.contains(" 200 "), "{}: {}", self.driver, head.start);
        assert!(client.body(&head).whole);
        let told =
            head.get("x-warmfront-explain").unwrap_or_else(|| panic!("{}: nothing is told: {head:?}", self.driver));
        let value = |name: &str| {
            let mut pairs = told.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no {name}: {told}")).1.to_owned()
        };
        let place = self.engines.iter().position(|engine| engine.name() == value("endpoint")).unwrap();
        Chosen { place, held: value("held").parse().unwrap(), reason: value("reason") }
    }
}

/// The body with one user's message.
pub fn body(content: &str) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 1})
}
