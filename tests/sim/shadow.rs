//! What the shared counters must show: told by what the kernel hands to the front and what the front asks of it, one
//! completion at a time.
//!
//! A *leg* is what the front counts in flight: from a connect, or the first byte on a kept connection, to the reply's
//! last byte or the connection's end. Where the front alone knows why it closed (a deadline, or its client), either is
//! taken, and at a deadline, or where a client leaves that had nothing for long, that it blames nobody, too: whether
//! others had something from the engine meanwhile is not told here.

mod account;
mod choice;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use warmfront::counters::{Counters, Outcome};
use warmfront::fleet::{Endpoint, EndpointId};

use crate::held::Sent;
use crate::script::{Script, Verdict};

pub const ENDPOINTS: usize = 4;
/// Who leaves before has not waited for long.
const LEFT_WAITING: u64 = 30_000_000;

/// What one thing that happened does to an endpoint's account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Fault,
    Good,
    Bar,
}

struct Leg {
    slot: usize,
    connecting: bool,
    /// On a connection that served before.
    reused: bool,
    /// Its request was offered to the connection.
    offered: bool,
    /// In which step it began, and when.
    step: u64,
    since: u64,
    /// Where in the connection's bytes.
    base: u64,
    /// Its engine had the whole request.
    executed: bool,
    /// It may be its endpoint's trial.
    of_trial: bool,
    /// It stays charged behind its end.
    charged: bool,
    /// The step with which the front may have blamed its endpoint.
    doubtful: u64,
    /// Which of what was sent.
    sent: Option<usize>,
}

/// One connection to an engine.
#[derive(Default)]
struct Line {
    leg: Option<Leg>,
    heard: u64,
    /// The replies on it, each with where it begins.
    scripts: VecDeque<(u64, Rc<Script>)>,
}

/// In which part of its turn a shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Client,
    Engine,
    /// Behind the last completion: deadlines, and requests that were read ahead.
    Late,
}

pub struct Shadow {
    counters: &'static Counters,
    charge: u64,
    outcomes: [Outcome; ENDPOINTS],
    legs: [u32; ENDPOINTS],
    lines: HashMap<usize, Line>,
    /// By shard: until when failed requests stay charged, and where.
    kept: Vec<VecDeque<(u64, usize)>>,
    effects: Vec<(usize, Effect)>,
    /// Legs that ended in this step, of which only the front knows whether it blames their endpoint.
    doubtful: Vec<usize>,
    /// Those of them that stay charged for certain.
    silent: Vec<usize>,
    /// Trials of which a stream may have begun.
    begun: Vec<usize>,
    /// Where trials are under way.
    pub on_trial: [bool; ENDPOINTS],
    step: u64,
    part: Part,
    begun_in_step: u32,
    shard: usize,
    now: u64,
    pub draining: bool,
    pub published: Rc<Vec<Option<Endpoint>>>,
    /// The fleet as each shard has it in this turn.
    seen: Vec<Rc<Vec<Option<Endpoint>>>>,
    /// How often each request was offered to an engine, and by shard how many were so again.
    offered: HashMap<String, u32>,
    pub again: Vec<u32>,
    pub sent: Vec<Sent>,
}

/// Every tenant of a slot has an address of its own, which tells of both.
pub fn slot_of(address: SocketAddr) -> (usize, u32) {
    let SocketAddr::V4(address) = address else { panic!("an address of ours: {address}") };
    let [_, high, low, slot] = address.ip().octets();
    (slot as usize, u32::from(high) << 8 | u32::from(low))
}

impl Shadow {
    pub fn new(counters: &'static Counters, shards: usize, failed_charge_ms: u64) -> Shadow {
        Shadow {
            counters,
            charge: failed_charge_ms * 1_000,
            outcomes: std::array::from_fn(|slot| counters.outcomes().read(slot as u16)),
            legs: [0; ENDPOINTS],
            lines: HashMap::new(),
            kept: vec![VecDeque::new(); shards],
            effects: Vec::new(),
            doubtful: Vec::new(),
            silent: Vec::new(),
            begun: Vec::new(),
            on_trial: [false; ENDPOINTS],
            step: 0,
            part: Part::Late,
            begun_in_step: 0,
            shard: 0,
            now: 0,
            draining: false,
            published: Rc::default(),
            seen: vec![Rc::default(); shards],
            offered: HashMap::new(),
            again: vec![0; shards],
            sent: Vec::new(),
        }
    }

