//! The faults of the fleet and the front, when they strike, and which failures they explain.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::exchange::{Cause, Failure, Kind};
use crate::fleet::Fleet;
use crate::front::Front;
use crate::load::Load;

#[derive(Clone, Debug)]
pub enum Fault {
    /// SIGKILL; started again after 5 s.
    Kill(usize),
    /// SIGSTOP; SIGCONT after 4 s.
    Stop(usize),
    /// SIGTERM; the engine ends as vLLM does, and is started again 5 s later.
    Drain(usize),
    /// SIGHUP after another configuration was written.
    Reload(Setup),
    /// The same, by `POST /reload`.
    Ask(Setup),
    /// SIGHUP after a wrong configuration was written.
    Wrong,
    /// SIGUSR2 after another configuration was written.
    Upgrade(Setup),
    /// So many connections at once.
    Burst(usize),
}

/// The parts of the front's configuration that change.
#[derive(Clone, Debug)]
pub struct Setup {
    pub shards: usize,
    /// Places of the engines that it knows.
    pub places: Vec<usize>,
    pub policy: &'static str,
    pub limits: &'static str,
}

impl Setup {
    pub fn text(&self, fleet: &Fleet) -> String {
        let Setup { shards, policy, limits, .. } = self;
        format!(
            "[serve]\nshards = {shards}\npin = false\n[routing]\npolicy = \"{policy}\"\n[limits]\n{limits}\n{}",
            fleet.upstreams(&self.places)
        )
    }
}

const RESTART_AFTER: Duration = Duration::from_secs(5);
const CONTINUE_AFTER: Duration = Duration::from_secs(4);
/// From a fault to its effect, and the time until a signal is acted on.
const SOON: Duration = Duration::from_millis(250);
/// Longest time from a fault to a failure; a slow reader sees the failure when it has read up to it.
const SEEN_WITHIN: Duration = Duration::from_secs(15);
const SLOW_SEEN_WITHIN: Duration = Duration::from_secs(100);
/// Longest waits for the front.
const HEIR_MAX: Duration = Duration::from_secs(60);
const RELOAD_MAX: Duration = Duration::from_secs(15);
/// More failures than these cannot come of one fault.
const KILLED_MAX: u32 = 200;
const DRAINED_MAX: u32 = 60;

