//! A closed loop of multi-turn chats with the lengths of KubeAI's benchmark.
//!
//! Each thread holds one conversation after the other, and a turn follows on the end of the one before. Lengths are
//! those of [`crate::demo::conversation`]: three turns and a geometric number more, user messages log-normal with a
//! mean of 37 tokens, replies of 40. All share a short system prompt, and nothing else.

use super::chain::{Chain, mix};
use super::{REQUESTS_MAX, Request, Source, THREADS_MAX, Traffic, Window, leaves_something};
use crate::demo::conversation::{Conversation, Dice, REPLY_TOKENS};

/// Tokens that a template puts around a message.
const MARKERS: u32 = 3;
/// Longest conversation that the lengths allow: 40 turns of 1,000 and 40 tokens with their markers.
const TOKENS_MAX: u32 = 44_000;

/// The parameters.
#[derive(Clone, Debug)]
pub struct Chat {
    /// Conversations at a time.
    pub threads: u32,
    /// Simulated seconds after which no turn begins.
    pub seconds: f64,
    /// Seconds at the start that are not counted.
    pub warmup_seconds: f64,
    /// Seconds over which the threads begin.
    pub ramp_seconds: f64,
    /// Mean milliseconds between a reply and the next turn: the way to the front and back, without thinking.
    pub pause_ms: f64,
    /// Fewest seconds that these engines take from a turn to the end of its reply.
    pub turn_seconds: f64,
    /// Most turns that all engines together end in a second.
    pub turns_per_second: f64,
    /// Tokens of the system prompt that all share.
    pub system_tokens: u32,
    /// Most tokens of a conversation, which ends before it is longer; its first message is shortened to that.
    pub context_max: u32,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl Default for Chat {
    fn default() -> Chat {
        Chat {
            threads: 1_200,
            seconds: 360.0,
            warmup_seconds: 120.0,
            ramp_seconds: 30.0,
            pause_ms: 20.0,
            turn_seconds: 0.0,
            turns_per_second: f64::INFINITY,
            system_tokens: 32,
            context_max: TOKENS_MAX,
            seed: 1,
        }
    }
}

const BLOCK_TOKENS: u32 = 16;

struct Thread {
    held: u64,
    conversation: Conversation,
    turn: usize,
    chain: Chain,
}

struct Threads<'a> {
    chat: &'a Chat,
    threads: Vec<Thread>,
    count: u32,
    dice: Dice,
}

impl Thread {
    fn new(chat: &Chat, thread: u32, held: u64) -> Thread {
        let seed = mix(chat.seed, mix(u64::from(thread), held));
        let mut chain = Chain::new(BLOCK_TOKENS);
        chain.push(mix(chat.seed, 0), chat.system_tokens);
        Thread { held, conversation: Conversation::new(seed), turn: 0, chain }
    }

    /// Returns what the next turn asks; `None` at the conversation's end.
    fn ask(&mut self, thread: u32, arrival_ns: u64, context_max: u32) -> Option<Request> {
        let turn = *self.conversation.turns.get(self.turn)?;
        let seed = self.conversation.seed;
        let room = context_max.saturating_sub(self.chain.tokens() + MARKERS + turn.reply);
        let user = if self.turn == 0 { turn.user.min(room) } else { turn.user };
        if user == 0 || user > room {
            return None;
        }
        self.chain.push(mix(seed, 2 * self.turn as u64), user + MARKERS);
        let prompt = self.chain.tokens();
        self.chain.push(mix(seed, 2 * self.turn as u64 + 1), turn.reply);
        self.turn += 1;
        let (output, blocks) = (turn.reply, self.chain.blocks().into());
        Some(Request { arrival_ns, prompt, output, blocks, session: Some(seed), opening: Some(seed), thread })
    }
}

impl Threads<'_> {
    fn ask(&mut self, thread: u32, arrival_ns: u64) -> Option<Request> {
        let slot = self.threads.get_mut(thread as usize)?;
        if let Some(request) = slot.ask(thread, arrival_ns, self.chat.context_max) {
            return Some(request);
        }
        *slot = Thread::new(self.chat, thread, slot.held + 1);
        slot.ask(thread, arrival_ns, self.chat.context_max)
    }
}

impl Traffic for Threads<'_> {
    fn next(&mut self) -> Option<Request> {
        let thread = self.threads.len() as u32;
        if thread == self.count {
            return None;
        }
        self.threads.push(Thread::new(self.chat, thread, 0));
        let begins = self.chat.ramp_seconds * f64::from(thread) / f64::from(self.count);
        self.ask(thread, (begins * 1e9) as u64)
    }

    fn after(&mut self, ended: &Request, now_ns: u64) -> Option<Request> {
        // Exponential: a fixed pause would keep turns in step with their engine.
        let pause_ms = -self.chat.pause_ms * (1.0 - self.dice.share()).ln();
        let arrival_ns = now_ns + (pause_ms * 1e6) as u64;
        if arrival_ns as f64 >= self.chat.seconds * 1e9 {
            return None;
        }
        self.ask(ended.thread, arrival_ns)
    }
}

impl Chat {
    fn count(&self, load: f64) -> u32 {
        (f64::from(self.threads) * load).round().max(1.0) as u32
    }
}

