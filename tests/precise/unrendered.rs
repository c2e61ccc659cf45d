//! Prompts whose text only the engine knows: they are looked up by what was sent where.

use serde_json::{Value, json};

use crate::on_both;
use crate::scene::{Scene, body};
use crate::tokens::{Blocks, Dialect, chat_prompt, text};

const BYTES: usize = 3_000;
const PATH: &str = "/v1/chat/completions";

/// Sends a prompt twice: the second goes where the first went.
fn twice(scene: &Scene, what: &str, send: impl Fn() -> crate::scene::Chosen) {
    let counted = || scene.front.metric("warmfront_prompts_not_rendered_total");
    let (before, first) = (counted(), send());
    assert_eq!(first.held, 0, "{}: {what}", scene.driver);
    let again = send();
    assert!(again.place == first.place && again.held > 300, "{}: {what}: {first:?}, {again:?}", scene.driver);
    assert_eq!(counted(), before + 2.0, "{}: {what}", scene.driver);
}

#[test]
fn what_cannot_be_rendered_goes_where_it_went_before() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        for seed in [81, 82, 83] {
            // Tools that came again are followed: see tools.rs.
            let tool =
                json!({"type": "function", "function": {"name": format!("look_up_{seed}"), "odd": {"type": "object"}}});
            let mut tools = body(&text(seed, BYTES));
            tools["tools"] = json!([tool]);
            twice(&scene, "tools", || scene.ask(PATH, &tools));
        }
        for seed in [84, 85] {
            let image = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}{seed}", "iVBORw0KGgo".repeat(100))}});
            let mut images = body("");
            images["messages"][0]["content"] = json!([image, {"type": "text", "text": text(seed, BYTES)}]);
            twice(&scene, "an image", || scene.ask(PATH, &images));
        }
        for seed in [86, 87] {
            // Even if the engine told it.
            let content = text(seed, BYTES);
            scene.tells(1, &[Blocks::of(&chat_prompt(&content)).stored(Dialect::Maps)]);
            twice(&scene, "chunks", || scene.ask_in_chunks(PATH, &body(&content), 700));
            assert_eq!(
                scene.engines.iter().filter(|engine| engine.body() == body(&content).to_string().into_bytes()).count(),
                1
            );
        }
        assert_eq!(scene.front.metric("warmfront_prompts_rendered_total"), 0.0);
    });
}

/// Operators find the reason in this counter.
#[test]
fn why_a_prompt_is_not_rendered_is_counted() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let content = text(94, BYTES);
        let with = |field: &str, value: Value| {
            let mut body = body(&content);
            body[field] = value;
            body
        };
        let said = |message: Value| with("messages", json!([message]));
        let image = json!({"type": "image_url", "image_url": {"url": "https://localhost/a.png"}});
        let billed = format!("x-anthropic-billing-header: {content}");
        let cases = [
            ("field", PATH, with("chat_template_kwargs", json!({"enable_thinking": false}))),
            ("role", PATH, said(json!({"role": "narrator", "content": content}))),
            ("message", PATH, said(json!({"role": "user", "name": "a", "content": content}))),
            ("media", PATH, said(json!({"role": "user", "content": [image, {"type": "text", "text": content}]}))),
            ("content", PATH, said(json!({"role": "system", "content": billed}))),
            ("tools", PATH, with("tools", json!([{"type": "function", "function": {"name": "a"}}]))),
            ("api", "/v1/responses", json!({"model": "tiny", "input": content})),
            ("other", "/v1/completions", json!({"model": "tiny", "prompt": [1_000_000]})),
        ];
        let counted = |labels: &str| scene.front.metric(&format!("warmfront_prompts_not_rendered_total{labels}"));
        for (place, (why, path, body)) in (1..).zip(&cases) {
            scene.ask(path, body);
            assert_eq!(
                (counted(&format!("{{why=\"{why}\"}}")), counted("")),
                (1.0, f64::from(place)),
                "{driver}: {why}"
            );
        }
    });
}

