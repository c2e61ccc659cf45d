//! What is known of the engines' caches: which engines are listened to, what they tell, and the file in which that
//! outlasts this process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::Keeper;
use crate::control::hearing::{Figures, Hearing};
use crate::control::ladder::Tells;
use crate::control::listen;
use crate::control::member::Member;
use crate::control::saved::{self, Engine, Writing};
use crate::fleet::EndpointId;
use crate::index;
use crate::publish::Process;

/// How often what is known of caches is written down, if it has changed.
const SAVED_EVERY: Duration = Duration::from_secs(60);
/// The mean rate at which long files are written: one of hundreds of engines, written each minute, would wear its disk
/// out.
const SAVED_BYTES_PER_SECOND: u64 = 1 << 20;
/// Longest time between two writings: older files are of little use, since caches hold other prompts by then.
const SAVED_AT_LEAST_EVERY: Duration = Duration::from_secs(30 * 60);

/// The engines that are heard, by place, each with its name.
pub type Hearings = BTreeMap<usize, (Arc<str>, Arc<Hearing>)>;

/// State of writing down what is known of caches.
#[derive(Debug)]
pub struct Saving {
    /// [`SAVED_EVERY`], but in tests.
    every: Duration,
    /// Held while the file is written. Places of engines that the log was told are left out of the file.
    said: tokio::sync::Mutex<BTreeSet<usize>>,
    failures: AtomicU64,
    bytes: Arc<AtomicU64>,
}

impl Default for Saving {
    fn default() -> Saving {
        Saving { every: SAVED_EVERY, said: Default::default(), failures: AtomicU64::new(0), bytes: Arc::default() }
    }
}

/// What was written last. It changes whenever what is to be written changes, or its file; blocks that only became
/// younger are no change.
#[derive(PartialEq)]
struct State {
    file: PathBuf,
    engines: Vec<(Arc<str>, Option<saved::Process>, index::Figures)>,
    heard: BTreeMap<Arc<str>, Figures>,
}

