//! Which pages in browsers may read the answers of the front's own (Fetch, 3.3). Engines say so of theirs themselves,
//! and answer preflights.

use std::sync::Arc;

use crate::http::{Fields, Known};

/// Origins whose pages may read them.
#[derive(Clone, Debug, Default)]
pub enum Origins {
    /// All. To say so costs nothing: answers depend on no cookie, and whoever can send a request is answered.
    #[default]
    Any,
    /// These, as browsers write them.
    Listed(Vec<Arc<str>>),
}

impl Origins {
    /// Those of `list`, of which one may be `*`.
    pub fn new<'a>(list: impl Iterator<Item = &'a str> + Clone) -> Origins {
        match list.clone().any(|origin| origin == "*") {
            true => Origins::Any,
            false => Origins::Listed(list.map(Arc::from).collect()),
        }
    }

    /// What the answer to a request with these fields says.
    #[inline]
    pub(super) fn judge(&self, fields: &Fields<'_>) -> Cors {
        match self {
            Origins::Any if fields.has(Known::Origin) => Cors::Any,
            Origins::Any => Cors::Nothing,
            Origins::Listed(list) if list.is_empty() => Cors::Nothing,
            Origins::Listed(list) => {
                let asks = fields.known(Known::Origin).next();
                Cors::Listed(asks.and_then(|asks| list.iter().find(|origin| origin.as_bytes() == asks).cloned()))
            }
        }
    }

    /// The same where the head could not be read: it may be a browser's all the same, with too many cookies.
    pub(super) fn unread(&self) -> Cors {
        match self {
            Origins::Any => Cors::Any,
            Origins::Listed(_) => Cors::Nothing,
        }
    }
}

/// What an answer says of who may read it.
#[derive(Clone, Debug)]
pub(super) enum Cors {
    /// Nothing: no page asked, or none may.
    Nothing,
    /// Any page may.
    Any,
    /// This one may, or, since it would be said to another, none.
    Listed(Option<Arc<str>>),
}

impl Cors {
    /// The fields of the answer.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        let origin = match self {
            Cors::Nothing => None,
            Cors::Any => Some("*"),
            Cors::Listed(origin) => origin.as_deref(),
        };
        // A cache must not show one page what was said to another.
        let varies = matches!(self, Cors::Listed(_)).then_some(("vary", "Origin"));
        origin.map(|origin| ("access-control-allow-origin", origin)).into_iter().chain(varies)
    }
}
