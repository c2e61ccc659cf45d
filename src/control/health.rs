//! The health of one endpoint: what its probes say, and how requests ended there. No clock and no I/O: `now` is
//! an argument.
//!
//! ```text
//!   Unknown ──probe──→ Up ←───────── begins to stream, ends well ─────┐
//!      │               │ ↑                                            │
//!      │   probes fail │ │ probe, slow start          time over, and  │
//!      └────────→ Down ┴─┘                         its probe is good  │
//!   barred by shards: any of them ──→ Ejected ────────────────────→ Trial
//!                                        ↑ ─────── barred again ──────┘
//! ```
//!
//! Down hides Ejected and Trial: it is shown while probes fail, and the hidden state goes on below it. Each state has a
//! way out: probes never stop, time always passes, and a trial waits for a new request without end and at no cost, not
//! for requests that are open from before. The outcome of those counts all the same, and a tunnel counts when it
//! begins. What requests showed of a process goes with it: another process in its place is up as soon as it answers,
//! and starts slowly.
//!
//! A rank may be Ejected for longer than its time. If its whole server was out it waits for the trials of the ranks
//! before it, up to `eject_ms` for each; and it stays to be tried while Down, Draining or Asleep is shown.

mod barring;
mod failure;
mod probing;
mod turn;

use std::borrow::Cow;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::config::Health as Rules;
use crate::counters::{Given, Outcome};
use crate::fleet::{Endpoint, Health};
pub use failure::{Failure, How};
pub use turn::{Trouble, Turn, Why};

/// Share with which a slow start begins, in percent.
const FIRST_SHARE: u8 = 10;
/// Refused probes in a row after which nothing is taken to listen there.
pub(super) const REFUSALS: u32 = 2;

/// Another address is tried after this factor times `failures_down` failed probes, if none was refused.
const PATIENCE: u32 = 5;

/// See the module.
#[derive(Clone, Debug)]
pub struct Course {
    probes: Probes,
    bar: Bar,
    /// Failed, good and refused probes in a row.
    failures: u32,
    successes: u32,
    refusals: u32,
    /// A probe was good, at this address.
    answered: bool,
    /// The failed probes in a row were all taken, but not answered in time.
    silent: bool,
    /// Since when no probe has found a connection.
    absent: Option<Instant>,
    probe_error: Option<String>,
    /// Ejections in a row, and how long the last one was.
    row: u32,
    last: Duration,
    slow_start: Option<Instant>,
    share_percent: u8,
    /// What shards had counted at the last look; `None`: not looked yet.
    seen: Option<Outcome>,
    spared: Option<Instant>,
    /// What it had given when it was last kept in service for want of others, if it has given nothing since.
    kept: Option<u32>,
    /// It stays although its probes are not answered in time.
    slow: bool,
    /// It is taken to serve before any probe says so: see [`Course::presume`].
    presumed: bool,
    /// Another process answers there, of which shards know nothing yet; and whether the one before was barred.
    anew: Option<bool>,
    since: Instant,
    /// Why it was barred last, or would have been.
    trouble: Option<Trouble>,
}

/// What probes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probes {
    Unknown,
    Good,
    Failing,
}

/// What requests say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bar {
    None,
    Until(Instant),
    Trial,
}

impl Course {
    /// The course of an endpoint of which nothing is known. `warm`: it need not start slowly, as when all start
    /// together.
    pub fn new(warm: bool, rules: &Rules, now: Instant) -> Course {
        let mut course = Course {
            probes: Probes::Unknown,
            bar: Bar::None,
            failures: 0,
            successes: 0,
            refusals: 0,
            answered: false,
            silent: false,
            absent: None,
            probe_error: None,
            row: 0,
            last: Duration::ZERO,
            slow_start: None,
            share_percent: Endpoint::WHOLE,
            seen: None,
            spared: None,
            kept: None,
            slow: false,
            presumed: false,
            anew: None,
            since: now,
            trouble: None,
        };
        if !warm {
            course.start_slowly(rules, now);
        }
        course
    }

