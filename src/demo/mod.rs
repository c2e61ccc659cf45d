//! The demo: eight simulated engines, the front, and multi-turn conversations over real sockets.
//!
//! [`fleet`] runs the engines on a thread of this process, [`front`] runs the front as a child
//! process, [`load`] holds the conversations of [`conversation`] through [`client`], and [`report`]
//! prints. Time is scaled: what is printed is simulated seconds.
//!
//! # Beside KubeAI's eight-replica run
//!
//! The load is that of KubeAI's `multi-turn-chat-go` benchmark: ShareGPT-like user
//! messages, replies of 40 tokens. It differs in this:
//!
//! * 1,400 conversations at a time, not 1,200: each engine can hold an eighth of 1,200, so that hashing would be
//!   enough.
//! * Engines are simulated; their costs are fitted to that run (see [`crate::engine::profile`]).
//! * KubeAI's figures are means over a whole run of 6 to 11 minutes, start and end included; here a minute or so of
//!   simulated time is measured after a warm-up, and threads begin within conversations. Random's queues take longer
//!   than that to build up fully, so its TTFT comes out better than it would be.
//! * KubeAI's random is a Kubernetes service, which chooses per connection, not per request.
//! * Time is scaled, so that a millisecond lost to this machine's scheduler counts as several.
//! * A pause of 20 simulated ms in the mean stands for the client's way to the front and back, and decides what
//!   least-load is worth. Without a pause the next turn finds the place that has just become free, at the engine that
//!   holds the conversation (8,700 tokens/s in a discrete-event replay); with 20 ms least-load gives 5,100, with a
//!   second 3,600. KubeAI measured 5,420. Random and CHWBL hardly depend on it.

pub mod client;
pub mod conversation;
pub mod fleet;
pub mod front;
pub mod load;
pub mod report;
