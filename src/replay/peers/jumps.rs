//! Consistent hashing with bounded loads by random jumps (arXiv 1908.08762, and Envoy). A key whose home is at its
//! bound goes to the home of another key, made of itself and of how often it has jumped, and not to the next endpoint
//! on the ring: so the surplus of one endpoint does not all go to its neighbour. Ring, key and bound are those of
//! `prefix-hash`.

use super::best_of;
use crate::demo::conversation::Dice;
use crate::policy::{Settings, weighted_bound};
use crate::replay::chooser::{Asked, Chooser, Placed, Stage, draws};
use crate::replay::fleet::Fleet;
use crate::replay::traffic::chain::mix;
use crate::ring::Ring;

/// With so many jumps for each engine, all of equal weight, a given one is missed with a chance of e^-4; then the least
/// load is as good.
const JUMPS_PER_ENGINE: u64 = 4;

/// See the top of this file.
pub struct Jumps {
    ring: Ring,
    weights: Vec<u32>,
    in_flight: Vec<u32>,
    dice: Dice,
    settings: Settings,
}

impl Jumps {
    /// Endpoints named as the product's policies name them, so that the ring is the same.
    pub fn new(stage: &Stage<'_>) -> Jumps {
        let (settings, weights) = (Settings::default(), stage.weights.to_vec());
        let names: Vec<String> = (0..weights.len()).map(|engine| format!("engine-{engine}:8000")).collect();
        let members: Vec<_> =
            (0..).zip(&names).zip(&weights).map(|((slot, name), weight)| (slot, &**name, *weight)).collect();
        Jumps {
            ring: Ring::build(&members, settings.replication),
            in_flight: vec![0; weights.len()],
            weights,
            dice: Dice::new(mix(stage.seed, draws::JUMPS)),
            settings,
        }
    }

    /// Returns the first home below its bound.
    fn bounded(&self, key: u64) -> Option<usize> {
        let total = self.in_flight.iter().map(|count| u64::from(*count)).sum();
        let weights = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let Settings { load_percent, load_slack, .. } = self.settings;
        let bound =
            |engine: usize| weighted_bound(total, self.weights[engine].into(), weights, load_percent, load_slack);
        let jumps = (1..=JUMPS_PER_ENGINE * self.weights.len() as u64).map(|jump| mix(key, jump));
        let homes = std::iter::once(key).chain(jumps).filter_map(|key| self.ring.walk(key).next());
        homes.map(usize::from).find(|&engine| self.in_flight[engine] < bound(engine))
    }

    fn least_load(&mut self) -> usize {
        let Jumps { dice, in_flight, weights, .. } = self;
        best_of(dice, weights.len(), |engine| f64::from(in_flight[engine]) / f64::from(weights[engine]))
    }
}

impl Chooser for Jumps {
    fn choose(&mut self, asked: &Asked, _fleet: &Fleet) -> Option<Placed> {
        let key = asked.request.opening.map(|opening| mix(opening, draws::KEY));
        let engine = key.and_then(|key| self.bounded(key)).unwrap_or_else(|| self.least_load());
        self.in_flight[engine] += 1;
        Some(engine.into())
    }

    fn ended(&mut self, _number: u64, engine: usize, _tokens: u32) {
        self.in_flight[engine] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::policy::Policy;
    use crate::replay::events::Delivery;
    use crate::replay::own::Own;
    use crate::replay::peers::trial::{Trial, prompt};
    use crate::replay::traffic::Request;

    const STAGE: Stage<'_> =
        Stage { weights: &[1; 8], blocks: 5_500, block_tokens: 16, fronts: 1, events: DELIVERY, seed: 1 };
    const DELIVERY: Delivery = Delivery { delay_ns: 0, loss_percent: 0.0, replay: true };

    /// Returns where a prompt goes that begins so.
    fn ask<C: Chooser>(trial: &mut Trial<C>, number: u64, opening: u64) -> usize {
        let request = Request { opening: Some(opening), ..prompt(&[(opening, 20)]) };
        let asked = Asked { number, now_ns: 0, request: &request, block_tokens: 16, tenant: 0 };
        trial.chooser.choose(&asked, &trial.fleet).unwrap().engine
    }

    #[test]
    fn a_key_stays_at_its_home_up_to_the_bound_and_jumps_where_its_own_hash_says() {
        let jumps = || Trial::new(Jumps::new(&STAGE), 8);
        let home = |opening| ask(&mut jumps(), 0, opening);
        // With an idle fleet `prefix-hash` is the same.
        let settings = Settings { policy: Policy::PrefixHash, ..Settings::default() };
        let linear = |opening| ask(&mut Trial::new(Own::new(&STAGE, settings.clone()), 8), 0, opening);
        let alike: Vec<u64> = (1..400).filter(|opening| home(*opening) == home(1)).collect();
        assert!(alike.len() > 20 && alike.iter().take(5).all(|opening| linear(*opening) == home(*opening)));
        let (mut seconds, mut next_on_the_ring) = (HashSet::new(), 0);
        for &opening in &alike {
            let mut trial = jumps();
            // Of so few each may have the slack of 4.
            let went: Vec<usize> = (0..5).map(|number| ask(&mut trial, number, opening)).collect();
            assert!(went[..4].iter().all(|engine| *engine == went[0]) && went[4] != went[0], "{went:?}");
            seconds.insert(went[4]);
            let key = mix(opening, draws::KEY);
            let next = trial.chooser.ring.walk(key).map(usize::from).find(|engine| *engine != went[0]);
            next_on_the_ring += usize::from(next == Some(went[4]));
            trial.chooser.ended(0, went[0], 1);
            assert_eq!(ask(&mut trial, 5, opening), went[0], "there is room again");
        }
        assert_eq!(seconds.len(), 7, "who has one home has not one second");
        assert!(3 * next_on_the_ring < alike.len(), "{next_on_the_ring} of {} went to the next", alike.len());
    }

    #[test]
    fn nobody_is_passed_its_bound_and_what_has_no_prefix_goes_where_the_least_is() {
        let mut trial = Trial::new(Jumps::new(&STAGE), 8);
        (0..400).for_each(|number| _ = ask(&mut trial, number, 1));
        let Jumps { in_flight, .. } = &trial.chooser;
        assert!(in_flight.iter().all(|count| *count <= 63) && in_flight.iter().sum::<u32>() == 400, "{in_flight:?}");
        let least = *in_flight.iter().min().unwrap();
        let engine = trial.ask(&[(9, 20)]).1;
        assert_eq!(trial.chooser.in_flight[engine], least + 1);
    }
}
