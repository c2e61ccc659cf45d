//! What alarms and dashboards are made of: the formats of `/metrics`, and that its names are those of
//! `systemd/alerts.yml`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::engine::Mood;
use crate::front::{Client, Front};
use crate::{QUICK, fleet, on_both, untested, until};

fn alerts() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/alerts.yml")).unwrap()
}

/// The content type and the text for who says that he takes this.
fn metrics(front: &Front, accept: &str) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(front.admin).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\n{accept}connection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let reply = std::io::read_to_string(stream).unwrap();
    let (head, text) = reply.split_once("\r\n\r\n").unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (kind.to_owned(), text.to_owned())
}

/// What `promtool check metrics` and agents without OpenMetrics read: there a counter's family is called as its samples.
#[test]
fn who_does_not_ask_for_openmetrics_gets_what_everybody_reads() {
    let ([_engine], front) = fleet("auto", QUICK);
    const PROMETHEUS: &str =
        "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n";
    let (kind, open) = metrics(&front, PROMETHEUS);
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    assert!(open.contains("\n# TYPE warmfront_queued counter\nwarmfront_queued_total 0\n"), "{open}");
    assert!(open.ends_with("\n# EOF\n") && open.matches("# EOF").count() == 1);
    const NOT_OPEN: &str = "accept: text/html, Application/OpenMetrics-Text ; version=1.0.0 ; Q = 0, */*;q=0.8\r\n";
    const RATHER_PLAIN: &str = "accept: application/openmetrics-text;q=0.5\r\naccept: text/plain;q=0.6\r\n";
    const NO_NUMBER: &str = "accept: application/openmetrics-text;q=nan\r\n";
    for accept in ["", "accept: */*\r\n", "accept: text/plain\r\n", NOT_OPEN, RATHER_PLAIN, NO_NUMBER] {
        let (kind, plain) = metrics(&front, accept);
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{accept}: {kind}");
        assert!(plain.contains("\n# TYPE warmfront_queued_total counter\nwarmfront_queued_total 0\n"), "{plain}");
        assert!(plain.contains("\n# HELP warmfront_queued_total Requests that had to wait"), "{plain}");
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(!plain.contains("# EOF") && lines(&plain) == lines(&open));
        let mut named = "";
        for line in plain.lines() {
            match line.strip_prefix("# TYPE ").and_then(|told| told.split_once(' ')) {
                Some((name, "counter" | "gauge")) => named = name,
                Some(_) => named = "",
                None if line.starts_with('#') => {}
                None => assert!(line.starts_with(named), "{line} stands below {named}"),
            }
        }
    }
}

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
        // Who looks for other servers must not look like an outage.
        let mut scanner = front.connect();
        scanner.send("GET / HTTP/2.0\r\nhost: x\r\n\r\n");
        assert_eq!(scanner.reply().status, 505);
        until("the scanner", || front.metric(refused) == 2.0);
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

/// A name in an expression or in words, and what its labels are to be; nothing: whatever Grafana's variables say.
pub fn selectors(text: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let is_word = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_word) {
        let word = rest.split_at(at).1;
        let end = word.find(|letter| !is_word(letter)).unwrap_or(word.len());
        let (name, behind) = word.split_at(end);
        rest = behind;
        if name.starts_with("warmfront_") || name.starts_with("process_") {
            let labels =
                behind.strip_prefix('{').and_then(|labels| labels.split_once('}')).map_or("", |(labels, _)| labels);
            let pairs = labels.split(", ").filter_map(|label| label.split_once('='));
            let values = pairs.flat_map(|(label, values)| {
                let values = values.trim_start_matches('~').trim_matches('"');
                let values = if values.starts_with('$') { "" } else { values };
                values.split('|').map(move |value| (label, value))
            });
            // Whose it is the one who scrapes says; and what a label is not to be need not be there.
            let is_told = |label: &str| label != "job" && label != "instance" && !label.ends_with('!');
            found.push((name, values.filter(|(label, _)| is_told(label)).collect()));
        }
    }
    found
}

