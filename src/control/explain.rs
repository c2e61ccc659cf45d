//! What the front would do with one request, and why: one pure function for the command line and for
//! the admin listener of a live fleet.

use std::sync::Arc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::exchange::warm::{AsRead, Rest};
use crate::exchange::{Lender, model_in_query, rendered, warm};
use crate::fleet::Loads;
use crate::policy::{self, Choice, Nobody, Policy, Request, Settings, ShadowPolicy};
use crate::prefix;
use crate::scan::{Api, Facts, Needs, Plain, Plan, PrefixMode, Progress, Scan, boundary};
use crate::snapshot::{Pool, Selected, Snapshot};

/// A request to be explained.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Path, which says what the body looks like.
    pub path: &'a str,
    /// Header fields, names in lower case; those that may carry a session key are looked at.
    pub fields: &'a [(String, Vec<u8>)],
    /// The body.
    pub body: &'a [u8],
    /// Random bits for `random` and for ties.
    pub random: u64,
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// What kind of body the path says it is.
    pub api: String,
    /// Its length.
    pub body_bytes: u64,
    /// `whole`, or why the scan failed.
    pub scan: String,
    /// `model`
    pub model: Option<String>,
    /// `stream`
    pub stream: Option<bool>,
    /// The most tokens asked for.
    pub max_tokens: Option<u64>,
    /// Whether tools are offered.
    pub tools: bool,
    /// Images and other media.
    pub images: u64,
    /// Fields of meaning that stand there twice.
    pub duplicates: u32,
    /// Canonical bytes of the prompt.
    pub prompt_bytes: u64,
    /// Tokens, estimated.
    pub tokens_estimate: u64,
    /// Why no endpoint can be chosen, if none can.
    pub refused: Option<String>,
    /// The pool of the request.
    pub pool: Option<String>,
    /// Endpoints of the pool, and how many of them take requests.
    pub endpoints: (usize, usize),
    /// None of them is in service: these are tried all the same.
    pub last_resort: bool,
    /// Which part of the prompt makes the key of `prefix-hash`.
    pub prefix_mode: Option<String>,
    /// Bytes of it.
    pub prefix_bytes: Option<u64>,
    /// That key, hexadecimal; the one that logs and receipts tell of is of the policy that chose.
    pub key: Option<String>,
    /// The session's key, hexadecimal.
    pub session_key: Option<String>,
    /// What each policy would choose.
    pub choices: Vec<PolicyChoice>,
}

/// What one policy would choose.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyChoice {
    /// Its name.
    pub policy: String,
    /// Whether the pool is configured to use it.
    pub configured: bool,
    /// The endpoint's name; `None`: none takes requests.
    pub endpoint: Option<String>,
    /// Why that one, or why none.
    pub reason: Option<String>,
    /// The home that was full, or the next endpoint of the ring.
    pub runner_up: Option<String>,
    /// Load of the endpoint before this request.
    pub load: Option<u32>,
    /// Most requests it may have.
    pub bound: Option<u32>,
    /// Tokens of the prompt that the endpoint holds, as far as we know, and that it would compute.
    pub tokens: Option<(u32, u32)>,
    /// The choice could be made after this many bytes of the body.
    pub decided_at: u64,
}

/// Explains one request against the fleet as it is.
pub fn explain(question: &Question<'_>, config: &Config, snapshot: &Snapshot, loads: &Loads) -> Explanation {
    Against { question, config, snapshot, loads }.explained()
}

/// A question, and what it is answered against.
struct Against<'a> {
    question: &'a Question<'a>,
    config: &'a Config,
    snapshot: &'a Snapshot,
    loads: &'a Loads,
}

