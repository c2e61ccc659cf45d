//! Health of endpoints: what control makes of probes and of how requests end, and what choices make of that.

mod choosing;
mod course;
mod patience;
