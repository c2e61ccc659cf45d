//! What the index may believe of each endpoint once all is over: it holds no prompt but what was sent there whole, to
//! this tenant of its slot since that was emptied, was not refused there, and, of a stranger, was let in.
//!
//! Each prompt names its request in its first block, so that no two have a block in common.

use warmfront::fleet::EndpointId;
use warmfront::index::Matches;
use warmfront::policy::Settings;
use warmfront::prefix;
use warmfront::scan::{Api, Needs, Scan};

use crate::network::Network;
use crate::plan::{Kind, Plan};
use crate::schedule::Schedule;
use crate::shadow::Shadow;
use crate::tally::Tally;

/// A request whose head was offered to an engine.
pub struct Sent {
    pub id: String,
    pub tenant: EndpointId,
    /// On which connection, behind how many of its bytes, of which so many are its head.
    pub pipe: usize,
    pub from: u64,
    pub head: u64,
    /// The front heard that nothing of it was computed,
    pub refused: bool,
    /// or an answer, as only who is let in has it.
    pub let_in: bool,
    /// Its tenant's slot was emptied since.
    pub emptied: bool,
}

impl Shadow {
    /// The slot is this tenant's, and holds nothing.
    pub fn emptied(&mut self, tenant: EndpointId) {
        self.sent.iter_mut().filter(|sent| sent.tenant == tenant).for_each(|sent| sent.emptied = true);
    }
}

impl Schedule {
    /// Compares the index with what went where.
    pub fn check_held(&self, network: &Network, tally: &mut Tally) {
        let (Some(control), Some(shadow)) = (&network.control, &network.shadow) else { return };
        let Some(index) = &control.index else { return };
        control.check_index();
        let mut scan = Scan::new();
        let mut found = Matches::default();
        let tenants: Vec<EndpointId> = control.endpoints.iter().flatten().map(|endpoint| endpoint.id).collect();
        for plan in self.play.plans.iter().filter(|plan| plan.kind == Kind::Post) {
            let chain = chain(plan, &control.settings, &mut scan);
            index.longest(&chain, &tenants, &mut found);
            for &tenant in tenants.iter().filter(|tenant| found.found(tenant.slot).blocks > 0) {
                let mut sent =
                    shadow.sent.iter().enumerate().filter(|(_, sent)| sent.id == plan.id && sent.tenant == tenant);
                let fits = sent.any(|(at, sent)| {
                    let whole = sent_bytes(at, shadow, network) >= plan.body.len() as u64;
                    whole && !sent.refused && !sent.emptied && (sent.let_in || !plan.stranger)
                });
                assert!(fits || self.was_torn(), "{} is not held at {tenant:?}", plan.id);
                tally.held += 1;
            }
        }
        let figures = (0..index.seats() as u16).map(|slot| index.figures(slot));
        figures.for_each(|figures| {
            tally.pushed_out += figures.evicted;
            tally.taken_back += figures.taken_back;
        });
    }

    /// What a fault of ours tears is not taken back.
    fn was_torn(&self) -> bool {
        Tally::of_stats(self.statics.stats).panicked > self.before.panicked
    }
}

/// Bytes that went there behind the head, up to the next request of the same connection.
fn sent_bytes(at: usize, shadow: &Shadow, network: &Network) -> u64 {
    let sent = &shadow.sent[at];
    let next = shadow.sent[at + 1..].iter().find(|next| next.pipe == sent.pipe);
    next.map_or(network.pipes[sent.pipe].taken, |next| next.from).saturating_sub(sent.from + sent.head)
}

/// All of the prompt, however much of it was read before the choice.
fn chain(plan: &Plan, settings: &Settings, scan: &mut Scan) -> Vec<u64> {
    let target = plan.wire.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    scan.begin(Api::of_path(target), &settings.plan(), Needs::PREFIX);
    scan.push(&plan.body);
    let mut chain = Vec::new();
    scan.facts().chain(prefix::root(b"m", scan.facts().salt()), &mut chain);
    chain
}
