//! The tools of a body as its engine gives them to the template.

use super::Why;
use super::json::{self, Json};
use crate::limits::TEMPLATE_TOOLS_BYTES_MAX;

/// Reads the value of `tools`, into the form that vLLM gives it: an entry has `type` and `function`; that has `name`,
/// `description`, `parameters` and, if it is not null, `strict`. Other keys are dropped by some engines and passed on
/// by others, so that a set with one is refused.
pub(super) fn read(tools: &[u8]) -> Result<Json, Why> {
    normal(tools).map_err(|why| Why::Tools(why.to_owned()))
}

fn normal(tools: &[u8]) -> Result<Json, &'static str> {
    if tools.len() > TEMPLATE_TOOLS_BYTES_MAX {
        return Err("are too long");
    }
    let Json::List(tools) = json::read(tools)? else { return Err("are no list") };
    tools.into_iter().map(tool).collect::<Result<Vec<Json>, _>>().map(Json::List)
}

fn tool(tool: Json) -> Result<Json, &'static str> {
    let [kind, function] = fields(tool, ["type", "function"])?;
    match kind {
        None => {}
        Some(Json::Text(kind)) if kind == "function" => {}
        Some(_) => return Err("are not all functions"),
    }
    let function = function.ok_or("are not all functions")?;
    let [name, description, parameters, strict] = fields(function, ["name", "description", "parameters", "strict"])?;
    let name = name.filter(|name| matches!(name, Json::Text(_))).ok_or("have one without a name")?;
    let description = description.unwrap_or(Json::Null);
    let parameters = parameters.unwrap_or(Json::Null);
    if !matches!(description, Json::Text(_) | Json::Null) || !matches!(parameters, Json::Dict(_) | Json::Null) {
        return Err("have a field of another kind than engines take");
    }
    let mut function = vec![("name", name), ("description", description), ("parameters", parameters)];
    match strict {
        None | Some(Json::Null) => {}
        Some(strict @ Json::Bool(_)) => function.push(("strict", strict)),
        Some(_) => return Err("have a field of another kind than engines take"),
    }
    Ok(dict(vec![("type", Json::Text("function".into())), ("function", dict(function))]))
}

/// Returns the values of these keys in a dictionary that has no others.
fn fields<const N: usize>(value: Json, names: [&str; N]) -> Result<[Option<Json>; N], &'static str> {
    let Json::Dict(pairs) = value else { return Err("are not all functions") };
    let mut values = [const { None }; N];
    for (key, value) in pairs {
        let place = names.iter().position(|name| *name == key).ok_or("have a key that not all engines know")?;
        if let Some(slot) = values.get_mut(place) {
            *slot = Some(value);
        }
    }
    Ok(values)
}

fn dict(pairs: Vec<(&str, Json)>) -> Json {
    Json::Dict(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Methods of Python's dictionaries: `tool.items` is the method there, and not a key of the tool.
const METHODS: &[&str] =
    &["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Whether a template has such a name as a field, and not as a call, that a key of these tools has, too.
pub(super) fn shadows(template: &str, tools: &Json) -> bool {
    METHODS.iter().any(|method| has_field(template, method) && has_key(tools, method))
}

fn has_field(template: &str, name: &str) -> bool {
    template.match_indices(name).any(|(at, _)| {
        let (before, behind) = template.split_at(at);
        let behind = behind.get(name.len()..).unwrap_or_default();
        let is_whole = !behind.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        before.trim_end().ends_with('.') && is_whole && !behind.trim_start().starts_with('(')
    })
}

fn has_key(value: &Json, name: &str) -> bool {
    match value {
        Json::Dict(pairs) => pairs.iter().any(|(key, value)| key == name || has_key(value, name)),
        Json::List(values) => values.iter().any(|value| has_key(value, name)),
        _ => false,
    }
}

/// Most tools of a set whose names are tried in calls.
const NAMES: usize = 8;

/// Returns names of functions, which templates may look for; of a long set only some.
pub(super) fn names(tools: &Json) -> Vec<String> {
    let mut names = Vec::new();
    let Json::List(tools) = tools else { return names };
    for tool in tools.iter().take(NAMES) {
        names.extend(at(tool, "function").and_then(|function| at(function, "name")).and_then(|name| match name {
            Json::Text(name) => Some(name.clone()),
            _ => None,
        }));
    }
    names
}

fn at<'a>(value: &'a Json, name: &str) -> Option<&'a Json> {
    let Json::Dict(pairs) = value else { return None };
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}
