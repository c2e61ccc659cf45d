//! The access log: a thread of its own reads the records of all shards, writes a line for each and keeps the last as
//! receipts. Writing may take a long time, for a slow disk or a pipe that is not read. Neither shards nor control wait
//! for it; records that do not fit into the shards' queues meanwhile are counted.

mod line;
mod sink;

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::receipts::Receipts;
use crate::bout::Bout;
use crate::config::{Access, Log, LogFormat};
use crate::exchange::Record;
use crate::limits::RECORDS_MAX;
use crate::publish::{Process, Published, Records};
use crate::snapshot::Snapshot;
use line::Names;
pub use line::{Line, Named};
use sink::Sink;

/// How often records are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How soon again if a queue was half full.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Lines are written in pieces of about this many bytes.
const WRITE_BYTES: usize = 256 << 10;
/// How long a question for receipts waits for requests that ended a moment ago.
const FRESH_WAIT: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the last lines.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The log as control holds it. Its thread runs once it has first been switched on.
#[derive(Debug)]
pub struct AccessLog {
    process: &'static Process,
    published: &'static Published,
    counts: Arc<Counts>,
    receipts: Arc<Receipts>,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Thread {
    orders: Sender<Order>,
    ended: Receiver<()>,
}

/// Counts of lines.
#[derive(Debug, Default)]
pub struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    unopened: AtomicU64,
}

impl Counts {
    /// Lines written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Lines that disk or reader did not take.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How often the file could not be opened anew: lines go on to the old one, which may be deleted by now.
    pub fn unopened(&self) -> u64 {
        self.unopened.load(Ordering::Relaxed)
    }
}

/// Where lines are to go, opened.
#[derive(Debug)]
pub struct Prepared {
    sink: Option<Sink>,
    format: LogFormat,
    receipts: usize,
}

#[derive(Debug)]
enum Order {
    Take(Prepared),
    Reopen,
    /// Look for records at once, and answer when that is done.
    Look(oneshot::Sender<()>),
}

impl AccessLog {
    /// A log that is off.
    pub fn new(process: &'static Process, published: &'static Published) -> AccessLog {
        AccessLog { process, published, counts: Arc::default(), receipts: Arc::default(), thread: Mutex::default() }
    }

    /// Opens what `log` names, and starts the thread; nothing is written there yet.
    ///
    /// # Errors
    /// When it cannot be opened, in words.
    pub fn prepare(&self, log: &Log) -> Result<Prepared, String> {
        let sink = match &log.access {
            Access::Off => None,
            target => {
                Some(Sink::open(target).map_err(|error| format!("cannot write the access log to {target}: {error}"))?)
            }
        };
        if sink.is_some() || log.receipts > 0 {
            self.start().map_err(|error| format!("cannot start the access log: {error}"))?;
        }
        Ok(Prepared { sink, format: log.access_format, receipts: log.receipts })
    }

    /// Writes there from now on. Rules that have requests recorded are to be published after this.
    pub fn take(&self, prepared: Prepared) {
        self.receipts.bound(prepared.receipts);
        if prepared.sink.is_some() || prepared.receipts > 0 {
            for shard in self.process.shards() {
                shard.records().open(RECORDS_MAX);
            }
        }
        self.order(Order::Take(prepared));
    }

    /// Opens the file anew: it may have been renamed.
    pub fn reopen(&self) {
        self.order(Order::Reopen);
    }

    /// Receipts of the last requests, up to this moment unless a line waits for its reader.
    pub async fn receipts(&self) -> &Receipts {
        let (sender, looked) = oneshot::channel();
        self.order(Order::Look(sender));
        // If the thread does not run there is no answer, and this returns at once.
        let _ = tokio::time::timeout(FRESH_WAIT, looked).await;
        &self.receipts
    }

    /// Lines so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Writes what there is and ends; a reader that takes nothing is waited for only briefly.
    pub fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Thread { orders, ended }) = thread {
            drop(orders);
            let _ = ended.recv_timeout(LAST_WAIT);
        }
    }

    fn order(&self, order: Order) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = thread.orders.send(order);
        }
    }

    fn start(&self) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (orders, taken) = channel();
            let (ends, ended) = channel();
            let writer =
                Writer::new(self.process, self.published, Arc::clone(&self.counts), Arc::clone(&self.receipts));
            Builder::new().name("access-log".into()).spawn(move || {
                writer.run(&taken);
                let _ = ends.send(());
            })?;
            *thread = Some(Thread { orders, ended });
        }
        Ok(())
    }
}

/// The thread's state.
struct Writer {
    process: &'static Process,
    published: &'static Published,
    counts: Arc<Counts>,
    receipts: Arc<Receipts>,
    sink: Option<Sink>,
    format: LogFormat,
    /// The fleet of the last look.
    before: Arc<Snapshot>,
    /// The records that a look has read, each with the shard's set that it came from.
    read: Vec<(&'static Records, Box<Record>)>,
    lines: Vec<u8>,
    /// The bout in which lines are lost.
    loss: Bout,
    /// The bout in which its file was replaced and the new one could not be opened.
    replaced: Bout,
}

impl Writer {
    fn new(
        process: &'static Process,
        published: &'static Published,
        counts: Arc<Counts>,
        receipts: Arc<Receipts>,
    ) -> Writer {
        let before = published.current();
        Writer {
            process,
            published,
            counts,
            receipts,
            sink: None,
            format: LogFormat::Json,
            before,
            read: Vec::new(),
            lines: Vec::new(),
            loss: Bout::default(),
            replaced: Bout::default(),
        }
    }

