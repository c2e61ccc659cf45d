//! Makes a form from a template: finds the texts around contents, the places of roles, and what contents change, and
//! last tries chats that were not made for it.

use super::json::Json;
use super::known::Known;
use super::literals::loops_over_content;
use super::reference::{Reference, Rendered};
use super::turns::{Draft, between};
use super::{Content, LeftOut, Message, Source, Why, calls, chats, contents, places, said, tools};
use crate::scan::Chat;

/// Returns how a template's chats are written and what is left out, and for how many prompts the template was run.
pub(super) fn chat(source: &Source, tools: Option<&Json>) -> (Result<(Chat, Vec<LeftOut>), Why>, u32) {
    match Reference::new(source, tools) {
        Ok(mut reference) => (read(&mut reference, source, tools), reference.prompts()),
        Err(why) => (Err(why), 0),
    }
}

fn read(reference: &mut Reference, source: &Source, tools: Option<&Json>) -> Result<(Chat, Vec<LeftOut>), Why> {
    let text = source.text(tools.is_some()).unwrap_or_default();
    if tools.is_some_and(|tools| tools::shadows(text, tools)) {
        return Err(Why::Tools("have a key that Python takes for a method".into()));
    }
    if let Rendered::Refused(why) = reference.render(&[said("user", "a")], false)? {
        reference.lists = true;
        if let Rendered::Refused(_) = reference.render(&[said("user", "a")], false)? {
            return Err(Why::Refuses(why));
        }
    }
    let joint = joint(reference, text)?;
    let mut draft = Draft::learn(reference, text, joint)?;
    draft.tools = tools.map(tools::names).unwrap_or_default();
    places::find(reference, &mut draft)?;
    // What is known of another template is no help.
    let known = Some(&source.known).filter(|_| source.with_tools.is_none());
    contents::check(reference, &mut draft, text, known.and_then(Known::get))?;
    for (messages, generation) in chats::mixed(&draft, if tools.is_some() { 100 } else { 300 }) {
        if !agrees(reference, &draft.chat, &messages, generation)? {
            return Err(Why::Otherwise(format!(
                "writes some chats in another way than message by message, such as {}",
                roles(&messages)
            )));
        }
    }
    known.iter().for_each(|known| known.set(&draft.chat));
    calls::say(reference, &mut draft)?;
    Ok((draft.chat, draft.left_out))
}

/// Finds out whether the template gets a content's parts, and returns what it writes between them. If it does not, vLLM
/// joins parts by line ends; it also does so if the template has a loop over the parts, but under a name that vLLM does
/// not look for.
fn joint(reference: &mut Reference, template: &str) -> Result<String, Why> {
    let (one, other) = ("zq1mark", "zq2mark");
    reference.lists = true;
    let single = reference.render(&[said("user", one)], false)?;
    let parts = Message { content: Content::Parts(vec![one.into(), other.into()]), ..said("user", "") };
    let several = reference.render(&[parts], false)?;
    let looped = single
        .text()
        .and_then(|text| between(text, &[one]))
        .zip(several.text().and_then(|text| between(text, &[one, other])));
    if let Some((single, several)) = looped {
        let joint = several[1];
        // If the template writes the list as Python's text of it, the names of its fields show.
        let is_dump = joint.contains("type") && joint.contains("text");
        if single[0] == several[0] && single[1] == several[2] && !is_dump && loops_over_content(template) {
            return Ok(joint.to_owned());
        }
    }
    reference.lists = false;
    Ok("\n".to_owned())
}

/// Whether the form writes a chat as the template does, as far as it writes it. A chat that the template refuses is
/// refused by the engine, too.
pub(super) fn agrees(reference: &Reference, chat: &Chat, messages: &[Message], generation: bool) -> Result<bool, Why> {
    Ok(match reference.render(messages, generation)? {
        Rendered::Text(text) => is_begin(chat, messages, generation, &text),
        Rendered::Refused(_) => true,
        Rendered::Unclear => super::write(chat, messages, generation).is_none_or(|written| !written.whole),
    })
}

pub(super) fn is_begin(chat: &Chat, messages: &[Message], generation: bool, text: &str) -> bool {
    // The end of a chat that asks for no answer may differ; such requests are so few that this is not looked into.
    super::write(chat, messages, generation).is_none_or(|written| match written.whole && generation {
        true => written.bytes == text.as_bytes(),
        false => text.as_bytes().starts_with(&written.bytes),
    })
}

fn roles(messages: &[Message]) -> String {
    messages.iter().map(|message| message.role.as_str()).collect::<Vec<_>>().join(", ")
}
