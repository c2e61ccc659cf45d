//! Counts of what an engine tells.

/// How often an engine told what, in blocks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Stored and not known before.
    pub stored: u64,
    /// Stored although known.
    pub copies: u64,
    /// Stored after another block than before.
    pub ambiguous: u64,
    /// Stored after a block that is not known, or after an orphan.
    pub orphans: u64,
    /// Stored with more than text in it or before it.
    pub opaque: u64,
    /// Stored without their content.
    pub malformed: u64,
    /// Stored beyond the end of the longest prompt that is looked at.
    pub deep: u64,
    /// Stored without room for them or their links.
    pub beyond: u64,
    /// Stored or removed, of other groups of a hybrid model's layers.
    pub groups: u64,
    /// Stored or removed, in other tiers than the GPU's.
    pub tiers: u64,
    /// Removed.
    pub removed: u64,
    /// Removed although not known.
    pub unknown: u64,
}

impl Counts {
    /// Adds the counts of another mirror.
    pub fn add(&mut self, other: &Counts) {
        // Destructured in full, so that the compiler asks for each new count.
        let Counts {
            stored,
            copies,
            ambiguous,
            orphans,
            opaque,
            malformed,
            deep,
            beyond,
            groups,
            tiers,
            removed,
            unknown,
        } = other;
        self.stored += stored;
        self.copies += copies;
        self.ambiguous += ambiguous;
        self.orphans += orphans;
        self.opaque += opaque;
        self.malformed += malformed;
        self.deep += deep;
        self.beyond += beyond;
        self.groups += groups;
        self.tiers += tiers;
        self.removed += removed;
        self.unknown += unknown;
    }
}
