//! Recorded replies, cut everywhere, and texts that look like usage and are none.

use super::*;
use crate::http::{Body, BodyLength};

const fn usage(prompt: u32, cached: Option<u32>, completion: u32) -> Option<Usage> {
    Some(Usage {
        prompt: Some(prompt),
        cached,
        completion: Some(completion),
        aborted: false,
        by_anthropics_names: false,
        opens: false,
    })
}

const fn by_anthropics_names(usage: Option<Usage>) -> Option<Usage> {
    match usage {
        Some(usage) => Some(Usage { by_anthropics_names: true, ..usage }),
        None => None,
    }
}

/// Raw replies of vLLM 0.32 and of SGLang 0.5.23, and what they tell.
const RECORDED: [(&str, &[u8], Option<Usage>); 17] = [
    ("generate", include_bytes!("../../../tests/fixtures/sglang-0.5.23/generate.response"), usage(226, Some(224), 4)),
    (
        "generate stream",
        include_bytes!("../../../tests/fixtures/sglang-0.5.23/generate-stream.response"),
        usage(226, Some(224), 3),
    ),
    (
        "messages stream of SGLang",
        include_bytes!("../../../tests/fixtures/sglang-0.5.23/messages-stream.response"),
        by_anthropics_names(usage(234, Some(224), 3)),
    ),
    ("chat", include_bytes!("../../../tests/fixtures/vllm-0.32.0/chat.response"), usage(27, None, 16)),
    ("details", include_bytes!("../../../tests/fixtures/engine/chat-details.response"), usage(27, Some(0), 16)),
    ("batch", include_bytes!("../../../tests/fixtures/vllm-0.32.0/completion-batch.response"), usage(4, None, 8)),
    ("completion", include_bytes!("../../../tests/fixtures/vllm-0.32.0/completion.response"), usage(4, None, 16)),
    ("stream", include_bytes!("../../../tests/fixtures/vllm-0.32.0/chat-stream.response"), None),
    (
        "stream 256",
        include_bytes!("../../../tests/fixtures/vllm-0.32.0/chat-stream-256.response"),
        usage(27, None, 256),
    ),
    ("usage", include_bytes!("../../../tests/fixtures/vllm-0.32.0/chat-stream-usage.response"), usage(27, None, 16)),
    (
        "continuous",
        include_bytes!("../../../tests/fixtures/vllm-0.32.0/chat-stream-usage-continuous.response"),
        usage(27, None, 16),
    ),
    (
        "stream details",
        include_bytes!("../../../tests/fixtures/engine/chat-stream-details.response"),
        usage(27, Some(0), 16),
    ),
    ("not found", include_bytes!("../../../tests/fixtures/vllm-0.32.0/embeddings.response"), None),
    (
        "responses stream",
        include_bytes!("../../../tests/fixtures/vllm-0.32.0/responses-stream.response"),
        usage(14, Some(0), 16),
    ),
    ("responses", include_bytes!("../../../tests/fixtures/vllm-0.32.0/responses.response"), usage(14, Some(0), 16)),
    (
        "messages stream",
        include_bytes!("../../../tests/fixtures/vllm-0.32.0/messages-stream.response"),
        usage(14, None, 16),
    ),
    ("messages", include_bytes!("../../../tests/fixtures/vllm-0.32.0/messages.response"), usage(14, None, 16)),
];

/// A reply as an exchange meets it: by the parts of its framing, in pieces that end at `cuts`.
fn read(name: &str, raw: &[u8], cuts: &[usize]) -> Option<Usage> {
    let api = match name.split(' ').next() {
        Some("generate") => Api::Generate,
        Some("messages") => Api::Messages,
        _ => Api::Chat,
    };
    let head = memchr::memmem::find(raw, b"\r\n\r\n").unwrap() + 4;
    let (head, body) = raw.split_at(head);
    let says = |words: &[u8]| memchr::memmem::find(head, words).is_some();
    let length = if says(b"chunked") { BodyLength::Chunked } else { BodyLength::Length(body.len() as u64) };
    read_body(body, length, says(b"event-stream").then_some(api), cuts)
}

