//! What is known of the engines before shards begin. A process that begins knows none of what one in service does, and
//! requests that come before it knows what an engine serves may reach one that does not serve their model. So does a
//! fleet that gets other engines while it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::{Call, Client};
use super::keeper::Keeper;
use super::models::{self, Learnt};
use super::{GLANCE, StartError};
use crate::config::{Config, Control, Upstream};
use crate::publish::Process;

/// Longest wait where nobody serves meanwhile.
const COLD: Duration = Duration::from_secs(1);
/// Longest wait where another process does, which knows the engines.
const BEHIND_ANOTHER: Duration = Duration::from_secs(10);

impl Keeper {
    /// Waits until each engine has said what it serves and how it is loaded, or failed to, and behind another process
    /// until it is known where each is and whether it is up.
    ///
    /// # Errors
    /// When no engine can be found while another process knows where they are.
    pub(super) async fn get_acquainted(&self, process: &Process, succeeds: bool) -> Result<(), StartError> {
        let known = async {
            while !self.fleet().is_acquainted(succeeds) && !process.draining() {
                sleep(GLANCE).await;
            }
        };
        // Slow engines are not waited for any longer.
        let _ = timeout(if succeeds { BEHIND_ANOTHER } else { COLD }, known).await;
        let found_nobody = self.fleet().members().iter().all(|member| member.now.is_none());
        if succeeds && found_nobody && !self.config().upstream.is_empty() {
            return Err(StartError::Nowhere);
        }
        Ok(())
    }
}

/// What those of the configuration's servers serve that were found just now, by their names, as far as they say it
/// within [`COLD`]. `keys` are those of all.
pub(super) async fn first_lists(
    config: &Config,
    keys: &[Option<Arc<str>>],
    found: &[(String, Vec<SocketAddr>)],
) -> Vec<(String, Learnt)> {
    let mut asked = JoinSet::new();
    for (upstream, key) in config.upstream.iter().zip(keys).filter(|(upstream, _)| upstream.models.is_empty()) {
        let address = found.iter().find(|(server, _)| *server == upstream.server()).and_then(|(_, all)| all.first());
        if let Some(address) = address {
            asked.spawn(first_list(upstream.clone(), key.clone(), *address, config.control.clone()));
        }
    }
    let mut lists = Vec::new();
    while let Some(list) = asked.join_next().await {
        // What panics on an answer has learnt nothing.
        lists.extend(list.ok().flatten());
    }
    lists
}

async fn first_list(
    upstream: Upstream,
    key: Option<Arc<str>>,
    address: SocketAddr,
    control: Control,
) -> Option<(String, Learnt)> {
    let call = Call {
        address,
        authority: &upstream.url.authority(),
        path: "/v1/models",
        key: key.as_deref(),
        timeout: Duration::from_millis(control.models_timeout_ms),
        bytes_max: control.models_bytes_max,
    };
    // Engines that fail here are asked again later, as all are.
    let learnt = timeout(COLD, models::learn(&Client::default(), &call, None)).await.ok()?.ok()?;
    Some((upstream.server(), learnt))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::control::tests::config_of;

    /// Engines that come to a fleet in service are asked within the same bounds as later on.
    #[tokio::test(flavor = "current_thread")]
    async fn a_first_list_is_bounded_like_all_others() {
        const LIST: &str =
            "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"root\":\"/models/m\"}]}";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4_096]);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close", LIST.len());
                let _ = write!(stream, "{head}\r\n\r\n{LIST}");
            }
        });
        let upstream = Upstream::new(format!("http://{address}").parse().unwrap());
        let found = [(upstream.server(), vec![address])];
        let mut config = config_of([upstream]);
        for (most, is_read) in [(LIST.len() - 1, false), (LIST.len(), true)] {
            config.control.models_bytes_max = most;
            // At best of three times: it is waited for a second, and no longer.
            let mut read = false;
            for _ in 0..3 {
                read |= !first_lists(&config, &[None], &found).await.is_empty();
            }
            assert_eq!(read, is_read, "{most} bytes");
        }
    }
}
