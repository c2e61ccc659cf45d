//! What stands between the conversations and the engines: a policy, in how many fronts of how many shards.

use std::net::SocketAddr;

use clap::ValueEnum;

use crate::demo::front::Front;
use crate::demo::load::Target;
use crate::policy::Policy;

/// Policies that need no front: the demo's own baselines.
pub const BARE: [&str; 2] = ["bare-random", "bare-sticky"];
/// Most fronts, and most shards of one.
const MANY_MAX: usize = 16;

/// `NAME`, or `NAME@FRONTSxSHARDS`: conversations are dealt among the fronts, which know nothing of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineup {
    /// One of [`BARE`], or a policy of the front.
    pub policy: String,
    /// How many fronts, each a process.
    pub fronts: usize,
    /// Shards of each front; `None`: as many as it takes by default.
    pub shards: Option<usize>,
}

impl std::str::FromStr for Lineup {
    type Err = String;

    fn from_str(text: &str) -> Result<Lineup, String> {
        let (policy, many) = text.split_once('@').map_or((text, None), |(policy, many)| (policy, Some(many)));
        let bare = BARE.contains(&policy);
        if !bare && Policy::from_str(policy, false).is_err() {
            let names = Policy::value_variants().iter().map(|policy| policy.as_str()).chain(BARE);
            let names: Vec<&str> = names.collect();
            return Err(format!("no policy is called {policy:?}; --policies takes {}", names.join(", ")));
        }
        let Some(many) = many else { return Ok(Lineup { policy: policy.into(), fronts: 1, shards: None }) };
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MANY_MAX).contains(number));
        match many.split_once('x').map(|(fronts, shards)| (number(fronts), number(shards))) {
            Some((Some(fronts), Some(shards))) if !bare => {
                Ok(Lineup { policy: policy.into(), fronts, shards: Some(shards) })
            }
            _ => Err(format!(
                "{text:?} is no line-up; write a policy of the front and how many fronts of how many shards, 1 to \
                 {MANY_MAX}, such as warm@2x1"
            )),
        }
    }
}

impl Lineup {
    /// Starts the fronts, if any, before these engines.
    pub async fn start(&self, engines: &[SocketAddr]) -> Result<(Vec<Front>, Target), String> {
        let engines = engines.to_vec();
        match BARE.iter().position(|bare| *bare == self.policy) {
            Some(0) => return Ok((Vec::new(), Target::BareRandom(engines))),
            Some(_) => return Ok((Vec::new(), Target::BareSticky(engines))),
            None => {}
        }
        let mut fronts = Vec::new();
        for _ in 0..self.fronts {
            fronts.push(Front::start(&self.policy, self.shards, &engines, None).await?);
        }
        let target = Target::Fronts(fronts.iter().map(|front| front.listen).collect());
        Ok((fronts, target))
    }
}

/// The line-up that `--serve` keeps up: the last one, which may have one front only.
pub fn served(lineups: &[Lineup]) -> Result<Lineup, String> {
    match lineups.last() {
        Some(Lineup { policy, .. }) if BARE.contains(&&**policy) => {
            Err(format!("--serve needs a policy of the front, not {policy}"))
        }
        Some(Lineup { policy, fronts: 2.., shards }) => {
            let shards = shards.unwrap_or(1);
            Err(format!("--serve keeps one front up; write {policy}, or {policy}@1x{shards}"))
        }
        Some(lineup) => Ok(lineup.clone()),
        None => Err("--serve needs a policy of the front in --policies".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ups_are_read_or_refused_in_words() {
        let lineup = |policy: &str, fronts, shards| Lineup { policy: policy.into(), fronts, shards };
        assert_eq!("warm".parse(), Ok(lineup("warm", 1, None)));
        assert_eq!("warm@2x1".parse(), Ok(lineup("warm", 2, Some(1))));
        assert_eq!("bare-random".parse(), Ok(lineup("bare-random", 1, None)));
        for wrong in ["warm@", "warm@2", "warm@0x1", "warm@1x17", "bare-sticky@1x1", "warm@2x"] {
            assert!(wrong.parse::<Lineup>().unwrap_err().contains("line-up"), "{wrong}");
        }
        assert!("hot@1x1".parse::<Lineup>().unwrap_err().contains("prefix-hash"));
    }

    #[test]
    fn one_front_is_served() {
        let last = |names: &[&str]| served(&names.iter().map(|name| name.parse().unwrap()).collect::<Vec<Lineup>>());
        assert_eq!(last(&["random", "warm"]), Ok("warm".parse().unwrap()));
        assert_eq!(last(&["warm@1x3"]).map(|lineup| lineup.shards), Ok(Some(3)));
        assert!(last(&["warm", "warm@2x3"]).unwrap_err().contains("write warm, or warm@1x3"));
        assert!(last(&["warm", "bare-random"]).unwrap_err().contains("not bare-random"));
    }
}