impl<'a> Against<'a> {
    fn explained(&self) -> Explanation {
        let Against { question, config, .. } = *self;
        let mut scan = Box::new(Scan::new());
        let model = model_of(&mut scan, question, &config.routing);
        let in_query = || model_in_query(|| question.path.as_bytes(), Some(scan.facts()), self.snapshot);
        let model = model.or_else(in_query);
        let pool = self.pool(&scan, model.as_deref());
        // What a shadow policy needs besides does not matter for this choice.
        let settings = pool.as_ref().map_or(&config.routing, |pool| &*pool.settings);
        let settings = &Settings { shadow_policy: ShadowPolicy::OFF, ..settings.clone() };

        let needs = Needs::WHOLE | Needs::MODEL | Needs::PREFIX | Needs::SESSION;
        // The key that is shown is that of `prefix-hash`, whatever else is read for another policy.
        let plan = Plan { plain: Plain { chosen: true, shadow: false }, ..settings.plan() };
        let (whole, _) = read(&mut scan, question, &plan, needs, usize::MAX);
        let facts = scan.facts();
        let name = pool.as_ref().map(|pool| pool.name.as_bytes()).unwrap_or_default();
        let root = pool.as_ref().map(|pool| pool.root.as_bytes()).unwrap_or_default();
        let failed = matches!(whole, Progress::Failed(_));
        let key = facts.plain_prefix().filter(|_| !failed);
        let session = session(question, settings).or(facts.session().filter(|_| !failed));
        let mut answer = Explanation {
            api: api(question).as_str().to_owned(),
            body_bytes: question.body.len() as u64,
            scan: match whole {
                Progress::Failed(fault) => format!(
                    "failed ({}): forwarded unchanged; policies that would read it go by load; if its model was not read and several are served, it goes to default_model, or is answered 400",
                    fault.as_str()
                ),
                _ => "whole".into(),
            },
            model: model.map(|model| String::from_utf8_lossy(&model).into_owned()),
            stream: facts.stream,
            max_tokens: facts.max_tokens(),
            tools: facts.tools,
            images: facts.counts().media,
            duplicates: facts.duplicates,
            prompt_bytes: facts.prompt_bytes(),
            tokens_estimate: facts.tokens_estimate(settings.image_tokens),
            refused: pool.as_ref().err().cloned(),
            pool: pool.as_ref().ok().map(|pool| pool.name.to_string()),
            endpoints: pool.as_ref().map_or((0, 0), |pool| (pool.members.len(), pool.eligible().slots().len())),
            last_resort: pool.as_ref().is_ok_and(|pool| pool.eligible().last_resort()),
            prefix_mode: key.map(|_| mode(settings.prefix).to_owned()),
            prefix_bytes: key.map(|prefix| prefix.bytes),
            key: key.map(|prefix| hex(prefix::key(root, facts.salt(), &prefix))),
            session_key: session.map(|session| hex(prefix::session_key(name, session))),
            choices: Vec::new(),
        };
        if let Ok(pool) = pool {
            let policies = Policy::value_variants().iter();
            answer.choices = policies.map(|policy| self.choice(&mut scan, pool, *policy)).collect();
        }
        answer
    }

    /// The pool that a request is for, or why it has none, with the status of the answer.
    fn pool(&self, scan: &Scan, model: Option<&[u8]>) -> Result<&'a Pool, String> {
        let Against { question, config, snapshot, .. } = *self;
        let selected = if scan.facts().model_over() { snapshot.select_overlong() } else { snapshot.select(model) };
        match selected {
            Selected::Pool(pool) => Ok(pool),
            Selected::UnknownModel => Err("no endpoint serves this model: 404".to_owned()),
            Selected::NoModel if question.body.is_empty() || api(question) == Api::Other => {
                snapshot.any_pool().ok_or_else(|| "no endpoint takes requests: 503".to_owned())
            }
            Selected::NoModel => Err(match &*config.serve.default_model {
                "" => "the body names no model, there is no `default_model`, and engines differ in what they serve or name first: 400"
                    .to_owned(),
                // If it were served it would have been taken.
                id => format!(
                    "several models are served, the body names none, and no endpoint serves `default_model`, {id:?}: 400"
                ),
            }),
            Selected::Empty => Err("no endpoint is known: 503".to_owned()),
        }
    }

    /// One policy's choice, by the bytes that it would have waited for and no others.
    fn choice(&self, scan: &mut Scan, pool: &Pool, policy: Policy) -> PolicyChoice {
        let Against { question, config, snapshot, loads } = *self;
        let from_header = session(question, &pool.settings);
        // If there is only one pool no choice waits for the model.
        let model = if snapshot.single_pool() { Needs::NONE } else { Needs::MODEL };
        let mut needs = model | policy.needs();
        if from_header.is_some() {
            needs = needs.without(Needs::SESSION);
        }
        let mut alone = pool.clone();
        let shadow_policy = ShadowPolicy::OFF;
        alone.settings = Arc::new(Settings { policy, shadow_policy, ..Settings::clone(&pool.settings) });
        // As for a shard: if any pool chooses by the whole prompt, it is read for all of them.
        let plainly = !policy.counts_tokens();
        let plain = Plain { chosen: plainly, shadow: false };
        let plan = Plan { chain: snapshot.plan.chain || !plainly, plain, ..alone.settings.plan() };
        let (progress, held) = read(scan, question, &plan, needs, config.limits.hold_bytes);
        let facts = scan.facts();
        let failed = matches!(progress, Progress::Failed(_));
        let prefix = if plainly { facts.plain_prefix() } else { facts.prefix() };
        let prefix = prefix.filter(|_| !failed && policy.needs().contains(Needs::PREFIX));
        let session = from_header.or(facts.session().filter(|_| !failed));
        let key = prefix.map(|prefix| prefix::key(pool.root.as_bytes(), facts.salt(), &prefix));
        let mut lender = Lender::default();
        let cut = key.filter(|_| plan.chain).and_then(|_| warm::cut(facts, &alone, &mut lender));
        let beyond = question.body.len().saturating_sub(held) as u64;
        let rest = if progress == Progress::More { Rest::Bytes(beyond) } else { Rest::None };
        let form = cut.filter(|_| beyond == 0 && policy == Policy::Precise);
        let rendered = form.and_then(|_| rendered(question, facts, &alone, &mut lender));
        let as_read = AsRead { key: cut.or(key), rest, rendered };
        let looked_up = key.and_then(|_| warm::look_up(facts, as_read, &alone, snapshot, &mut lender));
        let request = Request {
            prompt: looked_up.zip(lender.matches.as_deref()).map(|(looked_up, matches)| looked_up.prompt(matches)),
            context: looked_up.map_or(0, warm::LookedUp::context),
            key: cut.filter(|_| !plainly).or(key),
            unscannable: failed,
            session: session.map(|session| prefix::session_key(pool.name.as_bytes(), session)),
            random: question.random,
            ..Request::default()
        };
        let choice: Result<Choice, Nobody> = policy::choose(&alone, loads, &request);
        let named = |slot: u16| snapshot.at(slot).map(|endpoint| endpoint.name.to_string());
        PolicyChoice {
            policy: policy.as_str().to_owned(),
            configured: policy == pool.settings.policy,
            endpoint: choice.ok().and_then(|choice| named(choice.endpoint.slot)),
            reason: Some(choice.map_or_else(Nobody::as_str, |choice| choice.reason.as_str()).to_owned()),
            runner_up: choice.ok().and_then(|choice| named(choice.runner_up?)),
            load: choice.ok().map(|choice| choice.in_flight),
            bound: choice.ok().and_then(|choice| choice.caps.and(choice.bound).least()),
            tokens: choice.ok().and_then(|choice| choice.tokens).map(|tokens| (tokens.held, tokens.new)),
            decided_at: match progress {
                Progress::Enough { at } => at,
                _ if needs.is_empty() => 0,
                _ => held as u64,
            },
        }
    }
}

