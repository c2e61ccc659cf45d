//! A shadow policy is tried out: switched on by a reload, and read on the admin listener.

use serde_json::Value;

use crate::front::Client;
use crate::{DRIVERS, fleet, until};

fn config(shadow: &str) -> String {
    format!(
        "[routing]\npolicy = \"round-robin\"\nshadow_policy = \"{shadow}\"\n\
         [health]\nprobe_interval_ms = 50\nslow_start_ms = 0\n"
    )
}

/// Sends a prompt of some 1,500 tokens.
fn ask(client: &mut Client) {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}],"model":"m"}}"#, "words ".repeat(1_000));
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n";
    client.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(client.reply().status, 200);
}

#[test]
fn an_operator_sees_what_another_policy_would_do() {
    for driver in DRIVERS {
        let (_engines, front): ([_; 2], _) = fleet(driver, &config(""));
        let shadow = || {
            let (_, said) = front.asks("GET", "/endpoints", "");
            let fleet: Value = serde_json::from_str(&said).unwrap();
            let pool = fleet["pools"].as_array().unwrap().iter().find(|pool| pool["model"] == "default").cloned();
            pool.map_or(Value::Null, |pool| pool["shadow"].clone())
        };
        let mut client = front.connect();
        (0..4).for_each(|_| ask(&mut client));
        assert_eq!(shadow(), Value::Null);
        assert!(!front.asks("GET", "/metrics", "").1.contains("warmfront_shadow_choices_total{"));
        front.write(&config("warm"));
        let (status, said) = front.reload();
        assert_eq!(status, 200, "{said}");
        until("the other policy", || shadow()["policy"] == "warm");
        (0..4).for_each(|_| ask(&mut client));
        let looked_at = |shadow: &Value| shadow["agreed"].as_u64().unwrap() + shadow["differed"].as_u64().unwrap();
        until("four looks", || looked_at(&shadow()) == 4);
        // The shard has counted the last request when it answers one that came after.
        let mut behind = front.connect();
        behind.send("x x\r\nhost: x\r\n\r\n");
        assert_eq!(behind.reply().status, 400);
        let shown = shadow();
        let held = |which: &str| shown[which]["held_tokens"].as_u64().unwrap();
        // With round-robin a prompt is new at two engines, by content at one.
        assert!(held("chosen") > 2_500 && held("instead") > 3_900, "{shown}");
        assert_eq!((&shown["nobody"], &shown["skipped"]), (&Value::from(0), &Value::from(0)), "{shown}");
        let (_, metrics) = front.asks("GET", "/metrics", "");
        for (line, value) in [
            ("choices_total{model=\"default\",policy=\"warm\",outcome=\"agreed\"}", &shown["agreed"]),
            ("choices_total{model=\"default\",policy=\"warm\",outcome=\"differed\"}", &shown["differed"]),
            ("choices_total{model=\"default\",policy=\"warm\",outcome=\"skipped\"}", &shown["skipped"]),
            ("held_tokens_total{model=\"default\",policy=\"warm\",at=\"chosen\"}", &shown["chosen"]["held_tokens"]),
            ("held_tokens_total{model=\"default\",policy=\"warm\",at=\"shadow\"}", &shown["instead"]["held_tokens"]),
            ("new_tokens_total{model=\"default\",policy=\"warm\",at=\"shadow\"}", &shown["instead"]["new_tokens"]),
            ("cost_tokens_total{model=\"default\",policy=\"warm\",at=\"chosen\"}", &shown["chosen"]["cost_tokens"]),
        ] {
            let line = format!("warmfront_shadow_{line} {value}");
            assert!(metrics.lines().any(|shown| shown == line), "{line}\nis not in\n{metrics}");
        }
        // Switched off again: its counters stay in the metrics.
        front.write(&config("off"));
        assert_eq!(front.reload().0, 200);
        until("no other policy", || shadow() == Value::Null);
        ask(&mut client);
        let line = format!(
            "warmfront_shadow_held_tokens_total{{model=\"default\",policy=\"warm\",at=\"shadow\"}} {}",
            held("instead")
        );
        assert!(front.asks("GET", "/metrics", "").1.contains(&line));
    }
}
