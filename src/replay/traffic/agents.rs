//! Agents: sessions that start in bursts, with short outputs. All sessions of an application share a long prefix of
//! system prompt and tools, and a session's context grows by each tool's answer.
//!
//! Bursts come at Poisson times. A session's step asks with all that went before; the model's short output (a tool
//! call) and the tool's answer are appended, and the next step follows when the tool has run.

use std::collections::HashMap;

use super::chain::{Chain, mix};
use super::{REQUESTS_MAX, Request, Source, Traffic, Window, leaves_something};
use crate::demo::conversation::Dice;

const BLOCK_TOKENS: u32 = 16;
/// Tokens of a session's task after the prefix, log-normal: median and spread.
const TASK: (f64, f64) = (200.0, 1.0);
/// Fewest tokens of a task.
const TASK_MIN: u32 = 10;
/// Fewest tokens of an output.
const OUTPUT_MIN: u32 = 5;
/// Most sessions that begin together, in the mean.
const BURST_MAX: f64 = 1_000.0;
/// Spread of log-normal lengths.
const SPREAD: f64 = 0.9;

/// The parameters.
#[derive(Clone, Debug)]
pub struct Agents {
    /// Applications, each with a prefix of its own.
    pub apps: u32,
    /// Tokens of a prefix.
    pub prefix_tokens: u32,
    /// Sessions a second.
    pub rate: f64,
    /// Sessions that begin together, in the mean.
    pub burst: f64,
    /// Steps of a session, in the mean.
    pub steps: f64,
    /// Median length of a tool's answer.
    pub tool_tokens: f64,
    /// Median length of an output.
    pub output_tokens: f64,
    /// How long a tool runs, in the mean.
    pub tool_seconds: f64,
    /// Most tokens of a context: a session ends before that is exceeded, and its first step is shortened to it.
    pub context_max: u32,
    /// Seconds after which no session or step begins.
    pub seconds: f64,
    /// Seconds at the start that are not counted.
    pub warmup_seconds: f64,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl Default for Agents {
    fn default() -> Agents {
        Agents {
            apps: 6,
            prefix_tokens: 6_000,
            rate: 0.5,
            burst: 4.0,
            steps: 20.0,
            tool_tokens: 500.0,
            output_tokens: 80.0,
            tool_seconds: 2.0,
            context_max: 100_000,
            seconds: 600.0,
            warmup_seconds: 120.0,
            seed: 1,
        }
    }
}

struct Session {
    seed: u64,
    dice: Dice,
    chain: Chain,
    step: u64,
}

struct Sessions<'a> {
    agents: &'a Agents,
    load: f64,
    dice: Dice,
    /// Sessions that go on, by thread; `begun` counts all so far.
    sessions: HashMap<u32, Session>,
    begun: u32,
    at: f64,
    in_burst: u32,
}

impl Session {
    fn new(agents: &Agents, seed: u64) -> Session {
        let mut dice = Dice::new(seed);
        let app = dice.number() % u64::from(agents.apps.max(1));
        let mut chain = Chain::new(BLOCK_TOKENS);
        chain.push(mix(agents.seed, app), agents.prefix_tokens);
        let task = dice.log_normal(TASK.0, TASK.1, TASK_MIN.into(), 4_000.0);
        let room = agents.context_max.saturating_sub(agents.prefix_tokens + OUTPUT_MIN);
        chain.push(mix(seed, 0), task.min(room));
        Session { seed, dice, chain, step: 0 }
    }

    /// Returns the next step, unless the context would grow too long.
    fn ask(&mut self, agents: &Agents, thread: u32, arrival_ns: u64) -> Option<Request> {
        let output = self.dice.log_normal(agents.output_tokens, SPREAD, OUTPUT_MIN.into(), 2_000.0);
        let prompt = self.chain.tokens();
        let room = agents.context_max.saturating_sub(prompt);
        let output = if self.step == 0 { output.min(room) } else { output };
        if output > room {
            return None;
        }
        self.step += 1;
        self.chain.push(mix(self.seed, 2 * self.step), output);
        let blocks = self.chain.blocks().into();
        let session = Some(self.seed);
        Some(Request { arrival_ns, prompt, output, blocks, session, opening: session, thread })
    }

