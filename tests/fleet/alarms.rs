//! What alarms and dashboards are made of.

use crate::engine::Mood;
use crate::{QUICK, fleet, on_both, until};

/// From 0 on, or the first of each kind would be none of what increase() tells; and a stream that broke has status 200.
#[test]
fn what_came_of_requests_is_counted_by_model_from_zero_on() {
    on_both(|driver| {
        let ([engine], front) = fleet(driver, QUICK);
        let text = front.asks("GET", "/metrics", "").1;
        for outcome in ["served", "refused", "busy", "failed", "broken", "left"] {
            for model in ["default", "unknown"] {
                let series = format!("warmfront_request_outcomes_total{{model=\"{model}\",outcome=\"{outcome}\"}} 0\n");
                assert!(text.contains(&series), "{series} is not in {text}");
            }
        }
        let counted = |outcome: &str| {
            front.metric(&format!("warmfront_request_outcomes_total{{model=\"default\",outcome=\"{outcome}\"}}"))
        };
        let begun = || {
            let mut client = front.connect();
            client.ask();
            client.head();
            client
        };
        assert_eq!(front.connect().post().status, 200);
        engine.becomes(Mood::Fails);
        assert_eq!(front.connect().post().status, 500);
        engine.becomes(Mood::Breaks);
        let broken = begun();
        engine.becomes(Mood::Silent);
        until("the broken one", || counted("broken") == 1.0);
        drop((broken, begun()));
        until("the one that left", || counted("left") == 1.0);
        assert_eq!(front.connect().get("/nope").status, 404);
        let refused = "warmfront_request_outcomes_total{model=\"unknown\",outcome=\"refused\"}";
        until("the refused one", || front.metric(refused) == 1.0);
        let all = ["served", "refused", "busy", "failed", "broken", "left"].map(counted);
        assert_eq!(all, [1.0, 0.0, 0.0, 1.0, 1.0, 1.0], "{driver}");
    });
}

#[test]
fn a_model_without_engines_is_told() {
    let ([engine], front) = fleet("auto", QUICK);
    let told = |name: &str| front.metric(&format!("warmfront_{name}{{model=\"default\"}}"));
    assert_eq!((told("model_endpoints"), told("model_endpoints_up")), (1.0, 1.0));
    engine.goes();
    until("none", || told("model_endpoints_up") == 0.0);
    assert_eq!(told("model_endpoints"), 1.0);
    engine.returns();
    until("its return", || told("model_endpoints_up") == 1.0);
}
