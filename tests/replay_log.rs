//! Replays of a front's own access log: what its lines become, which are left out and reported, and that no bytes make
//! it panic.

use std::collections::HashSet;
use std::io::{Cursor, Read};
use std::process::Command;

use proptest::prelude::*;
use warmfront::replay::traffic::access::{Account, Taken, read};
use warmfront::replay::traffic::lines::{Format, Unusable, open, recognise};
use warmfront::replay::traffic::trace::Trace;
use warmfront::replay::traffic::{Request, Source};

/// A line of `second`, with these keys instead of its own.
fn line(second: u32, keys: &[(&str, &str)]) -> String {
    let time = format!("\"2026-11-21T19:34:{second:02}.500000Z\"");
    let usual = [
        ("version", "2"),
        ("time", &time),
        ("client", "\"127.0.0.1:42958\""),
        ("api", "\"chat\""),
        ("pool", "\"llama\""),
        ("endpoint", "\"127.0.0.1:8000\""),
        ("status", "200"),
        ("end", "\"whole\""),
        ("stream", "true"),
        ("request_bytes", "9000"),
        ("reply_bytes", "24000"),
        ("prompt_tokens", "2000"),
        ("cached_tokens", "null"),
        ("completion_tokens", "77"),
        ("key", "\"89d2c0d27a7473f1\""),
    ];
    let of = |name: &str, value: &str| format!("\"{name}\":{value}");
    let kept = usual.iter().filter(|(name, _)| keys.iter().all(|(other, _)| other != name));
    let all: Vec<String> = kept.chain(keys).map(|(name, value)| of(name, value)).collect();
    format!("{{{}}}\n", all.join(","))
}

fn log(text: &str) -> Result<(Trace, Account), Unusable> {
    read(Cursor::new(text.as_bytes()), "a.json", &Taken::default())
}

/// The requests of a log whose links stand for 100 tokens each.
fn in_links_of_100(text: &str) -> Result<(Trace, Account), Unusable> {
    read(Cursor::new(text.as_bytes()), "a.json", &Taken { block_tokens: Some(100), ..Taken::default() })
}

const THREE: &str = "[\"00000000000000a1\",\"00000000000000a2\",\"00000000000000a3\"]";
const FOUR: &str = "[\"00000000000000a1\",\"00000000000000a2\",\"00000000000000a3\",\"00000000000000a4\"]";

#[test]
fn lines_become_requests_in_order_of_their_beginnings() {
    let chain = |chain| [("chain", chain), ("chain_bytes", "2048")];
    let text = [
        line(20, &[("completion_tokens", "null")]),
        line(10, &chain(THREE)),
        line(12, &[chain(FOUR).as_slice(), &[("prompt_tokens", "2600")]].concat()),
        line(14, &[chain(THREE).as_slice(), &[("pool", "\"other\"")]].concat()),
    ];
    let (trace, account) = log(&text.concat()).unwrap();
    let [a, b, c, d] = trace.requests() else { panic!("four requests") };
    assert_eq!([a, b, c, d].map(|one| one.arrival_ns / 1_000_000), [0, 2_000, 4_000, 10_000]);
    assert_eq!([a, b, c, d].map(|one| one.prompt), [2_000, 2_600, 2_000, 2_000]);
    // 2,000 tokens in three links and a half are 571.4; the last one's 24,000 bytes are a hundred events.
    let tokens = trace.block_tokens();
    assert_eq!((tokens, d.output, a.output), (571, 100, 77));
    assert_eq!([a, b, c, d].map(|one| one.blocks.len()), [3, 4, 3, 0]);
    assert_eq!(a.blocks[..], b.blocks[..3], "what was said before");
    assert!(a.blocks.iter().all(|block| !c.blocks.contains(block)), "another model shares nothing");
    assert_eq!((a.session == b.session, a.session == c.session, a.opening == b.opening), (true, false, true));
    assert_eq!((account.requests, account.alone, account.guessed), (4, 1, 1));
    let words = account.words();
    assert!(words.contains("1 of 4 requests have no chain"), "{words}");
    assert!(words.contains("1 of 4 replies have no completion_tokens"), "{words}");
}

