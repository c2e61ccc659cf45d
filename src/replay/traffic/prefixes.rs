//! llm-d's shared-prefix benchmark: groups of prompts that share a long prefix, long replies, Poisson arrivals.

use std::sync::Arc;

use super::chain::{Chain, mix};
use super::lines::BLOCKS_MAX;
use super::{Open, REQUESTS_MAX, Request, Source, Traffic, Window, leaves_something};
use crate::demo::conversation::Dice;

const BLOCK_TOKENS: u32 = 16;

/// The parameters; the defaults are those of llm-d's published runs.
#[derive(Clone, Debug)]
pub struct Prefixes {
    /// Number of groups, each with its prefix.
    pub groups: u32,
    /// Prompts in a group.
    pub prompts: u32,
    /// Tokens of a prefix.
    pub shared_tokens: u32,
    /// Tokens that are a prompt's own.
    pub own_tokens: u32,
    /// Tokens of a reply.
    pub output_tokens: u32,
    /// Requests a second.
    pub rate: f64,
    /// Seconds of arrivals.
    pub seconds: f64,
    /// Seconds at the start that are not counted.
    pub warmup_seconds: f64,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl Default for Prefixes {
    fn default() -> Prefixes {
        Prefixes {
            groups: 150,
            prompts: 5,
            shared_tokens: 6_000,
            own_tokens: 1_200,
            output_tokens: 1_000,
            rate: 5.0,
            seconds: 600.0,
            warmup_seconds: 120.0,
            seed: 1,
        }
    }
}

/// Makes the requests of one set of parameters.
pub struct Drawn {
    parameters: Prefixes,
    requests: Vec<Request>,
}

impl Prefixes {
    /// Says why these parameters are impossible; to be asked before they are drawn.
    pub fn check(&self) -> Result<(), String> {
        let requests = self.rate * self.seconds;
        if requests > REQUESTS_MAX {
            return Err(format!(
                "about {requests:.0} requests are more than {REQUESTS_MAX}: lower --rate or --seconds"
            ));
        }
        // Each drawn prompt is held whole, and its requests share it.
        let prompts = requests.min(f64::from(self.groups) * f64::from(self.prompts));
        let tokens = f64::from(self.shared_tokens) + f64::from(self.own_tokens);
        let blocks = prompts * tokens / f64::from(BLOCK_TOKENS);
        if blocks > BLOCKS_MAX as f64 {
            return Err(format!(
                "prompts of about {blocks:.0} blocks in all are more than {BLOCKS_MAX}: lower --groups, --prompts, \
                 or their tokens"
            ));
        }
        leaves_something(self.warmup_seconds, self.seconds)
    }

    /// Draws groups, prompts and arrivals.
    pub fn draw(self) -> Drawn {
        let mut dice = Dice::new(self.seed);
        let (mut requests, mut at, mut known) = (Vec::new(), 0.0, std::collections::HashMap::new());
        loop {
            at -= (1.0 - dice.share()).ln() / self.rate;
            if at >= self.seconds {
                return Drawn { parameters: self, requests };
            }
            let group = dice.number() % u64::from(self.groups.max(1));
            let own = mix(group + 1, dice.number() % u64::from(self.prompts.max(1)));
            let blocks = known.entry(own).or_insert_with(|| -> Arc<[u64]> {
                let mut chain = Chain::new(BLOCK_TOKENS);
                chain.push(mix(self.seed, group), self.shared_tokens);
                chain.push(mix(self.seed, own), self.own_tokens);
                chain.blocks().into()
            });
            requests.push(Request {
                arrival_ns: (at * 1e9) as u64,
                prompt: (self.shared_tokens + self.own_tokens).max(1),
                output: self.output_tokens,
                blocks: Arc::clone(blocks),
                // Prompts are drawn one by one and have no session; the prefix opens the user's message.
                session: None,
                opening: Some(mix(self.seed, group)),
                thread: 0,
            });
        }
    }
}

impl Source for Drawn {
    fn traffic(&self, load: f64) -> Box<dyn Traffic + '_> {
        Box::new(Open::new(&self.requests, load))
    }

    fn block_tokens(&self) -> u32 {
        BLOCK_TOKENS
    }

    fn window(&self, load: f64) -> Window {
        let at = |seconds: f64| (seconds * 1e9 / load) as u64;
        Window { from_ns: at(self.parameters.warmup_seconds), until_ns: Some(at(self.parameters.seconds)) }
    }

    fn describe(&self) -> String {
        let p = &self.parameters;
        format!(
            "shared-prefix: {} groups of {} prompts, {} shared and {} own tokens, {} out, {} requests/s for {} s, the first {} s not counted, seed {}",
            p.groups,
            p.prompts,
            p.shared_tokens,
            p.own_tokens,
            p.output_tokens,
            p.rate,
            p.seconds,
            p.warmup_seconds,
            p.seed
        )
    }

    fn tokens_max(&self) -> u32 {
        let p = &self.parameters;
        p.shared_tokens.saturating_add(p.own_tokens).saturating_add(p.output_tokens)
    }

    fn check(&self, _load: f64) -> Result<(), String> {
        self.parameters.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_share_their_prefix_prompts_repeat_and_load_is_speed() {
        let drawn = Prefixes { groups: 3, prompts: 2, rate: 10.0, seconds: 200.0, ..Prefixes::default() }.draw();
        let count = drawn.requests.len();
        assert!((1_850..2_150).contains(&count), "{count} at 10 a second in 200 s");
        let distinct = |blocks: usize| {
            let starts = drawn.requests.iter().map(|one| &one.blocks[..blocks]);
            starts.collect::<std::collections::HashSet<&[u64]>>().len()
        };
        assert_eq!((distinct(375), distinct(450)), (3, 6), "6,000 and 7,200 tokens");
        let mut twice = drawn.traffic(2.0);
        for slow in &drawn.requests {
            let quick = twice.next().unwrap();
            assert!(quick.arrival_ns.abs_diff(slow.arrival_ns / 2) <= 1 && quick.blocks == slow.blocks);
        }
    }

    /// A process that needs more memory than there is is killed, and says nothing: the bound has to be asked for first.
    #[test]
    fn more_prompts_than_memory_should_hold_are_refused() {
        let check = |groups, rate| {
            let long = Prefixes { shared_tokens: 100_000, own_tokens: 20_000, ..Prefixes::default() };
            Prefixes { groups, rate, ..long }.check()
        };
        let refused = check(100_000, 1_000.0).unwrap_err();
        assert!(refused.contains("3750000000 blocks") && refused.contains("lower --groups"), "{refused}");
        // With few groups each prompt is drawn many times, and few requests draw few prompts.
        assert_eq!([check(150, 1_000.0), check(100_000, 10.0)], [Ok(()), Ok(())]);
    }
}
