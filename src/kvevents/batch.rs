//! Reads one message's payload into reused buffers: `[time, events, rank]`, or the same as a map. Each event is an
//! array with its tag first or a map with a `type`, depending on the engine's version.
//!
//! Unknown events and fields are passed over and counted, since every version of an engine adds something. A known one
//! that makes no sense refuses the whole batch, so that no half of one is ever applied.

use super::event::{Event, Extras, Removed, Stored};
use super::fields::{Field, Kind};
use super::msgpack::{Malformed, Reader, Value};
use super::values::{array, hash, names_adapter, optional, token};
use crate::limits::{KV_BYTES_KEPT, KV_EVENTS_MAX, KV_HASHES_MAX, KV_TOKENS_MAX};

/// The events of one message.
#[derive(Debug, Default)]
pub struct Batch {
    time: f64,
    rank: u32,
    named: Option<bool>,
    skipped: Skipped,
    entries: Vec<Entry>,
    hashes: Vec<u64>,
    tokens: Vec<u32>,
    /// Where each block's extra keys end in `bytes`.
    ends: Vec<u32>,
    /// Names and extra keys.
    bytes: Vec<u8>,
}

/// Counts of what was passed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Skipped {
    /// Events of an unknown type.
    pub events: u64,
    /// Unknown fields of known events and of the batch.
    pub fields: u64,
}

/// A range in one of the buffers.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    from: u32,
    to: u32,
}

impl Span {
    /// Returns what was added to a buffer since it had `from` entries. Buffers stay below the bounds, far below 2^32.
    fn since<T>(from: usize, buffer: &[T]) -> Span {
        Span { from: from as u32, to: buffer.len() as u32 }
    }

