//! Messages that call tools, and tools' answers: the texts around names, arguments and answers, and for which of them
//! these are right.

use super::derive::agrees;
use super::reference::{Reference, Rendered};
use super::turns::{Around, Draft, Probe, between};
use super::{Call, Content, LeftOut, Message, Why, chats, said};
use crate::scan::{Calls, Chat};

/// Makes a call whose name and arguments no template and no tool has.
fn call(number: usize) -> Call {
    Call { name: format!("zq{number}name"), arguments: format!("{{\"zq{number}key\": \"zq{number}value\"}}") }
}

/// Makes a message that calls tools.
pub(super) fn calling(content: Option<Content>, calls: Vec<Call>) -> Message {
    Message { role: "assistant".into(), content: content.unwrap_or(Content::Parts(Vec::new())), calls }
}

impl Probe<'_> {
    /// Finds out how an assistant's calls are written; `None`: they are refused, or not written one after the other
    /// after the text before the role's contents.
    pub(super) fn calls(&self, user: &Around, assistant: &Around) -> Result<Option<Calls>, Why> {
        let before = format!("{}{}", user.after, assistant.before);
        let Some((bare, with)) = self.called(user)? else { return Ok(None) };
        let bare = bare.and_then(|mut texts| {
            let behind = texts.get(1)?.strip_prefix(&before)?.to_owned();
            Some((behind, texts.split_off(2)))
        });
        let with = with.and_then(|mut texts| {
            let behind = texts.get(2).filter(|_| texts.get(1) == Some(&before))?.clone();
            Some((behind, texts.split_off(3)))
        });
        let Some((_, rest)) = bare.as_ref().or(with.as_ref()) else { return Ok(None) };
        let [arguments, after] = rest.as_slice() else { return Ok(None) };
        let behind = with.as_ref().filter(|(_, others)| others == rest).map(|(behind, _)| behind);
        let content = bare.is_none().then_some("zq5mark");
        let marks = |texts: Vec<String>| texts.into_iter().rev().nth(2);
        let next = self.chat(content, 2, None)?.and_then(marks);
        let text = |text: &String| text.as_bytes().into();
        Ok(Some(Calls {
            behind: behind.map(text),
            bare: bare.as_ref().map(|(bare, _)| text(bare)),
            arguments: text(arguments),
            next: next.unwrap_or_default().into_bytes().into(),
            after: text(after),
        }))
    }

    /// Returns the texts around a call without a content, and around one with a content, each without the beginning of
    /// the next message.
    #[expect(clippy::type_complexity, reason = "two of the same, each of which may be missing")]
    fn called(&self, user: &Around) -> Result<Option<(Option<Vec<String>>, Option<Vec<String>>)>, Why> {
        for next in [Some("user"), None] {
            let ended = |texts: Option<Vec<String>>| {
                let mut texts = texts?;
                if next.is_some() {
                    texts.pop();
                    let last = texts.pop()?;
                    texts.push(last.strip_suffix(&user.before)?.to_owned());
                }
                Some(texts)
            };
            let (bare, with) = (ended(self.chat(None, 1, next)?), ended(self.chat(Some("zq5mark"), 1, next)?));
            if bare.is_some() || with.is_some() {
                return Ok(Some((bare, with)));
            }
        }
        Ok(None)
    }

    /// Returns the texts around a user's content, an assistant's content and calls, and the next message.
    fn chat(&self, content: Option<&str>, calls: usize, next: Option<&str>) -> Result<Option<Vec<String>>, Why> {
        let calls: Vec<Call> = (6..6 + calls).map(call).collect();
        let mut marks = vec!["zq0mark"];
        marks.extend(content);
        marks.extend(calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]));
        marks.extend(next.map(|_| "zq9mark"));
        let content = content.map(|content| Content::Text(content.to_owned()));
        let mut messages = vec![said("user", "zq0mark"), calling(content, calls.clone())];
        messages.extend(next.map(|role| said(role, "zq9mark")));
        self.between(&messages, &marks)
    }

    /// Returns the texts around a tool's answer to a call.
    pub(super) fn answer(&self, user: &Around, assistant: &Around, form: &Calls) -> Result<Option<Around>, Why> {
        let call = call(6);
        let content = form.bare.is_none().then(|| Content::Text("said".to_owned()));
        let head = [
            user.after.as_bytes(),
            assistant.before.as_bytes(),
            if form.bare.is_none() { b"said" } else { b"" },
            form.bare.as_deref().or(form.behind.as_deref()).unwrap_or_default(),
            call.name.as_bytes(),
            &form.arguments,
            call.arguments.as_bytes(),
            &form.after,
        ]
        .concat();
        let chat = [said("user", "zq0mark"), calling(content, vec![call]), said("tool", "zq1mark")];
        let ways: [(&[Message], &str); 3] = [
            (&[said("user", "zq2mark")], &user.before),
            (&[said("assistant", "zq2mark"), said("user", "said")], &assistant.before),
            (&[], ""),
        ];
        for (next, before) in ways {
            let marks: &[&str] =
                if next.is_empty() { &["zq0mark", "zq1mark"] } else { &["zq0mark", "zq1mark", "zq2mark"] };
            let Some(texts) = self.between(&[&chat, next].concat(), marks)? else { continue };
            let [_, first, last, ..] = texts.as_slice() else { continue };
            let own = first.as_bytes().strip_prefix(head.as_slice()).and_then(|own| std::str::from_utf8(own).ok());
            if let Some((own, after)) = own.zip(last.strip_suffix(before)) {
                return Ok(Some(Around { before: own.to_owned(), after: after.to_owned(), ..Around::default() }));
            }
        }
        Ok(None)
    }

    /// Returns the text between two answers in a row, if it is other than the end of one and the beginning of the next.
    pub(super) fn joined(&self, tool: &Around) -> Result<Option<String>, Why> {
        let starts: [&[Message]; 3] = [
            &[said("user", "a"), calling(None, vec![call(6), call(7)])],
            &[said("user", "a"), said("assistant", "b")],
            &[said("user", "a")],
        ];
        for start in starts {
            let pair = [said("tool", "zq0mark"), said("tool", "zq1mark")];
            if let Some(texts) = self.between(&[start, &pair].concat(), &["zq0mark", "zq1mark"])? {
                let between = texts.into_iter().nth(1).unwrap_or_default();
                return Ok(Some(between).filter(|between| *between != format!("{}{}", tool.after, tool.before)));
            }
        }
        Ok(None)
    }

    fn between(&self, messages: &[Message], marks: &[&str]) -> Result<Option<Vec<String>>, Why> {
        let rendered = self.0.render(messages, false)?;
        let texts = rendered.text().and_then(|text| between(text, marks));
        Ok(texts.map(|texts| texts.into_iter().map(str::to_owned).collect()))
    }
}

