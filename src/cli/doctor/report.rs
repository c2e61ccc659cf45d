//! The report, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::{Value, json};

use super::engine::Examined;
use super::finding::{Change, Finding, Mark, shown};
use super::server;
use crate::kvevents::EVENTS_PORT;

/// Settles the ports of the flags that make engines publish: those on one host must not take each other's.
pub(super) fn name_ports(engines: &mut [Examined]) {
    let mut taken: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
    for engine in engines.iter() {
        taken.entry(engine.host.clone()).or_default().extend(&engine.ports);
    }
    for engine in engines {
        let taken = taken.entry(engine.host.clone()).or_default();
        let mut settled = None;
        for finding in &mut engine.findings {
            let Some(Change::Publish(publish)) = &mut finding.change else { continue };
            let (events, replay) = *settled.get_or_insert_with(|| {
                let events = publish.events.unwrap_or_else(|| take(taken, EVENTS_PORT, publish.ranks));
                // The other ranks' ports follow the first one's.
                let replay =
                    publish.replay.unwrap_or_else(|| take(taken, events.saturating_add(publish.ranks), publish.ranks));
                (events, replay)
            });
            (publish.events, publish.replay) = (Some(events), Some(replay));
        }
    }
}

/// The first of so many free ports in a row.
fn take(taken: &mut BTreeSet<u16>, from: u16, count: u16) -> u16 {
    let row = |first: u16| first..=first.saturating_add(count - 1);
    let begins = from..=u16::MAX.saturating_sub(count);
    let first = begins.into_iter().find(|first| row(*first).all(|port| !taken.contains(&port))).unwrap_or(from);
    taken.extend(row(first));
    first
}

/// Flags to add and to take away, by findings that are advice.
fn changes(engine: &Examined) -> (Vec<String>, Vec<&'static str>) {
    let (mut add, mut take_away) = (Vec::new(), Vec::new());
    for finding in engine.findings.iter().filter(|finding| finding.mark == Mark::Advice) {
        match &finding.change {
            Some(Change::Add(flag)) => add.push((*flag).to_owned()),
            Some(Change::Publish(publish)) => add.push(publish.flag()),
            Some(Change::TakeAway(flag)) => take_away.push(*flag),
            None => {}
        }
    }
    // Events and their replay are one flag.
    let mut seen = BTreeSet::new();
    add.retain(|flag| seen.insert(flag.clone()));
    (add, take_away)
}

/// Lines for people.
pub(super) fn text(engines: &[Examined]) -> String {
    let mut out = String::new();
    for engine in engines {
        let _ = writeln!(out, "{}", shown(&engine.name));
        engine.findings.iter().for_each(|finding| out.push_str(&line(finding)));
        out.push('\n');
    }
    for engine in engines {
        let (add, take_away) = changes(engine);
        let name = shown(&engine.name);
        if !engine.answers {
            let _ = writeln!(out, "{name}: does not answer");
        } else if !engine.has_advice() {
            let _ = writeln!(out, "{name}: nothing to change");
        } else if add.is_empty() && take_away.is_empty() {
            let _ = writeln!(out, "{name}: no flag to change, but see the advice");
        }
        for (verb, flags) in [("add", add.join(" ")), ("take away", take_away.join(" "))] {
            if !flags.is_empty() {
                let _ = writeln!(out, "{name}: {verb}\n    {flags}");
            }
        }
    }
    out
}

fn line(finding: &Finding) -> String {
    let mut words = finding.words.clone();
    let verb = if finding.mark == Mark::Advice { "" } else { "if it does not, " };
    let _ = match &finding.change {
        Some(Change::Add(flag)) => write!(words, "\n{verb}add {flag}"),
        Some(Change::Publish(publish)) => write!(
            words,
            "\n{verb}add {}\nwhoever reaches these ports reads prompts, without a key: open them to fronts alone",
            publish.flag()
        ),
        Some(Change::TakeAway(flag)) => write!(words, "\n{verb}take away {flag}"),
        None => Ok(()),
    };
    // Further lines of the words stand under the first.
    format!("{:<8}{:<14} {}\n", finding.mark.as_str(), finding.subject, words.replace('\n', &format!("\n{:23}", "")))
}

