//! Learning how chats with tools are written: shards tell of sets that come again, the model's template is run on them
//! beside everything else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Keeper;
use crate::exchange::Wanted;
use crate::publish::Process;
use crate::scan::{Chat, Toolset};
use crate::template;

/// How often shards are asked.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// Learning rests so many times as long as it took: clients that change their tools all the time get a fifth of one core.
const RESTS: u32 = 4;

impl Keeper {
    /// Learns what shards want, for ever.
    pub async fn learn_toolsets(self: Arc<Self>, process: &'static Process) {
        loop {
            for shard in process.shards() {
                if let Some(wanted) = shard.toolsets().pop() {
                    let began = Instant::now();
                    self.learn_toolset(wanted).await;
                    sleep(began.elapsed() * RESTS).await;
                }
            }
            sleep(ASKED_EVERY).await;
        }
    }

    async fn learn_toolset(&self, wanted: Wanted) {
        let Wanted { form, tools } = wanted;
        // It may be known by now, or its form may be gone.
        let Some(source) = self.fleet().forms.source(form, &tools) else { return };
        let learning = spawn_blocking(move || (template::with_tools(&source, &tools), tools));
        // Whoever panics on a template leaves it unlearnt.
        let Ok((read, tools)) = learning.await else { return };
        let bytes = tools.len();
        match &read {
            Ok(chat) if has_calls(chat) => tracing::info!(bytes, "chats with a further set of tools are followed"),
            Ok(_) => {
                tracing::info!(bytes, "chats with a further set of tools are followed up to the first call of one")
            }
            Err(why) => tracing::info!(bytes, %why, "chats with a further set of tools are routed approximately"),
        }
        let mut fleet = self.fleet();
        let forms = fleet.forms.learn(form, Toolset { tools, chat: read.ok() });
        fleet.write_as(Arc::new(forms));
        drop(fleet);
        self.changed_if(true);
    }
}

/// Whether the form has words for an assistant that calls tools.
fn has_calls(chat: &Chat) -> bool {
    chat.turns.iter().any(|turn| turn.calls.is_some())
}
