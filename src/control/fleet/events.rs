//! What the fleet knows of its engines' events: which engines to listen to, and what for.

use std::sync::{Arc, PoisonError};

use super::Fleet;
use crate::config::KvEvents;
use crate::control::caches::Unit;
use crate::control::forms::Forms;
use crate::control::hearing::Computed;
use crate::control::ladder::Tells;
use crate::control::listen::ToHear;
use crate::control::member::Member;
use crate::control::named;
use crate::control::saved::{Engine, Process, Rows, Saved};
use crate::fleet::EndpointId;
use crate::index::{Figures, Saved as Row};
use crate::mirror::Mirror;
use crate::scan::Form;

/// How many percent more blocks an engine may tell of than it has: names of blocks that are being taken away.
const SPARE_PERCENT: u64 = 10;
/// Blocks that an engine is taken to have if it does not say.
const BLOCKS_UNSAID: u32 = 1 << 16;

impl Fleet {
    /// What the engine at `place` is to be listened to for, if it is.
    pub fn to_hear(&self, place: usize) -> Option<ToHear> {
        let member = self.member(place)?;
        let tenancy = member.now.as_ref()?;
        let index = self.caches.index()?;
        // Without any form a thousand ids of each engine would be looked through each second.
        if member.upstream.kv_events == KvEvents::Off || self.forms.is_empty() {
            return None;
        }
        let form = member.known_ids().find_map(|id| self.form_for(id))?;
        // Its size has to be known first: it bounds what is kept of it.
        let reading = tenancy.reading.as_ref().map(|(reading, _)| reading);
        if reading.is_none() && !tenancy.is_known && tenancy.scrape_error.is_none() {
            return None;
        }
        let size = reading.and_then(|reading| Some((reading.told_blocks()?, reading.told_block_size()?)));
        let (blocks, block_size) = size.unwrap_or((0, 1));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let blocks_max = u64::from(if blocks == 0 { BLOCKS_UNSAID } else { blocks }) * (100 + SPARE_PERCENT) / 100;
        let blocks_max = u32::try_from(blocks_max).unwrap_or(u32::MAX);
        Some(ToHear {
            id: tenancy.id,
            host: member.host_of(tenancy.address),
            peers: member.addresses_of(tenancy.address),
            rank: member.upstream.rank,
            address: tenancy.address,
            authority: member.upstream.url.authority(),
            key: member.key.clone(),
            mode: member.upstream.kv_events.clone(),
            configured: member.upstream.kv_source().ok().flatten(),
            form: form.clone(),
            index,
            began: reading.and_then(|reading| reading.started),
            blocks,
            blocks_max,
            room: Mirror::blocks_for(blocks_max, block_size),
            computed: tenancy.reading.as_ref().and_then(|(reading, read)| Computed::of(reading, *read)),
            remembered: Arc::clone(&tenancy.remembered),
        })
    }

    /// How prompts for this id are written, if known.
    fn form_for(&self, id: &str) -> Option<&Arc<Form>> {
        // Most ids have no settings of their own, and this is asked each second for each engine's ids, a thousand of
        // them.
        match self.config.pool.contains_key(id) {
            true => self.forms.of(&self.config.settings_for(id)),
            false => self.forms.of(&self.config.routing),
        }
    }

    /// How prompts of the pools' models are written.
    pub fn forms(&self) -> &Arc<Forms> {
        &self.forms
    }

    /// Sets how prompts of the pools' models are written.
    pub fn write_as(&mut self, forms: Arc<Forms>) {
        self.pools.write_as(Arc::clone(&forms));
        self.forms = forms;
    }

    /// Empties what is noted of an engine's cache. Returns how often that was done.
    pub fn empty(&mut self, place: usize, id: EndpointId) -> u64 {
        let Some(tenancy) = self.tenancy(place, id) else { return 0 };
        tenancy.emptied += 1;
        let emptied = tenancy.emptied;
        self.caches.clear(id);
        emptied
    }

    /// Notes that the engine at this place is not listened to: what an earlier process of ours noted by its events
    /// counts like what is sent there.
    pub fn unheard(&mut self, place: usize) {
        // An engine that has not said yet what it serves may be listened to once it has.
        let member = self.member(place).filter(|member| member.has_ids());
        let steps = member.and_then(|member| member.now.as_ref()).filter(|tenancy| tenancy.unit == Unit::Steps);
        if let Some(id) = steps.map(|tenancy| tenancy.id) {
            self.notes(place, id, Unit::Blocks);
        }
    }

    /// Sets in which unit an engine's cache is noted from now on: steps by its events, or blocks by what was sent
    /// there. Its part of the index becomes as large as its cache is in these.
    pub fn notes(&mut self, place: usize, id: EndpointId, unit: Unit) {
        let Some(tenancy) = self.tenancy(place, id) else { return };
        tenancy.unit = unit;
        let tokens = tenancy.tokens();
        if let Some((tokens, member)) = tokens.zip(self.member(place)) {
            self.caches.holds(id, tokens, self.token_bytes(member), unit);
        }
    }
}

/// Bytes of one row in a file: bucket and tag of the block before it, and its own.
const ROW_BYTES: usize = 2 * (4 + 8);
/// Instead of a bucket: there is no block before it.
const NO_BUCKET: u32 = u32::MAX;

/// What outlasts this process.
impl Fleet {
    /// Takes in what an earlier process of ours knew.
    pub fn remember(&mut self, saved: Saved) {
        let is_told = !saved.is_empty();
        self.remembered = saved;
        self.forget_unconfigured();
        if is_told && self.remembered.is_empty() {
            tracing::warn!("no engine in caches_file has the name of one of these: their caches begin cold");
        }
        let layout = self.caches.index().map(|index| index.layout());
        let is_of_another = |rows: &Rows| !rows.bytes.is_empty() && layout.is_some_and(|layout| layout != rows.layout);
        if self.remembered.engines().any(|(_, engine)| engine.rows.as_ref().is_some_and(is_of_another)) {
            tracing::warn!(
                "caches_file was written beside a prefix index of another size (by `index_bytes`, `precise`, or how many engines it has places for): what was sent to engines is not known again"
            );
        }
    }

