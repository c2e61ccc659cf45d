//! The trace that a request belongs to, by its `traceparent` (W3C Trace Context, level 1). The field passes as it came;
//! this is for the access log alone.

use super::fields::{Fields, Known};

/// `00-`, 32 digits of the trace, `-`, 16 of the caller's span, `-`, 2 of flags.
const LEN: usize = 55;

/// A trace's id; of zeros, which no trace may have: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// Of no trace.
    pub const NONE: TraceId = TraceId([0; 16]);

    /// What the fields of a head say: none where they say it twice, or not as the rules have it.
    pub fn of(fields: &Fields<'_>) -> TraceId {
        let mut values = fields.known(Known::Traceparent);
        match (values.next(), values.next()) {
            (Some(value), None) => TraceId::read(value).unwrap_or_default(),
            _ => TraceId::NONE,
        }
    }

    fn read(value: &[u8]) -> Option<TraceId> {
        let (first, more) = value.split_at_checked(LEN)?;
        let version = octets::<1>(first.get(..2)?)?;
        // Later versions may have more behind a further hyphen; the last one never comes to be.
        let fits = match version {
            [0] => more.is_empty(),
            [0xff] => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let hyphens = [2, 35, 52].iter().all(|&at| first.get(at) == Some(&b'-'));
        let trace = octets::<16>(first.get(3..35)?)?;
        let span = octets::<8>(first.get(36..52)?)?;
        octets::<1>(first.get(53..)?)?;
        (fits && hyphens && trace != [0; 16] && span != [0; 8]).then_some(TraceId(trace))
    }

    /// As 32 digits.
    pub fn digits(self) -> Option<String> {
        (self != TraceId::NONE).then(|| format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

/// Two hexadecimal digits each, of which the letters are small ones.
fn octets<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, _) = digits.as_chunks::<2>();
    let mut octets = [0; N];
    for (octet, [high, low]) in octets.iter_mut().zip(pairs) {
        *octet = digit(*high)? << 4 | digit(*low)?;
    }
    (pairs.len() == N).then_some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_trace_is_what_the_rules_call_one() {
        let read = |value: &str| TraceId::read(value.as_bytes()).and_then(TraceId::digits);
        let span = "b7ad6b7169203331";
        for good in [
            format!("00-{TRACE}-{span}-01"),
            format!("00-{TRACE}-{span}-00"),
            format!("cc-{TRACE}-{span}-ff"),
            format!("01-{TRACE}-{span}-01-what the future will be like"),
        ] {
            assert_eq!(read(&good).as_deref(), Some(TRACE), "{good}");
        }
        let (zeros, upper) = ("0".repeat(32), TRACE.to_uppercase());
        for bad in [
            String::new(),
            format!("00-{TRACE}-{span}"),
            format!("00-{TRACE}-{span}-01-"),
            format!("00-{TRACE}-{span}-01-more"),
            format!("01-{TRACE}-{span}-01.more"),
            format!("ff-{TRACE}-{span}-01"),
            format!("0x-{TRACE}-{span}-01"),
            format!("00-{zeros}-{span}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{upper}-{span}-01"),
            format!("00-{TRACE}-{}-01", span.to_uppercase()),
            format!("00-{TRACE}-{span}-0g"),
            format!("00-{TRACE}_{span}-01"),
            format!("00_{TRACE}-{span}-01"),
            format!("00-{TRACE}-{span}_01"),
            format!("00-{}\"-{span}-01", "a".repeat(31)),
            format!(" 00-{TRACE}-{span}-01"),
            "\u{e9}".repeat(40),
        ] {
            assert_eq!(read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn zeros_in_front_are_told() {
        let value = b"00-00000000000000000000000000000abc-b7ad6b7169203331-01";
        let digits = TraceId::read(value).and_then(TraceId::digits);
        assert_eq!(digits.as_deref(), Some("00000000000000000000000000000abc"));
        assert_eq!(TraceId::NONE.digits(), None);
    }
}
