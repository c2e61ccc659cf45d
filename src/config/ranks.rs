//! The data-parallel ranks behind one port: each is an endpoint of its own, with a cache of its own.

use super::{Config, KvEvents, Upstream};
use crate::kvevents::Endpoint;
use crate::limits::RANKS_MAX;

impl Config {
    /// The endpoints that may be chosen, in the order of the configuration: each rank of a server by itself.
    pub fn endpoints(&self) -> impl Iterator<Item = Upstream> {
        self.upstream.iter().flat_map(Upstream::each_rank)
    }

    /// How many endpoints there are.
    pub fn endpoint_count(&self) -> usize {
        self.upstream.iter().map(|upstream| upstream.ranks as usize).sum()
    }
}

impl Upstream {
    /// Each of its ranks as an endpoint of its own, or itself if it has only one.
    pub fn each_rank(&self) -> impl Iterator<Item = Upstream> {
        let several = if self.has_ranks() { self.ranks.min(RANKS_MAX) as u16 } else { 0 };
        let alone = (self.ranks == 1).then(|| self.clone());
        alone.into_iter().chain((0..several).map(|rank| self.of_rank(rank)))
    }

    /// Whether several ranks are behind its port, of which each is chosen by itself.
    pub fn has_ranks(&self) -> bool {
        self.ranks > 1
    }

    /// Whether it is its server's first rank, or its only one, which stands for all of them in what is done once for a
    /// server: following it, and log lines about its host name.
    pub fn is_first(&self) -> bool {
        self.rank.is_none_or(|rank| rank == 0)
    }

    /// One of its ranks. Engines add the rank to the ports of what they publish.
    fn of_rank(&self, rank: u16) -> Upstream {
        let kv_events = match &self.kv_events {
            KvEvents::At(first) => KvEvents::At(first.of_rank(rank).unwrap_or_else(|| first.clone())),
            asked => asked.clone(),
        };
        let replay = self.kv_replay.parse().ok().and_then(|first: Endpoint| first.of_rank(rank));
        let kv_replay = replay.map_or_else(|| self.kv_replay.clone(), |replay| replay.to_string());
        Upstream { rank: Some(rank), kv_events, kv_replay, ..self.clone() }
    }

    /// Whether both are of one server, the same rank or not, whatever their other keys say. A `name` equal to the
    /// default counts as none.
    pub fn is_of_server(&self, other: &Upstream) -> bool {
        self.url == other.url && (self.name == other.name || self.server() == other.server())
    }

    /// Whether both are ranks of one server that has several.
    pub fn is_beside(&self, other: &Upstream) -> bool {
        self.rank.and(other.rank).is_some() && self.is_of_server(other)
    }

    /// What is wrong with its ranks, in words.
    pub(super) fn ranks_fault(&self) -> Option<String> {
        let last = self.ranks.saturating_sub(1).min(RANKS_MAX) as u16;
        let replay = self.kv_replay.parse().ok();
        let at = match &self.kv_events {
            KvEvents::At(first) => Some(first),
            _ => None,
        };
        if self.ranks == 0 {
            Some("`ranks` cannot be 0; leave it out where the engine has one cache behind its port".into())
        } else if self.ranks > RANKS_MAX {
            Some(format!(
                "`ranks` cannot be above {RANKS_MAX}; where more are behind one port, let the engine spread requests (`ranks = 1`)"
            ))
        } else {
            at.into_iter().chain(&replay).find(|first| first.of_rank(last).is_none()).map(|first| {
                format!(
                    "`ranks` is {}, and {first} is the first rank's: the last would have a port above 65535; give the first a lower one",
                    self.ranks
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_an_engine_of_its_own() {
        let one = Upstream::new("http://gpu-1:8000".parse().unwrap());
        assert_eq!(one.each_rank().collect::<Vec<_>>(), std::slice::from_ref(&one), "as before");
        let events = KvEvents::At("tcp://gpu-1:5557".parse().unwrap());
        let two = Upstream { ranks: 2, kv_events: events, kv_replay: "tcp://gpu-1:5600".into(), ..one.clone() };
        let all: Vec<Upstream> = two.each_rank().collect();
        let told = |upstream: &Upstream| (upstream.label(), String::from(upstream.kv_events.clone()));
        let expected = |rank: u16| (format!("gpu-1:8000@{rank}"), format!("tcp://gpu-1:{}", 5557 + rank));
        assert_eq!(all.iter().map(told).collect::<Vec<_>>(), [expected(0), expected(1)]);
        assert_eq!(all[1].kv_replay, "tcp://gpu-1:5601");
        assert!(all[0].is_first() && !all[1].is_first() && one.is_first());
        assert!(!all[0].is_same(&all[1]) && all[0].is_of_server(&all[1]) && all[1].is_of_server(&one));
        let written_out = Upstream { name: "gpu-1:8000".into(), ..all[1].clone() };
        assert!(all[0].is_beside(&written_out) && !all[0].is_beside(&one));
        let called = Upstream { name: "a".into(), ..two };
        assert!(called.each_rank().all(|rank| !rank.is_beside(&all[0])));
        assert_eq!(called.each_rank().map(|one| one.label()).collect::<Vec<_>>(), ["a@0", "a@1"]);
        let config = Config { upstream: vec![one, called], ..Config::default() };
        assert_eq!((config.endpoints().count(), config.endpoint_count()), (3, 3));
    }
}
