//! What engines tell of their KV caches: events over ZeroMQ, which are subscribed to, decoded, and passed on in order.
//!
//! - [`Source`]: one engine's subscription, which a consumer asks for its next news. `door` gets a `connection`, `zmtp`
//!   reads and writes its bytes.
//! - `sequence` and `replay`: which message comes next, and how missing ones are asked for again.
//! - [`Batch`]: one message, read into reused buffers. `fields` knows the names and places of fields in each engine's
//!   versions, `values` the forms of their values.
//! - [`Settings`]: where events come from, by configuration or by what the engine lists.
//!
//! Memory is bounded whatever engines send: for each source one message, and what it decodes to. If a consumer is slow,
//! the publisher's own queue fills; what the publisher then drops is a hole, which is asked for again.

mod batch;
mod command;
mod connection;
mod counts;
mod door;
mod event;
mod fields;
mod msgpack;
mod replay;
mod sequence;
mod settings;
mod source;
mod told;
mod values;
mod zmtp;

pub use batch::{Batch, Skipped};
pub use connection::{Ended, reach};
pub use counts::Counts;
pub use event::{Event, ExtraKey, Extras, Removed, Stored};
pub use msgpack::Malformed;
pub use settings::{EVENTS_PORT, Endpoint, Keys, Pace, Settings, as_listed, flagged_ranks, listed};
pub use source::Source;
pub use told::{Hole, Reached, Told};
pub use zmtp::{Broken, Progress, Role, Wire};
