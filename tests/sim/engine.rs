//! Scripted engines: one for each connection that the front opened.

use std::rc::Rc;

use crate::network::Network;
use crate::pipe::End;
use crate::plan::{Begins, Break, Kind, Plan, pattern};
use crate::random::Random;
use crate::script::{Framed, Script, Shape};
use crate::shadow::slot_of;
use crate::wire::{Framing, Head, Reader};

/// Most bytes on their way to the front.
const WINDOW: usize = 50_000;

/// What all peers of a schedule know of its requests.
#[derive(Default)]
pub struct Play {
    pub plans: Vec<Plan>,
    /// How often an engine had the whole request.
    pub executed: Vec<u32>,
    /// On how many connections engines read any of it.
    pub seen: Vec<u32>,
    /// How often an engine refused it whole, unexecuted, for load.
    pub refused: Vec<u32>,
    /// The endpoint that saw it last.
    pub seen_at: Vec<Option<usize>>,
    /// A client sent its first byte.
    pub begun: Vec<bool>,
    /// Tunnels that carried both ways all there was.
    pub tunnelled: usize,
}

impl Play {
    pub fn find(&self, id: &str) -> usize {
        self.plans.iter().position(|plan| plan.id == id).expect("an id of ours")
    }
}

enum State {
    Idle,
    Body(usize, Framing, Vec<u8>),
    Tunnel(usize, Vec<u8>),
    /// Reads and says nothing more.
    Deaf,
    Over,
}

pub struct Engine {
    pub pipe: usize,
    reader: Reader,
    state: State,
    /// To send, and what becomes of the connection behind it.
    out: Vec<u8>,
    sent: usize,
    then: Option<Break>,
    /// The request at hand has its reply, and that is a refusal.
    answered: bool,
    refuses: bool,
    /// Reads no more, whatever comes.
    stopped: bool,
    faults: usize,
    calm: bool,
    next_at: u64,
    pace: usize,
}

impl Engine {
    pub fn new(pipe: usize, faults: usize, calm: bool, random: &mut Random) -> Engine {
        let stopped = random.chance(faults / 5);
        let pace = random.pick(&[1, 1_000, 300_000]);
        let state = State::Idle;
        Engine {
            pipe,
            reader: Reader::default(),
            state,
            out: Vec::new(),
            sent: 0,
            then: None,
            answered: false,
            refuses: false,
            stopped,
            faults,
            calm,
            next_at: 0,
            pace,
        }
    }

    /// Some engines speak, or leave, before they are asked.
    pub fn greet(&mut self, network: &mut Network, random: &mut Random) {
        if !random.chance(self.faults / 5) {
            return;
        }
        if random.chance(50) {
            let head = b"HTTP/1.1 408 Request Timeout\r\nx-plan: nobody\r\ncontent-length: 0\r\n\r\n";
            let (data, framing) = (Vec::new(), Framed::Length);
            let script = Script::new(Shape {
                status: 408,
                proves: false,
                names_a_time: false,
                stream: false,
                head,
                framed: b"",
                data,
                framing,
            });
            if let Some(shadow) = &mut network.shadow {
                shadow.answers(self.pipe, 0, Rc::new(script));
            }
            network.peer_send(self.pipe, head, 1_000);
        }
        network.peer_ends(self.pipe, random.pick(&[End::Fin, End::Reset]));
        self.state = State::Over;
    }

