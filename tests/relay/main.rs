//! The whole data plane over real sockets, between scripted clients and scripted engines.

mod backpressure;
mod client;
mod engine;
mod front;
mod random;
mod recorded;
mod wire;

mod deadlines;
mod failing;
mod framing_replies;
mod framing_requests;
mod leaving;
mod models;
mod passing;
mod pipelining;
mod tunnel;
mod uploads;
