//! The text of version 0.0.4, made of OpenMetrics: families have the names of their samples there.

/// Converts the front's own text, in which the help of a family stands in front of its type.
pub(super) fn of(open: &str) -> String {
    // A family of counters gets ten bytes more.
    let mut plain = String::with_capacity(open.len() + open.len() / 16);
    let mut write = |words: &[&str]| {
        plain.extend(words.iter().copied());
        plain.push('\n');
    };
    let mut help = None;
    for line in open.lines() {
        if let Some(told) = line.strip_prefix("# HELP ") {
            help = told.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|told| told.split_once(' ')) {
            let total = if kind == "counter" { "_total" } else { "" };
            if let Some((_, words)) = help.take() {
                write(&["# HELP ", name, total, " ", words]);
            }
            write(&["# TYPE ", name, total, " ", kind]);
        } else if line != "# EOF" {
            write(&[line]);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_called_as_their_samples() {
        let open = "# HELP a_b What it is.\n# TYPE a_b counter\na_b_total{x=\"# EOF\"} 1\n# HELP c How many.\n\
                    # TYPE c gauge\nc 1.0\n# TYPE d histogram\nd_sum 0.5\n# EOF\n";
        let plain = "# HELP a_b_total What it is.\n# TYPE a_b_total counter\na_b_total{x=\"# EOF\"} 1\n\
                     # HELP c How many.\n# TYPE c gauge\nc 1.0\n# TYPE d histogram\nd_sum 0.5\n";
        assert_eq!(of(open), plain);
    }
}
