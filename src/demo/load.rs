//! Threads that hold conversations, and what they saw.
//!
//! As in KubeAI's benchmark a thread holds one conversation at a time: it sends the history and a new user message,
//! reads the reply, and goes on at once; when the conversation ends, the thread begins another. To reach a steady state
//! soon, threads begin somewhere within their first conversation (longer conversations are likelier), with replies that
//! no engine has seen.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::client::{Client, Expected};
use super::conversation::{Conversation, Dice, TURNS_MAX};
use crate::engine::tokens;

/// Where requests go.
#[derive(Clone, Debug)]
pub enum Target {
    /// To a front, which chooses; each conversation goes to one of these fronts.
    Fronts(Vec<SocketAddr>),
    /// To an engine at random, as a plain service does.
    BareRandom(Vec<SocketAddr>),
    /// To the engine that has the conversation already: the best that a cache can do.
    BareSticky(Vec<SocketAddr>),
}

/// The load to make.
#[derive(Clone, Debug)]
pub struct Load {
    /// Number of threads.
    pub threads: usize,
    /// Model that requests name.
    pub model: String,
    /// Real time over which threads begin.
    pub ramp: Duration,
    /// Mean real time between a reply and the next turn.
    pub pause: Duration,
    /// Longest real time without a piece of a reply.
    pub patience: Duration,
    /// Tokens in a block of the engines.
    pub block_size: u32,
    /// Seed of the conversations.
    pub seed: u64,
}

/// What the threads have seen since the last [`Tally::reset`].
#[derive(Debug, Default)]
pub struct Tally {
    /// Real seconds to first token, of requests whose first token came in this time.
    pub ttft: RefCell<Vec<f64>>,
    /// Tokens received.
    pub tokens: Cell<u64>,
    /// Replies verified to their end.
    pub replies: Cell<u64>,
    /// Replies that failed, and the first reason.
    pub failed: Cell<u64>,
    /// See `failed`.
    pub reason: RefCell<Option<String>>,
    /// By how much naps on the threads' runtime were too long: what came meanwhile was read late.
    pub late: Cell<Duration>,
}

/// Length of a nap, taken again and again; below, how much longer one may take, as late as an engine's step may begin.
const NAP: Duration = Duration::from_millis(20);
const SLACK: Duration = Duration::from_millis(10);

impl Tally {
    /// Forgets all but failures.
    pub fn reset(&self) {
        self.ttft.borrow_mut().clear();
        self.tokens.set(0);
        self.replies.set(0);
        self.late.set(Duration::ZERO);
    }

    async fn nap(&self) {
        let due = Instant::now() + NAP;
        tokio::time::sleep_until(due.into()).await;
        let late = due.elapsed();
        if late > SLACK {
            self.late.set(self.late.get() + late);
        }
    }

    fn fail(&self, why: String) {
        self.failed.set(self.failed.get() + 1);
        self.reason.borrow_mut().get_or_insert(why);
    }
}

/// The threads, until dropped: their streams are then cut.
pub struct Running {
    threads: tokio::task::JoinSet<()>,
}

impl Running {
    /// Starts the threads on the current `LocalSet`.
    pub fn start(load: &Load, target: &Target, tally: &Rc<Tally>) -> Running {
        let mut threads = tokio::task::JoinSet::new();
        let napping = Rc::clone(tally);
        threads.spawn_local(async move {
            loop {
                napping.nap().await;
            }
        });
        for number in 0..load.threads {
            let thread = Thread::new(load, target.clone(), Rc::clone(tally), number);
            let after = load.ramp.mul_f64(number as f64 / load.threads as f64);
            threads.spawn_local(async move {
                tokio::time::sleep(after).await;
                thread.talk().await;
            });
        }
        Running { threads }
    }

    /// Cuts all replies in flight and waits until that is done.
    pub async fn stop(mut self) {
        self.threads.shutdown().await;
    }
}

struct Thread {
    client: Client,
    target: Target,
    tally: Rc<Tally>,
    dice: Dice,
    pause: Duration,
    block_size: u32,
    head: String,
    seed: u64,
    conversation: Conversation,
    turn: usize,
    /// The messages so far as JSON, without brackets.
    history: String,
}

