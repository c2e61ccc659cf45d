//! Replaces the configuration in use, or its list of engines: one change at a time. A change that has to read files
//! does not hold up one that does not.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Keeper;
use super::following::first_named;
use super::reloads::{Reloads, UnderWay};
use crate::config::{Config, Log, Upstream};
use crate::control::access::{AccessLog, Prepared};
use crate::control::edit::{self, Edit, Edits, Refused, Since};
use crate::control::forms::Forms;
use crate::control::keys::{self, Keys};
use crate::control::member::Member;
use crate::control::named::Named;
use crate::control::reload::{Changes, Source};
use crate::control::{acquaintance, lasting, names};
use crate::exchange::Rules;

/// State for replacing the configuration in use by another or an edited one.
#[derive(Debug)]
pub(super) struct Taking {
    /// The configuration that the process was started with: some of it lasts until the process ends.
    started: Arc<Config>,
    /// The configuration as it was read last, without edits.
    pub(super) read: ArcSwap<Config>,
    /// Its names of which each address is an engine, and what they stand for.
    pub(super) named: ArcSwap<Named>,
    /// How many of these names were not followed at their last look-up.
    pub(super) unfollowed: AtomicUsize,
    /// Held while the configuration in use is replaced, from looking at it on; never while waiting for a disk.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Held while a configuration and its files are read, however long disks take, and until it is in use: reloads are
    /// taken in the order in which they were asked for.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Held only while the key of an engine that is added is read.
    reading_key: Arc<tokio::sync::Mutex<()>>,
    /// Rung when another configuration was read and is in use.
    taken: Notify,
    /// Edits that must outlast readings under way.
    edits: Arc<Edits>,
    /// The outcome of readings.
    reloads: Reloads,
}

impl Taking {
    /// For a process that was started with this configuration.
    pub(super) fn new(started: Arc<Config>) -> Taking {
        Taking {
            read: ArcSwap::from(Arc::clone(&started)),
            named: ArcSwap::default(),
            unfollowed: AtomicUsize::new(0),
            started,
            changing: tokio::sync::Mutex::default(),
            reading: Arc::default(),
            reading_key: Arc::default(),
            taken: Notify::new(),
            edits: Arc::default(),
            reloads: Reloads::default(),
        }
    }
}

/// What a reading brought.
struct Read {
    config: Config,
    keys: Keys,
    files: FromFiles,
}

/// What was read from files that the configuration names.
pub(super) struct FromFiles {
    forms: Forms,
    /// Where the access log goes, if that has changed.
    access: Option<Prepared>,
}

/// Reads configuration and files. To be called on a thread of its own: disks may not answer.
fn read(source: &dyn Source, access: &AccessLog, before: &Log) -> Result<Read, String> {
    let config = source.load()?;
    let keys = keys::of_all(&config).map_err(|error| error.to_string())?;
    let forms = Forms::read(&config)?;
    let told = |log: &Log| (log.access.clone(), log.access_format, log.receipts);
    let access = (told(before) != told(&config.log)).then(|| access.prepare(&config.log)).transpose()?;
    Ok(Read { config, keys, files: FromFiles { forms, access } })
}

/// How long a reload may take before the log says so: it may wait for something that never answers.
const LATE: Duration = Duration::from_secs(10);

/// Logs a reload that takes long: one asked for by a signal has no other sign before it ends.
async fn say_if_late<T>(reload: impl Future<Output = T>) -> T {
    let mut reload = pin!(reload);
    if let Ok(outcome) = timeout(LATE, &mut reload).await {
        return outcome;
    }
    tracing::warn!(
        "a reload has been under way for {} s: it waits for a file, a name server, or an earlier reload that waits for these",
        LATE.as_secs()
    );
    reload.await
}

impl Keeper {
    /// Notes that a reload is asked for: edits made from now on outlast it.
    pub fn ask(&self) -> Since {
        Edits::ask(&self.taking.edits)
    }

