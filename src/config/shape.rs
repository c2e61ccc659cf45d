//! Keys and types of a file against those of the defaults: every key that exists is found by writing
//! the defaults out, so that none is declared twice.

use std::net::SocketAddr;
use std::ops::Range;

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problem, is_secret, nearest};
use super::{Config, Upstream, Url};
use crate::policy::Settings;

/// The file as a tree that knows where each value stands.
pub(super) type Tree<'a> = Spanned<DeTable<'a>>;

/// Keys that take values of several types; serde judges those.
const EITHER: [&str; 2] = ["serve.shards", "serve.pin"];

/// Reads `text`; says which keys do not exist and which values are of another type than their default.
pub(super) fn check(text: &str) -> Result<Tree<'_>, Vec<Problem>> {
    let tree = DeTable::parse(text).map_err(|error| vec![Problem::from_toml(&error)])?;
    let mut problems = Vec::new();
    table(tree.get_ref(), &known(), &mut Vec::new(), &mut problems);
    if problems.is_empty() { Ok(tree) } else { Err(problems) }
}

/// Where the value at `path` stands, or the innermost table around it that the file has.
pub(super) fn locate(tree: &Tree<'_>, path: &[String]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, mut value) = tree.get_ref().get_key_value(first.as_str())?;
    let mut span = if rest.is_empty() && value.get_ref().is_table() { key.span() } else { value.span() };
    for part in rest {
        let inner = match value.get_ref() {
            DeValue::Table(inner) => inner.get(part.as_str()),
            DeValue::Array(list) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        };
        let Some(inner) = inner else { break };
        value = inner;
        span = value.span();
    }
    Some(span)
}

/// The defaults as a tree, with one upstream and one pool that have every key.
fn known() -> toml::Table {
    let mut known = tree(&Config::default());
    let upstream = tree(&Upstream::new(Url { host: "gpu".into(), port: 1 }));
    known.insert("upstream".into(), toml::Value::Array(vec![toml::Value::Table(upstream)]));
    let pool = [(ANY.to_owned(), toml::Value::Table(tree(&Settings::default())))];
    known.insert("pool".into(), toml::Value::Table(pool.into_iter().collect()));
    let weights = toml::Table::from_iter([(ANY.to_owned(), toml::Value::Integer(1))]);
    if let Some(toml::Value::Table(queue)) = known.get_mut("queue") {
        queue.insert("weights".into(), toml::Value::Table(weights));
    }
    known
}

/// Stands for any key in a table whose keys the operator makes up.
const ANY: &str = "*";

fn table(given: &DeTable<'_>, known: &toml::Table, path: &mut Vec<String>, problems: &mut Vec<Problem>) {
    for (key, value) in given {
        let name = key.get_ref().as_ref();
        path.push(name.to_owned());
        match known.get(name).or_else(|| known.get(ANY)) {
            Some(default) => matches(value, default, path, problems),
            None => problems.push(Problem {
                path: path.clone(),
                message: unknown(name, value.get_ref(), path, known),
                span: Some(key.span()),
            }),
        }
        path.pop();
    }
}

