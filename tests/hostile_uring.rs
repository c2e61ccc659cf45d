//! `tests/hostile` once more, on io_uring: the same bytes, the same audit.

#[path = "relay/client.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod client;
#[path = "relay/front.rs"]
#[allow(dead_code, reason = "shared with tests/relay")]
mod front;
#[path = "relay/random.rs"]
mod random;
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

/// Without a ring the whole run ends here, and says so even where the output of tests that pass is not shown.
fn driver() -> warmfront::driver::uring::Uring {
    use std::io::Write;
    warmfront::driver::uring::Uring::new().unwrap_or_else(|error| {
        let line = format!("NOT TESTED: the front on io_uring, as this kernel gives no ring: {error}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        std::process::exit(0)
    })
}