    /// A shard has slept and begins its turn.
    pub fn turn_begins(&mut self, shard: usize, now: u64) {
        (self.shard, self.now, self.part) = (shard, now, Part::Late);
        self.seen[shard] = Rc::clone(&self.published);
        self.begin_step();
    }

    /// The next completion is handed out; `None`: none is left.
    pub fn hands_out(&mut self, to_client: Option<bool>) {
        self.part = match to_client {
            Some(true) => Part::Client,
            Some(false) => Part::Engine,
            None => Part::Late,
        };
        self.begin_step();
    }

    fn begin_step(&mut self) {
        self.step += 1;
        self.begun_in_step = 0;
    }

    pub fn turn_ends(&mut self) {
        self.settle_outcomes();
        let kept = &mut self.kept[self.shard];
        // Those that ended with the drain itself came behind the expiry; their time is not over either.
        while kept.front().is_some_and(|(until, _)| *until <= self.now) {
            kept.pop_front();
        }
        self.check_in_flight();
    }

    pub fn connects(&mut self, at: Option<usize>, address: SocketAddr) {
        let (slot, generation) = slot_of(address);
        self.check_choice(slot, generation);
        match at {
            Some(at) => {
                self.lines.insert(at, Line::default());
                self.begin_leg(at, slot, true);
            }
            None => {
                self.begun_in_step += 1;
                if self.part == Part::Engine {
                    self.effects.push((slot, Effect::Fault));
                    self.keep(slot);
                } else {
                    // The request's own next bytes may have ended it before it heard of this.
                    self.doubtful.push(slot);
                }
            }
        }
    }

