//! Prompts of odd bodies, row by row, and of random ones compared with a plain renderer.

mod calls;
mod oracle;
mod random;
mod tools;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::oracle::ROOT;
use super::super::Fault;
use super::super::lanes::hash;
use super::*;
use crate::limits::{BLOCK_BYTES, LINKS_MAX, STEP_BYTES};
use crate::scan::{Chat, Place, Turn};
use crate::vocabulary::{Lead, Vocabulary};

fn turn(role: &str, trims: bool, stops: &[&str]) -> Turn {
    let before = format!("<|im_start|>{role}\n").into_bytes().into();
    let stops = stops.iter().map(|stop| stop.as_bytes().into()).collect();
    Turn { role: role.as_bytes().into(), before, after: b"<|im_end|>\n"[..].into(), trims, stops, ..Turn::default() }
}

/// ChatML with a system prompt of its own; of the second kind, turns are trimmed or may stop.
fn form(trims: bool, lead: Lead) -> Form {
    let stops: &[&str] = if trims { &["</think>", "[I]"] } else { &[] };
    let chat = Chat {
        start: b"<s>"[..].into(),
        without_system: b"<|im_start|>system\nBe brief.<|im_end|>\n"[..].into(),
        turns: Box::new([turn("system", trims, &[]), turn("user", trims, stops), turn("assistant", false, stops)]),
        joint: b"\n"[..].into(),
        generation: b"<|im_start|>assistant\n"[..].into(),
    };
    let tokens: [Option<&[u8]>; 8] =
        [Some(b"<s>"), Some(b" a"), Some(b"bc"), None, Some(b"[I]"), Some(b"  "), Some("中".as_bytes()), Some(b"")];
    Form {
        id: 1,
        chat: Some(chat),
        vocabulary: Arc::new(Vocabulary::new(&tokens, &[0, 4], lead, &[0])),
        toolsets: Arc::default(),
    }
}

fn rendered(api: Api, form: &Form, body: &[u8]) -> (Rendering, Box<Renderer>) {
    let mut renderer = Box::new(Renderer::new());
    let rendering = renderer.render(api, form, body, false);
    (rendering, renderer)
}

/// Checks that this is all of the prompt, or, if it ends early, all that is known of it.
fn check(api: Api, body: &str, text: &str, ends: Option<Why>) {
    let (rendering, renderer) = rendered(api, &form(true, Lead::Nowhere), body.as_bytes());
    assert_eq!(rendering, Rendering { bytes: text.len() as u64, ends }, "{body}");
    oracle::check_links(&renderer, text.as_bytes());
    if ends.is_none() {
        assert_eq!(renderer.page.value(), hash(text.as_bytes()), "{body}");
    }
}

