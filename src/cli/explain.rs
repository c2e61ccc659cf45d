//! `warmfront explain`: what the front would do with one request body, and why; and what it did with a request.

mod receipt;

use std::fmt::Write;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shown::{plain, shown};
use super::{refuse, runtime, say, unanswered};
use crate::config::{Config, Flags};
use crate::control::client::{Call, Client};
use crate::control::explain::{self, Explanation, Question};
use crate::control::fleet::Fleet;
use crate::control::forms::Forms;
use crate::fleet::Loads;

/// Header fields that say where a request comes from.
const ASKERS: &[&str] = &["host", "origin", "sec-fetch-site"];
/// Longest wait for a running front's answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Show what the scanner sees in a request body and which endpoint each policy would choose, and why.
///
/// Without --admin it asks no engine and counts no load: it shows where a key is at home. Engines whose
/// `models` are not configured are taken to serve the body's model. With --admin it asks a running front, with
/// the load and the health its endpoints have now. With --request-id it asks a running front what became of a request.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  Where would this request go, on an idle fleet?
    warmfront explain --body request.json \\
      --upstream http://gpu-1:8000 --upstream http://gpu-2:8000
  And on the running one?
    warmfront explain --body request.json --admin 127.0.0.1:9911
  Where did a request go that has ended, and why? (x-request-id of its reply)
    warmfront explain --request-id 7f3a --admin 127.0.0.1:9911
  Typed in, with a session header:
    echo '{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}' |
      warmfront explain --body - --header x-session-id:alice \\
        --config warmfront.toml")]
pub struct Args {
    /// File with the request body; `-` reads standard input.
    #[arg(long, value_name = "FILE", default_value = "-")]
    body: PathBuf,
    /// Path the body would be sent to.
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions", value_parser = path)]
    path: String,
    /// Header field the request would carry; may be given several times.
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = field)]
    fields: Vec<(String, String)>,
    /// Tell of a running front's last finished requests with this id instead; its first 64 bytes are compared.
    #[arg(long, value_name = "ID", value_parser = request_id, conflicts_with_all = ["body", "path", "fields"])]
    request_id: Option<String>,
    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags,
}

fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME:VALUE")?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err("write it as NAME:VALUE, the name in letters, digits and hyphens".into());
    }
    if value.contains(char::is_control) {
        return Err("a header's value is one line without control characters".into());
    }
    Ok((name, value.to_owned()))
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') { Ok(text.to_owned()) } else { Err("a path begins with /".into()) }
}

fn request_id(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a request's id is the x-request-id of its reply".into()) } else { Ok(text.to_owned()) }
}

/// Escapes a text for a path or a query.
fn escaped(text: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escaped).collect()
}

pub(super) fn main(args: Args) -> ExitCode {
    if let Some(id) = &args.request_id {
        let address = match &args.flags.file {
            // Not checked as a whole: only `admin` is used, and the front that is asked has its own engines.
            Some(_) => match Config::read(&args.flags) {
                Ok(read) => read.config.serve.admin,
                Err(invalid) => return refuse(&invalid),
            },
            None => args.flags.admin.unwrap_or_else(|| Config::default().serve.admin),
        };
        return match receipt::asked(address, id, args.json) {
            Ok(words) => {
                say(&words);
                ExitCode::SUCCESS
            }
            Err(why) => refuse(&why),
        };
    }
    let explained = body(&args).and_then(|body| match args.flags.admin {
        Some(front) => live(&args, front, body),
        None => offline(&args, &body),
    });
    match explained {
        Ok(explanation) if args.json => {
            say(&format!("{}\n", serde_json::to_string_pretty(&explanation).unwrap_or_default()));
            ExitCode::SUCCESS
        }
        Ok(explanation) => {
            say(&table(&explanation));
            ExitCode::SUCCESS
        }
        Err(why) => refuse(&why),
    }
}

fn body(args: &Args) -> Result<Vec<u8>, String> {
    if args.body.as_os_str() != "-" {
        return std::fs::read(&args.body).map_err(|error| format!("cannot read {}: {error}", args.body.display()));
    }
    let mut body = Vec::new();
    io::stdin().lock().read_to_end(&mut body).map_err(|error| format!("cannot read standard input: {error}"))?;
    Ok(body)
}