    /// Behind so many bytes that the kernel took on this connection.
    pub fn offers(&mut self, at: usize, address: SocketAddr, bytes: &[u8], taken: u64) {
        let (slot, generation) = slot_of(address);
        if self.lines.entry(at).or_default().leg.is_none() {
            self.check_choice(slot, generation);
            self.begin_leg(at, slot, false);
        }
        let leg = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()).expect("begun above");
        if std::mem::replace(&mut leg.offered, true) {
            return;
        }
        // The head goes first, and in one piece.
        let Some(from) = memchr::memmem::find(bytes, b"x-request-id: ") else { return };
        let id = bytes[from + 14..].split(|&byte| byte == b'\r').next().unwrap_or_default();
        let id = String::from_utf8_lossy(id).into_owned();
        leg.sent = Some(self.sent.len());
        let tenant = EndpointId { slot: slot as u16, generation };
        let head = memchr::memmem::find(bytes, b"\r\n\r\n").map_or(bytes.len(), |end| end + 4) as u64;
        let (refused, let_in, emptied) = (false, false, false);
        self.sent.push(Sent { id: id.clone(), tenant, pipe: at, from: taken, head, refused, let_in, emptied });
        let times = self.offered.entry(id.clone()).or_default();
        *times += 1;
        if *times > 1 {
            self.again[self.shard] += 1;
        }
        assert!(*times <= 2, "{id} was sent {times} times");
    }

    fn begin_leg(&mut self, at: usize, slot: usize, connecting: bool) {
        let line = self.lines.entry(at).or_default();
        let (step, since, base) = (self.step, self.now, line.heard);
        let reused = !connecting;
        line.leg = Some(Leg {
            slot,
            connecting,
            reused,
            offered: false,
            step,
            since,
            base,
            executed: false,
            of_trial: self.on_trial[slot],
            charged: false,
            doubtful: 0,
            sent: None,
        });
        self.legs[slot] += 1;
        self.begun_in_step += 1;
    }

    /// An engine's reply is what it sends next on this connection.
    pub fn answers(&mut self, at: usize, begins: u64, script: Rc<Script>) {
        self.lines.entry(at).or_default().scripts.push_back((begins, script));
    }

    pub fn executes(&mut self, at: usize) {
        if let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()) {
            leg.executed = true;
        }
    }

    /// The front was told that the connect was answered.
    pub fn connected(&mut self, at: usize, stands: bool) {
        let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.as_mut()) else { return };
        leg.connecting = false;
        if !stands {
            leg.charged = true;
            self.effects.push((leg.slot, Effect::Fault));
        }
    }

    /// So many bytes of a reply were handed out, or went on unseen.
    pub fn hears(&mut self, at: usize, len: u64) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let before = line.heard;
        line.heard += len;
        let Some(leg) = &mut line.leg else { return };
        let Some((begins, script)) = line.scripts.iter().find(|(begins, _)| *begins >= leg.base) else { return };
        let (from, to) = ((before - begins) as usize, (line.heard - begins) as usize);
        if script.wild {
            leg.doubtful = self.step;
        }
        let slot = leg.slot;
        if script.tunnel && !leg.charged && from < script.head_end && to >= script.head_end {
            self.effects.push((slot, Effect::Good));
        }
        if script.wild || script.tunnel {
            return;
        }
        if from < script.judged_end && to >= script.judged_end {
            if let Some(sent) = leg.sent.and_then(|at| self.sent.get_mut(at)) {
                sent.refused |= script.refuses;
                sent.let_in |= script.lets_in;
            }
            let blamed = matches!(script.verdict, Verdict::Fault | Verdict::Drains);
            if blamed {
                self.effects.push((slot, Effect::Fault));
            }
            if script.verdict == Verdict::Drains {
                self.effects.push((slot, Effect::Bar));
            }
            leg.charged |= script.verdict != Verdict::Neutral;
        }
        if to >= script.judged_end && !leg.charged && script.tells_of_error(from..to.min(script.wire.len())) {
            leg.charged = true;
            self.effects.push((slot, Effect::Fault));
        }
        // Not where its client was full just then.
        if leg.of_trial
            && !leg.charged
            && script.proves
            && script.is_stream()
            && !script.spoke(from as u64)
            && script.spoke(to as u64)
        {
            self.begun.push(slot);
        }
        if script.end.is_some_and(|end| to >= end) {
            if script.good && !leg.charged {
                self.effects.push((slot, Effect::Good));
            }
            self.end_leg(at);
        }
    }

    /// The front was told that the engine sends no more, or that its connection is broken.
    pub fn gone(&mut self, at: usize, fin: bool) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let Some(leg) = &mut line.leg else { return };
        if leg.connecting {
            return self.connected(at, false);
        }
        let (heard, base) = (line.heard, leg.base);
        let script = line.scripts.iter().find(|(begins, _)| *begins >= base).map(|(_, script)| script);
        let answered = heard > base;
        let in_body = script.is_some_and(|script| answered && !script.wild && heard - base >= script.head_end as u64);
        let tunnel = in_body && script.is_some_and(|script| script.tunnel);
        let ends = fin && in_body && script.is_some_and(|script| script.end.is_none());
        match () {
            // An idle connection that was dead says nothing of its engine, if that saw nothing.
            () if leg.reused && !answered => leg.doubtful = self.step,
            () if tunnel || leg.charged => {}
            () if ends => {
                if script.is_some_and(|script| script.good) {
                    self.effects.push((leg.slot, Effect::Good));
                }
            }
            () => {
                leg.charged = true;
                self.effects.push((leg.slot, Effect::Fault));
            }
        }
    }

    /// The front closes the connection.
    pub fn closes(&mut self, at: usize) {
        let Some(line) = self.lines.get_mut(&at) else { return };
        let Some(leg) = &mut line.leg else { return };
        let overdue = self.part == Part::Late && leg.step < self.step && !leg.charged;
        let script = line.scripts.iter().find(|(begins, _)| *begins >= leg.base).map(|(_, script)| script);
        let heard = line.heard - leg.base;
        let headless = script.is_none_or(|script| heard < script.judged_end as u64);
        let waits = headless || script.is_some_and(|script| !script.spoke(heard));
        if self.part == Part::Client && waits && !leg.charged && self.now - leg.since >= LEFT_WAITING {
            leg.doubtful = self.step;
        }
        if overdue {
            // A connect that was not answered in time is no fault where the same endpoint is tried again.
            if !self.draining && !leg.connecting && leg.executed && headless {
                leg.charged = true;
                self.silent.push(leg.slot);
            } else {
                leg.doubtful = self.step;
            }
        }
        self.end_leg(at);
        self.lines.remove(&at);
    }

    fn end_leg(&mut self, at: usize) {
        let Some(leg) = self.lines.get_mut(&at).and_then(|line| line.leg.take()) else { return };
        self.legs[leg.slot] -= 1;
        if leg.charged {
            self.keep(leg.slot);
        } else if leg.doubtful == self.step {
            self.doubtful.push(leg.slot);
        }
    }
}
