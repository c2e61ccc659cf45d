//! What runs beside each other for every engine: look its name up, probe it, read its load and its
//! models. Each has its own pace and deadline, so that a slow engine delays no other and nothing but itself.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::{Call, CallError, Client};
use super::fleet::Server;
use super::health::{Failure, How};
use super::keeper::Keeper;
use super::lasting;
use super::member::Member;
use super::models;
use super::names::lookup;
use super::scrape::Page;
use super::truth::Ours;
use crate::config::{Config, Upstream};
use crate::fleet::Health;

/// Between the first questions to two engines for what they serve: all at once would be hundreds of megabytes if they
/// have a thousand adapters each.
const MODELS_APART: Duration = Duration::from_millis(2);
/// All new engines are first asked within this time, however many they are: a start waits a second for their answers.
const MODELS_WITHIN: Duration = Duration::from_millis(400);
/// How often an engine without an address is looked at.
const GLANCE: Duration = Duration::from_millis(50);
/// Least time before a probe that failed connects and faults, which shards count, make early.
const EARLIEST: Duration = Duration::from_millis(50);
/// Least time before an early probe behind one that was early itself.
const EARLY_AGAIN: Duration = Duration::from_millis(250);
/// Between two look-ups of a name that has no address yet.
const RESOLVE_AGAIN: Duration = Duration::from_secs(1);
/// Between two look-ups of the name of an engine that is down: it may have moved.
const RESOLVE_DOWN: Duration = Duration::from_secs(5);
/// A page of metrics of so many bytes is long: without adapters they take a tenth of that.
const LONG_PAGE: usize = 1 << 20;
/// Such a page is asked for again after so many times as long as it took.
const LONG_PAGE_REST: u32 = 20;
/// Longest body of a `/health` answer that is read; vLLM's is empty.
const HEALTH_BYTES_MAX: usize = 64 << 10;

/// All of the configuration that a watch goes by: as long as it stays the same, so does the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    health_path: String,
    probe: Pace,
    scrape: Pace,
    models: Pace,
    resolve_every: Duration,
    stale_after: Duration,
}

/// How often something is asked, and how much an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    every: Duration,
    timeout: Duration,
    bytes_max: usize,
}

impl From<&Config> for Plan {
    fn from(config: &Config) -> Plan {
        let (health, control) = (&config.health, &config.control);
        let pace = |every, timeout, bytes_max| Pace {
            every: Duration::from_millis(every),
            timeout: Duration::from_millis(timeout),
            bytes_max,
        };
        Plan {
            health_path: health.path.clone(),
            probe: pace(health.probe_interval_ms, health.probe_timeout_ms, HEALTH_BYTES_MAX),
            scrape: pace(control.scrape_interval_ms, control.scrape_timeout_ms, control.scrape_bytes_max),
            models: pace(control.models_interval_ms, control.models_timeout_ms, control.models_bytes_max),
            resolve_every: Duration::from_millis(control.resolve_interval_ms),
            stale_after: Duration::from_millis(control.stale_after_ms),
        }
    }
}

impl Plan {
    /// Time between two readings of an engine's metrics, the last of which was of so many bytes and took so long. To
    /// write a long page is work for the engine beside what it is there for; and what was read is believed until the
    /// next one.
    fn until_scrape(&self, bytes: usize, took: Duration) -> Duration {
        let every = self.scrape.every;
        if bytes < LONG_PAGE { every } else { (LONG_PAGE_REST * took).min(self.stale_after / 2).max(every) }
    }
}

/// Time between the first questions to so many new engines for what they serve.
pub fn apart(engines: usize) -> Duration {
    MODELS_APART.min(MODELS_WITHIN / engines.max(1) as u32)
}

/// Starts all of it for the engine at `place`; it ends when what is returned is dropped.
pub fn start(
    keeper: &Arc<Keeper>,
    place: usize,
    upstream: &Upstream,
    plan: &Plan,
    models_after: Duration,
) -> JoinSet<()> {
    let watch = Watch {
        keeper: Arc::clone(keeper),
        place,
        upstream: upstream.clone(),
        name: upstream.label(),
        authority: upstream.url.authority(),
        plan: plan.clone(),
        models_after,
    };
    let mut tasks = JoinSet::new();
    watch.lasts("names", Watch::resolve, &mut tasks);
    watch.lasts("probes", Watch::probe, &mut tasks);
    watch.lasts("metrics", Watch::scrape, &mut tasks);
    watch.lasts("models", Watch::models, &mut tasks);
    tasks
}