#[test]
fn prompts_without_a_link_are_told_of_and_what_engines_found_cached() {
    let chat = |chain, cached| line(1, &[("chain", chain), ("chain_bytes", "2048"), ("cached_tokens", cached)]);
    let text = [chat("[]", "1500"), chat("[]", "null"), chat(THREE, "0"), chat(THREE, "2000")];
    let (_, account) = log(&text.concat()).unwrap();
    assert_eq!((account.alone, account.short, account.told), (0, 2, (3, 6_000, 3_500)));
    let words = account.words();
    assert!(words.contains("2 of 4 prompts are shorter than a link of their chain, 2048 bytes: what they"), "{words}");
    assert!(words.contains("3 of 4 replies tell what was cached: 58.3 % of their prompts' tokens"), "{words}");
    // Links of 571 tokens: 287 of 2,000 lie behind each last one, and all of those without.
    assert_eq!(account.behind, (8_000, 4_574));
    assert!(words.contains("57.2 % of prompts' tokens lie behind the last link, of 2048 bytes"), "{words}");
    assert!(words.contains(" no chain") == words.contains("shadow_policy"), "{words}");
    assert_eq!(log(&chat(&chain(1..=12), "null")).unwrap().1.words(), "");
}

/// A chain of these links.
fn chain(links: std::ops::RangeInclusive<u64>) -> String {
    let links: Vec<String> = links.map(|link| format!("\"{link:016x}\"")).collect();
    format!("[{}]", links.join(","))
}

#[test]
fn a_reply_is_found_by_the_next_turn_that_brings_it_back() {
    // 3.5 links of 100 tokens, and a reply of 2; over after 2 s.
    let keys =
        |prompt: &'static str| [("prompt_tokens", prompt), ("completion_tokens", "200"), ("total_us", "2000000")];
    let turn = |second, prompt, chain: &str| line(second, &[&keys(prompt)[..], &[("chain", chain)]].concat());
    let blocks = |next: &str| {
        let text = turn(10, "350", &chain(1..=3)) + next;
        let (trace, _) = in_links_of_100(&text).unwrap();
        let [asked, next] = trace.requests() else { panic!("two requests") };
        assert!(next.blocks.starts_with(&asked.blocks[..3]) && asked.prompt_blocks(100).len() == 3);
        asked.blocks.len()
    };
    assert_eq!(blocks(&turn(13, "680", &chain(1..=6))), 5, "550 tokens");
    assert_eq!(blocks(&turn(11, "680", &chain(1..=6))), 3, "it came before the reply had ended");
    assert_eq!(blocks(&turn(13, "540", &chain(1..=5))), 3, "it is too short to bring the reply back");
}

#[test]
fn tokens_that_no_link_stands_for_are_not_dealt_out_to_others() {
    let text =
        line(1, &[("chain", THREE)]).repeat(3) + &line(2, &[("chain", THREE), ("prompt_tokens", "20000")]).repeat(2);
    let (trace, account) = log(&text).unwrap();
    assert_eq!(trace.block_tokens(), 571);
    assert!(trace.requests().iter().all(|one| one.blocks.len() == 3), "{:?}", account.behind);
}

/// All chats begin alike, and the first one's own words are shorter than a link.
#[test]
fn a_prompt_that_ends_where_many_go_on_has_no_next_turn() {
    let turn = |second, chain: &str| line(second, &[("key", "null"), ("reason", "\"warm\""), ("chain", chain)]);
    let chats = |count: u32| {
        let others = (1..=count).map(|chat| {
            let (first, last) = (u64::from(chat) * 16, u64::from(chat) * 16 + 3);
            let own = chain(first..=last);
            turn(20 + chat, &format!("{},{}", chain(1..=3).trim_end_matches(']'), own.trim_start_matches('[')))
        });
        let text = turn(10, &chain(1..=3)) + &others.collect::<String>();
        let (trace, _) = in_links_of_100(&text).unwrap();
        let requests = trace.requests();
        let mut openings: Vec<_> = requests.iter().map(|one| (one.session, one.opening, one.thread)).collect();
        openings.sort_unstable();
        openings.dedup();
        (openings.len(), requests[0].blocks.len())
    };
    assert_eq!(chats(20), (21, 3), "each by itself, and none has brought an answer back");
    assert_eq!(chats(8).0, 1, "branches of one");
}