    /// The part of that which is not known again yet.
    pub fn remembered(&self) -> Saved {
        self.remembered.clone()
    }

    /// Forgets engines that are not configured any more. A name that may be an engine of an `each_address` is kept:
    /// that engine may still be found.
    pub(super) fn forget_unconfigured(&mut self) {
        let Fleet { remembered, members, .. } = self;
        let may_be = |Member { upstream, .. }: &Member, name: &str| {
            upstream.each_address && named::may_be_called(upstream, name)
        };
        remembered.retain(|name| members.iter().any(|member| &*member.name == name || may_be(member, name)));
    }

    /// What is known of the engine at `place`, with its name, if it says which process it is. Of its events only what
    /// an earlier process of ours knew and is not used yet.
    pub fn saved(&self, place: usize) -> Option<(Arc<str>, Engine)> {
        let member = self.member(place)?;
        let tenancy = member.now.as_ref()?;
        let process = tenancy.process?;
        let remembered = tenancy.remembered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((Arc::clone(&member.name), Engine { process, remembered, rows: self.rows(tenancy.id) }))
    }

    /// Marks, by place, that change whenever [`Fleet::saved`] does, except if only the order of age changes.
    pub fn marks(&self) -> Vec<(Arc<str>, Option<Process>, Figures)> {
        let mark = |member: &Member| {
            let now = member.now.as_ref();
            let figures = now.map_or_else(Figures::default, |tenancy| self.caches.figures(tenancy.id.slot));
            (Arc::clone(&member.name), now.and_then(|tenancy| tenancy.process), figures)
        };
        self.members.iter().map(mark).collect()
    }

    /// How many bytes the rows of all engines take.
    pub fn rows_bytes(&self) -> u64 {
        let slots = self.members.iter().filter_map(|member| Some(member.now.as_ref()?.id.slot));
        slots.map(|slot| u64::from(self.caches.figures(slot).blocks) * ROW_BYTES as u64).sum()
    }

    fn rows(&self, id: EndpointId) -> Option<Rows> {
        let index = self.caches.index()?;
        let mut rows = Vec::with_capacity(index.figures(id.slot).blocks as usize * ROW_BYTES);
        let mut write = |row: Option<Row>| {
            let Row { bucket, tag } = row.unwrap_or(Row { bucket: NO_BUCKET, tag: 0 });
            rows.extend(bucket.to_le_bytes());
            rows.extend(tag.to_le_bytes());
        };
        let copied = index.save(id, &mut |parent, row| {
            write(parent);
            write(Some(row));
        });
        copied.ok().map(|()| Rows { layout: index.layout(), bytes: rows })
    }

    /// Whether the engine at `place` may be listened to in this form. One that has not said yet what it serves may be,
    /// if any engine is.
    fn may_hear(&self, place: usize, form: u64) -> bool {
        let Some(member) = self.member(place).filter(|member| member.upstream.kv_events != KvEvents::Off) else {
            return false;
        };
        match member.has_ids() {
            true => self.to_hear(place).is_some_and(|wanted| wanted.form.id == form),
            false => self.forms.folders().any(|(_, known)| known.form.id == form),
        }
    }

    /// Restores what an earlier process of ours knew of an engine,
    /// which has said for the first time which process it is.
    pub(super) fn recall(&mut self, place: usize, id: EndpointId) {
        let Some(member) = self.member(place) else { return };
        let (name, process) = (Arc::clone(&member.name), member.now.as_ref().and_then(|tenancy| tenancy.process));
        let known = self.remembered.take(&name, process.as_ref());
        // An engine that has slept since holds nothing any more.
        let Some(known) = known.filter(|_| self.member(place).is_some_and(|member| !member.asleep())) else { return };
        let Some(index) = self.caches.index() else { return };
        if known.remembered.as_ref().is_some_and(|heard| self.may_hear(place, heard.form)) {
            self.notes(place, id, Unit::Steps);
        }
        let mut restored = 0;
        // If the engine has told all itself already, that counts alone.
        let is_told = self.tenancy(place, id).is_some_and(|tenancy| tenancy.truth.ladder.said() == Tells::All);
        let rows = known.rows.filter(|rows| rows.layout == index.layout());
        for row in rows.iter().filter(|_| !is_told).flat_map(|rows| rows.bytes.chunks_exact(ROW_BYTES)) {
            let (parent, block) = row.split_at(ROW_BYTES / 2);
            let Some(block) = row_of(block) else { break };
            // A row whose parent did not fit does not fit either.
            restored += u32::from(index.restore(row_of(parent), block, id).unwrap_or(false));
        }
        let is_told = known.remembered.is_some();
        if rows.is_some() || is_told {
            let said = "what was known of this engine's cache is known again";
            tracing::info!(engine = &*name, blocks = restored, is_told, "{said}");
        }
        if let Some(tenancy) = self.tenancy(place, id) {
            *tenancy.remembered.lock().unwrap_or_else(PoisonError::into_inner) = known.remembered;
        }
    }
}

fn row_of(bytes: &[u8]) -> Option<Row> {
    let (bucket, tag) = bytes.split_first_chunk()?;
    let bucket = u32::from_le_bytes(*bucket);
    (bucket != NO_BUCKET).then_some(Row { bucket, tag: u64::from_le_bytes(*tag.first_chunk()?) })
}