fn matches(given: &Spanned<DeValue<'_>>, default: &toml::Value, path: &mut Vec<String>, problems: &mut Vec<Problem>) {
    let wrong = |message: String| Problem { path: path.clone(), message, span: Some(given.span()) };
    match (given.get_ref(), default) {
        _ if EITHER.contains(&path.join(".").as_str()) => {}
        (DeValue::Table(given), toml::Value::Table(default)) => table(given, default, path, problems),
        (DeValue::Array(given), toml::Value::Array(defaults)) => {
            let text = toml::Value::String(String::new());
            // A list that is empty by default is one of texts.
            let default = defaults.first().unwrap_or(&text);
            for (index, item) in given.iter().enumerate() {
                path.push(index.to_string());
                matches(item, default, path, problems);
                path.pop();
            }
        }
        (DeValue::Integer(number), toml::Value::Integer(_)) if number.as_str().starts_with('-') => {
            problems.push(wrong(format!("`{}` cannot be negative", key_of(path))));
        }
        (DeValue::Integer(number), toml::Value::Integer(_))
            if i64::from_str_radix(number.as_str(), number.radix()).is_err() =>
        {
            problems.push(wrong(format!("`{}` cannot be above {}", key_of(path), i64::MAX)));
        }
        (given, toml::Value::Table(default)) if is_of_one_pool(path, default) && !given.is_table() => {
            let key = key_of(path);
            problems.push(wrong(format!(
                "`{key}` is for one model: write it below [pool.\"SERVED-ID\"], with the model's served id"
            )));
        }
        (DeValue::Table(_), toml::Value::Array(defaults)) if defaults.first().is_some_and(toml::Value::is_table) => {
            let key = key_of(path);
            problems
                .push(wrong(format!("`{key}` is a list of tables: write [[{key}]] in two brackets, once for each")));
        }
        (DeValue::String(text), toml::Value::String(default)) if is_address(default) && !is_address(text) => {
            let key = key_of(path);
            problems.push(wrong(format!(
                "`{key}` wants an address as IP:PORT, such as \"{default}\" or \"[::]:8000\", not \"{text}\""
            )));
        }
        (DeValue::String(_), toml::Value::String(_))
        | (DeValue::Integer(_), toml::Value::Integer(_))
        | (DeValue::Boolean(_), toml::Value::Boolean(_)) => {}
        (given, default) => problems.push(wrong(format!(
            "`{}` wants {}, not {}",
            key_of(path),
            wanted(default),
            kind(given.type_str())
        ))),
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<SocketAddr>().is_ok()
}

/// Whether `path` is directly in `[pool]`, where a key of its tables was meant.
fn is_of_one_pool(path: &[String], default: &toml::Table) -> bool {
    matches!(path, [pool, key] if pool == "pool" && default.contains_key(key))
}

/// The message for a key that is none of `known`; `path` ends with it.
fn unknown(name: &str, given: &DeValue<'_>, path: &[String], known: &toml::Table) -> String {
    if let Some(model) = cut_at_dots(path, given) {
        return format!("a model's name that has dots needs quotes: write [pool.\"{model}\"]");
    }
    let keys = || known.keys().map(String::as_str);
    let all = || format!("there are {}", keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "));
    let place = match path {
        [_] => "a table of this file".to_owned(),
        [outer @ .., _] if outer[0] == "upstream" => "a key of [[upstream]]".to_owned(),
        [outer @ .., _] if outer[0] == "pool" => "a key of [routing] that a pool may override".to_owned(),
        [outer @ .., _] => format!("a key of [{}]", outer.join(".")),
        [] => String::new(),
    };
    let hint = match (elsewhere(name), nearest(name, keys())) {
        (Some(table), Some(meant)) => format!("it belongs to {table}; or did you mean `{meant}`?"),
        (Some(table), None) => format!("it belongs to {table}"),
        (None, Some(meant)) => format!("did you mean `{meant}`?"),
        // The key may be a tenant's name, which may be its API key for engines: it is not repeated.
        (None, None) if path.first().is_some_and(|table| table == "queue") => {
            return format!("this is not {place}; tenants are named in [queue.weights]; {}", all());
        }
        (None, None) if is_secret(name) => {
            let file = "an API key for engines is kept in a file of its own, named by `api_key_file` of [[upstream]]";
            format!("{file}; {}", all())
        }
        (None, None) => all(),
    };
    format!("`{name}` is not {place}; {hint}")
}

/// The name of a model that was written without quotes, so that its dots made nested tables: no key of a pool is a
/// table itself.
fn cut_at_dots(path: &[String], given: &DeValue<'_>) -> Option<String> {
    let (pool, parts) = path.split_first()?;
    let mut table = given.as_table().filter(|_| pool == "pool" && parts.len() > 1)?;
    let mut name = parts.join(".");
    while let Some((part, inner)) = table.iter().next()
        && let Some(inner) = inner.get_ref().as_table()
    {
        name = format!("{name}.{}", part.get_ref());
        table = inner;
    }
    Some(name)
}

/// Whether any table, or an upstream, has a key of this name.
pub(super) fn is_key(name: &str) -> bool {
    elsewhere(name).is_some()
}

/// The table that has a key of this name.
fn elsewhere(name: &str) -> Option<String> {
    known().iter().find_map(|(table, value)| match value {
        toml::Value::Table(keys) => keys.contains_key(name).then(|| format!("[{table}]")),
        toml::Value::Array(list) => list.first()?.get(name).map(|_| format!("[[{table}]]")),
        _ => None,
    })
}

/// The key in `path` as an operator names it: an item of a list by its list, and a tenant, whose name may be its API
/// key for engines, by its table.
fn key_of(path: &[String]) -> &str {
    if let [queue, weights, ..] = path
        && (queue.as_str(), weights.as_str()) == ("queue", "weights")
    {
        return weights;
    }
    let mut names = path.iter().rev().filter(|part| part.parse::<usize>().is_err());
    names.next().map_or("", String::as_str)
}

fn wanted(default: &toml::Value) -> String {
    match default {
        toml::Value::String(text) if text.is_empty() => "a text in quotes".into(),
        toml::Value::String(text) => format!("a text in quotes such as \"{text}\""),
        toml::Value::Integer(number) => format!("a whole number such as {number}"),
        toml::Value::Boolean(_) => "true or false".into(),
        toml::Value::Array(_) => "a list in square brackets".into(),
        toml::Value::Table(_) => "a table".into(),
        other => other.type_str().into(),
    }
}

fn kind(type_str: &str) -> &str {
    match type_str {
        "string" => "a text",
        "integer" => "a number",
        "float" => "a number with a fraction",
        "boolean" => "true or false",
        "array" => "a list",
        "table" => "a table",
        other => other,
    }
}

fn tree(value: &impl Serialize) -> toml::Table {
    toml::Table::try_from(value).unwrap_or_default()
}
