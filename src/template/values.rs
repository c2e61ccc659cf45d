//! Values of bodies as templates see them: Python's dictionaries and lists. If a template writes one directly, `{{ tool
//! }}`, Python would write its `repr`; that is not known here, and is noted as unclear.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::json::{Json, Style, decimal};
use crate::limits::TEMPLATE_JSON_DEPTH_MAX;

/// Notes whether a template asked for something that is not known here.
#[derive(Clone, Debug, Default)]
pub(super) struct Unclear(Arc<AtomicBool>);

impl Unclear {
    pub(super) fn say(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Unclear::say`] was called since the last call of this.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A dictionary or list.
#[derive(Debug)]
struct Given {
    json: Json,
    /// The place of each key of a dictionary.
    places: HashMap<String, usize>,
    values: Vec<Value>,
    /// JSON texts of it that were asked for, by style.
    texts: Mutex<Vec<(Style, Value)>>,
    unclear: Unclear,
}

/// Returns what a template gets for this value.
pub(super) fn value(json: &Json, unclear: &Unclear) -> Value {
    let given = |places, values| {
        Value::from_object(Given {
            json: json.clone(),
            places,
            values,
            texts: Mutex::default(),
            unclear: unclear.clone(),
        })
    };
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Int(number) => i64::try_from(*number).map_or_else(|_| Value::from(*number), Value::from),
        Json::Float(number) => Value::from(*number),
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(values) => given(HashMap::new(), values.iter().map(|json| value(json, unclear)).collect()),
        Json::Dict(pairs) => {
            let places = pairs.iter().enumerate().map(|(place, (key, _))| (key.clone(), place)).collect();
            given(places, pairs.iter().map(|(_, json)| value(json, unclear)).collect())
        }
    }
}

impl Object for Given {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if matches!(self.json, Json::Dict(_)) { ObjectRepr::Map } else { ObjectRepr::Seq }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let place = match &self.json {
            Json::Dict(_) => *self.places.get(key.as_str()?)?,
            _ => key.as_usize()?,
        };
        self.values.get(place).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &self.json {
            Json::Dict(pairs) => Enumerator::Values(pairs.iter().map(|(key, _)| Value::from(key.as_str())).collect()),
            _ => Enumerator::Seq(self.values.len()),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.unclear.say();
        f.write_str("?")
    }
}

/// The filter `tojson` as in Transformers: `json.dumps` with letters as they are.
pub(super) fn to_json(value: &Value, options: &Kwargs, unclear: &Unclear) -> Result<Value, Error> {
    let style = match style(options)? {
        Some(style) => style,
        None => {
            unclear.say();
            return Ok(Value::from("?"));
        }
    };
    if let Some(given) = value.downcast_object_ref::<Given>() {
        let mut texts = given.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = texts.iter().find(|(known, _)| *known == style) {
            return Ok(text.clone());
        }
        let text = Value::from(text(&given.json, &style));
        texts.push((style, text.clone()));
        return Ok(text);
    }
    match json(value, 0) {
        Some(json) => Ok(Value::from(text(&json, &style))),
        // Python refuses an undefined value.
        None if value.is_undefined() => Err(Error::new(ErrorKind::BadSerialization, "undefined is not JSON")),
        None => {
            unclear.say();
            Ok(Value::from("?"))
        }
    }
}

fn text(json: &Json, style: &Style) -> String {
    let mut text = String::new();
    json.write(style, 0, &mut text);
    text
}

/// Reads the options of `json.dumps`; `None`: one of them is not known here.
fn style(options: &Kwargs) -> Result<Option<Style>, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            let part = |place| pair.get_item_by_index(place).ok().and_then(|part| part.as_str().map(str::to_owned));
            match part(0).zip(part(1)) {
                Some(pair) => Some(pair),
                None => return Ok(None),
            }
        }
        _ => None,
    };
    let other = |name| options.get::<Option<bool>>(name).map(Option::unwrap_or_default);
    if other("ensure_ascii")? || other("sort_keys")? || indent.is_some_and(|indent| indent > 8) {
        return Ok(None);
    }
    options.assert_all_used()?;
    let (comma, colon) = separators.unwrap_or_else(|| {
        let comma = if indent.is_some() { "," } else { ", " };
        (comma.to_owned(), ": ".to_owned())
    });
    Ok(Some(Style { indent, comma, colon }))
}

/// Converts a value that a template has made; `None`: Python may make it differently.
fn json(value: &Value, depth: usize) -> Option<Json> {
    if let Some(given) = value.downcast_object_ref::<Given>() {
        return Some(given.json.clone());
    }
    if depth > TEMPLATE_JSON_DEPTH_MAX {
        return None;
    }
    Some(match value.kind() {
        ValueKind::None => Json::Null,
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => Json::Int(i128::try_from(value.clone()).ok()?),
        ValueKind::Number => {
            let number = f64::try_from(value.clone()).ok()?;
            decimal(number)?;
            Json::Float(number)
        }
        ValueKind::String => Json::Text(value.as_str()?.to_owned()),
        ValueKind::Seq => {
            Json::List(value.try_iter().ok()?.map(|value| json(&value, depth + 1)).collect::<Option<_>>()?)
        }
        ValueKind::Map => {
            let pair = |key: Value| {
                let value = value.get_item(&key).ok()?;
                Some((key.as_str()?.to_owned(), json(&value, depth + 1)?))
            };
            Json::Dict(value.try_iter().ok()?.map(pair).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
