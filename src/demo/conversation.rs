//! Seeded multi-turn conversations with the lengths of KubeAI's benchmark.
//!
//! That benchmark takes 8,000 ShareGPT threads of at least three user messages (7.4 in the mean),
//! cuts every reply at 40 tokens and so sends prompts of 386 tokens in the mean. Here a thread has
//! three messages and a geometric number more; a message is log-normal with a mean of 37 tokens.
//! Every conversation has its own words from the first: nothing is shared between two of them.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::engine::tokens::TOKEN_BYTES;

/// Most turns of a conversation.
pub const TURNS_MAX: usize = 40;
/// Tokens of every reply.
pub const REPLY_TOKENS: u32 = 40;

/// A small seeded generator: the demo's runs must be repeatable.
#[derive(Clone, Debug)]
pub struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    /// Makes throws that depend on the seed alone.
    pub fn new(seed: u64) -> Dice {
        Dice { seed, thrown: 0 }
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.thrown += 1;
        xxh3_64_with_seed(&self.thrown.to_le_bytes(), self.seed)
    }

    /// Returns a number of at least 0 and less than 1.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a log-normal number with this median, within bounds.
    pub fn log_normal(&mut self, median: f64, spread: f64, least: f64, most: f64) -> u32 {
        // Box and Muller; the share is kept off zero, whose logarithm is not finite.
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.share()).cos();
        (median * (spread * normal).exp()).clamp(least, most) as u32
    }
}

/// One exchange of a conversation, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Tokens of what the user says.
    pub user: u32,
    /// Tokens of the reply.
    pub reply: u32,
}

/// The shape of one conversation.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Seed of its words.
    pub seed: u64,
    /// Its turns, in order.
    pub turns: Vec<Turn>,
}

impl Conversation {
    /// Makes the conversation that belongs to this seed.
    pub fn new(seed: u64) -> Conversation {
        let mut dice = Dice::new(seed);
        // Three turns and a geometric number more: with a probability of 0.815 there is one more.
        let mut count = 3;
        while count < TURNS_MAX && dice.share() < 0.815 {
            count += 1;
        }
        let turns =
            (0..count).map(|_| Turn { user: dice.log_normal(20.0, 1.1, 2.0, 1_000.0), reply: REPLY_TOKENS }).collect();
        Conversation { seed, turns }
    }

    /// Returns what the user says in a turn: words that need no escapes in JSON.
    pub fn says(&self, turn: usize) -> String {
        let length = self.turns.get(turn).map_or(0, |turn| turn.user);
        let mut dice = Dice::new(self.seed ^ (turn as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut text = String::with_capacity(length as usize * TOKEN_BYTES);
        for _ in 0..length {
            let mut bits = dice.number();
            for _ in 1..TOKEN_BYTES {
                text.push(char::from(b'a' + (bits % 26) as u8));
                bits /= 26;
            }
            text.push(' ');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_benchmark() {
        let all: Vec<Conversation> = (0..4_000).map(Conversation::new).collect();
        let (mut prompts, mut turns) = (0.0, 0.0);
        for conversation in &all {
            let mut history = 0;
            for turn in &conversation.turns {
                history += turn.user + 3;
                prompts += f64::from(history);
                history += turn.reply;
                turns += 1.0;
            }
        }
        let (turns_mean, prompt_mean) = (turns / all.len() as f64, prompts / turns);
        assert!((7.1..7.7).contains(&turns_mean), "{turns_mean}");
        assert!((340.0..430.0).contains(&prompt_mean), "{prompt_mean}");
    }

    #[test]
    fn words_are_repeatable_and_their_own() {
        let (one, two) = (Conversation::new(1), Conversation::new(2));
        assert_eq!(one.says(0), Conversation::new(1).says(0));
        assert_eq!(one.says(0).len(), one.turns[0].user as usize * TOKEN_BYTES);
        let start = |text: String| text.chars().take(16).collect::<String>();
        assert_ne!(start(one.says(0)), start(two.says(0)));
        assert_ne!(start(one.says(0)), start(one.says(1)));
    }
}