/// Returns what a form may say of calls, less and less, with the cost of each.
pub(super) fn choices(calls: Option<&Calls>) -> Vec<(Option<Calls>, u32)> {
    let Some(calls) = calls else { return vec![(None, 0)] };
    let without_content = Calls { behind: None, ..calls.clone() };
    let with_content = Calls { bare: None, ..calls.clone() };
    vec![(Some(calls.clone()), 0), (Some(without_content), 2), (Some(with_content), 3), (None, 4)]
}

/// Finds out with which names, arguments and contents calls are written as the form says, and leaves the others out of
/// the form. `known`: contents with calls were tried before.
pub(super) fn check(reference: &Reference, draft: &mut Draft, strings: &[String], known: bool) -> Result<(), Why> {
    let tried = chats::calls(strings, &draft.tools, known);
    let Some(known) = draft.turn("assistant").map(|turn| turn.calls.clone()) else { return Ok(()) };
    for (calls, _) in choices(known.as_ref()) {
        if let Some(turn) = draft.turn("assistant") {
            turn.calls = calls;
        }
        if all(reference, &draft.chat, &tried)? {
            return Ok(());
        }
    }
    Err(Why::Otherwise("writes an assistant's message in another way if it calls tools".into()))
}

/// Says that the form cannot write calls, if the template takes them: an agent's chat is then followed only up to the
/// first one.
pub(super) fn say(reference: &Reference, draft: &mut Draft) -> Result<(), Why> {
    if draft.turn("assistant").is_none_or(|turn| turn.calls.is_some()) {
        return Ok(());
    }
    for content in [None, Some(Content::Text("said".to_owned()))] {
        let chat = [said("user", "ask"), calling(content, vec![call(6)])];
        if !matches!(reference.render(&chat, false)?, Rendered::Refused(_)) {
            let why =
                "not written as names and JSON one after the other, or in a way that depends on the messages around it";
            draft.left_out.push(LeftOut { role: "an assistant that calls", why });
            return Ok(());
        }
    }
    Ok(())
}

fn all(reference: &Reference, chat: &Chat, tried: &[Vec<Message>]) -> Result<bool, Why> {
    for (place, messages) in tried.iter().enumerate() {
        if !agrees(reference, chat, messages, !place.is_multiple_of(3))? {
            return Ok(false);
        }
    }
    Ok(true)
}
