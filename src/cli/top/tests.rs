//! Whole screens of two readings.

use super::change::Change;
use super::reading::Reading;
use super::screen::{Surface, lines, text};

pub(super) const BEFORE: &str = include_str!("../../../tests/fixtures/top/before.txt");
pub(super) const NOW: &str = include_str!("../../../tests/fixtures/top/now.txt");

fn surface(width: usize) -> Surface {
    Surface { width, height: usize::MAX, colours: false }
}

fn drawn(before: Option<&str>, now: &str, trouble: Option<&str>, surface: &Surface) -> String {
    let (before, now) = (before.map(|text| Reading::of(text.as_bytes())), Reading::of(now.as_bytes()));
    let change = Change { now: &now, before: before.as_ref() };
    text(&lines("127.0.0.1:9911", Some(&change), trouble, surface), surface, "\n") + "\n"
}

/// Where a change is meant, what is drawn is left in the temporary directory for comparing and taking over.
fn compare(name: &str, golden: &str, drawn: &str) {
    let place = std::env::temp_dir().join(format!("warmfront-top-{name}.txt"));
    let written = if drawn == golden { Ok(()) } else { std::fs::write(&place, drawn) };
    assert!(drawn == golden, "{} is not tests/fixtures/top/{name}.txt ({written:?}):\n{drawn}", place.display());
}

#[test]
fn screens_of_80_and_120_columns() {
    let narrow = drawn(Some(BEFORE), NOW, None, &surface(80));
    compare("80", include_str!("../../../tests/fixtures/top/80.txt"), &narrow);
    let wide = drawn(Some(BEFORE), NOW, None, &surface(120));
    compare("120", include_str!("../../../tests/fixtures/top/120.txt"), &wide);
}

#[test]
fn no_line_is_wider_and_no_screen_higher_than_it_may_be() {
    for (width, height) in [(1, 1), (7, 3), (40, 10), (80, 24), (80, 18), (300, 100)] {
        for colours in [false, true] {
            let surface = Surface { width, height, colours };
            let screen = drawn(Some(BEFORE), NOW, Some("cannot connect: Connection refused"), &surface);
            assert!(screen.lines().count() <= height, "{screen}");
            for line in screen.lines() {
                let mut painted = line.split("\x1b[");
                let plain = painted.next().unwrap_or("").chars().count();
                let rest: usize =
                    painted.map(|part| part.split_once('m').map_or(0, |(_, words)| words.chars().count())).sum();
                assert!(plain + rest <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn what_is_not_known_is_a_dash() {
    let first = drawn(None, NOW, None, &surface(80));
    assert!(first.contains("- ended   51 in flight   - streams   - events   TTFT p50 -   p99 -"), "{first}");
    assert!(first.contains("no rates yet"), "{first}");
    let other =
        drawn(None, "warmfront_uptime_seconds 3\nwarmfront_endpoint_in_flight{endpoint=\"a\"} 1", None, &surface(80));
    assert!(other.contains("warmfront - on 127.0.0.1:9911, up 3 s"), "{other}");
    assert!(
        other.ends_with("\na        -        -                1       -    -    -    -      -      -\n"),
        "{other}"
    );
    assert!(other.contains("- waiting") && other.contains("shards    -"), "{other}");
    let lost = "warmfront_endpoint_health{endpoint=\"lost\",state=\"unresolved\"} 1.0\n\
                warmfront_endpoint_requests_total{endpoint=\"left\"} 5";
    let lost = drawn(None, lost, None, &surface(80));
    assert!(lost.contains("\nlost     no addr ") && !lost.contains("\nleft"), "{lost}");
    let kept =
        "warmfront_endpoint_health{endpoint=\"kept\",state=\"up\"} 1.0\nwarmfront_endpoint_kept{endpoint=\"kept\"} 1.0";
    assert!(drawn(None, kept, None, &surface(80)).contains("\nkept     kept "));
    let nothing = lines("127.0.0.1:9911", None, Some("cannot connect"), &surface(80));
    assert_eq!(text(&nothing, &surface(80), "\n"), "warmfront on 127.0.0.1:9911\ncannot connect");
}

#[test]
fn where_not_all_fit_those_in_trouble_and_the_busiest_are_shown() {
    let surface = Surface { height: 15, ..surface(80) };
    let screen = drawn(Some(BEFORE), NOW, None, &surface);
    let names: Vec<&str> = screen.lines().skip_while(|line| !line.starts_with("endpoint")).collect();
    let begins: Vec<&str> = names.iter().map(|line| line.split(' ').next().unwrap_or("")).collect();
    assert_eq!(begins, ["endpoint", "gpu-3", "..."], "{screen}");
    assert!(screen.ends_with("... and 2 more; those in trouble and the busiest are shown\n"), "{screen}");
}

#[test]
fn many_shards_are_told_of_together() {
    use std::fmt::Write;
    let mut now = NOW.to_owned();
    for shard in 2..64 {
        let _ = writeln!(now, "warmfront_shard_client_connections{{shard=\"{shard}\"}} {shard}");
    }
    let screen = drawn(Some(BEFORE), &now, None, &surface(80));
    assert!(screen.contains("shards    64 of them   2 to 63 clients each   421/s to 555/s turns\n"), "{screen}");
    assert!(screen.contains("          1 uring 33 clients 555/s turns 2 stalls\n"), "{screen}");
}

#[test]
fn colours_are_only_there_when_wanted() {
    assert!(!drawn(Some(BEFORE), NOW, Some("gone"), &surface(120)).contains('\x1b'));
    let painted = drawn(Some(BEFORE), NOW, Some("gone"), &Surface { colours: true, ..surface(80) });
    for words in ["\x1b[31mgone\x1b[m", "\x1b[32m up      \x1b[m", "\x1b[31m ejected \x1b[m", "\x1b[33m up 45%  \x1b[m"]
    {
        assert!(painted.contains(words), "{words:?} is not in\n{painted:?}");
    }
}
