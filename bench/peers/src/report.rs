//! Medians over the rounds, ratios by pairs of one round, a table for people and JSON for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::measure::Setting;
use crate::net;
use crate::scenario::{Column, Scenario};

pub struct Sample {
    pub scenario: &'static str,
    pub front: String,
    pub round: usize,
    pub values: BTreeMap<String, f64>,
}

/// No front: the load generator talks to the engines. A front's added latency is counted from here.
pub const DIRECT: &str = "direct";

pub struct Report {
    /// The fronts that the others are compared with.
    references: &'static [&'static str],
    facts: Vec<(String, String)>,
    samples: Vec<Sample>,
    failures: Vec<String>,
    left_out: Vec<String>,
}

impl Report {
    pub fn new(facts: Vec<(String, String)>, references: &'static [&'static str]) -> Report {
        for (name, value) in &facts {
            println!("{name:>12}  {value}");
        }
        Report { references, facts, samples: Vec::new(), failures: Vec::new(), left_out: Vec::new() }
    }

    pub fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    pub fn fail(&mut self, scenario: &str, front: &str, round: usize, words: &str) {
        let words = format!("{scenario}, {front}, round {}: {words}", round + 1);
        eprintln!("FAILED {words}");
        self.failures.push(words);
    }

    /// Prints a failure at once: the tables come later.
    pub fn leave_out(&mut self, front: &str, words: &str) {
        eprintln!("left out: {front}: {words}");
        self.left_out.push(format!("{front}: {words}"));
    }

    /// Writes every sample. A failure, or an interruption, is an error after all tables.
    pub fn finish(&self, scenarios: &[Scenario], json: &Path) -> Result<(), String> {
        if let Some(folder) = json.parent() {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        fs::write(json, self.json(scenarios)).map_err(|error| format!("{}: {error}", json.display()))?;
        println!("every sample: {}", json.display());
        if net::interrupted() {
            return Err("interrupted: the tables above are of what had been measured".into());
        }
        if self.failures.is_empty() {
            return Ok(());
        }
        Err(format!("{} measurements failed:\n  {}", self.failures.len(), self.failures.join("\n  ")))
    }

    /// One value by round. Added latency is the difference to `direct` in the same round.
    fn values(&self, scenario: &str, front: &str, key: &str) -> BTreeMap<usize, f64> {
        if let Some(base) = key.strip_prefix("added_") {
            let direct = self.values(scenario, DIRECT, base);
            let through = self.values(scenario, front, base);
            return through.into_iter().filter_map(|(round, us)| Some((round, us - direct.get(&round)?))).collect();
        }
        let of_front = |sample: &&Sample| sample.scenario == scenario && sample.front == front;
        let samples = self.samples.iter().filter(of_front);
        samples.filter_map(|sample| Some((sample.round, *sample.values.get(key)?))).collect()
    }

    /// Ratios of the rounds in which both were measured.
    pub fn ratios(&self, scenario: &Scenario, front: &str, to: &str) -> Vec<f64> {
        let mine = self.values(scenario.name, front, scenario.cost.key);
        let theirs = self.values(scenario.name, to, scenario.cost.key);
        let pairs = mine.iter().filter_map(|(round, value)| Some(value / theirs.get(round).filter(|v| **v > 0.0)?));
        pairs.collect()
    }

    pub fn print_table(&self, scenario: &Scenario, fronts: &[&str]) {
        println!("\n{}: {}", scenario.name, scenario.title);
        let mut head = format!("{:16}{:>11}{:>21}", "", scenario.cost.heading, "min - max");
        for reference in self.references {
            head.push_str(&format!("{:>21}", format!("x {reference}")));
        }
        for column in scenario.columns {
            head.push_str(&format!("{:>12}", column.heading));
        }
        println!("{head}");
        for front in fronts {
            println!("{}", self.row(scenario, front));
        }
    }

    fn row(&self, scenario: &Scenario, front: &str) -> String {
        let Column { key, digits, .. } = scenario.cost;
        let costs: Vec<f64> = self.values(scenario.name, front, key).into_values().collect();
        let Some(cost) = median(costs.clone()) else { return format!("{front:16}  not measured") };
        let (min, max) = bounds(&costs);
        let ratio = |to| {
            let ratios = self.ratios(scenario, front, to);
            let (min, max) = bounds(&ratios);
            median(ratios).map_or("-".to_string(), |ratio| format!("{ratio:.2} ({min:.2}-{max:.2})"))
        };
        let range = format!("{min:.digits$} - {max:.digits$}");
        let mut row = format!("{front:16}{cost:>11.digits$}{range:>21}");
        for reference in self.references {
            row.push_str(&format!("{:>21}", ratio(reference)));
        }
        for Column { key, digits, .. } in scenario.columns {
            let value = median(self.values(scenario.name, front, key).into_values().collect());
            let text = value.map_or("-".to_string(), |value| format!("{value:.digits$}"));
            row.push_str(&format!("{text:>12}"));
        }
        row
    }

    pub fn json(&self, scenarios: &[Scenario]) -> String {
        let facts: Vec<String> =
            self.facts.iter().map(|(name, value)| format!("{}: {}", quote(name), quote(value))).collect();
        let samples: Vec<String> = self.samples.iter().map(sample_json).collect();
        let summaries: Vec<String> = scenarios.iter().flat_map(|scenario| self.summaries(scenario)).collect();
        format!(
            "{{\n\"machine\": {{{}}},\n\"left_out\": [{}],\n\"failures\": [{}],\n\"summary\": [\n{}\n],\n\"samples\": [\n{}\n]\n}}\n",
            facts.join(", "),
            quote_all(&self.left_out),
            quote_all(&self.failures),
            summaries.join(",\n"),
            samples.join(",\n"),
        )
    }

    fn summaries(&self, scenario: &Scenario) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or("null".to_string(), |value| format!("{value}"));
        let summary = |front: &str| {
            let costs: Vec<f64> = self.values(scenario.name, front, scenario.cost.key).into_values().collect();
            let (min, max) = bounds(&costs);
            let middle = median(costs)?;
            let ratios = self.references.iter().map(|reference| {
                let ratio = median(self.ratios(scenario, front, reference));
                format!(", {}: {}", quote(&format!("to_{reference}")), number(ratio))
            });
            Some(format!(
                "{{\"scenario\": {}, \"front\": {}, \"what\": {}, \"median\": {middle}, \"min\": {min}, \"max\": {max}{}}}",
                quote(scenario.name),
                quote(front),
                quote(scenario.cost.key),
                ratios.collect::<String>(),
            ))
        };
        let fronts: BTreeSet<&str> = self.samples.iter().map(|sample| sample.front.as_str()).collect();
        fronts.into_iter().filter_map(summary).collect()
    }
}

