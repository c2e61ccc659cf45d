//! Host names of which each address is an engine of its own (`each_address`), such as that of a headless Kubernetes
//! Service, which has one for each pod: their last addresses, and the engines that these make. No I/O.

use std::iter::repeat;
use std::net::SocketAddr;
use std::sync::Arc;

use super::keys::Keys;
use crate::config::{Config, Upstream, Url};

/// Each such name as configured, with its last addresses: ascending, of one family, and none before the first were
/// told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named(Vec<(Upstream, Vec<SocketAddr>)>);

impl Named {
    /// The names of a configuration as it was read; names that were known `before` keep their addresses.
    pub fn of(config: &Config, before: &Named) -> Named {
        let each = config.upstream.iter().filter(|upstream| upstream.each_address);
        Named(each.map(|upstream| (upstream.clone(), before.addresses(upstream).to_vec())).collect())
    }

    /// The same, with addresses of the same names that `by` has.
    pub fn renewed(mut self, by: &Named) -> Named {
        for (name, addresses) in &mut self.0 {
            let told = by.addresses(name);
            if !told.is_empty() {
                *addresses = told.to_vec();
            }
        }
        self
    }

    /// The names without a known address.
    pub fn unknown(&self) -> impl Iterator<Item = &Upstream> {
        self.0.iter().filter(|(_, addresses)| addresses.is_empty()).map(|(name, _)| name)
    }

    /// The names as configured.
    pub fn names(&self) -> impl Iterator<Item = &Upstream> {
        self.0.iter().map(|(name, _)| name)
    }

    /// The last addresses of a name.
    pub fn addresses(&self, name: &Upstream) -> &[SocketAddr] {
        let known = self.0.iter().find(|(known, _)| known.is_same(name));
        known.map_or(&[], |(_, addresses)| addresses)
    }

    /// Takes in the addresses that a name stands for. Both families are taken to be the same engines', and one address
    /// of each is used, of the family in use. False: none is of that family. A name server that fails for one family
    /// tells the same, so nothing changes.
    pub fn stands_for(&mut self, name: &Upstream, mut found: Vec<SocketAddr>) -> bool {
        let Some((_, addresses)) = self.0.iter_mut().find(|(known, _)| known.is_same(name)) else { return false };
        let is_four = addresses.first().map_or_else(|| found.iter().any(SocketAddr::is_ipv4), SocketAddr::is_ipv4);
        found.retain(|address| address.is_ipv4() == is_four);
        found.sort_unstable();
        let is_told = !found.is_empty();
        if is_told {
            *addresses = found;
        }
        is_told
    }

    /// Removes addresses of engines that belong to another name or upstream: an engine of two names would go when
    /// either drops it. False: none are left.
    pub fn leaves(&mut self, name: &Upstream, is_anothers: impl Fn(&Upstream) -> bool) -> bool {
        let Some((_, addresses)) = self.0.iter_mut().find(|(known, _)| known.is_same(name)) else { return false };
        addresses.retain(|at| !is_anothers(&engine(name, *at)));
        !addresses.is_empty()
    }

    /// The engines of a name. A name without an address yet is one engine without an address.
    pub fn engines(&self, name: &Upstream) -> Vec<Upstream> {
        let addresses = self.addresses(name);
        if addresses.is_empty() { vec![name.clone()] } else { addresses.iter().map(|at| engine(name, *at)).collect() }
    }

    /// The configuration with the engines of names in the names' places, and the keys of all: engines of a name have
    /// the name's key.
    ///
    /// # Errors
    /// What is wrong with the configuration that results, such as too many engines.
    pub fn expanded(&self, config: Config, keys: &[Option<Arc<str>>]) -> Result<(Config, Keys), String> {
        if self.0.is_empty() {
            return Ok((config, keys.to_vec()));
        }
        let of = |one: &Upstream| if one.each_address { self.engines(one) } else { vec![one.clone()] };
        let read = config.upstream.iter().zip(keys.iter().cloned().chain(repeat(None)));
        let all = read.flat_map(|(read, key)| of(read).into_iter().map(move |one| (one, key.clone())));
        let (upstream, keys) = all.unzip();
        let config = Config { upstream, ..config }.checked().map_err(|invalid| invalid.to_string())?;
        Ok((config, keys))
    }
}

