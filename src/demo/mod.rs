//! The demo: eight simulated engines, the front, and multi-turn conversations over real sockets.
//!
//! [`fleet`] runs the engines on a thread of this process, [`front`] runs the front as a child
//! process, [`load`] holds the conversations of [`conversation`] through [`client`], and [`report`]
//! prints. Time is scaled: what is printed is simulated seconds.

pub mod client;
pub mod conversation;
pub mod fleet;
pub mod front;
pub mod load;
pub mod report;
