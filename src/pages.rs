//! Memory for the index, in pages of 2 MiB where the kernel has such for who asks
//! (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise` or `always`): its lines are met in no order, and with
//! pages of 4 KiB each is waited for twice, once for the page table.

#![allow(unsafe_code, reason = "madvise(2) is told of memory by address")]

use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Less memory holds no large page for certain, and advice about a part of a mapping cuts that in two: neighbours that
/// could have had one, where the kernel gives them unasked, could not any more.
const ASKED_MIN: usize = 4 << 20;

/// So many values, each made by `value`.
pub fn filled<T>(count: usize, value: impl FnMut() -> T) -> Box<[T]> {
    let mut room = Vec::with_capacity(count);
    ask_for_large_pages(&mut room);
    room.resize_with(count, value);
    room.into()
}

/// Before anything is written there: a page that was touched stays as it is.
fn ask_for_large_pages<T>(room: &mut Vec<T>) {
    let room = room.spare_capacity_mut();
    let (start, bytes) = (room.as_mut_ptr().cast::<u8>(), size_of_val(room));
    let before = start.align_offset(page_size());
    if let Some(whole) =
        bytes.checked_sub(before).map(|bytes| bytes - bytes % page_size()).filter(|whole| *whole >= ASKED_MIN)
    {
        // SAFETY: whole pages within memory that is ours; the advice changes what backs them, not what is in them. A
        // kernel without such pages refuses, and they are as they were.
        let _ = unsafe { madvise(start.add(before).cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_filled_whatever_its_size() {
        for count in [0, 1, 511, 512, 513, 100_000, 1_000_000] {
            let mut next = 0_u64;
            let filled = filled(count, || {
                next += 1;
                next
            });
            assert!(filled.iter().copied().eq(1..=count as u64), "{count}");
        }
    }
}