    /// The outcome of reloads.
    pub fn reloads(&self) -> &Reloads {
        &self.taking.reloads
    }

    /// Takes the configuration that `source` has now, if it has no fault.
    ///
    /// # Errors
    /// All its faults, in words; nothing has changed then, unless a fault of ours broke it off.
    pub async fn reload(self: &Arc<Self>, source: &Arc<dyn Source>, asked: Since) -> Result<Changes, Refused> {
        let under_way = self.taking.reloads.begins();
        let outcome = say_if_late(self.unless_broken(self.read_and_take(source, &asked, under_way))).await;
        self.taking.reloads.ended(outcome.is_ok());
        outcome
    }

    /// Turns a panic in `taking` into an error: the asker, metrics and the service manager wait for an end. What was
    /// taken by then stays in use: shards have it, and its engines are watched.
    pub(super) async fn unless_broken<T>(
        self: &Arc<Self>,
        taking: impl Future<Output = Result<T, String>>,
    ) -> Result<T, Refused> {
        if let Some(outcome) = lasting::caught(taking).await {
            return outcome.map_err(Refused::Wrong);
        }
        self.changed_if(true);
        lasting::caught(async { self.watch() }).await;
        Err(Refused::Broken)
    }

    async fn read_and_take(
        self: &Arc<Self>,
        source: &Arc<dyn Source>,
        asked: &Since,
        under_way: UnderWay,
    ) -> Result<Changes, String> {
        let alone = Arc::clone(&self.taking.reading).lock_owned().await;
        let from = Arc::clone(source);
        // The asker may leave: no other reload begins to read before this one has ended, lest threads pile up at a disk
        // that is gone, and it counts as under way for as long.
        let (access, log) = (Arc::clone(&self.access), self.config().log.clone());
        let reading = spawn_blocking(move || (read(&*from, &access, &log), (under_way, alone)));
        let (read, _kept) = reading.await.map_err(|error| error.to_string())?;
        let Read { config, keys, files } = read?;
        files.forms.say();
        let named = first_named(&config, &self.taking.named.load_full()).await;
        let _changing = self.taking.changing.lock().await;
        // With what look-ups found meanwhile.
        let named = named.renewed(&self.taking.named.load());
        let (config, keys) = named.expanded(config, &keys)?;
        let read = Arc::new(config);
        let (config, keys) = self.edited_since(asked, &read, &keys);
        let undone = edit::undone(&self.taking.read.load().upstream, &self.config().upstream, &config.upstream);
        let changes = Changes { undone, ..self.take(config, keys, Some(files)).await? };
        asked.taken();
        // From here on nothing is awaited: the asker may leave, and the outcome has to be noted all the same.
        source.in_use(&read);
        self.taking.read.store(read);
        self.taking.named.store(Arc::new(named));
        self.taking.taken.notify_one();
        Ok(changes)
    }

    /// Has `source` say what a configuration wants in vain, for ever, on a thread of its own: disks that it looks at
    /// may not answer. Of configurations taken meanwhile it looks at the last one only.
    pub async fn say_wanting(self: Arc<Self>, source: Arc<dyn Source>) {
        loop {
            let (read, source) = (self.taking.read.load_full(), Arc::clone(&source));
            let _ = spawn_blocking(move || source.say_wanting(&read)).await;
            self.taking.taken.notified().await;
        }
    }

    /// What was read, with the edits made by hand since it was asked for, as far as both are right together.
    fn edited_since(&self, asked: &Since, read: &Arc<Config>, keys: &Keys) -> (Arc<Config>, Keys) {
        let with = |upstream: &[Upstream]| Config { upstream: upstream.to_vec(), ..(**read).clone() }.checked().ok();
        let mut upstreams = read.upstream.clone();
        asked.redo(&mut upstreams, |upstreams| with(upstreams).is_some());
        let edited = with(&upstreams).filter(|edited| edited.upstream != read.upstream);
        let Some(edited) = edited else { return (Arc::clone(read), keys.clone()) };
        let keys = keys::edited(&edited, read, keys, self.fleet().members());
        (Arc::new(edited), keys)
    }

