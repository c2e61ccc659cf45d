use std::fs;
use std::path::PathBuf;

use super::*;
use crate::config::Config;
use crate::control::fleet::Fleet;
use crate::control::keeper::Keeper;
use crate::control::reload::Source;
use crate::control::tests::config_of;
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::exchange::{End, Record, Short};
use crate::http::TraceId;
use crate::scan::Api;

const PATIENCE: Duration = Duration::from_secs(20);

fn record(number: usize) -> Record {
    Record {
        at: 0,
        client: "127.0.0.1:1".parse().unwrap(),
        method: Short::new(b"GET"),
        path: Short::new(b"/"),
        api: Api::Other,
        request_id: Short::new(number.to_string().as_bytes()),
        trace: TraceId::NONE,
        pool: None,
        endpoint: None,
        reason: None,
        runner_up: None,
        compared: None,
        tries: 0,
        prompt_tokens: None,
        held_tokens: None,
        cached_tokens: None,
        completion_tokens: None,
        key: None,
        status: 200,
        end: End::Whole,
        streamed: false,
        request_bytes: 0,
        reply_bytes: 0,
        waited: None,
        chosen: None,
        connected: None,
        head: None,
        first_data: None,
        total: 0,
        logged: true,
        chain: None,
    }
}

struct Log {
    log: AccessLog,
    process: &'static Process,
}

impl Log {
    fn off(shards: usize) -> Log {
        let process = Process::leak(shards);
        Log { log: AccessLog::new(process, Published::leak(Snapshot::default())), process }
    }

    fn to(shards: usize, path: impl Into<PathBuf>) -> Log {
        let log = Log::off(shards);
        log.goes(Access::File(path.into())).unwrap();
        log
    }

    fn goes(&self, access: Access) -> Result<(), String> {
        self.goes_with(access, 0)
    }

    fn goes_with(&self, access: Access, receipts: usize) -> Result<(), String> {
        let log = crate::config::Log { access, receipts, ..Default::default() };
        self.log.prepare(&log).map(|prepared| self.log.take(prepared))
    }

    fn push(&self, shard: usize, number: usize) -> bool {
        self.push_record(shard, record(number))
    }

    fn push_record(&self, shard: usize, record: Record) -> bool {
        self.process.shards()[shard].records().queue().unwrap().push(record.into()).is_ok()
    }

