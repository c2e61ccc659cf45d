//! The prompt read once and understood twice: as the plan says it, and, where a chain is made for one policy and
//! another makes its keys as if there was none, as that one would read it.

use std::ops::Deref;

use super::super::kernel::Kernel;
use super::super::section::Section;
use super::super::text::Taker;
use super::super::{Plan, PrefixHash};
use super::Prompt;

/// One prompt, or the same one twice.
pub(in crate::scan) struct Prompts {
    kernel: &'static Kernel,
    /// What says how far the body is read.
    all: Prompt,
    /// Looks on, as far as its own prefix goes.
    plain: Option<Box<Prompt>>,
}

/// What is asked of the prompt, the one that says how far the body is read answers.
impl Deref for Prompts {
    type Target = Prompt;

    fn deref(&self) -> &Prompt {
        &self.all
    }
}

/// What becomes of it, both are told: there is no way to change one alone.
impl Prompts {
    pub fn new(kernel: &'static Kernel) -> Self {
        Prompts { kernel, all: Prompt::new(kernel), plain: None }
    }

    pub fn reset(&mut self, plan: &Plan, counts_all: bool) {
        self.all.reset(plan, counts_all);
        if plan.chain && plan.plain.is_wanted() {
            let plain = self.plain.get_or_insert_with(|| Box::new(Prompt::new(self.kernel)));
            plain.reset_plain(plan);
        } else {
            self.plain = None;
        }
    }

    pub fn begin(&mut self, section: Section) {
        self.each(|prompt| prompt.begin(section));
    }

    pub fn begin_instead(&mut self) {
        self.each(Prompt::begin_instead);
    }

    pub fn goes_on(&mut self, section: Section) {
        self.each(|prompt| prompt.goes_on(section));
    }

    pub fn end(&mut self, section: Section) {
        self.each(|prompt| prompt.end(section));
    }

    pub fn message_begins(&mut self) {
        self.each(Prompt::message_begins);
    }

    pub fn role(&mut self, role: &[u8]) {
        self.each(|prompt| prompt.role(role));
    }

    pub fn message_ends(&mut self) {
        self.each(Prompt::message_ends);
    }

    pub fn item_ends(&mut self) {
        self.each(Prompt::item_ends);
    }

    pub fn content_begins(&mut self) {
        self.each(Prompt::content_begins);
    }

    pub fn text_begins(&mut self) {
        self.each(Prompt::text_begins);
    }

    pub fn text_ends(&mut self) {
        self.each(Prompt::text_ends);
    }

    /// Whether either wants what tells the medium from others.
    pub fn media_begins(&mut self) -> bool {
        let wanted = self.plain.as_mut().is_some_and(|plain| plain.media_begins());
        self.all.media_begins() || wanted
    }

    pub fn media(&mut self, sample: u64) {
        self.each(|prompt| prompt.media(sample));
    }

    pub fn raw_begins(&mut self) {
        self.each(Prompt::raw_begins);
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.each(|prompt| prompt.raw(bytes));
    }

    pub fn ids_begin(&mut self) {
        self.each(Prompt::ids_begin);
    }

    #[inline]
    pub fn id(&mut self, id: u32) {
        self.each(|prompt| prompt.id(id));
    }

    /// So many token ids have been written into the room, which is there for one prompt alone.
    pub fn ids_written(&mut self, count: usize) {
        self.all.ids_written(count);
    }

    /// The prefix of a body that is not cut into blocks; [`Prompt::prefix`] where that is not asked for.
    pub fn plain_prefix(&self) -> Option<PrefixHash> {
        self.plain.as_ref().map_or_else(|| self.all.prefix(), |plain| plain.prefix())
    }

    #[inline]
    fn each(&mut self, tell: impl Fn(&mut Prompt)) {
        tell(&mut self.all);
        if let Some(plain) = &mut self.plain {
            tell(plain);
        }
    }
}

impl Taker for Prompts {
    #[inline]
    fn take(&mut self, run: &[u8]) -> usize {
        if let Some(plain) = self.plain.as_mut().filter(|plain| plain.wants_text()) {
            plain.take(run);
        }
        self.all.take(run)
    }

    /// None while both want the text: what is written there one of them sees.
    #[inline]
    fn room(&mut self) -> &mut [u8] {
        match &self.plain {
            Some(plain) if plain.wants_text() => &mut [],
            _ => self.all.room(),
        }
    }

    #[inline]
    fn written(&mut self, length: usize) {
        self.all.written(length);
    }
}
