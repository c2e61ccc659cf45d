//! Where a prompt is written: a digest that leaves hashes, and the sieve that a content passes on its way there.

use super::super::digest::Digest;
use super::super::form::Turn;
use super::super::kernel::Kernel;
use super::super::lanes::linked;
use super::super::text::Taker;
use super::Why;
use super::stops::Search;
use crate::limits::{BLOCK_BYTES, LINKS_MAX, STEP_BYTES};

/// Longest white space inside a content whose ends are trimmed: it is held until more text shows that it is not at the
/// end.
const SPACE_MAX: usize = 256;

/// The prompt written so far, as a hash.
pub(super) struct Page {
    digest: Digest,
    /// How many bytes of it are believed, whatever follows.
    kept: u64,
    /// Whether a space that comes next is left out.
    leads: bool,
}

impl Page {
    pub fn new(kernel: &'static Kernel) -> Page {
        Page { digest: Digest::stepped(kernel, LINKS_MAX * BLOCK_BYTES / STEP_BYTES), kept: 0, leads: false }
    }

    /// Empties the page.
    pub fn clear(&mut self) {
        self.digest.reset(LINKS_MAX * BLOCK_BYTES / STEP_BYTES);
        (self.kept, self.leads) = (0, false);
    }

    /// Leaves out a space if it comes next: if a tokenizer puts one unless there is one, tokens do not tell whose it
    /// was, and [`crate::vocabulary::Run`] reads them without it.
    pub fn lead(&mut self) {
        self.leads = true;
    }

    #[inline]
    pub fn put(&mut self, text: &[u8]) {
        let text = if self.leads { self.led(text) } else { text };
        self.digest.update(text);
    }

    #[cold]
    fn led<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        self.leads = text.is_empty();
        text.strip_prefix(b" ").unwrap_or(text)
    }

    /// Returns how many bytes were written.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.digest.bytes()
    }

    /// Believes what was written so far.
    pub fn keep(&mut self) {
        self.kept = self.digest.bytes();
    }

    /// Ends the prompt.
    pub fn end(&mut self) {
        self.digest.flush();
    }

    /// Returns how many bytes are believed.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Replaces both by the links of what is believed, once the prompt has ended; see [`super::Renderer::links`].
    pub fn links(&self, root: u64, blocks: &mut Vec<u64>, steps: &mut Vec<u64>) {
        const STEPS: usize = BLOCK_BYTES / STEP_BYTES;
        let prefixes = self.digest.prefixes();
        let known = prefixes.len().min(usize::try_from(self.kept / STEP_BYTES as u64).unwrap_or(usize::MAX));
        let (whole, rest) = prefixes.get(..known).unwrap_or_default().as_chunks::<STEPS>();
        // Written in place: to append one by one takes twice as long.
        blocks.resize(whole.len(), 0);
        steps.resize((STEPS - 1) * whole.len(), 0);
        let slots = blocks.iter_mut().zip(steps.as_chunks_mut::<{ STEPS - 1 }>().0);
        for ([between @ .., last], (block, slots)) in whole.iter().zip(slots) {
            *block = linked(root, *last);
            slots.iter_mut().zip(between).for_each(|(slot, prefix)| *slot = linked(root, *prefix));
        }
        steps.extend(rest.iter().map(|prefix| linked(root, *prefix)));
    }

    /// The hash of all that was written.
    #[cfg(test)]
    pub fn value(&self) -> u64 {
        self.digest.value()
    }
}

/// Writes a text as it is.
impl Taker for Page {
    #[inline]
    fn take(&mut self, run: &[u8]) -> usize {
        self.put(run);
        run.len()
    }

    /// There is no room if a space may have to be left out before the text.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        if self.leads { &mut [] } else { self.digest.room() }
    }

    #[inline]
    fn written(&mut self, length: usize) {
        self.digest.written(length);
    }
}

/// Trims contents, and searches them for texts that end the form.
pub(super) struct Sieve {
    trim: Trim,
    search: Search,
}

impl Sieve {
    pub fn new() -> Sieve {
        Sieve { trim: Trim::new(), search: Search::default() }
    }

    /// Begins a content of this turn.
    pub fn over<'s>(&'s mut self, page: &'s mut Page, turn: &'s Turn) -> Sieved<'s> {
        self.trim.begin();
        self.search = Search::default();
        Sieved { sieve: self, page, turn, has_bytes: false }
    }
}

/// One content on its way to the page.
pub(super) struct Sieved<'s> {
    sieve: &'s mut Sieve,
    page: &'s mut Page,
    turn: &'s Turn,
    has_bytes: bool,
}