/// What all chats share is in links, and no first message of theirs fills one.
#[test]
fn prompts_that_end_alike_and_are_nobodys_next_turn_are_conversations_of_their_own() {
    let usual = [("key", "null"), ("reason", "\"warm\""), ("total_us", "500000"), ("completion_tokens", "10")];
    let conversations = |lines: &[(u32, u32)]| {
        let asked = |(second, prompt): &(u32, u32)| {
            let own = [("chain", &*chain(1..=3)), ("prompt_tokens", &*prompt.to_string())];
            line(*second, &[&usual[..], &own].concat())
        };
        let text: String = lines.iter().map(asked).collect();
        let (trace, _) = in_links_of_100(&text).unwrap();
        let each = |of: fn(&Request) -> Option<u64>| trace.requests().iter().map(of).collect::<HashSet<_>>().len();
        (each(|one| one.session), each(|one| one.opening), each(|one| Some(one.thread.into())))
    };
    let (first, turns) = (20..40, |second: u32| (second, 300 + 3 * (second - 20)));
    assert_eq!(conversations(&first.clone().map(|second| (second, 320)).collect::<Vec<_>>()), (20, 20, 20));
    assert_eq!(conversations(&first.clone().map(|second| (20, turns(second).1)).collect::<Vec<_>>()), (20, 20, 20));
    let chat: Vec<_> = first.map(|second| (second, 300 + 12 * (second - 20))).collect();
    assert_eq!(conversations(&chat[..8]), (1, 1, 1), "turns of a few words");
    assert_eq!(conversations(&chat), (1, 1, 1), "however many");
}

#[test]
fn chains_of_two_releases_meet_in_the_longer_links() {
    let (fine, coarse) = (chain(1..=9), "[\"0000000000000004\",\"0000000000000008\"]");
    for others in [("512", &*fine, "2048", coarse), ("2048", coarse, "512", &*fine)] {
        let (one, its, other, theirs) = others;
        let text =
            line(1, &[("chain", its), ("chain_bytes", one)]) + &line(2, &[("chain", theirs), ("chain_bytes", other)]);
        let (trace, account) = log(&text).unwrap();
        let [one, other] = trace.requests() else { panic!("two requests") };
        assert_eq!((account.link_bytes, account.broken, one.blocks.len()), (2_048, 0, 2));
        assert_eq!(one.blocks, other.blocks);
    }
    let short = line(1, &[("chain", &chain(1..=3)), ("chain_bytes", "512")]);
    let (_, account) = log(&(short + &line(2, &[("chain", coarse), ("chain_bytes", "2048")]))).unwrap();
    assert_eq!(account.short, 1, "three links of 512 bytes are less than one of 2,048");
    let none = line(1, &[]).repeat(20) + &line(1, &[("chain_bytes", "0")]) + &line(2, &[("chain_bytes", "768")]);
    let (_, account) = log(&(none + &line(3, &[("chain_bytes", "512")]))).unwrap();
    assert_eq!((account.broken, account.link_bytes), (2, 768), "no link of 512 bytes ends where three of 768 do");
}

/// With `warm` a key is made of the prompt's first 4,096 bytes: in a shorter chat it is another one with each turn.
#[test]
fn keys_that_no_prefix_policy_chose_by_name_no_first_message() {
    let turn = |second, reason: &str, key: &str, chain: &str| {
        line(second, &[("reason", reason), ("key", key), ("chain", chain), ("chain_bytes", "512")])
    };
    let of = |reason, keys: [&str; 3]| {
        let text = turn(1, reason, keys[0], &chain(1..=3)) + &turn(5, reason, keys[1], &chain(1..=4));
        let (trace, account) = log(&(text + &turn(9, reason, keys[2], &chain(11..=14)))).unwrap();
        let [first, second, other] = [0, 1, 2].map(|at| trace.requests()[at].opening);
        (first == second, first == other, account.keyless)
    };
    let keys = ["\"00000000000000aa\"", "\"00000000000000bb\"", "\"00000000000000aa\""];
    for reason in ["\"warm\"", "\"cold\"", "\"least_load\""] {
        assert_eq!(of(reason, keys), (true, false, 3), "{reason}");
    }
    for reason in ["\"home\"", "\"spill\"", "\"all_full\""] {
        assert_eq!(of(reason, keys), (false, true, 0), "{reason}");
    }
}

