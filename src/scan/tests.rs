//! What the scanner makes of odd bodies, row by row; the comparison with whole values is in `tests/scan_oracle.rs`.

use super::*;

fn plan(prefix: PrefixMode) -> Plan {
    Plan { prefix, session_fields: vec![b"user"[..].into()], ..Plan::default() }
}

fn scan(api: Api, prefix: PrefixMode, needs: Needs, body: &[u8]) -> (Progress, Box<Scan>) {
    let mut scan = Box::new(Scan::new());
    scan.begin(api, &plan(prefix), needs);
    let progress = match scan.push(body) {
        Progress::More => scan.finish(),
        progress => progress,
    };
    (progress, scan)
}

fn whole(body: &[u8]) -> (Progress, Box<Scan>) {
    scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL | Needs::PREFIX | Needs::SESSION | Needs::WHOLE, body)
}

fn text_hash(text: &[u8]) -> Option<u64> {
    Some(lanes::hash(text))
}

fn prefix_of(scan: &Scan) -> Option<u64> {
    scan.facts().prefix().map(|prefix| prefix.hash)
}

/// A body whose first user message is `content` (JSON), with `rest` before the end.
fn body(content: &[u8], rest: &[u8]) -> Vec<u8> {
    [b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":", content, b"}]", rest, b"}"].concat()
}

#[test]
fn ends_at_a_byte_that_the_body_decides() {
    let body = br#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}],"stream":true}"#;
    let at = (body.len() - br#"],"stream":true}"#.len()) as u64;
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL | Needs::PREFIX, body);
    assert_eq!(progress, Progress::Enough { at });
    assert_eq!(done.facts().model(), Some(&b"m"[..]));
    assert_eq!(done.facts().stream, None);
    assert_eq!(prefix_of(&done), text_hash(b"hello"));
    // More bytes change nothing.
    let mut done = done;
    assert_eq!(done.push(b"}]}}}"), progress);
    assert_eq!(done.finish(), progress);
}

#[test]
fn the_hundredth_character_is_the_last_one() {
    let long = "é".repeat(101);
    let text = body(format!("\"{long}\"").as_bytes(), b"");
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::PREFIX, &text);
    let start = text.iter().position(|&byte| byte == 0xc3).unwrap() as u64;
    assert_eq!(progress, Progress::Enough { at: start + 200 });
    assert_eq!(prefix_of(&done), text_hash("é".repeat(100).as_bytes()));
}

#[test]
fn nothing_needed_nothing_read() {
    let (progress, _) = scan(Api::Chat, PrefixMode::FirstUser, Needs::NONE, b"not json");
    assert_eq!(progress, Progress::Enough { at: 0 });
}

