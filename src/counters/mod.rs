//! counters