    /// When it would do something by itself.
    pub fn next(&self, network: &Network) -> Option<u64> {
        let ended = self.out.is_empty() && network.front_end(self.pipe).is_some();
        let readable = !self.stopped && (network.unread_by_peer(self.pipe) > 0 || ended);
        let writable = self.sent < self.out.len() && network.peer_may_send(self.pipe, WINDOW);
        let acts = readable || writable || self.out.is_empty() && self.then.is_some_and(|then| then != Break::Silence);
        (acts && !matches!(self.state, State::Over)).then_some(self.next_at)
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    pub fn step(&mut self, network: &mut Network, play: &mut Play, random: &mut Random) {
        if matches!(self.state, State::Over) || network.now < self.next_at {
            return;
        }
        self.next_at = network.now + random.below(self.pace) as u64;
        if random.chance(30) {
            network.acknowledge(self.pipe);
        }
        if !self.stopped && random.chance(70) {
            let bytes = network.peer_receive(self.pipe, random.small(20_000));
            self.reader.push(&bytes);
            self.read(network, play, random);
        }
        self.write(network, random);
        self.notice_end(network, play);
        let idle = matches!(self.state, State::Idle) && self.reader.is_empty() && self.out.is_empty();
        if idle && self.faults > 0 && random.below(2_000) < self.faults {
            network.peer_ends(self.pipe, random.pick(&[End::Fin, End::Reset]));
            self.state = State::Over;
        }
    }

    fn read(&mut self, network: &mut Network, play: &mut Play, random: &mut Random) {
        if let State::Deaf | State::Over = self.state {
            return;
        }
        if let State::Tunnel(_, got) = &mut self.state {
            got.extend(self.reader.take_all());
            return;
        }
        // A further request is not read before the reply to the one before is out.
        while self.out.is_empty() && self.then.is_none() {
            match std::mem::replace(&mut self.state, State::Idle) {
                State::Idle => {
                    let Some(head) = self.reader.head() else { return };
                    self.begin(&head, network, play, random);
                }
                state => self.state = state,
            }
            let State::Body(plan, framing, body) = &mut self.state else { return };
            let plan = *plan;
            let whole = self.reader.body(framing, body);
            let expected = &play.plans[plan].body;
            assert!(expected.starts_with(body), "{} reached the engine changed", play.plans[plan].id);
            if !whole {
                return;
            }
            assert_eq!(body.len(), expected.len(), "{} reached the engine cut, as a whole", play.plans[plan].id);
            self.has_all(plan, network, play);
            if play.plans[plan].kind == Kind::Upgrade {
                self.state = State::Tunnel(plan, self.reader.take_all());
            }
            if !self.answered {
                self.answer(plan, network, play, random);
                play.executed[plan] += u32::from(!self.refuses);
            }
        }
        // Early answers go out while the body still comes.
        if let State::Body(plan, framing, body) = &mut self.state
            && self.reader.body(framing, body)
        {
            let plan = *plan;
            self.has_all(plan, network, play);
        }
    }

    /// The request is here to its last byte.
    fn has_all(&mut self, plan: usize, network: &mut Network, play: &mut Play) {
        play.executed[plan] += u32::from(self.answered && !self.refuses);
        self.state = State::Idle;
        if let Some(shadow) = &mut network.shadow {
            shadow.executes(self.pipe);
        }
    }

    fn begin(&mut self, head: &Head, network: &mut Network, play: &mut Play, random: &mut Random) {
        let id = head.get("x-request-id").expect("an id");
        let plan = play.find(id);
        play.seen[plan] += 1;
        let here = network.pipes[self.pipe].address.map(|address| slot_of(address).0);
        let before = std::mem::replace(&mut play.seen_at[plan], here);
        assert!(before.is_none() || before != here, "{id} went to the endpoint that had refused it");
        assert!(play.begun[plan], "{id} that no client sent");
        self.answered = false;
        self.state = State::Body(plan, head.framing(Framing::Length(0)), Vec::new());
        if play.plans[plan].reply.begins == Begins::BehindHead {
            self.answer(plan, network, play, random);
        }
    }

    fn answer(&mut self, plan: usize, network: &mut Network, play: &mut Play, random: &mut Random) {
        let Plan { reply, kind, busy, .. } = &play.plans[plan];
        let busy = busy.as_ref().filter(|(_, times)| play.seen[plan] <= *times).map(|(busy, _)| busy);
        let reply = busy.unwrap_or(reply);
        (self.answered, self.refuses) = (true, busy.is_some());
        self.out = reply.script.wire.clone();
        if let Some(shadow) = &mut network.shadow {
            shadow.answers(self.pipe, network.pipes[self.pipe].said, Rc::clone(&reply.script));
        }
        self.sent = 0;
        self.then = (reply.until_close || reply.closes).then_some(Break::Ends(End::Fin));
        if *kind == Kind::Upgrade {
            self.then = None;
        }
        if reply.garbage {
            self.then = Some(random.pick(&[Break::Silence, Break::Ends(End::Fin), Break::Ends(End::Reset)]));
        }
        if let Some((at, how)) = reply.breaks.filter(|_| !reply.first_only || play.seen[plan] < 2) {
            self.out.truncate(at);
            self.then = Some(how);
        }
        self.stopped |= reply.begins == Begins::BehindHead && random.chance(30);
        play.refused[plan] += u32::from(self.refuses && self.out.len() == reply.script.wire.len());
    }

    fn write(&mut self, network: &mut Network, random: &mut Random) {
        if self.sent < self.out.len() && random.chance(80) {
            let piece = random.small(10_000).min(self.out.len() - self.sent);
            self.sent += network.peer_send(self.pipe, &self.out[self.sent..self.sent + piece], WINDOW);
        }
        if self.sent < self.out.len() {
            return;
        }
        self.out.clear();
        self.sent = 0;
        match self.then.take() {
            None => {}
            Some(Break::Silence) => self.state = State::Deaf,
            Some(Break::Ends(end)) => {
                network.peer_ends(self.pipe, end);
                self.state = if end == End::Fin { State::Deaf } else { State::Over };
            }
        }
    }

    /// The front ended this connection.
    fn notice_end(&mut self, network: &mut Network, play: &mut Play) {
        let Some(end) = network.front_end(self.pipe).filter(|_| !self.stopped && self.out.is_empty()) else { return };
        if let State::Tunnel(plan, got) = &self.state {
            let plan = &play.plans[*plan];
            let all = pattern(&plan.id, 't', plan.reply.body.len());
            assert!(all.starts_with(got), "{}: the tunnel changed bytes for the engine", plan.id);
            let whole = got.len() == all.len() && end == End::Fin;
            assert!(whole || !self.calm, "{}: the tunnel gave the engine {} of {}", plan.id, got.len(), all.len());
            play.tunnelled += usize::from(whole);
        }
        network.peer_ends(self.pipe, if end == End::Fin { End::Fin } else { End::Reset });
        self.state = State::Over;
    }
}