#[test]
fn a_request_that_was_chosen_for_again_has_the_key_of_its_pools_policy() {
    let of = |before: &str, after: &str, pool: &str| {
        let line = |second, reason: &str, pool: &str| {
            let key = if reason == "no_prefix" { "null" } else { "\"00000000000000aa\"" };
            line(second, &[("reason", &format!("\"{reason}\"")), ("pool", pool), ("key", key)])
        };
        let text = line(1, before, pool) + &line(2, "retry", "\"llama\"") + &line(3, after, pool);
        let (trace, account) = log(&text).unwrap();
        (trace.requests()[0].opening == trace.requests()[1].opening, account.keyless)
    };
    assert_eq!(of("home", "spill", "\"llama\""), (true, 0));
    assert_eq!(of("home", "no_prefix", "\"llama\""), (true, 1), "it has none");
    assert_eq!(of("home", "retry", "\"llama\""), (true, 0));
    assert_eq!(of("warm", "cold", "\"llama\""), (false, 3));
    assert_eq!(of("home", "warm", "\"llama\""), (false, 2), "either may have chosen");
    assert_eq!(of("home", "home", "\"other\""), (false, 1), "another pool's policy says nothing");
}

#[test]
fn what_a_front_estimates_is_filled_in_from_bytes() {
    let unknown =
        [("prompt_tokens", "null"), ("completion_tokens", "null"), ("stream", "false"), ("reply_bytes", "900")];
    let with_chain = [&unknown[..], &[("chain", THREE)]].concat();
    let (trace, _) = log(&(line(1, &unknown) + &line(2, &with_chain))).unwrap();
    let [alone, chained] = trace.requests() else { panic!("two requests") };
    // 9,000 bytes of body; three links of 2,048 bytes and half of one; 900 bytes of which 500 are no text.
    assert_eq!((alone.prompt, chained.prompt, alone.output), (2_250, 3 * 512 + 256, 100));
}

#[test]
fn what_no_engine_computed_is_left_out_and_said() {
    let refused = [("endpoint", "null"), ("status", "503")];
    let (left, other) = ([("status", "0"), ("end", "\"client_left\"")], [("api", "\"embeddings\"")]);
    let text = [line(1, &[]), line(2, &refused), line(3, &[("status", "400")]), line(4, &left), line(5, &other)];
    // A browser asks before it sends: the engine answers that, and computes nothing.
    let methods = ["\"OPTIONS\"", "\"POST\"", "null"].map(|method| line(6, &[("method", method)]));
    let (trace, account) = log(&(text.concat() + &methods.concat())).unwrap();
    assert_eq!((trace.requests().len(), account.elsewhere, account.broken), (4, 4, 0));
    let error = log(&line(1, &refused)).unwrap_err().to_string();
    assert!(error.contains("holds no request"), "{error}");
}

#[test]
fn a_few_broken_lines_are_left_out_and_many_refused_with_their_number() {
    let good = line(1, &[]).repeat(20);
    let cases = [
        ("{\"version\":1,\"ti\n", "EOF while parsing"),
        ("{\"time\":\"2026-11-21T19:34:20Z\"}\n", "missing field `api`"),
        ("\u{0}\u{1}\n", "expected value"),
        (&line(1, &[("time", "\"yesterday\"")]), "time \"yesterday\" is not RFC 3339"),
        (&line(1, &[("prompt_tokens", "-1")]), "invalid value: integer `-1`"),
        (&line(1, &[("chain", "[\"x\"]")]), "\"x\" is no link"),
        (&line(1, &[("chain", "[\"a\",\"b\",\"a\"]")]), "000000000000000a twice"),
        (&line(1, &[("chain_bytes", "0")]), "another chain_bytes"),
    ];
    for (broken, what) in cases {
        let (trace, account) = log(&format!("{good}{broken}")).unwrap();
        assert_eq!((trace.requests().len(), account.broken), (20, 1), "{broken}");
        let words = account.words();
        assert!(words.contains("a.json, line 21: ") && words.contains(what), "{what}: {words}");
        let error = log(&format!("{}{broken}{broken}", line(1, &[]))).unwrap_err().to_string();
        assert!(error.starts_with("a.json, line 2: ") && error.contains(what), "{what}: {error}");
    }
    let long = line(1, &[("time", "\"2026-01-21T19:34:20Z\"")]) + &line(1, &[]);
    assert!(log(&long).unwrap_err().to_string().contains("more than a month"));
}

