//! Chats of agents: tools, calls of them and their results are found where an engine has them.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::scene::{Scene, config_of};
use crate::tokens::{Blocks, Dialect, FOLDER_OF_TOOLS, folder, text};
use crate::{on_both, until};

const PATH: &str = "/v1/chat/completions";

/// The tools of an agent, and their text as the template writes it.
fn tools(name: &str) -> (Value, String) {
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "Finds \u{e9}\n\"it\"", "parameters":
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}})
    };
    let line = |name: &str| {
        format!(
            "\n{{\"type\": \"function\", \"function\": {{\"name\": \"{name}\", \"description\": \"Finds \u{e9}\\n\\\"it\\\"\", \
             \"parameters\": {{\"properties\": {{\"x\": {{\"type\": \"integer\"}}}}, \"required\": [\"x\"], \"type\": \"object\"}}}}}}"
        )
    };
    (json!([tool(name), tool("other")]), [line(name), line("other")].concat())
}

/// The head of every prompt with these tools.
fn head(system: &str, lines: &str) -> String {
    format!(
        "<|im_start|>system\n{system}\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
         You are provided with function signatures within <tools></tools> XML tags:\n<tools>{lines}\n</tools>\n\n\
         For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n\
         <tool_call>\n{{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call><|im_end|>\n"
    )
}

/// An agent in the middle of its work: the request that it sends, and the prompt that its engine makes of that.
fn agent(name: &str, seed: u64) -> (Value, String) {
    let (tools, lines) = tools(name);
    let (question, found, more) = (text(seed, 1_500), text(seed + 1, 1_000), text(seed + 2, 800));
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let body = json!({"model": "tiny", "max_tokens": 1, "messages": [
        {"role": "system", "content": "Be an agent."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": null, "tool_calls": [call("a", "{\"x\":1,\"y\":[true,\"\u{4e2d}\\n\"]}"), call("b", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": found},
        {"role": "tool", "tool_call_id": "b", "content": more},
        {"role": "assistant", "content": "So:", "tool_calls": [call("c", " { \"x\" : -2 } ")]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ], "tools": tools});
    let prompt = head("Be an agent.", &lines)
        + &format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<tool_call>\n")
        + &format!(
            "{{\"name\": \"{name}\", \"arguments\": {{\"x\": 1, \"y\": [true, \"\u{4e2d}\\n\"]}}}}\n</tool_call>\n<tool_call>\n"
        )
        + &format!(
            "{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{found}"
        )
        + &format!(
            "\n</tool_response>\n<tool_response>\n{more}\n</tool_response><|im_end|>\n<|im_start|>assistant\nSo:\n<tool_call>\n"
        )
        + &format!(
            "{{\"name\": \"{name}\", \"arguments\": {{\"x\": -2}}}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\ndone"
        )
        + "\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
    (body, prompt)
}

fn scene(driver: &'static str) -> Scene {
    scene_of(driver, &FOLDER_OF_TOOLS)
}

fn scene_of(driver: &'static str, folder: &Path) -> Scene {
    let scene = Scene::of(driver, [Engine::start(true), Engine::start(true)], &config_of(folder, ""));
    scene.until_exact();
    scene
}

fn until_followed(scene: &Scene, sets: f64) {
    until_known(scene, "followed", sets);
}

/// Waits until shards know so many sets of tools. Control publishes them within `publish_interval_ms`, and before it
/// answers a later question.
fn until_known(scene: &Scene, chats: &str, sets: f64) {
    let known = || scene.front.metric(&format!("warmfront_toolsets{{chats=\"{chats}\"}}"));
    until(&format!("{}: {sets} sets of tools, {chats}", scene.driver), || known() == sets);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(known(), sets, "{}: {chats}", scene.driver);
}

#[test]
fn an_agent_goes_where_its_prompt_is_held() {
    on_both(|driver| {
        let scene = scene(driver);
        // The first time the set is not known yet, the second time it is asked for.
        for _ in 0..2 {
            let (body, _) = agent("look_up", 900);
            scene.ask(PATH, &body);
        }
        until_followed(&scene, 1.0);
        for seed in [910, 920, 930, 940] {
            let (body, prompt) = agent("look_up", seed);
            let blocks = Blocks::of(&prompt);
            let place = seed as usize / 10 % 2;
            scene.tells(place, &[blocks.stored(Dialect::Maps)]);
            let chosen = scene.ask(PATH, &body);
            assert_eq!((chosen.place, chosen.held), (place, blocks.held()), "{driver}");
        }
        assert_eq!(scene.front.metric("warmfront_prompts_rendered_total"), 4.0);
        assert_eq!(scene.front.metric("warmfront_prompts_not_rendered_total{why=\"tools\"}"), 2.0);
        // Another agent has other tools.
        let (body, _) = agent("look_elsewhere", 910);
        scene.ask(PATH, &body);
        assert_eq!(scene.front.metric("warmfront_prompts_not_rendered_total{why=\"tools\"}"), 3.0);
    });
}

#[test]
fn tools_are_known_over_a_reload() {
    on_both(|driver| {
        let scene = scene(driver);
        let (body, prompt) = agent("look_up", 950);
        for _ in 0..2 {
            scene.ask(PATH, &body);
        }
        until_followed(&scene, 1.0);
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        until_followed(&scene, 1.0);
        let blocks = Blocks::of(&prompt);
        scene.tells(1, &[blocks.stored(Dialect::Arrays)]);
        let chosen = scene.ask(PATH, &body);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// Chats without tools are written as before, so that the form keeps its id.
#[test]
fn tools_are_learnt_anew_where_the_template_writes_them_otherwise() {
    on_both(|driver| {
        let name = format!("precise-model-of-changing-tools-{driver}");
        let template = include_str!("../form/templates/qwen2.5.jinja");
        let scene = scene_of(driver, &folder(&name, template));
        let (body, prompt) = agent("look_up", 970);
        for _ in 0..2 {
            scene.ask(PATH, &body);
        }
        until_followed(&scene, 1.0);
        let otherwise = |text: &str| text.replace("# Tools", "# Functions");
        folder(&name, &otherwise(template));
        assert_eq!(scene.front.reload().0, 200, "{driver}");
        until_followed(&scene, 1.0);
        let blocks = Blocks::of(&otherwise(&prompt));
        scene.tells(1, &[blocks.stored(Dialect::Maps)]);
        let chosen = scene.ask(PATH, &body);
        assert_eq!((chosen.place, chosen.held), (1, blocks.held()), "{driver}");
    });
}

/// Sets that were found not to be writable are not tried again and again.
#[test]
fn tools_that_are_no_tools_are_left_alone() {
    on_both(|driver| {
        let scene = scene(driver);
        let (mut body, _) = agent("look_up", 960);
        body["tools"] = json!([{"type": "function", "function": {"name": "x", "parameters": {}}, "unheard_of": 1}]);
        for _ in 0..2 {
            scene.ask(PATH, &body);
        }
        until_known(&scene, "unfollowed", 1.0);
        let first = scene.ask(PATH, &body);
        let again = scene.ask(PATH, &body);
        assert!(again.place == first.place && again.held > 300, "{driver}: {first:?}, {again:?}");
        assert_eq!(scene.front.metric("warmfront_prompts_not_rendered_total{why=\"tools\"}"), 2.0);
        assert_eq!(scene.front.metric("warmfront_toolsets{chats=\"unfollowed\"}"), 1.0);
    });
}

/// Anybody may send tools that no other client uses: learning them would take the place of sets in use.
#[test]
fn tools_of_strangers_are_not_learnt() {
    on_both(|driver| {
        let scene = scene(driver);
        scene.engines.iter().for_each(|engine| engine.asks_keys(true));
        let asked = |name: &str, fields: &str| {
            let (mut client, body) = (scene.front.connect(), agent(name, 970).0.to_string());
            let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{fields}");
            client.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
            let head = client.head();
            assert!(client.body(&head).whole, "{driver}");
            head.start.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        for _ in 0..4 {
            assert_eq!(asked("made_up", ""), "401", "{driver}");
        }
        // Control asks ten times a second.
        std::thread::sleep(Duration::from_millis(500));
        until_followed(&scene, 0.0);
        // At the first one its key was not known yet.
        for _ in 0..3 {
            assert_eq!(asked("look_up", "authorization: Bearer good\r\n"), "200", "{driver}");
        }
        let counted = scene.front.metric("warmfront_prompts_not_rendered_total{why=\"tools\"}");
        assert_eq!(counted, 7.0, "{driver}: each once");
        until_followed(&scene, 1.0);
    });
}
