//! Finds the texts around contents, by chats with marked contents.

use super::reference::Reference;
use super::{LeftOut, Message, Why, said};
use crate::scan::{Calls, Chat, Place, Turn};

/// A form in the making.
pub(super) struct Draft {
    pub(super) chat: Chat,
    pub(super) left_out: Vec<LeftOut>,
    /// The roles that a chat of this template may have, with or without a turn.
    pub(super) roles: Vec<&'static str>,
    /// Names of the tools that the template gets.
    pub(super) tools: Vec<String>,
}

/// The texts before and after a role's content.
#[derive(Clone, Debug, Default)]
pub(super) struct Around {
    pub(super) before: String,
    pub(super) after: String,
    pub(super) joined: Option<String>,
    pub(super) calls: Option<Calls>,
}

impl Draft {
    pub(super) fn learn(reference: &Reference, template: &str, joint: String) -> Result<Draft, Why> {
        let probe = Probe(reference);
        let user = probe.user()?;
        let first = probe.texts(&["user"])?.ok_or_else(no_content)?.swap_remove(0);
        let start = first.strip_suffix(&user.before).ok_or_else(no_content)?.to_owned();
        let mut known = vec![("user", user)];
        let roles = vec!["user", "assistant", "system", "tool"];
        let mut draft = Draft { chat: Chat::default(), left_out: Vec::new(), roles, tools: Vec::new() };
        if template.contains("'developer'") || template.contains("\"developer\"") {
            draft.roles.push("developer");
        }
        for role in draft.roles.clone().into_iter().filter(|role| !matches!(*role, "user" | "system")) {
            match probe.turn(role, &known)? {
                Some(around) => known.push((role, around)),
                None => draft.leave_out(role, "refused, or not written between two texts of its own"),
            }
        }
        let (shared, system) = probe.system(&start, &known)?;
        match system {
            Some(around) => known.push(("system", around)),
            None => draft.leave_out("system", "refused, or not written between two texts of its own"),
        }
        draft.chat.without_system = start.as_bytes()[shared.len()..].into();
        draft.chat.start = shared.into_bytes().into();
        draft.chat.generation = probe.generation(&known[0].1.after)?.into_bytes().into();
        draft.chat.turns = known.into_iter().map(|(role, around)| around.turn(role)).collect();
        // Parts of a tool's answer are joined by vLLM itself, those of others by the template.
        let is_other = reference.lists && joint != "\n";
        draft.turn("tool").into_iter().for_each(|tool| tool.lone = is_other);
        draft.chat.joint = joint.into_bytes().into();
        Ok(draft)
    }

    /// Takes a role's turn out of the form.
    pub(super) fn leave_out(&mut self, role: &'static str, why: &'static str) {
        let turns = std::mem::take(&mut self.chat.turns).into_vec();
        let (gone, mut turns): (Vec<Turn>, Vec<Turn>) =
            turns.into_iter().partition(|turn| *turn.role == *role.as_bytes());
        // A role that had to be first changes other messages if it is not.
        if gone.iter().any(|turn| turn.place == Place::First) {
            turns.push(Turn { role: role.as_bytes().into(), place: Place::Nowhere, ..Turn::default() });
        }
        self.chat.turns = turns.into();
        self.left_out.push(LeftOut { role, why });
    }

    /// Returns a role's turn, if it has one.
    pub(super) fn turn(&mut self, role: &str) -> Option<&mut Turn> {
        self.chat.turns.iter_mut().find(|turn| *turn.role == *role.as_bytes() && turn.place != Place::Nowhere)
    }
}

impl Around {
    fn turn(self, role: &str) -> Turn {
        let (before, after) = (self.before.into_bytes().into(), self.after.into_bytes().into());
        let joined = self.joined.map(|joined| joined.into_bytes().into());
        Turn { role: role.as_bytes().into(), before, after, joined, calls: self.calls, ..Turn::default() }
    }
}

pub(super) struct Probe<'a>(pub(super) &'a Reference);

