//! The open objects and arrays in which meaning is looked for.

/// An open object or array in which meaning is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// The body's object.
    Top,
    /// An array of prompts or messages.
    Items,
    /// An array of token ids.
    Ids,
    /// One message, or another item.
    Message,
    /// An array of content parts.
    Parts,
    /// One content part.
    Part,
    /// Sampling parameters, beside the prompt.
    Sampling,
}

impl Frame {
    /// Whether it has elements, and not keys.
    pub fn is_array(self) -> bool {
        matches!(self, Frame::Items | Frame::Ids | Frame::Parts)
    }
}

/// The open frames.
pub(super) struct Frames {
    open: [Frame; FRAMES_MAX],
    depth: usize,
}

impl Frames {
    pub fn new() -> Self {
        Frames { open: [Frame::Top; FRAMES_MAX], depth: 0 }
    }

    /// Returns the innermost frame.
    #[inline]
    pub fn top(&self) -> Frame {
        self.open.get(self.depth).copied().unwrap_or(Frame::Top)
    }

    /// Opens a frame; false if there is no room.
    pub fn push(&mut self, frame: Frame) -> bool {
        match self.open.get_mut(self.depth + 1) {
            Some(slot) => {
                *slot = frame;
                self.depth += 1;
                true
            }
            None => false,
        }
    }

    /// Returns the number of frames inside the body's object.
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Closes all frames but the body's object.
    pub fn unwind(&mut self) {
        self.depth = 0;
    }

    pub fn replace_top(&mut self, frame: Frame) {
        if let Some(slot) = self.open.get_mut(self.depth) {
            *slot = frame;
        }
    }
}

/// Deepest nesting in which meaning is looked for; below it values are skipped.
const FRAMES_MAX: usize = 16;
