//! Bodies: the same however they are cut, and what the plainest decoder reads.

use warmfront::http::{Body, BodyLength, Cause, Kind, SizeLine};

/// What a relay makes of a body that comes in `pieces`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The bytes sent on.
    pub sent: Vec<u8>,
    /// The body's own bytes.
    pub data: Vec<u8>,
    /// Bytes taken from the input.
    pub taken: usize,
    /// Over, and without a fault.
    pub done: bool,
    /// The fault that ended it.
    pub fault: Option<Cause>,
}

/// Relays a body as the front does.
pub fn relay<'a>(length: BodyLength, pieces: impl IntoIterator<Item = &'a [u8]>) -> Outcome {
    let mut body = Body::new(length);
    let mut outcome = Outcome::default();
    for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() && !body.done() {
            let part = match body.next(rest) {
                Ok(part) => part,
                Err(fault) => {
                    assert!(body.next(rest).is_err(), "a fault is for good");
                    outcome.fault = Some(fault.cause);
                    return outcome;
                }
            };
            assert!(part.len > 0 && part.len <= rest.len(), "each part moves on within the bytes at hand");
            outcome.sent.extend_from_slice(part.raw(rest));
            outcome.data.extend_from_slice(part.data(rest));
            match part.kind {
                Kind::Pass { start, end } => assert!(start <= end && end <= part.len),
                Kind::Size(size) => outcome.sent.extend_from_slice(SizeLine::new(size).as_bytes()),
                Kind::End => {
                    assert!(body.done());
                    body.write_end(&mut outcome.sent);
                }
                Kind::Drop => {}
            }
            outcome.taken += part.len;
            rest = &rest[part.len..];
        }
    }
    outcome.done = body.done();
    outcome
}

/// A chunked body that we accept is what the plainest decoder reads, wherever it is cut; what we send on is
/// again such a body, with the same data and nothing left to interpretation. The first byte seeds the cuts.
pub fn chunked(input: &[u8]) {
    let Some((&seed, bytes)) = input.split_first() else { return };
    let whole = relay(BodyLength::Chunked, [bytes]);
    let single = relay(BodyLength::Chunked, bytes.chunks(1));
    assert_eq!(comparable(&whole), comparable(&single), "byte by byte: {}", bytes.escape_ascii());
    let step = usize::from(seed % 37) + 1;
    let cut = relay(BodyLength::Chunked, bytes.chunks(step));
    assert_eq!(comparable(&whole), comparable(&cut), "in pieces of {step}: {}", bytes.escape_ascii());

    let naive = decode(bytes);
    assert_eq!(whole.done, naive.is_some(), "{}", bytes.escape_ascii());
    let Some((data, end)) = naive else { return };
    assert_eq!((&whole.data, whole.taken), (&data, end), "{}", bytes.escape_ascii());
    assert_eq!(decode(&whole.sent), Some((data, whole.sent.len())), "{}", whole.sent.escape_ascii());
    assert!(!whole.sent.contains(&b';') || whole.data.contains(&b';') || whole.sent.windows(2).any(|w| w == b": "));
    let again = relay(BodyLength::Chunked, [&whole.sent[..]]);
    assert_eq!(again.sent, whole.sent, "what was sent needs no more changes");
}

/// How many bytes were taken before a fault depends on the cuts; nothing else does.
fn comparable(outcome: &Outcome) -> Outcome {
    let taken = if outcome.fault.is_some() { 0 } else { outcome.taken };
    Outcome { taken, ..outcome.clone() }
}

/// The strict grammar, all bytes at hand: the data and where the body ends. `None`: malformed, or not all there.
pub fn decode(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut data = Vec::new();
    let mut at = 0;
    let mut extensions = 0;
    loop {
        let line_end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let line = &bytes[at..line_end];
        let digits = line.iter().position(|&byte| byte == b';').unwrap_or(line.len());
        let (size, extension) = line.split_at(digits);
        extensions += extension.len();
        let clean = extension.iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        if !clean || extensions > 4_096 || size.is_empty() || size.len() > 16 {
            return None;
        }
        let size = size.iter().try_fold(0u64, |value, &byte| {
            let digit = (byte as char).to_digit(16).filter(|_| byte.is_ascii())?;
            Some((value << 4) + u64::from(digit))
        })?;
        at = line_end + 2;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        data.extend_from_slice(bytes.get(at..at.checked_add(size)?)?);
        at += size;
        if bytes.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    let start = at;
    let mut fields = 0;
    loop {
        let line_end = at + bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let line = &bytes[at..line_end];
        at = line_end + 2;
        if at - start > 8_192 {
            return None;
        }
        if line.is_empty() {
            return Some((data, at));
        }
        fields += 1;
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name_ok =
            colon > 0 && line[..colon].iter().all(|&b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
        let value_ok = line[colon..].iter().all(|&byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f));
        if !name_ok || !value_ok || fields > 32 {
            return None;
        }
    }
}