#[test]
fn model_alone_ends_at_its_quote_and_skips_what_is_before() {
    let text = br#"{"messages":[{"role":"user","content":"bad \x escape"}],"model":"m","messages":3}"#;
    let (progress, done) = scan(Api::Chat, PrefixMode::FirstUser, Needs::MODEL, text);
    assert_eq!(progress, Progress::Enough { at: (text.len() - br#","messages":3}"#.len()) as u64 });
    assert_eq!((done.facts().model(), prefix_of(&done)), (Some(&b"m"[..]), None));
}

#[test]
fn last_duplicate_wins_and_is_counted() {
    let (progress, done) = whole(br#"{"model":"a","model":"b","messages":[{"role":"user","content":"x"}],"messages":[{"role":"user","content":"y"}]}"#);
    assert_eq!(progress, Progress::Done);
    assert_eq!((done.facts().model(), done.facts().duplicates), (Some(&b"b"[..]), 2));
    assert_eq!(prefix_of(&done), text_hash(b"y"));
}

#[test]
fn escaped_keys_are_compared_decoded() {
    let (_, done) = whole(br#"{"mod\u0065l":"m\u0065"}"#);
    assert_eq!(done.facts().model(), Some(&b"me"[..]));
}

/// Bodies that engines accept, or answer themselves, pass.
#[test]
fn lax_where_engines_are() {
    let deep = [&b",\"x\":"[..], &vec![b'['; 100_000], &vec![b']'; 100_000]].concat();
    let deep_content = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let digits = [&b",\"max_tokens\":"[..], &[b'9'; 400]].concat();
    let cases: Vec<(&str, Vec<u8>, Option<u64>)> = vec![
        ("invalid UTF-8 in a content", body(b"\"a\xffb\"", b""), text_hash(b"a\xffb")),
        ("invalid UTF-8 in an unused field", body(b"\"a\"", b",\"x\":\"\xff\""), text_hash(b"a")),
        ("lone surrogate in a content", body(b"\"\\ud800a\"", b""), text_hash(b"\xed\xa0\x80a")),
        ("lone surrogate in an unused field", body(b"\"a\"", b",\"x\":\"\\ud800\""), text_hash(b"a")),
        ("deep nesting in an unused field", body(b"\"a\"", &deep), text_hash(b"a")),
        ("deep nesting as content", body(&deep_content, b""), None),
        ("NaN", body(b"\"a\"", b",\"x\":NaN,\"y\":-Infinity"), text_hash(b"a")),
        ("1e999", body(b"\"a\"", b",\"x\":1e999"), text_hash(b"a")),
        ("400 digits", body(b"\"a\"", &digits), text_hash(b"a")),
        ("a fraction", body(b"\"a\"", b",\"max_tokens\":16.0"), text_hash(b"a")),
        ("null content", body(b"null", b""), None),
        (
            "content in parts",
            body(br#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, b""),
            text_hash(b"ab"),
        ),
        ("brackets that do not match, unused", body(b"\"a\"", b",\"x\":[}"), text_hash(b"a")),
        ("a raw line end in an unused field", body(b"\"a\"", b",\"x\":\"\n\""), text_hash(b"a")),
        ("byte order mark", [b"\xef\xbb\xbf", &body(b"\"a\"", b"")[..]].concat(), text_hash(b"a")),
    ];
    for (what, body, prefix) in cases {
        let (progress, done) = whole(&body);
        assert_eq!(progress, Progress::Done, "{what}");
        assert_eq!(done.facts().model(), Some(&b"m"[..]), "{what}");
        assert_eq!(done.facts().max_tokens(), None, "{what}");
        assert_eq!(prefix_of(&done), prefix, "{what}");
    }
}

/// A body that cannot be routed by its content is routed by load.
#[test]
fn faults_say_why() {
    let nested = vec![b'['; 100_000];
    let cases: Vec<(Vec<u8>, Fault)> = vec![
        (vec![], Fault::Empty),
        (b"  ".to_vec(), Fault::Truncated),
        (b"[]".to_vec(), Fault::NotObject),
        (nested, Fault::NotObject),
        (b"{\0\"\0m\0".to_vec(), Fault::Syntax),
        (b"\xff\xfe{\0".to_vec(), Fault::NotObject),
        (body(b"\"a\nb\"", b""), Fault::Control),
        (body(b"\"a\\xb\"", b""), Fault::Escape),
        (body(b"\"a\"", b","), Fault::Syntax),
        (body(b"[\"a\",]", b""), Fault::Syntax),
        (body(b"\"a\"", b"} x"), Fault::Trailing),
        (body(b"\"a\"", b"}\0"), Fault::Trailing),
        (body(b"\"a", b"")[..40].to_vec(), Fault::Truncated),
        (b"{\"a\":1".to_vec(), Fault::Truncated),
        (b"{\"a\":tru\xff}".to_vec(), Fault::Syntax),
    ];
    for (body, fault) in cases {
        assert_eq!(whole(&body).0, Progress::Failed(fault), "{}", body[..body.len().min(80)].escape_ascii());
    }
}

#[test]
fn field_order_does_not_matter() {
    let fields = [
        r#""model":"m""#,
        r#""tools":[{"name":"t"}]"#,
        r#""system":"be brief""#,
        r#""messages":[{"role":"user","content":"x"}]"#,
    ];
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    let needs = Needs::MODEL | Needs::PREFIX;
    let prefixes = orders.map(|order| {
        let text = format!("{{{}}}", order.map(|place| fields[place]).join(","));
        let (progress, done) = scan(Api::Messages, PrefixMode::Conversation, needs, text.as_bytes());
        assert!(matches!(progress, Progress::Enough { .. }));
        prefix_of(&done).unwrap()
    });
    assert!(prefixes.iter().all(|prefix| *prefix == prefixes[0]));
    let reordered =
        br#"{"messages":[{"content":"x","role":"user"}],"system":"be brief","tools":[{"name":"t"}],"model":"m"}"#;
    let (_, done) = scan(Api::Messages, PrefixMode::Conversation, needs, reordered);
    assert_eq!(prefix_of(&done), Some(prefixes[0]));
}

/// Clients order fields as they like: the first configured name tells the session, not the first in the body.
#[test]
fn the_best_session_field_is_waited_for() {
    let (key, user, messages) =
        (r#""prompt_cache_key":"k""#, r#""user":"u""#, r#""messages":[{"role":"user","content":"x"}]"#);
    let names = ["prompt_cache_key", "user"].map(|name| name.as_bytes().into());
    let plan = Plan { session_fields: names.to_vec(), ..Plan::default() };
    let session = |fields: &[&str]| {
        let mut scan = Box::new(Scan::new());
        scan.begin(Api::Chat, &plan, Needs::SESSION);
        let progress = scan.push(format!("{{{}}}", fields.join(",")).as_bytes());
        (matches!(progress, Progress::Enough { .. }), scan.facts().session())
    };
    let is = |text: &str| Some(crate::prefix::text_hash(text.as_bytes()));
    assert_eq!(session(&[key, messages, user]), (true, is("k")));
    assert_eq!(session(&[user, messages, key]), (true, is("k")));
    assert_eq!(session(&[user, messages]), (false, is("u")));
    assert_eq!(session(&[messages]), (false, None));
}

#[test]
fn counts_and_estimate() {
    let content =
        br#"[{"type":"text","text":"12345678"},{"type":"image_url","image_url":{"url":"data:,AAAAAAAAAAAAAAAA"}}]"#;
    let (_, done) = whole(&body(content, b",\"tools\":[{}],\"user\":\"u\""));
    let facts = done.facts();
    assert!(facts.images() && facts.tools);
    assert_eq!(facts.counts(), Counts { text_bytes: 12, ids: 0, media: 1 });
    assert_eq!(facts.tokens_estimate(1_000), 1_003);
    assert_eq!(facts.session(), Some(crate::prefix::text_hash(b"u")));
    let needs = Needs::PREFIX | Needs::WHOLE;
    let (_, done) = scan(Api::Completions, PrefixMode::Conversation, needs, br#"{"prompt":[1,2,3]}"#);
    assert_eq!((done.facts().tokens_estimate(1_000), done.facts().prompt_bytes()), (3, 12));
}

#[test]
fn paths_name_their_api() {
    assert_eq!(Api::of_path(b"/v1/chat/completions?x=1"), Api::Chat);
    assert_eq!(Api::of_path(b"/v2/rerank"), Api::Rerank);
    assert_eq!(Api::of_path(b"/inference/v1/generate"), Api::Generate);
    assert_eq!(Api::of_path(b"/encode"), Api::Embeddings);
    assert_eq!(Api::of_path(b"/generative_scoring"), Api::Score);
    assert_eq!(Api::of_path(b"/v1/models"), Api::Other);
}

/// Counts and chain, as `warm` asks for them: not to the body's end.
fn cut_in_blocks(api: Api, body: &str) -> (Progress, Box<Scan>, Vec<u64>) {
    let (mut scan, mut chain) = (Box::new(Scan::new()), Vec::new());
    scan.begin(api, &Plan { chain: true, ..Plan::default() }, Needs::MODEL | Needs::PREFIX);
    let progress = match scan.push(body.as_bytes()) {
        Progress::More => scan.finish(),
        progress => progress,
    };
    scan.facts().chain(7, &mut chain);
    (progress, scan, chain)
}

/// Engines name the blocks after an image by the image, too.
#[test]
fn what_follows_a_medium_is_the_same_only_behind_the_same() {
    let before = "What stands before it is shared by all of them. ".repeat(16);
    let behind = "Read this page, and answer with JSON of its fields. ".repeat(80);
    let chain = |part: &str| {
        let parts = format!(r#"{{"type":"text","text":"{before}"}},{part},{{"type":"text","text":"{behind}"}}"#);
        let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{parts}]}}]}}"#);
        cut_in_blocks(Api::Chat, &body).2
    };
    let page = |noise: u64, length: u64| {
        (0..length).map(|n| char::from(b'a' + ((n * noise) >> 5) as u8 % 26)).collect::<String>()
    };
    let url = |url: &str| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#);
    let data = |data: &str| url(&format!("data:image/png;base64,{data}"));
    let (one, other) = (page(7_919, 60_000), page(104_729, 60_000));
    let parts = [
        url("https://scans/1.png"),
        url("https://scans/2.png"),
        data(&one),
        data(&(page(7_919, 30_000) + other.split_at(30_000).1)),
        data(&(page(104_729, 30_000) + one.split_at(30_000).1)),
        data(&format!("{one}A")),
        data(&format!("B{}", one.split_at(1).1)),
        data(&format!("{}B", one.split_at(59_999).0)),
        r#"{"type":"image","source":{"type":"base64","data":"AAAA"}}"#.to_owned(),
        r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}"#.to_owned(),
        r#"{"type":"input_image","image_url":"AAAA"}"#.to_owned(),
        r#"{"type":"audio_embeds","audio_embeds":"AAAE"}"#.to_owned(),
        r#"{"type":"audio_embeds","audio_embeds":"AAAB"}"#.to_owned(),
        r#"{"type":"video_embeds","video_embeds":"AAAC"}"#.to_owned(),
        r#"{"type":"prompt_embeds","data":"AAAD"}"#.to_owned(),
        // An image that the engine has already.
        r#"{"type":"image_url","image_url":null,"uuid":"1"}"#.to_owned(),
        r#"{"type":"image_url","image_url":null,"uuid":"2"}"#.to_owned(),
    ];
    let chains: Vec<_> = parts.iter().map(|part| chain(part)).collect();
    for (place, part) in parts.iter().enumerate() {
        assert!(chains[place].len() > 18, "{part:.40}");
        assert_eq!(chain(part), chains[place], "the same again");
        for other in &chains[..place] {
            assert_eq!(chains[place][..3], other[..3], "what stands before it");
            assert!(chains[place][3..].iter().all(|link| !other.contains(link)), "{part:.60}");
        }
    }
}

/// A medium is as long as text of as many tokens: the cached part of a prompt, and its room in the index, count its
/// media.
#[test]
fn a_medium_has_its_room_in_the_chain() {
    let image = r#"{"type":"image_url","image_url":{"url":"https://scans/1.png"}}"#;
    let with = |images: usize| {
        let parts = vec![image; images].join(",");
        cut_in_blocks(Api::Chat, &format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}],"model":"m"}}"#)).2
    };
    assert_eq!([with(1), with(8), with(250)].map(|chain| chain.len()), [15, 125, 3_907]);
    assert_eq!(with(8)[..], with(250)[..125]);
}

