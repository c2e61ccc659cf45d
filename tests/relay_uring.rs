//! `tests/relay` once more, on io_uring: the same scripts, the same bytes.

#[path = "relay/alone.rs"]
mod alone;
#[path = "relay/backpressure.rs"]
mod backpressure;
#[path = "relay/bars.rs"]
mod bars;
#[path = "relay/batches.rs"]
mod batches;
#[path = "relay/blame.rs"]
mod blame;
#[path = "relay/broken.rs"]
mod broken;
#[path = "relay/busy.rs"]
mod busy;
#[path = "relay/client.rs"]
mod client;
#[path = "relay/come.rs"]
mod come;
#[path = "relay/deadlines.rs"]
mod deadlines;
#[path = "relay/demands.rs"]
mod demands;
#[path = "relay/deserted.rs"]
mod deserted;
#[path = "relay/early.rs"]
mod early;
#[path = "relay/endings.rs"]
mod endings;
#[path = "relay/engine.rs"]
mod engine;
#[path = "relay/failing.rs"]
mod failing;
#[path = "relay/forms.rs"]
mod forms;
#[path = "relay/framing_replies.rs"]
mod framing_replies;
#[path = "relay/framing_requests.rs"]
mod framing_requests;
#[path = "relay/front.rs"]
mod front;
#[path = "relay/growing.rs"]
mod growing;
#[path = "relay/incidents.rs"]
mod incidents;
#[path = "relay/islands.rs"]
mod islands;
#[path = "relay/leaving.rs"]
mod leaving;
#[path = "relay/models.rs"]
mod models;
#[path = "relay/own.rs"]
mod own;
#[path = "relay/passing.rs"]
mod passing;
#[path = "relay/pipelining.rs"]
mod pipelining;
#[path = "relay/queueing.rs"]
mod queueing;
#[path = "relay/random.rs"]
mod random;
#[path = "relay/ranked.rs"]
mod ranked;
#[path = "relay/recorded.rs"]
mod recorded;
#[path = "relay/records.rs"]
mod records;
#[path = "relay/shadows.rs"]
mod shadows;
#[path = "relay/stored.rs"]
mod stored;
#[path = "relay/storm.rs"]
mod storm;
#[path = "relay/strangers.rs"]
mod strangers;
#[path = "relay/tries.rs"]
mod tries;
#[path = "relay/tunnel.rs"]
mod tunnel;
#[path = "relay/turns.rs"]
mod turns;
#[path = "relay/unseen.rs"]
mod unseen;
#[path = "relay/untested.rs"]
mod untested;
#[path = "relay/uploads.rs"]
mod uploads;
#[path = "relay/warm.rs"]
mod warm;
#[path = "relay/wire.rs"]
mod wire;

/// What the fronts of these tests run on. Where there is no ring, the whole run ends at the first: what it would show
/// was shown on epoll.
fn driver() -> warmfront::driver::uring::Uring {
    if !untested::has_ring("the front on io_uring") {
        std::process::exit(0);
    }
    warmfront::driver::uring::Uring::new().expect("a ring, as the first was given")
}