#[test]
fn pools_that_are_replayed_together_are_named_or_one_is_taken() {
    let other = [("pool", "\"other\""), ("chain", THREE)];
    let text = line(1, &[]).repeat(2) + &line(5, &other) + &line(7, &other) + &line(9, &other);
    let (trace, account) = log(&text).unwrap();
    assert_eq!(trace.requests().len(), 5);
    let words = account.words();
    assert!(words.contains("requests of 2 pools, \"other\" (3), \"llama\" (2), are replayed as if"), "{words}");
    let of = |pool| read(Cursor::new(text.as_bytes()), "a.json", &Taken { pool: Some(pool), ..Taken::default() });
    let (trace, account) = of("other").unwrap();
    let arrivals: Vec<u64> = trace.requests().iter().map(|one| one.arrival_ns / 1_000_000_000).collect();
    assert_eq!((arrivals, account.requests), (vec![0, 2, 4], 3));
    assert!(!account.words().contains("pools"), "{}", account.words());
    let error = of("none").unwrap_err().to_string();
    assert!(error.contains("no request of that pool: it has \"other\" (3), \"llama\" (2)"), "{error}");
    assert!(!log(&line(1, &[])).unwrap().1.words().contains("pools"));
}

#[test]
fn a_log_has_many_tenants() {
    let text: String = (0..60).map(|second| line(second, &[])).collect();
    let (trace, _) = log(&text).unwrap();
    let tenants: HashSet<u16> = trace.requests().iter().map(|one| one.tenant(8)).collect();
    assert!(tenants.len() > 2, "{tenants:?}");
}

#[test]
fn files_are_read_by_what_they_begin_with() {
    let path = std::env::temp_dir().join(format!("warmfront-begins-{}.json", std::process::id()));
    let opened = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let mut text = String::new();
        open(&path).map_err(|error| error.to_string()).map(|mut all| {
            all.read_to_string(&mut text).unwrap();
            text
        })
    };
    let fixture = format!("{}/tests/fixtures/mooncake/first-160.jsonl.zst", env!("CARGO_MANIFEST_DIR"));
    let compressed = std::fs::read(&fixture).unwrap();
    assert_eq!(opened(&compressed).unwrap().lines().count(), 160, "whatever it is called");
    assert_eq!(opened(b"\xef\xbb\xbf{\"time\":1}\n").unwrap(), "{\"time\":1}\n");
    for short in ["", "{", "{}", "{}\n"] {
        assert_eq!(opened(short.as_bytes()).unwrap(), short);
    }
    let said = opened(b"\x1f\x8b\x08\x00\x00\x00\x00\x00").unwrap_err();
    assert!(said.contains("compressed with gzip: `zcat FILE | warmfront replay /dev/stdin`"), "{said}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_says_what_it_is() {
    let mooncake = "{\"timestamp\":5,\"input_length\":512,\"output_length\":1,\"hash_ids\":[7]}\n";
    let broken_first = format!("7:20.4Z\",\"status\":200}}\n\n{}", line(1, &[]));
    for (text, format) in [
        (mooncake, Format::Mooncake),
        ("", Format::Mooncake),
        ("no JSON\n", Format::Mooncake),
        (&line(1, &[]), Format::Access),
        (&broken_first, Format::Access),
    ] {
        let (seen, mut all) = recognise(Box::new(Cursor::new(text.to_owned())), "a").unwrap();
        let mut again = String::new();
        all.read_to_string(&mut again).unwrap();
        assert_eq!((seen, again.as_str()), (format, text));
    }
}

