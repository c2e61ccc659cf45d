//! The scanner on any bytes: the same answer however they are cut, and the oracle's where that can read them.

use warmfront::scan::PrefixMode;
use warmfront::scan::{Api, Needs, Plain, Plan};

use super::oracle;

const APIS: [Api; 10] = [
    Api::Chat,
    Api::Completions,
    Api::Embeddings,
    Api::Responses,
    Api::Messages,
    Api::Rerank,
    Api::Score,
    Api::Tokenize,
    Api::Generate,
    Api::Other,
];

/// The first four bytes choose API, plan, needs and cut; the rest is the body.
pub fn scan(input: &[u8]) {
    let [api, plan, needs, cut, body @ ..] = input else { return };
    let api = APIS[*api as usize % APIS.len()];
    let prefix = if plan & 1 == 0 { PrefixMode::FirstUser } else { PrefixMode::Conversation };
    let limit = [5, 23, 100, 4096][(plan >> 1) as usize % 4];
    let session_fields = vec![b"prompt_cache_key"[..].into(), b"user"[..].into()];
    let (chain, plain) = (plan & 8 != 0, Plain { chosen: plan & 16 != 0, shadow: false });
    let plan = Plan { prefix, prefix_chars: limit, prefix_bytes: limit, chain, plain, session_fields };
    let needs =
        [oracle::all_needs(), Needs::MODEL | Needs::PREFIX, Needs::PREFIX, Needs::MODEL, Needs::SESSION, Needs::WHOLE]
            [*needs as usize % 6];
    oracle::check_against_oracle(api, &plan, body);
    let cut = *cut as usize * (body.len() + 1) / 256;
    oracle::check_cuts(api, &plan, needs, body, std::iter::once(cut), body.len() < 512);
}
