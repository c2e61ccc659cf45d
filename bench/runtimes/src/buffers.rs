//! Receive buffers that lie ready for any stream that has bytes to take: a stream that waits holds none.

use std::cell::RefCell;
use std::ops::Deref;

/// More than a request of 1 KB with its head; thousands of reads of 220-byte chunks need no more.
pub const BUFFER_BYTES: usize = 4096;

thread_local! {
    static READY: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer and how much of it was filled; it goes back when dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    /// The memory for one read, [`BUFFER_BYTES`] long unless the runtime cut it to what it had read.
    pub fn memory() -> Vec<u8> {
        READY.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }

    pub fn new(bytes: Vec<u8>, filled: usize) -> Buffer {
        Buffer { bytes, filled }
    }

    /// Takes the memory out, for runtimes that own it while they send.
    #[cfg(feature = "comparators")]
    pub fn into_memory(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.capacity() > 0 {
            READY.with_borrow_mut(|ready| ready.push(bytes));
        }
    }
}