enum Later {
    Restart(usize),
    Continue(usize),
    /// Waits until the engine has ended.
    AfterDrain(usize),
    /// Waits for the heir of this process.
    Heir(u32),
    /// Waits for more log lines with these words than there were.
    Said(&'static str, usize, Setup),
}

#[derive(PartialEq, Eq)]
enum What {
    Killed,
    Drained,
}

struct Window {
    what: What,
    port: u16,
    from: Instant,
    /// When the engine had ended.
    until: Option<Instant>,
    explained: u32,
}

pub struct Faults {
    plan: VecDeque<(Duration, Fault)>,
    later: Vec<(Instant, Later)>,
    windows: Vec<Window>,
    began: Instant,
    /// Configuration that the front has, or is about to have.
    setup: Setup,
    pub done: BTreeMap<&'static str, u32>,
    pub errors: Vec<String>,
}

impl Faults {
    pub fn new(plan: Vec<(Duration, Fault)>, setup: Setup) -> Faults {
        Faults {
            plan: plan.into(),
            later: Vec::new(),
            windows: Vec::new(),
            began: Instant::now(),
            setup,
            done: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// Whether no fault is to come and none is under way.
    pub fn over(&self) -> bool {
        self.plan.is_empty() && self.later.is_empty()
    }

    fn say(&self, words: &str) {
        let seconds = self.began.elapsed().as_secs_f64();
        println!("  {:>3}:{:04.1}  {words}", seconds as u64 / 60, seconds % 60.0);
    }

    fn fail(&mut self, words: String) {
        self.say(&format!("ERROR {words}"));
        self.errors.push(words);
    }

    /// Strikes and follows what is due now.
    pub fn tick(&mut self, front: &Front, fleet: &mut Fleet, load: &Load) {
        let now = Instant::now();
        // One change of the front at a time: the next waits until this one is taken.
        let changing = self.later.iter().any(|(_, later)| matches!(later, Later::Heir(_) | Later::Said(..)));
        let due = self.plan.front().is_some_and(|(at, _)| self.began + *at <= now);
        let fault = if due && !changing { self.plan.pop_front() } else { None };
        if let Some(Err(words)) = fault.map(|(_, fault)| self.strike(&fault, front, fleet, load, now)) {
            self.fail(words);
        }
        for (at, later) in std::mem::take(&mut self.later) {
            match self.follow(at, later, front, fleet, now) {
                Ok(Some(still)) => self.later.push(still),
                Ok(None) => {}
                Err(words) => self.fail(words),
            }
        }
    }

    fn strike(
        &mut self,
        fault: &Fault,
        front: &Front,
        fleet: &mut Fleet,
        load: &Load,
        now: Instant,
    ) -> Result<(), String> {
        let name = match fault {
            Fault::Kill(place) => {
                let port = self.begin_window(What::Killed, fleet.engines[*place].port);
                fleet.engines[*place].kill();
                self.say(&format!("engine {port} killed"));
                self.later.push((now + RESTART_AFTER, Later::Restart(*place)));
                "engines killed"
            }
            Fault::Stop(place) => {
                self.say(&format!("engine {} stopped", fleet.engines[*place].port));
                fleet.engines[*place].signal(Signal::STOP);
                self.later.push((now + CONTINUE_AFTER, Later::Continue(*place)));
                "engines stopped and continued"
            }
            Fault::Drain(place) => {
                let port = self.begin_window(What::Drained, fleet.engines[*place].port);
                self.say(&format!("engine {port} drains"));
                fleet.engines[*place].signal(Signal::TERM);
                self.later.push((now, Later::AfterDrain(*place)));
                "engines drained"
            }
            Fault::Burst(connections) => {
                self.say(&format!("{connections} connections at once"));
                load.burst(*connections);
                "bursts"
            }
            Fault::Wrong => {
                front.write("[limits]\nno_such_key = 1\n")?;
                let words = "configuration not taken";
                self.later.push((now + RELOAD_MAX, Later::Said(words, front.said(words), self.setup.clone())));
                front.signal(Signal::HUP);
                "wrong files"
            }
            Fault::Reload(setup) | Fault::Ask(setup) => {
                front.write(&setup.text(fleet))?;
                let words = "configuration taken";
                let before = front.said(words);
                if matches!(fault, Fault::Ask(_)) {
                    let answer = front.reload()?;
                    if !answer.starts_with("HTTP/1.1 200") {
                        return Err(format!("POST /reload: {answer}"));
                    }
                } else {
                    front.signal(Signal::HUP);
                    self.later.push((now + RELOAD_MAX, Later::Said(words, before, setup.clone())));
                }
                self.setup = setup.clone();
                self.say(&format!("reload: {} engines, {}", setup.places.len(), setup.policy));
                "reloads"
            }
            Fault::Upgrade(setup) => {
                front.write(&setup.text(fleet))?;
                self.setup = setup.clone();
                self.say(&format!("upgrade: {} shards", setup.shards));
                self.later.push((now + HEIR_MAX, Later::Heir(front.serving())));
                front.signal(Signal::USR2);
                "upgrades"
            }
        };
        *self.done.entry(name).or_insert(0) += 1;
        Ok(())
    }

    fn begin_window(&mut self, what: What, port: u16) -> u16 {
        self.windows.push(Window { what, port, from: Instant::now(), until: None, explained: 0 });
        port
    }

    /// Does what follows a fault; returns it if it has to be waited for.
    fn follow(
        &mut self,
        at: Instant,
        later: Later,
        front: &Front,
        fleet: &mut Fleet,
        now: Instant,
    ) -> Result<Option<(Instant, Later)>, String> {
        match later {
            // In a short run the engine may be back already, after the fault before.
            Later::Restart(place) if at <= now && !fleet.engines[place].ended() => {}
            Later::Restart(place) if at <= now => {
                fleet.engines[place].restart()?;
                self.say(&format!("engine {} started again", fleet.engines[place].port));
            }
            Later::Continue(place) if at <= now => {
                fleet.engines[place].signal(Signal::CONT);
                self.say(&format!("engine {} continued", fleet.engines[place].port));
            }
            Later::AfterDrain(place) if fleet.engines[place].ended() => {
                let port = fleet.engines[place].port;
                let window = self.windows.iter_mut().rfind(|window| window.port == port);
                window.into_iter().for_each(|window| window.until = Some(now));
                self.say(&format!("engine {port} has drained"));
                return Ok(Some((now + RESTART_AFTER, Later::Restart(place))));
            }
            Later::Heir(before) if front.serving() != before => {
                self.say(&format!("process {} serves, {before} finishes what it has", front.serving()));
            }
            Later::Heir(before) if at <= now => return Err(format!("no heir of process {before}")),
            Later::Said(words, before, setup) if front.said(words) > before => {
                self.say(words);
                front.write(&setup.text(fleet))?;
            }
            Later::Said(words, ..) if at <= now => return Err(format!("the front did not say {words:?}")),
            waiting => return Ok(Some((at, waiting))),
        }
        Ok(None)
    }

    /// Returns the fault that explains a failure.
    pub fn explain(&mut self, failure: &Failure) -> Option<&'static str> {
        let seen_within = if failure.kind == Kind::Slow { SLOW_SEEN_WITHIN } else { SEEN_WITHIN };
        let window = self.windows.iter_mut().rev().find(|window| {
            let of_it = failure.engine == Some(window.port);
            let unanswered = failure.engine.is_none() && matches!(failure.cause, Cause::Refused(502, _));
            let was_there = |end: Instant| failure.started <= end + SOON && failure.at <= end + seen_within;
            match window.what {
                What::Killed => {
                    let broken = of_it && matches!(failure.cause, Cause::Told(_) | Cause::Cut(_));
                    failure.at >= window.from && was_there(window.from) && (broken || unanswered)
                }
                What::Drained => {
                    let says_so =
                        matches!(&failure.cause, Cause::Refused(500, words) if words.contains("cannot schedule"));
                    let in_time = failure.at >= window.from && window.until.is_none_or(|end| failure.at <= end + SOON);
                    // Requests that were on their way to the engine when it ended.
                    let at_the_end = window.until.is_some_and(|end| failure.at + SOON >= end && was_there(end));
                    of_it && says_so && in_time || unanswered && at_the_end
                }
            }
        })?;
        window.explained += 1;
        match window.what {
            What::Killed if window.explained <= KILLED_MAX => Some("at a killed engine"),
            What::Drained if window.explained <= DRAINED_MAX => Some("at a draining engine"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup { shards: 1, places: vec![0], policy: "random", limits: "" }
    }

    /// A failure at `port`, begun and seen so many milliseconds after `from`.
    fn failure(port: Option<u16>, cause: Cause, from: Instant, began_ms: u64, seen_ms: u64) -> Failure {
        let after = |ms| from + Duration::from_millis(ms);
        Failure { kind: Kind::Stream, cause, engine: port, started: after(began_ms), at: after(seen_ms), served: 0 }
    }

    #[test]
    fn a_kill_explains_what_was_at_that_engine_and_no_more() {
        let mut faults = Faults::new(Vec::new(), setup());
        faults.begin_window(What::Killed, 7);
        let from = faults.windows[0].from;
        let cut = || Cause::Cut("end".into());
        assert!(faults.explain(&failure(Some(7), cut(), from, 0, 20)).is_some());
        assert!(faults.explain(&failure(None, Cause::Refused(502, String::new()), from, 0, 20)).is_some());
        let unexplained = [
            failure(Some(8), cut(), from, 0, 20),
            failure(Some(7), cut(), from, 300, 320),
            failure(Some(7), cut(), from, 0, 16_000),
            failure(Some(7), Cause::Wrong("x".into()), from, 0, 20),
            failure(Some(7), Cause::Late, from, 0, 20),
            failure(None, Cause::NoReply("reset".into()), from, 0, 20),
            failure(None, Cause::Refused(503, String::new()), from, 0, 20),
        ];
        for failure in unexplained {
            assert!(faults.explain(&failure).is_none(), "{failure:?}");
        }
        for _ in 2..KILLED_MAX {
            assert!(faults.explain(&failure(Some(7), cut(), from, 0, 20)).is_some());
        }
        assert!(faults.explain(&failure(Some(7), cut(), from, 0, 20)).is_none(), "one fault has its bounds");
    }

    #[test]
    fn a_drain_explains_its_own_words_while_it_lasts() {
        let mut faults = Faults::new(Vec::new(), setup());
        faults.begin_window(What::Drained, 7);
        let from = faults.windows[0].from;
        let drains = || Cause::Refused(500, "cannot schedule new futures after shutdown".into());
        assert!(faults.explain(&failure(Some(7), drains(), from, 9_000, 9_001)).is_some());
        assert!(faults.explain(&failure(Some(8), drains(), from, 9_000, 9_001)).is_none());
        assert!(faults.explain(&failure(Some(7), Cause::Refused(500, "oops".into()), from, 0, 1)).is_none());
        assert!(faults.explain(&failure(Some(7), Cause::Cut("end".into()), from, 0, 1)).is_none());
        faults.windows[0].until = Some(from + Duration::from_secs(10));
        assert!(faults.explain(&failure(Some(7), drains(), from, 12_000, 12_001)).is_none());
    }
}
