//! A prompt that was looked up, kept beyond the moment in which it was read: to be chosen for once more, or to be noted
//! once its engine lets it in.

use super::Lender;
use super::warm::LookedUp;

/// See the module.
#[derive(Debug)]
pub(super) struct Kept {
    looked_up: LookedUp,
    chain: Box<[u64]>,
    steps: Box<[u64]>,
    whole: Box<[u64]>,
    prompt_bytes: u64,
}

impl Kept {
    /// The prompt that is the lender's, for another choice.
    pub(super) fn to_choose(looked_up: LookedUp, lender: &Lender) -> Kept {
        Kept { steps: lender.steps.as_slice().into(), ..Kept::to_note(looked_up, lender) }
    }

    /// The same without what lies between its links, by which it is looked up and never noted.
    pub(super) fn to_note(looked_up: LookedUp, lender: &Lender) -> Kept {
        let [chain, whole] = [&lender.chain, &lender.whole].map(|links| links.as_slice().into());
        Kept { looked_up, chain, steps: Box::default(), whole, prompt_bytes: lender.prompt_bytes }
    }

    /// Makes it the lender's again.
    pub(super) fn lend(&self, lender: &mut Lender) -> LookedUp {
        let Lender { chain, steps, whole, prompt_bytes, .. } = lender;
        for (links, kept) in [(chain, &self.chain), (steps, &self.steps), (whole, &self.whole)] {
            links.clear();
            links.extend_from_slice(kept);
        }
        *prompt_bytes = self.prompt_bytes;
        self.looked_up
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Kept>() + size_of_val(&*self.chain) + size_of_val(&*self.steps) + size_of_val(&*self.whole)
    }
}
