//! One connection of a script: what was done to it, and what must come of that.

use warmfront::driver::{Driver, Lease, Segment, SocketId, Tag};

use crate::peer::{End, Peer, pattern};

pub struct Line {
    id: SocketId,
    pub tag: Tag,
    /// The far end, until it breaks.
    peer: Option<Peer>,
    pub reading: bool,
    /// What the far end writes, how much of it the kernel took, and whether a FIN follows.
    written: Vec<u8>,
    flushed: usize,
    pub fin: bool,
    fin_sent: bool,
    /// Bytes given to the driver, or taken by it of an offer.
    sent: Vec<u8>,
    offering: Vec<u8>,
    finish: bool,
    finished: bool,
    /// The owner left; and whether the far end must see a reset.
    closed: bool,
    torn: bool,
    /// A step has cut it, so that bytes may be missing.
    pub cut: bool,
    own_cut: bool,
    paused: bool,
    pub hiccup: Option<usize>,
    resume_in: Option<usize>,
    pub link: Option<usize>,
    /// `Drained` must follow.
    owed: bool,
    pub has_ended: bool,
    pub has_failed: bool,
    has_reset: bool,
}

impl Line {
    pub fn new(id: SocketId, tag: Tag, peer: Peer) -> Line {
        Line {
            id,
            tag,
            peer: Some(peer),
            reading: true,
            written: Vec::new(),
            flushed: 0,
            fin: false,
            fin_sent: false,
            sent: Vec::new(),
            offering: Vec::new(),
            finish: false,
            finished: false,
            closed: false,
            torn: false,
            cut: false,
            own_cut: false,
            paused: false,
            hiccup: None,
            resume_in: None,
            link: None,
            owed: false,
            has_ended: false,
            has_failed: false,
            has_reset: false,
        }
    }

    // What the far end does.

    pub fn write(&mut self, len: usize) {
        if !self.fin {
            let salt = self.written.len() as u64 ^ self.tag.0;
            self.written.extend(pattern(len, salt));
        }
    }

    pub fn reset(&mut self) {
        if let Some(peer) = self.peer.take() {
            peer.reset();
            (self.cut, self.own_cut) = (true, true);
        }
    }

    pub fn move_peer(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        self.flushed += peer.write_some(&self.written[self.flushed..]);
        if self.fin && !self.fin_sent && self.flushed == self.written.len() {
            self.fin_sent = true;
            peer.finish();
        }
        if self.reading {
            peer.read();
        }
    }

    // What the owner does.

    fn sends(&self) -> bool {
        !self.closed && !self.finish
    }

    pub fn send<D: Driver>(&mut self, driver: &mut D, len: usize, count: usize) {
        if self.sends() {
            let bytes = pattern(len, len as u64 ^ self.tag.0);
            let segments: Vec<_> = bytes.chunks(len.div_ceil(count)).map(Segment::Bytes).collect();
            self.owed |= driver.send(self.id, &segments) > 0;
            self.sent.extend(bytes);
        }
    }

    pub fn forward<D: Driver>(&mut self, driver: &mut D, lease: Lease) {
        if self.sends() {
            self.sent.extend_from_slice(driver.bytes(lease));
            let (middle, len) = (lease.len as usize / 3, lease.len as usize);
            let parts = [Segment::Leased(lease, 0..middle), Segment::Leased(lease, middle..len)];
            self.owed |= driver.send(self.id, &parts) > 0;
        }
    }

    pub fn offer<D: Driver>(&mut self, driver: &mut D, len: usize) {
        if self.sends() {
            self.offering.extend(pattern(len, len as u64));
            self.offer_on(driver);
        }
    }

    fn offer_on<D: Driver>(&mut self, driver: &mut D) {
        let taken = driver.offer(self.id, &self.offering);
        self.owed |= taken < self.offering.len();
        self.sent.extend(self.offering.drain(..taken));
        self.finish_now(driver);
    }

    pub fn finish<D: Driver>(&mut self, driver: &mut D) {
        self.finish |= !self.closed;
        self.finish_now(driver);
    }

    fn finish_now<D: Driver>(&mut self, driver: &mut D) {
        if self.finish && !self.finished && !self.closed && self.offering.is_empty() {
            self.finished = true;
            driver.finish(self.id);
        }
    }

    pub fn pause<D: Driver>(&mut self, driver: &mut D) {
        (self.paused, self.resume_in) = (!self.closed, None);
        driver.pause(self.id);
    }

    pub fn resume<D: Driver>(&mut self, driver: &mut D) {
        (self.paused, self.resume_in) = (false, None);
        driver.resume(self.id);
    }

