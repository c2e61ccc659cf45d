//! What engines say of their KV caches: events over ZeroMQ, subscribed to, decoded, and told in order.
//!
//! - [`Source`]: one engine's subscription, asked for its next news. `door` finds a `connection`, `zmtp` has its bytes.
//! - `sequence` and `replay`: which message is the next, and what an engine is asked for again where some are missing.
//! - [`Batch`]: one message, read into buffers that are used again. `fields` has the names and places of engines'
//!   versions, `values` their forms.
//! - [`Settings`]: where events come from, by configuration or by what the engine lists.
//!
//! Memory is bounded whatever engines send: for each source one message, and what it reads as. A consumer that is slow
//! lets the publisher's own queue fill; what that drops is a hole, and asked for again.

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