impl Sieved<'_> {
    /// Ends the content. Returns whether it had any bytes, or why the form could not write it.
    pub fn end(self) -> Result<bool, Why> {
        if self.sieve.search.has_found() {
            return Err(Why::Stop);
        }
        if self.turn.trims && !self.sieve.trim.is_plain() { Err(Why::Space) } else { Ok(self.has_bytes) }
    }
}

impl Taker for Sieved<'_> {
    fn take(&mut self, run: &[u8]) -> usize {
        self.has_bytes |= !run.is_empty();
        self.sieve.search.look(&self.turn.stops, run);
        if self.turn.trims {
            self.sieve.trim.put(self.page, run);
        } else {
            self.page.put(run);
        }
        run.len()
    }

    /// There is no room if white space may have to be left out before the text.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        if self.turn.trims { self.sieve.trim.room(self.page) } else { self.page.room() }
    }

    #[inline]
    fn written(&mut self, length: usize) {
        self.has_bytes |= length > 0;
        self.page.written(length);
        self.sieve.search.look(&self.turn.stops, self.page.digest.last_written(length));
        if self.turn.trims {
            self.sieve.trim.written(self.page, length);
        }
    }
}

/// Leaves out the white space at both ends.
struct Trim {
    /// White space that is written if more follows.
    held: [u8; SPACE_MAX],
    length: usize,
    /// A run of white space did not fit.
    over: bool,
    /// The first bytes that are written, and the last.
    first: [u8; 3],
    last: [u8; 3],
    written: usize,
}

impl Trim {
    fn new() -> Trim {
        Trim { held: [0; SPACE_MAX], length: 0, over: false, first: [0; 3], last: [0; 3], written: 0 }
    }

    fn begin(&mut self) {
        (self.length, self.over, self.first, self.last, self.written) = (0, false, [0; 3], [0; 3], 0);
    }

    fn put(&mut self, page: &mut Page, run: &[u8]) {
        let begin =
            if self.written > 0 { 0 } else { run.iter().position(|byte| !is_space(*byte)).unwrap_or(run.len()) };
        let run = run.get(begin..).unwrap_or_default();
        let end = run.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
        let (text, space) = run.split_at(end);
        if !text.is_empty() {
            page.put(self.held.get(..self.length).unwrap_or_default());
            page.put(text);
            self.length = 0;
            self.note(text);
        }
        self.hold(space);
    }

    fn hold(&mut self, space: &[u8]) {
        match self.held.get_mut(self.length..self.length + space.len()) {
            Some(free) => {
                free.copy_from_slice(space);
                self.length += space.len();
            }
            None => self.over = true,
        }
    }

    /// Returns room after the held white space, once the text has begun.
    fn room<'p>(&mut self, page: &'p mut Page) -> &'p mut [u8] {
        if self.written == 0 {
            return &mut [];
        }
        page.digest.room_behind(self.held.get(..self.length).unwrap_or_default())
    }

    /// Takes back the white space at the end of so many bytes written after the held ones.
    fn written(&mut self, page: &mut Page, length: usize) {
        if self.written == 0 {
            return;
        }
        let run = page.digest.last_written(self.length + length);
        let end = run.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
        let (text, space) = run.split_at(end);
        self.length = 0;
        self.hold(space);
        self.note(text);
        let space = space.len();
        page.digest.take_back(space);
    }

    /// Notes the first and the last bytes of text without ASCII white space at its ends.
    fn note(&mut self, text: &[u8]) {
        let free = self.first.iter_mut().skip(self.written);
        free.zip(text).for_each(|(slot, byte)| *slot = *byte);
        self.written = self.written.saturating_add(text.len());
        for byte in text.get(text.len().saturating_sub(3)..).unwrap_or(text) {
            self.last = [self.last[1], self.last[2], *byte];
        }
    }

    /// Whether the trimming was the same as a template's: templates also take off Unicode's other white space.
    fn is_plain(&self) -> bool {
        let wide = matches!(self.first, [0xc2, 0x85 | 0xa0, _]) || matches!(self.last, [_, 0xc2, 0x85 | 0xa0]);
        !self.over && !wide && !is_wide_space(self.first) && !is_wide_space(self.last)
    }
}

/// Whether Python's `strip` takes off this ASCII character.
fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ')
}

/// Whether Python's `strip` takes off this character of three bytes: U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F,
/// U+205F, U+3000.
fn is_wide_space(sign: [u8; 3]) -> bool {
    match sign {
        [0xe1, 0x9a, 0x80] | [0xe2, 0x81, 0x9f] | [0xe3, 0x80, 0x80] => true,
        [0xe2, 0x80, last] => matches!(last, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf),
        _ => false,
    }
}