/// One document for programs.
pub(super) fn json(engines: &[Examined]) -> String {
    let finding = |finding: &Finding| json!({"mark": finding.mark.as_str(), "subject": finding.subject, "words": finding.words.replace('\n', " ")});
    let engine = |engine: &Examined| {
        let (add, take_away) = changes(engine);
        json!({
            "name": shown(&engine.name),
            "url": engine.url,
            "answers": engine.answers,
            "server": engine.kind.map(server::name),
            "version": engine.version.as_deref().map(shown),
            "findings": engine.findings.iter().map(finding).collect::<Vec<Value>>(),
            "add": add,
            "take_away": take_away,
        })
    };
    let document = json!({"engines": engines.iter().map(engine).collect::<Vec<Value>>()});
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::finding::Publish;
    use crate::control::scrape::EngineKind;

    fn engine(name: &str, ports: &[u16], findings: Vec<Finding>) -> Examined {
        let (host, name) = ("gpu-1".to_owned(), name.to_owned());
        let url = format!("http://{name}");
        Examined { name, url, host, answers: true, kind: None, version: None, ports: ports.to_vec(), findings }
    }

    fn silent(ranks: usize) -> Vec<Finding> {
        vec![Finding::advice("events", "none").to(Change::Publish(Publish::new(EngineKind::Vllm, ranks)))]
    }

    fn ports(engine: &Examined) -> (Option<u16>, Option<u16>) {
        match &engine.findings[0].change {
            Some(Change::Publish(publish)) => (publish.events, publish.replay),
            _ => (None, None),
        }
    }

    #[test]
    fn engines_of_one_host_get_ports_of_their_own() {
        let mut engines =
            [engine("a", &[8000], silent(1)), engine("b", &[5559], silent(2)), engine("c", &[8002, 5564], silent(1))];
        name_ports(&mut engines);
        let all: Vec<_> = engines.iter().map(ports).collect();
        assert_eq!(all, [(Some(5557), Some(5558)), (Some(5560), Some(5562)), (Some(5565), Some(5566))]);
        engines[2].host = "gpu-2".into();
        engines[2].findings = silent(1);
        name_ports(&mut engines);
        assert_eq!(ports(&engines[2]), (Some(5557), Some(5558)));
    }

    #[test]
    fn kept_ports_stay() {
        let kept = Publish { events: Some(9800), ..Publish::new(EngineKind::Vllm, 4) };
        let mut engines = [engine(
            "a",
            &[8000, 9800, 9801, 9802, 9803],
            vec![Finding::advice("replay", "none").to(Change::Publish(kept))],
        )];
        name_ports(&mut engines);
        assert_eq!(ports(&engines[0]), (Some(9800), Some(9804)));
    }

    #[test]
    fn the_end_has_one_line_to_copy_for_each_engine() {
        let mut engines = [
            engine("a", &[], vec![Finding::good("server", "vLLM"), Finding::unknown("x", "y").to(Change::Add("--z"))]),
            engine(
                "b",
                &[],
                [silent(1), vec![Finding::advice("x", "y").to(Change::Add("--more"))], silent(1)].concat(),
            ),
            engine("c", &[], vec![Finding::advice("clock", "late")]),
            engine("d", &[], vec![Finding::advice("cache", "off\nfor good").to(Change::TakeAway("--off"))]),
        ];
        name_ports(&mut engines);
        let text = text(&engines);
        let (_, end) = text.rsplit_once("\n\n").unwrap();
        let flag = Publish::new(EngineKind::Vllm, 1).flag();
        assert_eq!(
            end,
            format!(
                "a: nothing to change\nb: add\n    {flag} --more\nc: no flag to change, but see the advice\nd: take away\n    --off\n"
            )
        );
        assert!(text.contains(
            "\nadvice  cache          off\n                       for good\n                       take away --off\n"
        ));
        assert!(text.contains("unknown x              y\n                       if it does not, add --z\n"), "{text}");
        let document: Value = serde_json::from_str(&json(&engines)).unwrap();
        assert_eq!(document["engines"][1]["add"], json!([flag, "--more"]));
        assert_eq!(document["engines"][3]["take_away"], json!(["--off"]));
    }
}
