//! What an engine makes of a chat: the template itself, run as Transformers and vLLM run it. It is slow and bounded,
//! and run only when a model is loaded.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, StringInput, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};
use minijinja_contrib::pycompat;

use super::executor::strip;
use super::json::{self, Json};
use super::values::{self, Unclear};
use super::{Call, Content, Message, Source, Why};
use crate::limits::{TEMPLATE_BYTES_PER_FUEL, TEMPLATE_FUEL, TEMPLATE_FUEL_ALL, TEMPLATE_OUTPUT_BYTES_MAX};

/// A template that can be run.
pub(super) struct Reference {
    environment: Environment<'static>,
    tokens: Vec<(String, String)>,
    /// The tools that the template gets.
    tools: Value,
    /// Whether the template gets a content as a list of its parts, as it does from vLLM if it iterates over them.
    pub(super) lists: bool,
    /// Instructions spent on all prompts so far.
    spent: Arc<AtomicU64>,
    /// Whether the template has asked for the date.
    dated: Arc<AtomicBool>,
    /// Whether the template has done something that Python may do differently.
    unclear: Unclear,
    prompts: Cell<u32>,
}

/// What became of a chat.
pub(super) enum Rendered {
    /// The prompt.
    Text(String),
    /// The template refuses the chat, as the engine will.
    Refused(String),
    /// The template does what is not known here; the engine may write anything.
    Unclear,
}

impl Rendered {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Rendered::Text(text) => Some(text),
            Rendered::Refused(_) | Rendered::Unclear => None,
        }
    }
}

const NAME: &str = "chat";

