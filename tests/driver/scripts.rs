//! Seeded scripts, played on both drivers: what the far ends and the driver's owner see is the same.

use warmfront::driver::Driver;
use warmfront::driver::uring::Uring;

use crate::play::{Outcome, play};
use crate::random::Random;

/// Scripts of an ordinary run.
const SCRIPTS: u64 = 60;
/// Connections of one script.
pub const LINES: usize = 4;

/// One thing that the driver's owner or a far end does. Each names its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A far end writes (connection, bytes).
    Write(usize, usize),
    /// A far end reads all that comes from here on, or nothing.
    Read(usize, bool),
    /// A far end sends FIN, or a reset.
    Fin(usize),
    Break(usize),
    /// The owner sends (connection, bytes, segments).
    Send(usize, usize, usize),
    /// The owner offers (connection, bytes), and the rest whenever there is room.
    Offer(usize, usize),
    Pause(usize),
    Resume(usize),
    /// The owner pauses when the next bytes are told, and reads again some turns later (connection, turns).
    Hiccup(usize, usize),
    /// Bytes of the first connection are sent on to the second from here on.
    Link(usize, usize),
    Finish(usize),
    Close(usize),
    Abort(usize),
    /// Only so many turns pass before the next step, not all that it takes.
    Hurry(usize),
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn draw(seed: u64) -> Vec<Step> {
    let mut random = Random::new(seed + 1);
    let sizes = [1, 30, 700, 3_000, 20_000, 70_000, 400_000, 2_000_000];
    let size = |random: &mut Random| {
        let most = sizes[random.below(sizes.len())];
        1 + random.below(most)
    };
    // Some scripts break nothing, so that everything must arrive.
    let gentle = random.below(3) > 0;
    let steps = 4 + random.below(28);
    let draw = |_| {
        let line = random.below(LINES);
        match random.below(40) {
            0..8 => Step::Write(line, size(&mut random)),
            8..14 => Step::Send(line, size(&mut random), 1 + random.below(8)),
            14..17 => Step::Offer(line, size(&mut random)),
            17..20 => Step::Read(line, random.below(2) == 0),
            20..23 => Step::Pause(line),
            23..26 => Step::Resume(line),
            26..28 => Step::Hiccup(line, random.below(3)),
            28..30 => Step::Link(line, random.below(LINES)),
            30..32 => Step::Fin(line),
            32 => Step::Finish(line),
            33 if gentle => Step::Resume(line),
            33 => Step::Close(line),
            34 if gentle => Step::Resume(line),
            34 => Step::Break(line),
            35 if gentle => Step::Resume(line),
            35 => Step::Abort(line),
            _ => Step::Hurry(random.below(3)),
        }
    };
    (0..steps).map(draw).collect()
}

/// What differs between both drivers, if anything does. The second one's count of overflows is added to `overflows`.
fn difference<A: Driver, B: Driver>(
    one: fn() -> A,
    other: fn() -> B,
    steps: &[Step],
    patience: u32,
    overflows: &mut u64,
) -> Option<String> {
    let ((ones, _), (others, overflown)) = (play(one(), steps, patience), play(other(), steps, patience));
    *overflows += overflown;
    let faulty = |outcomes: &[Outcome]| outcomes.iter().find_map(|outcome| outcome.fault.clone());
    if let Some(fault) = faulty(&ones).or(faulty(&others)) {
        return Some(fault);
    }
    let different = (0..LINES).find(|line| !ones[*line].agrees_with(&others[*line]))?;
    Some(format!("line {different}\n  {}: {:?}\n  {}: {:?}", A::NAME, ones[different], B::NAME, others[different]))
}

#[test]
fn both_drivers_play_a_script_alike() {
    if crate::uring_or_say_why().is_some() {
        play_alike(crate::uring);
    }
}

/// The ring's queue of completions is nearly always full.
#[test]
fn the_narrowest_ring_plays_a_script_alike() {
    if crate::uring_or_say_why().is_some() {
        let overflows = play_alike(|| crate::narrow_uring(1, 2));
        assert!(overflows > 0, "its queue was never full");
    }
}

/// Returns how often completions found their queue full.
fn play_alike(uring: fn() -> Uring) -> u64 {
    let mut overflows = 0;
    let replayed = number("WARMFRONT_DRIVER_SEED");
    let first = replayed.unwrap_or(0);
    let count = if replayed.is_some() { 1 } else { number("WARMFRONT_DRIVER_SCRIPTS").unwrap_or(SCRIPTS) };
    for seed in first..first + count {
        let steps = draw(seed);
        // A busy machine may deliver bytes late: a difference counts only if it outlasts patience.
        let found = difference(crate::epoll, uring, &steps, 1, &mut overflows)
            .and_then(|_| difference(crate::epoll, uring, &steps, 12, &mut overflows));
        if let Some(found) = found {
            panic!("WARMFRONT_DRIVER_SEED={seed} cargo test --test driver scripts\n{found}\n{steps:?}");
        }
    }
    overflows
}
