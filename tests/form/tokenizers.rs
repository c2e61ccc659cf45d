//! `tokenizer.json` of every kind: what becomes text, and what is refused.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use warmfront::vocabulary::{Lead, Run, Unreadable, Vocabulary};

use super::recordings::TOKENIZER;
use super::tools::on_processor;

fn read(file: &Value) -> Result<Vocabulary, Unreadable> {
    Vocabulary::read(file.to_string().as_bytes())
}

fn text(vocabulary: &Vocabulary, ids: &[u32]) -> String {
    let mut run = Run::begin(vocabulary);
    let out: Vec<u8> = ids.iter().flat_map(|id| run.text(vocabulary, *id).expect("a known id")).copied().collect();
    String::from_utf8_lossy(&out).into_owned()
}

/// As Llama 2 has it: a space put before each text, a token for each byte.
fn pieces() -> Value {
    let mut vocabulary = json!({"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 4, "▁a": 5, "b": 6, "▁▁": 7});
    vocabulary["<0x0A>"] = 3.into();
    json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true, "lstrip": false, "rstrip": false},
            {"id": 1, "content": "<s>", "special": true},
            {"id": 2, "content": "</s>", "special": true},
            {"id": 9, "content": "a▁\n", "special": false, "normalized": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
        "decoder": {"type": "ByteFallback"},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": vocabulary, "merges": [["▁", "a"]]},
    })
}

#[test]
fn letters_for_bytes_are_read() {
    let vocabulary = Vocabulary::read(TOKENIZER).expect("a tokenizer");
    assert_eq!(
        (vocabulary.lead(), vocabulary.begins(), vocabulary.special()),
        (Lead::Nowhere, [].as_slice(), [0, 1, 2].as_slice())
    );
    assert_eq!(text(&vocabulary, &[1, 2644, 2]), "<|im_start|>You<|im_end|>");
    // All bytes have a token.
    let mut single: Vec<&[u8]> =
        (0..vocabulary.ids()).filter_map(|id| vocabulary.text(id)).filter(|text| text.len() == 1).collect();
    single.sort_unstable();
    single.dedup();
    assert_eq!(single.len(), 256);
}

#[test]
fn pieces_are_read() {
    let vocabulary = read(&pieces()).expect("a tokenizer");
    assert_eq!(
        (vocabulary.lead(), vocabulary.begins(), vocabulary.special()),
        (Lead::BehindSpecial, [1].as_slice(), [0, 1, 2, 9].as_slice())
    );
    assert_eq!(text(&vocabulary, &[1, 5, 6, 3, 5, 2, 5, 7, 6]), "<s>ab\n a</s>a  b");
    assert_eq!(text(&vocabulary, &[0, 9]), "<unk>a \n", "spaces of an added token");
    assert_eq!(vocabulary.text(8), None);
    let mut lossy = pieces();
    lossy["model"]["byte_fallback"] = false.into();
    let lossy = read(&lossy).expect("a tokenizer");
    assert_eq!((lossy.text(0), lossy.text(3)), (None, Some(b"<0x0A>".as_slice())), "what nobody knows became <unk>");
}

/// As tokenizers 0.23.3 makes tokens of these texts, and again texts of them. Gemma lists runs of spaces as added tokens.
#[test]
fn added_runs_of_spaces_are_spaces() {
    let mut file = pieces();
    file["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    file["post_processor"] = Value::Null;
    file["added_tokens"] = json!([
        {"id": 3, "content": "▁▁", "special": false, "normalized": false},
        {"id": 7, "content": "<▁>", "special": true, "normalized": false},
    ]);
    file["model"]["vocab"] = json!({"<unk>": 0, "▁": 1, "a": 2, "▁▁": 3, "▁a": 4, "<▁>": 7});
    let vocabulary = read(&file).expect("a tokenizer");
    for (ids, expected) in [([2, 3, 2].as_slice(), "a  a"), (&[2, 3, 4], "a   a"), (&[2, 7, 3, 2], "a<▁>  a")] {
        assert_eq!(text(&vocabulary, ids), expected);
    }
}

#[test]
fn scores_are_read_as_places() {
    let mut file = pieces();
    file["model"] = json!({"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0], ["▁a", -1.5], ["b", -2]]});
    file["added_tokens"] = json!([]);
    let vocabulary = read(&file).expect("a tokenizer");
    assert_eq!((vocabulary.text(0), text(&vocabulary, &[1, 2, 1])), (None, "ab a".to_owned()));
}

/// As tokenizers 0.23 itself puts spaces.
#[test]
fn spaces_are_where_the_file_says() {
    let metaspace =
        |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let letters = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix});
    let sequence = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let split = json!({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"});
    for (pre_tokenizer, lead) in [
        (metaspace("always"), Lead::BehindSpecial),
        (metaspace("first"), Lead::First),
        (metaspace("never"), Lead::Nowhere),
        (json!({"type": "Metaspace", "add_prefix_space": true}), Lead::BehindSpecial),
        (json!({"type": "Metaspace", "add_prefix_space": false}), Lead::Nowhere),
        (letters(true), Lead::BehindSpecial),
        (sequence(&[split, letters(false)]), Lead::Nowhere),
    ] {
        let mut file = pieces();
        file["normalizer"] = json!({"type": "NFC"});
        file["pre_tokenizer"] = pre_tokenizer.clone();
        assert_eq!(read(&file).map(|vocabulary| vocabulary.lead()), Ok(lead), "{pre_tokenizer}");
    }
}

/// Llama 3 has its own in a sequence, behind one that puts nothing anywhere.
#[test]
fn prompts_begin_as_the_file_says() {
    let own = pieces()["post_processor"].clone();
    let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": true}, own]});
    let roberta = json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]});
    for post_processor in [own.clone(), sequence, roberta] {
        let mut file = pieces();
        file["post_processor"] = post_processor.clone();
        let vocabulary = read(&file).expect("a tokenizer");
        assert_eq!(vocabulary.begins(), [1], "{post_processor}");
    }
}