/// The prompt as its engine writes it, if that is known.
fn rendered(question: &Question<'_>, facts: &Facts, pool: &Pool, lender: &mut Lender) -> Option<u64> {
    let chained_bytes = facts.counts().less(facts.beside().unwrap_or_default()).chained_bytes();
    let (salt, adapter, tools) = (facts.salt_alone(), facts.adapter, facts.tools);
    let body = rendered::Body { api: api(question), bytes: question.body, salt, adapter, chained_bytes, tools };
    rendered::cut(&body, pool.form.as_ref()?, pool, lender).ok()
}

/// Scans as much of the body as would be held; that is all of it if its model is needed and stands at the end.
fn read(scan: &mut Scan, question: &Question<'_>, plan: &Plan, needs: Needs, hold: usize) -> (Progress, usize) {
    scan.begin(api(question), plan, needs);
    let (mut held, rest) = question.body.split_at(hold.min(question.body.len()));
    let mut progress = scan.push(held);
    if progress == Progress::More
        && needs.contains(Needs::MODEL)
        && scan.facts().model().is_none()
        && !scan.facts().model_over()
    {
        (held, progress) = (question.body, scan.push(rest));
    }
    match progress {
        Progress::More if held.len() == question.body.len() => (scan.finish(), held.len()),
        progress => (progress, held.len()),
    }
}

/// What the body names, which may be a form.
fn model_of(scan: &mut Scan, question: &Question<'_>, settings: &Settings) -> Option<Vec<u8>> {
    let plan = settings.plan();
    let content_type = question.fields.iter().find(|(name, _)| name == "content-type");
    match content_type.and_then(|(_, value)| boundary(value)).filter(|_| api(question) == Api::Other) {
        Some(boundary) => {
            scan.begin_form(&plan, boundary);
            scan.push(question.body);
        }
        None => {
            read(scan, question, &plan, Needs::MODEL | Needs::WHOLE, usize::MAX);
        }
    }
    scan.facts().model().filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

/// The `model` of a body, for a caller that has to assume which engines serve it.
pub fn model(question: &Question<'_>) -> Option<String> {
    let model = model_of(&mut Scan::new(), question, &Settings::default())?;
    String::from_utf8(model).ok()
}

/// Random bits for [`Question::random`]; nothing here must be unpredictable.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Hash of the first header field that carries a session key. As for a shard, only the first field of a name counts.
fn session(question: &Question<'_>, settings: &Settings) -> Option<u64> {
    let value = |wanted: &String| {
        let field = question.fields.iter().find(|(name, _)| name == wanted).filter(|(_, value)| !value.is_empty());
        field.map(|(_, value)| prefix::text_hash(value))
    };
    settings.session_headers.iter().find_map(value)
}

fn api(question: &Question<'_>) -> Api {
    Api::of_path(question.path.as_bytes())
}

fn mode(mode: PrefixMode) -> &'static str {
    match mode {
        PrefixMode::FirstUser => "first-user",
        PrefixMode::Conversation => "conversation",
    }
}

fn hex(key: u64) -> String {
    format!("{key:016x}")
}