    /// Changes the list of engines, until the configuration is read anew. No file is read except the key of an engine
    /// that is added: an operator who drains an engine because a disk is gone needs that at once. Forms follow pools,
    /// which no edit changes.
    ///
    /// # Errors
    /// What is wrong with the change, in words; nothing has changed then, unless a fault of ours broke it off.
    pub async fn edit(self: &Arc<Self>, edit: &Edit) -> Result<Changes, Refused> {
        // Read before the lock is taken, so that no other change has to wait for it.
        let key = self.added_key(edit).await?;
        let _alone = self.taking.changing.lock().await;
        let mut config = (*self.config()).clone();
        edit.apply(&mut config.upstream)?;
        let config = config.checked().map_err(|invalid| Refused::Wrong(invalid.to_string()))?;
        let keys = keys::known(&config, self.fleet().members(), key.as_ref());
        let changes = self.unless_broken(self.take(Arc::new(config), keys, None)).await?;
        self.taking.edits.note(edit);
        Ok(changes)
    }

    /// Names the engines of which a change made by hand ends with this process: the one in its place began with what
    /// the configuration says.
    pub fn say_left_behind(&self) {
        let read = &self.taking.read.load().upstream;
        let engines = edit::undone(read, &self.config().upstream, read);
        if !engines.is_empty() {
            tracing::warn!(
                ?engines,
                "what was changed of these engines by hand is undone by the upgrade, unless the configuration says the same by now"
            );
        }
    }

    /// The key of the engine that is added, if it has one; read on a thread of its own, one at a time, since disks may
    /// not answer.
    pub(super) async fn added_key(&self, edit: &Edit) -> Result<Option<Arc<str>>, Refused> {
        match edit {
            Edit::Add(added) if !added.api_key_file.as_os_str().is_empty() => {}
            _ => return Ok(None),
        }
        let alone = Arc::clone(&self.taking.reading_key).lock_owned().await;
        let (edit, read) = (edit.clone(), self.taking.read.load_full());
        let reading = spawn_blocking(move || (keys::of_added(&edit, &read.upstream), alone));
        let (key, _alone) = reading.await.map_err(|error| Refused::Wrong(error.to_string()))?;
        key
    }

