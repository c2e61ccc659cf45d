//! How many failed probes it takes, as configured (`failures_down`).

use std::time::Instant;

use warmfront::config::Config;
use warmfront::control::health::{Course, Failure, How};
use warmfront::fleet::Health;

/// An engine that answered once, and what becomes of it by further probes that fail: whether it is down, and whether
/// another address of its is tried.
fn failing(failures_down: u32, how: How, probes: usize) -> Vec<(bool, bool)> {
    let (mut rules, now) = (Config::default().health, Instant::now());
    rules.failures_down = failures_down;
    let mut course = Course::new(true, &rules, now);
    course.probed(Ok(()), true, &rules, now);
    let mut fails = || {
        course.probed(Err(Failure { why: "no".into(), how }), true, &rules, now);
        (course.health() == Health::Down, course.looks_elsewhere(&rules))
    };
    (0..probes).map(|_| fails()).collect()
}

#[test]
fn an_engine_goes_down_after_as_many_failed_probes_as_are_configured() {
    for failures_down in 1..=5 {
        for how in [How::Otherwise, How::Refused, How::Silent, How::Unconnected] {
            let down = failing(failures_down, how, 12).iter().position(|(down, _)| *down);
            assert_eq!(down.map(|before| before + 1), Some(failures_down as usize), "{how:?}");
        }
    }
}

/// If it may be busy there, after five times as many.
#[test]
fn another_address_is_tried_after_as_many_failed_probes_as_are_configured() {
    for (failures_down, how, probes, expected) in [
        (1, How::Refused, 3, vec![1, 2, 3]),
        (3, How::Refused, 7, vec![3, 6]),
        (4, How::Refused, 7, vec![4]),
        (1, How::Silent, 9, vec![5]),
        (3, How::Silent, 31, vec![15, 30]),
        (3, How::Otherwise, 31, vec![15, 30]),
    ] {
        let tried = (1..).zip(failing(failures_down, how, probes)).filter(|(_, (_, elsewhere))| *elsewhere);
        let tried: Vec<i32> = tried.map(|(probe, _)| probe).collect();
        assert_eq!(tried, expected, "{failures_down}, {how:?}");
    }
}
