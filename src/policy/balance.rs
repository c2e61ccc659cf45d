//! The policies without a key: `random`, `round-robin` and `least-load`, the foot of every ladder.

use crate::fleet::Loads;
use crate::policy::{Choice, Eligible, Reason, Request};

/// Each endpoint as often as its weight says.
pub(super) fn random(eligible: &Eligible, loads: &Loads, request: &Request) -> Option<Choice> {
    // Multiplication maps 64 random bits onto the shares without the bias and cost of a remainder.
    let share = (u128::from(request.random) * u128::from(eligible.weight())) >> 64;
    from_share(eligible, loads, request, share as u64, Reason::Random)
}

/// One after the other, each as often in a row as its weight says.
pub(super) fn round_robin(eligible: &Eligible, loads: &Loads, request: &Request) -> Option<Choice> {
    let share = request.turn.checked_rem(eligible.weight())?;
    from_share(eligible, loads, request, share, Reason::RoundRobin)
}

/// The owner of a share, or the next one that was not tried.
fn from_share(eligible: &Eligible, loads: &Loads, request: &Request, share: u64, reason: Reason) -> Option<Choice> {
    let (before, after) = eligible.slots().split_at_checked(eligible.owner(share))?;
    let slot = after.iter().chain(before).copied().find(|&slot| !request.avoid.contains(slot))?;
    answer(eligible, loads, slot, reason)
}

/// Fewest in flight for its weight, counted with this request in its place; random among ties.
pub(super) fn least_load(eligible: &Eligible, loads: &Loads, request: &Request, reason: Reason) -> Option<Choice> {
    let (mut least, mut ties) = (u64::MAX, 0u64);
    for (_, cost) in costs(eligible, loads, request) {
        if cost < least {
            (least, ties) = (cost, 0);
        }
        ties += u64::from(cost == least);
    }
    // Any of the ties with equal chance. Other shards may have moved loads since the first pass: whoever
    // is now at or below that least will do, and the last one seen where fewer are left than counted.
    let mut skip = (u128::from(request.random) * u128::from(ties)) >> 64;
    let mut found = None;
    for (slot, cost) in costs(eligible, loads, request) {
        if cost <= least || found.is_none() {
            found = Some(slot);
        }
        if cost <= least {
            if skip == 0 {
                break;
            }
            skip -= 1;
        }
    }
    answer(eligible, loads, found?, reason)
}

/// Each endpoint not tried yet, and its load per weight after this request.
#[inline]
fn costs(eligible: &Eligible, loads: &Loads, request: &Request) -> impl Iterator<Item = (u16, u64)> {
    eligible.slots().iter().filter(|&&slot| !request.avoid.contains(slot)).filter_map(|&slot| {
        let row = eligible.row(slot)?;
        let load = u64::from(eligible.load(row, slot, loads));
        Some((slot, (load + 1) * u64::from(row.inverse)))
    })
}

fn answer(eligible: &Eligible, loads: &Loads, slot: u16, reason: Reason) -> Option<Choice> {
    let in_flight = eligible.load(eligible.row(slot)?, slot, loads);
    Some(Choice { endpoint: eligible.id(slot), reason, runner_up: None, slots: None, in_flight, total: None })
}
