//! One rule at a time.

use serde_json::json;
use warmfront::kvevents::{Event, Removed, Stored};
use warmfront::limits::{BLOCK_BYTES, LINKS_MAX};
use warmfront::mirror::{Counts, Mirror, Reading};
use warmfront::vocabulary::{Lead, Vocabulary};

use crate::{Engine, Held, ROOT, after, cached, links, plain, removed, roots, stored, text};

/// Tokens of which each stands for four bytes: 16 are a step, 64 a block of text.
pub fn even(from: u32, count: u32) -> Vec<u32> {
    (100 + from..100 + from + count).map(|id| 10 + id % 90).collect()
}

fn engine() -> Engine {
    Engine::new(plain(20_000))
}

fn opaque(counts: Counts) -> [u64; 4] {
    [counts.orphans, counts.opaque, counts.malformed, counts.beyond]
}

#[test]
fn a_chain_is_held_link_by_link_and_says_its_tokens() {
    let mut engine = engine();
    let prompt = even(0, 16 * 10);
    engine.store(&[1, 2], None, &prompt[..80]);
    engine.store(&[3, 4], Some(2), &prompt[80..]);
    let whole = text(&engine.vocabulary, &prompt);
    assert_eq!(whole.len(), 640);
    let all = links(ROOT, &whole);
    assert_eq!(engine.held.0.len(), 10);
    // Blocks of 40 tokens end behind bytes 160, 320, 480, 640: each step within one is worth what is before it; the
    // last one too, where half of it is left before a block that follows, else all.
    let expected = [0, 0, 40, 40, 80, 80, 80, 120, 120, 160];
    for ((at, link), tokens) in all.iter().zip(expected) {
        assert_eq!(engine.held.0[link], (after(&all, *at), tokens), "at {at}");
    }
    assert_eq!((engine.mirror.blocks(), engine.mirror.counts().stored), (4, 4));
}

#[test]
fn siblings_share_what_their_texts_share() {
    let mut engine = engine();
    let prompt = even(0, 32);
    let mut other = prompt.clone();
    other[30] = 19_999;
    engine.store(&[1], None, &prompt);
    engine.store(&[2], None, &other);
    let (first, second) =
        (links(ROOT, &text(&engine.vocabulary, &prompt)), links(ROOT, &text(&engine.vocabulary, &other)));
    assert_eq!((first[0], engine.held.0.len()), (second[0], 3));
    engine.remove(&[1]);
    assert!(engine.mirror.owns(first[0].1) && !engine.mirror.owns(first[1].1) && engine.mirror.owns(second[1].1));
    engine.remove(&[2]);
    assert!(engine.held.0.is_empty() && !engine.mirror.owns(first[0].1));
}

#[test]
fn copies_are_counted() {
    let mut engine = engine();
    let prompt = even(0, 64);
    engine.store(&[1, 2], None, &prompt);
    engine.store(&[1, 2], None, &prompt);
    engine.remove(&[2, 1]);
    assert_eq!((engine.tokens(&prompt), engine.mirror.blocks()), (64, 2));
    engine.remove(&[2]);
    assert_eq!(engine.tokens(&prompt), 32);
    engine.remove(&[1]);
    assert!(engine.held.0.is_empty() && engine.mirror.blocks() == 0);
    engine.remove(&[1, 9]);
    let counts = engine.mirror.counts();
    assert_eq!((counts.stored, counts.copies, counts.removed, counts.unknown), (2, 2, 4, 2));
}

