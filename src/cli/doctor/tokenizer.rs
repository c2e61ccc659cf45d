//! Whether the front has the models' tokenizers, which policy `precise` needs.

use crate::cli::doctor::finding::{Finding, shown};
use crate::config::Config;
use crate::policy::{Policy, Settings};

const SUBJECT: &str = "tokenizer";
/// The file that a folder has to have.
const FILE: &str = "tokenizer.json";
/// Models that are shown by name.
const NAMED_MAX: usize = 8;

/// Whether `precise` is policy or shadow policy of one of these models: it needs their tokenizer, and hears their
/// engine's events.
pub(super) fn is_needed(config: &Config, ids: &[&str]) -> bool {
    !precise(config, ids).is_empty()
}

/// The models with such a policy, and their settings.
fn precise(config: &Config, ids: &[&str]) -> Vec<(String, Settings)> {
    let mut all: Vec<_> = ids.iter().map(|id| (shown(id), config.settings_for(id))).collect();
    if all.is_empty() {
        all.push(("any model".into(), config.routing.clone()));
    }
    all.retain(|(_, settings)| settings.looks_at(Policy::Precise));
    all
}

/// What the configuration says of the models with these ids; of any model, if none is known.
pub(super) fn finding(config: &Config, ids: &[&str]) -> Finding {
    let all = precise(config, ids);
    if all.is_empty() {
        return Finding::good(SUBJECT, "none is needed: policy \"precise\" would need one");
    }
    let unnamed: Vec<&str> = all
        .iter()
        .filter(|(_, settings)| settings.tokenizer.as_os_str().is_empty())
        .map(|(id, _)| id.as_str())
        .take(NAMED_MAX)
        .collect();
    if !unnamed.is_empty() {
        let words = format!(
            "none is named for {}, which is routed as policy \"warm\" would;\n\
             write tokenizer = \"FOLDER\", one with the model's {FILE}, below [routing] or [pool.\"MODEL\"]",
            unnamed.join(", ")
        );
        return Finding::advice(SUBJECT, words);
    }
    let folders = || all.iter().map(|(_, settings)| &settings.tokenizer);
    if let Some(folder) = folders().find(|folder| !folder.join(FILE).is_file()) {
        return Finding::advice(SUBJECT, format!("{} has no {FILE} that can be read here", folder.display()));
    }
    let mut named: Vec<String> = folders().map(|folder| folder.display().to_string()).collect();
    named.dedup();
    Finding::good(SUBJECT, named.join(", "))
}