const FIRST: &str = "<s><|im_start|>system\nBe brief.<|im_end|>\n";
const USER: &str = "<|im_start|>user\n";
const ASKS: &str = "<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn a_chat_is_written_as_its_template_does() {
    let hi = r#""messages":[{"role":"user","content":"Hi\n"}]"#;
    let body = |more: &str| format!("{{{hi}{more}}}");
    let whole = format!("{FIRST}{USER}Hi{ASKS}");
    check(Api::Chat, &body(""), &whole, None);
    check(Api::Tokenize, &body(r#","prompt":null"#), &whole, None);
    check(Api::Tokenize, &body(r#","prompt":"x","prompt":null"#), &whole, None);
    check(Api::Chat, &body(r#","tools":null,"chat_template":"x","chat_template":null"#), &whole, None);
    check(Api::Chat, &body(r#","add_generation_prompt":false"#), &format!("{FIRST}{USER}Hi<|im_end|>\n"), None);
    check(Api::Chat, &body(r#","continue_final_message":true"#), &format!("{FIRST}{USER}Hi"), None);
    check(Api::Chat, &format!("\u{feff} {} ", body("")), &whole, None);
    check(Api::Chat, &format!(r#"{{"messages":[{{"role":"tool"}}],{hi}}}"#), &whole, None);
    let late = r#"{"messages":[{"content":"\u0048i","x":{"role":"y"},"role":"user","name":null}]}"#;
    check(Api::Chat, late, &whole, None);
    let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":" H"},"i",{"text":"!","type":"input_text"},{"type":"output_text","text":"?"}]}]}"#;
    check(Api::Chat, parts, &format!("{FIRST}{USER}H\ni\n!\n?{ASKS}"), None);
    let system = r#"{"messages":[{"role":"system","content":"S"},{"role":"assistant","content":["A"]}]}"#;
    let text = format!("<s><|im_start|>system\nS<|im_end|>\n<|im_start|>assistant\nA{ASKS}");
    check(Api::Chat, system, &text, None);
}

/// Roles that are written in another way at some places, or that change what is before them.
#[test]
fn a_form_ends_where_a_role_stands_that_is_written_otherwise() {
    let placed = |place: Place, lone: bool, body: &str| {
        let mut form = form(false, Lead::Nowhere);
        let chat = form.chat.as_mut().unwrap();
        chat.turns[1].lone = lone;
        chat.turns[2].place = place;
        let body = format!(r#"{{"messages":[{body}]}}"#);
        let (rendering, _) = rendered(Api::Chat, &form, body.as_bytes());
        (rendering.bytes as usize, rendering.ends)
    };
    let (user, assistant) = (r#"{"role":"user","content":"U"}"#, r#"{"role":"assistant","content":"A"}"#);
    let asked = format!("{FIRST}{USER}U<|im_end|>\n");
    let answered = format!("{asked}<|im_start|>assistant\nA<|im_end|>\n");
    let whole = |bytes: usize| (bytes + "<|im_start|>assistant\n".len(), None);
    let turns = [user, assistant, user].join(",");
    let again = answered.len() + USER.len() + "U<|im_end|>\n".len();
    assert_eq!(placed(Place::Anywhere, false, &turns), whole(again));
    assert_eq!(placed(Place::NotLast, false, &turns), whole(again));
    assert_eq!(placed(Place::NotLast, false, &[user, assistant].join(",")), (asked.len(), Some(Why::Place)));
    assert_eq!(placed(Place::First, false, &turns), (0, Some(Why::Place)));
    let first = format!(
        "{FIRST}<|im_start|>assistant
A<|im_end|>
{USER}U<|im_end|>
"
    );
    assert_eq!(placed(Place::First, false, &[assistant, user].join(",")), whole(first.len()));
    assert_eq!(placed(Place::Nowhere, false, assistant), (0, Some(Why::Place)));
    // Alone it is written in another way, too.
    assert_eq!(placed(Place::First, false, assistant), ("<s>".len(), Some(Why::Place)));
    let odd = r#"{"role":"odd","content":"x"}"#;
    let odd = [user, odd, user].join(",");
    for place in [Place::First, Place::NotLast, Place::Nowhere] {
        assert_eq!(placed(place, false, &odd), (asked.len(), Some(Why::Role)), "{place:?}");
    }
    // After the part that is not read there may be a message that changes everything before.
    let changed = [odd.as_str(), assistant].join(",");
    assert_eq!(placed(Place::Nowhere, false, &changed), (0, Some(Why::Role)));
    assert_eq!(placed(Place::First, false, &changed), (0, Some(Why::Role)));
    assert_eq!(placed(Place::NotLast, false, &changed), (asked.len(), Some(Why::Role)));
    let parts = r#"{"role":"user","content":["a","b"]}"#;
    assert_eq!(placed(Place::Anywhere, true, &[user, parts].join(",")), (asked.len(), Some(Why::Parts)));
    let one = r#"{"role":"user","content":["U"]}"#;
    assert_eq!(placed(Place::Anywhere, true, one), whole(asked.len()));
}

#[test]
fn a_message_that_the_form_does_not_know_is_taken_back() {
    let before = format!("{FIRST}{USER}Hi<|im_end|>\n");
    let cases = [
        (r#"{"role":"tool","content":"x"}"#, Why::Role),
        (r#"{"content":"x"}"#, Why::Role),
        (r#"{"role":null}"#, Why::Role),
        (r#"{"role":"user","role":"user"}"#, Why::Twice),
        (r#"{"role":"user","content":"x","content":null}"#, Why::Twice),
        (r#"{"role":"user","content":"x","tool_calls":[{}]}"#, Why::Message),
        (r#"{"name":"n","role":"user","content":"x"}"#, Why::Message),
        (r#"{"role":"assistant","content":"x","reasoning":"r"}"#, Why::Message),
        (r#"{"role":"assistant","content":"x","reasoning_content":"r"}"#, Why::Message),
        (r#"{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{}}]}"#, Why::Media),
        (r#"{"role":"user","content":[{"image_url":{}}]}"#, Why::Media),
        (r#"{"role":"user","content":[{"text":"x"}]}"#, Why::Prompt),
        (r#"{"role":"user","content":[{"type":"text","text":null}]}"#, Why::Prompt),
        (r#"{"role":"user","content":[{"type":"text","text":"x","text":"y"}]}"#, Why::Twice),
        (r#"{"role":"user","content":null}"#, Why::Empty),
        (r#"{"role":"user"}"#, Why::Empty),
        (r#"{"role":"user","content":" \n"}"#, Why::Empty),
        (r#"{"role":"user","content":[]}"#, Why::Empty),
        (r#"{"role":"user","content":7}"#, Why::Prompt),
        (r#"{"role":"user","content":{}}"#, Why::Prompt),
        (r#""x""#, Why::Prompt),
        (r#"{"role":"user","content":"a</\u0074hink>b"}"#, Why::Stop),
        (r#"{"content":"a[\u0049]b","role":"user"}"#, Why::Stop),
        (r#"{"role":"user","content":"x\u00a0 "}"#, Why::Space),
    ];
    let mut looks_back = form(true, Lead::Nowhere);
    let chat = looks_back.chat.as_mut().unwrap();
    let developer = Turn { role: b"developer"[..].into(), place: Place::Nowhere, ..Turn::default() };
    chat.turns = chat.turns.iter().cloned().chain([developer]).collect();
    for (message, why) in cases {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"Hi"}},{message},{{"role":"user"}}],"n":1}}"#);
        check(Api::Chat, &body, &before, Some(why));
        // If a role may change what is before it, the roles of all messages have to be known.
        let has_role = !matches!(message.matches(r#""role":""#).count(), 0 | 2);
        let bytes = if has_role { before.len() as u64 } else { 0 };
        let (rendering, _) = rendered(Api::Chat, &looks_back, body.as_bytes());
        assert_eq!(rendering, Rendering { bytes, ends: Some(why) }, "{body}");
    }
}

#[test]
fn nothing_is_known_where_the_body_says_otherwise() {
    let prompt = r#""messages":[{"role":"user","content":"Hi"}]"#;
    let cases = [
        (r#","tools":[]"#, Why::Tools),
        (r#","chat_template_kwargs":{"enable_thinking":false}"#, Why::Field),
        (r#","documents":[]"#, Why::Field),
        (r#","truncate_prompt_tokens":5"#, Why::Field),
        (r#","input_ids":[5,6,7]"#, Why::Field),
        (r#","add_special_tokens":true"#, Why::Field),
        (r#","add_generation_prompt":"no""#, Why::Field),
        (r#","continue_final_message":null"#, Why::Field),
        (r#","messages":null"#, Why::Prompt),
        (r#","messages":"x""#, Why::Prompt),
        (r#","x":[1"#, Why::Body(Fault::Truncated)),
        (r#","x":tru!"#, Why::Body(Fault::Syntax)),
        (r#","#, Why::Body(Fault::Syntax)),
        (r#"} x"#, Why::Body(Fault::Trailing)),
    ];
    for (more, why) in cases {
        check(Api::Chat, &format!("{{{prompt}{more}}}"), "", Some(why));
    }
    for name in oracle::ALTERING {
        check(Api::Chat, &format!(r#"{{{prompt},"{name}":"low"}}"#), "", Some(Why::Field));
    }
    check(Api::Tokenize, &format!(r#"{{{prompt},"prompt":"x"}}"#), "", Some(Why::Prompt));
    check(Api::Chat, "", "", Some(Why::Body(Fault::Empty)));
    check(Api::Chat, "[]", "", Some(Why::Body(Fault::NotObject)));
    check(Api::Chat, r#"{"messages":[{"role":"user","content":"\x"}]}"#, "", Some(Why::Body(Fault::Escape)));
    check(Api::Chat, r#"{"prompt":"x"}"#, "", Some(Why::Prompt));
    check(Api::Responses, r#"{"input":"x"}"#, "", Some(Why::Api));
    check(Api::Chat, r#"{"messages":[]}"#, "", Some(Why::Prompt));
    let bare = Form { chat: None, ..form(false, Lead::Nowhere) };
    let (rendering, _) = rendered(Api::Chat, &bare, format!("{{{prompt}}}").as_bytes());
    assert_eq!(rendering, Rendering { bytes: 0, ends: Some(Why::Template) });
}

#[test]
fn bare_prompts_begin_as_their_tokenizer_begins_them() {
    check(Api::Completions, r#"{"prompt":"Hi"}"#, "<s>Hi", None);
    check(Api::Completions, r#"{"prompt":"Hi","add_special_tokens":false}"#, "Hi", None);
    check(Api::Completions, r#"{"add_special_tokens":false,"prompt":["Hi","x"]}"#, "Hi", None);
    check(Api::Tokenize, r#"{"prompt":"Hi","messages":[],"messages":null}"#, "<s>Hi", None);
    check(Api::Completions, r#"{"prompt":[0,1, 2 ,6]}"#, "<s> abc中", None);
    check(Api::Completions, r#"{"prompt":[[1],[3]]}"#, " a", None);
    check(Api::Generate, r#"{"token_ids":[0,1, 2 ,6],"sampling_params":{}}"#, "<s> abc中", None);
    check(Api::Generate, r#"{"token_ids":[0,1],"features":{"mm_hashes":{}}}"#, "", Some(Why::Field));
    check(Api::Generate, r#"{"token_ids":[0,1],"features":null}"#, "<s> a", None);
    check(Api::Generate, r#"{"text":"Hi"}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":[1,2,3,1]}"#, " abc", Some(Why::Token));
    check(Api::Completions, r#"{"prompt":[1,-2]}"#, " a", Some(Why::Token));
    check(Api::Completions, r#"{"prompt":[7]}"#, "", Some(Why::Token));
    check(Api::Completions, r#"{"prompt":[1,"a"]}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":["a",1]}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":[]}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":[[]]}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":{}}"#, "", Some(Why::Prompt));
    check(Api::Completions, r#"{"prompt":[1,]}"#, "", Some(Why::Body(Fault::Syntax)));
    check(Api::Completions, r#"{"prompt":"Hi","suffix":"x"}"#, "", Some(Why::Field));
}

#[test]
fn white_space_is_followed_so_far() {
    for (run, ends) in [(256, None), (257, Some(Why::Space))] {
        let inner = " \\t".repeat(run / 2) + &" ".repeat(run % 2);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"  a{inner}b{inner}"}}]}}"#);
        let text = format!("{FIRST}{USER}a{}b{ASKS}", inner.replace("\\t", "\t"));
        check(Api::Chat, &body, if ends.is_none() { &text } else { "<s>" }, ends);
    }
}

/// All that Python's `strip` takes off: white space of more than one byte ends the form if it is at one end.
#[test]
fn white_space_is_what_python_takes_for_it() {
    let narrow = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} ";
    let wide = "\u{85}\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";
    assert_eq!((narrow.chars().count(), wide.chars().count()), (10, 19));
    let said =
        |content: &str| format!(r#"{{"messages":[{{"role":"user","content":{}}}]}}"#, serde_json::json!(content));
    let whole = format!("{FIRST}{USER}Hi{ASKS}");
    for space in narrow.chars() {
        for content in [format!("{space}Hi"), format!("Hi{space}")] {
            check(Api::Chat, &said(&content), &whole, None);
        }
    }
    for space in wide.chars() {
        for content in [format!("{space}Hi"), format!("Hi{space}")] {
            check(Api::Chat, &said(&content), "<s>", Some(Why::Space));
        }
        let inside = format!("H{space}i");
        check(Api::Chat, &said(&inside), &whole.replace("Hi", &inside), None);
    }
}

#[test]
fn chains_are_bounded_and_nothing_is_allocated() {
    let form = form(false, Lead::Nowhere);
    let text = "lorem ipsum ".repeat(2 * LINKS_MAX * BLOCK_BYTES / 12);
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let mut renderer = Box::new(Renderer::new());
    let (mut blocks, mut steps) = (Vec::with_capacity(LINKS_MAX), Vec::with_capacity(4 * LINKS_MAX));
    let allocations = allocation_counter::measure(|| {
        assert_eq!(renderer.render(Api::Chat, &form, body.as_bytes(), false).ends, None);
        renderer.links(ROOT, &mut blocks, &mut steps);
    });
    assert_eq!(allocations.count_total, 0);
    assert_eq!((blocks.len(), steps.len()), (LINKS_MAX, LINKS_MAX * (BLOCK_BYTES / STEP_BYTES - 1)));
}

#[test]
fn what_is_written_is_what_a_plain_renderer_writes() {
    let cases = 1_500;
    let api = prop::sample::select(vec![Api::Chat, Api::Chat, Api::Completions, Api::Tokenize]);
    let (whole, ended) = (Cell::new(0), Cell::new(0));
    run(cases, (api, calls::shape(), random::body()), |text, is_whole| {
        whole.set(whole.get() + u32::from(is_whole));
        ended.set(ended.get() + u32::from(!is_whole && text.len() > BLOCK_BYTES));
    });
    // They are drawn anew each time, some 255 and 17: these bounds are low enough not to fail by chance.
    assert!(whole.get() > cases / 16 && ended.get() > cases / 1_000, "{} whole, {} ended", whole.get(), ended.get());
}

#[test]
fn calls_and_results_are_written_as_a_plain_renderer_writes_them() {
    let cases = 600;
    let seen: [Cell<u32>; 4] = Default::default();
    run(cases, (Just(Api::Chat), calls::shape(), calls::body()), |text, is_whole| {
        let has = |part: &[u8]| memchr::memmem::find(text, part).is_some();
        let counts = [is_whole, has(b"<call>"), has(b"<joined>"), is_whole && has(b"<call>") && has(b"[T]")];
        counts.into_iter().zip(&seen).for_each(|(counts, seen)| seen.set(seen.get() + u32::from(counts)));
    });
    let seen = seen.map(|seen| seen.get());
    // Some 128, 84, 53 and 13.
    assert!(seen[0] > cases / 16 && seen[1] > cases / 20 && seen[2] > cases / 40 && seen[3] > 0, "{seen:?}");
}

/// Random bodies, by their API, form and fields.
type Drawn = (Api, calls::Shape, Vec<(&'static str, random::Json)>);

/// Compares what all kernels write of random bodies with the plain renderer; returns for each what is known, and
/// whether it is all.
fn run(cases: u32, strategy: impl Strategy<Value = Drawn>, note: impl Fn(&[u8], bool)) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let lead = prop::sample::select(vec![Lead::Nowhere, Lead::First, Lead::BehindSpecial]);
    let renderers: RefCell<Vec<_>> =
        RefCell::new(Kernel::available().map(|kernel| Box::new(Renderer::with(kernel))).collect());
    let result = runner.run(&(strategy, lead, any::<u64>()), |((api, shape, body), lead, seed)| {
        let form = shape.form(lead);
        let mut scribe = random::Scribe { out: String::new(), state: seed };
        scribe.object(&body);
        let bytes = scribe.out.as_bytes();
        assert!(serde_json::from_slice::<serde_json::Value>(bytes).is_ok(), "{}", scribe.out);
        let (text, whys) = oracle::expected(api, &form, &body);
        for (place, renderer) in renderers.borrow_mut().iter_mut().enumerate() {
            let got = renderer.render(api, &form, bytes, seed >> (32 + place) & 1 == 1);
            assert_eq!(got.bytes, text.len() as u64, "{got:?} {whys:?} {api:?} {}", scribe.out);
            assert_eq!(got.ends.is_some(), !whys.is_empty(), "{got:?} {whys:?} {}", scribe.out);
            assert!(got.ends.is_none_or(|why| whys.contains(&why)), "{got:?} {whys:?} {}", scribe.out);
            oracle::check_links(renderer, &text);
            if got.ends.is_none() {
                assert_eq!(renderer.page.value(), hash(&text), "{}", scribe.out);
            }
            let unknown = renderer.unknown_tools().map(|unknown| scribe.out.get(unknown).unwrap());
            assert_eq!(unknown, oracle::unknown_tools(api, &form, &body, got.ends), "{got:?} {}", scribe.out);
        }
        // A body that is broken anywhere, or cut off, must cause no panic, and nothing is known of it if it is no
        // object.
        let place = seed as usize % bytes.len();
        let mut broken = bytes.to_vec();
        broken[place] ^= 1 << (seed >> 60 & 7);
        let renderer = &mut renderers.borrow_mut()[0];
        renderer.render(api, &form, &broken, seed >> 31 & 1 == 1);
        let cut = renderer.render(api, &form, &bytes[..place], seed >> 31 & 1 == 1);
        assert!(cut.bytes == 0 && matches!(cut.ends, Some(Why::Body(_))), "{cut:?} {}", scribe.out);
        note(&text, whys.is_empty());
        Ok(())
    });
    result.unwrap();
}
