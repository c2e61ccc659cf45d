//! Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350): a key goes
//! to its home on the ring while that is below its bound, then to the next endpoint clockwise.
//!
//! Two bounds. [`weighted_bound`] is ours: integers, weighted, with a slack, since a purely relative bound sprays a
//! hot prefix over the fleet at low counts (at a mean of 10 requests, Poisson noise alone passes 125 % for
//! 18 % of endpoints). [`kubeai_bound`] is KubeAI's published rule, so that its users can compare.

use crate::fleet::{Endpoint, Loads};
use crate::limits::ENDPOINTS_MAX;
use crate::policy::eligible::Row;
use crate::policy::{Bound, Choice, Eligible, Pool, Reason, Request, Settings, balance};

/// A walk past full endpoints ends after this many points per endpoint: one of n endpoints of equal
/// weight is missed with chance e^-4, and then the least loaded is as good.
const POINTS_PER_MEMBER: usize = 4;

/// So many points behind a home are looked at for the runner-up, which is only reported: of two endpoints the other is
/// missed with chance 2^-8.
const POINTS_FOR_NEXT: usize = 8;

/// How a ring policy calls its outcomes.
pub(super) struct Reasons {
    home: Reason,
    spill: Reason,
}

/// Of `prefix-hash`.
pub(super) const PREFIX: Reasons = Reasons { home: Reason::Home, spill: Reason::Spill };
/// Of `session`.
pub(super) const SESSION: Reasons = Reasons { home: Reason::SessionHome, spill: Reason::SessionSpill };

/// First acceptable distinct endpoint clockwise from the key.
pub(super) fn bounded(
    pool: &Pool,
    loads: &Loads,
    request: &Request<'_>,
    key: u64,
    reasons: &Reasons,
) -> Option<Choice> {
    let eligible = pool.eligible();
    let total = eligible.total(loads);
    let points_max = match pool.settings.bound {
        Bound::Slots => pool.ring.members() * POINTS_PER_MEMBER,
        Bound::Kubeai => usize::MAX,
    };

    let mut tested = Tested::default();
    let mut home = None;
    let mut points = pool.ring.walk(key).take(points_max);
    while let Some(slot) = points.next() {
        // Endpoints that take no requests are walked past, as if they had no points.
        let Some(row) = eligible.row(slot) else { continue };
        if !tested.insert(slot) || eligible.was_tried(&request.avoid, slot) {
            continue;
        }
        // On trial the bound is for the trial's own requests: those open from before were chosen earlier.
        let before = eligible.open_before(row, slot, loads);
        let bound = bound(&pool.settings, row, eligible, total).saturating_add(before);
        let load = eligible.load(row, slot, loads);
        if load < bound && !eligible.at_cap(row, slot, loads) {
            let reason = if home.is_none() { reasons.home } else { reasons.spill };
            return Some(Choice {
                runner_up: home.or_else(|| {
                    points.by_ref().take(POINTS_FOR_NEXT).find(|&next| next != slot && eligible.row(next).is_some())
                }),
                bound: Some(bound - row.foreign),
                total: Some(total),
                ..Choice::at(eligible, loads, slot, load, reason)
            });
        }
        home.get_or_insert(slot);
    }
    all_full(pool, loads, request, home, total, reasons)
}

/// No endpoint on the walk was below its bound and its cap.
fn all_full(
    pool: &Pool,
    loads: &Loads,
    request: &Request<'_>,
    home: Option<u16>,
    total: u64,
    reasons: &Reasons,
) -> Option<Choice> {
    let eligible = pool.eligible();
    let open = home.and_then(|home| Some((home, eligible.row(home)?)));
    let open = open.filter(|(home, row)| !eligible.at_cap(row, *home, loads));
    let choice = match (pool.settings.bound, open) {
        (Bound::Kubeai, Some((home, row))) => {
            Choice::at(eligible, loads, home, eligible.load(row, home, loads), Reason::AllFull)
        }
        _ if home.is_some() => balance::least_load(eligible, loads, request, Reason::AllFull)?,
        // The walk met no endpoint that takes requests: rare, and none of them is full.
        _ => balance::least_load(eligible, loads, request, reasons.spill)?,
    };
    let runner_up = home.filter(|&home| home != choice.endpoint.slot);
    Some(Choice { runner_up, total: Some(total), ..choice })
}

#[inline]
fn bound(settings: &Settings, row: &Row, eligible: &Eligible, total: u64) -> u32 {
    match settings.bound {
        Bound::Slots => {
            let (percent, slack) = (settings.load_percent, part_of(settings.load_slack, row));
            weighted_bound(total, row.weight.into(), eligible.weight(), percent, slack)
        }
        Bound::Kubeai => part_of(kubeai_bound(total, eligible.slots().len() as u64, settings.load_percent), row),
    }
}

/// The part of `count` that an endpoint may have while it starts slowly, rounded up.
#[inline]
fn part_of(count: u32, row: &Row) -> u32 {
    match row.share_percent {
        Endpoint::WHOLE => count,
        percent => (u64::from(count) * u64::from(percent)).div_ceil(Endpoint::WHOLE.into()) as u32,
    }
}

/// `max(1, ceil(c*(T+1)*w / (100*W)), floor((T+1)*w/W) + slack)`: an endpoint is acceptable while its load
/// is below. T is the load over the eligible endpoints before this request, w/W the endpoint's share of
/// their weights, c in percent. Rounded up, so that the bounds of a fleet never add up to less than T+1.
#[inline]
pub(crate) fn weighted_bound(total: u64, weight: u64, weights: u64, percent: u32, slack: u32) -> u32 {
    let share = (total + 1).saturating_mul(weight);
    // A weight sum of 0 belongs to no eligible endpoint.
    let weights = weights.max(1);
    let relative = share.saturating_mul(percent.into()).div_ceil(100 * weights);
    let absolute = share / weights + u64::from(slack);
    relative.max(absolute).clamp(1, u32::MAX.into()) as u32
}

/// KubeAI (since 2025-05): an endpoint is acceptable when `load <= (T+1)/n * factor` in floating point, with
/// load and T counted before placement, n the endpoints (their "or T is 0" follows: then load is 0). For a
/// whole load, `load < bound` says the same with the integer part plus one.
#[inline]
fn kubeai_bound(total: u64, endpoints: u64, percent: u32) -> u32 {
    // The order of the operations is theirs, so that rounding is too.
    let average = (total + 1) as f64 / endpoints as f64;
    let threshold = average * (f64::from(percent) / 100.0);
    (threshold as u32).saturating_add(1)
}

/// Endpoints tested by this choice, by slot; on the stack.
#[derive(Default)]
struct Tested([u64; ENDPOINTS_MAX / 64]);

impl Tested {
    /// Adds a slot; false when it was there. A slot that cannot exist counts as tested.
    #[inline]
    fn insert(&mut self, slot: u16) -> bool {
        let Some(word) = self.0.get_mut(slot as usize / 64) else { return false };
        let bit = 1 << (slot % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