    fn of<T>(self, buffer: &[T]) -> &[T] {
        buffer.get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

/// One event, with the ranges of its parts in the buffers.
#[derive(Clone, Copy, Debug)]
struct Entry {
    kind: Kind,
    hashes: Span,
    tokens: Span,
    ends: Span,
    extras_begin: u32,
    block_size: u32,
    parent: Option<u64>,
    group: Option<u32>,
    window: Option<u32>,
    medium: Option<Span>,
    lora_name: Option<Span>,
    salt: Option<Span>,
    nameless: bool,
    attention: Option<Span>,
}

const _: () = assert!(size_of::<Entry>() <= 120, "KV_EVENTS_MAX says how much memory they take");

impl Batch {
    /// Reads `payload` in place of the last one. After a fault the batch is empty.
    pub fn read(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        self.clear();
        let mut reader = Reader::new(payload);
        let read = self.payload(&mut reader);
        let read = read.and_then(|()| if reader.is_empty() { Ok(()) } else { Err(reader.fault("behind the batch")) });
        read.inspect_err(|_| self.clear())
    }

    /// When the engine made it, in seconds of the engine's clock; 0 if it does not say.
    pub fn time(&self) -> f64 {
        self.time
    }

    /// The data-parallel rank that it is of; 0 if it does not say.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Whether its events name their fields, as those of vLLM 0.26 and later and of SGLang 0.5.20 and later do, or have
    /// them by place, as older ones do; `None` if it has no known event.
    pub fn names_fields(&self) -> Option<bool> {
        self.named
    }

    /// What was passed over in it.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Its events, in the order in which they happened.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> + DoubleEndedIterator {
        self.entries.iter().map(|entry| self.event(entry))
    }

    /// Whether one of them says that the cache is empty.
    pub fn clears(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.kind, Kind::Cleared))
    }

    fn event(&self, entry: &Entry) -> Event<'_> {
        let text = |span: Option<Span>| span.map(|span| span.of(&self.bytes));
        let hashes = entry.hashes.of(&self.hashes);
        match entry.kind {
            Kind::Stored => Event::Stored(Stored {
                hashes,
                parent: entry.parent,
                tokens: entry.tokens.of(&self.tokens),
                block_size: entry.block_size,
                medium: text(entry.medium),
                lora_name: text(entry.lora_name),
                salt: text(entry.salt),
                nameless: entry.nameless,
                group: entry.group,
                attention: text(entry.attention),
                window: entry.window,
                extras: Extras { ends: entry.ends.of(&self.ends), begin: entry.extras_begin, bytes: &self.bytes },
            }),
            Kind::Removed => Event::Removed(Removed { hashes, medium: text(entry.medium), group: entry.group }),
            Kind::Cleared => Event::Cleared,
        }
    }

    /// Empties the buffers, and shrinks those that an uncommonly long message has made large.
    fn clear(&mut self) {
        fn emptied<T>(buffer: &mut Vec<T>) {
            buffer.clear();
            buffer.shrink_to(KV_BYTES_KEPT / size_of::<T>());
        }
        emptied(&mut self.entries);
        emptied(&mut self.hashes);
        emptied(&mut self.tokens);
        emptied(&mut self.ends);
        emptied(&mut self.bytes);
        (self.time, self.rank, self.named, self.skipped) = (0.0, 0, None, Skipped::default());
    }

    fn payload(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let begin = reader.clone();
        let mut told = false;
        match reader.value()? {
            Value::Array(length) => {
                for place in 0..length {
                    match place {
                        0 => self.read_time(reader)?,
                        1 => self.read_events(reader)?,
                        2 => self.read_rank(reader)?,
                        _ => self.pass(reader)?,
                    }
                }
                told = length >= 2;
            }
            Value::Map(length) => {
                for _ in 0..length {
                    match reader.value()? {
                        Value::Text(b"ts") => self.read_time(reader)?,
                        Value::Text(b"events") if !told => (told, ()) = (true, self.read_events(reader)?),
                        Value::Text(b"data_parallel_rank" | b"attn_dp_rank") => self.read_rank(reader)?,
                        Value::Array(_) | Value::Map(_) => return Err(reader.fault("a key is a text")),
                        _ => self.pass(reader)?,
                    }
                }
            }
            _ => return Err(begin.fault("a batch is an array or a map")),
        }
        if told { Ok(()) } else { Err(begin.fault("a batch without events")) }
    }

    fn pass(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        self.skipped.fields += 1;
        reader.skip()
    }

    fn read_time(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let begin = reader.clone();
        self.time = match reader.value()? {
            Value::Float(time) if time.is_finite() => time,
            Value::Number(time) => time as f64,
            Value::Nil => 0.0,
            _ => return Err(begin.fault("a time is a number")),
        };
        Ok(())
    }

    fn read_rank(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        self.rank = optional(reader, "a rank is a small number or nil")?.unwrap_or_default();
        Ok(())
    }

    fn read_events(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        for _ in 0..array(reader, "events are an array")? {
            self.read_event(reader)?;
        }
        Ok(())
    }

    fn read_event(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let begin = reader.clone();
        let (kind, length, named) = match reader.value()? {
            Value::Array(0) => (None, 0, false),
            Value::Array(length) => (Kind::tagged(reader)?, length - 1, false),
            Value::Map(length) => (Kind::typed(reader, length)?, length, true),
            _ => return Err(begin.fault("an event is an array or a map")),
        };
        let Some(kind) = kind else {
            *reader = begin;
            self.skipped.events += 1;
            return reader.skip();
        };
        if self.entries.len() >= KV_EVENTS_MAX {
            return Err(begin.fault("more events than one message may hold"));
        }
        let mut draft = Draft::default();
        for place in 0..length as usize {
            let field = if named { kind.field_named(reader)? } else { kind.field_at(place) };
            self.read_field(field, &mut draft, reader)?;
        }
        let entry = draft
            .entry(kind, self.bytes.len())
            .ok_or(begin.fault("an event lacks its hashes, tokens or block size"))?;
        if draft.ends.is_some() && entry.ends.to - entry.ends.from != entry.hashes.to - entry.hashes.from {
            return Err(begin.fault("not as many extra keys as blocks"));
        }
        self.entries.push(entry);
        self.named = Some(named);
        Ok(())
    }

    fn read_field(&mut self, field: Field, draft: &mut Draft, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        match field {
            Field::Hashes => draft.hashes = Some(self.read_hashes(reader)?),
            Field::Tokens => draft.tokens = Some(self.read_tokens(reader)?),
            Field::Parent => draft.parent = hash(reader)?,
            Field::BlockSize => draft.block_size = optional(reader, "a block size is a small number")?,
            Field::Medium => draft.medium = self.read_text(reader)?,
            Field::LoraId => draft.numbered = names_adapter(reader)?,
            Field::LoraName => draft.lora_name = self.read_text(reader)?,
            Field::LoraNameOrMetadata => match reader.clone().value()? {
                Value::Text(_) | Value::Nil => draft.lora_name = self.read_text(reader)?,
                _ => self.read_metadata(draft, reader)?,
            },
            Field::Metadata => self.read_metadata(draft, reader)?,
            Field::Salt => draft.salt = self.read_text(reader)?,
            Field::Extras => self.read_extras(draft, reader)?,
            Field::Group => draft.group = optional(reader, "a group is a small number or nil")?,
            Field::Attention => draft.attention = self.read_text(reader)?,
            Field::Window => draft.window = optional(reader, "a window is a small number or nil")?,
            Field::Unused => reader.skip()?,
            Field::Unknown => self.pass(reader)?,
        }
        Ok(())
    }

    fn read_hashes(&mut self, reader: &mut Reader<'_>) -> Result<Span, Malformed> {
        let from = self.hashes.len();
        let length = array(reader, "block hashes are an array")? as usize;
        if from + length > KV_HASHES_MAX {
            return Err(reader.fault("more hashes than one message may hold"));
        }
        for _ in 0..length {
            let begin = reader.at();
            let hash = hash(reader)?.ok_or(Malformed { at: begin, what: "a block's hash is nil" })?;
            self.hashes.push(hash);
        }
        Ok(Span::since(from, &self.hashes))
    }

    fn read_tokens(&mut self, reader: &mut Reader<'_>) -> Result<Span, Malformed> {
        let from = self.tokens.len();
        let length = array(reader, "token ids are an array")? as usize;
        if from + length > KV_TOKENS_MAX {
            return Err(reader.fault("more tokens than one message may hold"));
        }
        self.tokens.reserve(length);
        for _ in 0..length {
            self.tokens.push(token(reader)?);
        }
        Ok(Span::since(from, &self.tokens))
    }

    fn read_text(&mut self, reader: &mut Reader<'_>) -> Result<Option<Span>, Malformed> {
        let (begin, from) = (reader.clone(), self.bytes.len());
        match reader.value()? {
            Value::Text(text) => self.bytes.extend_from_slice(text),
            Value::Nil => return Ok(None),
            _ => return Err(begin.fault("a name is a text or nil")),
        }
        Ok(Some(Span::since(from, &self.bytes)))
    }

    /// Reads the map in which SGLang 0.5.18 and 0.5.19 tell a prompt's salt.
    fn read_metadata(&mut self, draft: &mut Draft, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let Value::Map(length) = reader.clone().value()? else { return self.pass(reader) };
        reader.value()?;
        for _ in 0..length {
            match reader.value()? {
                Value::Text(b"cache_salt") => draft.salt = self.read_text(reader)?,
                Value::Array(_) | Value::Map(_) => return Err(reader.fault("a key is a text")),
                _ => self.pass(reader)?,
            }
        }
        Ok(())
    }

    /// Keeps the keys of each block as they are written: most have none, and they are decoded only when asked for.
    fn read_extras(&mut self, draft: &mut Draft, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let begin = reader.clone();
        let length = match reader.value()? {
            Value::Nil => return Ok(()),
            Value::Array(length) => length as usize,
            _ => return Err(begin.fault("extra keys are an array or nil")),
        };
        let from = self.ends.len();
        if from + length > KV_HASHES_MAX {
            return Err(begin.fault("more extra keys than one message may hold blocks"));
        }
        draft.extras_begin = self.bytes.len() as u32;
        for _ in 0..length {
            let at = reader.at();
            reader.skip()?;
            let keys = reader.since(at);
            // Nil, and an empty array.
            if !matches!(keys, [0xc0] | [0x90]) {
                self.bytes.extend_from_slice(keys);
            }
            self.ends.push(self.bytes.len() as u32);
        }
        draft.ends = Some(Span::since(from, &self.ends));
        Ok(())
    }
}