    fn until(&self, what: &str, met: impl Fn(&Counts) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !met(self.log.counts()) {
            assert!(Instant::now() < deadline, "{what} did not come about: {:?}", self.log.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it, with so many lines written. It waits for its last lines,
    /// but on a busy machine perhaps not for long enough.
    fn ends(&self, written: u64) {
        let begun = Instant::now();
        self.log.stop();
        let waited = self.log.counts().written() == written || begun.elapsed() >= LAST_WAIT;
        assert!(waited, "it does not wait for its last lines");
        self.until("the last line", |counts| counts.written() == written);
    }

    /// Waits until all orders so far are carried out.
    fn settles(&self) {
        let (sender, looked) = oneshot::channel();
        self.log.order(Order::Look(sender));
        looked.blocking_recv().unwrap();
    }

    /// Of this moment: asked for again where the machine was so busy that they were not waited for to the end.
    fn receipts(&self) -> &Receipts {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..PATIENCE.as_secs() {
            let begun = Instant::now();
            let receipts = runtime.block_on(self.log.receipts());
            if begun.elapsed() < FRESH_WAIT {
                return receipts;
            }
        }
        panic!("nobody looks");
    }
}

fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("warmfront-access-{name}-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

fn ids(path: &PathBuf) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["request_id"].clone();
    text.lines().map(|text| line(text).as_str().unwrap().to_owned()).collect()
}

#[test]
fn nothing_is_there_while_it_is_off() {
    let log = Log::off(2);
    log.goes(Access::Off).unwrap();
    assert!(log.process.shards().iter().all(|shard| shard.records().queue().is_none()));
    assert!(log.log.thread.lock().unwrap().is_none());
    log.log.stop();
}

#[test]
fn records_of_all_shards_are_written_in_their_order_and_to_the_last() {
    let path = fresh("order");
    let log = Log::to(2, &path);
    (0..3_000).for_each(|number| assert!(log.push(number % 2, number)));
    log.ends(3_000);
    let written = ids(&path);
    for shard in 0..2 {
        let of_shard = written.iter().filter(|id| id.parse::<usize>().unwrap() % 2 == shard);
        let expected: Vec<String> = (0..3_000).skip(shard).step_by(2).map(|number| number.to_string()).collect();
        assert!(of_shard.eq(&expected));
    }
    assert_eq!((log.log.counts().written(), log.log.counts().lost()), (3_000, 0));
    fs::remove_file(path).unwrap();
}

/// As logrotate does: renames the file, then says so. Before that lines go to the old one, none is lost or torn.
#[test]
fn a_renamed_file_is_left_when_it_is_said() {
    let (path, old) = (fresh("rotate"), fresh("rotated"));
    let log = Log::to(1, &path);
    log.push(0, 1);
    log.until("the first line", |counts| counts.written() == 1);
    fs::rename(&path, &old).unwrap();
    log.push(0, 2);
    log.until("the second line", |counts| counts.written() == 2);
    assert!(!path.exists());
    log.log.reopen();
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "it is not opened anew");
        std::thread::sleep(Duration::from_millis(1));
    }
    log.push(0, 3);
    log.ends(3);
    assert_eq!((ids(&old), ids(&path)), (vec!["1".into(), "2".into()], vec!["3".into()]));
    [path, old].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// It was rotated, and its folder takes no new one: lines go on into the old file, which may be deleted next.
#[test]
fn a_file_that_cannot_be_opened_anew_is_counted() {
    let (path, old) = (fresh("unopened"), fresh("unopened-old"));
    let log = Log::to(1, &path);
    fs::rename(&path, &old).unwrap();
    fs::create_dir(&path).unwrap();
    log.log.reopen();
    log.settles();
    assert_eq!(log.log.counts().unopened(), 1);
    fs::remove_dir(&path).unwrap();
    log.log.reopen();
    log.settles();
    assert_eq!((log.log.counts().unopened(), path.exists()), (1, true));
    [path, old].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// Nobody says so to a process whose place another one took: it follows the name once that names another file, not
/// while it names none.
#[test]
fn who_has_an_heir_follows_the_name() {
    let (path, old) = (fresh("inherited"), fresh("inherited-old"));
    let log = Log::to(1, &path);
    let push = |number| {
        assert!(log.push(0, number));
        log.until("the line", |counts| counts.written() == number as u64);
    };
    push(1);
    log.process.give_way();
    push(2);
    fs::rename(&path, &old).unwrap();
    push(3);
    assert!(!path.exists());
    // The heir was told, and has opened it.
    fs::write(&path, "").unwrap();
    push(4);
    log.log.stop();
    assert_eq!(ids(&old), ["1", "2", "3"]);
    assert_eq!(ids(&path), ["4"]);
    [path, old].iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn it_goes_elsewhere_and_off_when_told() {
    let (first, second) = (fresh("first"), fresh("second"));
    let log = Log::to(1, &first);
    log.push(0, 1);
    log.goes(Access::File(second.clone())).unwrap();
    log.until("the first line", |counts| counts.written() == 1);
    log.push(0, 2);
    log.until("the second line", |counts| counts.written() == 2);
    log.goes(Access::Off).unwrap();
    // The order is carried out with a look, which still writes what it finds.
    log.settles();
    log.push(0, 3);
    log.log.stop();
    assert_eq!((ids(&first), ids(&second)), (vec!["1".into()], vec!["2".into()]));
    [first, second].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// A disk that is full takes nothing: lines are counted, and what comes later is written again.
#[test]
fn a_full_disk_is_counted_and_got_over() {
    let log = Log::to(1, "/dev/full");
    (0..100).for_each(|number| assert!(log.push(0, number)));
    log.until("the loss", |counts| counts.lost() == 100);
    let path = fresh("space");
    log.goes(Access::File(path.clone())).unwrap();
    log.settles();
    assert!(log.push(0, 100));
    log.ends(1);
    assert_eq!((log.log.counts().written(), log.log.counts().lost(), ids(&path)), (1, 100, vec!["100".into()]));
    fs::remove_file(path).unwrap();
}

/// Nobody reads the pipe: what does not fit into it is lost, in whole lines as far as a reader can tell, and counted.
#[test]
fn a_pipe_that_nobody_reads_delays_nothing() {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let path = fresh("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let log = Log::off(1);
    // Who reads there begins later, goes, and begins anew.
    log.goes(Access::File(path.clone())).unwrap();
    assert!(log.push(0, 0));
    log.until("the first", |counts| counts.written() == 1);
    let open = || fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    let mut first = [0; 1_000];
    assert!(open().read(&mut first).is_ok_and(|len| first[..len].ends_with(b"}\n")));
    let mut reader = open();
    (1..4_000).for_each(|number| assert!(log.push(0, number)));
    log.until("the loss", |counts| counts.written() + counts.lost() == 4_000 && counts.lost() > 0);
    let mut taken = Vec::new();
    let mut take = || {
        let mut piece = vec![0; 1 << 20];
        while let Ok(len @ 1..) = reader.read(&mut piece) {
            taken.extend_from_slice(&piece[..len]);
        }
    };
    take();
    let written = log.log.counts().written();
    log.push(0, 4_000);
    log.ends(written + 1);
    take();
    let text = String::from_utf8(taken).unwrap();
    let parsed: Vec<_> = text.lines().map(serde_json::from_str::<serde_json::Value>).collect();
    assert!(parsed.iter().all(|line| line.is_ok()), "a pipe takes lines of this length whole: {text}");
    assert_eq!(parsed.last().unwrap().as_ref().unwrap()["request_id"], "4000");
    fs::remove_file(path).unwrap();
}

/// A line that was begun there stays the only one that is spoilt, though the same file is opened anew meanwhile. It is
/// one that a pipe does not take whole: two pages and a part of one, of which a pipe has sixteen.
#[test]
fn a_torn_line_is_remembered_where_the_file_is_the_same() {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    for reload in [false, true] {
        let path = fresh("torn");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut reader = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let log = Log::to(1, &path);
        let long = |number| Record { chain: Some([u64::MAX; 450].into()), ..record(number) };
        (0..30).for_each(|number| assert!(log.push_record(0, long(number))));
        log.until("the loss", |counts| counts.written() + counts.lost() == 30 && counts.lost() > 0);
        if reload {
            log.goes(Access::File(path.clone())).unwrap()
        } else {
            log.log.reopen()
        }
        log.settles();
        let mut taken = vec![0; 1 << 20];
        let len = reader.read(&mut taken).unwrap();
        assert!(!taken[..len].ends_with(b"\n"), "between two lines: write longer or shorter ones");
        let written = log.log.counts().written();
        log.push(0, 4_000);
        log.ends(written + 1);
        let more = reader.read(&mut taken).unwrap();
        assert!(taken[..more].starts_with(b"\n{"), "{}", String::from_utf8_lossy(&taken[..more]));
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_place_that_cannot_be_had_is_said() {
    let log = Log::off(1);
    for path in ["/nowhere/access.log", "/proc"] {
        let said = log.goes(Access::File(path.into())).unwrap_err();
        assert!(said.starts_with(&format!("cannot write the access log to {path}: ")), "{said}");
    }
}

/// The last requests are kept, whether there is a log or not, and no more of them than was asked for.
#[test]
fn receipts_are_bounded_and_need_no_log() {
    let path = fresh("receipts");
    let log = Log::off(2);
    let kept = || {
        let receipts = log.receipts();
        let ids =
            receipts.newest(|_| true).0.iter().map(|named| named.line().request_id.unwrap().into_owned()).collect();
        (ids, receipts.newest(|record| record.is_called(b"3")).0.len())
    };
    let expect = |newest: std::ops::RangeInclusive<usize>, named_3: usize| {
        let ids: Vec<String> = newest.rev().map(|number| number.to_string()).collect();
        assert_eq!(kept(), (ids, named_3));
    };
    // One shard: the order of two is that of their queues.
    let push = |numbers: std::ops::RangeInclusive<usize>| numbers.for_each(|number| assert!(log.push(0, number)));
    log.goes_with(Access::Off, 4).unwrap();
    push(1..=10);
    expect(7..=10, 0);
    push(3..=3);
    push(11..=13);
    assert_eq!(kept().1, 1, "the fourth");
    push(14..=14);
    expect(11..=14, 0);
    // The log is switched on beside them, and they are asked to be fewer.
    log.goes_with(Access::File(path.clone()), 2).unwrap();
    expect(13..=14, 0);
    push(15..=15);
    expect(14..=15, 0);
    log.goes_with(Access::Off, 0).unwrap();
    assert_eq!(kept(), (Vec::<String>::new(), 0));
    push(16..=16);
    assert_eq!(kept(), (Vec::<String>::new(), 0));
    log.log.stop();
    assert_eq!(ids(&path), ["15"]);
    fs::remove_file(path).unwrap();
}

/// Of all shards the last are kept, whichever of them is read last.
#[test]
fn receipts_are_those_of_the_last_that_ended_on_any_shard() {
    let log = Log::off(3);
    log.goes_with(Access::Off, 6).unwrap();
    let ended = |number: u64| Record { at: 1_000 - number, total: 2 * number, ..record(number as usize) };
    for number in 1..=12 {
        let queue = log.process.shards()[usize::from(number < 9) + usize::from(number % 3 == 0)].records().queue();
        queue.unwrap().push(ended(number).into()).unwrap();
    }
    let newest = log.receipts().newest(|_| true).0;
    let ids: Vec<String> = newest.iter().map(|named| named.line().request_id.unwrap().into_owned()).collect();
    assert_eq!(ids, ["12", "11", "10", "9", "8", "7"]);
    log.log.stop();
}

/// What ended before the log was switched on has no line in it, though it was there for a receipt.
#[test]
fn what_was_recorded_for_its_receipt_alone_is_not_logged() {
    let path = fresh("receipt-alone");
    let log = Log::off(1);
    log.goes_with(Access::File(path.clone()), 8).unwrap();
    let queue = log.process.shards()[0].records().queue().unwrap();
    queue.push(Record { logged: false, ..record(1) }.into()).unwrap();
    queue.push(record(2).into()).unwrap();
    log.ends(1);
    assert_eq!((ids(&path), log.log.receipts.newest(|_| true).0.len()), (vec!["2".into()], 2));
    fs::remove_file(path).unwrap();
}

/// Rules that switch the log on may reach a shard before their order reaches the thread.
#[test]
fn what_overtakes_the_order_is_written() {
    let path = fresh("overtaken");
    let process = Process::leak(1);
    process.shards()[0].records().open(8).push(record(1).into()).unwrap();
    let (orders, taken) = channel();
    let sink = Sink::open(&Access::File(path.clone())).unwrap();
    orders.send(Order::Take(Prepared { sink: Some(sink), format: LogFormat::Json, receipts: 0 })).unwrap();
    drop(orders);
    Writer::new(process, Published::leak(Snapshot::default()), Arc::default(), Arc::default()).run(&taken);
    assert_eq!(ids(&path), ["1"]);
    fs::remove_file(path).unwrap();
}

/// A configuration that sends lines elsewhere.
#[derive(Debug)]
struct Elsewhere;

impl Source for Elsewhere {
    fn load(&self) -> Result<Config, String> {
        let mut config = config_of([]);
        config.log.receipts += 1;
        Ok(config)
    }

    fn in_use(&self, _: &Config) {}

    fn say_wanting(&self, _: &Config) {}
}

/// What a reload opens may be on a disk that does not answer: control goes on meanwhile.
#[test]
fn a_reload_that_opens_the_log_holds_nobody_up() {
    let (config, published) = (Arc::new(config_of([])), Published::leak(Snapshot::default()));
    let access = Arc::new(AccessLog::new(Process::leak(1), published));
    let fleet = Fleet::new(Arc::clone(&config), Vec::new(), Arc::default());
    let keeper = Keeper::new(config, fleet, Counters::leak(), Stats::leak(1), published, Arc::clone(&access));
    let keeper = Arc::new(keeper);
    let ((held, is_held), (over, is_over)) = (channel(), channel());
    let disk = std::thread::spawn(move || {
        let _thread = access.thread.lock().unwrap();
        held.send(()).unwrap();
        is_over.recv_timeout(PATIENCE).is_ok()
    });
    is_held.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let source: Arc<dyn Source> = Arc::new(Elsewhere);
        let reload = tokio::spawn(async move { keeper.reload(&source, keeper.ask()).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(over.send(()).is_ok() && !reload.is_finished(), "control waited for it");
        assert_eq!(reload.await.unwrap().unwrap().changed, ["log"]);
    });
    assert!(disk.join().unwrap());
}