/// A body that is held for long, since its model stands at the end, would be written in one turn.
#[test]
fn more_than_may_be_held_is_not_rendered() {
    on_both(|driver| {
        // The model is the last field of these bodies.
        let bodies = [body(&text(95, BYTES)), body(&text(96, 2 * BYTES))];
        assert!(bodies.iter().all(|body| body.to_string().ends_with(r#","model":"tiny"}"#)));
        let hold_bytes = bodies[0].to_string().len();
        let scene = Scene::with_adapter(driver, "sums", &format!("[limits]\nhold_bytes = {hold_bytes}\n"));
        let counted = |name: &str| scene.front.metric(&format!("warmfront_prompts_{name}"));
        let seen = || (counted("rendered_total"), counted("not_rendered_total{why=\"not_held\"}"));
        scene.ask(PATH, &bodies[0]);
        assert_eq!(seen(), (1.0, 0.0), "{driver}");
        scene.ask(PATH, &bodies[1]);
        assert_eq!(seen(), (1.0, 1.0), "{driver}");
    });
}

/// Text before an image is known, text after it is not.
#[test]
fn what_stands_before_an_image_is_rendered() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        // More than an image counts for.
        let content = text(89, 2 * BYTES);
        let (first, asked) = (body(&content), Blocks::of(&chat_prompt(&content)));
        scene.tells(1, &[asked.stored(Dialect::Maps)]);
        let image = json!({"type": "image_url", "image_url": {"url": "https://localhost/a.png"}});
        for last in [json!({"role": "user", "content": [image]}), json!({"role": "user", "name": "a", "content": "b"})]
        {
            let mut again = first.clone();
            let messages = again["messages"].as_array_mut().unwrap();
            messages.extend([json!({"role": "assistant", "content": "A"}), last]);
            let chosen = scene.ask(PATH, &again);
            assert_eq!((chosen.place, chosen.held), (1, asked.held()), "{driver}");
        }
        assert_eq!(scene.front.metric("warmfront_prompts_rendered_total"), 2.0);
    });
}

/// A conversation that the engine's form can write up to a tool's answer, which has more fields than its content.
fn partly_rendered(seed: u64) -> Value {
    let mut body = body("");
    body["messages"] = json!([
        {"role": "system", "content": text(90, 2 * BYTES)}, {"role": "user", "content": "Go."},
        {"role": "tool", "name": "look_up", "content": text(seed, BYTES / 2)},
    ]);
    body
}

/// The part of it that is known.
fn rendered_part() -> String {
    let system = text(90, 2 * BYTES);
    format!("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>tool\n")
}

/// If an agent's template cannot be followed for tools' answers, its engine's text is known only up to the first
/// answer. Both engines hold that part: each conversation stays where it was sent, whether the part is more than half
/// of it or less.
#[test]
fn conversations_of_which_the_beginning_alone_is_rendered_stay_where_they_are() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let known = Blocks::of(&rendered_part());
        let (all, stored) = (0..known.names.len(), known.stored(Dialect::Maps));
        let mut conversations = [91, 92].map(|seed| (seed, partly_rendered(seed)));
        let counted = |name: &str| scene.front.metric(&format!("warmfront_prompts_{name}_total"));
        for turn in 0..5 {
            for (place, (seed, body)) in conversations.iter_mut().enumerate() {
                if turn == 0 {
                    scene.tells(place, std::slice::from_ref(&stored));
                }
                let chosen = scene.ask(PATH, body);
                assert_eq!(chosen.place, place, "{driver}: turn {turn}: {chosen:?}");
                assert!(turn == 0 || chosen.held > 500, "{driver}: turn {turn}: {chosen:?}");
                if turn == 0 {
                    scene.tells(place, &[known.removed(all.clone(), Dialect::Maps)]);
                }
                let messages = body["messages"].as_array_mut().unwrap();
                let more = text(1_000 * (turn + 1) + *seed, BYTES / 2);
                messages
                    .extend([json!({"role": "assistant", "content": "A"}), json!({"role": "user", "content": more})]);
            }
            if turn == 0 {
                (0..2).for_each(|place| scene.tells(place, std::slice::from_ref(&stored)));
            }
        }
        assert!(counted("rendered") >= 6.0 && counted("not_rendered") >= 2.0, "{driver}: of each some");
    });
}

/// However the prompt was noted.
#[test]
fn what_is_refused_of_such_a_conversation_is_held_nowhere() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let (known, body) = (Blocks::of(&rendered_part()), partly_rendered(93));
        (0..2).for_each(|place| scene.tells(place, &[known.stored(Dialect::Maps)]));
        scene.engines.iter().for_each(|engine| engine.refuses(true));
        scene.ask_in_vain(PATH, &body);
        scene.engines.iter().for_each(|engine| engine.refuses(false));
        let (first, again) = (scene.ask(PATH, &body), scene.ask(PATH, &body));
        assert!(first.held <= known.held() && again.held > first.held, "{driver}: {first:?}, {again:?}");
        assert_eq!(again.place, first.place, "{driver}");
    });
}

/// Content in several parts of text is text.
#[test]
fn parts_of_text_are_rendered() {
    on_both(|driver| {
        let scene = Scene::start(driver);
        let content = text(88, BYTES);
        let blocks = Blocks::of(&chat_prompt(&content));
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        let mut parts = body("");
        parts["messages"][0]["content"] = Value::Array(vec![json!({"type": "text", "text": content})]);
        let chosen = scene.ask(PATH, &parts);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}