impl Keeper {
    /// Begins to listen to engines that are new, and ends listening to those that are gone. Listening to the others
    /// goes on, whatever else has changed: what they told cannot be asked for again.
    pub(super) fn listen(self: &Arc<Self>) {
        let places: Vec<usize> = self.fleet().members().iter().map(|member| member.place).collect();
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ears) = ears.as_mut() else { return };
        ears.retain(|place, _| places.contains(place));
        self.doors.retain(&places);
        let mut gone: Vec<usize> = self.hearings().keys().copied().collect();
        gone.retain(|place| !places.contains(place));
        gone.into_iter().for_each(|place| self.hears(place, None));
        for place in places {
            let listen = || {
                let mut alone = JoinSet::new();
                alone.spawn(listen::listen(Arc::clone(self), place));
                alone
            };
            ears.entry(place).or_insert_with(listen);
        }
    }

    /// Stops listening for good: the successor waits for the ports that engines connect to.
    pub fn listen_no_more(&self) {
        *self.ears.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let heard = std::mem::take(&mut *self.hearings());
        heard.into_values().for_each(|(_, hearing)| hearing.leave());
    }

    fn hearings(&self) -> MutexGuard<'_, Hearings> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how much an engine tells of its cache from now on.
    pub fn tells(&self, place: usize, id: EndpointId, tells: Tells) {
        // Shards learn of it with the next look at what was predicted.
        if let Some(tenancy) = self.fleet().tenancy(place, id) {
            tenancy.truth.tells(tells, Instant::now());
        }
    }

    /// Sets what is heard at this place from now on, if anything.
    pub fn hears(&self, place: usize, hearing: Option<Arc<Hearing>>) {
        let name = self.fleet().member(place).map(|member| Arc::clone(&member.name));
        // Under one lock with the bank: who reads the figures finds them here or there, not in both, and not in none.
        let mut hearings = self.hearings();
        let before = match name.zip(hearing) {
            Some(heard) => hearings.insert(place, heard),
            None => hearings.remove(&place),
        };
        if let Some((name, before)) = before {
            let figures = before.figures();
            self.fleet().bank.was_heard(name, &figures);
        }
    }

    /// Ends hearing the engine at this place: what leaves its cache is no longer told.
    pub fn gives_up_hearing(&self, place: usize) {
        let hearing = self.hearings().get(&place).map(|(_, hearing)| Arc::clone(hearing));
        if let Some(hearing) = hearing {
            hearing.end();
            self.hears(place, None);
        }
    }

    /// Figures of the engines that are heard, by their names.
    pub fn heard(&self) -> BTreeMap<Arc<str>, Figures> {
        let heard = self.hearings();
        let figures = |(name, hearing): &(Arc<str>, Arc<Hearing>)| {
            let mut figures = hearing.figures();
            figures.add(&self.fleet().bank.heard(name));
            (Arc::clone(name), figures)
        };
        heard.values().map(figures).collect()
    }

    /// Writes down what is known of the engines' caches, if a file is configured for that. Returns whether it was
    /// written.
    pub async fn save(&self, process: &'static Process) -> bool {
        let path = self.config().control.caches_file.clone();
        if path.as_os_str().is_empty() {
            return false;
        }
        // One writer at a time: there is one file.
        let mut said = self.saving.said.lock().await;
        self.say_who_is_left_out(&mut said);
        let written = self.write(&path, process).await;
        match &written {
            Ok(Some(bytes)) => tracing::debug!(bytes, "what is known of the engines' caches is written"),
            // Nothing is known yet, or the disk took its time.
            Ok(None) => {}
            Err(error) => {
                self.saving.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(file = %path.display(), %error, "cannot write what is known of the engines' caches")
            }
        }
        matches!(written, Ok(Some(_)))
    }

    /// Says once of each engine that it is left out of the file, since it could not be told apart from another process.
    fn say_who_is_left_out(&self, said: &mut BTreeSet<usize>) {
        let is_left_out = |member: &&Member| {
            member.now.as_ref().is_some_and(|tenancy| tenancy.reading.is_some() && tenancy.process.is_none())
        };
        for member in self.fleet().members().iter().filter(is_left_out) {
            if said.insert(member.place) {
                tracing::warn!(
                    engine = &*member.name,
                    "caches_file keeps nothing of this engine: it tells no process_start_time_seconds in its /metrics, by which it would be known again (vLLM with several API servers does not)"
                );
            }
        }
    }

    /// Writes it down, and waits for `limit` at most: a disk may not answer. If that is too short, writing goes on
    /// until another process is in this one's place.
    pub async fn save_within(self: &Arc<Self>, process: &'static Process, limit: Duration) {
        let keeper = Arc::clone(self);
        let saving = tokio::spawn(async move { keeper.save(process).await });
        if timeout(limit, saving).await.is_err() {
            let file = self.config().control.caches_file.clone();
            tracing::warn!(file = %file.display(), ?limit, "caches_file is not written in time");
        }
    }

    /// Writes the file, and returns its bytes; `None`: nothing is known that a later process could use, or the
    /// successor writes the file by now.
    async fn write(&self, path: &Path, process: &'static Process) -> io::Result<Option<u64>> {
        let places: Vec<usize> = self.fleet().members().iter().map(|member| member.place).collect();
        let least = self.fleet().rows_bytes();
        let mut remembered = self.fleet().remembered();
        let begin = || {
            let (path, bytes) = (path.to_owned(), Arc::clone(&self.saving.bytes));
            move || Writing::to(&path, least, bytes)
        };
        let mut writing = None;
        for place in places {
            let known = self.fleet().saved(place);
            // Looked up here and not before the loop: an engine may have begun to be heard while others were written.
            let hearing = self.hearings().get(&place).map(|(_, hearing)| Arc::clone(hearing));
            if let Some((name, mut engine)) = known {
                // Not while the fleet is locked: a change of a hearing locks that first, and then the fleet.
                if let Some(hearing) = hearing {
                    engine.remembered = Some(hearing.saved_or(engine.remembered));
                }
                remembered.retain(|known| *known != *name);
                writing = Some(add(writing, begin(), name.to_string(), engine.into()).await?);
            }
        }
        // Engines that have not said yet which process they are keep what was known: a slow one is no other process.
        for (name, engine) in remembered.engines() {
            writing = Some(add(writing, begin(), name.to_owned(), Arc::clone(engine)).await?);
        }
        let Some(writing) = writing else { return Ok(None) };
        spawn_blocking(|| writing.end(|| !process.has_successor())).await.map_err(io::Error::other).flatten()
    }

    /// How often the file could not be written.
    pub fn save_failures(&self) -> u64 {
        self.saving.failures.load(Ordering::Relaxed)
    }

    /// How many bytes were written to files, whether that succeeded or not.
    pub fn saved_bytes(&self) -> u64 {
        self.saving.bytes.load(Ordering::Relaxed)
    }

    /// Writes the file again and again, until there is a successor, which then writes what it knows.
    pub async fn save_often(self: Arc<Self>, process: &'static Process) {
        self.save_each(self.saving.every, process).await;
    }

    async fn save_each(&self, every: Duration, process: &'static Process) {
        let mut last = None;
        sleep(every).await;
        while !process.has_successor() {
            let file = self.config().control.caches_file.clone();
            let pause = self.save_if_changed(process, &mut last).await.max(every);
            // A newly configured file has nothing yet, and may be on another disk: it is not waited for.
            let is_another = async {
                while self.config().control.caches_file == file {
                    sleep(every).await;
                }
            };
            let _ = timeout(pause, is_another).await;
        }
    }

    /// Writes the file unless nothing has changed since `last`. Returns how long its disk is to be left alone.
    async fn save_if_changed(&self, process: &'static Process, last: &mut Option<State>) -> Duration {
        let (engines, file) = (self.fleet().marks(), self.config().control.caches_file.clone());
        let now = State { file, engines, heard: self.heard() };
        if last.as_ref() == Some(&now) {
            return Duration::ZERO;
        }
        let before = self.saved_bytes();
        *last = self.save(process).await.then_some(now);
        // Also if writing failed, as on a full disk.
        pause_behind(self.saved_bytes() - before)
    }
}

