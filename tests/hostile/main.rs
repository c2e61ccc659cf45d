//! Hostile bytes from both sides, over real sockets: on epoll here, on io_uring in `tests/hostile_uring.rs`. An
//! origin and a client that read strictly, and share nothing with the front's parser, hold every byte that the front
//! sends to what the bytes it got mean: exactly the requests that were asked, exactly their replies, or a refusal or
//! a visible cut. `--nocapture` shows how many cases of each group ended how.

#[path = "../relay/client.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod client;
#[path = "../relay/front.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod front;
#[path = "../relay/random.rs"]
mod random;
#[path = "../relay/wire.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod wire;

mod answers;
mod audit;
mod grammar;
mod meant;
mod mutants;
mod origin;
mod replies;
mod reply_rows;
mod request_rows;
mod requests;
mod tally;
mod unread;

/// The name of what the fronts of these tests run on.
const DRIVER: &str = "epoll";

fn driver() -> warmfront::driver::epoll::Epoll {
    warmfront::driver::epoll::Epoll::new().unwrap()
}