    /// A turn has passed.
    pub fn count_down<D: Driver>(&mut self, driver: &mut D) {
        match self.resume_in {
            Some(0) => self.resume(driver),
            Some(turns) => self.resume_in = Some(turns - 1),
            None => {}
        }
    }

    pub fn close<D: Driver>(&mut self, driver: &mut D) {
        if !self.closed {
            (self.closed, self.cut, self.own_cut) = (true, true, true);
            self.torn = self.owed && !self.has_failed;
            driver.close(self.id);
        }
    }

    pub fn abort<D: Driver>(&mut self, driver: &mut D) {
        if !self.closed {
            (self.closed, self.cut, self.own_cut) = (true, true, true);
            // If the FIN has gone, that was first.
            self.torn = !self.has_failed && !self.finished;
            driver.abort(self.id);
        }
    }

    // What the owner is told.

    pub fn received<D: Driver>(&mut self, driver: &mut D) -> Result<(), &'static str> {
        if self.closed || self.paused || self.has_ended || self.has_failed {
            return Err("bytes after a pause or an end");
        }
        if let Some(turns) = self.hiccup.take() {
            self.pause(driver);
            self.resume_in = Some(turns);
        }
        Ok(())
    }

    pub fn ended(&mut self) -> Result<(), &'static str> {
        let wrong = self.closed || self.paused || self.has_failed || std::mem::replace(&mut self.has_ended, true);
        if wrong { Err("an end after a pause or an end") } else { Ok(()) }
    }

    pub fn failed(&mut self) -> Result<(), &'static str> {
        let wrong = self.closed || self.peer.is_some() || std::mem::replace(&mut self.has_failed, true);
        if wrong { Err("a fault that is none, or the second") } else { Ok(()) }
    }

    pub fn was_reset(&mut self) -> Result<(), &'static str> {
        let wrong = self.closed || !self.paused || self.peer.is_some() || std::mem::replace(&mut self.has_reset, true);
        if wrong { Err("a reset that is none, or the second, or of one that is not paused") } else { Ok(()) }
    }

    pub fn full(&mut self) -> Result<(), &'static str> {
        self.owed = true;
        if self.closed { Err("full after its close") } else { Ok(()) }
    }

    pub fn drained<D: Driver>(&mut self, driver: &mut D) -> Result<(), &'static str> {
        if self.closed || !std::mem::replace(&mut self.owed, false) {
            return Err("room for nothing");
        }
        if !self.offering.is_empty() {
            self.offer_on(driver);
        }
        self.finish_now(driver);
        Ok(())
    }

    // What must come of it.

    /// How much the far end has written or is about to.
    pub fn written(&self) -> usize {
        self.written.len()
    }

    pub fn got(&self) -> &[u8] {
        self.peer.as_ref().map_or(&[], |peer| &peer.got)
    }

    pub fn end(&self) -> Option<End> {
        self.peer.as_ref()?.end
    }

    /// What is still missing, in words.
    pub fn missing(&self, received: usize) -> Option<String> {
        if self.peer.is_none() {
            let both_ended = self.fin_sent && self.finished;
            let told = self.closed
                || both_ended
                || if self.paused { self.has_reset || self.has_failed } else { self.has_failed };
            return (!told).then(|| "a reset is not told".into());
        }
        if self.closed {
            return (self.reading && self.end().is_none()).then(|| "the far end sees no end".into());
        }
        if !self.paused && received < self.written.len() {
            return Some(format!("{received} of {} bytes were received", self.written.len()));
        }
        if self.fin && !self.paused && !self.has_ended {
            return Some("a FIN is not told".into());
        }
        if self.reading && (self.got().len() < self.sent.len() || !self.offering.is_empty() || self.owed) {
            let (got, sent, offered) = (self.got().len(), self.sent.len(), self.offering.len());
            return Some(format!("the far end has {got} of {sent}, {offered} offered, room owed: {}", self.owed));
        }
        (self.reading && self.finish && self.end().is_none()).then(|| "the far end sees no FIN".into())
    }

    /// Whether the bytes that came are those that were given, and all of them if the end was told.
    pub fn is_whole(&self, received: &[u8]) -> Result<(), String> {
        if !self.written.starts_with(received) || !self.sent.starts_with(self.got()) {
            return Err("other bytes than were given".into());
        }
        if self.has_ended && received.len() < self.written.len() {
            return Err("an end before the last byte".into());
        }
        match self.end() {
            Some(End::Fin) if self.got().len() < self.sent.len() => {
                Err("the far end takes a part for the whole".into())
            }
            Some(End::Fin) if self.torn => Err("a FIN where a reset is due".into()),
            Some(End::Reset) if !self.own_cut => Err("a reset of a connection that nobody has cut".into()),
            _ => Ok(()),
        }
    }
}
