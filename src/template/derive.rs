//! From a template to its form: texts around contents, places of roles, what contents change, and last the chats that nobody has made for it.

use super::reference::{Reference, Rendered};
use super::turns::{Draft, between};
use super::{Content, LeftOut, Message, Source, Why, chats, contents, places, said};
use crate::scan::Chat;

/// The form of a template's chats with what is left out of it, and for how many prompts the template was run.
pub(super) fn chat(source: &Source) -> (Result<(Chat, Vec<LeftOut>), Why>, u32) {
    match Reference::new(source) {
        Ok(mut reference) => (read(&mut reference, source), reference.prompts()),
        Err(why) => (Err(why), 0),
    }
}

fn read(reference: &mut Reference, source: &Source) -> Result<(Chat, Vec<LeftOut>), Why> {
    let text = source.text.as_deref().unwrap_or_default();
    if let Rendered::Refused(why) = reference.render(&[said("user", "a")], false)? {
        reference.lists = true;
        if let Rendered::Refused(_) = reference.render(&[said("user", "a")], false)? {
            return Err(Why::Refuses(why));
        }
    }
    let joint = joint(reference)?;
    let mut draft = Draft::learn(reference, text, joint)?;
    places::find(reference, &mut draft)?;
    contents::check(reference, &mut draft, text)?;
    for (messages, generation) in chats::mixed(&draft) {
        if !agrees(reference, &draft.chat, &messages, generation)? {
            return Err(Why::Otherwise(format!(
                "writes some chats otherwise than message by message, such as {}",
                roles(&messages)
            )));
        }
    }
    Ok((draft.chat, draft.left_out))
}

/// Whether the template goes through a content's parts, and what it writes between them. Where it does not, vLLM joins them by line ends.
fn joint(reference: &mut Reference) -> Result<String, Why> {
    let (one, other) = ("zq1mark", "zq2mark");
    reference.lists = true;
    let single = reference.render(&[said("user", one)], false)?;
    let parts = Message { role: "user".into(), content: Content::Parts(vec![one.into(), other.into()]) };
    let several = reference.render(&[parts], false)?;
    let looped = single
        .text()
        .and_then(|text| between(text, &[one]))
        .zip(several.text().and_then(|text| between(text, &[one, other])));
    if let Some((single, several)) = looped {
        let joint = several[1];
        // A list that is written as Python writes one has the names of its fields.
        let is_dump = joint.contains("type") && joint.contains("text");
        if single[0] == several[0] && single[1] == several[2] && !is_dump {
            return Ok(joint.to_owned());
        }
    }
    reference.lists = false;
    Ok("\n".to_owned())
}

/// Whether the form says of a chat what the template writes, as far as it says anything. What the template refuses, the engine does, too.
pub(super) fn agrees(reference: &Reference, chat: &Chat, messages: &[Message], generation: bool) -> Result<bool, Why> {
    let rendered = reference.render(messages, generation)?;
    Ok(rendered.text().is_none_or(|text| is_begin(chat, messages, generation, text)))
}

pub(super) fn is_begin(chat: &Chat, messages: &[Message], generation: bool, text: &str) -> bool {
    // What ends a chat that asks for no answer may be something else; so few requests are such that this is not known.
    super::write(chat, messages, generation).is_none_or(|written| match written.whole && generation {
        true => written.bytes == text.as_bytes(),
        false => text.as_bytes().starts_with(&written.bytes),
    })
}

fn roles(messages: &[Message]) -> String {
    messages.iter().map(|message| message.role.as_str()).collect::<Vec<_>>().join(", ")
}