impl Probe<'_> {
    /// Returns the texts before, between and after contents of these roles; `None`: the chat is refused, or contents
    /// are changed.
    fn texts(&self, roles: &[&str]) -> Result<Option<Vec<String>>, Why> {
        let marks: Vec<String> = (0..roles.len()).map(|place| format!("zq{place}mark")).collect();
        let messages: Vec<Message> = roles.iter().zip(&marks).map(|(role, mark)| said(role, mark)).collect();
        let rendered = self.0.render(&messages, false)?;
        let marks: Vec<&str> = marks.iter().map(String::as_str).collect();
        let texts = rendered.text().and_then(|text| between(text, &marks));
        Ok(texts.map(|texts| texts.into_iter().map(str::to_owned).collect()))
    }

    /// Finds the texts around a user's content. The end of one turn and the beginning of the next are told apart by the
    /// end of a chat, else by its beginning.
    fn user(&self) -> Result<Around, Why> {
        let alone = self.texts(&["user"])?.ok_or_else(no_content)?;
        let (first, after) = (&alone[0], &alone[1]);
        if let Some(twice) = self.texts(&["user", "user"])?
            && let Some(before) = twice[1].strip_prefix(after).filter(|before| first.ends_with(before))
        {
            return Ok(Around { before: before.to_owned(), after: after.clone(), ..Around::default() });
        }
        if let Some(twice) = self.texts(&["user", "user"])? {
            let before = common_end(first, &twice[1]);
            let inner = twice[1].strip_suffix(before).filter(|inner| after.starts_with(inner));
            if let Some(inner) = inner {
                return Ok(Around { before: before.to_owned(), after: inner.to_owned(), ..Around::default() });
            }
        }
        let Some(turns) = self.texts(&["user", "assistant", "user"])? else {
            return Ok(Around { before: first.clone(), after: after.clone(), ..Around::default() });
        };
        let end = self.texts(&["user", "assistant"])?.map(|mut texts| texts.swap_remove(2)).unwrap_or_default();
        let before = match turns[2].strip_prefix(&end).filter(|before| first.ends_with(before)) {
            Some(before) => before.to_owned(),
            None => common_end(first, &turns[2]).to_owned(),
        };
        Ok(Around { before, after: after.clone(), ..Around::default() })
    }

    /// Finds the texts around a role's content and calls, and between two of its messages.
    fn turn(&self, role: &'static str, known: &[(&'static str, Around)]) -> Result<Option<Around>, Why> {
        let find = |name: &str| known.iter().find(|(role, _)| *role == name).map(|(_, around)| around);
        let (user, assistant) = (find("user"), find("assistant"));
        let mut found = self.role(role, known)?;
        match (role, &mut found) {
            ("assistant", Some(around)) => {
                around.calls = user.map(|user| self.calls(user, around)).transpose()?.flatten();
            }
            ("tool", _) => {
                if let (None, Some(user), Some(assistant)) = (&found, user, assistant)
                    && let Some(calls) = &assistant.calls
                {
                    found = self.answer(user, assistant, calls)?;
                }
                if let Some(around) = &mut found {
                    around.joined = self.joined(around)?;
                }
            }
            _ => {}
        }
        Ok(found)
    }

    /// Finds the texts around a role's content, in the first chat that is accepted.
    fn role(&self, role: &'static str, known: &[(&'static str, Around)]) -> Result<Option<Around>, Why> {
        let ways: [&[&str]; 5] = [
            &["user", role, "user"],
            &["user", "assistant", role, "user"],
            &["user", "assistant", role, "assistant", "user"],
            &["user", role],
            &["user", "assistant", role],
        ];
        let find = |name: &str| known.iter().find(|(role, _)| *role == name).map(|(_, around)| around);
        for way in ways {
            let place = way.iter().position(|name| *name == role).unwrap_or_default();
            let Some(texts) = self.texts(way)? else { continue };
            let before = find(way[place - 1]).and_then(|last| texts[place].strip_prefix(&last.after));
            let next = way.get(place + 1).copied();
            let after = match next {
                Some(next) => find(next).and_then(|next| texts[place + 1].strip_suffix(&next.before)),
                None => Some(texts[place + 1].as_str()),
            };
            if let Some((before, after)) = before.zip(after) {
                return Ok(Some(Around { before: before.to_owned(), after: after.to_owned(), ..Around::default() }));
            }
        }
        Ok(None)
    }

    /// Returns the beginning of all chats, and the texts around a system message. `start`: the beginning of chats
    /// without one.
    fn system(&self, start: &str, known: &[(&'static str, Around)]) -> Result<(String, Option<Around>), Why> {
        let inner = self.role("system", known)?;
        let Some(texts) = self.texts(&["system", "user"])? else {
            let ignored = self.0.render(&[said("system", "zq0mark"), said("user", "zq1mark")], false)?;
            let shared = ignored.text().map_or(start, |text| common_start(start, text));
            return Ok((shared.to_owned(), inner));
        };
        let user = known.first().map(|(_, user)| user.before.as_str()).unwrap_or_default();
        let after = texts[1].strip_suffix(user);
        // With tools, a system message at the beginning often has these in it, too.
        if let Some(inner) = inner.filter(|inner| after == Some(&inner.after))
            && let Some(shared) = texts[0].strip_suffix(&inner.before).filter(|shared| start.starts_with(shared))
        {
            return Ok((shared.to_owned(), Some(inner)));
        }
        let shared = common_start(start, &texts[0]);
        let before = texts[0].strip_prefix(shared).unwrap_or_default().to_owned();
        let around = after.map(|after| Around { before, after: after.to_owned(), ..Around::default() });
        Ok((shared.to_owned(), around))
    }

    /// Returns the text at the end of a chat if an answer is asked for. `after`: the text after a user's content.
    fn generation(&self, after: &str) -> Result<String, Why> {
        let rendered = self.0.render(&[said("user", "zq0mark")], true)?;
        let behind = rendered.text().and_then(|text| between(text, &["zq0mark"])).map(|texts| texts[1]);
        let added = behind.and_then(|behind| behind.strip_prefix(after));
        let otherwise = || Why::Otherwise("writes a chat in another way if an answer is asked for".into());
        added.map(str::to_owned).ok_or_else(otherwise)
    }
}

fn no_content() -> Why {
    Why::Otherwise("does not write a user's content once, as it is".into())
}

/// Returns the texts before, between and after marks, each of which occurs once, in this order; `None` if they do not.
pub(super) fn between<'a>(text: &'a str, marks: &[&str]) -> Option<Vec<&'a str>> {
    let mut texts = Vec::with_capacity(marks.len() + 1);
    let mut rest = text;
    for mark in marks {
        let (before, behind) = rest.split_once(mark)?;
        texts.push(before);
        rest = behind;
    }
    texts.push(rest);
    texts.iter().all(|text| marks.iter().all(|mark| !text.contains(mark))).then_some(texts)
}

fn common_start<'a>(text: &'a str, other: &str) -> &'a str {
    let same = text.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    text.split_at(same.map(|(letter, _)| letter.len_utf8()).sum()).0
}

fn common_end<'a>(text: &'a str, other: &str) -> &'a str {
    let same = text.chars().rev().zip(other.chars().rev()).take_while(|(one, other)| one == other);
    text.split_at(text.len() - same.map(|(letter, _)| letter.len_utf8()).sum::<usize>()).1
}
