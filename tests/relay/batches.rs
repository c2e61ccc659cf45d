//! Several prompts in one request: all are counted, the first says where they go, and their reply says nothing of
//! predictions.

use warmfront::counters::stats::TokenCount;
use warmfront::counters::{Compared, Text};
use warmfront::fleet::Method;
use warmfront::policy::Policy;

use crate::client::{chunked, post};
use crate::engine::{Engine, LAST, STREAM, TOKEN};
use crate::front::Front;

const PROMPTS: usize = 32;

/// An engine that says of each request that it had so many tokens, all of them cached.
fn engine(tokens: usize) -> Engine {
    let details = format!(r#"{{"cached_tokens":{tokens}}}"#);
    let usage = format!(r#"{{"prompt_tokens":{tokens},"completion_tokens":0,"prompt_tokens_details":{details}}}"#);
    let body = format!(r#"{{"choices":[],"usage":{usage}}}"#);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    Engine::answering(head + &body)
}

fn front(engine: &Engine, hold_bytes: usize) -> Front {
    Front::with(&[engine.address], |options| {
        options.settings.policy = Policy::Warm;
        options.rules.limits.hold_bytes = hold_bytes;
    })
}

/// A kilobyte that differs from others from its start.
fn prompt(name: &str) -> String {
    format!("{name}: ").chars().chain("word ".chars().cycle()).take(1_000).collect()
}

/// Prompts of a batch whose first one is `first`.
fn batch(first: &str, count: usize) -> String {
    let names = (1..count).map(|place| format!("{first} and {place}"));
    let prompts: Vec<String> = std::iter::once(first.to_owned()).chain(names).map(|name| prompt(&name)).collect();
    serde_json::to_string(&prompts).unwrap()
}

fn completion(prompt: &str) -> String {
    format!(r#"{{"model":"tiny-llama","prompt":{prompt},"max_tokens":4}}"#)
}

fn embeddings(input: &str) -> String {
    format!(r#"{{"input":{input},"model":"tiny-llama"}}"#)
}

const MIB: usize = 1 << 20;

#[test]
fn the_work_of_a_batch_is_that_of_all_its_prompts() {
    let engine = engine(1);
    for (path, body) in
        [("/v1/completions", completion as fn(&str) -> String), ("/v1/embeddings", embeddings as fn(&str) -> String)]
    {
        let front = front(&engine, MIB);
        let ask = |body: &str| {
            let before = [TokenCount::Held, TokenCount::New].map(|which| front.tokens(which));
            let prompted = front.counters.loads().prompted(0);
            let mut client = front.connect();
            client.send_cut(&post(path, body), &[300, 900, 901]);
            assert_eq!(client.reply().status, 200);
            front.settles();
            let after = [TokenCount::Held, TokenCount::New].map(|which| front.tokens(which));
            (after[0] - before[0], after[1] - before[1], front.counters.loads().prompted(0) - prompted)
        };
        assert_eq!(ask(&body(&batch("a", PROMPTS))), (0, 8_000, 32_000), "{path}");
        // All whole blocks of its first prompt; of the others nothing is known.
        assert_eq!(ask(&body(&batch("a", PROMPTS))), (192, 7_808, 32_000), "{path}");
        assert_eq!(ask(&body(&batch("a", 1))), (192, 58, 1_000), "{path}");
        let ids = format!("[{}]", (0..250).map(|id| id.to_string()).collect::<Vec<_>>().join(", "));
        let lists = format!("[{}]", vec![ids; PROMPTS].join(", "));
        assert_eq!(ask(&body(&lists)), (0, 8_000, 32_000), "{path}: as if they were text of usual length");
    }
}

/// As vLLM 0.32 has it: lists of messages in the place of messages.
#[test]
fn a_batch_of_chats_goes_by_the_first_and_counts_as_all() {
    let chats = |names: &[&str]| {
        let chat = |name: &&str| format!(r#"[{{"role":"user","content":"{}"}}]"#, prompt(name));
        let chats: Vec<String> = names.iter().map(chat).collect();
        format!(r#"{{"model":"tiny-llama","messages":[{}]}}"#, chats.join(","))
    };
    let alone = chats(&["a"]).replace("[[", "[").replace("]]", "]");
    let (one, several) = ("/v1/chat/completions", "/v1/chat/completions/batch");
    let engine = engine(1);
    let front = front(&engine, MIB);
    for (path, body, held, new) in [
        (several, chats(&["a", "b", "c"]), 0, 750),
        (several, chats(&["a", "d", "e", "f"]), 192, 808),
        (one, alone, 192, 58),
        (several, chats(&["d", "a"]), 0, 500),
    ] {
        let before = [TokenCount::Held, TokenCount::New].map(|which| front.tokens(which));
        assert_eq!(front.ask(post(path, &body)).status, 200);
        front.settles();
        let after = [TokenCount::Held, TokenCount::New].map(|which| front.tokens(which));
        assert_eq!([after[0] - before[0], after[1] - before[1]], [held, new], "{path} {}", body.len());
    }
}

#[test]
fn a_reply_of_a_batch_tells_of_lengths_and_judges_nothing() {
    let engine = engine(6_400);
    for (path, body) in
        [("/v1/completions", completion(&batch("a", PROMPTS))), ("/v1/embeddings", embeddings(&batch("a", PROMPTS)))]
    {
        let front = front(&engine, MIB);
        for requests in 1..4 {
            assert_eq!(front.ask(post(path, &body)).status, 200);
            front.settles();
            let told = front.counters.predictions().text(0);
            assert_eq!(told, Text { bytes: requests * 32_000, tokens: requests * 6_400 }, "{path}: five bytes a token");
            assert_eq!(front.counters.predictions().compared(0, Method::Warm), Compared::default());
            let sent = front.counters.predictions().sent(0, Method::Warm);
            assert_eq!((sent.requests, sent.tokens, sent.told), (requests, requests * 8_000, 0));
        }
        // One prompt is one, in a list as well.
        assert_eq!(front.ask(post("/v1/completions", completion(&batch("a", 1)))).status, 200);
        front.settles();
        assert_eq!(front.counters.predictions().compared(0, Method::Warm).requests, 1);
    }
}

/// Whose bytes were not all counted, or may be computed more than once, teaches nothing; its length is estimated.
#[test]
fn what_was_not_counted_whole_teaches_nothing() {
    let engine = engine(8_000);
    let long = completion(&batch("a", PROMPTS));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let in_chunks = [head.as_bytes(), &chunked(long.as_bytes(), 1_000)].concat();
    let rerank = format!(r#"{{"query":{:?},"documents":{}}}"#, prompt("q"), batch("a", PROMPTS));
    for (what, request, hold_bytes, tokens) in [
        ("longer than what is held", post("/v1/completions", &long), 10_000, 7_900..8_200),
        ("so, in chunks", in_chunks, 10_000, 2_000..8_200),
        ("a query and documents", post("/v1/rerank", &rerank), MIB, 8_250..8_251),
    ] {
        let front = front(&engine, hold_bytes);
        assert_eq!(front.ask(request).status, 200, "{what}");
        front.settles();
        assert!(tokens.contains(&front.tokens(TokenCount::New)), "{what}: {}", front.tokens(TokenCount::New));
        assert_eq!(front.counters.predictions().text(0), Text::default(), "{what}");
        assert_eq!(front.tokens(TokenCount::ToldPrompt), 8_000, "{what}");
    }
}

/// A stream of a batch begins when one of its prompts is computed, and one with an image when that was fetched, from
/// wherever its client says.
#[test]
fn a_first_token_of_a_batch_or_behind_an_image_tells_of_no_speed() {
    let engine = Engine::answering(format!("{STREAM}{TOKEN}{LAST}"));
    let front = front(&engine, MIB);
    let rate = || front.counters.loads().prefill_rate(0);
    let begun = rate();
    let words = prompt("b").repeat(PROMPTS);
    let image = r#"{"type":"image_url","image_url":{"url":"http://a/slow.png"}}"#;
    let seen = format!(r#"{{"messages":[{{"role":"user","content":[{image},{{"type":"text","text":"{words}"}}]}}]}}"#);
    for (path, body, timed) in [
        ("/v1/completions", completion(&batch("a", PROMPTS)), false),
        ("/v1/chat/completions", seen, false),
        ("/v1/completions", completion(&format!("{words:?}")), true),
    ] {
        let body = body.replacen('{', "{\"stream\":true,", 1);
        assert_eq!(front.ask(post(path, body)).status, 200);
        front.settles();
        assert_eq!(rate() != begun, timed, "{path}: {}", rate());
    }
}
