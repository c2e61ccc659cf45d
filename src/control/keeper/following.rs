//! Follows names of which each address is an engine (`each_address`): engines come and go with look-ups.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio::time::{Sleep, sleep, timeout};

use super::Keeper;
use crate::config::{Config, Upstream};
use crate::control::edit::{self, Edit, Refused};
use crate::control::keys::{self, Keys};
use crate::control::named::Named;
use crate::control::names;
use crate::control::reload::Changes;

/// Longest time between two look-ups of such a name: a pod that is told to end leaves its name at once, and ends soon
/// after.
const OFTEN: Duration = Duration::from_secs(5);
/// Time between two look-ups of a name that had no address yet.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for the key of engines that come: other names have to wait meanwhile.
const KEY_WITHIN: Duration = Duration::from_secs(2);

/// The names of a configuration that is to be taken, with the addresses of those that were not known before.
pub(in crate::control) async fn first_named(config: &Config, before: &Named) -> Named {
    let mut named = Named::of(config, before);
    let unknown = named.unknown().map(|name| (name.clone(), name.clone())).collect();
    for (name, addresses) in names::first_lookups(unknown).await {
        let (mut with, others) = (named.clone(), config.upstream.iter().filter(|other| !other.is_same(&name)));
        let others: Vec<Upstream> = others.flat_map(|other| named.engines(other)).collect();
        let is_anothers = |one: &Upstream| others.iter().any(|other| other.url == one.url);
        if with.stands_for(&name, addresses) && with.leaves(&name, is_anothers) {
            named = with;
        }
    }
    named
}

/// The configuration that a process begins with, with the engines of its names, and the keys of all. If these make it
/// wrong, each name stands for one engine until it can be followed.
pub(in crate::control) async fn begun_with(config: &Arc<Config>, keys: Keys) -> (Named, Arc<Config>, Keys) {
    let named = first_named(config, &Named::default()).await;
    match named.expanded((**config).clone(), &keys) {
        Ok((config, keys)) => (named, Arc::new(config), keys),
        Err(why) => {
            tracing::warn!(why, "cannot follow host names: each is one engine until this changes");
            (Named::of(config, &Named::default()), Arc::clone(config), keys)
        }
    }
}

/// The engines of a configuration; those of its names as look-ups tell now.
///
/// # Errors
/// What is wrong with these engines, in words.
pub async fn engines(config: &Config) -> Result<Vec<Upstream>, String> {
    let named = first_named(config, &Named::default()).await;
    named.expanded(config.clone(), &[]).map(|(config, _)| config.upstream)
}

type Found = Result<Vec<SocketAddr>, String>;

/// Look-ups under way, one for each name: one that is not answered holds up no other.
#[derive(Default)]
struct Lookups {
    tasks: JoinSet<Found>,
    names: HashMap<Id, Upstream>,
}

impl Lookups {
    fn begin(&mut self, name: &Upstream, lookup: impl Future<Output = Found> + Send + 'static) {
        if !self.names.values().any(|asked| asked.is_same(name)) {
            let id = self.tasks.spawn(lookup).id();
            self.names.insert(id, name.clone());
        }
    }

    /// The next look-up that ends, unless `rest` ends first.
    async fn ends_before(&mut self, rest: Pin<&mut Sleep>) -> Option<(Upstream, Found)> {
        let (id, found) = tokio::select! {
            () = rest => return None,
            Some(ended) = self.tasks.join_next_with_id() => {
                ended.unwrap_or_else(|error| (error.id(), Err(error.to_string())))
            }
        };
        Some((self.names.remove(&id)?, found))
    }
}

impl Keeper {
    /// Follows all such names, for ever.
    pub async fn follow_names(self: Arc<Self>) {
        // Why each name was not followed at its last look-up.
        let mut said: HashMap<String, String> = HashMap::new();
        let mut lookups = Lookups::default();
        loop {
            let named = self.taking.named.load_full();
            let every = Duration::from_millis(self.config().control.resolve_interval_ms).min(OFTEN);
            let rest = if named.unknown().next().is_some() { AGAIN.min(every) } else { every };
            let mut rest = pin!(sleep(rest));
            while let Some((name, found)) = lookups.ends_before(rest.as_mut()).await {
                let followed = match found {
                    Ok(addresses) => self.stands_for(&name, addresses).await.map_err(|why| why.to_string()),
                    Err(why) => Err(why),
                };
                let is_known = !self.taking.named.load().addresses(&name).is_empty();
                say(&name.label(), followed, is_known, &mut said);
            }
            let named = self.taking.named.load_full();
            for name in named.names() {
                let asked = name.clone();
                lookups.begin(name, async move { names::lookup(&asked).await });
            }
            said.retain(|name, _| named.names().any(|known| known.label() == *name));
            self.taking.unfollowed.store(said.len(), Ordering::Relaxed);
        }
    }