/// Explains it for a fleet where nothing is in flight.
fn offline(args: &Args, body: &[u8]) -> Result<Explanation, String> {
    let mut config = Config::load(&args.flags).map_err(|invalid| invalid.to_string())?;
    let fields: Vec<_> = args.fields.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
    let question = Question { path: &args.path, fields: &fields, body, random: explain::random() };
    if let Some(model) = explain::model(&question) {
        let unsaid = config.upstream.iter_mut().filter(|upstream| upstream.models.is_empty());
        unsaid.for_each(|upstream| upstream.models.push(model.clone()));
    }
    let forms = Arc::new(Forms::read(&config)?);
    let config = Arc::new(config);
    let mut fleet = Fleet::new(Arc::clone(&config), Vec::new(), forms);
    for place in 0..config.endpoint_count() {
        // No look-up: the ring is made of names.
        fleet.resolved(place, vec![([0, 0, 0, 0], 0).into()], Instant::now());
    }
    let mut snapshot = fleet.snapshot();
    snapshot.seal();
    Ok(explain::explain(&question, &config, &snapshot, &Loads::default()))
}

/// Asks the running front whose admin listener is at `address`.
fn live(args: &Args, address: SocketAddr, body: Vec<u8>) -> Result<Explanation, String> {
    let authority = address.to_string();
    let path = format!("/explain?path={}", escaped(&args.path));
    let call =
        Call { address, authority: &authority, path: &path, key: None, timeout: TIMEOUT, bytes_max: ANSWER_BYTES_MAX };
    // The front would take these for this question's own fields, and the question for a web page's.
    let fields = args.fields.iter().filter(|(name, _)| !ASKERS.iter().any(|asker| name.eq_ignore_ascii_case(asker)));
    let fields = fields.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let runtime = runtime().map_err(|error| error.to_string())?;
    let asked = runtime.block_on(Client::default().post(&call, fields, body.into()));
    let answer = asked.map_err(|error| unanswered(&error))?;
    if answer.status != 200 {
        return Err(format!(
            "{authority} answers {}: {}",
            answer.status,
            shown(&String::from_utf8_lossy(&answer.body))
        ));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| format!("{authority} is not a warmfront of this version: {error}"))
}

/// The explanation for people.
fn table(explanation: &Explanation) -> String {
    let mut out = String::new();
    let e = explanation;
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let (members, eligible) = e.endpoints;
    let resort = if e.last_resort { ", for none is in service" } else { "" };
    let prefix = e
        .prefix_bytes
        .map(|bytes| format!("{} ({bytes} bytes), of prefix-hash", e.prefix_mode.as_deref().unwrap_or_default()));
    for (name, value) in [
        ("body", format!("{} bytes, {}", e.body_bytes, e.api)),
        ("scan", e.scan.clone()),
        ("model", or_none(e.model.clone())),
        ("stream", or_none(e.stream.map(|stream| stream.to_string()))),
        ("max tokens", or_none(e.max_tokens.map(|tokens| tokens.to_string()))),
        ("prompt", format!("{} bytes, about {} tokens", e.prompt_bytes, e.tokens_estimate)),
        ("tools, images", format!("{}, {}", if e.tools { "yes" } else { "no" }, e.images)),
        ("repeated fields", e.duplicates.to_string()),
        (
            "pool",
            e.pool
                .as_ref()
                .map_or("-".into(), |pool| format!("{pool}: {eligible} of {members} endpoints take requests{resort}")),
        ),
        ("prefix", or_none(prefix)),
        ("key", or_none(e.key.clone())),
        ("session key", or_none(e.session_key.clone())),
    ] {
        let _ = writeln!(out, "{name:<16} {}", plain(&value));
    }
    if let Some(refused) = &e.refused {
        let _ = writeln!(out, "{:<16} {}", "refused", plain(refused));
        return out;
    }
    out.push('\n');
    let mut rows =
        vec![["policy", "endpoint", "reason", "load", "bound", "held+new", "at byte", "runner-up"].map(str::to_owned)];
    for choice in &e.choices {
        let number = |number: Option<u32>| or_none(number.map(|number| number.to_string()));
        let row = [
            format!("{}{}", if choice.configured { "* " } else { "  " }, choice.policy),
            or_none(choice.endpoint.clone()),
            or_none(choice.reason.clone()),
            number(choice.load),
            number(choice.bound),
            or_none(choice.tokens.map(|(held, new)| format!("{held}+{new}"))),
            choice.decided_at.to_string(),
            or_none(choice.runner_up.clone()),
        ];
        rows.push(row.map(|cell| plain(&cell)));
    }
    rows[0][0].insert_str(0, "  ");
    aligned(&mut out, &rows);
    out.push_str(
        "\n* the pool's policy. `load`: requests there before this one; `bound`: most it may have; `held+new`: \
                  tokens of the prompt in its cache, and to be computed; `at byte`: \
                  where in the body the choice can be made.\n",
    );
    out
}

fn aligned<const N: usize>(out: &mut String, rows: &[[String; N]]) {
    let widths: Vec<usize> =
        (0..N).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}
