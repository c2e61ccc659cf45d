//! Sets of tools that this shard has met without knowing how chats with them are written: control is asked for those
//! that come again.

use crossbeam::queue::ArrayQueue;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::limits::TEMPLATE_TOOLS_BYTES_MAX;

/// A set that control is to find the chats of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The [`crate::scan::Form::id`] that it was met with.
    pub form: u64,
    /// See [`crate::scan::Toolset::tools`].
    pub tools: Box<[u8]>,
}

/// So many sets are told apart; the one that was met first goes for the next.
const KNOWN: usize = 64;

/// A set that was asked for and is still not known, or no more since others took its place, is asked for again when it
/// has come so often.
const AGAIN: u32 = 256;

/// What a shard remembers of them. Clients that never send the same tools twice cost control nothing.
pub struct Toolsets {
    /// To control; `None`: nobody there learns any.
    queue: Option<&'static ArrayQueue<Wanted>>,
    met: [Met; KNOWN],
    next: usize,
}

#[derive(Clone, Copy, Default)]
struct Met {
    /// 0: none.
    hash: u64,
    /// It was asked for, and is not asked for again until it has come so often.
    rests: u32,
}

impl Default for Toolsets {
    fn default() -> Self {
        Toolsets { queue: None, met: [Met::default(); KNOWN], next: 0 }
    }
}

impl Toolsets {
    /// Those of a shard that may ask through `queue`. Where it is full a set is asked for when it comes again.
    pub fn asking(queue: &'static ArrayQueue<Wanted>) -> Toolsets {
        Toolsets { queue: Some(queue), ..Toolsets::default() }
    }

    /// Such a set was met. Allocates once for each that is asked for.
    pub(super) fn met(&mut self, form: u64, tools: &[u8]) {
        let Some(queue) = self.queue.filter(|_| tools.len() <= TEMPLATE_TOOLS_BYTES_MAX) else { return };
        let hash = xxh3_64_with_seed(tools, form) | 1;
        match self.met.iter_mut().find(|met| met.hash == hash) {
            Some(met) if met.rests > 0 => met.rests -= 1,
            Some(met) if queue.push(Wanted { form, tools: tools.into() }).is_ok() => met.rests = AGAIN,
            Some(_) => {}
            None => {
                if let Some(place) = self.met.get_mut(self.next) {
                    *place = Met { hash, rests: 0 };
                }
                self.next = (self.next + 1) % KNOWN;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(room: usize) -> (Toolsets, &'static ArrayQueue<Wanted>) {
        let queue = Box::leak(Box::new(ArrayQueue::new(room)));
        (Toolsets::asking(queue), queue)
    }

    #[test]
    fn what_comes_again_is_asked_for_once() {
        let (mut toolsets, queue) = asking(4);
        toolsets.met(1, b"[a]");
        toolsets.met(1, b"[b]");
        // Of another form it is another set.
        toolsets.met(2, b"[a]");
        assert_eq!(queue.pop(), None);
        for _ in 0..3 {
            toolsets.met(1, b"[a]");
        }
        let asked = Some(Wanted { form: 1, tools: b"[a]"[..].into() });
        assert_eq!((queue.pop(), queue.pop()), (asked.clone(), None));
        // Others may have taken its place meanwhile.
        (0..AGAIN).for_each(|_| toolsets.met(1, b"[a]"));
        assert_eq!((queue.pop(), queue.pop()), (asked, None));
    }

    #[test]
    fn where_there_is_no_room_it_is_asked_for_later() {
        let (mut toolsets, queue) = asking(1);
        for tools in [b"[a]", b"[b]", b"[a]", b"[b]"] {
            toolsets.met(1, tools);
        }
        assert_eq!(&*queue.pop().unwrap().tools, b"[a]");
        assert_eq!(queue.pop(), None);
        toolsets.met(1, b"[b]");
        assert_eq!(&*queue.pop().unwrap().tools, b"[b]");
    }

    #[test]
    fn sets_that_never_come_again_are_forgotten() {
        let (mut toolsets, queue) = asking(4);
        for set in 0..1_000_u32 {
            toolsets.met(1, &set.to_le_bytes());
        }
        // The first was forgotten, the last was not.
        toolsets.met(1, &0_u32.to_le_bytes());
        assert_eq!(queue.pop(), None);
        toolsets.met(1, &999_u32.to_le_bytes());
        assert_eq!(&*queue.pop().unwrap().tools, &999_u32.to_le_bytes());
    }
}
