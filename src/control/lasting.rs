//! Tasks that must last as long as the process, or as an engine is in the fleet, and what follows if one of them
//! panics.
//!
//! A task that panics ends alone, and unnoticed: without the one that publishes, a front would say that it is ready,
//! and its shards would hear of no change any more.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::abort;
use std::task::Poll;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::publish::Process;

/// Pause before a task begins anew: what it fell over may still be there.
const PAUSE: Duration = Duration::from_secs(1);

/// Spawns a task that the front cannot do without: if it panics, the process ends, as with a shard, and its supervisor
/// starts it anew. If another process serves already, this one only goes on to end its streams.
pub(super) fn spawn(
    task: &'static str,
    process: &'static Process,
    work: impl Future<Output = ()> + Send + 'static,
) -> AbortHandle {
    let lasting = async move {
        if !fell(work).await {
            return;
        }
        if process.has_successor() {
            tracing::error!(
                task,
                "a task of control has ended by this fault; another process serves in this one's place"
            );
            return;
        }
        tracing::error!(task, "control cannot go on without this task: the process ends");
        abort();
    };
    tokio::spawn(lasting).abort_handle()
}

/// Spawns a task that reads others' bytes, run by [`anew`].
pub(super) fn spawn_anew<F>(task: &'static str, begin: impl Fn() -> F + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send,
{
    tokio::spawn(async move { anew(task, None, begin, || ()).await });
}

/// Runs a task that reads others' bytes, such as what one engine says: these must not end the front. If it panics, it
/// begins anew a while later, after `mend`.
pub(super) async fn anew<F: Future<Output = ()>>(
    task: &'static str,
    engine: Option<&str>,
    begin: impl Fn() -> F,
    mend: impl Fn(),
) {
    while fell(begin()).await {
        tracing::error!(task, engine, "a task of control has ended by this fault, and begins anew");
        fell(async { mend() }).await;
        sleep(PAUSE).await;
    }
}

/// Whether it panicked.
async fn fell(work: impl Future<Output = ()>) -> bool {
    caught(work).await.is_none()
}

/// Its result; `None`: it panicked.
pub(super) async fn caught<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(outcome)) => Poll::Ready(Some(outcome)),
        Err(_) => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn what_goes_by_others_bytes_begins_anew_behind_a_panic() {
        let (begun, mended) = (AtomicU32::new(0), AtomicU32::new(0));
        let begin = || async {
            let before = begun.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
            assert!(before > 0, "a fault, on purpose");
        };
        let mend = || {
            mended.fetch_add(1, Ordering::Relaxed);
            panic!("another, on purpose");
        };
        anew("a test", Some("engine"), begin, mend).await;
        assert_eq!((begun.into_inner(), mended.into_inner()), (2, 1));
    }

    /// Set for a process in which a task falls; whether another serves in its place.
    const FALLS: &str = "WARMFRONT_TEST_A_TASK_FALLS";

    #[tokio::test(flavor = "current_thread")]
    async fn what_the_front_is_not_itself_without_ends_the_process() {
        if let Some(gave_way) = std::env::var_os(FALLS) {
            let process = Process::leak(1);
            if gave_way == "true" {
                process.give_way();
            }
            spawn("a test", process, async { panic!("a fault, on purpose") });
            return sleep(Duration::from_millis(300)).await;
        }
        let name = "control::lasting::tests::what_the_front_is_not_itself_without_ends_the_process";
        let ended = |gave_way| {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args([name, "--exact", "--nocapture"]).env(FALLS, gave_way);
            again.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
        };
        assert_eq!(ended("false").signal(), Some(libc::SIGABRT));
        assert!(ended("true").success(), "its streams end without that task");
    }
}
