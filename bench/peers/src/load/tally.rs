//! What the load generator counts, and the line that it prints of a measured window.

use std::ops::Range;
use std::time::Instant;

use crate::{net, process, sent};

#[derive(Default, Clone, Copy)]
pub struct Counts {
    pub requests: u64,
    pub events: u64,
    /// Reads that completed an event: fewer than events if a front writes some together.
    pub arrivals: u64,
    pub bytes: u64,
}

/// One read of a connection.
pub struct Arrival {
    pub events: u64,
    /// When its bytes were read, in microseconds, if their delay counts.
    at_us: Option<u64>,
}

/// The edge of a measured window.
pub struct Mark {
    counts: Counts,
    cpu_ns: u64,
    pub at: Instant,
}

#[derive(Default)]
pub struct Tally {
    pub counts: Counts,
    pub reconnects: u64,
    window: Option<Range<Instant>>,
    latencies: Vec<u64>,
    /// Microseconds from an engine's sending of an event until it was read.
    delays: Vec<u64>,
}

impl Tally {
    /// From now on times replies to requests that were due in `window`, whenever these replies come: those that are
    /// still out at its end are the slow ones.
    pub fn time(&mut self, window: Range<Instant>) {
        self.window = Some(window);
    }

    /// `bytes` have been read just now. `paced`: by streams whose engine sends each event at a time of its own; if it
    /// sends as fast as it can, a delay only tells how deep its sockets are.
    pub fn arrival(&mut self, bytes: usize, paced: bool) -> Arrival {
        self.counts.bytes += bytes as u64;
        let counts = paced && self.window.as_ref().is_some_and(|window| window.contains(&Instant::now()));
        Arrival { events: 0, at_us: counts.then(net::clock_us) }
    }

    /// An event of this read is whole.
    pub fn event(&mut self, arrival: &Arrival, sent_us: u64) {
        self.delays.extend(arrival.at_us.map(|now| sent::delay_us(sent_us, now)));
    }

    /// All of this read has been looked at.
    pub fn arrived(&mut self, arrival: &Arrival) {
        self.counts.events += arrival.events;
        self.counts.arrivals += u64::from(arrival.events > 0);
    }

    /// A reply is whole.
    pub fn replied(&mut self, started: Instant) {
        self.counts.requests += 1;
        if self.window.as_ref().is_some_and(|window| window.contains(&started)) {
            self.latencies.push(started.elapsed().as_nanos() as u64);
        }
    }

    pub fn timed(&self) -> usize {
        self.latencies.len()
    }

    /// Latency that this share of the requests did not exceed; to be asked once they are in order.
    pub fn latency_us(&self, share: f64) -> f64 {
        percentile(&self.latencies, share) / 1000.0
    }

    /// Delay that this share of the events did not exceed.
    pub fn delay_us(&self, share: f64) -> f64 {
        percentile(&self.delays, share)
    }

    /// Without a front (`pid` 0) there is no CPU time to count; a front that has served has some.
    pub fn mark(&self, pid: u32) -> Result<Mark, String> {
        let cpu_ns = if pid == 0 { 0 } else { process::cpu_ns(pid) };
        if pid != 0 && cpu_ns == 0 {
            return Err(format!("the CPU time of process {pid} cannot be read"));
        }
        Ok(Mark { counts: self.counts, cpu_ns, at: Instant::now() })
    }

    pub fn print(&mut self, pid: u32, first: &Mark, last: &Mark) -> Result<(), String> {
        if pid != 0 && last.cpu_ns <= first.cpu_ns {
            // Seen once in 280 samples on a virtual machine: a ratio to this would say that a front costs nothing.
            return Err(format!("the kernel's count of CPU time of process {pid} stood still while it served"));
        }
        let seconds = (last.at - first.at).as_secs_f64();
        let cpu_us = (last.cpu_ns - first.cpu_ns) as f64 / 1000.0;
        let requests = last.counts.requests - first.counts.requests;
        let events = last.counts.events - first.counts.events;
        let arrivals = last.counts.arrivals - first.counts.arrivals;
        self.latencies.sort_unstable();
        self.delays.sort_unstable();
        // A value that was not measured has no name in the line, and no place in a table.
        let mut streamed = String::new();
        if arrivals > 0 {
            streamed += &format!(" chunks_per_read={:.3}", events as f64 / arrivals as f64);
        }
        if !self.delays.is_empty() {
            streamed += &format!(" delay_p50_us={} delay_p99_us={}", self.delay_us(0.50), self.delay_us(0.99));
        }
        println!(
            "seconds={seconds:.3} requests={requests} events={events} bytes={} reconnects={} cpu_us={cpu_us:.0} \
             cpu_percent={:.1} cpu_us_per_request={:.3} cpu_us_per_chunk={:.3} requests_per_second={:.1} \
             chunks_per_second={:.1} p50_us={:.1} p99_us={:.1} verified_requests={} verified_events={}{streamed}",
            last.counts.bytes - first.counts.bytes,
            self.reconnects,
            cpu_us / seconds / 10_000.0,
            cpu_us / requests.max(1) as f64,
            cpu_us / events.max(1) as f64,
            requests as f64 / seconds,
            events as f64 / seconds,
            self.latency_us(0.50),
            self.latency_us(0.99),
            self.counts.requests,
            self.counts.events,
        );
        Ok(())
    }
}

fn percentile(sorted: &[u64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at).map_or(0.0, |value| *value as f64)
}