    /// Appends the tool's answer; false: this was the last step.
    fn goes_on(&mut self, agents: &Agents) -> bool {
        if self.dice.share() < 1.0 / agents.steps.max(1.0) {
            return false;
        }
        let answer = self.dice.log_normal(agents.tool_tokens, SPREAD, 10.0, 20_000.0);
        self.chain.push(mix(self.seed, 2 * self.step + 1), answer);
        true
    }
}

impl Traffic for Sessions<'_> {
    fn next(&mut self) -> Option<Request> {
        let agents = self.agents;
        loop {
            if self.in_burst == 0 {
                let bursts = self.load * agents.rate / agents.burst.max(1.0);
                self.at -= (1.0 - self.dice.share()).ln() / bursts;
                self.in_burst = 1;
                while self.dice.share() >= 1.0 / agents.burst.clamp(1.0, BURST_MAX) {
                    self.in_burst += 1;
                }
            }
            if self.at >= agents.seconds {
                return None;
            }
            self.in_burst -= 1;
            let thread = self.begun;
            self.begun += 1;
            let mut session = Session::new(agents, mix(agents.seed, u64::from(thread) + 1));
            if let Some(request) = session.ask(agents, thread, (self.at * 1e9) as u64) {
                self.sessions.insert(thread, session);
                return Some(request);
            }
        }
    }

    fn after(&mut self, ended: &Request, now_ns: u64) -> Option<Request> {
        // The session is put back if it goes on: contexts of ended sessions would be most of what a long run holds.
        let mut session = self.sessions.remove(&ended.thread)?;
        if !session.goes_on(self.agents) {
            return None;
        }
        let ran = -self.agents.tool_seconds * (1.0 - session.dice.share()).ln();
        let arrival_ns = now_ns + (ran * 1e9) as u64;
        if arrival_ns as f64 >= self.agents.seconds * 1e9 {
            return None;
        }
        let request = session.ask(self.agents, ended.thread, arrival_ns)?;
        self.sessions.insert(ended.thread, session);
        Some(request)
    }
}