/// Engines that name pages by their own tokens: page 5 behind 1 and behind 2.
#[test]
fn a_name_at_two_places_is_ambiguous() {
    let mut engine = engine();
    let (one, two, page, next) = (even(0, 16), even(20, 16), even(40, 16), even(60, 16));
    engine.store(&[1], None, &one);
    engine.store(&[5], Some(1), &page);
    engine.store(&[6], Some(5), &next);
    engine.store(&[2, 5, 7], None, &[two.clone(), page.clone(), next.clone()].concat());
    assert_eq!(engine.mirror.counts().ambiguous, 1);
    assert_eq!(
        engine.tokens(&[one.clone(), page.clone(), next.clone()].concat()),
        48,
        "the first stays, and what followed it"
    );
    assert_eq!(engine.tokens(&[two.clone(), page.clone()].concat()), 16, "the second is only known");
    assert_eq!(opaque(engine.mirror.counts()), [1, 0, 0, 0], "nobody knows what 7 follows");
    // Told once more behind the name that stands for two, 6 may be another as well.
    engine.store(&[6], Some(5), &next);
    assert_eq!(engine.mirror.counts().ambiguous, 2);
    engine.store(&[5], Some(1), &page);
    engine.remove(&[5]);
    assert_eq!(engine.tokens(&[one.clone(), page.clone()].concat()), 16, "one removal ends all of them");
    engine.store(&[5], Some(1), &page);
    assert_eq!(engine.tokens(&[one, page, next].concat()), 48, "and is over then");
}

#[test]
fn the_tokenizers_own_space_is_left_out() {
    let tokens: [&[u8]; 6] = [b"<s>", b" Hello", b" there", b"<|end|>", b"  two", b" "];
    let tokens: Vec<Option<&[u8]>> = tokens.iter().map(|text| Some(*text)).collect();
    let prompt = [0, 1, 2, 3, 1, 2, 3, 4, 5, 1, 3, 5, 1];
    for (lead, expected) in [
        (Lead::Nowhere, "<s> Hello there<|end|> Hello there<|end|>  two  Hello<|end|>  Hello"),
        (Lead::First, "<s>Hello there<|end|> Hello there<|end|>  two  Hello<|end|>  Hello"),
        (Lead::BehindSpecial, "<s>Hello there<|end|>Hello there<|end|> two  Hello<|end|> Hello"),
    ] {
        // The bit has to come along from block to block, wherever these are cut.
        for size in [1, 2, 3, 13] {
            let vocabulary = Vocabulary::new(&tokens, &[0, 3], lead, &[0]);
            let mut engine = Engine::new(vocabulary);
            let long: Vec<u32> = prompt.iter().copied().cycle().take(13 * size).collect();
            let mut whole = expected.to_owned();
            let later = match lead {
                Lead::Nowhere | Lead::First => "<s> Hello there<|end|> Hello there<|end|>  two  Hello<|end|>  Hello",
                Lead::BehindSpecial => expected,
            };
            (1..size).for_each(|_| whole.push_str(later));
            let mut parent = None;
            for (name, block) in (1..).zip(long.chunks(size)) {
                engine.store(&[name], parent, block);
                parent = Some(name);
            }
            let told: Vec<u64> = links(ROOT, whole.as_bytes()).into_iter().map(|(_, link)| link).collect();
            assert_eq!(engine.held.0.len(), told.len(), "{lead:?} in blocks of {size}");
            assert!(told.iter().all(|link| engine.mirror.owns(*link)), "{lead:?} in blocks of {size}");
        }
    }
}

#[test]
fn a_text_that_begins_with_a_special_token_has_no_space_before_it() {
    let long = [b" x".as_slice(), &[b'y'; 62]].concat();
    for (prompt, begin) in [([0, 2], "<s>x"), ([1, 2], "</s> x"), ([0, 1], "<s></s>")] {
        let tokens = [&b"<s>"[..], b"</s>", &long].map(Some);
        let mut engine = Engine::new(Vocabulary::new(&tokens, &[0, 1], Lead::First, &[0]));
        for (name, token) in (1..).zip(prompt) {
            engine.store(&[name], (name > 1).then(|| name - 1), &[token]);
        }
        engine.store(&[3], Some(2), &[2]);
        let mut text = begin.to_owned();
        if prompt[1] == 2 {
            text.push_str(&"y".repeat(62));
        }
        text.push_str(" x");
        text.push_str(&"y".repeat(62));
        let told: Vec<u64> = links(ROOT, text.as_bytes()).into_iter().map(|(_, link)| link).collect();
        assert!(told.len() == engine.held.0.len() && told.iter().all(|link| engine.mirror.owns(*link)), "{begin}");
    }
}

