//! What became of how many cases of each group, for `--nocapture`.

use std::collections::BTreeMap;
use std::fmt::Display;

/// Outcomes by group.
#[derive(Default)]
pub struct Tally {
    groups: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

impl Tally {
    pub fn count(&mut self, group: &'static str, outcome: impl Display) {
        *self.groups.entry(group).or_default().entry(outcome.to_string()).or_default() += 1;
    }

    /// One line a group: its name, how many cases, and how many ended how.
    pub fn print(&self, title: &str) {
        let mut text = format!("\n{title} on {}\n", crate::DRIVER);
        for (group, outcomes) in &self.groups {
            let list: Vec<String> = outcomes.iter().map(|(outcome, count)| format!("{outcome}: {count}")).collect();
            let cases: usize = outcomes.values().sum();
            text.push_str(&format!("  {group:<44} {cases:>6}  {}\n", list.join(", ")));
        }
        // In one piece: tests run side by side.
        print!("{text}");
    }

    pub fn of(&self, group: &str, outcome: &str) -> usize {
        self.groups.get(group).and_then(|outcomes| outcomes.get(outcome)).copied().unwrap_or(0)
    }
}
