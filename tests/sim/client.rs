//! Scripted clients, which check every byte that they get.

use crate::engine::Play;
use crate::network::Network;
use crate::pipe::End;
use crate::plan::{Kind, Plan, Reply, pattern};
use crate::random::Random;
use crate::script;
use crate::wire::{Framing, Head, Reader};

/// Most bytes on their way to the front.
const WINDOW: usize = 100_000;

/// Where it is in the reply it reads.
enum Reading {
    Head,
    /// Own: the front's answer, not an engine's.
    Body {
        framing: Framing,
        body: Vec<u8>,
        own: bool,
        greeted: bool,
        /// It is the engine's refusal.
        refused: bool,
        closes: bool,
    },
    Tunnel(Vec<u8>),
    /// Nothing may come any more.
    Over,
}

/// What makes a client unlike others.
pub struct Manners {
    /// Sends further requests before the replies to those before.
    pub pipelines: bool,
    /// Microseconds at most between two things it does.
    pub pace: usize,
    /// And between two reads.
    pub read_pace: usize,
    /// Leaves so, when it has sent so many bytes, and this long after.
    pub leaves: Option<(End, usize, u64)>,
    /// Sends FIN behind its last request.
    pub half_closes: bool,
    pub calm: bool,
}

pub struct Client {
    pub pipe: Option<usize>,
    plans: Vec<usize>,
    manners: Manners,
    starts_at: u64,
    next_at: u64,
    next_read_at: u64,
    leaves_at: Option<u64>,
    /// Bytes sent of all requests.
    sent: usize,
    /// Where each request ends in what is sent.
    ends: Vec<usize>,
    reader: Reader,
    reading: Reading,
    /// Streams that ended with an event of the front's.
    pub told: usize,
    /// Replies that came whole, and those of them that engines sent.
    pub replies: usize,
    pub by_engines: usize,
    pub over: bool,
    finished: bool,
}

