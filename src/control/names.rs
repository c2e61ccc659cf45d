//! The addresses that engines' names stand for, as far as requests can be sent there.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use crate::config::Upstream;
use crate::resolver;

/// Longest wait for name servers before shards begin without the engines that these would tell.
const FIRST_LOOKUP: Duration = Duration::from_secs(2);

/// Most addresses of a name that the C library tells; it leaves out more without a word (musl's MAXADDRS).
const TOLD_MAX: usize = if cfg!(target_env = "musl") { 48 } else { usize::MAX };

/// Looks the names of engines up side by side. Engines without an address after [`FIRST_LOOKUP`] are left out, and
/// looked up again later.
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
            _ => tracing::warn!("name servers are slow; the look-up of an engine without an address is tried again"),
        }
    }
    found
}

/// The addresses of an engine's host name, ascending by family as the resolver gives them, each once: the next address
/// after a dead one must not be the same.
pub async fn lookup(upstream: &Upstream) -> Result<Vec<SocketAddr>, String> {
    let host = &upstream.url.host;
    let found = resolver::addresses(host, upstream.url.port).await.map_err(|error| format!("{host}: {error}"))?;
    if upstream.each_address {
        all_told(host, found.len(), TOLD_MAX)?;
    }
    usable(host, found.into_iter())
}

/// Refuses an answer that may be cut: it leaves out other engines at each look-up, which would come and go.
fn all_told(host: &str, found: usize, most: usize) -> Result<(), String> {
    let words = || {
        format!(
            "{host} has {found} addresses or more, and this program's C library tells no more of a name: take one that is linked with glibc"
        )
    };
    if found < most { Ok(()) } else { Err(words()) }
}

/// The addresses that can be connected to: a link-local one needs its interface, which a name does not tell.
fn usable(host: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    let is_of_a_link = |address: &SocketAddr| matches!(address, SocketAddr::V6(six) if six.scope_id() != 0);
    let (of_links, found): (Vec<_>, Vec<_>) = each_once(found).into_iter().partition(is_of_a_link);
    match (found.is_empty(), of_links.is_empty()) {
        (false, _) => Ok(found),
        (true, true) => Err(format!("{host} has no address")),
        (true, false) => Err(format!("{host} has no address but such as are valid on one link alone: {of_links:?}")),
    }
}

fn each_once(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut known = HashSet::new();
    addresses.filter(|address| known.insert(*address)).collect()
}

/// Whether a host name stands for several addresses of one family: for several engines,
/// most likely, of which one is used.
pub fn is_shared(addresses: &[SocketAddr]) -> bool {
    let four = addresses.iter().filter(|address| address.is_ipv4()).count();
    four > 1 || addresses.len() - four > 1
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    #[test]
    fn an_address_that_is_told_twice_is_one() {
        let [a, b] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 8000)));
        assert_eq!(each_once([a, a, b, a].into_iter()), [a, b]);
        assert_eq!(each_once([b, a, b].into_iter()), [b, a], "in the resolver's order");
    }

    #[test]
    fn who_may_be_told_in_part_is_not_followed() {
        assert_eq!(all_told("engines", 47, 48), Ok(()));
        assert!(all_told("engines", 48, 48).unwrap_err().starts_with("engines has 48 addresses or more"));
        assert_eq!(all_told("engines", 4_096, usize::MAX), Ok(()), "glibc tells all");
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