/// Claude Code identifies itself in each request by a block, gateways by a part or line of a text, which vLLM leaves
/// out of the prompt.
#[test]
fn an_attribution_block_is_no_part_of_a_prompt() {
    let words = "You are a careful agent. ".repeat(40);
    let user = format!(r#"{{"role":"user","content":"{words}"}}"#);
    let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let parts = format!("[BLOCK{}]", text(&words));
    let rows = [
        (Api::Messages, format!(r#""system":{parts},"messages":[{user}TURNS]"#)),
        (Api::Messages, format!(r#""system":"LINE{words}","messages":[{user}TURNS]"#)),
        (Api::Chat, format!(r#""messages":[{{"role":"system","content":"LINE{words}"}},{user}TURNS]"#)),
        (Api::Chat, format!(r#""messages":[{{"role":"system","content":{parts}}},{user}TURNS]"#)),
        (Api::Responses, format!(r#""instructions":"LINE{words}","input":[{user}TURNS]"#)),
    ];
    let more = format!(r#",{{"role":"assistant","content":"{words}"}}"#);
    for (api, fields) in &rows {
        let cut = |first: Option<&str>, turns: &str| {
            let block = first.map_or(String::new(), |first| text(first) + ",");
            let line = first.map_or(String::new(), |first| format!("{first}\\n"));
            let fields = fields.replace("BLOCK", &block).replace("LINE", &line).replace("TURNS", turns);
            cut_in_blocks(*api, &format!(r#"{{"model":"m",{fields},"stream":true}}"#)).2
        };
        let attributed = |hash: &str| format!("x-anthropic-billing-header: cc_version=2.1.107; cch={hash};");
        let plain = cut(None, "");
        assert!(plain.len() > 5);
        assert_eq!(cut(Some(&attributed("97bd6")), ""), plain, "{fields:.40}");
        let next = cut(Some(&attributed("0a1b2")), &more);
        assert!(next.len() > plain.len() && next.starts_with(&plain), "{fields:.40}");
        for other in ["You are another one.", "x-anthropic-billing-heade", " x-anthropic-billing-header"] {
            assert_ne!(cut(Some(other), "").first(), plain.first(), "{fields:.40}");
        }
    }
}

/// Bytes that are left out are not counted either.
#[test]
fn an_attribution_line_is_not_counted() {
    let counted = |text: &str| {
        let body =
            format!(r#"{{"messages":[{{"role":"system","content":"{text}"}},{{"role":"user","content":"Hi"}}]}}"#);
        cut_in_blocks(Api::Chat, &body).1.facts().counts().text_bytes
    };
    let line = "x-anthropic-billing-header: cch=97bd6;";
    assert_eq!([counted(line), counted(&format!("{line}\\nBe kind.\\n"))], [2, 11]);
    assert_eq!([counted("x-anthropic-"), counted("x-anthropic-billing-heade\\n")], [14, 28]);
}

/// A text that a client first sends as a string is in its list of messages with the next turn.
#[test]
fn one_text_is_the_message_that_it_becomes() {
    let words = "Tell me of the sea. ".repeat(40);
    let cut = |input: &str| cut_in_blocks(Api::Responses, &format!(r#"{{"model":"m","input":{input},"tools":[]}}"#)).2;
    let (text, message) = (format!(r#""{words}""#), format!(r#"{{"role":"user","content":"{words}"}}"#));
    assert_eq!(cut(&text), cut(&format!("[{message}]")));
    let next = cut(&format!(r#"[{message},{{"role":"assistant","content":"It is wide."}}]"#));
    assert!(next.len() > 2 && next.starts_with(&cut(&text)));
}

/// A prompt is told from others also by media in fields before or after it.
#[test]
fn a_prompt_is_the_same_only_beside_the_same_media() {
    let text = "Read this page, and answer with JSON of its fields. ".repeat(80);
    let ids = (0..900).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let text = format!(r#""text":"{text}""#);
    let ids = format!(r#""token_ids":[{ids}]"#);
    let bodies = [
        format!("{{{text}}}"),
        format!(r#"{{{text},"image_data":"1.png"}}"#),
        format!(r#"{{"image_data":"2.png",{text}}}"#),
        format!(r#"{{{text},"video_data":["1.mp4"],"image_data":"1.png"}}"#),
        format!("{{{ids}}}"),
        format!(r#"{{{ids},"features":{{"mm_hashes":{{"image":["a"]}}}}}}"#),
        format!(r#"{{{ids},"features":{{"mm_hashes":{{"image":["b"]}}}}}}"#),
    ];
    let chains = bodies.each_ref().map(|body| {
        let (progress, scan, chain) = cut_in_blocks(Api::Generate, body);
        assert!(!matches!(progress, Progress::Failed(_)) && chain.len() > 13, "{body:.60}");
        assert_eq!(scan.facts().images(), body.contains("data\"") || body.contains("features"), "{body:.60}");
        chain
    });
    for (place, chain) in chains.iter().enumerate() {
        assert!(chains[..place].iter().all(|other| chain.iter().all(|link| !other.contains(link))), "{place}");
    }
    let behind = cut_in_blocks(Api::Generate, &format!(r#"{{{text},"image_data":"2.png"}}"#)).2;
    assert_eq!(behind, chains[2], "wherever it stands");
}

/// The engine computes all prompts of a batch; the first one decides where they go.
#[test]
fn all_prompts_of_a_batch_are_counted() {
    let one = "word ".repeat(200);
    let ids = (1_000..1_400).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let of = |text_bytes, ids| Counts { text_bytes, ids, media: 0 };
    let beside = |texts: &[u64]| Some(of(texts.iter().sum(), 0));
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let texts = |count| list(&format!("\"{one}\""), count);
    for (api, fields, counts, others) in [
        (Api::Completions, format!(r#""prompt":"{one}""#), of(1_000, 0), None),
        (Api::Completions, format!(r#""prompt":{}"#, texts(1)), of(1_000, 0), None),
        (Api::Completions, format!(r#""prompt":{}"#, texts(16)), of(16_000, 0), beside(&[15_000])),
        (Api::Embeddings, format!(r#""input":{}"#, texts(16)), of(16_000, 0), beside(&[15_000])),
        (Api::Completions, format!(r#""prompt":[{ids}]"#), of(0, 400), None),
        (Api::Completions, format!(r#""prompt":{}"#, list(&format!("[{ids}]"), 1)), of(0, 400), None),
        (Api::Completions, format!(r#""prompt":{}"#, list(&format!("[{ids}]"), 9)), of(0, 3_600), Some(of(0, 3_200))),
        (Api::Embeddings, format!(r#""input":["{one}","{}"]"#, "é\\n".repeat(99)), of(1_297, 0), beside(&[297])),
        (Api::Completions, format!(r#""prompt":["{one}",""],"n":3,"best_of":4"#), of(1_000, 0), beside(&[])),
        (Api::Rerank, format!(r#""query":"{one}","documents":{}"#, texts(4)), of(5_000, 0), beside(&[4_000])),
        (Api::Score, format!(r#""text_2":{},"text_1":"{one}""#, texts(4)), of(5_000, 0), beside(&[4_000])),
        (Api::Chat, format!(r#""messages":[{{"role":"user","content":"{one}"}}]"#), of(1_000, 0), None),
    ] {
        let body = format!(r#"{{"model":"m",{fields},"max_tokens":5}}"#);
        let (progress, scan, chain) = cut_in_blocks(api, &body);
        assert!(scan.is_over() && !matches!(progress, Progress::Failed(_)), "{progress:?}");
        let facts = scan.facts();
        assert_eq!((facts.counts(), facts.beside()), (counts, others), "{fields:.50}");
        // The blocks of the first prompt alone.
        let bytes = counts.less(others.unwrap_or_default());
        assert_eq!(chain.len() as u64, (1 + bytes.text_bytes + 4 * bytes.ids) / 256, "{fields:.50}");
    }
}

/// Token ids beside messages are the whole prompt to SGLang, wherever they are: neither messages nor tools are written.
#[test]
fn ids_beside_messages_stand_in_their_place() {
    let ids = |from: u32, count: u32| (from..from + count).map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let messages = format!(r#""messages":[{{"role":"user","content":"{}"}}]"#, "Tell me of the sea. ".repeat(80));
    let tools = format!(r#""tools":[{{"name":"{}"}}]"#, "t".repeat(600));
    let given = |ids: &str| format!(r#""input_ids":[{ids}]"#);
    let cut = |fields: &[&str]| {
        let (_, scan, chain) = cut_in_blocks(Api::Chat, &format!(r#"{{"model":"m",{}}}"#, fields.join(",")));
        (chain, scan.facts().counts())
    };
    let one = given(&ids(1_000, 200));
    let (chain, counts) = cut(&[&one]);
    assert_eq!((chain.len(), counts), (3, Counts { text_bytes: 0, ids: 200, media: 0 }));
    for fields in [[&messages, &tools, &one], [&one, &messages, &tools], [&tools, &one, &messages]] {
        assert_eq!(cut(&fields.map(String::as_str)), (chain.clone(), counts));
    }
    let longer = cut(&[&messages, &given(&ids(1_000, 300))]).0;
    assert!(longer.len() > 3 && longer.starts_with(&chain), "the next turn");
    for other in [given(&ids(2_000, 200)), r#""input_ids":null"#.to_owned()] {
        let other = cut(&[&messages, &tools, &other]).0;
        assert!(other.len() > 2 && chain.iter().all(|link| !other.contains(link)));
    }
}

/// Engines keep prompts apart by these fields, too.
#[test]
fn a_prompt_is_the_same_only_with_the_same_salt_adapter_and_extra_key() {
    let words = "Tell me of the sea. ".repeat(40);
    let links = |fields: &str| {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"{words}"}}],"model":"m"{fields}}}"#);
        let (_, scan, mut chain) = cut_in_blocks(Api::Chat, &body);
        scan.facts().chain(crate::prefix::root(b"m", scan.facts().salt()), &mut chain);
        chain
    };
    let (salt, adapter) = (r#","cache_salt":"a""#, r#","lora_path":"a""#);
    let [extra, other] = ["a", "b"].map(|key| format!(r#","extra_key":"{key}""#));
    let rows: [&[&str]; 9] = [
        &[],
        &[salt],
        &[adapter],
        &[&extra],
        &[&other],
        &[salt, &extra],
        &[adapter, &extra],
        &[salt, adapter],
        &[salt, adapter, &extra],
    ];
    let chains = rows.map(|fields| links(&fields.concat()));
    let distinct: std::collections::HashSet<&u64> = chains.iter().flatten().collect();
    assert_eq!(distinct.len(), 9 * chains[0].len());
    assert!(chains[0].len() > 2 && links(&[&extra, salt].concat()) == chains[5], "wherever they stand");
    assert_eq!(links(&[&extra, r#","extra_key":null"#].concat()), chains[0]);
}

/// Whether all of a prompt is computed, wherever the body says so; `n` is any other field. Only a body's end tells that
/// it is not.
#[test]
fn what_asks_for_the_prompts_likelihood_is_computed_whole() {
    use Api::{Chat, Completions, Generate, Responses};
    let rows = [
        (Completions, r#""echo":true,"logprobs":1,"#, true),
        (Completions, r#""echo":true,"logprobs":null,"#, false),
        (Completions, r#""echo":false,"logprobs":1,"#, false),
        (Completions, r#""echo":true,"top_logprobs":1,"#, false),
        (Completions, r#""prompt_logprobs":0,"#, true),
        (Completions, r#""prompt_logprobs":null,"#, false),
        (Completions, r#""prompt_logprobs":1,"prompt_logprobs":null,"#, false),
        (Chat, r#""echo":true,"logprobs":false,"#, true),
        (Chat, r#""prompt_logprobs":-1,"#, true),
        (Chat, r#""logprobs":true,"top_logprobs":2,"#, false),
        (Responses, r#""prompt_logprobs":1,"#, false),
        (Generate, r#""sampling_params":{"n":1,"prompt_logprobs":0,"stop":["."]},"#, true),
        (Generate, r#""sampling_params":{"prompt_logprobs":null,"skip_reading_prefix_cache":null},"#, false),
        (Generate, r#""sampling_params":{"skip_reading_prefix_cache":true,"prompt_logprobs":null},"#, true),
        (Generate, r#""sampling_params":{"prompt_logprobs":1,"skip_reading_prefix_cache":false},"#, false),
        (Generate, r#""sampling_params":{"prompt_logprob_token_ids":[5,6],"prompt_logprobs":null},"#, true),
        (Generate, r#""sampling_params":{"extra_args":{"prompt_logprobs":1}},"prompt_logprobs":1,"#, false),
        (Generate, r#""sampling_params":{"prompt_logprobs":1},"sampling_params":{},"#, false),
        (Chat, r#""sampling_params":{"prompt_logprobs":1},"#, false),
        (Generate, r#""return_logprob":true,"logprob_start_len":0,"#, true),
        (Generate, r#""return_logprob":true,"logprob_start_len":-1,"#, false),
        (Generate, r#""return_logprob":true,"#, false),
        (Generate, r#""logprob_start_len":0,"return_logprob":false,"#, false),
        (Generate, r#""logprob_start_len":0,"logprob_start_len":7,"return_logprob":true,"#, false),
        (Chat, r#""return_logprob":true,"logprob_start_len":0,"#, false),
    ];
    let mut scan = Scan::new();
    for (api, fields, expected) in rows {
        let prompt = match api {
            Completions => r#""prompt":"p","#,
            Chat => r#""messages":[{"role":"user","content":"p"}],"tools":[],"#,
            Generate => r#""token_ids":[5,6,7],"#,
            _ => r#""input":"p","#,
        };
        for parts in [["{", fields, prompt], ["{", prompt, fields]] {
            let body = format!("{}\"n\":1}}", parts.concat());
            let plan = Plan { chain: true, ..Plan::default() };
            scan.begin(api, &plan, Needs::PREFIX);
            let progress = scan.push(body.as_bytes());
            assert_eq!(scan.facts().recomputes(), expected, "{body}");
            let progress = if progress == Progress::More { scan.finish() } else { progress };
            assert_eq!(progress, Progress::Done, "{body}");
        }
    }
}

/// What is behind a model that came late says who asks, but no more of the prompt.
#[test]
fn a_prompt_that_is_sealed_ends_with_the_model() {
    let begins = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":5"#;
    let facts_of = |ends: &str| {
        let mut scan = Scan::new();
        let plan = Plan { chain: true, session_fields: vec![b"user"[..].into()], ..Plan::default() };
        scan.begin(Api::Chat, &plan, Needs::MODEL | Needs::PREFIX | Needs::SESSION);
        scan.push(begins.as_bytes());
        scan.seal_by_model();
        scan.push(ends.as_bytes());
        let mut chain = Vec::new();
        scan.facts().chain(0, &mut chain);
        let facts = scan.facts();
        (facts.prefix(), chain, facts.salt(), facts.counts(), facts.session(), facts.choices)
    };
    let bare = facts_of(r#","model":"m"}"#);
    let rest = r#","tools":[{"type":"function","function":{"name":"f"}}],"cache_salt":"s","messages":[]"#;
    let behind = facts_of(&format!(r#","model":"m"{rest},"user":"u","n":2}}"#));
    assert_eq!((behind.0, behind.1, behind.2, behind.3), (bare.0, bare.1, bare.2, bare.3));
    assert!(behind.4.is_some() && bare.4.is_none() && behind.5 == Some(2));
    let before = facts_of(&format!(r#"{rest},"model":"m"}}"#));
    assert!(before.0 != bare.0 && before.2 != bare.2, "what stands before it counts");
}
