//! `warmfront serve`: the front itself.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use super::{EX_CONFIG, Level, complain, level, log, machine, refuse};
use crate::config::{Config, Flags, Wanting, admin_is_open};
use crate::control;
use crate::control::reload::Source;
use crate::control::saved;
use crate::control::upgrade::Bequest;
use crate::counters::Counters;
use crate::counters::stats::Stats;
use crate::exchange::Rules;
use crate::publish::{Process, Published};
use crate::shard::start::{self, Shared, Started};
use crate::shard::topology::this_machine;
use crate::shard::{choice, panics};
use crate::snapshot::Snapshot;
use crate::succession::{self, Inherited, inherit};

/// How often to look whether all shards have started.
const GLANCE: Duration = Duration::from_millis(2);
/// Pause before a failed start ends the process, which may be started again at once.
const BREATH: Duration = Duration::from_secs(1);

/// Run the front: accept clients, choose an engine for each request, relay.
///
/// With nothing but --upstream it runs on its defaults: clients on 0.0.0.0:8000, /metrics on
/// 127.0.0.1:9911, policy warm. SIGTERM, SIGQUIT and SIGINT drain: no new connections, streams may finish.
/// SIGHUP, or POST /reload on the admin listener, reads the configuration anew while requests run; SIGHUP also
/// opens the access log's file anew (SIGUSR1 does not, and says so).
/// SIGUSR2 starts the program on disk in this one's place: it takes the listeners, and this one finishes what it has.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  Two engines, everything else by default:
    warmfront serve --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  On another port, spreading by load alone:
    warmfront serve --listen 0.0.0.0:9000 --policy least-load \\
      --upstream http://gpu-1:8000
  From a file, with one key changed for this run:
    warmfront serve --config /etc/warmfront/warmfront.toml --shards 2
  With a line for each finished request:
    warmfront serve --upstream http://gpu-1:8000 --access-log stdout
  Is it ready, and where does it send requests?
    curl -s http://127.0.0.1:9911/readyz
    curl -s http://127.0.0.1:9911/endpoints

Exit status: 0 after a drain, 1 no threads or descriptors for the moment, or a fault of warmfront's own, 2 wrong usage, \
130 a second Ctrl-C, 78 wrong configuration or unfit machine, for somebody to change (`warmfront check` says more).")]
pub struct Args {
    #[command(flatten)]
    pub(super) flags: Flags,
}

pub(super) fn main(args: Args) -> ExitCode {
    let activated = succession::is_activated();
    let status = serve(args);
    // Clients that wait at a socket of systemd's cause another start at once, and systemd closes a socket that causes
    // twenty in 2 s (systemd.socket(5), TriggerLimitBurst=).
    if activated && status == ExitCode::from(EX_CONFIG) {
        sleep(BREATH);
    }
    status
}

fn serve(args: Args) -> ExitCode {
    let config = match Config::load(&args.flags) {
        Ok(config) => Arc::new(config),
        Err(invalid) => return refuse(&invalid),
    };
    if let Some(why) = machine::index_fault(&config) {
        return refuse(&why);
    }
    let source = Arc::new(CommandLine { flags: args.flags, level: log(&config.log), shards: OnceLock::new() });
    panics::tell_place_only();
    match run(config, source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) if why.is_for_now() => {
            complain(&why);
            sleep(BREATH);
            ExitCode::FAILURE
        }
        Err(why) => refuse(&why),
    }
}