fn pause_behind(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SAVED_BYTES_PER_SECOND).min(SAVED_AT_LEAST_EVERY)
}

/// Adds one engine to the file, on another thread than control's: it takes milliseconds, and there may be hundreds.
async fn add(
    writing: Option<Writing>,
    begin: impl FnOnce() -> io::Result<Writing> + Send + 'static,
    name: String,
    engine: Arc<Engine>,
) -> io::Result<Writing> {
    let added = spawn_blocking(move || {
        let mut writing = writing.map_or_else(begin, Ok)?;
        writing.add(&name, &engine)?;
        Ok(writing)
    });
    added.await.map_err(io::Error::other).flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use super::*;
    use crate::config::{Config, Upstream};
    use crate::control::keeper::tests::keeper;
    use crate::control::reload::Source;
    use crate::control::saved::{self, Heard, Rows, Saved};
    use crate::control::scrape::Reading;
    use crate::control::tests::config_of;
    use crate::control::truth::Ours;
    use crate::control::{self, Setup};
    use crate::index::Origin;

    #[tokio::test(flavor = "current_thread")]
    async fn a_disk_that_does_not_answer_is_not_waited_for() {
        let mut config = config_of([]);
        config.control.caches_file = "/nowhere/caches".into();
        let keeper = keeper(config);
        // Held for as long as somebody writes.
        let writing = keeper.saving.said.lock().await;
        let saved = keeper.save_within(Process::leak(1), Duration::from_millis(1));
        assert!(timeout(Duration::from_secs(10), saved).await.is_ok());
        drop(writing);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_late_does_not_replace_what_another_process_wrote() {
        let folder = std::env::temp_dir().join(format!("warmfront-late-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("caches");
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let (keeper, process) = (keeper(config), Process::leak(1));
        let mut saved = Saved::default();
        let of = saved::Process { started: 1.0, block_size: None, tokens: None };
        let rows = Some(Rows { layout: 5, bytes: vec![1] });
        saved.add("gpu-1:8000", Engine { process: of, remembered: None, rows });
        keeper.fleet().remember(saved);
        keeper.save(process).await;
        assert!(Saved::read(&path).is_ok_and(|saved| !saved.is_empty()));
        let writing = keeper.saving.said.lock().await;
        keeper.save_within(process, Duration::from_millis(1)).await;
        process.give_way();
        fs::write(&path, "another's").unwrap();
        drop(writing);
        // It comes behind the one that is late.
        drop(keeper.saving.said.lock().await);
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        assert_eq!((fs::read_dir(&folder).unwrap().count(), keeper.save_failures()), (1, 0));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// As in the first moments of an heir, and for as long as an engine does not say where it publishes.
    #[tokio::test(flavor = "current_thread")]
    async fn what_an_engine_told_is_not_lost_while_it_is_not_heard() {
        let path = std::env::temp_dir().join(format!("warmfront-unheard-{}", std::process::id()));
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let keeper = keeper(config);
        let of = saved::Process { started: 5.0, block_size: None, tokens: None };
        let told = Some(Heard { form: 1, sockets: vec![Vec::new()], mirrors: vec![(0, vec![1, 2, 3])] });
        let mut known = Saved::default();
        known.add("gpu-1:8000", Engine { process: of, remembered: told.clone(), rows: None });
        keeper.fleet().remember(known);
        keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
        let (id, _) = keeper.target(0).unwrap();
        keeper.scraped(0, id, Ok((Reading::of(b"process_start_time_seconds 5\n"), Ours::default())));
        assert!(keeper.fleet().remembered().is_empty(), "it has said which process it is");
        keeper.save(Process::leak(1)).await;
        let written = Saved::read(&path).unwrap().take("gpu-1:8000", Some(&of)).unwrap();
        assert_eq!(written.remembered, told);
        fs::remove_file(&path).unwrap();
    }

    /// Who ends without a word, as by a power cut, has written it down all the same; but not into the file that is
    /// another process's by then.
    #[tokio::test(flavor = "current_thread")]
    async fn what_is_known_is_written_down_again_and_again() {
        let path = std::env::temp_dir().join(format!("warmfront-often-{}", std::process::id()));
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let (keeper, process) = (keeper(config), Process::leak(1));
        keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
        let (id, _) = keeper.target(0).unwrap();
        let saving = keeper.save_each(Duration::from_millis(1), process);
        let twice = async {
            for started in 1..=2 {
                let text = format!("process_start_time_seconds {started}\n");
                keeper.scraped(0, id, Ok((Reading::of(text.as_bytes()), Ours::default())));
                while fs::remove_file(&path).is_err() {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            process.give_way();
        };
        let both = async { tokio::join!(saving, twice) };
        assert!(timeout(Duration::from_secs(30), both).await.is_ok());
        let _ = fs::remove_file(&path);
        keeper.save_each(Duration::ZERO, process).await;
        assert!(!path.exists());
    }

    #[derive(Debug)]
    struct Same(Config);

    impl Source for Same {
        fn load(&self) -> Result<Config, String> {
            Ok(self.0.clone())
        }

        fn in_use(&self, _: &Config) {}

        fn say_wanting(&self, _: &Config) {}
    }

    /// One of the tasks that control begins with does it, each minute: what a killed process leaves is that old.
    #[tokio::test(flavor = "current_thread")]
    async fn a_front_that_serves_writes_it_down_each_minute() {
        let path = std::env::temp_dir().join(format!("warmfront-each-minute-{}", std::process::id()));
        let mut config = config_of([Upstream::new("http://127.0.0.1:1".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let source = Arc::new(Same(config.clone()));
        let mut keeper = Arc::into_inner(keeper(config)).unwrap();
        assert_eq!(std::mem::replace(&mut keeper.saving.every, Duration::from_millis(1)), Duration::from_secs(60));
        let keeper = Arc::new(keeper);
        let of = saved::Process { started: 1.0, block_size: None, tokens: None };
        let mut known = Saved::default();
        let rows = Some(Rows { layout: 5, bytes: vec![1] });
        known.add("127.0.0.1:1", Engine { process: of, remembered: None, rows });
        keeper.fleet().remember(known);
        let setup = Setup {
            config: keeper.config(),
            published: keeper.published,
            counters: keeper.counters,
            stats: keeper.stats,
            process: Process::leak(1),
            source,
            bequest: Default::default(),
        };
        let admin = TcpListener::bind("127.0.0.1:0").unwrap();
        admin.set_nonblocking(true).unwrap();
        control::begin(&setup, &keeper, admin, false);
        let written = async {
            while !path.exists() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(Duration::from_secs(30), written).await.is_ok());
        setup.process.give_way();
        assert!(Saved::read(&path).unwrap().take("127.0.0.1:1", Some(&of)).is_some());
        fs::remove_file(&path).unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_has_not_changed_is_not_written_again() {
        let path = std::env::temp_dir().join(format!("warmfront-unchanged-{}", std::process::id()));
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let (keeper, process, mut last) = (keeper(config), Process::leak(1), None);
        keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
        let (id, _) = keeper.target(0).unwrap();
        let scraped = |text: &[u8]| keeper.scraped(0, id, Ok((Reading::of(text), Ours::default())));
        scraped(b"process_start_time_seconds 5\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n");
        let index = keeper.fleet().caches.index().unwrap();
        let chains: [&[u64]; 4] = [&[], &[3 << 40, 5 << 40], &[3 << 40], &[3 << 40, 7 << 40]];
        for (chain, is_written) in chains.into_iter().zip([true, true, false, true]) {
            index.insert(chain, id, Origin::Choice).unwrap();
            let before = keeper.saved_bytes();
            keeper.save_if_changed(process, &mut last).await;
            assert_eq!((keeper.saved_bytes() > before, path.exists()), (is_written, is_written), "{chain:?}");
            let _ = fs::remove_file(&path);
        }
        // Who ends writes it whatever is there.
        assert!(keeper.save(process).await);
        let _ = fs::remove_file(&path);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn another_file_is_not_waited_for_behind_a_long_one() {
        let paths =
            [1, 2].map(|file| std::env::temp_dir().join(format!("warmfront-moved-{file}-{}", std::process::id())));
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&paths[0]);
        let keeper = keeper(config.clone());
        let of = saved::Process { started: 1.0, block_size: None, tokens: None };
        let rows = Some(Rows { layout: 5, bytes: vec![1; 60 << 20] });
        let mut known = Saved::default();
        known.add("gpu-1:8000", Engine { process: of, remembered: None, rows });
        keeper.fleet().remember(known);
        let is_there = async |path: &PathBuf| {
            while fs::remove_file(path).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let moved = async {
            is_there(&paths[0]).await;
            config.control.caches_file.clone_from(&paths[1]);
            keeper.config.store(Arc::new(config));
            is_there(&paths[1]).await;
        };
        let saving = keeper.save_each(Duration::from_millis(1), Process::leak(1));
        let both = async {
            tokio::select! { () = saving => {}, () = moved => {} }
        };
        assert!(timeout(Duration::from_secs(30), both).await.is_ok(), "it waits a minute");
    }

    /// Whatever comes of it: each minute a disk that is full would be written on as far as it goes. Here nothing does,
    /// for another process is in this one's place.
    #[tokio::test(flavor = "current_thread")]
    async fn a_long_file_is_not_written_each_minute() {
        let path = std::env::temp_dir().join(format!("warmfront-long-{}", std::process::id()));
        let mut config = config_of([Upstream::new("http://gpu-1:8000".parse().unwrap())]);
        config.control.caches_file.clone_from(&path);
        let keeper = keeper(config);
        let of = saved::Process { started: 1.0, block_size: None, tokens: None };
        let mut known = Saved::default();
        let rows = Some(Rows { layout: 5, bytes: vec![1; 3 << 20] });
        known.add("gpu-1:8000", Engine { process: of, remembered: None, rows });
        keeper.fleet().remember(known);
        let (process, late) = (Process::leak(1), Process::leak(1));
        late.give_way();
        for (process, is_there) in [(late, false), (process, true)] {
            let pause = keeper.save_if_changed(process, &mut None).await;
            assert_eq!((pause, path.exists()), (Duration::from_secs(3), is_there));
        }
        fs::remove_file(&path).unwrap();
        let another = async {
            while fs::remove_file(&path).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
            let before = keeper.saved_bytes();
            keeper.resolved(0, vec![([10, 0, 0, 1], 8_000).into()]);
            let (id, _) = keeper.target(0).unwrap();
            keeper.scraped(0, id, Ok((Reading::of(b"process_start_time_seconds 5\n"), Ours::default())));
            sleep(Duration::from_millis(200)).await;
            assert_eq!(keeper.saved_bytes(), before, "it has changed");
        };
        tokio::select! { () = keeper.save_each(Duration::from_millis(1), process) => {}, () = another => {} }
        assert_eq!([20 << 20, 4 << 30].map(pause_behind), [20, 30 * 60].map(Duration::from_secs));
    }
}
