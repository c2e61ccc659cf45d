//! The steps around a tokenizer's model: normalizer, pre-tokenizer, post-processor. If a step does not keep a text's
//! bytes, the tokenizer is refused: the text of its tokens would differ from the text that they were made from.

use serde_json::Value;

use super::{Lead, Unreadable};

/// How tokens spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// A letter for each byte, as in GPT-2.
    Letters,
    /// As they are, with `▁` for a space.
    Pieces,
}

/// What a tokenizer does before and after its model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) spelling: Spelling,
    pub(super) lead: Lead,
    pub(super) begins: Vec<u32>,
}

/// The letter for a space in pieces.
pub(super) const SPACE: &str = "▁";

/// The four sections of the file.
pub(super) struct Sections<'a> {
    pub(super) normalizer: &'a Value,
    pub(super) pre_tokenizer: &'a Value,
    pub(super) post_processor: &'a Value,
    pub(super) decoder: &'a Value,
}

impl Layout {
    pub(super) fn of(sections: &Sections<'_>) -> Result<Layout, Unreadable> {
        let mut layout = Layout { spelling: Spelling::Pieces, lead: Lead::Nowhere, begins: Vec::new() };
        let mut spaces = false;
        for step in steps(sections.normalizer, "normalizers") {
            spaces |= layout.normalizer(step)?;
        }
        for (place, step) in steps(sections.pre_tokenizer, "pretokenizers").into_iter().enumerate() {
            spaces |= layout.pre_tokenizer(step, place)?;
        }
        if steps(sections.decoder, "decoders").into_iter().any(|step| kind(step) == "ByteLevel") {
            layout.spelling = Spelling::Letters;
        }
        if layout.spelling == Spelling::Pieces && !spaces {
            return Err(Unreadable::Spelling);
        }
        for step in steps(sections.post_processor, "processors") {
            layout.post_processor(step);
        }
        Ok(layout)
    }

    /// Reads one step; true if it writes spaces as [`SPACE`].
    fn normalizer(&mut self, step: &Value) -> Result<bool, Unreadable> {
        match kind(step) {
            // Most text is composed already. The tokens of other text have other bytes, and nothing after that text is
            // found.
            "NFC" => Ok(false),
            "ByteLevel" => {
                self.spelling = Spelling::Letters;
                Ok(false)
            }
            "Prepend" if step["prepend"] == SPACE => {
                self.lead = Lead::BehindSpecial;
                Ok(false)
            }
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE => Ok(true),
            other => Err(loses("normalizer", other)),
        }
    }

    fn pre_tokenizer(&mut self, step: &Value, place: usize) -> Result<bool, Unreadable> {
        match kind(step) {
            "ByteLevel" => {
                self.spelling = Spelling::Letters;
                if step["add_prefix_space"] == true {
                    // After a step that cuts out words, each word would get a space.
                    if place > 0 {
                        return Err(loses("pre-tokenizer", "ByteLevel behind others with add_prefix_space"));
                    }
                    self.lead = Lead::BehindSpecial;
                }
                Ok(false)
            }
            "Metaspace" if step["replacement"].as_str().is_none_or(|letter| letter == SPACE) => {
                let older = if step["add_prefix_space"] == false { "never" } else { "always" };
                self.lead = match step["prepend_scheme"].as_str().unwrap_or(older) {
                    "never" => Lead::Nowhere,
                    "first" => Lead::First,
                    _ => Lead::BehindSpecial,
                };
                Ok(true)
            }
            "Split" | "Punctuation" if step["behavior"] != "Removed" => Ok(false),
            // With `invert` what matches is kept, and the expression matches everything.
            "Split" if step["invert"] == true && step["pattern"]["Regex"].as_str().is_some_and(matches_all) => {
                Ok(false)
            }
            "Digits" | "UnicodeScripts" | "FixedLength" => Ok(false),
            other => Err(loses("pre-tokenizer", other)),
        }
    }

    /// Reads which tokens it puts before a single text. `add_bos_token` of `tokenizer_config.json` does not count:
    /// Transformers ignores it, from version 5 on, if there is a `tokenizer.json`.
    fn post_processor(&mut self, step: &Value) {
        match kind(step) {
            "TemplateProcessing" => {
                let single = step["single"].as_array().map(Vec::as_slice).unwrap_or_default();
                let before = single.iter().map_while(|piece| piece["SpecialToken"]["id"].as_str());
                let ids = before.filter_map(|name| step["special_tokens"][name]["ids"].as_array()).flatten();
                self.begins = ids.filter_map(id).collect();
            }
            "BertProcessing" | "RobertaProcessing" => {
                self.begins = step["cls"].get(1).and_then(id).into_iter().collect()
            }
            _ => {}
        }
    }
}

/// Whether an expression matches every letter of a text, as GPT-2's and its successors' do: it has alternatives for
/// letters, for numbers, for what is neither, and last for white space.
fn matches_all(regex: &str) -> bool {
    ["\\p{L}+", "\\p{N}", "[^\\s\\p{L}\\p{N}]+"].iter().all(|way| regex.contains(way)) && regex.ends_with("|\\s+")
}

/// Returns a section's steps: it is one step, or a sequence of steps or sequences.
fn steps<'a>(section: &'a Value, list: &str) -> Vec<&'a Value> {
    match (section, section[list].as_array()) {
        (Value::Null, _) => Vec::new(),
        (_, Some(inner)) if kind(section) == "Sequence" => inner.iter().flat_map(|step| steps(step, list)).collect(),
        _ => vec![section],
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("without a type")
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn loses(section: &'static str, step: &str) -> Unreadable {
    Unreadable::Loses { section, step: step.chars().take(64).collect() }
}