/// Why a front did not start, or not end as it should.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Listeners could not be taken over from the process before or from systemd.
    #[error(transparent)]
    Inherit(io::Error),
    #[error(transparent)]
    Driver(#[from] choice::NotToBeHad),
    /// Fewer descriptors are allowed than are needed before the first client.
    #[error("{0}")]
    Descriptors(String),
    #[error(transparent)]
    Control(#[from] control::StartError),
    #[error(transparent)]
    Shards(#[from] start::StartError),
    /// A fault that can only be the front's own.
    #[error("a fault of warmfront: {0} requests were still counted in flight at the end")]
    Fault(u64),
}

impl Failure {
    /// Whether another start may succeed though nothing is changed.
    fn is_for_now(&self) -> bool {
        use control::StartError::{Access, Admin, Form, Key, Machine, Nowhere};
        match self {
            Failure::Driver(why) => why.is_for_now(),
            Failure::Control(Machine(_)) | Failure::Shards(start::StartError::Machine(_)) | Failure::Fault(_) => true,
            Failure::Control(Admin { .. } | Key { .. } | Form(_) | Access(_) | Nowhere)
            | Failure::Shards(start::StartError::Listen { .. })
            | Failure::Inherit(_)
            | Failure::Descriptors(_) => false,
        }
    }
}

/// The process's command line, for reloads: its file is read anew, its flags still win over that.
#[derive(Debug)]
struct CommandLine {
    flags: Flags,
    level: Level,
    /// How many shards there are until the process ends, whatever a reloaded configuration says.
    shards: OnceLock<usize>,
}

impl Source for CommandLine {
    fn load(&self) -> Result<Config, String> {
        let config = Config::load(&self.flags).map_err(|invalid| invalid.to_string())?;
        machine::index_fault(&config).map_or(Ok(config), Err)
    }

    fn in_use(&self, config: &Config) {
        // It fails only if there is no log.
        let _ = self.level.reload(level(&config.log));
        if let Some(shards) = self.shards.get() {
            say_few_descriptors(config, *shards);
        }
    }

    fn say_wanting(&self, config: &Config) {
        say_wanting(config);
    }
}

/// Starts control first, so that a snapshot is there before the first connection; then the shards, and waits until they
/// have drained.
fn run(config: Arc<Config>, source: Arc<CommandLine>) -> Result<(), Failure> {
    let Inherited { admin, listeners, mut predecessor } = inherit(config.serve.admin).map_err(Failure::Inherit)?;
    let driver = choice::choose(config.serve.driver)?;
    let placement = this_machine().place(config.serve.shards.asked(), config.serve.pin.asked());
    let shards = placement.shards();
    descriptors(&config, shards).map_err(Failure::Descriptors)?;
    let _ = source.shards.set(shards);
    let setup = control::Setup {
        config: Arc::clone(&config),
        published: Published::leak(Snapshot::default()),
        counters: Counters::leak(),
        stats: Stats::leak(shards),
        process: Process::leak(shards),
        source,
        bequest: Bequest::default(),
    };
    let mut control = control::start(setup.clone(), admin, predecessor.is_some())?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        listen = ?config.serve.listen,
        admin = %control.admin,
        engines = config.upstream.len(),
        policy = config.routing.policy.as_str(),
        placement = %placement,
        "starting"
    );
    if let Some(why) = admin_is_open(&config.serve) {
        tracing::warn!("{why}");
    }
    let shared = Shared {
        published: setup.published,
        process: setup.process,
        counters: setup.counters,
        stats: setup.stats,
        rules: Arc::new(Rules::from(&*config)),
        driver,
    };
    let Started { threads, addresses: listening, listeners } =
        start::start(&shared, &config.serve.listen, &placement, listeners)?;
    tracing::info!(?listening, "listening");
    while !setup.process.all_serving() && !setup.process.draining() {
        sleep(GLANCE);
    }
    // A process that was told to end before it served does not replace its predecessor.
    predecessor = predecessor.filter(|_| !setup.process.draining());
    if let Some(predecessor) = &mut predecessor {
        predecessor.let_go();
    }
    control.serves(listeners);
    for thread in threads {
        // A shard that panicked has aborted the process already.
        let _ = thread.join();
    }
    if let Some(predecessor) = predecessor {
        predecessor.outlive();
    }
    control.stop();
    let left = setup.counters.in_flight_in_all();
    if left != 0 {
        return Err(Failure::Fault(left));
    }
    control::say_drained(setup.process);
    Ok(())
}

/// Warns of what the configuration asks for and does not get: the front serves without.
fn say_wanting(config: &Config) {
    let file = &config.control.caches_file;
    if !file.as_os_str().is_empty() {
        if let Err(error) = saved::writable(file) {
            tracing::warn!(file = %file.display(), %error, "caches_file cannot be written: a restart will begin with cold caches");
        } else if !config.counts_tokens() {
            tracing::warn!("caches_file has nothing to keep: no pool has the policy warm or precise");
        }
    }
    for Wanting { why, so, .. } in config.wanting() {
        tracing::warn!(why = &*why, "{so}");
    }
}

/// Raises the limit of descriptors; an error if there are too few for a first client.
fn descriptors(config: &Config, shards: usize) -> Result<(), String> {
    let (may, needed) = (machine::raise_descriptors(), machine::descriptors_needed(config, shards));
    if may < needed {
        let wanted = machine::descriptors_wanted(config, shards);
        return Err(format!(
            "only {may} descriptors are allowed, and {needed} are needed before the first client; \
             set LimitNOFILE={wanted} in the unit (`ulimit -n {wanted}` in a shell)"
        ));
    }
    say_few_descriptors(config, shards);
    Ok(())
}

/// Warns if fewer descriptors are allowed than the configuration asks for.
fn say_few_descriptors(config: &Config, shards: usize) {
    let (limit, wanted) = (machine::raise_descriptors(), machine::descriptors_wanted(config, shards));
    if limit < wanted {
        tracing::warn!(limit, wanted, "too few descriptors for connections_max; `warmfront check` says what to change");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_to_change_is_tried_again() {
        let error = || io::Error::from(io::ErrorKind::OutOfMemory);
        let address = ([127, 0, 0, 1], 1).into();
        let unheard = |number, tried_again| {
            let error = || io::Error::from_raw_os_error(number);
            let shards = start::StartError::no_listener(address, error());
            [(shards.into(), tried_again), (control::StartError::no_listener(address, error()).into(), tried_again)]
        };
        let ports = [
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::ENOBUFS, true),
            (libc::EADDRINUSE, false),
            (libc::EADDRNOTAVAIL, false),
            (libc::EACCES, false),
        ];
        let others = [
            (Failure::from(start::StartError::Machine(error())), true),
            (control::StartError::Machine(error()).into(), true),
            (control::StartError::Nowhere.into(), false),
            (Failure::Fault(1), true),
            (Failure::Descriptors("only 20 descriptors are allowed".into()), false),
            (Failure::Inherit(error()), false),
        ];
        let ports = ports.into_iter().flat_map(|(number, tried_again)| unheard(number, tried_again));
        for (why, tried_again) in others.into_iter().chain(ports) {
            assert_eq!(why.is_for_now(), tried_again, "{why}");
            assert!(!tried_again || !why.to_string().contains("choose another"), "{why}");
        }
    }
}
