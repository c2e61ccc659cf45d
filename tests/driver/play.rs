//! Plays one script on one driver, and fails if that does what no driver may do: tell things twice or out of order,
//! lose bytes, or end a part as if it were the whole.

use std::time::{Duration, Instant};

use warmfront::driver::{Completion, Driver, Tag};

use crate::line::Line;
use crate::peer::End;
use crate::scripts::{LINES, Step};
use crate::turns::Turns;

/// How one connection ended up.
#[derive(Debug)]
pub struct Outcome {
    pub fault: Option<String>,
    /// It was cut, or carries the bytes of one that was cut: then it is not defined how far it got.
    cut: bool,
    received: usize,
    got: usize,
    end: Option<End>,
    ended: bool,
    failed: bool,
}

impl Outcome {
    pub fn agrees_with(&self, other: &Outcome) -> bool {
        let seen = |outcome: &Outcome| (outcome.received, outcome.got, outcome.end, outcome.ended, outcome.failed);
        self.cut || other.cut || seen(self) == seen(other)
    }
}

struct Play {
    lines: Vec<Line>,
    fault: Option<String>,
}

/// The outcome of each connection, and how often completions found their queue full.
pub fn play<D: Driver>(driver: D, steps: &[Step], patience: u32) -> (Vec<Outcome>, u64) {
    let mut turns = Turns::new(driver);
    let lines = (0..LINES / 2).flat_map(|_| turns.two()).map(|(id, tag, peer)| Line::new(id, tag, peer)).collect();
    let mut play = Play { lines, fault: None };
    for (at, step) in steps.iter().enumerate() {
        play.take(&mut turns, *step);
        match steps.get(at + 1) {
            Some(Step::Hurry(count)) => (0..*count).for_each(|_| play.turn(&mut turns, Duration::ZERO)),
            _ => play.rest(&mut turns, patience),
        }
    }
    for line in &mut play.lines {
        (line.reading, line.hiccup) = (true, None);
        line.resume(&mut turns.driver);
    }
    play.rest(&mut turns, patience);
    for _ in 0..3 {
        play.turn(&mut turns, Duration::from_millis(1));
    }
    (play.outcomes(&turns), turns.driver.overflows())
}

impl Play {
    fn take<D: Driver>(&mut self, turns: &mut Turns<D>, step: Step) {
        match step {
            Step::Write(line, len) => self.lines[line].write(len),
            Step::Read(line, reads) => self.lines[line].reading = reads,
            Step::Fin(line) => self.lines[line].fin = true,
            Step::Break(line) => self.lines[line].reset(),
            Step::Send(line, len, count) => self.lines[line].send(&mut turns.driver, len, count),
            Step::Offer(line, len) => self.lines[line].offer(&mut turns.driver, len),
            Step::Pause(line) => self.lines[line].pause(&mut turns.driver),
            Step::Resume(line) => self.lines[line].resume(&mut turns.driver),
            Step::Hiccup(line, turns) => self.lines[line].hiccup = Some(turns),
            Step::Link(line, to) => {
                // How much of what is under way goes there is not defined either.
                let whole = turns.received(self.lines[line].tag).len() == self.lines[line].written();
                let before = self.lines[line].link.replace(to);
                [Some(to), before].into_iter().flatten().for_each(|to| self.lines[to].cut |= !whole);
            }
            Step::Finish(line) => {
                // Nor how much of what would still come for it.
                let late = |from: &Line| from.link == Some(line) && turns.received(from.tag).len() < from.written();
                let late = self.lines.iter().any(late);
                self.lines[line].cut |= late;
                self.lines[line].finish(&mut turns.driver);
            }
            Step::Close(line) => self.lines[line].close(&mut turns.driver),
            Step::Abort(line) => self.lines[line].abort(&mut turns.driver),
            Step::Hurry(_) => {}
        }
        // The bytes of a connection that is cut may be cut where they go, too.
        for _ in 0..LINES {
            for line in 0..LINES {
                if let (true, Some(to)) = (self.lines[line].cut, self.lines[line].link) {
                    self.lines[to].cut = true;
                }
            }
        }
    }

    fn turn<D: Driver>(&mut self, turns: &mut Turns<D>, sleep: Duration) {
        self.lines.iter_mut().for_each(Line::move_peer);
        turns.turn_of(sleep, |driver, completion| self.react(driver, completion));
        self.lines.iter_mut().for_each(|line| line.count_down(&mut turns.driver));
    }

    /// Turns until nothing is missing any more.
    fn rest<D: Driver>(&mut self, turns: &mut Turns<D>, patience: u32) {
        let deadline = Instant::now() + Duration::from_secs(1) * patience;
        while self.fault.is_none() {
            self.lines.iter_mut().for_each(Line::move_peer);
            let missing = (0..LINES).find_map(|at| {
                let line = &self.lines[at];
                line.missing(turns.received(line.tag).len()).map(|what| format!("line {at} on {}: {what}", D::NAME))
            });
            if missing.is_none() {
                return;
            }
            if Instant::now() >= deadline {
                self.fault = missing;
                return;
            }
            self.turn(turns, Duration::from_millis(1));
        }
    }

    fn react<D: Driver>(&mut self, driver: &mut D, completion: Completion) {
        let (tag, outcome) = match completion {
            Completion::Received(tag, lease) => {
                let Some(at) = self.place(tag) else { return };
                let outcome = self.lines[at].received(driver);
                let to = self.lines[at].link;
                if let Some(to) = to {
                    self.lines[to].forward(driver, lease);
                }
                (tag, outcome)
            }
            Completion::Ended(tag) => (tag, self.of(tag).ended()),
            Completion::Failed(tag) => (tag, self.of(tag).failed()),
            Completion::Reset(tag) => (tag, self.of(tag).was_reset()),
            Completion::Full(tag) => (tag, self.of(tag).full()),
            Completion::Drained(tag) => (tag, self.of(tag).drained(driver)),
            Completion::Connected(_) | Completion::Spliced(..) | Completion::Accepted { .. } => return,
        };
        if let Err(what) = outcome {
            let at = self.place(tag);
            self.fault.get_or_insert(format!("line {at:?} on {}: {what}", D::NAME));
        }
    }

    fn place(&self, tag: Tag) -> Option<usize> {
        self.lines.iter().position(|line| line.tag == tag)
    }

    fn of(&mut self, tag: Tag) -> &mut Line {
        let at = self.place(tag).expect("a name that was given");
        &mut self.lines[at]
    }

    fn outcomes<D: Driver>(&self, turns: &Turns<D>) -> Vec<Outcome> {
        let outcome = |line: &Line| {
            let received = turns.received(line.tag);
            let whole = line.is_whole(received).err().map(|what| format!("{what} on {}", D::NAME));
            Outcome {
                fault: self.fault.clone().or(whole),
                cut: line.cut,
                received: received.len(),
                got: line.got().len(),
                end: line.end(),
                ended: line.has_ended,
                failed: line.has_failed,
            }
        };
        self.lines.iter().map(outcome).collect()
    }
}
