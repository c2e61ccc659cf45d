//! Chats that a form is tried on. All of them come from a fixed seed: the same template has the same form everywhere.

use super::turns::Draft;
use super::{Content, Message, said};

/// Contents that a template may write otherwise than others: white space at the ends, what is special in JSON, HTML and templates, and what
/// other languages take for nothing.
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

/// Contents of which the ends are white space.
pub(super) const PARTS: &[&[&str]] =
    &[&["a"], &["a", "b"], &["a", "", "b"], &[" a ", "\nb\n", " "], &["", ""], &["", "a"]];

/// Orders of roles: all of up to three, those that real chats have, and some that none has.
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
    let mut dice = Dice(1);
    orders.extend((0..80).map(|_| (0..4 + dice.below(5)).map(|_| roles[dice.below(roles.len())]).collect::<Vec<_>>()));
    orders.sort();
    orders.dedup();
    orders
}

/// A chat of these roles, each with a content of its own.
pub(super) fn plain(order: &[&'static str]) -> Vec<Message> {
    order.iter().enumerate().map(|(place, role)| said(role, format!("w{place}x"))).collect()
}

/// Chats of all roles with all contents, and what `draft` stops at.
pub(super) fn mixed(draft: &Draft) -> Vec<(Vec<Message>, bool)> {
    let mut dice = Dice(2);
    let stops = draft.chat.turns.iter().flat_map(|turn| &turn.stops);
    let mut contents: Vec<String> = stops.map(|stop| String::from_utf8_lossy(stop).into_owned()).collect();
    contents.extend(CONTENTS.iter().map(|content| content.to_string()));
    let roles = &draft.roles;
    let mut chat = |number: usize| {
        let length = 1 + dice.below(7);
        let alternates = !number.is_multiple_of(4);
        let with_system = dice.below(2);
        let message = |place: usize| {
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
            Message { role: role.into(), content }
        };
        let messages: Vec<Message> = (0..length).map(message).collect();
        (messages, number.is_multiple_of(2))
    };
    (0..300).map(&mut chat).collect()
}

/// Numbers that look like chance: SplitMix64.
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
