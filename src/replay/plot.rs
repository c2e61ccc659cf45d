//! Mean time to first token by load, one line a policy, as SVG.

use std::fmt::Write;

use super::outcome::Outcome;
use super::report::seconds;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 490.0;
/// Okabe and Ito's colours, which most eyes can tell apart; a second and third round of them is dashed.
const COLOURS: [&str; 7] = ["#000000", "#e69f00", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"];
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];

/// The whole picture.
pub fn svg(title: &str, outcomes: &[Outcome]) -> String {
    let axes = Axes::of(outcomes);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">Mean time to first token by load</text>\n\
         <text x=\"{LEFT}\" y=\"44\" fill=\"#555555\" font-size=\"11\">{}</text>\n",
        escaped(title)
    );
    axes.draw(&mut out);
    let mut policies: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !policies.contains(&outcome.policy.as_str()) {
            policies.push(&outcome.policy);
        }
    }
    for (number, policy) in policies.iter().enumerate() {
        let points: Vec<(f64, f64)> = outcomes
            .iter()
            .filter(|outcome| outcome.policy == *policy)
            .map(|outcome| (axes.x(outcome.load), axes.y(outcome.ttft.mean)))
            .collect();
        line(&mut out, number, policy, &points);
    }
    out.push_str("</svg>\n");
    out
}

/// Load from left to right, time on a logarithmic scale from bottom to top.
struct Axes {
    loads: Vec<f64>,
    least: f64,
    most: f64,
}

impl Axes {
    fn of(outcomes: &[Outcome]) -> Axes {
        let mut loads: Vec<f64> = outcomes.iter().map(|outcome| outcome.load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let times = || outcomes.iter().map(|outcome| outcome.ttft.mean.max(1e-4));
        let least = times().fold(f64::INFINITY, f64::min);
        let most = times().fold(1e-3, f64::max);
        // Whole steps of 1, 2, 5, so that no line touches the frame.
        let below = ticks().take_while(|tick| *tick < least).last().unwrap_or(1e-4);
        let above = ticks().find(|tick| *tick > most).unwrap_or(most);
        Axes { loads, least: below, most: above }
    }

    fn x(&self, load: f64) -> f64 {
        let (first, last) = (self.loads.first().copied().unwrap_or(0.0), self.loads.last().copied().unwrap_or(0.0));
        let share = if last > first { (load - first) / (last - first) } else { 0.5 };
        LEFT + 20.0 + share * (RIGHT - LEFT - 40.0)
    }

    fn y(&self, seconds: f64) -> f64 {
        let share = (seconds.max(1e-4) / self.least).ln() / (self.most / self.least).ln();
        BOTTOM - share * (BOTTOM - TOP)
    }

    fn draw(&self, out: &mut String) {
        for tick in ticks().filter(|tick| (self.least..=self.most).contains(tick)) {
            let y = self.y(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                seconds(tick)
            );
        }
        for load in &self.loads {
            let x = self.x(*load);
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\" stroke=\"#eeeeee\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{load}</text>",
                BOTTOM + 20.0
            );
        }
        let _ = writeln!(
            out,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">load (times the traffic's own rate)</text>\n\
             <text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">mean time to first token (logarithmic)</text>",
            RIGHT - LEFT,
            BOTTOM - TOP,
            (LEFT + RIGHT) / 2.0,
            BOTTOM + 46.0,
            (TOP + BOTTOM) / 2.0
        );
    }
}

fn line(out: &mut String, number: usize, policy: &str, points: &[(f64, f64)]) {
    let colour = COLOURS[number % COLOURS.len()];
    let dash = DASHES[number / COLOURS.len() % DASHES.len()];
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
        path.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
    let (x, y) = (RIGHT + 20.0, TOP + 10.0 + 22.0 * number as f64);
    let _ = writeln!(
        out,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>\
         <circle cx=\"{}\" cy=\"{y}\" r=\"3.5\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{}</text>",
        x + 34.0,
        x + 17.0,
        x + 42.0,
        y + 4.0,
        escaped(policy)
    );
}

/// 0.1 ms, 0.2 ms, 0.5 ms and so on up to hours.
fn ticks() -> impl Iterator<Item = f64> {
    (-4..5).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::chooser::POLICIES;
    use crate::replay::outcome::Spread;

    #[test]
    fn no_two_policies_look_alike() {
        let looks = COLOURS.len() * DASHES.len();
        assert!(POLICIES.len() <= looks, "{} policies, {looks} looks", POLICIES.len());
    }

    fn outcome(policy: &str, load: f64, mean: f64) -> Outcome {
        Outcome { policy: policy.into(), load, ttft: Spread { mean, p50: mean, p99: mean }, ..Outcome::default() }
    }

    #[test]
    fn every_policy_has_its_line_inside_the_frame_and_a_name() {
        let outcomes =
            [outcome("a<b", 0.5, 0.02), outcome("c", 0.5, 0.0), outcome("a<b", 2.0, 900.0), outcome("c", 2.0, 0.3)];
        let text = svg("trace & more", &outcomes);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert!(text.contains("a&lt;b") && text.contains("trace &amp; more") && text.contains("20 ms"));
        let axes = Axes::of(&outcomes);
        for outcome in &outcomes {
            let (x, y) = (axes.x(outcome.load), axes.y(outcome.ttft.mean));
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{x} {y}");
        }
        assert!(axes.y(0.3) < axes.y(0.02), "later is higher");
    }
}