    /// The course of the same engine at another of its addresses: it failed where it was, and has to answer there
    /// first.
    pub fn elsewhere(&self, rules: &Rules, now: Instant) -> Course {
        let is_failing = self.probes == Probes::Failing;
        let mut course = Course::new(is_failing || self.slow_start.is_none(), rules, now);
        (course.failures, course.absent, course.probe_error) = (self.failures, self.absent, self.probe_error.clone());
        (course.presumed, course.slow) = (self.presumed, self.slow);
        if is_failing {
            (course.probes, course.since) = (Probes::Failing, self.since);
        }
        course
    }

    /// The course of the same process in another slot, where shards count from 0.
    pub fn renumbered(&self) -> Course {
        Course { seen: None, ..self.clone() }
    }

    /// Takes in that another process answers there: what requests showed of the one before is forgotten, and its cache.
    pub fn begin_anew(&mut self, rules: &Rules, now: Instant) {
        let before = self.health();
        self.anew = Some(self.is_barred());
        (self.bar, self.kept) = (Bar::None, None);
        self.start_slowly(rules, now);
        self.moved_from(before, now);
    }

    /// Whether shards are to forget what they counted of the process before; and whether that was barred.
    pub fn takes_anew(&mut self) -> Option<bool> {
        self.anew.take()
    }

    /// The course of an engine at an address that is new to its name, while others serve: it may still be loading, or
    /// not be there.
    pub fn moved(rules: &Rules, now: Instant) -> Course {
        let mut course = Course::new(true, rules, now);
        course.probes = Probes::Failing;
        course.probe_error = Some("it has not answered at its new address yet".into());
        course
    }

    /// Whether the next probe is to go to another address: enough probes failed here, or the first one ever was
    /// refused. If it answered before, or is taken to, and may be busy it takes several times as many, since what is
    /// known of it would be lost.
    pub fn looks_elsewhere(&self, rules: &Rules) -> bool {
        let never_answered = self.probes == Probes::Unknown && self.refusals > 0;
        let may_be_busy = (self.answered || self.presumed && self.silent) && self.refusals == 0;
        let enough = rules.failures_down.saturating_mul(if may_be_busy { PATIENCE } else { 1 });
        self.failures > 0 && (never_answered || self.failures.is_multiple_of(enough))
    }

    /// Whether its probes have been good or bad for long enough.
    pub fn is_known(&self) -> bool {
        self.probes != Probes::Unknown
    }

    /// Whether it is known by its probes whether it stays in service.
    pub fn is_settled(&self) -> bool {
        self.is_known() || self.slow
    }

    /// As shards are to see it.
    pub fn health(&self) -> Health {
        match (self.probes, self.bar) {
            (Probes::Failing, _) => Health::Down,
            (_, Bar::Until(_)) => Health::Ejected,
            (_, Bar::Trial) => Health::Trial,
            (Probes::Unknown, Bar::None) => Health::Unknown,
            (Probes::Good, Bar::None) => Health::Up,
        }
    }

