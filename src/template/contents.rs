//! Finds out what contents change: white space that is left out, strings that a template looks for, lists of parts.

use super::derive::agrees;
use super::literals::literals;
use super::reference::Reference;
use super::turns::Draft;
use super::{Content, Message, Why, calls, chats, known, said};
use crate::scan::{Chat, Place, Turn};

/// The beginning of lines that vLLM takes out of system messages: a counter in them would make equal prompts differ.
const BILLING: &str = "x-anthropic-billing-header";
/// Most strings that are tried in pairs.
const PAIRED: usize = 32;

/// Finds out what a draft's turns do with contents, and takes out turns that do what a form cannot say. `known`:
/// another chat of this template.
pub(super) fn check(reference: &Reference, draft: &mut Draft, template: &str, known: Option<&Chat>) -> Result<(), Why> {
    let strings = literals(template);
    for role in draft.roles.clone() {
        if draft.turn(role).is_none() {
            continue;
        }
        if let Some(known) = known
            && known::holds(reference, draft, known, role, &strings)?
        {
            continue;
        }
        let outcome = turn(reference, draft, role, &strings)?;
        match outcome {
            Ok(()) => {}
            Err(why) if role == "user" => {
                return Err(Why::Otherwise(format!("writes a user's content in another way: {why}")));
            }
            Err(why) => draft.leave_out(role, why),
        }
    }
    calls::check(reference, draft, &strings, known.is_some())?;
    // If the template does not know the role `developer`, vLLM turns such messages into system messages, and joins all
    // of these.
    if !draft.roles.contains(&"developer") {
        let turn = Turn { role: (*b"developer").into(), place: Place::Nowhere, ..Turn::default() };
        draft.chat.turns = draft.chat.turns.iter().cloned().chain([turn]).collect();
    }
    Ok(())
}

/// Finds out what this role does with contents; the inner error is what it does that a turn cannot say.
fn turn(
    reference: &Reference,
    draft: &mut Draft,
    role: &'static str,
    strings: &[String],
) -> Result<Result<(), &'static str>, Why> {
    let ends = [text(" \n\tzq \n")];
    if differs(reference, &draft.chat, role, &ends)? {
        if let Some(turn) = draft.turn(role) {
            turn.trims = true;
        }
        if differs(reference, &draft.chat, role, &ends)? {
            return Ok(Err("the white space at one end of a content is written in another way"));
        }
    }
    if role == "system" {
        stop(draft, role, BILLING);
    }
    for string in strings {
        let contents =
            [string.clone(), format!("a{string}b"), format!("{string}b"), format!("a{string}")].map(Content::Text);
        if differs(reference, &draft.chat, role, &contents)? {
            stop(draft, role, string);
        }
    }
    // For conditions such as `startswith(…) and endswith(…)`.
    let has_signs = |string: &&String| string.chars().any(|letter| letter.is_ascii_punctuation());
    let paired: Vec<&String> = strings.iter().filter(has_signs).take(PAIRED).collect();
    for string in &paired {
        let contents: Vec<Content> = paired.iter().map(|end| Content::Text(format!("{string}a{end}"))).collect();
        if differs(reference, &draft.chat, role, &contents)? {
            stop(draft, role, string);
        }
    }
    if let Some(turn) = draft.turn(role) {
        turn.empty = true;
        let mut empty = vec![text(""), Content::Parts(vec![String::new()]), Content::Parts(vec![String::new(); 2])];
        empty.extend(["  ", "\n\t\n"].into_iter().filter(|_| turn.trims).map(text));
        let differs = differs(reference, &draft.chat, role, &empty)?;
        draft.turn(role).into_iter().for_each(|turn| turn.empty = !differs);
    }
    for content in chats::CONTENTS {
        if differs(reference, &draft.chat, role, &[text(content)])? {
            return Ok(Err(if content.trim().is_empty() {
                "an empty content is written in another way"
            } else {
                "some contents are written in another way"
            }));
        }
    }
    for parts in chats::PARTS {
        let parts = Content::Parts(parts.iter().map(|part| part.to_string()).collect());
        if differs(reference, &draft.chat, role, std::slice::from_ref(&parts))? {
            draft.turn(role).into_iter().for_each(|turn| turn.lone = true);
            if differs(reference, &draft.chat, role, &[parts])? {
                return Ok(Err("a list of parts is written in another way"));
            }
        }
    }
    Ok(Ok(()))
}

fn text(content: &str) -> Content {
    Content::Text(content.to_owned())
}

/// Ends the form at contents with this string, which takes the place of longer stops that contain it.
fn stop(draft: &mut Draft, role: &str, string: &str) {
    let Some(turn) = draft.turn(role) else { return };
    let mut stops = std::mem::take(&mut turn.stops).into_vec();
    let has = |text: &[u8], part: &[u8]| memchr::memmem::find(text, part).is_some();
    if !stops.iter().any(|stop| has(string.as_bytes(), stop)) {
        stops.retain(|stop| !has(stop, string.as_bytes()));
        stops.push(string.as_bytes().into());
    }
    turn.stops = stops.into();
}

/// Whether the template writes some chat with one of these contents differently than the form.
fn differs(reference: &Reference, chat: &Chat, role: &str, contents: &[Content]) -> Result<bool, Why> {
    for messages in around(role, contents) {
        if !agrees(reference, chat, &messages, true)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes chats in which this role has these contents; a template accepts some of them.
fn around(role: &str, contents: &[Content]) -> Vec<Vec<Message>> {
    let of = |role: &str, content: &Content| Message { role: role.into(), content: content.clone(), calls: Vec::new() };
    let mut chats = Vec::new();
    match role {
        "user" => {
            let turn = |content| [of("user", content), said("assistant", "said")];
            chats.push(contents.iter().flat_map(turn).chain([said("user", "again")]).collect());
            chats.extend(contents.iter().map(|content| vec![of("user", content)]));
            chats.extend(
                contents
                    .iter()
                    .map(|content| vec![said("user", "ask"), said("assistant", "said"), of("user", content)]),
            );
        }
        "assistant" => {
            let turn = |content| [said("user", "ask"), of("assistant", content)];
            chats.push(contents.iter().flat_map(turn).chain([said("user", "again")]).collect());
            chats.extend(contents.iter().map(|content| vec![said("user", "ask"), of("assistant", content)]));
        }
        _ => {
            let first = |content| {
                vec![of(role, content), said("user", "ask"), said("assistant", "said"), said("user", "again")]
            };
            chats.extend(contents.iter().map(first));
            let later = |content| {
                vec![said("user", "ask"), said("assistant", "said"), of(role, content), said("user", "again")]
            };
            chats.extend(contents.iter().map(later));
            chats.extend(contents.iter().map(|content| vec![said("user", "ask"), of(role, content)]));
        }
    }
    chats
}
