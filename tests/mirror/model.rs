//! Engines that do anything an engine may do, against the plainest account of it: which beginnings of prompts are
//! there, how often.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use warmfront::mirror::Mirror;
use warmfront::vocabulary::{Lead, Vocabulary};

use crate::{Engine, Held, ROOT, after, links, text};

const SIZE: usize = 4;

/// Two ways to write the same text, short texts and long ones.
fn vocabulary() -> Vocabulary {
    let texts: [&[u8]; 8] = [
        b"ab",
        b"a",
        b"b",
        b" seven b",
        b"nineteen bytes long",
        b"0123456789012345678901234567890123456789",
        b"x",
        b"ba",
    ];
    Vocabulary::new(&texts.map(Some), &[], Lead::Nowhere, &[])
}

#[derive(Clone, Debug)]
enum Op {
    /// The first so many blocks of a prompt are computed, from where they are there already, or all of them once more.
    Compute {
        prompt: usize,
        blocks: usize,
        again: bool,
    },
    /// Blocks go: the one at this place among those that are there, or its last descendant.
    Evict {
        place: usize,
        leaf: bool,
    },
    Clear,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..usize::MAX, 1..7_usize, prop::bool::weighted(0.2)).prop_map(|(prompt, blocks, again)| Op::Compute { prompt, blocks, again }),
        8 => (0..usize::MAX, prop::bool::weighted(0.6)).prop_map(|(place, leaf)| Op::Evict { place, leaf }),
        1 => Just(Op::Clear),
    ]
}

/// Prompts that part early and late: each is another's first tokens and its own rest.
fn prompts() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let one = (0..usize::MAX, 0..6 * SIZE, prop::collection::vec(0..8_u32, 6 * SIZE));
    prop::collection::vec(one, 1..10).prop_map(|drawn| {
        let mut prompts: Vec<Vec<u32>> = Vec::new();
        for (from, shared, mut own) in drawn {
            if let Some(other) = prompts.get(from % prompts.len().max(1)) {
                own[..shared].copy_from_slice(&other[..shared]);
            }
            prompts.push(own);
        }
        prompts
    })
}

/// A name that tells all tokens before it, as vLLM's do.
fn name(tokens: &[u32]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().map(|id| *id as u8).collect();
    xxhash_rust::xxh64::xxh64(&bytes, 5)
}

#[derive(Default)]
struct Model {
    /// How often each block is there, named by all tokens down to its end.
    copies: BTreeMap<Vec<u32>, u32>,
    /// What links were ever worth.
    worth: BTreeMap<u64, BTreeSet<u32>>,
}

impl Model {
    fn compute(&mut self, engine: &mut Engine, prompt: &[u32], blocks: usize, again: bool) {
        let missing = (1..=blocks).find(|block| !self.copies.contains_key(&prompt[..block * SIZE]));
        let from = if again { 1 } else { missing.unwrap_or(blocks + 1) } - 1;
        if from == blocks {
            return;
        }
        let names: Vec<u64> = (from + 1..=blocks).map(|block| name(&prompt[..block * SIZE])).collect();
        let parent = (from > 0).then(|| name(&prompt[..from * SIZE]));
        engine.store(&names, parent, &prompt[from * SIZE..blocks * SIZE]);
        for block in from + 1..=blocks {
            *self.copies.entry(prompt[..block * SIZE].to_vec()).or_default() += 1;
        }
    }

    fn evict(&mut self, engine: &mut Engine, place: usize, leaf: bool) {
        let Some(at) = place.checked_rem(self.copies.len()) else { return };
        let mut chosen = self.copies.keys().nth(at).unwrap().clone();
        while leaf
            && let Some(below) =
                self.copies.keys().find(|other| other.len() > chosen.len() && other.starts_with(&chosen))
        {
            chosen = below.clone();
        }
        engine.remove(&[name(&chosen)]);
        let copies = self.copies.get_mut(&chosen).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&chosen);
        }
    }

    /// Links of all that is there with everything before it, and what each follows.
    fn expected(&mut self, vocabulary: &Vocabulary) -> BTreeMap<u64, Option<u64>> {
        let mut expected = BTreeMap::new();
        for tokens in self.copies.keys() {
            if !(1..tokens.len() / SIZE).all(|block| self.copies.contains_key(&tokens[..block * SIZE])) {
                continue;
            }
            let whole = text(vocabulary, tokens);
            let begin = text(vocabulary, &tokens[..tokens.len() - SIZE]).len();
            let all = links(ROOT, &whole);
            for (at, link) in all.iter().filter(|(at, _)| *at > begin) {
                expected.insert(*link, after(&all, *at));
                let all_of_it =
                    |rest: usize| [tokens.len(), tokens.len() - SIZE][usize::from(whole.len() - at >= rest)];
                self.worth.entry(*link).or_default().extend([64, 32].map(|rest| all_of_it(rest) as u32));
            }
        }
        expected
    }

    fn compare(&mut self, engine: &Engine) {
        let expected = self.expected(&engine.vocabulary);
        let held: BTreeMap<u64, Option<u64>> = engine.held.0.iter().map(|(link, (after, _))| (*link, *after)).collect();
        assert_eq!(held, expected);
        assert!(engine.held.0.iter().all(|(link, (_, tokens))| self.worth[link].contains(tokens)));
        assert_eq!(engine.mirror.blocks() as usize, self.copies.len());
        let counts = engine.mirror.counts();
        assert_eq!((counts.orphans, counts.ambiguous, counts.unknown, counts.beyond), (0, 0, 0, 0));
    }
}

/// Written down and read again, it goes on as if nothing had been.
fn restored(engine: &Engine) -> Engine {
    let (mut saved, mut again, mut held) = (Vec::new(), Vec::new(), Held::default());
    engine.mirror.save(&mut saved);
    let mirror = Mirror::restore(&saved, 1_000).unwrap();
    mirror.retell(&mut held);
    assert!(held.0.keys().eq(engine.held.0.keys()), "what is told again is what was held");
    assert!(held.0.values().zip(engine.held.0.values()).all(|(one, other)| one.0 == other.0));
    mirror.save(&mut again);
    assert_eq!(mirror.blocks(), engine.mirror.blocks());
    assert_eq!(saved.len(), again.len());
    Engine { mirror, held, vocabulary: engine.vocabulary.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_engine_is_held_as_the_plain_model_has_it(prompts in prompts(), ops in prop::collection::vec(op(), 1..80), save in 0..80_usize) {
        let (mut engine, mut model) = (Engine::new(vocabulary()), Model::default());
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Compute { prompt, blocks, again } => {
                    let prompt = &prompts[prompt % prompts.len()];
                    model.compute(&mut engine, prompt, blocks.min(6), again);
                }
                Op::Evict { place, leaf } => model.evict(&mut engine, place, leaf),
                Op::Clear => {
                    engine.tell(warmfront::kvevents::Event::Cleared);
                    model.copies.clear();
                }
            }
            model.compare(&engine);
            if number == save {
                engine = restored(&engine);
                model.compare(&engine);
            }
        }
    }

    /// What no engine does: names at two places, behind themselves, behind what is gone.
    #[test]
    fn any_events_at_all_leave_a_closed_set(mut script in prop::collection::vec(any::<u8>(), 1..400)) {
        script[0] = 0;
        crate::property::mirror(&script);
    }
}