    /// How many such names are not followed: their engines stay as they were.
    pub fn unfollowed_names(&self) -> usize {
        self.taking.unfollowed.load(Ordering::Relaxed)
    }

    /// Takes in that a name stands for these addresses: engines at new addresses come, and those that are no longer
    /// among them finish what they have. `None`: nothing has changed. Changes made by hand to others stay; with an
    /// engine that goes they are undone, since whoever has its address next is another.
    ///
    /// # Errors
    /// Why the addresses cannot be followed; nothing has changed then, unless a fault of ours broke it off.
    pub(super) async fn stands_for(
        self: &Arc<Self>,
        name: &Upstream,
        addresses: Vec<SocketAddr>,
    ) -> Result<Option<Changes>, Refused> {
        let known = self.taking.named.load_full();
        // The name as it is configured by now; the configuration may have it no longer.
        let Some(name) = known.names().find(|known| known.is_same(name)) else { return Ok(None) };
        let (mut named, read) = ((*known).clone(), self.taking.read.load_full());
        if !named.stands_for(name, addresses) {
            return Err(Refused::Wrong("it has no address of the family that its engines have".into()));
        }
        let before = known.engines(name);
        let is_own = |one: &Upstream| before.iter().any(|own| own.is_same(one));
        // An engine of the configuration, or one added by hand under another name.
        let config = self.config();
        let is_anothers = |one: &Upstream| {
            read.upstream.iter().any(|other| other.url == one.url && !is_own(other))
                || config.upstream.iter().any(|other| other.url == one.url && !other.is_same(one))
        };
        if !named.leaves(name, is_anothers) {
            return Err(Refused::Wrong("each of its addresses is that of another engine".into()));
        }
        let after = named.engines(name);
        // Read before the lock is taken, so that no other change has to wait for it.
        let key = match after.iter().find(|one| !before.contains(one)) {
            Some(comes) => {
                let key = timeout(KEY_WITHIN, self.added_key(&Edit::Add(comes.clone()))).await;
                key.map_err(|_| Refused::Wrong("its api_key_file is not read in time".into()))??
            }
            None if before.iter().all(|one| after.contains(one)) => return Ok(None),
            None => None,
        };
        let _alone = self.taking.changing.lock().await;
        if !Arc::ptr_eq(&known, &self.taking.named.load()) {
            // Another configuration came, for which names were looked up anew.
            return Ok(None);
        }
        let follow = |config: &Config| {
            let mut upstream = config.upstream.clone();
            replace(&mut upstream, &before, &after);
            Config { upstream, ..config.clone() }
        };
        let in_use = self.config();
        let config = follow(&in_use).checked().map_err(|invalid| Refused::Wrong(invalid.to_string()))?;
        let goes: Vec<Upstream> =
            before.iter().filter(|one| !after.iter().any(|other| other.is_same(one))).cloned().collect();
        let undone = edit::undone_of(&goes, &in_use.upstream);
        let keys = keys::known(&config, self.fleet().members(), key.as_ref());
        let changes = self.unless_broken(self.take(Arc::new(config), keys, None)).await?;
        let changes = Changes { undone, ..changes };
        self.taking.read.store(Arc::new(follow(&self.taking.read.load())));
        self.taking.named.store(Arc::new(named));
        Ok(Some(changes))
    }
}

/// Makes the engines of a name in `upstreams` those of `after`, in its order. One that was removed by hand is not put
/// back, and one that stays keeps its changes made by hand.
fn replace(upstreams: &mut Vec<Upstream>, before: &[Upstream], after: &[Upstream]) {
    let is_in = |list: &[Upstream], one: &Upstream| list.iter().any(|other| other.is_same(one));
    let place = upstreams.iter().position(|one| is_in(before, one)).unwrap_or(upstreams.len());
    let (there, others): (Vec<_>, Vec<_>) = upstreams.drain(..).partition(|one| is_in(before, one));
    let engine = |one: &Upstream| match there.iter().find(|known| known.is_same(one)) {
        Some(known) => Some(known.clone()),
        None => (!is_in(before, one) && !is_in(&others, one)).then(|| one.clone()),
    };
    let now: Vec<Upstream> = after.iter().filter_map(engine).collect();
    *upstreams = others;
    upstreams.splice(place..place, now);
}