/// Holds a name and its labels to what `/metrics` told.
pub fn is_told(told: &str, name: &str, labels: &[(&str, &str)]) {
    let mut suffixes = ["", "_bucket", "_count"].into_iter().filter_map(|suffix| name.strip_suffix(suffix));
    let is_family = |family: &str| told.contains(&format!("# TYPE {family} "));
    assert!(suffixes.any(is_family), "there is no {name}");
    for (label, value) in labels {
        let pair = if value.is_empty() { format!("{label}=\"") } else { format!("{label}=\"{value}\"") };
        let has =
            |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') && rest.contains(&pair));
        assert!(told.lines().any(has), "{name} has no {pair}");
    }
}

/// A rule over a name that there is not is never true, and nobody sees that.
#[test]
fn alerts_are_of_what_a_front_tells() {
    // By the default policy: others have no index.
    let ([_engine], front) = fleet("auto", "[health]\nprobe_interval_ms = 50\n");
    let told = front.asks("GET", "/metrics", "").1;
    let alerts = alerts();
    let selectors = selectors(&alerts);
    assert!(selectors.len() > 40, "{selectors:?}");
    selectors.iter().for_each(|(name, labels)| is_told(&told, name, labels));
}

#[test]
fn prometheus_reads_the_alerts_and_the_names() {
    let promtool = |args: &[&str], input: &str| {
        let mut promtool = Command::new("promtool");
        let piped = std::process::Stdio::piped;
        let mut child = match promtool.args(args).stdin(piped()).stdout(piped()).stderr(piped()).spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                untested::say("what promtool says of alerts and metrics, as there is none (Debian: prometheus)");
                return None;
            }
            child => child.unwrap(),
        };
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        Some((output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()))
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/alerts.yml");
    let Some((reads, words)) = promtool(&["check", "rules", path], "") else { return };
    assert!(reads, "{words}");
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/alerts.yml");
    let (holds, words) = promtool(&["test", "rules", tests], "").unwrap();
    assert!(holds, "{words}");
    let ([_engine], front) = fleet("auto", QUICK);
    assert_eq!(front.connect().post().status, 200);
    let (reads, words) = promtool(&["check", "metrics"], &front.asks("GET", "/metrics", "").1).unwrap();
    assert!(reads && words.is_empty(), "{words}");
}

/// CPU of the threads beside control, in nanoseconds.
fn beside(front: &Front) -> u64 {
    let threads = fs::read_dir(format!("/proc/{}/task", front.process())).unwrap();
    let ran = threads.map(|thread| {
        let path = thread.unwrap().path();
        let read = |file| fs::read_to_string(path.join(file)).unwrap_or_default();
        let ran = read("schedstat").split(' ').next().and_then(|ran| ran.parse::<u64>().ok());
        ran.filter(|_| read("comm").trim() == "tokio-rt-worker").unwrap_or(0)
    });
    ran.sum()
}

/// Of engines at which nobody listens, and nobody looks often.
#[test]
fn a_page_of_many_engines_is_written_beside_control() {
    let upstream = |at: u32| format!("[[upstream]]\nurl = \"http://127.9.{}.{}:9\"\n", at / 250, 1 + at % 250);
    let upstreams: String = (0..300).map(upstream).collect();
    let config = "[health]\nprobe_interval_ms = 60000\n[control]\nscrape_interval_ms = 60000\n\
                  stale_after_ms = 120000\nmodels_interval_ms = 60000\n";
    let front = Front::start("auto", &[], &format!("{config}{upstreams}"));
    until("all of them", || front.metric("warmfront_endpoint_health{") == 300.0);
    let before = beside(&front);
    (0..4).for_each(|_| assert_eq!(Client::to(front.admin).get("/metrics").status, 200));
    let ran = beside(&front) - before;
    assert!(ran > 4_000_000, "{ran} ns");
}
