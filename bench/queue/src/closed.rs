//! Clients that ask again as soon as they are answered, and rest a while after a refusal.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use crate::crowd::{Crowd, End, Leave, Outcome};
use crate::request::Request;

const LOOK: Duration = Duration::from_millis(20);

/// What a client does next.
pub enum Next {
    Asks(Request, Option<Leave>),
    Rests(Duration),
    /// It has nothing more to ask.
    Ends,
}

impl Next {
    /// Asks, and stays to the end, while `is_so`; then it ends.
    pub fn asks_while(is_so: bool, request: Request) -> Next {
        if is_so { Next::Asks(request, None) } else { Next::Ends }
    }
}

/// Runs until `next` has nothing for any client, and all is answered. `next` is given the client that may ask, `done`
/// the one whose request has ended.
pub fn run(
    crowd: &mut Crowd,
    clients: usize,
    rest: Duration,
    mut next: impl FnMut(usize) -> Next,
    mut done: impl FnMut(usize, Outcome),
) -> Result<(), String> {
    let mut free: Vec<usize> = (0..clients).collect();
    let mut resting: BinaryHeap<Reverse<(Instant, usize)>> = BinaryHeap::new();
    let mut owners: HashMap<u64, usize> = HashMap::new();
    loop {
        let now = Instant::now();
        while resting.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            free.extend(resting.pop().map(|Reverse((_, client))| client));
        }
        while let Some(client) = free.pop() {
            match next(client) {
                Next::Asks(request, leave) => {
                    owners.insert(request.id, client);
                    crowd.begin(request, leave);
                }
                Next::Rests(time) => resting.push(Reverse((now + time, client))),
                Next::Ends => {}
            }
        }
        if owners.is_empty() && resting.is_empty() {
            return Ok(());
        }
        let until = resting.peek().map_or(now + LOOK, |Reverse((until, _))| (now + LOOK).min(*until));
        if crowd.ended.is_empty() {
            crowd.turn(until)?;
        }
        for outcome in std::mem::take(&mut crowd.ended) {
            let Some(client) = owners.remove(&outcome.request.id) else {
                return Err(format!("request {} ended twice", outcome.request.id));
            };
            match outcome.end {
                End::Whole { status: 200, .. } | End::Left => free.push(client),
                End::Whole { .. } | End::Broken(_) => resting.push(Reverse((Instant::now() + rest, client))),
            }
            done(client, outcome);
        }
    }
}
