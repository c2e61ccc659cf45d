//! The policy `warm` over sockets: conversations go where they were, and what is counted for them is let go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use warmfront::counters::Compared;
use warmfront::counters::stats::{Count, TokenCount};
use warmfront::exchange::Record;
use warmfront::fleet::Method;
use warmfront::policy::{Policy, PoolId};

use crate::client::{chunked, post, status};
use crate::engine::{Engine, HELLO, STREAM, TOKEN, gate, ok, refusing};
use crate::front::{Front, PATIENCE, endpoint, republish};

fn front(engines: &[Engine]) -> Front {
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    Front::with(&addresses, |options| options.settings.policy = Policy::Warm)
}

/// A conversation of so many turns, each of some 3 KB, which differs from others from its start.
fn conversation(name: usize, turns: usize) -> String {
    let words = |turn: usize| format!("{name} said {turn} ").repeat(300);
    let said: Vec<String> = (0..turns)
        .map(|turn| {
            let role = if turn % 2 == 0 { "user" } else { "assistant" };
            format!(r#"{{"role":"{role}","content":"{}"}}"#, words(turn))
        })
        .collect();
    format!(r#"{{"messages":[{}],"model":"tiny-llama"}}"#, said.join(","))
}

fn whereabouts(engines: &[Engine], before: &mut Vec<usize>) -> usize {
    let now: Vec<usize> = engines.iter().map(Engine::executions).collect();
    let place = (0..engines.len()).find(|place| now[*place] > before[*place]).unwrap();
    *before = now;
    place
}

#[test]
fn each_turn_of_a_conversation_goes_where_the_last_one_was() {
    let engines: Vec<Engine> = (0..4).map(|_| Engine::answering(ok("{}"))).collect();
    let front = front(&engines);
    let mut client = front.connect();
    let mut before = vec![0; 4];
    let mut homes = vec![Vec::new(); 24];
    for turns in [1, 3, 5, 7] {
        for (name, homes) in homes.iter_mut().enumerate() {
            assert_eq!(client.ask(post("/v1/chat/completions", conversation(name, turns))).status, 200);
            homes.push(whereabouts(&engines, &mut before));
        }
    }
    assert!(homes.iter().all(|homes| homes.iter().all(|home| *home == homes[0])), "{homes:?}");
    assert!((0..4).all(|engine| homes.iter().any(|homes| homes[0] == engine)), "one engine has nothing: {homes:?}");
    front.settles();
    // Of 16 texts of each conversation 4 are new a turn from its second on: 1 + 2 + 2 + 2 of 1 + 3 + 5 + 7.
    let (held, new) = (front.tokens(TokenCount::Held), front.tokens(TokenCount::New));
    let share = held as f64 / (held + new) as f64;
    assert!((0.5..9.0 / 16.0).contains(&share), "{held} held, {new} new");
}

/// Those that are shorter than a block, as of searches and classifiers, have nothing in common but that: the same one
/// goes where it was, others elsewhere.
#[test]
fn short_prompts_do_not_all_go_to_one_engine() {
    let engines: Vec<Engine> = (0..8).map(|_| Engine::answering(ok("{}"))).collect();
    let front = front(&engines);
    let mut client = front.connect();
    let mut before = vec![0; 8];
    let mut homes = Vec::new();
    for name in (0..64).chain(0..64) {
        let body = format!(r#"{{"input":"what is said of {name}?","model":"tiny-llama"}}"#);
        assert_eq!(client.ask(post("/v1/embeddings", body)).status, 200);
        homes.push(whereabouts(&engines, &mut before));
    }
    let (first, again) = homes.split_at(64);
    assert_eq!(first, again);
    let met = (0..8).filter(|engine| first.contains(engine)).count();
    assert!(met >= 7, "{first:?}");
    front.settles();
}

/// As vLLM has it with `--served-model-name a b`.
#[test]
fn what_was_asked_by_one_name_is_held_for_another_of_the_same_weights() {
    let engines: Vec<Engine> = (0..4).map(|_| Engine::answering(ok("{}"))).collect();
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    let front = Front::with(&addresses, |options| {
        options.settings.policy = Policy::Warm;
        options.pools = ["a", "b", "other"].map(|name| (name, vec![0, 1, 2, 3])).into();
    });
    republish(&front, |snapshot| snapshot.pools[1].root = "a".into());
    front.until("the root", |front| &*front.published.current().pools[1].root == "a");
    let mut client = front.connect();
    let mut held_of = |model: &str, name: usize| {
        let before = front.tokens(TokenCount::Held);
        let body = conversation(name, 1).replace("tiny-llama", model);
        assert_eq!(client.ask(post("/v1/chat/completions", body)).status, 200);
        front.settles();
        front.tokens(TokenCount::Held) - before
    };
    assert_eq!(held_of("a", 0), 0);
    assert!(held_of("b", 0) > 600 && held_of("a", 0) > 600);
    assert_eq!(held_of("other", 0), 0);
    assert_eq!(held_of("b", 1), 0);
    assert!(held_of("a", 1) > 600);
}

/// Who asks how likely a prompt was, as evaluations do, has all of it computed, and is no reason to go where it is held.
#[test]
fn what_no_cache_is_read_for_goes_where_the_least_is_to_do() {
    let reply = r#""usage":{"prompt_tokens":750,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}"#;
    let engines: Vec<Engine> = (0..2).map(|_| Engine::answering(whole(reply))).collect();
    let front = front(&engines);
    let mut client = front.connect();
    let prompt = "the same examples before each question. ".repeat(75);
    let mut held_of = |fields: &str| {
        let before = front.tokens(TokenCount::Held);
        let body = format!(r#"{{"model":"tiny-llama","prompt":"{prompt}"{fields}}}"#);
        assert_eq!(client.ask(post("/v1/completions", body)).status, 200);
        front.settles();
        front.tokens(TokenCount::Held) - before
    };
    assert_eq!(held_of(""), 0, "it is new");
    for fields in [r#","echo":true,"logprobs":1"#, r#","max_tokens":0,"prompt_logprobs":0"#] {
        assert_eq!(held_of(fields), 0, "{fields}");
    }
    let over = || (0..2).map(|slot| front.counters.predictions().compared(slot, Method::Warm).over).sum::<u64>();
    assert_eq!(over(), 0, "nothing was predicted that did not come true");
    for fields in ["", r#","echo":true"#, r#","logprobs":1"#, r#","prompt_logprobs":null,"echo":false,"logprobs":5"#] {
        assert!(held_of(fields) > 600, "{fields}");
    }
    assert!(over() > 2_000, "these were");
}

/// Who may see a choice sees what it compared; the same is in the record of it.
#[test]
fn a_choice_tells_its_terms() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::answering(ok("{}"))).collect();
    let addresses: Vec<_> = engines.iter().map(|engine| engine.address).collect();
    let front = Front::with(&addresses, |options| {
        options.settings.policy = Policy::Warm;
        options.rules.explain_from = vec!["127.0.0.0/8".parse().unwrap()];
        (options.rules.access_log, options.rules.access_chain) = (true, true);
    });
    let mut client = front.connect();
    for (text, held, links) in [(conversation(1, 1), false, 1), (conversation(1, 3), true, 3)] {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-warmfront-explain: 1\r\n";
        let reply = client.ask(format!("{head}content-length: {}\r\n\r\n{text}", text.len()));
        let told = reply.head.get("x-warmfront-explain").unwrap().to_owned();
        let records = std::cell::RefCell::new(Vec::new());
        front.until("its record", |front| {
            records.borrow_mut().extend(front.records());
            !records.borrow().is_empty()
        });
        let record = records.into_inner().remove(0);
        let costs = record.compared.unwrap().costs.unwrap();
        let (prompt, known) = (record.prompt_tokens.unwrap(), record.held_tokens.unwrap());
        assert_eq!((known > 0, costs.chosen.new), (held, 6 * (prompt - known)), "{record:?}");
        let next = costs.runner_up.unwrap();
        for words in [
            format!(" runner_up=engine-{} runner_up_in_flight=0 ", record.runner_up.unwrap().slot),
            format!(" held={known} new={} cost={} cost_pending=0 ", prompt - known, costs.chosen.total),
            format!(" cost_new={} cost_decoding=0 cost_full=0 cost_no_room=0 ", costs.chosen.new),
            format!(" runner_up_cost={} runner_up_cost_pending=0 runner_up_cost_new={} ", next.total, 6 * prompt),
        ] {
            assert!(told.contains(&words), "{words}: {told}");
        }
        // One of 512 bytes each.
        assert_eq!(record.chain.unwrap().len() / 4, links, "of {} bytes", text.len());
    }
}

/// What answers take of an engine's cache, others lose: blocks stand for one until the next turn brings it.
#[test]
fn answers_take_their_room_in_the_index() {
    let engines = [Engine::answering(whole(r#""usage":{"prompt_tokens":750,"completion_tokens":2000}"#))];
    let front = front(&engines);
    let index = front.published.current().index.clone().unwrap();
    let mut client = front.connect();
    let mut ask = |turns| {
        assert_eq!(client.ask(post("/v1/chat/completions", conversation(1, turns))).status, 200);
        front.settles();
        (index.figures(0).blocks, index.figures(0).answered)
    };
    let (prompt, answered) = ask(1);
    assert!((8..20).contains(&prompt) && answered == 0, "of 3 KB {prompt} blocks of 256 bytes");
    front.until("the first answer", |front| front.counters.loads().mean_answer(PoolId(0)) > 64);
    (0..1_000).for_each(|_| front.counters.answer(PoolId(0), 2_000));
    let (blocks, answered) = ask(1);
    assert!((prompt + 30..prompt + 33).contains(&blocks) && answered == 0, "8,000 bytes more: {blocks}");
    let (both, answered) = ask(3);
    assert!((30..33).contains(&answered), "{answered}");
    assert!((3 * prompt + 29..3 * prompt + 36).contains(&both), "another prompt, another answer: {both}");
}

/// Usage of several answers is their sum.
#[test]
fn answers_to_several_choices_are_no_long_answer() {
    let engines = [Engine::answering(whole(r#""usage":{"prompt_tokens":750,"completion_tokens":12800}"#))];
    let front = front(&engines);
    let mean = || front.counters.loads().mean_answer(PoolId(0));
    let before = mean();
    for (fields, moves) in [(r#"{"n":64,"#, false), (r#"{"n":1,"#, true)] {
        let body = conversation(1, 1).replacen('{', fields, 1);
        assert_eq!(front.ask(post("/v1/chat/completions", body)).status, 200);
        front.settles();
        assert_eq!(mean() != before, moves, "{fields} {}", mean());
    }
}

/// A few megabytes of it would have all prompts of its engine counted as half as long.
#[test]
fn what_templates_leave_out_teaches_little() {
    let engines = [Engine::answering(whole(r#""usage":{"prompt_tokens":25,"completion_tokens":1}"#))];
    let front = front(&engines);
    let name = "left out of all prompts ".repeat(10_000);
    let body = format!(r#"{{"messages":[{{"role":"user","name":"{name}","content":"hello"}}]}}"#);
    for number in 1..=4u64 {
        assert_eq!(front.ask(post("/v1/chat/completions", &body)).status, 200);
        front.settles();
        let told = front.counters.predictions().text(0);
        assert_eq!((told.bytes, told.tokens), (number * 200, number * 25), "eight bytes a token at most");
    }
}

/// A reply that says that it is longer than its engine's cache changes nothing of what is expected of others.
#[test]
fn an_answer_that_cannot_be_is_not_believed() {
    let told = |tokens: u32| whole(&format!(r#""usage":{{"prompt_tokens":750,"completion_tokens":{tokens}}}"#));
    for (tokens, believed) in [(4_096, true), (4_097, false), (16_777_216, false)] {
        let engine = Engine::answering(told(tokens));
        let front = Front::with(&[engine.address], |options| {
            options.settings.policy = Policy::Warm;
            options.capacity_tokens = Some(4_096);
        });
        assert_eq!(front.ask(post("/v1/chat/completions", conversation(1, 1))).status, 200);
        front.settles();
        assert_eq!(front.tokens(TokenCount::ToldCompletion), u64::from(tokens));
        assert_eq!(front.counters.loads().mean_answer(PoolId(0)) > 64, believed, "{tokens}");
    }
}

/// Blocks noted at each engine after these requests, each with its status.
fn noted<const N: usize>(front: &Front, asked: &[(&str, String, u16)]) -> [u32; N] {
    let mut client = front.connect();
    for (path, body, status) in asked {
        assert_eq!(client.ask(post(path, body)).status, *status, "{path}");
    }
    front.settles();
    let index = front.published.current().index.clone().unwrap();
    std::array::from_fn(|slot| index.figures(slot as u16).blocks)
}

/// Who asks how long a prompt is has it computed by nobody.
#[test]
fn what_is_only_counted_or_written_down_is_in_no_cache() {
    let front = front(&[Engine::answering(ok(r#"{"count":900}"#))]);
    let tell = ["/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render"];
    let told = tell.map(|path| (path, conversation(1, 3), 200));
    assert_eq!(noted(&front, &told), [0]);
    assert_eq!((front.tokens(TokenCount::New), front.tokens(TokenCount::Held)), (0, 0));
    let [blocks] = noted(&front, &[("/v1/chat/completions", conversation(1, 3), 200)]);
    assert!(blocks > 24, "{blocks}");
    assert!(front.tokens(TokenCount::New) > 1_000 && front.tokens(TokenCount::Held) == 0);
}

/// An engine that refuses a prompt has not computed it; what it had of it before stays.
#[test]
fn what_is_refused_is_in_no_cache() {
    let engine = Engine::run(|mut connection| {
        while let Some(request) = connection.request() {
            match request.text().contains("said 2") {
                true => connection.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\nlonger than max"),
                false => connection.send(ok("{}")),
            }
        }
    });
    let front = front(&[engine]);
    let turns = |turns, status| [("/v1/chat/completions", conversation(1, turns), status)];
    assert_eq!(noted(&front, &turns(3, 400)), [0]);
    let [first] = noted(&front, &turns(1, 200));
    assert!(first > 8, "{first}");
    let [refused] = noted(&front, &turns(3, 400));
    // Its own last block goes on with other text.
    assert!((first - 1..=first).contains(&refused), "{first}, then {refused}");
    assert_eq!(noted(&front, &turns(1, 200)), [first]);
}

/// Nor has one that a client leaves before the first token, or, where none would tell, sooner than it can compute so
/// much: what waits in its queue it aborts.
#[test]
fn what_its_client_leaves_before_it_is_computed_is_in_no_cache() {
    let comment = "e\r\n: keep-alive\n\n\r\n";
    for (streams, said, turns, late, stays) in [
        (true, String::new(), 1, false, false),
        (true, [STREAM, comment].concat(), 1, false, false),
        (true, [STREAM, TOKEN].concat(), 1, false, true),
        // Some 12,000 tokens at 4,000 a second.
        (false, String::new(), 18, false, false),
        (false, String::new(), 1, true, true),
    ] {
        let sends = said.clone();
        let engine = Engine::run(move |mut connection| {
            connection.request();
            connection.send(&sends);
            connection.closed();
        });
        let front = front(std::slice::from_ref(&engine));
        let (loads, index) = (front.counters.loads(), front.published.current().index.clone().unwrap());
        let body = conversation(1, turns).replacen('{', &format!("{{\"stream\":{streams},"), 1);
        let asks_and_leaves = |times| {
            let (before, sent) = (front.tokens(TokenCount::Held), loads.prompted(0));
            let mut client = front.connect();
            client.send(post("/v1/chat/completions", &body));
            front.until("all of it there", |_| engine.executions() == times && loads.prompted(0) > sent);
            if !said.is_empty() {
                client.head();
                client.bytes(said.len() - STREAM.len());
            }
            if late {
                front.until("its time to be over", |_| loads.pending(0) == 0);
            }
            drop(client);
            front.settles();
            front.tokens(TokenCount::Held) - before
        };
        let case = format!("{streams} {said:?} {turns} {late}");
        assert_eq!(asks_and_leaves(1), 0, "{case}");
        assert_eq!((index.figures(0).blocks > 8, loads.prompted(0) > 0), (stays, stays), "{case}");
        assert_eq!(asks_and_leaves(2) > 600, stays, "{case}");
    }
}

/// Where another goes on from the same beginning its engine computes that for him: nothing else stays.
#[test]
fn what_a_client_that_leaves_shares_with_another_is_computed_all_the_same() {
    let engine = Engine::run(|mut connection| {
        connection.request();
        connection.closed();
    });
    let blocks = |front: &Front| front.published.current().index.as_ref().unwrap().figures(0).blocks;
    let asks = |front: &Front, ends: &str| {
        let (loads, mut client) = (front.counters.loads(), front.connect());
        let sent = loads.prompted(0);
        client.send(post("/v1/chat/completions", conversation(1, 3).replace("1 said 2 ", ends)));
        front.until("all of it there", |_| loads.prompted(0) > sent);
        client
    };
    let alone = front(std::slice::from_ref(&engine));
    let _waits = asks(&alone, "Others end so. ");
    for leaves_first in [true, false] {
        let front = front(std::slice::from_ref(&engine));
        let begins = (!leaves_first).then(|| asks(&front, "Others end so. "));
        let leaves = asks(&front, "Mine is the end. ");
        let _waits = begins.unwrap_or_else(|| asks(&front, "Others end so. "));
        let (both, expected) = (blocks(&front), blocks(&alone));
        assert!(both > expected + 16, "{both} and {expected}: of its own it has some 5,000 bytes");
        drop(leaves);
        front.until("its own to be gone", |front| front.counters.in_flight(0) == 1);
        assert_eq!(blocks(&front), expected, "{leaves_first}");
    }
}

/// One that is too busy for it has not computed it either.
#[test]
fn what_goes_elsewhere_is_where_it_went() {
    let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 45\r\n\r\ncurrently busy and cannot accept new requests";
    for place in 0..2 {
        let engines = [0, 1].map(|at| Engine::answering(if at == place { busy.into() } else { ok("{}") }));
        let front = front(&engines);
        let asked: Vec<_> = (0..16).map(|name| ("/v1/chat/completions", conversation(name, 1), 200)).collect();
        let blocks: [u32; 2] = noted(&front, &asked);
        assert!(engines[place].executions() > 0, "by none of sixteen prompts");
        assert!(blocks[place] == 0 && blocks[1 - place] > 32, "{blocks:?}, {place} is busy");
    }
}

/// SGLang says it between two of its steps, long after so short a prompt was to be computed.
#[test]
fn what_is_refused_late_goes_elsewhere_too() {
    let busy = r#"{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}"#;
    let busy = format!("HTTP/1.1 503 Busy\r\ncontent-length: {}\r\n\r\n{busy}", busy.len());
    for place in 0..2 {
        let engines = [0, 1].map(|at| {
            let reply = if at == place { busy.clone().into_bytes() } else { ok("{}") };
            Engine::run(move |mut connection| {
                while connection.request().is_some() {
                    thread::sleep(Duration::from_millis(if at == place { 300 } else { 0 }));
                    connection.send(&reply);
                }
            })
        });
        let front = front(&engines);
        (0..8).for_each(|name| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"{name} asks"}}],"model":"tiny-llama"}}"#);
            assert_eq!(front.ask(post("/v1/chat/completions", &body)).status, 200, "{place}");
        });
        assert!(front.count(Count::RetriedBusy) > 0, "by none of eight prompts");
        front.settles();
    }
}

#[test]
fn a_salt_and_a_model_keep_prompts_apart() {
    let engines: Vec<Engine> = (0..2).map(|_| Engine::answering(ok("{}"))).collect();
    let front = front(&engines);
    let mut client = front.connect();
    let text = conversation(1, 3);
    let salted = text.replacen('{', r#"{"cache_salt":"a","#, 1);
    let mut ask = |body: &str| {
        let before = front.tokens(TokenCount::Held);
        assert_eq!(client.ask(post("/v1/chat/completions", body)).status, 200);
        front.tokens(TokenCount::Held) - before
    };
    assert_eq!(ask(&text), 0);
    assert!(ask(&text) > 1_000);
    assert_eq!(ask(&salted), 0);
    assert!(ask(&salted) > 1_000);
    assert_eq!(ask(&salted.replace("\"a\"", "\"b\"")), 0);
    front.settles();
}

/// So does a salt that stands behind all of the prompt, as clients write what they add, in whichever API.
#[test]
fn a_salt_behind_the_prompt_keeps_prompts_apart() {
    let front = front(&[Engine::answering(ok("{}"))]);
    let mut client = front.connect();
    let words = "Read this page, and answer with JSON of its fields. ".repeat(80);
    for (path, prompt) in
        [("/v1/responses", r#""instructions":"Be brief.","tools":[],"input""#), ("/v1/embeddings", r#""input""#)]
    {
        let mut ask = |salt: &str| {
            let before = front.tokens(TokenCount::Held);
            let body = format!(r#"{{"model":"tiny-llama",{prompt}:"{words}","cache_salt":"{salt}"}}"#);
            assert_eq!(client.ask(post(path, body)).status, 200);
            front.tokens(TokenCount::Held) - before
        };
        assert_eq!((ask("a"), ask("b")), (0, 0), "{path}");
        assert!(ask("a") > 900 && ask("b") > 900, "{path}");
    }
    front.settles();
}

/// A session of screenshots is at home where they are: they are most of its prompt.
#[test]
fn images_count_as_held() {
    let front = front(&[Engine::answering(ok("{}"))]);
    let mut client = front.connect();
    let image = |n: usize| format!(r#"{{"type":"image_url","image_url":{{"url":"https://screens/{n}.png"}}}}"#);
    let mut ask = |images: usize| {
        let content = (0..images).map(image).collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":[{content}]}}]}}"#);
        let count = || [TokenCount::Held, TokenCount::New].map(|which| front.tokens(which));
        let before = count();
        assert_eq!(client.ask(post("/v1/chat/completions", body)).status, 200);
        let after = count();
        (after[0] - before[0], after[1] - before[1])
    };
    assert_eq!(ask(8), (0, 8_000));
    let (held, new) = ask(8);
    assert!(held > 7_900 && held + new == 8_000, "{held} {new}");
    let (held, new) = ask(9);
    assert!(held > 7_900 && held + new == 9_000, "{held} {new}");
    front.settles();
}

/// What follows an image is in an engine's cache by the image's own hash.
#[test]
fn an_image_keeps_prompts_apart() {
    let front = front(&[Engine::answering(ok("{}"))]);
    let mut client = front.connect();
    let text = "Read this page, and answer with JSON of its fields. ".repeat(80);
    let mut ask = |image: &str| {
        let image = format!(r#"{{"type":"image_url","image_url":{{"url":"{image}"}}}}"#);
        let content = format!(r#"[{image},{{"type":"text","text":"{text}"}}]"#);
        let body = format!(r#"{{"model":"tiny-llama","messages":[{{"role":"user","content":{content}}}]}}"#);
        let before = front.tokens(TokenCount::Held);
        assert_eq!(client.ask(post("/v1/chat/completions", body)).status, 200);
        front.tokens(TokenCount::Held) - before
    };
    let page = |pixels: &str| format!("data:image/png;base64,iVBORw0KGgo{}Jggg==", pixels.repeat(10_000));
    for (one, other) in [("https://scans/1.png".into(), "https://scans/2.png".into()), (page("AAAB"), page("AABA"))] {
        assert_eq!(ask(&one), 0);
        // A thousand tokens of text, and as many of the image.
        assert!(ask(&one) > 1_900, "the same image again");
        assert_eq!(ask(&other), 0, "another one");
        assert!(ask(&one) > 1_900 && ask(&other) > 1_900);
    }
    front.settles();
}

/// Tokens are pending until the first event with data, and never longer than the request.
#[test]
fn tokens_are_pending_until_the_first_one_comes_back() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            let next = || wait.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            next();
            connection.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
            connection.send("e\r\n: keep-alive\n\n\r\n");
            next();
            connection.send("9\r\ndata: a\n\n\r\n");
            next();
            connection.send("0\r\n\r\n");
        }
    });
    let front = front(std::slice::from_ref(&engine));
    let pending = || front.counters.loads().pending(0);
    // Where no stream is asked for they are for no longer than such a prompt takes.
    let stream = |name| conversation(name, 1).replacen('{', "{\"stream\":true,", 1);
    let mut client = front.connect();
    client.send(post("/v1/chat/completions", stream(1)));
    front.until("the choice", |_| pending() > 500);
    let tokens = pending();
    go.send(()).unwrap();
    assert_eq!(status(&client.head()), 200);
    client.bytes(b"e\r\n: keep-alive\n\n\r\n".len());
    assert_eq!(pending(), tokens, "a comment is no token");
    go.send(()).unwrap();
    client.bytes(b"9\r\ndata: a\n\n\r\n".len());
    assert_eq!((pending(), front.counters.in_flight(0)), (0, 1));
    go.send(()).unwrap();
    client.bytes(b"0\r\n\r\n".len());
    // The client leaves before anything came: nothing stays.
    let mut client = front.connect();
    client.send(post("/v1/chat/completions", stream(2)));
    front.until("the choice", |_| pending() > 500);
    drop(client);
    front.settles();
}

/// Of a reply that shows no token its head tells that the prompt is computed, long before so many tokens would be at
/// the rate that is known.
#[test]
fn tokens_of_what_is_no_stream_are_pending_until_its_head() {
    let (head, body) = HELLO.split_at(HELLO.len() - 2);
    let (open, wait) = gate();
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            for part in [head, body] {
                wait();
                connection.send(part);
            }
        }
    });
    let front = front(std::slice::from_ref(&engine));
    let pending = || front.counters.loads().pending(0);
    let begun = Instant::now();
    let mut client = front.connect();
    // Some 48,000 tokens at 4,000 a second.
    client.send(post("/v1/chat/completions", conversation(1, 72)));
    front.until("the choice", |_| pending() > 40_000);
    open.send(()).unwrap();
    assert_eq!(status(&client.head()), 200);
    assert_eq!((pending(), front.counters.in_flight(0)), (0, 1));
    assert!(begun.elapsed() < Duration::from_secs(10), "its time was over by itself: {:?}", begun.elapsed());
    open.send(()).unwrap();
    assert_eq!(client.bytes(body.len()), body.as_bytes());
    front.settles();
}

/// A reply that is no stream tells nothing before its head: its tokens are pending for no longer than the engine needs
/// for so many.
#[test]
fn a_long_answer_that_is_no_stream_is_no_prompt_to_compute() {
    let (open, wait) = gate();
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            wait();
            connection.send(ok("{}"));
        }
    });
    let front = front(std::slice::from_ref(&engine));
    let pending = || front.counters.loads().pending(0);
    let ask = |stream: bool, turns: usize| {
        let mut client = front.connect();
        let body = conversation(usize::from(stream), turns).replacen('{', &format!("{{\"stream\":{stream},"), 1);
        client.send(post("/v1/chat/completions", body));
        client
    };
    let mut stream = ask(true, 1);
    front.until("the choice", |_| pending() > 500);
    let streamed = pending();
    // Some 12,000 tokens at 4,000 a second; those of the stream would be computed long before.
    let begun = Instant::now();
    let mut other = ask(false, 18);
    front.until("the other choice", |_| pending() > streamed + 10_000);
    front.until("its time to be over", |_| pending() == streamed);
    assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(front.counters.in_flight(0), 2, "neither is answered");
    (0..2).for_each(|_| open.send(()).unwrap());
    assert_eq!((stream.reply().status, other.reply().status), (200, 200));
    front.settles();
}

/// What a reply tells at its end, as vLLM writes it.
fn usage(prompt: u32, cached: &str) -> String {
    format!(
        r#""usage":{{"prompt_tokens":{prompt},"total_tokens":999,"completion_tokens":7,"prompt_tokens_details":{cached}}}"#
    )
}

/// An unstreamed reply, in which a model has written down something like it.
fn whole(usage: &str) -> Vec<u8> {
    let said = r#"{\"usage\":{\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1}}}"#;
    let text = "x".repeat(3_000);
    let body = format!(r#"{{"choices":[{{"message":{{"content":"{text}{said}"}}}}],{usage},"metrics":null}}"#);
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n{body}").into_bytes()
}

fn streamed(usage: &str) -> Vec<u8> {
    let mut reply =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let event = |data: &str| format!("data: {data}\n\n");
    let events = [event(r#"{"choices":[{"delta":{"content":"hi"}}]}"#), event(&format!(r#"{{"choices":[],{usage}}}"#))];
    for event in events.iter().chain([&event("[DONE]")]) {
        reply.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
    }
    reply.extend_from_slice(b"0\r\n\r\n");
    reply
}

/// Told in an unstreamed reply or at the end of a stream, in one piece or in many: compared with what was predicted, once.
#[test]
fn what_a_reply_tells_of_the_cache_is_compared_with_the_prediction() {
    let details = r#"{"cached_tokens":200,"created_cache_tokens":0}"#;
    for reply in [whole(&usage(800, details)), streamed(&usage(800, details))] {
        for size in [1, 40, 1_000, 100_000] {
            let bytes = reply.clone();
            let engine = Engine::run(move |mut connection| {
                while connection.request().is_some() {
                    connection.send_pieces(&bytes, size);
                }
            });
            let front = front(std::slice::from_ref(&engine));
            let compared = || front.counters.predictions().compared(0, Method::Warm);
            let ask = || assert_eq!(front.ask(post("/v1/chat/completions", conversation(1, 1))).status, 200);
            ask();
            // Nothing was held; what is cached all the same is the engine's affair.
            front.until("the first end", |_| compared().requests == 1);
            assert_eq!(compared(), Compared::of(1, 0, 200));
            ask();
            front.until("the second end", |_| compared().requests == 2);
            // All of its whole blocks were: in the engine's tokens, of which it says that there are 800.
            let Compared { predicted, cached, over, under, .. } = compared();
            assert!((700..=800).contains(&predicted), "{predicted} of 800, in pieces of {size}");
            assert_eq!((cached, over, under), (400, predicted - 200, 200));
            let sent = front.counters.predictions().sent(0, Method::Warm);
            assert_eq!((sent.requests, sent.told, sent.held), (2, 2, front.tokens(TokenCount::Held)));
            let text = front.counters.predictions().text(0);
            assert_eq!((text.bytes, text.tokens), (front.counters.loads().prompted(0), 1_600));
            assert_eq!(front.told(), [1_600, 400, 14]);
            front.settles();
        }
    }
}

#[test]
fn what_is_not_told_is_not_compared() {
    let compressed = String::from_utf8(whole(&usage(800, r#"{"cached_tokens":1}"#))).unwrap();
    let compressed = compressed.replacen("\r\n", "\r\ncontent-encoding: gzip\r\n", 1);
    let refused = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 29\r\n\r\n\
                   {\"usage\":{\"prompt_tokens\":1}}";
    for (reply, prompt_tokens) in [
        (whole(&usage(800, "null")), 1_600),
        (streamed(&usage(800, "null")), 1_600),
        (streamed("\"usage\":null"), 0),
        (ok("{}"), 0),
        // What cannot be read as it stands is not read.
        (compressed.into_bytes(), 0),
        // A client's doing, and no prompt that was computed.
        (refused.as_bytes().to_vec(), 0),
    ] {
        let engine = Engine::answering(reply);
        let front = front(std::slice::from_ref(&engine));
        (0..2).for_each(|_| drop(front.ask(post("/v1/chat/completions", conversation(1, 1)))));
        front.settles();
        assert_eq!(front.tokens(TokenCount::ToldPrompt), prompt_tokens);
        let compared = front.counters.predictions().compared(0, Method::Warm);
        assert_eq!(compared, Compared::default());
        assert_eq!(front.counters.predictions().sent(0, Method::Warm).requests, 2);
    }
}

/// Of others vLLM leaves a zero out; of a search by beams it never says what it found.
#[test]
fn a_search_by_beams_tells_of_no_cache() {
    for (path, prompt) in
        [("completions", r#""prompt":"#), ("chat/completions", r#""messages":[{"role":"user","content":"#)]
    {
        let engine = Engine::run(|mut connection| {
            while let Some(request) = connection.request() {
                let tells = !request.body.ends_with(b"true}");
                connection.send(whole(&usage(800, if tells { r#"{"cached_tokens":790}"# } else { "null" })));
            }
        });
        let front = front(std::slice::from_ref(&engine));
        let text = "the same examples before each question. ".repeat(75);
        let end = if path == "completions" { "" } else { "}]" };
        let mut client = front.connect();
        for (fields, compared) in
            [("", 1), ("", 2), (r#","use_beam_search":true"#, 2), (r#","use_beam_search":false"#, 3)]
        {
            let body = format!(r#"{{{prompt}"{text}"{end}{fields}}}"#);
            assert_eq!(client.ask(post(&format!("/v1/{path}"), body)).status, 200);
            front.settles();
            let Compared { requests, over, .. } = front.counters.predictions().compared(0, Method::Warm);
            assert_eq!(requests, compared, "{fields}");
            assert!(over < 200, "{fields} {over}");
        }
    }
}

/// SGLang's own APIs: what it refuses in a stream counts one token there, the events of a batch each tell of their own
/// prompt, and what images take is no text. How long tokens are is learnt of none of them.
#[test]
fn what_meta_info_tells_of_other_than_its_text_teaches_nothing() {
    let meta = |reason: &str, prompt: u32| {
        format!(r#""meta_info":{{"id":"a","finish_reason":{reason},"prompt_tokens":{prompt},"cached_tokens":0}}"#)
    };
    let stop = meta(r#"{"type":"stop","matched":2}"#, 750);
    let refused = meta(r#"{"type":"abort","message":"no grammar","status_code":400}"#, 1);
    let stream = |event: String| [STREAM, &*framed(&format!("data: {{{event}}}\n\ndata: [DONE]\n\n"))].concat();
    let body = format!(r#"{{"embedding":[0.5],{stop}}}"#);
    let encoded =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let text = "a prompt of some seven hundred tokens, so it is said: ".repeat(60);
    for (path, fields, answer, learns) in [
        ("/generate", "", stream(format!(r#""text":"a",{stop}"#)), true),
        ("/generate", "", stream(format!(r#""text":"","output_ids":[],{refused}"#)), false),
        ("/generate", r#","n":2"#, stream(format!(r#""text":"a",{stop},"index":1"#)), false),
        ("/encode", "", encoded.clone(), true),
        ("/encode", r#","image_data":"a.png""#, encoded, false),
    ] {
        let engine = Engine::answering(answer);
        let front = front(std::slice::from_ref(&engine));
        let body = format!(r#"{{"text":"{text}","stream":true{fields}}}"#);
        assert_eq!(front.ask(post(path, body)).status, 200, "{path}{fields}");
        front.settles();
        let learnt = front.counters.predictions().text(0).tokens;
        assert_eq!(learnt, if learns { 750 } else { 0 }, "{path}{fields}");
    }
}

/// In one chunk, the last.
fn framed(events: &str) -> String {
    format!("{:x}\r\n{events}\r\n0\r\n\r\n", events.len())
}

/// Busy, as vLLM says it: nothing of the request was executed.
const BUSY: &str = r#"{"error":{"message":"The engine is currently busy and cannot accept new requests.","code":503}}"#;

/// Whom nobody listens at, or who is too busy, costs a further try: that is chosen by tokens, charged, let go once, and
/// noted where it went, as the first is.
#[test]
fn a_further_try_counts_as_the_first_did() {
    let busy =
        format!("HTTP/1.1 503 x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BUSY}", BUSY.len());
    let busy = Engine::answering(busy);
    for first in [refusing(), busy.address] {
        for chunks in [false, true] {
            let engine = Engine::run(|mut connection| {
                while connection.request().is_some() {
                    std::thread::sleep(Duration::from_millis(300));
                    connection.send(streamed(&usage(800, r#"{"cached_tokens":200}"#)));
                }
            });
            let front = Front::with(&[first, engine.address], |options| {
                options.settings.policy = Policy::Warm;
                options.rules.limits.failed_charge_ms = 1;
                options.rules.access_log = true;
            });
            // Which endpoint is the first for a conversation its hash says: one that begins at the other.
            let sent = |slot| front.counters.predictions().sent(slot, Method::Warm);
            let name = (0..).find(|name| {
                let before = sent(0).requests;
                assert_eq!(front.ask(post("/v1/chat/completions", conversation(*name, 1))).status, 200);
                front.settles();
                sent(0).requests > before
            });
            let body = conversation(name.unwrap(), 1);
            let before = sent(1);
            let request = if chunks {
                let head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
                [&head[..], &chunked(body.as_bytes(), 500)].concat()
            } else {
                post("/v1/chat/completions", &body)
            };
            drop(front.records());
            assert_eq!(front.ask(request).status, 200);
            front.settles();
            let [record]: [Record; 1] = front.records().try_into().unwrap();
            let after = sent(1);
            // All of its whole blocks, of some 800 tokens, were noted there by the further try of before.
            let told = format!("{first} {chunks}: {before:?} {after:?} {record:?}");
            assert_eq!(after.requests - before.requests, 1, "{told}");
            assert!(after.held - before.held > 600, "{told}");
            assert_eq!(record.endpoint.map(|endpoint| endpoint.slot), Some(1), "{told}");
            assert!(record.held_tokens > Some(600) && record.prompt_tokens >= record.held_tokens, "{told}");
            assert_eq!(after.told, after.requests, "{told}");
        }
    }
}

/// While it is computed, its tokens are pending where it is, and nowhere else.
#[test]
fn a_further_try_is_pending_where_it_went() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let engine = Engine::run(move |mut connection| {
        while connection.request().is_some() {
            released.lock().unwrap().recv().unwrap();
            connection.send(streamed("\"usage\":null"));
        }
    });
    let front = Front::with(&[refusing(), engine.address, refusing()], |options| {
        options.settings.policy = Policy::Warm;
        options.rules.limits.failed_charge_ms = 1;
    });
    let pending = |slot| front.counters.loads().pending(slot);
    for name in 0..12 {
        let mut client = front.connect();
        let body = conversation(name, 1).replacen('{', "{\"stream\":true,", 1);
        client.send(post("/v1/chat/completions", body));
        front.until("the choice", |_| pending(1) > 500 && pending(0) == 0 && pending(2) == 0);
        release.send(()).unwrap();
        assert_eq!(client.reply().status, 200);
        front.settles();
    }
    assert!(front.count(Count::RetriedConnect) > 0);
}

/// Nobody waits for who writes for the same engine: a prompt is served, and the index not told of it.
#[test]
fn what_is_not_noted_for_another_who_writes_is_counted() {
    let engines = [Engine::answering(ok("{}"))];
    let front = front(&engines);
    let index = front.published.current().index.clone().unwrap();
    let (done, deadline) = (AtomicBool::new(false), Instant::now() + PATIENCE);
    std::thread::scope(|scope| {
        // Control, for which this takes a while.
        scope.spawn(|| {
            let id = endpoint(0, engines[0].address).id;
            while !done.load(Ordering::Relaxed) && Instant::now() < deadline {
                let _ = [1, 1 << 15].map(|blocks| index.resize(id, blocks));
            }
        });
        let mut client = front.connect();
        for name in 0.. {
            assert_eq!(client.ask(post("/v1/chat/completions", conversation(name, 1))).status, 200);
            if front.count(Count::IndexBusy) > 0 {
                break;
            }
            assert!(Instant::now() < deadline, "all {name} prompts were noted");
        }
        done.store(true, Ordering::Relaxed);
    });
    front.settles();
}
