//! Models that the configuration names and no engine serves: mistyped names, which would have no effect and go
//! unnoticed.

use crate::config::Config;

/// The places in the configuration where such names stand.
pub fn unserved(config: &Config, is_served: impl Fn(&str) -> bool) -> Vec<String> {
    let default = Some(&config.serve.default_model).filter(|id| !id.is_empty() && !is_served(id));
    let pools = config.pool.keys().filter(|id| !is_served(id));
    let default = default.map(|id| format!("default_model = {id:?}"));
    default.into_iter().chain(pools.map(|id| format!("[pool.{id:?}]"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nobody_serves_are_found_where_they_stand() {
        let text = "[serve]\ndefault_model = \"a\"\n[pool.b]\nload_percent = 150\n[pool.\"c/d\"]\nload_percent = 150\n";
        let config = Config::parse(text, "w.toml".as_ref()).unwrap();
        assert_eq!(unserved(&config, |_| false), ["default_model = \"a\"", "[pool.\"b\"]", "[pool.\"c/d\"]"]);
        assert_eq!(unserved(&config, |id| id != "b"), ["[pool.\"b\"]"]);
        assert!(unserved(&Config::default(), |_| false).is_empty());
    }
}
