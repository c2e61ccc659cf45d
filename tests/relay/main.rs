//! The whole data plane over real sockets, between scripted clients and scripted engines: on epoll here, on
//! io_uring in `tests/relay_uring.rs`.

mod alone;
mod backpressure;
mod client;
mod come;
mod endings;
mod engine;
mod front;
mod random;
mod ranked;
mod recorded;
mod wire;

mod bars;
mod batches;
mod blame;
mod broken;
mod busy;
mod deadlines;
mod demands;
mod deserted;
mod early;
mod failing;
mod forms;
mod framing_replies;
mod framing_requests;
mod growing;
mod incidents;
mod islands;
mod leaving;
mod models;
mod own;
mod passing;
mod pipelining;
mod queueing;
mod records;
mod shadows;
mod stored;
mod storm;
mod strangers;
mod tries;
mod tunnel;
mod turns;
mod unseen;
mod untested;
mod uploads;
mod warm;

/// What the fronts of these tests run on.
fn driver() -> warmfront::driver::epoll::Epoll {
    warmfront::driver::epoll::Epoll::new().unwrap()
}
