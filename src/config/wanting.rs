//! What a configuration asks for and does not get. This is no fault: a front serves without it.

use std::borrow::Cow;

use super::Config;

/// One such thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanting {
    /// The part that it concerns, in a word or two.
    pub of: &'static str,
    /// The consequence.
    pub so: &'static str,
    /// Why, in words.
    pub why: Cow<'static, str>,
}

impl Config {
    /// All of them.
    pub fn wanting(&self) -> impl Iterator<Item = Wanting> + use<> {
        let all = [
            ("access log", "the access log has no chains", self.chain_wanting().map(Cow::from)),
            ("queue", "no request waits in the queue", self.queue_wanting().map(Cow::from)),
            ("metrics", "what is known of engines' load may come and go", self.readings_wanting().map(Cow::from)),
        ];
        all.into_iter().filter_map(|(of, so, why)| Some(Wanting { of, so, why: why? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wanting_is_told() {
        let of = |config: &Config| config.wanting().map(|wanting| wanting.of).collect::<Vec<_>>();
        let mut config = Config::default();
        assert_eq!(of(&config), [""; 0]);
        config.log.access_chain = true;
        config.queue.weights = [("x".to_owned(), 2)].into();
        config.limits.index_bytes = 0;
        config.control.stale_after_ms = 1;
        assert_eq!(of(&config), ["access log", "queue", "metrics"]);
    }
}
