//! Requests that have arrived and are at no engine yet, in order of arrival. A request's number says nothing of that
//! order: it is given when the arrival is announced, which may be long before.

use std::collections::{BTreeMap, HashMap};

use super::traffic::Request;

/// See the top of this file.
#[derive(Default)]
pub struct Waiting {
    /// Place in the order of arrival, and the request, by number.
    requests: HashMap<u64, (u64, Request)>,
    /// Request numbers by place.
    numbers: BTreeMap<u64, u64>,
    /// Places given so far.
    arrived: u64,
}

impl Waiting {
    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// A request arrives, after all others.
    pub fn arrives(&mut self, number: u64, request: Request) {
        self.arrived += 1;
        self.numbers.insert(self.arrived, number);
        self.requests.insert(number, (self.arrived, request));
    }

    /// Returns the number of the request that came first.
    pub fn first(&self) -> Option<u64> {
        self.numbers.first_key_value().map(|(_, number)| *number)
    }

    /// Returns the request with this number.
    pub fn get(&self, number: u64) -> Option<&Request> {
        self.requests.get(&number).map(|(_, request)| request)
    }

    /// The request waits no more.
    pub fn leaves(&mut self, number: u64) -> Option<Request> {
        let (place, request) = self.requests.remove(&number)?;
        self.numbers.remove(&place);
        Some(request)
    }
}
