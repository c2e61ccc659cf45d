//! Sequences of events into an exchange, as a shard may make them: whatever comes, in whatever order, it ends once,
//! gives everything back, and what it sent is whole messages or visibly none.
//!
//! The input is four parts with a byte 0xFE between: settings, the client's bytes, the engine's bytes, and the script,
//! one event a byte.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use warmfront::counters::Counters;
use warmfront::counters::stats::ShardStats;
use warmfront::exchange::{
    Action, Actions, Context, Ending, Event, Exchange, Lender, Opened, Peer, Phase, Rules, Side, Source, open,
};
use warmfront::snapshot::Snapshot;

use super::exchange_audit::Reply;
use super::exchange_fleet::{counted, fleet, rules};

const LENGTHS: [usize; 16] = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 1_000, 4_000, usize::MAX];

/// Where the upstream connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Upstream {
    None,
    Connecting,
    Connected,
}

/// What stands in for the shard and for both peers.
struct Play<'a> {
    counters: &'static Counters,
    stats: &'static ShardStats,
    rules: Rules,
    snapshot: Rc<Snapshot>,
    draining: bool,
    lender: Lender,
    actions: Actions,
    now: u64,
    /// What has not come yet.
    client: &'a [u8],
    engine: &'a [u8],
    client_ended: bool,
    upstream: Upstream,
    /// Bytes of the reply that may pass unseen.
    splicing: u64,
    /// How much the upstream's kernel takes at once.
    room: usize,
    full: [bool; 2],
    /// What was sent to the upstream connection at hand, and to the client.
    asked: Vec<u8>,
    answered: Vec<u8>,
    /// What the engine answered on the connection at hand, and whether it ended that properly.
    replied: Vec<u8>,
    fin: bool,
    ending: Option<Ending>,
    tunnelled: bool,
}

/// Runs one script.
pub fn exchange(input: &[u8]) {
    let parts: Vec<&[u8]> = input.splitn(4, |byte| *byte == 0xFE).collect();
    let [settings, client, engine, script] = parts[..] else { return };
    let flags = settings.first().copied().unwrap_or(0);
    let (counters, stats) = counted();
    let mut play = Play {
        counters,
        stats: stats.shard(0),
        rules: rules(flags),
        snapshot: fleet(flags),
        draining: flags & 8 != 0,
        lender: Lender::default(),
        actions: Actions::default(),
        now: 1_000_000,
        client,
        engine,
        client_ended: false,
        upstream: Upstream::None,
        splicing: 0,
        room: usize::MAX,
        full: [false; 2],
        asked: Vec::new(),
        answered: Vec::new(),
        replied: Vec::new(),
        fin: false,
        ending: None,
        tunnelled: false,
    };
    play.run(script, flags & 16 != 0);
}

macro_rules! context {
    ($play:expr) => {
        Context {
            now: $play.now,
            stopwatch: || 0,
            snapshot: &$play.snapshot,
            counters: $play.counters,
            stats: $play.stats,
            rules: &$play.rules,
            leaving: false,
            draining: $play.draining,
            has_successor: false,
            lender: &mut $play.lender,
            actions: &mut $play.actions,
        }
    };
}

impl<'a> Play<'a> {
    fn run(&mut self, script: &[u8], body_with_head: bool) {
        let peer = Peer { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1 };
        let all = self.client;
        match open(all, peer, self.now, &mut context!(self)) {
            Opened::Partial => return assert!(self.actions.list.is_empty()),
            Opened::Answered(taken) => {
                assert!(taken <= all.len());
                self.carry_out(None, &[]);
                assert!(self.ending.is_some(), "an answer without an end");
            }
            Opened::Exchange(taken, mut exchange) => {
                self.client = &all[taken..];
                self.carry_out(Some(&mut *exchange), &[]);
                if body_with_head && exchange.reads_request() && !self.client.is_empty() {
                    self.request(&mut exchange, usize::MAX);
                } else {
                    self.advance(&mut exchange, Event::Begin, &[]);
                }
                self.follow(&mut exchange, script);
                self.ended_well(&exchange, all);
            }
        }
        super::exchange_audit::all_is_back(&mut self.lender, self.counters);
    }

    fn follow(&mut self, exchange: &mut Exchange, script: &[u8]) {
        for &step in script {
            if self.ending.is_some() {
                return;
            }
            self.now += 1_000;
            self.step(exchange, step & 15, step >> 4);
        }
        if self.ending.is_none() {
            self.advance(exchange, Event::Cut, &[]);
        }
        assert!(self.ending.is_some(), "cut, and not over");
    }