    /// Takes a configuration. Without `files` all that was read from files stays as it is.
    pub(super) async fn take(
        self: &Arc<Self>,
        config: Arc<Config>,
        keys: Keys,
        files: Option<FromFiles>,
    ) -> Result<Changes, String> {
        let before = self.config();
        let (forms, access) = files.map_or((None, None), |files| (Some(files.forms), files.access));
        let mut changes = Changes::between(&before, &config, &self.taking.started);
        // Before anything changes: a snapshot of engines without addresses would refuse every request.
        let before: Vec<Upstream> = self.fleet().members().iter().map(|member| member.upstream.clone()).collect();
        let is_known = |rank: Upstream| before.iter().any(|known| known.is_same(&rank));
        let new = config.upstream.iter().filter(|one| !one.each_address && !one.each_rank().all(is_known));
        let addresses = names::first_lookups(new.map(|upstream| (upstream.server(), upstream.clone())).collect()).await;
        let lists = acquaintance::first_lists(&config, &keys, &addresses).await;
        let now = Instant::now();
        let mut fleet = self.fleet();
        let stays = |member: &Member| {
            member.now.is_some() && config.endpoints().any(|upstream| upstream.is_same(&member.upstream))
        };
        if addresses.is_empty() && !config.upstream.is_empty() && !fleet.members().iter().any(stays) {
            return Err("name servers know none of the engines".into());
        }
        let forms = match forms {
            Some(mut forms) => {
                self.outdated().extend(forms.keep(&fleet.forms));
                Arc::new(forms)
            }
            None => Arc::clone(&fleet.forms),
        };
        let keys_before: HashMap<usize, _> =
            fleet.members().iter().map(|known| (known.place, known.key.clone())).collect();
        (changes.added, changes.removed) = fleet.reconfigure(Arc::clone(&config), keys, forms, now);
        changes.restart.extend(fleet.waits_for_restart());
        self.taking.reloads.wait_for_restart(changes.restart.len());
        for (server, addresses) in addresses {
            let ranks = fleet.members().iter().filter(|member| member.upstream.server() == server);
            let places: Vec<usize> = ranks.map(|member| member.place).collect();
            places.into_iter().for_each(|place| _ = fleet.resolved(place, addresses.clone(), now));
        }
        fleet.first_learnt(lists);
        // An engine that refused the key before is asked at once.
        let rekeyed = |member: &&Member| keys_before.get(&member.place).is_some_and(|before| *before != member.key);
        for member in fleet.members().iter().filter(rekeyed) {
            member.models_wanted.notify_one();
            changes.rekeyed.push(member.name.to_string());
        }
        drop(fleet);
        self.config.store(Arc::clone(&config));
        if let Some(access) = access {
            self.access.take(access);
        }
        self.published.publish_rules(Rules::from(&*config));
        self.publish_now();
        self.watch();
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::sync::{Mutex, PoisonError};

    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::control::keeper::tests::keeper;
    use crate::control::tests::config_of;

    /// A disk that answers when it is told to.
    #[derive(Debug)]
    struct Disk {
        asked: UnboundedSender<()>,
        answers: Mutex<Receiver<()>>,
    }

    impl Disk {
        fn new() -> (Disk, UnboundedReceiver<()>, Sender<()>) {
            let ((asked, begun), (answer, answers)) = (unbounded_channel(), mpsc::channel());
            (Disk { asked, answers: Mutex::new(answers) }, begun, answer)
        }

        /// Until it is told, or nobody is there any more to tell it.
        fn answer(&self) {
            let _ = self.asked.send(());
            let _ = self.answers.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
    }

    /// A configuration with two engines, on that disk.
    #[derive(Debug)]
    struct File(Disk);

    /// One with a file on that disk.
    #[derive(Debug)]
    struct OfFiles(Disk);

    fn config() -> Config {
        config_of([1, 2].map(|port| Upstream::new(format!("http://127.0.0.1:{port}").parse().unwrap())))
    }

    impl Source for File {
        fn load(&self) -> Result<Config, String> {
            self.0.answer();
            Ok(config())
        }

        fn in_use(&self, _: &Config) {}

        fn say_wanting(&self, _: &Config) {}
    }

    impl Source for OfFiles {
        fn load(&self) -> Result<Config, String> {
            Ok(config_of([]))
        }

        fn in_use(&self, _: &Config) {}

        fn say_wanting(&self, _: &Config) {
            self.0.answer();
        }
    }

    /// Who asks for a reading now, beside all else.
    fn asks(keeper: &Arc<Keeper>, source: &Arc<dyn Source>) -> JoinHandle<Result<Changes, Refused>> {
        let (keeper, source, asked) = (Arc::clone(keeper), Arc::clone(source), keeper.ask());
        tokio::spawn(async move { keeper.reload(&source, asked).await })
    }

    /// One reads, another waits for that, and the drain outlasts both; who asks behind it has it undone.
    #[tokio::test(flavor = "current_thread")]
    async fn what_is_changed_outlasts_readings_that_were_asked_for_before() {
        let keeper = keeper(config());
        keeper.look_up().await;
        let (disk, mut begun, answer) = Disk::new();
        let source: Arc<dyn Source> = Arc::new(File(disk));
        let reload = || asks(&keeper, &source);
        let first = reload();
        begun.recv().await.unwrap();
        let second = reload();
        keeper.edit(&Edit::Drain("127.0.0.1:1".into(), true)).await.unwrap();
        let third = reload();
        for (reading, drains) in [(first, true), (second, true), (third, false)] {
            answer.send(()).unwrap();
            reading.await.unwrap().unwrap();
            assert_eq!(keeper.config().upstream[0].drain, drains);
        }
    }

    /// Who asked for it may have left: the disk is waited for all the same.
    #[tokio::test(flavor = "current_thread")]
    async fn a_reading_that_hangs_is_under_way() {
        let keeper = keeper(config());
        keeper.look_up().await;
        let (disk, mut begun, answer) = Disk::new();
        let source: Arc<dyn Source> = Arc::new(File(disk));
        let reload = || asks(&keeper, &source);
        let told = || (keeper.reloads().begun(), keeper.reloads().under_way());
        assert_eq!(told(), (0, 0));
        let left = reload();
        begun.recv().await.unwrap();
        left.abort();
        assert!(left.await.unwrap_err().is_cancelled());
        assert_eq!(told(), (1, 1));
        let next = reload();
        while told() != (2, 2) {
            tokio::task::yield_now().await;
        }
        answer.send(()).unwrap();
        answer.send(()).unwrap();
        next.await.unwrap().unwrap();
        assert_eq!(told(), (2, 0));
    }

    /// It falls where an engine comes.
    #[cfg(debug_assertions)] // else no overflow is a fault
    #[tokio::test(flavor = "current_thread")]
    async fn a_fault_while_a_configuration_is_taken_is_told_and_loses_no_engine() {
        let mut before = config();
        before.upstream.insert(0, Upstream::new("http://127.0.0.1:3".parse().unwrap()));
        let new = before.upstream.remove(1);
        let keeper = keeper(before);
        keeper.look_up().await;
        let (disk, _begun, answer) = Disk::new();
        let source: Arc<dyn Source> = Arc::new(File(disk));
        let reload = async || {
            answer.send(()).unwrap();
            asks(&keeper, &source).await.expect("no fault comes out of it")
        };
        let engines =
            || -> Vec<u16> { keeper.fleet().members().iter().map(|member| member.upstream.url.port).collect() };
        let watched = || keeper.watches.lock().unwrap_or_else(PoisonError::into_inner).len();
        let reloads = keeper.reloads();
        for _ in 0..2 {
            keeper.fleet().has_no_place_left(true);
            assert_eq!(reload().await, Err(Refused::Broken));
            assert_eq!((engines(), watched(), reloads.was_taken(), reloads.under_way()), (vec![3, 2], 2, false, 0));
            assert_eq!(keeper.edit(&Edit::Add(new.clone())).await, Err(Refused::Broken));
            assert_eq!((engines(), keeper.config().upstream.len()), (vec![3, 2], 2), "what is in use");
        }
        keeper.fleet().has_no_place_left(false);
        assert_eq!(reload().await.unwrap().removed, ["127.0.0.1:3"]);
        assert_eq!((engines(), watched(), reloads.was_taken()), (vec![1, 2], 2, true));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn reloads_do_not_wait_for_a_file_that_is_looked_at() {
        let keeper = keeper(config_of([]));
        let (disk, mut begun, answer) = Disk::new();
        let source: Arc<dyn Source> = Arc::new(OfFiles(disk));
        tokio::spawn(Arc::clone(&keeper).say_wanting(Arc::clone(&source)));
        let reload = async || timeout(Duration::from_secs(10), keeper.reload(&source, keeper.ask())).await;
        assert!(timeout(Duration::from_secs(10), begun.recv()).await.is_ok(), "what the process was started with");
        for _ in 0..3 {
            reload().await.unwrap().unwrap();
        }
        assert!(begun.try_recv().is_err(), "one at a time");
        answer.send(()).unwrap();
        begun.recv().await.unwrap();
    }
}
