//! What is asked, and what has to come back: both sides make a reply from the request's number.

use std::fmt::Write as _;
use std::time::Duration;

use peers::content;

/// Fields that say who asks and how urgently.
#[derive(Clone, Copy, Default)]
pub struct Asker {
    pub tenant: Option<&'static str>,
    pub priority: Option<i8>,
}

/// A request of the bench.
#[derive(Clone, Copy)]
pub struct Request {
    pub id: u64,
    /// How long an engine works on the request.
    pub service: Duration,
    /// Events of the stream; 0: the reply comes in one piece.
    pub events: u32,
    /// Bytes of its prompt.
    pub prompt_bytes: usize,
    /// How many of these bytes, from the first on, it shares with all requests of the same value; 0: none.
    pub alike: (u64, usize),
    pub asker: Asker,
}

impl Request {
    /// A request that shares its prompt with no other.
    pub fn new(id: u64, service: Duration, prompt_bytes: usize) -> Request {
        Request { id, service, events: 0, prompt_bytes, alike: (0, 0), asker: Asker::default() }
    }

    /// The same, working for up to a quarter more or less, so that engines do not keep step.
    pub fn varied(mut self) -> Request {
        self.service = self.service * (768 + (content::mix(!self.id) % 512) as u32) / 1024;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (family, alike) = self.alike;
        let mut prompt = String::with_capacity(self.prompt_bytes + 32);
        let mut seed = family;
        while prompt.len() < alike {
            seed = content::mix(seed);
            let _ = write!(prompt, "{seed:016x} ");
        }
        prompt.truncate(alike);
        seed = self.id;
        while prompt.len() < self.prompt_bytes {
            seed = content::mix(seed);
            let _ = write!(prompt, "{seed:016x} ");
        }
        let stream = self.events > 0;
        let body =
            format!(r#"{{"model":"tiny","stream":{stream},"messages":[{{"role":"user","content":"{prompt}"}}]}}"#);
        let mut head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nx-bench: {} {} {}\r\n",
            self.id,
            self.service.as_micros(),
            self.events
        );
        if let Some(tenant) = self.asker.tenant {
            let _ = write!(head, "x-tenant: {tenant}\r\n");
        }
        if let Some(priority) = self.asker.priority {
            let _ = write!(head, "x-warmfront-priority: {priority}\r\n");
        }
        format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}

/// What the field `x-bench` said: number, time of work, events.
pub fn said(value: &[u8]) -> Option<(u64, Duration, u32)> {
    let mut words = std::str::from_utf8(value).ok()?.split(' ').map(str::parse::<u64>);
    let mut next = || words.next()?.ok();
    Some((next()?, Duration::from_micros(next()?), next()? as u32))
}

/// The body of a reply in one piece.
pub fn answer(id: u64) -> Vec<u8> {
    format!(r#"{{"id":"{id}","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{:016x}"}}}}]}}"#, content::mix(id)).into_bytes()
}

/// One event of a stream; the last one says that it is over.
pub fn event(id: u64, index: u32, events: u32) -> Vec<u8> {
    match index < events {
        true => {
            format!("data: {{\"id\":\"{id}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{index}\"}}}}]}}\n\n")
                .into_bytes()
        }
        false => b"data: [DONE]\n\n".to_vec(),
    }
}

/// The whole body that a client has to see.
pub fn expected(id: u64, events: u32) -> Vec<u8> {
    match events {
        0 => answer(id),
        _ => (0..=events).flat_map(|index| event(id, index, events)).collect(),
    }
}