#[test]
fn what_does_not_keep_bytes_is_refused_in_words() {
    let with = |pointer: &str, value: Value| {
        let mut file = pieces();
        *file.pointer_mut(pointer).expect("a field") = value;
        read(&file).expect_err(pointer).to_string()
    };
    for normalizer in ["Lowercase", "Strip", "BertNormalizer", "StripAccents", "NFKC", "Precompiled", "Nmt"] {
        let why = with("/normalizer", json!({"type": normalizer}));
        assert!(why.starts_with(&format!("its normalizer {normalizer} changes a text's bytes")), "{why}");
    }
    let replace = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
    assert!(with("/normalizer/normalizers/1", replace).contains("Replace"));
    assert!(with("/pre_tokenizer", json!({"type": "Whitespace"})).contains("pre-tokenizer Whitespace"));
    assert!(with("/pre_tokenizer", json!({"type": "Split", "behavior": "Removed"})).contains("Split"));
    // What matches is kept where that is turned around, and is all of a text or not.
    let kept =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": true});
    let mut all = pieces();
    all["pre_tokenizer"] = kept(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
    assert!(read(&all).is_ok());
    assert!(with("/pre_tokenizer", kept(r"\p{L}+|\p{N}|\s+")).contains("Split"));
    let behind = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": true}]});
    assert!(with("/pre_tokenizer", behind).contains("ByteLevel behind others"));
    assert!(with("/model/type", json!("WordPiece")).contains("WordPiece"));
    assert!(with("/normalizer", Value::Null).contains("how its tokens spell spaces"));
    for side in ["lstrip", "rstrip"] {
        let taken = with("/added_tokens/1", json!({"id": 1, "content": "<|user|>", side: true}));
        assert!(taken.contains("white space next to it"), "{side}: {taken}");
    }
    assert!(with("/added_tokens/1", json!({"id": 1 << 23, "content": "a"})).contains("8388608"));
    assert!(with("/added_tokens/1", json!({"id": 1, "content": "a".repeat(5000)})).contains("4096"));
    assert!(with("/model/vocab", json!({"a": 1, "b": 1})).contains("two tokens 1"));
    let mut affix = pieces();
    affix["model"]["end_of_word_suffix"] = "</w>".into();
    assert!(read(&affix).expect_err("an affix").to_string().contains("</w>"));
    assert!(matches!(Vocabulary::read(&vec![b' '; (64 << 20) + 1]), Err(Unreadable::Long(_))));
    assert!(matches!(Vocabulary::read(&b"[".repeat(100_000)), Err(Unreadable::Syntax(_))));
}

/// 256,000 tokens and as many merges.
#[test]
fn large_files_are_read_at_once() {
    let mut file = String::from(
        r#"{"added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "vocab": {"#,
    );
    for id in 0..256_000 {
        write!(file, "{}\"Ġto\\u0120ken{id}\": {id}", if id > 0 { ", " } else { "" }).expect("memory");
    }
    file.push_str("}, \"merges\": [\"a b\"");
    (0..256_000).for_each(|id| write!(file, ", [\"Ġto\", \"ken{id}\"]").expect("memory"));
    file.push_str("]}}");
    let at = on_processor();
    let vocabulary = Vocabulary::read(file.as_bytes()).expect("a tokenizer");
    let took = on_processor() - at;
    println!("{} bytes, {} tokens: {took:?}", file.len(), vocabulary.ids());
    assert_eq!(vocabulary.text(255_999), Some(b" to ken255999".as_slice()));
    assert!(took < Duration::from_secs(10), "{took:?}");
}
