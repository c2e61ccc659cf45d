//! Models whose prompts the front is to write as their engines do.

use super::Finding;
use crate::config::Config;
use crate::control::forms::{Forms, Known};

/// Findings on what is in their folders.
pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let forms = match Forms::read(config) {
        Ok(forms) => forms,
        Err(why) => return vec![Finding::wrong("tokenizer", why)],
    };
    let mut found = Vec::new();
    for (folder, why) in forms.unlike() {
        found.push(Finding::advice(
            "tokenizer",
            format!("{}: its model is routed as by \"warm\": {why}", folder.display()),
        ));
    }
    for (folder, Known { form, no_chat, left_out, .. }) in forms.folders() {
        let folder = folder.display();
        match (no_chat, &form.chat) {
            (None, Some(chat)) => {
                let roles: Vec<_> = chat.turns.iter().map(|turn| String::from_utf8_lossy(&turn.role)).collect();
                let ends: Vec<_> = left_out
                    .iter()
                    .map(|left| format!("\nwhat is found in caches ends at {}: {}", left.role, left.why))
                    .collect();
                let words = format!("{folder}: chats of {} are followed{}", roles.join(", "), ends.concat());
                found.push(Finding::good("tokenizer", words));
            }
            (why, _) => {
                let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
                let words = format!("{folder}: chats are routed as by \"warm\"{why}; completions are followed");
                found.push(Finding::advice("tokenizer", words));
            }
        }
    }
    if found.is_empty() && config.listens() {
        let words = "policy \"precise\" has no `tokenizer`: it chooses as \"warm\" does. Name the model's folder";
        found.push(Finding::advice("tokenizer", words));
    }
    found
}
