//! HTTP/1.1 as the front speaks it: strict parsing of heads and bodies, and every message written
//! anew from what was parsed, never from framing fields that arrived.
//!
//! A request's path through this room: [`head::parse_request`] → [`framing::request`] →
//! [`rewrite::request`] and [`body::Body`]; a reply's: [`head::parse_response`] → [`framing::reply`] →
//! [`rewrite::reply`] and [`body::Body`]. Answers of our own are in [`reply`], their errors in
//! the shape of each API.
//!
//! All of it is pure: byte slices in, values and bytes out. Nothing here panics on any input, and the
//! verdict on a message is the same wherever its bytes were cut.

pub mod body;
pub mod chunk;
pub mod class;
pub mod digits;
pub mod fields;
pub mod framing;
pub mod head;
pub mod reply;
pub mod rewrite;
mod shape;
pub mod target;
mod traceparent;

pub use body::Body;
pub use chunk::{Chunked, Kind, Part, SizeLine};
pub use digits::{decimal, hex};
pub use fields::{FieldTable, Fields, Known};
pub use framing::{BodyLength, ReplyFraming, RequestFraming};
pub use head::{
    HeadLimits, RequestHead, ResponseHead, Status, Version, method_and_path, method_and_target, parse_request,
    parse_response,
};
pub use reply::{Cause, ErrorReply, Fault, Refusal};
pub use rewrite::{Added, Delivery, Form, ToClient, request_id, usable_request_id};
pub use shape::Shape;
pub use target::{percent_decoded, query_value, without_query};
pub use traceparent::TraceId;
