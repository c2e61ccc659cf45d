//! Chats that a form is tried on. All of them come from a fixed seed: the same template has the same form everywhere.

use super::calls::calling;
use super::turns::Draft;
use super::{Call, Content, Message, said};

/// Contents that a template may write differently: white space at the ends, what is special in JSON, HTML and
/// templates, and what other languages treat as nothing.
pub(super) const CONTENTS: &[&str] = &[
    "",
    " ",
    "\n\n",
    " a",
    "a ",
    "\n\ta\n",
    "a\n\nb\n\n c",
    "a\r\nb\tc",
    "\"a\" 'b' \\ \\n \\\" ``",
    "{{ a }} {% if a %} {# a #} {{'a'}}",
    "é漢字🙂e\u{301}\u{200b}\u{feff}",
    "\u{a0}a\u{2003}",
    "\u{1c}a\u{1f}",
    "0",
    "None",
    "null",
    "[1, 2]",
    "{\"a\": [1, 2]}",
    "<b>a</b> &amp; &lt;",
    "<tool_call>\n{\"name\": \"a\"}\n</tool_call>",
    "<think>\na\n</think>\n\nb",
    "%s %(a)s {0} $a",
];

/// Contents that are lists of parts.
pub(super) const PARTS: &[&[&str]] =
    &[&["a"], &["a", "b"], &["a", "", "b"], &[" a ", "\nb\n", " "], &["", ""], &["", "a"]];

/// Arguments of calls: with other blanks than Python writes, with every kind of JSON value, and with what is special
/// elsewhere.
const ARGUMENTS: &[&str] = &[
    "",
    "{}",
    " { } ",
    "{\"a\":1}",
    "{\"city\": \"Köln 🙂\", \"days\":[1,2.5,-3,[]],\n\"deep\":{\"a\":{\"b\":[{}, null,true,false]}}}",
    r#"{"a":"\u0061\n\t\"\\ \u00e9\/\u0001\u007f","b\"":0.5}"#,
    "{\"html\": \"<b>&amp;'</b>\", \"jinja\": \"{{ a }}{% b %}\"}",
    "{\"name\": \"a\", \"arguments\": {\"items\": [], \"keys\": {}}, \"type\": \"function\"}",
];

/// In place of a role: an assistant's message that calls tools.
pub(super) const CALL: &str = "call";

