//! The kernel's two queues: operations in, completions out. All code that names memory layouts of the kernel is here
//! and in [`super::buffers`].

#![allow(unsafe_code, reason = "operations name memory by address; io-uring leaves it to its caller that it lives")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::slots::Key;

/// Entries of the two queues, tried in this order: memory for them, and for the list of receive buffers, is counted
/// against the user's `RLIMIT_MEMLOCK`, which may be too low for the larger.
pub(super) const SIZES: [(u32, u32); 4] = [(1024, 4096), (512, 2048), (128, 512), (32, 128)];
/// Most enters in a row that bring nothing although operations wait to be taken: the kernel lacks memory for them.
const FRUITLESS_MAX: u32 = 10_000;

/// IORING_REGISTER_ENABLE_RINGS, which has no effect on a ring that is enabled.
const ENABLE_RINGS: u8 = 12;

/// The group id of the receive buffers.
const BUFFERS: u16 = 0;

/// What an operation is for; comes back in its completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Purpose {
    /// Tells that connections wait at a listener.
    Accept,
    /// Receives bytes of a connection, one completion each time some come.
    Receive,
    Send,
    /// Tells of room to send, or of the end of a connect.
    Room,
    /// Tells of bytes that the ring does not receive: they are read or spliced.
    Bytes,
    /// Tells of a broken connection while nothing is received.
    Fault,
    /// Tells that a bell was rung.
    Bell,
    Cancel,
}

pub(super) const PURPOSES: [Purpose; 8] = [
    Purpose::Accept,
    Purpose::Receive,
    Purpose::Send,
    Purpose::Room,
    Purpose::Bytes,
    Purpose::Fault,
    Purpose::Bell,
    Purpose::Cancel,
];

/// Bits of the slot in a word of user data, which has purpose, generation and slot.
const INDEX_BITS: u32 = 29;
const PURPOSE_SHIFT: u32 = INDEX_BITS + 31;

fn user_data(purpose: Purpose, id: Key) -> u64 {
    let word = id.to_u64();
    debug_assert!((word as u32) < 1 << INDEX_BITS, "slots are bounded by descriptors, which are fewer");
    (purpose as u64) << PURPOSE_SHIFT | (word >> 32) << INDEX_BITS | (word & ((1 << INDEX_BITS) - 1))
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub purpose: Purpose,
    pub id: Key,
    /// A number of bytes, a poll's events, or, below zero, an error.
    pub result: i32,
    /// Whether the operation goes on: this is not its last completion.
    pub more: bool,
    /// The buffer that was filled.
    pub buffer: Option<u16>,
}

impl Completed {
    fn of(entry: &cqueue::Entry) -> Option<Completed> {
        let word = entry.user_data();
        let generation = word >> INDEX_BITS & 0x7fff_ffff;
        Some(Completed {
            purpose: *PURPOSES.get((word >> PURPOSE_SHIFT) as usize)?,
            id: Key::from_u64(generation << 32 | (word & ((1 << INDEX_BITS) - 1))),
            result: entry.result(),
            more: cqueue::more(entry.flags()),
            buffer: cqueue::buffer_select(entry.flags()),
        })
    }

    /// Returns the error, if there is one.
    pub(super) fn error(&self) -> Option<Errno> {
        (self.result < 0).then(|| Errno::from_raw_os_error(-self.result))
    }
}

/// The queues of one thread.
pub(super) struct Ring {
    ring: IoUring,
    overflows: u64,
}