/// What has been read of one event.
#[derive(Default)]
struct Draft {
    hashes: Option<Span>,
    tokens: Option<Span>,
    block_size: Option<u32>,
    parent: Option<u64>,
    group: Option<u32>,
    window: Option<u32>,
    medium: Option<Span>,
    numbered: bool,
    lora_name: Option<Span>,
    salt: Option<Span>,
    attention: Option<Span>,
    extras_begin: u32,
    ends: Option<Span>,
}

impl Draft {
    /// Returns the event; `None` if something is missing that this kind of event cannot be without.
    fn entry(&self, kind: Kind, bytes: usize) -> Option<Entry> {
        let stored = kind == Kind::Stored;
        let ends = self.ends.unwrap_or_default();
        Some(Entry {
            kind,
            hashes: if kind == Kind::Cleared { Span::default() } else { self.hashes? },
            tokens: if stored { self.tokens? } else { Span::default() },
            block_size: if stored { self.block_size? } else { 0 },
            ends,
            extras_begin: if self.ends.is_some() { self.extras_begin } else { bytes as u32 },
            parent: self.parent,
            group: self.group,
            window: self.window,
            medium: self.medium,
            lora_name: self.lora_name,
            salt: self.salt,
            nameless: self.numbered && self.lora_name.is_none(),
            attention: self.attention,
        })
    }
}
