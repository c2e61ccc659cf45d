//! The results for a prompt: its prefix, its chain, its size.

use super::super::lanes::linked;
use super::super::section::{self, Section};
use super::super::{Counts, PrefixHash, PrefixMode};
use super::Prompt;

impl Prompt {
    /// Returns the prefix as far as it is known; `None` without any text.
    pub fn prefix(&self) -> Option<PrefixHash> {
        if !self.has_prefix() {
            return None;
        }
        let [tools, system, main, _] = &self.sections;
        Some(match self.mode {
            PrefixMode::FirstUser => PrefixHash { hash: main.digest.value(), bytes: main.hashed },
            PrefixMode::Conversation => {
                let bytes = tools.hashed + system.hashed + main.hashed;
                PrefixHash { hash: section::joined([tools, system, main]), bytes }
            }
        })
    }

    /// Whether [`Prompt::prefix`] returns one, without computing a hash.
    pub fn has_prefix(&self) -> bool {
        let [_, system, main, _] = &self.sections;
        match self.mode {
            PrefixMode::FirstUser => main.hashed > 0,
            PrefixMode::Conversation => main.has_text || system.has_text,
        }
    }

    /// Replaces `chain` by the prompt's: a hash for each whole block of its canonical form, of all bytes up to its end
    /// and of `root`. Tools come first, then the system prompt, then the rest; a block ends with its section.
    pub fn chain(&self, root: u64, chain: &mut Vec<u64>) {
        chain.clear();
        let mut root = root;
        for section in [Section::Tools, Section::System, Section::Main] {
            let state = &self.sections[section as usize];
            let left = self.links_max - chain.len();
            chain.extend(state.digest.prefixes().iter().take(left).map(|prefix| linked(root, *prefix)));
            state.digest.each_staged_prefix(|prefix| {
                if chain.len() < self.links_max {
                    chain.push(linked(root, prefix));
                }
            });
            // Rotated by its place: the same bytes as tools and as a system prompt are two different prompts. Nothing
            // begins after the last section.
            if state.hashed > 0 && section != Section::Main {
                root = linked(root.rotate_left(1 + section as u32), state.digest.value());
            }
        }
    }

    /// Returns how much was read of the prompt, or of all prompts of a batch.
    pub fn counts(&self) -> Counts {
        self.sections.iter().fold(Counts::default(), |sum, state| sum.and(state.counts))
    }

    /// Whether there is any text that belongs to no single prompt.
    pub fn compares(&self) -> bool {
        let [_, _, _, extra] = &self.sections;
        extra.counts != Counts::default()
    }

    /// Returns how much of that was read beside the first prompt: others of an array, and texts that each is compared
    /// with. `None`: there is one prompt.
    pub fn beside(&self) -> Option<Counts> {
        let [_, _, main, extra] = &self.sections;
        let others = if main.items > 0 { main.counts.less(main.first) } else { Counts::default() };
        let beside = others.and(extra.counts);
        (main.items > 1 || beside != Counts::default()).then_some(beside)
    }
}