impl Thread {
    fn new(load: &Load, target: Target, tally: Rc<Tally>, number: usize) -> Thread {
        let mut thread = Thread {
            client: Client::new(load.patience),
            target,
            tally,
            dice: Dice::new(load.seed ^ (number as u64).wrapping_mul(0x2545_f491_4f6c_dd1d)),
            pause: load.pause,
            block_size: load.block_size,
            head: format!(
                "{{\"model\":{},\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"temperature\":0,",
                serde_json::Value::from(load.model.as_str())
            ),
            seed: 0,
            conversation: Conversation { seed: 0, turns: Vec::new() },
            turn: 0,
            history: String::new(),
        };
        thread.begin_within();
        thread
    }

    /// Begins within a conversation, as a thread is found at any moment of a long run.
    fn begin_within(&mut self) {
        loop {
            self.begin();
            let length = self.conversation.turns.len();
            if (self.dice.number() % TURNS_MAX as u64) < length as u64 {
                break;
            }
        }
        let turns_before = self.dice.number() as usize % self.conversation.turns.len();
        for turn in 0..turns_before {
            self.say();
            let length = self.conversation.turns.get(turn).map_or(0, |turn| turn.reply);
            let seed = self.dice.number();
            let reply: Vec<u32> = (0..length).map(|at| tokens::generated(seed, at)).collect();
            self.hear(&tokens::text_of(&reply));
        }
    }

    fn begin(&mut self) {
        self.seed = self.dice.number();
        self.conversation = Conversation::new(self.seed);
        self.turn = 0;
        self.history.clear();
    }

    fn say(&mut self) {
        let text = self.conversation.says(self.turn);
        if !self.history.is_empty() {
            self.history.push(',');
        }
        self.history.push_str(&format!("{{\"role\":\"user\",\"content\":\"{text}\"}}"));
    }

    fn hear(&mut self, text: &str) {
        self.history.push_str(&format!(",{{\"role\":\"assistant\",\"content\":\"{text}\"}}"));
        self.turn += 1;
    }

    fn engine(&mut self) -> SocketAddr {
        match &self.target {
            Target::Fronts(fronts) => fronts[self.seed as usize % fronts.len()],
            Target::BareRandom(engines) => engines[self.dice.number() as usize % engines.len()],
            Target::BareSticky(engines) => engines[self.seed as usize % engines.len()],
        }
    }

    async fn talk(mut self) {
        loop {
            let Some(turn) = self.conversation.turns.get(self.turn).copied() else {
                self.begin();
                continue;
            };
            self.say();
            match self.exchange(turn.reply).await {
                Ok(text) => self.hear(&text),
                Err(why) => {
                    self.tally.fail(why);
                    // A front that refuses everything must not be asked in a tight loop.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    self.begin();
                }
            }
            let pause = -(1.0 - self.dice.share()).ln();
            tokio::time::sleep(self.pause.mul_f64(pause)).await;
        }
    }

    async fn exchange(&mut self, reply_tokens: u32) -> Result<String, String> {
        let to = self.engine();
        let body = format!("{}\"max_tokens\":{reply_tokens},\"messages\":[{}]}}", self.head, self.history);
        let expected = Expected::of(body.as_bytes(), reply_tokens, self.block_size)?;
        let sent = Instant::now();
        let tally = Rc::clone(&self.tally);
        let mut first = true;
        let seen = |tokens: u32| {
            if std::mem::take(&mut first) {
                tally.ttft.borrow_mut().push(sent.elapsed().as_secs_f64());
            }
            tally.tokens.set(tally.tokens.get() + u64::from(tokens));
        };
        let reply = self.client.chat(to, Bytes::from(body), &expected, seen).await?;
        self.tally.replies.set(self.tally.replies.get() + 1);
        Ok(reply.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_held_up_are_late() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let load = Load {
            threads: 0,
            model: String::new(),
            ramp: Duration::ZERO,
            pause: Duration::ZERO,
            patience: Duration::ZERO,
            block_size: 16,
            seed: 1,
        };
        let tally = Rc::new(Tally::default());
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let running = Running::start(&load, &Target::Fronts(Vec::new()), &tally);
            tokio::time::sleep(NAP / 2).await;
            std::thread::sleep(Duration::from_millis(200));
            tokio::time::sleep(NAP).await;
            running.stop().await;
        });
        assert!(tally.late.get() >= Duration::from_millis(150), "{:?}", tally.late);
        tally.reset();
        assert_eq!(tally.late.get(), Duration::ZERO);
    }
}