#[derive(Clone)]
struct Watch {
    keeper: Arc<Keeper>,
    place: usize,
    upstream: Upstream,
    /// As lines of the log have it.
    name: String,
    authority: String,
    plan: Plan,
    /// When it is first asked what it serves, from the start of the watch on.
    models_after: Duration,
}

impl Watch {
    /// One that fell over what the engine said would never look at it again: it begins anew.
    fn lasts<F>(&self, task: &'static str, begin: fn(Watch) -> F, tasks: &mut JoinSet<()>)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let watch = self.clone();
        tasks.spawn(async move {
            lasting::anew(task, Some(&watch.name), || begin(watch.clone()), || ()).await;
        });
    }

    async fn resolve(self) {
        if self.upstream.url.host.parse::<std::net::IpAddr>().is_ok() {
            return;
        }
        let mut said = false;
        // The first look-up was made before the shards began.
        loop {
            self.rest_of_names().await;
            // A name of several engines is followed elsewhere. It may come to be configured as one engine.
            let now = self.keeper.fleet().member(self.place).map(|member| member.upstream.clone());
            let Some(upstream) = now.filter(|upstream| !upstream.each_address) else { continue };
            match lookup(&upstream).await {
                Ok(addresses) => {
                    self.keeper.resolved(self.place, addresses);
                    said = false;
                }
                Err(why) if !said => {
                    let engine = upstream.label();
                    if self.keeper.target(self.place).is_some() {
                        tracing::warn!(engine, %why, "cannot look up an engine; its last address stays in use");
                    } else {
                        tracing::warn!(engine, %why, "cannot look up an engine; it has had no address yet, and gets no requests");
                    }
                    said = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Waits for the next look-up. An engine that goes down meanwhile is looked up sooner.
    async fn rest_of_names(&self) {
        let began = Instant::now();
        let every = jittered(self.plan.resolve_every);
        loop {
            let health = self.keeper.fleet().member(self.place).and_then(Member::health);
            let left = until_lookup(health, every).saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            sleep(jittered(left.min(RESOLVE_AGAIN))).await;
        }
    }

    /// Never gives up, whatever the engine answered before.
    async fn probe(self) {
        let (path, Pace { every, .. }) = (&self.plan.health_path, self.plan.probe);
        let client = Client::connecting_anew();
        let mut early = false;
        loop {
            let began = Instant::now();
            if let Some(server) = self.keeper.server(self.place) {
                let (before, answered) = (self.keeper.trouble_at(&server), self.keeper.first_tokens_at(&server));
                // `path` may be one that asks for it.
                let key = self.keeper.key(self.place);
                let call = self.call(server.address, path, key.as_deref(), self.plan.probe);
                let outcome = match client.get(&call).await {
                    // It says nothing of the engine.
                    Err(CallError::Want(_)) => {
                        sleep(jittered(every)).await;
                        continue;
                    }
                    Ok(answer) if answer.status == 200 => Some(Ok(())),
                    // Too busy for that and not for requests, by which it is judged.
                    Err(error) if error.is_silence() && self.keeper.first_tokens_at(&server) != answered => None,
                    Ok(answer) => {
                        Some(Err(Failure { why: format!("{path} answers {}", answer.status), how: How::Otherwise }))
                    }
                    Err(error) => Some(Err(Failure { why: error.to_string(), how: how(&error) })),
                };
                if outcome.is_some_and(|outcome| self.keeper.probed(&server, &outcome)) {
                    self.keeper.wake_models(self.place);
                }
                early = self.rest(&server, before, began, jittered(every), early).await;
            } else {
                sleep(GLANCE).await;
            }
        }
    }

    /// Waits for the next probe. A shard's failed connect or fault ends the wait, as an engine that has just died
    /// should not cost every request a try; so does another address, where it gets none before it was probed: true
    /// then. Behind an early probe the next early one comes later.
    async fn rest(&self, server: &Server, before: u32, began: Instant, every: Duration, early: bool) -> bool {
        let earliest = if early { EARLY_AGAIN } else { EARLIEST };
        loop {
            let elsewhere = self.keeper.server(self.place).is_some_and(|now| now != *server);
            let troubled = elsewhere || self.keeper.trouble_at(server) != before;
            let until = if troubled { earliest.min(every) } else { every };
            let left = until.saturating_sub(began.elapsed());
            if left.is_zero() {
                return troubled;
            }
            tokio::select! {
                () = sleep(left) => {}
                () = self.keeper.troubled(self.place) => {}
            }
        }
    }

    async fn scrape(self) {
        let client = Client::default();
        let mut said = None;
        loop {
            if let Some(Server { address, ranks }) = self.keeper.server(self.place) {
                let before: Vec<Ours> = ranks.iter().map(|rank| self.keeper.ours(rank.id.slot)).collect();
                let key = self.keeper.key(self.place);
                let call = self.call(address, "/metrics", key.as_deref(), self.plan.scrape);
                let (began, mut page) = (Instant::now(), Page::of(ranks.iter().filter_map(|rank| rank.rank)));
                let answered = client.get_lines(&call, |line| page.line(line)).await;
                let wait = self.plan.until_scrape(page.bytes(), began.elapsed());
                if let Some(told) = told(answered) {
                    let failed = told.err();
                    let readings = page.readings();
                    if failed.is_none() {
                        self.keeper.paged(&ranks, &readings);
                    }
                    for ((rank, before), reading) in ranks.iter().zip(before).zip(readings) {
                        // The engine counted at some moment between the two: the larger one blames nobody else.
                        let in_flight = self.keeper.ours(rank.id.slot).in_flight.max(before.in_flight);
                        let read = failed.clone().map_or(Ok((reading, Ours { in_flight, ..before })), Err);
                        self.keeper.scraped(rank.place, rank.id, read);
                    }
                    self.say_scraped(failed, &mut said);
                }
                sleep(jittered(wait)).await;
            } else {
                sleep(GLANCE).await;
            }
        }
    }

    /// Once for each reason, and not before what was read last is believed no more: a scrape that fails now and then
    /// changes nothing.
    fn say_scraped(&self, failed: Option<String>, said: &mut Option<String>) {
        let engine = &self.name;
        match failed {
            None if said.take().is_some() => tracing::info!(engine, "an engine's /metrics is read again"),
            Some(why) if said.as_ref() != Some(&why) && self.lacks_reading() => {
                tracing::warn!(
                    engine,
                    why,
                    "cannot read an engine's /metrics: its load and the size of its cache are not known"
                );
                *said = Some(why);
            }
            _ => {}
        }
    }

    /// Whether it is not known how an engine is loaded that answers its probes:
    /// of others it is said that they are down.
    fn lacks_reading(&self) -> bool {
        let fleet = self.keeper.fleet();
        let now = fleet.member(self.place).and_then(|member| member.now.as_ref());
        now.is_some_and(|tenancy| tenancy.course.answers() && tenancy.reading.is_none())
    }

    async fn models(self) {
        let every = self.plan.models.every;
        let retry = every.min(self.plan.probe.every);
        let client = Client::default();
        let mut said = None;
        let mut said_left_out = 0;
        sleep(self.models_after).await;
        loop {
            let Some(server) = self.keeper.server(self.place) else {
                sleep(GLANCE).await;
                continue;
            };
            let key = self.keeper.key(self.place);
            let call = self.call(server.address, "/v1/models", key.as_deref(), self.plan.models);
            let known = self.keeper.listed(self.place);
            let learnt = models::learn(&client, &call, known.as_ref()).await;
            let failed = learnt.as_ref().err().map(ToString::to_string);
            if failed.is_some() && failed != said {
                let why = failed.as_deref().unwrap_or_default();
                tracing::warn!(engine = self.name, why, "cannot read which models an engine serves");
            }
            said.clone_from(&failed);
            if let Ok(learnt) = &learnt {
                self.say_left_out(learnt.left_out, std::mem::replace(&mut said_left_out, learnt.left_out));
            }
            server.ranks.iter().for_each(|rank| self.keeper.learnt(rank.place, rank.id, learnt.clone()));
            let wait = if failed.is_some() { retry } else { every };
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                () = self.keeper.models_wanted(self.place) => {}
            }
        }
    }

    /// Once for a list that is cut, however it grows.
    fn say_left_out(&self, left_out: usize, before: usize) {
        if left_out > 0 && before == 0 {
            tracing::warn!(
                engine = self.name,
                left_out,
                "this engine serves more than {} models: those behind them in its list are refused, unless `models` of its [[upstream]] names all that are to be served",
                models::MODELS_MAX
            );
        }
    }

    fn call<'a>(&'a self, address: SocketAddr, path: &'a str, key: Option<&'a str>, pace: Pace) -> Call<'a> {
        let Pace { timeout, bytes_max, .. } = pace;
        Call { address, authority: &self.authority, path, key, timeout, bytes_max }
    }
}

/// Whether an engine told its metrics; `None`: what we lack says nothing of it.
fn told(answered: Result<u16, CallError>) -> Option<Result<(), String>> {
    match answered {
        Ok(200) => Some(Ok(())),
        Ok(status) => Some(Err(format!("/metrics answers {status}"))),
        Err(CallError::Want(_)) => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

fn how(error: &CallError) -> How {
    match error {
        CallError::Connect(..) => How::Unconnected,
        error if error.is_refusal() => How::Refused,
        error if error.is_silence() => How::Silent,
        _ => How::Otherwise,
    }
}

/// Time between two look-ups of the name of an engine of such health; none: it has no address yet.
fn until_lookup(health: Option<Health>, every: Duration) -> Duration {
    match health {
        None => RESOLVE_AGAIN,
        Some(Health::Down) => RESOLVE_DOWN.min(every),
        Some(_) => every,
    }
}

/// A tenth more or less, so that the calls to many engines do not fall on one moment.
fn jittered(wait: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 2_048;
    wait.mul_f64(0.9 + 0.2 * random as f64 / 2_048.0)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::control::keeper::tests::keeper;
    use crate::control::tests::config_of;

    /// A start waits a second for what they serve.
    #[test]
    fn all_engines_are_asked_soon_what_they_serve() {
        assert_eq!(apart(1), MODELS_APART);
        for engines in [0, 1, 64, 200, 400, 1_024] {
            assert!(apart(engines) * engines as u32 <= MODELS_WITHIN, "{engines}");
        }
    }

    /// As a pod that was not scheduled yet when the front began.
    #[tokio::test(flavor = "current_thread")]
    async fn a_name_that_had_no_address_is_looked_up_again() {
        let keeper = keeper(config_of([Upstream::new("http://localhost:1".parse().unwrap())]));
        keeper.watch();
        let found = async {
            while keeper.target(0).is_none() {
                sleep(GLANCE).await;
            }
        };
        assert!(timeout(Duration::from_secs(30), found).await.is_ok(), "it has no address");
    }

    /// Nothing answers where it is taken to be, nor refuses: it stays as it is but for look-ups.
    #[tokio::test(flavor = "current_thread")]
    async fn a_name_is_looked_up_as_often_as_is_configured() {
        let silent = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
        let before = silent.local_addr().unwrap();
        let name = Upstream::new(format!("http://localhost:{}", before.port()).parse().unwrap());
        let mut config = config_of([name]);
        config.control.resolve_interval_ms = 20;
        config.health.probe_timeout_ms = 3_600_000;
        let keeper = keeper(config);
        keeper.resolved(0, vec![before]);
        keeper.watch();
        let moves = async {
            while keeper.target(0).is_none_or(|(_, address)| address == before) {
                sleep(GLANCE).await;
            }
        };
        // Half of what is usual.
        assert!(timeout(Duration::from_secs(15), moves).await.is_ok(), "it stays where it was");
    }

    #[test]
    fn long_pages_are_asked_for_less_often_and_before_they_are_stale() {
        let plan = Plan::from(&Config::default());
        let wait = |bytes, millis| plan.until_scrape(bytes, Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 50, 900].map(|millis| wait(LONG_PAGE - 1, millis)), [1_000; 3]);
        assert_eq!(
            [0, 50, 51, 125, 126, 900].map(|millis| wait(LONG_PAGE, millis)),
            [1_000, 1_000, 1_020, 2_500, 2_500, 2_500]
        );
    }

    #[test]
    fn nobody_there_is_told_from_a_wrong_answer() {
        let at = SocketAddr::from(([10, 0, 0, 1], 8_000));
        assert_eq!(how(&CallError::Connect(at, "No route to host".into())), How::Unconnected);
        assert_eq!(how(&CallError::Refused(at, "Connection refused".into())), How::Refused);
        assert_eq!(how(&CallError::Timeout(2_000)), How::Silent);
        assert_eq!(how(&CallError::Broken("not HTTP".into())), How::Otherwise);
    }

    /// A front without a descriptor knows no less of its engines than before.
    #[test]
    fn what_we_lack_says_nothing_of_an_engine() {
        assert_eq!(told(Err(CallError::Want("Too many open files".into()))), None);
        assert_eq!(told(Ok(200)), Some(Ok(())));
        for failed in [Ok(500), Err(CallError::Timeout(1_000)), Err(CallError::Broken("not HTTP".into()))] {
            assert!(told(failed).is_some_and(|told| told.is_err()));
        }
    }

    #[test]
    fn an_engine_that_is_down_is_looked_up_sooner() {
        let every = Duration::from_secs(30);
        assert_eq!(until_lookup(Some(Health::Down), every), RESOLVE_DOWN);
        assert_eq!(until_lookup(None, every), RESOLVE_AGAIN);
        for health in [Health::Unknown, Health::Up, Health::Draining, Health::Asleep, Health::Ejected, Health::Trial] {
            assert_eq!(until_lookup(Some(health), every), every);
        }
        let often = Duration::from_secs(2);
        assert_eq!(until_lookup(Some(Health::Down), often), often, "no more seldom than others");
    }
}