fn read_body(body: &[u8], length: BodyLength, stream: Option<Api>, cuts: &[usize]) -> Option<Usage> {
    let (mut reader, mut framing, mut found) = (Reader::default(), Body::new(length), None);
    let bounds = cuts.iter().copied().chain([body.len()]);
    let mut from = 0;
    for to in bounds {
        let mut rest = &body[from..to];
        while !rest.is_empty() && !framing.done() {
            let part = framing.next(rest).unwrap();
            let data = part.data(rest);
            let told = match stream {
                Some(api) => reader.stream(data, api),
                None => reader.body(data, framing.left()),
            };
            found = told.map_or(found, |now| Some(now.behind(found)));
            rest = &rest[part.len..];
        }
        from = to;
    }
    assert!(reader.kept.capacity() <= LOOK_BYTES);
    assert!(stream.is_none() || reader.kept.is_empty(), "nothing is kept behind the last line");
    if stream.is_none() { reader.end().or(found) } else { found }
}

#[test]
fn recorded_replies_tell_the_same_at_every_cut() {
    for (name, raw, expected) in RECORDED {
        let len = raw.len() - memchr::memmem::find(raw, b"\r\n\r\n").unwrap() - 4;
        // Of a long stream its last events, and some places before.
        for cut in (0..=len).filter(|cut| len - cut < 2_500 || cut % 101 == 0) {
            assert_eq!(read(name, raw, &[cut]), expected, "{name} cut at {cut}");
        }
        for step in [1, 2, 7, 100, 1_000] {
            let cuts: Vec<usize> = (0..len).step_by(step).collect();
            assert_eq!(read(name, raw, &cuts), expected, "{name} in pieces of {step}");
        }
    }
}

#[test]
fn a_long_body_is_read_at_its_end_whatever_its_framing() {
    let end = br#""}}],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    let body = [&br#"{"choices":[{"message":{"content":""#[..], &[b'x'; 5_000], end].concat();
    for length in [BodyLength::Length(body.len() as u64), BodyLength::UntilClose] {
        for step in [1, 100, 700, 1_024, 4_096, 10_000] {
            let cuts: Vec<usize> = (0..body.len()).step_by(step).collect();
            assert_eq!(read_body(&body, length, None, &cuts), usage(9, Some(4), 3), "{length:?} by {step}");
        }
        for cut in body.len() - 1_200..body.len() {
            assert_eq!(read_body(&body, length, None, &[cut]), usage(9, Some(4), 3), "{length:?} at {cut}");
        }
    }
}

