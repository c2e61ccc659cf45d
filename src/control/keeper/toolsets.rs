//! Learns how chats with tools are written: shards tell of sets of tools that come again, and the model's template is
//! run on them on another thread.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Keeper;
use crate::exchange::Wanted;
use crate::publish::Process;
use crate::scan::{Chat, Toolset};
use crate::template;

/// How often shards are asked for such sets.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Learning rests for so many times as long as it took: clients that change their tools all
/// the time take a fifth of one core.
const RESTS: u32 = 4;

impl Keeper {
    /// Learns what shards want, for ever.
    pub async fn learn_toolsets(self: Arc<Self>, process: &'static Process) {
        loop {
            let asked = process.shards().iter().map(|shard| shard.toolsets().pop());
            let wanted: Vec<Wanted> = asked.chain([self.outdated().pop()]).flatten().collect();
            for wanted in wanted {
                let began = Instant::now();
                self.learn_toolset(wanted).await;
                sleep(began.elapsed() * RESTS).await;
            }
            sleep(ASKED_EVERY).await;
        }
    }

    /// Sets that were known for templates that have changed since. Shards have asked for them before, and would ask
    /// again only late.
    pub(super) fn outdated(&self) -> MutexGuard<'_, Vec<Wanted>> {
        self.outdated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn learn_toolset(&self, wanted: Wanted) {
        let Wanted { form, tools } = wanted;
        loop {
            // It may be known by now, its form may be gone, or several templates may share the form.
            let Some(source) = self.fleet().forms.source(form, &tools) else { return };
            let of = (Arc::clone(&source), tools.clone());
            let learning = spawn_blocking(move || template::with_tools(&of.0, &of.1));
            // If the template makes it panic the set stays unlearnt.
            let Ok(read) = learning.await else { return };
            say(tools.len(), &read);
            let mut fleet = self.fleet();
            let forms = fleet.forms.learn(form, &source, Toolset { tools: tools.clone(), chat: read.ok() });
            fleet.write_as(Arc::new(forms));
            drop(fleet);
            self.changed_if(true);
        }
    }
}

fn say(bytes: usize, read: &Result<Chat, template::Why>) {
    match read {
        Ok(chat) if has_calls(chat) => tracing::info!(bytes, "chats with a further set of tools are followed"),
        Ok(_) => tracing::info!(bytes, "chats with a further set of tools are followed up to the first call of one"),
        Err(why) => tracing::info!(bytes, %why, "chats with a further set of tools are routed approximately"),
    }
}

/// Whether the form has words for an assistant that calls tools.
fn has_calls(chat: &Chat) -> bool {
    chat.turns.iter().any(|turn| turn.calls.is_some())
}