/// Logs each change, and each reason for not following a name once. `is_known`: the name has engines.
fn say(name: &str, followed: Result<Option<Changes>, String>, is_known: bool, said: &mut HashMap<String, String>) {
    match followed {
        Ok(changes) => {
            said.remove(name);
            if let Some(changes) = changes {
                let Changes { added, removed, undone, .. } = &changes;
                tracing::info!(name, ?added, ?removed, "a host name stands for other engines");
                if !undone.is_empty() {
                    tracing::warn!(
                        name,
                        engines = ?undone,
                        "what was changed of these engines by hand is undone, as the host name no longer stands for them: if it comes to again, they are as it is configured"
                    );
                }
                if has_too_many(&changes) {
                    tracing::warn!(
                        name,
                        "there are more engines than the prefix index has places for: the others count as cold until a restart"
                    );
                }
            }
        }
        Err(why) if said.get(name) != Some(&why) => {
            match is_known {
                true => tracing::warn!(name, why, "cannot follow a host name: the engines that it stood for last stay"),
                false => tracing::warn!(name, why, "cannot follow a host name: no engine of its is known yet"),
            }
            said.insert(name.to_owned(), why);
        }
        Err(_) => {}
    }
}

/// Whether more engines came than the prefix index has places for.
fn has_too_many(changes: &Changes) -> bool {
    changes.restart.contains(&"upstream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::keeper::tests::keeper;
    use crate::control::reload::Source;
    use crate::control::tests::config_of;

    fn name() -> Upstream {
        Upstream { each_address: true, ..Upstream::new("http://engines.invalid:1".parse().unwrap()) }
    }

    fn at(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 1).into()
    }

    fn gpu() -> Upstream {
        Upstream::new("http://127.0.0.9:1".parse().unwrap())
    }

    #[derive(Debug)]
    struct Says(Vec<Upstream>);

    impl Source for Says {
        fn load(&self) -> Result<Config, String> {
            Ok(config_of(self.0.clone()))
        }

        fn in_use(&self, _: &Config) {}

        fn say_wanting(&self, _: &Config) {}
    }

    /// As a rolling update does: engines come, others go, and who is there all the time keeps its place and slot.
    #[tokio::test(flavor = "current_thread")]
    async fn engines_come_and_go_with_the_addresses_of_their_name() {
        let keeper = keeper(config_of([name(), gpu()]));
        keeper.look_up().await;
        let labels = || keeper.config().upstream.iter().map(Upstream::label).collect::<Vec<_>>();
        let slot = |label: &str| {
            let fleet = keeper.fleet();
            fleet
                .members()
                .iter()
                .find(|member| &*member.name == label)
                .and_then(|member| Some(member.now.as_ref()?.id))
        };
        let changes = keeper.stands_for(&name(), vec![at(1), at(2)]).await.unwrap().unwrap();
        assert_eq!((changes.added.len(), &changes.removed[..]), (2, &["engines.invalid:1".to_owned()][..]));
        assert_eq!(labels(), ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.9:1"]);
        let (stays, beside) = (slot("127.0.0.2:1"), slot("127.0.0.9:1"));
        assert!(stays.is_some() && beside.is_some());
        assert_eq!(keeper.stands_for(&name(), vec![at(2), at(1)]).await, Ok(None));
        keeper.edit(&Edit::Remove("127.0.0.1:1".into())).await.unwrap();
        keeper.stands_for(&name(), vec![at(1), at(2), at(3)]).await.unwrap();
        assert_eq!(labels(), ["127.0.0.2:1", "127.0.0.3:1", "127.0.0.9:1"], "who was removed by hand stays away");
        keeper.edit(&Edit::Drain("127.0.0.3:1".into(), true)).await.unwrap();
        let changes = keeper.stands_for(&name(), vec![at(2), at(4)]).await.unwrap().unwrap();
        assert_eq!(labels(), ["127.0.0.2:1", "127.0.0.4:1", "127.0.0.9:1"]);
        assert_eq!(changes.undone, ["127.0.0.1:1", "127.0.0.3:1"], "who has these addresses next is another");
        assert_eq!((slot("127.0.0.2:1"), slot("127.0.0.9:1")), (stays, beside));
        assert!(keeper.stands_for(&name(), vec!["[::1]:1".parse().unwrap()]).await.is_err());
        assert_eq!(labels().len(), 3, "a name that tells nothing of use changes nothing");
        let source: Arc<dyn Source> = Arc::new(Says(vec![name(), gpu()]));
        let changes = keeper.reload(&source, keeper.ask()).await.unwrap();
        assert_eq!((changes, labels().len()), (Changes::default(), 3), "the same file stands for the same");
    }

    fn labels(keeper: &Keeper) -> Vec<String> {
        keeper.config().upstream.iter().map(Upstream::label).collect()
    }

    /// The look-up began before the configuration was read.
    #[tokio::test(flavor = "current_thread")]
    async fn what_comes_is_as_the_name_is_configured_now() {
        let keeper = keeper(config_of([name(), gpu()]));
        keeper.look_up().await;
        keeper.stands_for(&name(), vec![at(1)]).await.unwrap();
        let heavy = Upstream { weight: 2, drain: true, ..name() };
        let source: Arc<dyn Source> = Arc::new(Says(vec![heavy, gpu()]));
        keeper.reload(&source, keeper.ask()).await.unwrap();
        keeper.stands_for(&name(), vec![at(1), at(2)]).await.unwrap();
        let told: Vec<_> = keeper.config().upstream.iter().map(|one| (one.weight, one.drain)).collect();
        assert_eq!(told, [(2, true), (2, true), (1, false)]);
    }

    /// As a pod that comes to belong to another Service, or one that is also named by itself.
    #[tokio::test(flavor = "current_thread")]
    async fn an_engine_of_two_is_lost_with_neither() {
        let other = Upstream { url: "http://others.invalid:1".parse().unwrap(), ..name() };
        let keeper = keeper(config_of([name(), other.clone(), gpu()]));
        keeper.look_up().await;
        keeper.stands_for(&other, vec![at(2), at(3)]).await.unwrap();
        keeper.stands_for(&name(), vec![at(1), at(2), at(9)]).await.unwrap();
        assert_eq!(labels(&keeper), ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1", "127.0.0.9:1"]);
        let source: Arc<dyn Source> = Arc::new(Says(vec![name(), other.clone(), gpu()]));
        assert!(keeper.reload(&source, keeper.ask()).await.is_ok(), "each is counted once");
        keeper.stands_for(&other, vec![at(3)]).await.unwrap();
        for _ in 0..2 {
            keeper.stands_for(&name(), vec![at(1), at(2)]).await.unwrap();
            assert_eq!(labels(&keeper), ["127.0.0.1:1", "127.0.0.2:1", "127.0.0.3:1", "127.0.0.9:1"]);
        }
        assert!(keeper.stands_for(&name(), vec![at(9)]).await.is_err_and(|why| why.to_string().contains("another")));
    }

    /// A name is followed on, and has it once nobody else does.
    #[tokio::test(flavor = "current_thread")]
    async fn who_was_added_by_hand_under_another_name_stays_that() {
        let keeper = keeper(config_of([name(), gpu()]));
        keeper.look_up().await;
        keeper.stands_for(&name(), vec![at(1)]).await.unwrap();
        let [same, called] = [2, 3].map(|last| Upstream::new(format!("http://{}", at(last)).parse().unwrap()));
        for added in [same, Upstream { name: "x".into(), ..called }] {
            keeper.edit(&Edit::Add(added)).await.unwrap();
        }
        let tells = async || {
            let changes = keeper.stands_for(&name(), vec![at(1), at(2), at(3), at(4)]).await;
            changes.map(|_| labels(&keeper).join(" "))
        };
        let by_hand = "127.0.0.1:1 127.0.0.4:1 127.0.0.9:1 127.0.0.2:1 x";
        assert_eq!(tells().await.as_deref(), Ok(by_hand));
        keeper.edit(&Edit::Remove("x".into())).await.unwrap();
        keeper.edit(&Edit::Remove("127.0.0.2:1".into())).await.unwrap();
        assert_eq!(tells().await.as_deref(), Ok("127.0.0.1:1 127.0.0.3:1 127.0.0.4:1 127.0.0.9:1"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_also_named_by_itself_begins_as_that() {
        let url = |url: &str| Upstream::new(url.parse().unwrap());
        let each = |port| Upstream { each_address: true, ..url(&format!("http://localhost:{port}")) };
        let config = config_of([each(1), url("http://127.0.0.1:1"), each(2)]);
        let labels = engines(&config).await.map(|engines| engines.iter().map(Upstream::label).collect::<Vec<_>>());
        assert_eq!(labels.unwrap(), ["localhost:1", "127.0.0.1:1", "127.0.0.1:2"]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_goes_goes_without_a_key() {
        let file = std::env::temp_dir().join(format!("warmfront-following-{}", std::process::id()));
        std::fs::write(&file, "key").unwrap();
        let name = Upstream { api_key_file: file.clone(), ..name() };
        let keeper = keeper(config_of([name.clone(), gpu()]));
        keeper.look_up().await;
        keeper.stands_for(&name, vec![at(1), at(2)]).await.unwrap();
        std::fs::remove_file(&file).unwrap();
        let goes = keeper.stands_for(&name, vec![at(2)]).await;
        assert_eq!(goes.map(|changes| changes.unwrap().removed), Ok(vec!["127.0.0.1:1".to_owned()]));
        assert!(keeper.fleet().members().iter().any(|one| one.key.as_deref() == Some("key")));
        assert!(keeper.stands_for(&name, vec![at(2), at(3)]).await.is_err(), "who comes needs one");
    }

    /// As an operator does with a name that cannot be followed.
    #[tokio::test(flavor = "current_thread")]
    async fn a_name_that_becomes_one_engine_is_looked_up() {
        let one = Upstream::new("http://localhost:1".parse().unwrap());
        let keeper = keeper(config_of([Upstream { each_address: true, ..one.clone() }, gpu()]));
        keeper.look_up().await;
        keeper.watch();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(keeper.target(0).is_none(), "it stands for itself");
        let source: Arc<dyn Source> = Arc::new(Says(vec![one, gpu()]));
        keeper.reload(&source, keeper.ask()).await.unwrap();
        let found = async {
            while keeper.target(0).is_none() {
                sleep(AGAIN / 10).await;
            }
        };
        assert!(timeout(Duration::from_secs(10), found).await.is_ok(), "it has no address");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_name_that_is_not_answered_holds_up_no_other() {
        let other = Upstream { url: "http://others.invalid:1".parse().unwrap(), ..name() };
        let mut lookups = Lookups::default();
        for round in 1..4 {
            lookups.begin(&name(), std::future::pending());
            lookups.begin(&other, async move { Ok(vec![at(round)]) });
            let mut rest = pin!(sleep(AGAIN / 4));
            let ended = lookups.ends_before(rest.as_mut()).await;
            assert_eq!(ended, Some((other.clone(), Ok(vec![at(round)]))));
            assert_eq!(lookups.ends_before(rest.as_mut()).await, None);
        }
        assert_eq!((lookups.tasks.len(), lookups.names.len()), (1, 1), "it is asked once");
    }

    /// A reload says so, and nobody asks for one.
    #[tokio::test(flavor = "current_thread")]
    async fn that_more_come_than_the_index_has_places_for_is_said() {
        let keeper = keeper(config_of([name(), gpu()]));
        // Without that of the one beside it.
        for (engines, too_many) in [(63, false), (64, true)] {
            let changes = keeper.stands_for(&name(), (1..=engines).map(|one| at(100 + one)).collect()).await;
            assert_eq!(changes.map(|changes| has_too_many(&changes.unwrap())), Ok(too_many), "{engines}");
        }
    }

    /// As of a file on a machine that is gone: all other names would wait for it, too.
    #[tokio::test(flavor = "current_thread")]
    async fn a_key_on_a_disk_that_does_not_answer_is_not_waited_for() {
        let file = std::env::temp_dir().join(format!("warmfront-far-key-{}", std::process::id()));
        let _ = std::fs::remove_file(&file);
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let name = Upstream { api_key_file: file.clone(), ..name() };
        let keeper = keeper(config_of([name.clone(), gpu()]));
        keeper.look_up().await;
        let mut tries = Vec::new();
        for _ in 0..2 {
            tries.push(timeout(3 * KEY_WITHIN, keeper.stands_for(&name, vec![at(1)])).await);
        }
        // Whoever still stands there reads an end.
        drop(std::fs::OpenOptions::new().write(true).open(&file));
        std::fs::remove_file(&file).unwrap();
        for tried in tries {
            assert!(tried.unwrap().is_err_and(|why| why.to_string().contains("api_key_file")));
        }
    }
}
