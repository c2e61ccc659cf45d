//! Looking host names up: each look-up has a time of its own, and there are not too many at once, whoever asks.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Longest wait for name servers: with one that does not answer the others are asked 5 s later, and again for each
/// domain that is tried (resolv.conf(5)).
const TIMEOUT: Duration = Duration::from_secs(20);
/// Most look-ups at a time. Each has a thread while name servers are slow, however long ago it was given up; what else
/// control leaves to threads, such as handing its sockets on, is not to wait for these.
pub(crate) const LOOKUPS_MAX: usize = 64;

pub(crate) static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

/// The addresses that a host stands for, as the resolver gives them. To be asked on a tokio runtime with time.
///
/// # Errors
/// When name servers do not know it, or do not answer.
pub async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    resolved(host, port, &LOOKUPS, TIMEOUT).await
}

async fn resolved(host: &str, port: u16, turns: &'static Semaphore, within: Duration) -> io::Result<Vec<SocketAddr>> {
    let turn = match host.parse::<IpAddr>() {
        // There is nobody to be asked.
        Ok(address) => return Ok(vec![SocketAddr::new(address, port)]),
        Err(_) => turns.acquire().await.map_err(io::Error::other)?,
    };
    let host = host.to_owned();
    let found = spawn_blocking(move || {
        let found = (host.as_str(), port).to_socket_addrs();
        drop(turn);
        found
    });
    // The time to wait for a turn counts apart: it says nothing of this host's name servers.
    let in_time = timeout(within, found).await;
    let found = in_time.map_err(|_| io::Error::other("name servers do not answer"))?.map_err(io::Error::other)?;
    Ok(found?.collect())
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// As many threads wait for name servers: who needs none of them does not wait.
    #[test]
    fn names_wait_for_others_and_addresses_for_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            static TURNS: Semaphore = Semaphore::const_new(2);
            const WITHIN: Duration = Duration::from_millis(600);
            let asked = TURNS.acquire_many(2).await.unwrap();
            let found = |host: &'static str| resolved(host, 80, &TURNS, WITHIN);
            let [four, six] = ["127.0.0.1", "::1"].map(|address| SocketAddr::new(address.parse().unwrap(), 80));
            assert_eq!(found("127.0.0.1").await.unwrap(), [four]);
            assert_eq!(found("::1").await.unwrap(), [six]);
            let waits = tokio::spawn(found("localhost"));
            sleep(WITHIN + WITHIN / 2).await;
            assert!(!waits.is_finished(), "it has not been asked for yet");
            drop(asked);
            assert!(waits.await.unwrap().unwrap().iter().any(|found| [four, six].contains(found)));
        });
    }
}
