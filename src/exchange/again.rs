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
    /// The second and last time, with the same bytes, `after` what happened to the first.
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

    /// Chooses among the endpoints not tried yet, `after` one of them failed; it counts where there is one. Where
    /// tokens were counted before they are again: the prompt is read once more, from what is held of the request.
    /// Nothing of it was kept for this, since hardly any request comes here.
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
        // What lies behind that, where all was held for its model, would keep others waiting: it counts as new.
        self.read_anew(cx.rules.limits.hold_bytes);
        let looked_up = self.look_up(pool, cx);
        self.upload.give_back_scan(cx.lender);
        looked_up
    }

    /// The body as it is held, with the framing that it goes out in, up to where the first choice read it.
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