impl Ring {
    /// Makes queues of this size, operations and completions. The ring does nothing before [`Ring::enable`].
    pub(super) fn new((operations, completions): (u32, u32)) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_taskrun_flag();
        builder.setup_submit_all().setup_r_disabled().setup_cqsize(completions).dontfork();
        Ok(Ring { ring: builder.build(operations)?, overflows: 0 })
    }

    /// Entries of the queues: operations, completions.
    pub(super) fn sizes(&self) -> (u32, u32) {
        let parameters = self.ring.params();
        (parameters.sq_entries(), parameters.cq_entries())
    }

    /// Counts how often the kernel kept completions back, as their queue was full, until it was asked for them again.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Registers the receive buffers: `entries` of them listed at `list`.
    ///
    /// # Safety
    /// The list stays valid, and the buffers that it names writable, until the ring is gone.
    pub(super) unsafe fn register_buffers(&self, list: *mut u8, entries: u16) -> io::Result<()> {
        // SAFETY: as promised by the caller.
        unsafe { self.ring.submitter().register_buf_ring_with_flags(list as u64, entries, BUFFERS, 0) }
    }

    /// Forbids all operations that are not used here, so that nothing that writes into the queue can use them, and
    /// everything that could be registered later. Makes the calling thread the only one that may use the ring.
    pub(super) fn enable(&self) -> io::Result<()> {
        let operations = [
            opcode::RecvMulti::CODE,
            opcode::Send::CODE,
            opcode::SendMsg::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel2::CODE,
        ];
        let flags = squeue::Flags::BUFFER_SELECT | squeue::Flags::SKIP_SUCCESS;
        let mut allowed: Vec<_> = operations.into_iter().map(Restriction::sqe_op).collect();
        allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
        // After Linux 6.18 no registration is refused unless an allowed one is named.
        allowed.push(Restriction::register_op(ENABLE_RINGS));
        let submitter = self.ring.submitter();
        submitter.register_restrictions(&mut allowed)?;
        submitter.register_enable_rings()
    }

    /// Queues an operation. A full queue is handed to the kernel first.
    ///
    /// # Safety
    /// Memory that the operation names is valid until the enter that takes it returns, or until its last
    /// completion if the kernel keeps the address.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..FRUITLESS_MAX {
            // SAFETY: as promised by the caller.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn receive(&mut self, id: Key, socket: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), BUFFERS).build();
        // SAFETY: it names no memory but the buffers', which lives as long as the ring.
        unsafe { self.push(&entry.user_data(user_data(Purpose::Receive, id))) }
    }

    /// Asks for a completion once the socket may be written to or has failed, or, with `each_time`, whenever this
    /// happens. Each poll also wakes for the peer's FIN, so that one of a single completion would end at once after it,
    /// with or without room, again and again.
    pub(super) fn poll_room(&mut self, id: Key, socket: BorrowedFd<'_>, each_time: bool) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), libc::POLLOUT as u32).multi(each_time).build();
        // SAFETY: it names no memory.
        unsafe { self.push(&entry.user_data(user_data(Purpose::Room, id))) }
    }

    /// Asks for one completion once there is something to read: a connection, a bell that was rung, bytes or an end.
    pub(super) fn poll_readable(&mut self, purpose: Purpose, id: Key, fd: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: it names no memory.
        unsafe { self.push(&entry.user_data(user_data(purpose, id))) }
    }

    /// Asks for a completion each time a side ends or the connection breaks, and one for what has happened before. It
    /// goes on, since the kernel wakes each poll for a FIN (IO_POLL_UNMASK in io_uring/poll.c), so that a poll of a
    /// single completion would miss what comes after it.
    pub(super) fn poll_fault(&mut self, id: Key, socket: BorrowedFd<'_>) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(socket.as_raw_fd()), 0).multi(true).build();
        // SAFETY: it names no memory.
        unsafe { self.push(&entry.user_data(user_data(Purpose::Fault, id))) }
    }

    /// Cancels one operation, whose last completion still comes. It is named by its user data: by its descriptor the
    /// kernel would walk all polls of the ring for it (io_poll_file_find in io_uring/poll.c), milliseconds among tens
    /// of thousands.
    pub(super) fn cancel(&mut self, purpose: Purpose, id: Key) -> io::Result<()> {
        let one = CancelBuilder::user_data(user_data(purpose, id));
        let entry = opcode::AsyncCancel2::new(one).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: it names no memory.
        unsafe { self.push(&entry.user_data(user_data(Purpose::Cancel, id))) }
    }

    /// Sends without waiting for room, and completes only if not everything was sent.
    ///
    /// # Safety
    /// The bytes are valid until the next [`Ring::enter`] has returned.
    pub(super) unsafe fn send(&mut self, id: Key, socket: RawFd, bytes: *const u8, len: u32) -> io::Result<()> {
        let entry = opcode::Send::new(Fd(socket), bytes, len).flags(SEND_FLAGS).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(user_data(Purpose::Send, id));
        // SAFETY: as promised by the caller; not waiting, it is over when the kernel has taken it.
        unsafe { self.push(&entry) }
    }

    /// The same for several pieces.
    ///
    /// # Safety
    /// The message and all that it names are valid until the next [`Ring::enter`] has returned.
    pub(super) unsafe fn send_pieces(&mut self, id: Key, socket: RawFd, pieces: *const libc::msghdr) -> io::Result<()> {
        let entry = opcode::SendMsg::new(Fd(socket), pieces).flags(SEND_FLAGS as u32).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(user_data(Purpose::Send, id));
        // SAFETY: as promised by the caller; not waiting, it is over when the kernel has taken it.
        unsafe { self.push(&entry) }
    }

    /// Hands everything queued to the kernel, sleeps until something completes or `timeout` is over, and adds what
    /// completed to `completed`. When it returns, every send is over; one without a completion was sent in full.
    ///
    /// # Errors
    /// When the kernel lost a completion, or takes no operation any more. The process then ends, and with it the
    /// streams of other shards: nobody can tell whose completion was lost. Its connection would never be served or
    /// closed, nor could the shard close its connections and begin anew, as it would wait for that one. The kernel
    /// loses a completion only if the queue is full and it has no memory for a few dozen bytes.
    pub(super) fn enter(&mut self, timeout: Duration, completed: &mut Vec<Completed>) -> io::Result<()> {
        let spec = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
        let args = SubmitArgs::new().timespec(&spec);
        let mut want = usize::from(!timeout.is_zero());
        for _ in 0..FRUITLESS_MAX {
            let entered = if want > 0 { self.sleep(&args) } else { self.hand_over() };
            if let Err(error) = entered
                && !passes(&error)
            {
                return Err(error);
            }
            want = 0;
            completed.extend(self.ring.completion().filter_map(|entry| Completed::of(&entry)));
            let queue = self.ring.submission();
            let keeps_back = queue.cq_overflow();
            self.overflows += u64::from(keeps_back);
            if queue.is_empty() && !keeps_back {
                return Ok(());
            }
        }
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// Hands over what is queued and waits for one completion.
    fn sleep(&mut self, args: &SubmitArgs<'_, '_>) -> io::Result<usize> {
        let queued = self.ring.submission().len() as u32;
        let mut flags = EnterFlags::EXT_ARG | EnterFlags::GETEVENTS;
        // Since Linux 6.15 the kernel can be told that the shard waits for the network alone. Otherwise a shard that
        // sleeps counts as waiting for a disk, in /proc/pressure/io, iowait and the choice of how deep its core sleeps.
        flags.set(EnterFlags::NO_IOWAIT, self.ring.params().is_feature_no_iowait());
        // SAFETY: the ring was set up here, and the arguments outlive the call.
        unsafe { self.ring.submitter().enter(queued, 1, flags.bits(), Some(args)) }
    }

    /// Hands over what is queued, and lets the kernel complete what it put off; if there is neither, it makes no system
    /// call.
    fn hand_over(&mut self) -> io::Result<usize> {
        let queue = self.ring.submission();
        if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
            return Ok(0);
        }
        drop(queue);
        self.ring.submitter().submit()
    }

    /// Whether something happened that the kernel has not made completions of yet: it makes them in an enter, and since
    /// Linux 6.13 only some of them in each.
    pub(super) fn puts_off(&mut self) -> bool {
        self.ring.submission().taskrun()
    }
}

