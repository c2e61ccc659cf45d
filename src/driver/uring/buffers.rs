//! Receive buffers: small ones that the kernel chooses from and gives back filled, and a few large ones for reads
//! without the ring.
//!
//! A small buffer is the kernel's, or ours while its bytes are read or sent from; it goes back to the kernel's list
//! when the last of these uses is over. Of the large ones the first free one is taken, so that it stays in the CPU's
//! cache while one is enough.

#![allow(unsafe_code, reason = "the kernel writes into these buffers and reads the list of them by address")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::param::page_size;

use super::ring::Ring;
use crate::limits::RECEIVE_BYTES;

/// Number of small buffers, for small pieces on many connections at a time. Together they are about as large as a
/// core's cache: a larger pool would be cold whenever its turn comes, as the kernel takes buffers in the order in which
/// they were returned.
const COUNT: u16 = 512;
pub(super) const BUFFER_BYTES: usize = 2 << 10;
/// Number of large buffers.
const LARGE: u16 = 4;

/// Most bytes of a buffer that are copied; for more, the buffer is kept until they are sent.
pub(super) const fn copied_max(name: u16) -> usize {
    if name < COUNT { 1 << 10 } else { 8 << 10 }
}

/// Pages shared with the kernel.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
    kept: bool,
}

impl Pages {
    /// Allocates zeroed pages. The memory that the kernel shares must begin at a page, which has 4, 16 or 64 KiB.
    fn new(bytes: usize, page: usize) -> Pages {
        let layout = Layout::from_size_align(bytes.next_multiple_of(page), page).expect("a few megabytes");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Pages { start, layout, kept: false }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: allocated above with this layout; it is dropped only if the kernel is done with it.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

/// All receive buffers of one ring, with the list of the small ones that the kernel reads.
pub(super) struct Buffers {
    list: Pages,
    bytes: Pages,
    large: Box<[u8]>,
    /// Where the next buffer is listed, modulo the list's length.
    tail: u16,
    published: u16,
    /// Number of uses of each buffer, 0 if it is free or the kernel's; the large ones follow the small ones.
    uses: Vec<u16>,
}

impl Buffers {
    /// Makes the buffers that `ring` receives into. They must outlive it.
    pub(super) fn register(ring: &Ring) -> io::Result<Buffers> {
        let count = COUNT as usize;
        let mut buffers = Buffers {
            list: Pages::new(count * size_of::<BufRingEntry>(), page_size()),
            bytes: Pages::new(count * BUFFER_BYTES, page_size()),
            large: vec![0; LARGE as usize * RECEIVE_BYTES].into_boxed_slice(),
            tail: 0,
            published: 0,
            uses: vec![0; count + LARGE as usize],
        };
        (0..COUNT).for_each(|name| buffers.give_back(name));
        buffers.publish();
        // SAFETY: the driver drops the ring before its buffers, or keeps them for good.
        unsafe { ring.register_buffers(buffers.list.start.as_ptr(), COUNT)? };
        Ok(buffers)
    }

    fn entries(&self) -> *mut BufRingEntry {
        self.list.start.as_ptr().cast()
    }

    fn start_of(&self, name: u16) -> *mut u8 {
        assert!(name < COUNT);
        // SAFETY: within the pages, as just checked.
        unsafe { self.bytes.start.as_ptr().add(name as usize * BUFFER_BYTES) }
    }

    /// Lists a buffer; the kernel sees it once it is published.
    fn give_back(&mut self, name: u16) {
        let place = (self.tail % COUNT) as usize;
        let start = self.start_of(name) as u64;
        // SAFETY: the place lies in the list; the kernel reads no entry beyond the published tail.
        let entry = unsafe { &mut *self.entries().add(place) };
        entry.set_addr(start);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(name);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel the buffers that were returned.
    pub(super) fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            // SAFETY: the tail of the list is a field of its first entry which nothing but the kernel reads.
            let tail = unsafe { &*BufRingEntry::tail(self.entries()).cast::<AtomicU16>() };
            tail.store(self.tail, Ordering::Release);
        }
    }

    /// Returns a large buffer that nobody uses. There is one whenever no lease is held.
    pub(super) fn free_large(&mut self) -> Option<(u16, &mut [u8])> {
        let place = self.uses[COUNT as usize..].iter().position(|uses| *uses == 0)?;
        Some((COUNT + place as u16, &mut self.large[place * RECEIVE_BYTES..][..RECEIVE_BYTES]))
    }

    /// Whether so many bytes of a buffer may stay in it until the turn's end: not if it is the last free one of the
    /// large buffers.
    pub(super) fn may_wait(&self, name: u16, len: usize) -> bool {
        name < COUNT || len <= copied_max(name) || self.uses[COUNT as usize..].contains(&0)
    }

    /// Notes that a buffer was filled and has one use.
    pub(super) fn take(&mut self, name: u16) {
        debug_assert_eq!(self.uses[name as usize], 0, "a buffer is filled although in use");
        self.uses[name as usize] = 1;
    }

    /// Adds a use.
    pub(super) fn hold(&mut self, name: u16) {
        self.uses[name as usize] += 1;
    }

    /// Ends a use; after the last one a small buffer is the kernel's again.
    pub(super) fn release(&mut self, name: u16) {
        let uses = &mut self.uses[name as usize];
        assert!(*uses > 0, "a buffer is released as often as it was held");
        *uses -= 1;
        if *uses == 0 && name < COUNT {
            self.give_back(name);
        }
    }

    /// Leaks the memory, as the kernel may still write into it.
    pub(super) fn keep_for_good(&mut self) {
        (self.list.kept, self.bytes.kept) = (true, true);
    }

    /// Returns the first `len` bytes of a buffer in use.
    pub(super) fn bytes(&self, name: u16, len: usize) -> &[u8] {
        assert!(self.uses[name as usize] > 0, "a lease is read while it is held");
        if let Some(place) = name.checked_sub(COUNT) {
            return &self.large[place as usize * RECEIVE_BYTES..][..len];
        }
        assert!(len <= BUFFER_BYTES);
        // SAFETY: within the buffer, which was zeroed at the start; the kernel does not write into it before it
        // is listed again, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start_of(name), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_shares_lies_on_pages_of_its_own_however_large_they_are() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for bytes in [1, COUNT as usize * size_of::<BufRingEntry>(), COUNT as usize * BUFFER_BYTES] {
                let pages = Pages::new(bytes, page);
                assert_eq!(pages.start.as_ptr() as usize % page, 0, "{bytes} in pages of {page}");
                assert!(pages.layout.size() >= bytes && pages.layout.size().is_multiple_of(page), "{bytes} of {page}");
            }
        }
    }
}
