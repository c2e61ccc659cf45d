//! What an engine makes of a chat: the template itself, run as Transformers and vLLM run it. Slow and bounded; at load
//! alone.

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
    /// What is given as the request's tools.
    tools: Value,
    /// A content is given as a list of its parts, as vLLM does where the template goes through them.
    pub(super) lists: bool,
    /// What has been spent on all prompts.
    spent: Arc<AtomicU64>,
    /// It has asked for the date.
    dated: Arc<AtomicBool>,
    /// It has asked for what Python may do otherwise.
    unclear: Unclear,
    prompts: Cell<u32>,
}

/// What became of a chat.
pub(super) enum Rendered {
    /// Its prompt.
    Text(String),
    /// The template refuses it, as the engine will.
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
    /// That of chats with these tools, or with none.
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

    /// The prompt of a chat, and whether an answer is asked for.
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
            // Those that it raises itself are counted where it does.
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

    /// Whether it has tools; what is known without them is not tried all over again.
    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_none()
    }

    /// How many prompts it was run for.
    pub(super) fn prompts(&self) -> u32 {
        self.prompts.get()
    }

    fn message(&self, place: usize, message: &Message) -> Value {
        let part = |text: &String| context! { type => "text", text => text };
        // What tools answer is one text in any case.
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

    /// Ids are the client's. Some templates take none that has not nine letters; from prompt to prompt they are others,
    /// so that one that is written is no part of a form.
    fn call_id(&self, place: usize) -> Option<String> {
        match self.prompts.get() % 3 {
            0 => Some(format!("call{place:05}")),
            1 => Some(format!("chatcmpl-tool-{place:032x}")),
            _ => None,
        }
    }

    /// A call as vLLM hands it on; the order of its fields is the client's or that of the engine's version.
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

/// What minijinja has not, or not yet.
const UNKNOWN: &[ErrorKind] =
    &[ErrorKind::UnknownFilter, ErrorKind::UnknownTest, ErrorKind::UnknownMethod, ErrorKind::UnknownFunction];

/// Whether it is of these kinds; also inside of macros.
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

/// As in Jinja: what has a length and items, which texts and dictionaries have.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
}
