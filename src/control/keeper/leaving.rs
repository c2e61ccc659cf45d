//! Probes engines that were taken out while they finish their requests: nothing else asks whether they are still there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Keeper, SECOND};
use crate::control::client::{Call, CallError, Client};
use crate::fleet::EndpointId;

/// Longest body of an answer that is read; its content is not used.
const BYTES_MAX: usize = 64 << 10;

impl Keeper {
    /// Probes each once a second, for ever. The probes tell whether its kernel refuses: then a silent request is given
    /// up sooner than at an engine that computes.
    pub async fn watch_leaving(self: Arc<Self>) {
        let client = Client::connecting_anew();
        loop {
            sleep(SECOND).await;
            let mut probes = JoinSet::new();
            for (id, address) in self.fleet().leaving(|slot| self.counters.in_flight(slot)) {
                probes.spawn(Arc::clone(&self).probe_leaving(client.clone(), id, address));
            }
            // A probe that panics on an answer has found out nothing.
            while probes.join_next().await.is_some() {}
        }
    }

    /// Probes like an engine that stays, but without a key: what matters is whether its kernel refuses the connection.
    async fn probe_leaving(self: Arc<Self>, client: Client, id: EndpointId, address: SocketAddr) {
        let config = self.config();
        let authority = address.to_string();
        let call = Call {
            address,
            authority: &authority,
            path: &config.health.path,
            key: None,
            // A refusal comes at once, and a silent engine must not make the others wait.
            timeout: Duration::from_millis(config.health.probe_timeout_ms).min(SECOND),
            bytes_max: BYTES_MAX,
        };
        let refused = match client.get(&call).await {
            // A want of this machine's says nothing of the engine.
            Err(CallError::Want(_)) => return,
            outcome => outcome.is_err_and(|error| error.is_refusal()),
        };
        let changed = self.fleet().probed_leaving(id, refused);
        self.changed_if(changed);
    }
}