#[test]
fn a_token_without_text_ends_what_can_be_read() {
    let mut engine = engine();
    let mut prompt = even(0, 96);
    prompt[40] = 20_000;
    engine.store(&[1, 2, 3], None, &prompt);
    assert_eq!((engine.held.0.len(), engine.mirror.blocks()), (2, 3));
    assert_eq!(opaque(engine.mirror.counts()), [0, 2, 0, 0]);
    engine.remove(&[3, 2]);
    assert_eq!((engine.held.0.len(), engine.mirror.blocks(), engine.mirror.counts().unknown), (2, 1, 0));
}

fn keyed(adapter: serde_json::Value, keys: serde_json::Value) -> Engine {
    let mut engine = engine();
    let prompt = even(0, 48);
    engine.message(&json!([["BlockStored", [1, 2, 3], null, prompt, 16, null, "GPU", adapter, keys]]));
    engine
}

#[test]
fn adapters_and_salts_have_roots_of_their_own() {
    let whole = text(&plain(200), &even(0, 48));
    for (adapter, keys, root) in [
        (json!(null), json!(null), ROOT),
        (json!(null), json!([["s"], null, null]), roots(None, Some(b"s"))),
        (json!("a"), json!([["a"], ["a"], ["a"]]), roots(Some(b"a"), None)),
        (json!("a"), json!([["a", "s"], ["a"], ["a"]]), roots(Some(b"a"), Some(b"s"))),
        (json!("a"), json!([["a", "a"], ["a"], ["a"]]), roots(Some(b"a"), Some(b"a"))),
        (json!("a"), json!(null), roots(Some(b"a"), None)),
    ] {
        let engine = keyed(adapter.clone(), keys.clone());
        assert_eq!(cached(&engine.held, root, &whole), 48, "{adapter} {keys}");
        assert_eq!((engine.held.0.len(), opaque(engine.mirror.counts())), (3, [0; 4]), "{adapter} {keys}");
    }
}

/// As SGLang tells it, with each event of the prompt.
#[test]
fn a_salt_apart_from_the_keys_has_a_root_of_its_own() {
    let (mut engine, prompt) = (engine(), even(0, 32));
    let whole = text(&plain(200), &prompt);
    for (name, parent, tokens) in [(1, None, &prompt[..16]), (2, Some(1), &prompt[16..])] {
        engine.message(&json!([["BlockStored", [name], parent, tokens, 16, null, "GPU", {"cache_salt": "s"}]]));
    }
    assert_eq!(cached(&engine.held, roots(None, Some(b"s")), &whole), 32);
    assert_eq!(cached(&engine.held, ROOT, &whole), 0);
}

/// Whose name nobody knows is not taken for the model itself, nor is what follows.
#[test]
fn an_adapter_without_a_name_is_known_and_not_held() {
    let mut engine = engine();
    let prompt = even(0, 32);
    engine.tell(Event::Stored(Stored { nameless: true, ..stored(&[1], None, &prompt[..16]) }));
    engine.tell(Event::Stored(Stored { nameless: true, ..stored(&[2], Some(1), &prompt[16..]) }));
    assert!(engine.held.0.is_empty() && engine.mirror.blocks() == 2);
    assert_eq!(opaque(engine.mirror.counts()), [0, 2, 0, 0]);
    engine.store(&[3, 4], None, &prompt);
    assert_eq!(engine.held.0.len(), 2, "the model's own");
}