/// Whether `label` may be that of an engine of a name, or of one of its ranks, at any address.
pub(super) fn may_be_called(name: &Upstream, label: &str) -> bool {
    let server = label.rsplit_once('@').filter(|_| name.has_ranks()).map_or(label, |(server, _)| server);
    let at = match &*name.name {
        "" => Some(server),
        name => server.strip_prefix(name).and_then(|at| at.strip_prefix('-')),
    };
    at.and_then(|at| at.parse::<SocketAddr>().ok()).is_some_and(|at| at.port() == name.url.port)
}

fn engine(name: &Upstream, at: SocketAddr) -> Upstream {
    let called = if name.name.is_empty() { String::new() } else { format!("{}-{at}", name.name) };
    let url = Url { host: at.ip().to_string(), port: at.port() };
    Upstream { url, name: called, each_address: false, ..name.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn named(name: &str) -> Upstream {
        let port = if name.is_empty() { 8_000 } else { 8_001 };
        let each = Upstream::new(format!("http://engines:{port}").parse().unwrap());
        Upstream { name: name.into(), each_address: true, concurrency_max: 7, ..each }
    }

    fn labels(upstreams: &[Upstream]) -> Vec<String> {
        upstreams.iter().map(Upstream::label).collect()
    }

    #[test]
    fn each_address_is_an_engine_in_the_names_place() {
        let alone = Upstream::new("http://gpu-1:8000".parse().unwrap());
        let config = Config { upstream: vec![named(""), alone, named("b")], ..Config::default() };
        let keys = [Some("key".into()), None, Some("other".into())];
        let mut names = Named::of(&config, &Named::default());
        let expanded = |names: &Named| names.expanded(config.clone(), &keys).unwrap();
        assert_eq!(labels(&expanded(&names).0.upstream), ["engines:8000", "gpu-1:8000", "b"], "nothing is told yet");
        assert!(names.stands_for(&named(""), vec![at("10.0.0.2:8000"), at("10.0.0.1:8000")]));
        assert!(names.stands_for(&named("b"), vec![at("[fd00::1]:8001")]));
        let (config, keys) = expanded(&names);
        assert_eq!(labels(&config.upstream), ["10.0.0.1:8000", "10.0.0.2:8000", "gpu-1:8000", "b-[fd00::1]:8001"]);
        assert!(
            config
                .upstream
                .iter()
                .all(|one| !one.each_address && (one.concurrency_max == 7) == (one.url.host != "gpu-1"))
        );
        let keys: Vec<_> = keys.iter().map(|key| key.as_deref()).collect();
        assert_eq!(keys, [Some("key"), Some("key"), None, Some("other")]);
    }

    #[test]
    fn engines_of_two_families_are_counted_once() {
        let config = Config { upstream: vec![named("")], ..Config::default() };
        let mut names = Named::of(&config, &Named::default());
        let [one, two, six] = ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"].map(at);
        assert!(names.stands_for(&named(""), vec![six, two, one]));
        assert_eq!(names.addresses(&named("")), [one, two]);
        assert!(!names.stands_for(&named(""), vec![six]), "the other family was not told");
        assert!(!names.stands_for(&named(""), vec![]));
        assert_eq!(names.addresses(&named("")), [one, two]);
        assert_eq!(Named::of(&config, &names), names, "what is read again stands for the same");
    }

    #[test]
    fn what_the_engines_of_a_name_make_wrong_is_told() {
        let beside = Upstream::new("http://10.0.0.1:8000".parse().unwrap());
        let config = Config { upstream: vec![named(""), beside], ..Config::default() };
        let mut names = Named::of(&config, &Named::default());
        assert!(names.stands_for(&named(""), vec![at("10.0.0.1:8000")]));
        let why = names.expanded(config, &[]).unwrap_err();
        assert!(why.contains("10.0.0.1:8000"), "{why}");
    }
}