/// What must be known to compare this run with another.
pub fn machine(setting: &Setting, rounds: usize) -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let facts = [
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("cpu", model.map_or("unknown", |(_, model)| model).to_string()),
        ("cores", std::thread::available_parallelism().map_or(1, usize::from).to_string()),
        ("front_core", setting.front_core.to_string()),
        ("load_core", setting.load_core.to_string()),
        ("rounds", rounds.to_string()),
        ("seconds", setting.seconds.to_string()),
    ];
    facts.map(|(name, value)| (name.to_string(), value)).to_vec()
}

fn sample_json(sample: &Sample) -> String {
    let values: Vec<String> = sample.values.iter().map(|(name, value)| format!("{}: {value}", quote(name))).collect();
    format!(
        "{{\"scenario\": {}, \"front\": {}, \"round\": {}, {}}}",
        quote(sample.scenario),
        quote(&sample.front),
        sample.round,
        values.join(", ")
    )
}

fn quote_all(texts: &[String]) -> String {
    texts.iter().map(|text| quote(text)).collect::<Vec<_>>().join(", ")
}

fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if (letter as u32) < 32 => quoted.push_str(&format!("\\u{:04x}", letter as u32)),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

fn bounds(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(*value), max.max(*value)))
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_none() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn quoted_text_is_json() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