impl Source for Chat {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        let (count, dice) = (self.count(load), Dice::new(mix(self.seed, 1)));
        Box::new(Threads { chat: self, threads: Vec::new(), count, dice })
    }

    fn block_tokens(&self) -> u32 {
        BLOCK_TOKENS
    }

    fn window(&self, _load: f64) -> Window {
        Window { from_ns: (self.warmup_seconds * 1e9) as u64, until_ns: Some((self.seconds * 1e9) as u64) }
    }

    fn describe(&self) -> String {
        format!(
            "chat: {} threads, {} s of which the first {} are not counted, pauses of {} ms, a system prompt of {} tokens, seed {}",
            self.threads, self.seconds, self.warmup_seconds, self.pause_ms, self.system_tokens, self.seed
        )
    }

    fn tokens_max(&self) -> u32 {
        self.context_max.min(self.system_tokens.saturating_add(TOKENS_MAX))
    }

    fn check(&self, load: f64) -> Result<(), String> {
        if f64::from(self.threads) * load > THREADS_MAX {
            return Err(format!(
                "{} threads x {load} are more than {THREADS_MAX}: lower --threads or --loads",
                self.threads
            ));
        }
        let asked = f64::from(self.count(load)) / (self.turn_seconds + self.pause_ms / 1e3);
        let turns = self.seconds * asked.min(self.turns_per_second);
        if turns > REQUESTS_MAX {
            return Err(format!("up to {turns:.0} requests are more than {REQUESTS_MAX}: lower --seconds"));
        }
        if self.system_tokens.saturating_add(MARKERS + REPLY_TOKENS) >= self.context_max {
            return Err(format!(
                "a system prompt of {} tokens leaves no room for a turn in contexts of {}: lower --system-tokens or choose another --profile",
                self.system_tokens, self.context_max
            ));
        }
        leaves_something(self.warmup_seconds, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_begins_with_all_that_was_said_before() {
        let chat = Chat { threads: 2, seconds: 1e6, system_tokens: 32, ..Chat::default() };
        let mut traffic = chat.traffic(1.0);
        let (mut one, other) = (traffic.next().unwrap(), traffic.next().unwrap());
        assert!(traffic.next().is_none(), "as many as threads");
        assert_eq!(one.prompt_blocks(16)[..2], other.prompt_blocks(16)[..2], "the system prompt");
        assert!(one.blocks[2..].iter().all(|block| !other.blocks.contains(block)));
        let (mut turns, mut conversations) = (1, 0);
        for _ in 0..200 {
            let next = traffic.after(&one, 1_000).unwrap();
            assert!(next.arrival_ns >= 1_000 && next.thread == one.thread);
            if next.session == one.session {
                let said = one.prompt + one.output;
                assert!(next.prompt > said + MARKERS && next.output == 40);
                assert_eq!(next.blocks[..(said / 16) as usize], one.blocks[..], "prompt and reply");
                turns += 1;
            } else {
                assert!(turns >= 3, "{turns} turns");
                (turns, conversations) = (1, conversations + 1);
            }
            one = next;
        }
        assert!(conversations > 10, "{conversations}");
        assert!(traffic.after(&one, 1_000_000_000_000_000).is_none(), "nothing begins after the end");
    }

    #[test]
    fn a_turn_that_does_not_fit_is_shortened_and_the_thread_goes_on() {
        let chat = Chat { threads: 200, system_tokens: 16_300, context_max: 16_384, ..Chat::default() };
        chat.check(1.0).unwrap();
        let mut traffic = chat.traffic(1.0);
        let begun: Vec<Request> = std::iter::from_fn(|| traffic.next()).collect();
        assert_eq!(begun.len(), 200);
        for one in begun {
            let mut at = one;
            for _ in 0..20 {
                assert!(at.prompt > 16_300 && at.prompt + at.output <= 16_384);
                at = traffic.after(&at, 1_000).expect("another turn, or another conversation");
            }
        }
        let full = Chat { system_tokens: 16_341, ..chat };
        assert!(full.check(1.0).unwrap_err().contains("lower --system-tokens"));
        Chat { system_tokens: 16_340, ..full }.check(1.0).unwrap();
    }

    #[test]
    fn more_turns_than_memory_should_hold_are_refused() {
        // Each of 100 threads asks once in two seconds at most.
        let chat = |seconds, turns_per_second| {
            let chat = Chat { threads: 100, pause_ms: 500.0, turn_seconds: 1.5, ..Chat::default() };
            Chat { seconds, turns_per_second, ..chat }.check(1.0)
        };
        chat(79_000.0, 1e6).unwrap();
        assert!(chat(81_000.0, 1e6).unwrap_err().contains("lower --seconds"));
        chat(390_000.0, 10.0).unwrap();
        assert!(chat(410_000.0, 10.0).unwrap_err().contains("up to 4100000 requests"));
    }

    #[test]
    fn load_is_threads() {
        let chat = Chat { threads: 10, ..Chat::default() };
        let count = |load| {
            let mut traffic = chat.traffic(load);
            std::iter::from_fn(|| traffic.next()).count()
        };
        assert_eq!([0.01, 0.5, 1.0, 2.0].map(count), [1, 5, 10, 20]);
    }
}