#[test]
fn what_looks_like_usage_is_not_believed() {
    const SAID: &str =
        r#""usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1}}"#;
    let escaped = SAID.replace('"', "\\\"");
    let twice = escaped.replace('\\', "\\\\");
    for text in [
        format!(r#"{{"choices":[{{"text":"{escaped}"}}]}}"#),
        format!(r#"{{"choices":[{{"text":"{escaped}}}"}}]}}"#),
        format!(r#"{{"choices":[{{"text":"{twice}"}}]}}"#),
        format!(r#"{{"choices":[{{"text":"\\{escaped}"}}]}}"#),
        // Keys of that name elsewhere: in the schema of a tool, in what stands behind.
        format!(r#"{{"tools":[{{"parameters":{{{SAID}}}}}]}}"#),
        format!(r#"{{"tools":{{{SAID}}},"usage":null}}"#),
        format!(r#"{{"metrics":{{{SAID}}}}}"#),
        format!(r#"[{{{SAID}}}]"#),
        // The end of another key.
        r#"{"said \"usage":{"prompt_tokens":1}}"#.to_owned(),
        // Cut off, or more behind it.
        format!(r#"{{{SAID}"#),
        format!(r#"{{{SAID}}} {{}}"#),
        r#"{"usage":{}}"#.to_owned(),
        r#"{"usage":null}"#.to_owned(),
        r#"{"usage":[{"prompt_tokens":1}]}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":-1}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":1.5}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":"1"}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":99999999999999999999}}"#.to_owned(),
        r#"{"usage":{"x":{"prompt_tokens":1}}}"#.to_owned(),
        r#"{"usage":{"x":1},"prompt_tokens":1}"#.to_owned(),
        r#"{"usage":{"x":"prompt_tokens","y":[1]}}"#.to_owned(),
        r#"{"usage":{"input_tokens":-1,"output_tokens":2}}"#.to_owned(),
        r#"{"usage":{"input_tokens":16777216,"cache_read_input_tokens":1,"output_tokens":2}}"#.to_owned(),
        r#"{"usage":{"cache_read_input_tokens":1,"output_tokens":2}}"#.to_owned(),
        r#"{"usage":{"input_tokens":0,"output_tokens":0,"cache_read_input_tokens":0}}"#.to_owned(),
        r#"{"usage":{"prompt_tokens":0,"completion_tokens":0}}"#.to_owned(),
        // Of a response that has only begun, or is told of in another event, or two objects deeper.
        format!(r#"{{"response":{{{SAID}}},"type":"response.in_progress"}}"#),
        format!(r#"{{"response":{{{SAID}}},"sequence_number":3,"type":"response.in_progress"}}"#),
        format!(r#"{{"response":{{{SAID},"sequence_number":3}}}}"#),
        format!(r#"{{"response":{{{SAID}}},"x":{{"sequence_number":3}}}}"#),
        format!(r#"{{"response":{{{SAID}}},"kind":"response.completed"}}"#),
        format!(r#"{{"response":{{{SAID},"type":"response.completed"}}}}"#),
        format!(r#"{{"response":{{{SAID}}},"x":{{"type":"response.completed"}}}}"#),
        format!(r#"{{"response":{{"x":{{{SAID}}}}},"type":"response.completed"}}"#),
        format!(r#"{{"response":{{{SAID}}},"type":"response.completed"}} {{}}"#),
        format!(r#"{{"response":{{{SAID}}},"type":"response.completed""#),
        r#"{"type":"message_start","message":{"usage":{"input_tokens":14,"output_tokens":0}}}"#.to_owned(),
        // More than the request had was computed: the response before it, a turn for each tool that was called.
        r#"{"previous_response_id":"resp_1","usage":{"input_tokens":9,"output_tokens":2}}"#.to_owned(),
        r#"{"usage":{"input_tokens":9,"output_tokens":2},"previous_response_id":"resp_1","text":null}"#.to_owned(),
        r#"{"usage":{"input_tokens":9,"input_tokens_details":{"input_tokens_per_turn":[4,5]},"output_tokens":2}}"#
            .to_owned(),
    ] {
        let mut reader = Reader::default();
        assert_eq!(reader.body(text.as_bytes(), Some(0)), None, "{text}");
        assert_eq!(reader.stream(format!("data: {text}\n\n").as_bytes(), Api::Chat), None, "{text}");
    }
}

/// What vLLM 0.32 and SGLang 0.5.23 write for the other APIs where caches held something.
#[test]
fn each_api_has_its_own_names() {
    for (text, expected) in [
        // `/v1/messages`: what was read from the cache, and what was written to it, stand beside the rest.
        (
            r#"{"usage":{"input_tokens":3,"output_tokens":16,"cache_creation_input_tokens":7,"cache_read_input_tokens":32}}"#,
            Some(32),
        ),
        (r#"{"usage":{"input_tokens":10,"output_tokens":16,"cache_read_input_tokens":32}}"#, Some(32)),
        (r#"{"usage":{"input_tokens":42,"output_tokens":16,"cache_read_input_tokens":0}}"#, Some(0)),
        (r#"{"usage":{"input_tokens":42,"output_tokens":16,"cache_read_input_tokens":null}}"#, None),
        (
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":42,"output_tokens":16}}"#,
            None,
        ),
        // `/v1/responses`: in the whole, with one turn or none told of.
        (
            r#"{"previous_response_id":null,"usage":{"input_tokens":42,"input_tokens_details":{"cached_tokens":32,"input_tokens_per_turn":[42]},"output_tokens":16,"output_tokens_details":{"output_tokens_per_turn":[9,7]}},"user":null}"#,
            Some(32),
        ),
        (
            r#"{"response":{"usage":{"input_tokens":42,"input_tokens_details":{"cached_tokens":32},"output_tokens":16},"metadata":{"type":"x"}},"sequence_number":9,"type":"response.completed"}"#,
            Some(32),
        ),
        // One that came to its `max_output_tokens`.
        (
            r#"{"response":{"usage":{"input_tokens":42,"input_tokens_details":{"cached_tokens":32},"output_tokens":16}},"sequence_number":9,"type":"response.incomplete"}"#,
            Some(32),
        ),
        // As SGLang 0.5.23 ends one.
        (
            r#"{"type":"response.incomplete","response":{"id":"resp_6","output":[],"status":"incomplete","usage":{"input_tokens":42,"input_tokens_details":{"cached_tokens":32,"cache_write_tokens":0},"output_tokens":16,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":58},"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"error":null,"incomplete_details":{"reason":"max_output_tokens"},"instructions":null,"max_output_tokens":3,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},"store":true,"temperature":null,"text":{"format":{"type":"text"}},"top_p":null,"truncation":"disabled","user":null,"metadata":{}},"sequence_number":8}"#,
            Some(32),
        ),
        // Servers that give both names mean the same by them.
        (r#"{"usage":{"prompt_tokens":42,"input_tokens":40,"output_tokens":1,"completion_tokens":16}}"#, None),
    ] {
        let told = |text: &str| look(text.as_bytes()).map(|usage| Usage { by_anthropics_names: false, ..usage });
        assert_eq!(told(text), usage(42, expected, 16), "{text}");
        assert_eq!(told(&format!("data: {text}\r")), usage(42, expected, 16), "{text}");
    }
}

/// SGLang's `/generate`, as 0.5.23 writes it: what was cached is told whatever its flags, also that it was nothing.
#[test]
fn sglang_tells_of_its_own_api_as_meta_info() {
    let meta = |cached: u32| {
        format!(
            r#""meta_info":{{"id":"a","finish_reason":{{"type":"length","length":16}},"prompt_tokens":42,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":16,"cached_tokens":{cached},"cached_tokens_details":{{"device":9,"host":0,"cached_tokens":7}},"dp_rank":null,"e2e_latency":0.0157,"response_sent_to_client_ts":1795.5}}"#
        )
    };
    for cached in [0, 32] {
        let body = format!(r#"{{"text":"hi \"meta_info\":{{","output_ids":[1,2],{}}}"#, meta(cached));
        let stream = format!(
            "data: {{\"text\":\"hi\",{}}}\n\ndata: {body}\n\ndata: [DONE]\n\n",
            meta(cached + 1).replace(r#"{"type":"length","length":16}"#, "null")
        );
        for cut in 0..=stream.len() {
            let mut reader = Reader::default();
            let (before, behind) = stream.as_bytes().split_at(cut);
            let first = reader.stream(before, Api::Generate);
            assert_eq!(reader.stream(behind, Api::Generate).or(first), usage(42, Some(cached), 16), "at {cut}");
        }
        for cut in 0..=body.len() {
            let length = BodyLength::Length(body.len() as u64);
            assert_eq!(read_body(body.as_bytes(), length, None, &[cut]), usage(42, Some(cached), 16), "at {cut}");
        }
        // Of several nobody says how much they are together; and it is no member of what is deeper.
        for text in [format!("[{body},{body}]"), format!(r#"{{"x":{{{}}}}}"#, meta(cached)), body.replace("42", "0")] {
            assert_eq!(look(text.as_bytes()), None, "{text}");
        }
    }
}

/// In a stream the events of several come one by one, each with its number behind what it tells; and of what is refused
/// a single token is counted, whatever was asked.
#[test]
fn of_one_of_several_and_of_what_is_refused_meta_info_tells_nothing() {
    let meta = |reason: &str, prompt: u32| {
        format!(
            r#""meta_info":{{"id":"a","finish_reason":{reason},"prompt_tokens":{prompt},"weight_version":"default","completion_tokens":1,"cached_tokens":0,"dp_rank":null}}"#
        )
    };
    let (over, length) = (r#"{"type":"stop","matched":"abort"}"#, r#"{"type":"length","length":1}"#);
    let refused = r#"{"type":"abort","message":"no grammar \"","status_code":400,"err_type":"BadRequestError"}"#;
    for (event, expected) in [
        (format!(r#"{{"text":"a",{}}}"#, meta(over, 42)), usage(42, Some(0), 1)),
        (format!(r#"{{"index":0,"text":"a",{}}}"#, meta(length, 42)), usage(42, Some(0), 1)),
        (format!(r#"{{"text":"a",{},"index":1}}"#, meta(length, 42)), None),
        (format!(r#"{{"text":"",{}}}"#, meta(refused, 1)), None),
        (format!(r#"{{"text":"",{}}}"#, meta(r#"{"type":"abort","message":"Aborted"}"#, 42)), None),
    ] {
        let stream = format!("data: {event}\n\ndata: [DONE]\n\n");
        for cut in 0..=stream.len() {
            let mut reader = Reader::default();
            let (before, behind) = stream.as_bytes().split_at(cut);
            let first = reader.stream(before, Api::Generate);
            assert_eq!(reader.stream(behind, Api::Generate).or(first), expected, "{stream} at {cut}");
        }
    }
}

/// SGLang's streams of messages, as 0.5.23 writes them: their prompt stands in the first event, their answer in the
/// last but one. What vLLM tells in the latter is the whole.
#[test]
fn a_message_is_told_of_in_two_events() {
    let start = |usage: &str| {
        format!(
            "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"sg\",\"usage\":{{{usage}}}}}}}\n\n"
        )
    };
    let delta = |usage: &str| {
        format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{{{usage}}}}}\n\n"
        )
    };
    let text = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\\\"usage\\\"\"}}\n\n";
    let whole = usage(42, Some(32), 16).unwrap();
    let answer = Some(Usage { completion: Some(16), ..Usage::default() });
    let opens = start(r#""input_tokens":10,"cache_read_input_tokens":32,"output_tokens":0"#);
    for (stream, expected) in [
        (format!("{opens}{text}{}", delta(r#""output_tokens":16"#)), Some(whole)),
        (format!("{opens}{}", delta(r#""output_tokens":16"#)), Some(whole)),
        (format!("{opens}{text}"), Some(Usage { completion: None, opens: true, ..whole })),
        (format!("{text}{}", delta(r#""output_tokens":16"#)), answer),
        (
            format!("{}{text}{}", start(r#""input_tokens":42,"output_tokens":0"#), delta(r#""output_tokens":16"#)),
            usage(42, None, 16),
        ),
        (format!("{opens}{text}{}", delta(r#""input_tokens":42,"output_tokens":17"#)), usage(42, Some(32), 17)),
    ] {
        let stream = format!("{stream}event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n");
        for cut in 0..=stream.len() {
            let mut reader = Reader::default();
            let (before, behind) = stream.as_bytes().split_at(cut);
            let first = reader.stream(before, Api::Messages);
            let told = reader
                .stream(behind, Api::Messages)
                .map_or(first, |now| Some(now.behind(first)))
                .map(|usage| Usage { by_anthropics_names: false, ..usage });
            assert_eq!(told, expected, "{stream} at {cut}");
        }
    }
}

/// Who leaves a message of a vLLM is not told that nothing was cached: that comes at its end alone.
#[test]
fn what_opens_a_message_of_vllm_tells_nothing() {
    let opens = |cached: Option<u32>| Usage { completion: None, opens: true, ..usage(42, cached, 0).unwrap() };
    let (vllm, sglang) = (Some(EngineKind::Vllm), Some(EngineKind::Sglang));
    for (cached, engine, prompt) in [
        (None, vllm, None),
        (None, None, None),
        (None, sglang, Some(42)),
        (Some(32), vllm, Some(42)),
        (Some(0), sglang, Some(42)),
    ] {
        assert_eq!(opens(cached).meant_by(engine).prompt, prompt, "{cached:?} {engine:?}");
    }
}

/// All leave out of `input_tokens` what was cached. A zero of others than vLLM says nothing.
#[test]
fn engines_mean_different_things_by_anthropics_zero() {
    let told = |input: u32, cached: u32, engine| {
        let names = format!(r#""input_tokens":{input},"output_tokens":16,"cache_read_input_tokens":{cached}"#);
        let usage = look(format!(r#"{{"usage":{{{names}}}}}"#).as_bytes()).unwrap().meant_by(engine);
        (usage.prompt.unwrap(), usage.cached)
    };
    let (vllm, sglang) = (Some(EngineKind::Vllm), Some(EngineKind::Sglang));
    for (input, cached, engine, expected) in [
        (42, 32, vllm, (74, Some(32))),
        (42, 32, sglang, (74, Some(32))),
        (10, 32, sglang, (42, Some(32))),
        (42, 32, None, (74, Some(32))),
        (42, 0, vllm, (42, Some(0))),
        (42, 0, sglang, (42, None)),
        (42, 0, None, (42, None)),
    ] {
        assert_eq!(told(input, cached, engine), expected, "{input} {cached} {engine:?}");
    }
    let chat = r#"{"usage":{"prompt_tokens":42,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    assert_eq!(look(chat.as_bytes()).map(|chat| chat.meant_by(sglang)), usage(42, Some(0), 16), "there it is told");
}

/// As SGLang from 0.5.14 on writes it of a prompt with images, whether it is to tell of its cache or not.
#[test]
fn a_zero_beside_media_is_not_told() {
    for (details, expected) in [
        (r#"{"cached_tokens":0,"image_tokens":256}"#, None),
        (r#"{"audio_tokens":7,"cached_tokens":0}"#, None),
        (r#"{"cached_tokens":0,"video_tokens":9000}"#, None),
        (r#"{"cached_tokens":64,"image_tokens":256}"#, Some(64)),
        (r#"{"cached_tokens":0,"audio_tokens":0}"#, Some(0)),
        (r#"{"cached_tokens":0,"image_tokens":null}"#, Some(0)),
    ] {
        let text =
            format!(r#"{{"usage":{{"prompt_tokens":300,"completion_tokens":2,"prompt_tokens_details":{details}}}}}"#);
        assert_eq!(look(text.as_bytes()), usage(300, expected, 2), "{text}");
    }
}

#[test]
fn the_real_one_is_found_beside_others_and_in_other_hands() {
    let false_one = r#"{"usage":{"prompt_tokens":1}}"#;
    let real = r#""usage" : { "total_tokens": 12, "prompt_tokens": 10,
        "prompt_tokens_details": {"audio_tokens": 0, "per_turn": [1], "cached_tokens": 6},
        "completion_tokens_details": {"cached_tokens": 1, "prompt_tokens": 1}, "completion_tokens": 2 }"#;
    for text in [
        format!(r#"{{"tools":[{false_one}],{real}}}"#),
        format!("{{{real},\"metrics\":{false_one}}}\n"),
        format!(r#"{{{real},"metrics":{{"prompt_tokens":9,"completion_tokens":9,"x":{{"cached_tokens":9}}}}}}"#),
        format!(r#"{{"id":"x",{real},"text":"a\"}}","n":[[{{}}]]}}"#),
    ] {
        assert_eq!(look(text.as_bytes()), usage(10, Some(6), 2), "{text}");
    }
    let null = r#"{"usage":{"prompt_tokens":10,"prompt_tokens_details":null,"completion_tokens":2}}"#;
    assert_eq!(look(null.as_bytes()), usage(10, None, 2));
    for (reason, completion, expected) in
        [("abort", 0, true), ("abort", 1, false), ("stop", 0, false), ("length", 1, false)]
    {
        let text = format!(
            r#"{{"choices":[{{"text":"","finish_reason":"{reason}","stop_reason":null}}],"usage":{{"prompt_tokens":9,"completion_tokens":{completion}}}}}"#
        );
        assert_eq!(look(text.as_bytes()).map(|usage| usage.aborted), Some(expected), "{text}");
    }
    let more = r#"{"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":11}}}"#;
    assert_eq!(look(more.as_bytes()), usage(10, Some(10), 2), "no more than there were");
    // The last event of a stream counts, wherever the reads end; carriage returns are no part of it.
    let stream = format!("data: {{\"usage\":{{\"prompt_tokens\":1}}}}\r\n\r\ndata: {null}\r\n\r\ndata: [DONE]\r\n\r\n");
    for cut in 0..=stream.len() {
        let (before, after) = stream.as_bytes().split_at(cut);
        let mut reader = Reader::default();
        let first = reader.stream(before, Api::Chat);
        assert_eq!(reader.stream(after, Api::Chat).or(first), usage(10, None, 2), "cut at {cut}");
    }
}
