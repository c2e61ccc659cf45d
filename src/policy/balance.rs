//! The policies without a key: `random`, `round-robin` and `least-load`, the foot of every ladder.

use crate::fleet::{Endpoint, Loads};
use crate::limits::ENDPOINTS_MAX;
use crate::policy::eligible::Row;
use crate::policy::{Choice, Eligible, Nobody, Reason, Request};

/// Each endpoint as often as its weight says.
pub(super) fn random(eligible: &Eligible, loads: &Loads, request: &Request<'_>) -> Option<Choice> {
    from_share(eligible, loads, request, any_share(eligible, request), Reason::Random)
}

/// One after the other, each as often in a row as its weight says. While one of them starts slowly, shares are
/// drawn: a turn cannot be had in part.
pub(super) fn round_robin(eligible: &Eligible, loads: &Loads, request: &Request<'_>) -> Option<Choice> {
    let whole = u64::from(Endpoint::WHOLE);
    let share = match eligible.ramping() {
        true => any_share(eligible, request),
        false => request.turn.checked_rem(eligible.weight() / whole)? * whole,
    };
    from_share(eligible, loads, request, share, Reason::RoundRobin)
}

/// Multiplication maps 64 random bits onto the shares without the bias and cost of a remainder.
fn any_share(eligible: &Eligible, request: &Request<'_>) -> u64 {
    ((u128::from(request.random) * u128::from(eligible.weight())) >> 64) as u64
}

/// The owner of a share, or the next one that was not tried and has room.
fn from_share(eligible: &Eligible, loads: &Loads, request: &Request<'_>, share: u64, reason: Reason) -> Option<Choice> {
    let (before, after) = eligible.slots().split_at_checked(eligible.owner(share))?;
    let has_room = |slot| eligible.row(slot).is_some_and(|row| !eligible.at_cap(row, slot, loads));
    let free = |&slot: &u16| !eligible.was_tried(&request.avoid, slot) && has_room(slot);
    let slot = after.iter().chain(before).copied().find(free)?;
    answer(eligible, loads, slot, reason)
}

/// Fewest in flight for its weight, counted with this request in its place; random among ties.
pub(super) fn least_load(eligible: &Eligible, loads: &Loads, request: &Request<'_>, reason: Reason) -> Option<Choice> {
    let (mut least, mut ties) = (u64::MAX, 0usize);
    let mut tied = [0u16; ENDPOINTS_MAX];
    for &slot in eligible.slots() {
        let Some(row) = eligible.row(slot) else { continue };
        let cost = (u64::from(eligible.load(row, slot, loads)) + 1) * u64::from(row.inverse);
        if cost > least || eligible.was_tried(&request.avoid, slot) || eligible.at_cap(row, slot, loads) {
            continue;
        }
        ties = if cost < least { 0 } else { ties };
        least = cost;
        tied[ties % ENDPOINTS_MAX] = slot;
        ties += 1;
    }
    let picked = (u128::from(request.random) * ties as u128) >> 64;
    answer(eligible, loads, *tied.get(..ties)?.get(picked as usize)?, reason)
}

/// The one that can answer, whatever its load.
#[cold]
pub(super) fn alone(eligible: &Eligible, loads: &Loads, row: &Row, slot: u16) -> Result<Choice, Nobody> {
    if eligible.at_cap(row, slot, loads) {
        return Err(Nobody::AllAtTheirCap);
    }
    Ok(Choice::at(eligible, loads, slot, eligible.load(row, slot, loads), Reason::Stored))
}

fn answer(eligible: &Eligible, loads: &Loads, slot: u16, reason: Reason) -> Option<Choice> {
    let load = eligible.load(eligible.row(slot)?, slot, loads);
    Some(Choice::at(eligible, loads, slot, load, reason))
}
