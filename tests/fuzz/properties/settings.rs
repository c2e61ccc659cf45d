//! Configuration files: any text is taken or refused in words, and what is taken is taken again as it is written out.

use std::path::Path;

use warmfront::config::{Config, Flags};

/// No text ends the process. What is refused is refused with a cause that can be shown; what is accepted survives
/// being written out and read again, and has values that the rest of the front was promised.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new("w.toml");
    let config = match Config::parse(text, path) {
        Ok(config) => config,
        Err(invalid) => {
            assert!(!invalid.problems().is_empty(), "refused without a reason: {text:?}");
            let shown = invalid.to_string();
            let named = invalid.problems().iter().all(|problem| !problem.message.is_empty());
            assert!(named && shown.starts_with("w.toml:"), "{text:?}: {shown:?}");
            let inside = |problem: &warmfront::config::Problem| {
                problem.span.as_ref().is_none_or(|span| span.start <= span.end && span.end <= text.len())
            };
            return assert!(invalid.problems().iter().all(inside), "a place outside the file: {text:?}: {shown}");
        }
    };
    let written = toml::to_string(&config).expect("a configuration can be written");
    let again = Config::parse(&written, path).unwrap_or_else(|invalid| panic!("{written}\n{invalid}"));
    assert_eq!(again, config, "{written}");
    let limits = &config.limits;
    assert!(
        limits.hold_bytes as u64 <= limits.body_bytes_max
            && (limits.budget_bytes == 0 || limits.hold_bytes <= limits.budget_bytes)
    );
    assert!(limits.head_fields_max >= 1 && limits.head_bytes_max >= 1 && limits.connect_tries_max >= 1);
    for id in config.pool.keys().map(String::as_str).chain(["no such pool"]) {
        let settings = config.settings_for(id);
        assert!(settings.replication >= 1 && settings.load_percent >= 100 && settings.prefix_bytes >= 1);
    }
    // Flags alone have nothing to add to it, so what is wrong now is wrong of the whole.
    let _ = Config::load(&Flags::default()).map_err(|invalid| invalid.to_string());
}