impl Source for Agents {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        let dice = Dice::new(mix(self.seed, 2));
        let sessions = HashMap::new();
        Box::new(Sessions { agents: self, load, dice, sessions, begun: 0, at: 0.0, in_burst: 0 })
    }

    fn block_tokens(&self) -> u32 {
        BLOCK_TOKENS
    }

    fn window(&self, _load: f64) -> Window {
        Window { from_ns: (self.warmup_seconds * 1e9) as u64, until_ns: Some((self.seconds * 1e9) as u64) }
    }

    fn describe(&self) -> String {
        format!(
            "agents: {} applications with {} tokens of system prompt and tools, {} sessions/s in bursts of {}, {} steps each, {} s of which the first {} are not counted, seed {}",
            self.apps,
            self.prefix_tokens,
            self.rate,
            self.burst,
            self.steps,
            self.seconds,
            self.warmup_seconds,
            self.seed
        )
    }

    fn tokens_max(&self) -> u32 {
        self.context_max
    }

    fn check(&self, load: f64) -> Result<(), String> {
        if !(1.0..=BURST_MAX).contains(&self.burst) {
            return Err(format!("--burst {} is not between 1 and {BURST_MAX} sessions", self.burst));
        }
        if self.steps < 1.0 {
            return Err(format!("--steps {} is less than the first", self.steps));
        }
        let least = self.prefix_tokens.saturating_add(TASK_MIN + OUTPUT_MIN);
        if least > self.context_max {
            return Err(format!(
                "a prefix of {} tokens leaves no room for a request in contexts of {}: lower --prefix-tokens or choose another --profile",
                self.prefix_tokens, self.context_max
            ));
        }
        let requests = self.rate * self.steps * self.seconds * load;
        if requests > REQUESTS_MAX {
            return Err(format!(
                "about {requests:.0} requests are more than {REQUESTS_MAX}: lower --rate, --seconds or --loads"
            ));
        }
        leaves_something(self.warmup_seconds, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_their_applications_prefix_and_grow() {
        let agents = Agents { apps: 2, rate: 1.0, seconds: 1e5, ..Agents::default() };
        let mut traffic = agents.traffic(1.0);
        let sessions: Vec<Request> = std::iter::from_fn(|| traffic.next()).take(400).collect();
        let prefixes: std::collections::HashSet<&[u64]> = sessions.iter().map(|one| &one.blocks[..375]).collect();
        assert_eq!(prefixes.len(), 2, "6,000 tokens are 375 blocks, of two applications");
        let starts: std::collections::HashSet<u64> = sessions.iter().map(|one| one.arrival_ns).collect();
        assert!((70..130).contains(&starts.len()), "{} bursts of about four", starts.len());
        let (mut steps, mut before) = (0, None::<Request>);
        for session in &sessions {
            let mut at = Some(session.clone());
            while let Some(now) = at {
                steps += 1;
                if let Some(before) = before.filter(|before| before.session == now.session) {
                    let said = ((before.prompt + before.output) / 16) as usize;
                    assert!(now.prompt >= before.prompt + before.output + 10);
                    assert_eq!(now.blocks[..said], before.blocks[..said]);
                }
                at = traffic.after(&now, now.arrival_ns + 1);
                before = Some(now);
            }
        }
        assert!((15..25).contains(&(steps / sessions.len())), "{steps} steps");
    }

    #[test]
    fn of_sessions_that_have_ended_nothing_is_kept() {
        let agents = Agents { steps: 3.0, ..Agents::default() };
        let dice = Dice::new(1);
        let mut all =
            Sessions { agents: &agents, load: 1.0, dice, sessions: HashMap::new(), begun: 0, at: 0.0, in_burst: 0 };
        let mut steps = 0;
        while let Some(first) = all.next() {
            let mut at = Some(first);
            while let Some(now) = at {
                steps += 1;
                at = all.after(&now, now.arrival_ns);
            }
            assert_eq!(all.sessions.len(), 0);
        }
        assert!(steps > 200 && all.begun > 100, "{steps} steps of {} sessions", all.begun);
    }

    #[test]
    fn sessions_come_at_their_rate_however_many_begin_together() {
        // There are a hundred sessions in the longest bursts.
        for (burst, seconds, off) in [(1.0, 1e4, 0.1), (30.0, 1e4, 0.1), (1_000.0, 5e4, 0.35)] {
            let agents = Agents { rate: 1.0, burst, seconds, ..Agents::default() };
            agents.check(1.0).unwrap();
            let mut traffic = agents.traffic(1.0);
            let count = std::iter::from_fn(|| traffic.next()).count();
            assert!((count as f64 / seconds - 1.0).abs() < off, "{count} in {seconds} s, in bursts of {burst}");
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_and_what_nearly_can_is_shortened() {
        let small = |prefix_tokens| Agents { prefix_tokens, context_max: 16_384, ..Agents::default() };
        for prefix_tokens in [16_000, 16_369] {
            let agents = small(prefix_tokens);
            agents.check(1.0).unwrap();
            let mut traffic = agents.traffic(1.0);
            let all: Vec<Request> = std::iter::from_fn(|| traffic.next()).collect();
            assert!((200..400).contains(&all.len()), "{} of 300", all.len());
            assert!(
                all.iter().all(|one| one.prompt > prefix_tokens && one.output > 0 && one.prompt + one.output <= 16_384)
            );
        }
        let refused = |agents: Agents| agents.check(1.0).unwrap_err();
        assert!(refused(small(16_370)).contains("lower --prefix-tokens"));
        assert!(
            refused(Agents { burst: 1e6, ..Agents::default() }).contains("--burst 1000000 is not between 1 and 1000")
        );
        assert!(refused(Agents { burst: 0.5, ..Agents::default() }).contains("--burst"));
        assert!(refused(Agents { steps: 0.5, ..Agents::default() }).contains("--steps"));
    }

    #[test]
    fn contexts_keep_below_their_bound() {
        let agents = Agents { context_max: 12_000, steps: 1_000.0, seconds: 1e6, ..Agents::default() };
        let mut traffic = agents.traffic(1.0);
        let mut at = traffic.next();
        let mut last = 0;
        while let Some(now) = at {
            last = now.prompt + now.output;
            assert!(last <= 12_000);
            at = traffic.after(&now, now.arrival_ns);
        }
        assert!(last > 8_000, "{last}");
    }
}