impl Reference {
    /// Makes the reference for chats with these tools, or with none.
    pub(super) fn new(source: &Source, tools: Option<&Json>) -> Result<Reference, Why> {
        let text = source.text(tools.is_some()).ok_or(Why::None)?;
        let (spent, dated) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|why| Why::Syntax(why.to_string()))?);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.set_unknown_method_callback(method);
        environment.add_filter("trim", trim);
        let unclear = Unclear::default();
        let doubt = unclear.clone();
        environment
            .add_filter("tojson", move |value: &Value, options: Kwargs| values::to_json(value, &options, &doubt));
        environment.add_test("sequence", is_sequence);
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
        let tools = tools.map_or(Value::from(()), |tools| values::value(tools, &unclear));
        Ok(Reference { environment, tokens, tools, lists: false, spent, dated, unclear, prompts: Cell::new(0) })
    }

    /// Renders the prompt of a chat. `generation`: whether an answer is asked for.
    pub(super) fn render(&self, messages: &[Message], generation: bool) -> Result<Rendered, Why> {
        self.prompts.set(self.prompts.get() + 1);
        let template = self.environment.get_template(NAME).map_err(|why| Why::Syntax(why.to_string()))?;
        let messages: Vec<Value> =
            messages.iter().enumerate().map(|(place, message)| self.message(place, message)).collect();
        let tokens = Value::from_pairs(self.tokens.iter().map(|(name, text)| (name.as_str(), text.as_str())));
        let values = context! {
            messages => messages, tools => &self.tools, documents => (), add_generation_prompt => generation, ..tokens
        };
        let mut output = Bounded(Vec::new());
        let outcome = template.render_captured_to(values, &mut output);
        let cost = match &outcome {
            Ok(captured) => captured.state().fuel_levels().map_or(0, |(consumed, _)| consumed),
            // The cost of errors that the template raises itself is counted in `raise_exception`.
            Err(_) => TEMPLATE_FUEL / 50,
        };
        let cost = cost + output.0.len() as u64 / TEMPLATE_BYTES_PER_FUEL;
        let failed = outcome.err();
        let unclear = self.unclear.take();
        if self.spent.fetch_add(cost, Ordering::Relaxed) + cost > TEMPLATE_FUEL_ALL {
            return Err(Why::Costly);
        }
        match failed {
            None if self.dated.load(Ordering::Relaxed) => Err(Why::Dated),
            None if unclear => Ok(Rendered::Unclear),
            None => String::from_utf8(output.0).map(Rendered::Text).map_err(|_| Why::Costly),
            Some(why) if is_any(&why, &[ErrorKind::OutOfFuel, ErrorKind::WriteFailure]) => Err(Why::Costly),
            Some(why) if is_any(&why, UNKNOWN) => Ok(Rendered::Unclear),
            Some(why) => {
                self.dated.store(false, Ordering::Relaxed);
                Ok(Rendered::Refused(why.detail().map_or_else(|| why.kind().to_string(), str::to_owned)))
            }
        }
    }

    /// Whether it has tools; what is known without tools is not all tried again.
    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_none()
    }

    /// Returns for how many prompts the template was run.
    pub(super) fn prompts(&self) -> u32 {
        self.prompts.get()
    }

    fn message(&self, place: usize, message: &Message) -> Value {
        let part = |text: &String| context! { type => "text", text => text };
        // A tool's answer is one text in any case.
        let content = match &message.content {
            Content::Text(text) if !self.lists || message.role == "tool" => Value::from(text.as_str()),
            Content::Parts(parts) if !self.lists || message.role == "tool" => Value::from(parts.join("\n")),
            Content::Text(text) => Value::from(vec![part(text)]),
            Content::Parts(parts) => parts.iter().map(part).collect(),
        };
        let mut fields = vec![("role", Value::from(message.role.as_str())), ("content", content)];
        if !message.calls.is_empty() {
            let calls = message.calls.iter().enumerate();
            let calls: Vec<Value> =
                calls.map(|(number, call)| self.call(&self.call_id(place + number), call)).collect();
            fields.push(("tool_calls", Value::from(calls)));
        }
        if message.role == "tool"
            && let Some(id) = self.call_id(place)
        {
            fields.push(("tool_call_id", Value::from(id)));
        }
        Value::from_pairs(fields)
    }

    /// Ids are chosen by clients. Some templates accept only ids of nine letters. Ids differ from prompt to prompt, so
    /// that an id that a template writes becomes no part of a form.
    fn call_id(&self, place: usize) -> Option<String> {
        match self.prompts.get() % 3 {
            0 => Some(format!("call{place:05}")),
            1 => Some(format!("chatcmpl-tool-{place:032x}")),
            _ => None,
        }
    }

    /// Makes a call as vLLM passes it on; the order of its fields is the client's, or depends on the engine's version.
    fn call(&self, id: &Option<String>, call: &Call) -> Value {
        let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
        let arguments = json::read(arguments.as_bytes()).unwrap_or(Json::Dict(Vec::new()));
        let mut function =
            vec![("name", Value::from(call.name.as_str())), ("arguments", values::value(&arguments, &self.unclear))];
        if id.is_none() {
            function.reverse();
        }
        let mut fields = vec![("type", Value::from("function")), ("function", Value::from_pairs(function))];
        fields.extend(id.as_ref().map(|id| ("id", Value::from(id.as_str()))));
        Value::from_pairs(fields)
    }
}

/// Errors for what minijinja lacks.
const UNKNOWN: &[ErrorKind] =
    &[ErrorKind::UnknownFilter, ErrorKind::UnknownTest, ErrorKind::UnknownMethod, ErrorKind::UnknownFunction];

/// Whether an error is of these kinds, also inside macros.
fn is_any(why: &Error, kinds: &[ErrorKind]) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(why);
    while let Some(error) = next {
        if error.downcast_ref::<Error>().is_some_and(|error| kinds.contains(&error.kind())) {
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

/// Replaces `{% generation %}`, which marks what a model has said, for training, and writes nothing.
fn plain_generation(text: &str) -> String {
    let mut plain = text.to_owned();
    for (begin, end) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        plain = plain.replace(&format!("{begin} generation {end}"), &format!("{begin} if true {end}"));
        plain = plain.replace(&format!("{begin} endgeneration {end}"), &format!("{begin} endif {end}"));
    }
    plain
}

/// Calls one of Python's methods, of which `strip` has another definition of white space than Rust.
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

/// Jinja's test `sequence`: whether a value has a length and items, as texts and dictionaries have, too.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}
