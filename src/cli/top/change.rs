//! What happened between two readings of one front.

use std::collections::BTreeMap;

use super::reading::{Endpoint, Histogram, Reading};

/// The last reading, and an earlier one if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub now: &'a Reading,
    pub before: Option<&'a Reading>,
}

impl<'a> Change<'a> {
    /// Seconds between the two, by the front's clock.
    pub(super) fn seconds(&self) -> Option<f64> {
        risen(self.now.uptime, self.before?.uptime).filter(|seconds| *seconds > 0.0)
    }

    /// How fast a counter rises, a second.
    pub(super) fn rate(&self, count: impl Fn(&Reading) -> Option<f64>) -> Option<f64> {
        Some(risen(count(self.now), count(self.before?))? / self.seconds()?)
    }

    /// The same of those finished requests whose status is one of these.
    pub(super) fn statuses(&self, which: impl Fn(u16) -> bool) -> Option<f64> {
        let of = |(status, count): (&u16, &f64)| which(*status).then_some(*count);
        self.rate(|reading| Some(reading.statuses.iter().filter_map(of).sum()))
    }

    /// The counters of a family that rise, and how fast a second; the quickest first.
    pub(super) fn rising(&self, family: fn(&Reading) -> &BTreeMap<String, f64>) -> Option<Vec<(&'a str, f64)>> {
        let (seconds, before) = (self.seconds()?, family(self.before?));
        let earlier = |name: &str| before.get(name).copied().unwrap_or(0.0);
        let rates = family(self.now).iter().map(|(name, count)| (name.as_str(), (count - earlier(name)) / seconds));
        let mut rising: Vec<_> = rates.filter(|(_, rate)| *rate > 0.0).collect();
        rising.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        Some(rising)
    }

    /// Times to first token of all endpoints.
    pub(super) fn first_token(&self) -> Option<Histogram> {
        Some(self.now.first_token.since(&self.before?.first_token))
    }

    /// One endpoint; `None`: there is none of this name.
    pub(super) fn endpoint(&self, name: &str) -> Option<EndpointChange<'a>> {
        let before = self.before.and_then(|before| before.endpoints.get(name));
        Some(EndpointChange { now: self.now.endpoints.get(name)?, before, seconds: self.seconds() })
    }
}

/// The last reading of one endpoint, and an earlier one if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndpointChange<'a> {
    pub now: &'a Endpoint,
    before: Option<&'a Endpoint>,
    seconds: Option<f64>,
}

impl EndpointChange<'_> {
    /// How fast its requests end, a second. Their series begins with the first.
    pub(super) fn requests(&self) -> Option<f64> {
        let (now, before) = (self.now.requests.unwrap_or(0.0), self.before?.requests.unwrap_or(0.0));
        Some(risen(Some(now), Some(before))? / self.seconds?)
    }

    /// The part of the prompt tokens sent there that was thought to be in its cache.
    pub(super) fn held(&self) -> Option<f64> {
        self.part(|endpoint| endpoint.held, |endpoint| endpoint.sent)
    }

    /// The part of the tokens looked up in its cache that its engine found.
    pub(super) fn hit(&self) -> Option<f64> {
        self.part(|endpoint| endpoint.hits, |endpoint| endpoint.queries)
    }

    /// Microseconds to the first token, as a quantile.
    pub(super) fn first_token(&self, part: f64) -> Option<f64> {
        self.now.first_token.since(&self.before?.first_token).quantile(part)
    }

    fn part(&self, of: fn(&Endpoint) -> Option<f64>, whole: fn(&Endpoint) -> Option<f64>) -> Option<f64> {
        let whole = risen(whole(self.now), whole(self.before?)).filter(|whole| *whole > 0.0)?;
        Some((risen(of(self.now), of(self.before?))? / whole).min(1.0))
    }
}

/// How much a counter rose; `None` if it fell, since it began anew.
fn risen(now: Option<f64>, before: Option<f64>) -> Option<f64> {
    Some(now? - before?).filter(|rise| *rise >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BEFORE, NOW};
    use super::*;

    #[test]
    fn rates_are_differences() {
        let (before, now) = (Reading::of(BEFORE.as_bytes()), Reading::of(NOW.as_bytes()));
        let change = Change { now: &now, before: Some(&before) };
        assert_eq!((change.seconds(), change.rate(|reading| reading.events)), (Some(10.0), Some(1_120.0)));
        assert_eq!((change.statuses(|status| status / 100 == 2), change.statuses(|_| false)), (Some(104.0), Some(0.0)));
        assert_eq!(change.rising(|reading| &reading.reasons).unwrap(), [("warm", 83.0), ("cold", 21.0), ("none", 2.0)]);
        let first = change.endpoint("gpu-1:8000").unwrap();
        assert_eq!((first.held(), first.hit(), first.requests()), (Some(0.88), Some(0.8), Some(83.0)));
        assert_eq!((first.first_token(0.5), change.endpoint("gpu-3").unwrap().hit()), (Some(40_000.0), None));
        assert!(change.endpoint("gpu-9").is_none());
    }

    #[test]
    fn nothing_is_known_of_a_front_that_began_anew_or_was_read_once() {
        let (before, now) = (Reading::of(BEFORE.as_bytes()), Reading::of(NOW.as_bytes()));
        for change in [Change { now: &before, before: Some(&now) }, Change { now: &now, before: None }] {
            assert_eq!((change.seconds(), change.statuses(|_| true)), (None, None));
            assert!(change.rising(|reading| &reading.reasons).is_none());
            assert_eq!(change.endpoint("gpu-1:8000").unwrap().requests(), None);
            assert_eq!(change.endpoint("gpu-1:8000").unwrap().first_token(0.5), None);
        }
    }
}
