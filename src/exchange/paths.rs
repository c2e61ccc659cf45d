//! Which paths are let through to an engine.

use crate::http;

/// The paths that reach an engine; others are answered 404, lest an engine's `/pause`,
/// `/reset_prefix_cache`, `/update_weights` or `/metrics` become public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Whole paths, or beginnings that end in `*`.
    allowed: Vec<Box<[u8]>>,
}

/// Inference and read-only paths of vLLM and SGLang.
pub const DEFAULT_PATHS: &[&str] = &[
    "/v1/*",
    "/v2/rerank",
    "/v2/embed",
    "/tokenize",
    "/detokenize",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/encode",
    "/generate",
    "/invocations",
    "/version",
    "/ping",
    "/get_model_info",
    "/model_info",
    "/inference/v1/generate",
    "/generative_scoring",
    "/cohere/v2/chat",
    "/cohere/v2/chat/render",
    "/vertex_generate",
];
/// Below `/v1/`, yet changes the engine: only a configured path of its own opens it.
const GUARDED: &[&[u8]] = &[b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"];

/// Behind it comes a model's id, in which SDKs escape the slashes.
const MODEL: &[u8] = b"/v1/models/";

impl Default for Paths {
    fn default() -> Self {
        Paths::new(std::iter::empty())
    }
}

impl Paths {
    /// The default paths and `more`.
    pub fn new<'a>(more: impl Iterator<Item = &'a str>) -> Paths {
        let all = DEFAULT_PATHS.iter().copied().chain(more);
        Paths { allowed: all.map(|path| path.as_bytes().into()).collect() }
    }

    /// Whether `path` (without query) reaches an engine. Escapes and dot segments are not interpreted,
    /// and therefore not let through a wildcard: the engine would interpret them.
    pub fn allow(&self, path: &[u8]) -> bool {
        if self.allowed.iter().any(|allowed| &**allowed == path) {
            return true;
        }
        // An engine decodes `/v1/%6coad_lora_adapter` before it looks it up.
        let is_plain =
            |path: &[u8]| !path.contains(&b'%') && !path.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
        let is_slash = |escape: &[u8]| escape.starts_with(b"2F") || escape.starts_with(b"2f");
        let has_slashes_alone = |id: &&[u8]| id.split(|byte| *byte == b'%').skip(1).all(is_slash);
        let model = || path.strip_prefix(MODEL).filter(has_slashes_alone).map(http::percent_decoded);
        // One that begins with dots would lead out of the models, and no id does.
        let plain = is_plain(path) || model().is_some_and(|id| is_plain(&id) && !id.starts_with(b"."));
        let guarded = GUARDED.iter().any(|guarded| path.starts_with(guarded));
        let wildcards = self.allowed.iter().filter_map(|allowed| allowed.strip_suffix(b"*"));
        plain && !guarded && wildcards.into_iter().any(|beginning| path.starts_with(beginning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Api;

    /// A request for one of them is not looked up here.
    #[test]
    fn every_path_of_a_known_api_is_let_through() {
        let paths = Paths::default();
        let candidates = DEFAULT_PATHS.iter().filter_map(|path| path.strip_suffix('*')).flat_map(|start| {
            let ends = [
                "chat/completions",
                "completions",
                "embeddings",
                "responses",
                "messages",
                "rerank",
                "score",
                "tokenize",
                "classify",
            ];
            ends.into_iter()
                .flat_map(move |end| ["", "/render", "/count_tokens"].map(|more| format!("{start}{end}{more}")))
        });
        let known: Vec<String> = candidates
            .chain(DEFAULT_PATHS.iter().map(|path| path.to_string()))
            .filter(|path| Api::of_path(path.as_bytes()) != Api::Other)
            .collect();
        assert_eq!(known.len(), 22, "{known:?}");
        known.iter().for_each(|path| assert!(paths.allow(path.as_bytes()), "{path}"));
    }

    /// Each that is gone is a client's 404, and each that is new is open to everybody.
    #[test]
    fn the_paths_that_are_open_are_these() {
        let open = [
            "/v1/*",
            "/v2/rerank",
            "/v2/embed",
            "/tokenize",
            "/detokenize",
            "/rerank",
            "/score",
            "/pooling",
            "/classify",
            "/encode",
            "/generate",
            "/invocations",
            "/version",
            "/ping",
            "/get_model_info",
            "/model_info",
            "/inference/v1/generate",
            "/generative_scoring",
            "/cohere/v2/chat",
            "/cohere/v2/chat/render",
            "/vertex_generate",
        ];
        assert_eq!(DEFAULT_PATHS, open);
        let paths = Paths::default();
        open[1..].iter().for_each(|path| assert!(paths.allow(path.as_bytes()), "{path}"));
    }

    #[test]
    fn engine_controls_are_not_public() {
        let paths = Paths::default();
        for path in [
            "/v1/chat/completions",
            "/v1/models/a",
            "/v1/models/org%2Fm",
            "/v1/models/%2Fmodels%2Fm.v1..2",
            "/tokenize",
            "/generate",
            "/v1/responses/r/cancel",
        ] {
            assert!(paths.allow(path.as_bytes()), "{path}");
        }
        for path in [
            "/",
            "/pause",
            "/metrics",
            "/reset_prefix_cache",
            "/update_weights",
            "/v1",
            "/v1/../pause",
            "/v1//pause",
            "/v1/%6coad_lora_adapter",
            "/v1/load_lora_adapter",
            "/v1/load_lora_adapter/x",
            "/v1/unload_lora_adapter",
            "/v1/unload_lora_adapter/x",
            "/v1/%75nload_lora_adapter",
            "/tokenizer",
            "/v1/./x",
            "/V1/chat",
            "/v1/models%2Fm",
            "/v1/models/%2Fm%6c",
            "/v1/models/org%2F../x",
            "/v1/models/org%2F%2Fm",
            "/v1/models/m%",
            "/v1/models/..%2Fload_lora_adapter",
            "/v1/models/..%2fx",
            "/v1/models/.%2Fx",
            "/v1/models/..",
            "/v1/models/..%2F..%2Fpause",
            "/v1/models/org%2F..%2F..%2Fload_lora_adapter",
            "/v1/models/%2e%2e%2fx",
            "/v1/models/..%252Fx",
            "/v1/models/%2F..%2Fx",
        ] {
            assert!(!paths.allow(path.as_bytes()), "{path}");
        }
        let opened = ["/metrics", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/admin/*"];
        let more = Paths::new(opened.into_iter());
        for path in [opened[0], opened[1], opened[2], "/admin/x"] {
            assert!(more.allow(path.as_bytes()), "{path}");
        }
        assert!(!more.allow(b"/admin/../pause"));
    }
}