    fn step(&mut self, exchange: &mut Exchange, what: u8, how: u8) {
        let len = LENGTHS[usize::from(how)];
        let side = if how & 1 == 0 { Side::Client } else { Side::Upstream };
        let connected = self.upstream == Upstream::Connected;
        let acknowledged = (how & 2 != 0).then_some(if how & 4 != 0 { self.asked.len() as u64 } else { 0 });
        match what {
            0 | 1 if exchange.reads_request() && !self.client_ended => self.request(exchange, len),
            2 | 3 if connected && !self.engine.is_empty() => {
                let (bytes, rest) = self.engine.split_at(len.min(self.engine.len()));
                (self.engine, self.splicing) = (rest, 0);
                self.replied.extend_from_slice(bytes);
                self.advance(exchange, Event::Reply(bytes), bytes);
            }
            4 if self.upstream == Upstream::Connecting => {
                self.upstream = Upstream::Connected;
                self.advance(exchange, Event::Connected { reused: how & 1 != 0, acknowledged: Some(0) }, &[]);
            }
            5 if self.upstream == Upstream::Connecting => {
                self.upstream = Upstream::None;
                let event = if how & 4 == 0 { Event::ConnectFailed } else { Event::ConnectPortless };
                self.advance(exchange, event, &[]);
            }
            6 => self.room = len,
            7 if connected => {
                self.fin |= how & 1 != 0;
                self.advance(exchange, Event::UpstreamGone { by_fin: how & 1 != 0, acknowledged }, &[]);
            }
            8 if side == Side::Client || connected => {
                self.full[side as usize] = true;
                self.advance(exchange, Event::Full(side), &[]);
            }
            9 if self.full[side as usize] || (side == Side::Upstream && connected) => {
                self.full[side as usize] = false;
                self.advance(exchange, Event::Drained(side), &[]);
            }
            10 => {
                if let Some(due) = exchange.deadline() {
                    self.now = self.now.max(due);
                    self.advance(exchange, Event::Deadline { acknowledged, client_stalls: how & 1 != 0 }, &[]);
                }
            }
            11 => self.now += u64::from(how) * 1_000_000,
            12 if !self.client_ended => {
                self.client_ended = true;
                self.advance(exchange, Event::ClientEnded, &[]);
            }
            13 => self.advance(exchange, Event::ClientReset, &[]),
            14 => {
                let len = self.splicing.min(len as u64).min(self.engine.len() as u64);
                if len > 0 && connected {
                    let (bytes, rest) = self.engine.split_at(len as usize);
                    self.answered.extend_from_slice(bytes);
                    self.replied.extend_from_slice(bytes);
                    self.engine = rest;
                    self.splicing -= len;
                    self.advance(exchange, Event::Spliced(len), &[]);
                }
            }
            15 if how == 15 => self.advance(exchange, Event::Cut, &[]),
            15 => self.draining = true,
            _ => {}
        }
    }

    fn request(&mut self, exchange: &mut Exchange, len: usize) {
        let bytes = &self.client[..len.min(self.client.len())];
        if bytes.is_empty() {
            return;
        }
        self.advance(exchange, Event::Request(bytes), bytes);
    }

    fn advance(&mut self, exchange: &mut Exchange, event: Event<'_>, bytes: &[u8]) {
        let is_request = matches!(event, Event::Request(_));
        self.actions.clear();
        exchange.advance(event, &mut context!(self));
        let consumed = self.actions.consumed;
        assert!(consumed <= bytes.len(), "{consumed} of {} bytes", bytes.len());
        if is_request {
            self.client = &self.client[consumed..];
        }
        self.tunnelled |= exchange.phase() == Phase::Tunnel;
        self.carry_out(Some(exchange), bytes);
    }

    /// Does what the shard does, and what follows from it.
    fn carry_out(&mut self, exchange: Option<&mut Exchange>, bytes: &[u8]) {
        let actions = std::mem::take(&mut self.actions);
        let mut pushes = false;
        for action in &actions.list {
            match action {
                Action::Send(side, source) => {
                    let sent = match source {
                        Source::Input(range) => &bytes[range.clone()],
                        Source::Scratch(range) => &actions.scratch[range.clone()],
                    };
                    assert!(self.ending.is_none() || *side == Side::Upstream, "sent to the client behind the end");
                    match side {
                        Side::Client => self.answered.extend_from_slice(sent),
                        Side::Upstream if self.upstream == Upstream::Connected => self.asked.extend_from_slice(sent),
                        Side::Upstream => assert!(self.ending.is_some(), "sent to an engine that is not there"),
                    }
                }
                Action::PushRequest => pushes = true,
                Action::Connect { .. } => {
                    assert_eq!(self.upstream, Upstream::None, "two connections at once");
                    self.upstream = Upstream::Connecting;
                    self.replied.clear();
                    self.fin = false;
                }
                Action::Dismiss { reuse } => self.dismissed(*reuse),
                Action::Splice(len) => self.splicing = *len,
                Action::Pause(_) | Action::Resume(_) | Action::Finish(_) => {}
                Action::End(ending) => {
                    assert_eq!(self.ending.replace(*ending), None, "ended twice");
                    self.dismissed(false);
                }
            }
        }
        self.actions = actions;
        let Some(exchange) = exchange.filter(|_| pushes && self.ending.is_none()) else { return };
        if self.upstream == Upstream::Connected {
            let unsent = exchange.unsent();
            let taken = self.room.min(unsent.len());
            self.asked.extend_from_slice(&unsent[..taken]);
            self.advance(exchange, Event::Pushed(taken), &[]);
        }
    }

    /// What one upstream connection got: one request, or its beginning, and nothing behind it.
    fn dismissed(&mut self, reuse: bool) {
        self.upstream = Upstream::None;
        (self.splicing, self.full[Side::Upstream as usize]) = (0, false);
        let asked = std::mem::take(&mut self.asked);
        super::exchange_audit::check_request(&asked, reuse, self.tunnelled);
    }

    fn ended_well(&self, exchange: &Exchange, all: &[u8]) {
        assert_eq!(exchange.phase(), Phase::Done);
        assert_eq!((exchange.held_bytes(), exchange.deadline()), (0, None));
        if self.ending == Some(Ending::KeepAlive) {
            assert!(!exchange.reads_request(), "goes on in the middle of a request: {}", all.escape_ascii());
            assert!(!self.answered.is_empty(), "goes on without an answer: {}", all.escape_ascii());
        }
        if self.tunnelled || self.answered.is_empty() {
            return;
        }
        let reply = Reply { bytes: &self.replied, fin: self.fin };
        super::exchange_audit::check(all, &reply, &self.answered, self.ending);
    }
}