    /// Writes until no more orders can come.
    fn run(mut self, orders: &Receiver<Order>) {
        let mut wait = LOOK;
        loop {
            let order = orders.recv_timeout(wait);
            // Records from before an order belong where lines went before. Records for a log that was off until then
            // may have overtaken the order.
            let overtaken = self.sink.is_none() && matches!(order, Ok(Order::Take(_)));
            let busy = !overtaken && self.look();
            wait = if busy { LOOK_AGAIN } else { LOOK };
            match order {
                Ok(Order::Take(Prepared { sink, format, .. })) => {
                    self.format = format;
                    self.goes_to(sink);
                }
                Ok(Order::Reopen) => {
                    if let Err(error) = self.reopen() {
                        self.say_unopened(&error);
                    }
                }
                Ok(Order::Look(asker)) => drop(asker.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Writes what the shards have left since the last look. True: a queue was half full.
    fn look(&mut self) -> bool {
        let process = self.process;
        let now = self.published.current();
        let before = mem::replace(&mut self.before, Arc::clone(&now));
        let mut read = mem::take(&mut self.read);
        let mut busy = false;
        for records in process.shards().iter().map(|shard| shard.records()) {
            let Some(queue) = records.queue() else { continue };
            let len = queue.len();
            busy |= len >= queue.capacity() / 2;
            // Not until the queue is empty: a shard may fill it as fast.
            read.extend((0..len).map_while(|_| queue.pop()).map(|record| (records, record)));
        }
        // Each shard's records are in order. Of all together, the last are kept.
        if process.shards().len() > 1 {
            read.sort_by_key(|(_, record)| record.at + record.total);
        }
        for (records, record) in read.drain(..) {
            let logged = record.logged && self.sink.is_some();
            let named = Named::new(record, &Names([&now, &before]));
            if logged {
                line::write(&named.line(), self.format, &mut self.lines);
            }
            if let Some(oldest) = self.receipts.keep(named) {
                records.give_back(oldest.record);
            }
            if self.lines.len() >= WRITE_BYTES {
                self.write();
            }
        }
        self.read = read;
        self.write();
        busy
    }

    fn write(&mut self) {
        let lines = mem::take(&mut self.lines);
        // Log rotation signals the process that speaks for the service, which is another one then.
        if !lines.is_empty() && self.process.has_successor() && self.sink.as_ref().is_some_and(Sink::is_replaced) {
            // Tried again with each piece that is written.
            match self.reopen() {
                Err(error) if self.replaced.troubled(Instant::now()) => self.say_unopened(&error),
                Err(_) => {}
                Ok(()) => _ = self.replaced.over(),
            }
        }
        if let Some(sink) = self.sink.as_mut().filter(|_| !lines.is_empty()) {
            let (written, outcome) = sink.write(&lines);
            let lost = memchr::memchr_iter(b'\n', lines.get(written..).unwrap_or_default()).count() as u64;
            let all = memchr::memchr_iter(b'\n', &lines).count() as u64;
            self.counts.written.fetch_add(all - lost, Ordering::Relaxed);
            self.counts.lost.fetch_add(lost, Ordering::Relaxed);
            self.tell(outcome);
        }
        self.lines = lines;
        self.lines.clear();
    }

    /// Logs once when lines begin to be lost, and once when that is over; of a reader that now and then stands still
    /// for a moment once a minute.
    fn tell(&mut self, outcome: std::io::Result<()>) {
        let Some(sink) = &self.sink else { return };
        match &outcome {
            Err(error) if self.loss.troubled(Instant::now()) => {
                tracing::error!(to = %sink.target(), %error, "lines of the access log are lost");
            }
            Ok(()) if self.loss.over() => {
                tracing::info!(to = %sink.target(), lost = self.counts.lost(), "the access log is written again");
            }
            _ => {}
        }
    }

    fn goes_to(&mut self, sink: Option<Sink>) {
        let before = mem::replace(&mut self.sink, sink);
        if let (Some(sink), Some(before)) = (&mut self.sink, &before) {
            sink.follows(before);
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        let Some(sink) = &self.sink else { return Ok(()) };
        let anew =
            Sink::open(sink.target()).inspect_err(|_| _ = self.counts.unopened.fetch_add(1, Ordering::Relaxed))?;
        self.goes_to(Some(anew));
        Ok(())
    }

    fn say_unopened(&self, error: &io::Error) {
        if let Some(sink) = &self.sink {
            tracing::error!(to = %sink.target(), %error, "cannot open the access log anew; it goes where it went");
        }
    }
}

#[cfg(test)]
mod tests;
