//! The costs that a choice by work compared, kept for `explain`, log and receipts.

use serde::{Deserialize, Serialize};

/// What a choice by work compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Of the endpoint that was chosen.
    pub chosen: Cost,
    /// Of the runner-up, where there is one.
    pub runner_up: Option<Cost>,
}

/// What a prompt costs at one endpoint, in tokens, term by term; each is at most 2^32 - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Sent there, and without a first token yet.
    pub pending: u32,
    /// To be computed of this prompt, six times, and what it pushes out there.
    pub new: u32,
    /// For the requests there, and for those beyond an even part of the load, as far as they share their prompts.
    pub decoding: u32,
    /// For how full its cache is.
    pub full: u32,
    /// Where there is no room for the prompt.
    pub no_room: u32,
    /// Taken off again at the prompt's home: what other fronts may have sent there of it.
    pub others: u32,
    /// What is compared: `pending`, a sixth of what is to be computed, `decoding` and `full` divided by the endpoint's
    /// weight, the rest of `new`, and `no_room`, less `others`; never less than 0.
    pub total: u32,
}