    /// Since when its health is as it is.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Why its health is as it is, if that needs words.
    pub fn why(&self) -> Option<Cow<'_, str>> {
        let kept = |why: &dyn Display| Some(format!("kept in service, as too few others are: {why}").into());
        match (self.health(), &self.trouble, &self.probe_error) {
            (Health::Down, _, error) => error.as_deref().map(Cow::from),
            (Health::Ejected | Health::Trial, Some(trouble), _) => Some(trouble.to_string().into()),
            (Health::Up | Health::Unknown, Some(trouble), _) if self.kept.is_some() => kept(trouble),
            (Health::Up | Health::Unknown, _, Some(error)) if self.slow => kept(error),
            _ => None,
        }
    }

    /// Why it was barred last, or would have been.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble
    }

    /// Why the last probe failed.
    pub fn probe_error(&self) -> Option<&str> {
        self.probe_error.as_deref()
    }

    /// Whether it is down for nothing but silence.
    pub fn is_silent(&self) -> bool {
        self.probes == Probes::Failing && self.silent
    }

    /// Failed probes in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether its probes are good, whatever becomes of requests.
    pub fn answers(&self) -> bool {
        self.probes == Probes::Good
    }

    /// Whether its probes are good, or it is taken to serve before they say so.
    pub fn is_there(&self) -> bool {
        self.answers() || self.presumed && !self.is_known()
    }

    /// See [`Endpoint::refuses_probes`].
    pub fn refuses_probes(&self) -> bool {
        self.refusals >= REFUSALS
    }

    /// Whether its probes have found no connection for at least this long.
    pub fn is_absent_for(&self, least: Duration, now: Instant) -> bool {
        self.absent.is_some_and(|since| now.saturating_duration_since(since) >= least)
    }

    /// See [`Endpoint::share_percent`]: as it was at the last step.
    pub fn share_percent(&self) -> u8 {
        self.share_percent
    }

    /// Whether it starts slowly.
    pub fn is_starting_slowly(&self) -> bool {
        self.slow_start.is_some()
    }

    /// Whether it is ejected or on trial, whatever hides that.
    pub fn is_barred(&self) -> bool {
        self.bar != Bar::None
    }

    /// Whether it is ejected and has yet to be tried.
    pub fn is_to_be_tried(&self) -> bool {
        matches!(self.bar, Bar::Until(_))
    }

    /// Whether a bar set by shards is news: not while an ejection lasts, nor if it is of the process before.
    pub fn heeds_bars(&self) -> bool {
        !self.is_to_be_tried() && self.anew.is_none()
    }

    /// Takes in what shards have counted, and lets time pass. `may_eject`: one more may be taken out for its faults.
    pub fn looked(
        &mut self,
        outcome: Outcome,
        given: Given,
        may_eject: bool,
        rules: &Rules,
        now: Instant,
    ) -> Option<Turn> {
        let before = self.health();
        self.kept = self.kept.filter(|gave| *gave == given.gave);
        let seen = self.seen.replace(outcome).unwrap_or(outcome);
        let recovered = outcome.recoveries != seen.recoveries;
        let turn = match (self.bar, outcome.barred) {
            (Bar::None | Bar::Trial, Some(barred)) => self.barred(barred, given, may_eject, rules, now),
            (Bar::Until(end), _) if now >= end && self.last_probe_was_good() => {
                self.bar = Bar::Trial;
                Some(Turn::Trial)
            }
            (Bar::Trial, None) if recovered => {
                self.bar = Bar::None;
                self.start_slowly(rules, now);
                Some(Turn::Recovered)
            }
            _ => None,
        };
        self.moved_from(before, now);
        turn
    }

    /// What shards had counted at the last look.
    pub fn seen(&self) -> Option<Outcome> {
        self.seen
    }

    /// Takes the slow start on: its share becomes that of the time that has passed.
    pub fn step(&mut self, rules: &Rules, now: Instant) {
        let Some(began) = self.slow_start else { return };
        let whole = Duration::from_millis(rules.slow_start_ms);
        let passed = now.saturating_duration_since(began);
        if passed >= whole {
            (self.slow_start, self.share_percent) = (None, Endpoint::WHOLE);
            return;
        }
        let rest = f64::from(Endpoint::WHOLE - FIRST_SHARE);
        self.share_percent = FIRST_SHARE + (rest * passed.as_secs_f64() / whole.as_secs_f64()) as u8;
    }

    fn start_slowly(&mut self, rules: &Rules, now: Instant) {
        (self.slow_start, self.share_percent) = (Some(now), FIRST_SHARE);
        self.step(rules, now);
    }

    fn last_probe_was_good(&self) -> bool {
        self.successes > 0
    }

    fn moved_from(&mut self, before: Health, now: Instant) {
        let health = self.health();
        if health != before {
            self.since = now;
        }
        if !matches!(health, Health::Up | Health::Unknown) {
            (self.slow_start, self.share_percent) = (None, Endpoint::WHOLE);
        }
    }
}
