//! The prompt read once and hashed twice: as the plan says, and, if a chain is made for one policy while another makes
//! its keys without a chain, also as that one would hash it.

use std::ops::Deref;

use super::super::kernel::Kernel;
use super::super::section::Section;
use super::super::text::Taker;
use super::super::{Plan, PrefixHash};
use super::Prompt;

/// One prompt, or the same prompt hashed twice.
pub(in crate::scan) struct Prompts {
    kernel: &'static Kernel,
    /// The prompt by the plan, which decides how far the body is read.
    all: Prompt,
    /// The prompt without a chain, read as far as its own prefix goes.
    plain: Option<Box<Prompt>>,
}

/// Questions about the prompt are answered by `all`.
impl Deref for Prompts {
    type Target = Prompt;

    fn deref(&self) -> &Prompt {
        &self.all
    }
}

/// Changes go to both: there is no way to change only one.
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

    /// Whether either needs the sample of the medium.
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

    /// Notes that so many token ids were written into the room, which there is only for one prompt alone.
    pub fn ids_written(&mut self, count: usize) {
        self.all.ids_written(count);
    }

    /// Returns the prefix without a chain; [`Prompt::prefix`] if that is not asked for.
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

    /// There is no room while both want the text: only one of them would get bytes written there.
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
