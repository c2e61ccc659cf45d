//! Values of fields, in the forms in which engines write them.

use super::msgpack::{Malformed, Reader, Value};

/// Reads the head of an array; returns how many values follow.
pub(super) fn array(reader: &mut Reader<'_>, otherwise: &'static str) -> Result<u32, Malformed> {
    let begin = reader.clone();
    match reader.value()? {
        Value::Array(length) => Ok(length),
        _ => Err(begin.fault(otherwise)),
    }
}

/// Reads a number of 32 bits, or nil.
pub(super) fn optional(reader: &mut Reader<'_>, otherwise: &'static str) -> Result<Option<u32>, Malformed> {
    let begin = reader.clone();
    match reader.value()? {
        Value::Nil => Ok(None),
        Value::Number(number) => u32::try_from(number).map(Some).map_err(|_| begin.fault(otherwise)),
        _ => Err(begin.fault(otherwise)),
    }
}

/// Reads a block's name as 64 bits: SGLang writes it signed, vLLM unsigned or as a whole digest, whose last 8 bytes are
/// taken.
pub(super) fn hash(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    let begin = reader.clone();
    match reader.value()? {
        Value::Number(hash) => Ok(Some(hash)),
        Value::Negative(hash) => Ok(Some(hash as u64)),
        Value::Bytes(digest) => {
            let end = digest.last_chunk().ok_or(begin.fault("a digest has 8 bytes or more"))?;
            Ok(Some(u64::from_be_bytes(*end)))
        }
        Value::Nil => Ok(None),
        _ => Err(begin.fault("a hash is a number or bytes")),
    }
}

/// Reads a token's id. SGLang with EAGLE stores pairs of a token and the next one, of which the first is taken.
pub(super) fn token(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    let begin = reader.clone();
    let token = match reader.value()? {
        Value::Number(token) => u32::try_from(token).ok(),
        Value::Array(2) => match (reader.value()?, reader.value()?) {
            (Value::Number(token), Value::Number(_)) => u32::try_from(token).ok(),
            _ => None,
        },
        _ => None,
    };
    token.ok_or(begin.fault("a token id is a number of 32 bits"))
}

/// Reads a number; true if it is an adapter's: neither nil nor 0.
pub(super) fn names_adapter(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    let begin = reader.at();
    reader.skip()?;
    Ok(!matches!(reader.since(begin), [0xc0] | [0]))
}