#[test]
fn what_is_more_than_text_is_never_guessed() {
    for (adapter, keys, held) in [
        // An image from the second block on; in the first, beside a salt; embeddings; a hash with its place.
        (json!(null), json!([null, ["image"], null]), 1),
        (json!("a"), json!([["a", "s"], ["a", "image"], ["a"]]), 1),
        (json!(null), json!([["image", "s"], null, null]), 0),
        (json!(null), json!([[["image", 5]], null, null]), 0),
        (json!(null), json!([null, null, [7]]), 2),
        (json!("a"), json!([["a", "image", "s"], ["a"], ["a"]]), 0),
        // An adapter that is said beside another name.
        (json!("a"), json!([["b", "s"], ["a"], ["a"]]), 0),
        (json!("a"), json!([["a"], ["b"], ["a"]]), 1),
    ] {
        let mut engine = keyed(adapter.clone(), keys.clone());
        assert_eq!(engine.held.0.len(), held, "{adapter} {keys}");
        assert_eq!(opaque(engine.mirror.counts()), [0, 3 - held as u64, 0, 0], "{adapter} {keys}");
        engine.remove(&[3, 2, 1]);
        assert_eq!((engine.mirror.blocks(), engine.held.0.len(), engine.mirror.counts().unknown), (0, 0, 0));
    }
}

#[test]
fn one_group_of_layers_and_one_tier_are_read() {
    let mut engine = engine();
    let prompt = even(0, 32);
    let of = |group: Option<u32>, attention: Option<&'static str>, medium: Option<&'static str>| {
        let kind = attention.map(str::as_bytes);
        Stored { group, attention: kind, medium: medium.map(str::as_bytes), ..stored(&[1, 2], None, &prompt) }
    };
    engine.tell(Event::Stored(of(Some(0), Some("sliding_window"), Some("GPU"))));
    engine.tell(Event::Stored(of(Some(2), Some("full_attention"), Some("CPU"))));
    assert_eq!((engine.mirror.blocks(), engine.mirror.counts().groups, engine.mirror.counts().tiers), (0, 2, 2));
    engine.tell(Event::Stored(of(Some(2), Some("mla_attention"), Some("gpu"))));
    engine.tell(Event::Stored(of(Some(3), Some("full_attention"), None)));
    assert_eq!((engine.mirror.blocks(), engine.mirror.counts().groups, engine.mirror.counts().copies), (2, 4, 0));
    for (group, medium) in [(Some(3), None), (Some(0), Some(&b"GPU"[..])), (Some(2), Some(&b"CPU_PINNED"[..]))] {
        engine.tell(Event::Removed(Removed { group, medium, ..removed(&[1, 2]) }));
    }
    assert_eq!((engine.mirror.blocks(), engine.mirror.counts().groups, engine.mirror.counts().tiers), (2, 8, 4));
    engine.tell(Event::Removed(Removed { group: Some(2), ..removed(&[2]) }));
    engine.tell(Event::Removed(removed(&[1])));
    assert_eq!((engine.mirror.blocks(), engine.held.0.len()), (0, 0));
}

#[test]
fn who_joins_late_holds_nothing_until_it_is_told_again() {
    let mut engine = engine();
    let prompt = even(0, 64);
    engine.store(&[3], Some(2), &prompt[32..48]);
    engine.store(&[4], Some(3), &prompt[48..]);
    engine.store(&[1, 2], None, &prompt[..32]);
    assert_eq!((engine.mirror.blocks(), engine.held.0.len(), opaque(engine.mirror.counts())), (4, 2, [2, 0, 0, 0]));
    engine.store(&[3], Some(2), &prompt[32..48]);
    assert_eq!(engine.tokens(&prompt), 48, "what is behind it is not known by that");
    engine.store(&[4], Some(3), &prompt[48..]);
    assert_eq!(engine.tokens(&prompt), 64);
    engine.remove(&[4, 4, 3, 3, 2, 1]);
    assert_eq!((engine.mirror.blocks(), engine.held.0.len()), (0, 0));
}