/// Returns orders of roles: all of up to three, those that real chats have, and some that no chat has.
pub(super) fn orders(roles: &[&'static str]) -> Vec<Vec<&'static str>> {
    let mut orders: Vec<Vec<&'static str>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..3 {
        let to = orders.len();
        for at in from..to {
            let longer = |role: &&'static str| orders[at].iter().copied().chain([*role]).collect();
            let longer: Vec<Vec<&'static str>> = roles.iter().map(longer).collect();
            orders.extend(longer);
        }
        from = to;
    }
    orders.remove(0);
    for length in 4..=9 {
        let turns = || ["user", "assistant"].into_iter().cycle();
        orders.push(turns().take(length).collect());
        orders.push(["system"].into_iter().chain(turns().take(length - 1)).collect());
        orders.push(["system", "system"].into_iter().chain(turns().take(length - 2)).collect());
        orders.push(turns().take(length - 1).chain(["tool"]).collect());
        orders.push(turns().take(length - 1).chain(["system"]).collect());
    }
    if roles.contains(&CALL) {
        let agent = ["user", CALL, "tool", "tool", CALL, "tool", "assistant", "user", CALL, "tool", CALL, "tool"];
        for length in 4..=agent.len() {
            orders.push(agent[..length].to_vec());
            orders.push(["system"].into_iter().chain(agent[..length].iter().copied()).collect());
        }
    }
    let mut dice = Dice(1);
    orders.extend((0..80).map(|_| (0..4 + dice.below(5)).map(|_| roles[dice.below(roles.len())]).collect::<Vec<_>>()));
    orders.sort();
    orders.dedup();
    orders
}

/// Makes a chat of these roles, each message with a content of its own; some messages with calls have no content, some
/// have two calls.
pub(super) fn plain(order: &[&'static str]) -> Vec<Message> {
    let message = |(place, role): (usize, &&'static str)| match *role {
        CALL => {
            let content = (place % 3 == 2).then(|| Content::Text(format!("w{place}x")));
            let calls = if (place + order.len()).is_multiple_of(4) { 2 } else { 1 };
            let call = |number| Call { name: format!("f{number}"), arguments: format!("{{\"a\":\"w{place}y\"}}") };
            calling(content, (0..calls).map(call).collect())
        }
        role => said(role, format!("w{place}x")),
    };
    order.iter().enumerate().map(message).collect()
}

/// Makes chats with calls of these names, and with these strings in arguments and, unless they are `known`, in
/// contents.
pub(super) fn calls(strings: &[String], names: &[String], known: bool) -> Vec<Vec<Message>> {
    let call = |name: &str, arguments: String| Call { name: name.to_owned(), arguments };
    let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
    let chat = |content: Option<Content>, calls: Vec<Call>| {
        let answers = calls.len();
        let mut chat = vec![said("user", "ask"), calling(content, calls)];
        chat.extend((0..answers).map(|place| said("tool", format!("w{place}x"))));
        chat.extend([said("assistant", "said"), said("user", "again")]);
        chat
    };
    let text = |content: &str| Some(Content::Text(content.to_owned()));
    let one = || vec![call("f", "{\"a\":1}".into())];
    let mut chats: Vec<Vec<Message>> = Vec::new();
    // Each string is a key and a value in the same call: if any one changes something, the call shows it.
    let mut keys: Vec<&String> = strings.iter().chain(names).collect();
    keys.sort_unstable();
    keys.dedup();
    let pairs: Vec<String> = keys.iter().map(|key| format!("{}:{}", quoted(key), quoted(key))).collect();
    let all = format!("{{{}}}", pairs.join(","));
    let arguments: Vec<String> = ARGUMENTS.iter().map(|text| text.to_string()).chain([all]).collect();
    for (place, arguments) in arguments.iter().enumerate() {
        let name = names.get(place % names.len().max(1)).map_or("get_weather", String::as_str);
        chats.push(chat(None, vec![call(name, arguments.clone())]));
        chats.push(chat(text("said"), vec![call("f.g-h_1", arguments.clone()), call(name, "{}".into())]));
        chats.push(vec![said("user", "ask"), calling(None, vec![call(name, arguments.clone())])]);
    }
    for name in names {
        chats.push(chat(None, vec![call(name, "{\"a\":1}".into())]));
    }
    for string in strings.iter().filter(|_| !known) {
        chats.push(chat(text(string), one()));
        chats.push(chat(text(&format!("a{string}b")), one()));
    }
    for content in CONTENTS {
        chats.push(chat(text(content), one()));
        chats.push(vec![said("user", "ask"), calling(text(content), one())]);
    }
    for parts in PARTS {
        chats.push(chat(Some(Content::Parts(parts.iter().map(|part| part.to_string()).collect())), one()));
    }
    chats
}

/// Makes so many chats of all roles with all contents, and with the stops of `draft`.
pub(super) fn mixed(draft: &Draft, number: usize) -> Vec<(Vec<Message>, bool)> {
    let mut dice = Dice(2);
    let stops = draft.chat.turns.iter().flat_map(|turn| &turn.stops);
    let mut contents: Vec<String> = stops.map(|stop| String::from_utf8_lossy(stop).into_owned()).collect();
    contents.extend(CONTENTS.iter().map(|content| content.to_string()));
    let roles = &draft.roles;
    let calls = draft.chat.turns.iter().any(|turn| turn.calls.is_some());
    let mut chat = |number: usize| {
        let length = 1 + dice.below(7);
        let alternates = !number.is_multiple_of(4);
        let with_system = dice.below(2);
        let mut turns_left = 0;
        let message = |place: usize| {
            if calls && turns_left > 0 {
                turns_left -= 1;
                return said("tool", CONTENTS[dice.below(CONTENTS.len())]);
            }
            let role = match (alternates, place.checked_sub(with_system).map(|turn| turn % 2)) {
                (false, _) => roles[dice.below(roles.len())],
                (true, None) => "system",
                (true, Some(0)) => "user",
                (true, Some(_)) => "assistant",
            };
            let mut text = || match dice.below(3) {
                0 => format!("{}{}", contents[dice.below(contents.len())], contents[dice.below(contents.len())]),
                1 => contents[dice.below(contents.len())].clone(),
                _ => "words and words".to_owned(),
            };
            let several = number.is_multiple_of(5);
            let content = if several { Content::Parts(vec![text(), text()]) } else { Content::Text(text()) };
            if calls && role == "assistant" && dice.below(2) == 0 {
                let content = (dice.below(2) == 0).then_some(content);
                turns_left = 1 + dice.below(2);
                let mut call = |_| Call {
                    name: draft.tools.get(dice.below(9)).cloned().unwrap_or_else(|| "f".into()),
                    arguments: ARGUMENTS[dice.below(ARGUMENTS.len())].into(),
                };
                return calling(content, (0..turns_left).map(&mut call).collect());
            }
            Message { role: role.into(), content, calls: Vec::new() }
        };
        let messages: Vec<Message> = (0..length).map(message).collect();
        (messages, number.is_multiple_of(2))
    };
    (0..number).map(&mut chat).collect()
}

/// Pseudo-random numbers: SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
