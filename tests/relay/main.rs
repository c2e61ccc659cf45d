//! The whole data plane over real sockets, between scripted clients and scripted engines.

mod engine;
mod front;
mod passing;
