//! The whole data plane over real sockets, between scripted clients and scripted engines.

mod client;
mod engine;
mod front;
mod random;
mod wire;

mod deadlines;
mod failing;
mod framing_replies;
mod framing_requests;
mod leaving;
mod passing;
mod pipelining;
mod tunnel;
mod uploads;
