//! Requests that have arrived and are at no engine yet, in order of arrival: numbers are given when an arrival is
//! announced, which may be long before.

use std::collections::{BTreeMap, HashMap};

use super::traffic::Request;

/// See the top of this file.
#[derive(Default)]
pub struct Waiting {
    /// By number: in which place, and what.
    requests: HashMap<u64, (u64, Request)>,
    /// By place: whose it is.
    numbers: BTreeMap<u64, u64>,
    /// Places given.
    arrived: u64,
}

impl Waiting {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// One arrives, behind all others.
    pub fn arrives(&mut self, number: u64, request: Request) {
        self.arrived += 1;
        self.numbers.insert(self.arrived, number);
        self.requests.insert(number, (self.arrived, request));
    }

    /// Who came before the others.
    pub fn first(&self) -> Option<u64> {
        self.numbers.first_key_value().map(|(_, number)| *number)
    }

    /// What is asked by that one.
    pub fn get(&self, number: u64) -> Option<&Request> {
        self.requests.get(&number).map(|(_, request)| request)
    }

    /// It waits no more.
    pub fn leaves(&mut self, number: u64) -> Option<Request> {
        let (place, request) = self.requests.remove(&number)?;
        self.numbers.remove(&place);
        Some(request)
    }
}
