//! A further try of a request that no engine has taken yet: the same bytes, and what is known of them once more.

use super::Exchange;
use super::event::Context;
use super::upload::Upload;
use super::warm::LookedUp;
use crate::counters::stats::Count;
use crate::fleet::EndpointId;
use crate::http::Body;
use crate::policy::Tokens;
use crate::scan::Progress;
use crate::snapshot::Pool;

impl Exchange {
    /// Sends the same bytes a second and last time. `after`: the count of what happened to the first.
    pub(super) fn try_again(&mut self, after: Count, cx: &mut Context<'_>) {
        self.retried = true;
        self.leave_endpoint(cx);
        self.send_again(after, cx);
    }

    /// The same bytes, to another endpoint than those tried.
    pub(super) fn send_again(&mut self, after: Count, cx: &mut Context<'_>) {
        self.upload.pushed = self.upload.naming.begins();
        self.choose_again(after, cx);
    }

    /// Chooses among the endpoints not tried yet, and counts `after` if there is one. If the first choice counted
    /// tokens, the prompt is scanned again from what is held of the request: hardly any request comes here, so that
    /// nothing is kept for it.
    pub(super) fn choose_again(&mut self, after: Count, cx: &mut Context<'_>) {
        let snapshot = cx.snapshot;
        let pool = self.pool_in(snapshot);
        let pool = pool.filter(|_| self.thought.is_some() && self.upload.held_whole);
        let looked_up = pool.and_then(|pool| self.look_up_anew(pool, cx));
        self.choose_endpoint(looked_up, cx);
        if self.leg.is_some() {
            cx.stats.count(after);
        }
    }

    fn look_up_anew(&mut self, pool: &Pool, cx: &mut Context<'_>) -> Option<LookedUp> {
        let scan = self.upload.take_scan(cx.lender);
        scan.begin(self.asked.api, &cx.snapshot.plan, cx.snapshot.needs);
        // No more than `hold_bytes`, though more may be held for the sake of its model: a longer scan would keep others
        // waiting. The rest counts as new.
        self.read_anew(cx.rules.limits.hold_bytes);
        let looked_up = self.look_up(pool, cx);
        self.upload.give_back_scan(cx.lender);
        looked_up
    }

    /// Scans the held body again, in the framing that it goes out in, at most `bytes_max` of it.
    pub(super) fn read_anew(&mut self, bytes_max: usize) {
        let Upload { held, head_end, scan: Some(scan), .. } = &mut self.upload else { return };
        let mut rest = held.get(*head_end as usize..).unwrap_or_default();
        let (mut body, mut left) = (Body::new(self.asked.framing.body), bytes_max);
        while left > 0
            && !body.done()
            && let Ok(part) = body.next(rest)
            && part.len > 0
        {
            let data = part.data(rest);
            let seen = data.get(..data.len().min(left)).unwrap_or_default();
            left -= seen.len();
            if scan.push(seen) != Progress::More {
                return;
            }
            rest = rest.get(part.len..).unwrap_or_default();
        }
        if body.done() {
            scan.finish();
        }
    }

    /// Where the first try noted that an endpoint will hold this prompt, it does not hold it yet: a connection that
    /// went stale says nothing against its endpoint, which may be chosen once more.
    pub(super) fn as_thought_before(&self, endpoint: EndpointId, tokens: Tokens) -> Tokens {
        self.thought.filter(|(before, _)| *before == endpoint).map_or(tokens, |(_, before)| before)
    }
}