/// Runs the command on a log of these lines. Returns whether it succeeded, its table and what it said.
fn command(name: &str, lines: &str, more: &[&str]) -> (bool, String, String) {
    let path = std::env::temp_dir().join(format!("warmfront-{name}-{}.json", std::process::id()));
    std::fs::write(&path, lines).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_warmfront")).arg("replay").arg(&path).args(more).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), words(&output.stdout), words(&output.stderr))
}

#[test]
fn what_is_said_of_a_log_is_said_of_what_is_replayed() {
    let told = [("chain", FOUR), ("cached_tokens", "1000"), ("key", "null"), ("completion_tokens", "null")];
    let other = [&told[..], &[("pool", "\"other\"")]].concat();
    let first = (0..20).map(|second| line(second, &[("chain", FOUR)]));
    let lines: String =
        first.chain((20..40).map(|second| line(second, if second < 30 { &told } else { &other }))).collect();
    let said = |more: &[&str]| {
        let (done, table, said) = command("part", &lines, &[&["--policies", "random"], more].concat());
        assert!(done, "{said}");
        (table, said)
    };
    let of_all = [
        "of 2 pools, \"llama\" (30), \"other\" (10),",
        "20 of 40 requests went by no key",
        "20 of 40 replies tell",
        "20 of 40 replies have no",
    ];
    let (_, all) = said(&[]);
    assert!(of_all.iter().all(|words| all.contains(words)), "{all}");
    let (table, part) = said(&["--requests", "20"]);
    assert!(table.contains("20 requests counted"), "{table}");
    assert!(!["pools", "no key", "replies"].iter().any(|words| part.contains(words)), "{part}");
    // Those beyond a context are said to be left out, and not said more of.
    let long = line(41, &[("cached_tokens", "0"), ("prompt_tokens", "900000"), ("pool", "\"long\""), ("key", "null")]);
    let (_, _, said) = command("long", &(line(1, &[("chain", FOUR)]).repeat(2) + &long), &["--policies", "random"]);
    assert!(said.contains("left out 1 requests beyond max_model_len"), "{said}");
    assert!(!["pools", "no key", "replies", "no chain"].iter().any(|words| said.contains(words)), "{said}");
}

#[test]
fn the_command_replays_a_log_behind_several_fronts() {
    let lines: String =
        (0..40).map(|second| line(second, if second % 2 == 0 { &[("chain", FOUR)] } else { &[] })).collect();
    let run = |more: &[&str]| command("access", &lines, more);
    let (done, table, said) = run(&["--policies", "warm,oracle", "--fronts", "2"]);
    assert!(done && said.contains("20 of 40 requests have no chain") && said.contains("behind 2 fronts"), "{said}");
    assert!(table.contains("40 requests counted") && table.contains("\nwarm "), "{table}");
    let (done, _, said) = run(&["--policies", "smg", "--fronts", "2"]);
    assert!(!done && said.contains("\"smg\" is simulated as one router alone"), "{said}");
}

proptest! {
    #[test]
    fn mutated_lines_are_requests_or_refused_in_words(
        edits in prop::collection::vec((0..4_000_usize, prop::sample::select(b"0789-\"\\{}[],:.eE\x00\xff nZ+tuf".to_vec()), 0..3_u8), 1..12),
    ) {
        let chain = [("chain", FOUR), ("chain_bytes", "2048")];
        let lines: String = (0..12).map(|second| line(second, if second % 3 == 0 { &chain } else { &[] })).collect();
        let mut bytes = lines.into_bytes();
        for (at, byte, how) in edits {
            let at = at % bytes.len();
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
        }
        match read(Cursor::new(&bytes), "a.json", &Taken::default()) {
            Ok((trace, account)) => {
                let requests = trace.requests();
                let each = trace.block_tokens() as usize;
                prop_assert_eq!(requests.len(), account.requests);
                prop_assert!(account.requests + account.broken + account.elsewhere > 0 && !requests.is_empty());
                prop_assert!(requests.is_sorted_by_key(|one| one.arrival_ns));
                for one in requests {
                    let tokens = one.prompt as usize + one.output as usize;
                    prop_assert!(one.prompt > 0 && one.output > 0 && one.blocks.len() * each <= tokens);
                }
            }
            Err(error) => prop_assert!(error.to_string().starts_with("a.json"), "{}", error),
        }
    }
}
