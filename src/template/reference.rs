//! What an engine makes of a chat: the template itself, run as Transformers and vLLM run it. Slow and bounded; at load alone.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, StringInput};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};
use minijinja_contrib::pycompat;

use super::executor::strip;
use super::{Content, Message, Source, Why};
use crate::limits::{TEMPLATE_FUEL, TEMPLATE_FUEL_ALL, TEMPLATE_OUTPUT_BYTES_MAX};

/// A template that can be run.
pub(super) struct Reference {
    environment: Environment<'static>,
    tokens: Vec<(String, String)>,
    /// A content is given as a list of its parts, as vLLM does where the template goes through them.
    pub(super) lists: bool,
    /// What has been spent on all prompts.
    spent: Arc<AtomicU64>,
    /// It has asked for the date.
    dated: Arc<AtomicBool>,
    prompts: Cell<u32>,
}

/// What became of a chat.
pub(super) enum Rendered {
    /// Its prompt.
    Text(String),
    /// The template refuses it, as the engine will.
    Refused(String),
}

impl Rendered {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Rendered::Text(text) => Some(text),
            Rendered::Refused(_) => None,
        }
    }
}

const NAME: &str = "chat";

impl Reference {
    pub(super) fn new(source: &Source) -> Result<Reference, Why> {
        let text = source.text.as_deref().ok_or(Why::None)?;
        let (spent, dated) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|why| Why::Syntax(why.to_string()))?);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.set_unknown_method_callback(method);
        environment.add_filter("trim", trim);
        environment.add_filter("tojson", to_json);
        let count = Arc::clone(&spent);
        environment.add_function("raise_exception", move |state: &State, message: String| -> Result<Value, Error> {
            count.fetch_add(state.fuel_levels().map_or(0, |(consumed, _)| consumed), Ordering::Relaxed);
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let asked = Arc::clone(&dated);
        environment.add_function("strftime_now", move |format: String| {
            asked.store(true, Ordering::Relaxed);
            format
        });
        let text = plain_generation(&text.replace("\r\n", "\n").replace('\r', "\n"));
        environment.add_template_owned(NAME, text).map_err(|why| Why::Syntax(why.to_string()))?;
        let tokens = source.tokens.clone();
        Ok(Reference { environment, tokens, lists: false, spent, dated, prompts: Cell::new(0) })
    }

    /// The prompt of a chat, and whether an answer is asked for.
    pub(super) fn render(&self, messages: &[Message], generation: bool) -> Result<Rendered, Why> {
        self.prompts.set(self.prompts.get() + 1);
        let template = self.environment.get_template(NAME).map_err(|why| Why::Syntax(why.to_string()))?;
        let messages: Vec<Value> = messages.iter().map(|message| self.message(message)).collect();
        let tokens = Value::from_pairs(self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let values = context! {
            messages => messages, tools => (), documents => (), add_generation_prompt => generation, ..tokens
        };
        let mut output = Bounded(Vec::new());
        let outcome = template.render_captured_to(values, &mut output);
        let cost = match &outcome {
            Ok(captured) => captured.state().fuel_levels().map_or(0, |(consumed, _)| consumed),
            // Those that it raises itself are counted where it does.
            Err(_) => TEMPLATE_FUEL / 50,
        };
        let failed = outcome.err();
        if self.spent.fetch_add(cost, Ordering::Relaxed) + cost > TEMPLATE_FUEL_ALL {
            return Err(Why::Costly);
        }
        match failed {
            None if self.dated.load(Ordering::Relaxed) => Err(Why::Dated),
            None => String::from_utf8(output.0).map(Rendered::Text).map_err(|_| Why::Costly),
            Some(why) if is_bound(&why) => Err(Why::Costly),
            Some(why) => {
                self.dated.store(false, Ordering::Relaxed);
                Ok(Rendered::Refused(why.detail().map_or_else(|| why.kind().to_string(), str::to_owned)))
            }
        }
    }

    /// How many prompts it was run for.
    pub(super) fn prompts(&self) -> u32 {
        self.prompts.get()
    }

    fn message(&self, message: &Message) -> Value {
        let part = |text: &String| context! { type => "text", text => text };
        // What tools answer is one text in any case.
        let content = match &message.content {
            Content::Text(text) if !self.lists || message.role == "tool" => Value::from(text.as_str()),
            Content::Parts(parts) if !self.lists || message.role == "tool" => Value::from(parts.join("\n")),
            Content::Text(text) => Value::from(vec![part(text)]),
            Content::Parts(parts) => parts.iter().map(part).collect(),
        };
        context! { role => message.role.as_str(), content => content }
    }
}

/// What takes longer or is longer than any prompt; also inside of macros.
fn is_bound(why: &Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(why);
    while let Some(error) = next {
        let kind = error.downcast_ref::<Error>().map(Error::kind);
        if matches!(kind, Some(ErrorKind::OutOfFuel | ErrorKind::WriteFailure)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// A prompt that is not longer than [`TEMPLATE_OUTPUT_BYTES_MAX`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > TEMPLATE_OUTPUT_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}` marks what a model has said, for training; it writes nothing.
fn plain_generation(text: &str) -> String {
    let mut plain = text.to_owned();
    for (begin, end) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        plain = plain.replace(&format!("{begin} generation {end}"), &format!("{begin} if true {end}"));
        plain = plain.replace(&format!("{begin} endgeneration {end}"), &format!("{begin} endif {end}"));
    }
    plain
}

/// Python's methods, of which `strip` has another notion of white space than Rust.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str(), args.is_empty()) {
        ("strip", Some(text), true) => Ok(Value::from(strip(text))),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn trim(value: StringInput<'_>, letters: Option<String>) -> String {
    let letters: Option<Vec<char>> = letters.map(|letters| letters.chars().collect());
    letters.map_or_else(|| strip(value.as_str()), |letters| value.as_str().trim_matches(&letters[..])).to_owned()
}

/// As Python's `json.dumps` writes it, with a space behind commas and colons.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    if options.args().next().is_some() {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson with options"));
    }
    let mut json = Vec::new();
    let mut writer = serde_json::Serializer::with_formatter(&mut json, Spaced);
    serde::Serialize::serialize(value, &mut writer)
        .map_err(|why| Error::new(ErrorKind::BadSerialization, why.to_string()))?;
    String::from_utf8(json).map(Value::from).map_err(|why| Error::new(ErrorKind::BadSerialization, why.to_string()))
}

struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
