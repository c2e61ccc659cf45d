//! Where the names of engines lead: look-ups, each with a time of its own, and not too many at once.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;
use std::{io, vec};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::Upstream;

/// Longest wait for name servers before shards begin without the engines they know.
const FIRST_LOOKUP: Duration = Duration::from_secs(2);
/// Longest wait for name servers: with one that does not answer the others are asked 5 s later, and again for each domain
/// that is tried (resolv.conf(5)).
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Most look-ups at a time. Each has a thread while name servers are slow, however long ago it was given up; what else
/// control leaves to threads, such as handing its sockets on, is not to wait for these.
const LOOKUPS_MAX: usize = 64;

/// Looks the names of engines up side by side. What has no address after [`FIRST_LOOKUP`] is left out, and looked for
/// later.
pub async fn first_lookups<P: Send + 'static>(engines: Vec<(P, Upstream)>) -> Vec<(P, Vec<SocketAddr>)> {
    let begin = |(place, upstream): (P, Upstream)| {
        (place, tokio::spawn(async move { timeout(FIRST_LOOKUP, lookup(&upstream)).await }))
    };
    let lookups: Vec<_> = engines.into_iter().map(begin).collect();
    let mut found = Vec::new();
    for (place, lookup) in lookups {
        match lookup.await {
            Ok(Ok(Ok(addresses))) => found.push((place, addresses)),
            Ok(Ok(Err(why))) => tracing::warn!(why, "cannot look up an engine; it is tried again"),
            _ => tracing::warn!("name servers are slow; an engine without an address is looked up again"),
        }
    }
    found
}

/// The addresses of an engine's host name, ascending by family as the resolver gives them, each once: who looks for another
/// than one that is dead would find its twin behind it.
pub async fn lookup(upstream: &Upstream) -> Result<Vec<SocketAddr>, String> {
    let found = resolved(upstream.url.host.clone(), upstream.url.port, &LOOKUPS, RESOLVE_TIMEOUT).await;
    usable(&upstream.url.host, found.map_err(|error| format!("{}: {error}", upstream.url.host))?)
}

/// Those that can be asked: no request names an address of one link with its interface, and without that nobody is there.
fn usable(host: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let is_of_a_link = |address: &SocketAddr| matches!(address, SocketAddr::V6(six) if six.scope_id() != 0);
    let (of_links, found): (Vec<_>, Vec<_>) = each_once(found).into_iter().partition(is_of_a_link);
    match (found.is_empty(), of_links.is_empty()) {
        (false, _) => Ok(found),
        (true, true) => Err(format!("{host} has no address")),
        (true, false) => Err(format!("{host} has no address but such as are valid on one link alone: {of_links:?}")),
    }
}

static LOOKUPS: Semaphore = Semaphore::const_new(LOOKUPS_MAX);

async fn resolved(
    host: String,
    port: u16,
    turns: &'static Semaphore,
    within: Duration,
) -> io::Result<vec::IntoIter<SocketAddr>> {
    let turn = match host.parse::<IpAddr>() {
        // There is nobody to be asked.
        Ok(address) => return Ok(vec![SocketAddr::new(address, port)].into_iter()),
        Err(_) => turns.acquire().await.map_err(io::Error::other)?,
    };
    let found = spawn_blocking(move || {
        let found = (host.as_str(), port).to_socket_addrs();
        drop(turn);
        found
    });
    // Its turn comes when others have given theirs back, which says nothing of what it asks.
    let in_time = timeout(within, found).await;
    in_time.map_err(|_| io::Error::other("name servers do not answer"))?.map_err(io::Error::other)?
}

fn each_once(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut known = HashSet::new();
    addresses.filter(|address| known.insert(*address)).collect()
}

/// Whether a host name stands for several addresses of one family: for several engines, most likely, of which one is used.
pub fn is_shared(addresses: &[SocketAddr]) -> bool {
    let four = addresses.iter().filter(|address| address.is_ipv4()).count();
    four > 1 || addresses.len() - four > 1
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use tokio::time::sleep;

    use super::*;

    #[test]
    fn an_address_that_is_told_twice_is_one() {
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 8000)));
        assert_eq!(each_once([a, a, b, a].into_iter()), [a, b]);
        assert_eq!(each_once([b, a, b].into_iter()), [b, a], "in the resolver's order");
    }

    /// As a name is told by multicast.
    #[test]
    fn addresses_of_one_link_are_left_out() {
        let of_link = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 8_000, 0, 2));
        let four = SocketAddr::from(([10, 0, 0, 1], 8_000));
        assert_eq!(usable("gpu.local", [of_link, four].into_iter()), Ok(vec![four]));
        let why = usable("gpu.local", [of_link].into_iter()).unwrap_err();
        assert!(why.contains("gpu.local") && why.contains("[fe80::1%2]:8000"), "{why}");
        assert!(usable("gpu.local", [].into_iter()).unwrap_err().contains("no address"));
    }

    /// As many threads wait for name servers: who needs none of them does not wait.
    #[test]
    fn names_wait_for_others_and_addresses_for_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            static TURNS: Semaphore = Semaphore::const_new(2);
            const WITHIN: Duration = Duration::from_millis(600);
            let asked = TURNS.acquire_many(2).await.unwrap();
            let found = |host: &str| resolved(host.into(), 80, &TURNS, WITHIN);
            let [four, six] = ["127.0.0.1", "::1"].map(|address| SocketAddr::new(address.parse().unwrap(), 80));
            assert_eq!(found("127.0.0.1").await.unwrap().as_slice(), [four]);
            assert_eq!(found("::1").await.unwrap().as_slice(), [six]);
            let waits = tokio::spawn(found("localhost"));
            sleep(WITHIN + WITHIN / 2).await;
            assert!(!waits.is_finished(), "it has not been asked for yet");
            drop(asked);
            assert!(waits.await.unwrap().unwrap().any(|found| [four, six].contains(&found)));
        });
    }

    #[test]
    fn a_name_of_two_families_is_one_engines() {
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 8000)));
        let [c, d] = [1, 2].map(|n| SocketAddr::from(([0xFD00, 0, 0, 0, 0, 0, 0, n], 8000)));
        for alone in [&[][..], &[a], &[c], &[a, c]] {
            assert!(!is_shared(alone), "{alone:?}");
        }
        for shared in [&[a, b][..], &[c, d], &[c, a, b], &[a, d, c]] {
            assert!(is_shared(shared), "{shared:?}");
        }
    }
}
