//! `systemd/dashboard.json` is of what `/metrics` tells, and Grafana finds in it what it needs.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::alarms::{is_told, selectors};
use crate::engine::Mood;
use crate::{fleet, until};

const FIGURES: &str = "HTTP/1.1 200 OK\r\ncontent-length: 152\r\n\r\nvllm:num_requests_running 1\n\
                       vllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.5\n\
                       vllm:prefix_cache_queries_total 90\nvllm:prefix_cache_hits_total 30\n";

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/dashboard.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What stands between `open` and `close`, wherever that is.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inside, _)| inside)
}

/// A panel over a name that there is not is empty, as it is where all is well.
#[test]
fn the_dashboard_is_of_what_a_front_tells() {
    let ([engine], front) = fleet("auto", "[health]\nprobe_interval_ms = 50\n[control]\nscrape_interval_ms = 50\n");
    engine.tells(FIGURES);
    engine.becomes(Mood::Ticks);
    assert_eq!(front.connect().post().status, 200);
    until("the engine's figures", || front.metric("warmfront_engine_prefix_hits_tokens_total") > 0.0);
    until("its end", || front.metric("warmfront_request_outcomes_total{model=\"default\",outcome=\"served\"}") == 1.0);
    let told = front.asks("GET", "/metrics", "").1;
    // Of a wait in the queue there is nothing before somebody waited; its labels are those of other times.
    let told = told.clone() + &told.replace("warmfront_request_seconds", "warmfront_queue_seconds");
    let dashboard = dashboard();
    let targets: Vec<&Value> = list(&dashboard["panels"]).iter().flat_map(|panel| list(&panel["targets"])).collect();
    assert!(targets.len() > 60, "{}", targets.len());
    for target in targets {
        let (expr, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
        let found = selectors(expr);
        assert!(!found.is_empty(), "{expr}");
        found.iter().for_each(|(name, labels)| is_told(&told, name, labels));
        // Whoever picks a job or a front sees that alone.
        assert_eq!(expr.matches("{job=~\"$job\", instance=~\"$instance\"").count(), found.len(), "{expr}");
        let groups: HashSet<&str> = between(expr, " by (", ")").flat_map(|labels| labels.split(", ")).collect();
        for label in groups.iter().filter(|label| !["le", "instance"].contains(label)) {
            found.iter().for_each(|(name, _)| is_told(&told, name, &[(*label, "")]));
        }
        between(legend, "{{", "}}").for_each(|label| assert!(groups.contains(label), "{legend}: {expr}"));
    }
}

#[test]
fn the_dashboard_can_be_read_by_grafana() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36) && dashboard["title"].is_string());
    let variables: Vec<&str> =
        list(&dashboard["templating"]["list"]).iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "job", "instance", "model"]);
    let source = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    let (mut ids, mut places) = (HashSet::new(), HashSet::new());
    for panel in list(&dashboard["panels"]) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{title}");
        let cells = (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y)));
        cells.for_each(|cell| assert!(places.insert(cell), "{title} lies over another"));
        assert!(panel["type"] == "row" || panel["datasource"] == source, "{title}");
        let refs: HashSet<&str> =
            list(&panel["targets"]).iter().filter_map(|target| target["refId"].as_str()).collect();
        assert_eq!(refs.len(), list(&panel["targets"]).len(), "{title}");
    }
}
