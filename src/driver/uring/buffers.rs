//! Receive buffers that the kernel chooses from, in two groups, and gives back filled.
//!
//! A buffer is the kernel's, or ours while its bytes are read or sent from; it goes back to the kernel's list
//! when the last of those uses is over.

#![allow(unsafe_code, reason = "the kernel writes into these buffers and reads the list of them by address")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

use super::ring::Ring;

/// The kernel wants the list of buffers to begin at a page.
const PAGE: usize = 4096;

/// Which buffers a connection receives into. Together they are about as large as a core's cache: a larger pool
/// would be cold whenever its turn comes, as the kernel takes buffers in the order in which they were returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Group {
    /// Few, for what comes in long runs: uploads, and long replies once they show.
    Large,
    /// Many, for what comes in small pieces on many connections at a time: streams.
    Small,
}

impl Group {
    const fn count(self) -> u16 {
        match self {
            Group::Large => 64,
            Group::Small => 512,
        }
    }

    pub(super) const fn size(self) -> usize {
        match self {
            Group::Large => 16 << 10,
            Group::Small => 2 << 10,
        }
    }
}

const GROUPS: [Group; 2] = [Group::Large, Group::Small];

/// Pages shared with the kernel.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Pages {
        let layout = Layout::from_size_align(bytes, PAGE).expect("a few megabytes");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Pages { start, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated above with this layout; who drops it knows that the kernel is done with it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// One group: the list that the kernel reads, and the buffers.
struct Pool {
    list: Pages,
    bytes: Pages,
    /// Where the next buffer is listed, modulo the list's length.
    tail: u16,
    published: u16,
    group: Group,
    /// Uses of each buffer that is ours.
    uses: Vec<u16>,
}

impl Pool {
    fn new(group: Group) -> Pool {
        let count = group.count() as usize;
        let mut pool = Pool {
            list: Pages::new((count * size_of::<BufRingEntry>()).next_multiple_of(PAGE)),
            bytes: Pages::new(count * group.size()),
            tail: 0,
            published: 0,
            group,
            uses: vec![0; count],
        };
        (0..group.count()).for_each(|buffer| pool.list(buffer));
        pool.publish();
        pool
    }

    fn entries(&self) -> *mut BufRingEntry {
        self.list.start.as_ptr().cast()
    }

    fn start_of(&self, buffer: u16) -> *mut u8 {
        assert!(buffer < self.group.count());
        // SAFETY: within the pages, as just checked.
        unsafe { self.bytes.start.as_ptr().add(buffer as usize * self.group.size()) }
    }

    /// Adds a buffer to the list; the kernel sees it once it is published.
    fn list(&mut self, buffer: u16) {
        let place = (self.tail % self.group.count()) as usize;
        let (start, size) = (self.start_of(buffer) as u64, self.group.size() as u32);
        // SAFETY: the place lies in the list; the kernel reads no entry behind the published tail.
        let entry = unsafe { &mut *self.entries().add(place) };
        entry.set_addr(start);
        entry.set_len(size);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            // SAFETY: the tail of the list is a field of its first entry which nothing but the kernel reads.
            let tail = unsafe { &*BufRingEntry::tail(self.entries()).cast::<AtomicU16>() };
            tail.store(self.tail, Ordering::Release);
        }
    }
}

/// All receive buffers of one ring.
pub(super) struct Buffers {
    pools: Vec<Pool>,
}

impl Buffers {
    /// Buffers that `ring` receives into. They must live until it is gone.
    pub(super) fn register(ring: &Ring) -> io::Result<Buffers> {
        let pools: Vec<Pool> = GROUPS.map(Pool::new).into();
        for pool in &pools {
            // SAFETY: the driver drops the ring before its buffers, or keeps them for good.
            unsafe { ring.register_buffers(pool.list.start.as_ptr(), pool.group.count(), pool.group)? };
        }
        Ok(Buffers { pools })
    }

    fn pool(&mut self, name: u16) -> (&mut Pool, u16) {
        let first = Group::Large.count();
        if name < first { (&mut self.pools[0], name) } else { (&mut self.pools[1], name - first) }
    }

    /// A buffer that the kernel has filled: its name among those of both groups. It is in use once.
    pub(super) fn take(&mut self, group: Group, buffer: u16) -> u16 {
        let first = if group == Group::Large { 0 } else { Group::Large.count() };
        let name = first + buffer;
        let (pool, buffer) = self.pool(name);
        debug_assert_eq!(pool.uses[buffer as usize], 0, "the kernel gave a buffer twice");
        pool.uses[buffer as usize] = 1;
        name
    }

    /// One use more.
    pub(super) fn hold(&mut self, name: u16) {
        let (pool, buffer) = self.pool(name);
        pool.uses[buffer as usize] += 1;
    }

    /// One use is over; after the last, the buffer is the kernel's again.
    pub(super) fn release(&mut self, name: u16) {
        let (pool, buffer) = self.pool(name);
        let uses = &mut pool.uses[buffer as usize];
        assert!(*uses > 0, "a buffer is released as often as it was held");
        *uses -= 1;
        if *uses == 0 {
            pool.list(buffer);
        }
    }

    /// Shows the kernel what was returned.
    pub(super) fn publish(&mut self) {
        self.pools.iter_mut().for_each(Pool::publish);
    }

    /// Gives the memory up: the kernel may still write into it.
    pub(super) fn keep_for_good(&mut self) {
        std::mem::take(&mut self.pools).into_iter().for_each(std::mem::forget);
    }

    /// The first `len` bytes of a buffer in use.
    pub(super) fn bytes(&self, name: u16, len: usize) -> &[u8] {
        let first = Group::Large.count();
        let (pool, buffer) = if name < first { (&self.pools[0], name) } else { (&self.pools[1], name - first) };
        assert!(len <= pool.group.size() && pool.uses[buffer as usize] > 0, "a lease is read while it is held");
        // SAFETY: within the buffer, which was zeroed at the start; the kernel does not write into it before it
        // is listed again, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(pool.start_of(buffer), len) }
    }
}