/// Does not wait for room. MSG_WAITALL makes a partial send count as failed, so that it has a completion.
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Whether an enter that ended with this error may be followed by another: the time was over, a signal came, the
/// completion queue is full, or memory is short for the moment. Not for EBADR: a completion was lost.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use io_uring::Probe;

    use super::*;

    /// Makes a ring; `None` if this kernel gives none.
    fn ring(size: (u32, u32)) -> Option<Ring> {
        Ring::new(size).inspect_err(|error| eprintln!("NOT TESTED: this kernel gives no ring: {error}")).ok()
    }

    #[test]
    fn what_is_not_used_here_is_refused() {
        let Some(mut ring) = ring(SIZES[0]) else { return };
        ring.ring.submitter().register_probe(&mut Probe::new()).unwrap();
        ring.enable().unwrap();
        let poll = || opcode::PollAdd::new(Fd(0), libc::POLLIN as u32).build();
        let unused = [opcode::Nop::new().build(), poll().flags(squeue::Flags::IO_LINK)];
        for entry in unused {
            // SAFETY: it names no memory.
            unsafe { ring.push(&entry) }.unwrap();
            ring.ring.submit_and_wait(1).unwrap();
            let completed = ring.ring.completion().next().unwrap();
            assert_eq!(Errno::from_raw_os_error(-completed.result()), Errno::ACCESS);
        }
        let probed = ring.ring.submitter().register_probe(&mut Probe::new());
        assert_eq!(probed.unwrap_err().raw_os_error(), Some(libc::EACCES));
        let again = ring.ring.submitter().register_enable_rings();
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EBADFD), "it may, and comes to nothing");
    }

    #[test]
    fn what_passes_is_told_from_what_was_lost() {
        let passes = |code| passes(&io::Error::from_raw_os_error(code));
        assert_eq!([libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN].map(passes), [true; 4]);
        let lasting = [libc::EBADR, libc::EBADF, libc::EBADFD, libc::EFAULT, libc::EINVAL, libc::EEXIST, libc::ENXIO];
        assert_eq!(lasting.map(passes), [false; 7]);
        assert!(!super::passes(&io::ErrorKind::OutOfMemory.into()));
    }

    /// Twice as many polls as there is room for, all over at once; none is lost.
    #[test]
    fn completions_that_find_their_queue_full_come_later() {
        let Some(mut ring) = ring((2, 4)) else { return };
        ring.enable().unwrap();
        let there = std::fs::File::open("/proc/self/stat").unwrap();
        let ids = || (0..8).map(Key::from_u64);
        ids().for_each(|id| ring.poll_readable(Purpose::Bytes, id, there.as_fd()).unwrap());
        let mut completed = Vec::new();
        ring.enter(Duration::from_secs(1), &mut completed).unwrap();
        assert!(completed.iter().map(|completed| completed.id).eq(ids()), "{completed:?}");
        assert!(ring.overflows() > 0);
    }

    #[test]
    fn user_data_tells_purpose_and_slot() {
        for purpose in PURPOSES {
            for key in [0, 7, (1 << 29) - 1, 0x7fff_ffff << 32 | 5, 1 << 32] {
                let id = Key::from_u64(key);
                let word = user_data(purpose, id);
                let generation = word >> INDEX_BITS & 0x7fff_ffff;
                assert_eq!(PURPOSES[(word >> PURPOSE_SHIFT) as usize], purpose);
                assert_eq!(Key::from_u64(generation << 32 | (word & ((1 << INDEX_BITS) - 1))), id);
            }
        }
    }
}
