//! Names and places of events' fields, in the known versions of engines.

use super::msgpack::{Malformed, Reader, Value};

/// Known types of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Stored,
    Removed,
    Cleared,
}

/// Fields of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    Medium,
    /// The adapter's number, which differs from process to process.
    LoraId,
    LoraName,
    /// The adapter's name, or in its place [`Field::Metadata`].
    LoraNameOrMetadata,
    /// A map that may contain the salt.
    Metadata,
    Salt,
    Extras,
    Group,
    Attention,
    Window,
    /// Known and of no use; it is not counted as unknown.
    Unused,
    Unknown,
}

/// Order of fields if an event is an array. Fields at the end are left out if they have their defaults.
const STORED: &[Field] = &[
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraNameOrMetadata,
    Field::Extras,
    Field::Group,
    Field::Attention,
    Field::Window,
];
const REMOVED: &[Field] = &[Field::Hashes, Field::Medium, Field::Group];

impl Kind {
    /// Reads the type of an event that is an array, whose tag is next; `None`: it is not known.
    pub(super) fn tagged(reader: &mut Reader<'_>) -> Result<Option<Kind>, Malformed> {
        match reader.value()? {
            Value::Text(tag) => Ok(Kind::named(tag)),
            _ => Ok(None),
        }
    }

    /// Finds the type of an event that is a map of `length` pairs, wherever it is in the map.
    pub(super) fn typed(reader: &Reader<'_>, length: u32) -> Result<Option<Kind>, Malformed> {
        let mut ahead = reader.clone();
        for _ in 0..length {
            if Value::Text(b"type") == ahead.clone().value()? {
                ahead.value()?;
                return Kind::tagged(&mut ahead);
            }
            ahead.skip()?;
            ahead.skip()?;
        }
        Ok(None)
    }

    fn named(tag: &[u8]) -> Option<Kind> {
        match tag {
            b"BlockStored" => Some(Kind::Stored),
            b"BlockRemoved" => Some(Kind::Removed),
            b"AllBlocksCleared" => Some(Kind::Cleared),
            _ => None,
        }
    }

    /// Returns the field at `place` of an array, its tag not counted.
    pub(super) fn field_at(self, place: usize) -> Field {
        let order = match self {
            Kind::Stored => STORED,
            Kind::Removed => REMOVED,
            Kind::Cleared => &[],
        };
        order.get(place).copied().unwrap_or(Field::Unknown)
    }

    /// Reads the key of a map that is next, and returns its field.
    pub(super) fn field_named(self, reader: &mut Reader<'_>) -> Result<Field, Malformed> {
        let begin = reader.clone();
        let field = match reader.value()? {
            Value::Text(b"lora_id") if self == Kind::Stored => Field::LoraId,
            Value::Text(b"type" | b"lora_id" | b"session_id" | b"locality" | b"ownership") => Field::Unused,
            Value::Text(name) if self != Kind::Cleared => named(name),
            Value::Array(_) | Value::Map(_) => return Err(begin.fault("a key is a text")),
            _ => Field::Unknown,
        };
        // Parents and tokens of a removal would be of no use.
        let fits = self == Kind::Stored || matches!(field, Field::Unused) || REMOVED.contains(&field);
        Ok(if fits { field } else { Field::Unknown })
    }
}

fn named(name: &[u8]) -> Field {
    match name {
        b"block_hashes" => Field::Hashes,
        b"parent_block_hash" => Field::Parent,
        b"token_ids" => Field::Tokens,
        b"block_size" => Field::BlockSize,
        b"medium" => Field::Medium,
        b"lora_name" => Field::LoraName,
        b"cache_salt" => Field::Salt,
        b"metadata" => Field::Metadata,
        b"extra_keys" => Field::Extras,
        b"group_idx" => Field::Group,
        b"kv_cache_spec_kind" => Field::Attention,
        b"kv_cache_spec_sliding_window" => Field::Window,
        _ => Field::Unknown,
    }
}
