//! One line of Prometheus or OpenMetrics text.

/// `name{labels} value`, of a finite value that is not negative.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Its name, with whatever suffix.
    pub name: &'a str,
    labels: &'a str,
    /// Its value.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// Reads one line; `None`: it is a comment, or nothing that can be read.
    pub fn of(line: &'a [u8]) -> Option<Sample<'a>> {
        let line = std::str::from_utf8(line).ok()?.trim_end();
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at_checked(end)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at_checked(labels_end(rest)?)?,
            None => ("", rest),
        };
        let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?.parse::<f64>().ok()?;
        (value.is_finite() && value >= 0.0).then_some(Sample { name, labels, value })
    }

    /// The value of a label as it is written, escapes and all.
    pub fn label(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((name, after)) = rest.split_once("=\"") {
            let end = quote_end(after)?;
            let (value, after) = after.split_at_checked(end)?;
            if name.trim() == wanted {
                return Some(value);
            }
            rest = after.trim_start_matches('"').trim_start_matches([',', ' ']);
        }
        None
    }
}

/// Where the `}` stands that ends the labels; one inside a quoted value does not.
fn labels_end(labels: &str) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    labels.bytes().position(|byte| {
        let ends = byte == b'}' && !quoted;
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Where the quote stands that ends a value.
fn quote_end(value: &str) -> Option<usize> {
    let mut escaped = false;
    value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_values_are_found() {
        let sample = Sample::of(b"requests_total{model=\"a}\\\"=\",le=\"+Inf\"} 3 17.5\r").unwrap();
        assert_eq!((sample.name, sample.value), ("requests_total", 3.0));
        assert_eq!((sample.label("model"), sample.label("le")), (Some("a}\\\"="), Some("+Inf")));
        assert_eq!((sample.label("l"), sample.label("endpoint")), (None, None));
        assert_eq!(Sample::of(b"up 1").map(|sample| (sample.name, sample.value)), Some(("up", 1.0)));
        for line in ["", "# TYPE up gauge", "# EOF", "up", "up{", "up{a=\"b} 1", "up NaN", "up -1", "up{a=\"b\"}"] {
            assert!(Sample::of(line.as_bytes()).is_none(), "{line}");
        }
    }
}
