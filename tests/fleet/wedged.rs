//! A shard that stands still: what notices it, and what is logged. A debugger's stop stands for all that could hold it
//! up.

#![allow(unsafe_code, reason = "ptrace(2) is the one way to stop one thread of another process")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::front::Front;
use crate::stops::Stops;
use crate::supervised::{Manager, config};
use crate::{on_both, untested, until};

/// Logged once for each stop, and each time that the service manager would otherwise be fed.
const STANDS: &str = "a shard stands still shard=1 doing=";
const UNTOLD: &str = "a shard stands still; the service manager is not told that all is well";

/// A thread of another process that can be stopped. Used by the thread that made it: the kernel knows tracers by
/// thread.
struct Traced(libc::pid_t);

impl Traced {
    /// The thread of this name; `None` if other processes' threads may not be traced.
    fn of(process: u32, name: &str) -> Option<Traced> {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|task| task.unwrap().path());
        // A thread that has ended since has no name.
        let is_called = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let task = tasks.into_iter().find(is_called).expect("a thread of that name");
        let id: libc::pid_t = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // SAFETY: no memory is passed.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, id, 0, 0) } == 0;
        let why = std::io::Error::last_os_error();
        assert!(seized || why.kind() == std::io::ErrorKind::PermissionDenied, "{why}");
        seized.then_some(Traced(id))
    }

    fn stops(&self) {
        let mut status = 0;
        // SAFETY: `status` lives as long as the call that writes to it.
        let stopped = unsafe {
            libc::ptrace(libc::PTRACE_INTERRUPT, self.0, 0, 0);
            libc::waitpid(self.0, &mut status, libc::__WALL)
        };
        assert_eq!(stopped, self.0);
    }

    fn goes_on(&self) {
        // SAFETY: no memory is passed.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.0, 0, 0) };
    }

    /// Lets it go on, and end without being traced.
    fn let_go(self) {
        // SAFETY: no memory is passed.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
    }
}

#[test]
fn a_wedged_shard_is_named_and_the_watchdog_is_not_fed() {
    on_both(|driver| {
        let engine = Engine::start();
        let mut manager = Manager::new(&format!("wedged-{driver}"));
        let mut command = manager.command();
        command.env("WATCHDOG_USEC", "2000000");
        let front = Front::by(command, driver, &[engine.address], &config(None));
        front.until_health(0, "up");
        let lives = || front.admin().get("/healthz").status;
        assert_eq!(lives(), 200);
        manager.hears("WATCHDOG=1");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stops = Stops(&stop);
            // Keeps it busy, so that it is stopped in the middle of something.
            for _ in 0..16 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        front.connect().get("/v1/models");
                    }
                });
            }
            let Some(shard) = Traced::of(front.process(), "shard-1") else {
                return untested::say("a shard that stands still, as no thread may be traced here");
            };
            let times = |words: &str| front.log().matches(words).count();
            until("a stop within a turn", || {
                // The machine may have held it up before, too.
                let before = times(STANDS);
                shard.stops();
                std::thread::sleep(Duration::from_millis(150));
                let named = times(STANDS) > before;
                if !named {
                    shard.goes_on();
                    std::thread::sleep(Duration::from_millis(5));
                }
                named
            });
            // Once the stop is noticed, messages sent before are taken; then none comes for as long as systemd would
            // wait. The first line may have been before the stop.
            let before = times(UNTOLD);
            until(UNTOLD, || times(UNTOLD) >= before + 2);
            manager.forgets();
            let noticed = Instant::now();
            while noticed.elapsed() < Duration::from_secs(2) {
                manager.listen();
            }
            assert!(!manager.said.iter().any(|said| said.contains("WATCHDOG")), "{driver}: {:?}", manager.said);
            until("word that it does not live", || lives() == 503);
            shard.let_go();
            until("word that it lives", || lives() == 200);
            manager.hears("WATCHDOG=1");
            front.until_said("the shard goes on");
            assert!(front.metric("warmfront_shard_stalls_total{shard=\"1\"}") >= 1.0);
        });
    });
}