#[test]
fn too_few_or_too_many_tokens_are_malformed() {
    let mut engine = engine();
    let prompt = even(0, 48);
    for (event, blocks) in [
        (Stored { block_size: 16, ..stored(&[1, 2], None, &prompt[..20]) }, 2),
        (Stored { block_size: 16, ..stored(&[3], None, &prompt) }, 1),
        (stored(&[4], None, &[]), 1),
        (Stored { block_size: u32::MAX, ..stored(&[5], None, &prompt) }, 1),
    ] {
        let before = engine.mirror.counts().malformed;
        engine.tell(Event::Stored(event));
        assert_eq!(engine.mirror.counts().malformed - before, blocks);
    }
    assert_eq!((engine.held.0.len(), engine.mirror.blocks()), (0, 5));
    engine.tell(Event::Stored(stored(&[], None, &[])));
    engine.remove(&[1, 2, 3, 4, 5]);
    assert_eq!(engine.mirror.blocks(), 0);
}

#[test]
fn a_block_that_goes_takes_along_what_follows_and_brings_it_back() {
    let mut engine = engine();
    let (prompt, other) = (even(0, 96), even(50, 96));
    engine.store(&[1, 2, 3, 4, 5, 6], None, &prompt);
    engine.store(&[7], Some(3), &other[..16]);
    let whole = engine.held.clone();
    engine.remove(&[2]);
    assert_eq!((engine.tokens(&prompt), engine.held.0.len(), engine.mirror.blocks()), (16, 1, 6));
    engine.remove(&[3]);
    engine.store(&[2], Some(1), &prompt[16..32]);
    assert_eq!(engine.tokens(&prompt), 32);
    engine.store(&[3], Some(2), &prompt[32..48]);
    assert_eq!(engine.held, whole);
    // The same name with other text: what followed the one before has nothing to stand on.
    engine.remove(&[3]);
    engine.store(&[3], Some(2), &other[32..48]);
    assert_eq!((engine.tokens(&prompt), engine.held.0.len(), engine.mirror.blocks()), (32, 3, 7));
    engine.remove(&[3, 4, 5, 6, 7, 2, 1]);
    assert_eq!((engine.mirror.blocks(), engine.held.0.len(), engine.mirror.counts().unknown), (0, 0, 0));
}

/// Names that follow themselves, at once or by a way around.
#[test]
fn rings_are_none() {
    let mut engine = engine();
    let prompt = even(0, 32);
    engine.store(&[1], Some(1), &prompt[..16]);
    engine.store(&[2, 2], None, &prompt);
    engine.store(&[3, 4], None, &prompt);
    engine.remove(&[3]);
    engine.store(&[3], Some(4), &prompt[..16]);
    engine.store(&[5, 6], None, &prompt);
    engine.remove(&[5]);
    engine.store(&[5], Some(6), &prompt[..16]);
    engine.remove(&[5, 6, 3, 4, 2, 1]);
    assert_eq!((engine.mirror.blocks(), engine.held.0.len()), (0, 0));
}

#[test]
fn nothing_is_held_behind_the_longest_prompt() {
    let longest = LINKS_MAX * BLOCK_BYTES;
    let (mut mirror, mut held, vocabulary) = (Mirror::new(20_000), Held::default(), plain(200));
    let reading = Reading { vocabulary: &vocabulary, root: &roots };
    // Blocks of 17 tokens of four bytes: one ends behind the border.
    let names: Vec<u64> = (1..=longest as u64 / 68 + 3).collect();
    let prompt: Vec<u32> = even(0, 17 * names.len() as u32);
    mirror.stored(&stored(&names, None, &prompt), &reading, &mut held);
    assert_eq!((held.0.len(), mirror.counts().deep), (longest / 64, 2));
    let all = links(ROOT, &text(&vocabulary, &prompt));
    let last = &all[longest / 64 - 1];
    assert_eq!(held.0[&last.1], (after(&all, last.0), (last.0 as u32).div_ceil(68) * 17));
    assert!(!mirror.owns(all[longest / 64].1));
    mirror.removed(&removed(&names), &mut held);
    assert_eq!((held.0.len(), mirror.blocks()), (0, 0));
}

