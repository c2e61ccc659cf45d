//! `tests/hostile` once more, on io_uring: the same bytes, the same audit.

#[path = "relay/client.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod client;
#[path = "relay/front.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod front;
#[path = "relay/random.rs"]
mod random;
#[path = "relay/untested.rs"]
mod untested;
#[path = "relay/wire.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod wire;

#[path = "hostile/answers.rs"]
mod answers;
#[path = "hostile/audit.rs"]
mod audit;
#[path = "hostile/grammar.rs"]
mod grammar;
#[path = "hostile/meant.rs"]
mod meant;
#[path = "hostile/mutants.rs"]
mod mutants;
#[path = "hostile/origin.rs"]
mod origin;
#[path = "hostile/replies.rs"]
mod replies;
#[path = "hostile/reply_rows.rs"]
mod reply_rows;
#[path = "hostile/request_rows.rs"]
mod request_rows;
#[path = "hostile/requests.rs"]
mod requests;
#[path = "hostile/tally.rs"]
mod tally;
#[path = "hostile/unread.rs"]
mod unread;

/// The name of what the fronts of these tests run on.
const DRIVER: &str = "io_uring";

/// Where there is no ring, the whole run ends at the first.
fn driver() -> warmfront::driver::uring::Uring {
    if !untested::has_ring("the front on io_uring") {
        std::process::exit(0);
    }
    warmfront::driver::uring::Uring::new().expect("a ring, as the first was given")
}
