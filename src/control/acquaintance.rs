//! What is known of the engines before shards begin. A process that begins knows none of what one in service does, and requests that
//! come before it knows what an engine serves may reach one that does not serve their model.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::fleet::Fleet;
use super::keeper::Keeper;
use super::{GLANCE, StartError};
use crate::publish::Process;

/// Longest wait where nobody serves meanwhile.
const COLD: Duration = Duration::from_secs(1);
/// Longest wait where another process does, which knows the engines.
const BEHIND_ANOTHER: Duration = Duration::from_secs(10);

impl Keeper {
    /// Waits until each engine has said what it serves and how it is loaded, or failed to, and behind another process until it is known
    /// where each is and whether it is up.
    ///
    /// # Errors
    /// When no engine can be found while another process knows where they are.
    pub(super) async fn get_acquainted(&self, process: &Process, succeeds: bool) -> Result<(), StartError> {
        let known = async {
            while !self.fleet().is_acquainted(succeeds) && !process.draining() {
                sleep(GLANCE).await;
            }
        };
        // With those who are slow it goes on all the same.
        let _ = timeout(if succeeds { BEHIND_ANOTHER } else { COLD }, known).await;
        let found_nobody = self.fleet().members().iter().all(|member| member.now.is_none());
        if succeeds && found_nobody && !self.config().upstream.is_empty() {
            return Err(StartError::Nowhere);
        }
        Ok(())
    }
}

impl Fleet {
    fn is_acquainted(&self, succeeds: bool) -> bool {
        self.members().iter().all(|member| {
            let Some(tenancy) = &member.now else { return !succeeds };
            let says_models = member.ids().is_some() || member.models_error.is_some();
            // An engine that sleeps says so beside its load.
            let says_load = tenancy.is_known || tenancy.scrape_error.is_some();
            says_models && says_load && (tenancy.course.is_known() || !succeeds)
        })
    }
}