impl Client {
    pub fn new(plans: Vec<usize>, manners: Manners, starts_at: u64, play: &Play) -> Client {
        let lens = plans.iter().map(|&plan| play.plans[plan].wire.len());
        let ends = lens.scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        });
        Client {
            pipe: None,
            ends: ends.collect(),
            plans,
            manners,
            starts_at,
            next_at: 0,
            next_read_at: 0,
            leaves_at: None,
            sent: 0,
            reader: Reader::default(),
            reading: Reading::Head,
            told: 0,
            replies: 0,
            by_engines: 0,
            over: false,
            finished: false,
        }
    }

    pub fn next(&self, network: &Network) -> Option<u64> {
        let Some(pipe) = self.pipe else { return (!self.over).then_some(self.starts_at) };
        if self.over {
            return None;
        }
        let reads = network.unread_by_peer(pipe) > 0 || network.front_end(pipe).is_some();
        let read = reads.then_some(self.next_read_at);
        let send = (self.sent < self.sendable() && network.peer_may_send(pipe, WINDOW)).then_some(self.next_at);
        [read, send, self.leaves_at].into_iter().flatten().min()
    }

    /// How far it may send by its manners.
    fn sendable(&self) -> usize {
        let all = self.ends.last().copied().unwrap_or(0);
        if self.finished || self.manners.pipelines { all } else { self.ends.get(self.replies).copied().unwrap_or(all) }
    }

    pub fn step(&mut self, network: &mut Network, play: &mut Play, random: &mut Random) {
        if self.over || network.now < self.starts_at {
            return;
        }
        if self.pipe.is_none() {
            self.next_at = network.now + random.below(self.manners.pace) as u64;
        }
        let pipe = *self.pipe.get_or_insert_with(|| network.arrive());
        if self.leaves_at.is_some_and(|at| at <= network.now) {
            return self.leave(network, pipe);
        }
        if network.now >= self.next_at && self.sent < self.sendable() {
            self.next_at = network.now + random.below(self.manners.pace) as u64;
            self.send(network, play, random, pipe);
        }
        if network.now >= self.next_read_at {
            self.next_read_at = network.now + random.below(self.manners.read_pace) as u64;
            let most = if self.manners.read_pace > 10_000 { 4_096 + random.below(8_192) } else { random.small(20_000) };
            let bytes = network.peer_receive(pipe, most);
            self.reader.push(&bytes);
            self.read(play);
            if let Some(end) = network.front_end(pipe) {
                self.ended(end, play);
                network.peer_ends(pipe, end);
            }
        }
    }

    fn leave(&mut self, network: &mut Network, pipe: usize) {
        let (end, ..) = self.manners.leaves.expect("why it leaves");
        network.peer_ends(pipe, end);
        self.over = true;
    }

    fn send(&mut self, network: &mut Network, play: &mut Play, random: &mut Random, pipe: usize) {
        let request = self.ends.partition_point(|&end| end <= self.sent);
        let start = request.checked_sub(1).map_or(0, |before| self.ends[before]);
        let plan = self.plans[request];
        play.begun[plan] = true;
        let rest = &play.plans[plan].wire[self.sent - start..];
        let piece = random.small(20_000).min(rest.len());
        self.sent += network.peer_send(pipe, &rest[..piece], WINDOW);
        if let Some((_, behind, later)) = self.manners.leaves
            && self.sent >= behind
        {
            self.leaves_at.get_or_insert(network.now + later);
        }
        let all = self.sent == *self.ends.last().expect("requests");
        if all && self.is_tunnel(play) {
            let plan = &play.plans[plan];
            let early = pattern(&plan.id, 't', plan.reply.body.len());
            network.peer_send(pipe, &early, usize::MAX);
            network.peer_ends(pipe, End::Fin);
        } else if all && self.manners.half_closes {
            network.peer_ends(pipe, End::Fin);
        }
    }

    fn is_tunnel(&self, play: &Play) -> bool {
        self.plans.last().is_some_and(|&plan| play.plans[plan].kind == Kind::Upgrade)
    }

    fn read(&mut self, play: &Play) {
        loop {
            match &mut self.reading {
                Reading::Head => {
                    let Some(head) = self.reader.head() else { return };
                    self.begin(&head, play);
                }
                Reading::Body { framing, body, .. } => {
                    if !self.reader.body(framing, body) {
                        return;
                    }
                    self.complete(play);
                }
                Reading::Tunnel(got) => return got.extend(self.reader.take_all()),
                Reading::Over => {
                    let last = self.replies.checked_sub(1).map(|at| &play.plans[self.plans[at]]);
                    let last = last.map(|plan| (&plan.id, plan.kind, plan.old));
                    assert!(self.reader.is_empty(), "behind the last reply, {last:?}: {:?}", self.reader.show());
                    return;
                }
            }
        }
    }

    fn plan<'a>(&self, play: &'a Play) -> Option<&'a Plan> {
        self.plans.get(self.replies).map(|&plan| &play.plans[plan])
    }

    fn begin(&mut self, head: &Head, play: &Play) {
        let status = head.status();
        let Some(plan) = self.plan(play) else { panic!("a reply that nobody asked for: {head:?}") };
        if status == 101 {
            assert_eq!(head.get("x-plan"), Some(&*plan.id), "someone else's tunnel");
            self.reading = Reading::Tunnel(Vec::new());
            return;
        }
        if status < 200 {
            return;
        }
        let own = head.get("x-plan").is_none();
        let greeted = head.get("x-plan") == Some("nobody") && !self.manners.calm;
        if !plan.reply.garbage || own {
            let theirs = if own { head.get("x-request-id") } else { head.get("x-plan") };
            let theirs_to_tell = own && theirs.is_none() && matches!(status, 400 | 408 | 431);
            assert!(theirs_to_tell || greeted || theirs == Some(&plan.id), "for {}: someone else's {head:?}", plan.id);
        }
        let begun = self.replies.checked_sub(1).map_or(0, |before| self.ends[before]) < self.sent;
        assert!(begun, "a reply before its request: {head:?}");
        // Who answers before the head was whole does not know that it was HEAD.
        let bodiless = plan.kind == Kind::Head && !(own && head.get("x-request-id").is_none());
        let without = if bodiless || matches!(status, 204 | 304) { Framing::Length(0) } else { Framing::UntilClose };
        let framing = if bodiless { without } else { head.framing(without) };
        let closes = head.closes()
            || framing == Framing::UntilClose
            || (plan.old && head.get("connection") != Some("keep-alive"));
        let refused = head.get("x-part").is_some();
        self.reading = Reading::Body { framing, body: Vec::new(), own, greeted, refused, closes };
    }

    fn complete(&mut self, play: &Play) {
        let Reading::Body { body, own, greeted, refused, closes, framing } =
            std::mem::replace(&mut self.reading, Reading::Over)
        else {
            return;
        };
        let plan = self.plan(play).expect("checked at its head");
        if own {
            assert!(
                body.is_empty() || body.starts_with(b"{\"error\":"),
                "{}: {:?}",
                plan.id,
                String::from_utf8_lossy(&body)
            );
            let answers = plan.kind == Kind::Health || !self.manners.calm;
            assert!(answers, "{} refused in a calm: {:?}", plan.id, String::from_utf8_lossy(&body));
        } else if !greeted {
            let expected = reply_of(plan, refused);
            assert!(
                expected.body == body || expected.garbage,
                "{} ({framing:?}) came back changed: {} of {} bytes",
                plan.id,
                body.len(),
                expected.body.len()
            );
        }
        self.replies += 1;
        self.by_engines += usize::from(!own);
        if plan.kind == Kind::Upgrade {
            // What was meant for the tunnel is read as requests.
            self.over = true;
            self.reader.take_all();
        } else if !closes {
            self.reading = Reading::Head;
        }
    }

    /// The front ended the connection and everything before was read.
    fn ended(&mut self, end: End, play: &mut Play) {
        self.over = true;
        let Some(plan) = self.plan(play) else { return };
        match &self.reading {
            // The only body that a FIN ends.
            Reading::Body { framing: Framing::UntilClose, .. } if end == End::Fin => self.complete(play),
            Reading::Body { body, own: false, greeted: false, refused, .. } => {
                let reply = reply_of(plan, *refused);
                let told = reply.stream && script::is_told(body, &reply.body);
                let cut = reply.body.starts_with(body);
                assert!(
                    cut || told || reply.garbage,
                    "{} was changed before it was cut: {}",
                    plan.id,
                    body.escape_ascii()
                );
                self.told += usize::from(told && !cut);
            }
            Reading::Tunnel(got) => {
                assert!(plan.reply.body.starts_with(got), "{}: the tunnel changed bytes for the client", plan.id);
                let whole = got.len() == plan.reply.body.len() && end == End::Fin;
                assert!(
                    whole || !self.manners.calm,
                    "{}: {} of {} through the tunnel",
                    plan.id,
                    got.len(),
                    plan.reply.body.len()
                );
                if whole {
                    self.replies += 1;
                    play.tunnelled += 1;
                }
            }
            _ => {}
        }
    }

    /// Its requests, in order.
    pub fn plans(&self) -> &[usize] {
        &self.plans
    }

    /// How many of its requests it began to send.
    pub fn begun(&self, play: &Play) -> usize {
        self.plans.iter().filter(|plan| play.begun[**plan]).count()
    }

    /// In a calm nothing may be missing.
    pub fn assert_served(&self, play: &Play) {
        let missing = self.plan(play).map(|plan| (&plan.id, plan.kind));
        assert!(missing.is_none(), "in a calm no reply to {missing:?}, {} of {}", self.replies, self.plans.len());
    }
}

/// What an engine said: its reply, or that it has too much to do.
fn reply_of(plan: &Plan, refused: bool) -> &Reply {
    plan.busy.as_ref().filter(|_| refused).map_or(&plan.reply, |(busy, _)| busy)
}