/// A text longer than what is gathered before it is hashed, and one that fills that just up.
#[test]
fn texts_of_any_length_are_joined() {
    let texts = [vec![b'a'; 1_023], vec![b'b'; 1], vec![b'c'; 3_000], vec![b'd'; 1_024], vec![b'e'; 500]];
    let tokens: Vec<Option<&[u8]>> = texts.iter().map(|text| Some(&text[..])).collect();
    let mut engine = Engine::new(Vocabulary::new(&tokens, &[], Lead::Nowhere, &[]));
    let prompt = [0, 1, 1, 2, 3, 4, 4, 4, 1, 0, 0, 3, 2, 2, 1, 4];
    engine.store(&[1, 2], None, &prompt);
    let whole = text(&engine.vocabulary, &prompt);
    assert_eq!(engine.held.0.len(), whole.len() / 64);
    assert_eq!(cached(&engine.held, ROOT, &whole), 16);
}

/// Windows and states alone say nothing of what a prompt finds, whatever is cleared meanwhile.
#[test]
fn layers_that_see_a_part_of_a_prompt_are_not_enough() {
    let mut engine = engine();
    let prompt = even(0, 32);
    let of = |group: u32, attention: &'static str| {
        let kind = Some(attention.as_bytes());
        Event::Stored(Stored { group: Some(group), attention: kind, ..stored(&[1, 2], None, &prompt) })
    };
    assert!(!engine.mirror.is_partial(), "it has told nothing");
    for kind in ["sliding_window", "mamba"] {
        engine.tell(of(0, kind));
        assert!(engine.mirror.is_partial() && engine.mirror.blocks() == 0);
        engine.tell(Event::Cleared);
        assert!(engine.mirror.is_partial());
    }
    let mut saved = Vec::new();
    engine.mirror.save(&mut saved);
    assert!(Mirror::restore(&saved, 10).unwrap().is_partial());
    engine.tell(of(1, "full_attention"));
    assert!(!engine.mirror.is_partial() && engine.mirror.blocks() == 2);
    engine.tell(Event::Cleared);
    engine.tell(of(0, "sliding_window"));
    assert!(!engine.mirror.is_partial() && engine.mirror.blocks() == 0, "the other group is known");
}

#[test]
fn layers_that_see_all_of_a_prompt_are_known_by_name() {
    let prompt = even(0, 32);
    for kind in ["full_attention", "mla_attention", "sink_full_attention"] {
        let mut engine = engine();
        let attention = Some(kind.as_bytes());
        engine.tell(Event::Stored(Stored { group: Some(0), attention, ..stored(&[1, 2], None, &prompt) }));
        assert_eq!((engine.mirror.blocks(), engine.mirror.is_partial()), (2, false), "{kind}");
    }
}

/// vLLM has one word for a group whose layers are of several kinds, as those of a model and of what drafts for it.
#[test]
fn layers_of_several_kinds_see_all_where_no_window_is_said() {
    let prompt = even(0, 32);
    for (window, blocks) in [(None, 2), (Some(4_096), 0)] {
        let mut engine = engine();
        let of = Stored { group: Some(0), attention: Some(b"unknown"), window, ..stored(&[1, 2], None, &prompt) };
        engine.tell(Event::Stored(of));
        let found = (engine.mirror.blocks(), engine.held.0.len() as u32, engine.mirror.is_partial());
        assert_eq!(found, (blocks, blocks, blocks == 0), "{window:?}");
    }
}
